"""The Keras layer: the parent's results, weights and files.

Promised: results are those of Keras' formula within rounding, for every rank, axis, type and mask;
side inputs and activations work in functional models; without state the new statistics are
returned.
"""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.keras import BatchNormalization, disable

# Rank and channel axis of every layout that is fused.
LAYOUTS = [(2, -1), (2, 1), (3, -1), (3, 1), (4, -1), (4, 3), (4, 1), (5, -1), (5, 1)]
# Both compute in float32 from values of size 1, in another order, sums of some dozens of terms; the
# result is rounded to the type of the input.
TOLERANCES = {"float32": 2e-5, "mixed_float16": 2e-2, "mixed_bfloat16": 1e-1}


def make_input(rank: int, axis: int, dtype="float32") -> tf.Tensor:
    shape = [6, 4, 3, 2, 5][:rank]
    shape[axis] = 5
    return tf.cast(np.random.default_rng(0).normal(1, 2, shape), dtype)


def make_pair(x, **kwargs):
    """The parent's layer and ours, with the same weights that are not the initial ones."""
    kinds = (keras.layers.BatchNormalization, BatchNormalization)
    return [with_weights(kind(**kwargs), x) for kind in kinds]


def ops_of(layer, x, **kwargs) -> list[str]:
    graph = tf.function(lambda x: layer(x, **kwargs)).get_concrete_function(x).graph
    return [op.type for op in graph.get_operations()]


def is_fused(layer, x, training=False, **kwargs) -> bool:
    """Whether the call is one op: ours in training, TensorFlow's in inference."""
    op = "TfBnOps>FusedBatchNormEx" if training else "FusedBatchNormV3"
    return op in ops_of(layer, x, training=training, **kwargs)


# Rank, axis, policy and further arguments.
LAYERS = {
    **{f"rank {rank}, axis {axis}": (rank, axis, "float32", {}) for rank, axis in LAYOUTS},
    "half": (4, -1, "mixed_float16", {}),
    "bfloat16": (4, 1, "mixed_bfloat16", {}),
    "no scale": (4, -1, "float32", {"scale": False}),
    "no center": (4, -1, "float32", {"center": False}),
    "neither": (4, -1, "float32", {"scale": False, "center": False}),
    "float64": (4, -1, "float64", {}),
    "axis 2": (4, 2, "float32", {}),
    "frozen": (4, -1, "float32", {"trainable": False}),
    **{f"momentum {m}": (4, -1, "float32", {"momentum": m}) for m in (0, 1)},
}
ON_KERAS_PATH = ("float64", "axis 2", "frozen")
FUSIONS = [(None, False), (None, True), ("relu", True), ("relu6", False), ("leaky_relu", True)]


def on_the_op(name, training) -> bool:
    """Inference in float32 is Keras' arithmetic, channels first in 16 bits the op's."""
    _, axis, policy, _ = LAYERS[name]
    return (training or ("mixed" in policy and axis == -1)) and name not in ON_KERAS_PATH


def results_of(layer, call, x, side) -> list:
    """Output, moving statistics, and gradients by inputs and weights."""
    sources = [x, *([] if side is None else [side])]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        y = call(x, side)
        loss = tf.reduce_sum(tf.sin(tf.cast(y, tf.float32)))
    sources += [weight.value for weight in layer.trainable_weights]
    gradients = tape.gradient(loss, sources)
    assert all(gradient is not None for gradient in gradients)
    return [y, *(w.value for w in layer.non_trainable_weights), *gradients]


def assert_same_results(got, want, dtype) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        a, b = np.float64(a), np.float64(b)
        # Relative to the largest: in sums of many terms the small ones cancel.
        bound = TOLERANCES.get(dtype, 1e-12) * max(1, np.max(np.abs(b)))
        np.testing.assert_allclose(a, b, rtol=0, atol=bound)


def made(name, kind=BatchNormalization, **more):
    """A layer of LAYERS, and an input of it."""
    rank, axis, dtype, arguments = LAYERS[name]
    x = make_input(rank, axis, dtype.removeprefix("mixed_"))
    arguments = {"momentum": 0.7, "epsilon": 0.01, **arguments, **more}
    return kind(axis=axis, dtype=dtype, **arguments), x


def with_weights(layer, x):
    """Weights that are not the initial ones; the same for the same number of them."""
    layer.build(x.shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.uniform(0.5, 2, weight.shape) for weight in layer.weights])
    return layer


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("activation", "with_side_input"), FUSIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_those_of_the_chain_of_keras(name, activation, with_side_input, training):
    """One layer, one op but for inference in float32, for batch norm, addition and activation."""
    theirs, x = made(name, keras.layers.BatchNormalization)
    ours, _ = made(name, activation=activation)
    side = tf.sin(3 * x) if with_side_input else None
    act = keras.activations.get(activation)

    def chain(x, side):
        y = theirs(x, training=training)
        return act(y if side is None else y + tf.cast(side, y.dtype))

    want = results_of(with_weights(theirs, x), chain, x, side)
    call = lambda x, side: ours(x, side_input=side, training=training)  # noqa: E731
    assert_same_results(results_of(with_weights(ours, x), call, x, side), want, LAYERS[name][2])
    assert activation not in ("relu", "relu6") or np.min(want[0]) == 0
    assert is_fused(ours, x, training=training) == on_the_op(name, training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_keras_layer_switched_on_is_this_one(name, training):
    """So is a replaced one, whose class is this."""
    results = []
    for is_on in (False, True):
        layer, x = made(name, keras.layers.BatchNormalization)
        with_weights(layer, x)
        if is_on:
            tf_bn_ops.enable(kernels=False, fuse=False)
        try:
            call = lambda x, _, layer=layer: layer(x, training=training)  # noqa: E731
            results.append(results_of(layer, call, x, None))
            if is_on:
                assert is_fused(layer, x, training=training) == on_the_op(name, training)
        finally:
            disable()
    assert_same_results(results[1], results[0], LAYERS[name][2])


# ---- Training ------------------------------------------------------------------------------------


def test_a_step_is_one_op_and_two_assignments():
    """The new moving statistics are outputs of the op: nothing is computed beside it.

    Promise: A step of the layer in training is one op in each direction.
    """
    x = make_input(4, -1)
    for layer in (BatchNormalization(), BatchNormalization(scale=False, center=False)):
        layer.build(x.shape)
        ops = ops_of(layer, x, training=True)
        assert ops.count("TfBnOps>FusedBatchNormEx") == 1
        assert ops.count("AssignVariableOp") == 2
        rest = {"TfBnOps>FusedBatchNormEx", "AssignVariableOp", "ReadVariableOp", "Const"}
        assert set(ops) - rest <= {"Placeholder", "Identity", "NoOp"}


def test_batches_of_one_element():
    x = tf.fill((1, 1, 1, 5), 3.0)
    parent, ours = make_pair(x)
    # Keras does not subtract the mean: with one element its y is beta but for rounding.
    np.testing.assert_allclose(ours(x, training=True), parent(x, training=True), rtol=1e-5)
    for got, want in zip(ours.non_trainable_weights, parent.non_trainable_weights, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3)])
@pytest.mark.parametrize("known", [True, False], ids=["known shape", "unknown shape"])
@pytest.mark.parametrize("path", ["fused", "half", "float64", "synchronized", "masked"])
def test_an_empty_batch_leaves_the_moving_statistics(path, known, shape):
    """On every path, of any type; Keras' are NaN then. A batch with samples moves them.

    Promise: An empty batch leaves the moving statistics.
    """
    types = {"half": "float16", "float64": "float64"}
    config = {"dtype": types.get(path), "synchronized": path == "synchronized"}
    layer = BatchNormalization(momentum=0.5, **config)
    layer.build((None, None, 3))

    def call(x):
        mask = tf.ones(tf.shape(x)[:-1], tf.bool) if path == "masked" else None
        return layer(x, training=True, mask=mask)

    call = call if known else tf.function(call, [tf.TensorSpec((None, None, 3))])
    for x, mean in ((tf.zeros(shape), 0.0), (tf.fill((4, 2, 3), 3.0), 1.5)):
        assert call(x).shape == x.shape
        np.testing.assert_allclose(layer.moving_mean, np.full(3, mean), rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, np.full(3, 0.5))


def test_inputs_narrower_than_the_compute_type():
    """Without autocast the layer is given half and returns float32."""
    x = make_input(4, -1, "float16")
    parent, ours = make_pair(x, autocast=False)
    for training in (True, False):
        assert ours(x, training=training).dtype == tf.float32
        np.testing.assert_allclose(ours(x, training=True), parent(x, training=True), atol=2e-5)
    assert is_fused(ours, x, training=True)


@pytest.mark.parametrize("training", [True, False])
def test_compiled_by_xla(training):
    x = make_input(4, -1)
    parent, ours = make_pair(x)
    y = tf.function(lambda x: ours(x, training=training), jit_compile=True)(x)
    np.testing.assert_allclose(y, parent(x, training=training), atol=2e-5)
    for got, want in zip(ours.non_trainable_weights, parent.non_trainable_weights, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


# ---- Activation and side input -------------------------------------------------------------------


def test_side_inputs_in_functional_models(tmp_path):
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(3, 3, padding="same")(inputs)
    x = BatchNormalization(activation="relu", name="bn")(x, side_input=inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    data = np.random.default_rng(0).normal(size=(8, 6, 6, 3)).astype("float32")
    model.fit(data, data[..., :1], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(data), model(data))
    ops = ops_of(model, tf.constant(data), training=False)
    assert {"Mul", "AddV2", "Relu"} <= {*ops}
    assert not [op for op in ops if op.startswith("TfBnOps")]


def test_wrong_activations_and_side_inputs_are_one_sentence():
    with pytest.raises(ValueError, match="activation is 'gelu', it must be one of"):
        BatchNormalization(activation="gelu")
    layer, x = BatchNormalization(), make_input(4, -1)
    for training in (True, False):
        with pytest.raises(ValueError, match=r"side_input has shape \(1, 4, 3, 5\), it must have"):
            layer(x, side_input=x[:1], training=training)
        with pytest.raises(TypeError, match="side_input is a list, it must be one tensor"):
            layer(x, side_input=[x], training=training)
        spec = tf.TensorSpec([None, *x.shape[1:]])
        call = tf.function(
            lambda x, side, training=training: layer(x, side_input=side, training=training),
            input_signature=[spec, spec],
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            call(x, x[:1])


def test_the_slope_of_a_leaky_relu(tmp_path):
    """Keras' two defaults, 0.2 and 0.3, and any other; the config and a file keep it."""
    x = make_input(4, -1)
    for alpha in (0.2, 0.3, 1.75):
        ours = BatchNormalization(activation="leaky_relu", leakyrelu_alpha=alpha)
        theirs = keras.layers.BatchNormalization()
        slope = keras.layers.LeakyReLU(negative_slope=alpha)
        for training in (True, False):
            np.testing.assert_allclose(
                ours(x, training=training), slope(theirs(x, training=training)), atol=2e-6
            )
        config = ours.get_config()
        assert (config["activation"], config["leakyrelu_alpha"]) == ("leaky_relu", alpha)
        assert BatchNormalization.from_config(config).get_config() == config
        model = keras.Sequential([keras.Input(x.shape[1:]), ours])
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded(x, training=True), model(x, training=True))
    assert "leakyrelu_alpha" not in BatchNormalization(activation="relu").get_config()
    for wrong in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"leakyrelu_alpha is (inf|nan), it must be a finite"):
            BatchNormalization(activation="leaky_relu", leakyrelu_alpha=wrong)
    for wrong in ("0.1", None, [0.1], tf.constant(0.1)):
        with pytest.raises(TypeError, match="leakyrelu_alpha must be a number"):
            BatchNormalization(activation="leaky_relu", leakyrelu_alpha=wrong)
    config = BatchNormalization(activation="leaky_relu", leakyrelu_alpha=np.array(0.5)).get_config()
    assert json.loads(json.dumps(config)) == config


def test_the_mask_of_the_input_counts_with_a_side_input():
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32")
    x[:, 3:] = 0
    inputs = keras.Input((5, 3))
    masked = keras.layers.Masking()(inputs)
    theirs, ours = keras.layers.BatchNormalization(), BatchNormalization()
    chain = keras.Model(inputs, keras.layers.Add()([theirs(masked), inputs]))
    fused = keras.Model(inputs, ours(masked, side_input=inputs))
    np.testing.assert_allclose(fused(x, training=True), chain(x, training=True), atol=1e-5)
    np.testing.assert_allclose(ours.moving_mean, theirs.moving_mean, atol=1e-6)


# ---- Config, models ------------------------------------------------------------------------------


def test_config_and_weights_are_the_parents():
    """Promise: The layer's weights and configuration are Keras'."""
    parent = keras.layers.BatchNormalization(
        axis=1, momentum=0.5, gamma_regularizer="l2", beta_constraint="non_neg", name="mine",
        synchronized=True,
    )  # fmt: skip
    ours = BatchNormalization.from_config(parent.get_config())
    assert ours.get_config() == parent.get_config() and ours.synchronized
    for layer in (parent, ours):
        layer.build((None, 3, 4))
    assert [w.path for w in ours.weights] == [w.path for w in parent.weights]


def test_sizes_known_at_run_time_only():
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, BatchNormalization()(inputs))
    x = make_input(4, -1)[..., :3]
    call = tf.function(
        lambda x: model(x, training=True), input_signature=[tf.TensorSpec([None, None, None, 3])]
    )
    np.testing.assert_allclose(np.mean(call(x), (0, 1, 2)), np.zeros(3), atol=1e-5)
    ops = [op.type for op in call.get_concrete_function().graph.get_operations()]
    assert "TfBnOps>FusedBatchNormEx" in ops


def test_without_state_the_new_statistics_are_returned():
    layer, x = BatchNormalization(momentum=0.5), np.full((4, 3), 2.0, "float32")
    layer.build(x.shape)
    given = [v + 1 for v in layer.trainable_variables], [v + 2 for v in layer.variables[2:]]
    y, (mean, variance) = layer.stateless_call(*given, x, training=True)
    np.testing.assert_allclose(y, np.ones((4, 3)))  # beta
    np.testing.assert_allclose([mean, variance], [[2.0] * 3, [1.5] * 3])
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(3))
