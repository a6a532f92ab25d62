"""Exchanges the normalizations of a whole model, and tells which of them are fused.

A layer changes its class and stays the same object: whatever refers to it, wrappers, graphs of
layers, optimizers, checkpoints, goes on without a change (docs/adr/0019).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tf_bn_ops.keras import _switch
from tf_bn_ops.keras._copy import copy_model
from tf_bn_ops.keras._fused_call import why_unfused
from tf_bn_ops.keras._layer import BatchNormalization
from tf_bn_ops.keras._verify import Verification

_KERAS_LAYER = keras.layers.BatchNormalization
# Where a replaced layer keeps the `supports_jit` of Keras' layer.
_SUPPORTED_JIT = "_tf_bn_ops_supported_jit"


@dataclasses.dataclass(frozen=True)
class BatchNormReport:
    """Which normalizations of a model are on the fused ops.

    Attributes:
      fused: the paths of those that are, such as "resnet/block3/bn".
      unfused: path to reason of the others, the reason as the end of a sentence about the layer.
    """

    fused: tuple[str, ...]
    unfused: dict[str, str]

    def __str__(self) -> str:
        total = len(self.fused) + len(self.unfused)
        return f"fused {len(self.fused)} of {total}{_reasons(self.unfused)}"


def batch_norm_report(model: Any) -> BatchNormReport:
    """Says which normalizations of a model are on the fused ops, and why the others are not.

    Calls may take Keras' path nevertheless, which depends on what they are given: a mask, an input
    of unknown rank.

    Args:
      model: any Keras model or layer.
    """
    fused, unfused = [], {}
    for path, layer in _batch_norms(_checked(model)):
        reason = why_unfused(layer)
        if (
            reason is None
            and not _switch.is_enabled()
            and not isinstance(layer, BatchNormalization)
        ):
            reason = _derived(layer) or "is keras.layers.BatchNormalization"
        if reason is None:
            fused.append(path)
        else:
            unfused[path] = reason
    return BatchNormReport(tuple(fused), unfused)


def replace_batch_norm(model: Any, *, inplace: bool = False, verify: Any = None) -> Any:
    """A model with this module's BatchNormalization in the place of Keras'.

    Layers are found wherever Keras tracks them: in nested and subclassed models, custom layers and
    wrappers such as TimeDistributed. What cannot be replaced stays as it is: layers of classes that
    are derived from Keras', and those of which no call can be fused. They are logged by name with
    the reason (logger "tf_bn_ops"), and `batch_norm_report` returns them.

    The copy is made by Keras' own saving and holds all state: class of the model, weights, adapted
    layers, seeds, `trainable`, compilation and optimizer. Where Keras cannot save a model, or loses
    state on the way, it is refused. With `inplace=True` there is no copy to be made, and any Keras
    model will do.

    Args:
      model: a Keras model; with `inplace=True` also a layer.
      inplace: True to replace the layers in `model` itself. Its functions for training, evaluation
        and prediction are traced again; a `tf.function` of your own that has called the model
        keeps Keras' path.
      verify: an input of the model, one batch. The model is called with it before and after, in
        inference and in training, without a lasting effect on its state, and the results compared.

    Returns:
      The copy, or `model` if `inplace`.

    Raises:
      TypeError: not a model of Keras 3; tf_keras has TensorFlow's fused ops already.
      ValueError: `model` cannot be copied, or `verify` finds that it computes something else.
    """
    return _exchange(model, inplace, verify, "replaced", BatchNormalization, _why_kept)


def restore_batch_norm(model: Any, *, inplace: bool = False, verify: Any = None) -> Any:
    """The way back: Keras' BatchNormalization in the place of this module's.

    What the restored model saves loads in a process without this library.

    Args:
      model: a Keras model; with `inplace=True` also a layer.
      inplace, verify: as for `replace_batch_norm`.

    Returns:
      A copy, or `model` if `inplace`.

    Raises:
      TypeError, ValueError: as `replace_batch_norm`.
    """
    return _exchange(model, inplace, verify, "restored", _KERAS_LAYER, _derived)


def _exchange(
    model: Any,
    inplace: bool,
    verify: Any,
    done: str,
    kind: type,
    why_kept: Callable[[Any], str | None],
) -> Any:
    """Makes the layers of a model layers of class `kind`, where `why_kept` has no objection."""
    _checked(model)
    if not inplace and not isinstance(model, keras.Model):
        raise TypeError(
            f"{type(model).__name__} is a layer and no model: pass inplace=True to change it itself"
        )
    verification = None if verify is None else Verification(model, verify)
    result = model if inplace else copy_model(model)
    exchanged, kept = [], {}
    for path, layer in _batch_norms(result):
        if type(layer) is kind or (
            kind is _KERAS_LAYER and not isinstance(layer, BatchNormalization)
        ):
            continue
        reason = why_kept(layer)
        if reason is None:
            exchanged.append(layer)
        else:
            kept[path] = reason
    for layer in exchanged:
        _change_class(layer, kind)
    _forget_functions(result)
    if verification is not None:
        try:
            verification.check(result)
        except ValueError:
            for layer in exchanged:
                _change_class(layer, BatchNormalization if kind is _KERAS_LAYER else _KERAS_LAYER)
            _forget_functions(result)
            raise
    logging.getLogger("tf_bn_ops").log(
        logging.WARNING if kept else logging.INFO,
        "%s %d of %d%s",
        done,
        len(exchanged),
        len(exchanged) + len(kept),
        _reasons(kept),
    )
    return result


def _change_class(layer: Any, kind: type) -> None:
    layer.__class__ = kind
    if kind is BatchNormalization:
        vars(layer)[_SUPPORTED_JIT] = vars(layer)["supports_jit"]
        layer.supports_jit = False
    else:
        layer.supports_jit = vars(layer).pop(_SUPPORTED_JIT, True)


def _forget_functions(model: Any) -> None:
    """Has the functions of compiled models traced again, which hold the call of the old class."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.Model):
            layer.train_function = layer.test_function = layer.predict_function = None


# ---- Finding layers ------------------------------------------------------------------------------


def _checked(model: Any) -> Any:
    if isinstance(model, keras.layers.Layer):
        return model
    modules = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    if "tf_keras" in modules:
        raise TypeError(
            "a tf_keras model needs no replacement: its BatchNormalization calls TensorFlow's "
            "fused ops, which tf_bn_ops.override_builtin_kernels() puts on this library's kernels"
        )
    raise TypeError(f"this takes a model of Keras 3, not a {type(model).__name__}")


def _batch_norms(model: Any) -> Iterator[tuple[str, Any]]:
    """Path and layer of each normalization of a model, shared ones once."""
    seen: set[int] = set()

    def walk(layer: Any, path: str) -> Iterator[tuple[str, Any]]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        if isinstance(layer, _KERAS_LAYER):
            yield path or layer.name, layer
        for child in layer._layers:
            yield from walk(child, f"{path}/{child.name}" if path else child.name)

    yield from walk(model, "")


def _derived(layer: Any) -> str | None:
    """Says that a layer's class is neither Keras' nor ours; else None."""
    if "call" in vars(layer):
        return "has a call of its own"
    if type(layer) in (_KERAS_LAYER, BatchNormalization):
        return None
    return f"is of the derived class {type(layer).__name__}"


def _why_kept(layer: Any) -> str | None:
    return _derived(layer) or why_unfused(layer)


def _reasons(reasons: dict[str, str]) -> str:
    return ": " + "; ".join(f"{path} {why}" for path, why in reasons.items()) if reasons else ""
