"""Renaming inside TensorFlow's graph messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_MESSAGES = ("GraphDef", "MetaGraphDef", "SavedModel", "FunctionDefLibrary", "FunctionDef")


def _kind(value: Any) -> str:
    """The message type; told by name, so that TensorFlow need not be imported for it."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    package, _, name = getattr(descriptor, "full_name", "").rpartition(".")
    return name if package == "tensorflow" else ""


def is_message(value: Any) -> bool:
    """Whether `renamed` takes the value."""
    return _kind(value) in _MESSAGES


def renamed(message: Any, names: Mapping[str, str]) -> tuple[Any, int]:
    """A copy with ops renamed, and the number of nodes that were.

    Args:
      message: one of the messages that `is_message` knows.
      names: op -> new op.
    """
    result = type(message)()
    result.CopyFrom(message)
    return result, _rename(result, names)


def _rename(message: Any, names: Mapping[str, str]) -> int:
    kind = _kind(message)
    if kind == "SavedModel":
        return sum(_rename(meta_graph, names) for meta_graph in message.meta_graphs)
    if kind == "MetaGraphDef":
        _rename_op_list(message.meta_info_def.stripped_op_list.op, names)
        return _rename(message.graph_def, names)
    if kind == "GraphDef":
        return _rename_nodes(message.node, names) + _rename(message.library, names)
    if kind == "FunctionDefLibrary":
        return sum(_rename(function, names) for function in message.function)
    return _rename_nodes(message.node_def, names)


def _rename_nodes(nodes: Iterable[Any], names: Mapping[str, str]) -> int:
    count = 0
    for node in nodes:
        if node.op in names:
            node.op = names[node.op]
            count += 1
    return count


def _rename_op_list(ops: Any, names: Mapping[str, str]) -> None:
    """The list of the ops that a MetaGraphDef uses; a name stands there once."""
    present = {op.name for op in ops}
    for i in reversed(range(len(ops))):
        new_name = names.get(ops[i].name)
        if new_name in present:
            del ops[i]
        elif new_name is not None:
            ops[i].name = new_name
