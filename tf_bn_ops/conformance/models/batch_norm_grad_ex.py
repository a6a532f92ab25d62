"""The formula model of the gradient of batch normalization behind an activation.

The formula (cc/core/formulas/gradient.h): the first-order gradient of the masked y_backprop, with
the oracle and the bounds of batch_norm_grad.py. The mask is computed from y as it is
given. It has no error: each comparison is between numbers that both sides have. Where an op takes
the mask from x by the forward's coefficients, its decision has to agree with y's all the same: y is
then what these very coefficients give (batch_norm_grad_ex_inputs.py). A smooth activation has a
derivative in place of the mask, which follows from x and the side input, and has an error
(SmoothOracle).

side_input_backprop is the masked y_backprop itself, bitwise but for subnormal numbers, which may be
flushed to zero where they are subnormal in the type computed in.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import batch_norm_grad, batch_norm_grad_ex_inputs, smooth
from tf_bn_ops.conformance.models.bounds import Profile, flushed_below
from tf_bn_ops.conformance.models.measure import WHOLE, Expected, FormulaModel
from tf_bn_ops.conformance.models.oracle import Oracle, kept_rows, working_type
from tf_bn_ops.conformance.models.sums import Region, regions
from tf_bn_ops.harness.problems import IDENTITY, Problem

SIDE_INPUT_BACKPROP = "side_input_backprop"


def passes(values: np.ndarray, activation: str, closed: bool = False) -> np.ndarray:
    """Where the activation's derivative is 1: TensorFlow's ReluGrad and Relu6Grad, whose
    comparisons are false for NaN; `closed`: with >= where they have >, which is wrong."""
    kind = spec.ACTIVATIONS[activation]
    with np.errstate(invalid="ignore"):
        if closed:
            return (values >= kind.lower) & (values <= kind.upper)
        return np.asarray(kind.passes(np, values))


def masked_problem(problem: Problem) -> Problem:
    """The problem of the plain gradient: y_backprop is masked, and nothing else is left of y."""
    y_backprop = problem["y_backprop"]
    own = {"x", "scale", "mean", "variance", "forward_coefficients"}
    if problem.activation in spec.SMOOTH_ACTIVATIONS:
        own |= {"offset", "y_backprop"}  # SmoothOracle multiplies it.
        own |= {"y"} if problem.num_side_inputs else set()
        return dataclasses.replace(
            problem, values={role: problem[role] for role in own & set(problem.values)}
        )
    mask = passes(problem.wide("y", np.float64), problem.activation)
    masked = np.where(mask, y_backprop, np.zeros((), y_backprop.dtype))
    values = {role: problem[role] for role in own & set(problem.values)} | {"y_backprop": masked}
    return dataclasses.replace(problem, values=values)


def of_side_input(problem: Problem, masked: Problem) -> Iterator[Expected]:
    """What is expected of side_input_backprop."""
    work = working_type(problem)
    flushed = spec.DTYPES[problem.dtype.accumulator].smallest_normal
    for at in regions(problem.view):
        value = problem.dtype.widen(masked["y_backprop"][at], work)
        magnitude = np.abs(value)
        bound = np.where(magnitude < flushed, magnitude, 0)
        yield Expected(SIDE_INPUT_BACKPROP, at, value, bound, magnitude, nonfinite_exact=True)


def _expected(problem: Problem, profile: Profile) -> Iterator[Expected]:
    masked = masked_problem(problem)
    smooth_oracle = None
    if problem.activation in spec.SMOOTH_ACTIVATIONS:
        smooth_oracle = SmoothOracle(masked, profile)
    oracle = smooth_oracle or Oracle(masked)
    wrong = WrongMasks(problem, masked, oracle)
    for part in batch_norm_grad.expected_of(oracle, masked, profile):
        if smooth_oracle:
            # Where a derivative jumps, the error may be larger than the value, and is rounded, too.
            error = smooth_oracle.error_of(part) * (1 + problem.type_of(part.role).unit_roundoff)
            bound = part.bound + np.where(np.isnan(error), np.inf, error)
            part = dataclasses.replace(part, bound=bound)
        yield dataclasses.replace(part, impostors={**part.impostors, **wrong.answers(part)})
    if not problem.num_side_inputs:
        return
    side = smooth_oracle.side_input() if smooth_oracle else of_side_input(problem, masked)
    for part in side:
        yield dataclasses.replace(part, impostors=wrong.answers(part))


class SmoothOracle(Oracle):
    """The oracle of y_backprop times the derivative of a smooth activation, which the kernel rounds
    on the way: an element may be off by e = |y_backprop|*slope_error + u_c*|their product|, and
    results by

      offset_backprop  sum(e)
      scale_backprop   rstd * sum(e*|x - mean|)
      x_backprop       |scale|*rstd * (e, and in training + sum(e)/M
                       + |x - mean|*rstd^2*sum(e*|x - mean|)/M)
      side_input_backprop  e, and its rounding

    What the activation is applied to is what the forward op computed, by what it kept where that is
    given; it is off by what batch_norm.py says of y.
    """

    def __init__(self, problem: Problem, profile: Profile):
        self._profile, self._computed_in = profile, spec.DTYPES[problem.dtype.accumulator]
        self._rows = kept_rows(problem)
        super().__init__(problem)
        self._mean_error, self._mean_error_xmu = np.zeros((2, self.shape[1]), self.work)
        with np.errstate(all="ignore"):
            for at in regions(self.shape):
                errors, xmu = self._errors(at)
                self._mean_error[at[1]] += errors.sum((0, 2)) / self.count
                self._mean_error_xmu[at[1]] += (errors * np.abs(xmu)).sum((0, 2)) / self.count

    def load(self, at: Region) -> tuple[np.ndarray, np.ndarray]:
        y_backprop, xmu = super().load(at)
        return y_backprop * smooth.slope(self._before(at), self.problem.activation_kind), xmu

    @functools.cached_property
    def _forward(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and scale*rstd of the forward op."""
        if self._rows is None:
            return self.mean, self.column("scale") * self.rstd
        return self._rows["mean"] + self._rows["mean_rest"], self._rows["scale_rstd"]

    def _before(self, at: Region) -> np.ndarray:
        """What the activation is applied to."""
        offset = self.column("offset")[at[1], None]
        mean, factor = (each[at[1], None] for each in self._forward)
        return (self.part("x", at) - mean) * factor + offset + self._side(at)

    def _side(self, at: Region) -> np.ndarray:
        if not self.problem.num_side_inputs:
            return np.zeros((), self.work)
        return self.part("y", at)

    def side_input(self) -> Iterator[Expected]:
        """What is expected of side_input_backprop."""
        dtype = self.problem.dtype
        for at in regions(self.shape):
            with np.errstate(all="ignore"):
                value, _ = self.load(at)
                error, _ = self._errors(at)
                bound = error + dtype.unit_roundoff * (np.abs(value) + error) + flushed_below(dtype)
                yield Expected(SIDE_INPUT_BACKPROP, at, value, bound, np.abs(value))

    def _errors(self, at: Region) -> tuple[np.ndarray, np.ndarray]:
        """e, and x - mean."""
        kind, profile = self.problem.activation_kind, self._profile
        u, t, c = self._computed_in.unit_roundoff, self._computed_in.smallest_normal, at[1]
        y_backprop, xmu = super().load(at)
        v, (mean, factor) = self._before(at), (each[c, None] for each in self._forward)
        offset, distance = np.abs(self.column("offset"))[c, None], np.abs(self.part("x", at) - mean)
        mean, factor = np.abs(mean), np.abs(factor)
        roundings = 2 * profile.element_roundings * u
        size = distance * factor + offset + np.abs(self._side(at))
        off = roundings * size + factor * (profile.mean_roundings * u * mean + 2 * t) + 4 * t
        if profile.rearranged:
            off = off + 2 * roundings * mean * factor
        off = np.where((size > self._computed_in.largest / 4) | (factor > 1e37), np.inf, off)
        off = off + t * distance
        error = smooth.slope_error(v, kind, off, u, t) + u * np.abs(smooth.slope(v, kind))
        error = np.where(y_backprop == 0, 0, np.abs(y_backprop) * error + t)
        return np.where(np.isnan(error), np.inf, error), xmu

    @np.errstate(all="ignore")
    def error_of(self, part: Expected) -> np.ndarray:
        """What to add to the bound of a part; NaN where anything is right."""
        n = max(self.sums.n, 1)
        if part.role == "offset_backprop":
            return n * self._mean_error
        if part.role == "scale_backprop":
            return n * np.abs(self.rstd) * self._mean_error_xmu
        error, xmu = self._errors(part.at)  # type: ignore[arg-type]
        c = part.at[1]
        if self.is_training:
            slope = self.rstd[c] ** 2 * self._mean_error_xmu[c]
            error = error + self._mean_error[c, None] + np.abs(xmu) * slope[:, None]
        return np.abs(self.factor)[c, None] * error


class WrongMasks:
    """Answers that are wrong on purpose: y_backprop under masks that differ from the right one.

    Of x_backprop they have the right sums: it is linear in y_backprop, and what a wrong mask in the
    second pass alone lets through or not shows by itself.
    """

    def __init__(self, problem: Problem, masked: Problem, oracle: Oracle):
        self._problem, self._masked, self._oracle = problem, masked, oracle
        self._work = working_type(problem)

    @functools.cached_property
    def _masks(self) -> Mapping[str, np.ndarray]:
        """The masks that make a difference, and none at all, by name."""
        problem, activation = self._problem, self._problem.activation
        if activation == IDENTITY:
            return {}
        if activation in spec.SMOOTH_ACTIVATIONS:
            return {"unmasked": np.ones(problem.view, bool)}
        y = problem.wide("y", np.float64)
        wrong = {
            ">= for >": passes(y, activation, closed=True),
            "mask from x": passes(problem.wide("x", np.float64), activation),
            "mask from y_backprop": passes(problem.wide("y_backprop", np.float64), activation),
        }
        right, shows = passes(y, activation), problem.wide("y_backprop", np.float64) != 0
        moved = {name: mask for name, mask in wrong.items() if np.any((mask != right) & shows)}
        return {"unmasked": np.ones(right.shape, bool), **moved}

    def answers(self, part: Expected) -> dict[str, Callable[[], np.ndarray]]:
        """The wrong answers to a part of an output, by name."""
        # One is enough where each costs a pass over the tensors.
        names = ["unmasked"] if part.at == WHOLE else list(self._masks)
        masks = {name: self._masks[name] for name in names if name in self._masks}
        return {name: functools.partial(self._answer, mask, part) for name, mask in masks.items()}

    def _answer(self, mask: np.ndarray, part: Expected) -> np.ndarray:
        """A part of an output for y_backprop under a wrong mask."""
        at: Any = ... if part.at == WHOLE else part.at
        y_backprop = self._problem.dtype.widen(self._problem["y_backprop"][at], self._work)
        wrong = np.where(mask[at], y_backprop, 0)
        if part.role == "x_backprop":
            right, _ = self._oracle.load(at)
            return part.value + self._oracle.factor[part.at[1], None] * (wrong - right)
        if part.role == "scale_backprop":
            xmu = self._problem.wide("x", self._work) - self._oracle.mean[:, None]
            return (wrong * xmu).sum((0, 2)) * self._oracle.rstd
        return wrong.sum((0, 2)) if part.role == "offset_backprop" else wrong


MODELS = {
    spec.ops.BATCH_NORM_GRAD_EX: FormulaModel(
        batch_norm_grad_ex_inputs.KINDS,
        (*batch_norm_grad.OUTPUTS, SIDE_INPUT_BACKPROP),
        batch_norm_grad_ex_inputs.fill,
        _expected,
    )
}
