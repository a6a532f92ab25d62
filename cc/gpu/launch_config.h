// How a view is cut into thread blocks, threads and partial sums.
//
// A function of the view and the element type, never of the device: it fixes
// the order of every sum, so that results are bitwise identical on all devices.
//
// Tensors are read in vectors of 16 bytes, V elements, on a grid of vectors
// that starts at the first element. A thread block is three-dimensional,
// threads_x * threads_y * threads_z:
//
//   channels last (inner == 1)   A row is `fold` outer indices, fold * channels
//       columns, a multiple of V. Thread x owns one vector of columns in every
//       row; an item is a row. threads_y is 1, or, where the sums of V channels
//       are too many for a thread, the number of slices: thread y owns one
//       slice of the vector.
//   channels first (inner > 1)   A segment is the contiguous stretch of one
//       channel at one outer index. Thread y is a channel; its threads_x
//       threads read a segment in `strides` strides, and an item is one stride
//       of one segment. Vectors that reach into a neighbouring segment are
//       masked.
//
// Tiles divide the columns or channels among thread blocks. Splits divide the
// items of a tile, as in a split-K reduction: each split yields one partial sum
// per column or channel. Thread z takes every threads_z-th item of its split.

#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/core/call.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops::gpu {

// Threads per block. Two blocks of 128 registers per thread fill the register
// file of a multiprocessor.
constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;
// Minimum items per thread: with fewer, the tree reduction of a block costs
// more than its loop.
constexpr int kMinItems = 4;
// Maximum threads_x of a channels-last row: 512 contiguous bytes, one warp.
constexpr int kRowThreads = 32;
// Minimum vectors of a segment that gets a whole block per channel.
constexpr int64_t kLongSegment = 1024;
// Target grid size: several blocks per multiprocessor on the largest devices
// (the 132 of an H200 hold 264 blocks at a time), and few enough partial sums
// that the finish kernel is cheap.
constexpr int64_t kTargetBlocks = 1024;

// a / b of numbers that are not negative; devices divide 32-bit numbers in a
// fifth of the instructions.
TFBN_HD int64_t Divide(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? static_cast<int64_t>(static_cast<uint32_t>(a) /
                                                     static_cast<uint32_t>(b))
                              : a / b;
}

struct LaunchConfig {
  View view;
  int64_t elements = 0;
  bool channels_last = false;
  int threads_x = 1, threads_y = 1, threads_z = 1;  // Product <= kThreads.
  int64_t fold = 1;         // Channels last: outer indices per row.
  int64_t row_vectors = 0;  // Channels last: vectors per row.
  int64_t strides = 1;      // Channels first: of threads_x per segment.
  int64_t tiles = 0;
  int64_t items = 0;  // Rows, or outer indices * strides.
  int64_t splits = 1;
  // Channels first: segments and strides from one item of a thread to the next.
  int item_segments = 0, item_strides = 0;

  // Partial sums per split: one per column, or one per channel.
  TFBN_HD int64_t Columns() const { return view.channels * fold; }
  TFBN_HD int64_t ChannelOf(int64_t column) const {
    return fold == 1 ? column : column % view.channels;
  }
  TFBN_HD int64_t GridSize() const { return tiles * splits; }
  TFBN_HD int64_t SplitOf(int64_t block) const { return Divide(block, tiles); }
  TFBN_HD int64_t TileOf(int64_t block) const {
    return block - SplitOf(block) * tiles;
  }
};

// Columns of a row to tiles; `vector` is V, which `slices` divide.
inline void TileRows(int vector, int slices, LaunchConfig* config) {
  LaunchConfig& c = *config;
  while (c.fold * c.view.channels % vector != 0) c.fold *= 2;
  c.row_vectors = c.Columns() / vector;
  c.threads_y = slices;
  // Tiles of equal width rather than a narrow last one.
  c.threads_x = static_cast<int>(
      CeilDiv(c.row_vectors, CeilDiv(c.row_vectors, kRowThreads)));
  c.tiles = CeilDiv(c.row_vectors, c.threads_x);
  c.items = CeilDiv(c.elements, c.Columns());
}

// Channels to tiles, and segments to strides.
inline void TileSegments(int vector, LaunchConfig* config) {
  LaunchConfig& c = *config;
  const int64_t inner = c.view.inner, channels = c.view.channels;
  // Vectors that a segment overlaps, wherever it starts on the grid.
  const int64_t vectors =
      inner % vector == 0 ? inner / vector : (inner + vector - 2) / vector + 1;
  if (vectors >= kLongSegment) {
    c.threads_x = kThreads;
    c.strides = CeilDiv(vectors, kThreads);
  } else {
    c.strides = CeilDiv(vectors, kRowThreads);
    c.threads_x = static_cast<int>(CeilDiv(vectors, c.strides));
  }
  // As many channels as fit, in tiles of equal width; half as many where that
  // leaves fewer threads idle.
  const int64_t most = kThreads / c.threads_x;
  const int64_t tiles = CeilDiv(channels, most);
  const int64_t wide = CeilDiv(channels, tiles);
  const int64_t narrow = CeilDiv(channels, 2 * tiles);
  const bool halve = most / narrow * narrow > most / wide * wide;
  c.threads_y = static_cast<int>(halve ? narrow : wide);
  c.tiles = CeilDiv(channels, c.threads_y);
  c.items = c.view.outer * c.strides;
}

// `vector` is V, which has `slices` slices. A view without elements has no
// tiles.
inline LaunchConfig MakeLaunchConfig(const View& view, int vector, int slices) {
  LaunchConfig c;
  c.view = view;
  c.elements = NumElements(view);
  if (c.elements == 0) return c;
  c.channels_last = view.inner == 1;
  c.channels_last ? TileRows(vector, slices, &c) : TileSegments(vector, &c);
  c.threads_z = kThreads / (c.threads_x * c.threads_y);
  c.item_segments = static_cast<int>(c.threads_z / c.strides);
  c.item_strides = static_cast<int>(c.threads_z % c.strides);
  const int64_t most = CeilDiv(c.items, int64_t{kMinItems} * c.threads_z);
  c.splits = std::min(CeilDiv(kTargetBlocks, c.tiles), most);
  return c;
}

// Maximum sums of a thread: what fits into the static shared memory of a block
// beside a few coefficients, and into registers.
constexpr int kMaxThreadSums = 16;

// Slices of a vector of `vector` columns with `sums` sums each.
constexpr int SlicesOf(int vector, int sums) {
  int slices = 1;
  while (slices < vector && vector / slices * sums > kMaxThreadSums)
    slices *= 2;
  return slices;
}

// The parameters of a kernel.
struct KernelParams {
  Call call;
  LaunchConfig config;
  double* partial_sums = nullptr;  // [kNumSums][splits][Columns()]
  void* coefficients = nullptr;  // [kNumCoefficients][channels], compute type.
  bool aligned = false;          // All tensors of view shape, to kVectorBytes.
  bool in_place = false;  // An output of view shape is the buffer of an input.
};

}  // namespace tf_bn_ops::gpu
