"""SavedModels of functions that call `fused_batch_norm`: where they load, and what they compute."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops

SHAPE = (2, 4, 4, 3)
X = np.random.default_rng(0).normal(1, 2, SHAPE).astype(np.float32)

# Loads a SavedModel where this library is not; calls a signature, and differentiates the function.
WITHOUT_THE_LIBRARY = """
import sys
import numpy as np, tensorflow as tf

sys.modules["tf_bn_ops"] = None
folder, signature = sys.argv[1:3]
x = tf.constant(np.load(folder + "/x.npy"))
model = tf.saved_model.load(folder)
(result,) = model.signatures[signature](x).values()
np.save(folder + "/result.npy", result)
if hasattr(model, signature):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.sin(getattr(model, signature)(x)))
    np.save(folder + "/gradient.npy", tape.gradient(loss, x))
"""


def run_without_the_library(path: pathlib.Path, signature: str) -> subprocess.CompletedProcess[str]:
    np.save(path / "x.npy", X)
    environment = {**os.environ, "PYTHONPATH": ""}
    return forked.run(WITHOUT_THE_LIBRARY, path, signature, env=environment, cwd=path)


class Layer(tf.Module):
    def __init__(self) -> None:
        self.scale = tf.Variable([0.5, 1.0, 2.0])
        self.offset = tf.Variable([0.0, 1.0, -1.0])
        self.mean = tf.Variable([1.0, 0.5, 0.0], trainable=False)
        self.variance = tf.Variable([4.0, 3.0, 2.0], trainable=False)


class Inference(Layer):
    @tf.function(input_signature=[tf.TensorSpec(SHAPE)])
    def frozen(self, x: Any) -> Any:
        return tf_bn_ops.fused_batch_norm(
            x, self.scale, self.offset, self.mean, self.variance, is_training=False
        ).y


class Training(Layer):
    @tf.function(input_signature=[tf.TensorSpec(SHAPE)])
    def normalize(self, x: Any) -> Any:
        y, mean, variance = tf_bn_ops.fused_batch_norm(x, self.scale, self.offset)
        return y + tf.stop_gradient(mean + variance)

    @tf.function(input_signature=[tf.TensorSpec(SHAPE)])
    def differentiate(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf_bn_ops.fused_batch_norm(x, self.scale, self.offset).y))
        return tape.gradient(loss, self.scale)


def gradient(function: Any) -> Any:
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.sin(function(x)))
    return tape.gradient(loss, x)


def check(run: subprocess.CompletedProcess[str], file: pathlib.Path, want: Any) -> None:
    assert run.returncode == 0, run.stderr
    np.testing.assert_allclose(np.load(file), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("used_before", [False, True], ids=["fresh", "differentiated"])
def test_inference_loads_anywhere(tmp_path, used_before):
    """Traced while it is saved, or earlier; with custom gradients saved, the default."""
    model = Inference()
    if used_before:
        gradient(model.frozen)
    tf.saved_model.save(model, str(tmp_path), signatures={"frozen": model.frozen})
    assert b"TfBnOps" not in (tmp_path / "saved_model.pb").read_bytes()
    run = run_without_the_library(tmp_path, "frozen")
    check(run, tmp_path / "result.npy", model.frozen(tf.constant(X)))
    # TensorFlow's gradient, of another kernel.
    check(run, tmp_path / "gradient.npy", gradient(model.frozen))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "op"), [("normalize", "FusedBatchNormV3"), ("differentiate", "FusedBatchNormGradV3")]
)
def test_training_signatures_keep_the_ops(tmp_path, name, op):
    """They load where the library is loaded, and anywhere once they are rewritten."""
    model = Training()
    function = getattr(model, name)
    want = function(tf.constant(X))
    tf.saved_model.save(
        model,
        str(tmp_path / "ours"),
        signatures={name: function},
        options=tf.saved_model.SaveOptions(namespace_whitelist=["TfBnOps"]),
    )
    assert f"TfBnOps>{op}".encode() in (tmp_path / "ours" / "saved_model.pb").read_bytes()
    refused = run_without_the_library(tmp_path / "ours", name)
    assert refused.returncode != 0
    assert "Op type not registered 'TfBnOps>FusedBatchNorm" in refused.stderr
    loaded = tf.saved_model.load(str(tmp_path / "ours"))
    np.testing.assert_array_equal(getattr(loaded, name)(tf.constant(X)), want)
    if name == "normalize":
        np.testing.assert_array_equal(gradient(loaded.normalize), gradient(model.normalize))
    tf_bn_ops.rewrite.to_builtin(tmp_path / "ours", tmp_path / "builtin")
    run = run_without_the_library(tmp_path / "builtin", name)
    check(run, tmp_path / "builtin" / "result.npy", want)
