"""What `tf_bn_ops.enable(keras=True)` does to Keras' own BatchNormalization, and the way back.

The class stays and its method `call` is exchanged, so what such a program saves names
keras.layers.BatchNormalization and loads where this library is not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from keras.src import layers  # Not keras.layers: _fused_call.py.

from tf_bn_ops.keras._fused_call import fused_call, not_by_auto

_LAYER = layers.BatchNormalization


def enable() -> None:
    """Puts every `keras.layers.BatchNormalization` of this process on the fused ops; threads may
    call it at the same time."""
    _LAYER.call = _switched(_keras_call())
    _LAYER.supports_jit = not_by_auto


def disable() -> None:
    """Undoes `tf_bn_ops.enable(keras=True)` and TF_BN_OPS for Keras' layers.

    Functions that TensorFlow has traced in between stay on the fused ops.
    """
    _LAYER.call = _keras_call()
    with contextlib.suppress(AttributeError):
        del _LAYER.supports_jit


def is_enabled() -> bool:
    return hasattr(_LAYER.call, "tf_bn_ops_replaces")


def _keras_call() -> Callable[..., Any]:
    """Keras' own method, whether it is exchanged or not."""
    call: Callable[..., Any] = getattr(_LAYER.call, "tf_bn_ops_replaces", _LAYER.call)
    return call


def _switched(parent_call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(parent_call)
    def call(self: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return fused_call(self, functools.partial(parent_call, self), inputs, training, mask)

    # With the class, and not in this module, which may be imported anew.
    call.tf_bn_ops_replaces = parent_call  # type: ignore[attr-defined]
    return call
