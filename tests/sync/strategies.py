"""The strategy that the programs beside this file run under; imported by them alone."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

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


def leave(strategy: Any) -> None:
    """Ends this process; a worker when all have come here, since TensorFlow ends one that is left
    alone with an error."""

    def meet() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0) + 0.0)

    if "TF_CONFIG" in os.environ:
        with contextlib.suppress(tf.errors.OpError):  # Another one has met this one and left.
            tf.function(lambda: strategy.run(meet), autograph=False)().numpy()
    sys.stdout.flush()
    os._exit(0)
