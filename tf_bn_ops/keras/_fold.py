"""A network for inference without batch norm: scale and offset in the weights of its neighbours.

PyTorch's name for it is `torch.nn.utils.fusion.fuse_conv_bn_eval`. In inference a norm is y = s * x
+ t for each channel, and so are a convolution and a dense layer linear: behind one it scales the
output channels, in front of one that pads nothing it scales the input channels.
"""

from __future__ import annotations

import collections
import copy
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src import layers  # See _fused_call.py.
from keras.src.models.functional import Functional
from keras.src.saving.serialization_lib import SafeModeScope

from tf_bn_ops import spec
from tf_bn_ops.keras._replace import Report, _arguments, _batch_norms, _checked, _derived
from tf_bn_ops.keras._verify import check_outputs

__all__ = ["fold_batch_norm", "fold_report"]

_DEPTHWISE = (layers.DepthwiseConv1D, layers.DepthwiseConv2D)
_SEPARABLE = (layers.SeparableConv1D, layers.SeparableConv2D)
_TRANSPOSED = (
    *(layers.Conv1DTranspose, layers.Conv2DTranspose),
    layers.Conv3DTranspose,
)
_CONVOLUTIONS = (layers.Conv1D, layers.Conv2D, layers.Conv3D)
_LINEAR = (layers.Dense, *_CONVOLUTIONS, *_DEPTHWISE, *_SEPARABLE, *_TRANSPOSED)
# Of what a norm computes, in root mean squares: what rounding its weighted input may lose. Of 576
# inputs of mean r and deviation 1 a convolution in float16 then has errors of 3e-3 at r = 10 and of
# 4e-2 at r = 100, and behind the norm of 4e-4.
_MOST_LOST = 0.01


def fold_batch_norm(model: Any, verify: Any = None) -> Any:
    """Returns a new model for inference, with normalizations folded into the weights beside them.

    A normalization behind a convolution (of any rank, depthwise, separable, transposed, grouped) or
    a dense layer becomes part of its weights, and so does one in front of such a layer that pads
    nothing. Weights are computed in float64 and rounded once. All other layers are copies, so that
    the models share no weight, and `model` is as it was. The result is a functional model of
    Keras' layers: it is saved, exported and converted like any model.

    What is not folded stays in the new model. It is logged by name with the reason (logger
    "tf_bn_ops"), and `fold_report` returns it.

    Args:
      model: a functional or sequential model, also with such models in it.
      verify: an input of the model, one batch, of which both models have to compute the same
        within rounding, in inference.

    Returns:
      The new model. Regularizers and constraints of folded layers are left out.

    Raises:
      TypeError: not a model of Keras 3.
      ValueError: the graph of the model is not known, a layer cannot be copied, or `verify` finds
        another result.
    """
    plan = _Plan(model)
    folded = plan.rebuilt(model)
    plan.set_weights()
    if verify is not None:
        check_outputs(model, folded, verify)
    level = logging.WARNING if plan.kept else logging.INFO
    logging.getLogger("tf_bn_ops").log(level, "%s", plan.report())
    return folded


def fold_report(model: Any) -> Report:
    """Says which normalizations of a model `fold_batch_norm` folds, and why the others stay.

    Args:
      model: as in `fold_batch_norm`.

    Returns:
      A report to be printed, with two fields: `done`, the paths of those that are folded, and
      `kept`, a dict of the others from path to reason.

    Raises:
      TypeError: as `fold_batch_norm`.
      ValueError: the graph of the model is not known.
    """
    return _Plan(model).report()


class _Linear:
    """The weights of a convolution or a dense layer in float64."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        names = ["depthwise_kernel", "pointwise_kernel"] if _is(layer, _SEPARABLE) else ["kernel"]
        self.weights = {name: _float64(getattr(layer, name)) for name in names}
        self.bias = 0.0 if layer.bias is None else _float64(layer.bias)

    def scale_outputs(self, scale: np.ndarray, offset: np.ndarray) -> None:
        """Has the layer compute scale * y + offset, for each channel of its result."""
        kernel = [*self.weights.values()][-1]
        if _is(self.layer, _DEPTHWISE):
            kernel *= scale.reshape(kernel.shape[-2:])
        else:
            kernel *= scale[:, np.newaxis] if _is(self.layer, _TRANSPOSED) else scale
        self.bias = self.bias * scale + offset

    def scale_inputs(self, scale: np.ndarray, offset: np.ndarray) -> None:
        """Has the layer compute of x what it computed of scale * x + offset."""
        kernel = next(iter(self.weights.values()))
        if _is(self.layer, (*_DEPTHWISE, *_SEPARABLE)):
            scale, offset = scale[:, np.newaxis], offset[:, np.newaxis]
        else:  # [channels of the group, output channels], of each output the channels that it has.
            groups = getattr(self.layer, "groups", 1)
            of_outputs = lambda v: np.repeat(  # noqa: E731
                v.reshape(groups, -1), kernel.shape[-1] // groups, axis=0
            )
            scale, offset = of_outputs(scale).T, of_outputs(offset).T
        added = (kernel * offset).sum(tuple(range(kernel.ndim - 2)))
        kernel *= scale
        if _is(self.layer, _SEPARABLE):
            pointwise = self.weights["pointwise_kernel"]
            self.bias = self.bias + added.ravel() @ pointwise.reshape(-1, pointwise.shape[-1])
        else:
            self.bias = self.bias + (added.ravel() if _is(self.layer, _DEPTHWISE) else added.sum(0))

    def changed(self, change: Callable[[_Linear], None]) -> _Linear | None:
        """The layer with other weights; None where those are not finite in the layer's types."""
        other = copy.copy(self)
        other.weights = {name: value.copy() for name, value in self.weights.items()}
        with np.errstate(all="ignore"):
            change(other)
            sizes = [np.max(np.abs(v), initial=0) for v in (*other.weights.values(), other.bias)]
        types = {_dtype(self.layer.compute_dtype), _dtype(self.layer.variable_dtype)}
        largest = min(dtype.largest for dtype in types)
        return other if all(size <= largest for size in sizes) else None

    def config(self) -> dict[str, Any]:
        """The layer's config, with a bias, and without what has no meaning in inference."""
        config = self.layer.get_config()
        for name in config:
            if name.endswith(("_regularizer", "_constraint")):
                config[name] = None
        return {**config, "use_bias": True}

    def set_weights(self, layer: Any) -> None:
        """Gives the copy of the layer the weights, rounded to their type."""
        for name, value in self.weights.items():
            getattr(layer, name).assign(value)
        layer.bias.assign(np.broadcast_to(self.bias, layer.bias.shape))


class _Plan:
    """Which normalizations of a model are folded into which layers, and the model without them."""

    def __init__(self, model: Any) -> None:
        _checked(model)
        if _graph(model) is None:
            why = "has not been built: call it once on a batch before"
            if not isinstance(model, keras.Sequential):
                why = (
                    "has a graph that is not known, since its call is Python code: fold "
                    "keras.Model(inputs, model.call(inputs)), with inputs = keras.Input(shape)"
                )
            raise ValueError(f"{type(model).__name__} {model.name!r} {why}")
        self.linear: dict[int, _Linear] = {}
        self.folded: set[int] = set()
        self.kept: dict[str, str] = {}
        self._copies: dict[int, Any] = {}
        self._originals: list[tuple[Any, Any]] = []
        self._calls = collections.Counter(id(layer) for layer in _called(model))
        self._paths = {id(layer): path for path, layer in _batch_norms(model)}
        reasons: dict[int, str] = {}
        for graph, in_training in _graphs(model):
            reasons |= self._fold(graph, in_training)
        self._done = tuple(path for i, path in self._paths.items() if i in self.folded)
        unknown = "is in a layer whose graph is not known"
        self.kept = {
            path: reasons.get(i, unknown) for i, path in self._paths.items() if i not in self.folded
        }

    def report(self) -> Report:
        return Report("folded", self._done, self.kept)

    def rebuilt(self, model: Any) -> Any:
        """The model of copies of its layers, without the folded normalizations."""
        graph = _graph(model)
        inputs = keras.tree.map_structure(
            lambda x: layers.InputLayer.from_config(x._keras_history.operation.get_config()).output,
            graph._inputs_struct,
        )
        outputs = graph._run_through_graph(inputs, operation_fn=self._copy)
        return keras.Model(inputs, outputs, name=model.name)

    def set_weights(self) -> None:
        """Copies the state of all layers, when the new model is built."""
        for original, new in self._originals:
            _take_functions(original, new)
            if linear := self.linear.get(id(original)):
                linear.set_weights(new)
                continue
            for a, b in zip(original.variables, new.variables, strict=True):
                b.assign(a)
            for layer in new._flatten_layers():
                if hasattr(layer, "finalize_state"):  # Of Normalization.
                    layer.finalize_state()

    def _copy(self, operation: Any) -> Any:
        if id(operation) in self.folded:
            return lambda x, *_, **__: x
        if id(operation) not in self._copies:
            self._copies[id(operation)] = self._new(operation)
        return self._copies[id(operation)]

    def _new(self, operation: Any) -> Any:
        if _graph(operation) is not None:
            return self.rebuilt(operation)
        if not getattr(operation, "variables", []):
            # Nothing to copy: lookup tables and the functions of Lambda are in no config.
            new = object.__new__(type(operation))
            vars(new).update(vars(operation), _inbound_nodes=[], _outbound_nodes=[])
            return new
        linear = self.linear.get(id(operation))
        if any("call" in vars(part) for part in _parts(operation)):
            raise ValueError(f"layer {operation.name!r} cannot be copied: it has a call of its own")
        try:
            new = _copied(operation, linear.config() if linear else operation.get_config())
        except Exception as e:  # Whatever these methods raise.
            raise ValueError(
                f"layer {operation.name!r} of class {type(operation).__name__} cannot be copied, "
                f"which takes get_config and from_config: {e}"
            ) from e
        self._originals.append((operation, new))
        return new

    def _fold(self, graph: Any, in_training: bool) -> dict[int, str]:
        """Folds what can be folded in one graph; of all others the reason."""
        nodes = _nodes(graph)
        source = {id(t): node for node in nodes for t in node.outputs}
        users = collections.defaultdict(list)
        for node in nodes:
            for tensor in node.input_tensors:
                users[id(tensor)].append(node)
        outputs = {id(t) for t in graph.outputs}

        def only_user(tensor: Any) -> Any:
            one = len(users[id(tensor)]) == 1 and id(tensor) not in outputs
            return users[id(tensor)][0] if one else None

        reasons = {}
        norms = [node for node in nodes if id(node.operation) in self._paths]
        for node in norms:
            norm, x = node.operation, node.input_tensors[0]
            reason = self._why_not(node, in_training)
            reason = reason or self._why_not_into(source[id(x)].operation, norm, x)
            linear = source[id(x)].operation
            if reason is None and linear.activation is not keras.activations.linear:
                reason = f"has {_activation(linear)} between it and {_called_name(linear)}"
            if reason is None and only_user(x) is None:
                reason = f"is not alone in using the result of {_called_name(linear)}"
            if reason is None:
                reason = self._change(linear, norm, _Linear.scale_outputs)
            if reason is None:
                source[id(node.outputs[0])] = source[id(x)]
            else:
                reasons[id(norm)] = reason
        for node in reversed(norms):
            norm, y = node.operation, node.outputs[0]
            if id(norm) in self.folded or self._why_not(node, in_training):
                continue
            user = only_user(y)
            while user is not None and id(user.operation) in self.folded and user in norms:
                user = only_user(user.outputs[0])
            if user is None or not _is(user.operation, _LINEAR):
                continue
            reason = self._why_not_into(user.operation, norm, y) or _padding(user.operation)
            reason = (
                reason or _loss(norm) or self._change(user.operation, norm, _Linear.scale_inputs)
            )
            if reason is not None:
                reasons[id(norm)] += f", and into the layer behind it: {reason}"
        return reasons

    def _change(self, layer: Any, norm: Any, change: Callable[..., None]) -> str | None:
        """Folds a normalization into a layer, or says why its weights cannot be had."""
        scale, offset = _scale_and_offset(norm)
        before = self.linear.get(id(layer)) or _Linear(layer)
        after = before.changed(lambda linear: change(linear, scale, offset))
        if after is None:
            return f"makes weights of {_called_name(layer)} that {layer.compute_dtype} cannot hold"
        self.linear[id(layer)] = after
        self.folded.add(id(norm))
        return None

    def _why_not(self, node: Any, in_training: bool) -> str | None:
        """Why a normalization cannot be folded at all."""
        norm, given = node.operation, _arguments(node)
        if self._calls[id(norm)] > 1:
            return "is called more than once"
        if reason := _derived(norm):
            return reason
        if getattr(norm, "_activation", None) is not None:
            return f"computes the activation {norm._activation}"
        if given.get("side_input") is not None:
            return "has a side input"
        if in_training or given.get("training"):
            return "is called with training=True"
        if not all(np.isfinite(v).all() for v in _scale_and_offset(norm)):
            return "has statistics that are not finite, or a negative variance"
        return None

    def _why_not_into(self, layer: Any, norm: Any, tensor: Any) -> str | None:
        """Why a normalization whose side `tensor` is cannot be folded into the layer there."""
        name = _called_name(layer)
        if not _is(layer, _LINEAR) or "call" in vars(layer):
            return f"follows {name}"
        if self._calls[id(layer)] > 1:
            return f"is beside {name}, which is called more than once"
        if getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False):
            return f"is beside {name}, which is quantized or has LoRA weights"
        if layer.compute_dtype != norm.compute_dtype:
            return f"computes in {norm.compute_dtype}, and {name} in {layer.compute_dtype}"
        rank = len(tensor.shape)
        axis = 1 if getattr(layer, "data_format", None) == "channels_first" else rank - 1
        if norm.axis % rank != axis:
            return f"has axis {norm.axis}, and {name} its channels on axis {axis}"
        return None


def _is(layer: Any, kinds: tuple[type, ...]) -> bool:
    return type(layer) in kinds


def _called_name(operation: Any) -> str:
    return f"{type(operation).__name__} {operation.name!r}"


def _activation(layer: Any) -> str:
    return f"the activation {getattr(layer.activation, '__name__', layer.activation)}"


def _padding(layer: Any) -> str | None:
    """Why an offset in front of the layer is no bias behind it."""
    if _is(layer, _TRANSPOSED):
        return f"{_called_name(layer)} adds up fewer terms at borders"
    kernel = getattr(layer, "kernel_size", ())
    if getattr(layer, "padding", "valid") != "valid" and any(size > 1 for size in kernel):
        return f"{_called_name(layer)} pads with zeros"
    return None


def _loss(norm: Any) -> str | None:
    """Why rounding in the layer behind would lose the mean of the normalization's input."""
    gamma = 1.0 if norm.gamma is None else _float64(norm.gamma)
    beta = 0.0 if norm.beta is None else _float64(norm.beta)
    mean = _scale_and_offset(norm)[1] - beta
    lost = _dtype(norm.compute_dtype).unit_roundoff * np.sqrt(np.mean(mean**2))
    if lost <= _MOST_LOST * np.sqrt(np.mean(gamma**2 + beta**2)):
        return None
    return f"its mean is so far from 0 that {norm.compute_dtype} would lose the rest"


def _dtype(name: str) -> spec.DType:
    return spec.DTYPES[{"float16": "half"}.get(name, name)]


def _copied(operation: Any, config: dict[str, Any]) -> Any:
    """Another layer of this config, with functions and classes that need not be registered."""
    own = {}
    for part in _parts(operation):
        for value in (type(part), *vars(part).values()):
            if isinstance(value, (type, types.FunctionType)):
                own[value.__name__] = value
    functions = {name: getattr(operation, name, None) for name in config}
    functions = {n: f for n, f in functions.items() if isinstance(f, types.FunctionType)}
    with keras.saving.custom_object_scope(own), SafeModeScope(False):
        try:
            return type(operation).from_config({**config, **functions})
        except Exception:  # Where from_config wants what get_config has written.
            if not functions:
                raise
            return type(operation).from_config(config)


def _parts(operation: Any) -> list[Any]:
    return operation._flatten_layers() if isinstance(operation, layers.Layer) else [operation]


def _take_functions(original: Any, new: Any) -> None:
    """Gives a copy the very functions of the first layer: a config has their names, and for a
    function that is called relu Keras takes its own."""
    for a, b in zip(_parts(original), _parts(new), strict=False):
        for name, value in vars(a).items() if type(a) is type(b) else ():
            is_own = isinstance(value, types.FunctionType) and not hasattr(type(a), name)
            if is_own and name in vars(b):  # But Keras' wrappers of methods are of one layer.
                vars(b)[name] = value


def _float64(variable: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(variable).astype(np.float64)


def _scale_and_offset(norm: Any) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = _float64(norm.moving_mean), _float64(norm.moving_variance)
    with np.errstate(all="ignore"):
        scale = 1.0 / np.sqrt(variance + norm.epsilon)
        scale = scale if norm.gamma is None else scale * _float64(norm.gamma)
        return scale, (0.0 if norm.beta is None else _float64(norm.beta)) - mean * scale


def _graph(layer: Any) -> Any:
    """The functional model that a layer computes; None if there is none, or it is not known."""
    if isinstance(layer, keras.Sequential):
        return layer._functional if type(layer).call is keras.Sequential.call else None
    return layer if isinstance(layer, Functional) and type(layer).call is Functional.call else None


def _graphs(model: Any) -> Iterator[tuple[Any, bool]]:
    """The known graphs of a model and of the models in it, each once, and whether one of its calls
    puts it into training mode."""
    waiting, found, graphs = [(model, False)], set(), {}
    while waiting:
        layer, in_training = waiting.pop()
        graph = _graph(layer)
        if graph is not None and (id(graph), in_training) not in found:
            found.add((id(graph), in_training))
            graphs[id(graph)] = graph
            for node in _nodes(graph):
                own = node.arguments.kwargs.get("training")
                waiting.append((node.operation, in_training if own is None else bool(own)))
    for i, graph in graphs.items():
        yield graph, (i, True) in found


def _nodes(graph: Any) -> list[Any]:
    """The calls of a graph, each behind those that it depends on."""
    by_depth = graph._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def _called(model: Any) -> Iterator[Any]:
    """The operation of each call in the known graphs, and the layers within other layers."""
    for graph, _ in _graphs(model):
        for node in _nodes(graph):
            yield node.operation
            if isinstance(node.operation, layers.Layer) and _graph(node.operation) is None:
                yield from node.operation._flatten_layers(include_self=False)
