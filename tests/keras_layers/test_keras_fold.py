"""fold_batch_norm: a new model computes the same in inference, without the norms beside weights.

Promised: norms behind and in front of linear layers of every kind are folded, in float64 and
rounded once; TFLite has one op for each convolution; what stays is reported with the reason;
`verify` finds another result.

In float64 the algebra is exact to some roundings; the other types differ by theirs.
"""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bn_ops.keras import BatchNormalization, _fold, fold_batch_norm, fold_report

layers = keras.layers
KERAS_LAYER: Any = layers.BatchNormalization
RNG = np.random.default_rng(0)
TOLERANCES = {"float64": 1e-13, "float32": 1e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 5e-2}


def randomized(model):
    for variable in model.variables:
        if "seed" not in variable.path:
            positive = any(name in variable.path for name in ("gamma", "variance"))
            low = 0.5 if positive else -1.0
            variable.assign(RNG.uniform(low, 1.5, variable.shape))
    for layer in model.layers:
        if isinstance(layer, layers.Normalization):
            layer.finalize_state()
    return model


def functional(shape, *chain, **kwargs):
    inputs = keras.Input(shape, **kwargs)
    x = inputs
    for layer in chain:
        x = layer(x)
    return randomized(keras.Model(inputs, x))


def norms(model) -> list:
    return [m for m in model._flatten_layers() if isinstance(m, KERAS_LAYER)]


def assert_same(model, folded, x, tolerance=TOLERANCES["float32"]) -> None:
    for want, got in zip(*(keras.tree.flatten(m(x)) for m in (model, folded)), strict=True):
        want, got = (keras.ops.convert_to_numpy(v).astype("float64") for v in (want, got))
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


def inputs_of(model):
    random = lambda t: np.abs(RNG.normal(1, 2, (3, *t.shape[1:]))).astype(t.dtype)  # noqa: E731
    return keras.tree.map_structure(random, _fold._graph(model)._inputs_struct)


# ---- What is folded ------------------------------------------------------------------------------

LINEAR = {
    "Dense": ((5,), lambda **k: layers.Dense(4, **k)),
    "Dense rank 4": ((3, 2, 5), lambda **k: layers.Dense(4, **k)),
    "Conv1D": ((9, 4), lambda **k: layers.Conv1D(6, 3, dilation_rate=2, **k)),
    "Conv2D": ((7, 8, 4), lambda **k: layers.Conv2D(6, (3, 2), strides=2, **k)),
    "Conv3D": ((5, 5, 5, 2), lambda **k: layers.Conv3D(3, 2, **k)),
    "grouped": ((7, 8, 4), lambda **k: layers.Conv2D(6, 3, groups=2, **k)),
    "DepthwiseConv1D": ((9, 4), lambda **k: layers.DepthwiseConv1D(3, depth_multiplier=2, **k)),
    "DepthwiseConv2D": ((7, 8, 3), lambda **k: layers.DepthwiseConv2D(3, depth_multiplier=2, **k)),
    "SeparableConv1D": ((9, 4), lambda **k: layers.SeparableConv1D(5, 3, depth_multiplier=2, **k)),
    "SeparableConv2D": (
        (7, 8, 3),
        lambda **k: layers.SeparableConv2D(5, 3, depth_multiplier=2, **k),
    ),
    "Conv1DTranspose": ((9, 4), lambda **k: layers.Conv1DTranspose(3, 3, strides=2, **k)),
    "Conv2DTranspose": ((5, 6, 4), lambda **k: layers.Conv2DTranspose(3, 3, strides=2, **k)),
    "Conv3DTranspose": ((3, 4, 3, 2), lambda **k: layers.Conv3DTranspose(3, 2, **k)),
}


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", LINEAR)
def test_behind_every_linear_layer(name, use_bias):
    shape, make = LINEAR[name]
    padding = {} if "Dense" in name else {"padding": "same"}
    layer = make(use_bias=use_bias, dtype="float64", **padding)
    model = functional(shape, layer, KERAS_LAYER(dtype="float64"), dtype="float64")
    folded = fold_batch_norm(model)
    assert not norms(folded)
    assert_same(model, folded, inputs_of(model), TOLERANCES["float64"])


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", [name for name in LINEAR if "Transpose" not in name])
def test_in_front_of_every_linear_layer_that_pads_nothing(name, use_bias):
    shape, make = LINEAR[name]
    layer = make(use_bias=use_bias, dtype="float64", activation="relu")
    model = functional(shape, KERAS_LAYER(dtype="float64"), layer, dtype="float64")
    folded = fold_batch_norm(model)
    assert not norms(folded)
    assert_same(model, folded, inputs_of(model), TOLERANCES["float64"])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_chains_in_every_type(dtype):
    """Norms before, behind and in a row; ours, without scale or center, and frozen ones."""
    d = {"dtype": dtype}
    chain = [
        *(KERAS_LAYER(**d), BatchNormalization(scale=False, **d), layers.Conv2D(4, 3, **d)),
        *(KERAS_LAYER(center=False, **d), KERAS_LAYER(trainable=False, **d), layers.ReLU(**d)),
        *(KERAS_LAYER(**d), layers.Conv2D(3, 1, padding="same", strides=2, **d)),
        *(KERAS_LAYER(synchronized=True, **d), layers.Flatten(**d), layers.Dense(2, **d)),
    ]
    model = functional((9, 8, 3), *chain)
    folded = fold_batch_norm(model)
    assert not norms(folded)
    assert_same(model, folded, inputs_of(model), TOLERANCES[dtype])


@pytest.mark.parametrize("name", [name for name in LINEAR if "Dense" not in name])
def test_channels_first(name):
    """Folded weights equal the channels-last model's: few of these layers run on a CPU."""
    (*spatial, channels), make = LINEAR[name]
    last = functional((*spatial, channels), KERAS_LAYER(), make(), KERAS_LAYER())
    one = {"data_format": "channels_first"}
    chain = [KERAS_LAYER(axis=1), make(**one), KERAS_LAYER(axis=1)]
    first = functional((channels, *spatial), *chain)
    first.set_weights(last.get_weights())
    folded = [fold_batch_norm(model) for model in (first, last)]
    assert len(norms(folded[0])) == ("Transpose" in name)
    for a, b in zip(*(model.get_weights() for model in folded), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_are_rounded_once():
    dense, first, second = layers.Dense(4), KERAS_LAYER(), KERAS_LAYER()
    folded = fold_batch_norm(functional((5,), dense, first, second))
    kernel = dense.kernel.numpy().astype("float64")
    for norm in (first, second):
        gamma, _, _, variance = (v.numpy().astype("float64") for v in norm.variables)
        kernel = kernel * (gamma / np.sqrt(variance + norm.epsilon))
    np.testing.assert_array_equal(folded.layers[1].kernel.numpy(), kernel.astype("float32"))


def test_without_regularizers_and_constraints():
    dense = layers.Dense(4, kernel_regularizer="l2", kernel_constraint="max_norm")
    folded = fold_batch_norm(functional((5,), dense, KERAS_LAYER()))
    assert folded.layers[1].kernel_constraint is None
    assert not folded.losses


# ---- Of which models -----------------------------------------------------------------------------


def sequential():
    chain = [layers.Conv2D(4, 3, use_bias=False), KERAS_LAYER(), layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((8, 8, 3)), *chain])


def residual():
    inputs = keras.Input((8, 8, 4))
    x = layers.ReLU()(KERAS_LAYER()(layers.Conv2D(4, 3, padding="same")(inputs)))
    x = KERAS_LAYER()(layers.DepthwiseConv2D(3, padding="same")(x))
    return keras.Model(inputs, keras.ops.relu(x + inputs))


def nested():
    inner, inputs = residual(), keras.Input((8, 8, 4))
    x = layers.Lambda(lambda x: 2 * x)(inner(inputs) + inner(2 * inputs))
    top = keras.Sequential([layers.GlobalAveragePooling2D(), layers.Dense(3), KERAS_LAYER()])
    return keras.Model({"image": inputs}, {"a": top(x), "b": x})


class OwnTrainStep(keras.Model):
    pass


def subclassed_functional():
    inputs = keras.Input((4,))
    return OwnTrainStep(inputs, KERAS_LAYER()(layers.Dense(2)(inputs)))


def shared_embedding():
    """Several inputs, masks, and a layer that is called twice without a norm."""
    inputs = [keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="int32")]
    embed = layers.Embedding(9, 4, mask_zero=True)
    x = layers.Add()([embed(i) for i in inputs])
    x = KERAS_LAYER()(layers.Dense(3)(x))
    return keras.Model(inputs, layers.LSTM(2)(x))


def preprocessed():
    """State that is in no config."""
    normalization, lookup = layers.Normalization(), layers.IntegerLookup()
    normalization.adapt(RNG.normal(3, 2, (50, 4)))
    lookup.adapt([1, 2, 0])
    inputs = [keras.Input((4,)), keras.Input((4,), dtype="int64")]
    x = layers.Concatenate()([normalization(inputs[0]), lookup(inputs[1]) / 9])
    return keras.Model(inputs, KERAS_LAYER()(layers.Dense(3)(x)))


MODELS = [
    *(sequential, residual, nested, subclassed_functional, shared_embedding, preprocessed),
]


@pytest.mark.parametrize("make", MODELS)
def test_every_known_graph(make, tmp_path):
    """The models share no weight, the first is as it was, and the new one is saved as any.

    Promise: A folded model computes what the model computes in inference.
    """
    model = randomized(make())
    before, nodes = model.get_weights(), [len(m._inbound_nodes) for m in model._flatten_layers()]
    x = inputs_of(model)
    folded = fold_batch_norm(model, verify=x)
    assert not norms(folded)
    assert not {id(v) for v in folded.variables} & {id(v) for v in model.variables}
    assert_same(model, folded, x)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(m._inbound_nodes) for m in model._flatten_layers()] == nodes
    folded.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=False)
    assert_same(folded, loaded, x, 0)


def test_tflite_has_one_op_for_each_convolution():
    folded = fold_batch_norm(randomized(residual()))
    content = tf.lite.TFLiteConverter.from_keras_model(folded).convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    ops = [op["op_name"] for op in interpreter._get_ops_details()]
    assert ops[:3] == ["CONV_2D", "DEPTHWISE_CONV_2D", "ADD"]
    x = RNG.normal(size=(1, 8, 8, 4)).astype("float32")
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(found, folded(x), rtol=1e-4, atol=1e-4)


# ---- What stays ----------------------------------------------------------------------------------


def branched(x):
    y = layers.Dense(4, name="dense")(x)
    return KERAS_LAYER(name="bn")(y) + y


def twice(x):
    dense = layers.Dense(4, name="dense")
    return KERAS_LAYER(name="bn")(dense(dense(x)))


def norm_twice(x):
    norm = KERAS_LAYER(name="bn")
    return norm(layers.Dense(4)(norm(x)))


class Derived(KERAS_LAYER):
    pass


class Block(keras.layers.Layer):
    def build(self, shape):
        self.dense, self.bn = layers.Dense(4), KERAS_LAYER(name="bn")
        self.dense.build(shape)
        self.bn.build(shape)

    def call(self, x):
        return self.bn(self.dense(x))


def quantized(x):
    dense = layers.Dense(4, name="dense")
    y = dense(x)
    dense.quantize("int8")
    return KERAS_LAYER(name="bn")(y)


def in_training(x):
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4), KERAS_LAYER(name="bn")])
    return inner(x, training=True)


def image(*chain):
    def make(x):
        x = layers.Reshape((4, 4, 1))(layers.Dense(16)(x))
        for layer in chain:
            x = layer(x)
        return x

    return make


KEPT = {
    "follows Reshape 'shape'": lambda x: KERAS_LAYER(name="bn")(
        layers.Reshape((2, 2), name="shape")(x)
    ),
    "has the activation relu between it and Dense 'dense'": lambda x: KERAS_LAYER(name="bn")(
        layers.Dense(4, "relu", name="dense")(x)
    ),
    "is not alone in using the result of Dense 'dense'": branched,
    "is beside Dense 'dense', which is called more than once": twice,
    "is called more than once": norm_twice,
    "is of the derived class Derived": lambda x: Derived(name="bn")(layers.Dense(4)(x)),
    "computes the activation relu": lambda x: BatchNormalization(name="bn", activation="relu")(
        layers.Dense(4)(x)
    ),
    "has a side input": lambda x: BatchNormalization(name="bn")(layers.Dense(4)(x), side_input=x),
    "is called with training=True": in_training,
    "is in a layer whose graph is not known": Block(),
    "is beside Dense 'dense', which is quantized or has LoRA weights": quantized,
    "computes in float64, and Dense 'dense' in float32": lambda x: KERAS_LAYER(
        name="bn", dtype="float64"
    )(layers.Dense(4, name="dense")(x)),
    "has axis 1, and Conv2D 'conv' its channels on axis 3": image(
        layers.Conv2D(2, 3, name="conv"), KERAS_LAYER(name="bn", axis=1)
    ),
    "follows ReLU 'relu', and into the layer behind it: Conv2D 'conv' pads with zeros": image(
        layers.ReLU(name="relu"),
        KERAS_LAYER(name="bn"),
        layers.Conv2D(2, 3, padding="same", name="conv"),
    ),
    "follows ReLU 'relu', and into the layer behind it: Conv2DTranspose 'conv' adds up fewer "
    "terms at borders": image(
        layers.ReLU(name="relu"), KERAS_LAYER(name="bn"), layers.Conv2DTranspose(2, 3, name="conv")
    ),
}


@pytest.mark.parametrize("reason", KEPT)
def test_what_stays_is_reported_with_the_reason(reason, caplog):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, KEPT[reason](inputs))
    if "quantized" not in reason:
        randomized(model)
    with caplog.at_level(logging.INFO, "tf_bn_ops"):
        folded = fold_batch_norm(model)
    report = fold_report(model)
    ((path, found),) = report.kept.items()
    assert (path.split("/")[-1], found) == ("bn", reason)
    assert caplog.records[-1].message == str(report)
    assert [type(norm) for norm in norms(folded)] == [type(norm) for norm in norms(model)]
    assert_same(model, folded, inputs_of(model))


@pytest.mark.parametrize("training", [(True, None), (None, True)])
def test_a_model_that_is_called_in_both_modes_is_in_training_mode(training):
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4), KERAS_LAYER()])
    inputs = keras.Input((4,))
    outputs = [inner(inputs, training=mode) for mode in training]
    model = randomized(keras.Model(inputs, outputs))
    assert [*fold_report(model).kept.values()] == ["is called with training=True"]
    assert_same(model, fold_batch_norm(model), inputs_of(model))


def test_a_side_input_without_its_name_is_one():
    inputs = keras.Input((4,))
    x = BatchNormalization(name="bn")(layers.Dense(4)(inputs), None, None, inputs)
    model = randomized(keras.Model(inputs, x))
    assert fold_report(model).kept == {"bn": "has a side input"}
    assert_same(model, fold_batch_norm(model), inputs_of(model))


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16"])
def test_weights_that_the_type_cannot_hold_stay(dtype):
    """A channel that is constant, far from 0: the bias would be -3e5."""
    dense, norm = layers.Dense(4, dtype=dtype, name="dense"), KERAS_LAYER(dtype=dtype, name="bn")
    model = functional((4,), dense, norm)
    dense.kernel.assign(np.full([4, 4], [1, 1, 1, 2500]))
    dense.bias.assign(np.zeros(4))
    norm.moving_mean.assign([1, 1, 1, 1e4])
    norm.moving_variance.assign([1, 1, 1, 0])
    reason = "makes weights of Dense 'dense' that float16 cannot hold"
    assert fold_report(model).kept == {"bn": reason}
    assert np.isfinite(fold_batch_norm(model)(np.ones([3, 4]))).all()


@pytest.mark.parametrize(
    ("dtype", "mean", "is_folded"),
    [("mixed_float16", 10, True), ("mixed_float16", 100, False), ("mixed_bfloat16", 10, False),
     ("float32", 1000, True)],
)  # fmt: skip
def test_a_mean_that_the_layer_behind_would_lose_stays(dtype, mean, is_folded):
    conv = layers.Conv2D(8, 3, dtype=dtype, name="conv")
    model = functional((8, 8, 64), KERAS_LAYER(dtype=dtype, name="bn"), conv)
    for name, value in {"mean": mean, "variance": 1, "gamma": 1, "beta": 0}.items():
        (v,) = (v for v in model.variables if name in v.path)
        v.assign(np.full(64, value))
    x = RNG.normal(mean, 1, (4, 8, 8, 64)).astype("float32")
    folded = fold_batch_norm(model)
    assert bool(norms(folded)) != is_folded
    assert_same(model, folded, x, 2e-2)


def test_statistics_that_are_not_finite_stay():
    model = functional((4,), layers.Dense(4), KERAS_LAYER(name="bn"))
    norms(model)[0].moving_variance.assign([1, 1, -1, np.inf])
    assert fold_report(model).kept == {
        "bn": "has statistics that are not finite, or a negative variance"
    }


# ---- What is refused -----------------------------------------------------------------------------


class OwnCall(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [layers.Dense(4), KERAS_LAYER()]

    def call(self, x):
        return self.parts[1](self.parts[0](x))


def test_a_graph_that_is_not_known_is_refused_with_the_way_out():
    model = OwnCall()
    with pytest.raises(ValueError, match=r"keras\.Model\(inputs, model\.call\(inputs\)\)"):
        fold_batch_norm(model)
    inputs = keras.Input((5,))
    assert not norms(fold_batch_norm(keras.Model(inputs, model.call(inputs))))
    with pytest.raises(ValueError, match="has not been built"):
        fold_batch_norm(keras.Sequential([layers.Dense(4), KERAS_LAYER()]))
    with pytest.raises(TypeError, match="takes a model of Keras 3"):
        fold_batch_norm(None)


def relu(x):
    return keras.ops.sin(x)


def times(factor):
    return lambda x: factor * keras.ops.tanh(x)


class Own(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:])

    def call(self, x):
        return x * self.factor

    def compute_output_shape(self, shape):
        return shape


OWN = {
    "a function": lambda: layers.Dense(4, activation=keras.ops.sin),
    "a lambda": lambda: layers.Dense(4, activation=lambda x: keras.ops.sin(x)),
    "the name of one of Keras'": lambda: layers.Dense(4, activation=relu),
    "the same names": lambda: layers.LSTM(
        4, activation=times(2), recurrent_activation=times(0.3), return_sequences=True
    ),
    "in a cell": lambda: layers.RNN(layers.SimpleRNNCell(4, relu), return_sequences=True),
    "in a wrapper": lambda: layers.TimeDistributed(layers.Dense(4, activation=relu)),
    "a class in a wrapper": lambda: layers.TimeDistributed(Own()),
    "an initializer": lambda: layers.Dense(
        4, kernel_initializer=lambda shape, dtype=None: keras.ops.zeros(shape, dtype)
    ),
}


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize("name", OWN)
def test_functions_and_classes_of_the_program_need_not_be_registered(name):
    model = functional((5, 4), OWN[name](), layers.Dense(4), KERAS_LAYER())
    folded = fold_batch_norm(model)
    assert not norms(folded)
    assert_same(model, folded, inputs_of(model))


def test_a_call_of_its_own_cannot_be_copied():
    dense = layers.Dense(4, name="dense")
    dense.call = lambda x: 2 * x
    with pytest.raises(ValueError, match="'dense' cannot be copied: it has a call of its own"):
        fold_batch_norm(functional((4,), dense, layers.Dense(4), KERAS_LAYER()))


def test_layers_that_cannot_be_copied_are_named():
    class NoConfig(keras.layers.Layer):
        def __init__(self, layer, units):
            super().__init__()
            self.layer, self.units = layer, units

        def build(self, shape):
            self.layer.build(shape)

        def call(self, x):
            return self.layer(x)

    model = functional((4,), NoConfig(layers.Dense(3), 3), KERAS_LAYER())
    with pytest.raises(ValueError, match="layer 'no_config' of class NoConfig cannot be copied"):
        fold_batch_norm(model)


def test_verify_finds_another_result(monkeypatch):
    wrong = lambda norm: (np.ones(4), np.zeros(4))  # noqa: E731
    monkeypatch.setattr(_fold, "_scale_and_offset", wrong)
    model = functional((4,), layers.Dense(4), KERAS_LAYER())
    with pytest.raises(ValueError, match="and the new model differ by"):
        fold_batch_norm(model, verify=inputs_of(model))
