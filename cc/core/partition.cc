// The choice of the fixed partition. Everything here is a function of the view
// alone.

#include "cc/core/partition.h"

#include <algorithm>

namespace tf_bn_ops {
namespace {

// Fewest columns of a row whose independent sums hide latencies (see
// kSegmentColumns).
constexpr int64_t kMinColumns = 64;
// Above this inner size, or with too few outer rows to pay for flushing so many
// columns, rows become segments of one channel.
constexpr int64_t kMaxInnerInRows = kMaxRowColumns;
constexpr int64_t kMinOuterInRows = 8;
// Elements in a block: 256 KiB of float per tensor, large against the cost of
// scheduling a block on a thread (about 10 microseconds), small enough to
// balance load on tensors of a few MB.
constexpr int64_t kBlockElements = int64_t{1} << 16;
// Fewest rows of a block, which flushes its columns once.
constexpr int64_t kMinBlockRows = 32;
// Bound of the partial sums, two doubles per channel and block, unless a single
// block exceeds it: 1 MiB, less a page for the parts of a workspace that do not
// grow with the number of channels.
constexpr int64_t kPartialSumsBytes = (int64_t{1} << 20) - 4096;
constexpr int64_t kBytesPerPartialSum = 2 * sizeof(double);

// Outer indices per row: the fewest that make a row of at least kMinColumns
// columns without a partial vector; where no such row is short enough, the
// fewest with kMinColumns columns.
int64_t ChooseFold(int64_t columns) {
  int64_t fallback = 0;
  for (int64_t fold = 1; fold * columns <= kMaxRowColumns; fold *= 2) {
    if (fold * columns < kMinColumns) continue;
    if (fold * columns % kMaxLanes == 0) return fold;
    if (fallback == 0) fallback = fold;
  }
  return fallback == 0 ? 1 : fallback;
}

}  // namespace

Partition MakePartition(const View& view) {
  Partition p;
  if (NumElements(view) == 0) return p;
  const int64_t by_memory = std::max<int64_t>(
      1, kPartialSumsBytes / (kBytesPerPartialSum * view.channels));

  const bool segments =
      view.inner > kMaxInnerInRows ||
      (view.inner >= kMinColumns && view.outer < kMinOuterInRows);
  if (!segments) {
    p.kind = Partition::kRows;
    p.fold = ChooseFold(view.channels * view.inner);
    const int64_t rows = CeilDiv(view.outer, p.fold);
    const int64_t by_size = CeilDiv(NumElements(view), kBlockElements);
    p.outer_blocks =
        std::min({by_size, by_memory, CeilDiv(rows, kMinBlockRows)});
    return p;
  }
  p.kind = Partition::kSegments;
  const int64_t segments_per_inner = CeilDiv(view.inner, kSegmentColumns);
  // Here a block holds one channel.
  const int64_t by_size = CeilDiv(ElementsPerChannel(view), kBlockElements);
  const int64_t blocks =
      std::min({by_size, by_memory,
                CeilDiv(view.outer * segments_per_inner, kMinBlockRows)});
  p.outer_blocks = std::min(blocks, view.outer);
  p.inner_blocks =
      std::min(CeilDiv(blocks, p.outer_blocks), segments_per_inner);
  // Rounding up may exceed what memory allows.
  while (p.inner_blocks > 1 && NumBlocks(p) > by_memory) --p.inner_blocks;
  return p;
}

Block BlockAt(const View& view, const Partition& p, int64_t b) {
  const int64_t ob = b / p.inner_blocks;
  const int64_t ib = b % p.inner_blocks;
  // Ranges differ by at most one row; 128-bit products are not needed, because
  // block counts are at most 2^16 and row counts below 2^47 in any address
  // space.
  const int64_t rows = CeilDiv(view.outer, p.fold);
  const int64_t segments = CeilDiv(view.inner, kSegmentColumns);
  Block block;
  block.o0 = rows * ob / p.outer_blocks * p.fold;
  block.o1 = std::min(rows * (ob + 1) / p.outer_blocks * p.fold, view.outer);
  block.i0 = segments * ib / p.inner_blocks * kSegmentColumns;
  block.i1 = std::min(segments * (ib + 1) / p.inner_blocks * kSegmentColumns,
                      view.inner);
  return block;
}

}  // namespace tf_bn_ops
