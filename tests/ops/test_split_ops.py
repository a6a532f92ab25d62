"""The ops that synchronised batch normalization consists of, in TensorFlow.

Promised beside what test_every_op.py holds: the same on every axis of any rank; gathered statistics
are those of the C ABI, whose specification is tests/core/test_replicas.py; their gradients; one
sentence for what is wrong. That a batch which is split over replicas has the results and the
derivatives of the whole is in tests/sync. `make conformance` runs the ops but BatchNormGatherStats
against their models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from op_calls import bits, call_of, small

from tf_bn_ops import _loader, _ops, raw_ops, spec
from tf_bn_ops.harness import c_abi

PARTS = [op for op in spec.OPS.values() if op.formula in spec.ops.PARTS]
WITH_XLA = (_loader.installation().folder / _loader.XLA_LIBRARY).is_file()


AXES = [((7,), 0), ((7,), -1), ((6, 4), 0), ((6, 4), 1), ((5, 3, 4), 1), ((2, 3, 4, 5), 2),
        ((2, 3, 4, 5), -4), ((2, 3, 4, 2, 5), -1), ((2, 5, 2, 2, 2, 2), 1)]  # fmt: skip


@pytest.mark.parametrize("op", PARTS, ids=lambda op: op.name)
@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_channels_may_be_any_dimension_of_any_rank(shape, axis, op):
    """Bitwise as what they are of four dimensions, the channels in the second one."""
    at = axis % len(shape)
    outer, inner = (int(np.prod(sizes)) for sizes in (shape[:at], shape[at + 1 :]))
    for seed in range(3):
        call, tensors, _ = call_of(small(op, "NCHW", shape=(outer, shape[at], inner, 1), seed=seed))
        want = tf.nest.flatten(call(tensors))
        of_shape = {n: tf.reshape(t, shape) if t.shape.rank == 4 else t for n, t in tensors.items()}
        got = tf.nest.flatten(call(of_shape, axis=axis))
        assert bits(got) == bits(want)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype and a.shape == (shape if b.shape.rank == 4 else b.shape)


# ---- Gather --------------------------------------------------------------------------------------


def test_gathered_statistics_are_those_of_the_c_abi_and_ignore_parts_without_elements():
    rng = np.random.default_rng(0)
    counts = np.array([5.0, 0.0, 1.0, 700.0])
    means, m2s = rng.normal(1e5, 1, (4, 6)), rng.uniform(0, 9, (4, 6))
    means[1], m2s[1] = np.nan, np.inf
    for given, count in ((counts, 706), (0 * counts, 0)):
        got = raw_ops.BatchNormGatherStats(counts=given, means=means, m2s=m2s)
        assert bits(got) == bits(c_abi.gather_stats(c_abi.Stats(given, means, m2s)))
        assert float(got.count) == count
    assert not np.any(got.mean) and not np.any(got.m2)


def test_statistics_of_parts_with_other_counts_in_each_iteration():
    rng = np.random.default_rng(2)
    inputs = (
        tf.constant([[3.0, 0.0], [5.0, 2.0]], tf.float64),
        *(tf.constant(rng.uniform(1, 2, [2, 2, 4])) for _ in range(2)),
    )
    names = ("counts", "means", "m2s")

    def call(values: Any) -> Any:
        return tuple(raw_ops.BatchNormGatherStats(**dict(zip(names, values, strict=True))))

    got = tf.vectorized_map(call, inputs, fallback_to_while_loop=False)
    for i in range(2):
        for a, b in zip(got, call(tuple(value[i] for value in inputs)), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-14)


# ---- Gradients -----------------------------------------------------------------------------------


def test_gradients_of_gathered_statistics():
    rng = np.random.default_rng(0)
    counts = tf.constant([5.0, 0.0, 3.0], tf.float64)
    means, m2s = rng.normal(size=(3, 2)), rng.uniform(1, 2, (3, 2))
    inputs = [tf.constant(means), tf.constant(m2s)]

    def gathered(means: Any, m2s: Any) -> Any:
        found = _ops.batch_norm_gather_stats(counts, means, m2s)
        return tf.concat([found.mean, 3 * found.m2], 0)

    theory, numeric = tf.test.compute_gradient(gathered, inputs, delta=1e-5)
    for a, b in zip(theory, numeric, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    # A replica without samples may hold anything, and gets a gradient of zero.
    means[1] = m2s[1] = np.nan
    inputs = [tf.constant(means), tf.constant(m2s)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        out = gathered(*inputs)
    for gradient in tape.gradient(out, inputs):
        assert np.isfinite(gradient).all()
        assert not np.any(gradient[1])


# ---- Errors --------------------------------------------------------------------------------------

STATS = _ops.batch_norm_stats
ONE, TWO = tf.ones([1], tf.float64), tf.ones([2], tf.float64)


def elements_of(**changed: Any) -> Any:
    inputs = {
        **{name: tf.ones([4, 2]) for name in ("y_backprop", "x")},
        **{name: tf.ones([2]) for name in ("scale", "offset")},
        **{name: TWO for name in ("mean", "variance", "sum_dy", "sum_dy_xmu")},
        "count": 8.0,
        **changed,
    }
    return _ops.batch_norm_backward_elemt(**inputs)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: STATS(tf.ones([])), "x must have at least one dimension, that of the channels"),
        (lambda: STATS(tf.ones([2, 3]), axis=2), "axis must be a dimension of x, at least -2 and"),
        (lambda: elements_of(sum_dy=[TWO]), "sum_dy must be 1-dimensional, with one element per"),
        (
            lambda: elements_of(activation_mode="Relu", num_side_inputs=1),
            "y must be given where an activation follows a side input",
        ),
        (lambda: elements_of(num_side_inputs=2), "num_side_inputs must be 0 or 1, not 2"),
        (
            lambda: _ops.batch_norm_gather_stats(TWO, [TWO], [TWO]),
            "counts must have one element per row of means and m2s",
        ),
        (
            lambda: _ops.batch_norm_gather_stats(ONE, [TWO], TWO),
            "m2s must have 2 dimensions, the replicas first",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(call, sentence, in_graph):
    errors = (tf.errors.InvalidArgumentError, ValueError)
    with pytest.raises(errors, match=sentence):
        (tf.function(call, autograph=False) if in_graph else call)()


@pytest.mark.parametrize("count", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("jit_compile", [False, True] if WITH_XLA else [False])
def test_a_count_that_is_none_is_one_sentence(count, jit_compile):
    call = tf.function(_ops.batch_norm_gather_stats, jit_compile=jit_compile)
    with pytest.raises(tf.errors.InvalidArgumentError, match="counts must be finite and not nega"):
        call(
            tf.constant([3.0, count], tf.float64),
            tf.ones([2, 5], tf.float64),
            tf.ones([2, 5], tf.float64),
        )


def test_lists_of_two_and_types_that_have_no_kernel():
    views = dict.fromkeys(("y_backprop", "x"), tf.ones([4, 2], tf.float64))
    v = {**views, **dict.fromkeys(("scale", "offset", "mean", "variance"), TWO)}
    with pytest.raises(ValueError, match="y is a list of at most one tensor, not of 2"):
        _ops.batch_norm_backward_reduce(**v, y=[v["x"]] * 2)
    v["scale"] = tf.cast(v["scale"], tf.float32)
    with pytest.raises(TypeError, match="per-channel tensors of float64 with tensors of float64"):
        _ops.batch_norm_backward_reduce(**v)
    with pytest.raises(TypeError, match="epsilon must be a number, not EagerTensor"):
        elements_of(epsilon=tf.constant(1e-3))
