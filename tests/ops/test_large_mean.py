"""Gradients of whole layers in training, at means and variances that float32 does not hold: in
every path from a forward op to its gradient they are right, within roundings of float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops import raw_ops, rewrite

C = 3
SHAPE = (40, 4, 4, C)
# (mean, deviation), epsilon
CASES = {
    "plain": (0.0, 1.0, 1e-3),
    "large mean": (1e4, 1.0, 1e-3),
    "largest mean": (3e6, 1.0, 1e-3),
    "price": (1e4, 0.01, 1e-5),
    "variance beyond float32": (0.0, 1e20, 1e-3),
    "both": (1e25, 1e20, 1e-3),
    "variance below float32": (0.0, 1e-22, 0.0),
}
# Relative to the largest element: some roundings of float32. One that reads the mean from
# reserve_space_1 alone is off by 1e-4 to 1 in the cases with a large one.
TOLERANCE = 2e-6

Layer = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@functools.cache
def drawn(case: str) -> tuple[np.ndarray, np.ndarray]:
    mean, deviation, _ = CASES[case]
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(SHAPE) * deviation + mean).astype(np.float32)
    return x, (rng.standard_normal(SHAPE) + 1).astype(np.float32)


def right(case: str) -> list[np.ndarray]:
    x, dy = (array.astype(np.float64) for array in drawn(case))
    epsilon = np.float64(np.float32(CASES[case][2]))
    axes = (0, 1, 2)
    rstd = 1 / np.sqrt(x.var(axes) + epsilon)
    xhat = (x - x.mean(axes)) * rstd
    x_backprop = rstd * (dy - dy.mean(axes) - xhat * (dy * xhat).mean(axes))
    return [x_backprop, (dy * xhat).sum(axes)]


def gradients(layer: Layer, x: Any, y_backprop: Any) -> list[Any]:
    scale = tf.ones(C)
    with tf.GradientTape() as tape:
        tape.watch([x, scale])
        y = layer(x, scale)
    return tape.gradient(y, [x, scale], y_backprop)


def assert_right(case: str, got: list[Any]) -> None:
    for name, a, b in zip(("x_backprop", "scale_backprop"), got, right(case), strict=True):
        error = np.max(np.abs(np.asarray(a, np.float64) - b)) / np.max(np.abs(b))
        assert error < TOLERANCE, f"{name}: {error:.2g}"


def constants(case: str) -> list[tf.Tensor]:
    return [tf.constant(array) for array in drawn(case)]


# ---- Layers; behind an activation everything passes ----------------------------------------------

NONE = np.zeros(0, np.float32)


def v3(epsilon: float, ops: Any = raw_ops) -> Layer:
    def layer(x: Any, scale: Any) -> Any:
        return ops.FusedBatchNormV3(
            x=x, scale=scale, offset=tf.fill([C], 50.0), mean=NONE, variance=NONE, epsilon=epsilon
        )[0]

    return layer


def ex(epsilon: float, activation: str, sides: int) -> Layer:
    def layer(x: Any, scale: Any) -> Any:
        return raw_ops.FusedBatchNormEx(
            x=x, scale=scale, offset=tf.fill([C], 50.0), mean=NONE, variance=NONE,
            side_input=[tf.zeros_like(x)] * sides, activation_mode=activation, epsilon=epsilon,
        ).y  # fmt: skip

    return layer


def function(epsilon: float, activation: Any = None) -> Layer:
    def layer(x: Any, scale: Any) -> Any:
        offset = tf.fill([C], 50.0)
        call = functools.partial(tf_bn_ops.fused_batch_norm, activation=activation)
        return call(x, scale, offset, epsilon=epsilon).y

    return layer


LAYERS: dict[str, Callable[[float], Layer]] = {
    "V3": v3,
    "Ex": lambda epsilon: ex(epsilon, "Identity", 0),
    "Ex, ReLU": lambda epsilon: ex(epsilon, "Relu", 0),
    "Ex, side input": lambda epsilon: ex(epsilon, "Identity", 1),
    "Ex, side input, ReLU": lambda epsilon: ex(epsilon, "Relu", 1),
    "fused_batch_norm": function,
    "fused_batch_norm, ReLU": lambda epsilon: function(epsilon, "relu"),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("case", CASES)
def test_eager(case, layer):
    assert_right(case, gradients(LAYERS[layer](CASES[case][2]), *constants(case)))


@pytest.mark.parametrize("layer", ["V3", "Ex, ReLU", "Ex, side input, ReLU"])
@pytest.mark.parametrize("case", ["large mean", "both"])
@pytest.mark.parametrize("compile_to", ["", "hlo"])
def test_xla(case, layer, compile_to, monkeypatch):
    monkeypatch.setenv("TF_BN_OPS_XLA", compile_to)
    step = functools.partial(gradients, LAYERS[layer](CASES[case][2]))
    compiled = tf.function(step, jit_compile=True, autograph=False)
    assert_right(case, compiled(*constants(case)))


@pytest.mark.parametrize("case", ["large mean", "both"])
def test_keras_layer(case):
    layer = tf_bn_ops.keras.BatchNormalization(epsilon=CASES[case][2])
    layer.build(SHAPE)
    x, y_backprop = constants(case)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
    assert_right(case, tape.gradient(y, [x, layer.gamma.value], y_backprop))


@pytest.mark.parametrize("behind", ["norm", "sum", "norm that others read"])
@pytest.mark.parametrize("case", ["large mean", "both"])
def test_fused_graph(case, behind):
    """The mask is from x, from y, or from y with a forward op that stays as it is."""
    epsilon = CASES[case][2]

    @tf.function
    def step(x: Any, y_backprop: Any) -> Any:
        other = tf.zeros_like(y_backprop)

        def layer(x: Any, scale: Any) -> Any:
            nonlocal other
            y = v3(epsilon)(x, scale)
            other = y if behind == "norm that others read" else other
            return tf.nn.relu(y + tf.zeros_like(x) if behind == "sum" else y)

        return [*gradients(layer, x, y_backprop), other]

    x, y_backprop = constants(case)
    fused = rewrite.fuse(step.get_concrete_function(x, y_backprop))
    ops = {node.op for node in fused.graph.as_graph_def().node}
    assert "TfBnOps>FusedBatchNormGradEx" in ops
    assert ("TfBnOps>FusedBatchNormEx" in ops) == (behind != "norm that others read")
    assert_right(case, fused(x, y_backprop)[:2])


@pytest.mark.parametrize("case", ["large mean", "both"])
def test_vectorized_map(case):
    x, y_backprop = constants(case)

    def step(pair: Any) -> Any:
        return gradients(v3(CASES[case][2]), *pair)

    stacked = tf.stack([x, x / 2]), tf.stack([y_backprop, y_backprop])
    assert_right(case, [each[0] for each in tf.vectorized_map(step, stacked)])


def test_a_mean_that_is_given_is_taken_where_it_is_another():
    """Such as an average over replicas, with the reserve_space_3 of one of them."""
    x, y_backprop = constants("large mean")
    forward = raw_ops.FusedBatchNormV3(
        x=x, scale=tf.ones(C), offset=tf.zeros(C), mean=NONE, variance=NONE
    )
    kept = forward.reserve_space_3
    assert kept.shape == (5, C)
    for mean, third in (
        (forward.reserve_space_1, tf.zeros([0])),
        (forward.reserve_space_1 + 1, kept),
        (forward.reserve_space_1 + 1, tf.zeros([0])),
    ):
        got = raw_ops.FusedBatchNormGradV3(
            y_backprop=y_backprop, x=x, scale=tf.ones(C), reserve_space_1=mean,
            reserve_space_2=forward.reserve_space_2, reserve_space_3=third,
        )  # fmt: skip
        want = raw_ops.FusedBatchNormGradV2(
            y_backprop=y_backprop, x=x, scale=tf.ones(C), reserve_space_1=mean,
            reserve_space_2=forward.reserve_space_2,
        )  # fmt: skip
        for a, b in zip(got[:3], want[:3], strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("case", ["large mean", "price"])
def test_of_the_statistics_that_are_returned(case):
    x, _ = constants(case)
    with tf.GradientTape() as tape:
        tape.watch(x)
        variance = tf_bn_ops.fused_batch_norm(x, tf.ones(C), tf.zeros(C)).batch_variance
    wide = drawn(case)[0].astype(np.float64)
    want = 2 * (wide - wide.mean((0, 1, 2))) / (x.shape.num_elements() / C - 1)
    got = tape.gradient(variance, x).numpy()
    assert np.max(np.abs(got - want)) < TOLERANCE * np.max(np.abs(want))
