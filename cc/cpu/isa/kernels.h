// What one instruction-set build of the CPU kernels offers to the driver
// (cc/cpu).

#ifndef TF_BN_OPS_CC_CPU_ISA_KERNELS_H_
#define TF_BN_OPS_CC_CPU_ISA_KERNELS_H_

#include <cstdint>

#include "cc/core/batch_norm_grad.h"
#include "cc/core/batch_norm_grad_grad.h"
#include "cc/core/partition.h"

namespace tf_bn_ops {

// Channels [c0, c1) of one block. In kRows the group must have at most
// kMaxColumns columns (fold * (c1 - c0) * inner), and all channels if fold > 1.
struct Tile {
  Block block;
  int64_t c0, c1;
  // Elements from this tile to the one that the same thread reads next, which a
  // pass asks memory for while it computes; 0: it asks for what it reads itself
  // a little later.
  int64_t next = 0;
  // Nothing is asked for: what is read is in the private cache already.
  bool in_cache = false;
};

// Per-channel sums: arrays of length `channels`, one after the other, that are
// indexed by channel.
struct ChannelSums {
  double* first;
  int64_t channels;
};
static inline double* SumsOf(const ChannelSums& sums, int k) {
  return sums.first + k * sums.channels;
}

// The tensors of view shape.
template <int kInputs, int kOutputs>
struct Tensors {
  const void* in[kInputs];
  void* out[kOutputs];
};

// What driver and kernels have to agree on, for each order of the gradient: the
// tensors, the sums of the first pass, and the coefficients of the second,
// arrays in the type that it computes in (double for float64, else float), one
// after the other, CoefficientStride apart. Frozen, only the first
// kNumFrozenSums sums are made, and only the coefficients from
// kFirstFrozenCoefficient on.

struct FirstOrder {
  using Args = BatchNormGradArgs;
  enum Input : int { kDy, kX, kInputs };
  static constexpr int kOutputs = 1;
  enum Sum : int {
    kDySum,     // y_backprop
    kDyXmuSum,  // y_backprop * (x - mean)
    kNumSums,
    kNumFrozenSums = kNumSums,
  };
  enum Coefficient : int {  // The fields of BatchNormGradCoefficients.
    kMean,
    kRstd,
    kDyMean,
    kDyMeanRest,
    kXhatDyMean,
    kScaleRstd,
    kNumCoefficients,
    kFirstFrozenCoefficient = kScaleRstd,
  };
};
static inline Tensors<2, 1> TensorsOf(const BatchNormGradArgs& args) {
  return {{args.y_backprop, args.x}, {args.x_backprop}};
}

// The sums and coefficients are those of batch_norm_grad_grad.h.
struct SecondOrder {
  using Args = BatchNormGradGradArgs;
  enum Input : int { kGx, kDy, kX, kInputs };
  enum Output : int { kYBackpropGrad, kXGrad, kOutputs };
  enum Sum : int {
    kGxDySum,
    kGxSum,
    kDySum,
    kXcSum,
    kXcXcSum,
    kGxXcSum,
    kDyXcSum,
    kNumSums,
    kNumFrozenSums = kGxDySum + 1,
  };
  enum Coefficient : int {
    kGxMean,
    kGxMeanRest,
    kDyMean,
    kDyMeanRest,
    kMeanRest,
    kXFromGx,
    kXFromXhat,
    kMean,
    kRstd,
    kYFromGx,
    kYFromXhat,
    kYConstant,
    kXFromDy,
    kNumCoefficients,
    kFirstFrozenCoefficient = kMean,
  };
};
static inline Tensors<3, 2> TensorsOf(const BatchNormGradGradArgs& args) {
  return {{args.x_backprop_grad, args.y_backprop, args.x},
          {args.y_backprop_grad, args.x_grad}};
}
// The sums of channel `c`, all of which must be there.
static inline BatchNormGradGradSums SumsAt(const ChannelSums& sums, int64_t c) {
  const auto sum = [&](SecondOrder::Sum k) { return SumsOf(sums, k)[c]; };
  return {sum(SecondOrder::kGxDySum), sum(SecondOrder::kGxSum),
          sum(SecondOrder::kDySum),   sum(SecondOrder::kXcSum),
          sum(SecondOrder::kXcXcSum), sum(SecondOrder::kGxXcSum),
          sum(SecondOrder::kDyXcSum)};
}

// Elements from one array of coefficients to the next. Arrays are read in whole
// vectors, so a vector behind each must be readable; and they must not lie a
// multiple of 4 KiB apart, where the processor takes a load for an overlap with
// an earlier store.
static inline int64_t CoefficientStride(int64_t channels) {
  constexpr int64_t kPadding = 48;  // Three vectors of float, three lines.
  return channels + kPadding;
}

template <typename Order>
struct Kernels {
  using Args = typename Order::Args;
  // Training, the first pass: writes the sums over the tile, those of channels
  // [c0, c1).
  using Reduce = void (*)(const Args&, const Partition&, const Tile&,
                          const ChannelSums& sums);
  // Writes the coefficients of channels [c0, c1) from the sums over the view;
  // frozen, those that need no sums.
  using Coefficients = void (*)(const Args&, int64_t c0, int64_t c1,
                                const ChannelSums& sums, void* coefficients);
  // Training, the second pass: writes the results of view shape in the tile.
  // `stream`: store around the cache, for results that nobody will read from
  // it.
  using Apply = void (*)(const Args&, const Partition&, const Tile&,
                         const void* coefficients, bool stream);
  // Frozen, where the results need no sums: both in one pass.
  using Frozen = void (*)(const Args&, const Partition&, const Tile&,
                          const void* coefficients, bool stream,
                          const ChannelSums& sums);

  // Indexed by DType.
  Reduce reduce[kNumDTypes];
  Coefficients coefficients[kNumDTypes];
  Apply apply[kNumDTypes];
  Frozen frozen[kNumDTypes];
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CPU_ISA_KERNELS_H_
