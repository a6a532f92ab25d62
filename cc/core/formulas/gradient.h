// The formula of the first-order batch-norm gradient, also behind an
// activation, and from sums over the batches of several replicas: the contract
// that both backends (CPU, CUDA) fulfil, and its arithmetic.
//
// With M = outer * inner, rstd = 1 / sqrt(variance + epsilon), and sums over
// outer and inner:
//
//   dy = y_backprop; behind an activation where y > 0 (kRelu) or 0 < y < 6
//        (kRelu6), else 0; behind a smooth one times its derivative at
//        scale * rstd * (x - mean) + offset [+ side_input]
//   offset_backprop = sum(dy)
//   scale_backprop  = rstd * sum(dy * (x - mean))
//   training:  x_backprop = scale * rstd * (dy - offset_backprop / M
//                           - (x - mean) * rstd * scale_backprop / M)
//   frozen:    x_backprop = scale * rstd * dy
//   side_input_backprop = dy, where the forward had a side input
//
//   local_sum_dy          = sum(dy), in float64
//   local_sum_dy_xmu      = sum(dy * (x - mean)), in float64
//
// (Ioffe and Szegedy 2015, section 3, with mean and variance taken as given:
// they are not recomputed from x, also when they are not the statistics of x.
// In training, what forward_coefficients adds to them is added where they and
// epsilon are those that it was computed with, see IsKept.)
// The masks are TensorFlow's ReluGrad and Relu6Grad, whose comparisons are
// false for NaN. They come from y, or from x by the forward's own coefficients,
// which say for which x the activation passes (passing_range.h): the decision
// is the forward's bit by bit, and y is not read at all. The coefficients are
// those that the forward left, or follow from mean and variance where the
// forward was given the same ones. The derivative of a smooth activation is
// computed from x by the same coefficients, in both passes: nothing is stored
// that x does not have. Of side_input, which it is computed from too, y has the
// place: a smooth activation reads no y.
//
// Totals given (synchronised batch normalization adds up the sums of several
// replicas between the two passes): the second pass of training by itself, with
// sum_dy, sum_dy_xmu and count in place of the sums and M. No other output is
// written.
//
// x_backprop may be the buffer of y_backprop, x or y (element for element), but
// must not overlap them in any other way; without it, in training alone,
// nothing but the sums is computed. side_input_backprop may be the buffer of
// another one of them; without an activation it may not be the buffer of x
// while x_backprop is the buffer of y_backprop.

#pragma once

#include <cstdint>

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/formulas/activation.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/formulas/forward.h"
#include "cc/core/formulas/passing_range.h"
#include "cc/core/formulas/smooth_activation.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// Where the mask of an activation comes from; without an activation there is
// none. kSlope: instead of a mask, the derivative of a smooth one. kSumSlope:
// the same at the sum with a side input, which is in the place of y.
enum class MaskSource { kNone, kX, kY, kSlope, kSumSlope };

// kAdd: the forward had a side input.
template <MaskSource kMask, bool kAdd>
struct Gradient {
  using Finisher = Gradient<MaskSource::kNone, false>;
  static constexpr FormulaKind kKind = FormulaKind::kGradient;
  static constexpr bool kMasks = kMask != MaskSource::kNone;
  static constexpr bool kReadsY =
      kMask == MaskSource::kY || kMask == MaskSource::kSumSlope;
  static constexpr bool kIsSmooth =
      kMask == MaskSource::kSlope || kMask == MaskSource::kSumSlope;

  enum Input : int {
    kDy,
    kX,
    kY,
    kInputs = kReadsY ? kY + 1 : kX + 1,
    kNumFrozenInputs = kMasks ? kInputs : kDy + 1,
    kNumReduceInputs = kInputs,
  };
  enum Output : int {
    kXBackprop,
    kSideInputBackprop,
    kOutputs = kAdd ? kSideInputBackprop + 1 : kXBackprop + 1,
  };
  static constexpr int kPassedOn = kAdd ? int{kSideInputBackprop} : -1;
  enum Sum : int {
    kDySum,     // dy
    kDyXmuSum,  // dy * (x - mean)
    kNumSums,
  };
  // The mean of dy has two parts, see Split. The last ones are what y is
  // computed by, behind a smooth activation; or in the places of the first two
  // the PassingRange of x or the MaskBounds of y.
  enum Coefficient : int {
    kMean,
    kRstd,
    kDyMean,
    kDyMeanRest,
    kXhatDyMean,
    kScaleRstd,
    kForwardMean,
    kForwardMeanRest,
    kForwardScaleRstd,
    kForwardOffset,
    kActivation,
    kAlpha,
    kNumCoefficients = kIsSmooth ? kAlpha + 1
                       : kMasks  ? kForwardMeanRest + 1
                                 : kForwardMean,
  };
  static constexpr int kLowest = kForwardMean, kHighest = kForwardMeanRest;
  // No enumerators: in class templates nvcc 13.0 drops initializers that are
  // another enumerator from what it hands to the host compiler, which then
  // counts on, and launches kernels that are compiled for no device.
  static constexpr int kNumFrozenSums = kNumSums;
  static constexpr int kFirstFrozenCoefficient = kScaleRstd;
  static constexpr int kFirstMaskCoefficient = kForwardMean;

  static TFBN_HD Tensors TensorsOf(const Call& call) {
    return {kInputs,
            kOutputs,
            {call.y_backprop, call.x, call.y},
            {call.x_backprop, call.side_input_backprop}};
  }

  static TFBN_HD CenterArray CentersOf(const Call& call) {
    return MeanCenters(StatisticsDTypeOf(call), call.mean, KeptOf(call));
  }

  template <typename V>
  static TFBN_HD V Masked(const V (&in)[kInputs],
                          const V (&k)[kNumCoefficients]) {
    if constexpr (kMask == MaskSource::kNone) {
      return in[kDy];
    } else if constexpr (kMask == MaskSource::kX) {
      return PassedBy(in[kDy], in[kX], k[kLowest], k[kHighest]);
    } else if constexpr (kIsSmooth) {
      V v = ScaledAndShifted(in[kX], k[kForwardMean], k[kForwardMeanRest],
                             k[kForwardScaleRstd], k[kForwardOffset]);
      if constexpr (kReadsY) v = v + in[kY];
      return in[kDy] *
             WithSmooth</*kSlope=*/true>(v, k[kActivation], k[kAlpha]);
    } else {
      return MaskedBy(in[kDy], in[kY], k[kLowest], k[kHighest]);
    }
  }

  template <typename V>
  static TFBN_HD void Mask(V (&in)[kInputs], const V (&k)[kNumCoefficients]) {
    in[kDy] = Masked(in, k);
  }

  template <typename V, int kSums>
  static TFBN_HD void Accumulate(const V (&in)[kInputs], V center,
                                 V (&sum)[kSums]) {
    sum[kDySum] += in[kDy];
    sum[kDyXmuSum] += in[kDy] * (in[kX] - center);
  }

  template <int kSums>
  static TFBN_HD void Recenter(double /*count*/, double shift,
                               double (&sums)[kSums]) {
    // Infinity times a shift of the other sign than its terms would be NaN.
    if (IsFinite(sums[kDySum])) sums[kDyXmuSum] += shift * sums[kDySum];
  }

  // 1 / sqrt(variance + epsilon) of channel `c`. What may not be needed is
  // loaded, too, so that it vectorizes.
  static TFBN_HD double Rstd(const Call& call, int64_t c) {
    const KeptStatistics kept = KeptOf(call);
    const double variance =
        LoadAsDouble(StatisticsDTypeOf(call), call.variance, c);
    const double given =
        call.variance_is_rstd ? variance : RstdOf(variance, call.epsilon);
    if (kept.rows == nullptr) return given;
    const double deviation =
        KeptAt(kept, kDeviationRow, c) + KeptAt(kept, kDeviationRestRow, c);
    const double mean = LoadAsDouble(StatisticsDTypeOf(call), call.mean, c);
    return IsKept(kept, mean, c) ? 1.0 / deviation : given;
  }

  template <typename C>
  static TFBN_HD void FinishMask(const Call& call, int64_t c,
                                 C (&k)[kNumCoefficients]) {
    if constexpr (kMask == MaskSource::kY) {
      const MaskBounds<C> bounds =
          MaskBoundsOf<C>(call.activation, call.dtype, false);
      k[kLowest] = bounds.lowest;
      k[kHighest] = bounds.highest;
    } else if constexpr (kMasks) {
      const ForwardCoefficients<C> forward = ForwardOf<C>(call, c);
      const C offset =
          static_cast<C>(LoadAsDouble(call.stat_dtype, call.offset, c));
      if constexpr (kMask == MaskSource::kX) {
        const PassingRange<C> range =
            PassingRangeOf(forward, offset,
                           MaskBoundsOf<C>(call.activation, call.dtype, true));
        k[kLowest] = range.first;
        k[kHighest] = range.last;
      } else {
        k[kForwardMean] = forward.mean;
        k[kForwardMeanRest] = forward.mean_rest;
        k[kForwardScaleRstd] = forward.scale_rstd;
        k[kForwardOffset] = offset;
        k[kActivation] = static_cast<C>(static_cast<int>(call.activation));
        k[kAlpha] = static_cast<C>(call.leakyrelu_alpha);
      }
    }
  }

  template <typename C>
  static TFBN_HD void Finish(const Call& call, int64_t c, double center,
                             const double (&sums)[kNumSums],
                             C (&k)[kNumCoefficients]) {
    const double rstd = Rstd(call, c);
    const double scale = LoadAsDouble(call.stat_dtype, call.scale, c);
    k[kScaleRstd] = static_cast<C>(scale * rstd);
    if (!call.is_training) return;
    C rest;
    Split(center, 0, &k[kMean], &rest);
    if (HasTotals(call)) {
      const double totals[kNumSums] = {
          LoadAsDouble(DType::kFloat64, call.sum_dy, c),
          LoadAsDouble(DType::kFloat64, call.sum_dy_xmu, c)};
      FinishMeans(LoadAsDouble(DType::kFloat64, call.count, 0), rstd,
                  static_cast<double>(rest), totals, k);
    } else {
      FinishMeans(static_cast<double>(ElementsPerChannel(call.view)), rstd,
                  static_cast<double>(rest), sums, k);
    }
  }

  static TFBN_HD void StoreSums(const Call& call, int64_t c, double /*center*/,
                                const double (&sums)[kNumSums]) {
    if (HasTotals(call)) return;
    StoreFromDouble(call.stat_dtype, call.scale_backprop, c,
                    Rstd(call, c) * sums[kDyXmuSum]);
    StoreFromDouble(call.stat_dtype, call.offset_backprop, c, sums[kDySum]);
    StoreIfWanted(DType::kFloat64, call.local_sum_dy, c, sums[kDySum]);
    StoreIfWanted(DType::kFloat64, call.local_sum_dy_xmu, c, sums[kDyXmuSum]);
  }

  static TFBN_HD void StoreEmpty(const Call& call, int64_t c) {
    if (HasTotals(call)) return;
    StoreFromDouble(call.stat_dtype, call.offset_backprop, c, 0);
    StoreFromDouble(call.stat_dtype, call.scale_backprop, c, 0);
    StoreIfWanted(DType::kFloat64, call.local_sum_dy, c, 0);
    StoreIfWanted(DType::kFloat64, call.local_sum_dy_xmu, c, 0);
  }

  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[kInputs],
                              const V (&k)[kNumCoefficients],
                              V (&out)[kOutputs]) {
    const V dy = Masked(in, k);
    V v = dy;
    if constexpr (kTraining) {
      v = ((v - k[kDyMean]) - k[kDyMeanRest]) -
          ((in[kX] - k[kMean]) * k[kRstd]) * k[kXhatDyMean];
    }
    out[kXBackprop] = k[kScaleRstd] * v;
    if constexpr (kAdd) out[kSideInputBackprop] = dy;
  }

 private:
  // What the forward pass kept. Frozen, statistics are those given.
  static TFBN_HD KeptStatistics KeptOf(const Call& call) {
    return {ComputeDTypeOf(call.dtype),
            call.is_training ? call.forward_coefficients : nullptr,
            call.view.channels,
            StatisticsDTypeOf(call),
            call.variance,
            call.epsilon};
  }

  // The coefficients that follow from the sums over `m` elements. Of x the mean
  // without `mean_rest` is subtracted: what that adds to the product is the
  // same for all elements, and goes to the mean of dy.
  template <typename C>
  static TFBN_HD void FinishMeans(double m, double rstd, double mean_rest,
                                  const double (&sums)[kNumSums],
                                  C (&k)[kNumCoefficients]) {
    const double xhat_dy_mean = rstd * sums[kDyXmuSum] / m;
    double dy_mean = sums[kDySum] / m;
    // Zero times an infinite rstd would be NaN.
    if (mean_rest != 0) dy_mean -= mean_rest * rstd * xhat_dy_mean;
    k[kRstd] = static_cast<C>(rstd);
    Split(dy_mean, 0, &k[kDyMean], &k[kDyMeanRest]);
    k[kXhatDyMean] = static_cast<C>(xhat_dy_mean);
  }

  // What the forward pass computed y by.
  template <typename C>
  static TFBN_HD ForwardCoefficients<C> ForwardOf(const Call& call, int64_t c) {
    if (call.forward_coefficients == nullptr) {
      return ForwardCoefficientsOf<C>(
          LoadAsDouble(call.stat_dtype, call.scale, c),
          {CenterAt(CentersOf(call), c), 0, 0}, Rstd(call, c));
    }
    const C* const forward =
        static_cast<const C*>(call.forward_coefficients) + c;
    const int64_t channels = call.view.channels;
    return {forward[kMeanRow * channels], forward[kMeanRestRow * channels],
            forward[kScaleRstdRow * channels]};
  }
};

struct BatchNormGradFormula : Gradient<MaskSource::kNone, false> {};
// The mask from x; y is not read.
struct BatchNormGradExFormula : Gradient<MaskSource::kX, false> {};
// The mask from y.
struct BatchNormGradExFromYFormula : Gradient<MaskSource::kY, false> {};

// The first pass of EarlyMask: its sums, and the masked y_backprop.
template <MaskSource kMask, bool kAdd>
struct MaskedFirst : Gradient<kMask, false> {
  using Base = Gradient<kMask, false>;
  enum Output : int { kMaskedDy, kOutputs };
  static constexpr int kPassedOn = kAdd ? int{kMaskedDy} : -1;
  static constexpr int kFirstFrozenCoefficient = Base::kFirstMaskCoefficient;

  static TFBN_HD Tensors TensorsOf(const Call& call) {
    Tensors tensors = Base::TensorsOf(call);
    tensors.out[kMaskedDy] = kAdd ? call.side_input_backprop : call.x_backprop;
    return tensors;
  }

  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[Base::kInputs],
                              const V (&k)[Base::kNumCoefficients],
                              V (&out)[kOutputs]) {
    out[kMaskedDy] = Base::Masked(in, k);
  }
};

// With the masked y_backprop as an early output: the second pass needs neither
// y_backprop nor y. It is the gradient of a side input: 28 bytes of memory per
// element of float32 instead of 32, and up to 2.5 times as fast on
// [50176, 256, 1] in float32 (AMD EPYC, two threads, ADR 14). Or it lies in the
// buffer of x_backprop meanwhile, and no derivative is evaluated twice.
template <MaskSource kMask, bool kAdd>
struct EarlyMask : Gradient<kMask, kAdd> {
  using FirstPass = MaskedFirst<kMask, kAdd>;
  using SecondPass = BatchNormGradFormula;
  static constexpr int kEarlyInput = SecondPass::kDy;

  static Call SecondPassCall(const Call& call) {
    Call second = call;
    second.y_backprop = kAdd ? call.side_input_backprop : call.x_backprop;
    return second;
  }
};

// Behind a smooth activation.
struct BatchNormGradSmoothFormula : EarlyMask<MaskSource::kSlope, false> {};
struct BatchNormGradExAddFormula : EarlyMask<MaskSource::kY, true> {
  using Reduction = BatchNormGradExFromYFormula;
};
struct BatchNormGradSmoothAddFormula : EarlyMask<MaskSource::kSumSlope, true> {
};

}  // namespace tf_bn_ops
