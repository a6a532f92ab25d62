"""The Python that follows from the table of ops."""

from __future__ import annotations

import re
import textwrap

from op_words import (
    NOTE,
    OPS,
    Arg,
    OpSpec,
    default_text,
    in_order,
    op_def_type,
    paragraphs,
    snake,
    spec,
    statistics_types,
    wrapped,
)

_SHAPES = {
    **{spec.CHANNEL: " [C]", spec.WIDE: " [C]", spec.COUNT: " []", spec.PLACEHOLDER: " [0]"},
    **{spec.ROW: " [W]", spec.ROWS: " [W, C]"},
}
_HEAD = f'''\
"""The ops as Python functions: calls of the wrappers that TensorFlow generates on loading.

{NOTE}
"""
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_bn_ops._arguments import (
    at_most_one,
    check_statistics_dtype,
    checked_length,
    not_a_tensor,
    split_epsilon,
)
from tf_bn_ops._calls import load, with_epsilon_tensor
from tf_bn_ops.spec import Activation, DataFormat

if TYPE_CHECKING:
    from tensorflow import Tensor

'''
_STUB_HEAD = f"""\
# Types of raw_ops: those of the bindings, by keyword only.
# {NOTE}
# fmt: off

from collections.abc import Sequence
from typing import Any

from tf_bn_ops.generated import bindings
from tf_bn_ops.spec import Activation, DataFormat

"""
_RAISES = [
    "Raises:",
    "  tf.errors.InvalidArgumentError: Shapes that do not fit together, or an unknown value of an",
    "    attr. (ValueError when it is known while a graph is built.)",
    "  TypeError: Types that do not go together, or a tensor where a number belongs.",
    "  LibraryError: (an ImportError) The op library is missing or of another TensorFlow.",
]


def _types(op: OpSpec) -> list[str]:
    """What T and U stand for."""
    texts = []
    taken = [name for name in statistics_types(op) if name not in op.extra_statistics_dtypes]
    for name, values in (("T", in_order(op.dtypes)), ("U", taken)):
        if values:
            *most, last = values
            texts.append(f"{name} is {' or '.join([', '.join(most), last] if most else [last])}")
    return [", ".join(texts) + ".", ""] if texts else []


def _argument(op: OpSpec, arg: Arg, indent: str) -> list[str]:
    of = {"double": "float64", "float": "float32"}.get(op_def_type(op, arg), op_def_type(op, arg))
    of = "list of T" if arg.kind == spec.VIEW_LIST else of + _SHAPES.get(arg.kind, "")
    return wrapped(f"{arg.name} ({of}): {arg.doc}", indent, indent + "  ", 96)


def _docstring(op: OpSpec) -> str:
    lines = [op.summary, "", *paragraphs(op.description, 96), *_types(op), "Args:"]
    for arg in op.inputs:
        lines += _argument(op, arg, "  ")
    for name in op.attrs:
        lines += wrapped(f"{name}: {spec.ATTRS[name].doc}", "  ", "    ", 96)
    lines += ["  name: Name of the operation.", "", "Returns:"]
    several = len(op.outputs) > 1
    lines += ["  Named tuple:"] if several else []
    for arg in op.outputs:
        lines += _argument(op, arg, "    " if several else "  ")
    return textwrap.indent("\n".join([*lines, "", *_RAISES]), "    ").strip()


def _signature(op: OpSpec, name: str, first: str, result: str) -> list[str]:
    given = [f"{a.name}: {'Sequence[Any] = ()' if a in _lists(op) else 'Any'}" for a in op.inputs]
    for attr, default in op.attrs.items():
        text = "" if default is spec.REQUIRED else f" = {default_text(default)}"
        given.append(f"{attr}: {spec.ATTRS[attr].python_type}{text}")
    parameters = ", ".join(p.replace(" ", "~") for p in [*given, "name: str | None = None"])
    return wrapped(f"def~{name}({first}{parameters})~->~{result}:", "", "    ", 95)


def _binding(op: OpSpec) -> str:
    function = snake(op.name)
    words = {a.name: f'at_most_one({a.name}, "{a.name}")' for a in _lists(op)}
    words["num_side_inputs"] = "checked_length(num_side_inputs)"
    of_epsilon = "*split_epsilon" if "epsilon_rest" in op.derived_attrs else "not_a_tensor"
    words["epsilon"] = f'{of_epsilon}(epsilon, "{function}")'
    inputs = [words.get(a.name, a.name) for a in op.inputs]
    given = ", ".join([*inputs, *(words.get(name, name) for name in op.attrs), "name"])
    call = f"load().tf_bn_ops_{function}({given})"
    if op.attrs.get("epsilon") is spec.REQUIRED:
        call = f'with_epsilon_tensor("{function}", [{", ".join(inputs)}], epsilon, name)'
    several = len(op.outputs) > 1
    lines = _signature(op, function, "", op.name if several else "Any")
    lines += [f'    """{_docstring(op)}', '    """']
    if len(op.statistics_dtypes) > 1:
        kinds = (spec.VIEW, spec.CHANNEL)
        view, vector = (next(a.name for a in op.inputs if a.kind == kind) for kind in kinds)
        lines += [f'    check_statistics_dtype("{op.name}", {view}, {vector})']
    lines += wrapped(f"{'outputs~=' if several else 'return'}~{call}", "    ", "        ")
    lines += [f"    return {op.name}._make(outputs)"] * several
    return "\n".join(lines)


def _lists(op: OpSpec) -> list[Arg]:
    return [arg for arg in op.inputs if arg.kind == spec.VIEW_LIST]


def _named_tuple(op: OpSpec) -> str:
    lists = {spec.VIEW_LIST: "list[Tensor]"}
    fields = [f"    {arg.name}: {lists.get(arg.kind, 'Tensor')}" for arg in op.outputs]
    return "\n".join(
        [f"class {op.name}(NamedTuple):", f'    """Results of `raw_ops.{op.name}`."""', "", *fields]
    )


def bindings() -> str:
    tuples = [_named_tuple(op) for op in OPS if len(op.outputs) > 1]
    names = "\n".join(f'    "{op.name}": {snake(op.name)},' for op in OPS)
    public = wrapped(", ".join(f'"{snake(op.name)}"' for op in OPS), "    ", "    ")
    tail = f"OPS: dict[str, Callable[..., Any]] = {{\n{names}\n}}\n"
    tail += "\n".join(["__all__ = [", *public, "]", ""])
    return _HEAD + "\n\n" + "\n\n\n".join([*tuples, *map(_binding, OPS), tail])


def raw_op_types() -> str:
    results = {op.name: f"bindings.{op.name}" if len(op.outputs) > 1 else "Any" for op in OPS}
    lines = [line for op in OPS for line in _signature(op, op.name, "*, ", results[op.name])]
    return _STUB_HEAD + re.sub(r":$(?=\ndef|\Z)", ": ...", "\n".join(lines), flags=re.M) + "\n"
