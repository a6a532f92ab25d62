// Tree reduction in shared memory.
//
// Kernels are sequences of phases, Block::ForEachThread(f): f(t) for every
// thread t, then a barrier; Block::LastPhase(f) has none. Only shared memory
// survives a phase, so that the host emulator (testing/emulator.cc) can run the
// threads one by one.

#ifndef TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_TREE_REDUCTION_H_
#define TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_TREE_REDUCTION_H_

#include "cc/core/host_device.h"
#include "cc/cuda/launch_config.h"

namespace tf_bn_ops {
namespace cuda {
namespace {

// Adds up `n` values `stride` apart in each of the kSums arrays; the result is
// the first. index_of(t) says which of the n values is that of thread t. The
// shape of the tree depends on n alone, which fixes the order of additions; n
// need not be a power of two. Threads from `threads` on are idle.
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

#endif  // TF_BN_OPS_CC_CUDA_DEVICE_DEVICE_TREE_REDUCTION_H_
