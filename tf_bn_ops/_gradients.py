"""Gradients and vectorization rules of the ops.

`register` is called once the op library is loaded. The gradient of a forward op is the first-order
op of its version, by x, scale and offset alone, as TensorFlow registers it for its own. The
gradient of the first-order ops is the op FusedBatchNormGradGrad. It equals what TensorFlow
registers for its own ops: in training, mean and variance count as functions of x, computed from it
anew, and in either mode the inputs that hold them get no gradient.

Where that op has no kernel, on another device than the CPU, and for its own gradient, its formulas
are composed of TensorFlow ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.parallel_for import pfor

from tf_bn_ops import _split_gradients
from tf_bn_ops.spec import OPS, VIEW, VIEW_LIST, Arg, OpSpec, of_formula
from tf_bn_ops.spec.ops import BATCH_NORM, BATCH_NORM_GRAD

_FORWARD_EX = OPS["FusedBatchNormEx"]
_GRAD_EX = OPS["FusedBatchNormGradEx"]
_GRAD_EX_Y = [arg.role for arg in _GRAD_EX.inputs].index("y")
_GRAD_EX_SIDE_INPUT_BACKPROP = [arg.role for arg in _GRAD_EX.outputs].index("side_input_backprop")
_SIDE_INPUT = [arg.role for arg in _FORWARD_EX.inputs].index("side_input")
# The output of a forward op and the input of its gradient that may hold rows of [C] in one vector.
_COEFFICIENTS = "reserve_space_3"
_TRAINING_BACKPROP = OPS["BatchNormTrainingBackprop"]
_GRAD_GRAD = OPS["FusedBatchNormGradGrad"]
# Forward op -> its first-order op among the bindings.
_FIRST_ORDER_FUNCTIONS = {
    "FusedBatchNorm": "fused_batch_norm_grad",
    "FusedBatchNormV2": "fused_batch_norm_grad_v2",
    "FusedBatchNormV3": "fused_batch_norm_grad_v3",
}


@functools.cache
def register(ops: ModuleType) -> None:
    """Registers everything of this file with TensorFlow, once.

    Args:
      ops: the bindings, tf_bn_ops._ops.
    """
    for op in of_formula(BATCH_NORM):
        first_order = getattr(ops, _FIRST_ORDER_FUNCTIONS[op.name])
        tf.RegisterGradient(op.registered_name)(
            functools.partial(_fused_batch_norm_grad, first_order)
        )
    tf.RegisterGradient(_FORWARD_EX.registered_name)(
        functools.partial(_fused_batch_norm_ex_grad, ops)
    )
    for op in (*of_formula(BATCH_NORM), _FORWARD_EX):
        pfor.RegisterPFor(op.registered_name)(functools.partial(_vectorize_forward, op))
    second_order = functools.partial(_second_order, ops.fused_batch_norm_grad_grad)
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
    tf.RegisterGradient(_GRAD_EX.registered_name)(
        functools.partial(_fused_batch_norm_grad_ex_grad, second_order)
    )
    tf.RegisterGradient(_TRAINING_BACKPROP.registered_name)(
        functools.partial(_batch_norm_training_backprop_grad, second_order)
    )
    tf.RegisterGradient(_GRAD_GRAD.registered_name)(_third_order)
    _split_gradients.register(ops, _masked)
    for op in (_TRAINING_BACKPROP, _GRAD_GRAD, _GRAD_EX):
        pfor.RegisterPFor(op.registered_name)(functools.partial(_vectorize, op))


def _fused_batch_norm_grad(
    first_order: Callable[..., Any], op: Any, y_backprop: Any, *_: Any
) -> list[Any]:
    """Gradient of FusedBatchNorm, V2, V3 or Ex by x, scale and offset; None by the others.

    The reserve spaces that the op returns are what `first_order` takes.
    """
    x, scale = op.inputs[:2]
    result = first_order(
        y_backprop,
        x,
        scale,
        *op.outputs[3:],
        epsilon=op.get_attr("epsilon"),
        data_format=op.get_attr("data_format"),
        is_training=op.get_attr("is_training"),
    )
    return [*result[:3], *[None] * (len(op.inputs) - 3)]


def _fused_batch_norm_ex_grad(ops: ModuleType, op: Any, y_backprop: Any, *_: Any) -> list[Any]:
    """The same of FusedBatchNormEx, through the activation, and by the side input."""
    return gradient_of_ex(
        ops,
        op,
        y_backprop,
        activation_mode=op.get_attr("activation_mode").decode(),
        epsilon=op.get_attr("epsilon"),
        data_format=op.get_attr("data_format"),
        is_training=op.get_attr("is_training"),
    )


def gradient_of_ex(
    ops: ModuleType, op: Any, y_backprop: Any, *, activation_mode: str, **attrs: Any
) -> list[Any]:
    """Gradient of FusedBatchNormEx by all inputs, None by mean and variance.

    Args:
      ops: the bindings, tf_bn_ops._ops.
      op: the operation, or what has its `inputs` and its `outputs` 0, 3, 4 and 5.
      y_backprop: gradient of y.
      activation_mode: attr of the forward op.
      attrs: those that FusedBatchNormGradV3 has, too.
    """
    x, scale, offset, *_ = op.inputs
    y, *reserve_spaces = (op.outputs[i] for i in (0, 3, 4, 5))
    side_inputs = len(op.inputs) - _SIDE_INPUT
    if activation_mode != "Identity" and _has_kernel(_GRAD_EX, x.device):
        result = ops.fused_batch_norm_grad_ex(
            y_backprop,
            x,
            scale,
            *reserve_spaces,
            offset,
            y,
            num_side_inputs=side_inputs,
            activation_mode=activation_mode,
            **attrs,
        )
        return [*result[:3], None, None, *result.side_input_backprop]
    y_backprop = _masked(activation_mode, y_backprop, y)
    result = ops.fused_batch_norm_grad_v3(y_backprop, x, scale, *reserve_spaces, **attrs)
    return [*result[:3], None, None, *[y_backprop] * side_inputs]


def _masked(activation: str, gradient: Any, y: Any) -> Any:
    """`gradient` times the derivative of the activation whose result was `y`."""
    if activation == "Identity":
        return gradient
    # ReluGrad and Relu6Grad read the sign of y, not what the activation was applied to.
    through = {"Relu": tf.raw_ops.ReluGrad, "Relu6": tf.raw_ops.Relu6Grad}[activation]
    return through(gradients=gradient, features=y)


def _fused_batch_norm_grad_ex_grad(
    second_order: Callable[..., Any], op: Any, *grad: Any
) -> list[Any]:
    """Gradient of FusedBatchNormGradEx by its inputs; None for reserve spaces, offset and y.

    The mask is constant almost everywhere, so this is the gradient of the plain op between two
    masks.
    """
    y_backprop, x, scale, mean, variance = op.inputs[:5]
    mask = functools.partial(
        _masked, op.get_attr("activation_mode").decode(), y=op.inputs[_GRAD_EX_Y]
    )
    result = second_order(
        (*grad[:3], mask(y_backprop), x, scale, mean, variance),
        epsilon=op.get_attr("epsilon"),
        data_format=op.get_attr("data_format").decode(),
        is_training=op.get_attr("is_training"),
    )
    y_backprop_grad, *others = result
    for side_input_grad in grad[_GRAD_EX_SIDE_INPUT_BACKPROP:]:
        y_backprop_grad += side_input_grad
    return [mask(y_backprop_grad), *others, *[None] * (len(op.inputs) - 3)]


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
    if _has_kernel(_GRAD_GRAD, inputs[4].device):
        named = zip((arg.name for arg in _GRAD_GRAD.inputs), inputs, strict=True)
        return op(**dict(named), epsilon=epsilon, data_format=data_format, is_training=is_training)
    return _composed(
        inputs,
        epsilon=epsilon,
        channels_last=data_format.endswith("C"),
        is_training=is_training,
    )


@functools.cache
def _devices_with_kernels(spec: OpSpec) -> frozenset[str]:
    """The device types that an op has kernels for."""
    registered = kernels.get_registered_kernels_for_op(spec.registered_name)
    return frozenset(kernel.device_type for kernel in registered.kernel)


def _has_kernel(spec: OpSpec, device: str) -> bool:
    """Whether the op has a kernel for a device, an unknown one may be a GPU if there is one; or for
    XLA, if that will compile what is being traced."""
    if in_xla():
        return "XLA_CPU_JIT" in _devices_with_kernels(spec)
    device_type = tf.DeviceSpec.from_string(device).device_type if device else None
    if device_type is None:
        device_type = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return device_type in _devices_with_kernels(spec)


def in_xla() -> bool:
    """Whether XLA will compile what is being traced."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


class Channels:
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
    channels = Channels(x, channels_last)
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


def _vectorize_forward(spec: OpSpec, pfor_input: Any) -> list[Any]:
    """The same for a forward op, without a transposition where the loop's dimension may be merged
    into the batch: frozen, with the same statistics, scale and offset in every iteration."""
    merges_batch = not pfor_input.get_attr("is_training") and not any(
        pfor_input.input(i).is_stacked for i in range(1, _SIDE_INPUT)
    )
    if not merges_batch:
        return _vectorize(spec, pfor_input)
    tensors = [0, *range(_SIDE_INPUT, pfor_input.num_inputs)]
    for i in tensors:
        if not pfor_input.input(i).is_stacked:
            pfor_input.stack_inputs([i])
    shape = tf.shape(pfor_input.stacked_input(0))
    merged = tf.concat([shape[:1] * shape[1:2], shape[2:]], axis=0)
    inputs = [
        tf.reshape(pfor_input.stacked_input(i), merged)
        if i in tensors
        else pfor_input.unstacked_input(i)
        for i in range(pfor_input.num_inputs)
    ]
    y, *others = _with_inputs(pfor_input, inputs)
    return [pfor.wrap(tf.reshape(y, shape), True), *[pfor.wrap(o, False) for o in others]]


def _with_inputs(pfor_input: Any, inputs: list[Any]) -> Any:
    """The outputs of another op like that of `pfor_input`."""
    dtypes = [output.dtype for output in pfor_input.outputs]
    attrs = pfor_input.op.node_def.attr
    return pfor._create_op(pfor_input.op_type, inputs, dtypes, attrs=attrs).outputs


def _vectorize(spec: OpSpec, pfor_input: Any) -> list[Any]:
    """Rule of tf.vectorized_map: merges the loop's dimension into the channels."""
    pfor_input.stack_inputs()
    # Without the attr channels are dimension 1.
    data_format = pfor_input.get_attr("data_format") if "data_format" in spec.attrs else b""
    channels_last = data_format.endswith(b"C")

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
    scale = inputs[[argument.role for argument in spec.inputs].index("scale")]
    flat = []
    # A list of no tensor is no input.
    for tensor, argument in zip(inputs, spec.inputs, strict=False):
        if argument.kind in (VIEW, VIEW_LIST):
            tensor, shape, order = folded(tensor)
        elif argument.name == _COEFFICIENTS:
            tensor = _coefficients_in_rows(tensor, of=scale)
        else:
            tensor = tf.reshape(tensor, [-1])
        flat.append(tensor)
    outputs = _with_inputs(pfor_input, flat)
    back = tf.math.invert_permutation(order)

    def unfolded(output: Any, argument: Arg) -> Any:
        if argument.kind in (VIEW, VIEW_LIST):
            return tf.transpose(tf.reshape(output, shape), back)
        if argument.name == _COEFFICIENTS:
            return _coefficients_by_iteration(output, of=scale)
        return tf.reshape(output, [loops, -1])

    pairs = zip(outputs, spec.outputs, strict=False)
    return [pfor.wrap(unfolded(output, argument), True) for output, argument in pairs]


def _coefficients_in_rows(tensor: Any, of: Any) -> Any:
    """Forward coefficients of each iteration, [n, rows * C], with n merged into the channels of
    each row; `of` is a stacked vector, [n, C]. Of a placeholder there are no rows."""
    n, channels = tf.unstack(tf.shape(of))
    by_row = tf.transpose(tf.reshape(tensor, [n, _rows(tensor, of), channels]), [1, 0, 2])
    return tf.reshape(by_row, [-1])


def _coefficients_by_iteration(tensor: Any, of: Any) -> Any:
    """The way back."""
    n, channels = tf.unstack(tf.shape(of))
    by_iteration = tf.transpose(tf.reshape(tensor, [_rows(tensor, of), n, channels]), [1, 0, 2])
    return tf.reshape(by_iteration, [n, tf.size(tensor) // tf.maximum(n, 1)])


def _rows(tensor: Any, of: Any) -> Any:
    return tf.size(tensor) // tf.maximum(tf.size(of), 1)
