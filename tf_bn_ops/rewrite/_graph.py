"""Renaming inside TensorFlow's graph messages, and expanding what TensorFlow has no op for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tf_bn_ops.rewrite import _expand

# In the place of a new op: what it stands for becomes several nodes, whose batch-norm ops are
# TensorFlow's; or this library's, and what is not fused with anything stays.
EXPANDED, EXPANDED_TO_OWN = "", _expand.OWN
_EXPANSIONS = (EXPANDED, EXPANDED_TO_OWN)

_MESSAGES = ("GraphDef", "MetaGraphDef", "SavedModel", "FunctionDefLibrary", "FunctionDef")


def kind(value: Any) -> str:
    """The message type; told by name, so that TensorFlow need not be imported for it."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    package, _, name = getattr(descriptor, "full_name", "").rpartition(".")
    return name if package == "tensorflow" else ""


def is_message(value: Any) -> bool:
    """Whether `renamed` takes the value."""
    return kind(value) in _MESSAGES


def renamed(message: Any, names: Mapping[str, str]) -> tuple[Any, int]:
    """A copy of a message (`is_message`) with ops renamed by `names`, and the number of nodes that
    were; EXPANDED or EXPANDED_TO_OWN as the new op has the fused ops expanded."""
    result = type(message)()
    result.CopyFrom(message)
    return result, _rename(result, names)


def to_builtin(message: Any, names: Mapping[str, str]) -> tuple[Any, int]:
    """`renamed`, if no op of this library is left.

    Raises:
      ValueError: TensorFlow has no op for a node.
    """
    result, count = renamed(message, names)
    own = [node for node in _nodes(result) if node.op.startswith(_expand.OWN)]
    if own:
        ops = ", ".join(sorted({node.op for node in own}))
        raise ValueError(
            f"TensorFlow has no op for {len(own)} node{'s' * (len(own) > 1)} of the graph ({ops}; "
            f"the first is {own[0].name}), so it loads where tf_bn_ops is alone: second "
            "derivatives, synchronised or float64 training and BatchNormTrainingBackprop cannot be "
            "rewritten"
        )
    return result, count


def _nodes(message: Any) -> Iterator[Any]:
    """All nodes of a message."""
    message_kind = kind(message)
    if message_kind == "SavedModel":
        for meta_graph in message.meta_graphs:
            yield from _nodes(meta_graph.graph_def)
    elif message_kind == "MetaGraphDef":
        yield from _nodes(message.graph_def)
    elif message_kind == "GraphDef":
        yield from message.node
        yield from _nodes(message.library)
    elif message_kind == "FunctionDefLibrary":
        for function in message.function:
            yield from function.node_def
    else:
        yield from message.node_def


def _rename(message: Any, names: Mapping[str, str]) -> int:
    message_kind = kind(message)
    if message_kind == "SavedModel":
        return sum(_rename(meta_graph, names) for meta_graph in message.meta_graphs)
    if message_kind == "MetaGraphDef":
        return _rename_meta_graph(message, names)
    if message_kind == "GraphDef":
        return _rename_graph(message, names)[0]
    if message_kind == "FunctionDefLibrary":
        return sum(_rename_function(function, names)[0] for function in message.function)
    return _rename_function(message, names)[0]


def _rename_meta_graph(message: Any, names: Mapping[str, str]) -> int:
    count, expanded = _rename_graph(message.graph_def, names)
    _rename_op_list(message.meta_info_def.stripped_op_list.op, names, expanded.ops)
    for signature in message.signature_def.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            info.name = _fetch(info.name, expanded)
    for collection in message.collection_def.values():
        tensors = collection.node_list.value
        if tensors:  # reading the field must not choose it
            tensors[:] = [_fetch(name, expanded) for name in tensors]
    return count


def _fetch(tensor: str, expanded: _expand.Expanded) -> str:
    """The name of a tensor now, for who fetches it: with the number of the output, also if 0."""
    moved = expanded.moved.get(tensor, tensor)
    return moved if ":" in moved or moved == tensor else f"{moved}:0"


def _rename_graph(graph_def: Any, names: Mapping[str, str]) -> tuple[int, _expand.Expanded]:
    """How many nodes were renamed, those in the library included, and what was expanded."""
    count, expanded = _rename_nodes(graph_def.node, names, in_function=False)
    for function in graph_def.library.function:
        of_function, inner = _rename_function(function, names)
        count += of_function
        expanded.ops |= inner.ops
    return count, expanded


def _rename_function(function: Any, names: Mapping[str, str]) -> tuple[int, _expand.Expanded]:
    count, expanded = _rename_nodes(function.node_def, names, in_function=True)
    for name, tensor in list(function.ret.items()):  # assigning may move the entries
        function.ret[name] = expanded.moved.get(tensor, tensor)
    return count, expanded


def _rename_nodes(
    nodes: Any, names: Mapping[str, str], in_function: bool
) -> tuple[int, _expand.Expanded]:
    count = 0
    moved: dict[str, str] = {}
    for node in nodes:
        new_op = names.get(node.op, EXPANDED)
        if new_op not in _EXPANSIONS:
            if not new_op.startswith(_expand.OWN):
                moved |= _expand.given_statistics(node, in_function)
            node.op = new_op
            count += 1
    prefixes = {names[op] for op in _expand.EXPANDED_OPS if op in names}
    if not prefixes:
        return count, _expand.Expanded()
    expanded = _expand.expand(nodes, in_function, prefixes.pop(), moved)
    return count + expanded.count, expanded


def _rename_op_list(ops: Any, names: Mapping[str, str], added: Iterable[str]) -> None:
    """The list of the ops that a MetaGraphDef uses; a name stands there once."""
    present = {op.name for op in ops}
    for i in reversed(range(len(ops))):
        new_name = names.get(ops[i].name)
        if new_name in present or new_name in _EXPANSIONS:
            del ops[i]
        elif new_name is not None:
            ops[i].name = new_name
    add_ops(ops, added)


def add_ops(ops: Any, added: Iterable[str]) -> None:
    """Adds registered OpDefs, without documentation as in such lists."""
    missing = sorted(set(added) - {op.name for op in ops})
    if not missing:
        return
    from tensorflow.python.framework import op_def_registry

    for name in missing:
        op = ops.add()
        op.CopyFrom(op_def_registry.get(name))
        op.ClearField("summary")
        op.ClearField("description")
        for arg in (*op.input_arg, *op.output_arg, *op.attr):
            arg.ClearField("description")
