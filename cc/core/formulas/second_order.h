// The formula of the second-order batch-norm gradient, which is the gradient of
// the three results of gradient.h: the contract that every backend
// fulfils, and its arithmetic. docs/math.md derives it.
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
// Sums are around an element of the channel, as in forward.h: the variance
// loses at most a factor of M + 1 to cancellation, and for elements of a normal
// distribution next to nothing.

#pragma once

#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// y_backprop_grad and x_grad may be the buffers of inputs of the shape of the
// view (element for element), but must not overlap them in any other way. mean
// and variance are read if frozen.
struct BatchNormGradGradFormula {
  using Finisher = BatchNormGradGradFormula;
  static constexpr FormulaKind kKind = FormulaKind::kSecondOrder;
  static constexpr bool kMasks = false, kIsSmooth = false;
  enum Input : int {
    kGx,
    kDy,
    kX,
    kInputs,
    kNumFrozenInputs = kInputs,
    kNumReduceInputs = kInputs,
  };
  enum Output : int { kYBackpropGrad, kXGrad, kOutputs };
  // Over one channel, xc = x - center.
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
  // The three means have two parts, see Split.
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
    kFirstMaskCoefficient = kNumCoefficients,
  };

  static TFBN_HD Tensors TensorsOf(const Call& call) {
    return {kInputs,
            kOutputs,
            {call.x_backprop_grad, call.y_backprop, call.x},
            {call.y_backprop_grad, call.x_grad}};
  }

  // Frozen, no sum is centered, and in place x may be overwritten already.
  static TFBN_HD CenterArray CentersOf(const Call& call) {
    return MedianCenters(call.dtype, call.is_training ? call.x : nullptr,
                         call.view);
  }

  template <typename V, int kSums>
  static TFBN_HD void Accumulate(const V (&in)[kInputs], V center,
                                 V (&sum)[kSums]) {
    sum[kGxDySum] += in[kGx] * in[kDy];
    if constexpr (kSums == kNumSums) {
      const V xc = in[kX] - center;
      sum[kGxSum] += in[kGx];
      sum[kDySum] += in[kDy];
      sum[kXcSum] += xc;
      sum[kXcXcSum] += xc * xc;
      sum[kGxXcSum] += in[kGx] * xc;
      sum[kDyXcSum] += in[kDy] * xc;
    }
  }

  template <int kSums>
  static TFBN_HD void Recenter(double count, double shift,
                               double (&sums)[kSums]) {
    const double all = count * shift;
    sums[kXcXcSum] += shift * (2 * sums[kXcSum] + all);
    sums[kXcSum] += all;
    sums[kGxXcSum] += shift * sums[kGxSum];
    sums[kDyXcSum] += shift * sums[kDySum];
  }

  static TFBN_HD BatchStatistics StatisticsOf(const Call& call, double center,
                                              const double (&sums)[kNumSums]) {
    return ShiftedStatistics(ElementsPerChannel(call.view), center,
                             sums[kXcSum], sums[kXcXcSum]);
  }

  // What the sums say of a channel in training; the letters are those above.
  struct Moments {
    double mean, mean_rest;  // Their exact sum is the mean of x.
    double gx_mean, dy_mean, rstd, a, s, b;
  };
  static TFBN_HD Moments MomentsOf(const Call& call, double center,
                                   const double (&sums)[kNumSums]) {
    const double m = static_cast<double>(ElementsPerChannel(call.view));
    const double shift = sums[kXcSum] / m;
    const BatchStatistics x = StatisticsOf(call, center, sums);
    Moments out;
    out.mean = x.mean;
    out.mean_rest = x.mean_rest;
    out.gx_mean = sums[kGxSum] / m;
    out.dy_mean = sums[kDySum] / m;
    out.rstd = RstdOf(x.variance, call.epsilon);
    out.a = out.rstd * (sums[kGxXcSum] / m - out.gx_mean * shift);
    out.s = out.rstd * (sums[kDyXcSum] / m - out.dy_mean * shift);
    out.b = sums[kGxDySum] / m - out.gx_mean * out.dy_mean;
    return out;
  }

  // Frozen: 1 / sqrt(variance + epsilon) of channel `c`.
  static TFBN_HD double GivenRstd(const Call& call, int64_t c) {
    return RstdOf(LoadAsDouble(call.stat_dtype, call.variance, c),
                  call.epsilon);
  }

  template <typename C>
  static TFBN_HD void Finish(const Call& call, int64_t c, double center,
                             const double (&sums)[kNumSums],
                             C (&k)[kNumCoefficients]) {
    // In training the divisions of the moments come first: on a device, what is
    // loaded before would have to be kept over their calls.
    Moments of = {};
    if (call.is_training) of = MomentsOf(call, center, sums);
    const double scale = LoadAsDouble(call.stat_dtype, call.scale, c);
    const double gs =
        LoadAsDouble(call.stat_dtype, call.scale_backprop_grad, c);
    k[kYConstant] = static_cast<C>(
        LoadAsDouble(call.stat_dtype, call.offset_backprop_grad, c));
    if (!call.is_training) {
      const double rstd = GivenRstd(call, c);
      k[kMean] = static_cast<C>(LoadAsDouble(call.stat_dtype, call.mean, c));
      k[kRstd] = static_cast<C>(rstd);
      k[kYFromGx] = static_cast<C>(scale * rstd);
      k[kYFromXhat] = static_cast<C>(gs);
      k[kXFromDy] = static_cast<C>(gs * rstd);
      return;
    }
    const double rstd = of.rstd, a = of.a, s = of.s, b = of.b;
    const double f = scale * rstd;
    const double y_from_xhat = gs - f * a;
    Split(of.gx_mean, 0, &k[kGxMean], &k[kGxMeanRest]);
    Split(of.dy_mean, 0, &k[kDyMean], &k[kDyMeanRest]);
    Split(of.mean, of.mean_rest, &k[kMean], &k[kMeanRest]);
    k[kRstd] = static_cast<C>(rstd);
    k[kYFromGx] = static_cast<C>(f);
    k[kYFromXhat] = static_cast<C>(y_from_xhat);
    k[kXFromDy] = static_cast<C>(rstd * y_from_xhat);
    k[kXFromGx] = static_cast<C>(-(rstd * f * s));
    k[kXFromXhat] = static_cast<C>(-(rstd * (gs * s + f * (b - 3 * a * s))));
  }

  static TFBN_HD void StoreSums(const Call& call, int64_t c, double center,
                                const double (&sums)[kNumSums]) {
    double scale_grad;
    if (call.is_training) {
      const double m = static_cast<double>(ElementsPerChannel(call.view));
      const Moments of = MomentsOf(call, center, sums);
      scale_grad = of.rstd * m * (of.b - of.a * of.s);
    } else {
      scale_grad = GivenRstd(call, c) * sums[kGxDySum];
    }
    StoreFromDouble(call.stat_dtype, call.scale_grad, c, scale_grad);
  }

  static TFBN_HD void StoreEmpty(const Call& call, int64_t c) {
    StoreFromDouble(call.stat_dtype, call.scale_grad, c, 0);
  }

  //   xhat = ((x - mean) - mean_rest) * rstd
  //   frozen:    y_backprop_grad = (y_from_gx * gx + y_from_xhat * xhat)
  //                                + y_constant
  //              x_grad = x_from_dy * dy
  //   training:  the same of gx and dy less their means, and
  //              x_grad = (x_from_dy * dy + x_from_gx * gx)
  //                       + x_from_xhat * xhat
  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[kInputs],
                              const V (&k)[kNumCoefficients],
                              V (&out)[kOutputs]) {
    V gx = in[kGx], dy = in[kDy], xc = in[kX] - k[kMean];
    if constexpr (kTraining) {
      gx = (gx - k[kGxMean]) - k[kGxMeanRest];
      dy = (dy - k[kDyMean]) - k[kDyMeanRest];
      xc = xc - k[kMeanRest];
    }
    const V xhat = xc * k[kRstd];
    out[kYBackpropGrad] =
        (k[kYFromGx] * gx + k[kYFromXhat] * xhat) + k[kYConstant];
    V x_grad = k[kXFromDy] * dy;
    if constexpr (kTraining) {
      x_grad = (x_grad + k[kXFromGx] * gx) + k[kXFromXhat] * xhat;
    }
    out[kXGrad] = x_grad;
  }
};

}  // namespace tf_bn_ops
