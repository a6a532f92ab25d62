"""tf_bn_ops.instance_norm: the formula and its gradients in every layout, type and mode.

Promised: instance norm and its gradients are those of the formula; channels first nothing is
copied; static dimensions stay known; an empty batch is one.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.spec import DATA_FORMATS

SHAPES = {
    "NHWC": (3, 4, 5, 6),
    "NCHW": (3, 6, 4, 5),
    "NDHWC": (2, 3, 2, 4, 6),
    "NCDHW": (2, 6, 3, 2, 4),
}
ROUNDING = {tf.float64: 1e-10, tf.float32: 2e-5, tf.half: 0.02, tf.bfloat16: 0.1}


def formula(x, scale, offset, data_format):
    """In TensorFlow's float64, whose gradients are TensorFlow's."""
    rank, channels_last = DATA_FORMATS[data_format]
    axes = [*range(1, rank - 1)] if channels_last else [*range(2, rank)]
    shape = [1] * (rank - 1) + [-1] if channels_last else [1, -1] + [1] * (rank - 2)
    centered = x - tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(centered**2, axes, keepdims=True)
    y = centered / tf.sqrt(variance + 1e-3)
    return y * tf.reshape(scale, shape) + tf.reshape(offset, shape)


def values_of(function, *inputs):
    """y, first gradients, and a second one."""
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = function(*inputs)
            loss = tf.reduce_sum(tf.sin(tf.cast(y, inputs[1].dtype)))
        first = tape.gradient(loss, inputs)
        penalty = tf.reduce_sum(tf.cast(first[0], inputs[1].dtype) ** 2)
    return [y, *first, outer.gradient(penalty, inputs[0])]


@pytest.mark.parametrize("dtype", ROUNDING, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("data_format", SHAPES)
def test_values_and_gradients(data_format, dtype):
    shape = SHAPES[data_format]
    rng = np.random.default_rng(0)
    x = tf.cast(rng.normal(2, 3, shape), dtype)
    wide = tf.float64 if dtype is tf.float64 else tf.float32
    scale, offset = (tf.cast(rng.normal(1, 0.2, 6), wide) for _ in range(2))
    got = values_of(
        lambda x, scale, offset: tf_bn_ops.instance_norm(x, scale, offset, 1e-3, data_format),
        *(x, scale, offset),
    )
    inputs = (tf.cast(tensor, tf.float64) for tensor in (x, scale, offset))
    want = values_of(lambda *arguments: formula(*arguments, data_format), *inputs)
    assert got[0].dtype is dtype and got[0].shape == shape
    for one, other in zip(got, want, strict=True):
        largest = max(1.0, float(tf.reduce_max(abs(other))))
        atol = ROUNDING[dtype] * largest
        np.testing.assert_allclose(tf.cast(one, tf.float64), other, rtol=0, atol=atol)


@pytest.mark.parametrize("data_format", SHAPES)
@pytest.mark.parametrize("shape", ["known", "unknown", "one sample", "xla"])
def test_bitwise_as_eagerly_in_functions(data_format, shape):
    size = (1, *SHAPES[data_format][1:]) if shape == "one sample" else SHAPES[data_format]
    x = tf.constant(np.random.default_rng(0).normal(1000, 1, size), tf.float32)
    unknown = [None] * len(size)
    signature = tf.TensorSpec(unknown if shape == "unknown" else size)
    call = lambda x: tf_bn_ops.instance_norm(x, tf.ones(6), tf.zeros(6), data_format=data_format)  # noqa: E731
    traced = tf.function(call, [signature], jit_compile=shape == "xla")(x)
    np.testing.assert_array_equal(traced, call(x))
    right = formula(
        tf.cast(x, tf.float64), tf.ones(6, tf.float64), tf.zeros(6, tf.float64), data_format
    )
    np.testing.assert_allclose(traced, right, rtol=0, atol=1e-5)  # At a mean of 1000.


def test_channels_first_is_not_copied():
    graph = tf.function(
        lambda x: tf_bn_ops.instance_norm(x, tf.ones(6), tf.zeros(6), data_format="NCHW"),
        [tf.TensorSpec(SHAPES["NCHW"])],
    ).get_concrete_function().graph  # fmt: skip
    ops = [op.type for op in graph.get_operations()]
    assert ops.count("TfBnOps>FusedBatchNormV3") == 1 and "Transpose" not in ops


def test_dimensions_that_are_known_stay_known():
    call = tf.function(lambda x: tf_bn_ops.instance_norm(x, tf.ones(6), tf.zeros(6)))
    given = [None, None, 5, 6]
    assert call.get_concrete_function(tf.TensorSpec(given)).output_shapes.as_list() == given


def test_an_empty_batch_is_an_empty_batch():
    y = tf_bn_ops.instance_norm(tf.zeros([0, 4, 4, 6]), tf.ones(6), tf.zeros(6))
    assert y.shape == (0, 4, 4, 6)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"data_format": "NCW"}, ValueError, "data_format is 'NCW', it must be one of"),
        ({"data_format": ["NHWC"]}, ValueError, r"data_format is \['NHWC'\], it must be one of"),
        ({"data_format": b"NDHWC"}, ValueError, "x has rank 4, with data_format"),
        ({"scale": tf.ones(18)}, ValueError, r"scale has shape \(18,\), it must be \[6\]"),
        ({"offset": tf.ones([])}, ValueError, r"offset has shape \(\), it must be \[6\]"),
        (
            {"epsilon": tf.constant(1.0)},
            TypeError,
            "epsilon must be a number, .* instance_norm takes",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, error, sentence):
    given = {"x": tf.zeros([3, 4, 4, 6]), "scale": tf.ones(6), "offset": tf.zeros(6)}
    with pytest.raises(error, match=sentence):
        tf_bn_ops.instance_norm(**{**given, **arguments})
