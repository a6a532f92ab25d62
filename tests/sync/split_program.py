"""A synchronized fused_batch_norm with its gradient on every replica, for all cuts of a batch.

Arguments: a file for the results, with {worker} in its name for the number of this process; the
number of replicas; "quick" or "all". Arrays of the file are named case/split/replica/what.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import split_cases
import strategies
import tensorflow as tf
from split_cases import Case

import tf_bn_ops


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
            *of,
            part["mean"],
            part["variance"],
            split_cases.EPSILON,
            exponential_avg_factor=split_cases.FACTOR,
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
    x = tf.ones([2, 2, 2, 1])
    try:
        with strategy.scope():
            tf_bn_ops.fused_batch_norm(x, tf.ones([1]), tf.ones([1]), synchronized=True)
    except RuntimeError as error:
        assert "call it in the function that is given to strategy.run" in str(error), error
    else:
        raise SystemExit("a synchronized fused_batch_norm ran outside of the replicas")


def numpy_bits(tensor: Any) -> np.ndarray:
    """As an array that a file of NumPy's holds: bfloat16 as its bits."""
    array = tensor.numpy()
    return array.view(np.uint16) if tensor.dtype == tf.bfloat16 else array


def main(path: str, replicas: str, which: str) -> None:
    strategy = strategies.strategy(int(replicas))
    count = strategy.num_replicas_in_sync
    results = {}
    for c, case in enumerate(split_cases.QUICK if which == "quick" else split_cases.ALL):
        inputs = {name: tf.constant(value) for name, value in case.inputs().items()}

        @tf.function(autograph=False)
        def step(ends: Any, case: Case = case, inputs: Any = inputs) -> Any:
            return strategy.run(functools.partial(replica_step, case, inputs), args=(ends,))

        for s, split in enumerate(split_cases.SPLITS[count]):
            ends = tf.constant(np.cumsum([0, *split]))
            for run in range(2):
                for name, values in step(ends).items():
                    for r, value in enumerate(strategy.experimental_local_results(values)):
                        key, bits = f"{c}/{s}/{r}/{name}", numpy_bits(value)
                        if run and results[key].tobytes() != bits.tobytes():
                            raise SystemExit(f"{key} has other bits in the second run")
                        results[key] = bits
    check_refusal(strategy)
    resolver = strategy.cluster_resolver
    worker = resolver.task_id if resolver is not None and resolver.task_id is not None else 0
    np.savez(path.format(worker=worker), **results)
    print("done")
    strategies.leave(strategy)


if __name__ == "__main__":
    main(*sys.argv[1:])
