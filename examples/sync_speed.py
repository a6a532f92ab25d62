"""Times a layer's step on two workers: without synchronisation, with this library's, with Keras'.

    python examples/sync_speed.py [--workers=2] [--mirrored] [--quick]

Each worker is a process with one thread, or with --mirrored a CPU device of one process with as
many threads; its batch is 25 MB of float32. A step is forward and backward in training. The kinds
take turns, and the workers wait for each other before each step. Prints what the first one has
measured: the median of each kind, and the median and the quartiles of ratios of adjacent steps.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import loopback_workers
from absl import app, flags

_WORKERS = flags.DEFINE_integer("workers", 2, "Processes.", lower_bound=2)
_MIRRORED = flags.DEFINE_bool("mirrored", False, "Devices of one process, and no processes.")
_QUICK = flags.DEFINE_bool("quick", False, "A small batch and a few rounds.")

_SHAPE, _QUICK_SHAPE = (32, 56, 56, 64), (4, 14, 14, 16)
_ROUNDS, _QUICK_ROUNDS = 75, 3


def layer_step(strategy: Any, layer: Any, shape: tuple[int, ...]) -> Callable[[], Any]:
    """Forward and backward of the layer on each replica."""
    import tensorflow as tf

    x, y_backprop = tf.random.normal(shape), tf.random.normal(shape)
    with strategy.scope():
        layer.build(shape)

    def replica_step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        weights = [weight.value for weight in layer.trainable_weights]
        gradients = tape.gradient(y, [x, *weights], y_backprop)
        # Two numbers in the place of the gradient: it is computed, and not copied.
        return gradients[0][0, 0, 0, :2], gradients[1:]

    step = tf.function(lambda: strategy.run(replica_step), autograph=False)
    return lambda: [value.numpy() for value in strategy.experimental_local_results(step()[0])]


def work(strategy: Any, quick: bool) -> None:
    """Times all kinds in one worker, or on all devices of this process."""
    import keras
    import tensorflow as tf

    from tf_bn_ops.keras import BatchNormalization

    shape = _QUICK_SHAPE if quick else _SHAPE
    kinds = {
        "tf_bn_ops, not synchronised": BatchNormalization(),
        "tf_bn_ops, synchronised": BatchNormalization(synchronized=True),
        "Keras, not synchronised": keras.layers.BatchNormalization(),
        "Keras, synchronised": keras.layers.BatchNormalization(synchronized=True),
    }
    steps = {name: layer_step(strategy, layer, shape) for name, layer in kinds.items()}

    def meet() -> Any:
        one = tf.constant(1.0) + 0.0
        return tf.distribute.get_replica_context().all_reduce("sum", one)

    barrier = tf.function(lambda: strategy.run(meet), autograph=False)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(1 + (_QUICK_ROUNDS if quick else _ROUNDS)):
        for name, step in steps.items():
            strategy.experimental_local_results(barrier())[0].numpy()
            start = time.perf_counter()
            step()
            if i:
                times[name].append(time.perf_counter() - start)
    for name, taken in times.items():
        print(f"{name}: {statistics.median(taken) * 1e3:.1f} ms")
    alone, together, _, keras_together = times.values()
    print(f"synchronisation costs a factor of {ratios(together, alone)}")
    print(f"{ratios(keras_together, together)} times as fast as Keras, synchronised")


def ratios(slower: list[float], faster: list[float]) -> str:
    """Median and quartiles of the ratios of the steps of each round."""
    of_rounds = [a / b for a, b in zip(slower, faster, strict=True)]
    low, median, high = statistics.quantiles(of_rounds, n=4)
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]!r} is not a flag; --help lists them")
    if loopback_workers.is_worker():
        strategy = loopback_workers.strategy(threads=1)
        work(strategy, _QUICK.value)
        loopback_workers.leave(strategy)
    elif _MIRRORED.value:
        work(loopback_workers.mirrored(_WORKERS.value), _QUICK.value)
    else:
        print(loopback_workers.start(_WORKERS.value, f"--quick={_QUICK.value}"), end="")


if __name__ == "__main__":
    app.run(main)
