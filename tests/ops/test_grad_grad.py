"""FusedBatchNormGradGrad, and the gradients of the other ops that it computes.

References: the right answer in long double with derived bounds (tf_bn_ops/conformance/models/
batch_norm_grad_grad.py), TensorFlow's own second-order gradient, and finite differences in float64.
tests/core/test_second_order.py has the kernels in detail, test_fidelity.py every op beside
the built-in.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

import tf_bn_ops
from tf_bn_ops import _gradients, _ops
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness.problems import Problem
from tf_bn_ops.spec import DATA_FORMATS, DTYPES, OPS, VIEW

SPEC = OPS["FusedBatchNormGradGrad"]
NAMES = [arg.name for arg in SPEC.inputs]
TENSORS = ("x_backprop_grad", "y_backprop", "x")
# Pairs of element type and type of the vectors.
TYPES = [
    ("float64", "float64"),
    ("float32", "float32"),
    ("half", "float32"),
    ("half", "half"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
]
CALLS = {
    "NHWC": (2, 3, 4, 5),
    "NCHW": (2, 5, 3, 4),
    "NDHWC": (2, 3, 2, 2, 7),
    "NCDHW": (2, 7, 3, 2, 2),
}


def make_inputs(
    shape: tuple[int, ...], channels: int, dtype: str = "float32", vectors: str = "float32"
) -> dict[str, np.ndarray]:
    """Random inputs; the reserve spaces are not the statistics of x."""
    rng = np.random.default_rng([len(shape), channels])
    element, statistic = DTYPES[dtype].numpy, DTYPES[vectors].numpy
    ranges = {"reserve_space_2": (0.5, 2)}
    return {
        name: rng.normal(0.5, 1, shape).astype(element)
        if name in TENSORS
        else rng.uniform(*ranges.get(name, (-1, 1)), channels).astype(statistic)
        for name in NAMES
    }


def channels_of(shape: tuple[int, ...], data_format: str) -> int:
    return shape[-1 if data_format.endswith("C") else 1]


def assert_right(
    got: Any, inputs: dict[str, Any], data_format: str, epsilon: float, is_training: bool
) -> None:
    """Within the derived bounds, whatever the rank."""
    view = inputs["x"].shape
    channels_last = data_format.endswith("C")
    view = (-1, view[-1], 1) if channels_last else (*view[:2], int(np.prod(view[2:])))
    values = {
        arg.role: inputs[arg.name].reshape(view) if arg.kind == VIEW else inputs[arg.name]
        for arg in SPEC.inputs
    }
    results = {}
    for arg in SPEC.outputs:
        results[arg.role] = getattr(got, arg.name).numpy()
        if arg.kind == VIEW:
            assert results[arg.role].shape == inputs["x"].shape
            results[arg.role] = results[arg.role].reshape(view)
    assert not formula_models.check(Problem(values, epsilon, is_training), results)


# ---- The op --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "vectors"), TYPES)
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_it_is_right_in_every_layout_and_type(data_format, is_training, dtype, vectors):
    shape = CALLS[data_format]
    inputs = make_inputs(shape, channels_of(shape, data_format), dtype, vectors)
    call = tf_bn_ops.raw_ops.FusedBatchNormGradGrad
    got = call(**inputs, epsilon=1e-3, data_format=data_format, is_training=is_training)
    assert got._fields == tuple(arg.name for arg in SPEC.outputs)
    assert [output.dtype for output in got] == [tf.as_dtype(dtype)] * 2 + [tf.as_dtype(vectors)]
    assert_right(got, inputs, data_format, 1e-3, is_training)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 7), (2, 3, 2, 2, 2, 3), (1, 3), (1, 3, 1, 1)])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_any_rank_from_2_on_and_single_elements(shape, data_format):
    inputs = make_inputs(shape, channels_of(shape, data_format))
    got = tf_bn_ops.raw_ops.FusedBatchNormGradGrad(**inputs, epsilon=1e-3, data_format=data_format)
    assert_right(got, inputs, data_format, 1e-3, True)


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 4, 0), (0, 2, 2, 0)])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("is_training", [True, False])
def test_no_elements_give_a_zero_scale_grad(shape, data_format, is_training):
    channels = channels_of(shape, data_format)
    inputs = make_inputs(shape, channels)
    got = tf_bn_ops.raw_ops.FusedBatchNormGradGrad(
        **inputs, data_format=data_format, is_training=is_training
    )
    assert got.x_grad.shape == got.y_backprop_grad.shape == shape
    np.testing.assert_array_equal(got.scale_grad, np.zeros(channels))


def test_epsilon_keeps_its_double_precision():
    """A constant channel: rstd is 1/sqrt(epsilon). float32 would be off by 1e-8."""
    inputs = make_inputs((40, 2), 2, "float64", "float64")
    inputs["x"][:] = 1
    for epsilon in (1e-9, 1.1e-9, 0.1):
        got = tf_bn_ops.raw_ops.FusedBatchNormGradGrad(**inputs, epsilon=epsilon)
        gx = inputs["x_backprop_grad"]
        centred = gx - gx.mean(0)
        want = inputs["scale"] / np.sqrt(epsilon) * centred + inputs["offset_backprop_grad"]
        np.testing.assert_allclose(got.y_backprop_grad, want, rtol=1e-13, atol=1e-9)


def test_eager_function_and_session_agree_and_inputs_keep_their_values():
    inputs = make_inputs((2, 3, 4, 5), 5)
    before = {name: array.copy() for name, array in inputs.items()}
    call = tf_bn_ops.raw_ops.FusedBatchNormGradGrad
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    want = call(**tensors)
    in_function = tf.function(lambda t: call(**t))(tensors)
    # All three tensors die with the op: it writes to their buffers.
    in_place = tf.function(
        lambda t: call(**{n: v * 1.0 if n in TENSORS else v for n, v in t.items()})
    )(tensors)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        in_session = session.run(call(**inputs, name="mine"))
    for other in (in_function, in_place, in_session):
        for a, b in zip(want, other, strict=True):
            np.testing.assert_array_equal(a, b)
    for name, array in before.items():
        np.testing.assert_array_equal(tensors[name], array)


# ---- Validation ----------------------------------------------------------------------------------

# Replaced shapes (the others fit (2, 3, 4, 5)) and the whole sentence.
SENTENCES = {
    "rank 1": (
        dict.fromkeys(TENSORS, (5,)),
        "x must have at least two dimensions, but x has shape [5]",
    ),
    "x_backprop_grad of another shape": (
        {"x_backprop_grad": (2, 3, 4, 6)},
        "x_backprop_grad must have the shape of x, but x_backprop_grad has shape [2,3,4,6] and x "
        "has shape [2,3,4,5]",
    ),
    "y_backprop of another rank": (
        {"y_backprop": (2, 3, 4)},
        "y_backprop must have the shape of x, but y_backprop has shape [2,3,4] and x has shape "
        "[2,3,4,5]",
    ),
    "scale of rank 2": (
        {"scale": (5, 1)},
        "scale must be 1-dimensional, with one element per channel of x, but scale has shape [5,1]",
    ),
    **{
        f"{name} too long": (
            {name: (6,)},
            f"{name} must have one element per channel of x, 5 (data_format says that channels are "
            f"the last dimension), but {name} has shape [6]",
        )
        for name in NAMES
        if name not in TENSORS
    },
}


def shapes_with(replaced: dict[str, Any]) -> dict[str, Any]:
    return {name: replaced.get(name, (2, 3, 4, 5) if name in TENSORS else (5,)) for name in NAMES}


@pytest.mark.parametrize("what", SENTENCES)
def test_errors_at_run_time_and_while_the_graph_is_built(what):
    replaced, sentence = SENTENCES[what]
    shapes = shapes_with(replaced)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        tf_bn_ops.raw_ops.FusedBatchNormGradGrad(
            **{name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        )
    assert sentence in error.value.message
    with tf.Graph().as_default(), pytest.raises(ValueError) as built:
        tf_bn_ops.raw_ops.FusedBatchNormGradGrad(
            **{name: tf.compat.v1.placeholder(tf.float32, s) for name, s in shapes.items()}
        )
    assert str(built.value).startswith(sentence)


@pytest.mark.parametrize(
    ("known", "data", "vector"),
    [
        ({}, None, [None]),
        ({"x": (None, 3, None)}, [None, 3, None], [None]),
        ({"x": (2, None), "y_backprop": (None, 4)}, [2, 4], [4]),
        ({"x": (None, None, None), "scale": (7,)}, [None, None, 7], [7]),
        ({"reserve_space_1": (7,)}, None, [7]),
    ],
)
def test_partial_shapes_infer_what_can_be_inferred(known, data, vector):
    with tf.Graph().as_default():
        result = tf_bn_ops.raw_ops.FusedBatchNormGradGrad(
            **{name: tf.compat.v1.placeholder(tf.float32, known.get(name)) for name in NAMES}
        )
    for output in (result.y_backprop_grad, result.x_grad):
        assert (None if output.shape.rank is None else output.shape.as_list()) == data
    assert result.scale_grad.shape.as_list() == vector


def test_an_epsilon_that_is_no_number_is_refused():
    inputs = make_inputs((5, 3), 3)
    with pytest.raises(TypeError, match="epsilon must be a number, not str"):
        tf_bn_ops.raw_ops.FusedBatchNormGradGrad(**inputs, epsilon="small")


# ---- As a gradient -------------------------------------------------------------------------------


def types_in(function: Any, *args: Any) -> list[str]:
    graph = tf.function(function).get_concrete_function(*args).graph
    return [operation.type for operation in graph.get_operations()]


@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_tensorflows_second_order_gradient(version, data_format, is_training):
    """float32, true statistics: within 1e-4 of TensorFlow's, which is composed in float32."""
    shape = (4, 3, 5, 6)
    channels = channels_of(shape, data_format)
    inputs = {k: tf.constant(v) for k, v in make_inputs(shape, channels).items()}
    others = [i for i in range(4) if i != (3 if data_format == "NHWC" else 1)]
    mean, variance = tf.nn.moments(inputs["x"], others)
    arrive = [inputs[name] for name in NAMES[:3]]
    rest = [mean, variance] + ([mean] if version == "_v3" else [])

    def differentiate(op: Any, dy: Any, x: Any, scale: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([dy, x, scale])
            outputs = op(
                dy, x, scale, *rest, epsilon=1e-3, data_format=data_format, is_training=is_training
            )[:3]
        return tape.gradient(outputs, [dy, x, scale], output_gradients=arrive)

    args = (inputs["y_backprop"], inputs["x"], inputs["scale"])
    own = getattr(_ops, "fused_batch_norm_grad" + version)
    run = lambda *a: differentiate(own, *a)  # noqa: E731
    # TensorFlow's own rule, applied to our op: frozen channels-first, its op refuses to run.
    builtin = "FusedBatchNormGrad" + version.upper().replace("_", "")
    attrs = {"epsilon": 1e-3, "data_format": data_format.encode(), "is_training": is_training}
    op = types.SimpleNamespace(inputs=[*args, *rest], get_attr=attrs.get)
    want = tf_ops.gradient_registry.lookup(builtin)(op, *arrive)[:3]
    for a, b in zip(run(*args), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert "TfBnOps>FusedBatchNormGradGrad" in types_in(run, *args)
    assert "Mean" not in types_in(run, *args)


@pytest.mark.parametrize("is_training", [True, False])
def test_float64_finite_differences(is_training):
    """Of a weighted sum of the formula of the first-order gradient, in float64."""
    shape, channels, step = (3, 4, 2), 4, 1e-5
    inputs = make_inputs(shape, channels, "float64", "float64")
    column = (slice(None), np.newaxis)

    def loss(y_backprop: np.ndarray, x: np.ndarray, scale: np.ndarray) -> float:
        mean, variance = inputs["reserve_space_1"], inputs["reserve_space_2"]
        if is_training:
            mean, variance = x.mean((0, 2)), x.var((0, 2))
        rstd = 1 / np.sqrt(variance + 1e-3)
        xhat = (x - mean[column]) * rstd[column]
        scale_backprop, offset_backprop = (y_backprop * xhat).sum((0, 2)), y_backprop.sum((0, 2))
        x_backprop = y_backprop
        if is_training:
            m = x.size // channels
            x_backprop = y_backprop - (offset_backprop[column] + xhat * scale_backprop[column]) / m
        x_backprop = (scale * rstd)[column] * x_backprop
        return float(
            (inputs["x_backprop_grad"] * x_backprop).sum()
            + inputs["scale_backprop_grad"] @ scale_backprop
            + inputs["offset_backprop_grad"] @ offset_backprop
        )

    got = tf_bn_ops.raw_ops.FusedBatchNormGradGrad(
        **inputs, epsilon=1e-3, data_format="NCHW", is_training=is_training
    )
    names = ("y_backprop", "x", "scale")
    for name, gradient in zip(names, got, strict=True):
        want = np.empty_like(inputs[name])
        for index in np.ndindex(want.shape):
            values = {n: inputs[n].copy() for n in names}
            values[name][index] += step
            up = loss(**values)
            values[name][index] -= 2 * step
            want[index] = (up - loss(**values)) / (2 * step)
        np.testing.assert_allclose(gradient, want, atol=1e-7)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW", "NDHWC"])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_composition_is_the_same_function(data_format, is_training, dtype, monkeypatch):
    """It runs where the op has no kernel, on a GPU in a build for CPUs; its bounds are those of its
    own roundings."""
    shape = CALLS[data_format]
    vectors = "float64" if dtype == "float64" else "float32"
    values = make_inputs(shape, channels_of(shape, data_format), dtype, vectors)
    inputs = tuple(tf.constant(values[name]) for name in NAMES)
    attrs = {"epsilon": 1e-3, "data_format": data_format, "is_training": is_training}
    tf_bn_ops.load()
    want = _gradients._second_order(inputs, **attrs)
    assert type(want).__name__ == "FusedBatchNormGradGrad"
    monkeypatch.setattr(_gradients, "_devices_with_kernels", lambda spec: frozenset())
    got = _gradients._second_order(inputs, **attrs)
    assert type(got) is tuple
    tolerance = 64 * DTYPES[dtype].unit_roundoff
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = (tf.cast(t, tf.float64).numpy() for t in (a, b))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


def test_the_device_name_says_whether_there_is_a_kernel(monkeypatch):
    tf_bn_ops.load()
    assert _gradients._has_kernel(SPEC, "/job:localhost/replica:0/task:0/device:CPU:0")
    assert _gradients._has_kernel(SPEC, "")
    assert not _gradients._has_kernel(SPEC, "/device:TPU:0")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(_gradients, "_devices_with_kernels", lambda spec: frozenset(["CPU"]))
    assert not _gradients._has_kernel(SPEC, "")
    assert not _gradients._has_kernel(SPEC, "/device:GPU:0")
    assert _gradients._has_kernel(SPEC, "/device:CPU:0")


@pytest.mark.parametrize("is_training", [True, False])
def test_third_order_against_finite_differences_of_the_second(is_training):
    """Every input's gradient in float64. (TensorFlow's own third order takes the mean of x for a
    constant in one place, and is wrong there.)"""
    shape, channels, step = (3, 2, 2), 2, 1e-5
    inputs = make_inputs(shape, channels, "float64", "float64")
    attrs = {"epsilon": 1e-2, "data_format": "NCHW", "is_training": is_training}
    rng = np.random.default_rng(3)
    weights = [rng.normal(size=s) for s in (shape, shape, (channels,))]
    call = tf_bn_ops.raw_ops.FusedBatchNormGradGrad

    def loss(values: dict[str, Any]) -> Any:
        outputs = call(**values, **attrs)
        return sum(tf.reduce_sum(w * o) for w, o in zip(weights, outputs, strict=True))

    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = loss(tensors)
    got = tape.gradient(value, tensors)
    assert got["reserve_space_1"] is None and got["reserve_space_2"] is None
    for name in NAMES[:6]:
        want = np.empty_like(inputs[name])
        for index in np.ndindex(want.shape):
            moved = {n: a.copy() for n, a in inputs.items()}
            moved[name][index] += step
            up = float(loss(moved))
            moved[name][index] -= 2 * step
            want[index] = (up - float(loss(moved))) / (2 * step)
        if got[name] is None:  # It plays no part.
            assert not want.any()
        else:
            np.testing.assert_allclose(got[name], want, rtol=1e-6, atol=1e-6)


def test_fourth_order_exists():
    x = tf.constant(make_inputs((6, 3), 3, "float64", "float64")["x"])
    inputs = make_inputs((6, 3), 3, "float64", "float64")
    del inputs["x"]

    def value(x: Any) -> Any:
        return tf.reduce_sum(tf_bn_ops.raw_ops.FusedBatchNormGradGrad(**inputs, x=x).x_grad ** 2)

    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            result = value(x)
        first = inner.gradient(result, x)
    assert np.isfinite(outer.gradient(first, x)).all()


def penalty(normalize: Any, x: tf.Tensor, weights: list[tf.Tensor]) -> tuple[Any, list[Any]]:
    """A WGAN-GP penalty through a layer of batch normalization, and its gradients."""
    kernel, scale, offset = weights
    with tf.GradientTape() as outer:
        outer.watch(weights)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = normalize(tf.nn.conv2d(x, kernel, 1, "SAME"), scale, offset)
            score = tf.reduce_sum(tf.nn.tanh(y), [1, 2, 3])
        gradient = inner.gradient(score, x)
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradient), [1, 2, 3]))
        value = tf.reduce_mean(tf.square(norm - 1))
    return value, outer.gradient(value, weights)


def test_a_gradient_penalty_end_to_end():
    """fused_batch_norm against TensorFlow's composed normalization in float64."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 6, 6, 3))
    weights = [rng.normal(size=(3, 3, 3, 5)) / 5, rng.uniform(0.5, 1, 5), rng.normal(size=5)]

    def composed(x: Any, scale: Any, offset: Any) -> Any:
        # Not tf.nn.moments: it stops the gradient of the mean inside the variance, which is right
        # once and wrong for gradients of gradients.
        mean = tf.reduce_mean(x, [0, 1, 2])
        variance = tf.reduce_mean(tf.square(x - mean), [0, 1, 2])
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)

    def fused(x: Any, scale: Any, offset: Any) -> Any:
        return tf_bn_ops.fused_batch_norm(x, scale, offset, epsilon=1e-3).y

    cast = lambda dtype: (tf.cast(x, dtype), [tf.cast(w, dtype) for w in weights])  # noqa: E731
    want, want_gradients = penalty(composed, *cast(tf.float64))
    run = tf.function(lambda x, *w: penalty(fused, x, list(w)))
    narrow_x, narrow = cast(tf.float32)
    got, gradients = run(narrow_x, *narrow)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    for a, b in zip(gradients, want_gradients, strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, atol=1e-4 * scale)
    graph = run.get_concrete_function(narrow_x, *narrow).graph
    assert "TfBnOps>FusedBatchNormGradGrad" in {o.type for o in graph.get_operations()}


@pytest.mark.parametrize("data_format", ["NHWC", "NCDHW"])
def test_vectorized_map_runs_without_a_loop(data_format):
    shape = CALLS[data_format]
    inputs = make_inputs(shape, channels_of(shape, data_format))
    stacked = {name: tf.constant(np.stack([v, 2 * v, v[::-1]])) for name, v in inputs.items()}
    call = lambda values: tuple(  # noqa: E731
        tf_bn_ops.raw_ops.FusedBatchNormGradGrad(**values, data_format=data_format)
    )
    mapped = lambda values: tf.vectorized_map(call, values, fallback_to_while_loop=False)  # noqa: E731
    got = mapped(stacked)
    for i in range(3):
        want = call({name: value[i] for name, value in stacked.items()})
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-5)
    # One input alone has the loop's dimension.
    x = stacked["x"]
    got = tf.vectorized_map(lambda x: call({**inputs, "x": x}), x, fallback_to_while_loop=False)
    for a, b in zip(got, call({**inputs, "x": x[1]}), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-5, atol=1e-5)
    assert not {"While", "StatelessWhile"} & set(types_in(mapped, stacked))


def test_statistics_of_a_type_without_kernel_are_refused_in_one_sentence():
    x, vector = tf.ones([2, 3, 3, 4], tf.half), tf.ones([4], tf.float64)
    with pytest.raises(TypeError, match=r"of float32 or half .* not of float64"):
        tf_bn_ops.raw_ops.FusedBatchNormGradGrad(
            **dict(zip(NAMES, (x, vector, vector, x, x, vector, vector, vector), strict=True))
        )
