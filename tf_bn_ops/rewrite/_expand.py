"""FusedBatchNormEx and FusedBatchNormGradEx as several ops, of TensorFlow or this library.

Forward: FusedBatchNormV3, AddV2, Relu, and arithmetic. Backward: ReluGrad, FusedBatchNormGradV3.

TensorFlow's ops of these names run on GPUs alone, or behind grappler. Expanded, each step rounds to
the element type, where the fused op rounds once. Without Bessel's correction, with M elements of a
channel, f the factor and v what FusedBatchNormV3 returns, the running variance is

    v - (v - (1 - f) * given) / M.

Among this library's ops FusedBatchNormEx without activation has that variance, and stands for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_bn_ops.spec import LEAKYRELU_ALPHA, OPS, SMOOTH_ACTIVATIONS, activation_of

_EX = OPS["FusedBatchNormEx"]
_GRAD_EX = OPS["FusedBatchNormGradEx"]
# What the names of this library's ops begin with.
OWN = _EX.registered_name.removesuffix(_EX.name)
# What is expanded.
EXPANDED_OPS = frozenset({_EX.registered_name, _GRAD_EX.registered_name})
_EX_OUTPUTS = [arg.name for arg in _EX.outputs]
_GRAD_EX_OUTPUTS = [arg.name for arg in _GRAD_EX.outputs]
_BATCH_VARIANCE = _EX_OUTPUTS.index("batch_variance")
# Of FusedBatchNormEx: mean and variance as they are saved, and as they are given.
_SAVED, _GIVEN = slice(3, 5), slice(3, 5)
_SIDE_INPUT_BACKPROP = _GRAD_EX_OUTPUTS.index("side_input_backprop")
_FORWARD_COEFFICIENTS, _OFFSET, _Y = (
    [arg.role for arg in _GRAD_EX.inputs].index(role)
    for role in ("forward_coefficients", "offset", "y")
)
# What the ops in its place do not have.
_FUSED_ATTRS = ("num_side_inputs", "activation_mode", "leakyrelu_alpha")
# Op -> names of its outputs, which the ops share as far as they share the outputs.
_OUTPUTS = {
    _EX.registered_name: _EX_OUTPUTS,
    _GRAD_EX.registered_name: _GRAD_EX_OUTPUTS,
    **{op: [arg.name for arg in OPS[op].outputs] for op in OPS if OPS[op].builtin == op},
    **{op.registered_name: [arg.name for arg in op.outputs] for op in OPS.values() if op.builtin},
}


@dataclasses.dataclass
class Expanded:
    """What became of the nodes of one graph or function.

    Attributes:
      count: how many nodes were expanded.
      ops: the ops of the new nodes, and the fused ops that stayed.
      moved: tensors that have another name now -> that name.
    """

    count: int = 0
    ops: set[str] = dataclasses.field(default_factory=set)
    moved: dict[str, str] = dataclasses.field(default_factory=dict)


def expand(nodes: Any, in_function: bool, prefix: str, moved: dict[str, str]) -> Expanded:
    """Replaces each fused op in the nodes of a GraphDef or FunctionDef, and who reads it.

    The batch-norm ops in its place are TensorFlow's. With OWN as `prefix` they are this library's,
    and a node without side input and activation stays as it is.

    The node that computes y, or x_backprop, keeps the name and the place: control edges, devices
    and fetches of it stay valid. `moved` says which other tensors have another name now.
    """
    result = Expanded(moved=dict(moved))
    taken = {node.name for node in nodes}
    expansions: dict[str, _Expansion] = {}
    for node in nodes:
        if node.op in EXPANDED_OPS and (not prefix or _Attrs.of(node).is_fused):
            kind = _Forward if node.op == _EX.registered_name else _Gradient
            expansions[node.name] = kind(node, taken, in_function, prefix)
            result.moved |= expansions[node.name].moved
    added = []
    for node in nodes:
        expansion = expansions.get(node.name)
        for new in expansion.nodes if expansion else [node]:
            for i, name in enumerate(new.input):
                # What an expansion reads of itself is what it means.
                if name in result.moved and not (expansion and name in expansion.moved):
                    new.input[i] = _final(name, result.moved)
            if new.name != node.name:
                added.append(new)
            elif new is not node:
                node.CopyFrom(new)
    nodes.extend(added)
    result.count = len(expansions)
    result.ops = {new.op for each in expansions.values() for new in each.nodes}
    result.ops |= {node.op for node in nodes if node.op in EXPANDED_OPS}
    result.moved = {name: _final(name, result.moved) for name in result.moved}
    return result


def _final(name: str, moved: dict[str, str]) -> str:
    """Where a tensor is at last: what it was replaced by may have been replaced too."""
    path: list[str] = []
    while name in moved and len(path) <= len(moved):  # no more, should they form a circle
        path.append(name)
        name = moved[name]
    moved.update(dict.fromkeys(path, name))
    return name


def given_statistics(node: Any, in_function: bool) -> dict[str, str]:
    """The saved statistics of a forward op that is frozen -> mean and variance as it reads them.

    This library's op saves what it was given; TensorFlow's leaves the memory as it is."""
    if _OUTPUTS.get(node.op, [])[3:5] != _EX_OUTPUTS[3:5] or _Attrs.of(node).is_training:
        return {}
    outputs = [tensor(node, port, in_function) for port in range(3, 5)]
    return dict(zip(outputs, node.input[_GIVEN], strict=False))


def tensor(node: Any, port: int, in_function: bool) -> str:
    """The name of an output where it is an input."""
    if not in_function:
        return node.name if port == 0 else f"{node.name}:{port}"
    if node.op in _OUTPUTS:
        return f"{node.name}:{_OUTPUTS[node.op][port]}:0"
    from tensorflow.python.framework import op_def_registry

    return f"{node.name}:{op_def_registry.get(node.op).output_arg[port].name}:0"


@dataclasses.dataclass
class _Attrs:
    """The attrs of the fused op, with the defaults that saving leaves out."""

    side_inputs: int
    activation: str
    leakyrelu_alpha: float
    factor: float
    is_training: bool
    corrects_variance: bool

    @property
    def is_fused(self) -> bool:
        return self.side_inputs > 0 or self.activation != "Identity"

    @property
    def activation_kind(self) -> Any:
        return activation_of(self.activation, self.leakyrelu_alpha)

    @classmethod
    def of(cls, node: Any) -> _Attrs:
        def get(name: str, field: str, default: Any) -> Any:
            return getattr(node.attr[name], field) if name in node.attr else default

        return cls(
            side_inputs=get("num_side_inputs", "i", 0),
            activation=get("activation_mode", "s", b"Identity").decode(),
            leakyrelu_alpha=get("leakyrelu_alpha", "f", LEAKYRELU_ALPHA),
            factor=get("exponential_avg_factor", "f", 1.0),
            is_training=get("is_training", "b", True),
            corrects_variance=get("is_training", "b", True)
            and not get("bessel_correction", "b", True),
        )


class _Expansion:
    """The nodes in the place of one fused op, and where its outputs are then."""

    def __init__(self, node: Any, taken: set[str], in_function: bool, prefix: str) -> None:
        self._node = type(node)()
        self._node.CopyFrom(node)
        self._taken, self._in_function, self._prefix = taken, in_function, prefix
        self._attrs = _Attrs.of(node)
        self.nodes: list[Any] = []
        self.moved: dict[str, str] = {}
        self._build()

    def _build(self) -> None:
        raise NotImplementedError

    def _move(self, outputs: Iterable[str]) -> None:
        """Says where the outputs of the fused op are now."""
        for port, output in enumerate(outputs):
            if self._tensor(self._node, port) != output:
                self.moved[self._tensor(self._node, port)] = output

    def _op(self, op: str, inputs: Iterable[str], name: str = "", **types: int) -> str:
        """Adds a node with attrs that are types; its output."""
        node = type(self._node)()
        node.name = name or self._unique(f"{self._node.name}/{op}")
        node.op, node.device = op, self._node.device
        node.input.extend(inputs)
        for attr, value in types.items():
            node.attr[attr].type = value
        self.nodes.append(node)
        return self._tensor(node, 0)

    def _constant(self, value: float, beside: Any) -> str:
        """A number; after the node `beside`, so that it is in the frame of the same loop."""
        from tensorflow.python.framework import tensor_util

        output = self._op("Const", [f"^{beside.name}"], dtype=1)
        proto = tensor_util.make_tensor_proto(value, "float32")
        self.nodes[-1].attr["value"].tensor.CopyFrom(proto)
        return output

    def _traced(
        self, function: Callable[..., Any], inputs: Sequence[str], beside: Any, name: str = ""
    ) -> str:
        """Adds the nodes of a function of TensorFlow and tensors, of elementwise ops alone; its
        output. Constants are after the node `beside`, as in `_constant`."""
        import tensorflow as tf

        dtype = self._node.attr["T"].type
        with tf.Graph().as_default() as graph:
            arguments = [tf.compat.v1.placeholder(dtype, []) for _ in inputs]
            result = function(tf, *arguments).op.name
        places = {each.op.name: place for each, place in zip(arguments, inputs, strict=True)}
        for node in (n for n in graph.as_graph_def().node if n.name not in places):
            node.input[:] = [places[each] for each in node.input] or [f"^{beside.name}"]
            is_named = name and node.name == result
            traced, node.device = node.name, self._node.device
            node.name = name if is_named else self._unique(f"{self._node.name}/{traced}")
            self.nodes.append(node)
            places[traced] = self._tensor(node, 0)
        return places[result]

    def _unique(self, name: str) -> str:
        number, unique = 0, name
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return unique

    def _tensor(self, node: Any, port: int) -> str:
        return tensor(node, port, self._in_function)


class _Forward(_Expansion):
    """FusedBatchNormEx."""

    def _build(self) -> None:
        attrs = self._attrs
        activation = [attrs.activation] * (attrs.activation != "Identity")
        # TensorFlow has no op with the biased running variance.
        is_biased = bool(self._prefix) and attrs.corrects_variance
        base = _EX.name if is_biased else "FusedBatchNormV3"
        chain = [base, *["AddV2"] * attrs.side_inputs, *activation]
        names = [self._unique(f"{self._node.name}/{op}") for op in chain[:-1]] + [self._node.name]
        norm = self._normalization(names[0], base)
        y = self._tensor(norm, 0)
        for op, name in zip(chain[1:], names[1:], strict=True):
            if op in SMOOTH_ACTIVATIONS:
                y = self._traced(attrs.activation_kind.value, [y], norm, name)
                continue
            added = [self._node.input[5]] if op == "AddV2" else []
            y = self._op(op, [y, *added], name=name, T=self._node.attr["T"].type)
        outputs = [y, *(self._tensor(norm, port) for port in range(1, len(_EX_OUTPUTS)))]
        if attrs.corrects_variance and not is_biased:
            outputs[_BATCH_VARIANCE] = self._biased(norm, outputs[_BATCH_VARIANCE])
        if not attrs.is_training:  # TensorFlow's CPU kernels leave these unwritten
            outputs[_SAVED] = self._node.input[_GIVEN]
        self._move(outputs)

    def _normalization(self, name: str, base: str) -> Any:
        """The op `base` with what the node has of it."""
        norm = type(self._node)()
        norm.CopyFrom(self._node)
        norm.name, norm.op = name, self._prefix + base
        if base == _EX.name:
            norm.attr["num_side_inputs"].i, norm.attr["activation_mode"].s = 0, b"Identity"
        else:
            for attr in (*_FUSED_ATTRS, "bessel_correction"):
                norm.attr.pop(attr, None)
        del norm.input[5 : 5 + self._attrs.side_inputs]
        self.nodes.append(norm)
        return norm

    def _biased(self, norm: Any, unbiased: str) -> str:
        """The running variance without Bessel's correction, see the formula above."""
        from tensorflow.core.framework import types_pb2

        floating, integer = types_pb2.DT_FLOAT, types_pb2.DT_INT64
        x, scale, _, _, given = self._node.input[:5]
        dtype = self._node.attr["T"].type
        sizes = [
            self._op("Size", [x], T=dtype, out_type=integer),
            self._op("Size", [scale], T=floating, out_type=integer),
        ]
        wide = [self._op("Cast", [size], SrcT=integer, DstT=floating) for size in sizes]
        count = self._op("RealDiv", wide, T=floating)
        new = unbiased
        if self._attrs.factor != 1:
            kept = self._op(
                "Mul", [given, self._constant(1 - self._attrs.factor, norm)], T=floating
            )
            new = self._op("Sub", [unbiased, kept], T=floating)
        excess = self._op("RealDiv", [new, count], T=floating)
        return self._op("Sub", [unbiased, excess], T=floating)


class _Gradient(_Expansion):
    """FusedBatchNormGradEx."""

    def _build(self) -> None:
        fused, attrs = self._node, self._attrs
        masked = fused.input[0]
        if attrs.activation in SMOOTH_ACTIVATIONS:
            # By what is given as mean and variance, which the plain gradient takes, too.
            x, scale, mean, variance = fused.input[1:5]
            self._op(
                self._prefix + "FusedBatchNormV3", [x, scale, fused.input[_OFFSET], mean, variance]
            )
            norm = self.nodes[-1]
            for attr in ("T", "U", "epsilon", "data_format"):
                if attr in fused.attr:
                    norm.attr[attr].CopyFrom(fused.attr[attr])
            norm.attr["is_training"].b = False
            v = self._tensor(norm, 0)
            if attrs.side_inputs:
                v = self._op("AddV2", [v, fused.input[_Y]], T=fused.attr["T"].type)
            masked = self._traced(attrs.activation_kind.gradient, [masked, v], norm)
        elif attrs.activation != "Identity":
            masked = self._op(
                f"{attrs.activation}Grad", [masked, fused.input[_Y]], T=fused.attr["T"].type
            )
        gradient = type(fused)()
        gradient.CopyFrom(fused)
        inputs = [masked, *fused.input[1 : _FORWARD_COEFFICIENTS + 1]]
        gradient.op = self._prefix + "FusedBatchNormGradV3"
        if inputs[-1] == inputs[-2] and fused.attr["data_format"].s in (b"", b"NHWC", b"NCHW"):
            # `fuse` knew of no third reserve space, which TensorFlow reads on GPUs.
            gradient.op = self._prefix + "FusedBatchNormGradV2"
            inputs.pop()
        controls = [name for name in fused.input if name.startswith("^")]
        gradient.input[:] = [*inputs, *controls]
        for attr in _FUSED_ATTRS:
            gradient.attr.pop(attr, None)
        self.nodes.append(gradient)
        outputs = [
            self._tensor(gradient, port)
            for port in range(min(_SIDE_INPUT_BACKPROP, len(_OUTPUTS[gradient.op])))
        ]
        self._move([*outputs, *[masked] * attrs.side_inputs])
