"""Trains with the Keras layer, synchronised over the replicas of a strategy, on the same batches.

Argument: the number of replicas. One is the reference: the whole batch, without synchronisation.
Prints losses and moving statistics of every training as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import keras
import numpy as np
import strategies
import tensorflow as tf

from tf_bn_ops.keras import BatchNormalization

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(100, 2, (8, 6, 6, 3)).astype(np.float32)
TARGETS = RNG.normal(0, 1, (8, 1)).astype(np.float32)
MASK = RNG.random((8, 6, 6)) < 0.6
WEIGHTS = MASK * RNG.choice([0.5, 1.0, 3.0], MASK.shape)
LAST = np.arange(8)[:, None, None] >= 3  # Those of the second replica.
ENDS = {1: [0, 8], 2: [0, 3, 8]}


def statistics_of(layer: Any) -> list[list[float]]:
    """Moving mean and variance; bitwise identical on all replicas of this process."""
    found = []
    for variable in (layer.moving_mean, layer.moving_variance):
        values = [v.numpy() for v in getattr(variable.value, "values", [variable.value])]
        assert len({value.tobytes() for value in values}) == 1, values
        found.append(values[0].tolist())
    return found


def by_fit(strategy: Any, dtype: str) -> dict[str, Any]:
    """Keras' own loop; it cuts each batch in equal parts."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layer = BatchNormalization(
            momentum=0.8, synchronized=strategy.num_replicas_in_sync > 1, dtype=dtype
        )
        dense = [keras.layers.Flatten(), keras.layers.Dense(1)]
        convolution = keras.layers.Conv2D(4, 3, dtype=dtype)
        model = keras.Sequential(
            [keras.Input((6, 6, 3)), convolution, layer, keras.layers.ReLU(), *dense]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    # At a mean of 100 bfloat16 has steps of 0.5.
    images = IMAGES - 99
    history = model.fit(images, TARGETS, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    return {"losses": history["loss"], "statistics": statistics_of(layer)}


def by_hand(strategy: Any, mask: Any = None) -> dict[str, Any]:
    """A loop of its own, with parts of three and five samples, perhaps behind a mask."""
    count = strategy.num_replicas_in_sync
    with strategy.scope():
        layer = BatchNormalization(momentum=0.8, synchronized=count > 1)
        layer.build((None, 6, 6, 3))
    ends = tf.constant(ENDS[count])

    def replica_step() -> Any:
        context = tf.distribute.get_replica_context()
        rank = context.replica_id_in_sync_group
        begin, end = ends[rank], ends[rank + 1]
        x = tf.constant(IMAGES)[begin:end]
        part = None if mask is None else tf.constant(mask)[begin:end]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=part)
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


def main(replicas: str) -> None:
    strategy = strategies.strategy(int(replicas))
    results = {"by hand": by_hand(strategy), "masked": by_hand(strategy, MASK)}
    results["weights"] = by_hand(strategy, WEIGHTS)
    results["a replica without samples"] = by_hand(strategy, MASK & LAST)
    results["no samples"] = by_hand(strategy, MASK & False)
    if "TF_CONFIG" not in os.environ:  # Keras' fit does not run under that strategy.
        for dtype in ("float32", "mixed_float16", "mixed_bfloat16"):
            results[dtype] = by_fit(strategy, dtype)
    print(json.dumps(results))
    strategies.leave(strategy)


if __name__ == "__main__":
    main(*sys.argv[1:])
