"""The twins of TensorFlow's ops differ from the built-in only in their names.

Every test runs the built-in beside the shim and compares; no expectation is a copied list.
The built-in is TensorFlow's Eigen path (conftest.py turns oneDNN off): oneDNN's differs from the
documented contract in the shape of the placeholders and crashes on some bad input. What both paths
compute is compared by the conformance run.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import tf_bn_ops
from tf_bn_ops.spec import DATA_FORMATS, DTYPES, OPS, VIEW
from tf_bn_ops.spec.ops import BATCH_NORM, BATCH_NORM_GRAD

TWINS = [op for op in OPS.values() if op.builtin is not None]
TWIN_NAMES = [op.name for op in TWINS]
GRADIENTS = [op for op in TWINS if op.formula == BATCH_NORM_GRAD]
GRADIENT_NAMES = [op.name for op in GRADIENTS]
FORWARD = [op for op in TWINS if op.formula == BATCH_NORM]
FORWARD_NAMES = [op.name for op in FORWARD]
# Attrs of calls; which inputs an op reads depends on them.
MODES: dict[str, dict[str, Any]] = {
    "training": {"is_training": True},
    "averaging": {"is_training": True, "exponential_avg_factor": 0.25},
    "frozen": {"is_training": False},
}
# (op, mode), for every mode that the op has.
CALLS = [(op.name, mode) for op in TWINS for mode in MODES if {*MODES[mode]} <= {*op.attrs}]


def shim(name: str) -> Callable[..., Any]:
    return getattr(tf_bn_ops.raw_ops, name)


def builtin(name: str) -> Callable[..., Any]:
    return getattr(tf.raw_ops, name)


def inputs_of(name: str, shape: tuple[int, ...], channels: int, dtype: str = "float32") -> dict:
    """Random valid inputs."""
    rng = np.random.default_rng(len(shape) + channels)
    vector = lambda low, high: rng.uniform(low, high, channels).astype(np.float32)  # noqa: E731
    values = {
        "y_backprop": tf.cast(rng.normal(size=shape), dtype),
        "x": tf.cast(rng.normal(size=shape), dtype),
        "scale": vector(0.5, 2),
        "mean": vector(-1, 1),
        "variance": vector(0.5, 2),
        "forward_coefficients": np.zeros(0, np.float32),
        "offset": vector(-1, 1),
    }
    return {arg.name: values[arg.role] for arg in OPS[name].inputs}


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, Any]:
    """("ok", result), or (class of the error, its message without the op's name)."""
    try:
        return "ok", call(*args, **kwargs)
    except Exception as error:
        message = str(error).replace("TfBnOps>", "").replace("TfBnOps_", "")
        # Where the node was created: lines of this file.
        message = re.sub(r"Detected at node.*?\nNode: '[^']*'\n", "", message, flags=re.S)
        message = message.split("\n\nOriginal stack trace")[0]
        # TensorFlow's wrappers of some ops leave the name of the call out.
        return type(error).__name__, message.removesuffix(" name: op")


def assert_same_outcome(call: Callable[[Callable[..., Any]], Any], name: str) -> None:
    """Both raise the same error with the same text."""
    want = outcome(call, builtin(name))
    got = outcome(call, shim(name))
    assert want[0] != "ok", "the built-in accepts this input: it tests nothing"
    assert got == want


# ---- OpDefs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TWIN_NAMES)
def test_op_defs_are_equal_but_for_name_and_docs(name):
    tf_bn_ops.load()

    def stripped(registered_name: str) -> Any:
        op_def = type(op_def_registry.get(registered_name))()
        op_def.CopyFrom(op_def_registry.get(registered_name))
        op_def.name = op_def.summary = op_def.description = ""
        for part in (*op_def.input_arg, *op_def.output_arg, *op_def.attr):
            part.description = ""
        return op_def

    assert stripped("TfBnOps>" + name) == stripped(name)


@pytest.mark.parametrize("name", TWIN_NAMES)
def test_results_are_the_same_named_tuples(name):
    inputs = inputs_of(name, (2, 3, 4, 5), 5)
    got, want = shim(name)(**inputs), builtin(name)(**inputs)
    assert type(got).__name__ == type(want).__name__
    assert got._fields == want._fields
    tf.nest.assert_same_structure(got, want)
    for field in got._fields:
        assert getattr(got, field).dtype == getattr(want, field).dtype
        if (name, field) == ("FusedBatchNormV3", "reserve_space_3"):
            # [0] on paper and from oneDNN; the Eigen kernel's is a scalar.
            assert (getattr(got, field).shape, getattr(want, field).shape) == ((5, 5), ())
        else:
            assert getattr(got, field).shape == getattr(want, field).shape


# ---- Shape inference -----------------------------------------------------------------------------

# Shapes of y_backprop, x, and the vectors, at graph construction.
STATIC_SHAPES = [
    ((2, 3, 4, 5), (2, 3, 4, 5), (5,)),
    ((2, 5, 3, 4), (2, 5, 3, 4), (5,)),
    ((2, 3, 4, 5, 6), (2, 3, 4, 5, 6), (6,)),
    ((2, 3, 4, 5, 6), (2, 3, 4, 5, 6), (3,)),
    ((None, None, None, None), (None, None, None, 5), (None,)),
    ((None, 3, 4, None), (None, 3, 4, None), (7,)),
    ((None, 7, 4, None), (2, None, 4, None), (None,)),
    (None, None, None),
    (None, (2, 3, 4, 5), None),
    (None, (2, 3, 4, 5, 6), (6,)),
    ((2, 3, 4, 5), None, (5,)),
    ((2, 3, 4, 0), (2, 3, 4, 0), (0,)),
    # Wrong in one way each.
    ((2, 3, 4), (2, 3, 4), (4,)),
    ((2, 3, 4, 5), (2, 3, 4, 5, 6), (5,)),
    ((2, 3, 4, 5), (2, 3, 4, 6), (5,)),
    ((2, 3, 4, 5), (2, 3, 4, 5), (6,)),
    ((2, 3, 4, 5), (2, 3, 4, 5), (5, 1)),
    ((2, 3, 4, 5), (2, 3, 4, 5), ()),
    ((2, 3, 4, 5), (9, 8, 7, 5), (5,)),
]


@pytest.mark.parametrize("name", TWIN_NAMES)
@pytest.mark.parametrize("shapes", STATIC_SHAPES, ids=str)
def test_shape_inference_is_the_same(name, shapes):
    dy_shape, x_shape, vector_shape = shapes

    def infer(op: Callable[..., Any], data_format: str, is_training: bool) -> Any:
        with tf.Graph().as_default():
            of = lambda shape: tf.compat.v1.placeholder(tf.float32, shape)  # noqa: E731
            roles = {"y_backprop": dy_shape, "x": x_shape, "forward_coefficients": None}
            inputs = {a.name: of(roles.get(a.role, vector_shape)) for a in OPS[name].inputs}
            result = op(**inputs, data_format=data_format, is_training=is_training, name="op")
            return [
                output.shape.as_list() if output.shape.rank is not None else None
                for output in result
            ]

    for data_format, is_training in itertools.product(DATA_FORMATS, (True, False)):
        want = outcome(infer, builtin(name), data_format, is_training)
        got = outcome(infer, shim(name), data_format, is_training)
        assert got == want


# ---- Errors --------------------------------------------------------------------------------------

# What is wrong -> replaced inputs, by role. Shapes are for NHWC (2, 3, 4, 5).
BAD_INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "y_backprop of rank 3": {"y_backprop": (3, 4, 5)},
    "y_backprop of rank 0": {"y_backprop": ()},
    "y_backprop of rank 6": {"y_backprop": (1, 1, 2, 3, 4, 5)},
    "x of rank 0": {"x": ()},
    "x of rank 2": {"x": (4, 5)},
    "x of rank 6": {"x": (1, 1, 2, 3, 4, 5)},
    "both of rank 3": {"y_backprop": (3, 4, 5), "x": (3, 4, 5)},
    "ranks differ": {"y_backprop": (2, 3, 4, 5), "x": (1, 2, 3, 4, 5)},
    "sizes differ": {"y_backprop": (2, 3, 4, 5), "x": (2, 3, 5, 5)},
    "channels of x differ": {"x": (2, 3, 4, 6)},
    "scale of rank 2": {"scale": (5, 1)},
    "scale of rank 0": {"scale": ()},
    "offset of rank 2": {"offset": (1, 5)},
    "mean of rank 2": {"mean": (1, 5)},
    "mean of rank 0": {"mean": ()},
    "variance of rank 0": {"variance": ()},
    "too few scales": {"scale": (4,)},
    "no scales": {"scale": (0,)},
    "too many offsets": {"offset": (6,)},
    "no offsets": {"offset": (0,)},
    "one of each vector": dict.fromkeys(("scale", "offset", "mean", "variance"), (1,)),
    "too many means": {"mean": (6,)},
    "no means": {"mean": (0,)},
    "too few variances": {"variance": (1,)},
    "no variances": {"variance": (0,)},
    "mean of rank 0, one variance": {"mean": (), "variance": (1, 1)},
}
# Accepted in training with a factor of 1, where a forward op does not read them.
NOT_READ = ("too many means", "no means", "too few variances", "no variances")


def bad_calls() -> list[tuple[str, str, str]]:
    """(op, mode, what is wrong), for the inputs that the op has and reads."""
    return [
        (name, mode, what)
        for name, mode in CALLS
        for what, shapes in BAD_INPUTS.items()
        if {*shapes} <= {arg.role for arg in OPS[name].inputs}
        and not (name in FORWARD_NAMES and mode == "training" and what in NOT_READ)
    ]


def with_replaced(name: str, what: str) -> dict:
    names = {arg.role: arg.name for arg in OPS[name].inputs}
    replaced = {names[role]: np.ones(s, np.float32) for role, s in BAD_INPUTS[what].items()}
    return {**inputs_of(name, (2, 3, 4, 5), 5), **replaced}


@pytest.mark.parametrize(("name", "mode", "what"), bad_calls())
def test_bad_shapes_fail_the_same_in_eager_mode(name, mode, what):
    inputs = with_replaced(name, what)
    assert_same_outcome(lambda op: op(**inputs, **MODES[mode], name="op"), name)


@pytest.mark.parametrize(("name", "mode", "what"), bad_calls())
def test_bad_shapes_fail_the_same_in_graph_mode(name, mode, what):
    """Statically known, and only when the graph runs."""
    inputs = with_replaced(name, what)

    def run(op: Callable[..., Any], *, known: bool) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            placeholders = {
                key: tf.compat.v1.placeholder(tf.float32, np.shape(value) if known else None)
                for key, value in inputs.items()
            }
            result = op(**placeholders, **MODES[mode], name="op")
            return session.run(result, {placeholders[k]: np.asarray(v) for k, v in inputs.items()})

    for known in (True, False):
        want = outcome(run, builtin(name), known=known)
        got = outcome(run, shim(name), known=known)
        if known and want[0] == "ok":  # Shape inference does not compare all sizes.
            continue
        assert want[0] != "ok"
        assert got == want


BAD_ATTRS: list[dict[str, Any]] = [
    {"data_format": "NWHC"},
    {"data_format": "NCHW_VECT_C"},
    {"data_format": ""},
    {"data_format": 3},
    {"epsilon": "small"},
    {"is_training": "perhaps"},
    {"exponential_avg_factor": "half"},
]


@pytest.mark.parametrize(
    ("name", "attrs"),
    [(op.name, attrs) for op in TWINS for attrs in BAD_ATTRS if {*attrs} <= {*op.attrs}],
    ids=str,
)
def test_bad_attrs_fail_the_same(name, attrs):
    inputs = inputs_of(name, (2, 3, 4, 5), 5)
    call = lambda op: op(**inputs, **attrs, name="op")  # noqa: E731
    assert_same_outcome(call, name)

    def in_graph(op: Callable[..., Any]) -> Any:
        with tf.Graph().as_default():
            return call(op)

    assert_same_outcome(in_graph, name)


@pytest.mark.parametrize("name", TWIN_NAMES)
@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64", "string"])
def test_bad_dtypes_fail_the_same(name, dtype):
    inputs = inputs_of(name, (2, 3, 4, 5), 5)
    for arg in OPS[name].inputs:
        if arg.kind == VIEW:
            inputs[arg.name] = tf.zeros((2, 3, 4, 5), dtype)
    assert_same_outcome(lambda op: op(**inputs, name="op"), name)


@pytest.mark.parametrize("dtype", ["bfloat16", "uint32"])
def test_vectors_of_a_type_without_kernel_fail_the_same(dtype):
    """bfloat16, which the OpDef of FusedBatchNormV3 allows, and one that it does not."""
    inputs = inputs_of("FusedBatchNormV3", (2, 3, 4, 5), 5)
    for name in ("scale", "offset", "mean", "variance"):
        inputs[name] = tf.cast(inputs[name], dtype)

    def kind(op: Callable[..., Any]) -> str:
        # The message lists the kernels of the op.
        return outcome(lambda: op(**inputs))[0]

    assert kind(shim("FusedBatchNormV3")) == kind(builtin("FusedBatchNormV3")) != "ok"


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_bad_data_format_in_eager_mode_is_an_error_not_an_abort(onednn):
    """Under oneDNN the built-in V1 ops abort the process."""
    program = """
import tensorflow as tf, tf_bn_ops
from tf_bn_ops.spec import OPS, VIEW
for op in ("FusedBatchNorm", "FusedBatchNormGrad"):
    inputs = {a.name: tf.ones([1, 1, 1, 1] if a.kind == VIEW else [1]) for a in OPS[op].inputs}
    try:
        getattr(tf_bn_ops.raw_ops, op)(**inputs, data_format="bad")
    except tf.errors.InvalidArgumentError as error:
        print("refused", op)
"""
    run = forked.run(
        program,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": onednn},
    )
    refused = "refused FusedBatchNorm\nrefused FusedBatchNormGrad\n"
    assert (run.returncode, run.stdout) == (0, refused), run.stderr


# ---- Placeholders, empty tensors -----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 0, 5)])
def test_reserve_space_3_of_v3_is_accepted_in_any_shape(shape):
    inputs = inputs_of("FusedBatchNormGradV3", (2, 3, 4, 5), 5)
    want = shim("FusedBatchNormGradV3")(**inputs)
    inputs["reserve_space_3"] = np.full(shape, np.nan, np.float32)
    got = shim("FusedBatchNormGradV3")(**inputs)
    builtin("FusedBatchNormGradV3")(**inputs)
    np.testing.assert_array_equal(got.x_backprop, want.x_backprop)


EMPTY = [
    ("NHWC", (0, 3, 4, 5), 5),
    ("NHWC", (2, 3, 4, 0), 0),
    ("NCHW", (2, 5, 0, 4), 5),
    ("NCHW", (0, 0, 0, 0), 0),
    ("NDHWC", (2, 3, 0, 4, 5), 5),
    ("NCDHW", (2, 5, 3, 0, 4), 5),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("data_format", "shape", "channels"), EMPTY)
def test_empty_tensors_have_no_statistics(data_format, shape, channels, mode):
    """In training NaN, as the built-in's, and zeros for the gradient, which the built-in may leave
    unwritten. Frozen those given, as for any x; the built-in's are NaN."""
    inputs = inputs_of("FusedBatchNormV3", shape, channels)
    attrs = {"data_format": data_format, **MODES[mode]}
    got = shim("FusedBatchNormV3")(**inputs, **attrs)
    want = builtin("FusedBatchNormV3")(**inputs, **attrs)
    assert got.y.shape == shape
    assert np.all(np.isnan(want.batch_mean)) and np.all(np.isnan(want.batch_variance))
    given = inputs["mean"], inputs["variance"]
    if mode == "frozen":
        expected = [*given, *given]
    else:
        np.testing.assert_array_equal(got.batch_mean, want.batch_mean)
        nothing = np.zeros(channels)
        expected = [nothing + np.nan, nothing + np.nan, nothing, nothing]
    for output, value in zip(got[1:5], expected, strict=True):
        np.testing.assert_array_equal(output, value)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("data_format", "shape", "channels"), EMPTY)
def test_empty_tensors(data_format, shape, channels, is_training):
    """Zero sums, and x_backprop in the shape of x (the built-in's is 4-D for empty 5-D input)."""
    inputs = inputs_of("FusedBatchNormGradV3", shape, channels)
    result = shim("FusedBatchNormGradV3")(
        **inputs, data_format=data_format, is_training=is_training
    )
    want = builtin("FusedBatchNormGradV3")(
        **inputs, data_format=data_format, is_training=is_training
    )
    assert result.x_backprop.shape == shape
    for got, expected in zip(result[1:], want[1:], strict=True):
        np.testing.assert_array_equal(got, expected)
    assert not np.any(result.scale_backprop) and not np.any(result.offset_backprop)


# ---- Values of the forward ops -----------------------------------------------------------------


def calls_of(op: Any) -> list[tuple[str, str, tuple[int, ...], int]]:
    """(data format, dtype, shape, channels) of every layout and dtype."""
    result = []
    for data_format, dtype in itertools.product(op.layouts, op.dtypes):
        rank, channels_last = DATA_FORMATS[data_format]
        shape = (2, 3, 4, 5, 6)[:rank]
        result.append((data_format, dtype, shape, shape[-1 if channels_last else 1]))
    return result


@pytest.mark.parametrize("op", FORWARD, ids=FORWARD_NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_forward_values_are_the_builtins(op, mode):
    """Where both are right; frozen the Eigen kernel leaves its reserve spaces unwritten."""
    for data_format, dtype, shape, channels in calls_of(op):
        inputs = inputs_of(op.name, shape, channels, dtype)
        attrs = {"epsilon": 1e-3, "data_format": data_format, **MODES[mode]}
        got, want = shim(op.name)(**inputs, **attrs), builtin(op.name)(**inputs, **attrs)
        # One rounding of either side, and those of float32 arithmetic.
        unit = 4 * DTYPES[dtype].unit_roundoff
        np.testing.assert_allclose(
            np.float64(got.y), np.float64(want.y), rtol=unit, atol=unit + 2.0**-20
        )
        written = 3 if mode == "frozen" else 5
        for ours, theirs in zip(got[1:written], want[1:written], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        if mode == "frozen":
            for field, given in (("mean", "mean"), ("variance", "variance")):
                np.testing.assert_array_equal(getattr(got, "batch_" + field), inputs[given])
            np.testing.assert_array_equal(got.reserve_space_1, inputs["mean"])
            np.testing.assert_array_equal(got.reserve_space_2, inputs["variance"])


@pytest.mark.parametrize("name", FORWARD_NAMES)
@pytest.mark.parametrize("what", NOT_READ)
def test_statistics_of_any_size_where_they_are_not_read(name, what):
    """In training with a factor of 1; not even a NaN of theirs."""
    want = shim(name)(**inputs_of(name, (2, 3, 4, 5), 5))
    inputs = with_replaced(name, what)
    for given in ("mean", "variance"):
        inputs[given] = np.full_like(inputs[given], np.nan)
    for ours, expected in zip(shim(name)(**inputs), want, strict=True):
        np.testing.assert_array_equal(ours, expected)
    builtin(name)(**inputs)


@pytest.mark.parametrize(
    ("shape", "data_format", "channels"),
    [
        ((2, 2, 3, 4, 5), "NHWC", 5),
        ((2, 5, 2, 3, 4), "NCHW", 5),
        ((2, 3, 4, 5), "NDHWC", 5),
        ((2, 5, 3, 4), "NCDHW", 5),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_other_rank_than_that_of_the_data_format(shape, data_format, channels, mode):
    """Eagerly the built-in's Eigen path takes it, and oneDNN does not; graphs refuse it."""
    inputs = inputs_of("FusedBatchNormV3", shape, channels)
    attrs = {"data_format": data_format, **MODES[mode]}
    got = shim("FusedBatchNormV3")(**inputs, **attrs)
    want = builtin("FusedBatchNormV3")(**inputs, **attrs)
    for ours, theirs in zip(got[:3], want[:3], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)

    def in_graph(op: Callable[..., Any]) -> Any:
        with tf.Graph().as_default():
            return op(**inputs, **attrs, name="op")

    assert_same_outcome(in_graph, "FusedBatchNormV3")


# ---- Gradients and vectorization -----------------------------------------------------------------


@pytest.mark.parametrize("op", GRADIENTS, ids=GRADIENT_NAMES)
@pytest.mark.parametrize("is_training", [True, False])
def test_second_order_gradients_equal_the_builtins(op, is_training):
    for data_format, dtype in itertools.product(op.layouts, op.dtypes):
        rank, channels_last = DATA_FORMATS[data_format]
        shape = [2, 3, 4, 5, 6][:rank]
        channels = shape[-1 if channels_last else 1]
        inputs = inputs_of(op.name, tuple(shape), channels, dtype)
        names = ["y_backprop", "x", "scale"]

        def second_order(function: Callable[..., Any]) -> Any:
            watched = {name: tf.convert_to_tensor(inputs[name]) for name in names}  # noqa: B023
            with tf.GradientTape() as tape:
                tape.watch(watched)
                # The forward values of the built-in do not exist for frozen channels-first; the
                # gradient function does not need them.
                result = function(
                    **{**inputs, **watched},  # noqa: B023
                    data_format=data_format,  # noqa: B023
                    is_training=is_training,
                )
                loss = sum(
                    tf.reduce_sum(tf.sin(tf.cast(output, tf.float32))) for output in result[:3]
                )
            return tape.gradient(loss, watched)

        try:
            want = second_order(builtin(op.name))
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
            assert not is_training and not channels_last  # Only there may the built-in refuse.
            continue
        except tf.errors.OpError:
            raise
        except Exception:
            # TensorFlow's own rule fails on frozen half; the shim's does not.
            assert not is_training and dtype != "float32"
            assert outcome(second_order, shim(op.name))[0] == "ok"
            continue
        got = second_order(shim(op.name))
        for name in names:
            # The same function of the same first-order values, both rounded elsewhere.
            tolerance = {"half": 4e-3, "bfloat16": 3e-2, "float32": 1e-4}[dtype]
            np.testing.assert_allclose(
                np.asarray(got[name], np.float64),
                np.asarray(want[name], np.float64),
                rtol=tolerance,
                atol=tolerance,
            )


@pytest.mark.parametrize("name", GRADIENT_NAMES)
def test_vectorized_map_works_where_it_works_for_the_builtin(name):
    inputs = inputs_of(name, (2, 3, 4, 5), 5)
    stacked = tf.stack([inputs["y_backprop"], 2 * inputs["y_backprop"], inputs["x"]])

    def mapped(op: Callable[..., Any]) -> Any:
        return tf.vectorized_map(lambda dy: op(**{**inputs, "y_backprop": dy})[:3], stacked)

    for got, want in zip(mapped(shim(name)), mapped(builtin(name)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_vectorized_map_of_v3_is_one_op_and_no_loop():
    inputs = inputs_of("FusedBatchNormGradV3", (2, 3, 4, 5), 5)

    @tf.function
    def mapped(stacked: Any) -> Any:
        op = shim("FusedBatchNormGradV3")
        return tf.vectorized_map(lambda dy: op(**{**inputs, "y_backprop": dy})[0], stacked)

    graph = mapped.get_concrete_function(tf.TensorSpec((3, 2, 3, 4, 5))).graph
    types = [operation.type for operation in graph.get_operations()]
    # The other one is that of a single iteration, which nothing reads.
    assert 1 <= types.count("TfBnOps>FusedBatchNormGradV3") <= 2
    assert not [name for name in types if "While" in name]


@pytest.mark.parametrize("op", FORWARD, ids=FORWARD_NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_forward_ops_equal_the_builtins(op, mode):
    """By x, scale and offset, of y alone; None by mean and variance."""
    for data_format, dtype, shape, channels in calls_of(op):
        inputs = inputs_of(op.name, shape, channels, dtype)
        tensors = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}

        def gradients(function: Callable[..., Any]) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensors)  # noqa: B023
                result = function(**tensors, data_format=data_format, **MODES[mode])  # noqa: B023
                loss = sum(tf.reduce_sum(tf.sin(tf.cast(o, tf.float32))) for o in result[:3])
            return tape.gradient(loss, tensors)  # noqa: B023

        got = gradients(shim(op.name))
        want = gradients(builtin(op.name))
        assert [got[n] is None for n in got] == [want[n] is None for n in got]
        assert got["mean"] is None and got["variance"] is None
        for name in ("x", "scale", "offset"):
            tolerance = {"half": 4e-3, "bfloat16": 3e-2, "float32": 1e-4}[dtype]
            np.testing.assert_allclose(
                np.float64(got[name]), np.float64(want[name]), rtol=tolerance, atol=tolerance
            )


# Of an output: what two orders of summing 16-bit elements may differ by.
_UNITS = {"float32": 2**-22, "float16": 2**-10, "bfloat16": 2**-7}


@pytest.mark.parametrize(
    ("op", "narrow"),
    [
        *((op, False) for op in FORWARD),
        # The converters do not look at the element type.
        *(
            pytest.param(op, True, marks=pytest.mark.long)
            for op in FORWARD
            if set(op.dtypes) > {"float32"}
        ),
    ],
    ids=lambda value: getattr(value, "name", ["float32", "narrow"][value is True]),
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stacked", [["x"], ["x", "scale", "mean"], ["offset"]], ids=str)
def test_vectorized_map_of_forward_ops_equals_a_loop(op, narrow, mode, stacked):
    """Without a while loop, over any of the inputs. Sums in double leave the same float32 in any
    order; those of 16-bit elements are float32 in runs that depend on the view, which is not the
    loop's: their statistics may differ by 2^-22, and y by a unit in the last place."""
    calls = [call for call in calls_of(op) if (call[1] != "float32") == narrow]
    assert calls
    for data_format, dtype, shape, channels in calls:
        inputs = inputs_of(op.name, shape, channels, dtype)
        inputs = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}
        looped = {n: tf.stack([inputs[n], inputs[n] / 2, inputs[n] * 2]) for n in stacked}

        def one(some: dict[str, Any]) -> Any:
            attrs = {"data_format": data_format, **MODES[mode]}  # noqa: B023
            return shim(op.name)(**{**inputs, **some}, **attrs)[:5]  # noqa: B023

        got = tf.vectorized_map(one, looped, fallback_to_while_loop=False)
        want = tf.map_fn(one, looped, fn_output_signature=(dtype, *["float32"] * 4))
        for ours, expected in zip(got, want, strict=True):
            unit = _UNITS[ours.dtype.name] if narrow else 0
            assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(np.float64(ours), np.float64(expected), rtol=unit, atol=unit)
