"""How far from the oracle a first-order gradient may be, and the profiles of all bounds.

Notation: u_T, u_c and u_s are the unit roundoffs of the output's type, of the type x_backprop is
computed in, and of the type sums are kept in; c is the answer, r the oracle's; M = N*H*W;
rstd = 1/sqrt(variance + epsilon), a = scale*rstd; xmu = x - mean; S1 = sum(dy), S2 = sum(dy*xmu);
A1 = sum|dy|, A2 = sum|dy*xmu|; m = S1/M, k = rstd^2*S2/M; in frozen mode m = k = 0.

**Sums.** Adding M numbers in any order gives |error| <= h*u_s*(sum of |terms|), where h is the
largest number of additions that one term passes through; that sum of magnitudes, not the result,
is what the error depends on (the condition of the sum). Every term carries 3 roundings of its own
(dy*(x - mean)).

  |c - r| <= roundings*u_T*|r| + E(S)              for offset_backprop; E(S1) = h*u_s*A1
  |c - r| <= roundings*u_T*|r| + |rstd|*(E(S2) + 4*u_s*|S2|)
                                                   for scale_backprop;  E(S2) = h*u_s*A2

**Two-level sums** (cc/core/two_level_sum.h): runs of at most R = TWO_LEVEL_CHAIN terms are added up
in float32, with roundings of u = 2^-24, and their sums in float64. A term is rounded q times before
(q = 0 for dy, 2 for dy*(x - c), 1 for x - c, 3 for its square) and passes through at most R - 1
additions of its run, so that with n = R - 1 + q

  h*u_s becomes h*u_s + n*u/(1 - n*u)      (Higham 2002, lemma 3.1)

independent of M. c is the mean rounded to float32, and what that changes, (c - mean)*S1, is added
in float64: of a float64 mean, E(S2) grows by 2*(n*u)*u*|mean|*A1. A run whose float32 sum is not
finite is added up again in float64, so that sums overflow in u_s's type alone, and what float32
flushes is in t.

rstd carries at most 2.5 roundings of the type that sums are kept in (the sum with epsilon, which
the root halves, the root, the division), its product with S2 one more.

**x_backprop** = a*((dy - m) - xmu*k), element by element in the type with roundoff u_c, from
coefficients a, k that are rounded to it, and m, which is off by `mean_roundings` roundings:

  dy - m        the subtraction rounds its result, and m is already off by mean_roundings*u_c*|m|
                and by the error of its sum, E(S1)/M;
  xmu*k         rounded: x - mean, k, the product; k is off by rstd^2*E(S2)/M as well;
  (..) - (..)   rounds once more, at most the sum of both magnitudes;
  a*(..)        rounded: a, the product.

xmu*k may be computed of x less the mean's first part, the rest, less than u_c*|mean|, going to m:
|xmu| grows by that in what an element is rounded by. (x is a multiple of what the first part is, so
that it is less than a deviation where the mean is x's own.)

Coefficients come from the sums in the type of the sums: m by a division, k and a through rstd
(2.5 roundings each time) with at most 8 roundings together. Where x_backprop is computed in a
narrower type they do not count; in float64 they are as many as its own. With p the roundings of an
element (at most 6 above, 8 leaves room for another order),

  |c - r| <= |a| * ( (mean_roundings*u_c + 2*u_s)*|m| + E(S1)/M + |xmu|*rstd^2*E(S2)/M
                     + p*(u_c + u_s)*(|dy - m| + |xmu*k|) )
             + u_T*|r|                                the rounding to the output type.

**Flushing.** TensorFlow's threads run with subnormal inputs and results of arithmetic set to
zero, each worth at most t, the smallest normal number of the type computed in (float32 or wider):
M*t in S1, t*(2*A1 + sum|xmu| + M) in S2, a few t in an element, t in the result. In half, results
between 2^-24 and 2^-14 are subnormal but computed as normal float32 numbers: no kernel has a
reason to flush them, so half's own floor is only the rounding, 2^-25.

**Overflow.** Where r itself lies beyond the largest number less the bound, infinity is right.
Where r does not, but a, k or the sum |dy - m| + |xmu*k| lies beyond the largest number of the type
computed in, an honest kernel meets infinity on the way: the bound is infinite. So it does where a
sum of |terms| lies beyond the largest number of the type that sums are kept in, for x_backprop also
|rstd|*A2 (scale_backprop, from which k is computed), and, where products may be taken in another
order, where scale times that sum of two terms does, or rstd^2*A2 (k before its division by M).

A profile fixes the constants:

`strict`: what the kernels of this library promise on CPUs (docs/math.md). Sums are kept in float64
  (u_s = 2^-53), of half and bfloat16 they are two-level sums, and rounded once to the output:
  `roundings` = 2, one ulp, of which one rounding is room for a product with rstd that is rounded to
  float32. Sums run in blocks, whose partial sums are added up: no term passes through more than
  about 2^13 additions. Roundings are random enough that h of them add up like 6*sqrt(h) (Higham and
  Mary 2019, failing once in 10^7): 6*sqrt(2^13) = 543, taken as h = 2^9. It does not depend on M.
  Coefficients are computed in float64 and rounded once; but m is carried as two float32 numbers, or
  gradients with a large common part would lose what is left of them: it is off by 2*u_c^2*|m|,
  2^-23 of a rounding.
`two-level`: what the GPU kernels promise: `strict`, with two-level sums of float32, too.
`float32`: what a careful kernel reaches that sums in float32 (u_s = 2^-24), in any order, naive at
  worst: h = M + 4. Statistics come from two passes or from Welford's updates, x_backprop and y from
  x - mean: nothing is rearranged. m is a product with 1/M, 3 roundings; rstd may come from an
  approximate reciprocal root, so that outputs of sums have 8, and of *exact* fills offset_backprop
  alone must match bitwise. The mean of x is off by em = h*u_s*mean|x|, and with it the variance, by
  em^2 (batch_norm.py); mean(x^2) - mean(x)^2 is off by h*u_s*mean(x^2), which at a mean of D
  deviations is more than that for M < D/8. The default for ops of other libraries.
`textbook`: what any honest float32 implementation meets, TensorFlow's own among them.
  Sums in float32 (u_s = 2^-24), in any order, naive at worst: h = M + 4, so the bound grows with
  the number of elements, and finds no faults that are smaller than that. The sum behind
  scale_backprop may be rearranged as sum(dy*x) - mean*S1, and x_backprop as a*dy + b*x + c, which
  replaces |xmu| by |xmu| + 2|mean| and |dy - m| by |dy - m| + 2|m|. m carries 6
  roundings, the sums' outputs 8. Of *exact* fills offset_backprop alone must match bitwise: it
  is a sum and nothing else, the others contain rstd, which a kernel may get from the processor's
  approximate reciprocal root (oneDNN does where there is AVX-512).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tf_bn_ops.conformance.models import oracle as oracle_lib
from tf_bn_ops.spec import DTYPES, DType

# Computed in float32; and of those the ones that are stored in fewer bytes, which kernels for CPUs
# add up in two levels: kIsNarrow of cc/core/dtype.h.
_IN_FLOAT = frozenset(d.name for d in DTYPES.values() if d.accumulator == "float32")
_NARROW = _IN_FLOAT - {"float32"}

# The output that is a sum and nothing else.
_SUM_ALONE = frozenset({"offset_backprop"})

# Maximum terms of a run of a two-level sum: kTwoLevelChain of cc/core/partition.h.
TWO_LEVEL_CHAIN = 8


@dataclasses.dataclass(frozen=True)
class Profile:
    """The constants of a bound; see the module's text."""

    name: str
    sums_in: str | None  # Type of the sums; None: the accumulator type of the element type.
    additions: int | None  # h; None: M + 4.
    sum_roundings: float
    element_roundings: float
    mean_roundings: float
    rearranged: bool
    exact: frozenset[str] | None  # Outputs of exact fills that must match bitwise; None: all.
    two_level: frozenset[str] = frozenset()  # Element types whose sums are two-level sums.
    two_pass: bool = False  # A variance is summed around a mean that is a sum of x itself.

    @property
    def around_zero(self) -> bool:
        """Whether sums measure x from 0, and not from its channel's first element."""
        return self.rearranged or self.two_pass

    def sums_type(self, dtype: DType) -> DType:
        """The type that sums of elements of `dtype` are kept in."""
        return DTYPES[self.sums_in or dtype.accumulator]

    def chain(self, count: int) -> int:
        """h: additions that a term of a sum of `count` terms passes through, roundings of its own
        included."""
        return (count if self.additions is None else self.additions) + 4

    def run_error(self, dtype: DType, roundings: int) -> float:
        """How far a two-level sum's runs may be off, relative to sum|terms|; see sum_error."""
        if dtype.name not in self.two_level:
            return 0.0
        n = (TWO_LEVEL_CHAIN - 1 + roundings) * DTYPES["float32"].unit_roundoff
        return n / (1 - n)

    def sum_error(self, dtype: DType, count: int, roundings: int) -> float:
        """How far off a sum of `count` terms may be, relative to the sum of |terms|; a term of a
        two-level sum is rounded `roundings` times before it is added."""
        additions = self.chain(count) * self.sums_type(dtype).unit_roundoff
        return additions + self.run_error(dtype, roundings)


PROFILES: Mapping[str, Profile] = {
    p.name: p
    for p in (
        Profile("strict", "float64", 512, 2, 8, 2.0**-23, False, None, _NARROW),
        Profile("two-level", "float64", 512, 2, 8, 2.0**-23, False, None, _IN_FLOAT),
        Profile("float32", None, None, 8, 8, 3, False, _SUM_ALONE, two_pass=True),
        Profile("textbook", None, None, 8, 8, 6, True, _SUM_ALONE),
    )
}


def flushed_below(dtype: DType) -> float:
    """How much of a result of this type may get lost to flushing, or to rounding a subnormal."""
    kept = dtype.smallest_kept
    return 0.5 * kept if kept == dtype.smallest_subnormal else kept


@dataclasses.dataclass(frozen=True)
class _SumErrors:
    """E(S1) and E(S2), flushing included, and where the second exceeds the type of the sums."""

    dy: np.ndarray
    dy_xmu: np.ndarray
    shift: np.ndarray  # Of |xmu| where the sum behind scale_backprop may be rearranged.


def sum_errors(profile: Profile, oracle: oracle_lib.Oracle, dtype: DType) -> _SumErrors:
    sums, summed_in = oracle.sums, profile.sums_type(dtype)
    t = DTYPES[dtype.accumulator].smallest_normal
    shift = 2 * np.abs(oracle.mean) if profile.rearranged else np.zeros_like(oracle.rstd)
    e1 = profile.sum_error(dtype, sums.n, 0) * sums.dy_abs + sums.n * t
    e1[sums.dy_abs > summed_in.largest] = np.inf
    terms = sums.dy_xmu_abs + shift * sums.dy_abs
    e2 = profile.sum_error(dtype, sums.n, 2) * terms
    rounded = DTYPES["float32"].unit_roundoff * np.abs(oracle.mean) * sums.dy_abs
    e2 = e2 + 2 * profile.run_error(dtype, 2) * rounded
    e2[terms > summed_in.largest] = np.inf
    e2 = e2 + t * (2 * sums.dy_abs + sums.xmu_abs + sums.n)
    return _SumErrors(e1, e2, shift)


def _in_training(
    profile: Profile, oracle: oracle_lib.Oracle, dtype: DType, errors: _SumErrors
) -> tuple[np.ndarray, np.ndarray]:
    """What the coefficients m and k add to the bound of an element: (constant, per |xmu|)."""
    sums, summed_in = oracle.sums, profile.sums_type(dtype)
    computed_in = DTYPES[dtype.accumulator]
    u_c, u_s, t = computed_in.unit_roundoff, summed_in.unit_roundoff, computed_in.smallest_normal
    a, k, m = np.abs(oracle.factor), np.abs(oracle.slope), np.abs(oracle.dy_mean)
    n = max(sums.n, 1)
    p = profile.element_roundings * (u_c + u_s)
    off_m = (profile.mean_roundings * u_c + 2 * u_s) * m + errors.dy / n + k * t
    off_k = p * k + oracle.rstd**2 * (errors.dy_xmu / n) + t
    if profile.rearranged:
        off_m = off_m + 2 * p * m + off_k * errors.shift
    per_xmu = a * off_k + t * k
    rest = np.abs(oracle.mean - oracle.mean.astype(computed_in.numpy).astype(oracle.mean.dtype))
    constant = a * off_m + np.where(np.isfinite(rest), per_xmu * rest, 0)
    # Zero times infinity is no bound: say it where scale or x - mean may be zero.
    unbounded = np.isinf(errors.dy) | np.isinf(errors.dy_xmu)
    unbounded |= np.abs(oracle.rstd) * sums.dy_xmu_abs > summed_in.largest
    if profile.rearranged:
        unbounded |= oracle.rstd**2 * sums.dy_xmu_abs > summed_in.largest
    constant[unbounded], per_xmu[unbounded] = np.inf, 0
    return constant, per_xmu


class Bounds:
    """Bounds of one case by the formulas of the module's text, in its order; arrays are [channels].

    An element of x_backprop may be off by
    constant + per_centered*|dy - m| + per_xmu*|xmu| + u_T*|r|; in frozen mode x plays no part.
    """

    @np.errstate(all="ignore")
    def __init__(
        self, profile: Profile, oracle: oracle_lib.Oracle, dtype: DType, statistics_dtype: DType
    ):
        sums, computed_in = oracle.sums, DTYPES[dtype.accumulator]
        u_c, t, self._u_t = (
            computed_in.unit_roundoff,
            computed_in.smallest_normal,
            dtype.unit_roundoff,
        )
        u_s = profile.sums_type(dtype).unit_roundoff
        errors = sum_errors(profile, oracle, dtype)
        relative = profile.sum_roundings * statistics_dtype.unit_roundoff
        floor = flushed_below(statistics_dtype)
        self.offset_backprop = relative * np.abs(oracle.offset_backprop) + errors.dy + floor
        scale = (relative + 4 * u_s) * np.abs(oracle.scale_backprop)
        self.scale_backprop = scale + np.abs(oracle.rstd) * errors.dy_xmu + floor
        # 0 as the sum of no elements, and NaN as 0 times the rstd of odd statistics.
        if not sums.n:
            self.scale_backprop[~np.isfinite(oracle.rstd)] = np.inf

        a, k = np.abs(oracle.factor), np.abs(oracle.slope)
        self._per_centered = a * profile.element_roundings * (u_c + u_s) + t
        self._constant = np.full_like(a, flushed_below(dtype)) + 4 * t * a
        self._per_xmu: np.ndarray | None = None
        if oracle.is_training:
            more, self._per_xmu = _in_training(profile, oracle, dtype, errors)
            self._constant = self._constant + more
        # What the sum of both terms may be multiplied with before rstd.
        gain = np.maximum(1, a / oracle.rstd) if profile.rearranged else np.ones_like(a)
        self._k_a_gain, self._largest = (k, a, gain), computed_in.largest
        # No element's |dy - m| + |xmu|*k exceeds this: mostly there is no need to look at them.
        reach = np.maximum(gain * (2 * sums.dy_abs + sums.xmu_abs * k), np.maximum(k, a))
        self._may_overflow = not np.all(reach <= self._largest)

    def x_backprop(self, chunk: oracle_lib.Chunk) -> np.ndarray:
        """The bound of every element of a chunk."""
        c = chunk.at[1]
        bound = np.abs(chunk.centered) * self._per_centered[c, None]
        if self._per_xmu is not None:
            bound += np.abs(chunk.xmu) * self._per_xmu[c, None]
        bound += np.abs(chunk.x_backprop) * self._u_t
        bound += self._constant[c, None]
        if self._may_overflow:
            k, a, gain = (array[c, None] for array in self._k_a_gain)
            reached = (np.abs(chunk.centered) + np.abs(chunk.xmu) * k) * gain
            largest = self._largest
            bound[(reached > largest) | (k > largest) | (a > largest)] = np.inf
        return bound
