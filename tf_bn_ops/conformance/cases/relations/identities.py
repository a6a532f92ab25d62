"""What sums over a channel come to, and inputs that may be shifted, in training.

With s = sum over a channel, xmu = x - mean, rstd = 1/sqrt(variance + epsilon), d = mean(xmu), which
is what the rounding of the given mean leaves, and zero but for that:

  s(x_backprop) = -scale*rstd*k*M*d             k = rstd^2*mean(y_backprop*xmu)
  s(x_backprop*xmu) = scale*(scale_backprop*(1 - rstd^2*mean(xmu^2)) - rstd*offset_backprop*d)
  s(x_grad) = 0
  s(y - offset - side_input) = 0, s((y - offset - side_input)*(x - mean(x))) = scale*rstd*M*var(x)

The first and the second are what projecting y_backprop away from 1 and xmu means; the second holds
between outputs, whatever they were computed by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.relations.relation import (
    Answered,
    Comparison,
    Member,
    Relation,
    changed,
    is_forward,
    is_gradient,
    is_second_order,
    quantized,
    with_statistics,
)
from tf_bn_ops.harness.problems import Inputs
from tf_bn_ops.spec import OpSpec

_ROUNDING = 2.0**-44  # Of the sums here, in float64, relative to those of magnitudes.


def _sum(terms: np.ndarray) -> np.ndarray:
    return terms.sum(axis=(0, 2))


def _one(case: Case, inputs: Inputs) -> Sequence[Member]:
    return [(case, with_statistics(case, inputs))]


class _Channels:
    """What the formulas of the module's text are made of, per channel, of one call."""

    def __init__(self, of: Answered):
        x, mean = of.view("x"), of.view("mean")
        self.count = x.shape[0] * x.shape[2]
        self.xmu = x - mean
        self.d = _sum(self.xmu) / self.count
        self.squares = _sum(self.xmu**2) / self.count
        self.rstd = 1 / np.sqrt(of.view("variance")[:, 0] + of.epsilon)
        self.scale = of.view("scale")[:, 0]


class _Centered:
    """The same of a formula that takes the statistics from x."""

    def __init__(self, of: Answered):
        x = of.view("x")
        self.count = x.shape[0] * x.shape[2]
        self.xc = x - (_sum(x) / self.count)[:, None]
        self.variance = _sum(self.xc**2) / self.count
        self.rstd = 1 / np.sqrt(self.variance + of.epsilon)
        self.scale = of.view("scale")[:, 0]


def _is_training(op: OpSpec, mode: str) -> bool:
    """Statistics and sums are those of the batch at hand: not in the parts of synchronised batch
    normalization, which are given those of all replicas."""
    known = is_gradient(op) or is_second_order(op) or is_forward(op)
    return known and mode == "training" and op.formula not in spec.ops.PARTS


def _plain_y(of: Answered) -> np.ndarray:
    """y less what is added to the normalized x."""
    y = of.view("y") - of.view("offset")
    return y - of.view("side_input") if "side_input" in of.inputs.values else y


def _check_sums(answers: Sequence[Answered]) -> Iterator[Comparison]:
    (of,) = answers
    if "x_backprop" in of.outputs:
        c, dy = _Channels(of), of.y_backprop
        k = c.rstd**2 * _sum(dy * c.xmu) / c.count
        expected = -c.scale * c.rstd * k * c.count * c.d
        yield _sum_is(of, "x_backprop", of.view("x_backprop"), expected)
    elif "x_grad" in of.outputs:
        yield _sum_is(of, "x_grad", of.view("x_grad"), np.zeros(of.view("scale").shape[0]))
    else:
        yield _sum_is(of, "y", _plain_y(of), np.zeros(of.view("scale").shape[0]))


def _sum_is(of: Answered, role: str, terms: np.ndarray, expected: np.ndarray) -> Comparison:
    allowed = _sum(of.bound_view(role)) + _ROUNDING * _sum(np.abs(terms))
    return Comparison(role, _sum(terms) - expected, allowed)


def _has_projection(op: OpSpec, mode: str) -> bool:
    return _is_training(op, mode) and not is_second_order(op)


def _check_projection(answers: Sequence[Answered]) -> Iterator[Comparison]:
    (of,) = answers
    if "x_backprop" not in of.outputs:
        yield _check_y_projection(of)
        return
    c = _Channels(of)
    scale, offset = of.outputs["scale_backprop"], of.outputs["offset_backprop"]
    rest = 1 - c.rstd**2 * c.squares
    terms = of.view("x_backprop") * c.xmu
    expected = c.scale * (scale * rest - c.rstd * offset * c.d)
    allowed = _sum(of.bound_view("x_backprop") * np.abs(c.xmu)) + _ROUNDING * _sum(np.abs(terms))
    allowed += np.abs(c.scale * rest) * of.bound("scale_backprop")
    allowed += np.abs(c.scale * c.rstd * c.d) * of.bound("offset_backprop")
    # `rest` cancels where epsilon is small.
    allowed += _ROUNDING * np.abs(c.scale * scale)
    yield Comparison("x_backprop", _sum(terms) - expected, allowed)


def _check_y_projection(of: Answered) -> Comparison:
    c = _Centered(of)
    terms = _plain_y(of) * c.xc
    allowed = _sum(of.bound_view("y") * np.abs(c.xc)) + _ROUNDING * _sum(np.abs(terms))
    return Comparison("y", _sum(terms) - c.scale * c.rstd * c.count * c.variance, allowed)


# ---- Shifted inputs ------------------------------------------------------------------------------

_SHIFT = 2.0


def _shifted_role(case: Case) -> str:
    """The input that a constant is added to."""
    if is_second_order(case.spec):
        return ("x_backprop_grad", "y_backprop")[case.seed % 2]
    return "y_backprop" if is_gradient(case.spec) else "x"


def _shifted(case: Case, inputs: Inputs) -> Sequence[Member]:
    role = _shifted_role(case)
    plain = with_statistics(case, changed(inputs, {role: quantized(inputs.values[role])}))
    array = plain.values[role]
    more = (array + np.asarray(_SHIFT, array.dtype)).astype(array.dtype)
    return [(case, plain), (case, changed(plain, {role: more}))]


def _check_shifted(answers: Sequence[Answered]) -> Iterator[Comparison]:
    one, more = answers
    for role, (change, rest) in _changes(one).items():
        if role in one.outputs:
            difference = more.outputs[role] - one.outputs[role] - change
            yield Comparison(role, difference, one.bound(role) + more.bound(role) + rest)


def _changes(of: Answered) -> dict[str, tuple[float | np.ndarray, float | np.ndarray]]:
    """Output -> what is added to it, and how much more it may be off."""
    if is_second_order(of.case.spec):
        return dict.fromkeys(("y_backprop_grad", "x_grad", "scale_grad"), (0.0, 0.0))
    if is_forward(of.case.spec):
        return {"y": (0.0, 0.0), "saved_mean": (_SHIFT, 0.0), "saved_variance": (0.0, 0.0)}
    c = _Channels(of)
    # d, which is not quite zero, times the shift is all that the sum behind the slope grows by.
    slope = np.abs(c.scale * c.rstd**3 * c.d * _SHIFT)[:, None] * np.abs(c.xmu)
    return {
        "x_backprop": (0.0, slope.reshape(of.case.shape)),
        "offset_backprop": (_SHIFT * c.count, 0.0),
        "scale_backprop": (_SHIFT * c.count * c.d * c.rstd, 0.0),
    }


CHANNEL_SUM = Relation(
    "x_backprop, x_grad and y - offset sum up to zero over a channel",
    _is_training, _one, _check_sums, identity=True,
)  # fmt: skip
PROJECTION = Relation(
    "x_backprop is orthogonal to the normalized x but for epsilon; y has its slope",
    _has_projection, _one, _check_projection, identity=True,
)  # fmt: skip
SHIFT = Relation(
    "a constant added to y_backprop (of forward ops, to x) changes sums alone",
    _is_training, _shifted, _check_shifted, identity=True,
)  # fmt: skip
