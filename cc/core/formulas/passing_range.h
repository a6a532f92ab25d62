// Which x an activation behind a normalization passes the gradient of, as a
// range of x: the mask is two comparisons, and no element computes y again.
//
// The forward computes y from x by ScaledAndShifted, and y rises or falls with
// x: subtraction, multiplication by a constant and addition are monotonic
// also as they are rounded, and as subnormal numbers are flushed. So the x
// whose y the activation passes (MaskBounds) are neighbours, and the range is
// found by evaluating ScaledAndShifted itself at the ends. The mask is thus
// bitwise the forward's decision, for every x: also infinities, and NaN, which
// is in no range.

#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "cc/core/formulas/formula.h"
#include "cc/core/formulas/forward.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

// x passes if first <= x and x <= last. Where none does, first > last or one of
// them is NaN.
template <typename C>
struct PassingRange {
  C first, last;
};

// dy where x is in the range, else 0.
template <typename V>
static TFBN_HD V PassedBy(V dy, V x, V first, V last) {
  return ((x >= first) & (x <= last)) ? dy : V{};
}

// Floating-point numbers by their rank: neighbours differ by 1, and -0 is the
// neighbour of 0. Ranks beyond the infinities are NaNs.
template <typename C>
struct RankOf {
  using Bits = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  static constexpr C kInf = std::numeric_limits<C>::infinity();
  static constexpr C kLeastNormal = std::numeric_limits<C>::min();

  static TFBN_HD Bits Of(C value) { return FromBits(BitCast<Bits>(value)); }
  static TFBN_HD C At(Bits rank) { return BitCast<C>(FromBits(rank)); }

 private:
  // All bits but the sign.
  static constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();

  // Negative numbers have the sign bit and a magnitude that grows away from 0:
  // flips it. Its own inverse.
  static TFBN_HD Bits FromBits(Bits bits) {
    return bits < 0 ? bits ^ kMagnitude : bits;
  }
};

// "ScaledAndShifted(x) > bound" with scale_rstd > 0: false up to some x, then
// true. (Where it is NaN, at an infinity, it is on the side of the false ones
// or there is no true one.)
template <typename C>
struct IsAbove {
  ForwardCoefficients<C> forward;
  C offset, bound;

  TFBN_HD bool operator()(typename RankOf<C>::Bits rank) const {
    return ScaledAndShifted(RankOf<C>::At(rank), forward.mean,
                            forward.mean_rest, forward.scale_rstd,
                            offset) > bound;
  }
  // Where it changes, but for roundings.
  TFBN_HD C Estimate() const {
    const C x = (bound - offset) / forward.scale_rstd + forward.mean +
                forward.mean_rest;
    return x == x ? x : C{0};
  }
};

// The rank of the first x for which `is_above` is true; one more than the rank
// of infinity if there is none.
template <typename C>
static TFBN_HD typename RankOf<C>::Bits FirstAbove(const IsAbove<C>& is_above) {
  using Rank = RankOf<C>;
  using Bits = typename Rank::Bits;
  const Bits last = Rank::Of(Rank::kInf), first = Rank::Of(-Rank::kInf);
  const Bits start = Rank::Of(is_above.Estimate());

  // Roundings move it by one or two ranks in 92 to 99 of 100 channels (mean and
  // offset of a normal distribution), unless x is small against the mean.
  // Without a branch, since this is done for every channel.
  constexpr Bits kNear = 2;
  if (first + kNear <= start && start <= last - kNear) {
    Bits below = 0;
    TFBN_UNROLL
    for (Bits i = -kNear; i <= kNear; ++i) below += !is_above(start + i);
    if (below > 0 && below <= 2 * kNear) return start - kNear + below;
  }

  // Where subnormal numbers are flushed, 0 and all of them are alike: the next
  // one after 0, the mean of a channel that is constant.
  const Bits normal = Rank::Of(Rank::kLeastNormal);
  if (is_above(normal) && !is_above(normal - 1)) return normal;

  // Steps that double, up to the first that passes it ...
  Bits low = first - 1, high = last + 1;  // false and true, by definition
  const bool is_high = is_above(start);
  (is_high ? high : low) = start;
  constexpr Bits kLongestStep = Bits{1} << 20;
  TFBN_NO_UNROLL
  for (Bits step = 1; step <= kLongestStep; step *= 2) {
    const Bits next = is_high ? high - step : low + step;
    if (next <= low || next >= high) break;
    const bool above = is_above(next);
    (above ? high : low) = next;
    if (above != is_high) break;
  }
  // ... then halves.
  TFBN_NO_UNROLL
  while (low + 1 < high) {
    // The mean of both, whose sum may overflow.
    const Bits middle = (low & high) + ((low ^ high) >> 1);
    (is_above(middle) ? high : low) = middle;
  }
  return high;
}

// The range of a forward pass with these coefficients and bounds.
template <typename C>
static TFBN_HD PassingRange<C> PassingRangeOf(ForwardCoefficients<C> forward,
                                              C offset,
                                              const MaskBounds<C>& bounds) {
  using Rank = RankOf<C>;
  constexpr C kInf = Rank::kInf;
  // y of x falls: it is y of -x, bit by bit, with the mean negated, too.
  const bool falls = forward.scale_rstd < 0;
  if (falls) {
    forward = {-forward.mean, -forward.mean_rest, -forward.scale_rstd};
  }
  IsAbove<C> ends[2] = {{forward, offset, bounds.lowest},
                        {forward, offset, C{0}}};
  int count = 1;  // Of ends that are searched.
  const bool rises = forward.scale_rstd > 0;
  if (rises) {
    if (bounds.highest == bounds.highest) {  // v >= highest: above the one
      ends[1].bound = Rank::At(Rank::Of(bounds.highest) - 1);  // before it.
      count = 2;
    }
  } else {
    // Of 0 times a finite number; NaN if a coefficient is. What is subtracted
    // must not overflow: from above minus infinity, in both directions.
    const C y = forward.scale_rstd * C{0} + offset;
    if (!(y > bounds.lowest) || y >= bounds.highest) return {kInf, -kInf};
    ends[0] = {{forward.mean, forward.mean_rest, C{1}}, C{0}, -kInf};
    ends[1] = {{-forward.mean, -forward.mean_rest, C{1}}, C{0}, -kInf};
    count = 2;
  }
  typename Rank::Bits found[2];
  TFBN_NO_UNROLL
  for (int i = 0; i < count; ++i) found[i] = FirstAbove(ends[i]);

  PassingRange<C> range = {Rank::At(found[0]), kInf};
  if (count == 2) {
    range.last = rises ? Rank::At(found[1] - 1) : -Rank::At(found[1]);
  }
  return falls ? PassingRange<C>{-range.last, -range.first} : range;
}

}  // namespace tf_bn_ops
