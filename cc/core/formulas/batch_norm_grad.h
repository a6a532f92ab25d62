// The formula of the first-order batch-norm gradient: the contract that every
// backend (CPU, CUDA, reference) fulfils, and its arithmetic.
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
//   sum_dy          = sum(y_backprop), in float64
//   sum_dy_xmu      = sum(y_backprop * (x - mean)), in float64
//
// (Ioffe and Szegedy 2015, section 3, with mean and variance taken as given:
// they are not recomputed from x, also when they are not the statistics of x.)
//
// Accuracy that every backend promises: sums are accumulated in double (so
// float64 sums carry the rounding of double, all narrower types practically
// none) or in two levels (two_level_sum.h), then rounded once to the output
// type. x_backprop is evaluated in float (in double for float64) from
// coefficients computed in double. The order of summation is a function of the
// view alone, see partition.h.

#ifndef TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_GRAD_H_
#define TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_GRAD_H_

#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// x_backprop may be the buffer of y_backprop or x (element for element), but
// must not overlap them in any other way; without it, in training alone,
// nothing but the sums is computed.
struct BatchNormGradFormula {
  using Args = Call;
  static constexpr FormulaKind kKind = FormulaKind::kGradient;
  enum Input : int {
    kDy,
    kX,
    kInputs,
    kNumFrozenInputs = kDy + 1,
    kNumReduceInputs = kInputs,
  };
  enum Output : int { kXBackprop, kOutputs };
  enum Sum : int {
    kDySum,     // y_backprop
    kDyXmuSum,  // y_backprop * (x - mean)
    kNumSums,
    kNumFrozenSums = kNumSums,
  };
  // The mean of y_backprop has two parts, see Split.
  enum Coefficient : int {
    kMean,
    kRstd,
    kDyMean,
    kDyMeanRest,
    kXhatDyMean,
    kScaleRstd,
    kNumCoefficients,
    kFirstFrozenCoefficient = kScaleRstd,
    kFirstMaskCoefficient = kNumCoefficients,
  };

  static TFBN_HD Tensors<kInputs, kOutputs> TensorsOf(const Args& args) {
    return {{args.y_backprop, args.x}, {args.x_backprop}};
  }

  static TFBN_HD CenterArray CentersOf(const Args& args) {
    return {StatisticsDTypeOf(args), args.mean, 1};
  }

  template <typename V, int kSums>
  static TFBN_HD void Accumulate(const V (&in)[kInputs], V center,
                                 V (&sum)[kSums]) {
    sum[kDySum] += in[kDy];
    sum[kDyXmuSum] += in[kDy] * (in[kX] - center);
  }

  template <int kSums>
  static TFBN_HD void Recenter(double shift, double (&sums)[kSums]) {
    // Infinity times a shift of the other sign than its terms would be NaN.
    if (IsFinite(sums[kDySum])) sums[kDyXmuSum] += shift * sums[kDySum];
  }

  // 1 / sqrt(variance + epsilon) of channel `c`.
  static TFBN_HD double Rstd(const Args& args, int64_t c) {
    const double variance =
        LoadAsDouble(StatisticsDTypeOf(args), args.variance, c);
    return args.variance_is_rstd ? variance : RstdOf(variance, args.epsilon);
  }

  template <typename C>
  static TFBN_HD void Finish(const Args& args, int64_t c, double center,
                             const double (&sums)[kNumSums],
                             C (&k)[kNumCoefficients]) {
    const double rstd = Rstd(args, c);
    const double scale = LoadAsDouble(args.stat_dtype, args.scale, c);
    k[kScaleRstd] = static_cast<C>(scale * rstd);
    if (!args.is_training) return;
    k[kMean] = static_cast<C>(center);
    FinishMeans(static_cast<double>(ElementsPerChannel(args.view)), rstd, sums,
                k);
  }

  // The coefficients that follow from the sums over `m` elements.
  template <typename C>
  static TFBN_HD void FinishMeans(double m, double rstd,
                                  const double (&sums)[kNumSums],
                                  C (&k)[kNumCoefficients]) {
    k[kRstd] = static_cast<C>(rstd);
    Split(sums[kDySum] / m, 0, &k[kDyMean], &k[kDyMeanRest]);
    k[kXhatDyMean] = static_cast<C>(rstd * sums[kDyXmuSum] / m);
  }

  static TFBN_HD void StoreSums(const Args& args, int64_t c, double /*center*/,
                                const double (&sums)[kNumSums]) {
    StoreFromDouble(args.stat_dtype, args.offset_backprop, c, sums[kDySum]);
    StoreFromDouble(args.stat_dtype, args.scale_backprop, c,
                    Rstd(args, c) * sums[kDyXmuSum]);
    StoreIfWanted(DType::kFloat64, args.sum_dy, c, sums[kDySum]);
    StoreIfWanted(DType::kFloat64, args.sum_dy_xmu, c, sums[kDyXmuSum]);
  }

  static TFBN_HD void StoreEmpty(const Args& args, int64_t c) {
    StoreFromDouble(args.stat_dtype, args.offset_backprop, c, 0);
    StoreFromDouble(args.stat_dtype, args.scale_backprop, c, 0);
    StoreIfWanted(DType::kFloat64, args.sum_dy, c, 0);
    StoreIfWanted(DType::kFloat64, args.sum_dy_xmu, c, 0);
  }

  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[kInputs],
                              const V (&k)[kNumCoefficients],
                              V (&out)[kOutputs]) {
    V v = in[kDy];
    if constexpr (kTraining) {
      v = ((v - k[kDyMean]) - k[kDyMeanRest]) -
          ((in[kX] - k[kMean]) * k[kRstd]) * k[kXhatDyMean];
    }
    out[kXBackprop] = k[kScaleRstd] * v;
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_GRAD_H_
