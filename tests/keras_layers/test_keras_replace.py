"""replace_batch_norm and restore_batch_norm: the same numbers and state, or a sentence why not."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from build_helpers import environment

import tf_bn_ops
from tf_bn_ops import _loader
from tf_bn_ops.keras import BatchNormalization, replace_batch_norm, restore_batch_norm
from tf_bn_ops.keras._fused_call import _normalize as _fused_call_normalize

ROOT = pathlib.Path(tf_bn_ops.__file__).resolve().parent.parent
KERAS_LAYER = keras.layers.BatchNormalization


def kinds(model) -> list[type]:
    layers = model._flatten_layers()
    return [type(layer) for layer in layers if isinstance(layer, KERAS_LAYER)]


def randomize(model, seed: int = 0) -> None:
    """Weights that are not the initial ones; variances stay positive."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(rng.uniform(0.5, 1.5, weight.shape))


def both(model, x, **kwargs):
    """The model replaced as a copy and in place, each verified; the outputs before."""
    want = keras.tree.map_structure(np.asarray, model(x, training=False))
    copy = replace_batch_norm(model, verify=x, **kwargs)
    assert copy is not model
    assert set(kinds(model)) == {KERAS_LAYER}
    assert replace_batch_norm(model, inplace=True, verify=x, **kwargs) is model
    for ours in (copy, model):
        assert set(kinds(ours)) == {BatchNormalization}
        got = ours(x, training=False)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5), want, got
        )
    return copy, model


def images(n: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, 50, (n, 6, 6, 3)).astype("float32")


# ---- State that is not weights -------------------------------------------------------------------


def test_adapted_normalization_stays_adapted():
    normalization = keras.layers.Normalization()
    normalization.adapt(images(64, seed=1))
    model = keras.Sequential(
        [keras.Input((6, 6, 3)), normalization, keras.layers.Conv2D(4, 3), KERAS_LAYER()]
    )
    for ours in both(model, images()):
        assert np.abs(ours.layers[0](images())).max() < 10  # unnormalized: 200


def test_adapted_lookups_keep_their_vocabulary():
    numbers, words = keras.layers.IntegerLookup(), keras.layers.StringLookup()
    numbers.adapt(np.array([7, 11, 13, 11]))
    words.adapt(np.array(["a", "b", "b"]))
    inputs = [keras.Input((2,), dtype="int64"), keras.Input((2,), dtype="string")]
    codes = [numbers(inputs[0]), words(inputs[1])]
    vectors = [keras.layers.Embedding(8, 3)(code) for code in codes]
    model = keras.Model(inputs, KERAS_LAYER()(keras.layers.Add()(vectors)))
    x = [tf.constant([[7, 11], [13, 5]], tf.int64), tf.constant([["a", "b"], ["b", "c"]])]
    for ours in both(model, x):
        lookup = next(layer for layer in ours.layers if layer.name == numbers.name)
        assert lookup.get_vocabulary() == numbers.get_vocabulary()


def test_discretization_and_dropout_seeds():
    buckets = keras.layers.Discretization(num_bins=4)
    buckets.adapt(np.random.default_rng(0).normal(size=(100, 1)))
    inputs = keras.Input((3,))
    x = keras.layers.Embedding(5, 4)(buckets(inputs))
    x = keras.layers.Dropout(0.5, seed=3)(KERAS_LAYER()(x))
    model = keras.Model(inputs, x)
    data = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    model(data, training=True)  # the seed moves on
    copy, model = both(model, data)
    np.testing.assert_array_equal(model(data, training=True), copy(data, training=True))


def test_optional_inputs_stay_optional():
    class AddIfGiven(keras.layers.Layer):
        def call(self, a, b=None):
            return a if b is None else a + b

    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b", optional=True)
    model = keras.Model({"a": a, "b": b}, KERAS_LAYER()(AddIfGiven()(a, b)))
    for ours in both(model, {"a": np.ones((2, 3), "float32"), "b": None}):
        ours.predict({"a": np.ones((2, 3), "float32"), "b": None}, verbose=0)


def test_trainable_of_layers_in_a_frozen_model():
    base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), KERAS_LAYER()])
    base.trainable = False
    base.layers[0].trainable = True
    model = keras.Sequential([keras.Input((4,)), base, KERAS_LAYER()])
    want = [layer.trainable for layer in model._flatten_layers()]
    names = [weight.path for weight in model.trainable_weights]
    for ours in both(model, np.ones((2, 4), "float32")):
        assert [layer.trainable for layer in ours._flatten_layers()] == want
        assert [weight.path for weight in ours.trainable_weights] == names


# ---- Kinds of models -----------------------------------------------------------------------------


class CountsSteps(keras.Model):
    """A Functional model with a training step of its own."""

    def train_step(self, data):
        return {**super().train_step(data), "mine": 7.0}


def test_functional_subclasses_keep_class_and_train_step():
    inputs = keras.Input((4,))
    model = CountsSteps(inputs, keras.layers.Dense(1)(KERAS_LAYER()(inputs)))
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    x, y = np.random.default_rng(0).normal(size=(8, 4)), np.ones((8, 1))
    model.fit(x, y, verbose=0)
    copy, model = both(model, x.astype("float32"))
    assert isinstance(copy, CountsSteps)
    histories = [ours.fit(x, y, epochs=3, verbose=0).history for ours in (copy, model)]
    assert histories[0]["mine"] == [7.0] * 3
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)
    assert histories[0].keys() == histories[1].keys()


class Block(keras.layers.Layer):
    """A layer that holds layers, one of them in a list."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = keras.layers.Dense(units)
        self.norms = [KERAS_LAYER(), KERAS_LAYER(momentum=0.5)]

    def build(self, shape):
        self.dense.build(shape)
        for norm in self.norms:
            norm.build((*shape[:-1], self.units))

    def call(self, x, training=None):
        x = self.dense(x)
        for norm in self.norms:
            x = norm(x, training=training)
        return x

    def get_config(self):
        return {**super().get_config(), "units": self.units}


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


def test_custom_layers_wrappers_and_nested_models():
    inner = keras.Sequential([keras.Input((5, 4)), Block(4), KERAS_LAYER()])
    inputs = keras.Input((5, 4))
    x = keras.layers.TimeDistributed(KERAS_LAYER())(inner(inputs))
    x = keras.layers.Bidirectional(keras.layers.RNN(NormalizedCell(3), return_sequences=True))(x)
    shared = KERAS_LAYER()
    model = keras.Model(inputs, keras.layers.Add()([shared(x), shared(x + 1)]))
    randomize(model)
    data = np.random.default_rng(2).normal(size=(4, 5, 4)).astype("float32")
    copy, model = both(model, data)
    assert len(kinds(copy)) == len(kinds(model)) == 7


def test_time_distributed_over_an_unknown_time():
    """Keras calls the layer below tf.vectorized_map there."""
    inputs = keras.Input((None, 4, 3))
    model = keras.Model(inputs, keras.layers.TimeDistributed(KERAS_LAYER())(inputs))
    ours = replace_batch_norm(model)
    x = np.random.default_rng(0).normal(size=(5, 6, 4, 3)).astype("float32")
    signature = [tf.TensorSpec((None, None, 4, 3))]
    for training in (False, True):
        want, got = (
            tf.function(lambda x, m=m, t=training: m(x, training=t), input_signature=signature)(x)
            for m in (model, ours)
        )
        np.testing.assert_allclose(got, want, atol=1e-5)
    for want, got in zip(model.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


class Mine(keras.Model):
    """A subclassed model without a config of its own."""

    def __init__(self, units):
        super().__init__()
        self.block = Block(units)
        self.norm = KERAS_LAYER()

    def call(self, x, training=None):
        return self.norm(self.block(x, training=training), training=training)


class MineWithConfig(Mine):
    def get_config(self):
        return {"units": self.block.units}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def test_subclassed_models():
    data = np.random.default_rng(2).normal(size=(8, 4)).astype("float32")
    model = MineWithConfig(3)
    model(data)
    both(model, data)
    model = Mine(3)
    model(data)
    replaced = replace_batch_norm(model, inplace=True, verify=data)
    assert replaced is model
    assert kinds(model) == [BatchNormalization] * 3


def test_what_cannot_be_copied_is_refused_with_the_remedy():
    data = np.ones((2, 4), "float32")
    model = Mine(3)
    model(data)
    with pytest.raises(ValueError, match=r"Mine 'mine.*' cannot be copied, .* pass inplace=True"):
        replace_batch_norm(model)
    assert set(kinds(model)) == {KERAS_LAYER}

    class Scaled(keras.layers.Layer):
        """Adapted state in an attribute that Keras does not save."""

        factor = 1.0

        def call(self, x):
            return x * self.factor

    model = keras.Sequential([keras.Input((4,)), Scaled(name="scaled"), KERAS_LAYER()])
    model.layers[0].factor = np.float32(5)
    with pytest.raises(ValueError, match="does not save the attribute 'factor' of layer 'scaled'"):
        replace_batch_norm(model)
    assert kinds(replace_batch_norm(model, inplace=True, verify=data)) == [BatchNormalization]

    class Compiled(keras.Model):
        def compile(self, extra, **kwargs):
            super().compile(**kwargs)
            self.extra = extra

    inputs = keras.Input((4,))
    model = Compiled(inputs, KERAS_LAYER()(inputs))
    model.compile(extra="x", loss="mse")
    with pytest.raises(ValueError, match=r"Compiled has a compile\(\) and no compile_from_config"):
        replace_batch_norm(model)
    assert model.compiled


def test_models_of_other_kinds_are_refused_in_one_sentence():
    for wrong in (None, np.ones(3), tf.Module()):
        with pytest.raises(TypeError, match="this takes a model of Keras 3, not a"):
            replace_batch_norm(wrong)
    with pytest.raises(TypeError, match="Dense is a layer and no model: pass inplace=True"):
        replace_batch_norm(keras.layers.Dense(3))
    Theirs = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential"})
    with pytest.raises(TypeError, match=r"tf_bn_ops\.override_builtin_kernels\(\)"):
        replace_batch_norm(Theirs())


class WithoutTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = KERAS_LAYER()

    def call(self, x):
        return self.norm(x)


def test_models_whose_call_has_no_training_argument():
    model, data = WithoutTraining(), np.random.default_rng(0).normal(size=(5, 4))
    model(data)
    assert kinds(replace_batch_norm(model, inplace=True, verify=data)) == [BatchNormalization]


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
    data = np.random.default_rng(0).normal(size=(4, 4, 5, 3)).astype("float32")
    before = tf_bn_ops.keras.batch_norm_report(model)
    assert before.fused == ()
    assert before.unfused["plain"] == "is keras.layers.BatchNormalization"
    with caplog.at_level(logging.INFO, "tf_bn_ops"):
        ours = replace_batch_norm(model, verify=data)
    message = (
        "replaced 2 of 5: odd has axis 2 in an input of rank 4; double computes in float64; "
        "inner/theirs is of the derived class Derived"
    )
    assert [(r.levelname, r.message) for r in caplog.records] == [("WARNING", message)]
    report = tf_bn_ops.keras.batch_norm_report(ours)
    assert report.fused == ("plain", "sync")
    assert str(report) == message.replace("replaced", "fused")
    assert list(report.unfused) == ["odd", "double", "inner/theirs"]


def test_verify_raises_and_leaves_the_model(monkeypatch):
    model = keras.Sequential([keras.Input((4,)), KERAS_LAYER()])
    data = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    wrong = lambda self, inputs, training=None, mask=None: inputs * 1.1  # noqa: E731
    monkeypatch.setattr(BatchNormalization, "call", wrong)
    for inplace in (True, False):
        with pytest.raises(ValueError, match=r"computes something else .* in inference .* differ"):
            replace_batch_norm(model, inplace=inplace, verify=data)
        assert kinds(model) == [KERAS_LAYER]
        assert model.layers[0].supports_jit


def test_verify_leaves_the_model_whatever_a_call_raises(monkeypatch):
    model = keras.Sequential([keras.Input((4,)), KERAS_LAYER()])

    def no_memory(self, inputs, training=None, mask=None):
        raise RuntimeError("no memory")

    monkeypatch.setattr(BatchNormalization, "call", no_memory)
    with pytest.raises(RuntimeError, match="no memory"):
        replace_batch_norm(model, inplace=True, verify=np.zeros((8, 4), np.float32))
    assert kinds(model) == [KERAS_LAYER]


def test_verify_leaves_all_state_alone():
    model = keras.Sequential([keras.Input((4,)), KERAS_LAYER(), keras.layers.Dropout(0.5)])
    before = [variable.numpy() for variable in model.variables]
    replace_batch_norm(model, inplace=True, verify=np.random.normal(size=(8, 4)))
    for value, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


# ---- In place, and the way back ------------------------------------------------------------------


def test_in_place_keeps_optimizer_and_traces_functions_again(monkeypatch):
    fused_calls = []

    def counted(*args):
        fused_calls.append(args)
        return _fused_call_normalize(*args)

    monkeypatch.setattr("tf_bn_ops.keras._fused_call._normalize", counted)
    x, y = np.random.default_rng(0).normal(size=(16, 4)), np.ones((16, 1))
    losses = []
    for inplace in (None, False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8), KERAS_LAYER(), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
        fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
        model.fit(x, y, epochs=2, **fit)
        if inplace is not None:
            model = replace_batch_norm(model, inplace=inplace)
            assert model.optimizer.iterations.numpy() == 4
        losses.append(model.fit(x, y, epochs=3, **fit).history["loss"])
        if inplace is not None:
            assert fused_calls, inplace
            fused_calls.clear()
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-4)


def test_copies_of_optimizers_know_what_weight_decay_leaves_out():
    x, y = np.random.default_rng(0).normal(size=(8, 4)), np.ones((8, 1))
    model = keras.Sequential([keras.Input((4,)), KERAS_LAYER(), keras.layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[model.layers[1].kernel], var_names=["gamma"])
    model.compile(optimizer, "mse")
    model.fit(x, y, verbose=0)
    copy = replace_batch_norm(model)
    losses = [ours.fit(x, y, epochs=3, verbose=0).history["loss"] for ours in (model, copy)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_restored_models_load_without_this_library(tmp_path):
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.TimeDistributed(KERAS_LAYER())(keras.layers.Conv2D(4, 3)(inputs))
    model = keras.Model(inputs, KERAS_LAYER()(x))
    randomize(model)
    want = model(images())
    ours = replace_batch_norm(model)
    back = restore_batch_norm(ours, verify=images())
    assert set(kinds(ours)) == {BatchNormalization}
    assert restore_batch_norm(ours, inplace=True) is ours
    for restored in (back, ours):
        assert set(kinds(restored)) == {KERAS_LAYER}
        assert all(layer.supports_jit for layer in restored._flatten_layers())
        np.testing.assert_array_equal(restored(images()), want)
        assert restored.layers[-1].get_config() == model.layers[-1].get_config()
    back.save(tmp_path / "back.keras")
    program = (
        "import sys, keras; model = keras.saving.load_model(sys.argv[1]); "
        "assert 'tf_bn_ops' not in sys.modules"
    )
    run_alone(program, tmp_path / "back.keras")


def run_alone(program: str, *arguments, **changes) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment(TF_CPP_MIN_LOG_LEVEL="3", **changes),
        cwd=os.path.dirname(os.path.abspath(os.sep)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# ---- Precision, distribution ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_with_loss_scaling(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential([keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3), KERAS_LAYER()])
        model.compile("adam", "mse")
        x, y = images() / 100, np.zeros((4, 4, 4, 4))
        model.fit(x, y, verbose=0)
        copy = replace_batch_norm(model, verify=x)
        assert type(copy.optimizer) is type(model.optimizer)
        assert copy.optimizer.iterations.numpy() == model.optimizer.iterations.numpy()
        copy.fit(x, y, verbose=0)
        copy.evaluate(x, y, verbose=0)
        assert np.isfinite(copy.predict(x, verbose=0)).all()
    finally:
        keras.config.set_dtype_policy(before)


@pytest.fixture
def global_policy():
    """Sets Keras' global dtype policy, until the end of the test."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@keras.saving.register_keras_serializable("tf_bn_ops_tests")
class Scaled(keras.layers.Layer):
    """Takes no dtype, so its config has none that its copy could be made with."""

    def __init__(self, **kwargs):
        kwargs.pop("dtype", None)
        super().__init__(**kwargs)

    def call(self, x):
        return x * 2


@keras.saving.register_keras_serializable("tf_bn_ops_tests")
class OwnCompile(keras.Model):
    """Scales the loss where the config of its compile(), which it saves, does not say so."""

    def compile(self, optimizer, scaled=False):
        super().compile(optimizer, "mse", auto_scale_loss=False)
        if scaled:
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)

    def get_compile_config(self):
        return {"optimizer": "sgd"}

    def compile_from_config(self, config):
        self.compile(**config)


def functional(inner=None, kind=keras.Model, custom=False) -> keras.Model:
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.ReLU()(KERAS_LAYER()(inner(inputs) if inner else inputs))
    if custom:
        x = Scaled(name="scaled")(x)
    return kind(inputs, keras.layers.Dense(1, dtype="float32")(keras.layers.Flatten()(x)))


def sequential() -> keras.Model:
    dense = keras.layers.Dense(1, dtype="float32")
    return keras.Sequential([keras.Input((6, 6, 3)), KERAS_LAYER(), keras.layers.Flatten(), dense])


def policies(model) -> list[str]:
    return [layer.dtype_policy.name for layer in model._flatten_layers()]


@pytest.mark.parametrize("change", [replace_batch_norm, restore_batch_norm])
@pytest.mark.parametrize("make", [functional, sequential])
@pytest.mark.parametrize(
    ("built", "called"), [("mixed_float16", "float32"), ("float32", "mixed_float16")]
)
def test_the_dtype_policy_is_that_of_the_model(global_policy, change, make, built, called):
    """Whatever the global one is by now: that of the model decides whether the loss is scaled."""
    global_policy(built)
    model = make()
    global_policy(called)
    model.compile("sgd", "mse")
    x, y = images() / 100, np.ones((4, 1))
    for _ in range(2):  # before and after the optimizer is built
        copy = change(model, verify=x)
        assert keras.config.dtype_policy().name == called
        assert policies(copy) == policies(model)
        assert type(copy.optimizer) is type(model.optimizer)
        assert hasattr(copy.optimizer, "inner_optimizer") == (built == "mixed_float16")
        model.fit(x, y, verbose=0)
    twins = change(model).optimizer.variables
    for variable, twin in zip(model.optimizer.variables, twins, strict=True):
        np.testing.assert_array_equal(variable, twin)
    copy.fit(x, y, verbose=0)


def test_nested_models_keep_their_dtype_policies(global_policy):
    global_policy("mixed_float16")
    inner = keras.Sequential([keras.Input((6, 6, 3)), KERAS_LAYER()])
    global_policy("mixed_bfloat16")
    middle = functional(inner)
    global_policy("float32")
    inputs = keras.Input((6, 6, 3))
    model = keras.Model(inputs, middle(inputs))
    assert len(set(policies(model))) == 3
    assert policies(replace_batch_norm(model, verify=images())) == policies(model)


@pytest.mark.parametrize("when", ["before compile", "after compile"])
@pytest.mark.parametrize(
    ("built", "by_hand"), [("mixed_float16", "float32"), ("float32", "mixed_float16")]
)
def test_a_dtype_policy_that_was_set_by_hand(global_policy, built, by_hand, when):
    global_policy(built)
    model = functional()
    if when == "before compile":
        model.dtype_policy = by_hand
    model.compile("sgd", "mse")
    model.dtype_policy = by_hand
    x, y = images() / 100, np.ones((4, 1))
    for _ in range(2):
        copy = replace_batch_norm(model)
        assert policies(copy) == policies(model)
        assert type(copy.optimizer) is type(model.optimizer)
        model.fit(x, y, verbose=0)
    copy.fit(x, y, verbose=0)


def test_layers_that_save_no_dtype_policy(global_policy):
    global_policy("mixed_float16")
    model = functional(custom=True)
    global_policy("float32")
    assert policies(replace_batch_norm(model, verify=images())) == policies(model)
    model.get_layer("scaled").dtype_policy = "bfloat16"
    sentence = (
        "layer 'scaled' has the dtype policy bfloat16, and is loaded with mixed_float16: pass"
    )
    with pytest.raises(ValueError, match=sentence):
        replace_batch_norm(model)
    assert keras.config.dtype_policy().name == "float32"


def test_an_optimizer_of_another_class_is_refused():
    model = functional(kind=OwnCompile)
    model.compile("sgd", scaled=True)
    sentence = "is a LossScaleOptimizer, and compiled as a SGD: pass inplace=True"
    with pytest.raises(ValueError, match=sentence):
        replace_batch_norm(model)


MIRRORED = """
import keras, numpy as np, tensorflow as tf
import tf_bn_ops

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
x = np.random.default_rng(0).normal(size=(16, 6, 6, 3)).astype("float32")
y = x.mean((1, 2, 3))
results = []
for change in ("none", "copy", "inplace", "fused"):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([
            keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Flatten(),
            keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    if change != "none":
        attrs = dict(inplace=change != "copy", fuse=change == "fused")
        model = tf_bn_ops.keras.replace_batch_norm(model, **attrs)
        assert type(model.layers[1]) is tf_bn_ops.keras.BatchNormalization
    losses = model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0).history["loss"]
    results.append((losses, model.layers[1].moving_mean.numpy(), model.predict(x, verbose=0)))
for result in results[1:]:
    for got, want in zip(result, results[0]):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.long
def test_mirrored_strategy_on_two_cpus():
    run_alone(MIRRORED, PYTHONPATH=str(ROOT))


# ---- Exports -------------------------------------------------------------------------------------

LOADS = """
import pathlib, sys, numpy as np, tensorflow as tf
for folder in map(pathlib.Path, sys.argv[1:]):
    model = tf.saved_model.load(folder / "exported")
    data = np.load(folder / "data.npz")
    x = tf.constant(data["x"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model.serve(x)
        loss = tf.reduce_sum(tf.sin(y))
    np.testing.assert_allclose(y, data["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, x), data["gradient"], rtol=1e-3, atol=1e-5)
assert "tf_bn_ops" not in sys.modules
"""


def export(model, folder) -> None:
    """The model, and what it computes."""
    randomize(model)
    x = tf.constant(images() / 100)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
        loss = tf.reduce_sum(tf.sin(y))
    folder.mkdir()
    np.savez(folder / "data.npz", x=x, y=y, gradient=tape.gradient(loss, x))
    model.export(folder / "exported", verbose=False)


@pytest.mark.parametrize(
    ("axis", "onednn"), [(-1, "1"), pytest.param(1, "0", marks=pytest.mark.long)]
)
def test_exported_models_load_without_this_library(tmp_path, axis, onednn):
    """Values and gradients of a layer, and of a model whose layers are fused."""
    export(
        keras.Sequential([keras.Input((6, 6, 3)), BatchNormalization(axis=axis)]),
        tmp_path / "layer",
    )
    folders = [tmp_path / "layer"]
    if onednn == "0":
        folders.append(tmp_path / "fused")
        export(replace_batch_norm(residual_model(), fuse=True), folders[-1])
    run_alone(LOADS, *folders, TF_ENABLE_ONEDNN_OPTS=onednn)


# ---- With what follows ---------------------------------------------------------------------------


def residual_model(activation=None, dtype=None) -> keras.Model:
    """BN and ReLU in two spellings, and a residual block with a shortcut that is normalized."""
    make = activation or (lambda name: keras.layers.ReLU(name=name))
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(4, 3, padding="same", dtype=dtype)(inputs)
    x = make("relu1")(KERAS_LAYER(name="bn1", dtype=dtype)(x))
    shortcut = KERAS_LAYER(name="bn0", dtype=dtype)(keras.layers.Conv2D(4, 1, dtype=dtype)(x))
    x = keras.layers.Conv2D(4, 3, padding="same", dtype=dtype)(x)
    x = KERAS_LAYER(name="bn2", dtype=dtype)(x)
    x = keras.layers.Add(name="add", dtype=dtype)([shortcut, x])
    x = make("relu2")(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


ACTIVATIONS = {
    "ReLU": ("relu", lambda name: keras.layers.ReLU(name=name)),
    "ReLU6": ("relu6", lambda name: keras.layers.ReLU(6.0, name=name)),
    "relu": ("relu", lambda name: keras.layers.Activation("relu", name=name)),
    "relu6": ("relu6", lambda name: keras.layers.Activation("relu6", name=name)),
}


def ops_of(function, *arguments) -> set[str]:
    graph = tf.function(function).get_concrete_function(*arguments).graph
    return {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize(("name", "make"), ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_fused_with_addition_and_activation(name, make, caplog):
    model = residual_model(make)
    randomize(model)
    x = images() / 100
    names = [layer.name for layer in model.layers]
    with caplog.at_level(logging.INFO, "tf_bn_ops"):
        copy, ours = both(model, x, fuse=True)
    message = (
        "fused 2 of 3 with the activation: bn0 is added up by add, which is fused with another "
        "normalization"
    )
    assert caplog.records[1].message == message
    report = tf_bn_ops.keras.batch_norm_report(copy)
    assert report.activations == {"bn1": name, "bn2": f"add, {name}"}
    assert str(report) == f"fused 3 of 3\n{message}"
    for fused in (copy, ours):
        assert [layer.name for layer in fused.layers] == names
        ops = ops_of(lambda x, fused=fused: fused(x, training=True), x)
        assert "TfBnOps>FusedBatchNormEx" in ops
        assert not {"Relu", "Relu6", "AddV2"} & ops
    # One of them, and an addition: all of TensorFlow.
    ops = ops_of(lambda x: copy(x, training=False), x)
    assert {"FusedBatchNormV3", name.capitalize(), "AddV2"} <= ops
    assert not [op for op in ops if op.startswith("TfBnOps")]


@pytest.mark.parametrize(
    ("inplace", "trainable"),
    [
        (True, True),
        (False, False),
        *(pytest.param(a, not a, marks=pytest.mark.long) for a in (True, False)),
    ],
)
def test_fused_models_learn_what_unfused_ones_learn(inplace, trainable):
    x, y = images(16) / 100, np.random.default_rng(1).normal(size=(16, 6, 6, 2))
    histories, weights = [], []
    for fuse in (None, False, True):
        keras.utils.set_random_seed(0)
        model = residual_model()
        for name in ("bn1", "bn2"):
            model.get_layer(name).trainable = trainable
        model.compile(keras.optimizers.SGD(0.1), "mse")
        if fuse is not None:
            model = replace_batch_norm(model, inplace=inplace, fuse=fuse)
        fit = model.fit(x, y, epochs=4, batch_size=8, shuffle=False, verbose=0)
        histories.append(fit.history["loss"])
        weights.append(model.get_weights())
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-4)
    np.testing.assert_allclose(histories[2], histories[0], rtol=1e-4)
    for got, want in zip(weights[2], weights[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_restoring_separates_the_layers():
    model = residual_model()
    kinds_before = [type(layer) for layer in model.layers]
    x = images() / 100
    randomize(model)
    want = np.asarray(model(x))
    fused = replace_batch_norm(model, fuse=True)
    for back in (restore_batch_norm(fused, verify=x), restore_batch_norm(fused, inplace=True)):
        assert [type(layer) for layer in back.layers] == kinds_before
        np.testing.assert_array_equal(back(x), want)
        for layer, other in zip(back.layers, model.layers, strict=True):
            assert layer.get_config() == other.get_config()
            assert layer.supports_jit


def test_a_failed_verification_undoes_the_fusion(monkeypatch):
    model = residual_model()
    before = [type(layer) for layer in model.layers]
    wrong = lambda self, inputs: inputs[0]  # noqa: E731
    monkeypatch.setattr("tf_bn_ops.keras._fusion.FusedAdd.call", wrong)
    with pytest.raises(ValueError, match="computes something else"):
        replace_batch_norm(model, fuse=True, inplace=True, verify=images())
    assert [type(layer) for layer in model.layers] == before
    assert not any("fused_into" in vars(layer) for layer in model.layers)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_fused_models_are_saved_and_loaded_as_such(tmp_path, suffix):
    model = residual_model()
    randomize(model)
    x = images() / 100
    fused = replace_batch_norm(model, fuse=True)
    fused.save(tmp_path / f"model{suffix}")
    loaded = keras.saving.load_model(tmp_path / f"model{suffix}")
    assert tf_bn_ops.keras.batch_norm_report(loaded) == tf_bn_ops.keras.batch_norm_report(fused)
    for training in (False, True):
        np.testing.assert_array_equal(loaded(x, training=training), fused(x, training=training))
    cloned = keras.models.clone_model(fused)
    cloned.set_weights(fused.get_weights())
    np.testing.assert_array_equal(cloned(x, training=True), fused(x, training=True))


def test_weights_of_fused_models_are_those_of_keras(tmp_path):
    model = residual_model()
    randomize(model)
    fused = replace_batch_norm(residual_model(), fuse=True)
    for one, other in ((model, fused), (fused, model)):
        one.save_weights(tmp_path / "model.weights.h5")
        randomize(other, seed=1)
        other.load_weights(tmp_path / "model.weights.h5")
        for got, want in zip(other.get_weights(), one.get_weights(), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.long)]
)
def test_fused_models_in_mixed_precision(policy):
    model = residual_model(dtype=policy)
    x, y = images() / 100, np.zeros((4, 6, 6, 2))
    model.compile("adam", "mse")
    fused = replace_batch_norm(model, fuse=True, verify=x)
    # The Dense layer behind computes in float32, but not the activation.
    assert not tf_bn_ops.keras.batch_norm_report(fused).activations
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = residual_model()
    finally:
        keras.config.set_dtype_policy(before)
    model.compile("adam", "mse")
    fused = replace_batch_norm(model, fuse=True, verify=x)
    assert len(tf_bn_ops.keras.batch_norm_report(fused).activations) == 2
    fused.fit(x, y, verbose=0)
    assert np.isfinite(fused.predict(x, verbose=0)).all()


def test_fused_models_below_xla():
    if not _loader.build_info()["xla"]:
        pytest.skip("built without XLA")
    x, y = images(8) / 100, np.random.default_rng(1).normal(size=(8, 6, 6, 2))
    losses = []
    for fuse in (False, True):
        keras.utils.set_random_seed(0)
        model = residual_model(ACTIVATIONS["relu6"][1])
        if fuse:
            replace_batch_norm(model, inplace=True, fuse=True)
            for layer in model.layers:
                layer.supports_jit = True
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=fuse)
        losses.append(model.fit(x, y, epochs=3, verbose=0).history["loss"])
        losses[-1].append(model.evaluate(x, y, verbose=0))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_fused_in_nested_and_sequential_models():
    inner = keras.Sequential(
        [keras.Input((6, 6, 3)), KERAS_LAYER(name="a"), keras.layers.ReLU()], name="inner"
    )
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.TimeDistributed(keras.Model(inputs, residual_model()(inputs)), name="each")(
        inner(inputs)[:, None]
    )
    model = keras.Model(inputs, x)
    randomize(model)
    for ours in both(model, images() / 100, fuse=True):
        report = tf_bn_ops.keras.batch_norm_report(ours)
        assert sorted(path.split("/")[-1] for path in report.activations) == ["a", "bn1", "bn2"]


def test_a_pair_of_layers_that_is_called_twice():
    inputs = keras.Input((6, 6, 3))
    bn, relu = KERAS_LAYER(name="bn"), keras.layers.ReLU()
    model = keras.Model(inputs, relu(bn(relu(bn(inputs)) + 1)))
    for ours in both(model, images() / 100, fuse=True):
        assert tf_bn_ops.keras.batch_norm_report(ours).activations == {"bn": "relu"}


def test_masks_reach_a_fused_normalization():
    inputs = keras.Input((5, 4))
    side = keras.layers.Dense(4)(inputs)
    x = KERAS_LAYER(name="masked")(keras.layers.Masking()(inputs))
    x = keras.layers.Add()([keras.layers.Masking()(side), x])
    model = keras.Model(inputs, keras.layers.ReLU()(x))
    randomize(model)
    data = np.random.default_rng(0).normal(size=(4, 5, 4)).astype("float32")
    data[:, 3:] = 0
    for ours in both(model, data, fuse=True):
        assert tf_bn_ops.keras.batch_norm_report(ours).activations == {"masked": "add, relu"}


def test_what_is_not_fused_is_reported_with_the_reason():
    relu = keras.layers.ReLU
    inputs = keras.Input((6, 6, 3))

    def bn(name, x=inputs, **kwargs):
        return KERAS_LAYER(name=name, **kwargs)(x)

    shared = relu(name="shared")
    twice = KERAS_LAYER(name="twice")
    two_readers = bn("two_readers")
    output = bn("output")
    outputs = [
        output,
        relu()(output),
        relu()(two_readers) + keras.layers.Dense(3)(two_readers),
        keras.layers.Dense(3)(bn("dense")),
        relu(negative_slope=0.1)(bn("leaky")),
        relu(3.0)(bn("maximum")),
        keras.layers.Activation("tanh")(bn("tanh")),
        keras.ops.relu(bn("op")),
        shared(bn("shared1")),
        shared(bn("shared2")),
        relu()(twice(inputs)),
        relu()(twice(inputs + 1)),
        relu()(bn("regularized", activity_regularizer="l2")),
        relu()(keras.layers.Add(name="three")([bn("of_three"), inputs, inputs])),
        relu()(keras.layers.Add(name="broad")([bn("broadcast"), inputs[:, :1]])),
        keras.layers.Dense(3)(keras.layers.Add(name="sum")([bn("then_dense"), inputs])),
        keras.layers.Add(name="last")([bn("then_output"), inputs]),
        relu()(keras.layers.Add(name="same")([bn("itself")] * 2)),
        relu()(bn("double", dtype="float64")),
        relu()(bn("fine")),
    ]
    model = keras.Model(inputs, outputs)
    data = images() / 100
    fused = replace_batch_norm(model, fuse=True, verify=data)
    report = tf_bn_ops.keras.batch_norm_report(fused)
    assert report.activations == {"fine": "relu"}
    assert report.alone == {
        "output": "is an output of the model",
        "two_readers": "has 2 readers",
        "dense": "is followed by Dense",
        "leaky": "is followed by a ReLU of another form",
        "maximum": "is followed by a ReLU of another form",
        "tanh": "is followed by the activation tanh",
        "op": "is followed by Relu",
        "shared1": "is followed by shared, which follows other layers, too",
        "shared2": "is followed by shared, which follows other layers, too",
        "twice": "has 2 readers",
        "regularized": "has an activity regularizer",
        "of_three": "is added up by three, which has 3 inputs",
        "broadcast": "is added up by broad, which broadcasts",
        "then_dense": "is added up by sum, which is followed by Dense",
        "then_output": "is added up by last, which is an output of the model",
        "itself": "is added up by same, which adds up other tensors, too",
    }
    assert list(report.unfused) == ["double"]
    block = keras.Sequential([keras.Input((4,)), Block(4)])
    report = tf_bn_ops.keras.batch_norm_report(replace_batch_norm(block, fuse=True))
    assert set(report.alone.values()) == {"is in no graph of layers"}


def test_in_mixed_precision_a_sum_with_float32_is_not_fused():
    """Keras' Add casts it; the op does not."""
    inputs = keras.Input((6, 6, 4))
    half = {"dtype": "mixed_float16"}
    norm = keras.layers.BatchNormalization(name="bn", **half)(inputs)
    single = keras.layers.Rescaling(2.0, dtype="float32")(inputs)
    total = keras.layers.Add(name="sum", **half)([norm, single])
    model = keras.Model(inputs, keras.layers.ReLU(**half)(total))
    report = tf_bn_ops.keras.batch_norm_report(replace_batch_norm(model, fuse=True))
    assert report.alone == {"bn": "is added up by sum, which has an input of float32"}


def test_layers_of_a_chain_refuse_to_be_taken_apart():
    fused = replace_batch_norm(residual_model(), fuse=True)
    x = tf.zeros([1, 6, 6, 4])
    with pytest.raises(RuntimeError, match="'add' is fused with the batch normalization before"):
        fused.get_layer("add")([x, x])
    fused.summary(print_fn=lambda line: None)
    for name in ("bn1", "bn2", "add"):
        fused = replace_batch_norm(residual_model(), fuse=True)
        head = keras.layers.Dense(1, name=f"head_{name}")(fused.get_layer(name).output)
        extended = keras.Model(fused.input, head)
        with pytest.raises(
            RuntimeError, match=f"'{name}' is fused .* given to 'head_{name}' since"
        ):
            extended(images())


@pytest.mark.long
@pytest.mark.parametrize(
    ("application", "fused", "behind"),
    [("ResNet50", 49, {"relu", "add, relu"}), ("MobileNetV2", 35, {"relu6"})],
)
def test_fused_applications(application, fused, behind):
    make = getattr(keras.applications, application)
    model = make(weights=None, input_shape=(64, 64, 3), classes=10)
    x = np.random.default_rng(0).normal(size=(4, 64, 64, 3)).astype("float32")
    ours = replace_batch_norm(model, fuse=True, verify=x)
    report = tf_bn_ops.keras.batch_norm_report(ours)
    assert len(report.activations) == fused
    assert set(report.activations.values()) == behind
    # Compared with the same layers unfused: in a network this deep, roundings differ from Keras' by
    # what a gradient of 1e-3 of its size does to the next steps.
    losses = []
    for one in (replace_batch_norm(model), ours):
        keras.utils.set_random_seed(0)
        one.compile(keras.optimizers.SGD(1e-3), "sparse_categorical_crossentropy")
        losses.append(one.fit(x, np.arange(4), epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
