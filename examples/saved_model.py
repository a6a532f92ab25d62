"""A SavedModel that trains: rewritten to this library's ops, run, and rewritten back.

python examples/saved_model.py
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import tf_bn_ops


class Model(tf.Module):
    """Learns a scale and an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([3]))
        self.offset = tf.Variable(tf.zeros([3]))

    @tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 3))])
    def train(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(x, self.scale, self.offset)
            loss = tf.reduce_mean(tf.square(y - tf.sin(x)))
        for variable, gradient in zip(
            (self.scale, self.offset),
            tape.gradient(loss, [self.scale, self.offset]),
            strict=True,
        ):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss}


def train(folder: pathlib.Path) -> list[str]:
    """Losses of the saved signature."""
    x = tf.random.stateless_normal([4, 8, 8, 3], seed=[1, 2])
    model = tf.saved_model.load(folder)
    return [f"{float(model.signatures['train'](x=x)['loss']):.6f}" for _ in range(4)]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    with tempfile.TemporaryDirectory() as name:
        builtin, shim, back = (pathlib.Path(name, each) for each in ("builtin", "shim", "back"))
        model = Model()
        tf.saved_model.save(model, builtin, signatures={"train": model.train})
        print("renamed nodes:", tf_bn_ops.rewrite.to_shim(builtin, shim))
        print("renamed back: ", tf_bn_ops.rewrite.to_builtin(shim, back))
        tf_bn_ops.load()  # Before a graph with the ops is loaded.
        for folder in (builtin, shim, back):
            print(f"{folder.name:8}", *train(folder))


if __name__ == "__main__":
    main()
