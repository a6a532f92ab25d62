"""Batch norm of columns that are not standardized: a year, a latitude, a price.

    python examples/raw_columns.py

Prints the largest error of y and the relative error of the gradients by x and by scale, against
float64, of Keras' synchronized layer, of TensorFlow's op as XLA compiles it, and of this library.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_bn_ops

ROWS, EPSILON = 4096, 1e-3
# Name -> (mean, deviation).
COLUMNS = {"year": (2015.0, 5.0), "latitude": (48.1, 0.01), "price": (1e4, 1.0)}
# What an error of this library may be.
LARGEST = 1e-5

# A normalization of x, [ROWS, 1], by a scale, [1].
Normalize = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def right(x: np.ndarray, y_backprop: np.ndarray) -> list[np.ndarray]:
    """y and the gradients by x and scale, in float64."""
    x, dy = x.astype(np.float64), y_backprop.astype(np.float64)
    rstd = 1 / np.sqrt(x.var() + np.float64(np.float32(EPSILON)))
    xhat = (x - x.mean()) * rstd
    return [xhat, rstd * (dy - dy.mean() - xhat * (dy * xhat).mean()), (dy * xhat).sum(0)]


def of_keras(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    layer = keras.layers.BatchNormalization(epsilon=EPSILON, center=False, synchronized=True)
    layer.build(x.shape)
    mean, variance = layer._moments(x, None)
    return tf.nn.batch_normalization(x, mean, variance, None, scale, EPSILON)


def of_tensorflow(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    image = x[:, tf.newaxis, tf.newaxis]
    y, *_ = tf.compat.v1.nn.fused_batch_norm(image, scale, tf.zeros(1), epsilon=EPSILON)
    return tf.reshape(y, x.shape)


def of_this_library(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    image = x[:, tf.newaxis, tf.newaxis]
    y = tf_bn_ops.fused_batch_norm(image, scale, tf.zeros(1), epsilon=EPSILON).y
    return tf.reshape(y, x.shape)


def errors(normalize: Normalize, x: np.ndarray, y_backprop: np.ndarray) -> list[float]:
    """The largest error of y, and those of the gradients over their largest element."""
    inputs = tf.constant(x), tf.ones(1)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = normalize(*inputs)
    got = [y, *tape.gradient(y, inputs, tf.constant(y_backprop))]
    found = []
    for a, b in zip(got, right(x, y_backprop), strict=True):
        largest = np.max(np.abs(np.asarray(a, np.float64) - b))
        found.append(float(largest / (np.max(np.abs(b)) if found else 1)))
    return found


def main() -> int:
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    libraries: dict[str, Any] = {
        "Keras, synchronized": of_keras,
        "TensorFlow, jit_compile": tf.function(of_tensorflow, jit_compile=True),
        "tf_bn_ops": of_this_library,
    }
    print("| column | " + " | ".join(libraries) + " |")
    print("|---|" + "---|" * len(libraries))
    rng = np.random.default_rng(0)
    worst = 0.0
    for name, (mean, deviation) in COLUMNS.items():
        x = rng.normal(mean, deviation, (ROWS, 1)).astype(np.float32)
        y_backprop = rng.normal(1, 1, (ROWS, 1)).astype(np.float32)
        found = [errors(normalize, x, y_backprop) for normalize in libraries.values()]
        worst = max(worst, *found[-1])
        cells = [", ".join(f"{error:.1g}" for error in each) for each in found]
        print(f"| {name} {mean:g} ± {deviation:g} | " + " | ".join(cells) + " |")
    if worst > LARGEST:
        print(f"an error of tf_bn_ops is {worst:.1g}, it may be {LARGEST:g}", file=sys.stderr)
    return int(worst > LARGEST)


if __name__ == "__main__":
    sys.exit(main())
