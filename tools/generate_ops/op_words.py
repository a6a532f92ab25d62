"""What the table of ops (tf_bn_ops/spec/ops.py) says, in the words of OpDefs, C++ and Python."""

from __future__ import annotations

import importlib
import itertools
import pathlib
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]

# tf_bn_ops.spec without tf_bn_ops, whose import has hooks, and which needs generated files.
_package = sys.modules["tf_bn_ops"] = types.ModuleType("tf_bn_ops")
_package.__path__ = [str(ROOT / "tf_bn_ops")]
spec, table, call, activations = (
    importlib.import_module(f"tf_bn_ops.spec.{name}")
    for name in ("op_spec", "ops", "call", "activations")
)
# FusedBatchNormGradV3 -> fused_batch_norm_grad_v3, as TensorFlow names its wrappers.
snake = activations.snake
OPS = sorted([*table.OPS.values(), table.BATCH_NORM_GATHER_STATS], key=lambda op: op.name)
OpSpec, Arg = spec.OpSpec, spec.Arg

NOTE = "Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format."
# DType name -> in an OpDef, and in C++, where half and bfloat16 are Eigen's.
TYPES = {"half": "half", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}


def wrapped(text: str, first: str = "", rest: str = "", width: int = 100) -> list[str]:
    """Lines of `text`; a ~ is a blank where no line ends."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, **options)
    return [line.replace("~", " ") for line in lines]


def paragraphs(text: str, width: int = 100) -> list[str]:
    """Lines of `text`, whose paragraphs are wrapped; what is indented is left as it is."""
    blocks = [block.strip("\n") for block in text.split("\n\n")]
    lines = [[b] if b.startswith(" ") else wrapped(b, width=width) for b in blocks]
    return [line for block in lines for line in [*block, ""]]


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def in_order(dtypes: Iterable[str]) -> list[str]:
    return [name for name in spec.DTYPES if name in set(dtypes)]


def statistics_types(op: OpSpec) -> list[str]:
    """The values of the attr U; none: the op has no such attr."""
    if not any(arg.kind == spec.CHANNEL for arg in op.inputs):
        return []
    kinds = [op.dtypes if t == spec.ELEMENT else (t,) for t in op.statistics_dtypes]
    names = in_order([*itertools.chain(*kinds), *op.extra_statistics_dtypes])
    same = op.statistics_dtypes == (spec.ELEMENT,) or names == [*op.dtypes] == ["float32"]
    return [] if same else names


def length_attr(arg: Arg) -> str:
    return "num_y" if arg.name == "y" else spec.NUM_SIDE_INPUTS


def op_def_type(op: OpSpec, arg: Arg) -> str:
    if arg.op_def_type or arg.kind in (spec.WIDE, spec.COUNT, spec.ROW, spec.ROWS):
        return arg.op_def_type or "double"
    if arg.kind == spec.VIEW_LIST:
        return f"{length_attr(arg)} * T"
    return "U" if arg.kind != spec.VIEW and statistics_types(op) else "T"


def attr_names(op: OpSpec) -> list[str]:
    """The attrs of the OpDef but T and U, in its order."""
    lengths = {length_attr(a) for a in (*op.inputs, *op.outputs) if a.kind == spec.VIEW_LIST}
    return [name for name in spec.ATTRS if name in {*op.attrs, *op.derived_attrs, *lengths}]


def op_def_attrs(op: OpSpec) -> Iterator[str]:
    """What Attr() of REGISTER_OP takes."""
    for name, values in (("T", in_order(op.dtypes)), ("U", statistics_types(op))):
        if values:
            yield f"{name}: {{{', '.join(TYPES[value] for value in values)}}}"
    for name in attr_names(op):
        default = op.attrs.get(name, [] if name == "epsilon_rest" else 0)
        kind = spec.ATTRS[name].op_def_type
        if kind == spec.BY_OP:
            kind = "{" + ", ".join(f"'{value}'" for value in op.choices[name]) + "}"
        text = str(default).lower() if isinstance(default, bool) else repr(default)
        # A tensor of type double, where a float would round epsilon.
        yield f"{name}: tensor" if default is spec.REQUIRED else f"{name}: {kind} = {text}"
