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
  // Elements from this tile to the one that the same thread reads next, which
  // Apply then asks for ahead; 0 if there is none.
  int64_t next = 0;
};

// Per-channel sums, arrays of length `channels` that are indexed by channel.
struct ChannelSums {
  double* dy;      // sum of y_backprop
  double* dy_xmu;  // sum of y_backprop * (x - mean)
};

// What x_backprop is made of: arrays in the type that it is computed in (double
// for float64, else float), one after the other, CoefficientStride apart.
enum Coefficient : int {
  kMean,
  kRstd,
  // Mean of y_backprop in two parts, so that y_backprop - mean loses nothing to
  // cancellation when the mean is large against the differences.
  kDyMean,
  kDyMeanRest,
  kXhatDyMean,  // scale_backprop / M
  kScaleRstd,
  kNumCoefficients,
};

// Elements from one array of coefficients to the next. Arrays are read in whole
// vectors, so a vector behind each must be readable; and they must not lie a
// multiple of 4 KiB apart, where the processor takes a load for an overlap with
// an earlier store.
static inline int64_t CoefficientStride(int64_t channels) {
  constexpr int64_t kPadding = 48;  // Three vectors of float, three lines.
  return channels + kPadding;
}

struct Kernels {
  // Writes the sums over the tile to sums.dy[c0..c1) and sums.dy_xmu[c0..c1).
  using Reduce = void (*)(const BatchNormGradArgs&, const Partition&,
                          const Tile&, const ChannelSums& sums);
  // Writes the coefficients of channels [c0, c1) from the sums over the view;
  // frozen, only scale * rstd, which needs no sums.
  using Coefficients = void (*)(const BatchNormGradArgs&, int64_t c0,
                                int64_t c1, const ChannelSums& sums,
                                void* coefficients);
  // Writes x_backprop of the tile. `stream`: store around the cache, for
  // results that nobody will read from it.
  using Apply = void (*)(const BatchNormGradArgs&, const Partition&,
                         const Tile&, const void* coefficients, bool stream);

  // Indexed by DType.
  Reduce reduce[kNumDTypes];
  Coefficients coefficients[kNumDTypes];
  Apply apply[kNumDTypes];
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_KERNELS_H_
