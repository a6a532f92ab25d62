"""BatchNormalization(synchronized=True): training over replicas is training on the whole batch.

The reference is the layer without synchronisation on one device, which has the whole batch.
"""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import replica_processes
import tensorflow as tf

from tf_bn_ops.keras import BatchNormalization, _fused_call, batch_norm_report, replace_batch_norm

# Some hundred roundings of the type that the steps compute in. With a mask, the reference is Keras'
# float32 formula, whose mean of 100 is off by 1e-5 and whose counts are 1e-7 too large.
TOLERANCE = 1e-4


def train(replicas: int, workers: int = 0) -> list[dict[str, Any]]:
    outputs = replica_processes.run("layer_program.py", str(replicas), workers=workers)
    return [json.loads(output) for output in outputs]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return train(1)[0]


def assert_same_training(got: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    for what in want:
        # The terms of a gradient are of size 1, and cancel.
        size = max(np.max(np.abs(want[what])), 1)
        np.testing.assert_allclose(got[what], want[what], rtol=0, atol=tolerance * size)


@pytest.mark.long
def test_two_devices_train_as_one_with_the_whole_batch(reference):
    (got,) = train(2)
    assert got.keys() == reference.keys()
    tolerances = {"mixed_float16": 2.0**-7, "mixed_bfloat16": 2.0**-4}
    for how, want in reference.items():
        assert_same_training(got[how], want, tolerances.get(how, TOLERANCE))


@pytest.mark.long
def test_two_workers_train_as_one_with_the_whole_batch(reference):
    for got in train(2, workers=2):
        assert "no samples" in got
        for how, values in got.items():
            assert_same_training(values, reference[how], TOLERANCE)


def test_a_layer_without_other_replicas_is_the_layer_without_synchronisation():
    x = tf.random.stateless_normal([4, 3, 3, 2], [1, 2])
    results = []
    for synchronized in (False, True):
        layer = BatchNormalization(synchronized=synchronized)
        results.append(layer(x, training=True).numpy().tobytes())
    assert results[0] == results[1]


def statistics_with_a_mask_of_weights(layer_class: Any, **kwargs: Any) -> list[np.ndarray]:
    """Of samples that count 0, a half, one and two times."""
    layer = layer_class(momentum=0.0, **kwargs)
    x = np.float32([[1, np.nan], [2, 4], [4, -3], [-3, 1]])
    if not kwargs:
        x[0] = 1  # Keras may multiply what a mask leaves out by 0.
    layer.build(x.shape)
    layer(x, training=True, mask=tf.constant([0.0, 0.5, 1.0, 2.0]))
    return [layer.moving_mean.numpy(), layer.moving_variance.numpy()]


def test_a_mask_of_weights_counts_as_in_keras():
    ours = statistics_with_a_mask_of_weights(BatchNormalization, synchronized=True)
    keras_own = statistics_with_a_mask_of_weights(keras.layers.BatchNormalization)
    np.testing.assert_allclose(ours, keras_own, rtol=1e-5)


def test_a_mask_of_weights_weighs_where_keras_weighs(monkeypatch):
    monkeypatch.setattr(_fused_call, "_keras_weighs", lambda: True)
    x, weights = np.float64([[2, 4], [4, -3], [-3, 1]]), np.float64([[0.5], [1], [2]])
    mean = (weights * x).sum(0) / weights.sum()
    variance = (weights * (x - mean) ** 2).sum(0) / weights.sum()
    got = statistics_with_a_mask_of_weights(BatchNormalization, synchronized=True)
    np.testing.assert_allclose(got, [mean, variance], rtol=1e-6)


@pytest.mark.parametrize("mask", [[False] * 4, [0.0] * 4])
def test_a_mask_without_samples_leaves_what_keras_leaves(mask):
    x = tf.random.stateless_normal([4, 3], [1, 2])
    results = []
    for layer in (BatchNormalization(synchronized=True), keras.layers.BatchNormalization()):
        layer.build(x.shape)
        y = layer(x, training=True, mask=tf.constant(mask))
        results.append([*y.numpy(), layer.moving_mean.numpy(), layer.moving_variance.numpy()])
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_synchronisation_is_part_of_config_report_and_replacement():
    inputs = keras.Input((4, 4, 3))
    output = keras.layers.BatchNormalization(synchronized=True, name="bn")(inputs)
    replaced = replace_batch_norm(keras.Model(inputs, output))
    layer = replaced.get_layer("bn")
    assert type(layer) is BatchNormalization
    assert layer.synchronized
    assert batch_norm_report(replaced).fused == ("bn",)
    assert BatchNormalization.from_config(layer.get_config()).synchronized


def test_inference_of_a_synchronized_layer_holds_tensorflows_ops_alone(tmp_path):
    inputs = keras.Input((4, 4, 3))
    model = keras.Model(inputs, BatchNormalization(synchronized=True, activation="relu")(inputs))
    model.export(str(tmp_path / "exported"), verbose=False)
    (message,) = (tmp_path / "exported").glob("saved_model.pb")
    assert b"TfBnOps" not in message.read_bytes()
