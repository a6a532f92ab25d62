"""The Python that follows from the table of ops."""

from __future__ import annotations

import textwrap

import op_words as ow
from op_words import NOTE, OPS, Arg, OpSpec, activations, spec, wrapped

_SHAPES = {
    **{spec.CHANNEL: " [C]", spec.WIDE: " [C]", spec.COUNT: " []", spec.PLACEHOLDER: " [0]"},
    **{spec.ROW: " [W]", spec.ROWS: " [W, C]"},
}
_HEAD = f'''\
"""The ops as Python functions: calls of the wrappers that TensorFlow generates on loading.

All of them raise

  tf.errors.InvalidArgumentError: Shapes that do not fit together, or an unknown value of an attr.
    (ValueError when it is known while a graph is built.)
  TypeError: Types that do not go together, or a tensor where a number belongs.
  ValueError: More than one side input, or an integer beyond int64.
  LibraryError: (an ImportError) The op library is missing or of another TensorFlow.

{NOTE}
"""
# fmt: off
# ruff: noqa: UP014

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tf_bn_ops import _arguments
from tf_bn_ops._calls import load, with_epsilon_tensor
from tf_bn_ops.spec import DataFormat

if TYPE_CHECKING:
    from tensorflow import Tensor

# What fused_batch_norm calls the activations, and the ops.
Activation = Literal[{", ".join(f'"{name}"' for name in activations.ACTIVATION_MODES if name)}]
ActivationMode = Literal[{", ".join(f'"{name}"' for name in activations.ACTIVATIONS)}]

# Results of raw_ops, by its names.
'''
_STUB_HEAD = f"""\
# Types of raw_ops: those of the bindings, by keyword only.
# {NOTE}
# fmt: off

from collections.abc import Sequence
from typing import Any

from tf_bn_ops.generated import bindings
from tf_bn_ops.generated.bindings import ActivationMode
from tf_bn_ops.spec import DataFormat

"""


def _argument(op: OpSpec, arg: Arg, indent: str) -> list[str]:
    of = ow.op_def_type(op, arg)
    of = {"double": "float64", "float": "float32"}.get(of, of) + _SHAPES.get(arg.kind, "")
    of = "list of T" if arg.kind == spec.VIEW_LIST else of
    return wrapped(f"{arg.name} ({of}): {arg.doc}", indent, indent + "  ", 96)


def _docstring(op: OpSpec) -> str:
    taken = [name for name in ow.statistics_types(op) if name not in op.extra_statistics_dtypes]
    types = {"T": ", ".join(ow.in_order(op.dtypes)), "U": ", ".join(taken)}
    lines = [op.summary, "", *ow.paragraphs(op.description, 96)]
    lines += [*(f"{name}: {values}." for name, values in types.items() if values), ""]
    newest = f"{op.name.removesuffix('V2')}V3"
    if op.builtin and op.name != newest and any(other.name == newest for other in OPS):
        lines += [f"Arguments and results are as of {ow.snake(newest)}."]
    else:
        lines += ["Args:", *(line for arg in op.inputs for line in _argument(op, arg, "  "))]
        for name in op.attrs:
            lines += wrapped(f"{name}: {spec.ATTRS[name].doc}", "  ", "    ", 96)
        lines += ["  name: Name of the operation.", "", "Returns:"]
        several = len(op.outputs) > 1
        lines += ["  Named tuple:"] * several
        for arg in op.outputs:
            lines += _argument(op, arg, "    " if several else "  ")
    return textwrap.indent("\n".join(lines), "    ").strip()


def _signature(op: OpSpec, name: str, first: str, result: str) -> list[str]:
    lists = {spec.VIEW_LIST: "Sequence[Any] = ()"}
    given = [f"{a.name}: {lists.get(a.kind, 'Any')}" for a in op.inputs]
    for attr, default in op.attrs.items():
        text = "" if default is spec.REQUIRED else f" = {default!r}".replace("'", '"')
        given.append(f"{attr}: {spec.ATTRS[attr].python_type}{text}")
    parameters = ", ".join(p.replace(" ", "~") for p in [*given, "name: str | None = None"])
    return wrapped(f"def~{name}({first}{parameters})~->~{result}:", "", "    ", 92)


def _binding(op: OpSpec) -> str:
    function = ow.snake(op.name)
    lists = [arg.name for arg in op.inputs if arg.kind == spec.VIEW_LIST]
    split = "*_arguments.split_epsilon" if op.derived_attrs else "_arguments.not_a_tensor"
    words = {
        **{name: f'_arguments.at_most_one({name}, "{name}")' for name in lists},
        "num_side_inputs": "_arguments.checked_length(num_side_inputs)",
        "axis": '_arguments.checked_int(axis, "axis")',
        "epsilon": f'{split}(epsilon, "{function}")',
    }
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
        check = f'_arguments.check_statistics_dtype("{op.name}", {view}, {vector})'
        lines += wrapped(check, "    ", "        ")
    lines += wrapped(f"{'outputs~=' if several else 'return'}~{call}", "    ", "        ")
    lines += [f"    return {op.name}._make(outputs)"] * several
    return "\n".join(lines)


def _named_tuple(op: OpSpec) -> str:
    lists = {spec.VIEW_LIST: "list[Tensor]"}
    fields = ", ".join(f'("{a.name}",~"{lists.get(a.kind, "Tensor")}")' for a in op.outputs)
    text = f'{op.name}~=~NamedTuple("{op.name}",~[{fields}])'
    return "\n".join(wrapped(text, "", "    ", 96))


def bindings() -> str:
    tuples = "\n".join(_named_tuple(op) for op in OPS if len(op.outputs) > 1)
    names = "\n".join(f'    "{op.name}": {ow.snake(op.name)},' for op in OPS)
    tail = f"OPS: dict[str, Callable[..., Any]] = {{\n{names}\n}}\n"
    return f"{_HEAD}{tuples}\n\n" + "\n\n".join([*map(_binding, OPS), tail])


def raw_op_types() -> str:
    texts = []
    for op in OPS:
        result = f"bindings.{op.name}" if len(op.outputs) > 1 else "Any"
        texts.append("\n".join(_signature(op, op.name, "*, ", result)) + " ...\n")
    return _STUB_HEAD + "".join(texts)
