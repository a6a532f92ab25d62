"""What the table of ops (tf_bn_ops/spec/ops.py) says, in the words of OpDefs, C++ and Python."""

from __future__ import annotations

import itertools
import pathlib
import re
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]

# tf_bn_ops.spec without tf_bn_ops, whose import has hooks, and which needs generated files.
sys.modules["tf_bn_ops"] = types.ModuleType("tf_bn_ops")
sys.modules["tf_bn_ops"].__path__ = [str(ROOT / "tf_bn_ops")]
from tf_bn_ops.spec import op_spec as spec  # noqa: E402
from tf_bn_ops.spec import ops as table  # noqa: E402

OPS = sorted([*table.OPS.values(), table.BATCH_NORM_GATHER_STATS], key=lambda op: op.name)
NOTE = "Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format."
# DType name -> in an OpDef, and in C++, where half and bfloat16 are Eigen's.
TYPES = {"half": "half", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}
# List of tensors -> the attr that is its length.
_LENGTHS = {
    "y": "num_y",
    **dict.fromkeys(("side_input", "side_input_backprop"), spec.NUM_SIDE_INPUTS),
}


def filled(text: str) -> str:
    """`text` in lines of at most 100 columns; none ends within a literal, pair or declaration."""
    kept = r'{".*?", |".*?"|: | -> | = |const |return |\w&? (?=\w+[,)])'
    unbroken: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    lines = []
    for line in text.split("\n"):
        words = re.sub(kept, lambda match: match[0].replace(" ", "\0"), line.lstrip())
        start = " " * (len(line) - len(line.lstrip()))
        rest = {"// ": "// ", "/* ": " * "}.get(line[:3], start + "    ")
        wrapper = textwrap.TextWrapper(100, start, rest, **unbroken)
        lines += wrapper.wrap(words) if len(line) > 100 else [line]
    return "\n".join(lines).replace("\0", " ")


def camel(name: str) -> str:
    return name.title().replace("_", "")


def in_order(dtypes: Iterable[str]) -> list[str]:
    return [name for name in spec.DTYPES if name in set(dtypes)]


def statistics_types(op: spec.OpSpec) -> list[str]:
    """The values of the attr U; none: the op has no such attr."""
    choices = itertools.chain(*map(op.statistics_choices, op.dtypes))
    names = in_order([*choices, *op.extra_statistics_dtypes])
    same = op.statistics_dtypes == (spec.ELEMENT,) or names == [*op.dtypes] == ["float32"]
    return names if any(arg.kind == spec.CHANNEL for arg in op.inputs) and not same else []


def op_def_type(op: spec.OpSpec, arg: spec.Arg) -> str:
    if arg.op_def_type or arg.kind in (spec.WIDE, spec.COUNT, spec.ROW, spec.ROWS):
        return arg.op_def_type or "double"
    if arg.kind == spec.VIEW_LIST:
        return f"{_LENGTHS[arg.name]} * T"
    return "U" if arg.kind != spec.VIEW and statistics_types(op) else "T"


def op_def_attrs(op: spec.OpSpec) -> Iterator[str]:
    """What Attr() of REGISTER_OP takes."""
    for name, values in (("T", in_order(op.dtypes)), ("U", statistics_types(op))):
        if values:
            yield f"{name}: {{{', '.join(TYPES[value] for value in values)}}}"
    lengths = {_LENGTHS[a.name] for a in (*op.inputs, *op.outputs) if a.kind == spec.VIEW_LIST}
    for name in (n for n in spec.ATTRS if n in {*op.attrs, *op.derived_attrs, *lengths}):
        default = op.attrs.get(name, [] if name == "epsilon_rest" else 0)
        kind = spec.ATTRS[name].op_def_type
        if kind == spec.BY_OP:
            kind = "{" + ", ".join(f"'{value}'" for value in op.choices[name]) + "}"
        text = str(default).lower() if isinstance(default, bool) else repr(default)
        # A tensor of type double, where a float would round epsilon.
        yield f"{name}: tensor" if default is spec.REQUIRED else f"{name}: {kind} = {text}"
