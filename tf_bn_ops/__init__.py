"""Batch normalization and its gradient as TensorFlow ops that can be replaced and checked.

    import tf_bn_ops
    grads = tf_bn_ops.fused_batch_norm_grad(dy, x, scale, mean, variance, epsilon=1e-3)
    grads.x_backprop, grads.scale_backprop, grads.offset_backprop

Importing the package loads nothing: its functions are imported at their first use, and TensorFlow
and the op library by the first call. So the start-up hook (docs/dropin.md) imports no NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tf_bn_ops import _keras_environment, _override
from tf_bn_ops._version import __version__

__all__ = [
    "LibraryError",
    "__version__",
    "batch_norm_training_backprop",
    "fuse_graphs",
    "fused_batch_norm",
    "fused_batch_norm_grad",
    "fused_batch_norm_grad_grad",
    "fused_batch_norm_grad_v2",
    "fused_batch_norm_grad_v3",
    "get_include",
    "get_lib",
    "keras",
    "library_path",
    "load",
    "override_builtin_kernels",
    "raw_ops",
    "rewrite",
]

_override.follow_environment()
_keras_environment.follow_environment()

if TYPE_CHECKING:
    from tf_bn_ops import keras, raw_ops, rewrite
    from tf_bn_ops._fused import fused_batch_norm
    from tf_bn_ops._graph_fusion import fuse_graphs
    from tf_bn_ops._loader import LibraryError, get_include, get_lib, library_path
    from tf_bn_ops._ops import (
        batch_norm_training_backprop,
        fused_batch_norm_grad,
        fused_batch_norm_grad_grad,
        fused_batch_norm_grad_v2,
        fused_batch_norm_grad_v3,
        load,
    )
    from tf_bn_ops._override import override_builtin_kernels
else:
    _MODULES = {
        "LibraryError": "_loader",
        "batch_norm_training_backprop": "_ops",
        "fuse_graphs": "_graph_fusion",
        "fused_batch_norm": "_fused",
        "fused_batch_norm_grad": "_ops",
        "fused_batch_norm_grad_grad": "_ops",
        "fused_batch_norm_grad_v2": "_ops",
        "fused_batch_norm_grad_v3": "_ops",
        "get_include": "_loader",
        "get_lib": "_loader",
        "library_path": "_loader",
        "load": "_ops",
        "override_builtin_kernels": "_override",
    }

    def __getattr__(name: str) -> Any:
        if name in ("keras", "raw_ops", "rewrite"):
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value  # The next use does not come here.
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
