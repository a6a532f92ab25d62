"""TensorFlow's own batch-norm ops on this library's kernels, for a whole process.

Of the kernels that are registered for an op, the one of the highest priority runs; loading
libtf_bn_ops_override.so registers ours with a higher one. Nothing else loads that library.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from tf_bn_ops import _after_import

OVERRIDE_VARIABLE = "TF_BN_OPS_OVERRIDE"

# Minor versions whose op names, kernel labels and priorities were verified.
_KNOWN_TENSORFLOW = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21")

_OPS = (
    "FusedBatchNorm",
    "FusedBatchNormV2",
    "FusedBatchNormV3",
    "FusedBatchNormGrad",
    "FusedBatchNormGradV2",
    "FusedBatchNormGradV3",
    # What TensorFlow's graph optimizer makes of a forward op and the Relu behind it, with oneDNN.
    "_FusedBatchNormEx",
)
# Its gradient, which TensorFlow has no kernel for on a CPU.
_ADDED_OPS = ("_FusedBatchNormGradEx",)
# TensorFlow renames the ops to these where oneDNN is on.
_ONEDNN_OPS = tuple("_MklNative" + op.removeprefix("_") for op in _OPS)


class OverriddenKernel(NamedTuple):
    """A kernel of TensorFlow that is replaced in this process, or added for an op without one.

    Attributes:
      op: the name of the op; "_MklNative..." is what TensorFlow renames it to where oneDNN is on.
      device: "CPU".
      dtype: element type of x, by its name in TensorFlow.
    """

    op: str
    device: str
    dtype: str


_lock = threading.Lock()
_overridden: list[OverriddenKernel] | None = None


def override_builtin_kernels() -> list[OverriddenKernel]:
    """Makes TensorFlow's FusedBatchNorm and FusedBatchNormGrad run on this library's CPU kernels.

    That is V1, V2 and V3 of both, and _FusedBatchNormEx, to which TensorFlow's graph optimizer
    fuses a forward op and its Relu. Its gradient, _FusedBatchNormGradEx, which TensorFlow computes
    on GPUs alone, gets kernels for CPUs. From then on, in this process: eager and in graphs,
    training and inference, with oneDNN on or off, also below `tf.GradientTape` and Keras 2
    (tf_keras). Keras 3's BatchNormalization never calls these ops: `tf_bn_ops.keras.enable()` is
    the switch for it.

    It cannot be undone; calling it again does nothing. Call it before the first training step: a
    `tf.compat.v1.Session` that has run the ops keeps the kernels that it has. Programs compiled by
    XLA (`jit_compile=True`) hold no such kernels and do not change.

    The environment variable TF_BN_OPS_OVERRIDE=1 has the same effect, see docs/dropin.md.

    Returns:
      The kernels that were replaced or added, in the order of ops and types.

    Raises:
      LibraryError: (an ImportError) the library is missing, or does not fit this TensorFlow, or
        this TensorFlow is of a version on which that has not been verified.
    """
    global _overridden
    with _lock:
        if _overridden is None:
            _overridden = _override()
        return list(_overridden)


def check_known(version: str) -> None:
    """Refuses a TensorFlow on which the override has not been verified.

    Raises:
      LibraryError: (an ImportError) with what to do instead.
    """
    from tf_bn_ops import _loader

    if ".".join(version.split(".")[:2]) not in _KNOWN_TENSORFLOW:
        raise _loader.LibraryError(
            f"the kernels of TensorFlow {version} cannot be overridden: known are those of "
            f"TensorFlow {', '.join(_KNOWN_TENSORFLOW)}; call the ops of tf_bn_ops by their names "
            "instead, or rewrite graphs with tf_bn_ops.rewrite"
        )


def _override() -> list[OverriddenKernel]:
    # Not above: the start-up hook imports this module in every Python process.
    from tf_bn_ops import _loader

    path = _loader.override_library_path()
    import tensorflow as tf
    from tensorflow.python.eager import context

    check_known(tf.__version__)
    before = _registered(priority=0)
    _loader.load_kernels(path)
    ours = set(_registered(priority=1))
    # It caches the kernels of eager calls and functions that have run.
    context.context().clear_kernel_cache()
    replaced = [
        kernel for kernel in sorted(ours, key=_order) if kernel in before or kernel.op in _ADDED_OPS
    ]
    if not {kernel.op for kernel in replaced} >= {*_OPS, *_ADDED_OPS}:
        raise _loader.LibraryError(
            f"{path} was loaded, but TensorFlow {tf.__version__} does not list its kernels: "
            "rebuild it with 'make'"
        )
    return replaced


def _registered(priority: int) -> list[OverriddenKernel]:
    """The kernels of this priority that TensorFlow has on a CPU."""
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    result = set()
    for op in _OPS + _ADDED_OPS + _ONEDNN_OPS:
        for kernel in kernels.get_registered_kernels_for_op(op).kernel:
            if kernel.priority != priority or kernel.device_type != "CPU":
                continue
            for constraint in kernel.constraint:
                if constraint.name == "T":
                    for dtype in constraint.allowed_values.list.type:
                        result.add(OverriddenKernel(op, "CPU", tf.dtypes.as_dtype(dtype).name))
    return sorted(result, key=_order)


def _order(kernel: OverriddenKernel) -> tuple[bool, OverriddenKernel]:
    return kernel.op.startswith("_"), kernel


# ---- The environment variable --------------------------------------------------------------------


def requested() -> bool:
    """Whether TF_BN_OPS_OVERRIDE is set, to neither 0 nor false."""
    return _after_import.requested(OVERRIDE_VARIABLE)


def follow_environment() -> None:
    """Overrides as soon as TensorFlow is imported, if TF_BN_OPS_OVERRIDE is set."""
    if requested():
        _after_import.call_after_import("tensorflow", override_builtin_kernels)
