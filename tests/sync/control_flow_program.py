"""Synchronised batch norm in every place that a function of TensorFlow may have it, by name.

Arguments: the number of replicas, or 1 for the reference, which has the whole batch; names of
places, or none for all. Prints a line of JSON: by name, numbers or the sentence of the error.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import strategies
import tensorflow as tf

import tf_bn_ops

BATCH = np.random.default_rng(0).normal(1, 2, (12, 3, 3, 2)).astype(np.float32)
SCALE, OFFSET = [0.5, 2.0], [0.3, -0.2]


def norm(x: Any) -> Any:
    return tf_bn_ops.fused_batch_norm(x, SCALE, OFFSET, synchronized=True, activation="relu").y


def in_while_loop(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, norm(x) + x), [0, x])[1]


def in_scan(x: Any) -> Any:
    return tf.scan(lambda a, b: norm(a) + b, tf.stack([x, 2 * x, x]))[-1]


def in_map_fn(x: Any) -> Any:
    return tf.reduce_sum(tf.map_fn(norm, tf.stack([x, tf.square(x)])), axis=0)


def in_cond(x: Any) -> Any:
    return tf.cond(tf.size(x) >= 0, lambda: norm(x) + x, lambda: x)


def in_switch_case(x: Any) -> Any:
    index = tf.cast(tf.size(x) >= 0, tf.int32)
    return tf.switch_case(index, [lambda: x, lambda: norm(x) + x])


def in_cond_in_cond(x: Any) -> Any:
    return tf.cond(tf.size(x) >= 0, lambda: in_cond(x), lambda: x)


def in_nested_function(x: Any) -> Any:
    return tf.function(norm)(x) + x


def in_two_functions(x: Any) -> Any:
    return tf.function(in_nested_function)(x)


def in_python_loop(x: Any) -> Any:
    for _ in range(3):
        x = norm(x) + x
    return x


def in_vectorized_map(x: Any) -> Any:
    return tf.reduce_sum(tf.vectorized_map(norm, tf.stack([x, tf.square(x)])), axis=0)


PLACES: dict[str, Callable[[Any], Any]] = {
    "while_loop": in_while_loop,
    "scan": in_scan,
    "map_fn": in_map_fn,
    "cond": in_cond,
    "switch_case": in_switch_case,
    "cond in cond": in_cond_in_cond,
    "nested function": in_nested_function,
    "two functions": in_two_functions,
    "Python loop": in_python_loop,
    "vectorized_map": in_vectorized_map,
}


def loss_of(place: Any, x: Any) -> Any:
    return tf.reduce_sum(tf.sin(place(x)))


def forward(place: Any, x: Any) -> Any:
    return place(x)


def gradient(place: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = loss_of(place, x)
    return tape.gradient(loss, x)


def persistent_gradient(place: Any, x: Any) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = loss_of(place, x)
        triple = 3 * loss
    return tape.gradient(loss, x) + tape.gradient(triple, x)


def second_gradient(place: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        penalty = tf.reduce_sum(tf.square(gradient(place, x)))
    return tape.gradient(penalty, x)


def forward_mode(place: Any, x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
        y = place(x)
    return accumulator.jvp(y)


def forward_over_backward(place: Any, x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
        first = gradient(place, x)
    return accumulator.jvp(first)


def jacobian(pfor: bool, place: Any, x: Any) -> Any:
    """By a vector that every replica has, of its part: a sum over replicas is that of the whole."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        by_channel = tf.reduce_sum(tf.reshape(tf.sin(place(x)), [-1, 2]) ** 2, axis=0)
    rows = tape.jacobian(by_channel, x, experimental_use_pfor=pfor)
    return tf.einsum("cn...->nc...", rows)


DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "forward": forward,
    "gradient": gradient,
    "persistent": persistent_gradient,
    "second": second_gradient,
    "forward mode": forward_mode,
    "forward over backward": forward_over_backward,
    "jacobian": functools.partial(jacobian, True),
    "jacobian by loop": functools.partial(jacobian, False),
}


def step(strategy: Any, function: Any, in_function: bool, split: Any) -> Any:
    """The rows of all replicas, those of a worker's own elsewhere 0; for its sum over workers."""
    ends = np.cumsum([0, *split])

    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        rank = context.replica_id_in_sync_group
        begin, end = tf.constant(ends)[rank], tf.constant(ends)[rank + 1]
        part = function(tf.constant(BATCH)[begin:end])
        shape = tf.concat([[len(BATCH)], tf.shape(part)[1:]], axis=0)
        return tf.scatter_nd(tf.range(begin, end)[:, None], part, tf.cast(shape, tf.int64))

    run = lambda: strategy.run(replica)  # noqa: E731
    results = strategy.experimental_local_results((tf.function(run) if in_function else run)())
    return sum(result.numpy() for result in results).tolist()


class Cell(keras.layers.Layer):
    """Of a recurrent network, normalised at each step."""

    state_size = output_size = 18

    def __init__(self) -> None:
        super().__init__()
        self.norm = tf_bn_ops.keras.BatchNormalization(synchronized=True)

    def build(self, input_shape: Any) -> None:
        self.norm.build(input_shape)

    def call(self, inputs: Any, states: Any, training: Any = None) -> Any:
        y = self.norm(inputs, training=training) + states[0]
        return y, [y]


def losses_of_fit(strategy: Any, unroll: bool) -> list[float]:
    sequences = np.stack([BATCH.reshape(12, 18) * factor for factor in (1, 2, 3)], axis=1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3, 18)), keras.layers.RNN(Cell(), unroll=unroll), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    return model.fit(
        sequences, BATCH[:, 0, 0, :1], batch_size=12, epochs=2, shuffle=False, verbose=0
    ).history["loss"]


def main(replicas: str, *names: str) -> None:
    strategy = strategies.strategy(int(replicas))
    split = {1: [12], 2: [5, 7], 3: [4, 5, 3]}[strategy.num_replicas_in_sync]
    found: dict[str, Any] = {}

    def note(name: str, function: Callable[[], Any]) -> None:
        if names and not any(re.fullmatch(n, name) for n in names):
            return
        keras.utils.set_random_seed(0)
        try:
            found[name] = function()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    for unroll in (False, True):
        note(f"fit, unroll={unroll}", functools.partial(losses_of_fit, strategy, unroll))
    for in_function in (True, False):
        mode = "function" if in_function else "eager"
        for place, of_place in PLACES.items():
            for derivative, of_derivative in DERIVATIVES.items():
                name = f"{place}, {derivative}, {mode}"
                function = functools.partial(of_derivative, of_place)
                note(name, functools.partial(step, strategy, function, in_function, split))
    print(json.dumps(found))
    strategies.leave(strategy)


if __name__ == "__main__":
    main(*sys.argv[1:])
