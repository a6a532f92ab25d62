"""Loading the ops, lack of memory, and tensors of more than 2^31 elements.

Promised: a bare `tf.load_op_library` of the path gives the ops; a call that memory does not suffice
for is ResourceExhausted.
"""

from __future__ import annotations

import pathlib
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from op_calls import bits

import tf_bn_ops
from tf_bn_ops.generated import bindings
from tf_bn_ops.spec import OPS

# ---- Loading -------------------------------------------------------------------------------------


def test_a_bare_load_op_library_gives_the_ops():
    program = """
import tensorflow as tf, tf_bn_ops
ops = tf.load_op_library(tf_bn_ops.library_path())
one = tf.ones([1])
data = tf.ones([1, 2, 2, 1])
print(float(ops.tf_bn_ops_fused_batch_norm_grad(data, data, one, one, one).offset_backprop[0]))
print(sorted(n for n in dir(ops) if n.startswith("TfBnOps_")))
with tf.GradientTape() as tape:
    tape.watch(data)
    y = ops.tf_bn_ops_fused_batch_norm_v3(data, one, one, one, one).y
assert tape.gradient(y, data).shape == data.shape
# The package's own way comes second and finds the same library.
assert tf_bn_ops.raw_ops.FusedBatchNormGrad
from tf_bn_ops import _loader
_loader.load()
"""
    # One op is none of those that take a tensor of the shape of x.
    names = sorted("TfBnOps_" + name for name in [*OPS, "BatchNormGatherStats"])
    assert forked.output(program) == f"4.0\n{names}\n"


def error_of_a_call() -> str:
    one, data = tf.ones([1]), tf.ones([1, 1, 1, 1])
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        tf_bn_ops.fused_batch_norm_grad(data, data, one, one, one)
    return error.value.message


def test_an_unknown_forced_implementation_is_one_sentence():
    assert (
        "The environment variable TF_BN_OPS_CPU_ISA is invalid: there is no CPU implementation "
        '"mmx"; this build has '
    ) in forked.call(error_of_a_call, TF_BN_OPS_CPU_ISA="mmx")


# ---- Lack of memory ------------------------------------------------------------------------------

STATM = pathlib.Path("/proc/self/statm")


def gradient(data: Any, vector: Any) -> Any:
    return tf_bn_ops.fused_batch_norm_grad(data, data, vector, vector, vector)


def forward(data: Any, vector: Any) -> Any:
    names = ("scale", "offset", "mean", "variance")
    return tf_bn_ops.raw_ops.FusedBatchNorm(x=data, **dict.fromkeys(names, vector))


def short_of_memory(shape: list[int], spare: int) -> list[tuple[str, bool]]:
    """For each op the error of a call with `spare` bytes more than are used, and whether the next
    call, with memory again, has the result that it had before."""
    import resource

    big, small = ((tf.ones(s), tf.ones(s[-1:])) for s in (shape, [64, 32, 32, 4]))
    results = []
    for op in (gradient, forward):
        # Above the serial threshold, so that all threads are started before memory is limited.
        before = bits(op(*small))
        used = int(STATM.read_text().split()[0]) * resource.getpagesize()
        unlimited = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + spare, unlimited[1]))
        try:
            op(*big)
            text = "no error"
        except tf.errors.ResourceExhaustedError as error:
            text = str(error)
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
        results.append((text, bits(op(*small)) == before))
    return results


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("shape", "spare", "asked_for"),
    [
        # An output of 1 GiB.
        ([256, 1024, 1024, 1], 200 << 20, "shape[256,1024,1024,1] and type float"),
        # Outputs of 16 MiB; a workspace of 64 bytes a channel, 256 MiB.
        ([1, 1, 1, 1 << 22], 150 << 20, "type int8"),
    ],
    ids=["output", "workspace"],
)
def test_exhausted_memory_is_resource_exhausted(shape, spare, asked_for):
    for text, is_same in forked.call(short_of_memory, shape, spare):
        assert "OOM when allocating tensor" in text
        assert asked_for in text
        assert is_same


# ---- Large ---------------------------------------------------------------------------------------


@pytest.mark.large
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_more_than_2_to_the_31_elements_forward(data_format):
    """8 GB of bfloat16. Zeros but for the last element: y of both, and the statistics."""
    rows, columns = 46341, 46342
    shape = (1, rows, columns, 1) if data_format == "NHWC" else (1, 1, rows, columns)
    m = rows * columns
    value = 1024.0
    x = tf.reshape(tf.scatter_nd([[m - 1]], [tf.constant(value, tf.bfloat16)], [m]), shape)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    result = tf_bn_ops.raw_ops.FusedBatchNormV3(
        x=x, scale=one, offset=one, mean=zero, variance=zero, epsilon=0.0, data_format=data_format
    )
    mean = value / m
    variance = value**2 / m - mean**2
    np.testing.assert_allclose(result.batch_mean, [mean], rtol=2.0**-23)
    np.testing.assert_allclose(result.reserve_space_2, [variance], rtol=2.0**-22)
    np.testing.assert_allclose(result.batch_variance, [variance * m / (m - 1)], rtol=2.0**-22)
    flat = tf.reshape(result.y, [-1])
    for index, element in ((0, 0.0), (m // 2, 0.0), (m - 2, 0.0), (m - 1, value)):
        want = (element - mean) / np.sqrt(variance) + 1
        assert float(flat[index]) == pytest.approx(want, rel=2**-8)


@pytest.mark.large
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_more_than_2_to_the_31_elements(data_format):
    """13 GB of bfloat16. Ones everywhere but in the last element: sums and ends are checked.

    Promise: Tensors may have more than 2^31 elements.
    """
    rows, columns = 46341, 46342  # Their product is just above 2^31.
    shape = (1, rows, columns, 1) if data_format == "NHWC" else (1, 1, rows, columns)
    m = rows * columns
    assert m > 2**31
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    last = tf.scatter_nd([[m - 1]], [tf.constant(2, tf.bfloat16)], [m])
    dy = tf.reshape(last + tf.constant(1, tf.bfloat16), shape)
    del last
    x = tf.ones(shape, tf.bfloat16)
    result = bindings.fused_batch_norm_grad_v3(
        dy, x, one, zero, one, zero, epsilon=0.0, data_format=data_format
    )
    np.testing.assert_array_equal(result.offset_backprop, np.float32([m + 2]))
    np.testing.assert_array_equal(result.scale_backprop, np.float32([m + 2]))
    flat = tf.reshape(result.x_backprop, [-1])
    mean = (m + 2) / m
    for index, gradient in ((0, 1), (m // 2, 1), (m - 2, 1), (m - 1, 3)):
        assert float(flat[index]) == pytest.approx(gradient - 2 * mean, rel=2**-8)
