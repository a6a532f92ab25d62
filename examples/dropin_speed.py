"""Times batch normalization in training on TensorFlow's kernels and on every drop-in.

    python examples/dropin_speed.py

A step is TensorFlow's fused batch normalization and a ReLU, forward and backward. The override
cannot be undone, so each drop-in has a process of its own; the processes alternate. Prints a
table: the median of each in milliseconds, and TensorFlow's over it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from timing import flags, print_header, print_row

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The drop-ins, by the names of the columns. The last one has the ReLU inside.
WAYS = {
    "TensorFlow": "TensorFlow",
    "override": "override",
    "to_shim": "rewritten (`to_shim`)",
    "fused_batch_norm": "`fused_batch_norm`",
    "activation": "with `activation`",
}
LAYERS = (
    ((32, 56, 56, 64), "NHWC", "float32"),
    ((32, 64, 56, 56), "NCHW", "float32"),
    ((32, 56, 56, 64), "NHWC", "half"),
    ((2, 32, 32, 32, 64), "NDHWC", "float32"),
)
ROUNDS, STEPS = 3, 9


def step_of(way: str, shape: tuple[int, ...], layout: str, dtype: str) -> Callable[[], Any]:
    """Forward and backward of one layer, done one way."""
    import tensorflow as tf

    import tf_bn_ops

    channels = shape[layout.index("C")]
    x = tf.cast(tf.random.stateless_normal(shape, [1, 2]), dtype)
    y_backprop = tf.cast(tf.random.stateless_normal(shape, [3, 4]), dtype)
    scale, offset = tf.ones([channels]), tf.zeros([channels])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            if way == "activation":
                y, _, _ = tf_bn_ops.fused_batch_norm(
                    x, scale, offset, data_format=layout, activation="relu"
                )
                return tape.gradient(y, [x, scale, offset], y_backprop)
            if way == "fused_batch_norm":
                y, _, _ = tf_bn_ops.fused_batch_norm(x, scale, offset, data_format=layout)
            else:
                y, *_ = tf.raw_ops.FusedBatchNormV3(
                    x=x,
                    scale=scale,
                    offset=offset,
                    mean=[],
                    variance=[],
                    epsilon=1e-3,
                    data_format=layout,
                )
            y = tf.nn.relu(y)
        return tape.gradient(y, [x, scale, offset], y_backprop)

    run: Any = step.get_concrete_function()
    if way == "to_shim":
        run = tf_bn_ops.rewrite.to_shim(run)
    return lambda: run()[-1].numpy()


def measure(way: str) -> list[float]:
    """Median seconds of a step of each layer, in this process."""
    import tf_bn_ops

    if way == "override":
        tf_bn_ops.enable(keras=False, fuse=False)
    medians = []
    for layer in LAYERS:
        step = step_of(way, *layer)
        step()
        samples = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            step()
            samples.append(time.perf_counter() - begin)
        medians.append(statistics.median(samples))
    return medians


def measure_elsewhere(way: str) -> list[float]:
    """The same in a process of its own."""
    child = subprocess.run(
        [sys.executable, __file__, way], capture_output=True, check=False, text=True
    )
    if child.returncode != 0:
        sys.exit(f"the process of {way} failed:\n{child.stderr}")
    result: list[float] = json.loads(child.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("way", nargs="?", choices=WAYS, help="one of them, in this process")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments.way)))
        return
    ways, rounds = list(WAYS), ROUNDS
    if arguments.quick:
        ways, rounds = [ways[0], ways[-1]], 1
    samples: dict[str, list[list[float]]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            samples[way].append(measure_elsewhere(way))
    print_header("layer, training", (WAYS[way] for way in ways))
    for i, (shape, layout, dtype) in enumerate(LAYERS):
        medians = [statistics.median(sample[i] for sample in samples[way]) for way in ways]
        print_row(f"{layout} {list(shape)} {dtype}", [median * 1e3 for median in medians])


if __name__ == "__main__":
    main()
