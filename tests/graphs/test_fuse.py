"""tf_bn_ops.rewrite.fuse: what it fuses and what it refuses, and the way back."""

from __future__ import annotations

import ctypes
import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from test_rewrite import read, run_without_the_library

import tf_bn_ops
from tf_bn_ops import __main__ as command
from tf_bn_ops import _graph_fusion, rewrite

EX, GRAD_EX = "TfBnOps>FusedBatchNormEx", "TfBnOps>FusedBatchNormGradEx"
SHAPES = {
    "NHWC": (4, 6, 5, 3),
    "NCHW": (4, 3, 6, 5),
    "NDHWC": (2, 3, 4, 5, 3),
    "NCDHW": (2, 3, 3, 4, 5),
}
ACTIVATIONS = {"Relu": tf.nn.relu, "Relu6": tf.nn.relu6}
VECTORS = tuple(np.random.default_rng(7).uniform(0.5, 1.5, (4, 3)).astype(np.float32))


def data(shape, dtype=tf.float32, seed=0):
    return tf.cast(np.random.default_rng(seed).normal(1, 2, shape), dtype)


def ops_of(graph) -> list[str]:
    """The batch-norm ops and what may be fused with them, in a message or concrete function."""
    if isinstance(graph, tf.types.experimental.ConcreteFunction):
        graph = graph.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    parts = ("BatchNorm", "Relu", "Add")
    return sorted(node.op for node in nodes if any(part in node.op for part in parts))


def norm(x, version="V3", data_format="NHWC", is_training=True, vectors=VECTORS, **attrs):
    """y of TensorFlow's op, or of this library's if `version` says so."""
    raw = tf.raw_ops if not version.startswith("shim") else tf_bn_ops.raw_ops
    op = getattr(raw, "FusedBatchNorm" + version.removeprefix("shim"))
    scale, offset, mean, variance = vectors
    return op(
        x=x, scale=scale, offset=offset, mean=mean, variance=variance,
        data_format=data_format, is_training=is_training, **attrs,
    )[0]  # fmt: skip


def step(forward, shapes, dtype=tf.float32, cotangent=lambda y: tf.cos(3 * y)):
    """A concrete function: the result of `forward` and its gradients by all arguments."""

    @tf.function(input_signature=[tf.TensorSpec(shape, dtype) for shape in shapes])
    def function(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = forward(*inputs)
        return [y, *tape.gradient(y, inputs, cotangent(y))]

    return function.get_concrete_function()


def refusals(graph, **keep) -> list[str]:
    return [fusion.refusal for fusion in rewrite.fusion_report(graph, **keep)]


def assert_close(got, want, tolerance=1e-4):
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


# ---- What is fused -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "frozen"])
@pytest.mark.parametrize("adds", [False, True], ids=["plain", "add"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("data_format", SHAPES)
@pytest.mark.parametrize("dtype", [tf.float32, tf.half, tf.bfloat16], ids=lambda d: d.name)
def test_forward_and_backward(dtype, data_format, activation, adds, is_training):
    """Bitwise what the fused ops give; and close to TensorFlow's chain, where it runs."""
    shape = SHAPES[data_format]
    attrs = {"data_format": data_format, "is_training": is_training}

    def forward(x, side):
        y = norm(x, "shimV3", **attrs)
        return ACTIVATIONS[activation](y + side if adds else y)

    concrete = step(lambda x, side: forward(x, side) + 0 * side, [shape, shape], dtype)
    fused = rewrite.fuse(concrete)
    assert [op for op in ops_of(fused) if "Batch" in op or "elu" in op] == [EX, GRAD_EX]
    x, side = data(shape, dtype), data(shape, dtype, seed=1)
    y, x_backprop, side_backprop = fused(x, side)
    # In half, masks may differ where y is at the bound: it is rounded once instead of three times.
    for got, want in zip((y, x_backprop, side_backprop), concrete(x, side), strict=True):
        assert close_fraction(got, want, dtype) > (0.95 if dtype.size == 2 else 0.999)

    ex = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, **dict(zip(("scale", "offset", "mean", "variance"), VECTORS, strict=True)),
        side_input=[side] if adds else [], activation_mode=activation, **attrs,
    )  # fmt: skip
    np.testing.assert_array_equal(y, ex.y)
    gradient = tf_bn_ops.raw_ops.FusedBatchNormGradEx(
        y_backprop=tf.cos(3 * y), x=x, scale=VECTORS[0],
        reserve_space_1=ex.reserve_space_1, reserve_space_2=ex.reserve_space_2,
        reserve_space_3=ex.reserve_space_3, offset=VECTORS[1], y=ex.y,
        num_side_inputs=int(adds), activation_mode=activation, **attrs,
    )  # fmt: skip
    np.testing.assert_array_equal(x_backprop, gradient.x_backprop)
    if adds:
        np.testing.assert_array_equal(side_backprop, gradient.side_input_backprop[0])


def close_fraction(got, want, dtype) -> float:
    unit = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype.name]
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.mean(np.abs(got - want) <= unit * (1 + np.abs(want))))


@pytest.mark.parametrize("version", ["", "V2", "V3", "shim", "shimV2", "shimV3"])
def test_all_versions(version):
    concrete = step(lambda x: tf.nn.relu(norm(x, version)), [SHAPES["NHWC"]])
    fused = rewrite.fuse(concrete)
    assert ops_of(fused) == [EX, GRAD_EX]
    x = data(SHAPES["NHWC"])
    assert_close(fused(x), concrete(x))
    unfused = rewrite.unfuse(fused)
    norms = ["FusedBatchNormGradV3", "FusedBatchNormV3"]
    assert ops_of(unfused) == ["Relu", "ReluGrad", *("TfBnOps>" + op for op in norms)]
    assert_close(unfused(x), concrete(x))
    for builtin in (rewrite.to_builtin(fused), rewrite.to_builtin(unfused)):
        assert ops_of(builtin) == [*norms, "Relu", "ReluGrad"]
        assert_close(builtin(x), concrete(x))


def test_running_statistics_are_outputs_of_the_fused_op():
    def forward(x):
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=VECTORS[0], offset=VECTORS[1], mean=VECTORS[2], variance=VECTORS[3],
            exponential_avg_factor=0.25, epsilon=0.01,
        )  # fmt: skip
        return tf.nn.relu(y), mean, variance

    x = data(SHAPES["NHWC"])
    concrete = tf.function(forward).get_concrete_function(x)
    fused = rewrite.fuse(concrete)
    assert ops_of(fused) == [EX]
    assert_close(fused(x), concrete(x))


def test_the_keras_layers_op_keeps_its_moving_variance():
    def forward(x):
        y, _, variance, *_ = tf_bn_ops.raw_ops.FusedBatchNormEx(
            x=x, scale=VECTORS[0], offset=VECTORS[1], mean=VECTORS[2], variance=VECTORS[3],
            exponential_avg_factor=0.25, bessel_correction=False, side_input=[],
        )  # fmt: skip
        return tf.nn.relu6(y), variance

    x = data(SHAPES["NHWC"])
    concrete = tf.function(forward).get_concrete_function(x)
    fused = rewrite.fuse(concrete)
    assert ops_of(fused) == [EX]
    np.testing.assert_array_equal(fused(x)[1], concrete(x)[1])
    # The op that the layer had; without an activation it is fused with nothing.
    unfused = rewrite.unfuse(fused)
    assert ops_of(unfused) == ["Relu6", EX]
    assert ops_of(rewrite.unfuse(concrete)) == ["Relu6", EX]
    np.testing.assert_array_equal(unfused(x)[0], concrete(x)[0])
    np.testing.assert_array_equal(unfused(x)[1], concrete(x)[1])
    assert_close(rewrite.to_builtin(fused)(x), concrete(x))


def beside_others(x):
    """The shortcut of a ResNet; with a batch of unknown size its gradient holds reductions."""
    shortcut = tf.nn.relu(norm(tf.sin(x)))
    y = tf.nn.relu(norm(tf.cos(shortcut)) + shortcut)
    return tf.nn.relu(shortcut - norm(y)) + y  # The last norm is subtracted, which is no pattern.


def nested(x):
    block = tf.function(lambda x: tf.nn.relu(norm(x) + x))
    x = block(x)
    x = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu6(norm(x)), lambda: x)
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, x: (i + 1, tf.nn.relu(norm(tf.sin(x)))), [0, x]
    )[1]


# A block, and how many places of it are fused forward and backward.
BLOCKS = {
    "a side input that others read too": (beside_others, 2, 2),
    "two norms that are added": (lambda x: tf.nn.relu(norm(tf.sin(x)) + norm(tf.cos(x))), 1, 1),
    "functions, branches and loops": (nested, 3, 3),
}


# In a function whose batch is not known, an addition might broadcast.
@pytest.mark.parametrize(
    ("name", "batch"), [*((name, 4) for name in BLOCKS), *((name, None) for name in [*BLOCKS][:2])]
)
def test_blocks(name, batch):
    """They compute what they did, fused, taken apart again, and with TensorFlow's ops alone."""
    forward, *places = BLOCKS[name]
    concrete = step(forward, [(batch, *SHAPES["NHWC"][1:])])
    fused = rewrite.fuse(concrete)
    assert [ops_of(fused).count(op) for op in (EX, GRAD_EX)] == places
    x = data(SHAPES["NHWC"])
    for function in (fused, rewrite.unfuse(fused), rewrite.to_builtin(fused)):
        assert_close(function(x), concrete(x))


def test_the_report_names_the_functions_of_branches_and_loops():
    report = rewrite.fusion_report(step(nested, [SHAPES["NHWC"]]))
    assert {fusion.refusal for fusion in report} == {""}
    assert {"while", "cond"} <= {
        part for fusion in report for part in ("while", "cond") if part in fusion.function
    }


def test_a_backward_pass_alone_masks_by_y():
    """Whoever computed y: the backward function of a tf.function has it as an argument."""

    def backward(dy, x, y):
        return tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=tf.raw_ops.ReluGrad(gradients=dy, features=y), x=x, scale=VECTORS[0],
            reserve_space_1=VECTORS[2], reserve_space_2=VECTORS[3],
            # Of the size of the fused op's coefficients, which it must not be taken for.
            reserve_space_3=tf.fill([9], np.nan),
        )[:3]  # fmt: skip

    inputs = [data(SHAPES["NHWC"], seed=seed) for seed in range(3)]
    concrete = tf.function(backward).get_concrete_function(*inputs)
    fused = rewrite.fuse(concrete)
    assert ops_of(fused) == [GRAD_EX]
    assert_close(fused(*inputs), concrete(*inputs))
    assert_close(rewrite.unfuse(fused)(*inputs), concrete(*inputs))


def norm_outputs(x, offset=VECTORS[1], **attrs):
    """All outputs of TensorFlow's V3."""
    scale, _, mean, variance = VECTORS
    return tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=offset, mean=mean, variance=variance, **attrs
    )


def norm_gradient(y_backprop, x, norms):
    """The gradient of `norm_outputs` by x, scale and offset."""
    return tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=y_backprop, x=x, scale=VECTORS[0], reserve_space_1=norms.reserve_space_1,
        reserve_space_2=norms.reserve_space_2, reserve_space_3=norms.reserve_space_3,
    )[:3]  # fmt: skip


def run_graph(graph_def, x, *fetches):
    """What a graph computes of its placeholder, by the names of operations."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return session.run([f"{fetch}:0" for fetch in fetches], {"x:0": x})


def test_a_forward_op_that_is_fused_after_its_gradient():
    """What another run fuses: the gradient's placeholder becomes coefficients, and the mask has to
    stay that of y."""

    def build(x):
        norms = norm_outputs(x, offset=VECTORS[1] - 1, name="norm")
        y = tf.nn.relu(norms.y)
        mask = tf.raw_ops.ReluGrad(gradients=tf.cos(3 * y), features=y)
        for i, each in enumerate(norm_gradient(mask, x, norms)):
            tf.identity(each, name=f"result{i}")

    graph_def = graph_def_of(build)
    once = rewrite.fuse(graph_def, keep=["norm"])
    assert ops_of(once) == ["FusedBatchNormV3", "Relu", GRAD_EX]
    twice = rewrite.fuse(once)
    assert ops_of(twice) == [EX, GRAD_EX]
    x, names = data(SHAPES["NHWC"]).numpy(), [f"result{i}" for i in range(3)]
    want = run_graph(graph_def, x, *names)
    for fused in (once, twice):
        assert_close(run_graph(fused, x, *names), want)


def gradient_that_reads_the_placeholder(x):
    """x_backprop of a graph that somebody else wrote: its offset is not read, and is not the
    norm's."""
    norms = norm_outputs(x, offset=VECTORS[1] - 1, name="norm")
    y = tf.nn.relu(norms.y, name="y")
    gradients = tf_bn_ops.raw_ops.FusedBatchNormGradEx(
        y_backprop=tf.cos(3 * y), x=x, scale=VECTORS[0], reserve_space_1=norms.reserve_space_1,
        reserve_space_2=norms.reserve_space_2, reserve_space_3=norms.reserve_space_3,
        offset=VECTORS[0], y=y, activation_mode="Relu",
    )  # fmt: skip
    tf.identity(gradients.x_backprop, name="result")


def test_a_gradient_that_reads_the_placeholder_of_a_norm():
    graph_def = graph_def_of(gradient_that_reads_the_placeholder)
    fused = rewrite.fuse(graph_def)
    assert ops_of(fused) == [EX, GRAD_EX]
    x = data(SHAPES["NHWC"]).numpy()
    assert_close(run_graph(fused, x, "result"), run_graph(graph_def, x, "result"))


def test_a_gradient_that_reads_the_placeholder_of_what_the_remapper_fused():
    """Likewise of TensorFlow's op, which becomes this library's."""
    graph_def = graph_def_of(gradient_that_reads_the_placeholder)
    want = rewrite.fuse(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    remapped = nodes["norm"]
    remapped.op = "_FusedBatchNormEx"
    remapped.attr["activation_mode"].s = b"Relu"
    remapped.attr["num_side_inputs"].i = 0
    for node in graph_def.node:  # Without Relu.
        node.input[:] = ["norm" if name == "y" else name for name in node.input]
    graph_def.node.remove(nodes["y"])
    fused = rewrite.fuse(graph_def)
    assert ops_of(fused) == [EX, GRAD_EX]
    x = data(SHAPES["NHWC"]).numpy()
    assert_close(run_graph(fused, x, "result"), run_graph(want, x, "result"))


def unbroadcast(gradient, x, y, name, after=()):
    """What the gradient of x + y has for x, where shapes were not known. (tf.shape would be a
    constant here, which is no part of the pattern.)"""
    shapes = [tf.raw_ops.Shape(input=each) for each in (x, y)]
    axes = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1]).r0
    total = tf.raw_ops.Sum(input=gradient, axis=axes, name=name + "/sum")
    with tf.control_dependencies(after):
        return tf.raw_ops.Reshape(tensor=total, shape=shapes[0], name=name)


def gradient_behind_an_addition(x, after=()):
    """The sum of a mask, which the gradient of x's norm reads; its reduction waits for `after`."""
    norms = norm_outputs(x)
    y = tf.nn.relu(norms.y + tf.sin(x))
    mask = tf.raw_ops.ReluGrad(gradients=tf.cos(x), features=y)
    reduced = unbroadcast(mask, x, x, "reduced", after)
    tf.identity(norm_gradient(reduced, x, norms)[0], name="result0")
    return reduced.op.inputs[0].op


def test_reductions_that_only_wait_for_that_of_a_mask():
    def build(x):
        sum_of_mask = gradient_behind_an_addition(x)
        tf.identity(unbroadcast(tf.exp(x), x, x, "other", [sum_of_mask]), name="result1")

    graph_def = graph_def_of(build)
    x, names = data(SHAPES["NHWC"]).numpy(), ["result0", "result1"]
    fused = rewrite.fuse(graph_def)
    assert GRAD_EX in ops_of(fused)
    assert_close(run_graph(fused, x, *names), run_graph(graph_def, x, *names))


def test_what_a_reduction_waits_for_still_runs():
    fused = rewrite.fuse(
        graph_def_of(lambda x: gradient_behind_an_addition(x, [tf.no_op(name="effect")]))
    )
    assert "^effect" in {name for node in fused.node for name in node.input}


def test_reductions_of_a_mask_of_another_shape():
    """As if a gradient of three elements had been broadcast from two: the reduction sums nothing,
    and reshapes."""
    with tf.Graph().as_default() as graph:
        ones = tf.ones([4])
        x = tf.compat.v1.placeholder(tf.float32, [2, 3, 4, 4], "x")
        cotangent = tf.reshape(tf.cos(x), [3, 2, 4, 4])
        mask = tf.raw_ops.ReluGrad(gradients=cotangent, features=tf.sin(cotangent))
        tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=unbroadcast(mask, x, tf.exp(x), "reduced"), x=x, scale=ones,
            reserve_space_1=ones, reserve_space_2=ones, reserve_space_3=ones, name="result",
        )  # fmt: skip
    graph_def = graph.as_graph_def()
    fused = rewrite.fuse(graph_def)
    assert fused == graph_def
    fed = data([2, 3, 4, 4]).numpy()
    assert_close(run_graph(fused, fed, "result"), run_graph(graph_def, fed, "result"))


def test_masks_at_zero_six_and_nan():
    """y exactly at a bound: gradients are those of ReluGrad and Relu6Grad."""
    x = np.zeros((1, 2, 2, 3), np.float32)
    x[0, :, :, 0] = [[0, 6], [3, np.nan]]
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    for activation in ACTIVATIONS.values():
        concrete = step(
            lambda x, activation=activation: activation(
                norm(x, is_training=False, vectors=(ones, zeros, zeros, ones), epsilon=0.0)
            ),
            [x.shape],
            cotangent=tf.ones_like,
        )
        fused = rewrite.fuse(concrete)
        assert ops_of(fused) == [EX, GRAD_EX]
        for got, want in zip(fused(x), concrete(x), strict=True):
            np.testing.assert_array_equal(got, want)


# ---- What is refused -----------------------------------------------------------------------------


def placeholders(shape=SHAPES["NHWC"], dtype=tf.float32):
    return tf.compat.v1.placeholder(dtype, shape, "x")


def graph_def_of(build, **arguments):
    """The GraphDef that `build` makes of a placeholder."""
    with tf.Graph().as_default() as graph:
        build(placeholders(**arguments))
    return graph.as_graph_def()


def assert_refused(graph_def, reason, **keep):
    """Nothing is fused, for this reason, and the graph stays what it is."""
    assert refusals(graph_def, **keep) == [reason]
    assert rewrite.fuse(graph_def, **keep) == graph_def


def others_read_the_norm(x):
    y = norm(x)
    tf.nn.relu(y)
    tf.sin(y)


def others_read_the_sum(x):
    y = norm(x) + x
    tf.nn.relu(y)
    tf.sin(y)


def others_wait_for_it(x):
    y = norm(x)
    tf.nn.relu(y)
    with tf.control_dependencies([y]):
        tf.constant(1, name="after")


def it_would_become_a_cycle(x):
    y, mean, *_ = norm_outputs(x)
    tf.nn.relu(y + (x - mean))


def on_a_device(name, x):
    with tf.device(name):
        y = norm(x)
    tf.nn.relu(y)


def behind_a_convolution(x, is_training=False):
    x = tf.nn.conv2d(x, tf.ones([1, 1, 3, 3]), 1, "SAME")
    tf.nn.relu(norm(x, is_training=is_training))


def with_vectors_of_bfloat16(x):
    tf.nn.relu(norm(tf.cast(x, tf.bfloat16), vectors=tf.unstack(tf.ones([4, 3], tf.bfloat16))))


REFUSED = {
    "Sin reads FusedBatchNormV3 too": others_read_the_norm,
    "Sin reads add too": others_read_the_sum,
    "after has a control edge from FusedBatchNormV3": others_wait_for_it,
    "what is added or waited for depends on its other outputs": it_would_become_a_cycle,
    "it is on the device /device:GPU:0": functools.partial(on_a_device, "/GPU:0"),
    "FusedBatchNormV3 and Relu are on different devices": functools.partial(on_a_device, "/CPU:0"),
    "its attr U is DT_BFLOAT16": with_vectors_of_bfloat16,
    "TensorFlow fuses it into the convolution before it": behind_a_convolution,
    "StopGradient is between it and add": lambda x: tf.nn.relu(
        tf.stop_gradient(norm(x)) + tf.sin(x)
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_says_why(reason):
    assert_refused(graph_def_of(REFUSED[reason]), reason)


def test_what_looks_like_it_and_is_fused():
    behind = functools.partial(behind_a_convolution, is_training=True)
    assert refusals(graph_def_of(behind)) == [""]


def test_an_intermediate_whose_shape_is_read():
    """Its shape is that of x."""

    def build(x):
        y = norm(tf.sin(x))
        tf.identity(tf.shape(y), "result")
        tf.nn.relu(y)

    fused = rewrite.fuse(graph_def_of(build, shape=(None, 2, 3, 3)))
    assert ops_of(fused) == [EX]
    (shape,) = run_graph(fused, np.zeros((5, 2, 3, 3)), "result")
    np.testing.assert_array_equal(shape, [5, 2, 3, 3])


def test_an_intermediate_that_is_fetched():
    def build(x):
        tf.nn.relu(norm(x) + x)

    assert_refused(graph_def_of(build), "add is kept by name", keep=["add"])

    @tf.function
    def returns_it(x):
        y = norm(x)
        return y, tf.nn.relu(y)

    concrete = returns_it.get_concrete_function(data(SHAPES["NHWC"]))
    (reason,) = refusals(concrete)
    assert "reads FusedBatchNormV3 too" in reason

    meta_graph = tf.compat.v1.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def_of(build))
    meta_graph.signature_def["serve"].outputs["y"].name = "FusedBatchNormV3:0"
    assert_refused(meta_graph, "FusedBatchNormV3 is kept by name")
    meta_graph.signature_def["serve"].outputs["y"].name = "Relu:0"
    assert refusals(meta_graph) == [""]
    meta_graph.collection_def["mine"].node_list.value.append("add:0")
    assert_refused(meta_graph, "add is kept by name")


def test_control_edges_into_a_place_stay():
    def before(x):
        y = norm(x)
        with tf.control_dependencies([tf.constant(1, name="before")]):
            tf.nn.relu(y)

    (fused,) = [node for node in rewrite.fuse(graph_def_of(before)).node if node.op == EX]
    assert "^before" in fused.input


def test_what_would_become_a_cycle_of_two():
    """Each of the two adds what the other's mean is in; one alone might be fused."""

    def build(x):
        norms = [norm_outputs(tf.sin(x)), norm_outputs(tf.cos(x))]
        for (y, *_), (_, mean, *_) in (norms, norms[::-1]):
            tf.nn.relu(y + (x - mean))
        tf.nn.relu(norm(x))

    graph_def = graph_def_of(build)
    reason = "what is added or waited for depends on its other outputs"
    assert refusals(graph_def) == [reason, reason, ""]


def test_nodes_without_their_inputs_are_no_pattern():
    """Which no TensorFlow imports: they stay what they are."""
    graph_def = graph_def_of(lambda x: gradient_behind_an_addition(x))
    for node in graph_def.node:
        for kept in range(len(node.input)):
            broken = tf.compat.v1.GraphDef()
            broken.CopyFrom(graph_def)
            (same,) = [each for each in broken.node if each.name == node.name]
            del same.input[kept:]
            assert node.name not in {fusion.node for fusion in rewrite.fusion_report(broken)}


def residual_blocks(number: int):
    """A GraphDef of so many, forward and backward, each of eight nodes."""

    def one(x):
        (y, mean, _, *reserved) = norm_outputs(x, name="norm")
        y = tf.nn.relu(tf.raw_ops.AddV2(x=y, y=x, name="add"), name="relu")
        mask = tf.raw_ops.ReluGrad(gradients=tf.identity(y, "y"), features=y, name="mask")
        backprop = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=mask, x=x, scale=VECTORS[0], reserve_space_1=reserved[0],
            reserve_space_2=reserved[1], reserve_space_3=reserved[2], name="gradient",
        ).x_backprop  # fmt: skip
        tf.raw_ops.AddN(inputs=[mask, backprop], name="sum")
        tf.identity(mean, "mean")

    names = ("norm", "add", "relu", "y", "mask", "gradient", "sum", "mean")
    block = graph_def_of(one, shape=(None, *SHAPES["NHWC"][1:]))
    result = tf.compat.v1.GraphDef(versions=block.versions)
    result.node.extend(node for node in block.node if node.name not in names)
    for i in range(number):
        for node in (node for node in block.node if node.name in names):
            copy = result.node.add()
            copy.CopyFrom(node)
            copy.name += str(i)
            for j, name in enumerate(node.input):
                base, colon, port = name.partition(":")
                if base in names:
                    copy.input[j] = f"{base}{i}{colon}{port}"
                elif base == "x" and i > 0:
                    copy.input[j] = f"y{i - 1}"
                if node.name == "mask" and base == "y" and i < number - 1:
                    copy.input[j] = f"sum{i + 1}"
    return result


def test_a_graph_of_many_blocks():
    """Time and memory are linear in it: quadratic, this took a minute and more."""
    number = 3200
    fused = rewrite.fuse(residual_blocks(number))
    assert ops_of(fused) == ["AddN"] * number + [EX] * number + [GRAD_EX] * number
    assert len(ops_of(rewrite.to_builtin(fused))) == 6 * number


def test_graphs_that_protobuf_cannot_hold_are_an_error():
    library = _graph_fusion.library()
    result, size, report = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_void_p()
    arguments = [ctypes.byref(each) for each in (result, size, report)]
    assert library.tfbn_fuse_graph(b"", 2**31, b"", *arguments) == 1
    assert (result.value, size.value) == (None, 0)
    assert ctypes.string_at(report.value) == (
        b"it is larger than 2 GiB, the most that protobuf reads"
    )
    library.tfbn_free(report)


@pytest.mark.parametrize("shapes", [((4, 6, 5, 3), (4, 1, 1, 3)), ((None,) * 4, (None,) * 4)])
def test_an_addition_that_may_broadcast(shapes):
    concrete = step(lambda x, side: tf.nn.relu(norm(x) + side), shapes)
    report = rewrite.fusion_report(concrete)
    assert [fusion.refusal for fusion in report if fusion.direction == "forward"] == [
        "the two inputs of add are not known to have the same shape"
    ]
    x, side = data((4, 6, 5, 3)), data((4, 1, 1, 3), seed=1)
    assert_close(rewrite.fuse(concrete)(x, side), concrete(x, side))


def test_frozen_norms_that_tensorflow_fuses_wrongly():
    """Its remapper compares no data formats, and knows none of this library's ops."""

    def build(x):
        x = tf.nn.conv2d(x, tf.eye(3)[None, None], 1, "SAME")
        numbers = [1.0, 2.0, 3.0]
        vectors = {"scale": numbers, "offset": numbers, "mean": numbers, "variance": numbers}
        attrs = {"is_training": False, "data_format": "NCHW"}
        y = tf.raw_ops.FusedBatchNormV3(x=x, **vectors, **attrs).y
        tf.nn.relu(y, name="result")

    with tf.Graph().as_default() as graph:
        build(tf.compat.v1.placeholder(tf.float32, [3] * 4, "x"))
    fused = rewrite.fuse(graph.as_graph_def(), keep=["result"])
    assert ops_of(fused).count(EX) == 1
    x = data((3, 3, 3, 3)).numpy()
    per_channel = np.float32([1, 2, 3])[:, None, None]
    want = (x - per_channel) / np.sqrt(per_channel + 1e-4) * per_channel + per_channel
    assert_close(run_graph(fused, x, "result"), [np.maximum(want, 0)])


@pytest.mark.parametrize("gate", [0, 1, 2])  # GATE_NONE, GATE_OP, GATE_GRAPH
def test_gated_gradients_are_fused_or_reported(gate):
    with tf.Graph().as_default() as graph:
        x = placeholders()
        scale = tf.compat.v1.get_variable("scale", [3], initializer=tf.ones_initializer())
        y = tf.nn.relu(norm(tf.nn.relu(norm(x * 2) + x)) + x)
        loss = tf.reduce_sum(tf.sin(y * scale) * x)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss, [scale, x], gate_gradients=gate)
        tf.identity(pairs[1][0], name="result")
        graph_def = graph.as_graph_def()
    report = [each for each in rewrite.fusion_report(graph_def) if each.direction == "backward"]
    assert len(report) == 2
    gates = [each.refusal for each in report if each.refusal]
    assert len(gates) == (2 if gate == 1 else 0), gates
    assert all("control_dependency is between" in text for text in gates)


def test_functions_that_xla_compiles():
    @tf.function(jit_compile=True)
    def compiled(x):
        return tf.nn.relu(norm(x))

    @tf.function
    def outer(x):
        return compiled(x) + tf.nn.relu(norm(x))

    x = data(SHAPES["NHWC"])
    fused = rewrite.fuse(outer.get_concrete_function(x))
    assert ops_of(fused).count(EX) == 1
    assert_close([fused(x)], [outer(x)])


def test_refusals_are_logged_by_name(caplog):
    def build(x):
        tf.nn.relu(norm(x, name="block/bn"))
        y = norm(x, name="other/bn")
        tf.nn.relu(y)
        tf.sin(y, name="reader")

    with caplog.at_level("INFO", logger="tf_bn_ops"):
        rewrite.fuse(graph_def_of(build))
    assert caplog.messages == [
        "fused 1 of 2 places\n  other/bn, forward: reader reads other/bn too"
    ]


# ---- Messages and files --------------------------------------------------------------------------


def test_names_colocations_and_the_argument_stay():
    def build(x):
        y = norm(x, name="bn")
        with tf.compat.v1.colocate_with(y.op):
            tf.constant(1, name="beside")
        tf.nn.relu(y, name="act")

    graph_def = graph_def_of(build)
    before = graph_def.SerializeToString(deterministic=True)
    fused = rewrite.fuse(graph_def)
    assert graph_def.SerializeToString(deterministic=True) == before
    names = {node.name: node for node in fused.node}
    assert names["act"].op == EX and "bn" not in names
    assert list(names["beside"].attr["_class"].list.s) == [b"loc:@act"]
    assert rewrite.fuse(fused) == fused
    with tf.Graph().as_default():
        tf.import_graph_def(fused)


@pytest.mark.parametrize("gradient", ["before the export", "after it"])
@pytest.mark.parametrize("kind", ["while", "cond", "while in cond"])
def test_loops_and_branches_of_a_meta_graph(kind, gradient):
    """Of control flow v1: collections name the nodes in them, gone or not."""

    def layer(x):
        return tf.nn.relu(norm_outputs(x).y + x)

    def loop(x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, layer(x)), (0, x))[1]

    def branch(x, inner):
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: inner(x), lambda: x)

    with tf.Graph().as_default():
        tf.compat.v1.disable_control_flow_v2()
        try:
            x = placeholders()
            y = loop(x) if kind == "while" else branch(x, layer if kind == "cond" else loop)
            tf.identity(y, name="result")
            if gradient == "before the export":
                tf.identity(tf.gradients(y, x, y**2)[0], name="gradient")
        finally:
            tf.compat.v1.enable_control_flow_v2()
        meta_graph = tf.compat.v1.train.export_meta_graph()
    fused = rewrite.fuse(meta_graph)
    assert ops_of(fused.graph_def).count(EX) == 1
    x, results = data(SHAPES["NHWC"]).numpy(), []
    for each in (meta_graph, fused):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            tf.compat.v1.train.import_meta_graph(each)
            fetches = [graph.get_tensor_by_name("result:0")]
            if gradient == "before the export":
                fetches.append(graph.get_tensor_by_name("gradient:0"))
            else:
                x_tensor = graph.get_tensor_by_name("x:0")
                fetches += tf.gradients(fetches[0], x_tensor, fetches[0] ** 2)
            results.append(session.run(fetches, {"x:0": x}))
    assert_close(*results)


def test_all_kinds_of_messages():
    concrete = step(lambda x: tf.nn.relu(norm(x)), [SHAPES["NHWC"]])
    function = concrete.function_def
    assert {n.op for n in rewrite.fuse(function).node_def} >= {EX, GRAD_EX}
    library = tf.compat.v1.GraphDef().library
    library.function.add().CopyFrom(function)
    assert rewrite.fuse(library).function[0] == rewrite.fuse(function)
    restored = rewrite.unfuse(rewrite.fuse(function))
    assert {"Relu", "ReluGrad"} <= {n.op for n in restored.node_def}
    assert rewrite.unfuse(function) == function
    with pytest.raises(TypeError, match="get_concrete_function"):
        rewrite.fuse(tf.function(lambda x: x))
    with pytest.raises(TypeError, match="cannot rewrite a list"):
        rewrite.fusion_report([])


def test_a_function_with_an_unknown_op_is_one_sentence():
    function = step(lambda x: tf.nn.relu(norm(x)), [SHAPES["NHWC"]]).function_def
    function.node_def.add(name="unknown", op="NoSuchOp")
    with pytest.raises(ValueError, match=r"cannot be fused: .*NoSuchOp"):
        rewrite.fuse(function)


class SmallResNet(tf.Module):
    """Two residual blocks, with a step of training as a signature."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.kernels = [
            tf.Variable(rng.normal(size=(3, 3, 3, 3)).astype(np.float32) / 4) for _ in range(4)
        ]
        self.scales = [tf.Variable(tf.ones([3])) for _ in range(4)]
        self.moving = [tf.Variable(tf.zeros([3])) for _ in range(4)]

    def layer(self, i, x, shortcut=None):
        x = tf.nn.conv2d(x, self.kernels[i], 1, "SAME")
        y, mean, _ = tf.compat.v1.nn.fused_batch_norm(x, self.scales[i], tf.zeros([3]))
        self.moving[i].assign(0.9 * self.moving[i] + 0.1 * mean)
        return tf.nn.relu(y if shortcut is None else y + shortcut)

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPES["NHWC"][1:]))])
    def train(self, x):
        variables = [*self.kernels, *self.scales]
        with tf.GradientTape() as tape:
            y = self.layer(1, self.layer(0, x), x)
            y = self.layer(3, self.layer(2, y), y)
            loss = tf.reduce_mean(tf.square(y - tf.sin(x)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("fuse") / "plain"
    model = SmallResNet()
    tf.saved_model.save(model, path, signatures={"train": model.train})
    return path


def losses(path: pathlib.Path) -> list[float]:
    train = tf.saved_model.load(path).signatures["train"]
    x = tf.constant(np.random.default_rng(0).normal(size=SHAPES["NHWC"]).astype(np.float32))
    return [float(train(x=x)["loss"]) for _ in range(4)]


@pytest.mark.long
def test_a_saved_model_trains_alike_fused_and_back(saved, tmp_path):
    tf_bn_ops.load()
    want = losses(saved)
    assert len(set(want)) == len(want), "nothing was trained"
    fused, back = tmp_path / "fused", tmp_path / "back"
    assert rewrite.fuse(saved, fused) == 8
    np.testing.assert_allclose(losses(fused), want, rtol=1e-5)
    model = read(fused).meta_graphs[0]
    assert [op for op in ops_of(model.graph_def) if "BatchNorm" in op] == 4 * [EX] + 4 * [GRAD_EX]
    listed = {op.name for op in model.meta_info_def.stripped_op_list.op}
    assert {EX, GRAD_EX} <= listed and not {"FusedBatchNormV3", "Relu", "ReluGrad"} & listed

    assert rewrite.unfuse(fused, back) == 8
    np.testing.assert_allclose(losses(back), want, rtol=1e-5)
    model = read(back).meta_graphs[0]
    listed = {op.name for op in model.meta_info_def.stripped_op_list.op}
    assert {"TfBnOps>FusedBatchNormV3", "Relu", "ReluGrad"} <= listed and not {EX, GRAD_EX} & listed

    anywhere = tmp_path / "anywhere"
    assert rewrite.to_builtin(fused, anywhere) == 8
    np.testing.assert_allclose(losses(anywhere), want, rtol=1e-6)
    run = run_without_the_library(anywhere)
    assert run.returncode == 0, run.stderr


def test_one_name_to_keep_is_no_list_of_names():
    with pytest.raises(TypeError, match="keep is 'add', it must be a list of names of nodes"):
        rewrite.fuse(graph_def_of(lambda x: tf.nn.relu(norm(x) + x)), keep="add")


def test_command(saved, tmp_path, capsys):
    def run(*arguments: object) -> tuple[int, str]:
        status = command.main(["", "rewrite", *map(str, arguments)])
        output = capsys.readouterr()
        return status, output.out + output.err

    fused, back = tmp_path / "fused", tmp_path / "back"
    assert run(saved, fused, "--fuse") == (0, f"{fused}: fused 8 of 8 places\n")
    assert run(fused, back, "--unfuse") == (0, f"{back}: 8 nodes unfused\n")
    graph_def = graph_def_of(lambda x: tf.nn.relu(norm(x) + x))
    path, new = tmp_path / "graph.pbtxt", tmp_path / "new.pbtxt"
    path.write_text(text_format.MessageToString(graph_def))
    assert run(path, new, "--fuse", "--keep=^add:0") == (
        0,
        f"{new}: fused 0 of 1 places\n  FusedBatchNormV3, forward: add is kept by name\n",
    )
    status, text = run(path, tmp_path / "none.pbtxt", "--fuse", "--keep=add,typo")
    assert status != 0 and "no node has the name typo" in text
    assert run(saved, new, "--fuse", "--unfuse")[0] == 2
    assert run(saved, new, "--fuse", "--to=shim")[0] == 2
    assert run(saved, new, "--to=shim", "--keep=add")[0] == 2
