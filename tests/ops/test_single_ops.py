"""What is special to one op, or to the twins of TensorFlow's ops; test_every_op.py has the rest.

Promised: twins of TensorFlow's ops return its named tuples and refuse what they refuse; the second
order takes any rank and exists up to the fourth derivative, on TensorFlow's ops; epsilon keeps its
double precision where the op takes one; parts of synchronised batch norm take channels in any
dimension, ignore parts without elements and have gradients.
"""

from __future__ import annotations

from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from op_calls import assert_all_pass, bits, call_of, small
from test_every_op import of_every_twin

import tf_bn_ops
from tf_bn_ops import _gradients, _loader, raw_ops, spec
from tf_bn_ops.generated import bindings
from tf_bn_ops.harness import c_abi
from tf_bn_ops.spec import DTYPES, OPS, SMOOTH_ACTIVATIONS, VIEW
from tf_bn_ops.spec.ops import BATCH_NORM

V3, GRAD_V3 = OPS["FusedBatchNormV3"], OPS["FusedBatchNormGradV3"]
NGRAPH, GRAD_GRAD = OPS["BatchNormTrainingBackprop"], OPS["FusedBatchNormGradGrad"]
forward_twins = pytest.mark.parametrize(
    "op", [op for op in OPS.values() if op.formula == BATCH_NORM], ids=lambda op: op.name
)


# ---- The twins -----------------------------------------------------------------------------------


@of_every_twin
def test_results_of_a_twin_are_the_same_named_tuple(op):
    call, tensors, _ = call_of(small(op, "NHWC", dtype="float32"))
    got, want = call(tensors), call(tensors, tf.raw_ops)
    assert (type(got).__name__, got._fields) == (type(want).__name__, want._fields)
    tf.nest.assert_same_structure(got, want)
    for field, ours, theirs in zip(got._fields, got, want, strict=True):
        assert ours.dtype == theirs.dtype
        if (op, field) == (V3, "reserve_space_3"):
            # [0] on paper and from oneDNN; the Eigen kernel's is a scalar.
            assert (ours.shape, theirs.shape) == ((8, tensors["scale"].shape[0]), ())
        else:
            assert ours.shape == theirs.shape


@pytest.mark.parametrize("dtype", ["bfloat16", "uint32"])
def test_vectors_of_a_type_without_kernel_fail_as_with_the_builtin(dtype):
    """bfloat16, which the OpDef of FusedBatchNormV3 allows, and one that it does not."""
    call, tensors, _ = call_of(small(V3, "NHWC", dtype="float32"))
    tensors = {name: t if name == "x" else tf.cast(t, dtype) for name, t in tensors.items()}
    with pytest.raises(Exception) as want:
        call(tensors, tf.raw_ops)
    with pytest.raises(want.type):
        call(tensors)


def refused_data_formats() -> list[str]:
    refused = []
    for op in (OPS["FusedBatchNorm"], OPS["FusedBatchNormGrad"]):
        inputs = {a.name: tf.ones([1, 1, 1, 1] if a.kind == VIEW else [1]) for a in op.inputs}
        try:
            getattr(raw_ops, op.name)(**inputs, data_format="bad")
        except tf.errors.InvalidArgumentError:
            refused.append(op.name)
    return refused


def test_bad_data_format_in_eager_mode_is_an_error_under_onednn():
    """There the built-in V1 ops abort the process."""
    refused = forked.call(refused_data_formats, TF_ENABLE_ONEDNN_OPTS="1")
    assert refused == ["FusedBatchNorm", "FusedBatchNormGrad"]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 0, 5)])
def test_reserve_space_3_of_v3_is_accepted_in_any_shape(shape):
    call, tensors, _ = call_of(small(GRAD_V3, "NHWC"))
    want = call({**tensors, "reserve_space_3": tf.zeros([0])})
    got = call({**tensors, "reserve_space_3": tf.fill(shape, np.nan)})
    assert bits(got[:3]) == bits(want[:3])
    call({**tensors, "reserve_space_3": tf.fill(shape, 1.0)}, tf.raw_ops)


@forward_twins
@pytest.mark.parametrize("given", [{"mean": 6}, {"mean": 0}, {"variance": 1}, {"variance": 0}])
def test_statistics_of_any_size_where_they_are_not_read(op, given):
    """In training with a factor of 1; not even a NaN of theirs."""
    call, tensors, _ = call_of(small(op, "NHWC", dtype="float32"))
    factor = {"exponential_avg_factor": 1.0}
    unread = {name: tf.fill([size], np.nan) for name, size in given.items()}
    for name in {"mean", "variance"} - {*given}:
        unread[name] = tf.fill(tensors[name].shape, np.nan)
    assert bits(call({**tensors, **unread}, **factor)) == bits(call(tensors, **factor))
    call({**tensors, **unread}, tf.raw_ops, **factor)


@pytest.mark.parametrize("mode", ["training", "frozen"])
@pytest.mark.parametrize(
    ("data_format", "other"),
    [("NHWC", "NDHWC"), ("NCHW", "NCDHW"), ("NDHWC", "NHWC"), ("NCDHW", "NCHW")],
)
def test_the_other_rank_than_that_of_the_data_format(data_format, other, mode):
    """Eagerly the built-in's Eigen path takes it, and oneDNN does not; graphs refuse it."""
    call, tensors, _ = call_of(small(V3, other, mode, dtype="float32"))
    got = call(tensors, data_format=data_format)
    assert bits(got) == bits(call(tensors))
    want = call(tensors, tf.raw_ops, data_format=data_format)
    for ours, theirs in zip(got[:3], want[:3], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    with tf.Graph().as_default():
        for ops in (raw_ops, tf.raw_ops):
            with pytest.raises(ValueError, match="must be rank"):
                fed = {n: tf.compat.v1.placeholder(t.dtype, t.shape) for n, t in tensors.items()}
                call(fed, ops, data_format=data_format)


# ---- Forward -------------------------------------------------------------------------------------


def test_an_epsilon_of_minus_the_variance_or_below_gives_no_finite_y():
    call, tensors, _ = call_of(small(V3, "NHWC", dtype="float32"))
    for epsilon in (-1e3, -1e30, float("-inf"), float("nan")):
        assert np.all(np.isnan(call(tensors, epsilon=epsilon).y))


def test_wrong_arguments_of_ex_are_one_sentence():
    x, vector = np.ones((2, 3, 4, 5), np.float32), np.ones(5, np.float32)
    inputs = {"x": x, **dict.fromkeys(("scale", "offset", "mean", "variance"), vector)}
    call = raw_ops.FusedBatchNormEx
    with pytest.raises(ValueError, match="a list of at most one tensor, not of 2"):
        call(**inputs, side_input=[x, x])
    with pytest.raises(tf.errors.InvalidArgumentError, match="side_input shape must be equal"):
        call(**inputs, side_input=[x[:1]])
    with pytest.raises(tf.errors.InvalidArgumentError, match='"Identity", "Relu", "Relu6"'):
        call(**inputs, activation_mode="Elu")
    with tf.Graph().as_default():
        with pytest.raises(
            ValueError, match="at most one side input is accepted, but num_side_inputs"
        ):
            tf_bn_ops.load().tf_bn_ops_fused_batch_norm_ex(**inputs, side_input=[x, x])
        with pytest.raises(ValueError, match="side_input must have the shape of x"):
            call(**inputs, side_input=[x[:1]])


def test_the_side_input_tells_the_shape_of_y():
    tf_bn_ops.load()
    with tf.Graph().as_default():
        of = lambda *shape: tf.compat.v1.placeholder(tf.float32, shape)  # noqa: E731
        vectors = {name: of(None) for name in ("scale", "offset", "mean", "variance")}
        side_input = [of(2, None, None, 5)]
        got = raw_ops.FusedBatchNormEx(x=of(None, 3, None, None), **vectors, side_input=side_input)
        assert got.y.shape.as_list() == [2, 3, None, 5]


# ---- nGraph's op ---------------------------------------------------------------------------------


def test_training_backprop_runs_when_functions_run_eagerly():
    call, tensors, _ = call_of(small(NGRAPH))
    want = call(tensors, epsilon=2e-3)
    tf.config.run_functions_eagerly(True)
    try:
        got, again = call(tensors, epsilon=3e-3), call(tensors, epsilon=2e-3)
    finally:
        tf.config.run_functions_eagerly(False)
    assert bits(again) == bits(want)
    assert not np.array_equal(got.input_delta, want.input_delta)


@pytest.mark.parametrize("value", [np.float32(1e-3), np.array([1e-3])], ids=["type", "shape"])
def test_an_epsilon_attr_of_another_type_is_refused(value):
    """Only a hand-made NodeDef can hold one."""
    op = tf_bn_ops.load().tf_bn_ops_batch_norm_training_backprop
    _, tensors, _ = call_of(small(NGRAPH))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = [tf.constant(tensors[arg.name].numpy()) for arg in NGRAPH.inputs]
        node = op(*inputs, tf.make_tensor_proto(value))
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="epsilon must be a scalar of type"
        ):
            session.run(node)


# ---- The second-order gradient -------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 7), (2, 3, 2, 2, 2, 3), (1, 3), (1, 3, 1, 1)])
def test_the_second_order_gradient_takes_any_rank_from_2_on(shape):
    """Channels first; as what it is of four dimensions."""
    call, tensors, _ = call_of(
        small(GRAD_GRAD, "NCHW", shape=(*shape[:2], int(np.prod(shape[2:])), 1))
    )
    want = call(tensors)
    got = call({n: t if t.shape.rank == 1 else tf.reshape(t, shape) for n, t in tensors.items()})
    assert got.x_grad.shape == shape
    assert bits(got) == bits(want)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW", "NDHWC"])
@pytest.mark.parametrize("mode", ["training", "frozen"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_composition_is_the_same_function(data_format, mode, dtype, monkeypatch):
    """It runs where the op has no kernel, on a GPU in a build for CPUs; its bounds follow from its
    own roundings."""
    _, tensors, attrs = call_of(small(GRAD_GRAD, data_format, mode, dtype=dtype, seed=4))
    tensors = tuple(tensors[arg.name] for arg in GRAD_GRAD.inputs)
    tf_bn_ops.load()
    want = _gradients._second_order(tensors, **attrs)
    assert type(want).__name__ == "FusedBatchNormGradGrad"
    monkeypatch.setattr(_gradients, "_devices_with_kernels", lambda spec: frozenset())
    got = _gradients._second_order(tensors, **attrs)
    assert type(got) is tuple
    tolerance = 64 * DTYPES[dtype].unit_roundoff
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = (tf.cast(t, tf.float64).numpy() for t in (a, b))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


def test_the_device_name_says_whether_there_is_a_kernel(monkeypatch):
    tf_bn_ops.load()
    has_kernel = _gradients._has_kernel
    assert has_kernel(GRAD_GRAD, "/job:localhost/replica:0/task:0/device:CPU:0")
    assert has_kernel(GRAD_GRAD, "")
    assert not has_kernel(GRAD_GRAD, "/device:TPU:0")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(_gradients, "_devices_with_kernels", lambda spec: frozenset(["CPU"]))
    assert not has_kernel(GRAD_GRAD, "")
    assert not has_kernel(GRAD_GRAD, "/device:GPU:0")
    assert has_kernel(GRAD_GRAD, "/device:CPU:0")


def test_fourth_order_exists():
    call, tensors, _ = call_of(small(GRAD_GRAD))
    x = tensors["x"]
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            result = tf.reduce_sum(call({**tensors, "x": x}).x_grad ** 2)
        first = inner.gradient(result, x)
    assert np.isfinite(outer.gradient(first, x)).all()


def test_statistics_of_a_type_without_kernel_are_refused_in_one_sentence():
    call, tensors, _ = call_of(small(GRAD_GRAD, "NHWC", dtype="half"))
    wide = {n: tf.cast(t, tf.float64) if t.shape.rank == 1 else t for n, t in tensors.items()}
    with pytest.raises(TypeError, match=r"of float32 or half .* not of float64"):
        call(wide)


@pytest.mark.parametrize("op", [NGRAPH, GRAD_GRAD], ids=lambda op: op.name)
@pytest.mark.parametrize("epsilon", [1e-9, 1.1e-9])
def test_epsilon_keeps_its_double_precision(op, epsilon):
    """In a constant channel rstd is 1/sqrt(epsilon); float32 would be off by 1e-8."""
    case = small(op, mode="training", dtype="float64", kind="constant_input", epsilon=epsilon)
    assert_all_pass([case])


# ---- Behind an activation ------------------------------------------------------------------------


@pytest.mark.parametrize("activation_mode", ["Relu", "Relu6", *SMOOTH_ACTIVATIONS])
def test_the_gradient_without_an_offset(activation_mode):
    """None, and reserve_space_3 in its place, say that the mask is computed from y; a smooth
    activation needs one."""
    is_smooth = activation_mode in SMOOTH_ACTIVATIONS
    x, vector = tf.reshape(tf.linspace(-3.0, 9.0, 24), [2, 2, 2, 3]), tf.ones([3])
    vectors = dict.fromkeys(("scale", "offset", "mean", "variance"), vector)
    got = raw_ops.FusedBatchNormEx(x=x, **vectors, activation_mode=activation_mode)
    given = {
        "y_backprop": x, "x": x, "scale": vector, "reserve_space_1": got.reserve_space_1,
        "reserve_space_2": got.reserve_space_2, "reserve_space_3": got.reserve_space_3,
        "y": tf.fill(x.shape, np.nan) if is_smooth else got.y, "activation_mode": activation_mode,
    }  # fmt: skip
    gradient = raw_ops.FusedBatchNormGradEx
    want = gradient(**given, offset=vector).x_backprop
    assert np.all(np.isfinite(want))
    for offset in (tf.zeros([0]), got.reserve_space_3):
        if not is_smooth:
            np.testing.assert_array_equal(gradient(**given, offset=offset).x_backprop, want)
            continue
        sentence = "offset must be a vector of as many"
        with pytest.raises(tf.errors.InvalidArgumentError, match=sentence):
            gradient(**given, offset=offset)
    vectors |= {name: tf.cast(vector, tf.float64) for name in ("mean", "variance")}
    if is_smooth:
        with pytest.raises(tf.errors.InvalidArgumentError, match='"Identity", "Relu", "Relu6"'):
            raw_ops.BatchNormElemt(x=x, **vectors, side_input=[], activation_mode=activation_mode)


# ---- The parts of synchronised batch normalization -----------------------------------------------
# That a batch which is split over replicas has the results and the derivatives of the whole is in
# tests/sync; what gathered statistics are, in tests/core/test_replicas.py.

PARTS = [op for op in OPS.values() if op.formula in spec.ops.PARTS]
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


def test_gradients_of_gathered_statistics():
    rng = np.random.default_rng(0)
    counts = tf.constant([5.0, 0.0, 3.0], tf.float64)
    means, m2s = rng.normal(size=(3, 2)), rng.uniform(1, 2, (3, 2))
    inputs = [tf.constant(means), tf.constant(m2s)]

    def gathered(means: Any, m2s: Any) -> Any:
        found = bindings.batch_norm_gather_stats(counts, means, m2s)
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


STATS = bindings.batch_norm_stats
ONE, TWO = tf.ones([1], tf.float64), tf.ones([2], tf.float64)


def elements_of(**changed: Any) -> Any:
    inputs = {
        **{name: tf.ones([4, 2]) for name in ("y_backprop", "x")},
        **{name: tf.ones([2]) for name in ("scale", "offset")},
        **{name: TWO for name in ("mean", "variance", "sum_dy", "sum_dy_xmu")},
        "count": 8.0,
        **changed,
    }
    return bindings.batch_norm_backward_elemt(**inputs)


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
            lambda: bindings.batch_norm_gather_stats(TWO, [TWO], [TWO]),
            "counts must have one element per row of means and m2s",
        ),
        (
            lambda: bindings.batch_norm_gather_stats(ONE, [TWO], TWO),
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
    call = tf.function(bindings.batch_norm_gather_stats, jit_compile=jit_compile)
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
        bindings.batch_norm_backward_reduce(**v, y=[v["x"]] * 2)
    v["scale"] = tf.cast(v["scale"], tf.float32)
    with pytest.raises(TypeError, match="per-channel tensors of float64 with tensors of float64"):
        bindings.batch_norm_backward_reduce(**v)
    with pytest.raises(TypeError, match="epsilon must be a number, not EagerTensor"):
        elements_of(epsilon=tf.constant(1e-3))
