"""enable(keras=True): Keras' own layer on the fused ops, and back.

Promised: derived classes are fused as far as they use the parent's call and moments; masks,
`renorm` and other backends take Keras' path.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_keras import is_fused

import tf_bn_ops
from tf_bn_ops import _loader
from tf_bn_ops.keras import BatchNormalization, batch_norm_report, disable

KERAS_LAYER: Any = keras.layers.BatchNormalization
KERAS_CALL = KERAS_LAYER.call
enable = functools.partial(tf_bn_ops.enable, kernels=False, fuse=False)
# An argument that Keras 3.12, the last for Python 3.10, does not have.
HAS_RENORM = "renorm" in inspect.signature(KERAS_LAYER.__init__).parameters


@pytest.fixture
def enabled():
    enable()
    yield
    disable()
    assert KERAS_LAYER.call is KERAS_CALL


def data(shape=(6, 4, 5, 3), dtype="float32"):
    return tf.cast(np.random.default_rng(0).normal(1, 2, shape), dtype)


def compiles(layer, jit_compile):
    """Whether Keras has XLA compile a model of the layer, beside a GPU."""
    model = keras.Sequential([keras.Input((4, 5, 3)), layer])
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    with mock.patch.object(tf.config, "list_physical_devices", lambda *_: [gpu]):
        model.compile(jit_compile=jit_compile)
    return model.jit_compile


def test_on_and_off():
    """Promise: `enable(keras=True)` reaches layers that exist, and disable() undoes it; XLA
    compiles models of theirs by `jit_compile=True` alone."""
    before, x = KERAS_LAYER(), data()
    assert not is_fused(before, x, training=True)
    assert enable() == enable() == tf_bn_ops.Enabled(keras=True)
    try:
        after = KERAS_LAYER()
        for layer in (before, after, tf.keras.layers.BatchNormalization()):
            assert is_fused(layer, x, training=True)
            assert compiles(layer, jit_compile=True)
            assert not compiles(layer, jit_compile="auto")
    finally:
        disable()
    disable()
    for layer in (before, after):
        assert not is_fused(layer, x, training=True)
        assert compiles(layer, jit_compile="auto")


class OwnMoments(KERAS_LAYER):
    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        return mean + 1, variance


class OwnCall(KERAS_LAYER):
    def call(self, inputs, training=None, mask=None):
        return super().call(2 * inputs, training=training, mask=mask)


class OwnShape(KERAS_LAYER):
    """Weights of another shape than the op takes."""

    def build(self, shape):
        super().build(shape)
        self.gamma = self.add_weight(shape=(1, 1, 1, shape[-1]), name="wide", initializer="ones")


@pytest.mark.usefixtures("enabled")
def test_elsewhere_keras_path_is_taken():
    x = data()
    assert is_fused(OwnCall(), x, training=True)
    mask = tf.constant(np.arange(6 * 4 * 5).reshape(6, 4, 5) % 3 > 0)
    of_tensor = KERAS_LAYER()
    of_tensor.momentum = tf.constant(0.75)
    for layer, kwargs in (
        *((OwnMoments(), {}), (OwnShape(), {}), (of_tensor, {})),
        *([(KERAS_LAYER(renorm=True), {})] if HAS_RENORM else []),
        *((kind(), {"mask": mask}) for kind in (KERAS_LAYER, BatchNormalization)),
    ):
        assert not is_fused(layer, x, training=True, **kwargs)
        state, results = layer.get_weights(), []
        for call in (functools.partial(KERAS_CALL, layer), layer):
            layer.set_weights(state)
            results.append([call(x, training=True, **kwargs), *layer.get_weights()])
        for got, want in zip(*results, strict=True):
            np.testing.assert_array_equal(got, want)
    norms = [KERAS_LAYER(name="a"), OwnCall(name="b"), OwnMoments(name="own")]
    report = batch_norm_report(keras.Sequential([keras.Input((4, 5)), *norms]))
    assert report.fused == ("a", "b")
    assert report.unfused == {"own": "computes moments in a method of its own"}


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("has_kernels", [True, False])
def test_below_xla(has_kernels, monkeypatch):
    """Training is on our op, or on Keras' path without its kernels; inference on Keras' path.

    XLA's variance of TensorFlow's op is E[x^2] - E[x]^2: at mean 1000 it is all rounding.
    """
    tf_bn_ops.load()
    if not has_kernels:
        monkeypatch.setattr(_loader, "has_xla_kernels", lambda: False)
    elif not _loader.has_xla_kernels():
        pytest.skip("built without kernels for XLA")
    layer = KERAS_LAYER()
    x = data((32, 8, 8, 3)) + 1000
    compiled = tf.function(lambda x, t: layer(x, training=t), jit_compile=True)
    y = compiled(x, True)
    np.testing.assert_allclose(np.std(y, (0, 1, 2)), np.ones(3), rtol=1e-2)
    of = lambda training: {  # noqa: E731
        op.type for op in compiled.get_concrete_function(x, training).graph.get_operations()
    }
    ops = of(True)
    assert ("TfBnOps>FusedBatchNormEx" in ops) == has_kernels
    ops |= of(False)
    assert "FusedBatchNormV3" not in ops


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    (sentence,) = enable().refusals
    assert "because it runs on the backend jax" in sentence
    assert KERAS_LAYER.call is KERAS_CALL
