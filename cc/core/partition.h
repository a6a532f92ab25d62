// The fixed partition of a view: which elements are summed together, and in
// which blocks.
//
// It depends on the view alone, never on the number of threads, the cache or
// the instruction set, so the sums have the same bits on every run. How blocks
// are spread over threads, and how wide a group of channels is processed at
// once, is the backend's business and changes no bit.
//
// Sums are always taken down columns: a "row" is a run of contiguous elements,
// lanes of a vector are neighbouring columns, and columns of one channel are
// added up at the end of a block.
//
//   kRows  one row is all channels of `fold` outer indices: fold * channels *
//   inner columns.
//          Channels-last, and channels-first with a short inner dimension.
//          Folding gives small channel counts (1, 3, 4, ...) full vectors.
//   kRuns  one row is a run of kRunColumns elements within one channel.
//   Channels-first with a
//          long inner dimension.

#ifndef TF_BN_OPS_CC_CORE_PARTITION_H_
#define TF_BN_OPS_CC_CORE_PARTITION_H_

#include <cstdint>

#include "cc/core/view.h"

namespace tf_bn_ops {

// Columns of a row in kRuns: four 64-byte vectors of float, enough independent
// sums to hide the latency of an addition.
constexpr int64_t kRunColumns = 64;

// Most columns that a group of channels may have in kRows. Per column a backend
// keeps two running sums and the mean in double: 24 KiB for 1024 columns,
// inside a 32 KiB L1 cache.
constexpr int64_t kMaxColumns = 1024;

// Longest chain of additions down a column: after this many rows the running
// sums of a block are set aside and begin anew. It bounds the rounding error of
// float64 sums and is part of the partition because it fixes their order.
constexpr int64_t kChainRows = 1024;

struct Partition {
  enum Kind { kRows, kRuns };
  Kind kind = kRows;
  int64_t fold = 1;  // kRows: outer indices in one row.
  int64_t outer_blocks =
      1;  // The outer dimension is cut into this many ranges ...
  int64_t inner_blocks =
      1;  // ... and, in kRuns, the inner dimension into this many.
};

// Partial sums per channel.
static inline int64_t NumBlocks(const Partition& p) {
  return p.outer_blocks * p.inner_blocks;
}

// Block `b` in units of elements: outer range [o0, o1), inner range [i0, i1).
struct Block {
  int64_t o0, o1, i0, i1;
};

Partition MakePartition(const View& view);

// Requires 0 <= b < NumBlocks(partition).
Block BlockAt(const View& view, const Partition& partition, int64_t b);

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_PARTITION_H_
