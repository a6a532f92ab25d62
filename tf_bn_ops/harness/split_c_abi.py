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
from tf_bn_ops.harness.problems import IDENTITY, Problem

_SIZES = tuple((name, ctypes.c_int64) for name in ("outer", "channels", "inner"))
_ATTRS: tuple[tuple[str, Any], ...] = (
    *((name, ctypes.c_int32) for name in ("dtype", "stat_dtype", "activation")),
    ("epsilon", ctypes.c_double),
)


def _pointers(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


class StatsArgs(ctypes.Structure):
    """tfbn_batch_norm_stats_args."""

    _fields_ = (*_SIZES, ("dtype", ctypes.c_int32), *_pointers("x", "count", "mean", "m2"))


class GatherStatsArgs(ctypes.Structure):
    """tfbn_batch_norm_gather_stats_args."""

    _fields_ = (
        ("parts", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        *_pointers("counts", "means", "m2s", "count", "mean", "m2"),
    )


class ElemtArgs(ctypes.Structure):
    """tfbn_batch_norm_elemt_args."""

    _fields_ = (
        *_SIZES,
        *_ATTRS,
        *_pointers("x", "side_input", "scale", "offset", "mean", "variance", "y"),
    )


class BackwardReduceArgs(ctypes.Structure):
    """tfbn_batch_norm_backward_reduce_args."""

    _fields_ = (
        *_SIZES,
        *_ATTRS,
        *_pointers("y_backprop", "x", "y", "scale", "offset", "mean", "variance"),
        *_pointers("sum_dy", "sum_dy_xmu", "scale_backprop", "offset_backprop"),
    )


class BackwardElemtArgs(ctypes.Structure):
    """tfbn_batch_norm_backward_elemt_args."""

    _fields_ = (
        *_SIZES,
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
def _function(name: str, struct: type[ctypes.Structure], runs: bool) -> Any:
    function = getattr(c_abi.library(), name)
    how = [ctypes.c_char_p, ctypes.c_int] if runs else []
    function.argtypes = [ctypes.POINTER(struct), *how, ctypes.c_char_p, ctypes.c_size_t]
    return function


def call(name: str, args: ctypes.Structure, how: How | None = None) -> None:
    """Calls a function of the C ABI; `how` is None for those that do not run on a view.

    Raises:
      ValueError: the library's sentence.
    """
    error = ctypes.create_string_buffer(512)
    further: list[Any] = []
    if how is not None:
        implementation = None if how.implementation is None else how.implementation.encode()
        further = [implementation, how.threads]
    function = _function(name, type(args), how is not None)
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


def stats(x: np.ndarray, how: How = How(), out: Stats | None = None) -> Stats:
    """tfbn_cpu_batch_norm_stats; writes to `out` if it is given."""
    if out is None:
        out = Stats(np.full((), np.nan), *(np.full(x.shape[1], np.nan) for _ in range(2)))
    addresses = {role: _address(array) for role, array in out._asdict().items()}
    call("tfbn_cpu_batch_norm_stats", StatsArgs(**_of_view(x), x=_address(x), **addresses), how)
    return out


def gather_stats(parts: Stats) -> Stats:
    """tfbn_cpu_batch_norm_gather_stats; `parts` has [W], [W, C] and [W, C]."""
    rows, channels = parts.mean.shape
    out = Stats(np.full((), np.nan), *(np.full(channels, np.nan) for _ in range(2)))
    given = [np.ascontiguousarray(array, np.float64) for array in parts]
    args = GatherStatsArgs(rows, channels, *map(_address, given), *map(_address, out))
    call("tfbn_cpu_batch_norm_gather_stats", args)
    return out


def elemt(
    v: Mapping[str, np.ndarray],
    epsilon: float,
    activation: str = IDENTITY,
    how: How = How(),
    y: np.ndarray | None = None,
) -> np.ndarray:
    """tfbn_cpu_batch_norm_elemt of inputs by role; "side_input" may be missing. Writes to `y` if it
    is given."""
    y = np.empty_like(v["x"]) if y is None else y
    roles = ("x", "side_input", "scale", "offset", "mean", "variance")
    args = ElemtArgs(
        **_of_view(v["x"]),
        **_attrs(v["scale"], epsilon, activation),
        **{role: _address(v.get(role)) for role in roles},
        y=_address(y),
    )
    call("tfbn_cpu_batch_norm_elemt", args, how)
    return y


_GRADIENT_ROLES = ("y_backprop", "x", "y", "scale", "offset", "mean", "variance")


def backward_reduce(
    v: Mapping[str, np.ndarray],
    epsilon: float,
    activation: str = IDENTITY,
    how: How = How(),
    out: Sums | None = None,
) -> Sums:
    """tfbn_cpu_batch_norm_backward_reduce of inputs by role; "y" may be missing. Writes to `out` if
    it is given."""
    if out is None:
        wide = [np.full(v["x"].shape[1], np.nan) for _ in range(2)]
        out = Sums(*wide, *(np.empty_like(v["scale"]) for _ in range(2)))
    args = BackwardReduceArgs(
        **_of_view(v["x"]),
        **_attrs(v["scale"], epsilon, activation),
        **{role: _address(v.get(role)) for role in _GRADIENT_ROLES},
        **{role: _address(array) for role, array in out._asdict().items()},
    )
    call("tfbn_cpu_batch_norm_backward_reduce", args, how)
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
    call("tfbn_cpu_batch_norm_backward_elemt", args, how)
    return out


def new_outputs(problem: Problem, fill: float | None = None) -> dict[str, np.ndarray]:
    """Arrays for the outputs of a part by role, filled with NaN if not with another number."""
    view, channels = problem.view, problem.view[1]
    shapes: dict[str, Any] = {
        spec.ops.BATCH_NORM_STATS: {
            "local_count": (),
            "local_mean": channels,
            "local_m2": channels,
        },
        spec.ops.BATCH_NORM_ELEMT: {"y": view},
        spec.ops.BATCH_NORM_BACKWARD_REDUCE: dict.fromkeys(
            ("local_sum_dy", "local_sum_dy_xmu", "scale_backprop", "offset_backprop"), channels
        ),
        spec.ops.BATCH_NORM_BACKWARD_ELEMT: {"x_backprop": view}
        | ({"side_input_backprop": view} if problem.num_side_inputs else {}),
    }[problem.part]
    value = np.nan if fill is None else fill
    return {role: np.full(s, value, problem.type_of(role).numpy) for role, s in shapes.items()}


def run(
    problem: Problem, how: How = How(), outputs: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """The outputs by role of a problem of one of spec.ops.PARTS, written to the arrays of `outputs`
    where it has them."""
    v, epsilon, activation = problem.values, problem.epsilon, problem.activation
    out = {**new_outputs(problem), **(outputs or {})}
    if problem.part == spec.ops.BATCH_NORM_STATS:
        stats(v["x"], how, Stats(*(out["local_" + role] for role in Stats._fields)))
    elif problem.part == spec.ops.BATCH_NORM_ELEMT:
        elemt(v, epsilon, activation, how, out["y"])
    elif problem.part == spec.ops.BATCH_NORM_BACKWARD_REDUCE:
        # Those whose roles are inputs of another part are called local as outputs.
        sums = (out[role] if role in out else out["local_" + role] for role in Sums._fields)
        backward_reduce(v, epsilon, activation, how, Sums(*sums))
    else:
        totals = Sums(v["sum_dy"], v["sum_dy_xmu"], np.zeros(0), np.zeros(0))
        backward_elemt(
            v,
            totals,
            float(v["count"]),
            epsilon,
            activation,
            side_input=bool(problem.num_side_inputs),
            outputs=out,
            how=how,
        )
    return out
