"""Synchronized on one replica, and float64: bounds, derivatives of any order, frozen, refusals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import split_cases
import split_program
import tensorflow as tf
from split_cases import Case
from test_splits import assert_right

import tf_bn_ops
from tf_bn_ops import _loader

WITH_XLA = (_loader.installation().folder / _loader.XLA_LIBRARY).is_file()
EPSILON = 2.0**-10  # The same number in float32, the type of the attr.


@pytest.mark.parametrize("case", [*split_cases.ALL, *split_cases.QUICK])
def test_results_are_within_the_bounds_of_the_op(case: Case):
    inputs = {name: tf.constant(value) for name, value in case.inputs().items()}
    results = split_program.replica_step(case, inputs, tf.constant([0, 7]))
    bits = {name: split_program.numpy_bits(value) for name, value in results.items()}
    assert_right([bits], case)


def composed(x: Any, scale: Any, offset: Any) -> tuple[Any, Any, Any]:
    """ReLU behind the formula, of TensorFlow's ops; the unbiased variance."""
    # The second derivative of tf.nn.moments is another: it has a stop_gradient.
    mean = tf.reduce_mean(x, [0, 1, 2])
    variance = tf.reduce_mean(tf.square(x - mean), [0, 1, 2])
    m = 20
    y = tf.nn.batch_normalization(x, mean, variance, offset, scale, EPSILON)
    return tf.nn.relu(y), mean, variance * m / (m - 1)


# How a step is run; XLA takes the ops' own kernels where its library was built.
MODES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda step: step,
    "function": tf.function,
    "jit_compile": functools.partial(tf.function, jit_compile=True),
}


def derivatives(normalize: Any, mode: str) -> list[np.ndarray]:
    """First derivatives of all three results, and those of a function of the first ones."""
    rng = np.random.default_rng(3)
    x, dy = (tf.constant(rng.normal(3, 2, [4, 1, 5, 3])) for _ in range(2))
    scale, offset = tf.constant([0.5, 1.0, 2.0], tf.float64), tf.constant([0.3, 0.0, -0.4], x.dtype)

    def step() -> Any:
        with tf.GradientTape() as outer:
            outer.watch([x, scale, offset])
            with tf.GradientTape() as inner:
                inner.watch([x, scale, offset])
                y, mean, variance = normalize(x, scale, offset)
                loss = tf.reduce_sum(y * y * dy) + tf.reduce_sum(mean**3 + variance**2)
            first = inner.gradient(loss, [x, scale, offset])
            penalty = sum(tf.reduce_sum(tf.square(g)) for g in first)
        return [*first, *outer.gradient(penalty, [x, scale, offset])]

    return [value.numpy() for value in MODES[mode](step)()]


@pytest.mark.parametrize("synchronized", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_first_and_second_derivatives_of_all_results_are_those_of_the_formula(mode, synchronized):
    if mode == "jit_compile" and not WITH_XLA:
        pytest.skip("needs the kernels for XLA, which TensorFlow before 2.20 has no headers for")
    ours = functools.partial(
        tf_bn_ops.fused_batch_norm, epsilon=EPSILON, activation="relu", synchronized=synchronized
    )
    for got, want in zip(derivatives(ours, mode), derivatives(composed, "eager"), strict=True):
        # Some hundred roundings in float64, of terms that cancel by a digit or two.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * np.max(np.abs(want)))


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW", "NDHWC", "NCDHW"])
def test_float64_frozen_is_the_formula_in_tensorflows_ops(data_format):
    rng = np.random.default_rng(1)
    rank, channel = len(data_format), data_format.index("C")
    shape = [5 if axis == channel else 2 + axis for axis in range(rank)]
    x, side_input = rng.normal(0, 1, (2, *shape))
    vectors = rng.uniform(0.5, 2, (4, 5))

    @tf.function
    def frozen() -> Any:
        return tf_bn_ops.fused_batch_norm(
            x, *vectors, EPSILON, data_format, is_training=False, activation="relu",
            side_input=side_input, synchronized=True,
        )  # fmt: skip

    aligned = [-1 if axis == channel else 1 for axis in range(rank)]
    scale, offset, mean, variance = (v.reshape(aligned) for v in vectors)
    want = (x - mean) / np.sqrt(variance + EPSILON) * scale + offset + side_input
    got = frozen()
    np.testing.assert_allclose(got.y, np.maximum(want, 0), atol=1e-14)
    np.testing.assert_array_equal(got.batch_mean, vectors[2])
    graph = frozen.get_concrete_function().graph.as_graph_def()
    assert not [node.op for node in graph.node if "TfBnOps" in node.op]


def test_a_batch_without_samples_has_no_mean():
    x, one = tf.zeros([0, 2, 2, 3]), tf.ones([3])
    for synchronized in (True, False):
        y, mean, variance = tf_bn_ops.fused_batch_norm(x, one, one, synchronized=synchronized)
        assert y.shape == x.shape
        assert np.all(np.isnan(mean)) and np.all(np.isnan(variance))


def test_an_unknown_rank_has_to_be_that_of_the_data_format():
    one = tf.ones([3])
    normalize = functools.partial(
        tf_bn_ops.fused_batch_norm, scale=one, offset=one, synchronized=True
    )
    call = tf.function(lambda x: normalize(x).y, input_signature=[tf.TensorSpec(None)])
    x = tf.random.normal([2, 3, 3, 3])
    np.testing.assert_array_equal(call(x), normalize(x).y)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        call(tf.ones([2, 2, 2, 3, 3]))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_vectors_of_another_length_are_not_broadcast(dtype):
    x, vector, one = tf.ones([4, 1, 2, 3], dtype), tf.ones([3], dtype), tf.ones([1], dtype)
    call = functools.partial(tf_bn_ops.fused_batch_norm, x, synchronized=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(one, one, one, one, is_training=False)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(vector, vector, one, one, exponential_avg_factor=0.5)
