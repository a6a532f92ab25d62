"""The ops and their Python API: loading, execution modes, buffers, threads."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import subprocess
import sys

import forked
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import tf_bn_ops
from tf_bn_ops import _ops
from tf_bn_ops.spec import LIST_LENGTHS, OPS, ops

# By the ops' names: FusedBatchNormV2 is fused_batch_norm_v2.
PUBLIC_FUNCTIONS = {
    name: getattr(_ops, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) for name in OPS
}


# The others are called in test_split_ops.py.
WITH_FLOAT32_STATISTICS = [
    tf_bn_ops.fused_batch_norm,
    *(f for name, f in PUBLIC_FUNCTIONS.items() if OPS[name].formula not in ops.PARTS),
]

VIEWS = {"y_backprop", "x", "x_backprop_grad", "input", "normalized_delta"}


def run_python(program: str, *arguments: object, **environment: str) -> str:
    """The output of a fresh process; fails with its standard error."""
    run = forked.run(program, *arguments, env={**os.environ, **environment})
    assert run.returncode == 0, run.stderr
    return run.stdout


def make_inputs(shape=(2, 3, 4, 5), channels=5, dtype=tf.float32):
    rng = np.random.default_rng(0)
    vector = lambda: rng.uniform(0.5, 2, channels).astype(np.float32)  # noqa: E731
    data = lambda: tf.cast(rng.normal(size=shape), dtype)  # noqa: E731
    return [data(), data(), vector(), vector(), vector()]


# ---- Loading -------------------------------------------------------------------------------------


def test_importing_prints_nothing_and_loads_no_tensorflow():
    program = (
        "import sys, tf_bn_ops; tf_bn_ops.raw_ops.FusedBatchNormGrad; "
        "assert 'tensorflow' not in sys.modules"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, stderr=subprocess.STDOUT, text=True) == ""


def test_a_bare_load_op_library_gives_the_ops():
    program = """
import tensorflow as tf, tf_bn_ops
ops = tf.load_op_library(tf_bn_ops.library_path())
one = tf.ones([1])
data = tf.ones([1, 2, 2, 1])
print(float(ops.tf_bn_ops_fused_batch_norm_grad(data, data, one, one, one).offset_backprop[0]))
print(sorted(n for n in dir(ops) if n.startswith("TfBnOps_")))
# The package's own way comes second and finds the same library.
assert tf_bn_ops.raw_ops.FusedBatchNormGrad
from tf_bn_ops import _loader
_loader.load()
"""
    # One op is none of those that take a tensor of the shape of x.
    names = sorted("TfBnOps_" + name for name in [*OPS, "BatchNormGatherStats"])
    assert run_python(program) == f"4.0\n{names}\n"


@pytest.mark.parametrize("name", PUBLIC_FUNCTIONS)
def test_raw_ops_take_the_arguments_of_the_function_by_keyword_only(name):
    raw_op = getattr(tf_bn_ops.raw_ops, name)
    function = PUBLIC_FUNCTIONS[name]
    assert list(inspect.signature(raw_op).parameters) == list(
        inspect.signature(function).parameters
    )
    assert list(inspect.signature(function).parameters) == [
        *(arg.name for arg in OPS[name].inputs),
        *OPS[name].attrs,
        "name",
    ]
    with pytest.raises(TypeError):
        raw_op(1, 2, 3, 4, 5)
    assert function.__doc__


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_the_spec_is_that_of_the_op_def(op):
    tf_bn_ops.load()
    op_def = op_def_registry.get(op.registered_name)
    assert [a.name for a in op.inputs] == [a.name for a in op_def.input_arg]
    assert [a.name for a in op.outputs] == [a.name for a in op_def.output_arg]
    attrs = {a.name: a for a in op_def.attr}
    # The length of a list of inputs is no argument, that of a list of outputs is.
    derived = {"T", "U", "epsilon_rest"} | (LIST_LENGTHS - {*op.attrs})
    assert {*attrs} - derived == {*op.attrs}
    allowed = attrs["T"].allowed_values.list.type
    assert {tf.as_dtype(t).name for t in allowed} == {tf.as_dtype(d).name for d in op.dtypes}
    if "data_format" in attrs:
        formats = [f.decode() for f in attrs["data_format"].allowed_values.list.s]
        assert formats == list(op.layouts)
        assert attrs["epsilon"].default_value.f == np.float32(op.attrs["epsilon"])


def test_an_unknown_forced_implementation_is_one_sentence():
    program = """
import numpy as np, tensorflow as tf, tf_bn_ops
one = np.ones(1, np.float32)
data = np.ones((1, 1, 1, 1), np.float32)
try:
    tf_bn_ops.fused_batch_norm_grad(data, data, one, one, one)
except tf.errors.FailedPreconditionError as error:
    print(error.message.split("}} ")[-1])
"""
    message = run_python(program, TF_BN_OPS_CPU_ISA="mmx")
    assert message.startswith(
        "The environment variable TF_BN_OPS_CPU_ISA is invalid: there is no CPU "
        'implementation "mmx"; this build has '
    )


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("function", WITH_FLOAT32_STATISTICS)
def test_a_tensor_as_epsilon_is_refused_eagerly_and_in_graphs(function, in_graph):
    """It is an attribute of the op; a number of NumPy is a number."""
    parameters = inspect.signature(function).parameters.values()
    call = lambda epsilon: function(  # noqa: E731
        **{
            p.name: tf.ones([1, 2, 2, 2] if p.name in VIEWS else [2])
            for p in parameters
            if p.default is p.empty and p.name != "epsilon"
        },
        epsilon=epsilon,
    )
    wrapped = tf.function(call, autograph=False) if in_graph else call
    with pytest.raises(TypeError, match=r"must be a number, not \w*Tensor: .* not as a ten"):
        wrapped(tf.constant(1e-3))
    with pytest.raises(TypeError, match="epsilon must be a number"):
        call(tf.Variable(1e-3))
    call(np.float32(1e-3))


# ---- Execution modes -----------------------------------------------------------------------------


def test_eager_function_session_and_named_node_agree():
    dy, x, scale, mean, variance = make_inputs()
    want = tf_bn_ops.fused_batch_norm_grad(dy, x, scale, mean, variance)
    in_function = tf.function(tf_bn_ops.fused_batch_norm_grad)(dy, x, scale, mean, variance)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        node = tf_bn_ops.fused_batch_norm_grad(
            dy.numpy(), x.numpy(), scale, mean, variance, name="my_grad"
        )
        assert node.x_backprop.op.name == "my_grad"
        in_session = session.run(node)
    for a, b, c in zip(want, in_function, in_session, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("dtype", [tf.float32, tf.half, tf.bfloat16])
def test_inputs_keep_their_values(dtype):
    """x_backprop may reuse an input's buffer, but only where the op is the last to read it."""
    dy, x, scale, mean, variance = make_inputs(dtype=dtype)
    before = [tf.identity(dy).numpy().copy(), tf.identity(x).numpy().copy()]
    want = _ops.fused_batch_norm_grad_v2(dy, x, scale, mean, variance)
    np.testing.assert_array_equal(dy, before[0])
    np.testing.assert_array_equal(x, before[1])

    @tf.function
    def step(dy, x):
        temporary = dy * tf.cast(2, dtype)  # Dies with the op: its buffer may be reused.
        kept = dy * tf.cast(2, dtype) + tf.cast(0, dtype)
        first = _ops.fused_batch_norm_grad_v2(temporary, x, scale, mean, variance)
        second = _ops.fused_batch_norm_grad_v2(kept, x, scale, mean, variance)
        return first, second, kept

    first, second, kept = step(dy, x)
    np.testing.assert_array_equal(kept, (dy * tf.cast(2, dtype)).numpy())
    np.testing.assert_array_equal(x, before[1])
    for a, b, c in zip(want[:3], first[:3], second[:3], strict=True):
        np.testing.assert_array_equal(b, c)
        # Twice the gradient is exactly twice the result: all operations scale by a power of two.
        np.testing.assert_array_equal(a * tf.cast(2, a.dtype), b)


def test_one_tensor_as_both_gradient_and_input():
    _, x, scale, mean, variance = make_inputs()
    got = tf_bn_ops.fused_batch_norm_grad(x, x, scale, mean, variance)
    want = tf_bn_ops.fused_batch_norm_grad(tf.identity(x) + 0, x, scale, mean, variance)
    np.testing.assert_array_equal(got.x_backprop, want.x_backprop)


# ---- Threads -------------------------------------------------------------------------------------

DIGESTS = """
import hashlib, sys
import numpy as np, tensorflow as tf, tf_bn_ops
from tf_bn_ops import _ops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
gradients, forward = hashlib.sha256(), hashlib.sha256()
rng = np.random.default_rng(0)

def update_gradients(dy, x, vectors, data_format):
    for is_training in (True, False):
        result = _ops.fused_batch_norm_grad_v2(
            dy, x, *vectors[:3], data_format=data_format, is_training=is_training)
        for output in result:
            gradients.update(output.numpy().tobytes())

def update_forward(x, vectors, data_format):
    for attrs in ({"exponential_avg_factor": 0.25}, {"is_training": False},
                  {"side_input": [x], "activation_mode": "Relu6"}):
        call = lambda *tensors: tf_bn_ops.raw_ops.FusedBatchNormEx(
            **dict(zip(("x", "scale", "offset", "mean", "variance"), tensors)),
            data_format=data_format, **attrs)
        eager, graph = call(x, *vectors), tf.function(call)(x, *vectors)
        for output, other in zip(eager, graph):
            assert output.numpy().tobytes() == other.numpy().tobytes()
            forward.update(output.numpy().tobytes())

for data_format, shape in [("NHWC", (8, 56, 56, 64)), ("NHWC", (64, 33, 35, 3)),
                           ("NCHW", (4, 3, 150, 151)), ("NCHW", (16, 200, 7, 7)),
                           ("NHWC", (7, 5, 3, 1030))]:
    channels = shape[-1] if data_format == "NHWC" else shape[1]
    for dtype in (tf.float32, tf.half, tf.bfloat16):
        dy, x = (tf.cast(rng.normal(3, 1, shape), dtype) for _ in range(2))
        vectors = [tf.constant(rng.uniform(0.5, 2, channels), tf.float32) for _ in range(4)]
        update_gradients(dy, x, vectors, data_format)
        update_forward(x, vectors, data_format)
print(gradients.hexdigest(), forward.hexdigest())
"""


@pytest.mark.long
def test_results_are_bitwise_identical_for_any_number_of_intra_op_threads():
    digests = [run_python(DIGESTS, threads) for threads in (1, 2, 7)]
    assert [len(digest) for digest in digests[0].split()] == [hashlib.sha256().digest_size * 2] * 2
    assert len(set(digests)) == 1


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
    """13 GB of bfloat16. Ones everywhere but in the last element: sums and ends are checked."""
    rows, columns = 46341, 46342  # Their product is just above 2^31.
    shape = (1, rows, columns, 1) if data_format == "NHWC" else (1, 1, rows, columns)
    m = rows * columns
    assert m > 2**31
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    last = tf.scatter_nd([[m - 1]], [tf.constant(2, tf.bfloat16)], [m])
    dy = tf.reshape(last + tf.constant(1, tf.bfloat16), shape)
    del last
    x = tf.ones(shape, tf.bfloat16)
    result = _ops.fused_batch_norm_grad_v3(
        dy, x, one, zero, one, zero, epsilon=0.0, data_format=data_format
    )
    np.testing.assert_array_equal(result.offset_backprop, np.float32([m + 2]))
    np.testing.assert_array_equal(result.scale_backprop, np.float32([m + 2]))
    flat = tf.reshape(result.x_backprop, [-1])
    mean = (m + 2) / m
    for index, gradient in ((0, 1), (m // 2, 1), (m - 2, 1), (m - 1, 3)):
        assert float(flat[index]) == pytest.approx(gradient - 2 * mean, rel=2**-8)
