"""tf_bn_ops.rewrite.fuse: what it fuses and what it refuses, and the way back.

Promised: forward and backward places become one node each, with SiLU and hard-SiLU in the forms
that TensorFlow and Keras write, and leaky ReLU of any slope but 0 and 1; such a place that is not
fused has its reason in `fusion_report` and the log; nothing that is fetched, named in `keep` or
read elsewhere disappears; control edges stay; `unfuse` is the way back.
"""

from __future__ import annotations

import ctypes
import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from random_graphs import control_flow_v1

import tf_bn_ops
from tf_bn_ops import _loader, rewrite
from tf_bn_ops.spec import ACTIVATIONS, SMOOTH_ACTIVATIONS

EX, GRAD_EX = "TfBnOps>FusedBatchNormEx", "TfBnOps>FusedBatchNormGradEx"
SHAPES = {
    "NHWC": (4, 6, 5, 3),
    "NCHW": (4, 3, 6, 5),
    "NDHWC": (2, 3, 4, 5, 3),
    "NCDHW": (2, 3, 3, 4, 5),
}
# The forms that TensorFlow and Keras write: what they are fused to, and the function.
FORMS = {
    "relu": ("Relu", tf.nn.relu),
    "relu6": ("Relu6", tf.nn.relu6),
    "tf.nn.silu": ("Silu", tf.nn.silu),
    "keras silu": ("Silu", keras.activations.silu),
    "x (1 + tanh(x / 2)) / 2": ("Silu", lambda y: y * (1.0 + tf.tanh(y / 2.0)) / 2.0),
    "x (1 - exp(-softplus(x)))": ("Silu", lambda y: y * (1.0 - tf.exp(-tf.math.softplus(y)))),
    "keras hard_silu": ("HardSilu", keras.activations.hard_silu),
    "x (relu6(x + 3) / 6)": ("HardSilu", lambda y: y * (tf.nn.relu6(y + 3.0) / 6.0)),
    "x (relu6(x + 3) 0.167)": ("HardSilu", lambda y: (tf.nn.relu6(y + 3.0) * (1.0 / 6.0)) * y),
    # As this library composes them.
    **{name: (name, functools.partial(ACTIVATIONS[name].value, tf)) for name in SMOOTH_ACTIVATIONS},
}
VECTORS = tuple(np.random.default_rng(7).uniform(0.5, 1.5, (4, 3)).astype(np.float32))


def data(shape, dtype=tf.float32, seed=0):
    return tf.cast(np.random.default_rng(seed).normal(1, 2, shape), dtype)


def ops_of(graph) -> list[str]:
    """The batch-norm ops and what may be fused with them, in a message or concrete function."""
    if isinstance(graph, tf.types.experimental.ConcreteFunction):
        graph = graph.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    parts = ("BatchNorm", "Relu", "Add", "Sigmoid")
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


def close_fraction(got, want, dtype) -> float:
    unit = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype.name]
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.mean(np.abs(got - want) <= unit * (1 + np.abs(want))))


@pytest.mark.parametrize(
    ("dtype", "adds", "is_training"),
    [
        *itertools.product([tf.float32], [False, True], [False, True]),
        *((tf.half, False, True), (tf.half, True, False)),
        *((tf.bfloat16, False, False), (tf.bfloat16, True, True)),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_forward_and_backward(form, dtype, adds, is_training):
    """Bitwise what the fused ops give; near the chain, taken apart again as well. Each form in some
    layouts, with a batch that is known or not."""
    activation, function = FORMS[form]
    number = [*FORMS].index(form) + dtype.size + adds + 2 * is_training
    data_format, shape = [*SHAPES.items()][number % len(SHAPES)]
    attrs = {"data_format": data_format, "is_training": is_training}

    def forward(x, *side):
        y = norm(x, "shimV3", **attrs)
        for each in side:
            y = y + each if is_training else each + y
        return function(y)

    known = (shape if adds else (None, *shape[1:]),) * (1 + adds)
    concrete = step(forward, known, dtype)
    fused = rewrite.fuse(concrete)
    assert ops_of(fused) == [EX, GRAD_EX]
    x, *side = inputs = [data(shape, dtype, seed) for seed in range(1 + adds)]
    y, *gradients = fused(*inputs)
    ex = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, **dict(zip(("scale", "offset", "mean", "variance"), VECTORS, strict=True)),
        side_input=side, activation_mode=activation, **attrs,
    )  # fmt: skip
    gradient = tf_bn_ops.raw_ops.FusedBatchNormGradEx(
        y_backprop=tf.cos(3 * y), x=x, scale=VECTORS[0],
        reserve_space_1=ex.reserve_space_1, reserve_space_2=ex.reserve_space_2,
        reserve_space_3=ex.reserve_space_3, offset=VECTORS[1],
        y=inputs[-1] if activation in SMOOTH_ACTIVATIONS else ex.y,
        num_side_inputs=len(side), activation_mode=activation, **attrs,
    )  # fmt: skip
    want = [ex.y, gradient.x_backprop, *gradient.side_input_backprop]
    for a, b in zip((y, *gradients), want, strict=True):
        np.testing.assert_array_equal(a, b)
    backs = [rewrite.unfuse(fused), rewrite.to_builtin(fused)]
    assert not any({EX, GRAD_EX} & {*ops_of(back)} for back in backs)
    # TensorFlow has no kernels for channels first.
    for other in (concrete, *(backs if data_format.endswith("C") else backs[:1])):
        for a, b in zip((y, *gradients), other(*inputs), strict=True):
            # In half, masks may differ where y is at the bound: it is rounded once, not thrice.
            least = 0.999 if dtype.size != 2 else 0.95 if "Relu" in activation else 0.9
            assert close_fraction(a, b, dtype) > least


# Leaky ReLUs as they are written, and their slopes below 0.
LEAKY = {
    "tf.nn.leaky_relu": (0.2, tf.nn.leaky_relu),
    "keras leaky_relu": (0.2, keras.activations.leaky_relu),
    "LeakyReLU": (0.3, keras.layers.LeakyReLU()),
    "ReLU": (0.1, keras.layers.ReLU(negative_slope=0.1)),
    "negative": (-0.5, lambda y: tf.nn.leaky_relu(y, -0.5)),
    "steeper": (1.75, lambda y: tf.nn.leaky_relu(y, 1.75)),
    "small": (1e-20, lambda y: tf.nn.leaky_relu(y, 1e-20)),
}


@pytest.mark.parametrize("form", LEAKY)
def test_a_leaky_relu_keeps_its_slope(form):
    alpha, activation = LEAKY[form]
    concrete = step(lambda x: activation(norm(x)), [SHAPES["NHWC"]])
    fused = rewrite.fuse(concrete)
    assert slopes_of(fused) == {EX: np.float32(alpha), GRAD_EX: np.float32(alpha)}
    x = data(SHAPES["NHWC"])
    for function in (fused, rewrite.unfuse(fused), rewrite.to_builtin(fused)):
        assert_close(function(x), concrete(x))


def slopes_of(graph) -> dict[str, float]:
    nodes = graph.graph.as_graph_def().node
    return {n.op: n.attr["leakyrelu_alpha"].f for n in nodes if n.op in (EX, GRAD_EX)}


def test_a_gradient_of_another_slope_keeps_that():
    def forward(x):
        leaky_grad = tf.raw_ops.LeakyReluGrad
        return tf.custom_gradient(
            lambda y: (tf.nn.leaky_relu(y, 0.1), lambda g: leaky_grad(gradients=g, features=y))
        )(norm(x))

    concrete = step(forward, [SHAPES["NHWC"]])
    fused, x = rewrite.fuse(concrete), data(SHAPES["NHWC"])
    assert slopes_of(fused) == {EX: np.float32(0.1), GRAD_EX: np.float32(0.2)}
    assert_close(fused(x), concrete(x))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_maximum_is_a_leaky_relu(is_first):
    """Forward alone: where its gradient at 0 goes depends on the order."""

    def build(x):
        y = norm(x)
        return tf.maximum(y, 0.25 * y) if is_first else tf.maximum(0.25 * y, y)

    graph = graph_def_of(build)
    fused = rewrite.fuse(graph)
    (node,) = (n for n in fused.node if n.op == EX)
    assert node.attr["leakyrelu_alpha"].f == 0.25
    assert_close(results_of(fused), results_of(graph))


@pytest.mark.parametrize("c", [1 / 3, 1 / 6, 0.1, -1.5])
@pytest.mark.parametrize("dtype", [tf.float32, tf.half])
def test_a_maximum_with_any_constant_is_a_leaky_relu(c, dtype):
    graph = graph_def_of(
        lambda x: tf.maximum((y := norm(tf.cast(x, dtype))), y * tf.constant(c, dtype))
    )
    assert EX in ops_of(rewrite.fuse(graph))


ALMOST_LEAKY = {
    "lower bound": lambda y: tf.maximum(y, 1e-20),
    "least number": lambda y: tf.maximum(y, np.finfo(np.float32).tiny),
    "steep swish": lambda y: tf.nn.silu(y, beta=4e4),
    "steeper swish": lambda y: y * tf.sigmoid(1e5 * y),
}


@pytest.mark.parametrize("form", ALMOST_LEAKY)
def test_what_is_tiny_below_0_is_no_leaky_relu(form):
    """A lower bound before a logarithm, a steep swish: nothing that is near 0 is taken for it."""
    assert_unfused(ALMOST_LEAKY[form])


def assert_unfused(activation):
    concrete = step(lambda x: activation(norm(x)), [SHAPES["NHWC"]])
    assert not {EX, GRAD_EX} & {*ops_of(rewrite.fuse(concrete))}
    graph = graph_def_of(lambda x: activation(norm(x)))
    assert EX not in ops_of(rewrite.fuse(graph))


@pytest.mark.parametrize("center", [0.3, 0.75, 1.3, 2.1, 4.5, 8.0])
def test_a_swish_that_bends_somewhere_is_no_silu(center):
    """Functions are compared at points: a tenth of |y| is no gap between them."""
    low, high = 0.95 * center, 1.05 * center
    bend = lambda y: tf.maximum(y - low, 0) * tf.maximum(high - y, 0)  # noqa: E731
    assert_unfused(lambda y: y * (tf.sigmoid(y) + bend(y)))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_slope_of_0_or_1_is_no_leaky_relu(alpha):
    concrete = step(lambda x: tf.nn.leaky_relu(norm(x), alpha), [SHAPES["NHWC"]])
    assert not {EX, GRAD_EX} & {*ops_of(rewrite.fuse(concrete))}


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


def beside_others(x):
    """The shortcut of a ResNet; with a batch of unknown size its gradient holds reductions."""
    shortcut = tf.nn.relu(norm(tf.sin(x)))
    y = tf.nn.relu(norm(tf.cos(shortcut)) + shortcut)
    return tf.nn.relu(shortcut - norm(y)) + y  # The last norm is subtracted, which is no pattern.


def two_branches(activation, x):
    """What is added follows from x, too, and is a norm: one of both is fused with the sum."""
    return activation(norm(tf.sin(x)) + norm(tf.cos(x)))


def squeezed_and_excited(x):
    """Two ops read the activation, and what arrives at its gradient is a sum."""
    y = tf.nn.silu(norm(x))
    return y * tf.sigmoid(tf.reduce_mean(y, [1, 2], keepdims=True))


def activations_of_sums(activation, x):
    """What arrives at one follows from its result by elementwise ops alone, those of the next one's
    derivative."""
    for _ in range(2):
        x = activation(norm(tf.sin(x)) + x)
    return tf.nn.sigmoid(x + activation(norm(tf.sin(x))))


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
    "two norms that are added": (functools.partial(two_branches, tf.nn.relu), 1, 1),
    "two norms behind SiLU": (functools.partial(two_branches, tf.nn.silu), 1, 1),
    "a branch behind SiLU": (lambda x: tf.nn.silu(norm(tf.sin(x)) + tf.tanh(x)), 1, 1),
    "squeezed and excited": (squeezed_and_excited, 1, 1),
    **{
        f"{form} of sums": (functools.partial(activations_of_sums, activation), 3, 3)
        for form, activation in (
            ("SiLU", lambda y: y * tf.sigmoid(y)),
            ("hard-SiLU", keras.activations.hard_silu),
            ("leaky ReLU", tf.nn.leaky_relu),
        )
    },
    "functions, branches and loops": (nested, 3, 3),
}


# In a function whose batch is not known, an addition might broadcast.
@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name, batch):
    """They compute what they did, fused, taken apart again, and with TensorFlow's ops alone."""
    if name == "functions, branches and loops" and batch is None:
        pytest.skip("TensorFlow knows no shapes there")
    forward, *places = BLOCKS[name]
    concrete = step(forward, [(batch, *SHAPES["NHWC"][1:])])
    fused = rewrite.fuse(concrete)
    assert [ops_of(fused).count(op) for op in (EX, GRAD_EX)] == places
    x = data(SHAPES["NHWC"])
    for function in (fused, rewrite.unfuse(fused), rewrite.to_builtin(fused)):
        assert_close(function(x), concrete(x))


def test_a_long_chain_of_residual_blocks_is_fused_in_both_directions():
    """What arrives at a gradient is a sum over all later blocks."""

    def chain(x):
        for _ in range(60):
            x += tf.nn.silu(norm(x))
        return x

    assert refusals(step(chain, [SHAPES["NHWC"]])) == [""] * 120


def test_the_report_names_the_functions_of_branches_and_loops():
    report = rewrite.fusion_report(step(nested, [SHAPES["NHWC"]]))
    assert {fusion.refusal for fusion in report} == {""}
    assert {"while", "cond"} <= {
        part for fusion in report for part in ("while", "cond") if part in fusion.function
    }


# ---- Graphs of a placeholder x, by what they are fused to ----------------------------------------


def graph_def_of(build, shape=SHAPES["NHWC"]):
    """The GraphDef that `build` makes of a placeholder; what it returns is named result0, ..."""
    with tf.Graph().as_default() as graph:
        tensors = build(tf.compat.v1.placeholder(tf.float32, shape, "x"))
        for i, tensor in enumerate(tf.nest.flatten(tensors)):
            tf.identity(tensor, f"result{i}")
    return graph.as_graph_def()


def results_of(graph_def, shape=SHAPES["NHWC"]):
    names = sorted(node.name for node in graph_def.node if node.name.startswith("result"))
    x = data(shape).numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return session.run([f"{name}:0" for name in names], {"x:0": x})


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


def running_statistics(x):
    y, mean, variance, *_ = norm_outputs(x, exponential_avg_factor=0.25, epsilon=0.01)
    return tf.nn.relu(y), mean, variance


def moving_variance_of_keras(x):
    """Of the op that the layer calls; without an activation it is fused with nothing."""
    y, _, variance, *_ = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, scale=VECTORS[0], offset=VECTORS[1], mean=VECTORS[2], variance=VECTORS[3],
        exponential_avg_factor=0.25, bessel_correction=False, side_input=[],
    )  # fmt: skip
    return tf.nn.relu6(y), variance


def backward_pass_alone(x):
    """The mask is from y, whoever computed it; there are no coefficients in the place for them."""
    mask = tf.raw_ops.ReluGrad(gradients=tf.cos(x), features=tf.sin(2 * x))
    return tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=mask, x=x, scale=VECTORS[0], reserve_space_1=VECTORS[2],
        reserve_space_2=VECTORS[3], reserve_space_3=tf.fill([9], np.nan),
    )[:3]  # fmt: skip


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
    return gradients.x_backprop


def unbroadcast(gradient, x, y, name, after=()):
    """What the gradient of x + y has for x, where shapes were not known. (tf.shape would be a
    constant here, which is no part of the pattern.)"""
    shapes = [tf.raw_ops.Shape(input=each) for each in (x, y)]
    axes = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1]).r0
    total = tf.raw_ops.Sum(input=gradient, axis=axes, name=name + "/sum")
    with tf.control_dependencies(after):
        return tf.raw_ops.Reshape(tensor=total, shape=shapes[0], name=name)


def reduced_mask(x, after=()):
    """The sum of a mask behind an addition, which the gradient of x's norm reads, its reduction
    waits for `after`; and a reduction that waits for the mask's."""
    norms = norm_outputs(x)
    y = tf.nn.relu(norms.y + tf.sin(x))
    mask = tf.raw_ops.ReluGrad(gradients=tf.cos(x), features=y)
    reduced = unbroadcast(mask, x, x, "reduced", after)
    other = unbroadcast(tf.exp(x), x, x, "other", [reduced.op.inputs[0].op])
    return norm_gradient(reduced, x, norms)[0], other


def shape_of_an_intermediate(x):
    y = norm(tf.sin(x))
    return tf.nn.relu(y), tf.raw_ops.Shape(input=y)


def behind_a_convolution(x, is_training=True):
    x = tf.nn.conv2d(x, tf.ones([1, 1, 3, 3]), 1, "SAME")
    return tf.nn.relu(norm(x, is_training=is_training))


V3, GRAD_V3 = "TfBnOps>FusedBatchNormV3", "TfBnOps>FusedBatchNormGradV3"
# A graph, its ops when it is fused, and when it is taken apart again.
FUSED = {
    running_statistics: ([EX], ["Relu", V3]),
    moving_variance_of_keras: ([EX], ["Relu6", EX]),
    backward_pass_alone: ([GRAD_EX], ["ReluGrad", "TfBnOps>FusedBatchNormGradV2"]),
    gradient_that_reads_the_placeholder: ([EX, GRAD_EX], ["Relu", "ReluGrad", GRAD_V3, V3]),
    reduced_mask: ([EX, GRAD_EX], ["AddV2", "Relu", "ReluGrad", GRAD_V3, V3]),
    shape_of_an_intermediate: ([EX], ["Relu", V3]),
    behind_a_convolution: ([EX], ["Relu", V3]),
}


@pytest.mark.parametrize("build", FUSED, ids=lambda build: build.__name__)
def test_graphs_that_are_fused(build):
    graph_def = graph_def_of(build)
    fused = rewrite.fuse(graph_def)
    unfused = rewrite.unfuse(fused)
    assert [ops_of(fused), ops_of(unfused)] == [*FUSED[build]]
    for each in (fused, unfused, rewrite.to_builtin(fused)):
        assert_close(results_of(each), results_of(graph_def))
    assert rewrite.fuse(fused) == fused


def test_a_forward_op_that_is_fused_after_its_gradient():
    """What another run fuses: the gradient's placeholder becomes coefficients, and the mask has to
    still match y."""

    def build(x):
        norms = norm_outputs(x, offset=VECTORS[1] - 1, name="norm")
        y = tf.nn.relu(norms.y)
        mask = tf.raw_ops.ReluGrad(gradients=tf.cos(3 * y), features=y)
        return norm_gradient(mask, x, norms)

    graph_def = graph_def_of(build)
    once = rewrite.fuse(graph_def, keep=["norm"])
    assert ops_of(once) == ["FusedBatchNormV3", "Relu", GRAD_EX]
    twice = rewrite.fuse(once)
    assert ops_of(twice) == [EX, GRAD_EX]
    for fused in (once, twice):
        assert_close(results_of(fused), results_of(graph_def))


def test_a_gradient_that_reads_the_placeholder_of_what_the_remapper_fused():
    """TensorFlow's op becomes this library's."""
    graph_def = graph_def_of(gradient_that_reads_the_placeholder)
    want = results_of(graph_def)
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
    assert_close(results_of(fused), want)


def test_reductions_of_a_mask_of_another_shape():
    """As if a gradient of three elements had been broadcast from two: the reduction sums nothing,
    and reshapes."""

    def build(x):
        ones, cotangent = tf.ones([4]), tf.reshape(tf.cos(x), [3, 2, 4, 4])
        mask = tf.raw_ops.ReluGrad(gradients=cotangent, features=tf.sin(cotangent))
        return tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=unbroadcast(mask, x, tf.exp(x), "reduced"), x=x, scale=ones,
            reserve_space_1=ones, reserve_space_2=ones, reserve_space_3=ones,
        )[:3]  # fmt: skip

    graph_def = graph_def_of(build, [2, 3, 4, 4])
    assert rewrite.fuse(graph_def) == graph_def


def test_control_edges_into_a_place_stay():
    def before(x):
        y = norm(x)
        with tf.control_dependencies([tf.no_op(name="before")]):
            return tf.nn.relu(y)

    for build in (before, lambda x: reduced_mask(x, [tf.no_op(name="before")])):
        fused = rewrite.fuse(graph_def_of(build))
        assert {EX, GRAD_EX} & {*ops_of(fused)}
        assert "^before" in {name for node in fused.node for name in node.input}


def test_masks_at_zero_six_and_nan():
    """y exactly at a bound: same gradients as ReluGrad's and Relu6Grad's."""
    x = np.zeros((1, 2, 2, 3), np.float32)
    x[0, :, :, 0] = [[0, 6], [3, np.nan]]
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    for activation in (tf.nn.relu, tf.nn.relu6):
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


def assert_refused(graph_def, reason, **keep):
    """Nothing is fused, for this reason, and the graph stays what it is."""
    assert refusals(graph_def, **keep) == [reason]
    assert rewrite.fuse(graph_def, **keep) == graph_def


def read_by_others(y, activation=tf.nn.relu):
    return activation(y), tf.sin(y)


def waited_for_by_others(x):
    y = norm(x)
    with tf.control_dependencies([y]):
        return tf.nn.relu(y), tf.constant(1, name="after")


def that_waits_for_statistics(x):
    y, mean, *_ = norm_outputs(x)
    with tf.control_dependencies([tf.sin(mean)]):
        return y * tf.sigmoid(y)


def that_would_become_a_cycle(x):
    y, mean, *_ = norm_outputs(x)
    return tf.nn.relu(y + (x - mean))


def on_a_device(name, x, activation=tf.nn.relu):
    with tf.device(name):
        y = norm(x)
    return activation(y)


def that_may_broadcast(x, *shape):
    return tf.nn.relu(norm(x) + tf.compat.v1.placeholder(x.dtype, shape))


def with_vectors_of_bfloat16(x):
    vectors = tf.unstack(tf.ones([4, 3], tf.bfloat16))
    return tf.nn.relu(norm(tf.cast(x, tf.bfloat16), vectors=vectors))


ON_A_GPU = "it is on the device /device:GPU:0"
UNKNOWN = "the two inputs of add are not known to have the same shape"
REFUSED = [
    ("Sin reads FusedBatchNormV3 too", lambda x: read_by_others(norm(x))),
    ("Sin reads FusedBatchNormV3 too", lambda x: read_by_others(norm(x), tf.nn.silu)),
    ("Sin reads add too", lambda x: read_by_others(norm(x) + x)),
    ("Sin reads add too", lambda x: read_by_others(norm(x) + x, tf.nn.silu)),
    ("Sin reads add too", lambda x: read_by_others(norm(x) + x, FORMS["HardSilu"][1])),
    ("after has a control edge from FusedBatchNormV3", waited_for_by_others),
    (
        "what Sin computes is waited for, and may depend on its other outputs",
        that_waits_for_statistics,
    ),
    ("what is added or waited for depends on its other outputs", that_would_become_a_cycle),
    (ON_A_GPU, lambda x: on_a_device("/GPU:0", x)),
    (ON_A_GPU, lambda x: on_a_device("/GPU:0", x, tf.nn.silu)),
    (
        "FusedBatchNormV3 and Relu are on different devices",
        lambda x: on_a_device("/CPU:0", x),
    ),
    ("its attr U is DT_BFLOAT16", with_vectors_of_bfloat16),
    (
        "TensorFlow fuses it into the convolution before it",
        lambda x: behind_a_convolution(x, is_training=False),
    ),
    (
        "StopGradient is between it and add",
        lambda x: tf.nn.relu(tf.stop_gradient(norm(x)) + tf.sin(x)),
    ),
    (UNKNOWN, lambda x: that_may_broadcast(x, 4, 1, 1, 3)),
    (UNKNOWN, lambda x: that_may_broadcast(x, None, None, None, None)),
]


@pytest.mark.parametrize(("reason", "build"), REFUSED)
def test_what_is_refused_says_why(reason, build):
    assert_refused(graph_def_of(build), reason)


# Forms of y and c, which returns a constant as it is, or the number beside it in the type of y.
ALMOST_ACTIVATIONS = {
    "y sigmoid(1 y)": lambda y, c: y * tf.sigmoid(c(1.0) * y),
    "1 y sigmoid(y)": lambda y, c: c(1.0) * y * tf.sigmoid(y),
    "tf.nn.silu, beta 1": lambda y, c: tf.nn.silu(y, tf.constant(c(1.0), y.dtype)),
    "y / (1 + exp(-y))": lambda y, c: y / (c(1.0) + tf.exp(-y)),
    "y (1 + tanh(y / 2)) / 2": lambda y, c: y * (c(1.0) + tf.tanh(y / 2)) / 2,
    "y (0.5 + 0.5 tanh(0.5 y))": lambda y, c: y * (0.5 + 0.5 * tf.tanh(c(0.5) * y)),
    "y exp(-softplus(-y))": lambda y, c: y * tf.exp(-tf.math.softplus(-y) * c(1.0)),
    "y sigmoid(y + 0 y^3)": lambda y, c: y * tf.sigmoid(y + (c(1.0) - 1) * y * y * y),
    "y relu6(y + 3) / 6": lambda y, c: y * tf.nn.relu6(y + c(3.0)) / 6,
    "y (relu6(y + 3) / 6)": lambda y, c: y * (tf.nn.relu6(y + 3) / c(6.0)),
    "y (relu6(y + 3) 0.167)": lambda y, c: y * (tf.nn.relu6(y + 3) * c(1 / 6)),
    "y clip(y 0.167 + 0.5, 0, 1)": lambda y, c: y * tf.clip_by_value(y * c(1 / 6) + 0.5, 0, 1),
    "y clip(y + 3, 0, 6) / 6": lambda y, c: y * tf.clip_by_value(y + 3, 0, c(6.0)) / 6,
    "y clip(y + 3, 1 - 1, 6) / 6": lambda y, c: y * tf.clip_by_value(y + 3, c(1.0) - 1, 6) / 6,
}
# And of derivatives, times g.
ALMOST_SLOPES = {
    "SiLU": lambda y, g, c: g * tf.sigmoid(y) * (1 + y * (1 - tf.sigmoid(c(1.0) * y))),
    "1 SiLU": lambda y, g, c: c(1.0) * (g * tf.sigmoid(y) * (1 + y * (1 - tf.sigmoid(y)))),
    "hard-SiLU, its mask": lambda y, g, c: (
        g * (tf.nn.relu6(y + 3) / 6)
        + tf.raw_ops.Relu6Grad(gradients=g * y / 6, features=y + c(3.0))
    ),
    # As grappler writes it: constants first, and folded into what g is a multiple of.
    "hard-SiLU, 0.167 first": lambda y, g, c: (
        g * (tf.nn.relu6(y + 3) / 6)
        + tf.raw_ops.Relu6Grad(gradients=(c(1 / 6) * g) * y, features=y + 3)
    ),
    "hard-SiLU of 0.25 g": lambda y, g, c: (
        (0.25 * g) * (tf.nn.relu6(y + 3) / 6)
        + tf.raw_ops.Relu6Grad(gradients=(g * c(1 / 24)) * y, features=y + 3)
    ),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.half, tf.bfloat16])
@pytest.mark.parametrize("form", [*ALMOST_ACTIVATIONS, *ALMOST_SLOPES])
def test_a_constant_beside_the_right_one_is_no_smooth_activation(form, dtype):
    def right(value):
        return np.asarray(value, dtype.as_numpy_dtype)

    def beside(value):
        return np.nextafter(right(value), right(np.inf))

    def fused(c):
        if form in ALMOST_ACTIVATIONS:
            activation = functools.partial(ALMOST_ACTIVATIONS[form], c=c)
            graph = graph_def_of(lambda x: activation(norm(tf.cast(x, dtype))))
        else:  # Behind a function that is fused with nothing itself.
            slope = functools.partial(ALMOST_SLOPES[form], c=c)
            sin = tf.custom_gradient(lambda y: (tf.sin(y), functools.partial(slope, y)))
            graph = step(lambda x: sin(norm(x)), [SHAPES["NHWC"]], dtype)
        return [op for op in ops_of(rewrite.fuse(graph)) if op in (EX, GRAD_EX)]

    assert fused(right) == [EX if form in ALMOST_ACTIVATIONS else GRAD_EX]
    assert not fused(beside)


@pytest.mark.parametrize(("bound", "places"), [(3.0, 1), (2.5, 0)])
def test_of_a_tiny_multiple_of_the_gradient_only_the_derivative_is_fused(bound, places):
    """Differences are compared with what is multiplied."""

    def slope(y, g):
        masked = tf.raw_ops.Relu6Grad(gradients=(2.0**-66 / 6 * g) * y, features=y + bound)
        return (2.0**-66 * g) * (tf.nn.relu6(y + 3) / 6) + masked

    sin = tf.custom_gradient(lambda y: (tf.sin(y), functools.partial(slope, y)))
    concrete = step(lambda x: sin(norm(x)), [SHAPES["NHWC"]])
    fused, x = rewrite.fuse(concrete), data(SHAPES["NHWC"])
    assert ops_of(fused).count(GRAD_EX) == places
    assert_close(fused(x), concrete(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda y: 2.0 * y * tf.sigmoid(y) / 1.9,
        lambda y: y * tf.sigmoid(tf.reverse(y, [0])),
        lambda y: tf.minimum(y, 1e5) * tf.sigmoid(y),
        lambda y: tf.maximum(0.2 * y, tf.minimum(y, 1e5)),
        lambda y: tf.maximum(y * 0.3 * 0.7, y),  # Of no float.
    ],
    ids=["scaled", "of another y", "clamped", "leaky, clamped", "two factors"],
)
def test_what_only_looks_like_a_smooth_activation_stays(function):
    concrete = step(lambda x: function(norm(x)), [SHAPES["NHWC"]])
    assert not {EX, GRAD_EX} & {*ops_of(rewrite.fuse(concrete))}


def test_a_place_that_is_refused_keeps_the_gradient_of_silu():
    """tf.nn.silu holds it in an IdentityN, also beside places that are fused."""

    def build(x):
        y = norm(tf.nn.relu(norm(x)), name="other")
        return *read_by_others(y, tf.nn.silu), tf.nn.silu(norm(y))

    graph_def = graph_def_of(build)
    fused = rewrite.fuse(graph_def)
    kept = [node.input[1] for node in fused.node if node.op == "IdentityN"]
    assert (ops_of(fused).count(EX), kept) == (2, ["other"])
    assert_close(results_of(fused), results_of(graph_def))


def test_an_intermediate_that_is_fetched():
    graph_def = graph_def_of(lambda x: tf.nn.relu(norm(x) + x))
    assert_refused(graph_def, "add is kept by name", keep=["add"])

    @tf.function
    def returns_it(x):
        y = norm(x)
        return y, tf.nn.relu(y)

    (reason,) = refusals(returns_it.get_concrete_function(data(SHAPES["NHWC"])))
    assert "reads FusedBatchNormV3 too" in reason

    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    meta_graph.signature_def["serve"].outputs["y"].name = "FusedBatchNormV3:0"
    assert_refused(meta_graph, "FusedBatchNormV3 is kept by name")
    meta_graph.signature_def["serve"].outputs["y"].name = "Relu:0"
    assert refusals(meta_graph) == [""]
    meta_graph.collection_def["mine"].node_list.value.append("add:0")
    assert_refused(meta_graph, "add is kept by name")


def test_what_would_become_a_cycle_of_two():
    """Each of the two adds what the other's mean is in; one alone might be fused."""

    def build(x):
        norms = [norm_outputs(tf.sin(x)), norm_outputs(tf.cos(x))]
        pairs = (norms, norms[::-1])
        return [tf.nn.relu(y + (x - mean)) for (y, *_), (_, mean, *_) in pairs]

    reason = "what is added or waited for depends on its other outputs"
    assert refusals(graph_def_of(build)) == [reason, reason]


def test_nodes_without_their_inputs_are_no_pattern():
    """Which no TensorFlow imports: they stay what they are."""
    graph_def = graph_def_of(reduced_mask)
    for node in graph_def.node:
        for kept in range(len(node.input)):
            broken = tf.compat.v1.GraphDef()
            broken.CopyFrom(graph_def)
            (same,) = [each for each in broken.node if each.name == node.name]
            del same.input[kept:]
            assert node.name not in {fusion.node for fusion in rewrite.fusion_report(broken)}


def residual_blocks(number: int):
    """A GraphDef of so many, forward and backward."""

    def one(x):
        norms = norm_outputs(x, name="norm")
        y = tf.nn.relu(tf.raw_ops.AddV2(x=norms.y, y=x, name="add"), name="relu")
        mask = tf.raw_ops.ReluGrad(gradients=tf.identity(y, "after"), features=y, name="mask")
        backprop, *_ = norm_gradient(mask, x, norms)
        tf.raw_ops.AddN(inputs=[mask, backprop], name="sum")
        return []

    block = graph_def_of(one, shape=(None, *SHAPES["NHWC"][1:]))
    repeated = [n for n in block.node if n.op not in ("Placeholder", "Const", "Identity")]
    result = tf.compat.v1.GraphDef(versions=block.versions)
    result.node.extend(node for node in block.node if node.op in ("Placeholder", "Const"))
    for i in range(number):
        names = {node.name: f"{node.name}{i}" for node in repeated}
        names["after"] = f"sum{i + 1}" if i + 1 < number else f"relu{i}"
        names |= {"x": f"relu{i - 1}"} if i > 0 else {}
        for node in repeated:
            copy = result.node.add()
            copy.CopyFrom(node)
            copy.name = names[node.name]
            inputs = (name.partition(":") for name in node.input)
            copy.input[:] = [names.get(base, base) + colon + port for base, colon, port in inputs]
    return result


def test_a_graph_of_many_blocks():
    """Time and memory are linear in it: quadratic, this took a minute and more."""
    number = 3200
    fused = rewrite.fuse(residual_blocks(number))
    assert ops_of(fused) == ["AddN"] * number + [EX] * number + [GRAD_EX] * number
    assert len(ops_of(rewrite.to_builtin(fused))) == 6 * number


def test_graphs_that_protobuf_cannot_hold_are_an_error():
    library = _loader.optimizer()
    result, size, report = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_void_p()
    arguments = [ctypes.byref(each) for each in (result, size, report)]
    assert library.tfbn_fuse_graph(b"", 2**31, b"", *arguments) == 1
    assert (result.value, size.value) == (None, 0)
    assert ctypes.string_at(report.value) == (
        b"it is larger than 2 GiB, the most that protobuf reads"
    )
    library.tfbn_free(report)


def test_frozen_norms_that_tensorflow_fuses_wrongly():
    """Its remapper compares no data formats, and knows none of this library's ops."""

    def build(x):
        x = tf.nn.conv2d(x, tf.eye(3)[None, None], 1, "SAME")
        return tf.nn.relu(norm(x, is_training=False, data_format="NCHW"))

    fused = rewrite.fuse(graph_def_of(build, [3] * 4))
    assert ops_of(fused) == [EX]
    scale, offset, mean, variance = (vector[:, None, None] for vector in VECTORS)
    want = (data([3] * 4) - mean) / np.sqrt(variance + 1e-4) * scale + offset
    assert_close(results_of(fused, [3] * 4), [np.maximum(want, 0)])


def test_frozen_norms_in_loops_that_tensorflow_takes_apart():
    """Its remapper puts their constants outside of the loop, an error where constants are folded no
    more: in its second round, once the first has removed what read a statistic. A gradient reads
    one in both."""

    @tf.function
    def layer(x):
        scale, offset, mean, variance = VECTORS
        y, statistic, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=mean, variance=variance, is_training=False
        )
        y += tf.reduce_mean(x, axis=0)
        with tf.control_dependencies([tf.sin(statistic)]):
            return tf.nn.relu6(y)

    def loop(x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, z: (i + 1, layer(z)), [0, x])[1]

    plain, x = step(loop, [SHAPES["NHWC"]]), data(SHAPES["NHWC"])
    fused = rewrite.fuse(plain)
    assert ops_of(fused).count(GRAD_EX) == 1
    assert_close(fused(x), plain(x))


def test_gradients_that_are_gated_are_refused():
    def build(x):
        scale = tf.compat.v1.get_variable("scale", [3], initializer=tf.ones_initializer())
        y = tf.nn.relu(norm(tf.nn.relu(norm(x * 2) + x)) + x)
        loss = tf.reduce_sum(tf.sin(y * scale) * x)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        gate = optimizer.GATE_OP
        return optimizer.compute_gradients(loss, [scale, x], gate_gradients=gate)[1][0]

    reasons = [each.refusal for each in rewrite.fusion_report(graph_def_of(build))]
    assert len([text for text in reasons if "control_dependency is between" in text]) == 2


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
        y = norm(x, name="other/bn")
        return tf.nn.relu(norm(x, name="block/bn")), tf.nn.relu(y), tf.sin(y, name="reader")

    with caplog.at_level("INFO", logger="tf_bn_ops"):
        rewrite.fuse(graph_def_of(build))
    assert caplog.messages == ["fused 1 of 2\n  other/bn, forward: reader reads other/bn too"]


# ---- Messages and files --------------------------------------------------------------------------


def test_names_colocations_and_the_argument_stay():
    def build(x):
        y = norm(x, name="bn")
        with tf.compat.v1.colocate_with(y.op):
            beside = tf.constant(1, name="beside")
        return tf.nn.relu(y, name="act"), beside

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

    with tf.Graph().as_default(), control_flow_v1():
        x = tf.compat.v1.placeholder(tf.float32, SHAPES["NHWC"], "x")
        y = loop(x) if kind == "while" else branch(x, layer if kind == "cond" else loop)
        tf.identity(y, name="result")
        if gradient == "before the export":
            tf.identity(tf.gradients(y, x, y**2)[0], name="gradient")
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


def test_wrong_arguments_are_one_sentence():
    function = step(lambda x: tf.nn.relu(norm(x)), [SHAPES["NHWC"]]).function_def
    function.node_def.add(name="unknown", op="NoSuchOp")
    for error, match, argument, keep in (
        (TypeError, "get_concrete_function", tf.function(lambda x: x), ()),
        (TypeError, "cannot rewrite a list", [], ()),
        (ValueError, r"cannot be fused: .*NoSuchOp", function, ()),
        (TypeError, "keep is 'add', it must be a list of names of nodes", function, "add"),
    ):
        for call in (rewrite.fuse, rewrite.fusion_report):
            with pytest.raises(error, match=match):
                call(argument, keep=keep)
