"""Starts a program again as workers over loopback, for the examples named sync_*.py."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import Any


def is_worker() -> bool:
    """Whether this process is one of those that `start` started."""
    return "TF_CONFIG" in os.environ


def start(workers: int, *arguments: str) -> str:
    """Runs the program of this process in `workers` processes; returns what the first one prints.

    Args:
      workers: how many.
      *arguments: of the program, in each of them.
    """
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for each in sockets:
        each.close()
    processes = []
    for index in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, sys.argv[0], *arguments],
                env={**os.environ, "TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            sys.exit(f"error: a worker failed with {process.returncode}: {errors[-2000:]}")
    return outputs[0][0]


def strategy(threads: int = 0) -> Any:
    """The strategy of a worker; without a timeout, which costs a thread for each collective.

    Args:
      threads: of the worker; 0 leaves that to TensorFlow.
    """
    import tensorflow as tf

    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    return tf.distribute.MultiWorkerMirroredStrategy()


def leave(strategy: Any) -> None:
    """Ends this worker when all have come here: one that is left alone is ended by TensorFlow."""
    import tensorflow as tf

    def meet() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0) + 0.0)

    with contextlib.suppress(tf.errors.OpError):  # Another one has met this one and left.
        tf.function(lambda: strategy.run(meet), autograph=False)().numpy()
    sys.stdout.flush()
    os._exit(0)


def mirrored(devices: int) -> Any:
    """The strategy of one process instead, with CPU devices that share as many threads."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(devices)
    (cpu,) = tf.config.list_physical_devices("CPU")
    each = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, each)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
