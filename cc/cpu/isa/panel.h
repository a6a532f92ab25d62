// Panels, the rectangles of rows and columns that a pass walks through, and the
// strips that they are cut into.

#pragma once

#include <cstdint>

#include "cc/core/partition.h"
#include "cc/core/view.h"
#include "cc/cpu/isa/prefetch.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/kernels.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

// Whether the build leaves out what makes large calls faster alone, which is
// half of its code: non-temporal stores and the pipeline.
#if defined(TFBN_SMALL_BUILD)
constexpr bool kIsSmallBuild = true;
#else
constexpr bool kIsSmallBuild = false;
#endif
constexpr StorePolicy kPastCaches =
    kIsSmallBuild ? StorePolicy::kTemporal : StorePolicy::kNonTemporal;

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

// Elements from `p` to the first that begins a cache line.
template <typename T>
int64_t ElementsToFullLine(const T* p) {
  const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) %
                                           kCacheLineBytes / sizeof(T));
  return (kLineElements<T> - offset) % kLineElements<T>;
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

}  // namespace
}  // namespace tf_bn_ops
