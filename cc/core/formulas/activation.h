// The activations that may stand behind a normalization: their values, and
// where their gradients pass, by y. passing_range.h has the range of x.

#pragma once

#include "cc/core/call.h"
#include "cc/core/dtype.h"
#include "cc/core/formulas/formula.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

// `mask ? a : b`, lane by lane; a function, which XLA's values have too
// (cc/tf/xla/hlo_value.h).
template <typename M, typename V>
static TFBN_HD V Select(M mask, V a, V b) {
  return mask ? a : b;
}

// An activation that is not smooth is a clamp to [lower, upper].
static TFBN_HD double LowerBound(Activation activation) {
  return activation == Activation::kIdentity ? -kInfinity : 0;
}
static TFBN_HD double UpperBound(Activation activation) {
  return activation == Activation::kRelu6 ? 6 : kInfinity;
}
// NaN stays NaN.
template <typename V>
static TFBN_HD V Clamped(V v, V lower, V upper) {
  const V above = Select(v < lower, lower, v);
  return Select(above > upper, upper, above);
}

// Where the gradient of an activation passes: v > lowest, and not v >= highest,
// which is NaN where there is no upper bound: an infinite y passes a ReLU.
template <typename C>
struct MaskBounds {
  C lowest, highest;
};
// `before_rounding`: bounds on the unrounded y that are equivalent to the mask
// of the rounded y. To nearest even, what is up to half the smallest subnormal
// number rounds to 0, and what is at least 6 - half the distance to the next
// smaller number rounds to 6 (6 itself has an even fraction in all types).
// Both are 0 of a type that is computed in itself.
template <typename T>
struct MaskRounding {
  static constexpr double kHalfSubnormal =
      kIsNarrow<T> ? SpacingAt<T>(FormatOf<T>::kSmallestExponent) / 2 : 0;
  static constexpr double kBelowSix = kIsNarrow<T> ? SpacingAt<T>(2) / 2 : 0;
  static_assert(FormatOf<T>::kFractionBits >= 2, "6 has an odd fraction");
};
static_assert(MaskRounding<Float16>::kHalfSubnormal == 0x1p-25 &&
              MaskRounding<Float16>::kBelowSix == 0x1p-9);
static_assert(MaskRounding<Bfloat16>::kHalfSubnormal == 0x1p-134 &&
              MaskRounding<Bfloat16>::kBelowSix == 0x1p-6);
template <typename C>
static TFBN_HD MaskBounds<C> MaskBoundsOf(Activation activation, DType dtype,
                                          bool before_rounding) {
  MaskBounds<C> bounds = {
      static_cast<C>(LowerBound(activation)),
      static_cast<C>(activation == Activation::kRelu6 ? UpperBound(activation)
                                                      : kNaN)};
  if (!before_rounding || activation == Activation::kIdentity) return bounds;
  double half_subnormal = 0, below_six = 0;
  TFBN_SWITCH_DTYPE(dtype, half_subnormal = MaskRounding<T>::kHalfSubnormal;
                    below_six = MaskRounding<T>::kBelowSix);
  bounds.lowest = static_cast<C>(half_subnormal);
  if (activation == Activation::kRelu6) {
    bounds.highest = static_cast<C>(6 - below_six);
  }
  return bounds;
}

// dy where the activation passes it: y is above `lowest` and not at or above
// `highest`, see MaskBounds.
template <typename V>
static TFBN_HD V MaskedBy(V dy, V y, V lowest, V highest) {
  const V low_masked = Select(y > lowest, dy, V{});
  return Select(y >= highest, V{}, low_masked);
}

}  // namespace tf_bn_ops
