"""References that are not derived by hand: TensorFlow differentiates.

`elementary` has ops that compute the forward formula in float64 from TensorFlow's elementary ops,
and let tf.GradientTape find the gradient, or the gradient of the gradient; and that formula itself,
for the forward op that no built-in equals. `registered` has the
gradient that TensorFlow registers for its own FusedBatchNormGradV3. worker.py finds both as
`module:attribute`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_bn_ops.conformance.execution.elementary_parts import (
    ACTIVATIONS,
    ElementaryParts,
    masked_by,
    per_channel,
)


def _axis(data_format: str) -> int:
    return -1 if data_format.endswith("C") else 1


def _first_order(
    x: Any,
    scale: Any,
    mean: Any,
    variance: Any,
    y_backprop: Any,
    epsilon: float,
    data_format: str,
    is_training: bool = True,
) -> list[Any]:
    """The gradients with respect to x, scale and the offset.

    The ops take mean and variance as given, also when they are not the statistics of x, and in
    training differentiate them as functions of x: a statistic is its given value plus the batch's
    less the same with its gradient stopped, which is zero and has the wanted derivative.
    Derivatives of the variance are those of mean((x - mean)^2) with the given mean.
    """
    column, others = per_channel(x, _axis(data_format))

    def as_function_of_x(given: Any, of_batch: Any) -> Any:
        if not is_training:
            return tf.reshape(given, column)
        return tf.reshape(given, column) + (of_batch - tf.stop_gradient(of_batch))

    offset = tf.zeros_like(scale)  # It may be any number.
    with tf.GradientTape() as tape:
        tape.watch([x, scale, offset])
        batch_mean = tf.reduce_mean(x, others, keepdims=True)
        spread = tf.square(x - tf.reshape(mean, column))
        batch_variance = tf.reduce_mean(spread, others, keepdims=True)
        centered = x - as_function_of_x(mean, batch_mean)
        root = tf.sqrt(as_function_of_x(variance, batch_variance) + epsilon)
        y = centered / root * tf.reshape(scale, column) + tf.reshape(offset, column)
    return tape.gradient(y, [x, scale, offset], output_gradients=y_backprop)


class _Elementary(ElementaryParts):
    """Ops by their names and arguments, in float64."""

    def BatchNormTrainingBackprop(
        self,
        input: Any,
        gamma: Any,
        beta: Any,
        mean: Any,
        variance: Any,
        normalized_delta: Any,
        epsilon: float,
    ) -> list[Any]:
        """The gradients with respect to input, gamma and beta."""
        del beta  # Its gradient does not depend on it.
        dtype = input.dtype
        x, gamma, mean, variance, delta = (
            tf.cast(t, tf.float64) for t in (input, gamma, mean, variance, normalized_delta)
        )
        gradients = _first_order(x, gamma, mean, variance, delta, epsilon, "NCHW")
        return [tf.cast(gradient, dtype) for gradient in gradients]

    def FusedBatchNormGradEx(
        self,
        y_backprop: Any,
        x: Any,
        scale: Any,
        reserve_space_1: Any,
        reserve_space_2: Any,
        reserve_space_3: Any,
        offset: Any,
        y: Any,
        epsilon: float,
        data_format: str,
        is_training: bool,
        num_side_inputs: int,
        activation_mode: str,
    ) -> list[Any]:
        """The gradients with respect to x, scale, the offset and the side input."""
        del reserve_space_3, offset
        dtype, vector = x.dtype, scale.dtype
        masked = masked_by(y_backprop, y, activation_mode)
        x, scale, mean, variance, delta = (
            tf.cast(t, tf.float64) for t in (x, scale, reserve_space_1, reserve_space_2, masked)
        )
        gradients = _first_order(
            x, scale, mean, variance, delta, epsilon, data_format, is_training=is_training
        )
        found = [tf.cast(t, to) for t, to in zip(gradients, (dtype, vector, vector), strict=True)]
        return [*found, *[tf.zeros([0], vector)] * 2, *[masked] * num_side_inputs]

    def FusedBatchNormEx(
        self,
        x: Any,
        scale: Any,
        offset: Any,
        mean: Any,
        variance: Any,
        side_input: list[Any],
        epsilon: float,
        exponential_avg_factor: float,
        activation_mode: str,
        data_format: str,
        is_training: bool,
        bessel_correction: bool,
    ) -> list[Any]:
        """The forward formula."""
        dtype, vector = x.dtype, scale.dtype
        x, scale, offset, *given = (
            tf.cast(t, tf.float64) for t in (x, scale, offset, mean, variance)
        )
        column, others = per_channel(x, _axis(data_format))
        saved, averages = list(given), list(given)
        if is_training:
            count = tf.cast(tf.size(x), tf.float64) / tf.cast(tf.size(scale), tf.float64)
            center = tf.reduce_mean(x, others, keepdims=True)
            spread = tf.reduce_mean(tf.square(x - center), others)
            saved = [tf.reshape(center, [-1]), spread]
            bessel = count / tf.maximum(count - 1, 1) if bessel_correction else 1
            averages = [saved[0], spread * bessel]
            if exponential_avg_factor != 1:
                averages = [
                    old + exponential_avg_factor * (new - old)
                    for old, new in zip(given, averages, strict=True)
                ]
            if tf.size(x) == 0:  # Means of nothing are NaN; so are the averages.
                averages = [tf.fill(tf.shape(scale), tf.constant(np.nan, tf.float64))] * 2
                saved = [tf.zeros_like(scale)] * 2
        rstd = tf.math.rsqrt(saved[1] + epsilon)
        y = (x - tf.reshape(saved[0], column)) * tf.reshape(scale * rstd, column)
        y += tf.reshape(offset, column)
        for other in side_input:
            y += tf.cast(other, tf.float64)
        vectors = [tf.cast(t, vector) for t in (*averages, *saved)]
        return [tf.cast(ACTIVATIONS[activation_mode](y), dtype), *vectors, tf.zeros([0], vector)]

    def FusedBatchNormGradGrad(
        self,
        x_backprop_grad: Any,
        scale_backprop_grad: Any,
        offset_backprop_grad: Any,
        y_backprop: Any,
        x: Any,
        scale: Any,
        reserve_space_1: Any,
        reserve_space_2: Any,
        epsilon: float,
        data_format: str,
        is_training: bool,
    ) -> list[Any]:
        """The gradient of the gradient with respect to y_backprop, x and scale."""
        types = (y_backprop.dtype, x.dtype, scale.dtype)
        grads = [
            tf.cast(t, tf.float64)
            for t in (x_backprop_grad, scale_backprop_grad, offset_backprop_grad)
        ]
        dy, x, scale, mean, variance = (
            tf.cast(t, tf.float64) for t in (y_backprop, x, scale, reserve_space_1, reserve_space_2)
        )
        column, others = per_channel(x, _axis(data_format))
        offset = tf.zeros_like(scale)
        with tf.GradientTape() as outer:
            outer.watch([dy, x, scale])
            with tf.GradientTape() as inner:
                inner.watch([x, scale, offset])
                if is_training:
                    center = tf.reduce_mean(x, others, keepdims=True)
                    spread = tf.reduce_mean(tf.square(x - center), others, keepdims=True)
                else:
                    center, spread = tf.reshape(mean, column), tf.reshape(variance, column)
                y = (x - center) / tf.sqrt(spread + epsilon) * tf.reshape(scale, column)
                y += tf.reshape(offset, column)
            first = inner.gradient(y, [x, scale, offset], output_gradients=dy)
        second = outer.gradient(
            first,
            [dy, x, scale],
            output_gradients=grads,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return [tf.cast(gradient, dtype) for gradient, dtype in zip(second, types, strict=True)]


class _Registered:
    """The gradient of TensorFlow's own op."""

    def FusedBatchNormGradGrad(
        self,
        x_backprop_grad: Any,
        scale_backprop_grad: Any,
        offset_backprop_grad: Any,
        y_backprop: Any,
        x: Any,
        scale: Any,
        reserve_space_1: Any,
        reserve_space_2: Any,
        **attrs: Any,
    ) -> list[Any]:
        """By TensorFlow's registered gradient of FusedBatchNormGradV3."""
        vector = scale.dtype
        gs, go, scale, mean, variance = (
            tf.cast(t, tf.float32)
            for t in (
                scale_backprop_grad,
                offset_backprop_grad,
                scale,
                reserve_space_1,
                reserve_space_2,
            )
        )
        with tf.GradientTape() as tape:
            tape.watch([y_backprop, x, scale])
            outputs = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=y_backprop,
                x=x,
                scale=scale,
                reserve_space_1=mean,
                reserve_space_2=variance,
                reserve_space_3=tf.zeros([0]),
                **attrs,
            )
        dy_grad, x_grad, scale_grad = tape.gradient(
            outputs[:3], [y_backprop, x, scale], output_gradients=[x_backprop_grad, gs, go]
        )
        return [dy_grad, x_grad, tf.cast(scale_grad, vector)]


elementary = _Elementary()
registered = _Registered()
