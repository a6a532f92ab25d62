"""Devices of TensorFlow that ops are placed on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

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


def check_place(device: str | None, outputs: Sequence[Any]) -> None:
    """Raises DeviceError where outputs are not on the device that the op was placed on."""
    if device is None or device.startswith("CPU"):
        return
    for output in outputs:
        if not output.device.upper().endswith(f":{device}"):
            raise DeviceError(f"an output is on {output.device}: the op ran elsewhere")


def kernels(
    tf: Any, device: str, names: Sequence[str], variance_of: Callable[..., np.ndarray]
) -> dict[str, Any]:
    """Which ops have kernels on a device, and what its forward op keeps for the gradient.

    Args:
      tf: TensorFlow.
      device: the device.
      names: ops.
      variance_of: runs FusedBatchNormV3 there; reserve_space_2.

    Returns:
      "dtypes": op -> element types that it has a kernel for; "saves_rstd": whether reserve_space_2
      of training is 1/sqrt(variance + epsilon), as on GPUs, None where there is no forward op.
    """
    from tensorflow.python.framework import kernels as registry

    found: dict[str, Any] = {}
    for name in names:
        dtypes: list[str] = []
        for kernel in registry.get_registered_kernels_for_op(name).kernel:
            if kernel.device_type in (device.partition(":")[0], "DEFAULT"):
                allowed = [c.allowed_values.list.type for c in kernel.constraint if c.name == "T"]
                dtypes += [tf.as_dtype(t).name for types in allowed for t in types]
        found[name] = [{"float16": "half"}.get(dtype, dtype) for dtype in dict.fromkeys(dtypes)]
    saves_rstd = None
    if "float32" in found.get("FusedBatchNormV3", ()):
        x = np.array([-3, 3, 5, -5], np.float32).reshape(1, 1, 4, 1)
        one, none = np.ones(1, np.float32), np.zeros(0, np.float32)
        with placed(tf, device):
            kept = float(variance_of(x=x, scale=one, offset=one, mean=none, variance=none)[0])
        saves_rstd = abs(kept - 17) > abs(kept - 17**-0.5)
    return {"dtypes": found, "saves_rstd": saves_rstd}


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
