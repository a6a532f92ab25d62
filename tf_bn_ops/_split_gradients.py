"""Gradients of the ops that synchronised batch normalization consists of.

Each is composed of the same ops, which sum and apply per channel, and of arithmetic on vectors, so
that it can be differentiated any number of times. Notation: xmu = x - mean,
rstd = 1/sqrt(variance + epsilon), f = scale * rstd; g is y_backprop where the activation passes it,
whose mask is constant almost everywhere; d_v is the gradient with respect to v.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_bn_ops.generated import bindings

# Inputs of view shape and of shape [channels] that BatchNormElemt and its gradient begin with.
_X_TO_VARIANCE = 5


def attributes(op: Any, *names: str) -> dict[str, Any]:
    """Attributes of an operation by name, text as str."""
    values = {name: op.get_attr(name) for name in names}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in values.items()}


def epsilon_of(op: Any) -> float:
    """The epsilon of an op that has it in double: the sum of an attr float and of the rest."""
    return float(sum(op.get_attr("epsilon_rest"), op.get_attr("epsilon")))


def _attrs(op: Any) -> dict[str, Any]:
    """What the ops on given statistics share."""
    return {**attributes(op, "activation_mode", "axis"), "epsilon": epsilon_of(op)}


def masked(activation: str, gradient: Any, y: Any) -> Any:
    """`gradient` times the derivative of the activation whose result was `y`."""
    if activation == "Identity":
        return gradient
    # ReluGrad and Relu6Grad read the sign of y, not what the activation was applied to.
    return getattr(tf.raw_ops, activation + "Grad")(gradients=gradient, features=y)


def _affine(x: Any, factor: Any, added: Any, mean: Any, axis: int) -> Any:
    """factor * (x - mean) + added, by channel: a pass of BatchNormElemt with a deviation of 1."""
    return bindings.batch_norm_elemt(
        x, factor, added, mean, tf.ones_like(mean), epsilon=0.0, axis=axis
    )


def _scaled(x: Any, factor: Any, axis: int) -> Any:
    """factor * x, by channel."""
    zero = tf.zeros_like(factor)
    return _affine(x, factor, zero, zero, axis)


def _sums(y_backprop: Any, x: Any, mean: Any, axis: int) -> tuple[Any, Any]:
    """sum(y_backprop) and sum(y_backprop * (x - mean)) by channel."""
    one = tf.ones_like(mean)
    sums = bindings.batch_norm_backward_reduce(
        y_backprop, x, one, one, mean, one, epsilon=0.0, axis=axis
    )
    return sums.sum_dy, sums.sum_dy_xmu


def _wide(value: Any) -> Any:
    return tf.cast(value, tf.float64)


def _rstd(op: Any, variance: Any) -> Any:
    return 1 / tf.sqrt(variance + tf.constant(epsilon_of(op), tf.float64))


def _of_stats(op: Any, _: Any, d_mean: Any, d_m2: Any) -> Any:
    """d_x = d_mean/count + 2 xmu d_m2; the derivative of m2 through the mean is zero."""
    count, mean, _ = op.outputs
    return _affine(
        op.inputs[0], 2 * d_m2, tf.math.divide_no_nan(d_mean, count), mean, op.get_attr("axis")
    )


def _of_gather_stats(op: Any, d_count: Any, d_mean: Any, d_m2: Any) -> list[Any]:
    """The gradient of the sums over parts w that the op computes: count = sum n_w,
    mean = sum n_w mean_w / count, m2 = sum m2_w + n_w (mean_w - mean)^2."""
    counts, means, _ = op.inputs
    count, mean, _ = op.outputs
    n, has = counts[:, None], (counts > 0)[:, None]
    # Parts without elements may hold anything.
    apart = tf.where(has, means, mean) - mean
    share = tf.math.divide_no_nan(n, count)
    d_counts = d_count + tf.reduce_sum(
        tf.math.divide_no_nan(apart, count) * d_mean + apart**2 * d_m2, axis=1
    )
    d_means = share * d_mean + 2 * n * apart * d_m2
    d_m2s = tf.where(has, tf.ones_like(means), tf.zeros_like(means)) * d_m2
    return [tf.where(has[:, 0], d_counts, 0), d_means, d_m2s]


def _of_elemt(op: Any, d_y: Any) -> list[Any]:
    """d_x = f g, and by sums over g: d_mean = -f sum(g), d_variance = -f rstd^2 sum(g xmu) / 2."""
    x, scale, offset, mean, variance, *side_inputs = op.inputs
    attrs = _attrs(op)
    inputs = (d_y, x, scale, offset, mean, variance)
    # x tells the mask, unless something was added.
    y = list(op.outputs) if side_inputs and attrs["activation_mode"] != "Identity" else []
    sums = bindings.batch_norm_backward_reduce(*inputs, y=y, **attrs)
    # The means that BackwardElemt subtracts are zero: mean and variance are inputs of their own.
    zero = tf.zeros_like(mean)
    elements = bindings.batch_norm_backward_elemt(
        *inputs, zero, zero, tf.ones([], tf.float64), y=y, num_side_inputs=len(side_inputs), **attrs
    )
    rstd = _rstd(op, variance)
    f = _wide(scale) * rstd
    return [
        elements.x_backprop,
        sums.scale_backprop,
        sums.offset_backprop,
        -f * sums.sum_dy,
        -0.5 * f * rstd**2 * sums.sum_dy_xmu,
        *elements.side_input_backprop,
    ]


def _mask_of(op: Any, y: list[Any]) -> Callable[[Any], Any]:
    """The function that masks a tensor as `op`, a gradient, masks y_backprop."""
    attrs = _attrs(op)
    if attrs["activation_mode"] == "Identity":
        return lambda tensor: tensor
    if not y:
        y = [bindings.batch_norm_elemt(*op.inputs[1 : 1 + _X_TO_VARIANCE], **attrs)]
    return lambda tensor: masked(attrs["activation_mode"], tensor, y[0])


def _of_backward_reduce(
    op: Any, d_sum_dy: Any, d_sum_dy_xmu: Any, d_scale_backprop: Any, d_offset_backprop: Any
) -> list[Any]:
    """With a = d_sum_dy + d_offset_backprop and b = d_sum_dy_xmu + rstd d_scale_backprop:
    d_g = a + b xmu, d_x = b g, d_mean = -b sum(g), and rstd's part."""
    y_backprop, x, _, _, mean, variance, *y = op.inputs
    axis, mask, rstd = op.get_attr("axis"), _mask_of(op, y), _rstd(op, variance)
    sum_dy, sum_dy_xmu, *_ = op.outputs
    d_scale_backprop = _wide(d_scale_backprop)
    a = d_sum_dy + _wide(d_offset_backprop)
    b = d_sum_dy_xmu + rstd * d_scale_backprop
    return [
        mask(_affine(x, b, a, mean, axis)),
        _scaled(mask(y_backprop), b, axis),
        None,
        None,
        -b * sum_dy,
        -0.5 * rstd**3 * d_scale_backprop * sum_dy_xmu,
        *[None] * len(y),
    ]


def _of_backward_elemt(op: Any, d_x_backprop: Any, *d_side_input_backprop: Any) -> list[Any]:
    """x_backprop = f (g - sum_dy/count - xmu k) with k = rstd^2 sum_dy_xmu/count."""
    y_backprop, x, scale, _, mean, variance, sum_dy, sum_dy_xmu, count, *y = op.inputs
    axis, mask, rstd = op.get_attr("axis"), _mask_of(op, y), _rstd(op, variance)
    wide_scale = _wide(scale)

    def of_one(total: Any) -> Any:
        return tf.math.divide_no_nan(total, count)

    f, k = wide_scale * rstd, of_one(rstd**2 * sum_dy_xmu)
    g, h = mask(y_backprop), d_x_backprop
    h_sum, h_xmu_sum = _sums(h, x, mean, axis)
    _, h_g_sum = _sums(h, g, tf.zeros_like(mean), axis)
    d_g = _scaled(h, f, axis)
    for d_side_input in d_side_input_backprop:
        d_g += d_side_input
    d_f = h_g_sum - of_one(h_sum * sum_dy) - h_xmu_sum * k
    d_rstd = wide_scale * d_f - of_one(2 * f * rstd * h_xmu_sum * sum_dy_xmu)
    return [
        mask(d_g),
        _scaled(h, -f * k, axis),
        tf.cast(rstd * d_f, scale.dtype),
        None,
        f * k * h_sum,
        -0.5 * rstd**3 * d_rstd,
        of_one(-f * h_sum),
        of_one(-f * rstd**2 * h_xmu_sum),
        of_one(tf.reduce_sum(f * (of_one(h_sum * sum_dy) + h_xmu_sum * k))),
        *[None] * len(y),
    ]


GRADIENTS = {
    "BatchNormStats": _of_stats,
    "BatchNormGatherStats": _of_gather_stats,
    "BatchNormElemt": _of_elemt,
    "BatchNormBackwardReduce": _of_backward_reduce,
    "BatchNormBackwardElemt": _of_backward_elemt,
}
