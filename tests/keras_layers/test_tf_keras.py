"""Keras 2, as the package tf_keras: its layers call the ops that the override serves.

Promised: tools for Keras 3 refuse a tf_keras model with the line that serves it.

In processes of their own, with the package itself; requirements/without_dependencies.txt has it.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess

import forked
import pytest
from build_helpers import environment

from tf_bn_ops import _loader

ROOT = pathlib.Path(_loader.__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None,
    reason="needs tf_keras (requirements/without_dependencies.txt)",
)

# Both of tf_keras' layers on fused ops, at a mean of x that keeps nothing from view.
PROGRAM = """
import json
import numpy as np, tensorflow as tf, tf_keras
import tf_bn_ops, tf_bn_ops.keras

rng = np.random.default_rng(0)
shifted = (rng.normal(size=(32, 8, 8, 4)) + 1e5).astype(np.float32)
shifted_rows = (rng.normal(size=(64, 16)) + 1e5).astype(np.float32)

def normalized(data, axes):
    data = data.astype(np.float64)
    return (data - data.mean(axes, keepdims=True)) / np.sqrt(data.var(axes, keepdims=True) + 1e-3)

def results():
    layer = tf_keras.layers.BatchNormalization()
    y = layer(shifted, training=True)
    rows = tf_keras.layers.LayerNormalization()(shifted_rows)
    return {
        "fused": bool(layer.fused),
        "batch error": float(np.abs(y - normalized(shifted, (0, 1, 2))).max()),
        "layer error": float(np.abs(rows - normalized(shifted_rows, (1,))).max()),
    }

try:
    tf_bn_ops.keras.replace_batch_norm(tf_keras.Sequential())
except TypeError as error:
    refusal = str(error)
before = results()
tf_bn_ops.enable(keras=False, fuse=False)
print(json.dumps({"refusal": refusal, "before": before, "after": results()}))
"""

# Models of symbolic tensors, in both modes: results, what training changes, and a clone's results.
SYMBOLIC = """
import itertools
import numpy as np, tensorflow as tf, tf_keras
import tf_bn_ops

x = np.random.default_rng(0).normal(1, 2, (6, 4, 4, 3)).astype("float32")
one, mean = tf.ones(3), tf.constant([0.5, 1.0, 1.5])
for training, dtype, data_format in itertools.product(
    (True, False), ("float32", "float16"), ("NHWC", "NCHW")
):
    def norm(t, side, scale=one):
        t = tf.cast(t, dtype)
        if data_format == "NCHW":
            t, side = (tf.transpose(each, [0, 3, 1, 2]) for each in (t, side))
        given = {} if training else {"mean": mean, "variance": one, "epsilon": 1e-6}
        y = tf_bn_ops.fused_batch_norm(
            t, scale, mean, **given, is_training=training, activation="silu",
            data_format=data_format, side_input=tf.cast(side, dtype),
        ).y
        return tf.cast(y, tf.float32)

    i = tf_keras.Input([4, 4, 3])
    t = tf_keras.layers.Conv2D(3, 1, kernel_initializer="ones")(i)
    models = [tf_keras.Model(i, norm(t, i))]
    models.append(tf_keras.models.clone_model(models[0]))
    models[1].set_weights(models[0].get_weights())
    unit = 1e-5 if dtype == "float32" else 1e-2
    for model in models:
        want = norm(tf.constant(x.sum(-1, keepdims=True) * np.ones(3, "float32")), tf.constant(x))
        np.testing.assert_allclose(model.predict(x, verbose=0), want, unit, unit)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(model(x)))
        assert np.abs(tape.gradient(loss, model.trainable_weights[0])).max() > 1e-3
    assert norm(i, i, tf_keras.Input([], 3)).shape.rank == 4
"""


def run(program: str, **changes: str) -> subprocess.CompletedProcess[str]:
    variables = {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = forked.run(program, env=environment(**variables, **changes))
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.mark.long
def test_the_override_serves_its_layers_and_nothing_else_does():
    """At a mean of 1e5 TensorFlow's kernels err in the third digit or before, ours by rounding.

    Promise: Keras 2 runs on replaced kernels.
    """
    told = json.loads(run(PROGRAM, TF_ENABLE_ONEDNN_OPTS="1").stdout.splitlines()[-1])
    assert "tf_bn_ops.enable()" in told["refusal"] and "\n" not in told["refusal"]
    before, after = told["before"], told["after"]
    assert before["fused"] and after["fused"]
    for error in ("batch error", "layer error"):
        assert before[error] > 1e-3 and after[error] < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("value", ["keras", "1"])
def test_the_switch_for_keras_3_says_that_tf_keras_has_another(value):
    program = "import tf_bn_ops, tensorflow as tf; tf.keras.layers.BatchNormalization()"
    sentences = re.findall(
        r"^TF_BN_OPS=keras .*$", run(program, TF_BN_OPS=value).stderr, re.MULTILINE
    )
    assert len(sentences) == (value == "keras")
    assert all("TF_BN_OPS=kernels" in sentence for sentence in sentences)


@pytest.mark.long
def test_symbolic_tensors_make_layers_of_the_function():
    run(SYMBOLIC)
