"""What a formula is computed from: Call and Inputs as an op is given them, Problem as views.

`random_problem` draws one for tests and measurements; the conformance run has inputs.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.spec import DTYPES, DType, OpSpec
from tf_bn_ops.spec.ops import FORWARD_COEFFICIENTS, NUM_FORWARD_COEFFICIENTS

# Roles that are float64 in every op that has them.
_WIDE_ROLES = frozenset(
    arg.role
    for op in spec.OPS.values()
    for arg in op.outputs
    if arg.kind in (spec.WIDE, spec.COUNT)
)

# Values of the attr activation_mode that clamp y.
IDENTITY, RELU, RELU6 = spec.CLAMPS

# Roles of view-shaped inputs and outputs, of all ops; the others are per channel.
VIEW_ROLES = frozenset(
    arg.role
    for op in spec.OPS.values()
    for arg in (*op.inputs, *op.outputs)
    if arg.kind in (spec.VIEW, spec.VIEW_LIST)
)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an op, as far as a formula model knows it: the conformance run's Case is one.

    Attributes:
      spec: the op.
      dtype: the element type.
      kind: kind of inputs.
      seed: of the inputs.
      layout, shape, mode, statistics, epsilon: see cases/case.py.
    """

    spec: OpSpec
    dtype: str
    kind: str
    seed: int
    layout: str = ""
    shape: tuple[int, ...] = ()
    mode: str = ""
    statistics: str = ""
    epsilon: float = 0.0

    @property
    def is_training(self) -> bool:
        return self.mode == "training"

    @property
    def statistics_dtype(self) -> str:
        """The type of scale, mean and variance; where the op has a choice, the seed decides."""
        choices = self.spec.statistics_choices(self.dtype)
        return choices[self.seed % len(choices)]

    @property
    def aliased(self) -> bool:
        """Whether a gradient and x are one tensor."""
        return False


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a call by role, in the shapes of the op's tensors.

    Attributes:
      values: role -> array.
      exact: the outputs whose value is the same in any order of summation.
      attrs: attrs that differ from the call's.
    """

    values: Mapping[str, np.ndarray]
    exact: frozenset[str] = frozenset()
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Those that the roles of a problem's inputs tell from each other.
FORMULAS_BY_ROLES = (
    spec.ops.BATCH_NORM,
    spec.ops.BATCH_NORM_ADD,
    spec.ops.BATCH_NORM_GRAD,
    spec.ops.BATCH_NORM_GRAD_EX,
    spec.ops.BATCH_NORM_GRAD_GRAD,
)


@dataclasses.dataclass
class Problem:
    """The inputs of one evaluation of a formula; `problem["x"]` is the array of that role.

    Attributes:
      values: role -> array: [outer, channels, inner] or [channels].
      epsilon: as the kernel has it.
      is_training: whether mean and variance are functions of x.
      variance_is_rstd: whether "variance" holds rstd itself, cuDNN's convention.
      exponential_avg_factor, bessel_correction, saves_rstd, activation, leakyrelu_alpha: of the
        forward formula, see cc/core/formulas/forward.h; the last two of its gradient too.
      num_side_inputs: of that gradient: whether it has an output for the side input.
      part: the formula, where the roles of its inputs do not tell it: of a part of synchronised
        batch normalization, and of any that is not in FORMULAS_BY_ROLES.
    """

    values: dict[str, np.ndarray]
    epsilon: float = 1e-3
    is_training: bool = True
    variance_is_rstd: bool = False
    exponential_avg_factor: float = 1.0
    bessel_correction: bool = True
    saves_rstd: bool = False
    activation: str = IDENTITY
    leakyrelu_alpha: float = spec.LEAKYRELU_ALPHA
    num_side_inputs: int = 0
    part: str = ""

    def __getitem__(self, role: str) -> np.ndarray:
        return self.values[role]

    def __setitem__(self, role: str, array: np.ndarray) -> None:
        self.values[role] = array

    @property
    def formula(self) -> str:
        """The formula whose inputs these are: `part`, or of FORMULAS_BY_ROLES."""
        if self.part:
            return self.part
        if "y_backprop" not in self.values:
            return spec.ops.BATCH_NORM_ADD if "side_input" in self.values else spec.ops.BATCH_NORM
        if "y" in self.values:
            return spec.ops.BATCH_NORM_GRAD_EX
        is_second = "x_backprop_grad" in self.values
        return spec.ops.BATCH_NORM_GRAD_GRAD if is_second else spec.ops.BATCH_NORM_GRAD

    @property
    def activation_kind(self) -> Any:
        """The class in spec/activations.py, with this alpha as the attr of type float has it."""
        return spec.activation_of(self.activation, float(np.float32(self.leakyrelu_alpha)))

    @property
    def is_part(self) -> bool:
        """Whether it is the problem of a part of synchronised batch normalization."""
        return self.part in spec.ops.PARTS

    @property
    def dtype(self) -> DType:
        return spec.dtype_of(self.values["x"])

    @property
    def statistics_dtype(self) -> DType:
        # BatchNormStats has no other vectors than float64 ones.
        return spec.dtype_of(self.values["scale"]) if "scale" in self.values else DTYPES["float64"]

    @property
    def view(self) -> tuple[int, int, int]:
        outer, channels, inner = self.values["x"].shape
        return outer, channels, inner

    def type_of(self, role: str) -> DType:
        """The type of an input or output."""
        if role in VIEW_ROLES:
            return self.dtype
        if role in _WIDE_ROLES:
            return DTYPES["float64"]
        given = self.values.get(role)
        return self.statistics_dtype if given is None else spec.dtype_of(given)

    def wide(self, role: str, work: Any) -> np.ndarray:
        """An input in a wider type."""
        return self.type_of(role).widen(self.values[role], work)

    def copy(self) -> Problem:
        """A copy with arrays of its own."""
        return dataclasses.replace(self, values={r: a.copy() for r, a in self.values.items()})


# Fields of the struct of a call, and of Problem by the same name; saves_rstd is the device's.
CALL_ATTRS = (
    "exponential_avg_factor", "bessel_correction", "saves_rstd", "variance_is_rstd",
    "leakyrelu_alpha",
)  # fmt: skip


def of_tensors(
    values: Mapping[str, np.ndarray], layout: str, epsilon: float, is_training: bool, **further: Any
) -> Problem:
    """The problem of tensors in `layout`, without copies; `epsilon` as the kernel has it, `further`
    are other fields of Problem."""
    views = {
        role: spec.as_view(array, layout) if role in VIEW_ROLES else array
        for role, array in values.items()
    }
    return Problem(views, epsilon, is_training, **further)


def of_call(call: Call, inputs: Inputs) -> Problem:
    """The problem of a call; `float` attrs round epsilon and the factor of the averages."""
    epsilon = float(DTYPES[call.spec.epsilon_dtype].numpy.type(call.epsilon))
    names = (*CALL_ATTRS, "num_side_inputs")
    further = {name: inputs.attrs[name] for name in names if name in inputs.attrs}
    if "exponential_avg_factor" in further:
        rounded = np.float32(further["exponential_avg_factor"])
        further["exponential_avg_factor"] = float(rounded)
    if "activation_mode" in inputs.attrs:
        further["activation"] = inputs.attrs["activation_mode"]
    if call.spec.formula not in FORMULAS_BY_ROLES:
        further["part"] = call.spec.formula
    return of_tensors(inputs.values, call.layout, epsilon, call.is_training, **further)


def with_rstd(call: Call, inputs: Inputs) -> Inputs:
    """Inputs by the convention of a device that keeps 1/sqrt(variance + epsilon) in training; the
    variance stays beside them."""
    if not call.is_training or "variance" not in inputs.values:
        return inputs
    if "y_backprop" not in inputs.values:
        return dataclasses.replace(inputs, attrs={**inputs.attrs, "saves_rstd": True})
    variance = inputs.values["variance"]
    epsilon = DTYPES[call.spec.epsilon_dtype].numpy.type(call.epsilon)
    with np.errstate(all="ignore"):
        rstd = (1 / np.sqrt(variance.astype(np.float64) + epsilon)).astype(variance.dtype)
    values = {**inputs.values, "variance": rstd, "given_variance": variance}
    kept = inputs.values.get("forward_coefficients")
    if kept is not None and kept.shape == (NUM_FORWARD_COEFFICIENTS, variance.size):
        values["forward_coefficients"] = kept = kept.copy()
        rows = dict(zip(FORWARD_COEFFICIENTS, kept, strict=True))
        with np.errstate(all="ignore"):
            deviation = rows["deviation"].astype(np.float64) + rows["deviation_rest"]
            saved = (1 / deviation).astype(variance.dtype)
        values["variance"] = np.where(rows["saved_variance"] == variance, saved, rstd)
        rows["saved_variance"][:] = saved
    # rstd is rounded, so that nothing but sums of y_backprop is exact.
    exact = inputs.exact & {"offset_backprop"}
    return Inputs(values, exact, {**inputs.attrs, "variance_is_rstd": True})


def with_variance(inputs: Inputs) -> Inputs:
    """The inputs by the convention of CPUs."""
    if "given_variance" not in inputs.values:
        return inputs
    values = {**inputs.values, "variance": inputs.values["given_variance"]}
    return dataclasses.replace(inputs, values=values)


def stored(
    values: Mapping[str, np.ndarray], dtype: str, statistics_dtype: str | None = None
) -> dict[str, np.ndarray]:
    """Each array in the type of its role: `dtype` if of view shape, else the statistics' type,
    which is float32, float64 with float64, unless given."""
    statistics = DTYPES[statistics_dtype or ("float64" if dtype == "float64" else "float32")]
    return {
        role: (DTYPES[dtype] if role in VIEW_ROLES else statistics).store(array)
        for role, array in values.items()
    }


def random_problem(
    view: tuple[int, int, int],
    dtype: str = "float32",
    *,
    formula: str = spec.ops.BATCH_NORM_GRAD,
    statistics_dtype: str | None = None,
    offset: float = 0.5,
    seed: int = 0,
    integers: bool = False,
    side_input: bool = False,
    **fields: Any,
) -> Problem:
    """Normal data; mean and variance are not computed from x.

    Args:
      view: [outer, channels, inner].
      dtype: element type.
      formula: spec.ops.BATCH_NORM, BATCH_NORM_GRAD or BATCH_NORM_GRAD_GRAD.
      statistics_dtype: float32, float64 with float64, unless given.
      offset: the mean of x, of the forward formula; of the gradients, whose x has its negative.
      seed: of the generator, next to the view.
      integers: small integers instead, whose sums are exact in any order; epsilon: 0 if not given.
      side_input: whether the forward formula has one.
      **fields: other fields of Problem.
    """
    rng = np.random.default_rng([seed, *view])
    channels = view[1]
    is_forward = formula == spec.ops.BATCH_NORM
    center = offset if is_forward else -offset
    values: dict[str, np.ndarray] = {}
    if not is_forward:
        values["y_backprop"] = rng.normal(offset, 1, view)
    values["x"] = rng.normal(center, 2, view)
    if side_input:
        values["side_input"] = rng.normal(0, 1, view)
    values["scale"] = rng.normal(1, 0.5, channels)
    if is_forward:
        values["offset"] = rng.normal(0, 1, channels)
    values["mean"] = rng.normal(center, 0.1, channels)
    values["variance"] = rng.uniform(0.5, 4, channels)
    if formula == spec.ops.BATCH_NORM_GRAD_GRAD:
        values["x_backprop_grad"] = rng.normal(-offset, 1, view)
        for role in ("scale_backprop_grad", "offset_backprop_grad"):
            values[role] = rng.uniform(-1, 1, channels)
    if integers:
        for role in [role for role in ("y_backprop", "x") if role in values]:
            values[role] = rng.integers(-3, 4, view).astype(np.float64)
        values["mean"] = rng.integers(-2, 3, channels).astype(np.float64)
        values["variance"] = np.full(channels, 2.0 if fields.get("variance_is_rstd") else 0.25)
        fields.setdefault("epsilon", 0.0)
    return Problem(stored(values, dtype, statistics_dtype), **fields)


random_forward_problem = functools.partial(random_problem, formula=spec.ops.BATCH_NORM)
