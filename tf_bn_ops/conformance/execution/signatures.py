"""The OpDefs of another library's ops beside those that they claim to equal; inside the worker.

A *query* is OpMapping.opdef_query().
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

Differences = tuple[list[str], list[str]]


def facts(queries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a worker says of a library: how signatures differ."""
    from tensorflow.python.framework import op_def_registry

    signatures = {}
    for query in queries:
        if query["own"]:  # It is this package's library that registers it.
            importlib.import_module("tf_bn_ops").load()
        theirs, ours = op_def_registry.get(query["name"]), op_def_registry.get(query["like"])
        if ours is None:
            raise ValueError(f"TensorFlow has no op {query['like']}")
        signatures[query["name"]] = differences(query, query["attr_names"], theirs, ours)
    return {"signatures": signatures}


def differences(
    query: Mapping[str, Any], attrs: Sequence[str], theirs: Any, ours: Any
) -> Differences:
    """Compares two OpDefs argument by argument.

    Args:
      query: how their names translate.
      attrs: the attrs of our op that are given a value.
      theirs: the OpDef of their op; None if TensorFlow knows none of this name.
      ours: the OpDef of the op that it claims to equal.

    Returns:
      (differences that make it impossible to call, other differences), a sentence each.
    """
    if theirs is None:
        return [f"the library registers no op {query['name']}"], []
    found: Differences = [], []
    _compare_args("input", query, theirs, ours, found[0], found[1])
    _compare_args("output", query, theirs, ours, found[1], found[1])
    _compare_attrs(query, attrs, theirs, ours, found)
    return found


def _missing(
    name: str, kind: str, there: Sequence[str], wanted: Sequence[str], sink: list[str]
) -> None:
    for one in wanted:
        if one not in there:
            sink.append(f"{name} has no {kind} {one}; it has {', '.join(there)}")


def _allowed_types(arg: Any, op_def: Any) -> list[int]:
    if arg.type_attr:
        (attr,) = (a for a in op_def.attr if a.name == arg.type_attr)
        return sorted(attr.allowed_values.list.type) or [0]
    return [arg.type]


def _compare_args(
    kind: str, query: Mapping[str, Any], theirs: Any, ours: Any, sink: list[str], other: list[str]
) -> None:
    """Names, order and types of the inputs or outputs; `sink` gets what may make it impossible to
    call."""
    name, renamed = query["name"], query[f"{kind}s"]
    our_args, their_args = getattr(ours, f"{kind}_arg"), getattr(theirs, f"{kind}_arg")
    wanted = [renamed.get(a.name, a.name) for a in our_args]
    names = [a.name for a in their_args]
    _missing(name, kind, names, wanted, sink)
    extra = [one for one in names if one not in wanted]
    if extra:
        sink.append(f"{name} has further {kind}s: {', '.join(extra)}")
    elif names != wanted and set(names) == set(wanted):
        other.append(f"{kind}s are in another order: {', '.join(names)}")
    for arg in our_args:
        match = [a for a in their_args if a.name == renamed.get(arg.name, arg.name)]
        if match and _allowed_types(match[0], theirs) != _allowed_types(arg, ours):
            other.append(f"{kind} {match[0].name} allows other types than {arg.name}")


def _compare_attrs(
    query: Mapping[str, Any], attrs: Sequence[str], theirs: Any, ours: Any, found: Differences
) -> None:
    fatal, other = found
    their_attrs = {a.name: a for a in theirs.attr}
    our_attrs = {a.name: a for a in ours.attr}
    wanted = [query["attrs"].get(name, name) for name in attrs]
    _missing(query["name"], "attr", list(their_attrs), wanted, fatal)
    for name in attrs:
        a, b = our_attrs.get(name), their_attrs.get(query["attrs"].get(name, name))
        if a is None or b is None:
            continue
        if a.type == "tensor" and b.type == "float":
            # Ours keeps all digits of a double that way; Python hands either the same number.
            other.append(f"attr {b.name} is a float, {name} of {ours.name} has double precision")
        elif a.type != b.type:
            fatal.append(f"attr {b.name} is a {b.type}, {name} of {ours.name} a {a.type}")
        elif a.default_value != b.default_value:
            other.append(f"attr {b.name} has another default than {name}")
        elif a.allowed_values != b.allowed_values:
            other.append(f"attr {b.name} allows other values than {name}")
    arguments = (*theirs.input_arg, *theirs.output_arg)
    used = {*wanted, *(name for a in arguments for name in (a.type_attr, a.number_attr))}
    for attr in theirs.attr:
        if attr.name not in used:
            sink = other if attr.HasField("default_value") else fatal
            sink.append(f"{query['name']} has the further attr {attr.name}")
