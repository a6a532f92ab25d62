"""Measures the collectives of workers over loopback; models synchronisation at 8, 64, 512 workers.

    python examples/sync_cost.py [--workers=2,3,4] [--quick]

The model is LogP's for a ring, which TensorFlow's collectives over gRPC are. With P workers

    gather of n bytes from each:  overhead + (P - 1) (latency + n / bandwidth)
    all-reduce of n bytes:        overhead + 2 (P - 1) (latency + n / (P * bandwidth))

Overhead is what TensorFlow does for each collective, latency that of a message, sending and
receiving included. All three are fitted to what is measured here.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import loopback_workers
import numpy as np
from absl import app, flags

_WORKERS = flags.DEFINE_list("workers", ["2", "3", "4"], "Numbers of processes to measure.")
_QUICK = flags.DEFINE_bool("quick", False, "Few rounds.")
flags.register_validator(
    "workers",
    lambda values: values and all(value.isdecimal() and int(value) >= 2 for value in values),
    "numbers of processes from 2 on, such as --workers=2,4",
)

_SIZES = (128, 4096, 65536, 1 << 20)  # Of float64 numbers.
_CHAIN = 8  # Collectives of a step, each of which waits for the one before.

# ResNet-50: channels -> normalizations; and its parameters.
_RESNET50 = {64: 7, 128: 8, 256: 16, 512: 11, 1024: 7, 2048: 4}
_PARAMETERS = 25_583_592


class Network(NamedTuple):
    """What the model knows of a network; seconds, and bytes per second."""

    overhead: float
    latency: float
    bandwidth: float

    def gather(self, workers: int, size: float) -> float:
        """Seconds for `size` bytes of each worker."""
        return self.overhead + (workers - 1) * (self.latency + size / self.bandwidth)

    def all_reduce(self, workers: int, size: float) -> float:
        """Seconds for `size` bytes."""
        step = self.latency + size / workers / self.bandwidth
        return self.overhead + 2 * (workers - 1) * step


def work(quick: bool) -> None:
    """One worker: prints [numbers, seconds per collective] of each size."""
    strategy = loopback_workers.strategy()
    import tensorflow as tf

    measured = []
    for size in _SIZES:

        def replica_step(value: tf.Tensor) -> tf.Tensor:
            for _ in range(_CHAIN):
                context = tf.distribute.get_replica_context()
                value = context.all_reduce("mean", value + 0.0)
            return tf.reduce_sum(value)

        step = tf.function(lambda value: strategy.run(replica_step, args=(value,)), autograph=False)
        value = tf.ones([size], tf.float64)
        step(value)
        taken = []
        for _ in range(3 if quick else 25):
            start = time.perf_counter()
            step(value).numpy()
            taken.append(time.perf_counter() - start)
        measured.append([size, statistics.median(taken) / _CHAIN])
    print(json.dumps(measured))
    loopback_workers.leave(strategy)


def fitted(measured: dict[int, list[tuple[int, float]]]) -> Network:
    """Least squares of relative errors, with no negative constant."""
    rows, times = [], []
    for workers, points in measured.items():
        for size, seconds in points:
            hops = 2 * (workers - 1)
            rows.append([1 / seconds, hops / seconds, hops * 8 * size / workers / seconds])
            times.append(1.0)
    matrix, right = np.array(rows), np.array(times)
    scale = np.abs(matrix).max(0)
    solution = np.linalg.lstsq(matrix / scale, right, rcond=None)[0] / scale
    if solution[1] <= 0 or solution[0] < 0:  # Not to be told apart by this noise: all latency.
        solution[1:] = np.linalg.lstsq(matrix[:, 1:] / scale[1:], right, rcond=None)[0] / scale[1:]
        solution[0] = 0
    return Network(solution[0], max(solution[1], 1e-9), 1 / max(solution[2], 1e-15))


def print_model(network: Network) -> None:
    layers = [c for c, count in _RESNET50.items() for _ in range(count)]
    print(
        f"overhead {network.overhead * 1e6:.0f} us, latency {network.latency * 1e6:.0f} us, "
        f"bandwidth {network.bandwidth / 1e6:.0f} MB/s"
    )
    print("ResNet-50 per step: MB that a worker sends, and seconds")
    print("workers   statistics       sums       gradient of the variables")
    for workers in (2, 8, 64, 512):
        columns = []
        for sizes in ([8 * (2 * c + 1) for c in layers], [8 * 2 * c for c in layers]):
            seconds = sum(network.gather(workers, size) for size in sizes)
            columns.append(((workers - 1) * sum(sizes), seconds))
        variables = 4 * _PARAMETERS
        sent = 2 * (workers - 1) / workers * variables
        columns.append((sent, network.all_reduce(workers, variables)))
        texts = [f"{size / 1e6:7.1f} {seconds:7.3f}" for size, seconds in columns]
        print(f"{workers:7}  " + "  ".join(texts))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]!r} is not a flag; --help lists them")
    if loopback_workers.is_worker():
        work(_QUICK.value)
        return
    measured = {}
    for workers in map(int, _WORKERS.value):
        output = loopback_workers.start(workers, f"--quick={_QUICK.value}")
        measured[workers] = [tuple(point) for point in json.loads(output.splitlines()[-1])]
        for size, seconds in measured[workers]:
            print(f"{workers} workers, {8 * size} bytes: {seconds * 1e6:.0f} us")
    print_model(fitted(measured))


if __name__ == "__main__":
    app.run(main)
