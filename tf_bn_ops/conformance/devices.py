"""Devices of TensorFlow that ops are run on: their names, and whether they are there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any


class DeviceError(ValueError):
    """A device that is not there, or no name of one; the message is one sentence."""


def parse(text: str) -> str:
    """The name of a device as this package writes it, "GPU:0", of "/gpu:0", "GPU" and so on.

    Raises:
      DeviceError: it is none.
    """
    match = re.fullmatch(r"/?(?:device:)?([A-Za-z_]+)(?::(\d+))?", text.strip())
    if not match:
        raise DeviceError(f"{text!r} names no device; write CPU:0, GPU:0 or so")
    return f"{match.group(1).upper()}:{match.group(2) or 0}"


def facts(tf: Any) -> dict[str, Any]:
    """The version of TensorFlow, the names of its devices, and what its GPUs are called."""
    gpus = [
        tf.config.experimental.get_device_details(device).get("device_name", "unknown")
        for device in tf.config.list_physical_devices("GPU")
    ]
    names = [parse(device.name) for device in tf.config.list_logical_devices()]
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
