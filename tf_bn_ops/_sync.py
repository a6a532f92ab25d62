"""Batch normalization with the statistics of all replicas of tf.distribute, in training.

Forward: BatchNormStats of the replica, one all-gather, BatchNormGatherStats in rank order,
BatchNormElemt. Backward: BatchNormBackwardReduce, another all-gather whose rows are added in rank
order, BatchNormBackwardElemt.

The statistics are a function of x with registered gradients, the collectives included. y has the
fused gradient instead, which takes in that mean and variance depend on x. Its own ops have
registered gradients by x, mean and variance, so the second derivative is composed of all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from tf_bn_ops import _recording, _replicas
from tf_bn_ops.generated import bindings

# Untyped: to mypy a starred argument may be any of those that follow.
ops: Any = bindings


class Statistics(NamedTuple):
    """Statistics over all replicas: elements per channel, mean and biased variance in float64.

    Without an element anywhere, mean and variance are 0.
    """

    count: Any
    mean: Any
    variance: Any
    replicas: _replicas.Replicas

    def averages(
        self,
        given: Sequence[Any],
        factor: float,
        *,
        bessel_correction: bool,
        of_nothing: float = float("nan"),
    ) -> Sequence[Any]:
        """The running mean and variance after this batch, from the given ones, in float64. With
        a factor of 1 these are not read; a batch without samples has `of_nothing` as both."""
        import tensorflow as tf

        batch = [self.mean, self.variance]
        if bessel_correction:
            batch[1] *= self.count / tf.maximum(self.count - 1, 1)
        nothing = tf.constant(of_nothing, tf.float64)
        batch = [tf.where(self.count > 0, value, nothing) for value in batch]
        if factor != 1.0:
            # Reshaped, which refuses other lengths: a scalar would be broadcast.
            old = [tf.reshape(tf.cast(v, tf.float64), tf.shape(self.mean)) for v in given]
            batch = [(1 - factor) * a + factor * b for a, b in zip(old, batch, strict=True)]
        return batch


def global_statistics(
    x: Any, axis: int, weights: Any = None, replicas: _replicas.Replicas | None = None
) -> Statistics:
    """The statistics of `x` on all replicas, bitwise identical on each of them.

    Args:
      x: the samples of this replica.
      axis: the channel axis, the last one with weights.
      weights: how much each element of a channel counts, of the shape of `x` without its channels.
      replicas: those that are called in if None.
    """
    import tensorflow as tf

    replicas = (replicas or _replicas.current()).here()
    local = ops.batch_norm_stats(x, axis=axis) if weights is None else _weighted(x, weights)
    rows = replicas.all_gather(tf.concat([local[0][tf.newaxis], *local[1:]], axis=0))
    channels = local[1].shape[0]
    if channels is None:
        channels = tf.size(local[1])
    counts, means, m2s = tf.split(rows, [1, channels, channels], axis=1)
    count, mean, m2 = ops.batch_norm_gather_stats(counts[:, 0], means, m2s)
    variance = m2 / tf.where(count > 0, count, tf.ones_like(count))
    return Statistics(count, mean, variance, replicas)


def _weighted(x: Any, weights: Any) -> tuple[Any, Any, Any]:
    """BatchNormStats of samples that count by their weights; of one of weight 0 nothing is read."""
    import tensorflow as tf

    x = tf.cast(x, tf.float64)
    weights = tf.broadcast_to(tf.cast(weights, tf.float64), tf.shape(x)[:-1])
    count, axes = tf.reduce_sum(weights), [*range(x.shape.rank - 1)]
    weights = weights[..., tf.newaxis]
    x = tf.where(weights > 0, x, tf.zeros_like(x))
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * x, axes), count)
    return count, mean, tf.reduce_sum(weights * tf.square(x - mean), axes)


@dataclasses.dataclass(frozen=True)
class Call:
    """The attributes that the forward op and both backward ops share."""

    epsilon: float
    activation_mode: bindings.ActivationMode
    axis: int


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

    attrs = vars(call)
    count, mean, variance, replicas = statistics
    inputs = _recording.captured(x, scale, offset, mean, variance, *side_inputs)
    vectors, side_inputs = inputs[:5], inputs[5:]
    with record.stop_recording():
        y = ops.batch_norm_elemt(*vectors, side_input=side_inputs, name=name, **attrs)

    def gradient(y_backprop: Any) -> Sequence[Any]:
        """Gradients by all inputs; None by mean and variance, whose part is in x_backprop."""
        import tensorflow as tf

        # The mask of the activation follows from x alone, unless something was added to it.
        saved = [y] if call.activation_mode != "Identity" and side_inputs else []
        sums = ops.batch_norm_backward_reduce(y_backprop, *vectors, y=saved, **attrs)
        total = replicas.all_sum(tf.concat([sums.sum_dy, sums.sum_dy_xmu], axis=0))
        result = ops.batch_norm_backward_elemt(
            y_backprop,
            *vectors,
            *tf.split(total, 2),
            count,
            y=saved,
            num_side_inputs=len(side_inputs),
            **attrs,
        )
        of_vectors = (sums.scale_backprop, sums.offset_backprop)
        return [result.x_backprop, *of_vectors, None, None, *result.side_input_backprop]

    _recording.attach(gradient, inputs, [y])
    return y
