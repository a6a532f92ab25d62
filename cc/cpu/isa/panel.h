// Panels: the rectangles of rows and columns that a pass walks through, the
// parts of them by store policy, and the strips that they are cut into.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/partition.h"
#include "cc/core/view.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

// Whether the build leaves out what makes large calls faster alone, which is
// half of its code: non-temporal stores, which are temporal ones then, and the
// pipeline.
#if defined(TFBN_SMALL_BUILD)
constexpr bool kIsSmallBuild = true;
#else
constexpr bool kIsSmallBuild = false;
#endif

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

// The tensors of view shape, as elements.
template <typename F, typename T>
struct TensorPointers {
  const T* in[F::kInputs];
  T* out[F::kOutputs];
  bool in_place[F::kOutputs];  // Whether an output is the buffer of an input.
  const T* read_later;         // Tile::read_later.
};

template <typename F, typename T>
TensorPointers<F, T> PointersOf(const Call& call) {
  const auto tensors = F::TensorsOf(call);
  TensorPointers<F, T> pointers;
  pointers.read_later = nullptr;
  for (int i = 0; i < F::kInputs; ++i) {
    pointers.in[i] = static_cast<const T*>(tensors.in[i]);
  }
  for (int i = 0; i < F::kOutputs; ++i) {
    pointers.out[i] = static_cast<T*>(tensors.out[i]);
    pointers.in_place[i] = IsInPlace(tensors, i);
  }
  return pointers;
}

// Rows of `columns` contiguous elements, `row_stride` elements apart.
struct Panel {
  int64_t first_element;  // Of the tensors: row 0, column 0.
  int64_t rows, row_stride, columns;
  PrefetchOffsets prefetch = {};
  int64_t first_column = 0;  // Columns before it are left out.

  // Its first rows, at most `most`.
  Panel FirstRows(int64_t most) const {
    Panel first = *this;
    if (rows > most) first.rows = most;
    return first;
  }
  // Leaves out the first `n` rows, or all.
  void SkipRows(int64_t n) {
    first_element += n * row_stride;
    rows = rows > n ? rows - n : 0;
    prefetch.far_row -= n;
  }
};

// The rows of a tile in kRows: `full` rows of `fold` outer indices, then one
// row of those that remain.
struct RowPanels {
  Panel full, remainder;
};

template <typename T>
RowPanels RowPanelsOf(const View& view, const Partition& partition,
                      const Tile& tile) {
  const int64_t outer_stride = view.channels * view.inner;
  const int64_t outer_columns = (tile.c1 - tile.c0) * view.inner;
  const int64_t outers = tile.block.o1 - tile.block.o0;
  const int64_t rows = outers / partition.fold;
  const int64_t columns = partition.fold * outer_columns;
  const int64_t stride = partition.fold * outer_stride;
  const int64_t first = tile.block.o0 * outer_stride + tile.c0 * view.inner;
  return RowPanels{{first, rows, stride, columns,
                    PanelPrefetch<T>(tile, rows, columns, stride)},
                   {first + rows * stride, 1, stride,
                    outers % partition.fold * outer_columns}};
}

// Elements of a cache line.
template <typename T>
constexpr int64_t kLineElements =
    kCacheLineBytes / static_cast<int64_t>(sizeof(T));

// Elements from `element` of the outputs to the first that begins a cache line;
// -1 if the outputs are aligned differently.
template <typename F, typename T>
int64_t ElementsToFullLine(T* const (&out)[F::kOutputs], int64_t element) {
  const auto offset = [&](const T* p) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p + element) %
                                kCacheLineBytes / sizeof(T));
  };
  for (const T* p : out) {
    if (offset(p) != offset(out[0])) return -1;
  }
  return (kLineElements<T> - offset(out[0])) % kLineElements<T>;
}

// Calls pass(policy, panel) for all of a panel, with the policy as a constant.
// Non-temporal stores need full cache lines: the columns left and right of them
// are a part each, with temporal stores. Where rows or outputs are aligned
// differently, or have few full lines beside other columns, all stores are
// temporal.
template <typename F, typename T, typename Pass>
void ForEachStorePart(const TensorPointers<F, T>& tensors, const Panel& panel,
                      StorePolicy policy, const Pass& pass) {
  constexpr std::integral_constant<StorePolicy, StorePolicy::kTemporal>
      kTemporal{};
  constexpr std::integral_constant<StorePolicy, kIsSmallBuild
                                                    ? StorePolicy::kTemporal
                                                    : StorePolicy::kNonTemporal>
      kNonTemporal{};
  constexpr int64_t kLine = kLineElements<T>;
  if (panel.rows == 0 || panel.columns == 0) return;
  if (policy != StorePolicy::kNonTemporal) return pass(kTemporal, panel);
  const int64_t lead = ElementsToFullLine<F>(tensors.out, panel.first_element);
  const bool alike = panel.rows == 1 || panel.row_stride % kLine == 0;
  const bool whole = lead == 0 && panel.columns % kLine == 0;
  if (lead < 0 || !alike ||
      (!whole && panel.columns - lead < kLeastFullLines * kLine)) {
    return pass(kTemporal, panel);
  }
  const int64_t end = panel.columns - (panel.columns - lead) % kLine;
  const auto columns = [](Panel part, int64_t first, int64_t last) {
    part.first_column = first;
    part.columns = last;
    return part;
  };
  // A few rows at a time, so that all columns of a row are read from memory
  // together.
  const int64_t at_once = whole ? panel.rows : kMaxRowsPerStrip;
  for (Panel left = panel; left.rows > 0; left.SkipRows(at_once)) {
    const Panel rows = left.FirstRows(at_once);
    if (lead > 0) pass(kTemporal, columns(rows, 0, lead));
    pass(kNonTemporal, columns(rows, lead, end));
    if (end < panel.columns) {
      pass(kTemporal, columns(rows, end, panel.columns));
    }
  }
}

// A part of a panel: `rows` rows of a few vectors of columns from `column` on,
// whose sums and coefficients are in registers meanwhile.
struct Strip {
  int64_t first_element;  // Row 0, column 0.
  int64_t rows, row_stride, prefetch_offset, column;
  int partial_lanes;  // Columns of a partial vector.
};

// Prefetches for kVectors vectors of a row of a strip, from `element` on.
// kSums: the pass stores nothing.
template <int kVectors, bool kSums, typename F, typename T>
TFBN_INLINE void PrefetchRow(const TensorPointers<F, T>& tensors,
                             const Strip& strip, int64_t element) {
  if constexpr (kSums) {
    if (tensors.read_later != nullptr) {
      Prefetch<T, kVectors>(tensors.read_later + element);
    }
  }
  if (strip.prefetch_offset == 0) return;
  for (int i = 0; i < F::kInputs; ++i) {
    const T* const read = tensors.in[i] + element;
    Prefetch<T, kVectors>(read + strip.prefetch_offset);
  }
}

// Whether a vector is a cache line, as with AVX-512.
constexpr bool kVectorIsLine = kVectorBytes == kCacheLineBytes;

// Vectors that hold a cache line of elements.
template <typename T>
constexpr int kLineVectors =
    kCacheLineBytes / static_cast<int>(sizeof(T)) / kLanesOf<T>;

// Vectors in a strip of a pass that keeps `values` values per column in
// registers: as many as fit into `registers` of them. With the 32 registers of
// AVX-512 a segment of kSegmentColumns floats is one strip.
constexpr int VectorsPerStrip(int values, int registers) {
  int vectors = kRegisters / 8;
  while (vectors > 1 && vectors * values > registers) --vectors;
  return vectors;
}

// How many rows the strips of a pass have.
struct StripRows {
  int least, most = kMaxRowsPerStrip;
  // The strips that prefetch within the panel have a multiple of so many rows
  // in sum, as strips of two-level sums must.
  int multiple = 1;
};

// Rows in a strip. Sums and coefficients stay in registers, or side by side on
// the stack, for all of them, which saves up to two thirds of the accesses to
// L1. All rows when the strip is as wide as a row, for then they are read in
// order of addresses; else at most kStripBytes, but the least number of rows.
template <typename T, int kVectors>
TFBN_INLINE int64_t RowsPerStrip(const Panel& panel, const StripRows& rows) {
  if (panel.columns == kVectors * kLanesOf<T>) return panel.rows;
  const int64_t fit =
      kStripBytes / (panel.row_stride * static_cast<int64_t>(sizeof(T)));
  return fit < rows.least ? rows.least : fit < rows.most ? fit : rows.most;
}

// Cuts a panel into strips: function(vectors, partial, strip), where `vectors`
// is the number of vectors as a constant, and `partial` whether it is one
// partial vector. kWholeLines: the columns are whole cache lines.
template <typename T, int kVectors, bool kWholeLines, typename Function>
TFBN_INLINE void ForEachStrip(const Panel& panel, const StripRows& strip_rows,
                              const Function& function) {
  constexpr int kLanes = kLanesOf<T>;
  constexpr std::integral_constant<int, kVectors> kMany{};
  constexpr std::integral_constant<int, 1> kOne{};
  const int64_t rows_per_strip = RowsPerStrip<T, kVectors>(panel, strip_rows);
  // One or two parts, which prefetch differently.
  const int64_t far_row = (panel.prefetch.far_row + strip_rows.multiple - 1) /
                          strip_rows.multiple * strip_rows.multiple;
  for (int64_t r = 0, rows = 0; r < panel.rows; r += rows) {
    const bool near = r < far_row;
    const int64_t end = near && far_row < panel.rows ? far_row : panel.rows;
    rows = end - r < rows_per_strip ? end - r : rows_per_strip;
    Strip strip{panel.first_element + r * panel.row_stride,
                rows,
                panel.row_stride,
                near ? panel.prefetch.near : panel.prefetch.far,
                panel.first_column,
                0};
    int64_t& c = strip.column;
    for (; c + kVectors * kLanes <= panel.columns; c += kVectors * kLanes) {
      function(kMany, std::false_type(), strip);
    }
    if constexpr (!kWholeLines || kVectors * kLanes > kLineElements<T>) {
      for (; c + kLanes <= panel.columns; c += kLanes) {
        function(kOne, std::false_type(), strip);
      }
    }
    if constexpr (!kWholeLines) {
      if (c < panel.columns) {
        strip.partial_lanes = static_cast<int>(panel.columns - c);
        function(kOne, std::true_type(), strip);
      }
    }
  }
}

}  // namespace
}  // namespace tf_bn_ops
