"""Fuses normalizations with what follows them in graphs of layers: an Add, a ReLU or ReLU6.

No layer is added, removed or connected anew: the layers of a chain change their class, and divide
the work anew among them (docs/adr/0025). Batch norm and ReLU: the first computes both, the second
passes its input on. Batch norm, Add and ReLU: the first passes its input on, the Add computes all
three, the last passes its input on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.models.functional import Functional

from tf_bn_ops._fused import Activation
from tf_bn_ops.keras._fused_call import Behind, Deferred, fused_call, why_unfused
from tf_bn_ops.keras._layer import (
    INTO_ACTIVATION,
    INTO_ADDITION,
    BatchNormalization,
    check_readers,
)

_KERAS_LAYER = keras.layers.BatchNormalization

# ---- The layers behind a normalization -----------------------------------------------------------


@keras.saving.register_keras_serializable(package="tf_bn_ops")
class FusedAdd(keras.layers.Add):
    """The Add of a chain: it computes the normalization before it, and the activation behind it."""

    _activation: Activation

    def __init__(self, activation: Activation, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._activation = activation

    def call(self, inputs: Any) -> Any:
        check_readers(self)
        for tensor, side_input in ((inputs[0], inputs[1]), (inputs[1], inputs[0])):
            deferred = Deferred.of(tensor)
            if deferred is not None:
                layer, training, mask = deferred
                parent_call = functools.partial(_KERAS_LAYER.call, layer)
                behind = Behind(self._activation, side_input)
                return fused_call(layer, parent_call, tensor, training, mask, behind)
        raise RuntimeError(
            f"layer {self.name!r} is fused with the batch normalization before it, and was called "
            "with another tensor than that layer's: call the whole model, or restore it with "
            "tf_bn_ops.keras.restore_batch_norm"
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "activation": self._activation}


@keras.saving.register_keras_serializable(package="tf_bn_ops")
class FusedReLU(keras.layers.ReLU):
    """The ReLU of a chain, which a layer before it has computed."""

    def call(self, inputs: Any) -> Any:
        return inputs


@keras.saving.register_keras_serializable(package="tf_bn_ops")
class FusedActivation(keras.layers.Activation):
    """The same for the layer Activation."""

    def call(self, inputs: Any) -> Any:
        return inputs


_FUSED = {
    keras.layers.Add: FusedAdd,
    keras.layers.ReLU: FusedReLU,
    keras.layers.Activation: FusedActivation,
}
_UNFUSED = {fused: kind for kind, fused in _FUSED.items()}

# ---- Finding chains ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Layers whose work can be divided anew."""

    normalization: Any
    addition: Any  # None: there is none.
    activation: Any
    name: Activation  # Of the activation.

    @property
    def key(self) -> int:
        """The same for chains of which one alone can be fused."""
        return id(self.normalization if self.addition is None else self.addition)


class _NoChainError(Exception):
    """Why a normalization is not fused with what follows, as the end of a sentence about it."""


def _find_chains(model: Any) -> tuple[list[_Chain], dict[int, str]]:
    """The chains in the graphs of a model, and by id of the layer why others are not in one."""
    chains: dict[int, _Chain] = {}
    reasons: dict[int, str] = {}
    graphs = [*_graphs(model)]
    outputs = {
        id(tensor._keras_history.operation)
        for graph in graphs
        for tensor in keras.tree.flatten(graph.outputs)
    }
    for graph in graphs:
        for layer in _normalizations(graph):
            try:
                chain = _chain_of(layer, outputs)
            except _NoChainError as reason:
                reasons[id(layer)] = str(reason)
            else:
                # Of two normalizations that are added up, the last input is fused: in residual
                # blocks by convention not the shortcut.
                first, last = sorted([chains.get(chain.key, chain), chain], key=_input_index)
                chains[chain.key] = last
                if first.normalization is not last.normalization:
                    reasons[id(first.normalization)] = _taken(first.addition)
    return [*chains.values()], reasons


def _input_index(chain: _Chain) -> int:
    """Which input of the addition the normalization is."""
    if chain.addition is None:
        return 0
    tensors = chain.addition._inbound_nodes[0].input_tensors
    return [tensor._keras_history.operation for tensor in tensors].index(chain.normalization)


def _graphs(model: Any) -> Iterator[Any]:
    """The graphs of layers that Keras runs node by node, those of nested models too."""
    for layer in _all_layers(model):
        graph = layer._functional if isinstance(layer, keras.Sequential) else layer
        # A class that overrides call() may do anything with the layers.
        runs_nodes = isinstance(graph, Functional) and type(graph).call is Functional.call
        if runs_nodes and "call" not in vars(graph):
            yield graph


def _all_layers(model: Any) -> list[Any]:
    """A model and all layers in it, each once."""
    seen: dict[int, Any] = {}

    def walk(layer: Any) -> None:
        if id(layer) not in seen:
            seen[id(layer)] = layer
            for child in layer._layers:
                walk(child)

    walk(model)
    return [*seen.values()]


def _normalizations(graph: Any) -> Iterator[Any]:
    """Those not yet fused in the graph."""
    for layer in graph.layers:
        if isinstance(layer, _KERAS_LAYER) and getattr(layer, "fused_into", None) is None:
            yield layer


def _chain_of(layer: Any, outputs: set[int]) -> _Chain:
    if type(layer) not in (_KERAS_LAYER, BatchNormalization):
        raise _NoChainError(f"is of the derived class {type(layer).__name__}")
    if getattr(layer, "_activation", None) is not None:
        raise _NoChainError("computes an activation already")
    _check_member(layer, "is")
    reason = why_unfused(layer)
    if reason is not None:
        raise _NoChainError(reason)
    reader = _only_reader(layer, outputs, "is", "has")
    if type(reader) is FusedAdd:
        raise _NoChainError(_taken(reader))
    if type(reader) is not keras.layers.Add:
        return _Chain(layer, None, reader, _activation_of(layer, reader, "is followed by"))
    subject = f"is added up by {reader.name}, which"
    _check_addition(layer, reader, subject)
    activation = _only_reader(reader, outputs, f"{subject} is", f"{subject} has")
    name = _activation_of(reader, activation, f"{subject} is followed by")
    return _Chain(layer, reader, activation, name)


def _taken(addition: Any) -> str:
    return f"is added up by {addition.name}, which is fused with another normalization"


def _check_member(layer: Any, is_: str) -> None:
    """Raises unless the class of the layer says what it computes."""
    if "call" in vars(layer):
        raise _NoChainError(f"{is_} a layer with a call of its own")
    if getattr(layer, "_remat_mode", None) is not None:
        raise _NoChainError(f"{is_} rematerialized")


def _only_reader(layer: Any, outputs: set[int], is_: str, has: str) -> Any:
    """The operation that reads the output of a layer, if nothing else does, in any graph."""
    if id(layer) in outputs:
        raise _NoChainError(f"{is_} an output of the model")
    if layer.activity_regularizer is not None:
        raise _NoChainError(f"{has} an activity regularizer")
    readers = {id(node.operation): node.operation for node in layer._outbound_nodes}
    if len(readers) != 1:
        raise _NoChainError(f"{has} {len(readers)} readers")
    return next(iter(readers.values()))


def _inputs(layer: Any) -> list[list[Any]]:
    """The tensors of each call of a layer in a graph."""
    return [node.input_tensors for node in layer._inbound_nodes]


def _check_addition(layer: Any, addition: Any, subject: str) -> None:
    _check_member(addition, f"{subject} is")
    if addition.compute_dtype != layer.compute_dtype:
        raise _NoChainError(f"{subject} computes in another type")
    for tensors in _inputs(addition):
        if len(tensors) != 2:
            raise _NoChainError(f"{subject} has {len(tensors)} inputs")
        if sum(tensor._keras_history.operation is layer for tensor in tensors) != 1:
            raise _NoChainError(f"{subject} adds up other tensors, too")
        if tensors[0].shape != tensors[1].shape:
            raise _NoChainError(f"{subject} broadcasts")
        others = {tensor.dtype for tensor in tensors} - {layer.compute_dtype}
        if others:
            raise _NoChainError(f"{subject} has an input of {', '.join(sorted(others))}")


def _activation_of(layer: Any, activation: Any, followed: str) -> Activation:
    """Which activation a layer is, if it can be computed by `layer` before it."""
    kind = type(activation).__name__
    name: Activation | None = None
    if type(activation) is keras.layers.ReLU:
        if activation.negative_slope == 0 and activation.threshold == 0:
            by_maximum: dict[float | None, Activation] = {None: "relu", 6: "relu6"}
            name = by_maximum.get(activation.max_value)
        kind = "a ReLU of another form"
    elif type(activation) is keras.layers.Activation:
        if activation.activation is keras.activations.relu:
            name = "relu"
        elif activation.activation is keras.activations.relu6:
            name = "relu6"
        kind = f"the activation {getattr(activation.activation, '__name__', 'of a class')}"
    if name is None:
        raise _NoChainError(f"{followed} {kind}")
    subject = f"{followed} {activation.name}, which"
    _check_member(activation, f"{subject} is")
    tensors = [tensor for call in _inputs(activation) for tensor in call]
    if any(tensor._keras_history.operation is not layer for tensor in tensors):
        raise _NoChainError(f"{subject} follows other layers, too")
    if activation.compute_dtype != layer.compute_dtype:
        raise _NoChainError(f"{subject} computes in another type")
    return name


# ---- Changing layers -----------------------------------------------------------------------------

Undo = Callable[[], None]


def change_class(layer: Any, kind: type, **attributes: Any) -> Undo:
    """Sets class and attributes of a layer, past Keras' tracking; returns what undoes it.

    An attribute that is None is removed.
    """
    old_kind = type(layer)
    old = {name: vars(layer).get(name) for name in attributes}

    def set_all(kind: type, values: dict[str, Any]) -> None:
        layer.__class__ = kind
        for name, value in values.items():
            if value is None:
                vars(layer).pop(name, None)
            else:
                vars(layer)[name] = value

    set_all(kind, attributes)
    return functools.partial(set_all, old_kind, old)


def fuse(model: Any) -> list[Undo]:
    """Fuses what can be fused among layers that are this module's BatchNormalization."""
    undo = []
    for chain in _find_chains(model)[0]:
        if type(chain.normalization) is not BatchNormalization:
            continue
        if chain.addition is None:
            changes = {"_activation": chain.name, "fused_into": INTO_ACTIVATION}
        else:
            changes = {"fused_into": INTO_ADDITION}
            undo.append(change_class(chain.addition, FusedAdd, _activation=chain.name))
        undo.append(change_class(chain.normalization, BatchNormalization, **changes))
        undo.append(change_class(chain.activation, _FUSED[type(chain.activation)]))
    return undo


def unfuse(model: Any) -> list[Undo]:
    """The way back."""
    undo = []
    for layer in _all_layers(model):
        if type(layer) in _UNFUSED:
            undo.append(change_class(layer, _UNFUSED[type(layer)], _activation=None))
        elif getattr(layer, "fused_into", None) == INTO_ACTIVATION:
            undo.append(change_class(layer, type(layer), _activation=None, fused_into=None))
        elif getattr(layer, "fused_into", None) == INTO_ADDITION:
            undo.append(change_class(layer, type(layer), fused_into=None))
    return undo


# ---- The report ----------------------------------------------------------------------------------


def why_not_fused(model: Any) -> dict[int, str]:
    """By id of the layer, why a normalization is not fused with what follows it."""
    chains, reasons = _find_chains(model)
    possible = {id(chain.normalization): "could be, by fuse=True" for chain in chains}
    return {**possible, **reasons}


def fused_with(layer: Any) -> str | None:
    """What a normalization is fused with, such as "add, relu"; None: with nothing."""
    if getattr(layer, "fused_into", None) != INTO_ADDITION:
        return getattr(layer, "_activation", None)
    return f"add, {layer._outbound_nodes[0].operation._activation}"
