"""Times the gradient of batch norm's gradient, TensorFlow's and this library's, and their memory.

    python examples/second_order_speed.py

Both run alternately in one process; prints the median of each, and their ratio.
Then each makes one call in a process of its own: prints the growth of its peak resident set size,
results included. (Without oneDNN, with which TensorFlow keeps a memory pool.)
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from timing import compare, flags

import tf_bn_ops

SHAPE = (32, 56, 56, 64)
ROUNDS = 15
OPS = {
    "TensorFlow": tf.raw_ops.FusedBatchNormGradV3,
    "tf_bn_ops": tf_bn_ops.raw_ops.FusedBatchNormGradV3,
}


def step(op: Callable[..., Any], shape: tuple[int, ...]) -> Callable[[], Any]:
    """The gradients with respect to y_backprop, x and scale, in a graph of their own: the values
    of the first-order op are not computed."""
    channels = shape[-1]
    y_backprop, x, gx = (tf.random.stateless_normal(shape, seed=[i, 0]) for i in range(3))
    scale, gs, go = (tf.random.stateless_normal([channels], seed=[i, 1]) for i in range(3))
    mean, variance = tf.nn.moments(x, [0, 1, 2])

    @tf.function
    def second_order() -> Any:
        with tf.GradientTape() as tape:
            tape.watch([y_backprop, x, scale])
            outputs = op(
                y_backprop=y_backprop,
                x=x,
                scale=scale,
                reserve_space_1=mean,
                reserve_space_2=variance,
                reserve_space_3=tf.zeros([1]),
                epsilon=1e-3,
            )[:3]
        return tape.gradient(outputs, [y_backprop, x, scale], output_gradients=[gx, gs, go])

    # Functions on the CPU return when they are done.
    return second_order.get_concrete_function()


def _resident(field: str) -> int:
    """Bytes of "VmRSS" or "VmHWM" (the peak)."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    match = re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)
    assert match
    return int(match.group(1)) << 10


def print_memory(name: str, shape: tuple[int, ...]) -> None:
    """Prints the MiB that one call takes at its peak."""
    step(OPS[name], (2, 2, 2, shape[-1]))()  # Threads and tables that last.
    call = step(OPS[name], shape)
    # Resets the peak.
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = _resident("VmRSS")
    results = call()
    assert len(results) == 3
    print(f"{(_resident('VmHWM') - before) / 2**20:.0f}")


def memory(name: str, arguments: list[str]) -> int:
    program = [sys.executable, __file__, f"--memory={name}", *arguments]
    # malloc(3): freed blocks are unmapped, so that the call cannot reuse them.
    environment = {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    result = subprocess.run(
        program, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    return int(result.stdout)


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--memory", choices=OPS, help="print that of one of them, in this process")
    arguments = parser.parse_args()
    shape = (4, 8, 8, 64) if arguments.quick else SHAPE
    if arguments.memory:
        print_memory(arguments.memory, shape)
        return
    compare(
        f"gradient of batch norm's gradient, {list(shape)}",
        "TensorFlow",
        step(OPS["TensorFlow"], shape),
        step(OPS["tf_bn_ops"], shape),
        1 if arguments.quick else ROUNDS,
    )
    theirs, ours = (memory(name, sys.argv[1:]) for name in OPS)
    print(f"memory at the peak: TensorFlow {theirs} MiB, tf_bn_ops {ours} MiB")


if __name__ == "__main__":
    main()
