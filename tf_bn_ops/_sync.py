"""Batch normalization with the statistics of all replicas of tf.distribute.

Forward: BatchNormStats of the replica, one all-gather, BatchNormGatherStats in rank order,
BatchNormElemt. Backward: BatchNormBackwardReduce, another all-gather whose rows are added in rank
order, BatchNormBackwardElemt.

The statistics are a function of x with registered gradients, the collectives included. y has the
fused gradient instead, which takes in that mean and variance depend on x. Its own ops have
registered gradients by x, mean and variance, so the second derivative is composed of all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from tf_bn_ops import _fused, _ops, _replicas
from tf_bn_ops._arguments import checked_epsilon, checked_number
from tf_bn_ops._fused import ACTIVATION_MODES, Activation
from tf_bn_ops._results import BatchNorm
from tf_bn_ops.spec import DATA_FORMATS, DataFormat


def sync_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-3,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
    *,
    axis: int | None = None,
    activation: Activation | None = None,
    side_input: Any = None,
) -> BatchNorm:
    """Batch normalization with the statistics of the batch of all replicas of `tf.distribute`.

    `fused_batch_norm` of what the replicas of a step hold together: results, gradients and running
    statistics are within its bounds, whatever each replica holds, no samples included. Call it on
    every replica, in the function that `strategy.run` is given; without a strategy, there is one
    replica. Replicas exchange 2 * C + 1 float64 numbers forward and 2 * C backward, each in one
    collective of the strategy. Results are bitwise identical on every run, the running statistics
    on every replica.

    The gradients by `scale` and `offset` are those of the replica's own samples, as are those of
    all other variables: the strategy sums or averages them. They can be differentiated again.

    If frozen, nothing is exchanged, and all ops are TensorFlow's.

    Args:
      x: half, bfloat16, float32 or float64; its samples may differ in number between replicas.
      scale: [C]: float64 if `x` is, else float32 (a variable that is read as half or bfloat16, by
        autocast, is cast back).
      offset: the same.
      mean: the same: the mean if frozen; in training the running mean, needed if
        `exponential_avg_factor` is not 1.
      variance: the same for the variance.
      epsilon: added to the variance; a number, not a tensor.
      data_format: "NHWC", "NCHW", "NDHWC" or "NCDHW", as text or bytes.
      is_training: True for the statistics of `x`, False for those given.
      name: name of the forward operation.
      exponential_avg_factor: in training, the weight f of this batch in the running statistics.
      axis: the channel axis of an `x` of any rank, in the place of `data_format`.
      activation: None, "relu" (max(y, 0)) or "relu6" (min(max(y, 0), 6)).
      side_input: what is added before the activation, of the shape and type of `x`.

    Returns:
      Named tuple (y, batch_mean, batch_variance), as `fused_batch_norm`. The variance of the batch
      in the running statistics is the unbiased one of all replicas' samples.

    Raises:
      RuntimeError: called outside of the replicas of a strategy that has several.
      ValueError: unknown `data_format` or `activation`, `axis` beyond the rank of `x`, `mean` and
        `variance` are missing, or `side_input` has another shape than `x`.
      TypeError: `epsilon` or `exponential_avg_factor` is no number, or `side_input` has another
        type than `x`.
      tf.errors.InvalidArgumentError: shapes that do not fit together.
      tf.errors.OpError: a replica died or did not come in the time that the strategy's
        `CommunicationOptions(timeout_seconds=...)` gives.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    import tensorflow as tf

    _replicas.check_context("sync_batch_norm")
    attrs = _fused.Attrs(
        checked_epsilon(epsilon, "sync_batch_norm"),
        data_format.decode() if isinstance(data_format, bytes) else data_format,
        bool(is_training),
        checked_number(exponential_avg_factor, "exponential_avg_factor", "sync_batch_norm"),
        activation,
    )
    attrs.check(mean, variance)
    x = tf.convert_to_tensor(x)
    if axis is None and x.shape.rank is None:
        x = tf.ensure_shape(x, [None] * DATA_FORMATS[attrs.data_format][0])
    side_inputs = [] if side_input is None else [_fused.checked_side_input(x, side_input)]
    scale, offset = _vector(scale, x), _vector(offset, x)
    if attrs.reads_statistics:
        mean, variance = _vector(mean, x), _vector(variance, x)
    channel = _channel(x, attrs.data_format, axis)
    if not attrs.is_training:
        y = _frozen([x, scale, offset, mean, variance], side_inputs, channel, attrs, name)
        return BatchNorm(y, tf.identity(mean), tf.identity(variance))
    statistics = global_statistics(x, channel)
    call = Call(attrs.epsilon, ACTIVATION_MODES[activation], channel)
    y = normalize(call, x, scale, offset, statistics, side_inputs, name)
    f = attrs.exponential_avg_factor
    averages = statistics.averages((mean, variance), f, bessel_correction=True)
    return BatchNorm(y, *(tf.cast(value, scale.dtype) for value in averages))


def _vector(value: Any, x: Any) -> Any:
    """`value`, [C], as a tensor of the type that goes with `x`."""
    import tensorflow as tf

    if x.dtype != tf.float64:
        return _fused.float32(value)
    return tf.convert_to_tensor(value, dtype_hint=tf.float64)


def _channel(x: Any, data_format: str, axis: int | None) -> int:
    """The channel axis as the ops take it."""
    rank = x.shape.rank
    if axis is None:
        expected, channels_last = DATA_FORMATS[data_format]
        if rank not in (None, expected):
            raise ValueError(
                f"x has rank {rank}, with data_format {data_format!r} it must have rank {expected}:"
                " pass axis for an x of any rank"
            )
        return expected - 1 if channels_last else 1
    if rank is not None and not -rank <= axis < rank:
        raise ValueError(f"axis is {axis}, x of rank {rank} has the axes {-rank} to {rank - 1}")
    return axis


# ---- Training ------------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """Of all replicas: the number of elements per channel, mean and biased variance; float64.

    Without an element anywhere, mean and variance are 0.
    """

    count: Any
    mean: Any
    variance: Any

    def averages(
        self, given: Sequence[Any], factor: float, *, bessel_correction: bool
    ) -> Sequence[Any]:
        """The running mean and variance after this batch, from those given, in float64; NaN for a
        batch without samples. With a factor of 1 those given are not read."""
        import tensorflow as tf

        batch = [self.mean, self.variance]
        if bessel_correction:
            batch[1] *= self.count / tf.maximum(self.count - 1, 1)
        nan = tf.constant(float("nan"), tf.float64)
        batch = [tf.where(self.count > 0, value, nan) for value in batch]
        if factor != 1.0:
            # Reshaped, which refuses other lengths: a scalar would be broadcast.
            old = [tf.reshape(tf.cast(v, tf.float64), tf.shape(self.mean)) for v in given]
            batch = [(1 - factor) * a + factor * b for a, b in zip(old, batch, strict=True)]
        return batch


def global_statistics(x: Any, axis: int) -> Statistics:
    """The statistics of `x` on all replicas, bitwise identical on each of them."""
    import tensorflow as tf

    local = _ops.batch_norm_stats(x, axis=axis)
    rows = _replicas.all_gather(tf.concat([local.count[tf.newaxis], local.mean, local.m2], axis=0))
    channels = local.mean.shape[0]
    if channels is None:
        channels = tf.size(local.mean)
    counts, means, m2s = tf.split(rows, [1, channels, channels], axis=1)
    count, mean, m2 = _ops.batch_norm_gather_stats(counts[:, 0], means, m2s)
    return Statistics(count, mean, m2 / tf.maximum(count, 1))


@dataclasses.dataclass(frozen=True)
class Call:
    """The attributes that the forward op and both backward ops share."""

    epsilon: float
    activation_mode: _ops.Activation
    axis: int

    @property
    def attrs(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# Position of the side input among the inputs of the forward op, if there is one.
_SIDE_INPUT = 5


def normalize(
    call: Call,
    x: Any,
    scale: Any,
    offset: Any,
    statistics: Statistics,
    side_inputs: Sequence[Any] = (),
    name: str | None = None,
) -> Any:
    """y, whose gradient has mean and variance as functions of `x`: they are its own statistics."""
    from tensorflow.python.eager import record

    count, mean, variance = statistics
    inputs = _fused.captured(x, scale, offset, mean, variance, *side_inputs)
    with record.stop_recording():
        y = elemt(call, *inputs[:_SIDE_INPUT], side_inputs=inputs[_SIDE_INPUT:], name=name)
    gradient = functools.partial(_gradient_of_y, call, count)
    _fused.attach(gradient, inputs, [y], {0: y})
    return y


def elemt(
    call: Call,
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    *,
    side_inputs: Sequence[Any] = (),
    name: str | None = None,
) -> Any:
    """y, with the partial derivatives by `x`, `mean` and `variance`."""
    return _ops.batch_norm_elemt(
        x, scale, offset, mean, variance, side_input=side_inputs, name=name, **call.attrs
    )


def _gradient_of_y(call: Call, count: Any, operation: Any, y_backprop: Any) -> Sequence[Any]:
    """By the inputs of the forward op; None by mean and variance, whose part is in that by x."""
    import tensorflow as tf

    x, scale, offset, mean, variance, *side_inputs = operation.inputs
    # The mask of the activation follows from x alone, unless something was added to it.
    reads_y = call.activation_mode != "Identity" and bool(side_inputs)
    y = [operation.outputs[0]] if reads_y else []
    given = (y_backprop, x, scale, offset, mean, variance)
    sums = _ops.batch_norm_backward_reduce(*given, y=y, **call.attrs)
    of_all = _replicas.all_sum(tf.concat([sums.sum_dy, sums.sum_dy_xmu], axis=0))
    sum_dy, sum_dy_xmu = tf.split(of_all, 2)
    result = _ops.batch_norm_backward_elemt(
        *given, sum_dy, sum_dy_xmu, count, y=y, num_side_inputs=len(side_inputs), **call.attrs
    )
    of_vectors = (sums.scale_backprop, sums.offset_backprop)
    return [result.x_backprop, *of_vectors, None, None, *result.side_input_backprop]


# ---- Frozen --------------------------------------------------------------------------------------


def _frozen(
    inputs: Sequence[Any],
    side_inputs: Sequence[Any],
    channel: int,
    attrs: _fused.Attrs,
    name: str | None,
) -> Any:
    """y of TensorFlow's ops: FusedBatchNormV3 where it takes `x`, else its formula."""
    import tensorflow as tf

    x, *vectors = inputs
    data_format = _data_format(x, channel)
    if data_format is not None:
        attrs = dataclasses.replace(attrs, data_format=data_format)
        y = _fused.normalize(attrs, name, inputs)[0]
        return _fused.activated(attrs.activation, y, *side_inputs)
    rank = tf.rank(x)
    # Not -1: a vector of another length than the channels is refused.
    shape = tf.where(tf.equal(tf.range(rank), channel % rank), tf.shape(x), 1)
    scale, offset, mean, variance = (tf.reshape(vector, shape) for vector in vectors)
    rstd = tf.math.rsqrt(variance + attrs.epsilon)
    y = (tf.cast(x, scale.dtype) - mean) * (rstd * scale) + offset
    return _fused.activated(attrs.activation, tf.cast(y, x.dtype), *side_inputs)


def _data_format(x: Any, channel: int) -> str | None:
    """How FusedBatchNormV3 names the layout of `x`; None if it does not take it."""
    import tensorflow as tf

    rank = x.shape.rank
    if rank is None or x.dtype == tf.float64:
        return None
    layouts = {(4, 3): "NHWC", (4, 1): "NCHW", (5, 4): "NDHWC", (5, 1): "NCDHW"}
    return layouts.get((rank, channel % rank))
