// Software prefetch: what both passes request from memory before they read it.
//
// Hardware prefetchers alone follow few streams, stop at every page and do not
// know the next row; lines that are requested while this thread computes cost
// no time later. Both passes read memory in the order of addresses, a few short
// rows side by side at most, so that hardware prefetchers follow, too.

#ifndef TF_BN_OPS_CC_CPU_ISA_PREFETCH_H_
#define TF_BN_OPS_CC_CPU_ISA_PREFETCH_H_

#include <cstdint>

#include "cc/core/partition.h"
#include "cc/core/view.h"
#include "cc/cpu/isa/isa_kernels.h"
#include "cc/cpu/isa/vec.h"

namespace tf_bn_ops {
namespace {

// Bytes of a row that a step of several rows covers at most (RowsPerStep): two
// pages, which hardware prefetchers follow as one stream.
constexpr int64_t kStepBytes = 8192;

// Software prefetch distance in bytes, in traversal order. Below kStepBytes
// lines arrive late; from 8 to 32 KiB there was no difference.
constexpr int64_t kPrefetchBytes = 16384;

// Prefetches kVectors vectors of elements into L2: L1 would evict them before
// they are read.
template <typename T, int kVectors>
TFBN_INLINE void Prefetch(const T* p) {
  constexpr int kLocalityL2 = 2;
  constexpr int kBytes = kVectors * kLanesOf<T> * static_cast<int>(sizeof(T));
  for (int i = 0; i < kBytes; i += kCacheLineBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + i, 0, kLocalityL2);
  }
}

// kPrefetchBytes in elements of the tensor, for a tile that has `columns`
// elements in each of `rows` rows, `row_stride` apart. Where that lies far
// beyond the last row, it is what stands to the right, which is read after the
// rows.
template <typename T>
int64_t FixedPrefetchOffset(int64_t rows, int64_t columns, int64_t row_stride) {
  const int64_t elements = kPrefetchBytes / static_cast<int64_t>(sizeof(T));
  const int64_t rows_ahead = (elements + columns - 1) / columns;
  if (columns == row_stride || 8 * rows_ahead <= rows) {
    return rows_ahead * row_stride;
  }
  const int64_t divisor = rows < 1 ? 1 : rows;
  return (rows_ahead + rows - 1) / divisor * columns;
}

// The prefetch offset of a tile's rows; 0: no prefetch.
template <typename T>
int64_t PrefetchOffset(const Tile& tile, int64_t rows, int64_t columns,
                       int64_t row_stride) {
  if (tile.l2_resident) return 0;
  return tile.prefetch_offset != 0
             ? tile.prefetch_offset
             : FixedPrefetchOffset<T>(rows, columns, row_stride);
}

// The same for the runs of a tile: in a later outer index, unless runs are
// long.
template <typename T>
int64_t RunPrefetchOffset(const View& view, const Tile& tile) {
  const int64_t length = tile.block.i1 - tile.block.i0;
  if (length * static_cast<int64_t>(sizeof(T)) > 4 * kPrefetchBytes) {
    return PrefetchOffset<T>(tile, 1, kRunColumns, kRunColumns);
  }
  return PrefetchOffset<T>(tile, view.outer, length,
                           view.channels * view.inner);
}

// The prefetch of a row of a pipeline in kRuns: kPipelineBytes ahead in the
// order in which memory is read, which goes on with the same columns of the
// next outer index, and behind the last one with the next channel.
struct RowPrefetch {
  // Columns before `far_column` prefetch `near` elements ahead, others `far`.
  int64_t far_column, near, far;

  // 16 KiB took 10 to 20% longer where rows are short (docs/benchmarks.md).
  static constexpr int64_t kPipelineBytes = 4096;

  TFBN_INLINE int64_t OffsetAt(int64_t column) const {
    return column < far_column ? near : far;
  }

  // Of `columns` elements at outer index `o`.
  template <typename T>
  static RowPrefetch Of(int64_t o, int64_t columns, const View& view) {
    constexpr int64_t kAhead = kPipelineBytes / static_cast<int64_t>(sizeof(T));
    const int64_t stride = view.channels * view.inner;
    const auto later = [&](int64_t rows) {
      return o + rows < view.outer ? rows * stride
                                   : (rows - view.outer) * stride + view.inner;
    };
    if (columns <= kAhead) {
      const int64_t offset = later((kAhead + columns - 1) / columns);
      return {0, offset, offset};
    }
    return {columns - kAhead, kAhead, later(1) - columns + kAhead};
  }
};

}  // namespace
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_PREFETCH_H_
