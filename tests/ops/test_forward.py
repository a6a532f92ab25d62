"""The forward ops: values within the promised bounds of float64 NumPy, in every mode, at any mean.

tests/ops/test_fidelity.py has the twins beside TensorFlow's; tests/core has the kernels in detail.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.spec import DATA_FORMATS, DTYPES, OPS, as_view, dtype_of, of_formula
from tf_bn_ops.spec.ops import BATCH_NORM

FORWARD = [*of_formula(BATCH_NORM), OPS["FusedBatchNormEx"]]
EX = tf_bn_ops.raw_ops.FusedBatchNormEx
V3 = tf_bn_ops.raw_ops.FusedBatchNormV3
VECTORS = ("scale", "offset", "mean", "variance")
STATISTICS = ("batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2")
ACTIVATIONS = {
    "Identity": lambda y: y,
    "Relu": lambda y: np.maximum(y, 0),
    "Relu6": lambda y: np.clip(y, 0, 6),
}
MODES: dict[str, dict[str, Any]] = {
    "training": {"is_training": True},
    "averaging": {"is_training": True, "exponential_avg_factor": 0.25},
    "frozen": {"is_training": False},
}
EPSILON = 2.0**-10  # The same number in float32.
U = 2.0**-24


def shape_of(data_format: str) -> tuple[int, ...]:
    return (3, 4, 5, 7, 2)[: DATA_FORMATS[data_format][0]]


def channels_of(shape: tuple[int, ...], data_format: str) -> int:
    return shape[-1 if DATA_FORMATS[data_format][1] else 1]


def make_inputs(
    data_format: str, dtype: str = "float32", mean: float = 0.5, shape: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """x of deviation 1 around `mean`, as far as the type can hold it; random vectors."""
    rng = np.random.default_rng(7)
    shape = shape or shape_of(data_format)
    channels = channels_of(shape, data_format)
    vectors = {name: rng.uniform(0.5, 2, channels).astype(np.float32) for name in VECTORS}
    vectors["mean"] += np.float32(mean)
    return {"x": DTYPES[dtype].store(rng.normal(mean, 1, shape)), **vectors}


def wide(array: Any, data_format: str) -> np.ndarray:
    """[outer, channels, inner] in float64."""
    return as_view(np.asarray(array).astype(np.float64), data_format)


def expected(
    inputs: dict[str, np.ndarray],
    data_format: str,
    is_training: bool = True,
    exponential_avg_factor: float = 1.0,
    bessel_correction: bool = True,
    activation_mode: str = "Identity",
    side_input: Any = (),
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The outputs by name, and the size of the terms of y."""
    x = wide(inputs["x"], data_format)
    scale, offset, mean, variance = (inputs[name].astype(np.float64)[:, None] for name in VECTORS)
    batch_mean, batch_variance = mean, variance
    if is_training:
        f, m = exponential_avg_factor, x.shape[0] * x.shape[2]
        mean, variance = x.mean((0, 2))[:, None], x.var((0, 2))[:, None]
        unbiased = variance * (m / max(m - 1, 1) if bessel_correction else 1)
        batch_mean = (1 - f) * batch_mean + f * mean
        batch_variance = (1 - f) * batch_variance + f * unbiased
    scaled = (x - mean) / np.sqrt(variance + EPSILON) * scale
    y, size = scaled + offset, np.abs(scaled) + np.abs(offset)
    for side in side_input:
        y, size = y + wide(side, data_format), size + np.abs(wide(side, data_format))
    vectors = (batch_mean, batch_variance, mean, variance)
    statistics = dict(zip(STATISTICS, (vector[:, 0] for vector in vectors), strict=True))
    return {"y": ACTIVATIONS[activation_mode](y), **statistics}, size


def assert_right(got: Any, inputs: dict[str, np.ndarray], data_format: str, **attrs: Any) -> None:
    """Within the bounds that cc/core/formulas/forward.h and docs/math.md promise."""
    want, size = expected(inputs, data_format, **attrs)
    dtype = dtype_of(inputs["x"])
    bound = 8 * U * size + dtype.unit_roundoff * np.abs(want["y"]) + dtype.smallest_subnormal
    error = np.abs(wide(got.y, data_format) - want["y"])
    assert got.y.shape == inputs["x"].shape
    assert np.all(error <= bound), np.max(error / bound)
    # Of batch_variance up to twice that: Bessel's factor.
    second_moment = np.mean(np.square(wide(inputs["x"], data_format)), (0, 2))
    for name in STATISTICS:
        is_mean = "mean" in name or name.endswith("1")
        bound = (2 if is_mean else 4) * U * np.abs(want[name])
        bound += 0 if is_mean else 2.0**-47 * second_moment
        error = np.abs(np.float64(getattr(got, name)) - want[name])
        assert np.all(error <= bound), (name, np.max(error / bound))


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", FORWARD, ids=lambda op: op.name)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mean", [0.0, 1e3, 1e5])
def test_values_are_right_at_any_mean(op, mode, mean):
    for data_format, dtype in itertools.product(op.layouts, op.dtypes):
        if mean > DTYPES[dtype].largest:
            continue
        inputs = make_inputs(data_format, dtype, mean)
        call = getattr(tf_bn_ops.raw_ops, op.name)
        got = call(**inputs, epsilon=EPSILON, data_format=data_format, **MODES[mode])
        assert_right(got, inputs, data_format, **MODES[mode])


@pytest.mark.parametrize("activation_mode", ACTIVATIONS)
@pytest.mark.parametrize("side_inputs", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bessel_correction", [True, False])
def test_side_input_activation_and_bessel_correction(
    activation_mode, side_inputs, mode, bessel_correction
):
    spec = OPS["FusedBatchNormEx"]
    for data_format, dtype in itertools.product(spec.layouts, spec.dtypes):
        inputs = make_inputs(data_format, dtype)
        inputs["scale"] *= 8
        rng = np.random.default_rng(8)
        side = DTYPES[dtype].store(rng.normal(1, 4, inputs["x"].shape))
        attrs = {
            "activation_mode": activation_mode,
            "side_input": [side] * side_inputs,
            "bessel_correction": bessel_correction,
            **MODES[mode],
        }
        got = EX(**inputs, epsilon=EPSILON, data_format=data_format, **attrs)
        assert_right(got, inputs, data_format, **attrs)
        if activation_mode == "Relu6":
            values = np.float64(got.y)
            assert values.min() == 0 and values.max() == 6, "the input reaches both ends"


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("side_inputs", [0, 1])
def test_one_element_per_channel(data_format, side_inputs):
    """y is the offset, and the variance zero, also with Bessel's correction."""
    shape = (1, 1, 1, 5) if data_format == "NHWC" else (1, 5, 1, 1)
    inputs = make_inputs(data_format, mean=1e5, shape=shape)
    side = np.ones(shape, np.float32)
    got = EX(**inputs, side_input=[side] * side_inputs, data_format=data_format)
    np.testing.assert_array_equal(np.ravel(got.y), inputs["offset"] + np.float32(side_inputs))
    np.testing.assert_array_equal(got.batch_mean, np.ravel(inputs["x"]))
    np.testing.assert_array_equal(got.batch_variance, np.zeros(5))
    np.testing.assert_array_equal(got.reserve_space_2, np.zeros(5))


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("activation_mode", ACTIVATIONS)
def test_infinity_and_nan_stay_in_their_channel(data_format, bad, activation_mode):
    """The mean of an infinity is infinite, the variance NaN, and so is y, after any activation."""
    inputs = make_inputs(data_format)
    attrs = {"epsilon": EPSILON, "data_format": data_format, "activation_mode": activation_mode}
    clean = EX(**inputs, **attrs)
    as_view(inputs["x"], data_format)[1, 2, -1] = bad
    got = EX(**inputs, **attrs)
    assert np.all(np.isnan(wide(got.y, data_format)[:, 2]))
    np.testing.assert_array_equal(got.batch_mean[2], bad)
    np.testing.assert_array_equal(got.batch_variance[2], np.nan)
    others = np.arange(len(inputs["scale"])) != 2
    np.testing.assert_array_equal(
        wide(got.y, data_format)[:, others], wide(clean.y, data_format)[:, others]
    )
    for name in STATISTICS:
        ours, without = (np.asarray(getattr(result, name)) for result in (got, clean))
        np.testing.assert_array_equal(ours[others], without[others])


def test_an_epsilon_of_minus_the_variance_or_below_gives_no_finite_y():
    inputs = make_inputs("NHWC")
    for epsilon in (-1e3, -1e30, float("-inf"), float("nan")):
        assert np.all(np.isnan(V3(**inputs, epsilon=epsilon).y))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (0, 4, 5, 6)], ids=["elements", "empty"])
def test_every_output_is_written_in_every_mode(mode, shape):
    """Also where the memory of the outputs held something else before."""
    rng = np.random.default_rng(0)
    inputs = make_inputs("NHWC", shape=shape)
    attrs = {"epsilon": EPSILON, **MODES[mode]}
    want = [np.asarray(output).copy() for output in V3(**inputs, **attrs)]
    for _ in range(20):
        # Freed at once, so that the next call's outputs of these sizes reuse the memory.
        for size in (6, 6, 6, 6, 6, int(np.prod(shape))):
            tf.constant(rng.normal(size=size).astype(np.float32)) * 3.0
        for output, value in zip(V3(**inputs, **attrs), want, strict=True):
            np.testing.assert_array_equal(output, value)


# ---- Buffers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side_inputs", [0, 1])
def test_forwarded_buffers_change_no_result(data_format, mode, side_inputs):
    """y may take the buffer of x or of the side input, batch_mean that of mean, batch_variance that
    of variance: where nothing reads them later, and only there."""
    inputs = make_inputs(data_format)
    attrs = {"epsilon": EPSILON, "data_format": data_format, **MODES[mode]}
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    side = tensors["x"] / 2
    want = EX(**tensors, side_input=[side] * side_inputs, **attrs)

    @tf.function
    def step(tensors: dict[str, Any], side: Any) -> Any:
        # They die with the op.
        temporary = {name: tensor * 2 / 2 for name, tensor in tensors.items()}
        forwarded = EX(**temporary, side_input=[side * 2 / 2] * side_inputs, **attrs)
        kept = {name: tensor * 4 / 4 for name, tensor in tensors.items()}
        read = EX(**kept, side_input=[kept["x"] / 2] * side_inputs, **attrs)
        return forwarded, read, kept

    forwarded, read, kept = step(tensors, side)
    for name, array in inputs.items():
        np.testing.assert_array_equal(kept[name], array)
        np.testing.assert_array_equal(tensors[name], array)
    for a, b, c in zip(want, forwarded, read, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_one_tensor_as_x_and_side_input_and_as_all_vectors():
    x = make_inputs("NHWC")["x"]
    vector = np.float32(np.linspace(0.5, 2, x.shape[-1]))
    inputs = {"x": tf.constant(x), **dict.fromkeys(VECTORS, tf.constant(vector))}
    got = EX(**inputs, side_input=[inputs["x"]], epsilon=EPSILON, is_training=False)
    arrays = {"x": x, **dict.fromkeys(VECTORS, vector)}
    assert_right(got, arrays, "NHWC", is_training=False, side_input=[x])


# ---- Execution modes, errors of Ex ---------------------------------------------------------------


@pytest.mark.parametrize("op", FORWARD, ids=lambda op: op.name)
def test_eager_function_and_session_are_bitwise_identical(op):
    inputs = make_inputs("NHWC")
    call = getattr(tf_bn_ops.raw_ops, op.name)
    want = call(**inputs, epsilon=EPSILON)
    assert want._fields == tuple(arg.name for arg in op.outputs)
    in_function = tf.function(lambda inputs: call(**inputs, epsilon=EPSILON))(inputs)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        node = call(**inputs, epsilon=EPSILON, name="normalize")
        assert node.y.op.name == "normalize"
        in_session = session.run(node)
    for a, b, c in zip(want, in_function, in_session, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_wrong_arguments_of_ex_are_one_sentence():
    inputs = make_inputs("NHWC")
    x = inputs["x"]
    with pytest.raises(ValueError, match="a list of at most one tensor, not of 2"):
        EX(**inputs, side_input=[x, x])
    with pytest.raises(tf.errors.InvalidArgumentError, match="side_input shape must be equal"):
        EX(**inputs, side_input=[x[:1]])
    with pytest.raises(tf.errors.InvalidArgumentError, match='"Identity", "Relu", "Relu6"'):
        EX(**inputs, activation_mode="Elu")
    with tf.Graph().as_default():
        with pytest.raises(
            ValueError, match="at most one side input is accepted, but num_side_inputs"
        ):
            tf_bn_ops.load().tf_bn_ops_fused_batch_norm_ex(**inputs, side_input=[x, x])
        with pytest.raises(ValueError, match="Dimension 0 in both shapes must be equal"):
            EX(**inputs, side_input=[x[:1]])


def test_the_side_input_tells_the_shape_of_y():
    tf_bn_ops.load()
    with tf.Graph().as_default():
        of = lambda *shape: tf.compat.v1.placeholder(tf.float32, shape)  # noqa: E731
        vectors = {name: of(None) for name in VECTORS}
        got = EX(x=of(None, 3, None, None), **vectors, side_input=[of(2, None, None, 5)])
        assert got.y.shape.as_list() == [2, 3, None, 5]


# ---- Gradients -----------------------------------------------------------------------------------


def composed(inputs: dict[str, Any], side: Any, activation_mode: str, mode: dict) -> Any:
    """y of Ex, of TensorFlow's operations in float64 that differentiate themselves."""
    x, scale, offset, mean, variance, side = (
        tf.cast(tensor, tf.float64) for tensor in (*inputs.values(), side)
    )
    if mode["is_training"]:
        mean, variance = tf.nn.moments(x, [0, 1, 2])
    y = (x - mean) * tf.math.rsqrt(variance + EPSILON) * scale + offset + side
    through = {"Identity": tf.identity, "Relu": tf.nn.relu, "Relu6": tf.nn.relu6}
    return through[activation_mode](y)


@pytest.mark.parametrize("activation_mode", ACTIVATIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_gradients_of_ex(activation_mode, mode, in_graph):
    """First and second, by x, scale, offset and the side input."""
    inputs = {name: tf.constant(array) for name, array in make_inputs("NHWC").items()}
    side = tf.constant(np.random.default_rng(9).normal(0, 4, inputs["x"].shape), tf.float32)
    watched = [inputs["x"], inputs["scale"], inputs["offset"], side]
    modes = MODES[mode]

    def ours(inputs: dict[str, Any], side: Any) -> Any:
        attrs = {"activation_mode": activation_mode, "epsilon": EPSILON, **modes}
        return tf.cast(EX(**inputs, side_input=[side], **attrs).y, tf.float64)

    def derivatives(y_of: Any) -> Any:
        def run(x: Any, scale: Any, offset: Any, side: Any) -> Any:
            tensors = {**inputs, "x": x, "scale": scale, "offset": offset}
            variables = [x, scale, offset, side]
            with tf.GradientTape() as outer:
                outer.watch(variables)
                with tf.GradientTape() as inner:
                    inner.watch(variables)
                    loss = tf.reduce_sum(tf.sin(y_of(tensors, side)))
                first = inner.gradient(loss, variables)
                penalty = sum(tf.reduce_sum(tf.square(gradient)) for gradient in first)
            zeros = tf.UnconnectedGradients.ZERO
            return [*first, *outer.gradient(penalty, variables, unconnected_gradients=zeros)]

        return (tf.function(run) if in_graph else run)(*watched)

    want = derivatives(lambda tensors, side: composed(tensors, side, activation_mode, modes))
    for got, value in zip(derivatives(ours), want, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-4 * np.max(np.abs(value)))


def test_tf_gradients_twice_of_every_op():
    """In a graph without tapes, and by the gradient registry alone."""
    for op in FORWARD:
        inputs = make_inputs("NHWC")
        call = getattr(tf_bn_ops.raw_ops, op.name)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tensors = {name: tf.constant(array) for name, array in inputs.items()}
            loss = tf.reduce_sum(tf.sin(call(**tensors, epsilon=EPSILON).y))
            (first,) = tf.gradients(loss, tensors["x"])
            second = tf.gradients(tf.reduce_sum(tf.square(first)), tensors["x"])[0]
            want = tf.reduce_sum(tf.sin(composed(tensors, 0.0, "Identity", MODES["training"])))
            (want_first,) = tf.gradients(want, tensors["x"])
            want_second = tf.gradients(tf.reduce_sum(tf.square(want_first)), tensors["x"])[0]
            got = session.run([first, want_first, second, want_second])
        np.testing.assert_allclose(*got[:2], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(*got[2:], rtol=1e-3, atol=1e-3)


def test_forward_mode():
    inputs = {name: tf.constant(array) for name, array in make_inputs("NHWC").items()}
    tangent = tf.cos(inputs["x"])

    def jvp(y_of: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(inputs["x"], tangent) as accumulator:
            y = y_of()
        return accumulator.jvp(y)

    got = jvp(lambda: V3(**inputs, epsilon=EPSILON).y)
    want = jvp(lambda: composed(inputs, 0.0, "Identity", MODES["training"]))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stacked", [["x"], ["side_input"], ["x", "side_input", "scale"]], ids=str)
@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_vectorized_map_of_ex_equals_a_loop(mode, stacked, data_format):
    inputs = {name: tf.constant(array) for name, array in make_inputs(data_format).items()}
    inputs["side_input"] = tf.sin(inputs["x"])
    looped = {name: tf.stack([inputs[name], inputs[name] / 2]) for name in stacked}

    def one(some: dict[str, Any]) -> Any:
        tensors = {**inputs, **some}
        side = tensors.pop("side_input")
        attrs = {"data_format": data_format, "activation_mode": "Relu", **MODES[mode]}
        return EX(**tensors, side_input=[side], **attrs)[:5]

    got = tf.vectorized_map(one, looped, fallback_to_while_loop=False)
    want = tf.map_fn(one, looped, fn_output_signature=("float32",) * 5)
    for ours, value in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours, value)
