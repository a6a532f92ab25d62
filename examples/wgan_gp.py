"""A step of WGAN-GP: the penalty on the critic's gradient differentiates batch normalization twice.

    python examples/wgan_gp.py

Runs the step with TensorFlow's normalization and with this library's, and compares the gradients by
the critic's weights.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import tf_bn_ops

_IMAGES = (16, 16, 16, 3)
_CHANNELS = 32
_PENALTY = 10.0


def critic_step(normalize: Callable[..., Any], weights: list[Any], real: Any, fake: Any) -> Any:
    """Gradient of the critic's loss by its weights."""
    kernel, scale, offset, dense = weights

    def critic(images: Any) -> Any:
        x = tf.nn.conv2d(images, kernel, 2, "SAME")
        x, _, _ = normalize(x, scale, offset, epsilon=1e-3)
        return tf.reduce_sum(tf.tanh(x) * dense, [1, 2, 3])

    with tf.GradientTape() as tape:
        tape.watch(weights)
        mix = tf.random.stateless_uniform([len(real), 1, 1, 1], seed=[7, 7])
        between = real + mix * (fake - real)
        with tf.GradientTape() as inner:
            inner.watch(between)
            score = critic(between)
        slopes = tf.norm(tf.reshape(inner.gradient(score, between), [len(real), -1]), axis=1)
        loss = tf.reduce_mean(critic(fake) - critic(real))
        loss += _PENALTY * tf.reduce_mean(tf.square(slopes - 1))
    return tape.gradient(loss, weights)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    real, fake = (tf.random.stateless_normal(_IMAGES, seed=[i, 0]) for i in range(2))
    weights = [
        0.1 * tf.random.stateless_normal([3, 3, 3, _CHANNELS], seed=[2, 0]),
        tf.ones([_CHANNELS]),
        tf.zeros([_CHANNELS]),
        0.1 * tf.random.stateless_normal([_CHANNELS], seed=[3, 0]),
    ]
    step = tf.function(critic_step, jit_compile=False)
    builtin = step(tf.compat.v1.nn.fused_batch_norm, weights, real, fake)
    shim = step(tf_bn_ops.fused_batch_norm, weights, real, fake)
    for name, want, got in zip(("kernel", "scale", "offset", "dense"), builtin, shim, strict=True):
        difference = float(tf.reduce_max(tf.abs(got - want)) / tf.reduce_max(tf.abs(want) + 1e-6))
        print(f"gradient by {name:6}: largest relative difference {difference:.1e}")


if __name__ == "__main__":
    main()
