"""replace_batch_norm and restore_batch_norm change a model in place: what changes, and what stays.

Promised: weights, names, compilation and the state of the optimizer stay; wrappers and subclassed,
nested and shared models are replaced; what stays is logged with the reason; `verify` raises and
leaves the model as it was.

Of every kind of model: the layers are this module's, the results Keras', all else is untouched, and
restored the model is what it was.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bn_ops.generated import bindings
from tf_bn_ops.keras import (
    BatchNormalization,
    batch_norm_report,
    replace_batch_norm,
    restore_batch_norm,
)

KERAS_LAYER: Any = keras.layers.BatchNormalization


def norms(model) -> list:
    return [layer for layer in model._flatten_layers() if isinstance(layer, KERAS_LAYER)]


def kinds(model) -> set[type]:
    return {type(layer) for layer in norms(model)}


def random(*shape) -> np.ndarray:
    return np.random.default_rng(0).normal(1, 2, shape).astype("float32")


# ---- Models --------------------------------------------------------------------------------------


class Block(keras.layers.Layer):
    """A layer that holds layers, two of them in a list."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = keras.layers.Dense(units)
        self.norms = [KERAS_LAYER(), KERAS_LAYER(momentum=0.5)]
        self.last = None

    def build(self, shape):
        self.dense.build(shape)
        for norm in self.norms:
            norm.build((*shape[:-1], self.units))

    def call(self, x, training=None):
        x = self.dense(x)
        for norm in self.norms:
            x = norm(x, training=training)
        self.last = x
        return x


@keras.saving.register_keras_serializable("tests")
class NormalizedCell(keras.layers.SimpleRNNCell):
    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.norm = KERAS_LAYER()

    def build(self, shape):
        super().build(shape)
        self.norm.build((shape[0], self.units))

    def call(self, sequence, states, training=False):
        output, states = super().call(sequence, states, training=training)
        return self.norm(output, training=False), states


class Subclassed(keras.Model):
    """Without a config, and with a call that has no `training`."""

    def __init__(self):
        super().__init__()
        self.block = Block(3)
        self.by_name = {"norm": KERAS_LAYER()}

    def call(self, x):
        return self.by_name["norm"](self.block(x))


class OwnTrainStep(keras.Model):
    def train_step(self, data):
        return {**super().train_step(data), "mine": 7.0}


def functional():
    inputs = keras.Input((6, 6, 3))
    x = KERAS_LAYER(axis=1)(keras.layers.Conv2D(4, 3, use_bias=False)(inputs))
    return keras.Model(inputs, keras.layers.ReLU()(x)), random(4, 6, 6, 3)


def not_built():
    return keras.Sequential([keras.layers.Dense(4), KERAS_LAYER(), KERAS_LAYER()]), random(8, 3)


def subclassed():
    return Subclassed(), random(8, 4)


def subclassed_functional():
    inputs = keras.Input((4,))
    return OwnTrainStep(inputs, keras.layers.Dense(2)(KERAS_LAYER()(inputs))), random(8, 4)


def nested():
    layers = [Block(4), KERAS_LAYER(), keras.layers.Dropout(0.5)]
    block = keras.Sequential([keras.Input((5, 4)), *layers])
    inputs = keras.Input((5, 4))
    inner = keras.Model(inputs, KERAS_LAYER()(block(inputs)))
    return keras.Sequential([keras.Input((5, 4)), inner, KERAS_LAYER()]), random(4, 5, 4)


def wrapped():
    inputs = keras.Input((5, 4))
    x = keras.layers.TimeDistributed(KERAS_LAYER())(inputs)
    rnn = keras.layers.RNN(NormalizedCell(3), return_sequences=True)
    return keras.Model(inputs, keras.layers.Bidirectional(rnn)(x)), random(4, 5, 4)


def shared():
    norm = KERAS_LAYER()
    inputs = {"left": keras.Input((3,), name="left"), "right": keras.Input((3,), name="right")}
    outputs = {"sum": norm(inputs["left"]) + norm(inputs["right"]), "left": inputs["left"] * 1}
    return keras.Model(inputs, outputs), {"left": random(8, 3), "right": 3 * random(8, 3)}


MODELS = [
    *(functional, not_built, subclassed),
    *(subclassed_functional, nested, wrapped, shared),
]


def randomized(make):
    """A built model with weights that are not the initial ones, and an input of it."""
    model, x = make()
    model(x)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if "float" in variable.dtype:
            variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    return model, x


def values(structure) -> list[np.ndarray]:
    return [np.asarray(value) for value in keras.tree.flatten(structure)]


def assert_close(got, want, rtol=1e-4, atol=1e-5) -> None:
    for a, b in zip(values(got), values(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


# ---- What replacing does -------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS)
def test_replaced_it_computes_the_same_and_restored_it_is_what_it_was(make):
    """Promise: A replaced model computes the same, and restored it is what it was."""
    model, x = randomized(make)
    want, state = values(model(x, training=False)), [np.array(v.numpy()) for v in model.variables]
    layers, before = norms(model), [(type(layer), dict(vars(layer))) for layer in norms(model)]
    assert replace_batch_norm(model, verify=x) is model
    for a, b in zip(values(model.variables), state, strict=True):
        np.testing.assert_array_equal(a, b)
    assert norms(model) == layers
    assert kinds(model) == {BatchNormalization}
    assert_close(model(x, training=False), want)
    assert restore_batch_norm(model) is model
    after = [(type(layer), dict(vars(layer))) for layer in norms(model)]
    for (kind, attributes), (kind_before, attributes_before) in zip(after, before, strict=True):
        assert kind is kind_before
        assert attributes.keys() == attributes_before.keys()
        changed = {k for k, v in attributes.items() if v is not attributes_before[k]}
        assert changed <= {"_losses"}  # A list that every call clears.
    for a, b in zip(values(model(x, training=False)), want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", [not_built, subclassed])
def test_before_it_is_built(make):
    model, x = make()
    replace_batch_norm(model)
    model(x)
    assert kinds(model) == {BatchNormalization}
    assert all(layer.built for layer in norms(model))


@pytest.mark.parametrize(
    ("when", "make"),
    [
        *((when, functional) for when in ("before compile", "after compile", "after fit")),
        ("after fit", subclassed_functional),
    ],
)
def test_it_learns_what_it_learned(make, when):
    losses = []
    for change in (lambda model: model, replace_batch_norm):
        keras.utils.set_random_seed(0)
        model, x = randomized(make)
        y = keras.tree.map_structure(np.cos, model(x))
        fit = {"batch_size": 4, "shuffle": False, "verbose": 0}
        if when == "before compile":
            change(model)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        model.compile(optimizer, "mse")
        if when == "after compile":
            change(model)
        model.fit(x, y, epochs=2, **fit)
        model.evaluate(x, y, verbose=0)
        variables = [*model.variables, *optimizer.variables]
        if when == "after fit":
            change(model)
        assert model.optimizer is optimizer
        for a, b in zip([*model.variables, *optimizer.variables], variables, strict=True):
            assert a is b
        history = model.fit(x, y, epochs=3, **fit).history
        losses.append([*history["loss"], np.sum(model.evaluate(x, y, verbose=0))])
        losses[-1] += [np.mean(a) for a in values(model.predict(x, verbose=0))]
        assert history.get("mine", [7.0] * 3) == [7.0] * 3
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3, atol=1e-5)


def test_functions_of_a_compiled_model_are_traced_again(monkeypatch):
    calls, op = [], bindings.fused_batch_norm_ex
    monkeypatch.setattr(
        bindings, "fused_batch_norm_ex", lambda *a, **k: calls.append(1) or op(*a, **k)
    )
    model, x = randomized(functional)
    model.compile("sgd", "mse")
    for change, fused in (
        (restore_batch_norm, 0),
        (replace_batch_norm, 1),
        (restore_batch_norm, 0),
    ):
        calls.clear()
        change(model)
        model.fit(x, np.zeros((4, 4, 4, 4)), verbose=0)
        assert len(calls) == fused


def test_models_that_share_layers_share_the_change():
    model, x = randomized(functional)
    other = keras.Model(model.inputs, model.layers[2].output)
    want = other.predict(x, verbose=0)
    replace_batch_norm(model)
    assert kinds(other) == {BatchNormalization}
    assert_close(other.predict(x, verbose=0), want)


def test_layers_are_replaced_too():
    layer = Block(3)
    x = random(4, 5)
    want = layer(x)
    assert replace_batch_norm(layer) is layer
    assert kinds(layer) == {BatchNormalization}
    assert_close(layer(x), want)
    assert type(replace_batch_norm(KERAS_LAYER())) is BatchNormalization


def test_time_distributed_over_an_unknown_time():
    """Keras calls the layer below tf.vectorized_map there."""
    inputs = keras.Input((None, 4, 3))
    model = keras.Model(inputs, keras.layers.TimeDistributed(KERAS_LAYER())(inputs))
    x = random(5, 6, 4, 3)
    start, results = model.get_weights(), []
    for change in (restore_batch_norm, replace_batch_norm):
        change(model)
        model.set_weights(start)
        for training in (False, True):
            call = tf.function(
                lambda x, training=training: model(x, training=training),
                input_signature=[tf.TensorSpec((None, None, 4, 3))],
            )
            results.append([call(x), *model.get_weights()])
    assert_close(results[2:], results[:2])


def test_mixed_precision_with_loss_scaling():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model, x = randomized(functional)
    finally:
        keras.config.set_dtype_policy(before)
    y = np.zeros(model(x).shape)
    model.compile("adam", "mse")
    model.fit(x, y, verbose=0)
    replace_batch_norm(model, verify=x)
    assert model.optimizer.iterations.numpy() == 1
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])
    assert np.isfinite(model.predict(x, verbose=0)).all()


# ---- What stays, and the report ------------------------------------------------------------------


class Derived(KERAS_LAYER):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) + 1


def test_what_stays_is_logged_and_reported_with_the_reason(caplog):
    inputs = keras.Input((4, 5, 3))
    x = KERAS_LAYER(name="plain")(inputs)
    x = KERAS_LAYER(axis=2, name="odd")(x)
    x = KERAS_LAYER(dtype="float64", name="double")(x)
    x = KERAS_LAYER(synchronized=True, name="sync")(x)
    inner = keras.Sequential([keras.Input((4, 5, 3)), Derived(name="theirs")], name="inner")
    model = keras.Model(inputs, inner(x))
    before = batch_norm_report(model)
    assert before.fused == ()
    assert before.unfused["plain"] == "is keras.layers.BatchNormalization"
    with caplog.at_level(logging.INFO, "tf_bn_ops"):
        replace_batch_norm(model, verify=random(4, 4, 5, 3))
    message = (
        "replaced 2 of 5\n  odd has axis 2 in an input of rank 4\n  double computes in float64\n"
        "  inner/theirs is of the derived class Derived"
    )
    assert [(r.levelname, r.message) for r in caplog.records] == [("WARNING", message)]
    report = batch_norm_report(model)
    assert report.fused == ("plain", "sync")
    assert str(report) == message.replace("replaced", "fused")
    assert list(report.unfused) == ["odd", "double", "inner/theirs"]


# Of a layer with a side input, in a functional model and in a model of a class.
def by_keyword(layer, x, side_input):
    return layer(x, side_input=side_input)


def by_position(layer, x, side_input):
    return layer(x, None, None, side_input)


class Sum(keras.Model):
    def __init__(self):
        super().__init__()
        self.plain = BatchNormalization(name="plain")
        self.relu = BatchNormalization(name="relu", activation="relu")
        self.sum = BatchNormalization(name="sum")

    def call(self, inputs):
        return by_position(self.sum, self.relu(self.plain(inputs)), inputs)


def functional_sum(add):
    inputs = keras.Input((4, 4, 3))
    x = BatchNormalization(name="plain")(inputs)
    x = BatchNormalization(name="relu", activation="relu")(x)
    return keras.Model(inputs, add(BatchNormalization(name="sum"), x, inputs))


@pytest.mark.parametrize(
    "make",
    [
        Sum,
        functools.partial(functional_sum, by_keyword),
        functools.partial(functional_sum, by_position),
    ],
    ids=["class", "keyword", "position"],
)
def test_what_keras_cannot_compute_is_not_restored(make, caplog):
    model = make()
    x = random(2, 4, 4, 3)
    want = np.asarray(model(x))
    restore_batch_norm(model)
    (record,) = caplog.records
    assert record.message == (
        "restored 1 of 3\n  relu computes the activation relu\n  sum has a side input"
    )
    assert [type(layer) for layer in norms(model)] == [KERAS_LAYER, *[BatchNormalization] * 2]
    assert model.get_layer("plain").supports_jit
    assert_close(model(x), want)


def test_other_kinds_of_models_are_refused_in_one_sentence():
    Theirs = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential"})
    for function in (replace_batch_norm, restore_batch_norm, batch_norm_report):
        for wrong in (None, np.ones(3), tf.Module()):
            with pytest.raises(TypeError, match="this takes a model of Keras 3, not a"):
                function(wrong)
        with pytest.raises(TypeError, match=r"tf_bn_ops\.enable\(\)"):
            function(Theirs())


# ---- verify= -------------------------------------------------------------------------------------


def no_memory(x):
    raise RuntimeError("no memory")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x * 1.1, r"computes something else .* in inference .* differ"),
        (lambda x: x * np.inf, "computes something else"),
        (lambda x: keras.ops.exp(1000.0 * x) / 0, "computes something else"),
        (lambda x: x[:, :2], r"computes something else|expected axis"),
        (no_memory, "no memory"),
    ],
)
def test_verify_raises_and_leaves_the_model(monkeypatch, wrong, message):
    model = keras.Sequential([keras.Input((4,)), KERAS_LAYER()])
    call = lambda self, inputs, training=None, mask=None: wrong(inputs)  # noqa: E731
    monkeypatch.setattr(BatchNormalization, "call", call)
    with pytest.raises(RuntimeError if wrong is no_memory else ValueError, match=message):
        replace_batch_norm(model, verify=random(8, 4))
    assert kinds(model) == {KERAS_LAYER}
    assert model.layers[0].supports_jit


OUTPUTS = {
    "complex": lambda x: tf.complex(x, tf.exp(x)),
    "class": lambda x: tf.argmax(x, -1),
    "rounded": lambda x: tf.cast(tf.round(1000 * x), tf.int32),
    "truth values": lambda x: x > 0,
    "strings": lambda x: tf.where(x > 0, "yes", "no"),
    "infinite": lambda x: x / 0,
    "none are finite": lambda x: tf.sqrt(-1 - tf.square(x)),
    "ragged": lambda x: tf.RaggedTensor.from_tensor(x),
    "sparse": lambda x: tf.sparse.from_dense(x),
    "float64": lambda x: tf.cast(x, tf.float64) * 1e200,
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_verify_knows_rounding_from_another_result(monkeypatch, name):
    """Of outputs of any type. Rounding changes single integers, another result most of them."""

    class Output(keras.layers.Layer):
        def call(self, x):
            return OUTPUTS[name](x)

    x = random(64, 8, 8, 4)
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, Output(dtype="float32")(KERAS_LAYER()(inputs)))
    replace_batch_norm(model, verify=x)
    restore_batch_norm(model)
    if name in ("infinite", "none are finite"):
        return
    call = KERAS_LAYER.call
    wrong = lambda *args, **kwargs: -call(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(BatchNormalization, "call", wrong)
    with pytest.raises(ValueError, match="computes something else"):
        replace_batch_norm(model, verify=x)


def test_outputs_that_differ_from_call_to_call_are_not_verified(caplog):
    class Noise(keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x)) if training else x

    replace_batch_norm(keras.Sequential([KERAS_LAYER(), Noise()]), verify=random(8, 4))
    assert "is not verified in training: its outputs differ" in caplog.records[0].message


# ---- Files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_replaced_models_are_saved_and_loaded_as_such(tmp_path, suffix):
    model, x = randomized(functional)
    replace_batch_norm(model).save(tmp_path / f"model{suffix}")
    loaded = keras.saving.load_model(tmp_path / f"model{suffix}")
    assert kinds(loaded) == {BatchNormalization}
    np.testing.assert_array_equal(loaded(x), model(x))


def test_weights_go_from_one_to_the_other(tmp_path):
    (model, x), (other, _) = randomized(functional), functional()
    for source, target in ((model, replace_batch_norm(other)), (other, model)):
        source.save_weights(tmp_path / "model.weights.h5")
        for weight in target.weights:
            weight.assign(keras.ops.zeros_like(weight))
        target.load_weights(tmp_path / "model.weights.h5")
        assert_close(target(x), source(x))


def test_restored_models_load_without_this_library(tmp_path):
    """Promise: A restored model's file loads without this library."""
    model, _ = randomized(wrapped)
    plain = keras.Sequential([keras.Input((5, 4)), model.layers[1], KERAS_LAYER(synchronized=True)])
    config = [layer.get_config() for layer in norms(plain)]
    restore_batch_norm(replace_batch_norm(plain)).save(tmp_path / "plain.keras")
    assert [layer.get_config() for layer in norms(plain)] == config
    program = (
        "import sys, keras; model = keras.saving.load_model(sys.argv[1]); "
        "assert 'tf_bn_ops' not in sys.modules"
    )
    forked.output(program, tmp_path / "plain.keras")
