"""BatchNormalization(synchronized=True): training over replicas is training on the whole batch.

Promised: masks count and weigh as in the Keras that is installed; a layer without other replicas is
the one without synchronisation; `update_batch_norm` is of all replicas.

The reference is the layer without synchronisation on one device, which has the whole batch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import replica_processes
import tensorflow as tf

from tf_bn_ops.keras import BatchNormalization, _fused_call, update_batch_norm

# Some hundred roundings of the type that the steps compute in. With a mask, the reference is Keras'
# float32 formula, whose mean of 100 is off by 1e-5 and whose counts are 1e-7 too large.
TOLERANCE = 1e-4


RNG = np.random.default_rng(0)
IMAGES = RNG.normal(100, 2, (8, 6, 6, 3)).astype(np.float32)
TARGETS = RNG.normal(0, 1, (8, 1)).astype(np.float32)
MASK = RNG.random((8, 6, 6)) < 0.6
WEIGHTS = MASK * RNG.choice([0.5, 1.0, 3.0], MASK.shape)
LAST = np.arange(8)[:, None, None] >= 3  # The rows of the second replica.
ENDS, EMPTY = {1: [0, 8], 2: [0, 3, 8]}, {1: [0, 8], 2: [0, 8, 8]}


def statistics_of(layer: Any) -> list[list[float]]:
    """Moving mean and variance; bitwise identical on all replicas of this process."""
    found = []
    for variable in (layer.moving_mean, layer.moving_variance):
        values = [v.numpy() for v in getattr(variable.value, "values", [variable.value])]
        assert len({value.tobytes() for value in values}) == 1, values
        found.append(values[0].tolist())
    return found


def fitted(strategy: Any, make: Callable[..., Any], dtype: str) -> tuple[Any, list[float]]:
    """A layer, and the losses of Keras' own loop, which cuts each batch in equal parts."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layer, convolution = make(momentum=0.8, dtype=dtype), keras.layers.Conv2D(4, 3, dtype=dtype)
        rest = [keras.layers.ReLU(), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6, 6, 3)), convolution, layer, *rest])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    # At a mean of 100 bfloat16 has steps of 0.5.
    images = IMAGES - 99
    history = model.fit(images, TARGETS, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    return layer, history["loss"]


def by_fit(strategy: Any, dtype: str) -> dict[str, Any]:
    synchronized = strategy.num_replicas_in_sync > 1
    make = functools.partial(BatchNormalization, synchronized=synchronized)
    layer, losses = fitted(strategy, make, dtype)
    return {"losses": losses, "statistics": statistics_of(layer)}


def not_synchronized(strategy: Any) -> list[dict[str, Any]]:
    """Keras' layer and ours."""
    results = []
    for kind in (keras.layers.BatchNormalization, BatchNormalization):
        layer, losses = fitted(strategy, kind, "float32")
        statistics = [variable.value for variable in layer.non_trainable_weights]
        results.append(
            {
                "losses": losses,
                "of replicas": [[v.numpy().tolist() for v in each.values] for each in statistics],
                "aggregation": [str(each.aggregation) for each in statistics],
            }
        )
    return results


def by_hand(
    strategy: Any, mask: Any = None, ends: Any = ENDS, dtype: str = "float32"
) -> dict[str, Any]:
    """A loop of its own, with parts of three and five samples, perhaps behind a mask."""
    count = strategy.num_replicas_in_sync
    with strategy.scope():
        layer = BatchNormalization(momentum=0.8, synchronized=count > 1, dtype=dtype)
        layer.build((None, 6, 6, 3))
    ends = tf.constant(ends[count])

    def replica_step() -> Any:
        context = tf.distribute.get_replica_context()
        rank = context.replica_id_in_sync_group
        begin, end = ends[rank], ends[rank + 1]
        x = tf.constant(IMAGES)[begin:end]
        part = None if mask is None else tf.constant(mask)[begin:end]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cast(layer(x, training=True, mask=part), tf.float32)
            loss = tf.reduce_sum(tf.square(y - 0.1 * tf.constant(TARGETS)[begin:end, None, None]))
        weights = [layer.gamma, layer.beta]
        of_x, *gradients = tape.gradient(loss, [x, *(weight.value for weight in weights)])
        for weight, gradient in zip(weights, context.all_reduce("sum", gradients), strict=True):
            weight.assign(weight - 1e-3 * gradient)
        of_x = tf.scatter_nd(tf.range(begin, end)[:, None], of_x, IMAGES.shape)
        return context.all_reduce("sum", [loss, of_x])

    step = tf.function(lambda: strategy.run(replica_step), autograph=False)
    results = [strategy.experimental_local_results(step()) for _ in range(3)]
    losses, gradients = zip(*(each[0] for each in results), strict=True)
    return {
        "losses": [float(loss) for loss in losses],
        "gradient": gradients[0].numpy().tolist(),
        "statistics": statistics_of(layer),
    }


def trained(strategy: Any) -> dict[str, Any]:
    """Losses and moving statistics of every training, on the same batches."""
    results = {"by hand": by_hand(strategy), "masked": by_hand(strategy, MASK)}
    results["weights"] = by_hand(strategy, WEIGHTS)
    results["a replica without samples"] = by_hand(strategy, MASK & LAST)
    results["no samples"] = by_hand(strategy, MASK & False)
    results["an empty replica"] = by_hand(strategy, ends=EMPTY)
    results["an empty replica with a mask"] = by_hand(strategy, MASK, EMPTY)
    results["an empty replica in float64"] = by_hand(strategy, ends=EMPTY, dtype="float64")
    if "TF_CONFIG" not in os.environ:  # Keras' fit does not run under that strategy.
        for dtype in ("float32", "mixed_float16", "mixed_bfloat16"):
            results[dtype] = by_fit(strategy, dtype)
    return results


def train(replicas: int, workers: int = 0) -> list[dict[str, Any]]:
    return replica_processes.run(trained, replicas=replicas, workers=workers)


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return train(1)[0]


def assert_same_training(got: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    for what in want:
        # The terms of a gradient are of size 1, and cancel.
        size = max(np.max(np.abs(want[what])), 1)
        np.testing.assert_allclose(got[what], want[what], rtol=0, atol=tolerance * size)


@pytest.mark.long
def test_two_devices_train_as_one_with_the_whole_batch(reference):
    """Promise: Synchronised replicas train as one on the whole batch."""
    (got,) = train(2)
    assert got.keys() == reference.keys()
    tolerances = {"mixed_float16": 2.0**-7, "mixed_bfloat16": 2.0**-4}
    for how, want in reference.items():
        assert_same_training(got[how], want, tolerances.get(how, TOLERANCE))


@pytest.mark.long
def test_two_workers_train_as_one_with_the_whole_batch(reference):
    for got in train(2, workers=2):
        assert "no samples" in got
        for how, values in got.items():
            assert_same_training(values, reference[how], TOLERANCE)


@pytest.mark.long
def test_without_synchronisation_replicas_keep_moving_statistics_as_with_keras_layer():
    ((theirs, ours),) = replica_processes.run(not_synchronized, replicas=2)
    assert ours["aggregation"] == theirs["aggregation"]
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-4)
    # Means of about 0.1: absolute.
    np.testing.assert_allclose(ours["of replicas"], theirs["of replicas"], atol=1e-4)
    first, second = np.moveaxis(ours["of replicas"], 1, 0)
    assert not np.allclose(first, second, atol=1e-2)


def test_a_layer_without_other_replicas_is_the_layer_without_synchronisation():
    x = tf.random.stateless_normal([4, 3, 3, 2], [1, 2])
    results = []
    for synchronized in (False, True):
        layer = BatchNormalization(synchronized=synchronized)
        results.append(layer(x, training=True).numpy().tobytes())
    assert results[0] == results[1]


def statistics_with_a_mask_of_weights(layer_class: Any, **kwargs: Any) -> list[np.ndarray]:
    """Of samples that count 0, a half, one and two times."""
    layer = layer_class(momentum=0.0, **kwargs)
    x = np.array([[1, np.nan], [2, 4], [4, -3], [-3, 1]], np.float32)
    if not kwargs:
        x[0] = 1  # Keras may multiply what a mask leaves out by 0.
    layer.build(x.shape)
    layer(x, training=True, mask=tf.constant([0.0, 0.5, 1.0, 2.0]))
    return [layer.moving_mean.numpy(), layer.moving_variance.numpy()]


def test_a_mask_of_weights_counts_as_in_keras():
    ours = statistics_with_a_mask_of_weights(BatchNormalization, synchronized=True)
    keras_own = statistics_with_a_mask_of_weights(keras.layers.BatchNormalization)
    np.testing.assert_allclose(ours, keras_own, rtol=1e-5)


def test_a_mask_of_weights_weighs_where_keras_weighs(monkeypatch):
    monkeypatch.setattr(_fused_call, "_keras_weighs", lambda: True)
    x, weights = np.float64([[2, 4], [4, -3], [-3, 1]]), np.float64([[0.5], [1], [2]])
    mean = (weights * x).sum(0) / weights.sum()
    variance = (weights * (x - mean) ** 2).sum(0) / weights.sum()
    got = statistics_with_a_mask_of_weights(BatchNormalization, synchronized=True)
    np.testing.assert_allclose(got, [mean, variance], rtol=1e-6)


@pytest.mark.parametrize("mask", [[False] * 4, [0.0] * 4])
def test_a_mask_without_samples_leaves_what_keras_leaves(mask):
    x = tf.random.stateless_normal([4, 3], [1, 2])
    results = []
    for layer in (BatchNormalization(synchronized=True), keras.layers.BatchNormalization()):
        layer.build(x.shape)
        y = layer(x, training=True, mask=tf.constant(mask))
        results.append([*y.numpy(), layer.moving_mean.numpy(), layer.moving_variance.numpy()])
    np.testing.assert_allclose(*results, rtol=1e-5)


# ---- update_batch_norm ---------------------------------------------------------------------------


def updated(strategy: Any, synchronized: bool) -> list[list[float]]:
    """Statistics of two layers after two passes, whose last batch leaves a replica without any."""
    with strategy.scope():
        norms = [keras.layers.BatchNormalization(), BatchNormalization(synchronized=synchronized)]
        model = keras.Sequential([keras.Input((6, 6, 3)), *norms])
    update_batch_norm(model, IMAGES[:7], batch_size=3, passes=2, verbose=0)
    return [value for norm in norms for value in statistics_of(norm)]


@pytest.mark.parametrize(("workers", "synchronized"), [(0, False), (0, True), (2, False)])
def test_update_batch_norm_is_of_all_replicas(workers, synchronized):
    (want,) = replica_processes.run(updated, synchronized, replicas=1)
    for got in replica_processes.run(updated, synchronized, replicas=2, workers=workers):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(want[0], IMAGES[:7].mean((0, 1, 2), "float64"), rtol=1e-6)
