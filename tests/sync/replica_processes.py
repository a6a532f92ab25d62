"""Runs functions under a strategy of tf.distribute: of workers over loopback, or of the CPU devices
of one process."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import forked
import tensorflow as tf


def strategy(replicas: int, timeout_seconds: float = 120) -> tf.distribute.Strategy:
    """Of several workers if there is a TF_CONFIG, else of as many CPU devices of this process."""
    if "TF_CONFIG" in os.environ:
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout_seconds)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if replicas == 1:
        return tf.distribute.get_strategy()
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def run(
    function: Callable[..., Any],
    *arguments: Any,
    replicas: int,
    workers: int = 0,
    timeout: float = 280,
) -> list[Any]:
    """What a function of a strategy and arguments returns in every process, as JSON has it; each
    has to succeed."""
    name = function.__module__, function.__name__
    asked = (_replica, *name, replicas, *arguments)
    ended = forked.cluster(*asked, workers=workers, timeout=timeout)
    for process in ended:
        assert process.returncode == 0, process.stderr[-3000:]
    return [json.loads(process.stdout.splitlines()[-1]) for process in ended]


def _replica(module: str, name: str, replicas: int, *arguments: Any) -> None:
    """Ends this process; a worker when all have come here, since TensorFlow ends one that is left
    alone with an error."""
    of_replicas = strategy(replicas)
    print(json.dumps(getattr(importlib.import_module(module), name)(of_replicas, *arguments)))

    def meet() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0) + 0.0)

    if "TF_CONFIG" in os.environ:
        with contextlib.suppress(tf.errors.OpError):  # Another one has met this one and left.
            tf.function(lambda: of_replicas.run(meet), autograph=False)().numpy()
    sys.stdout.flush()
    os._exit(0)
