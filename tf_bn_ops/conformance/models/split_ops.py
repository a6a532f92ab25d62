"""The formula models of the parts of synchronised batch normalization: answers and bounds.

Each part is one pass of a formula that has a model, whose oracle and bounds serve here; what is
added comes from statistics and sums that are float64 (u = 2^-53). Notation: as in batch_norm.py and
bounds.py.

**BatchNormStats.** mean and m2 = M*variance as batch_norm.py has them, without rounding to a
narrower type: em + 4u|mean|, M*ev + 8u*m2. The count is exact, and 0 for an empty x.

**BatchNormElemt.** y of the frozen forward; the given mean is float64, and two float32 parts of it
miss 2^-47 of it, which is what batch_norm.py allows of a mean in two parts.

**BatchNormBackwardReduce.** scale_backprop and offset_backprop of the masked y_backprop; the sums
before they are rounded: E(S1) + 2u|S1|, E(S2) + 4u|S2|. Where y is not given the mask is computed
from the y that BatchNormElemt computes, bit by bit.

**BatchNormBackwardElemt.** x_backprop from sums that are given: E(S1) = E(S2) = 0 but for a few
roundings, for which 2^-44 of the sums leaves room. x - mean has one operation more than where the
mean is float32, which the 8 roundings of an element have room for, and misses what a mean in two
parts misses: mean_roundings*u_c*|mean|, times |a*k|.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import (
    batch_norm,
    batch_norm_grad,
    batch_norm_grad_ex,
    batch_norm_inputs,
    inputs,
    oracle,
    split_ops_inputs,
)
from tf_bn_ops.conformance.models import bounds as bounds_lib
from tf_bn_ops.conformance.models.bounds import Profile
from tf_bn_ops.conformance.models.measure import WHOLE, Expected, FormulaModel
from tf_bn_ops.harness.problems import Problem

_U = spec.DTYPES["float64"].unit_roundoff
# Where in a scalar its only element is.
_SCALAR: tuple[slice, ...] = ()
_STATS = ("local_count", "local_mean", "local_m2")


def _stats(problem: Problem, profile: Profile) -> Iterator[Expected]:
    channels = problem.view[1]
    zero = np.zeros(channels)
    right = batch_norm.Oracle(problem)
    # An empty x has no samples, also where it is its channels that are missing.
    m = right.count if channels else 0
    count = np.asarray(float(m))
    yield Expected("local_count", _SCALAR, count, 0 * count, count)
    if not m:
        for role in _STATS[1:]:
            yield Expected(role, WHOLE, zero, zero, zero)
        return
    with np.errstate(all="ignore"):
        of = right.of_batch(profile.around_zero)
        errors = batch_norm.Errors.in_training(profile, problem, of, m)
        mean, m2 = of.mean + of.rest, of.variance * m
        floor = 4 * bounds_lib.flushed_below(spec.DTYPES["float64"])
        of_mean = errors.mean + 4 * _U * np.abs(mean) + floor
        of_m2 = m * errors.variance + 8 * _U * m2 + floor
        squares = m * (of.variance + of.d**2)
    impostors: dict[str, Callable[[], np.ndarray]] = {}
    if m > 1:
        impostors["variance"] = lambda: of.variance
    nan_required = inputs.channels_without_infinity(problem, of.variance)
    for role, value, bound, terms in (
        ("local_mean", mean, of_mean, np.abs(mean) + of.xc),
        ("local_m2", m2, of_m2, squares),
    ):
        yield Expected(
            role,
            WHOLE,
            value,
            np.where(errors.overflow, np.inf, bound),
            terms,
            impostors if role == "local_m2" else {},
            nan_required=nan_required,
            finite_required=~errors.overflow,
        )


def _elemt(problem: Problem, profile: Profile) -> Iterator[Expected]:
    frozen = dataclasses.replace(problem, is_training=False, part="")
    for part in batch_norm.expected(frozen, profile):
        if part.role == "y":
            yield part


def _backward_reduce(problem: Problem, profile: Profile) -> Iterator[Expected]:
    with_y, masked = split_ops_inputs.masked_problems(problem)
    right = oracle.Oracle(masked)
    wrong = batch_norm_grad_ex.WrongMasks(with_y, masked, right)
    sums = right.sums
    with np.errstate(all="ignore"):
        errors = bounds_lib.sum_errors(profile, right, problem.dtype)
        wide = {
            "offset_backprop": ("local_sum_dy", sums.dy, errors.dy + 2 * _U * np.abs(sums.dy)),
            "scale_backprop": (
                "local_sum_dy_xmu",
                sums.dy_xmu,
                errors.dy_xmu + 4 * _U * np.abs(sums.dy_xmu),
            ),
        }
    for part in batch_norm_grad.expected_of(right, masked, profile):
        if part.role not in wide:
            continue
        yield dataclasses.replace(part, impostors=wrong.answers(part))
        role, value, bound = wide[part.role]
        terms = sums.dy_abs if role == "local_sum_dy" else sums.dy_xmu_abs
        # Zero where the rstd of scale_backprop hides what it is computed from.
        yield dataclasses.replace(
            part, role=role, value=value, bound=bound, magnitude=terms / max(sums.n, 1)
        )


class _Given(oracle.Oracle):
    """The oracle with the sums of another batch."""

    def _sum(self) -> oracle.Sums:
        own = super()._sum()
        dy, dy_xmu = (self._totals.wide(role, self.work) for role in ("sum_dy", "sum_dy_xmu"))
        return oracle.Sums(
            float(self._totals["count"]),  # type: ignore[arg-type]
            dy,
            np.maximum(own.dy_abs, np.abs(dy)),
            dy_xmu,
            np.maximum(own.dy_xmu_abs, np.abs(dy_xmu)),
            own.xmu_abs,
        )

    def __init__(self, masked: Problem, totals: Problem):
        self._totals = totals
        super().__init__(masked)


def _backward_elemt(problem: Problem, profile: Profile) -> Iterator[Expected]:
    with_y, masked = split_ops_inputs.masked_problems(problem)
    right = _Given(masked, problem)
    wrong = batch_norm_grad_ex.WrongMasks(with_y, masked, right)
    u_c = spec.DTYPES[problem.dtype.accumulator].unit_roundoff
    with np.errstate(all="ignore"):
        off = profile.mean_roundings * u_c * np.abs(right.mean)
        off = np.nan_to_num(off * np.abs(right.factor * right.slope), posinf=np.inf)
    for part in batch_norm_grad.expected_of(right, masked, profile):
        if part.role == "x_backprop":
            bound = part.bound + off[part.at[1], None]
            answers = {**part.impostors, **wrong.answers(part)}
            yield dataclasses.replace(part, bound=bound, impostors=answers)
    if problem.num_side_inputs:
        for part in batch_norm_grad_ex.of_side_input(with_y, masked):
            yield dataclasses.replace(part, impostors=wrong.answers(part))


MODELS = {
    spec.ops.BATCH_NORM_STATS: FormulaModel(
        batch_norm_inputs.KINDS, _STATS, split_ops_inputs.fill_stats, _stats
    ),
    spec.ops.BATCH_NORM_ELEMT: FormulaModel(
        batch_norm_inputs.KINDS, ("y",), split_ops_inputs.fill_elemt, _elemt
    ),
    spec.ops.BATCH_NORM_BACKWARD_REDUCE: FormulaModel(
        inputs.KINDS,
        ("local_sum_dy", "local_sum_dy_xmu", "scale_backprop", "offset_backprop"),
        split_ops_inputs.fill_backward_reduce,
        _backward_reduce,
    ),
    spec.ops.BATCH_NORM_BACKWARD_ELEMT: FormulaModel(
        inputs.KINDS,
        ("x_backprop", "side_input_backprop"),
        split_ops_inputs.fill_backward_elemt,
        _backward_elemt,
    ),
}
