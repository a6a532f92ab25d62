"""The parts of synchronised batch normalization in float64 of TensorFlow's elementary ops, and with
its derivatives where a part is one: a reference for them (autodiff.py)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

ACTIVATIONS = {"Identity": tf.identity, "Relu": tf.nn.relu, "Relu6": tf.nn.relu6}


def _wide(*tensors: Any) -> list[Any]:
    return [tf.cast(tensor, tf.float64) for tensor in tensors]


def per_channel(x: Any, axis: int) -> tuple[Any, Any]:
    """(the shape that per-channel tensors broadcast in, the other dimensions)."""
    rank = tf.rank(x)
    axis = axis % rank
    shape = tf.tensor_scatter_nd_update(tf.ones([rank], tf.int32), [[axis]], [-1])
    return shape, tf.concat([tf.range(axis), tf.range(axis + 1, rank)], axis=0)


def masked_by(y_backprop: Any, y: Any, activation: str) -> Any:
    """y_backprop where the activation passes it, which y tells as well as what it is applied to; by
    selection, since a product with zero would keep a NaN."""
    passes = tf.ones_like(y, tf.bool) if activation == "Identity" else y > 0
    if activation == "Relu6":
        passes &= y < 6
    return tf.where(passes, y_backprop, tf.zeros_like(y_backprop))


class ElementaryParts:
    """Ops by their names and arguments."""

    def BatchNormStats(self, x: Any, axis: int) -> list[Any]:
        """count, mean, m2"""
        (x,) = _wide(x)
        column, others = per_channel(x, axis)
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), others)), tf.float64)
        if tf.size(x) == 0:
            count = tf.zeros([], tf.float64)
        mean = tf.math.divide_no_nan(tf.reduce_sum(x, others), count)
        m2 = tf.reduce_sum(tf.square(x - tf.reshape(mean, column)), others)
        return [count, mean, m2]

    def BatchNormElemt(
        self,
        x: Any,
        scale: Any,
        offset: Any,
        mean: Any,
        variance: Any,
        side_input: list[Any],
        epsilon: float,
        activation_mode: str,
        axis: int,
    ) -> list[Any]:
        """y"""
        y = self._before_activation(x, scale, offset, mean, variance, epsilon, axis)
        for other in _wide(*side_input):
            y += other
        return [tf.cast(ACTIVATIONS[activation_mode](y), x.dtype)]

    def _before_activation(
        self, x: Any, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: float, axis: int
    ) -> Any:
        column, _ = per_channel(x, axis)
        x, scale, offset = _wide(x, scale, offset)
        rstd = 1 / tf.sqrt(variance + epsilon)
        centered = x - tf.reshape(mean, column)
        return centered * tf.reshape(scale * rstd, column) + tf.reshape(offset, column)

    def _gradient(
        self,
        y_backprop: Any,
        x: Any,
        scale: Any,
        offset: Any,
        mean: Any,
        variance: Any,
        y: list[Any],
        epsilon: float,
        activation_mode: str,
        axis: int,
    ) -> Any:
        """y_backprop behind the activation, in its type."""
        given = y or [
            # In the type of y, in which the op looks at it.
            tf.cast(
                self._before_activation(x, scale, offset, mean, variance, epsilon, axis), x.dtype
            )
        ]
        return masked_by(y_backprop, given[0], activation_mode)

    def BatchNormBackwardReduce(
        self,
        y_backprop: Any,
        x: Any,
        scale: Any,
        offset: Any,
        mean: Any,
        variance: Any,
        y: list[Any],
        epsilon: float,
        activation_mode: str,
        axis: int,
    ) -> list[Any]:
        """sum_dy, sum_dy_xmu, scale_backprop, offset_backprop"""
        masked = self._gradient(
            y_backprop, x, scale, offset, mean, variance, y, epsilon, activation_mode, axis
        )
        column, others = per_channel(x, axis)
        masked, wide_x = _wide(masked, x)
        sum_dy = tf.reduce_sum(masked, others)
        sum_dy_xmu = tf.reduce_sum(masked * (wide_x - tf.reshape(mean, column)), others)
        gradients = (sum_dy_xmu / tf.sqrt(variance + epsilon), sum_dy)
        return [sum_dy, sum_dy_xmu, *(tf.cast(g, scale.dtype) for g in gradients)]

    def BatchNormBackwardElemt(
        self,
        y_backprop: Any,
        x: Any,
        scale: Any,
        offset: Any,
        mean: Any,
        variance: Any,
        sum_dy: Any,
        sum_dy_xmu: Any,
        count: Any,
        y: list[Any],
        epsilon: float,
        num_side_inputs: int,
        activation_mode: str,
        axis: int,
    ) -> list[Any]:
        """x_backprop, side_input_backprop"""
        masked = self._gradient(
            y_backprop, x, scale, offset, mean, variance, y, epsilon, activation_mode, axis
        )
        column, _ = per_channel(x, axis)
        wide, wide_x, wide_scale = _wide(masked, x, scale)
        rstd = 1 / tf.sqrt(variance + epsilon)
        slope = rstd**2 * sum_dy_xmu / count
        inside = wide - tf.reshape(sum_dy / count, column)
        inside -= (wide_x - tf.reshape(mean, column)) * tf.reshape(slope, column)
        x_backprop = inside * tf.reshape(wide_scale * rstd, column)
        return [tf.cast(x_backprop, x.dtype), *[masked] * num_side_inputs]
