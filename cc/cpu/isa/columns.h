// What a pass keeps of the columns of a row: centers, sums and coefficients;
// and how channels are spread over their columns, and columns added up to
// channels.

#pragma once

#include <cstdint>
#include <cstring>

#include "cc/core/dtype.h"
#include "cc/core/partition.h"
#include "cc/core/two_level_sum.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

// From the values of one kind of all columns of a row to the next kind's.
constexpr int64_t kColumnStride = kMaxRowColumns + kColumnPadding;

// Coefficient i of column c is first[i * stride + c].
template <typename T>
using CoefficientOf = typename Compute<T>::Scalar;
template <typename C>
struct ColumnCoefficients {
  const C* first;
  int64_t stride;
};

// The center and the sums of each column, behind one base pointer: half is 1.05
// to 1.1 times as fast as with a pointer for each, which spill.
template <typename T, int kSums>
struct ColumnSums {
  alignas(kCacheLineBytes) TermOf<T> center[kColumnStride];
  alignas(kCacheLineBytes) double sum[kSums][kColumnStride];
};
template <typename T>
struct ColumnSums<T, 0> {};

// Writes the value of each channel to all of its columns: a cache line at a
// time, whose loop the compiler unrolls, then the rest.
template <typename C>
void SpreadChannels(const C* by_channel, int64_t channels, int64_t per_channel,
                    C* columns) {
  constexpr int64_t kLine = kCacheLineBytes / sizeof(C);
  for (int64_t c = 0; c < channels; ++c) {
    const C value = by_channel[c];
    int64_t i = 0;
    for (; i + kLine <= per_channel; i += kLine) {
      for (int64_t j = 0; j < kLine; ++j) columns[i + j] = value;
    }
    for (; i < per_channel; ++i) columns[i] = value;
    columns += per_channel;
  }
}
// Repeats the first `columns` of an array until there are `total`.
template <typename C>
void RepeatColumns(int64_t columns, int64_t total, C* array) {
  for (int64_t done = columns; done < total;) {
    const int64_t n = done < total - done ? done : total - done;
    std::memcpy(array + done, array, n * sizeof(C));
    done += n;
  }
}

// Writes what the columns of `channels` channels, each of `per_channel`
// columns, are measured from. Out of line: it would be an eighth of the code of
// a pass. kElements: centers are elements, which a chain's type holds.
template <typename T, bool kElements>
__attribute__((noinline)) void SetCenters(const double* centers,
                                          int64_t channels, int64_t per_channel,
                                          TermOf<T>* columns) {
  const auto rounded = [](double center) {
    return static_cast<TermOf<T>>(kIsNarrow<T> && !kElements
                                      ? ChainCenter(FormatOf<T>::kDType, center)
                                      : center);
  };
  if (per_channel == 1) {  // In a loop that vectorizes.
    for (int64_t c = 0; c < channels; ++c) columns[c] = rounded(centers[c]);
    return;
  }
  for (int64_t c = 0; c < channels; ++c) {
    const TermOf<T> center = rounded(centers[c]);
    SpreadChannels(&center, 1, per_channel, columns + c * per_channel);
  }
}

// Adds up `n` neighbouring columns in interleaved chains: short chains for
// speed, a fixed number of them so that all builds are bitwise identical.
double AddColumns(const double* column, int64_t n) {
  static_assert(kColumnChains == 8);
  double chain[kColumnChains] = {};
  const int64_t whole = n / kColumnChains * kColumnChains;
  for (int64_t i = 0; i < whole; i += kColumnChains) {
    for (int j = 0; j < kColumnChains; ++j) chain[j] += column[i + j];
  }
  for (int64_t i = whole; i < n; ++i) chain[i - whole] += column[i];
  return ((chain[0] + chain[1]) + (chain[2] + chain[3])) +
         ((chain[4] + chain[5]) + (chain[6] + chain[7]));
}

// Adds the columns of `channels` channels, each `per_channel` neighbours, to
// their sums.
inline void AddToChannels(const double* columns, int64_t channels,
                          int64_t per_channel, double* sums) {
  if (per_channel == 1) {  // The same, in a loop that vectorizes.
    for (int64_t c = 0; c < channels; ++c) sums[c] += columns[c];
    return;
  }
  for (int64_t c = 0; c < channels; ++c) {
    sums[c] += AddColumns(columns + c * per_channel, per_channel);
  }
}

}  // namespace
}  // namespace tf_bn_ops
