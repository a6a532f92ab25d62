"""Batch normalization whose forward pass is TensorFlow's and whose backward pass is ours."""

from __future__ import annotations

import collections
from typing import Any

from tf_bn_ops import _ops
from tf_bn_ops.spec import DATA_FORMATS

FusedBatchNorm = collections.namedtuple("FusedBatchNorm", ["y", "batch_mean", "batch_variance"])


def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-3,
    data_format: str = "NHWC",
    is_training: bool = True,
    exponential_avg_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """Batch normalization; `tf.compat.v1.nn.fused_batch_norm` with this library's gradient.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset, with the mean and biased variance of
    each channel of `x` in training, with those given if frozen. The forward pass is TensorFlow's
    FusedBatchNormV3.

    The gradients take in what TensorFlow's leave out: in training `batch_mean` and
    `batch_variance` are differentiated with respect to `x`, `mean` and `variance`; if frozen, y is
    differentiated with respect to `mean` and `variance`. They can be differentiated again, except,
    if frozen, with respect to `mean` and `variance`.

    Args:
      x: half, bfloat16 or float32, of the rank of `data_format`.
      scale: float32 [C].
      offset: float32 [C].
      mean: float32 [C], the mean if frozen; in training the running mean, needed if
        `exponential_avg_factor` is not 1.
      variance: float32 [C], the same for the variance.
      epsilon: added to the variance.
      data_format: "NHWC", "NCHW", "NDHWC" or "NCDHW".
      is_training: True for the statistics of `x`, False for those given.
      exponential_avg_factor: in training, the weight f of this batch in the running statistics.
      name: name of the forward operation.

    Returns:
      Named tuple (y, batch_mean, batch_variance): y of shape and type of `x`; float32 [C] running
      statistics: in training (1 - f) * mean + f * (mean of x), and for the variance the same with
      the unbiased variance of x (Bessel's correction, as in TensorFlow); `mean` and `variance`
      themselves if frozen.

    Raises:
      ValueError: unknown `data_format`, or `mean` and `variance` are missing.
      tf.errors.InvalidArgumentError: shapes that do not fit together.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    import tensorflow as tf
    from tensorflow.python.framework import ops as tf_ops
    from tensorflow.python.saved_model import save_context

    if data_format not in DATA_FORMATS:
        raise ValueError(f"data_format is {data_format!r}, it must be one of {[*DATA_FORMATS]}")
    averaging = is_training and exponential_avg_factor != 1.0
    if (averaging or not is_training) and (mean is None or variance is None):
        raise ValueError(
            "mean and variance are needed "
            + (
                "with an exponential_avg_factor that is not 1"
                if averaging
                else "if not is_training"
            )
        )
    # Variables are read here, so that their gradients are not the custom gradient's concern.
    x = tf.convert_to_tensor(x)
    scale, offset = (tf.convert_to_tensor(v, tf.float32) for v in (scale, offset))
    if averaging or not is_training:
        mean, variance = (tf.convert_to_tensor(v, tf.float32) for v in (mean, variance))
    else:
        mean = variance = tf.zeros([0])
    attrs: dict[str, Any] = {
        "epsilon": epsilon,
        "data_format": data_format,
        "is_training": is_training,
    }

    @tf.custom_gradient
    def normalize(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        forward = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            exponential_avg_factor=exponential_avg_factor,
            name=name,
            **attrs,
        )

        def gradient(y_backprop: Any, *of_statistics: Any) -> tuple[Any, ...]:
            if save_context.in_save_context():
                # A SavedModel holds this function: with TensorFlow's gradient it loads anywhere.
                builtin = tf_ops.gradient_registry.lookup("FusedBatchNormV3")
                by_x, by_scale, by_offset = builtin(forward.y.op, y_backprop, *[None] * 5)[:3]
            else:
                # The statistics get theirs below.
                saved = (forward.reserve_space_1, forward.reserve_space_2)
                by_x, by_scale, by_offset = _ops.fused_batch_norm_grad_v3(
                    y_backprop,
                    x,
                    scale,
                    *(saved if is_training else (mean, variance)),
                    forward.reserve_space_3,
                    **attrs,
                )[:3]
            of_mean = of_variance = None
            if not is_training:
                rstd = tf.math.rsqrt(variance + epsilon)
                of_mean = -scale * rstd * by_offset
                of_variance = -0.5 * scale * tf.square(rstd) * by_scale
            return by_x, by_scale, by_offset, of_mean, of_variance

        return (forward.y, forward.batch_mean, forward.batch_variance), gradient

    y, batch_mean, batch_variance = normalize(x, scale, offset, mean, variance)
    if not is_training:
        return FusedBatchNorm(y, mean, variance)

    # A function of its own: nothing of it is run in a backward pass that does not come by here.
    @tf.custom_gradient
    def statistics(x: Any, mean: Any, variance: Any, new_mean: Any, new_variance: Any) -> Any:
        def gradient(of_mean: Any, of_variance: Any) -> tuple[Any, ...]:
            rank, channels_last = DATA_FORMATS[data_format]
            channel = rank - 1 if channels_last else 1
            others = [axis for axis in range(rank) if axis != channel]
            wide = tf.cast(x, tf.float32)
            # Recomputed, so that it is a function of x in the next derivative.
            centered = wide - tf.reduce_mean(wide, others, keepdims=True)
            per_channel = [1] * rank
            per_channel[channel] = -1
            count = tf.cast(tf.size(x) / tf.shape(x)[channel], tf.float32)
            of_x = exponential_avg_factor * (
                tf.reshape(of_mean / count, per_channel)
                + tf.reshape(2 * of_variance / tf.maximum(count - 1, 1), per_channel) * centered
            )
            kept = 1 - exponential_avg_factor
            of_given = (kept * of_mean, kept * of_variance) if averaging else (None, None)
            return tf.cast(of_x, x.dtype), *of_given, None, None

        return (tf.identity(new_mean), tf.identity(new_variance)), gradient

    return FusedBatchNorm(y, *statistics(x, mean, variance, batch_mean, batch_variance))
