// The formulas of batch normalization itself, with and without an added tensor:
// the contract that both backends (CPU, CUDA) fulfil, and its arithmetic.
//
// With M = outer * inner, and sums over outer and inner:
//
//   training:  mean = sum(x) / M,  variance = sum((x - mean)^2) / M
//   frozen:    mean and variance are those given
//   rstd = 1 / sqrt(variance + epsilon)
//   y = activation(scale * rstd * (x - mean) + offset [+ side_input])
//
// (Ioffe and Szegedy 2015, algorithm 1.) Outputs of length `channels`:
//
//   local_mean, local_m2    training: mean and sum((x - mean)^2) in float64,
//   from which
//       statistics of several batches are combined, see gather_stats.h
//   saved_mean, saved_variance    mean and variance, for the gradient
//   batch_mean, batch_variance    frozen: the same. In training, with the
//       factor f = exponential_avg_factor, (1 - f) * given + f * new; f = 1
//       does not read what is given. The new mean is `mean`, the new variance
//       is variance * M / max(M - 1, 1) (Bessel's correction), or `variance`.
//
// Without elements, training has NaN for batch_* and 0 for all others.
//
// Statistics are summed in one pass around a shift, which is one element of the
// channel (Chan, Golub and LeVeque 1983): its squared distance from the mean is
// at most M * variance, so a large mean costs no digits. (In two levels a shift
// that is far from the mean would; see IsFarCenter.)

#pragma once

#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/activation.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/formulas/smooth_activation.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// y before a side input is added and the activation is applied. The gradient of
// an activation evaluates it at the ends of the range of x that passes
// (passing_range.h), so it stands here alone. The mean has two parts, see
// Split.
template <typename V>
static TFBN_HD V ScaledAndShifted(V x, V mean, V mean_rest, V scale_rstd,
                                  V offset) {
  return ((x - mean) - mean_rest) * scale_rstd + offset;
}

// The coefficients of y beside the offset; the mean has two parts, see Split.
template <typename C>
struct ForwardCoefficients {
  C mean, mean_rest, scale_rstd;
};
template <typename C>
static TFBN_HD ForwardCoefficients<C> ForwardCoefficientsOf(
    double scale, const BatchStatistics& of, double rstd) {
  ForwardCoefficients<C> k;
  Split(of.mean, of.mean_rest, &k.mean, &k.mean_rest);
  k.scale_rstd = static_cast<C>(scale * rstd);
  return k;
}

// In place (element for element): y may be the buffer of x or side_input,
// batch_mean the buffer of mean, batch_variance the buffer of variance. They
// must not overlap in any other way. Without y, in training alone, nothing but
// statistics is computed: x is read once. mean and variance are not read in
// training with a factor of 1. kSmooth: with a smooth activation.
template <bool kAdd, bool kSmooth>
struct BatchNormFormulaOf {
  using Finisher = BatchNormFormulaOf<false, kSmooth>;
  static constexpr FormulaKind kKind = FormulaKind::kForward;
  static constexpr bool kMasks = false, kIsSmooth = kSmooth;
  enum Input : int {
    kX,
    kSideInput,
    kInputs = kAdd ? kSideInput + 1 : kX + 1,
    kNumFrozenInputs = kInputs,
    kNumReduceInputs = kX + 1,
  };
  enum Output : int { kY, kOutputs };
  // Over one channel, xc = x - center.
  enum Sum : int { kXcSum, kXcXcSum, kNumSums, kNumFrozenSums = 0 };
  // The mean has two parts, see Split.
  enum Coefficient : int {
    kMean,
    kMeanRest,
    kScaleRstd,
    kOffset,
    kLower,
    kUpper,
    kNumCoefficients,
    kFirstFrozenCoefficient = kMean,
  };
  // No enumerator, because of nvcc: see Gradient's constants.
  static constexpr int kFirstMaskCoefficient = kNumCoefficients;
  // Of the smooth ones which it is, and leakyrelu_alpha.
  static constexpr int kActivation = kLower, kAlpha = kUpper;

  static TFBN_HD Tensors TensorsOf(const Call& call) {
    return {kInputs, kOutputs, {call.x, call.side_input}, {call.y}};
  }

  // Frozen, there are no sums, and in place x may be overwritten already.
  static TFBN_HD CenterArray CentersOf(const Call& call) {
    return MedianCenters(call.dtype, call.is_training ? call.x : nullptr,
                         call.view);
  }

  template <typename V, int kSums>
  static TFBN_HD void Accumulate(const V (&in)[kInputs], V center,
                                 V (&sum)[kSums]) {
    const V xc = in[kX] - center;
    sum[kXcSum] += xc;
    sum[kXcXcSum] += xc * xc;
  }

  template <int kSums>
  static TFBN_HD void Recenter(double count, double shift,
                               double (&sums)[kSums]) {
    const double all = count * shift;
    sums[kXcXcSum] += shift * (2 * sums[kXcSum] + all);
    sums[kXcSum] += all;
  }

  static TFBN_HD BatchStatistics StatisticsOf(const Call& call, double center,
                                              const double (&sums)[kNumSums]) {
    return ShiftedStatistics(ElementsPerChannel(call.view), center,
                             sums[kXcSum], sums[kXcXcSum]);
  }
  static TFBN_HD BatchStatistics StatisticsOf(const Call& call, int64_t c,
                                              double center,
                                              const double (&sums)[kNumSums]) {
    if (call.is_training) return StatisticsOf(call, center, sums);
    const DType dtype = StatisticsDTypeOf(call);
    return {LoadAsDouble(dtype, call.mean, c), 0,
            LoadAsDouble(dtype, call.variance, c)};
  }

  template <typename C>
  static TFBN_HD void Finish(const Call& call, int64_t c, double center,
                             const double (&sums)[kNumSums],
                             C (&k)[kNumCoefficients]) {
    const BatchStatistics of = StatisticsOf(call, c, center, sums);
    const double deviation = DeviationOf(of.variance, call.epsilon);
    const double scale = LoadAsDouble(call.stat_dtype, call.scale, c);
    const auto forward = ForwardCoefficientsOf<C>(scale, of, 1.0 / deviation);
    if (call.forward_coefficients != nullptr) {
      if (call.dtype == DType::kFloat64) {
        StoreForwardCoefficients<double>(call, c, scale, of, deviation);
      } else {
        StoreForwardCoefficients<float>(call, c, scale, of, deviation);
      }
    }
    k[kMean] = forward.mean;
    k[kMeanRest] = forward.mean_rest;
    k[kScaleRstd] = forward.scale_rstd;
    k[kOffset] = static_cast<C>(LoadAsDouble(call.stat_dtype, call.offset, c));
    k[kLower] = static_cast<C>(LowerBound(call.activation));
    k[kUpper] = static_cast<C>(UpperBound(call.activation));
    if constexpr (kSmooth) {
      k[kActivation] = static_cast<C>(static_cast<int>(call.activation));
      k[kAlpha] = static_cast<C>(call.leakyrelu_alpha);
    }
  }

  static TFBN_HD void StoreSums(const Call& call, int64_t c, double center,
                                const double (&sums)[kNumSums]) {
    const BatchStatistics of = StatisticsOf(call, c, center, sums);
    double variance = of.variance;
    const double saved_variance = SavedVariance(call, of.variance);
    if (call.is_training) {
      const double m = static_cast<double>(ElementsPerChannel(call.view));
      if (call.bessel_correction) variance *= m / (m > 1 ? m - 1 : 1);
      StoreIfWanted(DType::kFloat64, call.local_mean, c, of.mean);
      StoreIfWanted(DType::kFloat64, call.local_m2, c, of.variance * m);
    }
    // Before the averages, which may be stored to mean and variance.
    StoreIfWanted(call.stat_dtype, call.saved_mean, c, of.mean);
    StoreIfWanted(call.stat_dtype, call.saved_variance, c, saved_variance);
    StoreAverage(call, c, call.mean, of.mean, call.batch_mean);
    StoreAverage(call, c, call.variance, variance, call.batch_variance);
  }

  static TFBN_HD void StoreEmpty(const Call& call, int64_t c) {
    const double no_sums[kNumSums] = {};
    if (call.forward_coefficients != nullptr) {
      // No element is computed or masked by them.
      for (int row = 0; row < kNumForwardCoefficients; ++row) {
        StoreFromDouble(ComputeDTypeOf(call.dtype), call.forward_coefficients,
                        row * call.view.channels + c, 0);
      }
    }
    if (!call.is_training) return StoreSums(call, c, 0, no_sums);
    StoreIfWanted(DType::kFloat64, call.local_mean, c, 0);
    StoreIfWanted(DType::kFloat64, call.local_m2, c, 0);
    StoreIfWanted(call.stat_dtype, call.saved_mean, c, 0);
    StoreIfWanted(call.stat_dtype, call.saved_variance, c, 0);
    StoreIfWanted(call.stat_dtype, call.batch_mean, c, kNaN);
    StoreIfWanted(call.stat_dtype, call.batch_variance, c, kNaN);
  }

  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[kInputs],
                              const V (&k)[kNumCoefficients],
                              V (&out)[kOutputs]) {
    V v = ScaledAndShifted(in[kX], k[kMean], k[kMeanRest], k[kScaleRstd],
                           k[kOffset]);
    if constexpr (kAdd) v = v + in[kSideInput];
    if constexpr (kSmooth) {
      out[kY] = WithSmooth</*kSlope=*/false>(v, k[kActivation], k[kAlpha]);
    } else {
      out[kY] = Clamped(v, k[kLower], k[kUpper]);
    }
  }

 private:
  template <typename C>
  static TFBN_HD void StoreForwardCoefficients(const Call& call, int64_t c,
                                               double scale,
                                               const BatchStatistics& of,
                                               double deviation) {
    C* const out = static_cast<C*>(call.forward_coefficients) + c;
    const int64_t channels = call.view.channels;
    const auto k = ForwardCoefficientsOf<C>(scale, of, 1.0 / deviation);
    out[kMeanRow * channels] = k.mean;
    out[kMeanRestRow * channels] = k.mean_rest;
    out[kScaleRstdRow * channels] = k.scale_rstd;
    Split(deviation, 0, &out[kDeviationRow * channels],
          &out[kDeviationRestRow * channels]);
    out[kSavedVarianceRow * channels] =
        static_cast<C>(SavedVariance(call, of.variance));
    Split(call.epsilon, 0, &out[kEpsilonRow * channels],
          &out[kEpsilonRestRow * channels]);
  }

  // Before it is rounded.
  static TFBN_HD double SavedVariance(const Call& call, double variance) {
    return call.is_training && call.saves_rstd ? RstdOf(variance, call.epsilon)
                                               : variance;
  }

  // Stores the exponential moving average of `given` and `value`.
  static TFBN_HD void StoreAverage(const Call& call, int64_t c,
                                   const void* given, double value,
                                   void* average) {
    if (average == nullptr) return;
    const double f = call.exponential_avg_factor;
    if (call.is_training && f != 1) {
      value = (1 - f) * LoadAsDouble(call.stat_dtype, given, c) + f * value;
    }
    StoreFromDouble(call.stat_dtype, average, c, value);
  }
};

struct BatchNormFormula : BatchNormFormulaOf<false, false> {};
struct BatchNormAddFormula : BatchNormFormulaOf<true, false> {
  using Reduction = BatchNormFormula;
};
struct BatchNormSmoothFormula : BatchNormFormulaOf<false, true> {
  using Reduction = BatchNormFormula;
};
struct BatchNormSmoothAddFormula : BatchNormFormulaOf<true, true> {
  using Reduction = BatchNormFormula;
};

}  // namespace tf_bn_ops
