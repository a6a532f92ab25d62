"""The OpDefs of another library's ops beside those that they claim to equal; inside the worker.

A *query* is OpMapping.opdef_query().
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

# Kinds of differences besides mapping.DIFFERENCES: the op cannot be called; worth knowing.
FATAL, NOTE = "fatal", "note"

# (kind, sentence)
Differences = list[tuple[str, str]]


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
      query: how their names translate, and what is claimed.
      attrs: the attrs of our op that are given a value.
      theirs: the OpDef of their op; None if TensorFlow knows none of this name.
      ours: the OpDef of the op that it claims to equal.
    """
    if theirs is None:
        return [(FATAL, f"the library registers no op {query['name']}")]
    found: Differences = []
    for kind in ("input", "output"):
        _compare_args(kind, query, theirs, ours, found)
    _compare_attrs(query, attrs, theirs, ours, found)
    return found


def _missing(
    name: str, kind: str, there: Sequence[str], wanted: Sequence[str], sink: str
) -> Differences:
    return [
        (sink, f"{name} has no {kind} {one}; it has {', '.join(there)}")
        for one in wanted
        if one not in there
    ]


def _lacks_types(arg: Any, op_def: Any, claimed: Sequence[str]) -> list[str]:
    """The claimed types that an argument does not have."""
    from tensorflow.python.framework import dtypes

    has = [arg.type]
    if arg.type_attr:
        (attr,) = (a for a in op_def.attr if a.name == arg.type_attr)
        has = list(attr.allowed_values.list.type)
    return [n for n in claimed if has and dtypes.as_dtype(n).as_datatype_enum not in has]


def _compare_args(
    kind: str, query: Mapping[str, Any], theirs: Any, ours: Any, found: Differences
) -> None:
    """Names, order and types of the inputs or outputs."""
    name, renamed = query["name"], query[f"{kind}s"]
    sink = FATAL if kind == "input" else "outputs"
    our_args, their_args = getattr(ours, f"{kind}_arg"), getattr(theirs, f"{kind}_arg")
    wanted = [renamed.get(a.name, a.name) for a in our_args]
    names = [a.name for a in their_args]
    found += _missing(name, kind, names, wanted, sink)
    extra = [one for one in names if one not in wanted]
    if extra:
        found.append((sink, f"{name} has further {kind}s: {', '.join(extra)}"))
    elif names != wanted and set(names) == set(wanted):
        found.append(("order", f"{kind}s are in another order: {', '.join(names)}"))
    by_name = {a.name: a for a in their_args}
    for our_name, their_name in zip((a.name for a in our_args), wanted, strict=True):
        claimed = query["types"].get(our_name, ())
        if their_name in by_name and (no := _lacks_types(by_name[their_name], theirs, claimed)):
            text = f"{kind} {their_name} is not of type {' or '.join(no)}, which is claimed"
            found.append(("types", text))


def _compare_attrs(
    query: Mapping[str, Any], attrs: Sequence[str], theirs: Any, ours: Any, found: Differences
) -> None:
    their_attrs = {a.name: a for a in theirs.attr}
    our_attrs = {a.name: a for a in ours.attr}
    wanted = [query["attrs"].get(name, name) for name in attrs]
    found += _missing(query["name"], "attr", list(their_attrs), wanted, FATAL)
    for name in attrs:
        a, b = our_attrs.get(name), their_attrs.get(query["attrs"].get(name, name))
        if a is None or b is None:
            continue
        if a.type == "tensor" and b.type == "float":
            # Ours keeps all digits of a double that way; Python hands either the same number.
            text = f"attr {b.name} is a float, {name} of {ours.name} has double precision"
            found.append((NOTE, text))
            continue
        if a.type != b.type:
            text = f"attr {b.name} is a {b.type}, {name} of {ours.name} a {a.type}"
            found.append((FATAL, text))
            continue
        if a.default_value != b.default_value:
            found.append(("defaults", f"attr {b.name} has another default than {name}"))
        has = b.allowed_values.list.s
        values = [v.decode() for v in a.allowed_values.list.s]
        if name == "data_format":
            values = [v for v in values if v in query["layouts"]]
        if no := [v for v in values if has and v.encode() not in has]:
            text = f"attr {b.name} does not allow {' or '.join(no)}, which is claimed"
            found.append(("values", text))
    arguments = (*theirs.input_arg, *theirs.output_arg)
    used = {*wanted, *(name for a in arguments for name in (a.type_attr, a.number_attr))}
    for attr in theirs.attr:
        if attr.name not in used:
            sink = "attrs" if attr.HasField("default_value") else FATAL
            found.append((sink, f"{query['name']} has the further attr {attr.name}"))
