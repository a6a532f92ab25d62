"""Batch norm of columns that are not standardized: a year, a latitude, a price.

    python examples/raw_columns.py [--paths=other]

Prints the largest error of y, and of the gradients by x and by scale relative to their largest
element, against float64: of Keras' layer, of TensorFlow's op and of this library; or, with
`--paths=other`, of Keras' layer with `synchronized=True` and of TensorFlow's op compiled by XLA.
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
RESULTS = ("y", "gradient by x", "gradient by scale")
# What an error of this library may be.
LARGEST = 1e-5


def right(x: np.ndarray, y_backprop: np.ndarray) -> list[np.ndarray]:
    """y and the gradients by x and scale, in float64."""
    x, dy = x.astype(np.float64), y_backprop.astype(np.float64)
    rstd = 1 / np.sqrt(x.var() + np.float64(np.float32(EPSILON)))
    xhat = (x - x.mean()) * rstd
    return [xhat, rstd * (dy - dy.mean() - xhat * (dy * xhat).mean()), (dy * xhat).sum(0)]


def by_layer(**arguments: Any) -> Callable[[Any, Any], Any]:
    def normalize(x: Any, scale: Any) -> Any:
        layer = keras.layers.BatchNormalization(epsilon=EPSILON, center=False, **arguments)
        layer.build(x.shape)
        layer.gamma = scale  # Which the tape watches.
        return layer(x, training=True)

    return normalize


def by_op(op: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def normalize(x: Any, scale: Any) -> Any:
        y, *_ = op(x[:, tf.newaxis, tf.newaxis], scale, tf.zeros(1), epsilon=EPSILON)
        return tf.reshape(y, x.shape)

    return normalize


def errors(normalize: Any, x: np.ndarray, y_backprop: np.ndarray) -> list[float]:
    """The largest error of each of RESULTS; of a gradient relative to its largest element."""
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--paths", choices=["default", "other"], default="default")
    their_op = by_op(tf.compat.v1.nn.fused_batch_norm)
    libraries: dict[str, Any] = {"Keras": by_layer(), "TensorFlow": their_op}
    if parser.parse_args().paths == "other":
        libraries = {
            "Keras, synchronized": by_layer(synchronized=True),
            "TensorFlow, jit_compile": tf.function(their_op, jit_compile=True),
        }
    libraries["tf_bn_ops"] = by_op(tf_bn_ops.fused_batch_norm)
    print("| column | error of | " + " | ".join(libraries) + " |")
    print("|---|---|" + "---:|" * len(libraries))
    rng, worst = np.random.default_rng(0), 0.0
    for name, (mean, deviation) in COLUMNS.items():
        x = rng.normal(mean, deviation, (ROWS, 1)).astype(np.float32)
        y_backprop = rng.normal(1, 1, (ROWS, 1)).astype(np.float32)
        found = [errors(normalize, x, y_backprop) for normalize in libraries.values()]
        worst = max(worst, *found[-1])
        for result, of_each in zip(RESULTS, zip(*found, strict=True), strict=True):
            cells = " | ".join(f"{float(f'{error:.1g}'):g}" for error in of_each)
            print(f"| {name} {mean:g} ± {deviation:g} | {result} | {cells} |")
    if worst > LARGEST:
        print(f"an error of tf_bn_ops is {worst:.1g}, it may be {LARGEST:g}", file=sys.stderr)
    return int(worst > LARGEST)


if __name__ == "__main__":
    sys.exit(main())
