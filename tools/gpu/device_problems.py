"""The calls that tests of the GPU kernels make, by name: every formula in every mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import repository  # noqa: F401

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import inputs, split_ops_inputs
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import (
    IDENTITY,
    RELU,
    RELU6,
    Problem,
    random_forward_problem,
    random_problem,
)
from tf_bn_ops.spec import DTYPES

View = tuple[int, int, int]

# Of the kernels: kMinElementBytes of cc/gpu/launch_plan.h.
KERNEL_DTYPES = {name: dtype for name, dtype in DTYPES.items() if dtype.numpy.itemsize >= 2}


def behind_activation(
    view: View,
    dtype: str = "float32",
    *,
    activation: str = RELU,
    is_training: bool = True,
    side_input: bool = False,
    mask_from_y: bool = False,
    rstd: bool = False,
) -> Problem:
    """A gradient behind an activation, with the mean and variance of the forward.

    Args:
      view, dtype, activation, is_training: as of any problem.
      side_input: whether there was one; its gradient is an output.
      mask_from_y: without the forward's coefficients, by which the mask is taken from x otherwise.
      rstd: "variance" holds it.
    """
    values = dict(random_forward_problem(view, dtype).values)
    p = Problem(values, is_training=is_training, variance_is_rstd=rstd, activation=activation)
    p.num_side_inputs = int(side_input)
    values["y_backprop"] = p.dtype.store(np.random.default_rng([*view, 1]).normal(0.5, 1, view))
    # Two dozen levels of x put elements of y exactly at the activation's bounds.
    values["x"] = p.dtype.store(np.round(2 * p.wide("x", np.float64)) / 2)
    is_smooth = activation in spec.SMOOTH_ACTIVATIONS
    if is_smooth and side_input:  # It is in the place of y.
        values["y"] = random_forward_problem(view, dtype, side_input=True)["side_input"]
    else:
        values["y"] = split_ops_inputs.y_of_elemt(p)
    mean, variance, scale = (p.wide(r, np.float64) for r in ("mean", "variance", "scale"))
    if is_smooth or not (side_input or mask_from_y):
        compute = DTYPES[p.dtype.accumulator].numpy.type
        values["forward_coefficients"] = inputs.forward_coefficients(
            mean, variance, scale, p.epsilon, compute, saves_rstd=rstd
        )
    if rstd:
        values["variance"] = p.statistics_dtype.store(1 / np.sqrt(variance + p.epsilon))
    return p


def stats(view: View, dtype: str = "float32") -> Problem:
    """BatchNormStats."""
    return Problem({"x": random_forward_problem(view, dtype)["x"]}, part=spec.ops.BATCH_NORM_STATS)


def elemt(
    view: View, dtype: str = "float32", *, activation: str = IDENTITY, side_input: bool = False
) -> Problem:
    """BatchNormElemt."""
    p = random_forward_problem(view, dtype, side_input=side_input, activation=activation)
    p.part = spec.ops.BATCH_NORM_ELEMT
    for role in ("mean", "variance"):
        p[role] = p.wide(role, np.float64)
    p.num_side_inputs = int(side_input)
    return p


def backward_reduce(
    view: View, dtype: str = "float32", *, activation: str = IDENTITY, mask_from_y: bool = False
) -> Problem:
    """BatchNormBackwardReduce."""
    p = behind_activation(view, dtype, activation=activation)
    del p.values["forward_coefficients"]
    p.part = spec.ops.BATCH_NORM_BACKWARD_REDUCE
    for role in ("mean", "variance"):
        p[role] = p.wide(role, np.float64)
    y = split_ops_inputs.y_of_elemt(p)
    del p.values["y"]
    if mask_from_y:
        p["y"] = y
    return p


def backward_elemt(
    view: View,
    dtype: str = "float32",
    *,
    activation: str = IDENTITY,
    mask_from_y: bool = False,
    side_input: bool = False,
) -> Problem:
    """BatchNormBackwardElemt, with the sums of a larger batch."""
    p = backward_reduce(view, dtype, activation=activation, mask_from_y=mask_from_y)
    p.part = spec.ops.BATCH_NORM_BACKWARD_ELEMT
    p.num_side_inputs = int(side_input)
    rng, rows = np.random.default_rng([*view, 2]), view[0] * view[2]
    for role in ("sum_dy", "sum_dy_xmu"):
        p[role] = rng.normal(0, rows, view[1])
    p["count"] = np.asarray(1.5 * rows)
    return p


def dtypes_of(call: str) -> list[str]:
    """The element types with which an op makes a call of CALLS."""
    return [
        name for name in KERNEL_DTYPES if c_abi.is_op_call(CALLS[call](view=(1, 1, 1), dtype=name))
    ]


_second_order = functools.partial(random_problem, formula=spec.ops.BATCH_NORM_GRAD_GRAD)

# The first ones take every kernel; the others, other branches in them.
KERNEL_CALLS: Mapping[str, Callable[..., Problem]] = {
    "gradient, training": random_problem,
    "gradient, frozen": functools.partial(random_problem, is_training=False),
    "forward, training, rstd": functools.partial(random_forward_problem, saves_rstd=True),
    "forward, frozen": functools.partial(random_forward_problem, is_training=False),
    "forward of a sum, training, rstd, Relu6": functools.partial(
        random_forward_problem, side_input=True, saves_rstd=True, activation=RELU6
    ),
    "forward of a sum, frozen, Relu": functools.partial(
        random_forward_problem, side_input=True, is_training=False, activation=RELU
    ),
    "forward and Silu, training, rstd": functools.partial(
        random_forward_problem, saves_rstd=True, activation="Silu"
    ),
    "forward and HardSilu, frozen": functools.partial(
        random_forward_problem, is_training=False, activation="HardSilu"
    ),
    "gradient behind Silu, training, rstd": functools.partial(
        behind_activation, activation="Silu", rstd=True
    ),
    "gradient behind HardSilu, frozen": functools.partial(
        behind_activation, activation="HardSilu", is_training=False
    ),
    "forward of a sum and Silu, training": functools.partial(
        random_forward_problem, side_input=True, activation="Silu"
    ),
    "gradient behind a sum and Silu, training": functools.partial(
        behind_activation, activation="Silu", side_input=True
    ),
    "gradient behind a sum and HardSilu, frozen": functools.partial(
        behind_activation, activation="HardSilu", side_input=True, is_training=False
    ),
    "forward and LeakyRelu, training": functools.partial(
        random_forward_problem, activation="LeakyRelu", leakyrelu_alpha=0.3
    ),
    "gradient behind a sum and LeakyRelu, training": functools.partial(
        behind_activation, activation="LeakyRelu", side_input=True
    ),
    "gradient behind Relu, training, rstd": functools.partial(behind_activation, rstd=True),
    "gradient behind Relu6 of y, training": functools.partial(
        behind_activation, activation=RELU6, mask_from_y=True
    ),
    "gradient behind Relu6 of y, frozen": functools.partial(
        behind_activation, activation=RELU6, is_training=False, mask_from_y=True
    ),
    "gradient behind Relu, frozen": functools.partial(behind_activation, is_training=False),
    "gradient behind a sum and Relu, training": functools.partial(
        behind_activation, side_input=True
    ),
    "gradient behind a sum and Relu, frozen": functools.partial(
        behind_activation, side_input=True, is_training=False
    ),
    "second order, training": _second_order,
    "second order, frozen": functools.partial(_second_order, is_training=False),
    "elements of the gradient": backward_elemt,
    "elements of the gradient behind Relu": functools.partial(backward_elemt, activation=RELU),
    "elements of the gradient behind Relu6 of y": functools.partial(
        backward_elemt, activation=RELU6, mask_from_y=True
    ),
    "elements of the gradient behind a sum and Relu": functools.partial(
        backward_elemt, activation=RELU, mask_from_y=True, side_input=True
    ),
}
CALLS: Mapping[str, Callable[..., Problem]] = {
    **KERNEL_CALLS,
    "gradient, training, rstd": functools.partial(random_problem, variance_is_rstd=True),
    "forward, training, averages, Relu": functools.partial(
        random_forward_problem,
        exponential_avg_factor=0.125,
        bessel_correction=False,
        activation=RELU,
    ),
    "gradient behind no activation, training": functools.partial(
        behind_activation, activation=IDENTITY
    ),
    "gradient behind a sum, frozen": functools.partial(
        behind_activation, activation=IDENTITY, side_input=True, is_training=False
    ),
    "statistics": stats,
    "elements": elemt,
    "elements of a sum behind Relu": functools.partial(elemt, activation=RELU, side_input=True),
    "sums of the gradient": backward_reduce,
    "sums of the gradient behind Relu": functools.partial(backward_reduce, activation=RELU),
    "sums of the gradient behind Relu6 of y": functools.partial(
        backward_reduce, activation=RELU6, mask_from_y=True
    ),
    "elements of the gradient of a sum": functools.partial(backward_elemt, side_input=True),
}
