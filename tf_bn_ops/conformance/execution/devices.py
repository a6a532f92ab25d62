"""Devices of TensorFlow that ops are placed on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases.mapping import parse_device
from tf_bn_ops.harness.problems import IDENTITY, RELU, Inputs

# Our op -> the op of TensorFlow without a Python name, which a device may have kernels for.
INTERNAL = {name: f"_{name}" for name in ("FusedBatchNormEx", "FusedBatchNormGradEx")}


def facts(tf: Any) -> dict[str, Any]:
    """The version of TensorFlow, the names of its devices, and what its GPUs are called."""
    gpus = [
        tf.config.experimental.get_device_details(device).get("device_name", "unknown")
        for device in tf.config.list_physical_devices("GPU")
    ]
    names = [parse_device(device.name) for device in tf.config.list_logical_devices()]
    return {"tensorflow": tf.__version__, "gpus": gpus, "devices": names}


def check(device: str | None, facts: Mapping[str, Any]) -> None:
    """Raises UsageError where TensorFlow, whose facts are given, does not have the device."""
    there = facts.get("devices", ())
    if device is not None and device not in there:
        raise UsageError(f"there is no device {device}; TensorFlow has {', '.join(there)}")


def check_place(device: str | None, outputs: Sequence[Any]) -> None:
    """Raises a RuntimeError where outputs are not on the device that the op was placed on."""
    if device is None or device.startswith("CPU"):
        return
    for output in outputs:
        if not output.device.upper().endswith(f":{device}"):
            raise RuntimeError(f"an output is on {output.device}: the op ran elsewhere")


class Ops:
    """tf.raw_ops and the ops of INTERNAL, under their names here."""

    def __init__(self, plugin: str):
        """`plugin`: the library of a device, or nothing."""
        import tensorflow as tf
        from tensorflow.python.framework import load_library

        if plugin:
            load_library.load_pluggable_device_library(plugin)
        self._tf = tf

    def __getattr__(self, name: str) -> Any:
        if name in INTERNAL:
            return functools.partial(self._internal, INTERNAL[name])
        return getattr(self._tf.raw_ops, name)

    def _internal(
        self,
        name: str,
        bessel_correction: bool = True,
        leakyrelu_alpha: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Runs the op in a graph, as one without a Python name has to be. Shapes are unknown there:
        _FusedBatchNormEx holds known ones to cuDNN's multiples of 4 channels. It lacks the two
        attrs; none of its activations has a slope."""
        from tensorflow.python.framework import op_def_library

        assert bessel_correction, "TensorFlow's op has no such attr: as_internal"
        tf = self._tf
        tensors = {n: v for n, v in arguments.items() if isinstance(v, (list, tf.Tensor))}
        attrs = {n: v for n, v in arguments.items() if n not in tensors}
        types = tf.nest.map_structure(lambda t: tf.TensorSpec(None, t.dtype), tensors)

        @tf.function(input_signature=[types])
        def call(given: dict[str, Any]) -> Any:
            return op_def_library.apply_op(name, name="op", **given, **attrs)

        return call(tensors)


def as_internal(inputs: Inputs) -> Inputs:
    """The inputs of an op of INTERNAL: the activation and correction that TensorFlow's has."""
    attrs = {**inputs.attrs}
    if "bessel_correction" in attrs:
        attrs["bessel_correction"] = True
    if attrs.get("activation_mode", IDENTITY) != IDENTITY:
        attrs["activation_mode"] = RELU
    return dataclasses.replace(inputs, attrs=attrs)


def kernels(tf: Any, device: str, variance_of: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Which ops have kernels on a device, and what its forward op keeps for the gradient.

    Args:
      tf: TensorFlow.
      device: the device.
      variance_of: runs FusedBatchNormV3 there; reserve_space_2.

    Returns:
      "dtypes": op -> element types that it has a kernel for; "layouts": op -> layouts of its OpDef;
      "saves_rstd": whether reserve_space_2 of training is 1/sqrt(variance + epsilon), as on GPUs,
      None where there is no forward op.
    """
    from tensorflow.python.framework import kernels as registry
    from tensorflow.python.framework import op_def_registry

    found: dict[str, Any] = {}
    layouts: dict[str, list[str]] = {}
    names = {op.name: op.builtin for op in spec.OPS.values() if op.builtin}
    if not device.startswith("CPU"):  # There they are stubs, which oneDNN's graph pass replaces.
        names |= INTERNAL
    for name, registered in names.items():
        dtypes: list[str] = []
        for kernel in registry.get_registered_kernels_for_op(registered).kernel:
            if kernel.device_type in (device.partition(":")[0], "DEFAULT"):
                allowed = [c.allowed_values.list.type for c in kernel.constraint if c.name == "T"]
                dtypes += [tf.as_dtype(t).name for types in allowed for t in types]
        found[name] = [{"float16": "half"}.get(dtype, dtype) for dtype in dict.fromkeys(dtypes)]
        attrs = {attr.name: attr for attr in op_def_registry.get(registered).attr}
        layouts[name] = [text.decode() for text in attrs["data_format"].allowed_values.list.s]
    saves_rstd = None
    if "float32" in found.get("FusedBatchNormV3", ()):
        x = np.array([-3, 3, 5, -5], np.float32).reshape(1, 1, 4, 1)
        one, none = np.ones(1, np.float32), np.zeros(0, np.float32)
        with placed(tf, device):
            kept = float(variance_of(x=x, scale=one, offset=one, mean=none, variance=none)[0])
        saves_rstd = abs(kept - 17) > abs(kept - 17**-0.5)
    return {"dtypes": found, "layouts": layouts, "saves_rstd": saves_rstd}


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
