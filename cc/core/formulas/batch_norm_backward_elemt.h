// The formulas of the second pass of the gradient by itself, from sums that are
// given: synchronised batch normalization adds up the sums of several replicas
// between the two passes. The contract, and its arithmetic.
//
// With m = total_count, the elements of a channel in the batches of all
// replicas, and the sums of batch_norm_grad.h over all of them:
//
//   masked = y_backprop where the activation passes it, see
//            batch_norm_grad_ex.h; without an activation y_backprop
//   x_backprop = scale * rstd * (masked - total_dy / m
//                - (x - mean) * rstd^2 * total_dy_xmu / m)
//   side_input_backprop = masked, where the forward had a side input
//
// The means are over all replicas and the tensors of one of them, so the mean
// is float64, and is subtracted in two parts (see Split).

#ifndef TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_BACKWARD_ELEMT_H_
#define TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_BACKWARD_ELEMT_H_

#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/batch_norm.h"
#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/batch_norm_grad_ex.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/formulas/passing_range.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

// Where the mask of an activation comes from.
enum class MaskSource { kNone, kX, kY };

template <MaskSource kMask, bool kAdd>
struct BatchNormBackwardElemtFormulaOf : FrozenOnly {
  using Args = Call;
  static constexpr FormulaKind kKind = FormulaKind::kGradient;
  using Plain = BatchNormGradFormula;
  enum Input : int {
    kDy = Plain::kDy,
    kX = Plain::kX,
    kY,
    kInputs = kMask == MaskSource::kY ? kY + 1 : kX + 1,
    kNumFrozenInputs = kInputs,
    kNumReduceInputs = 0,
  };
  enum Output : int {
    kXBackprop = Plain::kXBackprop,
    kSideInputBackprop,
    kOutputs = kAdd ? kSideInputBackprop + 1 : kXBackprop + 1,
  };
  static constexpr int kPassedOn = kAdd ? int{kSideInputBackprop} : -1;
  enum Sum : int { kNumSums = Plain::kNumSums, kNumFrozenSums = 0 };
  // Behind those of the plain gradient. The forward's mean and scale * rstd are
  // the gradient's. The last two are the PassingRange of x, or the MaskBounds
  // of y.
  enum Coefficient : int {
    kMeanRest = Plain::kNumCoefficients,
    kLowest,
    kHighest,
    kNumCoefficients =
        kMask == MaskSource::kNone ? kMeanRest + 1 : kHighest + 1,
    kFirstFrozenCoefficient = 0,
    kFirstMaskCoefficient = kNumCoefficients,
  };

  static TFBN_HD Tensors<kInputs, kOutputs> TensorsOf(const Args& args) {
    Tensors<kInputs, kOutputs> tensors = {};
    tensors.in[kDy] = args.y_backprop;
    tensors.in[kX] = args.x;
    tensors.out[kXBackprop] = args.x_backprop;
    if constexpr (kMask == MaskSource::kY) tensors.in[kY] = args.y;
    if constexpr (kAdd) {
      tensors.out[kSideInputBackprop] = args.side_input_backprop;
    }
    return tensors;
  }

  static TFBN_HD CenterArray CentersOf(const Args& args) {
    return Plain::CentersOf(args);
  }

  static TFBN_HD double TotalCount(const Args& args) {
    return args.total_count == nullptr
               ? args.total_count_value
               : LoadAsDouble(DType::kFloat64, args.total_count, 0);
  }

  template <typename C>
  static TFBN_HD void Finish(const Args& args, int64_t c, double mean,
                             const double (&)[kNumSums],
                             C (&k)[kNumCoefficients]) {
    const double scale = LoadAsDouble(args.stat_dtype, args.scale, c);
    const double variance =
        LoadAsDouble(StatisticsDTypeOf(args), args.variance, c);
    const auto forward =
        ForwardCoefficientsOf<C>(scale, {mean, 0, variance}, args.epsilon);
    const double totals[Plain::kNumSums] = {
        LoadAsDouble(DType::kFloat64, args.total_dy, c),
        LoadAsDouble(DType::kFloat64, args.total_dy_xmu, c)};
    C plain[Plain::kNumCoefficients] = {};
    Plain::FinishMeans(TotalCount(args), Plain::Rstd(args, c), totals, plain);
    plain[Plain::kMean] = forward.mean;
    plain[Plain::kScaleRstd] = forward.scale_rstd;
    for (int i = 0; i < Plain::kNumCoefficients; ++i) k[i] = plain[i];
    k[kMeanRest] = forward.mean_rest;
    if constexpr (kMask == MaskSource::kX) {
      const PassingRange<C> range = PassingRangeOf(args, c, forward);
      k[kLowest] = range.first;
      k[kHighest] = range.last;
    } else if constexpr (kMask == MaskSource::kY) {
      const MaskBounds<C> bounds =
          MaskBoundsOf<C>(args.activation, args.dtype, false);
      k[kLowest] = bounds.lowest;
      k[kHighest] = bounds.highest;
    }
  }

  static TFBN_HD void StoreSums(const Args&, int64_t, double,
                                const double (&)[kNumSums]) {}
  static TFBN_HD void StoreEmpty(const Args&, int64_t) {}

  template <typename V>
  static TFBN_HD V Masked(const V (&in)[kInputs],
                          const V (&k)[kNumCoefficients]) {
    if constexpr (kMask == MaskSource::kNone) {
      return in[kDy];
    } else if constexpr (kMask == MaskSource::kX) {
      return PassedBy(in[kDy], in[kX], k[kLowest], k[kHighest]);
    } else {
      return MaskedBy(in[kDy], in[kY], k[kLowest], k[kHighest]);
    }
  }

  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[kInputs],
                              const V (&k)[kNumCoefficients],
                              V (&out)[kOutputs]) {
    // The plain gradient subtracts one part of the mean, the rest here.
    const V plain[Plain::kInputs] = {Masked(in, k), in[kX] - k[Plain::kMean]};
    V plain_k[Plain::kNumCoefficients], plain_out[Plain::kOutputs];
    for (int i = 0; i < Plain::kNumCoefficients; ++i) plain_k[i] = k[i];
    plain_k[Plain::kMean] = k[kMeanRest];
    Plain::Element<true>(plain, plain_k, plain_out);
    out[kXBackprop] = plain_out[Plain::kXBackprop];
    if constexpr (kAdd) out[kSideInputBackprop] = plain[Plain::kDy];
  }
};

// Without an activation.
struct BatchNormBackwardElemtFormula
    : BatchNormBackwardElemtFormulaOf<MaskSource::kNone, false> {};
// The mask from x.
struct BatchNormBackwardElemtFromXFormula
    : BatchNormBackwardElemtFormulaOf<MaskSource::kX, false> {};
// The mask from y.
struct BatchNormBackwardElemtFromYFormula
    : BatchNormBackwardElemtFormulaOf<MaskSource::kY, false> {};
// The mask from y, and the gradient of a side input.
struct BatchNormBackwardElemtAddFormula
    : BatchNormBackwardElemtFormulaOf<MaskSource::kY, true> {};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_BACKWARD_ELEMT_H_
