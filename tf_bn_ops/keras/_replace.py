"""Exchanges the normalizations of a whole model, and tells which of them are fused.

A layer changes its class and stays the same object: whatever refers to it, wrappers, graphs of
layers, optimizers, checkpoints, goes on without a change (docs/adr/0019).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras

from tf_bn_ops.keras import _fusion, _switch
from tf_bn_ops.keras._copy import copy_model
from tf_bn_ops.keras._fused_call import why_unfused
from tf_bn_ops.keras._layer import BatchNormalization
from tf_bn_ops.keras._verify import Verification

_KERAS_LAYER = keras.layers.BatchNormalization
# Where a replaced layer keeps the `supports_jit` of Keras' layer.
_SUPPORTED_JIT = "_tf_bn_ops_supported_jit"
_LOGGER = logging.getLogger("tf_bn_ops")

# A model keeps its class, for type checkers too.
_Model = TypeVar("_Model")


@dataclasses.dataclass(frozen=True)
class BatchNormReport:
    """Which normalizations of a model are on the fused ops.

    Attributes:
      fused: the paths of those that are, such as "resnet/block3/bn".
      unfused: path to reason of the others, the reason as the end of a sentence about the layer.
      activations: path of a layer in `fused` -> what it is fused with in one op: "relu", "relu6",
        "add, relu" or "add, relu6".
      alone: path to reason of those in `fused` that are fused with no activation.
    """

    fused: tuple[str, ...]
    unfused: dict[str, str]
    activations: dict[str, str] = dataclasses.field(default_factory=dict)
    alone: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        total = len(self.fused) + len(self.unfused)
        text = f"fused {len(self.fused)} of {total}{_reasons(self.unfused)}"
        if self.activations:
            text += f"\n{self.with_activation()}"
        return text

    def with_activation(self) -> str:
        """A sentence about `activations` and `alone`."""
        return (
            f"fused {len(self.activations)} of {len(self.fused)} with the activation"
            f"{_reasons(self.alone)}"
        )


def batch_norm_report(model: Any) -> BatchNormReport:
    """Says which normalizations of a model are on the fused ops, and why the others are not.

    Calls may take Keras' path nevertheless, which depends on what they are given: a mask, an input
    of unknown rank.

    Args:
      model: any Keras model or layer.
    """
    fused, unfused, activations, alone = [], {}, {}, {}
    whys = _fusion.why_not_fused(_checked(model))
    for path, layer in _batch_norms(model):
        reason = why_unfused(layer)
        if (
            reason is None
            and not _switch.is_enabled()
            and not isinstance(layer, BatchNormalization)
        ):
            reason = _derived(layer) or "is keras.layers.BatchNormalization"
        behind = _fusion.fused_with(layer)
        if reason is not None:
            unfused[path] = reason
            continue
        fused.append(path)
        if behind is not None:
            activations[path] = behind
        else:
            alone[path] = whys.get(id(layer), "is in no graph of layers")
    return BatchNormReport(tuple(fused), unfused, activations, alone)


def replace_batch_norm(
    model: _Model, *, inplace: bool = False, fuse: bool = False, verify: Any = None
) -> _Model:
    """A model with this module's BatchNormalization in the place of Keras'.

    Layers are found wherever Keras tracks them: in nested and subclassed models, custom layers and
    wrappers such as TimeDistributed. What cannot be replaced stays as it is: layers of classes that
    are derived from Keras', and those of which no call can be fused. They are logged by name with
    the reason (logger "tf_bn_ops"), and `batch_norm_report` returns them.

    The copy is made by Keras' own saving and holds all state: class of the model, weights, adapted
    layers, seeds, `trainable`, compilation and optimizer. Where Keras cannot save a model, or loses
    state on the way, it is refused. With `inplace=True` there is no copy to be made, and any Keras
    model will do.

    With `fuse=True` a normalization also computes what follows it, in training as one op in each
    direction: ReLU or ReLU6 (the layers ReLU and Activation), or an Add of two tensors and then
    such an activation. That is in graphs of layers, Functional and Sequential models and those
    nested in them, where nothing else reads what is between the layers. Layers, names, weights and
    results stay: the layers of a chain divide the work anew, so that a call of one of them alone,
    a new model from the output of one, or a Sequential model without the last of them computes
    something else. With `inplace=True` that goes for all models that share layers with this one,
    those built before, too. What is not fused is logged with the reason, and `batch_norm_report`
    returns it.

    Args:
      model: a Keras model; with `inplace=True` also a layer.
      inplace: True to replace the layers in `model` itself. Its functions for training, evaluation
        and prediction are traced again; a `tf.function` of your own that has called the model
        keeps Keras' path.
      fuse: True to fuse the layers with what follows them.
      verify: an input of the model, one batch. The model is called with it before and after, in
        inference and in training, without a lasting effect on its state, and the results compared.

    Returns:
      The copy, or `model` if `inplace`.

    Raises:
      TypeError: not a model of Keras 3; tf_keras has TensorFlow's fused ops already.
      ValueError: `model` cannot be copied, or `verify` finds that it computes something else.
    """
    return _exchange(model, inplace, verify, _replace_all if not fuse else _replace_and_fuse)


def restore_batch_norm(model: _Model, *, inplace: bool = False, verify: Any = None) -> _Model:
    """The way back: Keras' BatchNormalization in the place of this module's.

    Layers that `replace_batch_norm` fused with what follows are separated. What the restored model
    saves loads in a process without this library. What Keras' layer cannot compute stays, and is
    logged: `activation` and side inputs of this module's layer.

    Args:
      model: a Keras model; with `inplace=True` also a layer.
      inplace, verify: as for `replace_batch_norm`.

    Returns:
      A copy, or `model` if `inplace`.

    Raises:
      TypeError, ValueError: as `replace_batch_norm`.
    """
    return _exchange(model, inplace, verify, _restore_all)


def _exchange(
    model: Any, inplace: bool, verify: Any, change: Callable[[Any], list[_fusion.Undo]]
) -> Any:
    """Changes layers of a model or of its copy, and undoes it if the results are others."""
    _checked(model)
    if not inplace and not isinstance(model, keras.Model):
        raise TypeError(
            f"{type(model).__name__} is a layer and no model: pass inplace=True to change it itself"
        )
    verification = None if verify is None else Verification(model, verify)
    result = model if inplace else copy_model(model)
    undo = change(result)
    _forget_functions(result)
    if verification is not None:
        try:
            verification.check(result)
        except BaseException:  # Whatever a call of the model raises.
            for step in reversed(undo):
                step()
            _forget_functions(result)
            raise
    return result


def _replace_all(model: Any) -> list[_fusion.Undo]:
    return _change_all(
        model, BatchNormalization, lambda layer: not _is_ours(layer), _why_kept, "replaced"
    )


def _replace_and_fuse(model: Any) -> list[_fusion.Undo]:
    undo = [*_replace_all(model), *_fusion.fuse(model)]
    _LOGGER.info("%s", batch_norm_report(model).with_activation())
    return undo


def _restore_all(model: Any) -> list[_fusion.Undo]:
    undo = _fusion.unfuse(model)
    is_ours = lambda layer: isinstance(layer, BatchNormalization)  # noqa: E731
    return [*undo, *_change_all(model, _KERAS_LAYER, is_ours, _why_not_restored, "restored")]


def _change_all(
    model: Any,
    kind: type,
    concerns: Callable[[Any], bool],
    why_kept: Callable[[Any], str | None],
    done: str,
) -> list[_fusion.Undo]:
    """Makes the layers that `concerns` finds layers of class `kind`, if nothing speaks against."""
    undo, kept = [], {}
    for path, layer in _batch_norms(model):
        if not concerns(layer):
            continue
        reason = why_kept(layer)
        if reason is None:
            undo.append(_change_class(layer, kind))
        else:
            kept[path] = reason
    _LOGGER.log(
        logging.WARNING if kept else logging.INFO,
        "%s %d of %d%s",
        done,
        len(undo),
        len(undo) + len(kept),
        _reasons(kept),
    )
    return undo


def _change_class(layer: Any, kind: type) -> _fusion.Undo:
    if kind is BatchNormalization:
        supports_jit = {_SUPPORTED_JIT: vars(layer)["supports_jit"], "supports_jit": False}
    else:
        supports_jit = {
            _SUPPORTED_JIT: None,
            "supports_jit": vars(layer).get(_SUPPORTED_JIT, True),
        }
    return _fusion.change_class(layer, kind, **supports_jit)


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


def _is_ours(layer: Any) -> bool:
    return type(layer) is BatchNormalization


def _derived(layer: Any) -> str | None:
    """Says that a layer's class is neither Keras' nor ours; else None."""
    if "call" in vars(layer):
        return "has a call of its own"
    if type(layer) in (_KERAS_LAYER, BatchNormalization):
        return None
    return f"is of the derived class {type(layer).__name__}"


def _why_kept(layer: Any) -> str | None:
    return _derived(layer) or why_unfused(layer)


def _why_not_restored(layer: Any) -> str | None:
    if _fusion.fused_with(layer) is not None:
        return f"computes the activation {_fusion.fused_with(layer)}"
    if any("side_input" in node.arguments.kwargs for node in layer._inbound_nodes):
        return "has a side input"
    return _derived(layer)


def _reasons(reasons: dict[str, str]) -> str:
    return ": " + "; ".join(f"{path} {why}" for path, why in reasons.items()) if reasons else ""
