"""The process that runs ops for the harness: `python -m tf_bn_ops.conformance.worker FD OPS [MAP]`.

OPS names what holds the ops, as `module` or `module:attribute` (`tensorflow:raw_ops`), or as
`library:PATH` of an op library; MAP is then a JSON list of mapping.Mapped, whose signatures are
compared. A request (_processes.py) is a dict with op, inputs (name -> array), attrs, call, and
perhaps outputs (their names in the order wanted); the result is a list of arrays.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_bn_ops import _op_table, _processes
from tf_bn_ops.conformance import mapping

LIBRARY_PREFIX = "library:"


def find_ops(name: str) -> Any:
    """The object that `module:attribute` names; op names are its attributes."""
    if name.startswith(LIBRARY_PREFIX):
        import tensorflow as tf

        return tf.load_op_library(name.removeprefix(LIBRARY_PREFIX))
    module_name, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


class _Caller:
    """Calls TensorFlow ops, eagerly or from graphs that are traced once."""

    def __init__(self, ops: Any):
        import tensorflow as tf

        self._tf = tf
        self._ops = ops
        self._graphs: dict[tuple, Any] = {}

    def facts(self) -> dict[str, Any]:
        has = [name for name in _op_table.OPS if hasattr(self._ops, name)]
        devices = self._tf.config.list_physical_devices("GPU")
        details = [self._tf.config.experimental.get_device_details(d) for d in devices]
        gpus = [d.get("device_name", "unknown") for d in details]
        return {"tensorflow": self._tf.__version__, "ops": has, "gpus": gpus}

    def __call__(self, request: dict[str, Any]) -> list[np.ndarray]:
        tf = self._tf
        op = getattr(self._ops, request["op"])
        inputs = {name: tf.constant(value) for name, value in request["inputs"].items()}
        if request["call"] == "eager":
            outputs = op(**inputs, **request["attrs"])
        else:
            outputs = self._graph(request["op"], op, inputs, request["attrs"])(*inputs.values())
        names = request.get("outputs", ())
        if names and set(names) <= set(getattr(outputs, "_fields", ())):
            outputs = [getattr(outputs, name) for name in names]
        return [output.numpy() for output in outputs]

    def _graph(self, name: str, op: Any, inputs: dict[str, Any], attrs: dict[str, Any]) -> Any:
        """A function of tensors of any shape, so that shapes do not trace anew."""
        tf = self._tf
        dtypes = tuple(tensor.dtype for tensor in inputs.values())
        key = (name, tuple(inputs), dtypes, tuple(attrs.items()))
        if key not in self._graphs:
            names = tuple(inputs)

            def call(*tensors: Any) -> Any:
                return op(**dict(zip(names, tensors, strict=True)), **attrs)

            signature = [tf.TensorSpec(None, dtype) for dtype in dtypes]
            self._graphs[key] = tf.function(call, input_signature=signature)
        return self._graphs[key]


def _describe(error: Exception) -> str:
    """Code and message; without the place in the graph, which differs from call to call."""
    message = str(error).split("} ", 1)[-1] if str(error).startswith("{{") else str(error)
    return f"{type(error).__name__}: {message}".strip()


def _signatures(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of a library: which ops it answers for, and how their signatures differ."""
    from tensorflow.python.framework import op_def_registry

    differences = {}
    for entry in entries:
        mapped = mapping.Mapped(**entry)
        theirs = op_def_registry.get(mapped.name)
        ours = op_def_registry.get(mapped.spec.builtin)
        differences[mapped.name] = mapping.signature_differences(mapped, theirs, ours)
    return {"ops": [entry["like"] for entry in entries], "signatures": differences}


def _make(ops_name: str, mapped: str = "") -> tuple[dict[str, Any], Callable[[Any], Any]]:
    try:
        caller = _Caller(find_ops(ops_name))
        facts = caller.facts()
        if mapped:
            facts |= _signatures(json.loads(mapped))
    except Exception as error:
        # The sentence names what was asked for; an import error needs no trace besides.
        kind = type(error) if isinstance(error, ImportError) else RuntimeError
        raise kind(f"{ops_name} cannot be used: {error}") from error
    return facts, caller


if __name__ == "__main__":
    _processes.serve(sys.argv, _make, _describe)
