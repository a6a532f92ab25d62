// The contract of the batch-norm gradient: what every backend (CPU, CUDA,
// reference) is given and what it has to produce.
//
// With M = outer * inner, rstd = 1 / sqrt(variance + epsilon), and sums over
// outer and inner:
//
//   offset_backprop = sum(y_backprop)
//   scale_backprop  = rstd * sum(y_backprop * (x - mean))
//   training:  x_backprop = scale * rstd * (y_backprop - offset_backprop / M
//                           - (x - mean) * rstd * scale_backprop / M)
//   frozen:    x_backprop = scale * rstd * y_backprop
//
// (Ioffe and Szegedy 2015, section 3, with mean and variance taken as given:
// they are not recomputed from x, also when they are not the statistics of x.)
//
// Accuracy that every backend promises: sums are accumulated in double (so
// float64 sums carry the rounding of double, all narrower types practically
// none), then rounded once to the output type. x_backprop is evaluated in float
// (in double for float64) from coefficients computed in double. Order of the
// sums: fixed by the view alone, see partition.h.

#ifndef TF_BN_OPS_CC_CORE_BATCH_NORM_GRAD_H_
#define TF_BN_OPS_CC_CORE_BATCH_NORM_GRAD_H_

#include <cmath>

#include "cc/core/dtype.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Inputs, outputs and attributes of one call. Pointers are borrowed. Arrays of
// view shape have `dtype`, arrays of length `channels` have `stat_dtype`.
// x_backprop may be the very buffer of y_backprop or x (element for element),
// but must not overlap them in any other way.
struct BatchNormGradArgs {
  View view;
  DType dtype = DType::kFloat32;
  DType stat_dtype = DType::kFloat32;
  bool is_training = true;
  // cuDNN's convention on the GPU in training: `variance` holds rstd itself.
  bool variance_is_rstd = false;
  double epsilon = 0;

  const void* y_backprop = nullptr;  // [outer, channels, inner]
  const void* x = nullptr;           // [outer, channels, inner]
  const void* scale = nullptr;       // [channels]
  const void* mean = nullptr;        // [channels]
  const void* variance = nullptr;    // [channels]

  void* x_backprop = nullptr;       // [outer, channels, inner]
  void* scale_backprop = nullptr;   // [channels]
  void* offset_backprop = nullptr;  // [channels]
};

// 1 / sqrt(variance + epsilon) of channel `c`.
static inline double Rstd(const BatchNormGradArgs& args, int64_t c) {
  const double variance = LoadAsDouble(args.stat_dtype, args.variance, c);
  return args.variance_is_rstd ? variance
                               : 1.0 / std::sqrt(variance + args.epsilon);
}

// What x_backprop is made of in one channel, in the type C that it is computed
// in:
//
//   scale_rstd * (((y_backprop - dy_mean) - dy_mean_rest)
//                 - ((x - mean) * rstd) * xhat_dy_mean)
//
// The mean of y_backprop has two parts, so that the difference loses nothing to
// cancellation when the mean is large against it.
template <typename C>
struct BatchNormGradCoefficients {
  C mean, rstd, dy_mean, dy_mean_rest, xhat_dy_mean, scale_rstd;
};

// Those of a channel of `m` elements with the sums of y_backprop and of
// y_backprop * (x - mean).
template <typename C>
static TFBN_HD BatchNormGradCoefficients<C> CoefficientsOf(
    double m, double mean, double rstd, double scale, double dy_sum,
    double dy_xmu_sum) {
  const double dy_mean = dy_sum / m;
  const C dy_mean_part = static_cast<C>(dy_mean);
  // Infinity minus infinity would be NaN where the sum itself is a plain
  // infinity.
  const bool finite = dy_mean - dy_mean == 0;
  return {static_cast<C>(mean),
          static_cast<C>(rstd),
          dy_mean_part,
          finite ? static_cast<C>(dy_mean - static_cast<double>(dy_mean_part))
                 : C{0},
          static_cast<C>(rstd * dy_xmu_sum / m),
          static_cast<C>(scale * rstd)};
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_BATCH_NORM_GRAD_H_
