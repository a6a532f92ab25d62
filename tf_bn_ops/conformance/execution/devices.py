"""Devices of TensorFlow that ops are placed on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tf_bn_ops.conformance.cases.mapping import parse_device


class DeviceError(ValueError):
    """A device that TensorFlow lacks; the message is one sentence."""


def facts(tf: Any) -> dict[str, Any]:
    """The version of TensorFlow, the names of its devices, and what its GPUs are called."""
    gpus = [
        tf.config.experimental.get_device_details(device).get("device_name", "unknown")
        for device in tf.config.list_physical_devices("GPU")
    ]
    names = [parse_device(device.name) for device in tf.config.list_logical_devices()]
    return {"tensorflow": tf.__version__, "gpus": gpus, "devices": names}


def check(device: str | None, facts: Mapping[str, Any]) -> None:
    """Raises DeviceError where TensorFlow, whose facts are given, does not have the device."""
    there = facts.get("devices", ())
    if device is not None and device not in there:
        raise DeviceError(f"there is no device {device}; TensorFlow has {', '.join(there)}")


@contextlib.contextmanager
def placed(tf: Any, device: str | None) -> Iterator[None]:
    """Ops run on this device and nowhere else: without a kernel for it they fail.

    TensorFlow would otherwise run them on the CPU and say nothing.
    """
    if device is None:
        yield
        return
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device(device):
            yield
    finally:
        tf.config.set_soft_device_placement(True)
