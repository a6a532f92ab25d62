"""What a relation is, and what all of them read: roles, calls, answers with their bounds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.models import batch_norm_grad_ex
from tf_bn_ops.conformance.models.bounds import Profile
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.models.measure import assembled
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
    """A call of a relation and its outputs, by role, in float64 and the shapes of the tensors.

    Attributes:
      profile, times: how far from right an element may be: see `bound`.
    """

    case: Case
    inputs: Inputs
    outputs: Mapping[str, np.ndarray]
    profile: Profile
    times: Mapping[str, float]

    @functools.cached_property
    def _parts(self) -> list:
        problem = problems.of_call(self.case, self.inputs)
        return list(model_of(self.case.spec).expected(problem, self.profile))

    def bound(self, role: str) -> np.ndarray:
        """How far the elements of an output may be from right, in the shape of its tensor."""
        view = spec.view_shape(self.case.shape, self.case.layout)
        shape = view if role in VIEW_ROLES else view[1:2]
        bound = assembled(self._parts, role, "bound", shape).astype(np.float64)
        bound = bound * self.times.get(role, 1)
        return bound.reshape(self.outputs[role].shape)

    def view(self, role: str) -> np.ndarray:
        """An input or output of view shape as [outer, channels, inner], or one per channel as
        [channels, 1], in float64."""
        array = self.outputs.get(role)
        if array is None:
            array = self.inputs.values[role].astype(np.float64)
        return spec.as_view(array, self.case.layout) if role in VIEW_ROLES else array[:, None]

    def bound_view(self, role: str) -> np.ndarray:
        """`bound`, as `view` shows the output."""
        bound = self.bound(role)
        return spec.as_view(bound, self.case.layout) if role in VIEW_ROLES else bound[:, None]

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
      applies: whether an op has it, in a mode.
      calls: the calls, from the base; the first may differ from it.
      check: what their answers have to do with each other.
      identity: for calls without activation alone.
    """

    what: str
    applies: Callable[[OpSpec, str], bool]
    calls: Callable[[Case, Inputs], Sequence[Member]]
    check: Callable[[Sequence[Answered]], Iterator[Comparison]]
    identity: bool = False


def inputs_of(op: OpSpec) -> frozenset[str]:
    return frozenset(arg.role for arg in op.inputs)


def outputs_of(op: OpSpec) -> tuple[str, ...]:
    """The roles of the outputs whose values are judged."""
    roles = [arg.role for arg in op.outputs]
    return tuple(role for role in model_of(op).outputs if role in roles)


def linear_in(op: OpSpec) -> tuple[frozenset[str], tuple[str, ...]]:
    """The inputs that outputs are linear in together, and these outputs; of the forward ops without
    activation. Nothing where an input has a role that is not known here."""
    roles, outputs = inputs_of(op), outputs_of(op)
    arriving = frozenset(role for role in roles if role.endswith("_backprop_grad"))
    if arriving and roles <= _COEFFICIENTS | arriving | {"y_backprop"}:
        return arriving, outputs
    if "y_backprop" in roles and roles <= _COEFFICIENTS | {"y_backprop"}:
        return frozenset(("y_backprop",)), outputs
    forward = roles & {"scale", "offset", "side_input"}
    if "y" in outputs and len(forward) >= 2 and roles <= _COEFFICIENTS | {"side_input"}:
        return forward, ("y",)
    return frozenset(), ()


def is_gradient(op: OpSpec) -> bool:
    """Whether it is a first-order gradient: x_backprop from y_backprop and statistics."""
    return "x_backprop" in outputs_of(op) and bool(linear_in(op)[0])


def is_second_order(op: OpSpec) -> bool:
    return "x_grad" in outputs_of(op) and bool(linear_in(op)[0])


def is_forward(op: OpSpec) -> bool:
    """Whether it is batch norm itself."""
    return "y" in outputs_of(op) and bool(linear_in(op)[0])


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
