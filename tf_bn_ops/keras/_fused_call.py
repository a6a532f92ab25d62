"""`BatchNormalization.call` on the fused ops, and the conditions under which they give its result.

The layer of this package and the switch for Keras' own layer both call `fused_call`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tf_bn_ops._fused import fused_batch_norm
from tf_bn_ops.spec import DataFormat


class _Layout(NamedTuple):
    """How the op takes an input: axes of size 1 to insert, and its data format then."""

    inserted: tuple[int, ...]
    data_format: DataFormat


# (rank, channels last) -> layout.
_LAYOUTS = {
    (2, True): _Layout((1, 2), "NHWC"),
    (3, True): _Layout((2,), "NHWC"),
    (3, False): _Layout((3,), "NCHW"),
    (4, True): _Layout((), "NHWC"),
    (4, False): _Layout((), "NCHW"),
    (5, True): _Layout((), "NDHWC"),
    (5, False): _Layout((), "NCDHW"),
}

_DTYPES = ("float32", "float16", "bfloat16")

_PARENT_MOMENTS = keras.layers.BatchNormalization._moments


def fused_call(
    layer: Any, parent_call: Callable[..., Any], inputs: Any, training: bool | None, mask: Any
) -> Any:
    """What `call` of the layer returns: on the fused ops, or by `parent_call` where they differ."""
    layout = _layout_of_call(layer, inputs) if mask is None else None
    if layout is None:
        return parent_call(inputs, training=training, mask=mask)
    return _normalize(layer, layout, inputs, bool(training and layer.trainable))


def why_unfused(layer: Any) -> str | None:
    """Why no call of the layer can be fused, as the end of a sentence about it; else None."""
    if keras.backend.backend() != "tensorflow":
        return f"runs on the backend {keras.backend.backend()}"
    if getattr(layer, "synchronized", False):
        return "is synchronized"
    if getattr(layer, "renorm", False):
        return "has renorm"
    if getattr(getattr(layer, "_moments", None), "__func__", None) is not _PARENT_MOMENTS:
        return "computes moments in a method of its own"
    if layer.compute_dtype not in _DTYPES:
        return f"computes in {layer.compute_dtype}"
    rank = getattr(layer.input_spec, "ndim", None)  # known once the layer is built
    if rank is not None and _layout(rank, layer.axis) is None:
        return f"has axis {layer.axis} in an input of rank {rank}"
    return None


def _layout(rank: int, axis: int) -> _Layout | None:
    channel = axis % rank
    if channel not in (1, rank - 1):
        return None
    return _LAYOUTS.get((rank, channel == rank - 1))


def _layout_of_call(layer: Any, inputs: Any) -> _Layout | None:
    """The layout of an input that the fused op takes, else None."""
    if not isinstance(inputs, tf.Tensor) or why_unfused(layer) is not None:
        return None
    if inputs.dtype.name not in _DTYPES or inputs.shape.rank is None or _in_xla():
        return None
    channels = inputs.shape[layer.axis]
    # 0 channels: TensorFlow's op divides by their number.
    if not channels or any(weight.shape != (channels,) for weight in _weights(layer)):
        return None
    return _layout(inputs.shape.rank, layer.axis)


def _weights(layer: Any) -> list[Any]:
    """The four vectors, those that the layer has; in a derived class they may be anything."""
    weights = (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
    return [weight for weight in weights if weight is not None]


def _in_xla() -> bool:
    """Whether XLA will compile what is being traced.

    XLA computes the variance of FusedBatchNormV3 as E[x^2] - E[x]^2: at mean 100 and deviation 1
    y is off by 0.19, where Keras' formula is exact to rounding.
    """
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def _normalize(layer: Any, layout: _Layout, inputs: Any, batch_statistics: bool) -> Any:
    """The call on the fused op, moving statistics included."""
    channels = inputs.shape[layer.axis]
    gamma = keras.ops.cast(layer.gamma, "float32") if layer.scale else tf.ones([channels])
    beta = keras.ops.cast(layer.beta, "float32") if layer.center else tf.zeros([channels])
    moving_mean = keras.ops.cast(layer.moving_mean, "float32")
    moving_variance = keras.ops.cast(layer.moving_variance, "float32")
    x = inputs
    for axis in layout.inserted:
        x = tf.expand_dims(x, axis)
    y, mean, variance = fused_batch_norm(
        x,
        gamma,
        beta,
        mean=None if batch_statistics else moving_mean,
        variance=None if batch_statistics else moving_variance,
        epsilon=layer.epsilon,
        data_format=layout.data_format,
        is_training=batch_statistics,
    )
    if batch_statistics:
        # The op has Bessel's correction, Keras has not.
        count = tf.cast(tf.size(x, tf.int64) // channels, tf.float32)
        variance = variance * ((count - 1) / count)
        kept = layer.momentum
        layer.moving_mean.assign(moving_mean * kept + mean * (1.0 - kept))
        layer.moving_variance.assign(moving_variance * kept + variance * (1.0 - kept))
    if layout.inserted:
        y = tf.squeeze(y, layout.inserted)
    return keras.ops.cast(y, layer.compute_dtype)
