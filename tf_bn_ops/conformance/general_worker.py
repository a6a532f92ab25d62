"""The process that runs ops that are not batch norm: `... general_worker FD OPS ENTRIES`.

OPS is as in worker.py; ENTRIES a JSON list of the ops (general.Described) by name, like, inputs,
attrs, outputs. Its facts hold the signatures of both ops, compared, and what general.Signature
needs. A request is a dict with op, inputs, attrs, call, device, and outputs, their names in the
order wanted; the result is a list of arrays.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tf_bn_ops.conformance import devices, mapping, worker
from tf_bn_ops.harness import processes

# Types that cases can be made of.
_TYPES = (
    "float32", "float64", "half", "bfloat16", "int32", "int64", "int16", "int8", "uint8", "uint16",
    "uint32", "uint64", "bool",
)  # fmt: skip


def _type_names(arg: Any, attrs: dict[str, Any]) -> list[str]:
    """The types that an input may have."""
    import tensorflow as tf

    if arg.number_attr or arg.type_list_attr:
        raise ValueError(f"input {arg.name} is a list of tensors, which no mapping file describes")
    types = list(attrs[arg.type_attr].allowed_values.list.type) if arg.type_attr else [arg.type]
    names = [tf.dtypes.as_dtype(t).name for t in types]
    names = ["half" if name == "float16" else name for name in names]
    return [name for name in _TYPES if name in names or not names]


def _signature(entry: Any, theirs: Any, ours: Any) -> dict[str, Any]:
    """The fields of general.Signature."""
    our_attrs = {a.name: a for a in ours.attr}
    their_attrs = {a.name: a for a in theirs.attr}
    their_args = {a.name: a for a in theirs.input_arg}
    inputs: dict[str, tuple[str, str]] = {}
    types: dict[str, list[str]] = {}
    for arg in ours.input_arg:
        allowed = _type_names(arg, our_attrs)
        other = _type_names(their_args[entry.inputs.get(arg.name, arg.name)], their_attrs)
        both = [name for name in allowed if name in other]
        inputs[arg.name] = (arg.type_attr, "" if arg.type_attr else allowed[0])
        if arg.type_attr:
            before = types.get(arg.type_attr, both)
            types[arg.type_attr] = [name for name in before if name in both]
    attrs = {a.name: a.HasField("default_value") for a in ours.attr if a.name not in types}
    outputs = [a.name for a in ours.output_arg]
    return {"inputs": inputs, "outputs": outputs, "types": types, "attrs": attrs}


def _opdef_facts(entries: list[dict[str, Any]]) -> dict[str, Any]:
    from tensorflow.python.framework import op_def_registry

    differences, signatures = {}, {}
    for fields in entries:
        entry = SimpleNamespace(**fields)
        theirs, ours = op_def_registry.get(entry.name), op_def_registry.get(entry.like)
        if ours is None:
            raise ValueError(f"TensorFlow has no op {entry.like}")
        of_inputs = {a.type_attr for a in ours.input_arg}
        attrs = [a.name for a in ours.attr if a.name not in of_inputs]
        differences[entry.name] = mapping.signature_differences(entry, attrs, theirs, ours)
        if not differences[entry.name][0]:
            signatures[entry.like] = _signature(entry, theirs, ours)
    return {"signatures": differences, "opdefs": signatures}


class _Caller:
    """Calls ops, eagerly or from a graph."""

    def __init__(self, ops: Any):
        import tensorflow as tf

        self._tf = tf
        self._ops = ops

    def __call__(self, request: dict[str, Any]) -> list[np.ndarray]:
        tf = self._tf
        op = getattr(self._ops, request["op"])
        names = list(request["inputs"])

        def call(*tensors: Any) -> Any:
            return op(**dict(zip(names, tensors, strict=True)), **request["attrs"])

        with devices.placed(tf, request["device"]):
            tensors = [tf.constant(value) for value in request["inputs"].values()]
            outputs = (call if request["call"] == "eager" else tf.function(call))(*tensors)
            if not isinstance(outputs, (list, tuple)):
                outputs = [outputs]
            if set(request["outputs"]) <= set(getattr(outputs, "_fields", ())):
                outputs = [getattr(outputs, name) for name in request["outputs"]]
            return [output.numpy() for output in outputs]


def _make(ops_name: str, entries: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    import tensorflow as tf

    ops = worker.find_ops(ops_name)
    facts = devices.facts(tf)
    if ops_name.startswith(worker.LIBRARY_PREFIX):
        facts |= _opdef_facts(json.loads(entries))
    return facts, _Caller(ops)


if __name__ == "__main__":
    processes.serve(sys.argv, _make)
