"""What a relation is, and what all of them read: roles, calls, answers with their bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.models import batch_norm_grad_ex
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.harness import problems
from tf_bn_ops.harness.problems import IDENTITY, VIEW_ROLES, Inputs
from tf_bn_ops.spec import OpSpec

# A call: a case, whose name nobody sees, and its inputs.
Member = tuple[Case, Inputs]

# Roles of inputs that are read as they are, and only scale or center others.
_COEFFICIENTS = frozenset(("x", "scale", "offset", "mean", "variance", "y", "forward_coefficients"))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What has to be small: |difference| <= allowed, element by element, of an output."""

    role: str
    difference: np.ndarray
    allowed: np.ndarray


@dataclasses.dataclass(frozen=True)
class Answered:
    """A call of a relation and its outputs, by role, in float64 and the shapes of the tensors, with
    how far an element of them may be from right."""

    case: Case
    inputs: Inputs
    outputs: Mapping[str, np.ndarray]
    bounds: Mapping[str, np.ndarray]

    def view(self, role: str, of: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """An input or output, or one of the bounds, of view shape as [outer, channels, inner], or
        of one number per channel as [channels, 1], in float64."""
        array = (of or self.outputs).get(role)
        if array is None:
            array = self.inputs.values[role].astype(np.float64)
        return spec.as_view(array, self.case.layout) if role in VIEW_ROLES else array[:, None]

    @property
    def epsilon(self) -> float:
        return problems.of_call(self.case, self.inputs).epsilon

    @property
    def y_backprop(self) -> np.ndarray:
        """The view of y_backprop, behind the activation where there is one."""
        dy = self.view("y_backprop")
        activation = self.inputs.attrs.get("activation_mode", IDENTITY)
        if activation == IDENTITY:
            return dy
        return np.where(batch_norm_grad_ex.passes(self.view("y"), activation), dy, 0)


@dataclasses.dataclass(frozen=True)
class Relation:
    """One relation.

    Attributes:
      what: for people.
      calls: the calls, from the base; the first may differ from it.
      check: what their answers have to do with each other.
      applies: whether an op has it whose outputs are linear in some inputs.
      identity: for calls without activation alone.
    """

    what: str
    calls: Callable[[Case, Inputs], Sequence[Member]]
    check: Callable[[Sequence[Answered]], Iterator[Comparison]]
    applies: Callable[[OpSpec], bool] = lambda op: True
    identity: bool = False


def outputs_of(op: OpSpec) -> tuple[str, ...]:
    """The roles of the outputs whose values are judged."""
    roles = [arg.role for arg in op.outputs]
    return tuple(role for role in model_of(op).outputs if role in roles)


def linear_in(op: OpSpec) -> tuple[frozenset[str], tuple[str, ...]]:
    """The inputs that outputs are linear in together, and these outputs; of the forward ops without
    activation. Nothing where an input has a role that is not known here."""
    roles, outputs = frozenset(arg.role for arg in op.inputs), outputs_of(op)
    arriving = frozenset(role for role in roles if role.endswith("_backprop_grad"))
    if arriving and roles <= _COEFFICIENTS | arriving | {"y_backprop"}:
        return arriving, outputs
    if "y_backprop" in roles and roles <= _COEFFICIENTS | {"y_backprop"}:
        return frozenset(("y_backprop",)), outputs
    forward = roles & {"scale", "offset", "side_input"}
    if "y" in outputs and len(forward) >= 2 and roles <= _COEFFICIENTS | {"side_input"}:
        return forward, ("y",)
    return frozenset(), ()


def changed(inputs: Inputs, values: Mapping[str, np.ndarray]) -> Inputs:
    """Inputs with some of them replaced; nothing is exact any more."""
    return dataclasses.replace(inputs, values={**inputs.values, **values}, exact=frozenset())


def base(case: Case, identity: bool) -> Inputs:
    """The inputs of the base call of a case: those of the kind "normal"."""
    inputs = model_of(case.spec).fill(dataclasses.replace(case, kind="normal", execution="eager"))
    attrs = dict(inputs.attrs)
    # What a smooth activation passes on changes with the inputs that calls differ by.
    if identity or attrs.get("activation_mode") in spec.SMOOTH_ACTIVATIONS:
        attrs |= {"activation_mode": IDENTITY} if "activation_mode" in attrs else {}
    values = dict(inputs.values)
    if "forward_coefficients" in values:  # y says it too, and follows the other inputs.
        values["forward_coefficients"] = np.zeros(0, np.float32)
    for role in ("offset", "y"):  # What is not read may be NaN, which is no number to compute with.
        if role in values:
            values[role] = np.where(
                np.isnan(values[role]), np.zeros_like(values[role]), values[role]
            )
    return dataclasses.replace(inputs, values=values, attrs=attrs, exact=frozenset())


# Steps and range of what is added up without rounding in any element type: with 4 bits behind the
# point, numbers below 8 fit into the 8 bits of bfloat16's significand.
_STEP, _RANGE = 2.0**-4, 4.0


def quantized(array: np.ndarray) -> np.ndarray:
    """An array, rounded so that the sum of two such arrays is exact in its type."""
    wide = np.clip(array.astype(np.float64), -_RANGE + _STEP, _RANGE - _STEP)
    return (np.round(wide / _STEP) * _STEP).astype(array.dtype)


def with_statistics(case: Case, inputs: Inputs) -> Inputs:
    """Inputs whose mean and variance are those of x, as far as their type has them."""
    if not {"mean", "variance"} <= set(inputs.values):
        return inputs
    x = spec.as_view(inputs.values["x"], case.layout).astype(np.float64)
    dtype = inputs.values["scale"].dtype
    mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    return changed(inputs, {"mean": mean.astype(dtype), "variance": variance.astype(dtype)})
