// Software prefetch: what both passes request from memory before they read it.
//
// Hardware prefetchers alone follow few streams, stop at every page and do not
// know the next row; lines that are requested while this thread computes cost
// no time later. Both passes read memory in the order of addresses, a few short
// rows side by side at most, so that hardware prefetchers follow, too.

#pragma once

#include <cstdint>

#include "cc/core/partition.h"
#include "cc/core/view.h"
#include "cc/cpu/isa/vec.h"
#include "cc/cpu/kernels.h"
#include "cc/cpu/tuning.h"

namespace tf_bn_ops {
namespace {

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

// What the rows of a panel prefetch, in elements ahead: rows before `far_row`
// `near`, the others, whose distance ends outside of the panel, `far`. 0: no
// prefetch.
struct PrefetchOffsets {
  int64_t far_row = 0, near = 0, far = 0;
};

// A distance of kBytes in elements of a tensor.
template <typename T, int64_t kBytes>
constexpr int64_t kElementsAhead = kBytes / static_cast<int64_t>(sizeof(T));

// Of a tile that is one panel of `rows` rows. Of short parts of rows the whole
// next tile is prefetched, which stands beside it: what is read and what is
// prefetched are then neighbours in memory. (1.02 times as fast in float32 and
// 1.12 times in half as some rows ahead in the own tile, [32, 512, 784] on one
// thread with AVX2.) The last tile of a block, which may be narrower, does
// as the others do: its neighbour's columns are the distance between both.
template <typename T>
PrefetchOffsets PanelPrefetch(const Tile& tile, int64_t rows, int64_t columns,
                              int64_t row_stride) {
  if (tile.prefetch == PrefetchKind::kNone || rows == 0) return {};
  const int64_t next = tile.next_offset;
  if (tile.prefetch == PrefetchKind::kNextTile) return {0, next, next};
  const auto rows_ahead = [](int64_t of_columns) {
    constexpr int64_t kAhead = kElementsAhead<T, kPrefetchBytes>;
    return (kAhead + of_columns - 1) / of_columns;
  };
  const int64_t ahead = rows_ahead(columns);
  const int64_t apart = next < 0 ? -next : next;
  const bool beside = apart < row_stride;
  const int64_t widest = apart > columns ? apart : columns;
  if (ahead > rows ||
      (beside && kLeastRowsOfDistances * rows_ahead(widest) > rows)) {
    if (next == 0) return {};
    const int64_t far = (ahead + rows - 1) / rows * next;
    return {0, far, far};
  }
  return {rows - ahead, ahead * row_stride,
          next == 0 ? 0 : next - (rows - ahead) * row_stride};
}

// Of a tile in kSegments, kBytes ahead: the rows of a channel, one for each
// outer index, then the next channel's, then the next tile's.
template <typename T, int64_t kBytes = kPrefetchBytes>
class SegmentPrefetch {
 public:
  SegmentPrefetch(const View& view, const Tile& tile)
      : tile_(tile),
        inner_(view.inner),
        outer_stride_(view.channels * view.inner),
        outers_(tile.block.o1 - tile.block.o0),
        length_(tile.block.i1 - tile.block.i0),
        rows_(length_ < kAhead ? (kAhead + length_ - 1) / length_ : 1),
        channels_ahead_(rows_ / outers_),
        outers_ahead_(rows_ % outers_) {}

  // Of the segments of channel `c` at outer index `o`.
  PrefetchOffsets Of(int64_t c, int64_t o) const {
    const int64_t next = tile_.next_offset;
    switch (tile_.prefetch) {
      case PrefetchKind::kNone:
        return {};
      case PrefetchKind::kNextTile:
        return {0, next, next};
      case PrefetchKind::kFixedDistance:
        break;
    }
    const int64_t row = OffsetAhead(c, o);
    if (length_ <= kAhead) return {0, row, row};
    return {(length_ - kAhead) / kSegmentColumns, kAhead,
            row == 0 ? 0 : row - (length_ - kAhead)};
  }

 private:
  static constexpr int64_t kAhead = kElementsAhead<T, kBytes>;

  // Elements to the row that is read rows_ rows later; 0 if there is none.
  int64_t OffsetAhead(int64_t c, int64_t o) const {
    int64_t channels = channels_ahead_, outers = outers_ahead_, offset = 0;
    if (o + outers >= tile_.block.o1) {
      ++channels;
      outers -= outers_;
    }
    if (c + channels >= tile_.c1) {
      if (tile_.next_offset == 0) return 0;
      offset = tile_.next_offset;
      channels -= tile_.c1 - tile_.c0;
    }
    return offset + channels * inner_ + outers * outer_stride_;
  }

  const Tile& tile_;
  const int64_t inner_, outer_stride_, outers_, length_;
  // The distance in rows, and as channels and outer indices.
  const int64_t rows_, channels_ahead_, outers_ahead_;
};

}  // namespace
}  // namespace tf_bn_ops
