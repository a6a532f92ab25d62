"""sync_batch_norm on one replica: bounds, derivatives of any order, frozen, and what it refuses."""

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
from tf_bn_ops import _loader, sync_batch_norm

WITH_XLA = (_loader.library_folder() / _loader.XLA_LIBRARY).is_file()
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
    mean = tf.reduce_mean(x, [0, 1])
    variance = tf.reduce_mean(tf.square(x - mean), [0, 1])
    m = x.shape[0] * x.shape[1]
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
    x, dy = (tf.constant(rng.normal(3, 2, [4, 5, 3])) for _ in range(2))
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


@pytest.mark.parametrize("mode", MODES)
def test_first_and_second_derivatives_of_all_results_are_those_of_the_formula(mode):
    if mode == "jit_compile" and not WITH_XLA:
        pytest.skip("needs the kernels for XLA, which TensorFlow before 2.20 has no headers for")
    ours = lambda *of: sync_batch_norm(*of, epsilon=EPSILON, axis=-1, activation="relu")  # noqa: E731
    for got, want in zip(derivatives(ours, mode), derivatives(composed, "eager"), strict=True):
        # Some hundred roundings in float64, of terms that cancel by a digit or two.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * np.max(np.abs(want)))


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4, 5), -1), ((2, 3, 4), 1), ((6, 3), -1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_frozen_is_the_formula_in_tensorflows_ops(shape, axis, dtype):
    rng = np.random.default_rng(1)
    x, side_input = rng.normal(0, 1, (2, *shape)).astype(dtype)
    vectors = rng.uniform(0.5, 2, (4, shape[axis])).astype(dtype)

    @tf.function
    def frozen() -> Any:
        return sync_batch_norm(
            x, *vectors, EPSILON, is_training=False, axis=axis, activation="relu",
            side_input=side_input,
        )  # fmt: skip

    aligned = [1] * len(shape)
    aligned[axis] = -1
    scale, offset, mean, variance = (v.reshape(aligned).astype(np.float64) for v in vectors)
    want = (x - mean) / np.sqrt(variance + EPSILON) * scale + offset + side_input
    got = frozen()
    np.testing.assert_allclose(
        got.y, np.maximum(want, 0), atol=1e-5 if dtype == "float32" else 1e-14
    )
    np.testing.assert_array_equal(got.batch_mean, vectors[2])
    graph = frozen.get_concrete_function().graph.as_graph_def()
    assert not [node.op for node in graph.node if "TfBnOps" in node.op]


def test_a_batch_without_samples_has_no_mean_as_in_fused_batch_norm():
    x, one = tf.zeros([0, 2, 2, 3]), tf.ones([3])
    for normalize in (sync_batch_norm, tf_bn_ops.fused_batch_norm):
        y, mean, variance = normalize(x, one, one)
        assert y.shape == x.shape
        assert np.all(np.isnan(mean)) and np.all(np.isnan(variance))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"axis": 4}, ValueError, "axis is 4, x of rank 4 has the axes -4 to 3"),
        ({"data_format": "NCDHW"}, ValueError, "x has rank 4, with data_format 'NCDHW' it must"),
        ({"data_format": "NC"}, ValueError, "data_format is 'NC', it must be one of"),
        ({"activation": "gelu"}, ValueError, "activation is 'gelu', it must be one of"),
        ({"exponential_avg_factor": 0.5}, ValueError, "mean and variance are needed with an"),
        ({"is_training": False}, ValueError, "mean and variance are needed if not is_training"),
        ({"side_input": tf.ones([2, 2])}, ValueError, "side_input has shape"),
        ({"epsilon": tf.constant(1e-3)}, TypeError, "epsilon must be a number"),
        ({"exponential_avg_factor": None}, TypeError, "exponential_avg_factor must be a number"),
    ],
)
def test_bad_arguments_are_one_sentence(changes, error, message):
    x, one = tf.ones([2, 3, 3, 4]), tf.ones([4])
    with pytest.raises(error, match=message.replace("(", r"\(")):
        sync_batch_norm(x, one, one, **changes)


def test_an_unknown_rank_has_to_be_that_of_the_data_format():
    one = tf.ones([3])
    call = tf.function(
        lambda x: sync_batch_norm(x, one, one).y, input_signature=[tf.TensorSpec(None)]
    )
    x = tf.random.normal([2, 3, 3, 3])
    np.testing.assert_array_equal(call(x), sync_batch_norm(x, one, one).y)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        call(tf.ones([2, 2, 2, 3, 3]))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_vectors_of_another_length_are_not_broadcast(dtype):
    x, vector, one = tf.ones([4, 2, 3], dtype), tf.ones([3], dtype), tf.ones([1], dtype)
    with pytest.raises(tf.errors.InvalidArgumentError):
        sync_batch_norm(x, one, one, one, one, axis=-1, is_training=False)
    with pytest.raises(tf.errors.InvalidArgumentError):
        sync_batch_norm(x, vector, vector, one, one, axis=-1, exponential_avg_factor=0.5)
