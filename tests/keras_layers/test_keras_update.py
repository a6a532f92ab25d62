"""update_batch_norm: the moving statistics become all samples' own, and nothing else is changed.

Promised: moving statistics become the exact ones of all samples, whatever the batch sizes, in every
rank, axis and type; samples in a mask, shared layers and wrappers count; what is kept is named with
the reason.

The reference is NumPy in float64 over the whole data set.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.keras import BatchNormalization, UpdateBatchNorm, disable, update_batch_norm

KERAS_LAYER = keras.layers.BatchNormalization
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(3, 2, (37, 6, 5, 3)).astype("float32")
ROWS = RNG.normal(3, 2, (37, 4)).astype("float32")


def sequential(*layers, shape=(4,), **kwargs):
    return keras.Sequential([keras.Input(shape, **kwargs), *layers])


def moving(layer) -> list[np.ndarray]:
    values = (layer.moving_mean, layer.moving_variance)
    return [keras.ops.convert_to_numpy(v).astype("float64") for v in values]


def assert_statistics(layer, x, weights=None, axis=-1, rtol=1e-6) -> None:
    """Within `rtol` of the deviation or of the value, in float64."""
    x = np.moveaxis(np.asarray(x, "float64"), axis, -1).reshape(-1, x.shape[axis])
    x = x if weights is None else x[np.ravel(weights)]
    mean, variance = moving(layer)
    assert (np.abs(mean - x.mean(0)) <= rtol * (x.std(0) + np.abs(x.mean(0)))).all()
    np.testing.assert_allclose(variance, x.var(0), rtol=rtol)


def batches(x, sizes):
    """A data set of batches of these sizes."""
    cuts = np.cumsum([0, *sizes])
    assert cuts[-1] == len(x)
    generate = lambda: ((x[a:b], np.zeros(b - a)) for a, b in itertools.pairwise(cuts))  # noqa: E731
    shape = tf.TensorSpec((None, *x.shape[1:])), tf.TensorSpec((None,))
    return tf.data.Dataset.from_generator(generate, output_signature=shape)


@contextlib.contextmanager
def kind(name):
    """One of the three layers: Keras', this library's, or Keras' under the switch."""
    if name == "switched":
        tf_bn_ops.enable(kernels=False, fuse=False)
    try:
        yield BatchNormalization if name == "ours" else KERAS_LAYER
    finally:
        disable()


# ---- Exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Keras", "ours", "switched"])
@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        *(((4,), -1, "float32"), ((5, 4), 1, "float32"), ((5, 4), -1, "mixed_float16")),
        *(((6, 5, 3), -1, "float32"), ((6, 5, 3), 2, "float32"), ((6, 5, 3), 1, "float64")),
        *(((2, 3, 4, 3), 1, "mixed_bfloat16"), ((2, 2, 2, 2, 3), -1, "float32")),
    ],
)
def test_of_every_rank_axis_and_type(name, shape, axis, dtype):
    x = RNG.normal(100, 1, (23, *shape))
    x = x.astype(keras.DTypePolicy(dtype).compute_dtype)
    with kind(name) as layer:
        norm = layer(axis=axis, dtype=dtype, synchronized=name == "ours")
        model = sequential(norm, shape=shape, dtype=x.dtype)
        report = update_batch_norm(model, x, batch_size=8, verbose=0)
    assert str(report) == "updated 1 of 1"
    assert_statistics(norm, x, axis=axis)


@pytest.mark.parametrize("sizes", [[37], [36, 1], [1, 0, 30, 6], [5] * 7 + [2]])
def test_whatever_the_batch_sizes(sizes):
    norm = KERAS_LAYER(momentum=0.5)
    update_batch_norm(sequential(norm, shape=IMAGES.shape[1:]), batches(IMAGES, sizes), verbose=0)
    assert_statistics(norm, IMAGES)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return ROWS[10 * i : 10 * i + 10], ROWS[10 * i : 10 * i + 10, :1]


DATA = {
    "array": lambda: ROWS,
    "tensor": lambda: tf.constant(ROWS),
    "x, y": lambda: (ROWS, ROWS[:, :1]),
    "x, y, weights": lambda: (ROWS, ROWS[:, :1], np.zeros(37)),
    "dict": lambda: {"rows": ROWS},
    "list": lambda: [ROWS],
    "Dataset": lambda: batches(ROWS, [30, 7]),
    "Dataset of x": lambda: tf.data.Dataset.from_tensor_slices(ROWS).batch(9),
    "PyDataset": lambda: Batches(),
    "generator": lambda: ((ROWS[i : i + 1], ROWS[i, :1]) for i in range(37)),
}


@pytest.mark.parametrize("name", DATA)
def test_of_all_that_fit_takes(name):
    norm = KERAS_LAYER()
    inputs = keras.Input((4,), name="rows")
    model = keras.Model({"rows": inputs} if name == "dict" else inputs, norm(inputs))
    update_batch_norm(model, DATA[name](), verbose=0)
    assert_statistics(norm, ROWS)


def test_steps_are_the_batches_of_a_pass():
    norm = KERAS_LAYER()
    data = batches(ROWS, [30, 7]).repeat()
    update_batch_norm(sequential(norm), data, steps=1, passes=2, verbose=0)
    assert_statistics(norm, ROWS[:30])


@pytest.mark.parametrize("layer", [KERAS_LAYER, BatchNormalization])
def test_samples_that_a_mask_leaves_out_do_not_count(layer):
    x = RNG.normal(3, 2, (20, 7, 3)).astype("float32")
    x[RNG.random((20, 7)) < 0.4] = 0
    norm = layer()
    model = sequential(keras.layers.Masking(), norm, shape=(7, 3))
    update_batch_norm(model, x, batch_size=8, verbose=0)
    assert_statistics(norm, x, weights=(x != 0).any(-1))


# ---- Of whole models -----------------------------------------------------------------------------


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.norms = [KERAS_LAYER(), KERAS_LAYER()]
        self.dense = keras.layers.Dense(4)

    def call(self, x, training=None):
        return self.norms[1](self.dense(self.norms[0](x, training=training)), training=training)


def chain():
    return sequential(KERAS_LAYER(), keras.layers.Dense(4), BatchNormalization())


def nested():
    return sequential(keras.Sequential([KERAS_LAYER(), keras.layers.Dense(4)]), KERAS_LAYER())


def subclassed():
    model = Subclassed()
    model(ROWS)
    return model


@pytest.mark.parametrize("make", [chain, nested, subclassed])
def test_one_pass_is_of_training_and_further_ones_of_inference(make):
    model = make()
    first, last = [m for m in model._flatten_layers() if isinstance(m, KERAS_LAYER)]
    (dense,) = [m for m in model._flatten_layers() if isinstance(m, keras.layers.Dense)]
    sizes, data = [30, 7], batches(ROWS, [30, 7])
    update_batch_norm(model, data, verbose=0)
    by_batch = [first(part, training=True) for part in np.split(ROWS, np.cumsum(sizes)[:1])]
    update_batch_norm(model, data, verbose=0)
    assert_statistics(first, ROWS)
    assert_statistics(last, dense(tf.concat(by_batch, 0)).numpy(), rtol=1e-5)
    update_batch_norm(model, data, passes=2, verbose=0)
    assert_statistics(first, ROWS)
    assert_statistics(last, dense(first(ROWS)).numpy(), rtol=1e-5)


class Traced(keras.layers.Layer):
    """Calls two norms in a tf.function: its `call`, one of its own, or one within another."""

    def __init__(self, place, decorate):
        super().__init__()
        self.first, self.last = KERAS_LAYER(), KERAS_LAYER()
        self.dense = keras.layers.Dense(4, bias_initializer="ones")

        def norms(x, training):
            if tf.reduce_any(tf.math.is_nan(x)):  # For Autograph.
                x = tf.zeros_like(x)
            return self.last(self.dense(self.first(x, training=training)), training=training)

        self.norms = decorate(norms) if decorate else norms
        if place == "nested":
            self.norms = decorate(lambda x, training, inner=self.norms: inner(x, training))

    def build(self, shape):
        for layer in (self.first, self.dense, self.last):
            layer.build(shape)

    def call(self, x, training=None):
        return self.norms(x, bool(training))


class TracedCall(Traced):
    @tf.function(jit_compile=True)
    def call(self, x, training=None):
        return self.last(self.dense(self.first(x, training=training)), training=training)


class TracedDropout(keras.layers.Dropout):
    @tf.function
    def call(self, inputs, training=False):
        return super().call(inputs, training=training)


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize(
    ("place", "decorate"),
    [("own", tf.function), ("nested", tf.function(jit_compile=True)), ("call", None)],
)
def test_functions_of_the_model_keep_their_traces(eagerly, place, decorate):
    """Traces of before are not used, and none is left behind."""
    layer = (TracedCall if place == "call" else Traced)(place, decorate)
    model = sequential(layer, TracedDropout(0.5))
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=eagerly, jit_compile=False)
    fit = lambda: model.fit(ROWS, ROWS, batch_size=37, verbose=0, shuffle=False)  # noqa: E731
    fit()
    update_batch_norm(model, ROWS, batch_size=37, passes=2, verbose=0)
    assert_statistics(layer.first, ROWS)
    assert_statistics(layer.last, layer.dense(layer.first(ROWS)).numpy(), rtol=1e-5)
    assert tf.reduce_any(model(ROWS, training=True) == 0)
    before = [*moving(layer.first), *moving(layer.last)]
    fit()
    x = ROWS
    for norm, (mean, variance) in {layer.first: before[:2], layer.last: before[2:]}.items():
        np.testing.assert_allclose(norm.moving_mean, 0.99 * mean + 0.01 * x.mean(0), rtol=1e-5)
        want = 0.99 * variance + 0.01 * x.var(0)
        np.testing.assert_allclose(norm.moving_variance, want, rtol=1e-5)
        x = layer.dense((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)).numpy()


def test_a_shared_layer_has_the_samples_of_all_its_calls():
    norm, inputs = KERAS_LAYER(), [keras.Input((4,)), keras.Input((4,))]
    model = keras.Model(inputs, norm(inputs[0]) + norm(inputs[1]))
    update_batch_norm(model, ([ROWS, 5 * ROWS], ROWS), verbose=0)
    assert_statistics(norm, np.concatenate([ROWS, 5 * ROWS]))


def test_in_loops_and_wrappers():
    class Cell(keras.layers.SimpleRNNCell):
        def __init__(self):
            super().__init__(3)
            self.norm = KERAS_LAYER()

        def build(self, shape):
            super().build(shape)
            self.norm.build(shape)

        def call(self, x, states, training=False):
            return super().call(self.norm(x, training=training), states)

    cell, norm = Cell(), KERAS_LAYER()
    rnn = keras.layers.RNN(cell, unroll=True)  # In a loop Keras calls the first step twice.
    model = sequential(keras.layers.TimeDistributed(norm), rnn, shape=(5, 4))
    x = RNG.normal(1, 2, (12, 5, 4)).astype("float32")
    update_batch_norm(model, x, passes=2, verbose=0)
    assert_statistics(norm, x)
    assert_statistics(cell.norm, model.layers[0](x).numpy(), rtol=1e-5)


# ---- Nothing else --------------------------------------------------------------------------------


class Counter(keras.layers.Layer):
    """A layer with a state of its own and a metric."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.metric = keras.metrics.Mean(name="calls")

    def call(self, x):
        self.calls.assign_add(1.0)
        self.metric.update_state(self.calls)
        return x


class TenfoldInTraining(keras.layers.Layer):
    def call(self, x, training=None):
        return 10 * x if training else x


def compiled():
    first = [Counter(), TenfoldInTraining(), KERAS_LAYER(), keras.layers.Dropout(0.5)]
    model = sequential(*first, keras.layers.Dense(4), KERAS_LAYER(), keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    model.fit(ROWS, ROWS[:, :1], epochs=1, verbose=0)
    return model


def state(model):
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return {v.path: v.numpy() for v in variables if "moving" not in v.path}


@pytest.mark.parametrize("dropout", [False, True])
def test_nothing_else_changes(dropout):
    """Promise: `update_batch_norm` changes moving statistics and nothing else."""
    model = compiled()
    before, attributes = state(model), {id(m): {*vars(m)} for m in model._flatten_layers()}
    functions = model.train_function, model.predict_function
    for data in (ROWS, ROWS + np.nan):
        raises = pytest.raises(ValueError, match="nothing was changed")
        with raises if np.isnan(data).any() else contextlib.nullcontext():
            update_batch_norm(model, data, dropout=dropout, verbose=0)
        after = state(model)
        assert before.keys() == after.keys()
        for path in before:
            np.testing.assert_array_equal(before[path], after[path], path)
        assert {id(m): {*vars(m)} for m in model._flatten_layers()} == attributes
        assert (model.train_function, model.predict_function) == functions
    assert_statistics(model.layers[2], 10 * ROWS if dropout else ROWS)
    assert np.isfinite(model.fit(ROWS, ROWS[:, :1], verbose=0).history["loss"]).all()


def test_what_is_kept_is_named_with_the_reason(caplog):
    class OwnMoments(KERAS_LAYER):
        def _moments(self, inputs, mask):
            return super()._moments(inputs, mask)

    class Inference(keras.layers.Layer):
        def build(self, shape):
            self.norm, self.unused = KERAS_LAYER(name="inference"), KERAS_LAYER(name="unused")
            self.norm.build(shape)

        def call(self, x):
            return self.norm(x, training=False)

    inputs = keras.Input((4,))
    x = KERAS_LAYER(name="plain")(inputs)
    x = KERAS_LAYER(name="frozen", trainable=False)(x)
    x = KERAS_LAYER(name="renorm", renorm=True)(x)
    x = Inference(name="block")(x)
    x = OwnMoments(name="own")(x)
    model = keras.Model(inputs, keras.Sequential([KERAS_LAYER(name="masked")], name="inner")(x))
    before = model.get_weights()
    with caplog.at_level(logging.INFO, "tf_bn_ops"):
        report = update_batch_norm(model, ROWS, verbose=0)
    assert report.done == ("plain", "inner/masked")
    assert report.kept == {
        "frozen": "is frozen (trainable=False)",
        "renorm": "has renorm",
        "own": "computes moments in a method of its own",
        "block/unused": "is not built",
        "block/inference": "is not called in training mode",
    }
    assert [(r.levelname, r.message) for r in caplog.records] == [("WARNING", str(report))]
    changed = [(a != b).any() for a, b in zip(before, model.get_weights(), strict=True)]
    assert sum(changed) == 4


# ---- The callback --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["end", "validation"])
def test_callback(when):
    """A norm behind a layer that learns, so that each epoch's statistics are others."""
    dense, norm = keras.layers.Dense(4), KERAS_LAYER()
    model = sequential(dense, norm, keras.layers.Dense(1))
    model.compile("sgd", "mse")
    exact = []

    class Look(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            features = dense(ROWS).numpy().astype("float64")
            exact.append(np.allclose(moving(norm)[0], features.mean(0), rtol=1e-5, atol=1e-6))

    y = ROWS[:, :1]
    callbacks = [UpdateBatchNorm((ROWS, y), when=when), Look()]
    model.fit(ROWS, y, epochs=3, validation_data=(ROWS, y), callbacks=callbacks, verbose=0)
    assert exact == [when == "validation"] * 3
    assert_statistics(norm, dense(ROWS).numpy(), rtol=1e-5)


# ---- What is refused -----------------------------------------------------------------------------


OFTEN: Any = "often"
ENDLESS = tf.data.Dataset.from_tensor_slices(ROWS).batch(9).repeat()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: update_batch_norm(KERAS_LAYER(), ROWS), TypeError, "wrap it in a Sequential"),
        (lambda: update_batch_norm(None, ROWS), TypeError, "takes a model of Keras 3"),
        (lambda: update_batch_norm(Subclassed(), ROWS), ValueError, "has no weights yet"),
        (lambda: update_batch_norm(chain(), ROWS, passes=0), ValueError, "passes is 0"),
        (lambda: update_batch_norm(chain(), ENDLESS), ValueError, "has no end"),
        (
            lambda: update_batch_norm(chain(), (r for r in ROWS), passes=2),
            *(ValueError, "can be read once"),
        ),
        (lambda: UpdateBatchNorm(ROWS, when=OFTEN), ValueError, "'end' or 'validation'"),
        (
            lambda: UpdateBatchNorm((r for r in ROWS), when="validation"),
            *(ValueError, "can be read once"),
        ),
        (lambda: update_batch_norm(chain(), ROWS[:0], verbose=0), ValueError, "holds no batch"),
    ],
)
def test_refused_in_one_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()
