// The formulas of the gradient of batch normalization with an activation behind
// it (FusedBatchNormEx): the contract, and its arithmetic.
//
//   masked = y_backprop where y > 0 (kRelu) or 0 < y < 6 (kRelu6), else 0
//   x_backprop, scale_backprop, offset_backprop = batch_norm_grad.h's of masked
//   side_input_backprop = masked, where the forward had a side input
//
// These are TensorFlow's ReluGrad and Relu6Grad, whose comparisons are false
// for NaN.
//
// The mask comes from y, or from x by the forward's own coefficients, which say
// for which x the activation passes (passing_range.h): the decision is the
// forward's bit by bit, and y is not read at all. The coefficients are those
// that the forward left, or follow from mean and variance where the forward was
// given the same ones.

#ifndef TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_GRAD_EX_H_
#define TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_GRAD_EX_H_

#include <cstdint>

#include "cc/core/dtype.h"
#include "cc/core/formulas/batch_norm.h"
#include "cc/core/formulas/batch_norm_grad.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/formulas/passing_range.h"
#include "cc/core/host_device.h"
#include "cc/core/view.h"

namespace tf_bn_ops {

// dy where the activation passes it: y is above `lowest` and not at or above
// `highest`, see MaskBounds.
template <typename V>
static TFBN_HD V MaskedBy(V dy, V y, V lowest, V highest) {
  const V low_masked = y > lowest ? dy : V{};
  return y >= highest ? V{} : low_masked;
}

// The range of x in channel `c` that the activation passes, behind a forward
// pass with these coefficients.
template <typename C>
static TFBN_HD PassingRange<C> PassingRangeOf(
    const Call& args, int64_t c, const ForwardCoefficients<C>& forward) {
  return PassingRangeOf(
      forward, static_cast<C>(LoadAsDouble(args.stat_dtype, args.offset, c)),
      MaskBoundsOf<C>(args.activation, args.dtype, true));
}

// x_backprop may be the buffer of y, too. So may side_input_backprop be that of
// y_backprop, x or y (element for element) if x_backprop is another one;
// without an activation it may not be that of x while x_backprop is that of
// y_backprop.
template <bool kFromX, bool kAdd>
struct BatchNormGradExFormulaOf {
  using Args = Call;
  static constexpr FormulaKind kKind = FormulaKind::kGradient;
  using Plain = BatchNormGradFormula;
  enum Input : int {
    kDy = Plain::kDy,
    kX = Plain::kX,
    kY,
    kInputs = kFromX ? kX + 1 : kY + 1,
    kNumFrozenInputs = kInputs,
    kNumReduceInputs = kInputs,
  };
  enum Output : int {
    kXBackprop = Plain::kXBackprop,
    kSideInputBackprop,
    kOutputs = kAdd ? kSideInputBackprop + 1 : kXBackprop + 1,
  };
  static constexpr int kPassedOn = kAdd ? int{kSideInputBackprop} : -1;
  enum Sum : int {
    kNumSums = Plain::kNumSums,
    kNumFrozenSums = Plain::kNumFrozenSums
  };
  // Behind those of the plain gradient: the PassingRange of x, or the
  // MaskBounds of y.
  enum Coefficient : int {
    kFirstFrozenCoefficient = Plain::kFirstFrozenCoefficient,
    kFirstMaskCoefficient = Plain::kNumCoefficients,
    kLowest = kFirstMaskCoefficient,
    kHighest,
    kNumCoefficients,
  };

  static TFBN_HD Tensors<kInputs, kOutputs> TensorsOf(const Args& args) {
    Tensors<kInputs, kOutputs> tensors = {};
    tensors.in[kDy] = args.y_backprop;
    tensors.in[kX] = args.x;
    tensors.out[kXBackprop] = args.x_backprop;
    if constexpr (!kFromX) tensors.in[kY] = args.y;
    if constexpr (kAdd) {
      tensors.out[kSideInputBackprop] = args.side_input_backprop;
    }
    return tensors;
  }

  static TFBN_HD CenterArray CentersOf(const Args& args) {
    return Plain::CentersOf(args);
  }

  template <int kSums>
  static TFBN_HD void Recenter(double shift, double (&sums)[kSums]) {
    Plain::Recenter(shift, sums);
  }

  template <typename V>
  static TFBN_HD V Masked(const V (&in)[kInputs],
                          const V (&k)[kNumCoefficients]) {
    if constexpr (kFromX) {
      return PassedBy(in[kDy], in[kX], k[kLowest], k[kHighest]);
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
    const V plain[Plain::kInputs] = {in[kDy], in[kX]};
    Plain::Accumulate(plain, center, sum);
  }

  template <typename C>
  static TFBN_HD void FinishMask(const Args& args, int64_t c,
                                 C (&k)[kNumCoefficients]) {
    if constexpr (kFromX) {
      const PassingRange<C> range =
          PassingRangeOf(args, c, ForwardOf<C>(args, c));
      k[kLowest] = range.first;
      k[kHighest] = range.last;
    } else {
      const MaskBounds<C> bounds =
          MaskBoundsOf<C>(args.activation, args.dtype, false);
      k[kLowest] = bounds.lowest;
      k[kHighest] = bounds.highest;
    }
  }

  template <typename C>
  static TFBN_HD void Finish(const Args& args, int64_t c, double center,
                             const double (&sums)[kNumSums],
                             C (&k)[kNumCoefficients]) {
    C plain[Plain::kNumCoefficients] = {};
    Plain::Finish(args, c, center, sums, plain);
    for (int i = 0; i < Plain::kNumCoefficients; ++i) k[i] = plain[i];
  }

  static TFBN_HD void StoreSums(const Args& args, int64_t c, double center,
                                const double (&sums)[kNumSums]) {
    Plain::StoreSums(args, c, center, sums);
  }

  static TFBN_HD void StoreEmpty(const Args& args, int64_t c) {
    Plain::StoreEmpty(args, c);
  }

  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[kInputs],
                              const V (&k)[kNumCoefficients],
                              V (&out)[kOutputs]) {
    const V plain[Plain::kInputs] = {Masked(in, k), in[kX]};
    V plain_k[Plain::kNumCoefficients], plain_out[Plain::kOutputs];
    for (int i = kTraining ? 0 : Plain::kFirstFrozenCoefficient;
         i < Plain::kNumCoefficients; ++i) {
      plain_k[i] = k[i];
    }
    Plain::template Element<kTraining>(plain, plain_k, plain_out);
    out[kXBackprop] = plain_out[Plain::kXBackprop];
    if constexpr (kAdd) out[kSideInputBackprop] = plain[Plain::kDy];
  }

 private:
  template <typename C>
  static TFBN_HD ForwardCoefficients<C> ForwardOf(const Args& args, int64_t c) {
    if (args.forward_coefficients == nullptr) {
      const DType dtype = StatisticsDTypeOf(args);
      return ForwardCoefficientsOf<C>(
          LoadAsDouble(args.stat_dtype, args.scale, c),
          {LoadAsDouble(dtype, args.mean, c), 0,
           LoadAsDouble(dtype, args.variance, c)},
          args.epsilon);
    }
    const C* const forward =
        static_cast<const C*>(args.forward_coefficients) + c;
    const int64_t channels = args.view.channels;
    return {forward[0], forward[channels], forward[2 * channels]};
  }
};

// The first pass of BatchNormGradExAddFormula: its sums, and
// side_input_backprop.
struct BatchNormGradExMaskFormula : BatchNormGradExFormulaOf<false, false> {
  enum Output : int { kSideInputBackprop, kOutputs };
  static constexpr int kPassedOn = kSideInputBackprop;
  enum Coefficient : int { kFirstFrozenCoefficient = kFirstMaskCoefficient };

  static TFBN_HD Tensors<kInputs, kOutputs> TensorsOf(const Args& args) {
    return {{args.y_backprop, args.x, args.y}, {args.side_input_backprop}};
  }

  template <bool kTraining, typename V>
  static TFBN_HD void Element(const V (&in)[kInputs],
                              const V (&k)[kNumCoefficients],
                              V (&out)[kOutputs]) {
    out[kSideInputBackprop] = Masked(in, k);
  }
};

// The mask from x; y is not read (but by the reference, see reference.cc).
struct BatchNormGradExFormula : BatchNormGradExFormulaOf<true, false> {};
// The mask from y.
struct BatchNormGradExFromYFormula : BatchNormGradExFormulaOf<false, false> {};
// The mask from y, and the gradient of a side input. That is the masked
// y_backprop, so the second pass needs neither y_backprop nor y: 28 bytes of
// memory per element of float32 instead of 32. docs/adr/0031-early-output.md
// has what calls gain.
struct BatchNormGradExAddFormula : BatchNormGradExFormulaOf<false, true> {
  using FirstPass = BatchNormGradExMaskFormula;
  using SecondPass = BatchNormGradFormula;
  static constexpr int kEarlyInput = SecondPass::kDy;

  static SecondPass::Args SecondPassArgs(const Args& args) {
    SecondPass::Args second = args;
    second.y_backprop = args.side_input_backprop;
    return second;
  }
};

}  // namespace tf_bn_ops

#endif  // TF_BN_OPS_CC_CORE_FORMULAS_BATCH_NORM_GRAD_EX_H_
