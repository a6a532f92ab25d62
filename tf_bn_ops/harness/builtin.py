"""Whether TensorFlow's op names run TensorFlow's kernels: what a reference has to be."""

from __future__ import annotations

import os
import pathlib

from tf_bn_ops import _loader, _startup, spec

# What replaces kernels, and what fuses graphs, is loaded by `enable` alone.
_SWITCHED = (_loader.OVERRIDE_LIBRARY, _loader.OPTIMIZER_LIBRARY)
# Ops without a Python name that graphs of the others become.
_INTERNAL = ("_FusedBatchNormEx", "_FusedBatchNormGradEx")


def switch_note() -> str:
    """What a run says where TF_BN_OPS is set, which `processes.Process` takes away; else ""."""
    value = os.environ.get(_startup.VARIABLE, "").strip()
    said = f"{_startup.VARIABLE}={value} is set: the processes of this run start without it"
    return said if value else ""


def check_kernels() -> None:
    """Refuses this process as a reference where its kernels are not TensorFlow's.

    Something else than TF_BN_OPS may have called `enable`: a sitecustomize.py, a plug-in. Errors of
    this library would be compared with themselves.

    Raises:
      ImportError: they are not; in one sentence.
    """
    from tensorflow.python.framework import kernels

    maps = pathlib.Path("/proc/self/maps")
    loaded = maps.read_text(encoding="utf-8", errors="replace") if maps.exists() else ""
    found = [f"{name} is loaded" for name in _SWITCHED if f"/{name}" in loaded]
    names = [op.builtin for op in spec.OPS.values() if op.builtin]
    for name in (*names, *_INTERNAL, *(f"_MklNative{n.removeprefix('_')}" for n in names)):
        for kernel in kernels.get_registered_kernels_for_op(name).kernel:
            # The kernel of the highest priority runs; TensorFlow's have 0.
            if kernel.device_type == "CPU" and kernel.priority > 0:
                found.append(f"{name} has a kernel of priority {kernel.priority}")
    if found:
        raise ImportError(
            f"this process does not run TensorFlow's kernels ({found[0]}): find what calls "
            "tf_bn_ops.enable() or replaces kernels at the start of Python, and take it away"
        )
