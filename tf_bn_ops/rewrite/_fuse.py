"""Fusing in TensorFlow's graph messages, by the rules of cc/tf/optimizer/fusion_rules.h.

The graph optimizer has the same rules, in libtf_bn_ops_optimizer.so. Here they are given
GraphDefs, with the names that must stay.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from tf_bn_ops import _loader, _report
from tf_bn_ops.rewrite import _graph


class Fusion(NamedTuple):
    """A place where the pattern of `fuse` was found.

    Attributes:
      function: the name of the function in the library, "" for the graph itself.
      node: the batch normalization, or its gradient.
      direction: "forward" or "backward".
      refusal: why it stays as it is, "" if it is fused.
      partners: the nodes that it is fused with.
    """

    function: str
    node: str
    direction: str
    refusal: str
    partners: str


def fused(message: Any, *, keep: Iterable[str], report: list[Fusion]) -> tuple[Any, int]:
    """A copy of a message (`_graph.is_message`), fused where it can be but for the nodes that
    must stay, and the number of places that are; what was found is appended to `report`."""
    result = type(message)()
    result.CopyFrom(message)
    count = len(report)
    kind = _graph.kind(message)
    keep = _checked(keep, message, kind)
    if kind == "SavedModel":
        for meta_graph in result.meta_graphs:
            report += _fuse_meta_graph(meta_graph, keep)
    elif kind == "MetaGraphDef":
        report += _fuse_meta_graph(result, keep)
    elif kind == "GraphDef":
        report += _fuse_graph(result, keep)
    elif kind == "FunctionDefLibrary":
        report += _fuse_functions(result.function, keep)
    else:
        functions = [result]
        report += _fuse_functions(functions, keep)
        result.CopyFrom(functions[0])
    return result, sum(not fusion.refusal for fusion in report[count:])


def summary(fusions: list[Fusion]) -> str:
    """How many places were fused, and a line for each that was not."""
    stayed = [
        _report.Stayed(_where(fusion), fusion.direction, fusion.refusal)
        for fusion in fusions
        if fusion.refusal
    ]
    return _report.summary("fused", len(fusions), stayed)


def _where(fusion: Fusion) -> str:
    return fusion.node + (f" in function {fusion.function}" if fusion.function else "")


def log(fusions: list[Fusion]) -> None:
    """Writes to the logger, and to `tf_bn_ops.report()`."""
    for fusion in fusions:
        if fusion.refusal:
            _report.stay(_where(fusion), fusion.refusal, "graphs", fusion.direction)
        else:
            _report.fuse(_where(fusion), fusion.direction, fusion.partners)
    refused = any(fusion.refusal for fusion in fusions)
    logging.getLogger("tf_bn_ops").log(
        logging.WARNING if refused else logging.INFO, "%s", summary(fusions)
    )


def _checked(keep: Iterable[str], message: Any, kind: str) -> list[str]:
    """Names of nodes, also of the nodes of tensors and control inputs.

    Raises:
      TypeError: it is one name and no list of them.
      ValueError: no node has one of the names.
    """
    if isinstance(keep, (str, bytes)):
        raise TypeError(f"keep is {keep!r}, it must be a list of names of nodes")
    names = [name.lstrip("^").partition(":")[0] for name in keep]
    if names and (missing := sorted({*names} - _node_names(message, kind))):
        raise ValueError(f"no node has the name {', '.join(missing)}, which keep lists")
    return names


def _node_names(message: Any, kind: str) -> set[str]:
    """The names of nodes of all graphs and functions in a message."""
    if kind == "SavedModel":
        meta_graphs = (_node_names(each, "MetaGraphDef") for each in message.meta_graphs)
        return {name for names in meta_graphs for name in names}
    if kind == "MetaGraphDef":
        return _node_names(message.graph_def, "GraphDef")
    if kind == "GraphDef":
        functions, nodes = message.library.function, {node.name for node in message.node}
    else:
        functions = message.function if kind == "FunctionDefLibrary" else [message]
        nodes = set()
    return nodes | {node.name for function in functions for node in function.node_def}


def _fuse_meta_graph(meta_graph: Any, keep: Iterable[str]) -> list[Fusion]:
    before = _used_ops(meta_graph.graph_def)
    fusions = _fuse_graph(meta_graph.graph_def, {*keep, *_fetched(meta_graph)})
    after = _used_ops(meta_graph.graph_def)
    ops = meta_graph.meta_info_def.stripped_op_list.op
    if ops:  # a MetaGraphDef need not have the list
        _graph.add_ops(ops, after - before)
        for i in reversed(range(len(ops))):
            if ops[i].name in before - after:
                del ops[i]
    _drop_from_contexts(meta_graph)
    return fusions


def _drop_from_contexts(meta_graph: Any) -> None:
    """Takes nodes that are gone out of the loops and branches of control flow v1, which a
    MetaGraphDef lists by name: TensorFlow looks for each when it imports it."""
    from tensorflow.core.protobuf import control_flow_pb2

    names = {node.name for node in meta_graph.graph_def.node}

    def drop(context: Any) -> None:
        values = context.values_def.values
        values[:] = [value for value in values if value.partition(":")[0] in names]
        for nested in context.nested_contexts:
            drop(getattr(nested, nested.WhichOneof("ctxt")))

    for collection, kind in (
        ("while_context", control_flow_pb2.WhileContextDef),
        ("cond_context", control_flow_pb2.CondContextDef),
    ):
        if collection in meta_graph.collection_def:
            contexts = meta_graph.collection_def[collection].bytes_list.value
            for i, data in enumerate(contexts):
                context = kind.FromString(data)
                drop(context)
                contexts[i] = context.SerializeToString()


def _used_ops(graph_def: Any) -> set[str]:
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def _fetched(meta_graph: Any) -> Iterable[str]:
    """The nodes that a MetaGraphDef names in signatures and collections."""
    for signature in meta_graph.signature_def.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            tensors = [info.name, *(each.name for each in info.composite_tensor.components)]
            coo = info.coo_sparse
            tensors += [coo.values_tensor_name, coo.indices_tensor_name]
            yield from (tensor.partition(":")[0] for tensor in tensors if tensor)
    for collection in meta_graph.collection_def.values():
        yield from (name.lstrip("^").partition(":")[0] for name in collection.node_list.value)


def _fuse_functions(functions: Any, keep: Iterable[str]) -> list[Fusion]:
    """Replaces the functions in a list of FunctionDefs."""
    import tensorflow as tf
    from tensorflow.core.framework import graph_pb2

    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph_def.library.function.extend(functions)
    fusions = _fuse_graph(graph_def, keep)
    for i, function in enumerate(graph_def.library.function):
        functions[i].CopyFrom(function)
    return fusions


def _fuse_graph(graph_def: Any, keep: Iterable[str]) -> list[Fusion]:
    """Replaces a GraphDef by what `tfbn_fuse_graph` makes of it."""
    from google.protobuf import message as protobuf_message

    library = _loader.optimizer()
    try:
        data = graph_def.SerializeToString()
    except (protobuf_message.EncodeError, ValueError) as error:
        raise ValueError(f"the graph cannot be fused: {error} (larger than 2 GiB?)") from None
    result, size, report = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
    status = library.tfbn_fuse_graph(
        data, len(data), "\n".join(keep).encode(),
        ctypes.byref(result), ctypes.byref(size), ctypes.byref(report),
    )  # fmt: skip
    try:
        text = ctypes.string_at(report.value).decode() if report.value else "no memory is left"
        if status != 0:
            raise ValueError(f"the graph cannot be fused: {text}")
        graph_def.ParseFromString(ctypes.string_at(result.value or 0, size.value))
    finally:
        library.tfbn_free(result)
        library.tfbn_free(report)
    return [Fusion(*line.split("\t")) for line in text.split("\n")[:-1]]
