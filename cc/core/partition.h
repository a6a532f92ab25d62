// The fixed partition of a view: which elements are summed together, in which
// order, and in which blocks.
//
// It is a function of the view alone, never of the number of threads, the cache
// sizes or the ISA, so that sums are bitwise reproducible. How blocks are
// scheduled on threads, and how many channels of one are a tile, is the
// backend's business and changes no bit.
//
// Sums are accumulated column-wise: a row is a number of contiguous elements,
// lanes of a vector are neighbouring columns, and the columns of one channel
// are added up at the end of a block.
//
//   kRows      A row is all channels of `fold` outer indices: fold * channels *
//              inner columns. Channels-last, and channels-first with a short
//              inner dimension. Folding gives small channel counts (1, 3, 4,
//              ...) full vectors.
//   kSegments  A row is a segment: kSegmentColumns elements of one channel.
//              Channels-first with a long inner dimension.

#pragma once

#include <cstdint>

#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Columns of a row in kSegments: four 64-byte vectors of float, enough
// independent sums to hide the latency of an addition.
constexpr int64_t kSegmentColumns = 64;

// Lanes of the widest vector (16 floats): rows of a multiple of this many
// columns have no partial vector.
constexpr int64_t kMaxLanes = 16;

// Rows are folded to at most this many columns, and channels with a longer
// inner dimension are cut into segments. (How many columns a tile of them has
// depends on the formula, see TileColumns in cc/cpu/kernels.h.)
constexpr int64_t kMaxRowColumns = 1024;

// Longest chain of additions down a column: after this many rows the
// sums of a block are flushed to the channel's and begin anew, which bounds the
// rounding error of float64 sums.
constexpr int64_t kChainRows = 1024;

// Maximum terms that narrow elements (kIsNarrow) of a column are added up in
// float32 before their sum is added in double, see two_level_sum.h.
// TWO_LEVEL_CHAIN of tf_bn_ops/conformance/models/bounds.py.
constexpr int kTwoLevelChain = 8;

// Interleaved chains in which the columns of one channel are added up.
constexpr int64_t kColumnChains = 8;

static_assert(kSegmentColumns % kMaxLanes == 0 &&
                  kMaxRowColumns % kMaxLanes == 0,
              "a full row ends in a partial vector");
static_assert(kChainRows % kTwoLevelChain == 0,
              "a two-level chain is cut where the sums of a block are flushed");

struct Partition {
  enum Kind { kRows, kSegments };
  Kind kind = kRows;
  int64_t fold = 1;  // kRows: outer indices in one row.
  // The outer dimension is cut into this many ranges, and in kSegments the
  // inner dimension, too.
  int64_t outer_blocks = 1;
  int64_t inner_blocks = 1;
};

// Blocks, each with a partial sum per channel.
static TFBN_HD int64_t NumBlocks(const Partition& p) {
  return p.outer_blocks * p.inner_blocks;
}

// Elements of a block: outer range [o0, o1), inner range [i0, i1).
struct Block {
  int64_t o0, o1, i0, i1;
};

Partition MakePartition(const View& view);

// Block `b`, 0 <= b < NumBlocks(partition).
Block BlockAt(const View& view, const Partition& partition, int64_t b);

}  // namespace tf_bn_ops
