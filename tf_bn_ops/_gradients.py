"""Gradients and vectorization rules of the ops.

`register` is called once the op library is loaded. The gradient of the first-order ops is the op
FusedBatchNormGradGrad. It equals what TensorFlow registers for its own ops: in training, mean and
variance count as functions of x, computed from it anew, and in either mode the inputs that hold
them get no gradient.

Where that op has no kernel, on another device than the CPU, and for its own gradient, its formulas
are composed of TensorFlow ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels
from tensorflow.python.ops.parallel_for import pfor

from tf_bn_ops.spec import BATCH_NORM_GRAD, OPS, of_formula

_GRAD_GRAD = OPS["FusedBatchNormGradGrad"]


@functools.cache
def register(second_order_op: Callable[..., Any]) -> None:
    """Registers everything of this file with TensorFlow, once.

    Args:
      second_order_op: FusedBatchNormGradGrad as a function of keywords.
    """
    second_order = functools.partial(_second_order, second_order_op)
    for op in of_formula(BATCH_NORM_GRAD):
        if op.builtin is None:
            continue
        tf.RegisterGradient(op.registered_name)(
            functools.partial(_fused_batch_norm_grad_grad, second_order)
        )
        # The rules of tf.vectorized_map; TensorFlow loops over ops without one.
        rules = pfor._pfor_converter_registry
        if op.builtin in rules:
            rules.setdefault(op.registered_name, rules[op.builtin])
    tf.RegisterGradient(OPS["BatchNormTrainingBackprop"].registered_name)(
        functools.partial(_batch_norm_training_backprop_grad, second_order)
    )
    tf.RegisterGradient(_GRAD_GRAD.registered_name)(_third_order)
    pfor.RegisterPFor(_GRAD_GRAD.registered_name)(_vectorize_second_order)


def _fused_batch_norm_grad_grad(second_order: Callable[..., Any], op: Any, *grad: Any) -> list[Any]:
    """Gradient of FusedBatchNormGrad, V2 or V3, by the inputs of `op`; None for reserve spaces."""
    dy, x, scale, mean, variance = op.inputs[:5]
    result = second_order(
        (*grad[:3], dy, x, scale, mean, variance),
        epsilon=op.get_attr("epsilon"),
        data_format=op.get_attr("data_format").decode(),
        is_training=op.get_attr("is_training"),
    )
    return [*result, *[None] * (len(op.inputs) - 3)]


def _batch_norm_training_backprop_grad(
    second_order: Callable[..., Any], op: Any, *grad: Any
) -> list[Any]:
    """Gradient of BatchNormTrainingBackprop by its inputs; None for beta, mean and variance."""
    x, gamma, _, mean, variance, delta = op.inputs
    delta_grad, x_grad, gamma_grad = second_order(
        (*grad, delta, x, gamma, mean, variance),
        # A scalar double in the attr; the double precision is kept.
        epsilon=float(tf.make_ndarray(op.get_attr("epsilon"))),
        data_format="NCHW",  # Channels are dimension 1, of any rank.
        is_training=True,
    )
    return [x_grad, gamma_grad, None, None, None, delta_grad]


def _second_order(
    op: Callable[..., Any],
    inputs: Any,
    *,
    epsilon: float,
    data_format: str,
    is_training: bool,
) -> Any:
    """`op`, FusedBatchNormGradGrad, of `inputs` in its order; composed where it has no kernel."""
    if _has_kernel(inputs[4].device):
        named = zip((arg.name for arg in _GRAD_GRAD.inputs), inputs, strict=True)
        return op(**dict(named), epsilon=epsilon, data_format=data_format, is_training=is_training)
    return _composed(
        inputs,
        epsilon=epsilon,
        channels_last=data_format.endswith("C"),
        is_training=is_training,
    )


@functools.cache
def _devices_with_kernels() -> frozenset[str]:
    """The device types that FusedBatchNormGradGrad has kernels for."""
    registered = kernels.get_registered_kernels_for_op(_GRAD_GRAD.registered_name)
    return frozenset(kernel.device_type for kernel in registered.kernel)


def _has_kernel(device: str) -> bool:
    """Whether the op has a kernel for a device; an unknown one may be a GPU if there is one."""
    device_type = tf.DeviceSpec.from_string(device).device_type if device else None
    if device_type is None:
        device_type = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return device_type in _devices_with_kernels()


class _Channels:
    """Sums over the channels of tensors like `x`, and vectors in a shape that broadcasts to it."""

    def __init__(self, x: Any, channels_last: bool) -> None:
        rank = tf.rank(x)
        channel = rank - 1 if channels_last else 1
        self._others = tf.concat([tf.range(channel), tf.range(channel + 1, rank)], axis=0)
        # [1, ..., -1, ..., 1]
        self._shape = tf.tensor_scatter_nd_update(tf.ones_like(tf.shape(x)), [[channel]], [-1])

    def vector(self, value: Any) -> Any:
        return tf.reshape(value, self._shape)

    def sum(self, value: Any) -> Any:
        return tf.reduce_sum(value, self._others, keepdims=True)

    def mean(self, value: Any) -> Any:
        return tf.reduce_mean(value, self._others, keepdims=True)

    def centered(self, value: Any) -> Any:
        return value - self.mean(value)


def _composed(
    inputs: tuple[Any, ...], *, epsilon: float, channels_last: bool, is_training: bool
) -> tuple[Any, Any, Any]:
    """FusedBatchNormGradGrad of TensorFlow ops; half and bfloat16 are computed in float32.

    The formulas of docs/math.md, in its notation and order, as in cc/xla/hlo_second_order.h and
    cc/client/second_order_composition.cc. They can be differentiated any number of times.
    """
    element_type, vector_type = inputs[4].dtype, inputs[5].dtype
    computed_in = element_type if element_type == tf.float64 else tf.float32
    gx, gs, go, dy, x, scale, mean, variance = (tf.cast(value, computed_in) for value in inputs)
    epsilon = tf.constant(epsilon, computed_in)
    channels = _Channels(x, channels_last)
    gs, go, scale = channels.vector(gs), channels.vector(go), channels.vector(scale)
    if is_training:
        gx_centered = channels.centered(gx)
        dy_centered = channels.centered(dy)
        x_centered = channels.centered(x)
        rstd = tf.math.rsqrt(channels.mean(tf.square(x_centered)) + epsilon)
        f = scale * rstd
        xhat = x_centered * rstd
        a = channels.mean(gx_centered * xhat)
        s = channels.mean(dy_centered * xhat)
        b = channels.mean(gx_centered * dy_centered)
        p = gs - f * a
        m = tf.cast(tf.size(x) // tf.maximum(tf.size(scale), 1), computed_in)
        y_backprop_grad = f * gx_centered + p * xhat + go
        x_grad = rstd * (
            p * dy_centered - f * s * gx_centered - (gs * s + f * (b - 3 * a * s)) * xhat
        )
        scale_grad = rstd * m * (b - a * s)
    else:
        rstd = tf.math.rsqrt(channels.vector(variance) + epsilon)
        f = scale * rstd
        xhat = (x - channels.vector(mean)) * rstd
        y_backprop_grad = f * gx + gs * xhat + go
        x_grad = gs * rstd * dy
        scale_grad = rstd * channels.sum(gx * dy)
    return (
        tf.cast(y_backprop_grad, element_type),
        tf.cast(x_grad, element_type),
        tf.cast(tf.reshape(scale_grad, [-1]), vector_type),
    )


def _third_order(op: Any, *grad: Any) -> list[Any]:
    """Gradient of FusedBatchNormGradGrad by its inputs; None for the reserve spaces."""
    inputs = tuple(op.inputs)
    with tf.GradientTape() as tape:
        tape.watch(inputs[:6])
        outputs = _composed(
            inputs,
            epsilon=sum(op.get_attr("epsilon_rest"), op.get_attr("epsilon")),
            channels_last=op.get_attr("data_format").decode().endswith("C"),
            is_training=op.get_attr("is_training"),
        )
    return [*tape.gradient(outputs, inputs[:6], output_gradients=grad), None, None]


def _vectorize_second_order(pfor_input: Any) -> list[Any]:
    """Rule of tf.vectorized_map: merges the loop's dimension into the channels."""
    pfor_input.stack_inputs()
    channels_last = pfor_input.get_attr("data_format").decode().endswith("C")

    def folded(tensor: Any) -> tuple[Any, Any, Any]:
        """[n, ...] with n merged into the channels; the shape before merging, and the order."""
        rank = tf.rank(tensor)
        at = rank - 2 if channels_last else 1
        order = tf.concat([tf.range(1, at + 1), [0], tf.range(at + 1, rank)], axis=0)
        moved = tf.transpose(tensor, order)
        shape = tf.shape(moved)
        merged = tf.concat([shape[:at], [shape[at] * shape[at + 1]], shape[at + 2 :]], axis=0)
        return tf.reshape(moved, merged), shape, order

    inputs = [pfor_input.stacked_input(i) for i in range(pfor_input.num_inputs)]
    loops = tf.shape(inputs[0])[0]
    flat = []
    for tensor, argument in zip(inputs, _GRAD_GRAD.inputs, strict=True):
        if argument.name in ("x_backprop_grad", "y_backprop", "x"):
            tensor, shape, order = folded(tensor)
        else:
            tensor = tf.reshape(tensor, [-1])
        flat.append(tensor)
    outputs = pfor._create_op(
        pfor_input.op_type,
        flat,
        [output.dtype for output in pfor_input.outputs],
        attrs=pfor_input.op.node_def.attr,
    ).outputs
    back = tf.math.invert_permutation(order)
    results = [tf.transpose(tf.reshape(output, shape), back) for output in outputs[:2]]
    results.append(tf.reshape(outputs[2], [loops, -1]))
    return [pfor.wrap(result, True) for result in results]
