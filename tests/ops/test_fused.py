"""fused_batch_norm: values and gradients are those of float64 autodiff of the formula."""

from __future__ import annotations

import functools
import inspect
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops import (
    _fused,
    _gradients,
    _loader,
    _ops,
    _recording,
    _replicas,
    _split_gradients,
    _sync,
    _vectorize,
)
from tf_bn_ops.spec import DATA_FORMATS, DTYPES

EPSILON = 0.1
CHANNELS = 5
SHAPES = {
    "NHWC": (2, 3, 4, CHANNELS),
    "NCHW": (2, CHANNELS, 3, 4),
    "NDHWC": (2, 3, 2, 4, CHANNELS),
    "NCDHW": (2, CHANNELS, 3, 2, 4),
}
# Sums of at most 48 terms of size 1 in float32, with a forward pass whose statistics are float32:
# some hundreds of roundings in a row, no more.
ROUNDINGS = 256


def formula(x, scale, offset, mean, variance, data_format, is_training, factor):
    """The definition, in the type of its arguments."""
    rank, channels_last = DATA_FORMATS[data_format]
    channel = rank - 1 if channels_last else 1
    others = [axis for axis in range(rank) if axis != channel]
    shape = [1] * rank
    shape[channel] = -1
    if is_training:
        count = tf.cast(tf.size(x) // CHANNELS, x.dtype)
        used_mean = tf.reduce_mean(x, others)
        used_variance = tf.reduce_mean(tf.square(x - tf.reshape(used_mean, shape)), others)
        new_mean = (1 - factor) * mean + factor * used_mean
        new_variance = (1 - factor) * variance + factor * used_variance * count / (count - 1)
    else:
        used_mean, used_variance = new_mean, new_variance = mean, variance
    scale_rstd = scale * tf.math.rsqrt(used_variance + EPSILON)
    y = (x - tf.reshape(used_mean, shape)) * tf.reshape(scale_rstd, shape)
    return y + tf.reshape(offset, shape), new_mean, new_variance


def make_inputs(data_format, dtype):
    """Values that the element type holds exactly, so that both sides compute with the same."""
    rng = np.random.default_rng(0)
    x = tf.cast(rng.normal(0.5, 1, SHAPES[data_format]), dtype)
    vectors = [tf.cast(rng.uniform(0.5, 2, CHANNELS), tf.float32) for _ in range(4)]
    return [x, *vectors]


def weights_of(outputs):
    """Gradients of the outputs, exact in every element type."""
    rng = np.random.default_rng(1)
    return [rng.integers(-8, 9, output.shape) / 8 for output in outputs]


def gradients(function, inputs):
    """Outputs of the function, and the gradient of their weighted sum by every input."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
        weights = [tf.cast(w, o.dtype) for w, o in zip(weights_of(outputs), outputs, strict=True)]
    return outputs, tape.gradient(outputs, inputs, weights, unconnected_gradients="zero")


def check(got, want, dtype="float32", roundings=4):
    want = np.asarray(want)
    rounded = 0 if dtype == "float32" else roundings * DTYPES[dtype].unit_roundoff
    unit = ROUNDINGS * 2.0**-24 + rounded
    bound = unit * (np.abs(want) + np.max(np.abs(want), initial=1))
    assert np.all(np.abs(np.float64(got) - want) <= bound), np.max(np.abs(np.float64(got) - want))


def test_values_are_those_of_the_op_in_training_and_of_tensorflow_if_frozen():
    x, scale, offset, mean, variance = make_inputs("NHWC", "float32")
    for is_training, ops in ((True, tf_bn_ops.raw_ops), (False, tf.raw_ops)):
        given = {"mean": mean, "variance": variance}
        attrs = {"epsilon": EPSILON, "is_training": is_training}
        want = ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, **given, **attrs)
        got = tf_bn_ops.fused_batch_norm(x, scale, offset, **given, **attrs)
        for a, b in zip(got, want, strict=False):
            np.testing.assert_array_equal(a, b)


def test_gradient_is_that_of_the_op_and_skips_unused_statistics():
    x, scale, offset, _, _ = make_inputs("NHWC", "float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, _, _ = tf_bn_ops.fused_batch_norm(x, scale, offset)
    got = tape.gradient(y, x, 2 * tf.ones_like(y))
    forward = tf_bn_ops.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=offset, mean=[], variance=[], epsilon=1e-3
    )
    want = _ops.fused_batch_norm_grad_v3(2 * tf.ones_like(y), x, scale, *forward[3:], epsilon=1e-3)
    np.testing.assert_array_equal(got, want.x_backprop)

    @tf.function
    def step(x):
        y = tf_bn_ops.fused_batch_norm(x, scale, offset).y
        return tf.gradients(y, x)

    graph = step.get_concrete_function(x).graph
    ops = [op.type for op in graph.get_operations()]
    assert ops.count("TfBnOps>FusedBatchNormGradV3") == 1
    assert ops.count("TfBnOps>FusedBatchNormV3") == 1
    assert "Mean" not in ops and not {"FusedBatchNormV3", "FusedBatchNormGradV3"} & {*ops}


def test_one_element_per_channel_has_finite_gradients():
    x, one = tf.ones([1, 1, 1, 3]), tf.ones([3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, mean, variance = tf_bn_ops.fused_batch_norm(x, one, one)
        total = tf.reduce_sum(y) + tf.reduce_sum(mean) + tf.reduce_sum(variance)
    np.testing.assert_array_equal(tape.gradient(total, x), np.ones([1, 1, 1, 3]))


def test_wrong_arguments_are_one_sentence():
    x, one = tf.ones([1, 1, 1, 3]), tf.ones([3])
    with pytest.raises(ValueError, match="data_format is 'NWHC'"):
        tf_bn_ops.fused_batch_norm(x, one, one, data_format="NWHC")
    with pytest.raises(ValueError, match="needed if not is_training"):
        tf_bn_ops.fused_batch_norm(x, one, one, is_training=False)
    with pytest.raises(ValueError, match="needed with an exponential_avg_factor"):
        tf_bn_ops.fused_batch_norm(x, one, one, mean=one, exponential_avg_factor=0.5)


# ---- Activation and side input -------------------------------------------------------------------

# Activation and whether there is a side input.
FUSIONS = [*itertools.product((None, "relu", "relu6", "silu", "hard_silu"), (False, True))]
SMOOTH = {"silu": lambda y: y * tf.sigmoid(y), "hard_silu": lambda y: y * tf.nn.relu6(y + 3) / 6}


def make_fused_inputs(data_format, dtype):
    """With y on both sides of 0 and of 6, and the side input as the last."""
    x, scale, offset, *given = make_inputs(data_format, dtype)
    side_input = np.random.default_rng(2).normal(0, 2, x.shape)
    return [x, 8 * scale, offset, *given, tf.cast(side_input, dtype)]


def fused(activation, with_side_input, **attrs):
    def call(*inputs):
        side_input = inputs[5] if with_side_input else None
        return tf_bn_ops.fused_batch_norm(
            *inputs[:5], activation=activation, side_input=side_input, **attrs
        )

    return call


def fused_formula(activation, with_side_input, y, *attrs):
    """The definition where `y` says on which side of 0 and 6 an element is: rounding decides."""

    def call(*inputs):
        z, *statistics = formula(*inputs[:5], *attrs)
        z = z + inputs[5] if with_side_input else z
        if activation in SMOOTH:
            z = SMOOTH[activation](z)
        elif activation is not None:
            z = tf.where(y > 0, z, 0)
        if activation == "relu6":
            z = tf.where(y < 6, z, 6)
        return z, *statistics

    return call


@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
@pytest.mark.parametrize(("is_training", "factor"), [(True, 1.0), (True, 0.25), (False, 1.0)])
@pytest.mark.parametrize("data_format", SHAPES)
@pytest.mark.parametrize(("activation", "with_side_input"), FUSIONS)
def test_values_and_all_gradients(
    activation, with_side_input, data_format, is_training, factor, dtype
):
    """Eagerly, and of one layout in a graph as well."""
    for in_graph in (False, True) if data_format == "NHWC" else (False,):
        check_fused(activation, with_side_input, data_format, is_training, factor, dtype, in_graph)


def check_fused(activation, with_side_input, data_format, is_training, factor, dtype, in_graph):
    inputs = make_fused_inputs(data_format, dtype)
    ours = fused(
        activation,
        with_side_input,
        epsilon=EPSILON,
        data_format=data_format,
        is_training=is_training,
        exponential_avg_factor=factor,
    )
    outputs, got = gradients(tf.function(ours) if in_graph else ours, inputs)
    if activation in ("relu", "relu6"):
        assert np.min(outputs[0]) == 0
        assert activation == "relu" or np.max(outputs[0]) == 6
    want_outputs, want = gradients(
        fused_formula(activation, with_side_input, outputs[0], data_format, is_training, factor),
        [tf.cast(tensor, tf.float64) for tensor in inputs],
    )
    for i, (output, want_output) in enumerate(zip(outputs, want_outputs, strict=True)):
        check(output, want_output, dtype if i == 0 else "float32")
    # TensorFlow's ops round their derivatives to the type of y.
    composed = activation in SMOOTH and not is_training
    if composed and activation == "hard_silu" and dtype == "bfloat16":
        return  # The derivative jumps at 3, and they look at a y of 8 bits.
    for i, (gradient, want_gradient, tensor) in enumerate(zip(got, want, inputs, strict=True)):
        assert gradient.dtype == tensor.dtype
        kind = dtype if i in (0, 5) or composed else "float32"
        # TensorFlow 2.22 adds up derivatives that it rounds once more.
        check(gradient, want_gradient, kind, roundings=8 if composed and i not in (0, 5) else 4)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("activation", "with_side_input"), FUSIONS)
def test_second_derivatives(activation, with_side_input, is_training):
    inputs = make_fused_inputs("NHWC", "float32")
    ours = fused(activation, with_side_input, epsilon=EPSILON, is_training=is_training)

    def penalty(function, inputs):
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                y, mean, variance = function(*inputs)
                loss = tf.reduce_sum(tf.sin(y))
                if is_training:  # The statistics are functions of x.
                    loss += tf.reduce_sum(tf.sin(mean)) + tf.reduce_sum(tf.square(variance))
            by = inner.gradient(loss, [inputs[0], inputs[5]], unconnected_gradients="zero")
            value = tf.reduce_sum(tf.square(by[0])) + tf.reduce_sum(tf.sin(by[1]))
        sources = [*inputs[:3], inputs[5]]
        return outer.gradient(value, sources, unconnected_gradients="zero")

    attrs = (ours(*inputs).y, "NHWC", is_training, 1.0)
    theirs = fused_formula(activation, with_side_input, *attrs)
    got = penalty(ours, inputs)
    want = penalty(theirs, [tf.cast(tensor, tf.float64) for tensor in inputs])
    for a, b in zip(got, want, strict=True):
        check(a, b)


def test_training_is_one_op_in_each_direction():
    """The second order, too."""
    inputs = make_fused_inputs("NHWC", "float32")

    def ops_of(order):
        @tf.function
        def step(*inputs):
            y = fused("relu", True)(*inputs).y
            for _ in range(order):
                (y,) = tf.gradients(y, inputs[0])
            return y

        graph = step.get_concrete_function(*inputs).graph
        return {op.type for op in graph.get_operations()}

    assert {"TfBnOps>FusedBatchNormEx", "TfBnOps>FusedBatchNormGradEx"} <= ops_of(1)
    assert not {"Relu", "ReluGrad", "AddV2", "AddN"} & ops_of(1)
    assert "TfBnOps>FusedBatchNormGradGrad" in ops_of(2)


@pytest.mark.parametrize("mode", ["eager", "static", "dynamic", "xla"])
def test_an_offset_of_another_rank_is_refused_behind_an_activation(mode):
    """None, an empty one and reserve_space_3 in its place say that the mask is computed from y."""
    x, scale, offset = make_fused_inputs("NHWC", "float32")[:3]
    forward = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, scale=scale, offset=offset, mean=[], variance=[], side_input=[], activation_mode="Relu"
    )

    def call(offset):
        return tf_bn_ops.raw_ops.FusedBatchNormGradEx(
            y_backprop=x, x=x, scale=scale, reserve_space_1=forward.reserve_space_1,
            reserve_space_2=forward.reserve_space_2, reserve_space_3=forward.reserve_space_3,
            offset=offset, y=forward.y, activation_mode="Relu",
        ).x_backprop  # fmt: skip

    signature = [tf.TensorSpec(None)] if mode == "dynamic" else None
    function = tf.function(call, input_signature=signature, jit_compile=mode == "xla")
    run = call if mode == "eager" else function
    want = run(offset)
    for other in (tf.zeros([0]), forward.reserve_space_3):
        np.testing.assert_array_equal(run(other), want)
    for wrong in (offset[None], offset[:, None], offset[0]):
        with pytest.raises(
            (tf.errors.InvalidArgumentError, ValueError), match="offset must be a vector of as many"
        ):
            function.get_concrete_function(wrong) if mode == "static" else run(wrong)


@pytest.mark.parametrize("shape", [(2, 3, 4, CHANNELS), (None, 3, None, CHANNELS)])
def test_frozen_functions_hold_ops_of_tensorflow_alone(shape):
    inputs = make_fused_inputs("NHWC", "float32")
    view, vector = tf.TensorSpec(shape), tf.TensorSpec([CHANNELS])

    @tf.function(input_signature=[view, *[vector] * 4, view])
    def infer(*inputs):
        return fused("relu6", True, is_training=False)(*inputs).y

    graph = infer.get_concrete_function().graph
    ops = {op.type for op in graph.get_operations()}
    assert {"FusedBatchNormV3", "Relu6"} <= ops
    assert not [op for op in ops if op.startswith("TfBnOps")]
    want = fused("relu6", True, is_training=False)(*inputs).y
    np.testing.assert_array_equal(infer(*inputs), want)
    if shape[0] is None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="same size and shape"):
            infer(*inputs[:5], inputs[5][:1])


@pytest.mark.parametrize("is_training", [True, False])
def test_wrong_activations_and_side_inputs_are_one_sentence(is_training):
    x, *vectors, side_input = make_fused_inputs("NHWC", "float32")
    call = functools.partial(tf_bn_ops.fused_batch_norm, x, *vectors, is_training=is_training)
    with pytest.raises(ValueError, match="activation is 'gelu', it must be one of"):
        call(activation="gelu")
    with pytest.raises(ValueError, match=r"side_input has shape \(1, 3, 4, 5\), it must have the"):
        call(side_input=side_input[:1])
    with pytest.raises(TypeError, match="side_input is float16, it must be float32 like x"):
        call(side_input=tf.cast(side_input, tf.half))


@pytest.mark.parametrize("value", [None, "1", tf.constant(0.1)], ids=["None", "str", "tensor"])
def test_an_averaging_factor_that_is_no_number_is_refused(value):
    x, *vectors, _ = make_fused_inputs("NHWC", "float32")
    with pytest.raises(TypeError, match="exponential_avg_factor must be a number, not "):
        tf_bn_ops.fused_batch_norm(x, *vectors, exponential_avg_factor=value)


# ---- The same calls as TensorFlow's --------------------------------------------------------------


def test_parameters_are_those_of_tensorflow_in_its_order():
    """And three more, by name alone."""
    of = lambda function, kind: [  # noqa: E731
        (p.name, p.default)
        for p in inspect.signature(function).parameters.values()
        if p.kind == kind
    ]
    ours, theirs = tf_bn_ops.fused_batch_norm, tf.compat.v1.nn.fused_batch_norm
    either, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    assert of(ours, either) == of(theirs, either)
    assert of(ours, by_name) == [
        ("activation", None), ("side_input", None), ("synchronized", False)
    ]  # fmt: skip


def test_data_format_may_be_bytes():
    """As y.op.get_attr("data_format") gives it."""
    x, scale, offset, _, _ = make_inputs("NCHW", "float32")
    got = tf_bn_ops.fused_batch_norm(x, scale, offset, data_format=b"NCHW")
    want = tf_bn_ops.fused_batch_norm(x, scale, offset, data_format="NCHW")
    np.testing.assert_array_equal(got.y, want.y)


def test_autocast_variables():
    """A variable that mixed precision reads as half; the op wants float32."""
    x = make_inputs("NHWC", "half")[0]
    scale, offset = (keras.Variable([0.5, 1, 1.5, 2, 2.5], dtype="float32") for _ in range(2))
    want = tf_bn_ops.fused_batch_norm(x, scale, offset)
    with keras.src.backend.common.variables.AutocastScope("float16"), tf.GradientTape() as tape:
        assert tf.convert_to_tensor(scale).dtype == tf.half
        got = tf_bn_ops.fused_batch_norm(x, scale, offset)
    np.testing.assert_array_equal(got.y, want.y)
    assert tape.gradient(got.y, scale.value).dtype == tf.float32


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("is_training", [True, False])
def test_gradients_are_zeros_where_those_of_tensorflow_are(is_training, in_graph):
    """And None nowhere else than there: d(batch_mean)/d(scale) is zeros."""
    inputs = make_inputs("NHWC", "float32")

    def connected(function):
        def run(*inputs):
            given = inputs[3:] if not is_training else ()
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(inputs)
                outputs = function(*inputs[:3], *given, is_training=is_training)
            return [[tape.gradient(output, t) for t in inputs] for output in outputs]

        rows = (tf.function(run) if in_graph else run)(*inputs)
        return [[gradient is not None for gradient in row] for row in rows], rows

    want, _ = connected(tf.compat.v1.nn.fused_batch_norm)
    got, rows = connected(tf_bn_ops.fused_batch_norm)
    for ours, theirs in zip(got, want, strict=True):
        assert all(a or not b for a, b in zip(ours, theirs, strict=True))
    for row in rows[1:]:
        for gradient in row[1:3]:
            np.testing.assert_array_equal(gradient, np.zeros(CHANNELS))


@pytest.mark.parametrize("is_training", [True, False])
def test_y_is_the_output_of_the_op(is_training):
    """As gradient checks of TensorFlow's own tests read it."""
    x, *vectors = (tensor.numpy() for tensor in make_inputs("NCHW", "float32"))
    with tf.Graph().as_default():
        y, _, _ = tf_bn_ops.fused_batch_norm(
            tf.constant(x), *vectors, epsilon=0.25, data_format="NCHW", is_training=is_training
        )
        assert y.op.type == ("TfBnOps>" if is_training else "") + "FusedBatchNormV3"
        assert y.op.get_attr("epsilon") == 0.25
        assert y.op.get_attr("data_format") == b"NCHW"
        (dx,) = tf.gradients(y, y.op.inputs[0])
        assert dx.op.type == "TfBnOps>FusedBatchNormGradV3"


# ---- Every way to differentiate ------------------------------------------------------------------


def of_function(normalize):
    return tf.function(normalize)


def of_nested_function(normalize):
    inner = tf.function(normalize)
    return tf.function(lambda x: inner(x) + 0 * x)


def of_captured_tensors(normalize):
    """Used again after the call: what recording misses there would be lost."""

    def run(x):
        return tf.function(lambda: normalize(x) * x)()

    return run


def of_while_loop(normalize):
    def run(x):
        for _ in tf.range(3):
            x = normalize(x) + x
        return x

    return tf.function(run)


def of_cond(normalize):
    return tf.function(lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: normalize(x), lambda: x))


def of_recompute_grad(normalize):
    return tf.function(tf.recompute_grad(normalize))


def of_xla(normalize):
    return tf.function(normalize, jit_compile=True)


def inner_gradient(normalize):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.sin(normalize(x)))
        return tape.gradient(y, x)

    return gradient


def of_inner_tape(normalize):
    """A gradient penalty."""
    return tf.function(inner_gradient(normalize))


def of_forward_mode(normalize):
    def run(x):
        with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
            y = normalize(x)
        return accumulator.jvp(y)

    return tf.function(run)


def of_vectorized_map(normalize):
    gradient = inner_gradient(normalize)
    return lambda x: tf.vectorized_map(gradient, tf.stack([x, 2 * x]))


def with_relu6(x, *args, side_input=None, **attrs):
    y, *statistics = tf.compat.v1.nn.fused_batch_norm(x, *args, **attrs)
    return tf.nn.relu6(y if side_input is None else y + side_input), *statistics


def pairs_of_functions():
    """Ours and TensorFlow's, by what is fused."""
    ours = functools.partial(tf_bn_ops.fused_batch_norm, activation="relu6")
    return {
        "plain": (tf_bn_ops.fused_batch_norm, tf.compat.v1.nn.fused_batch_norm),
        "relu6": (ours, with_relu6),
        "add, relu6": tuple(
            lambda x, *a, f=f, **k: f(x, *a, side_input=tf.cos(x), **k) for f in (ours, with_relu6)
        ),
    }


@pytest.mark.parametrize("functions", pairs_of_functions().values(), ids=pairs_of_functions())
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    "way",
    [
        of_function,
        of_nested_function,
        of_captured_tensors,
        of_while_loop,
        of_cond,
        of_recompute_grad,
        of_xla,
        of_inner_tape,
        of_forward_mode,
        of_vectorized_map,
    ],
)
def test_gradients_are_those_of_tensorflow(way, is_training, functions):
    if way is of_xla and not _loader.build_info()["xla"]:
        pytest.skip("built without XLA")
    x, scale, offset, *given = make_inputs("NHWC", "float32")
    given = [] if is_training else given

    def gradient(batch_norm):
        function = way(lambda x: batch_norm(x, scale, offset, *given, is_training=is_training)[0])
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            loss = tf.reduce_sum(tf.sin(function(x)))
        return tape.gradient(loss, [x, scale, offset], unconnected_gradients="zero")

    got, want = map(gradient, functions)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", SHAPES)
def test_jacobians_are_those_of_a_loop(data_format, is_training):
    sizes = iter((2, 3, 2, 2))
    shape = [2 if letter == "C" else next(sizes) for letter in data_format]
    x = tf.constant(np.random.default_rng(1).normal(size=shape), tf.float32)
    one, zero = tf.ones([2]), tf.zeros([2])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf_bn_ops.fused_batch_norm(
            x, one, zero, zero, one, data_format=data_format, is_training=is_training
        ).y
    for jacobian in (tape.jacobian, tape.batch_jacobian):
        got, want = (jacobian(y, x, experimental_use_pfor=pfor) for pfor in (True, False))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("control_flow_v2", [True, False])
def test_gradients_of_a_session_with_a_loop(control_flow_v2):
    x, scale, offset = (tensor.numpy() for tensor in make_inputs("NHWC", "float32")[:3])

    def gradient(batch_norm):
        x0 = tf.constant(x)
        _, y = tf.compat.v1.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, batch_norm(y, scale, offset)[0] + y), (0, x0)
        )
        return tf.gradients(tf.reduce_sum(tf.sin(y)), x0)[0]

    switch = [tf.compat.v1.disable_control_flow_v2, tf.compat.v1.enable_control_flow_v2]
    switch[control_flow_v2]()
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            got = session.run(
                [gradient(tf_bn_ops.fused_batch_norm), gradient(tf.compat.v1.nn.fused_batch_norm)]
            )
    finally:
        tf.compat.v1.enable_control_flow_v2()
    np.testing.assert_allclose(*got, rtol=1e-4, atol=1e-4)


def functions_of(module):
    return [f for f in vars(module).values() if inspect.isfunction(f)]


@pytest.mark.parametrize(
    "function",
    [
        function
        for module in (
            *(_fused, _gradients, _ops, _recording, _replicas),
            *(_split_gradients, _sync, _vectorize),
        )
        for function in functions_of(module)
    ],
    ids=lambda function: f"{function.__module__.split('.')[-1]}-{function.__name__}",
)
def test_autograph_converts_what_a_traced_call_enters(function):
    """What it cannot convert it runs as it is, with a warning that the user is to report a bug."""
    tf.autograph.to_graph(function)


@pytest.mark.parametrize("is_training", [True, False])
def test_a_rank_that_is_not_the_data_formats_is_refused(is_training):
    """Known or not: derivatives of the statistics would be taken along other axes."""
    x, one = tf.random.normal(SHAPES["NDHWC"], seed=1), tf.ones([CHANNELS])

    def call(x):
        return tf_bn_ops.fused_batch_norm(x, one, one, one, one, is_training=is_training).y

    with pytest.raises(
        ValueError, match="x has rank 5, with data_format 'NHWC' it must have rank 4"
    ):
        call(x)
    of_any_rank = tf.function(call, input_signature=[tf.TensorSpec(None)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        of_any_rank(x)
    np.testing.assert_array_equal(of_any_rank(x[0]), call(x[0]))
