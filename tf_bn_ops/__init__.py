"""Batch normalization and its gradient as TensorFlow ops that can be replaced and checked.

    import tf_bn_ops
    grads = tf_bn_ops.fused_batch_norm_grad(dy, x, scale, mean, variance, epsilon=1e-3)
    grads.x_backprop, grads.scale_backprop, grads.offset_backprop

Importing the package loads nothing: its functions are imported at their first use, and TensorFlow
and the op library by the first call. So the start-up hook (docs/dropin.md) imports no NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tf_bn_ops import _startup
from tf_bn_ops._version import __version__ as __version__

__all__ = [
    "Enabled",
    "LibraryError",
    "cxx_flags",
    "enable",
    "fused_batch_norm",
    "fused_batch_norm_grad",
    "get_include",
    "get_lib",
    "instance_norm",
    "library_path",
    "load",
    "report",
]

_startup.follow_environment()

if TYPE_CHECKING:
    from tf_bn_ops import keras as keras
    from tf_bn_ops import raw_ops as raw_ops
    from tf_bn_ops import rewrite as rewrite
    from tf_bn_ops._enable import Enabled, enable
    from tf_bn_ops._fused import fused_batch_norm
    from tf_bn_ops._instance_norm import instance_norm
    from tf_bn_ops._loader import (
        LibraryError,
        cxx_flags,
        get_include,
        get_lib,
        library_path,
        load,
    )
    from tf_bn_ops._report import report
    from tf_bn_ops.generated.bindings import fused_batch_norm_grad
else:
    _MODULES = {
        "Enabled": "_enable",
        "LibraryError": "_loader",
        "cxx_flags": "_loader",
        "enable": "_enable",
        "fused_batch_norm": "_fused",
        "fused_batch_norm_grad": "generated.bindings",
        "get_include": "_loader",
        "get_lib": "_loader",
        "instance_norm": "_instance_norm",
        "library_path": "_loader",
        "load": "_loader",
        "report": "_report",
    }

    def __getattr__(name: str) -> Any:
        if name in ("keras", "raw_ops", "rewrite"):
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value  # The next use does not come here.
        return value


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext tf_bn_ops`: the switch in a notebook, before or after TensorFlow is imported."""
    _startup.follow_command("1", show=print)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "keras", "raw_ops", "rewrite"])
