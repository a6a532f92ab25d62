// What one instruction-set build of the CPU kernels offers to the driver
// (cc/cpu).

#ifndef TF_BN_OPS_CC_CPU_ISA_KERNELS_H_
#define TF_BN_OPS_CC_CPU_ISA_KERNELS_H_

#include <cstdint>

#include "cc/core/batch_norm_grad.h"
#include "cc/core/partition.h"

namespace tf_bn_ops {

// Channels [c0, c1) of one block. In kRows the group must have at most
// kMaxColumns columns (fold * (c1 - c0) * inner), and all channels if fold > 1.
struct Tile {
  Block block;
  int64_t c0, c1;
};

// Per-channel sums, arrays of length `channels` that are indexed by channel.
struct ChannelSums {
  double* dy;      // sum of y_backprop
  double* dy_xmu;  // sum of y_backprop * (x - mean)
};

struct Kernels {
  // Writes the sums over the tile to sums.dy[c0..c1) and sums.dy_xmu[c0..c1).
  using Reduce = void (*)(const BatchNormGradArgs&, const Partition&,
                          const Tile&, const ChannelSums& sums);
  // Writes x_backprop of the tile from the sums over the whole view. `stream`:
  // store around the cache, for results that nobody will read from it.
  using Apply = void (*)(const BatchNormGradArgs&, const Partition&,
                         const Tile&, const ChannelSums& sums, bool stream);

  Reduce reduce[kNumDTypes];  // Indexed by DType.
  Apply apply[kNumDTypes];
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_KERNELS_H_
