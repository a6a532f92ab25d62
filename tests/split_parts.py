"""The parts of synchronised batch normalization through the C ABI, each as a function of arrays:
views [outer, channels, inner], and statistics and sums in float64 [channels]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import Stats
from tf_bn_ops.harness.problems import IDENTITY, Problem


class Sums(NamedTuple):
    """The sums of the gradient over a batch, and the gradients of its scale and offset."""

    sum_dy: np.ndarray
    sum_dy_xmu: np.ndarray
    scale_backprop: np.ndarray
    offset_backprop: np.ndarray


def stats(x: np.ndarray) -> Stats:
    """BatchNormStats."""
    out = c_abi.run(Problem({"x": x}, part=spec.ops.BATCH_NORM_STATS))
    return Stats(out["local_count"], out["local_mean"], out["local_m2"])


def elemt(
    v: Mapping[str, np.ndarray], epsilon: float, activation: str = IDENTITY, **how: Any
) -> np.ndarray:
    """BatchNormElemt of inputs by role; "side_input" may be missing."""
    roles = ("x", "side_input", "scale", "offset", "mean", "variance")
    values = {role: v[role] for role in roles if role in v}
    part = spec.ops.BATCH_NORM_ELEMT
    return c_abi.run(Problem(values, epsilon, activation=activation, part=part), **how)["y"]


_GRADIENT_ROLES = ("y_backprop", "x", "y", "scale", "offset", "mean", "variance")


def backward_reduce(
    v: Mapping[str, np.ndarray], epsilon: float, activation: str = IDENTITY, **how: Any
) -> Sums:
    """BatchNormBackwardReduce of inputs by role; "y" may be missing."""
    values = {role: v[role] for role in _GRADIENT_ROLES if role in v}
    part = spec.ops.BATCH_NORM_BACKWARD_REDUCE
    out = c_abi.run(Problem(values, epsilon, activation=activation, part=part), **how)
    roles = ("local_sum_dy", "local_sum_dy_xmu", "scale_backprop", "offset_backprop")
    return Sums(*(out[role] for role in roles))


def backward_elemt(
    v: Mapping[str, np.ndarray],
    sums: Sums,
    count: float,
    epsilon: float,
    activation: str = IDENTITY,
    *,
    side_input: bool = False,
    **how: Any,
) -> dict[str, np.ndarray]:
    """BatchNormBackwardElemt of inputs by role, from the sums and the count of all batches; "y" may
    be missing."""
    values = {role: v[role] for role in _GRADIENT_ROLES if role in v}
    values |= {"sum_dy": sums.sum_dy, "sum_dy_xmu": sums.sum_dy_xmu}
    values["count"] = np.asarray(count, np.float64)
    problem = Problem(values, epsilon, activation=activation, num_side_inputs=int(side_input))
    problem.part = spec.ops.BATCH_NORM_BACKWARD_ELEMT
    return c_abi.run(problem, **how)
