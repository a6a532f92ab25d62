// The smooth activations: their values and derivatives, of what they are
// applied to. A new one is a struct here, with the name that its class has in
// tf_bn_ops/spec/activations.py, from which its number is written.
//
// Which one is a coefficient, the same for all channels, and a branch that all
// elements of a call take alike, or, of those that are cheap, a selection:
// kernels are instantiated once for all of them.
// So is `alpha`, the attr leakyrelu_alpha, which one of them reads.
// At infinities values and derivatives are what TensorFlow's formulas give.

#pragma once

#include <type_traits>

#include "cc/core/call.h"
#include "cc/core/formulas/activation.h"
#include "cc/core/formulas/exponential.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

// v * sigmoid(v). exp of -|v| neither overflows nor, in 1 - sigmoid, cancels.
struct Silu {
  static constexpr bool kSlopeIsCostly = true;
  template <typename V>
  static TFBN_HD V Value(V v, V /*alpha*/) {
    const V e = ExpOfMinusAbs(v);
    const V larger = 1 / (e + 1);
    return v * Select(v < 0, e * larger, larger);
  }
  template <typename V>
  static TFBN_HD V Slope(V v, V /*alpha*/) {
    const V e = ExpOfMinusAbs(v);
    const V larger = 1 / (e + 1), smaller = e * larger;
    // The two are sigmoid and 1 - sigmoid, in the order of the sign.
    return Select(v < 0, smaller, larger) + v * (smaller * larger);
  }
};

// v * relu6(v + 3) / 6.
struct HardSilu {
  static constexpr bool kSlopeIsCostly = false;
  template <typename V>
  static TFBN_HD V Value(V v, V /*alpha*/) {
    return v * Sigmoid(v + 3);
  }
  template <typename V>
  static TFBN_HD V Slope(V v, V /*alpha*/) {
    using C = typename LanesOf<V>::Lane;
    const V moved = v + 3;
    const V inside = moved * (C{1} / 6) + v * (C{1} / 6);
    // NaN is inside.
    const V above = Select(moved >= 6, V{} + C{6} * (C{1} / 6), inside);
    return Select(V{} >= moved, V{}, above);
  }

 private:
  template <typename V>
  static TFBN_HD V Sigmoid(V moved) {
    using C = typename LanesOf<V>::Lane;
    return Clamped(moved, V{}, V{} + C{6}) * (C{1} / 6);
  }
};

// v above 0, elsewhere alpha * v: at 0 and NaN, too.
struct LeakyRelu {
  static constexpr bool kSlopeIsCostly = false;
  template <typename V>
  static TFBN_HD V Value(V v, V alpha) {
    return Select(v > 0, v, alpha * v);
  }
  template <typename V>
  static TFBN_HD V Slope(V v, V alpha) {
    using C = typename LanesOf<V>::Lane;
    return Select(v > 0, V{} + C{1}, alpha);
  }
};

// Whether the derivative takes longer to evaluate than its product to store and
// load in cache.
inline bool SlopeIsCostly(Activation activation) {
#define TFBN_RETURN_IF(Name) \
  if (activation == Activation::k##Name) return Name::kSlopeIsCostly;
  TFBN_FOR_EACH_SMOOTH_ACTIVATION(TFBN_RETURN_IF)
#undef TFBN_RETURN_IF
  return false;
}

template <bool kSlope, typename Smooth, typename V>
static TFBN_HD V ValueOrSlope(V v, V alpha) {
  if constexpr (kSlope) {
    return Smooth::Slope(v, alpha);
  } else {
    return Smooth::Value(v, alpha);
  }
}

// The first one whose derivative is cheap.
constexpr Activation FirstCheap() {
#define TFBN_RETURN_IF(Name) \
  if (!Name::kSlopeIsCostly) return Activation::k##Name;
  TFBN_FOR_EACH_SMOOTH_ACTIVATION(TFBN_RETURN_IF)
#undef TFBN_RETURN_IF
  return Activation::kIdentity;
}

// The value, or the derivative, at v of the activation whose number `which` is
// in all lanes. In vectors the cheap derivatives are all evaluated, and one is
// selected: a third branch made the gradient behind SiLU 1.3 to 1.45 times as
// slow (GCC, AVX-512, [4096, 64, 1]).
template <bool kSlope, typename V>
static TFBN_HD V WithSmooth(V v, V which, V alpha) {
  using C = typename LanesOf<V>::Lane;
  constexpr bool kSelects =
      kSlope && !std::is_class_v<V> && !std::is_same_v<V, C>;
  const C number = LanesOf<V>::First(which);
  V selected{};
#define TFBN_TAKE(Name)                                                     \
  {                                                                         \
    constexpr C kNumber{static_cast<int>(Activation::k##Name)};             \
    if constexpr (!kSelects || Name::kSlopeIsCostly) {                      \
      if (number == kNumber) return ValueOrSlope<kSlope, Name>(v, alpha);   \
    } else {                                                                \
      const V here = ValueOrSlope<kSlope, Name>(v, alpha);                  \
      constexpr bool kIsFirst = Activation::k##Name == FirstCheap();        \
      selected =                                                            \
          kIsFirst ? here : Select(which == V{} + kNumber, here, selected); \
    }                                                                       \
  }
  TFBN_FOR_EACH_SMOOTH_ACTIVATION(TFBN_TAKE)
#undef TFBN_TAKE
  if constexpr (!kSelects) __builtin_unreachable();
  return selected;
}

}  // namespace tf_bn_ops
