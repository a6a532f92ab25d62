"""What test_aarch64_ops.py runs in TensorFlow under the emulator beside the conformance cases, a
JSON object of what it found: python in_tensorflow.py."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.conformance.models import gather_stats
from tf_bn_ops.harness import c_abi


def layer() -> dict[str, Any]:
    """The greatest difference of the Keras layer from Keras' own in a step of training, of the
    output, the gradients and the moving statistics, each by its greatest number."""
    x = tf.constant(np.random.default_rng(0).normal(1, 2, (8, 5, 5, 6)), tf.float32)
    found = []
    for kind in (tf_bn_ops.keras.BatchNormalization, keras.layers.BatchNormalization):
        one = kind()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = one(x, training=True)
            loss = tf.reduce_sum(y * tf.sin(y))
        gradients = tape.gradient(loss, [x, *one.trainable_variables])
        arrays = [y, *gradients, *one.non_trainable_variables]
        found.append([np.asarray(array, np.float64) for array in arrays])
    ratios = (np.abs(a - b).max() / np.abs(b).max() for a, b in zip(*found, strict=True))
    return {"layer": float(max(ratios))}


def compiled() -> dict[str, Any]:
    """Whether an op that XLA compiles is bitwise the op that it does not."""
    rng = np.random.default_rng(1)
    x, dy = (tf.constant(rng.normal(size=(4, 3, 3, 5)), tf.float32) for _ in range(2))
    v = tf.constant(rng.uniform(0.5, 2, 5), tf.float32)

    def op() -> Any:
        return tf_bn_ops.fused_batch_norm_grad(dy, x, v, v, v)

    eager, xla = op(), tf.function(op, jit_compile=True)()
    return {"xla": all(np.array_equal(a, b) for a, b in zip(eager[:3], xla[:3], strict=True))}


def statistics_of_replicas() -> dict[str, Any]:
    """Whether the one op that has no conformance case gives what the C ABI does."""
    parts = gather_stats.random_parts(5, 7, 1e3, 2)
    op = tf_bn_ops.raw_ops.BatchNormGatherStats
    got = op(counts=parts.count, means=parts.mean, m2s=parts.m2)
    want = c_abi.gather_stats(parts)
    return {"gather_stats": all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))}


if __name__ == "__main__":
    print(json.dumps({**layer(), **compiled(), **statistics_of_replicas()}))
