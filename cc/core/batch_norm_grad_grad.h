// The contract of the second-order batch-norm gradient: the gradient of the
// three results of batch_norm_grad.h, what every backend is given and what it
// has to produce. docs/math.md derives the formulas.
//
// Let gx, gs, go be the gradients that arrive for x_backprop, scale_backprop
// and offset_backprop, dy = y_backprop, and M = outer * inner. mean() and sum()
// run over outer and inner; centred(v) = v - mean(v).
//
// In training the statistics are functions of x and are computed from it; the
// given mean and variance are not read (so cuDNN's rstd in place of the
// variance does no harm). With
//
//   rstd = 1 / sqrt(mean(centred(x)^2) + epsilon),  xhat = centred(x) * rstd,
//   a = mean(gx * xhat),  s = mean(dy * xhat),
//   b = mean(centred(gx) * centred(dy)),  f = scale * rstd:
//
//   y_backprop_grad = f * centred(gx) + (gs - f * a) * xhat + go
//   x_grad          = rstd * ((gs - f * a) * centred(dy) - f * s * centred(gx)
//                             - (gs * s + f * (b - 3 * a * s)) * xhat)
//   scale_grad      = rstd * M * (b - a * s)
//
// Frozen, with the given mean and variance as constants:
//
//   y_backprop_grad = f * gx + gs * (x - mean) * rstd + go
//   x_grad          = gs * rstd * dy
//   scale_grad      = rstd * sum(gx * dy)
//
// Mean and variance get no gradient in either mode. All of that is the gradient
// that TensorFlow registers for FusedBatchNormGrad.
//
// Accuracy that every backend promises: sums are accumulated in double, once
// over the tensors, with x less one element of its channel; scale_grad is
// rounded once to the output type. The squared distance of an element from the
// mean is at most M * variance, so that the variance loses at most a factor of
// M + 1 to cancellation, and for elements of a normal distribution next to
// nothing. Results of view shape are evaluated in float (in double for float64)
// from coefficients computed in double, and the three means are subtracted in
// two parts. Order of the sums: fixed by the view alone, see partition.h.

#ifndef TF_BN_OPS_CC_CORE_BATCH_NORM_GRAD_GRAD_H_
#define TF_BN_OPS_CC_CORE_BATCH_NORM_GRAD_GRAD_H_

#include <cmath>
#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Inputs, outputs and attributes of one call. Pointers are borrowed. Arrays of
// view shape have `dtype`, arrays of length `channels` have `stat_dtype`.
// y_backprop_grad and x_grad may be the very buffers of inputs of view shape
// (element for element), but must not overlap them in any other way.
struct BatchNormGradGradArgs {
  View view;
  DType dtype = DType::kFloat32;
  DType stat_dtype = DType::kFloat32;
  bool is_training = true;
  double epsilon = 0;

  const void* x_backprop_grad = nullptr;       // [outer, channels, inner]
  const void* scale_backprop_grad = nullptr;   // [channels]
  const void* offset_backprop_grad = nullptr;  // [channels]
  const void* y_backprop = nullptr;            // [outer, channels, inner]
  const void* x = nullptr;                     // [outer, channels, inner]
  const void* scale = nullptr;                 // [channels]
  const void* mean = nullptr;                  // [channels], read if frozen
  const void* variance = nullptr;              // [channels], read if frozen

  void* y_backprop_grad = nullptr;  // [outer, channels, inner]
  void* x_grad = nullptr;           // [outer, channels, inner]
  void* scale_grad = nullptr;       // [channels]
};

// Sums over one channel, xc = x - center; frozen only the first is needed.
struct BatchNormGradGradSums {
  double gx_dy = 0;  // gx * dy
  double gx = 0, dy = 0, xc = 0, xc_xc = 0, gx_xc = 0, dy_xc = 0;
};

// The first element of channel `c`, from which sums measure x.
static inline double CenterOf(const BatchNormGradGradArgs& args, int64_t c) {
  return LoadAsDouble(args.dtype, args.x, c * args.view.inner);
}

// What the results of one channel are made of; frozen, the means of gx and dy
// count as zero, and x_from_gx, x_from_xhat are zero.
//
//   y_backprop_grad = y_from_gx * (gx - gx_mean) + y_from_xhat * xhat
//                     + y_constant
//   x_grad = x_from_dy * (dy - dy_mean) + x_from_gx * (gx - gx_mean)
//            + x_from_xhat * xhat,     xhat = (x - mean - mean_rest) * rstd
struct BatchNormGradGradChannel {
  double mean, mean_rest;  // Their exact sum is the mean.
  double rstd, gx_mean, dy_mean;
  double y_from_gx, y_from_xhat, y_constant;
  double x_from_dy, x_from_gx, x_from_xhat;
  double scale_grad;
};

// Channel `c`, which has elements, from its sums around `center`.
static inline BatchNormGradGradChannel ChannelOf(
    const BatchNormGradGradArgs& args, int64_t c, double center,
    const BatchNormGradGradSums& sums) {
  const double scale = LoadAsDouble(args.stat_dtype, args.scale, c);
  const double gs = LoadAsDouble(args.stat_dtype, args.scale_backprop_grad, c);
  BatchNormGradGradChannel out = {};
  out.y_constant = LoadAsDouble(args.stat_dtype, args.offset_backprop_grad, c);
  if (!args.is_training) {
    out.mean = LoadAsDouble(args.stat_dtype, args.mean, c);
    out.rstd = 1.0 / std::sqrt(LoadAsDouble(args.stat_dtype, args.variance, c) +
                               args.epsilon);
    out.y_from_gx = scale * out.rstd;
    out.y_from_xhat = gs;
    out.x_from_dy = gs * out.rstd;
    out.scale_grad = out.rstd * sums.gx_dy;
    return out;
  }
  const double m = static_cast<double>(ElementsPerChannel(args.view));
  const double shift = sums.xc / m;
  out.mean = center + shift;
  // What the addition rounded off (Knuth's TwoSum).
  const double shift_part = out.mean - center;
  out.mean_rest = (center - (out.mean - shift_part)) + (shift - shift_part);
  out.gx_mean = sums.gx / m;
  out.dy_mean = sums.dy / m;
  const double variance = sums.xc_xc / m - shift * shift;
  // Rounding may leave a variance of zero below it; NaN stays NaN.
  out.rstd = 1.0 / std::sqrt((variance < 0 ? 0 : variance) + args.epsilon);
  const double f = scale * out.rstd;
  const double a = out.rstd * (sums.gx_xc / m - out.gx_mean * shift);
  const double s = out.rstd * (sums.dy_xc / m - out.dy_mean * shift);
  const double b = sums.gx_dy / m - out.gx_mean * out.dy_mean;
  out.y_from_gx = f;
  out.y_from_xhat = gs - f * a;
  out.x_from_dy = out.rstd * out.y_from_xhat;
  out.x_from_gx = -(out.rstd * f * s);
  out.x_from_xhat = -(out.rstd * (gs * s + f * (b - 3 * a * s)));
  out.scale_grad = out.rstd * m * (b - a * s);
  return out;
}

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_BATCH_NORM_GRAD_GRAD_H_
