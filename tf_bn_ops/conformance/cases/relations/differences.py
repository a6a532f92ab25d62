"""The forward formula in float64, and finite differences of it.

A forward op has to be the formula. Of a gradient, in a random direction v, <gradient, v> has to be
the derivative of L: for the first order
L(x, scale, offset) = sum(y_backprop * y), with y by the forward formula; for the second
L(y_backprop, x, scale) = the sum of the products of what arrives with the first-order gradients.
Statistics are functions of x in training. Nothing of the op's own formula is used, so that a sign
or factor that an oracle shares is found. Central differences with steps h and h/2 give the
derivative (extrapolated), and its error, which is added to what the bounds allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.relations.relation import (
    Answered,
    Comparison,
    Member,
    Relation,
    outputs_of,
    with_statistics,
)
from tf_bn_ops.conformance.models.batch_norm import activated
from tf_bn_ops.harness.problems import IDENTITY, VIEW_ROLES, Inputs

_STEP = 2.0**-9
_AXES = (0, 2)

_Values = Mapping[str, np.ndarray]
# Input -> the output that is its gradient.
_FIRST = {"x": "x_backprop", "scale": "scale_backprop", "offset": "offset_backprop"}
_SECOND = {"y_backprop": "y_backprop_grad", "x": "x_grad", "scale": "scale_grad"}


def _calls(case: Case, inputs: Inputs) -> Sequence[Member]:
    return [(case, with_statistics(case, inputs) if case.is_training else inputs)]


def _check(answers: Sequence[Answered]) -> Iterator[Comparison]:
    (of,) = answers
    if "y" in outputs_of(of.case.spec):
        yield from _forward(of)
        return
    second = "x_grad" in outputs_of(of.case.spec)
    pairs, loss = (_SECOND, _second_loss) if second else (_FIRST, _first_loss)
    at = _point(of, pairs)
    rng = np.random.default_rng([of.case.seed, 7])
    # One direction for each input: a wrong output is named.
    for role, output in pairs.items():
        direction = {role: rng.standard_normal(at[role].shape)}
        derivative, error = _derivative(lambda v: loss(of, v), at, direction)
        terms = of.outputs[output] * direction[role].reshape(of.outputs[output].shape)
        bound = of.bounds[output] * np.abs(direction[role].reshape(of.outputs[output].shape))
        allowed = bound.sum() + error + 2.0**-40 * np.abs(terms).sum()
        if not second and of.case.is_training:
            allowed += _rounded_mean(of, role, direction[role])
        yield Comparison(output, np.array(terms.sum() - derivative), np.array(allowed))


def _forward(of: Answered) -> Iterator[Comparison]:
    right = _y(of, _point(of, _FIRST))
    if "side_input" in of.inputs.values:
        right = right + of.view("side_input")
    right = activated(right, of.inputs.attrs.get("activation_mode", IDENTITY))
    allowed = of.view("y", of.bounds) + 2.0**-40 * (1 + np.abs(right))
    yield Comparison("y", of.view("y") - right, allowed)
    if of.case.is_training and "saved_mean" in outputs_of(of.case.spec):
        mean, _ = _statistics(of, of.view("x"))
        allowed = of.bounds["saved_mean"] + 2.0**-44 * (1 + np.abs(mean))
        yield Comparison("saved_mean", of.outputs["saved_mean"] - mean, allowed)


def _point(of: Answered, roles: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The inputs that L depends on, as views and columns."""
    values = {}
    for role in roles:
        given = role in of.inputs.values
        values[role] = of.view(role) if given else np.zeros_like(of.view("scale"))
        if role not in VIEW_ROLES:
            values[role] = values[role][:, 0]
    return values


def _derivative(
    loss: Callable[[_Values], float], at: _Values, direction: _Values
) -> tuple[float, float]:
    """The derivative of `loss` in a direction, and how far it may be off."""

    def moved(step: float) -> float:
        return loss({r: a + step * direction[r] if r in direction else a for r, a in at.items()})

    coarse, fine = ((moved(step) - moved(-step)) / (2 * step) for step in (_STEP, _STEP / 2))
    rounding = 2.0**-50 * (abs(moved(0.0)) + abs(moved(_STEP))) / _STEP
    return (4 * fine - coarse) / 3, abs(fine - coarse) * 0.05 + 64 * rounding


def _statistics(of: Answered, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if of.case.is_training:
        return x.mean(axis=_AXES), x.var(axis=_AXES)
    return of.view("mean")[:, 0], of.view("variance")[:, 0]


def _first_loss(of: Answered, v: _Values) -> float:
    return float((of.y_backprop * _y(of, v)).sum())


def _y(of: Answered, v: _Values) -> np.ndarray:
    mean, variance = _statistics(of, v["x"])
    normalized = (v["x"] - mean[:, None]) / np.sqrt(variance + of.epsilon)[:, None]
    return v["scale"][:, None] * normalized + v["offset"][:, None]


def _second_loss(of: Answered, v: _Values) -> float:
    """By the first-order gradients of docs/math.md."""
    mean, variance = _statistics(of, v["x"])
    rstd, dy, xmu = 1 / np.sqrt(variance + of.epsilon), v["y_backprop"], v["x"] - mean[:, None]
    inside = dy
    if of.case.is_training:
        slope = rstd**2 * (dy * xmu).mean(_AXES)
        inside = dy - dy.mean(_AXES, keepdims=True) - xmu * slope[:, None]
    first = {
        "x_backprop": (v["scale"] * rstd)[:, None] * inside,
        "scale_backprop": (rstd * (dy * xmu).sum(_AXES))[:, None],
        "offset_backprop": dy.sum(_AXES)[:, None],
    }
    return float(sum((of.view(f"{role}_grad") * array).sum() for role, array in first.items()))


def _rounded_mean(of: Answered, role: str, direction: np.ndarray) -> float:
    """What the rounding of the given mean changes: the kernel takes it as it is, L does not."""
    if role == "offset":
        return 0.0
    x, dy = of.view("x"), of.y_backprop
    count = x.shape[0] * x.shape[2]
    mean = x.mean(axis=_AXES)
    d = np.abs(mean - of.view("mean")[:, 0])
    rstd = 1 / np.sqrt(x.var(axis=_AXES) + of.epsilon)
    total = np.abs(dy.sum(axis=_AXES))
    if role == "scale":
        return float((rstd * total * d * np.abs(direction)).sum())
    xmu = np.abs(x - mean[:, None])
    slope = rstd**2 * np.abs((dy * (x - mean[:, None])).mean(axis=_AXES))
    per_element = slope[:, None] + (rstd**2 * total / count)[:, None] * xmu
    factor = np.abs(of.view("scale")[:, 0]) * rstd * d * 2
    return float((factor[:, None] * per_element * np.abs(direction)).sum())


FINITE_DIFFERENCES = Relation(
    "y and the mean of a forward op are the formula's in float64; gradients its derivatives, by "
    "finite differences",
    _calls, _check, lambda op: op.formula not in spec.ops.PARTS,
)  # fmt: skip
