"""A worker of two: the second one fails between two steps, and the first one says what it got.

Arguments: how it fails, "dies" or "hangs"; the seconds that a collective is given.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import strategies
import tensorflow as tf

import tf_bn_ops


def main(how: str, seconds: str) -> None:
    strategy = strategies.strategy(2, timeout_seconds=float(seconds))

    def replica_step() -> Any:
        x = tf.random.normal([2, 3, 3, 4])
        return tf_bn_ops.fused_batch_norm(
            x, tf.ones([4]), tf.zeros([4]), synchronized=True
        ).batch_mean

    step = tf.function(lambda: strategy.run(replica_step), autograph=False)
    assert step().shape == [4]
    if strategy.cluster_resolver.task_id == 1:
        if how == "dies":
            os._exit(1)
        time.sleep(4 * float(seconds))
        os._exit(1)
    start = time.monotonic()
    try:
        outcome = f"returned {step().numpy()}"
    except tf.errors.OpError as error:
        outcome = type(error).__name__ + ": " + error.message
    print(json.dumps({"outcome": outcome, "seconds": time.monotonic() - start}), flush=True)
    os._exit(0)  # Without TensorFlow's own end, which waits for the other worker.


if __name__ == "__main__":
    main(*sys.argv[1:])
