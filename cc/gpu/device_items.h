// What belongs to the threads of a block: the items that each one reads, the
// tile of the block in shared memory, and the tree reduction over threads.
//
// Kernels are sequences of phases, Block::ForEachThread(f): f(t) for every
// thread t, then a barrier. Only shared memory survives a phase, so that the
// host emulator can run the threads one by one.

#pragma once

#include <cstdint>

#include "cc/core/host_device.h"
#include "cc/gpu/device_vector.h"
#include "cc/gpu/launch_config.h"

namespace tf_bn_ops::gpu {

// `n`, about which the compiler of device code knows nothing: where it knows
// that the first item of a batch is present, it uses its vectors before it
// loads the next ones, to save registers.
TFBN_HD int Opaque(int n) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(n));
#endif
  return n;
}

// The place of a thread, and its items in its split, one after the other.
template <typename T, bool kChannelsLast>
struct ThreadItems {
  static constexpr int kVector = kVectorOf<T>;
  const LaunchConfig& config;
  int x, y, z;
  bool active;     // Outside the tile a thread only takes part in barriers.
  int left;        // Items from the next one on.
  int64_t column;  // Channels last: vector of a row. First: channel.
  // Element at which the next item's vector (channels last) or segment begins.
  int64_t at;
  int stride = 0;  // Channels first: of the next item.

  TFBN_HD ThreadItems(const LaunchConfig& launch, int64_t block, int thread)
      : config(launch) {
    const int64_t split = config.SplitOf(block), tile = config.TileOf(block);
    const int row = thread / config.threads_x;
    x = thread - row * config.threads_x;
    z = row / config.threads_y;
    y = row - z * config.threads_y;
    const int64_t first = Divide(config.items * split, config.splits) + z;
    const int64_t end = Divide(config.items * (split + 1), config.splits);
    left = first < end
               ? static_cast<int>(Divide(end - first + config.threads_z - 1,
                                         config.threads_z))
               : 0;
    if constexpr (kChannelsLast) {
      column = tile * config.threads_x + x;
      active = z < config.threads_z && column < config.row_vectors;
      at = (first * config.row_vectors + column) * kVector;
    } else {
      column = tile * config.threads_y + y;
      active = z < config.threads_z && column < config.view.channels;
      const int64_t outer = Divide(first, config.strides);
      stride = static_cast<int>(first - outer * config.strides);
      at = (outer * config.view.channels + column) * config.view.inner;
    }
  }

  // Channels last: column of element `e` of the thread's vector. First: the
  // channel.
  TFBN_HD int64_t Column(int e) const {
    return kChannelsLast ? column * kVector + e : column;
  }

  // Whether the vectors of the next `items` items are whole, or absent.
  TFBN_HD bool AreWhole(int items) const {
    if constexpr (kChannelsLast) {
      const int last = (items < left ? items : left) - 1;
      return at + last * RowStride() + kVector <= config.elements;
    } else {
      return config.view.inner % kVector == 0;
    }
  }

  // The vector of the next item. kWhole: as AreWhole says.
  template <bool kWhole>
  TFBN_HD VectorSlot Next() {
    const bool present = Opaque(left--) > 0;
    VectorSlot slot{at, 0, kVector};
    if constexpr (kChannelsLast) {
      if (!kWhole) slot.end = Clamp(config.elements - at);
      at += RowStride();
    } else {
      slot.element =
          static_cast<int64_t>(static_cast<uint64_t>(at) / kVector * kVector) +
          (int64_t{stride} * config.threads_x + x) * kVector;
      const int64_t end = at + config.view.inner - slot.element;
      if (!kWhole) slot.begin = Clamp(at - slot.element);
      slot.end = kWhole ? (end > 0 ? kVector : 0) : Clamp(end);
      const int strides = static_cast<int>(config.strides);
      int segments = config.item_segments;
      stride += config.item_strides;
      if (stride >= strides) {
        stride -= strides;
        ++segments;
      }
      at += segments * (config.view.channels * config.view.inner);
    }
    if (!present) slot.end = 0;
    return slot;
  }

  static TFBN_HD int Clamp(int64_t n) {
    return n < 0 ? 0 : n > kVector ? kVector : static_cast<int>(n);
  }
  // Channels last: elements between two items of the thread.
  TFBN_HD int64_t RowStride() const {
    return config.threads_z * config.row_vectors * kVector;
  }
};

// Where shared memory holds what belongs to a column of the tile: element `e`
// of the vector of thread x, or channel y. The elements of a thread are one
// address and constants; an element of padding spreads threads over the banks.
template <typename T, bool kChannelsLast>
TFBN_HD int IndexInTile(int x, int y, int e) {
  return kChannelsLast ? x * (kVectorOf<T> + 1) + e : y;
}
// Elements of such an array.
constexpr int kTileElements = kThreads + kRowThreads;

// f(c, at) for the channel of every column (or every channel) of the tile of
// `block`, in thread t of the t-th; `at` is its IndexInTile.
template <typename T, bool kChannelsLast, typename F>
TFBN_HD void ForColumnOfTile(const LaunchConfig& config, int64_t block, int t,
                             const F& f) {
  constexpr int kVector = kVectorOf<T>;
  const int width =
      kChannelsLast ? config.threads_x * kVector : config.threads_y;
  const int64_t column = config.TileOf(block) * width + t;
  if (t >= width || column >= config.Columns()) return;
  f(config.ChannelOf(column),
    IndexInTile<T, kChannelsLast>(t / kVector, t, t % kVector));
}

// Adds up groups of `n` values `stride` apart in each of the kSums arrays; the
// result is the first of a group. The shape of the tree depends on n alone,
// which fixes the order of additions; n need not be a power of two. Threads
// from `threads` on are idle.
template <int kSums, typename Block>
TFBN_HD void TreeReduce(Block& block, double (*sums)[kThreads], int n,
                        int stride, int threads) {
  const int all = n;
  while (n > 1) {
    const int half = (n + 1) / 2;
    block.ForEachThread([&](int t) {
      if (t >= threads || t / stride % all >= n - half) return;
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) sums[s][t] += sums[s][t + half * stride];
    });
    n = half;
  }
}

}  // namespace tf_bn_ops::gpu
