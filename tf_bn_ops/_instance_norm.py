"""Instance normalization on the ops of batch normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_bn_ops import _fused
from tf_bn_ops._arguments import checked_epsilon
from tf_bn_ops.spec import DATA_FORMATS, DataFormat

if TYPE_CHECKING:
    from tensorflow import Tensor

# Channels last -> channels first, of the same rank.
_FIRST: dict[str, DataFormat] = {"NHWC": "NCHW", "NDHWC": "NCDHW"}


def instance_norm(
    x: Any,
    scale: Any,
    offset: Any,
    epsilon: float = 1e-3,
    data_format: DataFormat = "NHWC",
) -> Tensor:
    """Instance normalization: each channel of each sample by its own mean and variance.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset, as
    `keras.layers.GroupNormalization(groups=-1)`. Channels first, x is a view of one sample that has
    all channels of all samples, so that a call is one op of this library, and its gradient another;
    x is not copied. Channels last, x is transposed before it and y behind it, but where the batch
    is known to be of one sample.

    Results are right at any mean, bitwise reproducible, and can be differentiated any number of
    times, as the results of `fused_batch_norm`.

    Args:
      x: half, bfloat16, float32 or float64, of the rank of `data_format`.
      scale: [C], float64 if `x` is, else float32.
      offset: the same.
      epsilon: added to the variance; a number, not a tensor.
      data_format: "NHWC", "NCHW", "NDHWC" or "NCDHW", as text or bytes.

    Returns:
      y, of the shape and type of `x`.

    Raises:
      ValueError: unknown `data_format`, `x` of another rank, `scale` or `offset` of another length
        than the channels.
      TypeError: `epsilon` is no number.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    import tensorflow as tf

    epsilon = checked_epsilon(epsilon, "instance_norm")
    layout = data_format.decode() if isinstance(data_format, bytes) else data_format
    if layout not in [*DATA_FORMATS]:  # A list, which takes any type.
        raise ValueError(f"data_format is {data_format!r}, it must be one of {[*DATA_FORMATS]}")
    rank, channels_last = DATA_FORMATS[layout]
    x = _fused._of_rank(_fused._tensor(x), layout)
    dtype = tf.float64 if x.dtype is tf.float64 else tf.float32
    scale, offset = _fused._vector(scale, dtype), _fused._vector(offset, dtype)
    channels = x.shape[-1 if channels_last else 1]
    for name, vector in (("scale", scale), ("offset", offset)):
        if not vector.shape.is_compatible_with([channels]):
            raise ValueError(f"{name} has shape {vector.shape}, it must be [{channels}]")
    if x.shape[0] == 1:
        return _fused.fused_batch_norm(x, scale, offset, None, None, epsilon, data_format).y
    if channels_last:
        inner = [*range(1, rank - 1)]
        first = tf.transpose(x, [0, rank - 1, *inner])
        y = instance_norm(first, scale, offset, epsilon, _FIRST[layout])
        return tf.transpose(y, [0, *range(2, rank), 1])
    # What is not known yet is asked when the graph runs.
    is_known = x.shape.is_fully_defined()
    n, c, *spatial = x.shape if is_known else tf.unstack(tf.shape(x))
    scale, offset = tf.tile(scale, [n]), tf.tile(offset, [n])
    one = tf.reshape(x, [1, n * c, *spatial])
    y = _fused.fused_batch_norm(one, scale, offset, None, None, epsilon, data_format).y
    if is_known:
        return tf.reshape(y, x.shape)
    y = tf.reshape(y, tf.shape(x))
    y.set_shape(x.shape)
    return y
