// What blocks of threads have in common: phases, the tile of a block in shared
// memory, and tree reduction.
//
// Kernels are sequences of phases, Block::ForEachThread(f): f(t) for every
// thread t, then a barrier. Only shared memory survives a phase, so that the
// host emulator can run the threads one by one.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_BLOCK_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_BLOCK_H_

#include "cc/core/host_device.h"
#include "cc/cuda/device_vector.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

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

// Adds up `n` values `stride` apart in each of the kSums arrays; the result is
// the first. index_of(t) says which of the n values is thread t's. The shape of
// the tree depends on n alone, which fixes the order of additions; n need not
// be a power of two. Threads from `threads` on are idle.
template <int kSums, typename Block, typename IndexOf>
TFBN_HD void TreeReduce(Block& block, double (*sums)[kThreads], int n,
                        int stride, int threads, const IndexOf& index_of) {
  while (n > 1) {
    const int half = (n + 1) / 2;
    block.ForEachThread([&](int t) {
      if (t >= threads || index_of(t) >= n - half) return;
      TFBN_UNROLL
      for (int s = 0; s < kSums; ++s) sums[s][t] += sums[s][t + half * stride];
    });
    n = half;
  }
}

}  // namespace
}  // namespace cuda
}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_BLOCK_H_
