// How the GPU kernels cut a view into blocks of threads. A function of the
// view, the element type and (for the elementwise pass alone) the alignment of
// its output: never of the device, so the order of every sum is fixed.
//
// Tensors are read in vectors of 16 bytes, V elements, on a grid that starts at
// the tensor's first element. Two ways of cutting cover all layouts:
//
//   rows  (inner == 1)  A row is `fold` outer indices, fold * channels columns,
//         a multiple of V; a thread owns one vector of columns, V channels, and
//         walks down rows.
//   runs  (inner > 1)   A run is the contiguous stretch of one channel at one
//         outer index. `lanes` threads take a run in `steps` strides; vectors
//         that cover a neighbour's elements too are masked.
//
// Thread t of a block is lane t % lanes of channel k = t / lanes % channels
// and item lane z = t / (lanes * channels). Items (rows; in runs, one stride of
// one outer index) are cut into `blocks` ranges, and the z lanes of a block
// take the items of its range in turn. A launch covers all tiles, or a part of
// them (schedule.h), which changes no sum.

#ifndef TF_BN_OPS_CC_CUDA_GEOMETRY_H_
#define TF_BN_OPS_CC_CUDA_GEOMETRY_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {
namespace cuda {

// Threads in every block. Two blocks of 128 registers a thread fill the
// registers of a multiprocessor.
constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;
// Fewest items of a thread that pay for a block's partial sums.
constexpr int kMinItems = 4;
// Vectors of a row that neighbouring threads read: 512 bytes, a warp's worth.
constexpr int kRowLanes = 32;
// Fewest vectors of a run that deserve a whole block for themselves.
constexpr int64_t kLongRun = 1024;
// Blocks of the grid that are aimed at: several per multiprocessor on the
// largest devices (132 of them on an H200 hold 264 blocks at a time), and few
// enough that adding up their partial sums costs little.
constexpr int64_t kTargetBlocks = 1024;
// Runs of a tensor of kLargeBytes and more are cut finer, so that few channels
// can be a launch (schedule.h) and still have many blocks: one channel in a
// tile where its runs are wide enough for it, and ranges of about kRangeBytes.
// Beginning and end of a block cost about a tenth of that many bytes.
constexpr int64_t kLargeBytes = int64_t{32} << 20;
constexpr int64_t kRangeBytes = int64_t{128} << 10;

struct Geometry {
  View view;
  int64_t elements = 0;
  bool rows = false;
  // Elements by which the vector grid starts before the first element, so that
  // vectors of a misaligned output are aligned. Always 0 where sums are made.
  int shift = 0;

  int lanes = 1, channels = 1, item_lanes = 1;  // Their product: <= kThreads.
  int64_t fold = 1;                             // rows: outer indices in a row.
  int64_t row_vectors = 0;                      // rows: vectors in a row.
  int64_t steps = 1;   // runs: strides of `lanes` vectors in a run.
  int64_t tiles = 0;   // Ranges of columns (rows) or channels (runs).
  int64_t items = 0;   // Rows, or outer indices * steps.
  int64_t blocks = 1;  // Ranges of items.
  // The tiles of a launch.
  int64_t first_tile = 0;
  int64_t launch_tiles = 0;

  // Partial sums of a block range: one per column, or one per channel.
  TFBN_HD int64_t Columns() const { return view.channels * fold; }
  TFBN_HD int64_t Grid() const { return launch_tiles * blocks; }
  TFBN_HD int64_t TileOf(int64_t block) const {
    return first_tile + block % launch_tiles;
  }
  TFBN_HD int64_t RangeOf(int64_t block) const { return block / launch_tiles; }
};

static inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `vector` is the number of elements in kVectorBytes, 0 <= shift < vector.
// Requires a view with elements.
static inline Geometry MakeGeometry(const View& view, int vector, int shift) {
  Geometry g;
  g.view = view;
  g.elements = NumElements(view);
  g.shift = shift;
  g.rows = view.inner == 1;
  const int64_t bytes = g.elements * (kVectorBytes / vector);
  const bool large = bytes >= kLargeBytes;
  if (g.rows) {
    while (g.fold * view.channels % vector != 0) g.fold *= 2;
    const int64_t row = g.fold * view.channels;
    g.row_vectors = row / vector;
    // Tiles of equal width rather than a narrow last one.
    g.lanes = static_cast<int>(
        CeilDiv(g.row_vectors, CeilDiv(g.row_vectors, kRowLanes)));
    g.tiles = CeilDiv(g.row_vectors, g.lanes);
    g.items = CeilDiv(g.elements + shift, row);
  } else {
    // Vectors that a run touches, wherever it starts on the grid.
    const bool aligned = shift == 0 && view.inner % vector == 0;
    const int64_t vectors =
        aligned ? view.inner / vector : (view.inner + vector - 2) / vector + 1;
    if (vectors >= kLongRun) {
      g.lanes = kThreads;
      g.steps = CeilDiv(vectors, kThreads);
    } else {
      g.steps = CeilDiv(vectors, kRowLanes);
      g.lanes = static_cast<int>(CeilDiv(vectors, g.steps));
    }
    // As many channels as fit, in tiles of equal width; half as many where that
    // leaves fewer threads without work.
    const int64_t most =
        large && vectors > kRowLanes / 2 ? 1 : kThreads / g.lanes;
    const int64_t tiles = CeilDiv(view.channels, most);
    const int64_t wide = CeilDiv(view.channels, tiles);
    const int64_t narrow = CeilDiv(view.channels, 2 * tiles);
    g.channels = static_cast<int>(
        most / narrow * narrow > most / wide * wide ? narrow : wide);
    g.tiles = CeilDiv(view.channels, g.channels);
    g.items = view.outer * g.steps;
  }
  g.item_lanes = kThreads / (g.lanes * g.channels);
  int64_t ranges = CeilDiv(kTargetBlocks, g.tiles);
  if (!g.rows && large) {
    ranges = std::max(ranges, CeilDiv(bytes / g.tiles, kRangeBytes));
  }
  g.blocks = std::max<int64_t>(
      1, std::min(ranges, CeilDiv(g.items, int64_t{kMinItems} * g.item_lanes)));
  g.launch_tiles = g.tiles;
  return g;
}

}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_GEOMETRY_H_
