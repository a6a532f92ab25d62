"""BatchNormTrainingBackprop: nGraph's semantics, its validation, and its gradient.

The reference is the formula of nGraph's reference kernel in extended precision, and finite
differences of batch normalization itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops import _ops
from tf_bn_ops.spec import DTYPES

VECTORS = ("gamma", "beta", "mean", "variance")
NAMES = ("input", *VECTORS, "normalized_delta")
SHAPES = [(5, 3), (4, 3, 7), (2, 5, 3, 4), (2, 3, 4, 2, 5), (2, 4, 3, 2, 2, 3)]


def make_inputs(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> dict[str, Any]:
    """Random inputs with the true statistics of the input (rounded to the type)."""
    rng = np.random.default_rng([seed, *shape])
    element = DTYPES[dtype].numpy
    x = rng.normal(0.5, 2, shape).astype(element)
    others = tuple(i for i in range(len(shape)) if i != 1)
    wide = x.astype(np.float64)
    values = {
        "input": x,
        "gamma": rng.uniform(0.5, 2, shape[1]),
        "beta": rng.normal(size=shape[1]),
        "mean": wide.mean(others),
        "variance": wide.var(others),
        "normalized_delta": rng.normal(1, 1, shape),
    }
    return {name: np.asarray(value).astype(element) for name, value in values.items()}


def formula(inputs: dict[str, Any], epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """nGraph's reference kernel: mean and variance given, differentiated as functions of input."""
    wide = {name: np.asarray(value, np.longdouble) for name, value in inputs.items()}
    x, delta = wide["input"], wide["normalized_delta"]
    others = tuple(i for i in range(x.ndim) if i != 1)
    column = (slice(None), *[np.newaxis] * (x.ndim - 2))
    rstd = 1 / np.sqrt(wide["variance"] + np.longdouble(epsilon))
    normalized = (x - wide["mean"][column]) * rstd[column]
    gamma_delta = (delta * normalized).sum(others)
    beta_delta = delta.sum(others)
    m = x.size // x.shape[1]
    input_delta = (wide["gamma"] * rstd)[column] * (
        delta - beta_delta[column] / m - normalized * gamma_delta[column] / m
    )
    return input_delta, gamma_delta, beta_delta


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"rank{len(s)}")
def test_the_formula_in_every_type_and_rank(shape, dtype):
    """A few roundings relative to the largest value; the conformance run is stricter."""
    inputs = make_inputs(shape, dtype)
    got = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=1e-3)
    for actual, want in zip(got, formula(inputs, 1e-3), strict=True):
        assert actual.dtype == inputs["input"].dtype
        error = np.abs(actual.numpy().astype(np.longdouble) - want).max()
        assert error <= 16 * DTYPES[dtype].unit_roundoff * np.abs(want).max()


@pytest.mark.parametrize(("data_format", "shape"), [("NCHW", (2, 5, 3, 4)), ("NCDHW", SHAPES[3])])
@pytest.mark.parametrize("wrapped", [False, True], ids=["eager", "function"])
def test_it_is_fused_batch_norm_grad_v3_on_channels_first(data_format, shape, wrapped):
    inputs = make_inputs(shape, "float32")
    call = tf_bn_ops.raw_ops.BatchNormTrainingBackprop
    got = (tf.function(call) if wrapped else call)(**inputs, epsilon=0.25)
    want = _ops.fused_batch_norm_grad_v3(
        inputs["normalized_delta"],
        inputs["input"],
        inputs["gamma"],
        inputs["mean"],
        inputs["variance"],
        [0.0],
        epsilon=0.25,  # A power of two: the same number as float and as double.
        data_format=data_format,
    )
    for a, b in zip(got, want[:3], strict=True):
        np.testing.assert_array_equal(a, b)


def test_epsilon_keeps_its_double_precision():
    """1e-9 and 1.1e-9 differ by 1e-10: visible in the last digits of float64, gone in float."""
    inputs = make_inputs((50, 3))
    results = {}
    for epsilon in (1e-9, 1.1e-9):
        results[epsilon] = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=epsilon)
        want = formula(inputs, epsilon)
        np.testing.assert_allclose(
            results[epsilon].gamma_delta.numpy(), want[1].astype(float), rtol=1e-14
        )
    difference = results[1e-9].gamma_delta / results[1.1e-9].gamma_delta - 1
    np.testing.assert_allclose(difference, 0.5 * 1e-10 / inputs["variance"], rtol=1e-3)


def test_it_runs_when_functions_run_eagerly():
    inputs = make_inputs((4, 3, 7))
    want = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=2e-3)
    tf.config.run_functions_eagerly(True)
    try:
        got = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=3e-3)
        again = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=2e-3)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(again.input_delta, want.input_delta)
    assert not np.array_equal(got.input_delta, want.input_delta)


def test_beta_does_not_influence_anything():
    inputs = make_inputs((4, 3, 7))
    want = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=1e-3)
    inputs["beta"] = np.full_like(inputs["beta"], np.nan)
    got = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=1e-3)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0, 5)])
def test_no_elements_give_zero_sums(shape):
    inputs = {name: np.ones(3) for name in VECTORS}
    inputs["input"] = inputs["normalized_delta"] = np.zeros(shape)
    got = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=1e-3)
    assert got.input_delta.shape == shape
    np.testing.assert_array_equal(got.gamma_delta, np.zeros(3))
    np.testing.assert_array_equal(got.beta_delta, np.zeros(3))


# ---- Validation ----------------------------------------------------------------------------------

# Replaced shapes (the others fit (4, 3, 5)) and the whole sentence.
SENTENCES = {
    "rank 0": (
        {"input": (), "normalized_delta": ()},
        "input must have at least two dimensions, but input has shape []",
    ),
    "rank 1": (
        {"input": (3,), "normalized_delta": (3,)},
        "input must have at least two dimensions, but input has shape [3]",
    ),
    **{
        f"{name} of rank 2": (
            {name: (3, 1)},
            f"{name} must be 1-dimensional, with one element per channel of input, but {name} has "
            "shape [3,1]",
        )
        for name in VECTORS
    },
    **{
        f"{name} too {what}": (
            {name: (size,)},
            f"{name} must have one element per channel of input, 3 (dimension 1), but {name} has "
            f"shape [{size}]",
        )
        for name in VECTORS
        for what, size in {"long": 4, "short": 2}.items()
    },
    "all vectors too long": (
        dict.fromkeys(VECTORS, (4,)),
        "gamma must have one element per channel of input, 3 (dimension 1), but gamma has shape "
        "[4]",
    ),
    "delta of another shape": (
        {"normalized_delta": (4, 3, 6)},
        "normalized_delta must have the shape of input, but normalized_delta has shape [4,3,6] and "
        "input has shape [4,3,5]",
    ),
    "delta of another rank": (
        {"normalized_delta": (4, 3)},
        "normalized_delta must have the shape of input, but normalized_delta has shape [4,3] and "
        "input has shape [4,3,5]",
    ),
    "no channels": (
        {"input": (4, 0, 5), "normalized_delta": (4, 0, 5), **dict.fromkeys(VECTORS, (0,))},
        "input must have at least one channel (dimension 1), but input has shape [4,0,5]",
    ),
}


def shapes_with(replaced: dict[str, Any]) -> dict[str, Any]:
    shapes = {"input": (4, 3, 5), "normalized_delta": (4, 3, 5), **dict.fromkeys(VECTORS, (3,))}
    return {name: {**shapes, **replaced}[name] for name in NAMES}


@pytest.mark.parametrize("what", SENTENCES)
def test_errors_at_run_time(what):
    replaced, sentence = SENTENCES[what]
    inputs = {name: np.ones(shape) for name, shape in shapes_with(replaced).items()}
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=1e-3)
    assert sentence in error.value.message


@pytest.mark.parametrize("what", SENTENCES)
def test_errors_while_the_graph_is_built(what):
    replaced, sentence = SENTENCES[what]
    with tf.Graph().as_default(), pytest.raises(ValueError) as error:
        tf_bn_ops.raw_ops.BatchNormTrainingBackprop(
            **{
                name: tf.compat.v1.placeholder(tf.float64, shape)
                for name, shape in shapes_with(replaced).items()
            },
            epsilon=1e-3,
        )
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("known", "input_delta", "vector"),
    [
        ({}, None, [None]),
        ({"input": (None, 3, None)}, [None, 3, None], [3]),
        ({"input": (None, None, 5), "variance": (3,)}, [None, 3, 5], [3]),
        ({"normalized_delta": (2, 3, 5)}, [2, 3, 5], [3]),
        ({"input": (2, None), "normalized_delta": (None, 3)}, [2, 3], [3]),
        ({"mean": (7,)}, None, [7]),
        ({"input": (0, 2)}, [0, 2], [2]),
    ],
)
def test_partial_shapes_infer_what_can_be_inferred(known, input_delta, vector):
    with tf.Graph().as_default():
        result = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(
            **{name: tf.compat.v1.placeholder(tf.float64, known.get(name)) for name in NAMES},
            epsilon=1e-3,
        )
    shape = result.input_delta.shape
    assert (None if shape.rank is None else shape.as_list()) == input_delta
    assert result.gamma_delta.shape.as_list() == vector
    assert result.beta_delta.shape.as_list() == vector


def test_an_epsilon_that_is_no_number_is_refused():
    inputs = make_inputs((5, 3))
    with pytest.raises(TypeError, match="epsilon must be a number, not str"):
        tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon="small")


@pytest.mark.parametrize("value", [tf.constant(1e-3), tf.constant([1e-3], tf.float64)])
def test_an_epsilon_attr_of_another_type_is_refused(value):
    """Only a hand-made NodeDef can hold one."""
    ops = tf_bn_ops.load()
    inputs = make_inputs((5, 3))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        node = ops.tf_bn_ops_batch_norm_training_backprop(
            *(tf.constant(inputs[name]) for name in NAMES), tf.make_tensor_proto(value.numpy())
        )
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="epsilon must be a scalar of type"
        ):
            session.run(node)


# ---- Gradients -----------------------------------------------------------------------------------


def batch_norm_loss(x: np.ndarray, gamma: np.ndarray, weights: np.ndarray) -> float:
    """A loss of the normalized output, in which the statistics are functions of x."""
    others = tuple(i for i in range(x.ndim) if i != 1)
    column = (slice(None), *[np.newaxis] * (x.ndim - 2))
    normalized = (x - x.mean(others)[column]) / np.sqrt(x.var(others)[column] + 1e-3)
    return float((weights * gamma[column] * normalized).sum())


def central_difference(f: Any, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        moved = x.copy()
        moved[index] += step
        up = f(moved)
        moved[index] -= 2 * step
        gradient[index] = (up - f(moved)) / (2 * step)
    return gradient


def test_first_order_is_the_derivative_of_batch_normalization():
    inputs = make_inputs((3, 2, 4))
    x, gamma, weights = inputs["input"], inputs["gamma"], inputs["normalized_delta"]
    got = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=1e-3)
    want = central_difference(lambda moved: batch_norm_loss(moved, gamma, weights), x)
    np.testing.assert_allclose(got.input_delta, want, atol=1e-8)


def statistics_follow(inputs: dict[str, Any]) -> dict[str, Any]:
    x = inputs["input"]
    others = tuple(i for i in range(x.ndim) if i != 1)
    return {**inputs, "mean": x.mean(others), "variance": x.var(others)}


@pytest.mark.parametrize("shape", [(5, 2), (3, 2, 4), (2, 2, 2, 2)])
@pytest.mark.parametrize("wrapped", [False, True], ids=["eager", "function"])
def test_second_order_against_finite_differences(shape, wrapped):
    inputs = make_inputs(shape)
    rng = np.random.default_rng(7)
    weights = [rng.normal(size=s) for s in (shape, shape[1], shape[1])]

    def loss(values: dict[str, Any]) -> Any:
        outputs = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**values, epsilon=1e-3)
        return sum(tf.reduce_sum(w * o) for w, o in zip(weights, outputs, strict=True))

    names = ("input", "gamma", "normalized_delta")

    def gradients(*watched: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(watched)
            value = loss({**inputs, **dict(zip(names, watched, strict=True))})
        return tape.gradient(value, watched)

    run = tf.function(gradients) if wrapped else gradients
    got = run(*(tf.constant(inputs[name]) for name in names))
    for name, gradient in zip(names, got, strict=True):

        def moved_loss(moved: np.ndarray, name: str = name) -> float:
            return float(loss(statistics_follow({**inputs, name: moved})))

        want = central_difference(moved_loss, inputs[name])
        np.testing.assert_allclose(gradient, want, atol=2e-7)


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float32"])
def test_second_order_keeps_the_type(dtype):
    inputs = {name: tf.constant(value) for name, value in make_inputs((6, 3, 2), dtype).items()}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**inputs, epsilon=1e-3)
        value = tf.reduce_sum(tf.square(tf.cast(outputs.input_delta, tf.float32)))
    gradients = tape.gradient(value, inputs)
    for name in ("input", "gamma", "normalized_delta"):
        assert gradients[name].dtype == inputs[name].dtype
        assert np.isfinite(gradients[name].numpy().astype(np.float32)).all()
    assert gradients["beta"] is None and gradients["mean"] is None


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_vectorized_map_needs_no_loop(shape):
    inputs = make_inputs(shape)
    stacked = {name: tf.constant(np.stack([v, 2 * v, v + 1])) for name, v in inputs.items()}

    def call(values):
        return tuple(tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**values, epsilon=1e-9))

    def mapped(values):
        return tf.vectorized_map(call, values, fallback_to_while_loop=False)

    got = mapped(stacked)
    for i in range(3):
        want = call({name: value[i] for name, value in stacked.items()})
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-12, atol=1e-12)
    # One input alone has the loop's dimension.
    delta = stacked["normalized_delta"]
    got = tf.vectorized_map(
        lambda delta: call({**inputs, "normalized_delta": delta}),
        delta,
        fallback_to_while_loop=False,
    )
    want = call({**inputs, "normalized_delta": delta[1]})
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-12, atol=1e-12)
