"""Exchanges the normalizations of a whole model, and tells which of them are fused.

A layer changes its class and stays the same object: whatever refers to it, wrappers, graphs of
layers, optimizers, checkpoints, goes on without a change (docs/adr/0019).
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
from keras.src import layers  # See _fused_call.py.

from tf_bn_ops import _report
from tf_bn_ops.keras import _switch
from tf_bn_ops.keras._fused_call import why_unfused
from tf_bn_ops.keras._layer import BatchNormalization
from tf_bn_ops.keras._verify import Verification

_KERAS_LAYER = layers.BatchNormalization
_LOGGER = logging.getLogger("tf_bn_ops")

# A model keeps its class, for type checkers too.
_Model = TypeVar("_Model")


@dataclasses.dataclass(frozen=True)
class BatchNormReport:
    """Which normalizations of a model are on the fused ops; the fields as `batch_norm_report`."""

    fused: tuple[str, ...]
    unfused: dict[str, str]

    def __str__(self) -> str:
        total = len(self.fused) + len(self.unfused)
        return _report.summary("fused", total, _stayed(self.unfused))


@dataclasses.dataclass(frozen=True)
class Report:
    """What was done to the normalizations of a model, and why not to the others."""

    verb: str
    done: tuple[str, ...]
    kept: dict[str, str]

    def __str__(self) -> str:
        total = len(self.done) + len(self.kept)
        return _report.summary(self.verb, total, _stayed(self.kept))


def batch_norm_report(model: Any) -> BatchNormReport:
    """Says which normalizations of a model are on the fused ops, and why the others are not.

    Calls may take Keras' path nevertheless, which depends on what they are given: a mask, an input
    of unknown rank.

    Args:
      model: any Keras model or layer.

    Returns:
      A report to be printed, with two fields: `fused`, a tuple of the paths of those that are, such
      as "resnet/block3/bn", and `unfused`, a dict of the others from path to reason, the reason as
      the end of a sentence about the layer.
    """
    fused, unfused = [], {}
    for path, layer in _batch_norms(_checked(model)):
        reason = why_unfused(layer)
        if reason is None and not _is_ours(layer) and not _switch.is_enabled():
            reason = _derived(layer) or "is keras.layers.BatchNormalization"
        if reason is None:
            fused.append(path)
        else:
            unfused[path] = reason
    return BatchNormReport(tuple(fused), unfused)


def replace_batch_norm(model: _Model, verify: Any = None) -> _Model:
    """Puts this module's BatchNormalization in the place of Keras', in the model itself.

    Layers are found wherever Keras tracks them: in nested and subclassed models, custom layers and
    wrappers such as TimeDistributed. They keep weights, names, `trainable` and everything else, and
    the model its compilation and the state of its optimizer. Its functions for training, evaluation
    and prediction are traced again; a `tf.function` of your own that has called the model keeps
    Keras' path. Models that share layers with this one share the change.

    What cannot be replaced stays as it is: layers of classes that are derived from Keras', and
    layers of which no call can be fused. They are logged by name with the reason (logger
    "tf_bn_ops"), and `batch_norm_report` returns them.

    Args:
      model: a Keras model or layer, built or not.
      verify: an input of the model, one batch. The model is called with it before and after, in
        inference and in training, without a lasting effect on its state, and the results compared.

    Returns:
      `model`.

    Raises:
      TypeError: not a model of Keras 3; tf_keras has TensorFlow's fused ops already.
      ValueError: `verify` finds that the model computes something else; nothing is replaced then.
    """
    _checked(model)
    verification = None if verify is None else Verification(model, verify)
    why_kept = lambda layer: _derived(layer) or why_unfused(layer)  # noqa: E731
    replaced = _change_all(model, BatchNormalization, why_kept, "replaced")
    if verification is not None:
        try:
            verification.check(model)
        except BaseException:  # Whatever a call of the model raises.
            for layer in replaced:
                _change_class(layer, _KERAS_LAYER)
            _forget_functions(model)
            raise
    return model


def restore_batch_norm(model: _Model) -> _Model:
    """Undoes `replace_batch_norm`: Keras' BatchNormalization in the place of this module's.

    The layers are again what they were. What the model saves loads in a process without this
    library. Layers that were made as this module's become Keras' too, but for those that Keras'
    layer cannot compute: with `activation` or a side input. They are logged.

    Args:
      model: a Keras model or layer.

    Returns:
      `model`.

    Raises:
      TypeError: as `replace_batch_norm`.
    """
    _change_all(_checked(model), _KERAS_LAYER, _why_not_restored, "restored")
    return model


def _change_all(
    model: Any, kind: type, why_kept: Callable[[Any], str | None], done: str
) -> list[Any]:
    """Makes normalizations of the other class layers of `kind`, if nothing speaks against it."""
    changed, kept = [], {}
    for path, layer in _batch_norms(model):
        if type(layer) is kind or (kind is _KERAS_LAYER and not _is_ours(layer)):
            continue
        reason = why_kept(layer)
        if reason is None:
            _change_class(layer, kind)
            changed.append(layer)
        else:
            kept[path] = reason
            if kind is not _KERAS_LAYER:
                _report.stay(path, reason, "requests")
    _forget_functions(model)
    level = logging.WARNING if kept else logging.INFO
    total = len(changed) + len(kept)
    _LOGGER.log(level, "%s", _report.summary(done, total, _stayed(kept)))
    return changed


def _change_class(layer: Any, kind: type) -> None:
    """Sets the class, and past Keras' tracking removes what is ours alone."""
    if kind is _KERAS_LAYER:
        for name in ("_activation", "_has_side_input"):
            vars(layer).pop(name, None)
    layer.__class__ = kind


def _forget_functions(model: Any) -> None:
    """Has the functions of compiled models traced again, which hold the call of the old class."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.Model):
            layer.train_function = layer.test_function = layer.predict_function = None


# ---- Finding layers ------------------------------------------------------------------------------


def _checked(model: Any) -> Any:
    if isinstance(model, layers.Layer):
        return model
    modules = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    if "tf_keras" in modules:
        raise TypeError(
            "a tf_keras model needs no replacement: its BatchNormalization calls TensorFlow's "
            "fused ops, which tf_bn_ops.enable() puts on this library's kernels"
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


def _is_ours(layer: Any) -> bool:
    return isinstance(layer, BatchNormalization)


def _derived(layer: Any) -> str | None:
    """Says that a layer's class is neither Keras' nor ours; else None."""
    if "call" in vars(layer):
        return "has a call of its own"
    if type(layer) in (_KERAS_LAYER, BatchNormalization):
        return None
    return f"is of the derived class {type(layer).__name__}"


def _why_not_restored(layer: Any) -> str | None:
    if layer._activation is not None:
        return f"computes the activation {layer._activation}"
    given = (_arguments(node).get("side_input") for node in layer._inbound_nodes)
    if layer._has_side_input or any(value is not None for value in given):
        return "has a side input"
    return _derived(layer)


def _arguments(node: Any) -> dict[str, Any]:
    """What a layer is called with at a node of a functional model, by name."""
    given, call = node.arguments, inspect.signature(node.operation.call)
    return call.bind_partial(*given.args, **given.kwargs).arguments


def _stayed(reasons: dict[str, str]) -> list[_report.Stayed]:
    return [_report.Stayed(path, "", why) for path, why in reasons.items()]
