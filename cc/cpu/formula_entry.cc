// Instantiates the formulas for the driver.

#include "cc/cpu/formula_entry.h"

#include <algorithm>

#include "cc/core/formulas/formula.h"
#include "cc/core/two_level_sum.h"

namespace tf_bn_ops {
namespace {

#define TFBN_INDEX_OF(unused, F, name) \
  constexpr FormulaIndex IndexOf(const F*) { return FormulaIndex::k##F; }
TFBN_FOR_EACH_FORMULA(TFBN_INDEX_OF, )

// Channels that are added up again, at most kMost of them, neighbours as far as
// there are: row by row, since one after the other they would each read a cache
// line of every row.
template <typename F>
struct FarChannels {
  static constexpr int kMost = 64;
  int count = 0;
  int64_t c[kMost];
  double center[kMost];  // That they were measured from,
  double mean[kMost];    // and that they are measured from now.
  double sums[kMost][F::kNumSums];
};

// Adds up the elements, of type T, of some channels in double, around their
// means.
template <typename F, typename T>
void SumInDouble(const Call& call, const T* /*unused*/,
                 FarChannels<F>* channels) {
  const Tensors tensors = F::TensorsOf(call);
  const View& view = call.view;
  FarChannels<F>& far = *channels;
  for (int n = 0; n < far.count; ++n) {
    for (double& sum : far.sums[n]) sum = 0;
  }
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int n = 0; n < far.count; ++n) {
      const int64_t first = (o * view.channels + far.c[n]) * view.inner;
      double of_line[F::kNumSums] = {};
      for (int64_t i = 0; i < view.inner; ++i) {
        double in[F::kInputs] = {};
        for (int k = 0; k < F::kNumReduceInputs; ++k) {
          in[k] = ToDouble(static_cast<const T*>(tensors.in[k])[first + i]);
        }
        F::Accumulate(in, far.mean[n], of_line);
      }
      for (int k = 0; k < F::kNumSums; ++k) far.sums[n][k] += of_line[k];
    }
  }
}

// Adds up far channels again, and stores their sums around their old centers.
template <typename F>
void SumAgain(const Call& call, FarChannels<F>* far, const ChannelSums& total) {
  if (far->count == 0) return;
  TFBN_SWITCH_DTYPE(
      call.dtype, if constexpr (kIsNarrow<T>) {
        SumInDouble(call, static_cast<const T*>(nullptr), far);
      });
  const auto count = static_cast<double>(ElementsPerChannel(call.view));
  for (int n = 0; n < far->count; ++n) {
    const double shift = far->mean[n] - far->center[n];
    // Not where the center is an infinity or NaN, either.
    if (shift < 0 || shift > 0) F::Recenter(count, shift, far->sums[n]);
    for (int k = 0; k < F::kNumSums; ++k) {
      SumsOfChannel(total, k)[far->c[n]] = far->sums[n][k];
    }
  }
  far->count = 0;
}

// Two-level sums are around a rounded center, or around an element that may be
// too far off.
template <typename F>
void Recenter(const Call& call, int64_t c0, int64_t c1,
              const ChannelSums& total) {
  if constexpr (!kIsFrozenOnly<F>) {
    const int num_sums = call.is_training ? F::kNumSums : F::kNumFrozenSums;
    if (!IsNarrow(call.dtype) || num_sums < F::kNumSums) return;
    const CenterArray centers = F::CentersOf(call);
    const auto count = static_cast<double>(ElementsPerChannel(call.view));
    [[maybe_unused]] FarChannels<F> far;
    for (int64_t c = c0; c < c1; ++c) {
      double sums[F::kNumSums];
      LoadChannelSums<F::kNumSums>(total, c, sums);
      if constexpr (kCentersAreElements<F>) {
        // IsFarCenter but for roundings, without a division or the center,
        // which take longer: 0.3 us for 64 channels of half.
        constexpr double kFar = kFarCenter * kFarCenter;
        const double squared = sums[F::kXcSum] * sums[F::kXcSum];
        if (!((kFar + 1.001) * squared > kFar * count * sums[F::kXcXcSum])) {
          continue;
        }
      }
      const double center = CenterAt(centers, c);
      if constexpr (kCentersAreElements<F>) {
        const BatchStatistics of = F::StatisticsOf(call, center, sums);
        if (!IsFarCenter(center, of)) continue;
        if (far.count == far.kMost) SumAgain(call, &far, total);
        const int n = far.count++;
        far.c[n] = c;
        far.center[n] = center;
        far.mean[n] = of.mean;
      } else {
        const double shift = ChainCenter(call.dtype, center) - center;
        // Not where the center is an infinity or NaN, either.
        if (!(shift < 0 || shift > 0)) continue;
        F::Recenter(count, shift, sums);
        for (int k = 0; k < num_sums; ++k) SumsOfChannel(total, k)[c] = sums[k];
      }
    }
    if constexpr (kCentersAreElements<F>) SumAgain(call, &far, total);
  }
}

template <typename F>
void StoreEmpty(const Call& call) {
  for (int64_t c = 0; c < call.view.channels; ++c) F::StoreEmpty(call, c);
}

template <typename F>
FormulaEntry MakeEntry(const char* name) {
  FormulaEntry entry = {
      {name, F::kKind, F::kInputs, F::kOutputs, TileColumns<F>(true),
       TileColumns<F>(false), kHasEarlyOutput<F>},
      F::kNumSums,
      F::kNumFrozenSums,
      F::kNumCoefficients,
      F::TensorsOf,
      Recenter<F>,
      StoreEmpty<F>,
      {}};
  if constexpr (kHasEarlyOutput<F>) {
    using Second = typename F::SecondPass;
    entry.early = {F::FirstPass::TensorsOf,
                   IndexOf(static_cast<const Second*>(nullptr)),
                   F::SecondPassArgs, F::kEarlyInput};
  }
  return entry;
}

const FormulaEntry* Entries() {
#define TFBN_ENTRY_OF(unused, F, name) MakeEntry<F>(name),
  static const FormulaEntry entries[] = {
      TFBN_FOR_EACH_FORMULA(TFBN_ENTRY_OF, )};
  return entries;
}

}  // namespace

const FormulaEntry& EntryOf(FormulaIndex formula) {
  return Entries()[static_cast<int>(formula)];
}

const FormulaEntry* FindFormula(const std::string& name) {
  const FormulaEntry* const end = Entries() + kNumFormulas;
  const FormulaEntry* const found = std::find_if(
      Entries(), end,
      [&](const FormulaEntry& entry) { return name == entry.traits.name; });
  return found == end ? nullptr : found;
}

}  // namespace tf_bn_ops
