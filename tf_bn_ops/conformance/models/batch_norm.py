"""The formula model of batch normalization, with and without a side input: answers and bounds.

The formula: see cc/core/formulas/forward.h. Notation of the bounds: as in bounds.py, whose
profiles give h, u_s and the roundings of a mean (the text has the strict profile's). xc = x - x0
with x0 the median of three elements of the channel (oracle.center; 0 where sums may be rearranged),
d = mean(xc), a = scale*rstd.

**Statistics.** A mean of terms t is off by e(t) = h*u_s*mean|t| (two-level sums: by what bounds.py
says). In training,

  mean      em = e(xc) + u_s*|d|, and one ulp of what it is rounded to: 2u_T*|mean|
  variance  ev = e(xc^2) + 2|d|e(xc) + 3u_s*(mean(xc^2) + d^2), and two ulp: 4u_T*variance
  rstd, relative: rho = ev/(variance + epsilon) + 4u_s (half of the first term, twice; no bound
            where ev exceeds half of variance + epsilon)

Two-level sums are kept where |d| is at most 6 deviations, and are double sums around the mean
otherwise, so that runs add no more to em and ev than they do at 6 deviations.

With two passes (profile `float32`) x0 = 0, and xc in the variance is x - mean - em, whose square is
summed; Welford's updates multiply deviations with means that are off by at most em, in three terms
whose mean is at most the deviation (Chan, Golub and LeVeque 1983 have the same order):

  variance  ev = e(xc^2) + em^2 + 4em*sqrt(variance) + 3u_s*variance, and two ulp

With the strict profile these are the accuracy that the library promises at any mean: 2u|mean|, and
4u*variance + 2^-48 mean(x^2); x0 is at most sqrt(M*variance) from the mean, so what e(t) adds is
far below both unless M is in the billions. Of Bessel's correction and the moving average
(1 - f)*given + f*new, computed in the type of the sums, the four roundings count:

  batch_*   f*(the new one's error) + 4u_s*(|(1 - f)*given| + |f*new|) + 2u_T*|batch_*|

Frozen, and where the outputs are the given statistics, they are copies.

**y** = activation(a*(x - mean) + offset + side_input), element by element in the type with roundoff
u_c. At most 8 roundings touch a term (two of x - mean, whose mean has two parts, a itself, the
product, three additions, the offset's own), the mean is off by em + 2u_c^2*|mean|, and a by rho:

  |c - r| <= 8(u_c + u_s)*(|a*(x - mean)| + |offset| + |side_input|) + |a|*(em + 2u_c^2*|mean|)
             + |a*(x - mean)|*rho

Where sums may be rearranged, so may y = a*x + (offset - a*mean): 16u_c*|a*mean| more.

**Activation.** Of a smooth one smooth.py has the error. The others are monotone, so an answer lies
between the activations of the ends of that interval: near the clamp any of them is right, and where
the whole interval is clamped only the clamp itself is. After it the result is rounded to its type,
u_T*|y|. NaN stays NaN.

**Coefficients.** What is kept of them for the gradient, the mean in two parts of the type with
roundoff u_c and a, rounded to it, may be off by

  em + 2u_c^2*|mean| + 2t            the sum of both parts
  (rho + 2u_c)*|a| + t*(1 + rstd)    a; a subnormal scale may be flushed
  (rho + 2u_c^2)/rstd + 2t           the sum of both parts of sqrt(variance + epsilon)
  2u_c^2*epsilon + 2t                the sum of both parts of epsilon

and the saved variance, rounded to that type, by 4u_c*variance + 2t more than ev.

**Flushing.** As in bounds.py: t, the smallest normal number of the type computed in, counts beside
every mean|t|, times the mean of the other factor in a product, and beside every element.

**Overflow.** The bound is infinite where a sum of |terms| exceeds the largest number of the sums'
type, or a coefficient, x - mean or the sum of an element's |terms| the largest of the type computed
in; where products may be taken in another order, also where one of them does. Where only
ev is too large for a bound, it is infinite too, but the answer has to be finite: x is, and a
variance is not negative.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import batch_norm_inputs, inputs, smooth
from tf_bn_ops.conformance.models import oracle as oracle_lib
from tf_bn_ops.conformance.models.bounds import Profile, flushed_below
from tf_bn_ops.conformance.models.measure import WHOLE, Expected, FormulaModel
from tf_bn_ops.conformance.models.sums import ChannelSums, Region, regions
from tf_bn_ops.harness.problems import IDENTITY, Problem

# kFarCenter of cc/core/two_level_sum.h, and a rounding.
_FAR_CENTER = 6.01
OUTPUTS = ("y", "batch_mean", "batch_variance", "saved_mean", "saved_variance")

_Array = np.ndarray


def activated(values: _Array, kind: Any) -> _Array:
    """The activation of some values, by its class in spec; NaN stays NaN."""
    with np.errstate(all="ignore"):
        return np.asarray(kind.value(np, values))


@dataclasses.dataclass(frozen=True)
class _Statistics:
    """Per channel; the mean has two parts, whose sum it is.

    Attributes:
      d: the mean's distance from the center that sums measure x from.
      xc: mean of |x - center|.
    """

    mean: _Array
    rest: _Array
    variance: _Array
    d: _Array
    xc: _Array


class Oracle(oracle_lib.Tensors):
    """The right answer to one problem."""

    def of_batch(self, around_zero: bool) -> _Statistics:
        """The statistics of x: two passes, compensated, the second around the first one's mean.
        Sums measure x from 0, or from `oracle.center`."""
        center = np.zeros(self.problem.view[1], self.work)
        if not around_zero:
            center = oracle_lib.center(self.problem, self.work)
        first, second = self._pass(center), None
        n = max(self.count, 1)
        d = first["x"] / n
        mean = center + d
        around = np.where(np.isfinite(mean), mean, 0)
        second = self._pass(around)
        rest = second["x"] / n
        variance = second["x_x"] / n - rest**2
        variance = np.where(variance < 0, 0, variance)
        finite = np.isfinite(mean)
        return _Statistics(
            mean, np.where(finite, rest, 0), np.where(finite, variance, np.nan), d, first["|x|"] / n
        )

    def _pass(self, center: _Array) -> ChannelSums:
        sums = ChannelSums(self.problem.view[1], self.work)
        for at in regions(self.problem.view):
            xc = self.part("x", at) - center[at[1], None]
            sums.add("x", at, xc)
            sums.add_magnitudes("|x|", at, xc)
            sums.add("x_x", at, xc * xc)
        return sums

    @functools.cached_property
    def given(self) -> _Statistics:
        """The given statistics; zero and one where they are not read, and may be of any size: a
        layer's moving averages begin with them."""
        channels = self.problem.view[1]
        zero = np.zeros(channels, self.work)
        read = not self.problem.is_training or self.problem.exponential_avg_factor != 1
        mean = self.column("mean") if read else zero
        variance = self.column("variance") if read else zero + 1
        return _Statistics(mean, zero, variance, zero, zero)

    def rstd(self, of: _Statistics) -> _Array:
        return 1 / np.sqrt(of.variance + self.work(self.problem.epsilon))

    def y(self, at: Region, of: _Statistics) -> _Array:
        """y of a chunk with some statistics, by which wrong-on-purpose answers differ."""
        c = at[1]
        factor = self.column("scale") * self.rstd(of)
        xmu = (self.part("x", at) - of.mean[c, None]) - of.rest[c, None]
        y = xmu * factor[c, None] + self.column("offset")[c, None]
        if "side_input" in self.problem.values:
            y = y + self.part("side_input", at)
        return activated(y, self.problem.activation_kind)


@dataclasses.dataclass(frozen=True)
class Errors:
    """The errors of a profile's statistics, per channel: em, ev, rho of the module's text."""

    mean: _Array
    variance: _Array
    rho: _Array
    overflow: _Array  # Whether a sum exceeds its type.

    @classmethod
    def in_training(cls, profile: Profile, problem: Problem, of: _Statistics, count: int) -> Errors:
        summed_in = profile.sums_type(problem.dtype)
        u_s = summed_in.unit_roundoff
        in_double = profile.chain(count) * u_s
        run_x, run_squares = (profile.run_error(problem.dtype, q) for q in (1, 3))
        t = spec.DTYPES[problem.dtype.accumulator].smallest_normal
        d, e_x = np.abs(of.d), in_double * of.xc + t
        em = e_x + u_s * d
        squares = of.variance + (em if profile.two_pass else d) ** 2
        e_xx = in_double * squares + t * (2 * of.xc + 1)
        if profile.two_pass:
            ev = e_xx + em**2 + 4 * em * np.sqrt(of.variance) + 3 * u_s * of.variance
        else:
            ev = e_xx + 2 * d * e_x + 3 * u_s * (squares + d**2)
        # Around a center that is farther, runs would be added up in double.
        farthest = _FAR_CENTER * np.sqrt(of.variance)
        d, xc = np.minimum(d, farthest), np.minimum(of.xc, farthest + np.sqrt(of.variance))
        ev = ev + run_squares * (of.variance + d**2) + 2 * d * run_x * xc
        em = em + run_x * xc
        rho = np.where(ev == 0, 0, ev / (of.variance + problem.epsilon))
        rho = np.where(rho > 0.5, np.inf, rho + 4 * u_s)
        overflow = ~(max(count, 1) * squares <= summed_in.largest) & np.isfinite(squares)
        overflow |= np.isinf(squares) & np.isfinite(of.mean)
        return cls(em, ev, rho, overflow)

    @classmethod
    def frozen(cls, profile: Profile, problem: Problem) -> Errors:
        zero = np.zeros(problem.view[1])
        rho = zero + 4 * profile.sums_type(problem.dtype).unit_roundoff
        return cls(zero, zero, rho, zero > 0)


def expected(problem: Problem, profile: Profile) -> Iterator[Expected]:
    """See FormulaModel."""
    oracle = Oracle(problem)
    with np.errstate(all="ignore"):
        used, errors = _used(oracle, profile)
        if not problem.is_training:
            yield from _copies(problem, oracle.given)
        elif not oracle.count:
            yield from _without_elements(problem)
        else:
            yield from _vectors(oracle, profile, used, errors)
        yield from _elements(oracle, profile, used, errors)


def _used(oracle: Oracle, profile: Profile) -> tuple[_Statistics, Errors]:
    """The statistics that y is computed with, and how far off they may be."""
    problem = oracle.problem
    if not problem.is_training:
        return oracle.given, Errors.frozen(profile, problem)
    of = oracle.of_batch(profile.around_zero)
    return of, Errors.in_training(profile, problem, of, oracle.count)


def expected_coefficients(problem: Problem, profile: Profile) -> Iterator[Expected]:
    """The parts of forward_coefficients: "mean", "deviation" and "epsilon", the sums of both parts,
    "scale_rstd" and "saved_variance"; see the module's text. Where a number or its bound is not
    finite, or near the end of the type, anything goes."""
    oracle, computed_in = Oracle(problem), spec.DTYPES[problem.dtype.accumulator]
    u_c, t = computed_in.unit_roundoff, computed_in.smallest_normal
    with np.errstate(all="ignore"):
        of, errors = _used(oracle, profile)
        mean, rstd = of.mean + of.rest, oracle.rstd(of)
        factor = oracle.column("scale") * rstd
        of_mean = errors.mean + profile.mean_roundings * u_c * np.abs(mean) + 2 * t
        of_factor = (errors.rho + profile.sum_roundings * u_c) * np.abs(factor) + t * (1 + rstd)
        of_deviation = (errors.rho + profile.mean_roundings * u_c) / rstd + 2 * t
        saved = rstd if problem.saves_rstd and problem.is_training else of.variance
        of_saved = rstd * errors.rho if saved is rstd else errors.variance
        of_saved = of_saved + 4 * u_c * np.abs(saved) + 2 * t
        of_epsilon = profile.mean_roundings * u_c * problem.epsilon + 2 * t
        judged = ~errors.overflow
        for role, value, bound in (
            ("mean", mean, of_mean),
            ("scale_rstd", factor, of_factor),
            ("deviation", 1 / rstd, of_deviation),
            ("saved_variance", saved, of_saved),
            ("epsilon", np.full_like(rstd, problem.epsilon), np.full(rstd.shape, of_epsilon)),
        ):
            judged = judged & np.isfinite(bound) & (np.abs(value) < computed_in.largest / 4)
            value, bound = np.where(judged, value, 0), np.where(judged, bound, np.inf)
            yield Expected(role, WHOLE, value, bound, np.abs(value))


def _copies(problem: Problem, given: _Statistics) -> Iterator[Expected]:
    """Frozen: the given statistics twice; subnormal numbers may be flushed."""
    floor = np.full(problem.view[1], flushed_below(problem.statistics_dtype))
    for role, value in (("mean", given.mean), ("variance", given.variance)):
        for output in ("batch_" + role, "saved_" + role):
            yield Expected(
                output, WHOLE, value, floor, np.zeros_like(value), nan_required=np.isnan(value)
            )


def _without_elements(problem: Problem) -> Iterator[Expected]:
    """Training: statistics of no elements."""
    zero = np.zeros(problem.view[1])
    for role in ("mean", "variance"):
        yield Expected("batch_" + role, WHOLE, zero + np.nan, zero, zero, nan_required=zero == 0)
        yield Expected("saved_" + role, WHOLE, zero, zero, zero)


def _vectors(
    oracle: Oracle, profile: Profile, of: _Statistics, errors: Errors
) -> Iterator[Expected]:
    """Training: the outputs of shape [channels]; the sentences about statistics, in their order."""
    problem, m, given = oracle.problem, oracle.count, oracle.given
    dtype, u_s = problem.statistics_dtype, profile.sums_type(problem.dtype).unit_roundoff
    ulp, floor = profile.sum_roundings * dtype.unit_roundoff, flushed_below(dtype)
    # A NaN has to stay one where no infinity in x made it.
    nan_required = inputs.channels_without_infinity(problem, of.variance)

    def part(
        role: str, value: _Array, error: _Array, ulps: int, impostors: Mapping[str, _Array],
        terms: _Array | None = None,
    ) -> Expected:  # fmt: skip
        bound = ulps * ulp * np.abs(value) + error + floor
        bound = np.where(errors.overflow, np.inf, bound)
        # Beyond the type's largest number all are infinity, and none of them shows.
        shows = np.abs(value) <= dtype.largest
        lazy: dict[str, Callable[[], _Array]] = {
            name: lambda array=array: np.where(shows, array, value)  # type: ignore[misc]
            for name, array in impostors.items()
        }
        return Expected(
            role, WHOLE, value, bound, np.abs(value) if terms is None else terms, lazy,
            nan_required=nan_required, finite_required=~errors.overflow,
        )  # fmt: skip

    def average(
        role: str, new: _Array, error: _Array, ulps: int, old: _Array, other: _Array | None
    ) -> Expected:
        """A moving average; `other` has the other convention about Bessel's correction."""
        f = problem.exponential_avg_factor
        error = error + 4 * u_s * np.abs(new)
        if f == 1:
            return part(role, new, error, ulps, {} if other is None else {"Bessel": other})
        keep = (1 - f) * old
        impostors = {"factor swapped": f * old + (1 - f) * new, "given": old}
        if other is not None:
            impostors["Bessel"] = keep + f * other
        error = abs(f) * error + 4 * u_s * (np.abs(keep) + np.abs(f * new))
        return part(role, keep + f * new, error, ulps, impostors)

    mean, rstd = of.mean + of.rest, oracle.rstd(of)
    unbiased = of.variance * (m / (m - 1)) if m > 1 else of.variance
    corrected, other = unbiased, of.variance
    if not problem.bessel_correction:
        corrected, other = other, corrected
    grown = max(m / max(m - 1, 1), 1)
    yield part("saved_mean", mean, errors.mean, 1, {}, np.abs(mean) + of.xc)
    if problem.saves_rstd:
        yield part("saved_variance", rstd, rstd * errors.rho, 2, {})
    else:
        impostors, squares = {"unbiased": unbiased} if m > 1 else {}, of.variance + of.d**2
        yield part("saved_variance", of.variance, errors.variance, 2, impostors, squares)
    yield average("batch_mean", mean, errors.mean, 1, given.mean, None)
    yield average(
        "batch_variance", corrected, grown * errors.variance, 2, given.variance,
        other if m > 1 else None,
    )  # fmt: skip


def _elements(
    oracle: Oracle, profile: Profile, of: _Statistics, errors: Errors
) -> Iterator[Expected]:
    """y, chunk by chunk; the sentences about it, in their order."""
    problem = oracle.problem
    computed_in = spec.DTYPES[problem.dtype.accumulator]
    u_c, t, largest = computed_in.unit_roundoff, computed_in.smallest_normal, computed_in.largest
    scale, rstd, mean = oracle.column("scale"), oracle.rstd(of), np.abs(of.mean)
    factors = scale * rstd
    u_s = profile.sums_type(problem.dtype).unit_roundoff
    roundings = profile.element_roundings * (u_c + u_s)
    off_mean = errors.mean + profile.mean_roundings * u_c * mean
    # What x - mean, or x and the mean, may be multiplied with on the way.
    gain = np.ones(problem.view[1])
    if profile.rearranged:
        off_mean = off_mean + 2 * roundings * mean
        gain = np.maximum(np.maximum(np.abs(scale), rstd), np.maximum(1, np.abs(scale) * rstd))
    # Zero times infinity is no bound: a scale of zero hides the statistics.
    constant = np.where(factors == 0, 0, np.abs(factors) * (off_mean + 2 * t)) + 4 * t
    infinite = np.isinf(errors.rho)

    @functools.cache
    def other_mode() -> _Statistics:
        return oracle.given if problem.is_training else oracle.of_batch(False)

    for at in regions(problem.view):
        c = at[1]
        factor = factors[c, None]
        xmu = (oracle.part("x", at) - of.mean[c, None]) - of.rest[c, None]
        scaled = xmu * factor
        offset = oracle.column("offset")[c, None]
        y, size = scaled + offset, np.abs(scaled) + np.abs(offset)
        if "side_input" in problem.values:
            side = oracle.part("side_input", at)
            y, size = y + side, size + np.abs(side)
        off = roundings * size + constant[c, None] + t * np.abs(xmu)
        off = off + np.abs(scaled) * np.where(infinite, 0, errors.rho)[c, None]
        overflow = (size > largest) | (np.abs(factor) > largest)
        reached = (np.abs(xmu) + 2 * mean[c, None] * profile.rearranged) * gain[c, None]
        overflow |= (reached > largest) | errors.overflow[c, None]
        off = np.where(overflow | infinite[c, None], np.inf, off)
        value, bound = _clamped(problem, y, off)
        impostors: dict[str, Callable[[], _Array]] = {
            "other mode": lambda at=at: oracle.y(at, other_mode()),  # type: ignore[misc]
            "identity": lambda at=at: oracle.part("x", at),  # type: ignore[misc]
        }
        yield Expected(
            "y", at, value, bound, size, impostors,
            nan_required=~(np.isinf(y) | np.isinf(xmu)), finite_required=~overflow,
        )  # fmt: skip


def _clamped(problem: Problem, y: _Array, off: _Array) -> tuple[_Array, _Array]:
    """The activation of y, and how far it may be from it, rounding to its type included."""
    kind, dtype = problem.activation_kind, problem.dtype
    computed_in = spec.DTYPES[dtype.accumulator]
    value = activated(y, kind)
    reach = off
    if kind.is_smooth:
        u_c, t = computed_in.unit_roundoff, computed_in.smallest_normal
        reach = smooth.value_error(y, kind, off, u_c, t)
    elif problem.activation != IDENTITY:
        reach = np.maximum(activated(y + off, kind) - value, value - activated(y - off, kind))
    rounding = dtype.unit_roundoff * (np.abs(value) + reach) + flushed_below(dtype)
    is_clamp = not kind.is_smooth and problem.activation != IDENTITY
    return value, np.where((reach == 0) & is_clamp, 0, reach + rounding)


MODELS = dict.fromkeys(
    (spec.ops.BATCH_NORM, spec.ops.BATCH_NORM_ADD),
    FormulaModel(batch_norm_inputs.KINDS, OUTPUTS, batch_norm_inputs.fill, expected),
)
