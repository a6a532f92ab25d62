"""Second derivatives through batch normalization: Keras' are wrong, this library's are right.

    python examples/keras_second_derivatives.py

Keras 3 computes its moments with `tf.nn.moments`, which takes the mean inside the variance for a
constant (`stop_gradient`). The first derivative does not depend on it, because the deviations from
the mean sum to zero; the second does. Wherever a gradient is differentiated again (gradient
penalties, Hessian-vector products, meta-learning) the result is off.

The program differentiates a gradient penalty by the kernel before the normalization, and judges the
results by central differences of the penalty itself. The penalty holds first derivatives only, in
which Keras is right: its own second derivative disagrees with its own first one.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_bn_ops.keras

_STEP = 1e-4


def penalty(normalization: Any, x: Any, kernel: Any, weights: Any) -> Any:
    """(|d critic / d x| - 1)^2 of a critic with one normalized convolution."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = normalization(tf.nn.conv2d(x, kernel, 1, "SAME"), training=True)
        critic = tf.reduce_sum(tf.tanh(y) * weights, [1, 2, 3])
    gradient = tape.gradient(critic, x)
    norm = tf.sqrt(tf.reduce_sum(tf.square(gradient), [1, 2, 3]))
    return tf.reduce_mean(tf.square(norm - 1))


def kernel_gradient(normalization: Any, x: Any, kernel: Any, weights: Any) -> np.ndarray:
    """The penalty's gradient by the kernel: a second derivative."""
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        value = penalty(normalization, x, kernel, weights)
    return np.float64(tape.gradient(value, kernel))


def central_differences(normalization: Any, x: Any, kernel: Any, weights: Any) -> np.ndarray:
    """The same from values of the penalty alone, entry by entry."""
    result = np.empty(kernel.shape)
    for index in np.ndindex(*kernel.shape):
        step = np.zeros(kernel.shape)
        step[index] = _STEP
        above = penalty(normalization, x, kernel + step, weights)
        below = penalty(normalization, x, kernel - step, weights)
        result[index] = (above - below) / (2 * _STEP)
    return result


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    rng = np.random.default_rng(0)
    x = tf.constant(rng.uniform(size=(4, 4, 4, 2)))  # images, brightness 0 to 1
    kernel = tf.constant(rng.normal(size=(3, 3, 2, 4)))
    weights = tf.constant(rng.normal(size=(4, 4, 4, 4)))
    layer = keras.layers.BatchNormalization
    # In float64, so that the differences of the penalty are exact to some 1e-7.
    truth = central_differences(layer(dtype="float64"), x, kernel, weights)
    largest = np.max(np.abs(truth))
    in_float32 = [tf.cast(tensor, tf.float32) for tensor in (x, kernel, weights)]
    found = {
        "Keras, float64": kernel_gradient(layer(dtype="float64"), x, kernel, weights),
        "Keras, float32": kernel_gradient(layer(), *in_float32),
        "tf_bn_ops, float32": kernel_gradient(tf_bn_ops.keras.BatchNormalization(), *in_float32),
    }
    print(f"gradient of the penalty by the kernel, largest entry {largest:.3f}; differs from the")
    print("central differences of the penalty, relative to that entry, by at most")
    for name, gradient in found.items():
        print(f"{name:>20}: {np.max(np.abs(gradient - truth)) / largest:.1e}")


if __name__ == "__main__":
    main()
