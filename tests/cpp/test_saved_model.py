"""SavedModels in a server that has TensorFlow's C API alone: with this library and without it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_bn_ops
from tf_bn_ops import rewrite

pytestmark = pytest.mark.long
PROGRAM = pathlib.Path(__file__).with_name("tensorflow_c.py")
SHAPE = (2, 4, 4, 3)
X = np.random.default_rng(0).normal(1, 2, SHAPE).astype(np.float32)


class Model(tf.Module):
    def __init__(self) -> None:
        self.scale = tf.Variable([0.5, 1.0, 2.0])
        self.offset = tf.Variable([0.0, 1.0, -1.0])

    @tf.function(input_signature=[tf.TensorSpec(SHAPE)])
    def infer(self, x: Any) -> dict[str, Any]:
        mean, variance = tf.constant([1.0, 0.5, 0.0]), tf.constant([4.0, 3.0, 2.0])
        return {
            "result": tf_bn_ops.fused_batch_norm(
                x, self.scale, self.offset, mean, variance, is_training=False
            ).y
        }

    @tf.function(input_signature=[tf.TensorSpec(SHAPE)])
    def differentiate(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf_bn_ops.fused_batch_norm(x, self.scale, self.offset).y))
        return {"result": tape.gradient(loss, self.scale)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[pathlib.Path, np.ndarray]]:
    """Name -> SavedModel and what Python computes."""
    folder, model = tmp_path_factory.mktemp("saved"), Model()
    options = tf.saved_model.SaveOptions(namespace_whitelist=["TfBnOps"])
    result = {}
    for name in ("infer", "differentiate"):
        function = getattr(model, name)
        holder = tf.Module()
        holder.model = [model.scale, model.offset]
        tf.saved_model.save(
            holder,
            str(folder / name),
            signatures=function,
            options=None if name == "infer" else options,
        )
        result[name] = folder / name, function(tf.constant(X))["result"].numpy()
    path, want = result["differentiate"]
    assert rewrite.to_builtin(path, folder / "builtin") == 2  # Forward op and gradient.
    result["builtin"] = folder / "builtin", want
    return result


def serve(
    path: pathlib.Path, *library: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    message = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    signature = message.meta_graphs[0].signature_def["serving_default"]
    names = signature.inputs["x"].name, signature.outputs["result"].name
    lib = tf.sysconfig.get_lib()
    command = [sys.executable, PROGRAM, "serve", lib, path, *names, ",".join(map(str, SHAPE))]
    variables = {**os.environ, "LD_LIBRARY_PATH": lib, **environment}
    return subprocess.run(
        [*command, *library], input=X.tobytes(), capture_output=True, env=variables, timeout=300
    )


def check(answer: subprocess.CompletedProcess[bytes], want: np.ndarray) -> None:
    assert answer.returncode == 0, answer.stderr
    got = np.array(answer.stdout.split(), np.float32)
    np.testing.assert_allclose(got, want.ravel(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["infer", "builtin"])
def test_inference_and_rewritten_models_need_no_library(saved, name):
    path, want = saved[name]
    check(serve(path), want)


def test_training_signatures_need_the_library(saved):
    path, want = saved["differentiate"]
    refused = serve(path)
    assert refused.returncode == 1
    assert b"Op type not registered 'TfBnOps>FusedBatchNorm" in refused.stderr
    library = tf_bn_ops.library_path()
    check(serve(path, library), want)
    check(serve(path, LD_PRELOAD=library), want)
