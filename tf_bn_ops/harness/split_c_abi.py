"""The parts of synchronised batch normalization in the C ABI (cc/c_api/tf_bn_ops_c.h): the structs,
and calls in NumPy. As c_abi.py, which has the ops that compute both passes.

Tensors are views [outer, channels, inner]; statistics and sums float64 [channels].
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import IDENTITY, VIEW_ROLES, Problem

_ATTRS: tuple[tuple[str, Any], ...] = (
    *((name, ctypes.c_int32) for name in ("dtype", "stat_dtype", "activation")),
    ("epsilon", ctypes.c_double),
)


def _pointers(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


class StatsArgs(ctypes.Structure):
    """tfbn_batch_norm_stats_args."""

    call = "batch_norm_stats"

    _fields_ = (*c_abi.SIZES, ("dtype", ctypes.c_int32), *_pointers("x", "count", "mean", "m2"))


class GatherStatsArgs(ctypes.Structure):
    """tfbn_batch_norm_gather_stats_args."""

    call = "batch_norm_gather_stats"

    _fields_ = (
        ("parts", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        *_pointers("counts", "means", "m2s", "count", "mean", "m2"),
    )


class ElemtArgs(ctypes.Structure):
    """tfbn_batch_norm_elemt_args."""

    call = "batch_norm_elemt"

    _fields_ = (
        *c_abi.SIZES,
        *_ATTRS,
        *_pointers("x", "side_input", "scale", "offset", "mean", "variance", "y"),
    )


class BackwardReduceArgs(ctypes.Structure):
    """tfbn_batch_norm_backward_reduce_args."""

    call = "batch_norm_backward_reduce"

    _fields_ = (
        *c_abi.SIZES,
        *_ATTRS,
        *_pointers("y_backprop", "x", "y", "scale", "offset", "mean", "variance"),
        *_pointers("sum_dy", "sum_dy_xmu", "scale_backprop", "offset_backprop"),
    )


class BackwardElemtArgs(ctypes.Structure):
    """tfbn_batch_norm_backward_elemt_args."""

    call = "batch_norm_backward_elemt"

    _fields_ = (
        *c_abi.SIZES,
        *_ATTRS,
        ("count", ctypes.c_double),
        *_pointers("y_backprop", "x", "y", "scale", "offset", "mean", "variance"),
        *_pointers("sum_dy", "sum_dy_xmu", "x_backprop", "side_input_backprop"),
    )


class Stats(NamedTuple):
    """Statistics of a batch, or of the parts of one with an axis for them in front."""

    count: np.ndarray  # type: ignore[assignment]  # Not the method of tuples.
    mean: np.ndarray
    m2: np.ndarray


class Sums(NamedTuple):
    """The sums of the gradient over a batch, and the gradients of its scale and offset."""

    sum_dy: np.ndarray
    sum_dy_xmu: np.ndarray
    scale_backprop: np.ndarray
    offset_backprop: np.ndarray


@dataclasses.dataclass(frozen=True)
class How:
    """How a part is run.

    Attributes:
      implementation: its name; None: the one that the environment or the processor chooses.
      threads: how many.
    """

    implementation: str | None = None
    threads: int = 1


@functools.cache
def _function(name: str, struct: Any, runs: bool) -> Any:
    function = getattr(c_abi.library(), name)
    how = [ctypes.c_char_p, ctypes.c_int] if runs else []
    function.argtypes = [ctypes.POINTER(struct), *how, ctypes.c_char_p, ctypes.c_size_t]
    return function


def call(args: Any, how: How | None = None) -> None:
    """Calls a function of the C ABI; `how` is None for those that do not run on a view.

    Raises:
      ValueError: the library's sentence.
    """
    error = ctypes.create_string_buffer(512)
    further: list[Any] = []
    if how is not None:
        implementation = None if how.implementation is None else how.implementation.encode()
        further = [implementation, how.threads]
    name = c_abi.function_of(args, "cpu")
    struct: type[ctypes.Structure] = type(args)
    function = _function(name, struct, how is not None)
    if function(args, *further, error, len(error)) != 0:
        raise ValueError(error.value.decode())


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def _of_view(x: np.ndarray) -> dict[str, int]:
    sizes = dict(zip(("outer", "channels", "inner"), x.shape, strict=True))
    return {**sizes, "dtype": c_abi.DTYPE_CODES[spec.dtype_of(x).name]}


def _attrs(scale: np.ndarray, epsilon: float, activation: str) -> dict[str, Any]:
    return {
        "stat_dtype": c_abi.DTYPE_CODES[spec.dtype_of(scale).name],
        "activation": c_abi.ACTIVATION_CODES[activation],
        "epsilon": epsilon,
    }


def stats(x: np.ndarray, how: How = How()) -> Stats:
    """tfbn_cpu_batch_norm_stats."""
    out = Stats(np.full((), np.nan), *(np.full(x.shape[1], np.nan) for _ in range(2)))
    addresses = {role: _address(array) for role, array in out._asdict().items()}
    call(StatsArgs(**_of_view(x), x=_address(x), **addresses), how)
    return out


def gather_stats(parts: Stats) -> Stats:
    """tfbn_cpu_batch_norm_gather_stats; `parts` has [W], [W, C] and [W, C]."""
    rows, channels = parts.mean.shape
    out = Stats(np.full((), np.nan), *(np.full(channels, np.nan) for _ in range(2)))
    given = [np.ascontiguousarray(array, np.float64) for array in parts]
    args = GatherStatsArgs(rows, channels, *map(_address, given), *map(_address, out))
    call(args)
    return out


def elemt(
    v: Mapping[str, np.ndarray],
    epsilon: float,
    activation: str = IDENTITY,
    how: How = How(),
) -> np.ndarray:
    """tfbn_cpu_batch_norm_elemt of inputs by role; "side_input" may be missing."""
    y = np.empty_like(v["x"])
    roles = ("x", "side_input", "scale", "offset", "mean", "variance")
    args = ElemtArgs(
        **_of_view(v["x"]),
        **_attrs(v["scale"], epsilon, activation),
        **{role: _address(v.get(role)) for role in roles},
        y=_address(y),
    )
    call(args, how)
    return y


_GRADIENT_ROLES = ("y_backprop", "x", "y", "scale", "offset", "mean", "variance")


def backward_reduce(
    v: Mapping[str, np.ndarray],
    epsilon: float,
    activation: str = IDENTITY,
    how: How = How(),
) -> Sums:
    """tfbn_cpu_batch_norm_backward_reduce of inputs by role; "y" may be missing."""
    wide = [np.full(v["x"].shape[1], np.nan) for _ in range(2)]
    out = Sums(*wide, *(np.empty_like(v["scale"]) for _ in range(2)))
    args = BackwardReduceArgs(
        **_of_view(v["x"]),
        **_attrs(v["scale"], epsilon, activation),
        **{role: _address(v.get(role)) for role in _GRADIENT_ROLES},
        **{role: _address(array) for role, array in out._asdict().items()},
    )
    call(args, how)
    return out


def backward_elemt(
    v: Mapping[str, np.ndarray],
    sums: Sums,
    count: float,
    epsilon: float,
    activation: str = IDENTITY,
    *,
    side_input: bool = False,
    outputs: Mapping[str, np.ndarray] | None = None,
    how: How = How(),
) -> dict[str, np.ndarray]:
    """tfbn_cpu_batch_norm_backward_elemt of inputs by role; "y" may be missing.

    Args:
      v: inputs by role.
      sums: of all batches.
      count: of all batches.
      epsilon: added to the variance.
      activation: the activation.
      side_input: whether there was one.
      outputs: role -> array to write to instead of a new one.
      how: how it is run.
    """
    out = dict(outputs or {})
    for role in ("x_backprop", *(["side_input_backprop"] if side_input else [])):
        out.setdefault(role, np.empty_like(v["x"]))
    args = BackwardElemtArgs(
        **_of_view(v["x"]),
        **_attrs(v["scale"], epsilon, activation),
        count=count,
        **{role: _address(v.get(role)) for role in _GRADIENT_ROLES},
        sum_dy=_address(sums.sum_dy),
        sum_dy_xmu=_address(sums.sum_dy_xmu),
        **{role: _address(array) for role, array in out.items()},
    )
    call(args, how)
    return out


@dataclasses.dataclass(frozen=True)
class _Part:
    """How a part is called with addresses: its struct, the roles of its arrays, and of its outputs
    by the names of their fields."""

    struct: type[ctypes.Structure]
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]


_LOCAL_SUMS = {"local_sum_dy": "sum_dy", "local_sum_dy_xmu": "sum_dy_xmu"}
PARTS = {
    spec.ops.BATCH_NORM_STATS: _Part(
        StatsArgs, ("x",), {"local_mean": "mean", "local_m2": "m2", "local_count": "count"}
    ),
    spec.ops.BATCH_NORM_ELEMT: _Part(
        ElemtArgs, ("x", "side_input", "scale", "offset", "mean", "variance"), {"y": "y"}
    ),
    spec.ops.BATCH_NORM_BACKWARD_REDUCE: _Part(
        BackwardReduceArgs,
        _GRADIENT_ROLES,
        {**_LOCAL_SUMS, **{r: r for r in ("scale_backprop", "offset_backprop")}},
    ),
    spec.ops.BATCH_NORM_BACKWARD_ELEMT: _Part(
        BackwardElemtArgs,
        (*_GRADIENT_ROLES, "sum_dy", "sum_dy_xmu"),
        {r: r for r in ("x_backprop", "side_input_backprop")},
    ),
}


def required_outputs(problem: Problem) -> tuple[str, ...]:
    """As c_abi.required_outputs, of a part."""
    left_out = set() if problem.num_side_inputs else {"side_input_backprop"}
    return tuple(role for role in PARTS[problem.part].outputs if role not in left_out)


def new_outputs(problem: Problem, fill: float | None = None) -> dict[str, np.ndarray]:
    """Arrays for the outputs of a part by role, filled with NaN if not with another number."""
    value = np.nan if fill is None else fill
    outputs = {}
    for role in required_outputs(problem):
        shape: tuple[int, ...] = problem.view if role in VIEW_ROLES else problem.view[1:2]
        shape = () if role == "local_count" else shape
        outputs[role] = np.full(shape, value, problem.type_of(role).numpy)
    return outputs


def args_at(problem: Problem, addresses: Mapping[str, int]) -> Any:
    """As c_abi.args_at, of a part."""
    part, v = PARTS[problem.part], problem.values
    fields: dict[str, Any] = _of_view(v["x"])
    if "scale" in v:
        fields |= _attrs(v["scale"], problem.epsilon, problem.activation)
    if "count" in v:
        fields["count"] = float(v["count"])
    fields |= {role: addresses[role] for role in part.inputs if role in addresses}
    fields |= {field: addresses[role] for role, field in part.outputs.items() if role in addresses}
    return part.struct(**fields)


def run(
    problem: Problem, how: How = How(), outputs: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """The outputs by role of a problem of one of spec.ops.PARTS, written to the arrays of `outputs`
    where it has them."""
    out = {**new_outputs(problem), **(outputs or {})}
    given = {role: v for role, v in problem.values.items() if role in PARTS[problem.part].inputs}
    addresses = {role: array.ctypes.data for role, array in {**given, **out}.items()}
    call(args_at(problem, addresses), how)
    return out
