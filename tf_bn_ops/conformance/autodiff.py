"""A reference that nobody derived by hand: TensorFlow differentiates batch normalization itself.

The functions have the names and arguments of ops (`module:attribute` of worker.py). They compute
the forward formula in float64 from TensorFlow's elementary ops, and let tf.GradientTape find the
gradient. The ops take mean and variance as given, also when they are not the statistics of x, and
differentiate them as functions of x: a statistic is its given value plus the batch's less the same
with its gradient stopped, which is zero and has the wanted derivative. Derivatives of the variance
are those of mean((x - mean)^2) with the given mean.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def BatchNormTrainingBackprop(
    input: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    variance: Any,
    normalized_delta: Any,
    epsilon: float,
) -> list[Any]:
    """The gradients with respect to input, gamma and beta; arguments as the op of this name."""
    del beta  # Its gradient does not depend on it; the offset below may be any number.
    dtype = input.dtype
    x, gamma, mean, variance, delta = (
        tf.cast(t, tf.float64) for t in (input, gamma, mean, variance, normalized_delta)
    )
    per_channel = tf.concat([[1, -1], tf.ones([tf.rank(x) - 2], tf.int32)], axis=0)
    others = tf.concat([[0], tf.range(2, tf.rank(x))], axis=0)

    def as_function_of_x(given: Any, of_batch: Any) -> Any:
        return given + (of_batch - tf.stop_gradient(of_batch))

    offset = tf.zeros_like(gamma)
    with tf.GradientTape() as tape:
        tape.watch([x, gamma, offset])
        given_mean = tf.reshape(mean, per_channel)
        batch_mean = tf.reduce_mean(x, others, keepdims=True)
        batch_variance = tf.reduce_mean(tf.square(x - given_mean), others, keepdims=True)
        center = as_function_of_x(given_mean, batch_mean)
        spread = as_function_of_x(tf.reshape(variance, per_channel), batch_variance)
        normalized = (x - center) / tf.sqrt(spread + tf.constant(epsilon, tf.float64))
        y = normalized * tf.reshape(gamma, per_channel) + tf.reshape(offset, per_channel)
    gradients = tape.gradient(y, [x, gamma, offset], output_gradients=delta)
    return [tf.cast(gradient, dtype) for gradient in gradients]
