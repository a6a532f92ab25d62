"""fused_batch_norm: values and gradients against float64 autodiff of the formula.

Promised: in training `fused_batch_norm` is one op in each direction; parameters stand in
TensorFlow's order; it is differentiated by everything that it takes and returns, in reverse and
forward mode, in functions and loops; wrong arguments are one sentence.
"""

from __future__ import annotations

import functools
import inspect
import itertools

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from call_places import DERIVATIVES, PLACES, in_while_loop

import tf_bn_ops
from tf_bn_ops import (
    _arguments,
    _enable,
    _fused,
    _gradients,
    _loader,
    _recording,
    _replicas,
    _split_gradients,
    _sync,
    _vectorize,
)
from tf_bn_ops.generated import bindings
from tf_bn_ops.spec import (
    ACTIVATION_MODES,
    ACTIVATIONS,
    DATA_FORMATS,
    DTYPES,
    SMOOTH_ACTIVATIONS,
)

EPSILON = 0.125  # The same number in float32, the type of the attr.
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


def vector_type(dtype):
    return "float64" if dtype == "float64" else "float32"


def make_inputs(data_format, dtype):
    """Values that the element type holds exactly, so that both sides compute with the same."""
    rng = np.random.default_rng(0)
    x = tf.cast(rng.normal(0.5, 1, SHAPES[data_format]), dtype)
    vectors = [tf.cast(rng.uniform(0.5, 2, CHANNELS), vector_type(dtype)) for _ in range(4)]
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
    rounded = 0 if dtype == vector_type(dtype) else roundings * DTYPES[dtype].unit_roundoff
    unit = ROUNDINGS * DTYPES[vector_type(dtype)].unit_roundoff + rounded
    bound = unit * (np.abs(want) + np.max(np.abs(want), initial=1))
    assert np.all(np.abs(np.float64(got) - want) <= bound), np.max(np.abs(np.float64(got) - want))


def test_one_element_per_channel_has_finite_gradients():
    x, one = tf.ones([1, 1, 1, 3]), tf.ones([3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, mean, variance = tf_bn_ops.fused_batch_norm(x, one, one)
        total = tf.reduce_sum(y) + tf.reduce_sum(mean) + tf.reduce_sum(variance)
    np.testing.assert_array_equal(tape.gradient(total, x), np.ones([1, 1, 1, 3]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_elements_second_derivatives_are_zero(dtype):
    x, one = tf.zeros([0, 2, 2, 3], dtype), tf.ones([3], dtype)
    with tf.GradientTape() as outer:
        outer.watch(one)
        with tf.GradientTape() as tape:
            tape.watch([x, one])
            y = tf.nn.silu(tf_bn_ops.fused_batch_norm(x, one, one).y)
        first = tape.gradient(y, [x, one])
        total = tf.add_n([tf.reduce_sum(value) for value in first])
    np.testing.assert_array_equal(outer.gradient(total, one), np.zeros(3))


# ---- Activation and side input -------------------------------------------------------------------

# Activation and whether there is a side input.
FUSIONS = [*itertools.product(ACTIVATION_MODES, (False, True))]
SMOOTH = {
    name: getattr(keras.activations, name)
    for name, mode in ACTIVATION_MODES.items()
    if name is not None and mode in SMOOTH_ACTIVATIONS
}


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


@pytest.mark.parametrize(("is_training", "factor"), [(True, 1.0), (True, 0.25), (False, 1.0)])
@pytest.mark.parametrize("data_format", SHAPES)
@pytest.mark.parametrize(("activation", "with_side_input"), FUSIONS)
def test_values_and_all_gradients(activation, with_side_input, data_format, is_training, factor):
    """In an element type in turn; eagerly, and of one layout in a graph as well."""
    turn = [*SHAPES].index(data_format) + FUSIONS.index((activation, with_side_input))
    dtype = [*DTYPES][(turn + is_training + int(factor)) % len(DTYPES)]
    inputs = make_fused_inputs(data_format, dtype)
    ours = fused(
        activation,
        with_side_input,
        epsilon=EPSILON,
        data_format=data_format,
        is_training=is_training,
        exponential_avg_factor=factor,
    )
    for function in (ours, tf.function(ours)) if data_format == "NHWC" else (ours,):
        outputs, got = gradients(function, inputs)
        if activation in ("relu", "relu6"):
            assert np.min(outputs[0]) == 0
            assert activation == "relu" or np.max(outputs[0]) == 6
        attrs = (data_format, is_training, factor)
        want_outputs, want = gradients(
            fused_formula(activation, with_side_input, outputs[0], *attrs),
            [tf.cast(tensor, tf.float64) for tensor in inputs],
        )
        for i, (output, want_output) in enumerate(zip(outputs, want_outputs, strict=True)):
            check(output, want_output, dtype if i == 0 else vector_type(dtype))
        # TensorFlow's ops round their derivatives to the type of y.
        composed = activation in SMOOTH and not is_training
        if composed and ACTIVATIONS[ACTIVATION_MODES[activation]].jumps and dtype == "bfloat16":
            continue  # They look at a y of 8 bits.
        for i, (gradient, want_gradient, tensor) in enumerate(zip(got, want, inputs, strict=True)):
            assert gradient.dtype == tensor.dtype
            kind = dtype if i in (0, 5) or composed else vector_type(dtype)
            # TensorFlow 2.22 adds up derivatives that it rounds once more.
            roundings = 8 if composed and i not in (0, 5) else 4
            check(gradient, want_gradient, kind, roundings)


# How a step is run; XLA takes the ops' own kernels where its library was built.
MODES = {
    "eager": lambda step: step,
    "function": tf.function,
    "jit_compile": functools.partial(tf.function, jit_compile=True),
}


@pytest.mark.parametrize("run", MODES)
@pytest.mark.parametrize(("is_training", "dtype"), [*itertools.product([True, False], DTYPES)])
def test_the_slope_of_a_leaky_relu(is_training, dtype, run):
    """Fused, composed and in float64; 0 and 1 are slopes like others."""
    if run == "jit_compile" and not _loader.build_info()["xla"]:
        pytest.skip("built without XLA")
    inputs = make_fused_inputs("NHWC", dtype)[:5]
    for alpha in (0.3, -0.5, 1.75, 0.0, 1.0):

        def ours(*inputs, alpha=alpha):
            given = {"activation": "leaky_relu", "leakyrelu_alpha": alpha, "epsilon": EPSILON}
            return tf_bn_ops.fused_batch_norm(*inputs, is_training=is_training, **given)

        def theirs(*inputs, alpha=alpha):
            z, *statistics = formula(*inputs, "NHWC", is_training, 1.0)
            return tf.nn.leaky_relu(z, alpha), *statistics

        outputs, got = gradients(MODES[run](ours), inputs)
        want_outputs, want = gradients(theirs, [tf.cast(tensor, tf.float64) for tensor in inputs])
        # In 16 bits alpha is rounded, too, by TensorFlow's op.
        check(outputs[0], want_outputs[0], dtype)
        if dtype == "bfloat16" and not is_training:
            continue  # TensorFlow's op looks at a y of 8 bits.
        for gradient, want_gradient in zip(got, want, strict=True):
            check(gradient, want_gradient, dtype, 8)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("alpha", [float("inf"), float("nan"), 1e39, "0.2", tf.constant(0.2)])
def test_the_slope_of_a_leaky_relu_is_a_finite_number(alpha, is_training):
    inputs = make_inputs("NHWC", "float32")
    kind = ValueError if isinstance(alpha, float) else TypeError
    with pytest.raises(kind, match=r"leakyrelu_alpha (is .*, it must be a fi|must be a number)"):
        tf_bn_ops.fused_batch_norm(
            *inputs, is_training=is_training, activation="leaky_relu", leakyrelu_alpha=alpha
        )
    if isinstance(alpha, float):
        with pytest.raises(tf.errors.InvalidArgumentError, match="leakyrelu_alpha must be finite"):
            tf_bn_ops.raw_ops.FusedBatchNormEx(
                **dict(zip(("x", "scale", "offset", "mean", "variance"), inputs, strict=True)),
                activation_mode="LeakyRelu", leakyrelu_alpha=alpha,
            )  # fmt: skip


def test_a_slope_beyond_float64_is_refused_and_one_that_is_not_read_is_not():
    inputs = make_inputs("NHWC", "float32")
    with pytest.raises(ValueError, match="leakyrelu_alpha is beyond float64"):
        tf_bn_ops.fused_batch_norm(*inputs, activation="leaky_relu", leakyrelu_alpha=10**400)
    for activation in (None, "relu", "silu"):
        given, want = (
            tf_bn_ops.fused_batch_norm(*inputs, activation=activation, **alpha)[0]
            for alpha in ({"leakyrelu_alpha": float("nan")}, {})
        )
        np.testing.assert_array_equal(given, want)


def second_derivatives(function, is_training, *inputs):
    """Of a function of the first derivatives, by what is differentiated."""
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            y, mean, variance = function(*inputs)
            loss = tf.reduce_sum(tf.sin(y))
            if is_training:  # The statistics are functions of x.
                loss += tf.reduce_sum(tf.sin(mean)) + tf.reduce_sum(tf.square(variance))
        statistics = [] if is_training else inputs[3:5]
        sources = [inputs[0], inputs[5], *statistics]
        by = inner.gradient(loss, sources, unconnected_gradients="zero")
        value = tf.reduce_sum(tf.square(by[0]))
        value += tf.add_n([tf.reduce_sum(tf.sin(other)) for other in by[1:]])
    sources = [*inputs[:3], *statistics, inputs[5]]
    return outer.gradient(value, sources, unconnected_gradients="zero")


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("activation", "with_side_input"), FUSIONS)
def test_second_derivatives(activation, with_side_input, is_training):
    """Promise: Second derivatives are those of the formula."""
    inputs = make_fused_inputs("NHWC", "float32")
    ours = fused(activation, with_side_input, epsilon=EPSILON, is_training=is_training)
    attrs = (ours(*inputs).y, "NHWC", is_training, 1.0)
    theirs = fused_formula(activation, with_side_input, *attrs)
    got = second_derivatives(ours, is_training, *inputs)
    wide = [tf.cast(tensor, tf.float64) for tensor in inputs]
    for a, b in zip(got, second_derivatives(theirs, is_training, *wide), strict=True):
        check(a, b)


def backward(function):
    """The gradient of a function that returns tensors, of a sum that is not linear in them."""

    def by_inputs(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.add_n([tf.reduce_sum(tf.sin(value / 4)) for value in function(*inputs)])
        gradients = tape.gradient(loss, inputs, unconnected_gradients="zero")
        return [*map(tf.convert_to_tensor, gradients)]  # Of a stack they are slices.

    return by_inputs


def forward(function):
    """Its derivative along one direction, in forward mode."""

    def along(*inputs):
        with tf.autodiff.ForwardAccumulator([*inputs], [tf.cos(v) for v in inputs]) as forward:
            values = function(*inputs)
        return [forward.jvp(value) for value in values]

    return along


@pytest.mark.parametrize("mode", ["eager", pytest.param("function", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "steps",
    [*itertools.product([backward, forward], repeat=2), (backward,) * 3],
    ids=lambda steps: " of ".join(step.__name__ for step in reversed(steps)),
)
def test_derivatives_with_fixed_statistics(steps, mode):
    """Of the second and third order, by mean and variance too, whose part is Python's."""
    inputs = make_inputs("NHWC", "float32")
    ours = fused("relu", False, epsilon=EPSILON, is_training=False)
    theirs = fused_formula("relu", False, ours(*inputs).y, "NHWC", False, 1.0)
    results = []
    for function, dtype in (ours, "float32"), (theirs, "float64"):

        def derivative(*inputs, function=function):
            return function(*inputs)[:1]

        for step in steps:
            derivative = step(derivative)
        run = MODES[mode if function is ours else "eager"]
        results.append(run(derivative)(*(tf.cast(tensor, dtype) for tensor in inputs)))
    for a, b in zip(*results, strict=True):
        check(a, b)


@pytest.mark.parametrize(
    ("are_stacked", "mode"),
    [(True, "eager"), pytest.param(False, "function", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("is_training", [True, False])
def test_derivatives_below_vectorized_map(are_stacked, is_training, mode):
    """Also of a function that was traced outside; of batch_mean and batch_variance too."""
    attrs = {"epsilon": EPSILON, "is_training": is_training, "exponential_avg_factor": 0.25}
    attrs = attrs if is_training else {**attrs, "exponential_avg_factor": 1.0}
    inputs = make_inputs("NHWC", "float32")
    traced = tf.function(lambda *inputs: (*tf_bn_ops.fused_batch_norm(*inputs, **attrs),))
    traced(*inputs)
    factor = attrs["exponential_avg_factor"]
    theirs = functools.partial(formula, data_format="NHWC", is_training=is_training, factor=factor)
    stacked = len(inputs) if are_stacked else 1
    inputs = [tf.stack([v, 0.5 * v]) for v in inputs[:stacked]] + inputs[stacked:]
    for order in range(1, 3):
        results = []
        for function, map_fn, dtype in (
            (traced, tf.vectorized_map, "float32"),
            (traced.python_function, tf.vectorized_map, "float32"),
            (theirs, tf.map_fn, "float64"),
        ):

            def mapped(*inputs, function=function, map_fn=map_fn, dtype=dtype):
                signature = {} if map_fn is tf.vectorized_map else {"dtype": (dtype,) * 3}
                return map_fn(
                    lambda of_one: function(*of_one, *inputs[stacked:]),
                    inputs[:stacked],
                    **signature,
                )

            derivative = mapped
            for _ in range(order):
                derivative = backward(derivative)
            run = MODES["function" if function is theirs else mode]
            results.append(run(derivative)(*(tf.cast(tensor, dtype) for tensor in inputs)))
        *ours, want = results
        for got in ours:
            for a, b in zip(got, want, strict=True):
                check(a, b)


def test_the_derivative_of_a_jacobian_by_fixed_statistics():
    x, scale, offset, mean, variance = make_inputs("NHWC", "float32")
    attrs = {"epsilon": EPSILON, "is_training": False}
    results = []
    for uses_pfor in True, False:
        with tf.GradientTape() as outer:
            outer.watch([mean, variance])
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = tf_bn_ops.fused_batch_norm(x, scale, offset, mean, variance, **attrs).y
                y = tf.sin(y)
            jacobian = tape.jacobian(y, x, experimental_use_pfor=uses_pfor)
            loss = tf.reduce_sum(tf.square(jacobian))
        results.append(outer.gradient(loss, [mean, variance]))
    for a, b in zip(*results, strict=True):
        check(a, b)


@pytest.mark.parametrize("synchronized", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_second_derivatives_by_parts(mode, synchronized):
    """Of float64, which the split ops compute, and with synchronisation on one replica."""
    if mode == "jit_compile" and not _loader.build_info()["xla"]:
        pytest.skip("built without XLA")
    inputs = [tf.cast(tensor, tf.float64) for tensor in make_fused_inputs("NHWC", "float32")]
    ours = fused("relu", True, epsilon=EPSILON, synchronized=synchronized)
    theirs = fused_formula("relu", True, ours(*inputs).y, "NHWC", True, 1.0)
    got = MODES[mode](functools.partial(second_derivatives, ours, True))(*inputs)
    for a, b in zip(got, second_derivatives(theirs, True, *inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * np.max(np.abs(b)))


@pytest.mark.parametrize("activation", [None, "relu"])
def test_in_float64_no_epsilon_is_rounded(activation):
    """As float32, 1e-3 is 5e-8 off; y and its derivatives of both orders are of the number
    itself."""
    x, scale, offset, *_ = (tf.cast(v, tf.float64) for v in make_inputs("NHWC", "float32"))

    def formula(x, scale, offset):
        x -= tf.reduce_mean(x, [0, 1, 2])
        variance = tf.reduce_mean(tf.square(x), [0, 1, 2])
        y = x * tf.math.rsqrt(variance + 1e-3) * scale + offset
        return tf.nn.relu(y) if activation else y

    def ours(*inputs):
        return tf_bn_ops.fused_batch_norm(*inputs, epsilon=1e-3, activation=activation).y

    def both(function):
        with tf.GradientTape() as outer:
            outer.watch((x, scale))
            with tf.GradientTape() as tape:
                tape.watch((x, scale, offset))
                y = function(1e-3 * x, scale, offset)
            first = tape.gradient(y, (x, scale, offset), tf.sin(x))
        return y, *first, *outer.gradient(first, (x, scale), [tf.cos(v) for v in first])

    for got, want in zip(both(ours), both(formula), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * np.max(np.abs(want)))


# By what is fused and the order of the derivative: ops that a function has, once each.
@pytest.mark.parametrize(
    ("fusion", "order", "names"),
    [
        ((None, False), 1, ["FusedBatchNormGradV3", "FusedBatchNormV3"]),
        ((None, True), 1, ["FusedBatchNormEx", "FusedBatchNormGradV3"]),
        (("relu", True), 1, ["FusedBatchNormEx", "FusedBatchNormGradEx"]),
        (
            *(("relu", True), 2),
            ["FusedBatchNormEx", "FusedBatchNormGradEx", "FusedBatchNormGradGrad"],
        ),
    ],
)
def test_training_is_one_op_in_each_direction(fusion, order, names):
    """Statistics that nothing reads are not differentiated."""

    @tf.function
    def step(*inputs):
        y = fused(*fusion)(*inputs).y
        for _ in range(order):
            (y,) = tf.gradients(y, inputs[0])
        return y

    graph = step.get_concrete_function(*make_fused_inputs("NHWC", "float32")).graph
    ops = [op.type for op in graph.get_operations()]
    assert sorted(op for op in ops if "BatchNorm" in op) == [f"TfBnOps>{name}" for name in names]
    if order == 1:
        assert not {"Relu", "ReluGrad", "AddV2", "AddN", "TensorScatterUpdate"} & {*ops}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 4, CHANNELS), (None, 3, None, CHANNELS)])
def test_frozen_functions_hold_ops_of_tensorflow_alone(shape, dtype):
    """Promise: What infers with fixed statistics holds ops of TensorFlow alone."""
    inputs = make_fused_inputs("NHWC", dtype)
    view, vector = tf.TensorSpec(shape, dtype), tf.TensorSpec([CHANNELS], dtype)

    @tf.function(input_signature=[view, *[vector] * 4, view])
    def infer(*inputs):
        return fused("relu6", True, is_training=False)(*inputs).y

    graph = infer.get_concrete_function().graph
    ops = {op.type for op in graph.get_operations()}
    assert "Relu6" in ops and ("FusedBatchNormV3" in ops) == (dtype == "float32")
    assert not [op for op in ops if op.startswith("TfBnOps")]
    want = fused("relu6", True, is_training=False)(*inputs).y
    # In float64 TensorFlow's graph optimizer reorders the formula.
    off = 1e-14 if dtype == "float64" else 0
    np.testing.assert_allclose(infer(*inputs), want, rtol=off, atol=off)
    if shape[0] is None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="same size and shape"):
            infer(*inputs[:5], inputs[5][:1])


WRONG = [
    (ValueError, "data_format is 'NWHC'", {"data_format": "NWHC"}),
    (ValueError, "needed if not is_training", {"is_training": False, "mean": None}),
    (
        *(ValueError, "needed with an exponential_avg_factor"),
        {"mean": None, "exponential_avg_factor": 0.5},
    ),
    *(
        (*expected, {**arguments, "is_training": is_training})
        for is_training in (True, False)
        for *expected, arguments in (
            (ValueError, "activation is 'gelu', it must be one of", {"activation": "gelu"}),
            (
                *(ValueError, r"side_input has shape \(1, 3, 4, 5\), it must have the"),
                {"side_input": tf.ones([1, 3, 4, 5])},
            ),
            (
                *(TypeError, "side_input is float16, it must be float32 like x"),
                {"side_input": tf.ones([2, 3, 4, 5], tf.half)},
            ),
            (
                *(ValueError, "x has rank 5, with data_format 'NHWC' it must have rank 4"),
                {"x": tf.ones(SHAPES["NDHWC"])},
            ),
        )
    ),
    *(
        (
            *(TypeError, "exponential_avg_factor must be a number, not "),
            {"exponential_avg_factor": value},
        )
        for value in (None, "1", tf.constant(0.1))
    ),
]


@pytest.mark.parametrize(("kind", "sentence", "arguments"), WRONG)
def test_wrong_arguments_are_one_sentence(kind, sentence, arguments):
    names = ("x", "scale", "offset", "mean", "variance")
    given = dict(zip(names, make_inputs("NHWC", "float32"), strict=True))
    with pytest.raises(kind, match=sentence):
        tf_bn_ops.fused_batch_norm(**{**given, **arguments})


# ---- The same calls as TensorFlow's --------------------------------------------------------------


def test_parameters_are_those_of_tensorflow_in_its_order():
    """And four more, by name alone."""
    of = lambda function, kind: [  # noqa: E731
        (p.name, p.default)
        for p in inspect.signature(function).parameters.values()
        if p.kind == kind
    ]
    ours, theirs = tf_bn_ops.fused_batch_norm, tf.compat.v1.nn.fused_batch_norm
    either, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    assert of(ours, either) == of(theirs, either)
    assert of(ours, by_name) == [
        ("activation", None), ("leakyrelu_alpha", 0.2), ("side_input", None),
        ("synchronized", False),
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


@pytest.mark.parametrize("shape", [(1, 65537, 32768, 1), (3, 32768, 32768, 1), (None,) * 4])
@pytest.mark.parametrize("derivative", ["mean", "variance", "third"])
@pytest.mark.parametrize("is_training", [True, False])
def test_sizes_are_counted_in_64_bits(derivative, shape, is_training):
    """More than 2^31 elements, traced alone: an int32 would be negative."""

    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec(shape[-1:])])
    def function(x, vector):
        given = () if is_training else (vector, vector)
        y, mean, variance = tf_bn_ops.fused_batch_norm(
            x, vector, vector, *given, is_training=is_training
        )
        of = {"mean": mean, "variance": variance, "third": tf.sin(y)}[derivative]
        for _ in range(3 if derivative == "third" else 1):
            (of,) = tf.gradients(tf.reduce_sum(tf.square(of)), x)
        return of

    for op in function.get_concrete_function().graph.get_operations():
        if op.type == "Const" and "Size" in op.name:
            assert tf.make_ndarray(op.get_attr("value")) > 0, op
        if op.type in ("Size", "Prod") and op.outputs[0].dtype == tf.int32:
            assert op.inputs[0].shape.rank in (0, 1), op  # Of a vector, such as a shape.


ON_TWO_DEVICES = """
import tensorflow as tf, tf_bn_ops.keras
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.experimental.set_device_policy("explicit")  # Copies are errors.
for device in ("CPU:1", "CPU:0", None, "CPU:1"):
    with tf.device(device):
        x, one = tf.constant([3.0, 5.0], shape=[2, 1, 1, 1]), tf.ones([1])
        print(float(tf_bn_ops.fused_batch_norm(x, one, one).batch_mean[0]))
        layer = tf_bn_ops.keras.BatchNormalization(scale=False, center=False)
        print(float(layer(x, training=True)[0, 0, 0, 0]))
"""


def test_constants_are_those_of_the_device():
    """They are kept for the next call that is given as little."""
    assert [round(float(line), 2) for line in forked.output(ON_TWO_DEVICES).split()] == [4, -1] * 4


def ops_of(function, *args):
    return {node.op for node in function.get_concrete_function(*args).graph.as_graph_def().node}


@pytest.mark.parametrize(
    ("dtype", "mean", "roundoff"),
    [("half", 1024, 2**-11), ("bfloat16", 65536, 2**-8), ("float32", 65536, 2**-24)],
)
@pytest.mark.parametrize("data_format", ["NCHW", "NCDHW"])
def test_channels_first_inference_has_no_op_that_transposes(data_format, dtype, mean, roundoff):
    """Right at a mean that x * a + b would lose five digits of, in functions, eagerly, on tapes."""
    x, scale, offset, _, variance = make_inputs(data_format, dtype)
    x = tf.cast(tf.cast(x, tf.float32) + mean, dtype)
    mean = tf.fill([CHANNELS], float(mean))
    wide = [tf.cast(value, tf.float64) for value in (x, scale, offset, mean, variance)]
    want = tf.cast(formula(*wide, data_format, False, 1)[0], dtype)

    def infer(x):
        return tf_bn_ops.fused_batch_norm(
            x, scale, offset, mean, variance, EPSILON, data_format, is_training=False
        ).y

    def differentiated(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            return tape.gradient(infer(x), x), infer(x)

    inference, both = tf.function(infer), tf.function(differentiated)
    assert not {"FusedBatchNormV3", "Transpose"} & (ops_of(inference, x) | ops_of(both, x))
    assert "TfBnOps>FusedBatchNormGradV3" in ops_of(both, x)
    for y in (inference(x), infer(x), both(x)[1], differentiated(x)[1]):
        np.testing.assert_allclose(
            *(tf.cast(value, tf.float64) for value in (y, want)), 8 * roundoff, 8 * roundoff
        )


@pytest.mark.parametrize("place", ["this library's kernels", "a GPU"])
def test_channels_first_inference_keeps_an_op_that_transposes_nothing(place, monkeypatch):
    if place == "a GPU":
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    else:
        monkeypatch.setattr(_enable, "has_kernels", lambda: True)
    infer = functools.partial(tf_bn_ops.fused_batch_norm, data_format="NCHW", is_training=False)
    function = tf.function(lambda *args: infer(*args).y, autograph=False)
    assert "FusedBatchNormV3" in ops_of(function, *make_inputs("NCHW", "float32"))


NCHW = ([2, CHANNELS, 3, 4], *[[CHANNELS]] * 4)


@pytest.mark.parametrize("of", range(1, 5))
@pytest.mark.parametrize("wrong", [[1], [], [1, CHANNELS], [CHANNELS - 1]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_known", [True, False])
def test_inference_refuses_vectors_of_another_shape(of, wrong, dtype, is_known):
    """Also where the formula would broadcast them."""
    given = [tf.ones(wrong if i == of else shape, dtype) for i, shape in enumerate(NCHW)]
    signature = None if is_known else [tf.TensorSpec(None, dtype)] * 5
    infer = functools.partial(tf_bn_ops.fused_batch_norm, data_format="NCHW", is_training=False)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf.function(lambda *args: infer(*args).y, signature, autograph=False)(*given)


@pytest.mark.parametrize(("x", "vector"), [("uint8", "float32"), ("half", "float64")])
def test_inference_refuses_other_types(x, vector):
    given = [tf.ones(shape, vector if i else x) for i, shape in enumerate(NCHW)]
    infer = functools.partial(tf_bn_ops.fused_batch_norm, data_format="NCHW", is_training=False)
    with pytest.raises(TypeError):
        tf.function(lambda *args: infer(*args).y, autograph=False)(*given)


@pytest.mark.parametrize("data_format", SHAPES)
@pytest.mark.parametrize("is_training", [True, False])
def test_the_name_and_the_gradient_in_a_function_without_a_tape(is_training, data_format):
    """The gradient is this library's, and not TensorFlow's of each op, which sums in float32."""

    @tf.function(autograph=False)
    def function(*args):
        with tf.name_scope("net"):
            y = tf_bn_ops.fused_batch_norm(
                *args, data_format=data_format, is_training=is_training, name="bn"
            ).y
        assert y.name == "net/bn:0"
        return tf.gradients(y, args[:3])

    args = make_inputs(data_format, "float32")
    function(*args)
    assert "TfBnOps>FusedBatchNormGradV3" in ops_of(function, *args)


@pytest.mark.parametrize("data_format", SHAPES)
def test_a_gradient_that_the_graph_overrides(data_format):
    """Explanations such as guided backpropagation take another one of the frozen op."""
    name = f"Doubled{data_format}"
    tf.RegisterGradient(name)(lambda op, dy, *_: [2 * dy, *[None] * 4])
    x, *vectors = (tensor.numpy() for tensor in make_inputs(data_format, "float32"))

    def overridden(x):
        graph = tf.compat.v1.get_default_graph()
        with graph.gradient_override_map({"FusedBatchNormV3": name}):
            y = tf_bn_ops.fused_batch_norm(
                x, *vectors, data_format=data_format, is_training=False, activation="relu"
            ).y
        return tf.gradients(y, x)[0], y > 0

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        in_session = session.run(overridden(tf.constant(x)))
    for got, passed in (in_session, tf.function(overridden)(x)):
        np.testing.assert_array_equal(got, 2 * tf.cast(passed, tf.float32))


# ---- Every way to differentiate, in every place --------------------------------------------------


def with_relu6(x, *args, side_input, **attrs):
    y, *statistics = tf.compat.v1.nn.fused_batch_norm(x, *args, **attrs)
    return tf.nn.relu6(y + side_input), *statistics


# Ours and TensorFlow's.
FUNCTIONS = {
    "plain": (tf_bn_ops.fused_batch_norm, tf.compat.v1.nn.fused_batch_norm),
    "add, relu6": tuple(
        lambda x, *args, f=f, **attrs: f(x, *args, side_input=tf.cos(x), **attrs)
        for f in (functools.partial(tf_bn_ops.fused_batch_norm, activation="relu6"), with_relu6)
    ),
}


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("functions", FUNCTIONS)
@pytest.mark.parametrize(
    ("place", "derivative"),
    [
        *((place, "gradient") for place in PLACES),
        *(
            ("nested function", name)
            for name in DERIVATIVES
            if name != "gradient" and "forward " not in name
        ),
        ("the function itself", "forward mode"),
    ],
)
def test_derivatives_are_those_of_tensorflow(place, derivative, functions, is_training):
    """By x, on which scale and offset depend in all places."""
    if place == "XLA" and not _loader.build_info()["xla"]:
        pytest.skip("built without XLA")
    x, scale, offset, *given = make_inputs("NHWC", "float32")

    def derived(batch_norm):
        def norm(x):
            factor = 1 + tf.reduce_mean(x) / 4 if place in PLACES else 1
            statistics = [] if is_training else given
            return batch_norm(
                x, scale * factor, offset * factor, *statistics, is_training=is_training
            )[0]

        call = functools.partial(PLACES[place], norm) if place in PLACES else norm
        return tf.function(functools.partial(DERIVATIVES[derivative], call))(x)

    got, want = map(derived, FUNCTIONS[functions])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.max(np.abs(want)))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("behind", [None, pytest.param("silu", marks=pytest.mark.long)])
@pytest.mark.parametrize("derivative", ["forward mode", "forward over backward"])
def test_forward_mode_through_functions(derivative, behind, is_training):
    """As TensorFlow's eagerly: in a function TensorFlow's op loses its tangent."""
    x, scale, offset, *given = make_inputs("NHWC", "float32")
    derive = DERIVATIVES[derivative]
    args = (scale, offset, *([] if is_training else given))

    def ours(x):
        call = functools.partial(tf_bn_ops.fused_batch_norm, activation=behind)
        return call(x, *args, is_training=is_training)[0]

    def tensorflows(x):
        y = tf.compat.v1.nn.fused_batch_norm(x, *args, is_training=is_training)[0]
        return getattr(tf.nn, behind)(y) if behind else y

    want = derive(tensorflows, x)
    function = tf.function(ours)
    for got in (derive(function, x), tf.function(functools.partial(derive, function))(x)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.max(np.abs(want)))


def test_gradients_of_a_loop_of_control_flow_v1():
    x, scale, offset = (tensor.numpy() for tensor in make_inputs("NHWC", "float32")[:3])

    def gradient(batch_norm):
        norm = lambda x: batch_norm(x, scale, offset)[0]  # noqa: E731
        x0 = tf.constant(x)
        return tf.gradients(tf.reduce_sum(tf.sin(in_while_loop(norm, x0))), x0)[0]

    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            got = session.run([gradient(batch_norm) for batch_norm in FUNCTIONS["plain"]])
    finally:
        tf.compat.v1.enable_control_flow_v2()
    np.testing.assert_allclose(*got, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "module",
    [
        *(_arguments, _fused, _gradients, bindings, _recording, _replicas),
        *(_split_gradients, _sync, _vectorize),
    ],
    ids=lambda module: module.__name__,
)
def test_autograph_converts_what_a_traced_call_enters(module):
    """What it cannot convert it runs as it is, with a warning that the user is to report a bug."""
    for function in vars(module).values():
        if inspect.isfunction(function):
            tf.autograph.to_graph(function)


@pytest.mark.parametrize("is_training", [True, False])
def test_an_unknown_rank_has_to_be_that_of_the_data_format(is_training):
    """Derivatives of the statistics would be taken along other axes."""
    one = tf.ones([CHANNELS])

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def call(x):
        return tf_bn_ops.fused_batch_norm(x, one, one, one, one, is_training=is_training).y

    assert call(tf.ones(SHAPES["NHWC"])).shape == SHAPES["NHWC"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        call(tf.ones(SHAPES["NDHWC"]))
