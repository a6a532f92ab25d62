"""One switch that puts Keras' own BatchNormalization on the fused ops, for programs as they are.

The class stays and its method `call` is exchanged, so what such a program saves names
keras.layers.BatchNormalization and loads where this library is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from tf_bn_ops import _ops
from tf_bn_ops.keras._fused_call import fused_call

_LAYER = keras.layers.BatchNormalization

# Keras' `call` while the switch is on.
_parent_call: Callable[..., Any] | None = None


def enable() -> None:
    """Puts every `keras.layers.BatchNormalization` of this process on the fused ops.

    Layers made before and after, and derived classes as far as they use the parent's `call`,
    compute as `tf_bn_ops.keras.BatchNormalization` does: on the fused path where the result is
    Keras', on Keras' path elsewhere. Classes, names, configs and weights are Keras', so `.keras`,
    `.h5` and weight files that the program writes load in a process without this library.

    Call it before the model is trained: functions that TensorFlow has traced stay as they are,
    until `model.compile` is called again. Models with the layer are not compiled by XLA. Calling it
    again does nothing; `disable` undoes it.

    The environment variable TF_BN_OPS_KERAS=1 has the same effect, see docs/dropin.md.

    Raises:
      RuntimeError: Keras runs on another backend than TensorFlow.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    global _parent_call
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"Keras runs on {keras.backend.backend()}, and tf_bn_ops.keras.enable() is for its "
            "backend tensorflow: set KERAS_BACKEND=tensorflow, or leave the call out"
        )
    if _parent_call is not None:
        return
    _ops.load()  # what is missing is reported here, and not by the first training step
    _parent_call = _LAYER.call
    _LAYER.call = _switched(_parent_call)
    # Hides what Layer.__init__ stores in the instance: with jit_compile="auto" XLA would compile the
    # model.
    _LAYER.supports_jit = property(lambda layer: False, _store_supports_jit)


def disable() -> None:
    """Undoes `enable`; functions that TensorFlow has traced in between stay on the fused ops."""
    global _parent_call
    if _parent_call is None:
        return
    _LAYER.call = _parent_call
    del _LAYER.supports_jit
    _parent_call = None


def is_enabled() -> bool:
    return _parent_call is not None


def _switched(parent_call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(parent_call)
    def call(self: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return fused_call(self, functools.partial(parent_call, self), inputs, training, mask)

    return call


def _store_supports_jit(layer: Any, value: bool) -> None:
    vars(layer)["supports_jit"] = value
