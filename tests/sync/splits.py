"""A batch that replicas share, the ways to cut it, and a synchronized fused_batch_norm with its
gradient on every replica."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import pickle
from typing import Any, Literal

import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.spec import DTYPES

EPSILON = 2.0**-10  # The same number in float32.
FACTOR = 0.25


@dataclasses.dataclass(frozen=True)
class Case:
    """A synchronized call of fused_batch_norm on a batch of seven samples."""

    dtype: str = "float32"
    mean: float = 0.5
    activation: Any = None
    side_input: bool = False
    channels_last: bool = True

    @property
    def data_format(self) -> Literal["NHWC", "NCHW"]:
        return "NHWC" if self.channels_last else "NCHW"

    def inputs(self) -> dict[str, np.ndarray]:
        """The whole batch by name: x of deviation 2 around `mean`."""
        rng = np.random.default_rng(5)
        element = DTYPES[self.dtype]
        vector = DTYPES["float64" if self.dtype == "float64" else "float32"]
        channels = 5
        shape = (7, 6, 9, channels) if self.channels_last else (7, channels, 6, 9)
        values = {"x": rng.normal(self.mean, 2, shape), "y_backprop": rng.normal(0.3, 1, shape)}
        if self.side_input:
            values["side_input"] = rng.normal(0, 1, shape)
        vectors = {name: rng.uniform(0.5, 2, channels) for name in ("scale", "offset", "variance")}
        vectors["mean"] = rng.normal(self.mean, 1, channels)
        stored = {name: element.store(value) for name, value in values.items()}
        return stored | {name: vector.store(value) for name, value in vectors.items()}


# Samples of each replica: even, uneven, one sample, none.
SPLITS = {
    2: [[3, 4], [6, 1], [0, 7], [7, 0]],
    3: [[2, 2, 3], [1, 0, 6], [0, 0, 7]],
    4: [[2, 2, 2, 1], [0, 1, 0, 6]],
}
# Not a mean of 1e5 in half and bfloat16, which cannot hold a deviation of 2 beside it; nor in
# float64: there the mean that is exchanged is rounded by as much as the bound of y allows x.
CASES = {
    "quick": [Case(mean=1e5, activation="relu6", side_input=True)],
    "all": [
        Case(),
        Case(mean=1e5, activation="relu"),
        Case(mean=1e5, activation="relu6", side_input=True, channels_last=False),
        Case("half", 30, "relu"),
        Case("bfloat16", side_input=True),
        Case("float64", activation="relu", side_input=True),
    ],
}


def replica_step(case: Case, inputs: dict[str, Any], ends: Any) -> dict[str, Any]:
    """What one replica gets of its part of the batch."""
    rank = tf.distribute.get_replica_context().replica_id_in_sync_group
    part = {
        name: value[ends[rank] : ends[rank + 1]] if len(value.shape) > 1 else value
        for name, value in inputs.items()
    }
    of = [part[name] for name in ("x", "scale", "offset")]
    side_input = part.get("side_input")
    with tf.GradientTape() as tape:
        tape.watch([*of, *([side_input] if case.side_input else [])])
        result = tf_bn_ops.fused_batch_norm(
            x=of[0],
            scale=of[1],
            offset=of[2],
            mean=part["mean"],
            variance=part["variance"],
            epsilon=EPSILON,
            exponential_avg_factor=FACTOR,
            data_format=case.data_format,
            activation=case.activation,
            side_input=side_input,
            synchronized=True,
        )
    names = ["x_backprop", "scale_backprop", "offset_backprop"]
    if case.side_input:
        of, names = [*of, side_input], [*names, "side_input_backprop"]
    gradients = tape.gradient(result.y, of, output_gradients=part["y_backprop"])
    return {**result._asdict(), **dict(zip(names, gradients, strict=True))}


def check_refusal(strategy: tf.distribute.Strategy) -> None:
    """Outside of the replicas there is no batch to be synchronised."""
    sentence, one = "call it in the function that is given to strategy.run", tf.ones([1])
    with strategy.scope(), pytest.raises(RuntimeError, match=sentence):
        tf_bn_ops.fused_batch_norm(tf.ones([2, 2, 2, 1]), one, one, synchronized=True)


def numpy_bits(tensor: Any) -> np.ndarray:
    """As an array that a file of NumPy's holds: bfloat16 as its bits."""
    array = tensor.numpy()
    return array.view(np.uint16) if tensor.dtype == tf.bfloat16 else array


def bits_of_replicas(strategy: Any, results: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    local = [map(numpy_bits, strategy.experimental_local_results(v)) for v in results.values()]
    return [dict(zip(results, values, strict=True)) for values in zip(*local, strict=True)]


def run_all(strategy: Any, path: str, which: str) -> None:
    """Results by case, cut, replica of this process and name go to a file, with {worker} in its
    name for the number of this process."""
    results: list[Any] = []
    for case in CASES[which]:
        inputs = {name: tf.constant(value) for name, value in case.inputs().items()}

        @tf.function(autograph=False)
        def step(ends: Any, case: Case = case, inputs: Any = inputs) -> Any:
            return strategy.run(functools.partial(replica_step, case, inputs), args=(ends,))

        results.append([])
        for split in SPLITS[strategy.num_replicas_in_sync]:
            ends = tf.constant(np.cumsum([0, *split]))
            first, second = (bits_of_replicas(strategy, step(ends)) for _ in range(2))
            for one, other in zip(first, second, strict=True):
                for name, bits in one.items():
                    assert bits.tobytes() == other[name].tobytes(), (case, split, name)
            results[-1].append(first)
    check_refusal(strategy)
    resolver = strategy.cluster_resolver
    worker = resolver.task_id if resolver is not None and resolver.task_id is not None else 0
    pathlib.Path(path.format(worker=worker)).write_bytes(pickle.dumps(results))
