"""Batch normalization: the forward pass is TensorFlow's op, the backward pass this library's."""

from __future__ import annotations

import collections
import dataclasses
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

    attrs = _Attrs(epsilon, data_format, is_training, exponential_avg_factor)
    attrs.check(mean, variance)
    # Variables are read here, so that their gradients are not the custom gradient's concern.
    x = tf.convert_to_tensor(x)
    scale, offset = (tf.convert_to_tensor(v, tf.float32) for v in (scale, offset))
    if attrs.reads_statistics:
        mean, variance = (tf.convert_to_tensor(v, tf.float32) for v in (mean, variance))
    else:
        mean = variance = tf.zeros([0])
    y, batch_mean, batch_variance = _normalize(attrs, name, x, scale, offset, mean, variance)
    if not is_training:
        return FusedBatchNorm(y, mean, variance)
    return FusedBatchNorm(y, *_statistics(attrs, x, mean, variance, batch_mean, batch_variance))


@dataclasses.dataclass(frozen=True)
class _Attrs:
    epsilon: float
    data_format: str
    is_training: bool
    exponential_avg_factor: float

    @property
    def averages(self) -> bool:
        """Whether the running statistics are averages of those given and those of x."""
        return self.is_training and self.exponential_avg_factor != 1.0

    @property
    def reads_statistics(self) -> bool:
        return self.averages or not self.is_training

    @property
    def of_gradient(self) -> dict[str, Any]:
        """The attributes that the forward and the gradient op share."""
        return {
            "epsilon": self.epsilon,
            "data_format": self.data_format,
            "is_training": self.is_training,
        }

    def check(self, mean: Any, variance: Any) -> None:
        if self.data_format not in DATA_FORMATS:
            raise ValueError(
                f"data_format is {self.data_format!r}, it must be one of {[*DATA_FORMATS]}"
            )
        if self.reads_statistics and (mean is None or variance is None):
            when = (
                "with an exponential_avg_factor that is not 1"
                if self.averages
                else "if not is_training"
            )
            raise ValueError(f"mean and variance are needed {when}")


def _normalize(attrs: _Attrs, name: str | None, *inputs: Any) -> Any:
    """TensorFlow's forward op of (x, scale, offset, mean, variance), with the gradient of y."""
    import tensorflow as tf
    from tensorflow.python.framework import ops as tf_ops
    from tensorflow.python.saved_model import save_context

    @tf.custom_gradient
    def normalize(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        forward = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            exponential_avg_factor=attrs.exponential_avg_factor,
            name=name,
            **attrs.of_gradient,
        )

        # The statistics get their gradient in _statistics.
        def gradient(y_backprop: Any, *of_statistics: Any) -> tuple[Any, ...]:
            if save_context.in_save_context():
                # A SavedModel holds this function: with TensorFlow's gradient it loads anywhere.
                builtin = tf_ops.gradient_registry.lookup("FusedBatchNormV3")
                by_x, by_scale, by_offset = builtin(forward.y.op, y_backprop, *[None] * 5)[:3]
            else:
                saved = (forward.reserve_space_1, forward.reserve_space_2)
                by_x, by_scale, by_offset = _ops.fused_batch_norm_grad_v3(
                    y_backprop,
                    x,
                    scale,
                    *(saved if attrs.is_training else (mean, variance)),
                    forward.reserve_space_3,
                    **attrs.of_gradient,
                )[:3]
            of_mean = of_variance = None
            if not attrs.is_training:
                rstd = tf.math.rsqrt(variance + attrs.epsilon)
                of_mean = -scale * rstd * by_offset
                of_variance = -0.5 * scale * tf.square(rstd) * by_scale
            return by_x, by_scale, by_offset, of_mean, of_variance

        return (forward.y, forward.batch_mean, forward.batch_variance), gradient

    return normalize(*inputs)


def _statistics(attrs: _Attrs, *inputs: Any) -> Any:
    """(new_mean, new_variance) of (x, mean, variance, new_mean, new_variance), with the gradient of
    the running statistics.

    A function beside `_normalize`, so that a backward pass of y alone computes nothing of it.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def statistics(x: Any, mean: Any, variance: Any, new_mean: Any, new_variance: Any) -> Any:
        def gradient(of_mean: Any, of_variance: Any) -> tuple[Any, ...]:
            rank, channels_last = DATA_FORMATS[attrs.data_format]
            channel = rank - 1 if channels_last else 1
            others = [axis for axis in range(rank) if axis != channel]
            wide = tf.cast(x, tf.float32)
            # Recomputed, so that it is a function of x in the next derivative.
            x_centered = wide - tf.reduce_mean(wide, others, keepdims=True)
            per_channel = [1] * rank
            per_channel[channel] = -1
            m = tf.cast(tf.size(x) / tf.shape(x)[channel], tf.float32)
            of_x = attrs.exponential_avg_factor * (
                tf.reshape(of_mean / m, per_channel)
                + tf.reshape(2 * of_variance / tf.maximum(m - 1, 1), per_channel) * x_centered
            )
            kept = 1 - attrs.exponential_avg_factor
            of_given = (kept * of_mean, kept * of_variance) if attrs.averages else (None, None)
            return tf.cast(of_x, x.dtype), *of_given, None, None

        return (tf.identity(new_mean), tf.identity(new_variance)), gradient

    return statistics(*inputs)
