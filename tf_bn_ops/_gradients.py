"""Gradients of the ops: for each a function of an operation and the gradients of its outputs, which
returns the gradients by its inputs. `register` is called once the op library is loaded.

The gradient of a forward op is the first-order op of its version, by x, scale and offset alone, as
TensorFlow registers it for its own. The gradient of the first-order ops is the op
FusedBatchNormGradGrad. It equals what TensorFlow registers for its own ops: in training, mean and
variance count as functions of x, computed from it anew, and in either mode the inputs that hold
them get no gradient.

Where that op has no kernel, on another device than the CPU, and for its own gradient, its formulas
are composed of TensorFlow ops.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels

from tf_bn_ops import _recording, _replicas, _report, _split_gradients, _vectorize
from tf_bn_ops._split_gradients import attributes, epsilon_of, masked
from tf_bn_ops.generated import bindings
from tf_bn_ops.spec import OPS, OpSpec, activation_of

# Untyped: to mypy a starred argument may be any of those that follow.
ops: Any = bindings
_GRAD_EX = OPS["FusedBatchNormGradEx"]
_GRAD_EX_Y = [arg.role for arg in _GRAD_EX.inputs].index("y")
_GRAD_EX_SIDE_INPUT_BACKPROP = [arg.role for arg in _GRAD_EX.outputs].index("side_input_backprop")
_SIDE_INPUT = [arg.role for arg in OPS["FusedBatchNormEx"].inputs].index("side_input")
_GRAD_GRAD = OPS["FusedBatchNormGradGrad"]


@functools.cache
def register() -> None:
    """Registers gradients and the rules of tf.vectorized_map with TensorFlow, once."""
    gradients: dict[str, Any] = {
        f"TfBnOps>{name}": g for name, g in (_GRADIENTS | _split_gradients.GRADIENTS).items()
    }
    # It is reached where tf.cond has forgotten the gradient that _replicas.py gave to it.
    gradients["CollectiveGatherV2"] = _replicas.refuse_derivative
    for name, gradient in gradients.items():
        # Of another package; or of this one, before its modules were imported anew.
        with contextlib.suppress(KeyError):
            tf.RegisterGradient(name)(_report.as_tagged(gradient))
    _vectorize.register()


def _padded(gradients: Any, op: Any) -> list[Any]:
    """`gradients` by the first inputs of `op`, and None by the others."""
    return [*gradients, *[None] * (len(op.inputs) - len(gradients))]


# ---- First order ---------------------------------------------------------------------------------


def _attrs(op: Any) -> dict[str, Any]:
    return attributes(op, "epsilon", "data_format", "is_training")


def _of_forward(name: str, op: Any, y_backprop: Any, *_: Any) -> list[Any]:
    """The gradient is the op `name`, which takes the reserve spaces that the forward op returns."""
    result = getattr(ops, name)(y_backprop, *op.inputs[:2], *op.outputs[3:], **_attrs(op))
    return _padded(result[:3], op)


def _of_forward_ex(op: Any, y_backprop: Any, *_: Any) -> list[Any]:
    """The same through the activation, and by the side input."""
    x, scale, offset, *_ = op.inputs
    y, _, _, *reserve_spaces = op.outputs
    behind = attributes(op, "activation_mode", "leakyrelu_alpha")
    activation, kind = behind["activation_mode"], activation_of(**behind)
    side_inputs = op.inputs[_SIDE_INPUT:]
    if kind.is_smooth:
        (y,) = side_inputs or [x]  # Without one it is not read, and y would be kept for it.
    if activation != "Identity" and _has_kernel(_GRAD_EX, x.device):
        result = ops.fused_batch_norm_grad_ex(
            y_backprop,
            x,
            scale,
            *reserve_spaces,
            offset,
            y,
            num_side_inputs=len(side_inputs),
            **behind,
            **_attrs(op),
        )
        return [*result[:3], None, None, *result.side_input_backprop]
    if kind.is_smooth:
        slope = kind.slope(tf, _before_activation(op.inputs[:5], side_inputs, _attrs(op)))
        y_backprop = tf.cast(tf.cast(y_backprop, tf.float32) * slope, x.dtype)
    else:
        y_backprop = masked(activation, y_backprop, y)
    result = ops.fused_batch_norm_grad_v3(y_backprop, x, scale, *reserve_spaces, **_attrs(op))
    return [*result[:3], None, None, *[y_backprop] * len(side_inputs)]


def _before_activation(inputs: Any, side_inputs: Any, attrs: dict[str, Any]) -> Any:
    """Batch normalization of `inputs` and an addition, in float32."""
    z = tf.cast(ops.fused_batch_norm_v3(*inputs, **attrs).y, tf.float32)
    for side_input in side_inputs:
        z += tf.cast(side_input, tf.float32)
    return z


# ---- Second order --------------------------------------------------------------------------------


def _of_grad(op: Any, *grad: Any) -> list[Any]:
    """No gradients by the reserve spaces."""
    return _padded(_second_order((*grad[:3], *op.inputs[:5]), **_attrs(op)), op)


def of_frozen(inputs: Any, results: Any, attrs: dict[str, Any], *grad: Any) -> list[Any]:
    """The gradient of FusedBatchNormGradV3 with fixed statistics by y_backprop, x, scale, mean and
    variance: x_backprop is f dy, and scale_backprop rstd sum(dy (x - mean))."""
    gx, gs, _ = grad
    x_backprop, scale_backprop, offset_backprop = results
    channels = Channels(gx, attrs["data_format"].endswith("C"))
    rstd = tf.math.rsqrt(inputs[4] + attrs["epsilon"])
    products = channels.sum(tf.cast(gx, rstd.dtype) * tf.cast(x_backprop, rstd.dtype))
    by_rstd = tf.reshape(products, [-1]) + gs * scale_backprop
    by_statistics = -rstd * gs * offset_backprop, -0.5 * tf.square(rstd) * by_rstd
    return [*_second_order((*grad, *inputs), **attrs), *by_statistics]


def _of_grad_ex(op: Any, *grad: Any) -> list[Any]:
    """No gradients by reserve spaces, offset and y. The mask is constant almost everywhere, so this
    is the gradient of the plain op between two masks."""
    y_backprop, *others = op.inputs[:5]
    behind = attributes(op, "activation_mode", "leakyrelu_alpha")
    kind = activation_of(**behind)
    if kind.is_smooth:
        return _of_grad_smooth(kind, op, *grad)
    mask = functools.partial(masked, behind["activation_mode"], y=op.inputs[_GRAD_EX_Y])
    inputs = (*grad[:3], mask(y_backprop), *others)
    y_backprop_grad, *others = _second_order(inputs, **_attrs(op))
    for side_input_grad in grad[_GRAD_EX_SIDE_INPUT_BACKPROP:]:
        y_backprop_grad += side_input_grad
    return _padded([mask(y_backprop_grad), *others], op)


def _of_grad_smooth(kind: Any, op: Any, *grad: Any) -> list[Any]:
    """Behind a smooth activation f it is the plain op of g = y_backprop * f'(z): by the gradient of
    g once by y_backprop, once by z, and by what z is computed from, the side input too."""
    y_backprop, x, scale, mean, variance, coefficients, offset, y = op.inputs
    attrs, dtype = _attrs(op), x.dtype
    by_side_input = grad[_GRAD_EX_SIDE_INPUT_BACKPROP:]
    inputs = x, scale, offset, mean, variance
    z = _before_activation(inputs, [y] * len(by_side_input), attrs)
    slope, (curvature,) = _with_gradients(functools.partial(kind.slope, tf), [z])
    wide = tf.cast(y_backprop, tf.float32)
    inputs = (*grad[:3], tf.cast(wide * slope, dtype), x, scale, mean, variance)
    g_grad, x_grad, scale_grad = _second_order(inputs, **attrs)
    g_grad = tf.cast(tf.add_n([g_grad, *by_side_input]), tf.float32)
    if curvature is None:  # f' is constant almost everywhere.
        return _padded([tf.cast(g_grad * slope, dtype), x_grad, scale_grad], op)
    z_grad = tf.cast(g_grad * wide * curvature, dtype)
    by_y = ops.fused_batch_norm_grad_v3(z_grad, x, scale, mean, variance, coefficients, **attrs)
    y_backprop_grad = tf.cast(g_grad * slope, dtype)
    x_grad, scale_grad = x_grad + by_y.x_backprop, scale_grad + by_y.scale_backprop
    nothing = (None, None, None)
    side = [z_grad] * len(by_side_input)
    return _padded([y_backprop_grad, x_grad, scale_grad, *nothing, by_y.offset_backprop, *side], op)


def _of_training_backprop(op: Any, *grad: Any) -> list[Any]:
    """Gradients of BatchNormTrainingBackprop, none by beta, mean and variance."""
    x, gamma, _, mean, variance, delta = op.inputs
    delta_grad, x_grad, gamma_grad = _second_order(
        (*grad, delta, x, gamma, mean, variance),
        # A scalar double in the attr; the double precision is kept.
        epsilon=float(tf.make_ndarray(op.get_attr("epsilon"))),
        data_format="NCHW",  # Channels are dimension 1, of any rank.
        is_training=True,
    )
    return [x_grad, gamma_grad, None, None, None, delta_grad]


def _second_order(inputs: Any, *, epsilon: float, data_format: str, is_training: bool) -> Any:
    """FusedBatchNormGradGrad of `inputs` in its order; composed where it has no kernel."""
    attrs: Any = {"epsilon": epsilon, "data_format": data_format, "is_training": is_training}
    if _has_kernel(_GRAD_GRAD, inputs[4].device):
        return ops.fused_batch_norm_grad_grad(*inputs, **attrs)
    return _composed(inputs, **attrs)


@functools.cache
def _devices_with_kernels(spec: OpSpec) -> frozenset[str]:
    """The device types that an op has kernels for."""
    registered = kernels.get_registered_kernels_for_op(spec.registered_name)
    return frozenset(kernel.device_type for kernel in registered.kernel)


def _has_kernel(spec: OpSpec, device: str) -> bool:
    """Whether the op has a kernel for a device, an unknown one may be a GPU if there is one; or for
    XLA, if that will compile what is being traced."""
    if _recording.in_xla():
        return "XLA_CPU_JIT" in _devices_with_kernels(spec)
    device_type = tf.DeviceSpec.from_string(device).device_type if device else None
    if device_type is None:
        device_type = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return device_type in _devices_with_kernels(spec)


class Channels:
    """Sums over the channels of tensors like `x`, and vectors in a shape that broadcasts to it.

    `count` is the number of elements per channel, in int64: an int32 is negative from 2^31 on. So
    is the divisor in TensorFlow's gradient of tf.reduce_mean, where shapes are not known.
    """

    def __init__(self, x: Any, channels_last: bool) -> None:
        rank = tf.rank(x)
        channel = rank - 1 if channels_last else 1
        self._others = tf.concat([tf.range(channel), tf.range(channel + 1, rank)], axis=0)
        # [1, ..., -1, ..., 1]
        self._shape = tf.tensor_scatter_nd_update(tf.ones([rank], tf.int32), [[channel]], [-1])
        channels = tf.shape(x, out_type=tf.int64)[-1 if channels_last else 1]
        self.count = tf.size(x, out_type=tf.int64) // tf.maximum(channels, 1)

    def vector(self, value: Any) -> Any:
        return tf.reshape(value, self._shape)

    def sum(self, value: Any) -> Any:
        return tf.reduce_sum(value, self._others, keepdims=True)

    def mean(self, value: Any) -> Any:
        return self.sum(value) / tf.cast(self.count, value.dtype)

    def centered(self, value: Any) -> Any:
        return value - self.mean(value)


def _composed(
    inputs: tuple[Any, ...], *, epsilon: float, data_format: str, is_training: bool
) -> tuple[Any, Any, Any]:
    """FusedBatchNormGradGrad of TensorFlow ops; half and bfloat16 are computed in float32.

    The formulas of docs/math.md, in its notation and order, as in cc/tf/xla/hlo_second_order.h.
    They can be differentiated any number of times.
    """
    element_type, vector_type = inputs[4].dtype, inputs[5].dtype
    computed_in = element_type if element_type == tf.float64 else tf.float32
    gx, gs, go, dy, x, scale, mean, variance = (tf.cast(value, computed_in) for value in inputs)
    epsilon = tf.constant(epsilon, computed_in)
    channels = Channels(x, data_format.endswith("C"))
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
        m = tf.cast(channels.count, computed_in)
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


def _of_grad_grad(op: Any, *grad: Any) -> list[Any]:
    """By the reserve spaces where they are read: with fixed statistics."""
    attrs = {**_attrs(op), "epsilon": epsilon_of(op)}
    composed = lambda *inputs: _composed(inputs, **attrs)  # noqa: E731
    return _with_gradients(composed, op.inputs, grad)[1]


def _with_gradients(
    function: Callable[..., Any], inputs: Sequence[Any], grad: Any = None
) -> tuple[Any, list[Any]]:
    """function(*inputs), and its derivative by `inputs` along `grad`, by default ones."""
    inputs = [tf.identity(value) for value in inputs]
    if not tf.executing_eagerly():
        # No tape: forward mode through a function stops recording and would lose the tangent.
        results = function(*inputs)
        return results, tf.gradients(results, inputs, grad)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        results = function(*inputs)
    gradients = tape.gradient(results, inputs, grad)
    if grad is not None and all(gradient is None for gradient in gradients):
        # Where eager forward mode differentiates `attach`'s function, a tape records nothing.
        return tf.function(functools.partial(_with_gradients, function))(inputs, grad)
    return results, gradients


_GRADIENTS = {
    "FusedBatchNorm": functools.partial(_of_forward, "fused_batch_norm_grad"),
    "FusedBatchNormV2": functools.partial(_of_forward, "fused_batch_norm_grad_v2"),
    "FusedBatchNormV3": functools.partial(_of_forward, "fused_batch_norm_grad_v3"),
    "FusedBatchNormEx": _of_forward_ex,
    "FusedBatchNormGrad": _of_grad,
    "FusedBatchNormGradV2": _of_grad,
    "FusedBatchNormGradV3": _of_grad,
    "FusedBatchNormGradEx": _of_grad_ex,
    "BatchNormTrainingBackprop": _of_training_backprop,
    "FusedBatchNormGradGrad": _of_grad_grad,
}
