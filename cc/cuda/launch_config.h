// Launch configuration and parameters of the kernels. How a view is tiled over
// thread blocks and threads. A function of the view, the element type and (for
// the elementwise kernel alone) the alignment of its output, never of the
// device: it fixes the order of every sum, so that results are bitwise
// identical on all devices.
//
// Tensors are read in vectors of 16 bytes, V elements, on a grid of vectors
// that starts at the first element. A thread block is three-dimensional,
// threads_x * threads_y * threads_z:
//
//   channels last (inner == 1)   A row is `fold` outer indices, fold * channels
//       columns, a multiple of V. Thread x owns one vector of columns, V
//       channels, in every row; an item is a row. threads_y is 1, or, where the
//       sums of V channels are too many for a thread, the number of slices:
//       thread y owns one slice of the vector.
//   channels first (inner > 1)   A run is the contiguous stretch of one channel
//       at one outer index. Thread y is a channel; its threads_x threads read a
//       run in `steps` strides, and an item is one stride of one run. Vectors
//       that reach into a neighbouring run are masked.
//
// Tiles divide the columns or channels among thread blocks. Splits divide the
// items of a tile, as in a split-K reduction: each split yields one partial sum
// per channel. Thread z takes every threads_z-th item of its split. A launch
// covers all tiles or a range of them (launch_plan.h), which changes no sum.

#ifndef TF_BN_OPS_CC_CUDA_LAUNCH_CONFIG_H_
#define TF_BN_OPS_CC_CUDA_LAUNCH_CONFIG_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {
namespace cuda {

// Threads per block. Two blocks of 128 registers per thread fill the register
// file of a multiprocessor.
constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;
// Minimum items per thread: with fewer, the tree reduction of a block costs
// more than its loop.
constexpr int kMinItems = 4;
// Maximum items of a group (device_loop.h).
constexpr int kMaxGroupItems = 8;
// Maximum threads_x of a channels-last row: 512 contiguous bytes, one warp.
constexpr int kRowThreads = 32;
// Minimum vectors of a run that gets a whole block per channel.
constexpr int64_t kLongRun = 1024;
// Target grid size: several blocks per multiprocessor on the largest devices
// (the 132 of an H200 hold 264 blocks at a time), and few enough partial sums
// that the finish kernel is cheap.
constexpr int64_t kTargetBlocks = 1024;
// Channels-first tensors of at least kLargeBytes get one channel per tile and
// splits of about kSplitBytes, so that a group of few channels (launch_plan.h)
// still fills the device. Prologue and epilogue of a block cost about a tenth
// of the time in which it reads a split (an estimate, not measured).
constexpr int64_t kLargeBytes = int64_t{32} << 20;
constexpr int64_t kSplitBytes = int64_t{128} << 10;

// a / b of numbers that are not negative; devices divide 32-bit numbers in a
// fifth of the instructions.
static TFBN_HD int64_t Divide(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? static_cast<int64_t>(static_cast<uint32_t>(a) /
                                                     static_cast<uint32_t>(b))
                              : a / b;
}

struct LaunchConfig {
  View view;
  int64_t elements = 0;
  bool channels_last = false;
  // Elements by which the grid of vectors starts before the first element, so
  // that the vectors of a misaligned output are aligned. 0 in the reduction.
  int shift = 0;

  int threads_x = 1, threads_y = 1, threads_z = 1;  // Product <= kThreads.
  int64_t fold = 1;         // Channels last: outer indices per row.
  int64_t row_vectors = 0;  // Channels last: vectors per row.
  int64_t steps = 1;        // Channels first: strides of threads_x per run.
  int64_t tiles = 0;
  int64_t items = 0;  // Rows, or outer indices * steps.
  int64_t splits = 1;
  // Channels first: runs and steps from one item of a thread to its next one,
  // and from one group of items to the next one.
  int item_runs = 0, item_steps = 0, group_runs = 0, group_steps = 0;
  // Vectors inside the tensors are whole, and 32 bits hold the offsets of
  // vectors: in a group for channels-last, in the tensors for channels-first.
  bool whole = false;
  // The range of tiles that a launch covers.
  int64_t first_tile = 0;
  int64_t launch_tiles = 0;

  // Partial sums per split: one per column, or one per channel.
  TFBN_HD int64_t Columns() const { return view.channels * fold; }
  TFBN_HD int64_t ChannelOf(int64_t column) const {
    return fold == 1 ? column : column % view.channels;
  }
  TFBN_HD int64_t GridSize() const { return launch_tiles * splits; }
  TFBN_HD int64_t SplitOf(int64_t block) const {
    return Divide(block, launch_tiles);
  }
  TFBN_HD int64_t TileOf(int64_t block) const {
    return first_tile + (block - SplitOf(block) * launch_tiles);
  }
};

static inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns of a row to tiles; `vector` is V, which `slices` divide.
static inline void TileRows(int vector, int slices, LaunchConfig* config) {
  LaunchConfig& c = *config;
  while (c.fold * c.view.channels % vector != 0) c.fold *= 2;
  const int64_t columns = c.Columns();
  c.row_vectors = columns / vector;
  c.threads_y = slices;
  // Tiles of equal width rather than a narrow last one.
  c.threads_x = static_cast<int>(
      CeilDiv(c.row_vectors, CeilDiv(c.row_vectors, kRowThreads)));
  c.tiles = CeilDiv(c.row_vectors, c.threads_x);
  c.items = CeilDiv(c.elements + c.shift, columns);
}

// Channels to tiles, and runs to strides.
static inline void TileRuns(int vector, bool large, LaunchConfig* config) {
  LaunchConfig& c = *config;
  const int64_t inner = c.view.inner, channels = c.view.channels;
  // Vectors that a run overlaps, wherever it starts on the grid of vectors.
  const bool aligned = c.shift == 0 && inner % vector == 0;
  const int64_t vectors =
      aligned ? inner / vector : (inner + vector - 2) / vector + 1;
  if (vectors >= kLongRun) {
    c.threads_x = kThreads;
    c.steps = CeilDiv(vectors, kThreads);
  } else {
    c.steps = CeilDiv(vectors, kRowThreads);
    c.threads_x = static_cast<int>(CeilDiv(vectors, c.steps));
  }
  // As many channels as fit, in tiles of equal width; half as many where that
  // leaves fewer threads idle.
  const int64_t most =
      large && vectors > kRowThreads / 2 ? 1 : kThreads / c.threads_x;
  const int64_t tiles = CeilDiv(channels, most);
  const int64_t wide = CeilDiv(channels, tiles);
  const int64_t narrow = CeilDiv(channels, 2 * tiles);
  const bool halve = most / narrow * narrow > most / wide * wide;
  c.threads_y = static_cast<int>(halve ? narrow : wide);
  c.tiles = CeilDiv(channels, c.threads_y);
  c.items = c.view.outer * c.steps;
}

// What the loop of a thread needs of `c`.
static inline void DescribeItems(int vector, LaunchConfig* config) {
  LaunchConfig& c = *config;
  if (c.channels_last) {
    c.whole = kMaxGroupItems * c.threads_z * c.row_vectors <= UINT32_MAX;
    return;
  }
  c.item_runs = static_cast<int>(c.threads_z / c.steps);
  c.item_steps = static_cast<int>(c.threads_z % c.steps);
  c.group_runs = static_cast<int>(kMaxGroupItems * c.threads_z / c.steps);
  c.group_steps = static_cast<int>(kMaxGroupItems * c.threads_z % c.steps);
  c.whole = c.shift == 0 && c.view.inner % vector == 0 &&
            c.elements / vector <= UINT32_MAX;
}

// `vector` is V, 0 <= shift < V, `slices` those of a vector. Requires a view
// with elements.
static inline LaunchConfig MakeLaunchConfig(const View& view, int vector,
                                            int shift, int slices = 1) {
  LaunchConfig c;
  c.view = view;
  c.elements = NumElements(view);
  c.shift = shift;
  c.channels_last = view.inner == 1;
  const int64_t bytes = c.elements * (kVectorBytes / vector);
  const bool large = !c.channels_last && bytes >= kLargeBytes;
  if (c.channels_last) {
    TileRows(vector, slices, &c);
  } else {
    TileRuns(vector, large, &c);
  }
  c.threads_z = kThreads / (c.threads_x * c.threads_y);
  DescribeItems(vector, &c);
  int64_t splits = CeilDiv(kTargetBlocks, c.tiles);
  if (large) splits = std::max(splits, CeilDiv(bytes / c.tiles, kSplitBytes));
  const int64_t most = CeilDiv(c.items, int64_t{kMinItems} * c.threads_z);
  c.splits = std::max<int64_t>(1, std::min(splits, most));
  c.launch_tiles = c.tiles;
  return c;
}

// Maximum sums of a thread: what fits into the static shared memory of a block
// beside a few coefficients, and into registers.
constexpr int kMaxThreadSums = 16;

// Slices of a vector of `vector` columns with `sums` sums each.
constexpr int SlicesOf(int vector, int sums) {
  int slices = 1;
  while (slices < vector && vector / slices * sums > kMaxThreadSums) {
    slices *= 2;
  }
  return slices;
}

// The parameters of a kernel.
template <typename Formula>
struct KernelParams {
  typename Formula::Args args;
  LaunchConfig config;
  double* partial_sums = nullptr;  // [kNumSums][splits][Columns()]
  void* coefficients = nullptr;  // [kNumCoefficients][channels], compute type.
  // An output of view shape is the buffer of an input.
  bool in_place = false;
  // The range of channels that a finish kernel covers.
  int64_t first_channel = 0;
  int64_t end_channel = 0;
};

}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_LAUNCH_CONFIG_H_
