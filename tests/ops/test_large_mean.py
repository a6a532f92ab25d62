"""Gradients of whole layers in training, at means and variances that float32 does not hold: in
every path from a forward op to its gradient they are right, within roundings of float32.

Promised: eagerly, compiled by XLA, behind an activation, in rewritten graphs and on replaced
kernels the gradient takes the mean that its forward op kept; where a caller gives other statistics
or another epsilon, those.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import forked
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


# ---- From a forward op to its gradient; behind an activation everything passes -------------------

RESERVED = ("reserve_space_1", "reserve_space_2", "reserve_space_3")
VECTORS = {"offset": tf.fill([C], 50.0), **dict.fromkeys(("mean", "variance"), tf.zeros([0]))}


def v3(epsilon: float, ops: Any = raw_ops) -> Layer:
    return lambda x, scale: ops.FusedBatchNormV3(x=x, scale=scale, epsilon=epsilon, **VECTORS)[0]


def ex(activation: Any, sides: int, epsilon: float) -> Layer:
    return lambda x, scale: raw_ops.FusedBatchNormEx(
        x=x, scale=scale, epsilon=epsilon, **VECTORS,
        side_input=[tf.zeros_like(x)] * sides, activation_mode=activation,
    ).y  # fmt: skip


LAYERS: dict[str, Callable[[float], Layer]] = {
    "V3": v3,
    "Ex": functools.partial(ex, "Identity", 0),
    "Ex, ReLU": functools.partial(ex, "Relu", 0),
    "Ex, side input": functools.partial(ex, "Identity", 1),
    "Ex, side input, ReLU": functools.partial(ex, "Relu", 1),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("case", CASES)
def test_eager(case, layer):
    """Promise: `y` and all gradients are right at any mean of x."""
    assert_right(case, gradients(LAYERS[layer](CASES[case][2]), *constants(case)))


@pytest.mark.parametrize("layer", ["V3", "Ex, ReLU", "Ex, side input, ReLU"])
@pytest.mark.parametrize("case", ["large mean", "both"])
@pytest.mark.parametrize("compile_to", ["", "hlo"])
def test_xla(case, layer, compile_to, monkeypatch):
    monkeypatch.setenv("TF_BN_OPS_XLA", compile_to)
    step = functools.partial(gradients, LAYERS[layer](CASES[case][2]))
    compiled = tf.function(step, jit_compile=True, autograph=False)
    assert_right(case, compiled(*constants(case)))


def of_keras(epsilon: float, x: Any, y_backprop: Any) -> list[Any]:
    layer = tf_bn_ops.keras.BatchNormalization(epsilon=epsilon)
    layer.build(SHAPE)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
    return tape.gradient(y, [x, layer.gamma.value], y_backprop)


def of_vectorized_map(epsilon: float, x: Any, y_backprop: Any) -> list[Any]:
    stacked = tf.stack([x, x / 2]), tf.stack([y_backprop, y_backprop])
    step = functools.partial(gradients, v3(epsilon))
    return [each[0] for each in tf.vectorized_map(lambda pair: step(*pair), stacked)]


def of_fused_graph(behind: str, epsilon: float, x: Any, y_backprop: Any) -> list[Any]:
    """The mask is from x, from y, or from y with a forward op that stays as it is."""

    @tf.function
    def step(x: Any, y_backprop: Any) -> Any:
        read = tf.zeros_like(y_backprop)

        def layer(x: Any, scale: Any) -> Any:
            nonlocal read
            y = v3(epsilon)(x, scale)
            read = y if behind == "norm that others read" else read
            return tf.nn.relu(y + tf.zeros_like(x) if behind == "sum" else y)

        return [*gradients(layer, x, y_backprop), read]

    fused = rewrite.fuse(step.get_concrete_function(x, y_backprop))
    ops = {node.op for node in fused.graph.as_graph_def().node}
    assert "TfBnOps>FusedBatchNormGradEx" in ops
    assert ("TfBnOps>FusedBatchNormEx" in ops) == (behind != "norm that others read")
    return fused(x, y_backprop)[:2]


PATHS = {
    "Keras layer": of_keras,
    "vectorized_map": of_vectorized_map,
    **{
        f"fused graph, {behind}": functools.partial(of_fused_graph, behind)
        for behind in ("norm", "sum", "norm that others read")
    },
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", ["large mean", "both"])
def test_paths(case, path):
    assert_right(case, PATHS[path](CASES[case][2], *constants(case)))


def gradients_on_replaced_kernels() -> None:
    """By TensorFlow's registered gradient."""
    tf_bn_ops.enable(keras=False, fuse=False)
    for case in ("large mean", "both"):
        layer = v3(CASES[case][2], tf.raw_ops)
        assert_right(case, gradients(layer, *constants(case)))


def test_replaced_kernels():
    forked.call(gradients_on_replaced_kernels)


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


# ---- Statistics of a caller ----------------------------------------------------------------------


def as_they_are_given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without what says more than mean and variance do."""
    return {**arguments, "reserve_space_3": tf.zeros([0])}


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "mean": lambda a: {"reserve_space_1": a["reserve_space_1"] + 1},
    "mean, by a rounding": lambda a: {
        "reserve_space_1": tf.constant(np.nextafter(a["reserve_space_1"], np.float32(np.inf)))
    },
    "variance, clipped": lambda a: {"reserve_space_2": tf.maximum(a["reserve_space_2"], 4.0)},
    "variance, by a rounding": lambda a: {
        "reserve_space_2": tf.constant(np.nextafter(a["reserve_space_2"], np.float32(np.inf)))
    },
    "epsilon": lambda a: {"epsilon": 0.1},
    "epsilon, by a rounding": lambda a: {
        "epsilon": float(np.nextafter(np.float32(a["epsilon"]), np.float32(1)))
    },
}
CHANGED = [*CHANGES, *itertools.combinations(["mean", "variance, clipped", "epsilon"], 2)]


def v3_gradient(activation: str, arguments: dict[str, Any]) -> Any:
    assert activation == "Identity"
    return raw_ops.FusedBatchNormGradV3(**arguments)[:3]


def ex_gradient(activation: Any, arguments: dict[str, Any]) -> Any:
    given = {"offset": VECTORS["offset"], "y": arguments["x"] - arguments["x"] + 1, **arguments}
    return raw_ops.FusedBatchNormGradEx(**given, activation_mode=activation)[:3]


GRADIENTS = {
    "V3": functools.partial(v3_gradient, "Identity"),
    "Ex": functools.partial(ex_gradient, "Identity"),
    "Ex, ReLU": functools.partial(ex_gradient, "Relu"),
}


@pytest.mark.parametrize("compile_to", [None, "", "hlo"])
@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("change", CHANGED, ids=str)
def test_statistics_and_epsilon_of_a_caller_are_taken_where_one_is_another(
    change, op, compile_to, monkeypatch
):
    """Such as an average over replicas, or a variance that is clipped, with the reserve_space_3 of
    this library's forward op: bit by bit what the op gives without it. What it keeps holds only
    together with all that it was computed with, in each channel by itself."""
    monkeypatch.setenv("TF_BN_OPS_XLA", compile_to or "")
    x, y_backprop = constants("large mean")
    forward = raw_ops.FusedBatchNormEx(
        x=x, scale=tf.ones(C), epsilon=1e-3, activation_mode="Relu", side_input=[], **VECTORS
    )
    given = {"y_backprop": y_backprop, "x": x, "scale": tf.ones(C), "epsilon": 1e-3}
    given |= {name: getattr(forward, name) for name in RESERVED}
    assert given["reserve_space_3"].shape == (8, C)
    call = GRADIENTS[op]

    def run(arguments: dict[str, Any]) -> list[np.ndarray]:
        tensors = {name: v for name, v in arguments.items() if isinstance(v, tf.Tensor)}
        rest = {name: v for name, v in arguments.items() if name not in tensors}
        if compile_to is None:
            return [a.numpy() for a in call({**tensors, **rest})]
        step = tf.function(lambda t: call({**t, **rest}), jit_compile=True, autograph=False)
        return [a.numpy() for a in step(tensors)]

    kept = run(given)
    changed = dict(given)
    for name in [change] if isinstance(change, str) else change:
        changed |= CHANGES[name](changed)
    got, want = run(changed), run(as_they_are_given(changed))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    # In one channel alone: the others are as they were.
    vectors = [n for n in RESERVED[:2] if changed[n] is not given[n]]
    if "epsilon" in str(change) or not vectors:
        return
    is_first = np.arange(C) == 0
    mixed = dict(given)
    for name in vectors:
        mixed[name] = tf.where(is_first, changed[name], given[name])
    for a, of_changed, of_kept in zip(run(mixed), want, kept, strict=True):
        np.testing.assert_array_equal(a, np.where(is_first, of_changed, of_kept))
