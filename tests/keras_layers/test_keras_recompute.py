"""Recomputation (tf.recompute_grad, keras.RematScope): the forward pass runs twice in a step, the
moving statistics move once, and gradients are bitwise those without it."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.keras import BatchNormalization, disable

KERAS_LAYER = keras.layers.BatchNormalization
X = np.random.default_rng(0).normal(3, 2, (8, 6, 4)).astype("float32")


@pytest.fixture(params=["ours", "switched"])
def layer(request):
    if request.param == "switched":
        tf_bn_ops.enable(kernels=False, fuse=False)
    yield BatchNormalization if request.param == "ours" else KERAS_LAYER
    disable()


def nested(function):
    """A recomputation in another one."""
    inner = tf.recompute_grad(function)
    return tf.recompute_grad(lambda x: inner(x))


CALLS = {
    "fused": ({}, {}),
    "masked, by Keras' formula": ({}, {"mask": tf.constant(X[..., 0] > 2)}),
    "float64, by Keras' formula": ({"dtype": "float64"}, {}),
    "synchronized": ({"synchronized": True}, {}),
}


def step(layer, how, compiled, config, arguments):
    """The gradients of one step by input and weights, and the moving statistics after it."""
    norm = layer(momentum=0.5, **config)
    dense = keras.layers.Dense(4, kernel_initializer=keras.initializers.RandomNormal(seed=1))
    for part in (norm, dense):
        part.build(X.shape)
    variables = [v.value for v in (*norm.trainable_variables, *dense.trainable_variables)]
    block = how(lambda x: dense(norm(dense(x), training=True, **arguments)))

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(block(x) ** 2)
        return tape.gradient(loss, [x, *variables])

    found = (tf.function(gradients, autograph=False) if compiled else gradients)(tf.constant(X))
    assert not np.array_equal(norm.moving_mean, np.zeros(4))
    return [*found, norm.moving_mean, norm.moving_variance]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
@pytest.mark.parametrize(
    ("name", "recompute"), [*((name, tf.recompute_grad) for name in CALLS), ("fused", nested)]
)
def test_statistics_move_once_and_gradients_are_bitwise_identical(layer, name, recompute, compiled):
    """Promise: Recomputation moves the statistics once, and gradients keep their bits."""
    want = step(layer, lambda f: f, compiled, *CALLS[name])
    got = step(layer, recompute, compiled, *CALLS[name])
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


class Recomputed(keras.layers.Layer):
    def __init__(self, norm, how):
        super().__init__()
        self.norm, self.how = norm, how

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x, training=None):
        return self.how(lambda x: self.norm(x, training=training))(x)


@pytest.mark.parametrize("eagerly", [False, True])
def test_in_fit(layer, eagerly):
    moved = []
    for how in (lambda f: f, tf.recompute_grad):
        norm = layer(momentum=0.5)
        model = keras.Sequential([keras.Input((6, 4)), Recomputed(norm, how)])
        model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=eagerly)
        model.fit(X, X, epochs=2, verbose=0)
        moved.append([norm.moving_mean, norm.moving_variance])
    np.testing.assert_array_equal(moved[0], moved[1])


@pytest.mark.skipif(not hasattr(keras, "RematScope"), reason="keras.RematScope is newer")
def test_in_the_scope_of_keras(layer):
    moved = []
    for scope in (contextlib.nullcontext, lambda: keras.RematScope(mode="full")):
        with scope():
            norm = layer(momentum=0.5)
        model = keras.Sequential([keras.Input((6, 4)), norm])
        # Eagerly: in a function Keras gives tf.recompute_grad keywords, which it refuses.
        model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
        model.fit(X, X, verbose=0)
        moved.append([norm.moving_mean, norm.moving_variance])
    np.testing.assert_array_equal(moved[0], moved[1])


def test_fused_batch_norm_returns_averages_that_are_assigned_once():
    """The function assigns nothing: who assigns its results outside of the block does it once."""
    mean = tf.Variable(tf.zeros(4))

    def block(x):
        args = tf.ones(4), tf.zeros(4), mean, tf.ones(4)
        y, average, *_ = tf_bn_ops.fused_batch_norm(x, *args, exponential_avg_factor=0.5)
        return y, average

    x = tf.constant(X[:, :, tf.newaxis])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, average = tf.recompute_grad(block)(x)
        mean.assign(average)
    assert tape.gradient(y, x) is not None
    np.testing.assert_allclose(mean, 0.5 * X.mean((0, 1)), rtol=1e-5)
