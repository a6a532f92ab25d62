"""Keras 2, as the package tf_keras: its layers call the ops that the override serves.

In processes of their own, with the package itself; requirements/without_dependencies.txt has it.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
from typing import Any

import forked
import pytest
from build_helpers import environment

from tf_bn_ops import _loader

ROOT = pathlib.Path(_loader.__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None,
    reason="needs tf_keras (requirements/without_dependencies.txt)",
)

# Convolution, both of tf_keras' layers on fused ops, at a mean of x that keeps nothing from view.
PROGRAM = """
import json
import numpy as np, tensorflow as tf, tf_keras
import tf_bn_ops, tf_bn_ops.keras

rng = np.random.default_rng(0)
x, labels = rng.normal(size=(16, 8, 8, 3)).astype(np.float32), np.arange(16) % 2
shifted = (rng.normal(size=(32, 8, 8, 4)) + 1e5).astype(np.float32)
shifted_rows = (rng.normal(size=(64, 16)) + 1e5).astype(np.float32)

def model(**arguments):
    tf_keras.utils.set_random_seed(1)
    return tf_keras.Sequential([
        tf_keras.Input((8, 8, 3)),
        tf_keras.layers.Conv2D(4, 3),
        tf_keras.layers.BatchNormalization(**arguments),
        tf_keras.layers.ReLU(),
        tf_keras.layers.Flatten(),
        tf_keras.layers.LayerNormalization(),
        tf_keras.layers.Dense(2),
    ])

def normalized(data, axes):
    data = data.astype(np.float64)
    return (data - data.mean(axes, keepdims=True)) / np.sqrt(data.var(axes, keepdims=True) + 1e-3)

def results(**arguments):
    trained = model(**arguments)
    trained.compile(tf_keras.optimizers.SGD(0.1), tf_keras.losses.SparseCategoricalCrossentropy(
        from_logits=True))
    history = trained.fit(x, labels, batch_size=8, epochs=3, shuffle=False, verbose=0)
    everything = [*trained.get_weights(), trained.predict(x, verbose=0), history.history["loss"]]
    y = tf_keras.layers.BatchNormalization(**arguments)(shifted, training=True)
    rows = tf_keras.layers.LayerNormalization()(shifted_rows)
    return {
        "fused": bool(trained.layers[1].fused),
        "trained": np.concatenate([np.ravel(value) for value in everything]).tolist(),
        "batch error": float(np.abs(y - normalized(shifted, (0, 1, 2))).max()),
        "layer error": float(np.abs(rows - normalized(shifted_rows, (1,))).max()),
    }

refusals = {}
for function in ("replace_batch_norm", "restore_batch_norm", "batch_norm_report"):
    for wrong in (model(), tf_keras.Model(), tf_keras.layers.BatchNormalization()):
        try:
            getattr(tf_bn_ops.keras, function)(wrong)
        except TypeError as error:
            refusals[f"{function} {type(wrong).__name__}"] = str(error)
ways = {"default": {}, "fused": {"fused": True}}
before = {name: results(**arguments) for name, arguments in ways.items()}
tf_bn_ops.enable(keras=False, fuse=False)
after = {name: results(**arguments) for name, arguments in ways.items()}
print(json.dumps({"refusals": refusals, "before": before, "after": after}))
"""


def run(program: str, **changes: str) -> subprocess.CompletedProcess[str]:
    result = forked.run(
        program,
        env=environment(PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3", **changes),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module", params=["0", "1"], ids=["Eigen", "oneDNN"])
def told(request) -> dict[str, Any]:
    """What the program found, with oneDNN off and on."""
    variables = {"TF_USE_LEGACY_KERAS": "1", "TF_ENABLE_ONEDNN_OPTS": request.param}
    return json.loads(run(PROGRAM, **variables).stdout.splitlines()[-1])


@pytest.mark.long
def test_models_and_layers_are_refused_with_the_line_that_serves_them(told):
    assert len(told["refusals"]) == 3 * 3
    for sentence in told["refusals"].values():
        assert "tf_bn_ops.enable()" in sentence
        assert "\n" not in sentence and ". " not in sentence


@pytest.mark.long
@pytest.mark.parametrize("way", ["default", "fused"])
def test_training_on_the_override_is_training_on_tensorflows_kernels(told, way):
    """Weights, statistics, predictions and losses after three epochs; within float32 rounding."""
    before, after = told["before"][way], told["after"][way]
    assert before["fused"] and after["fused"]
    assert after["trained"] == pytest.approx(before["trained"], rel=1e-4, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("layer", ["batch", "layer"])
@pytest.mark.parametrize("way", ["default", "fused"])
def test_the_layers_run_on_our_kernels(told, way, layer):
    """At a mean of 1e5 TensorFlow's kernels are off in the first digits, ours by rounding."""
    assert told["before"][way][f"{layer} error"] > 1e-2
    assert told["after"][way][f"{layer} error"] < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("value", ["keras", "1"])
def test_the_switch_for_keras_3_says_that_tf_keras_has_another(value):
    variables = {"TF_USE_LEGACY_KERAS": "1", "TF_BN_OPS": value}
    program = "import tf_bn_ops, tensorflow as tf; tf.keras.layers.BatchNormalization()"
    sentences = re.findall(r"^TF_BN_OPS=keras .*$", run(program, **variables).stderr, re.MULTILINE)
    assert len(sentences) == (value == "keras")
    assert all("TF_BN_OPS=kernels" in sentence for sentence in sentences)
