"""References that are not derived by hand: TensorFlow differentiates.

`elementary` has ops that compute the forward formula in float64 from TensorFlow's elementary ops,
and let tf.GradientTape find the gradient, or the gradient of the gradient; that formula itself, for
the forward op that no built-in equals; and the parts of synchronised batch normalization.
`registered` has the gradient that TensorFlow registers for its own FusedBatchNormGradV3. worker.py
finds both as `module:attribute`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_bn_ops.spec import SMOOTH_ACTIVATIONS

ACTIVATIONS = {
    "Identity": tf.identity,
    "Relu": tf.nn.relu,
    "Relu6": tf.nn.relu6,
    "Silu": lambda y: y * tf.sigmoid(y),
    "HardSilu": lambda y: y * tf.nn.relu6(y + 3) / 6,
}


class _Given:
    """What an op is called with, by name."""

    def __init__(self, arguments: dict[str, Any]):
        self.__dict__.update(arguments)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def wide(self, *names: str) -> list[Any]:
        """Tensors in float64."""
        return [tf.cast(getattr(self, name), tf.float64) for name in names]


def _cast(tensors: list[Any], *like: Any) -> list[Any]:
    """The tensors in the types of others."""
    return [tf.cast(tensor, other.dtype) for tensor, other in zip(tensors, like, strict=True)]


def _axis(data_format: str) -> int:
    return -1 if data_format.endswith("C") else 1


def _per_channel(x: Any, axis: int) -> tuple[Any, Any]:
    """(the shape that per-channel tensors broadcast in, the other dimensions)."""
    rank = tf.rank(x)
    axis = axis % rank
    shape = tf.tensor_scatter_nd_update(tf.ones([rank], tf.int32), [[axis]], [-1])
    return shape, tf.concat([tf.range(axis), tf.range(axis + 1, rank)], axis=0)


def _masked_by(y_backprop: Any, y: Any, activation: str) -> Any:
    """y_backprop where the activation passes it, which y tells as well as what it is applied to; by
    selection, since a product with zero would keep a NaN."""
    passes = tf.ones_like(y, tf.bool) if activation == "Identity" else y > 0
    if activation == "Relu6":
        passes &= y < 6
    return tf.where(passes, y_backprop, tf.zeros_like(y_backprop))


def _first_order(
    tensors: list[Any], epsilon: float, axis: int, is_training: bool = True
) -> list[Any]:
    """The gradients with respect to x, scale and the offset, of x, scale, mean, variance and
    y_backprop.

    The ops take mean and variance as given, also when they are not the statistics of x, and in
    training differentiate them as functions of x: a statistic is its given value plus the batch's
    less the same with its gradient stopped, which is zero and has the wanted derivative.
    Derivatives of the variance are those of mean((x - mean)^2) with the given mean.
    """
    x, scale, mean, variance, y_backprop = tensors
    column, others = _per_channel(x, axis)

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


def _before_activation(g: _Given) -> Any:
    """What the activation of BatchNormElemt is applied to, without a side input."""
    column, _ = _per_channel(g.x, g.axis)
    x, scale, offset = g.wide("x", "scale", "offset")
    rstd = 1 / tf.sqrt(g.variance + g.epsilon)
    centered = x - tf.reshape(g.mean, column)
    return centered * tf.reshape(scale * rstd, column) + tf.reshape(offset, column)


def _behind_activation(g: _Given) -> Any:
    """y_backprop behind the activation of a part, in its type: y is given, or computed in the type
    in which the op looks at it."""
    y = g.y[0] if g.y else tf.cast(_before_activation(g), g.x.dtype)
    return _masked_by(g.y_backprop, y, g.activation_mode)


def _behind_smooth(g: _Given) -> Any:
    """y_backprop times the derivative of a smooth activation, in float64."""
    column, _ = _per_channel(g.x, _axis(g.data_format))
    x, scale, offset, mean, variance, dy = g.wide(
        "x", "scale", "offset", "reserve_space_1", "reserve_space_2", "y_backprop"
    )
    rstd = 1 / tf.sqrt(variance + g.epsilon)
    y = (x - tf.reshape(mean, column)) * tf.reshape(scale * rstd, column)
    y += tf.reshape(offset, column)
    with tf.GradientTape() as tape:
        tape.watch(y)
        activated = ACTIVATIONS[g.activation_mode](y)
    return dy * tape.gradient(activated, y)


class _Elementary:
    """Ops by their names and arguments, in float64."""

    def BatchNormTrainingBackprop(self, **arguments: Any) -> list[Any]:
        """The gradients with respect to input, gamma and beta, on whose value none depends."""
        g = _Given(arguments)
        tensors = g.wide("input", "gamma", "mean", "variance", "normalized_delta")
        return _cast(_first_order(tensors, g.epsilon, 1), *[g.input] * 3)

    def FusedBatchNormGradEx(self, **arguments: Any) -> list[Any]:
        """The gradients with respect to x, scale, the offset and the side input."""
        g = _Given(arguments)
        if g.activation_mode in SMOOTH_ACTIVATIONS:
            masked = _behind_smooth(g)
        else:
            masked = _masked_by(g.y_backprop, g.y, g.activation_mode)
        tensors = g.wide("x", "scale", "reserve_space_1", "reserve_space_2")
        tensors.append(tf.cast(masked, tf.float64))
        found = _first_order(tensors, g.epsilon, _axis(g.data_format), g.is_training)
        placeholders = [tf.zeros([0], g.scale.dtype)] * 2
        found = _cast(found, g.x, g.scale, g.scale)
        return [*found, *placeholders, *[masked] * g.num_side_inputs]

    def FusedBatchNormEx(self, **arguments: Any) -> list[Any]:
        """The forward formula."""
        g = _Given(arguments)
        x, scale, offset, *given = g.wide("x", "scale", "offset", "mean", "variance")
        column, others = _per_channel(x, _axis(g.data_format))
        saved, averages = list(given), list(given)
        if g.is_training:
            count = tf.cast(tf.size(x), tf.float64) / tf.cast(tf.size(scale), tf.float64)
            center = tf.reduce_mean(x, others, keepdims=True)
            spread = tf.reduce_mean(tf.square(x - center), others)
            saved = [tf.reshape(center, [-1]), spread]
            bessel = count / tf.maximum(count - 1, 1) if g.bessel_correction else 1
            averages = [saved[0], spread * bessel]
            factor = g.exponential_avg_factor
            if factor != 1:
                pairs = zip(given, averages, strict=True)
                averages = [old + factor * (new - old) for old, new in pairs]
            if tf.size(x) == 0:  # Means of nothing are NaN; so are the averages.
                averages = [tf.fill(tf.shape(scale), tf.constant(np.nan, tf.float64))] * 2
                saved = [tf.zeros_like(scale)] * 2
        rstd = tf.math.rsqrt(saved[1] + g.epsilon)
        y = (x - tf.reshape(saved[0], column)) * tf.reshape(scale * rstd, column)
        y += tf.reshape(offset, column)
        for other in g.side_input:
            y += tf.cast(other, tf.float64)
        vectors = _cast([*averages, *saved], *[g.scale] * 4)
        y = tf.cast(ACTIVATIONS[g.activation_mode](y), g.x.dtype)
        return [y, *vectors, tf.zeros([0], g.scale.dtype)]

    def FusedBatchNormGradGrad(self, **arguments: Any) -> list[Any]:
        """The gradient of the gradient with respect to y_backprop, x and scale."""
        g = _Given(arguments)
        grads = g.wide("x_backprop_grad", "scale_backprop_grad", "offset_backprop_grad")
        dy, x, scale, mean, variance = g.wide(
            "y_backprop", "x", "scale", "reserve_space_1", "reserve_space_2"
        )
        column, others = _per_channel(x, _axis(g.data_format))
        offset = tf.zeros_like(scale)
        with tf.GradientTape() as outer:
            outer.watch([dy, x, scale])
            with tf.GradientTape() as inner:
                inner.watch([x, scale, offset])
                if g.is_training:
                    center = tf.reduce_mean(x, others, keepdims=True)
                    spread = tf.reduce_mean(tf.square(x - center), others, keepdims=True)
                else:
                    center, spread = tf.reshape(mean, column), tf.reshape(variance, column)
                y = (x - center) / tf.sqrt(spread + g.epsilon) * tf.reshape(scale, column)
                y += tf.reshape(offset, column)
            first = inner.gradient(y, [x, scale, offset], output_gradients=dy)
        zero = tf.UnconnectedGradients.ZERO
        second = outer.gradient(first, [dy, x, scale], grads, unconnected_gradients=zero)
        return _cast(second, g.y_backprop, g.x, g.scale)

    def BatchNormStats(self, **arguments: Any) -> list[Any]:
        """count, mean, m2"""
        g = _Given(arguments)
        (x,) = g.wide("x")
        column, others = _per_channel(x, g.axis)
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), others)), tf.float64)
        if tf.size(x) == 0:
            count = tf.zeros([], tf.float64)
        mean = tf.math.divide_no_nan(tf.reduce_sum(x, others), count)
        m2 = tf.reduce_sum(tf.square(x - tf.reshape(mean, column)), others)
        return [count, mean, m2]

    def BatchNormElemt(self, **arguments: Any) -> list[Any]:
        """y"""
        g = _Given(arguments)
        y = _before_activation(g)
        for other in g.side_input:
            y += tf.cast(other, tf.float64)
        return [tf.cast(ACTIVATIONS[g.activation_mode](y), g.x.dtype)]

    def BatchNormBackwardReduce(self, **arguments: Any) -> list[Any]:
        """sum_dy, sum_dy_xmu, scale_backprop, offset_backprop"""
        g = _Given(arguments)
        column, others = _per_channel(g.x, g.axis)
        masked, x = tf.cast(_behind_activation(g), tf.float64), tf.cast(g.x, tf.float64)
        sum_dy = tf.reduce_sum(masked, others)
        sum_dy_xmu = tf.reduce_sum(masked * (x - tf.reshape(g.mean, column)), others)
        gradients = [sum_dy_xmu / tf.sqrt(g.variance + g.epsilon), sum_dy]
        return [sum_dy, sum_dy_xmu, *_cast(gradients, g.scale, g.scale)]

    def BatchNormBackwardElemt(self, **arguments: Any) -> list[Any]:
        """x_backprop, side_input_backprop"""
        g = _Given(arguments)
        masked = _behind_activation(g)
        column, _ = _per_channel(g.x, g.axis)
        x, scale = g.wide("x", "scale")
        rstd = 1 / tf.sqrt(g.variance + g.epsilon)
        slope = rstd**2 * g.sum_dy_xmu / g.count
        inside = tf.cast(masked, tf.float64) - tf.reshape(g.sum_dy / g.count, column)
        inside -= (x - tf.reshape(g.mean, column)) * tf.reshape(slope, column)
        x_backprop = inside * tf.reshape(scale * rstd, column)
        return [tf.cast(x_backprop, g.x.dtype), *[masked] * g.num_side_inputs]


class _Registered:
    """The gradient of TensorFlow's own op."""

    def FusedBatchNormGradGrad(self, **arguments: Any) -> list[Any]:
        """By TensorFlow's registered gradient of FusedBatchNormGradV3."""
        g = _Given(arguments)
        vectors = ("scale", "reserve_space_1", "reserve_space_2")
        given = {name: tf.cast(arguments[name], tf.float32) for name in vectors}
        attrs = {name: arguments[name] for name in ("epsilon", "data_format", "is_training")}
        arriving = (g.x_backprop_grad, g.scale_backprop_grad, g.offset_backprop_grad)
        watched = [g.y_backprop, g.x, given["scale"]]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=g.y_backprop, x=g.x, **given, reserve_space_3=tf.zeros([0]), **attrs
            )
        found = tape.gradient(outputs[:3], watched, _cast(list(arriving), *outputs[:3]))
        return _cast(found, g.y_backprop, g.x, g.scale)


elementary = _Elementary()
registered = _Registered()
