"""In loops, branches, functions and derivatives: the result of one replica with the whole batch, or
one sentence before anything waits.

Promised: of every place of the table in docs/synchronized.md: the result of one replica with the
whole batch, or one sentence before anything waits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import replica_processes
import tensorflow as tf
from call_places import DERIVATIVES, PLACES

import tf_bn_ops

BATCH = np.random.default_rng(0).normal(1, 2, (12, 3, 3, 2)).astype(np.float32)
SCALE, OFFSET = [0.5, 2.0], [0.3, -0.2]


def norm(x: Any) -> Any:
    return tf_bn_ops.fused_batch_norm(x, SCALE, OFFSET, synchronized=True, activation="relu").y


def step(strategy: Any, function: Any, in_function: bool, split: Any) -> Any:
    """The rows of all replicas; in a worker the rows of others are 0, for a sum over workers."""
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


def everywhere(strategy: Any, *names: str) -> dict[str, Any]:
    """By name, of those that match one: numbers, or the sentence of the error. A strategy of one
    replica is the reference, which has the whole batch."""
    split = {1: [12], 2: [5, 7], 3: [4, 5, 3]}[strategy.num_replicas_in_sync]
    found: dict[str, Any] = {}

    def note(name: str, function: Callable[[], Any]) -> None:
        if not any(re.fullmatch(n, name) for n in names):
            return
        keras.utils.set_random_seed(0)
        try:
            found[name] = function()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    for unroll in (False, True):
        note(f"fit, unroll={unroll}", functools.partial(losses_of_fit, strategy, unroll))
    for mode in ("function", "eager"):
        for place, of_place in PLACES.items():
            for derivative, of_derivative in DERIVATIVES.items():
                function = functools.partial(of_derivative, functools.partial(of_place, norm))
                run = functools.partial(step, strategy, function, mode == "function", split)
                note(f"{place}, {derivative}, {mode}", run)
    return found


LOOP = "synchronized batch normalization in a loop of a graph"
EAGERLY = "that the replicas of one process call eagerly would wait forever"
TWO = "synchronized batch normalization in a tf.function that another one calls"
BRANCH = "synchronized batch normalization below tf.cond has first-order gradients"


def sentence(name: str) -> str | None:
    """What replicas of one process are told, if anything."""
    if name == "fit, unroll=False":
        return LOOP
    if name == "fit, unroll=True":
        return None
    place, derivative, mode = name.split(", ")
    if mode == "eager":
        in_function = place in ("nested function", "vectorized_map")
        return EAGERLY if in_function or derivative.startswith("jacobian") else None
    if place in ("while_loop", "scan", "map_fn") or derivative == "jacobian by loop":
        return LOOP
    if place == "vectorized_map" and derivative != "forward":
        return BRANCH
    if place == "two functions" and derivative in ("persistent", "second"):
        return TWO
    if "cond" in place and derivative in ("second", "forward mode"):
        return BRANCH
    return None


def run(*names: str, workers: int = 0) -> list[dict[str, Any]]:
    """Of two replicas, in every process."""
    return replica_processes.run(everywhere, *names, replicas=2, workers=workers, timeout=580)


def reference(names: Iterable[str]) -> dict[str, Any]:
    return everywhere(tf.distribute.get_strategy(), *map(re.escape, names))


def assert_right(*names: str) -> None:
    (got,) = run(*names)
    want = reference(name for name in got if sentence(name) is None)
    assert got
    for name, value in got.items():
        expected = sentence(name)
        if expected is not None:
            assert expected in value, (name, value)
            continue
        assert not isinstance(value, str), (name, value)
        # Some hundred roundings in float32.
        tolerance = 1e-5 * np.max(np.abs(want[name]))
        np.testing.assert_allclose(value, want[name], rtol=0, atol=tolerance, err_msg=name)


def test_gradients_below_cond_and_a_sentence_for_loops():
    assert_right("(while_loop|cond), gradient, function", "Python loop, forward mode, function")


@pytest.mark.long
@pytest.mark.parametrize(
    "places",
    [
        "fit.*|(while_loop|scan|map_fn), (forward|gradient), function",
        "cond, (gradient|second|forward mode|jacobian), function|cond in cond, gradient, function",
        "switch_case, (forward|gradient), function",
        "nested function, (forward|gradient|persistent|second), function",
        "nested function, (forward mode|forward over backward|jacobian), function",
        "two functions, (gradient|persistent|second), function",
        "Python loop, (persistent|second|forward over backward|jacobian.*), function",
        "vectorized_map, (forward|gradient), function",
        "(cond|nested function), (persistent|second|forward mode|jacobian), eager",
        "Python loop, (second|jacobian), eager",
    ],
)
def test_every_place(places):
    assert_right(places)


@pytest.mark.long
def test_workers_that_share_no_process_meet_in_loops():
    first, second = run(
        "(while_loop|cond|nested function), (forward|gradient), function", workers=2
    )
    assert first and first.keys() == second.keys()
    for name, value in reference(first).items():
        total = np.add(first[name], second[name])
        np.testing.assert_allclose(total, value, rtol=0, atol=1e-5 * np.max(np.abs(value)))
