"""The Python that follows from the table of ops."""

from __future__ import annotations

import textwrap

import op_words as ow
from op_words import NOTE, OPS, spec, table

from tf_bn_ops.spec.activations import ACTIVATION_MODES, ACTIVATIONS, snake

_SHAPES = {
    **{spec.CHANNEL: " [C]", spec.WIDE: " [C]", spec.COUNT: " []", spec.PLACEHOLDER: " [0]"},
    **{spec.ROW: " [W]", spec.ROWS: " [W, C]"},
}


def _argument(op: spec.OpSpec, arg: spec.Arg) -> str:
    of = ow.op_def_type(op, arg)
    of = {"double": "float64", "float": "float32"}.get(of, of) + _SHAPES.get(arg.kind, "")
    return f"  {arg.name} ({'list of T' if arg.kind == spec.VIEW_LIST else of}): {arg.doc}"


def _docstring(op: spec.OpSpec) -> str:
    taken = [name for name in ow.statistics_types(op) if name not in op.extra_statistics_dtypes]
    types = {"T": ", ".join(ow.in_order(op.dtypes)), "U": ", ".join(taken)}
    blocks = [block.strip("\n") for block in [op.summary, *op.description.split("\n\n")]]
    lines = [(b if b.startswith(" ") else textwrap.fill(b, 96)) + "\n" for b in blocks]
    lines += [*(f"{name}: {values}." for name, values in types.items() if values), ""]
    newest = f"{op.name.removesuffix('V2')}V3"
    if op.builtin and op.name != newest and newest in table.OPS:
        lines += [f"Arguments and results are as of {snake(newest)}."]
    else:
        lines += ["Args:", *(_argument(op, arg) for arg in op.inputs)]
        lines += [f"  {name}: {spec.ATTRS[name].doc}" for name in op.attrs]
        lines += ["  name: Name of the operation.", "", "Returns:"]
        several = len(op.outputs) > 1
        lines += ["  Named tuple:"] * several
        lines += ["  " * several + _argument(op, arg) for arg in op.outputs]
    return textwrap.indent("\n".join(lines), "    ").strip()


def _signature(op: spec.OpSpec, name: str, first: str, result: str) -> str:
    lists = {spec.VIEW_LIST: "Sequence[Any] = ()"}
    given = [f"{a.name}: {lists.get(a.kind, 'Any')}" for a in op.inputs]
    for attr, default in op.attrs.items():
        text = "" if default is spec.REQUIRED else f" = {default!r}".replace("'", '"')
        given.append(f"{attr}: {spec.ATTRS[attr].python_type}{text}")
    return f"def {name}({first}{', '.join(given)}, name: str | None = None) -> {result}:"


def _binding(op: spec.OpSpec) -> str:
    function = snake(op.name)
    split = "*_arguments.split_epsilon" if op.derived_attrs else "_arguments.not_a_tensor"
    words = {
        "num_side_inputs": "_arguments.checked_length(num_side_inputs)",
        "axis": '_arguments.checked_int(axis, "axis")',
        "epsilon": f'{split}(epsilon, "{function}")',
    }
    for arg in (arg for arg in op.inputs if arg.kind == spec.VIEW_LIST):
        words[arg.name] = f'_arguments.at_most_one({arg.name}, "{arg.name}")'
    inputs = [words.get(a.name, a.name) for a in op.inputs]
    given = ", ".join([*inputs, *(words.get(name, name) for name in op.attrs), "name"])
    call = f"load().tf_bn_ops_{function}({given})"
    if op.attrs.get("epsilon") is spec.REQUIRED:
        call = f'with_epsilon_tensor("{function}", [{", ".join(inputs)}], epsilon, name)'
    several = len(op.outputs) > 1
    lines = [_signature(op, function, "", op.name if several else "Any")]
    lines += [f'    """{_docstring(op)}', '    """']
    if len(op.statistics_dtypes) > 1:
        kinds = (spec.VIEW, spec.CHANNEL)
        view, vector = (next(a.name for a in op.inputs if a.kind == kind) for kind in kinds)
        lines += [f'    _arguments.check_statistics_dtype("{op.name}", {view}, {vector})']
    return "\n".join([*lines, f"    return {f'{op.name}._make({call})' if several else call}"])


def bindings() -> str:
    lists = {spec.VIEW_LIST: "list[Tensor]"}
    tuples = ""
    for op in (op for op in OPS if len(op.outputs) > 1):
        fields = ", ".join(f'("{a.name}", "{lists.get(a.kind, "Tensor")}")' for a in op.outputs)
        tuples += f'{op.name} = NamedTuple("{op.name}", [{fields}])\n'
    names = "\n".join(f'    "{op.name}": {snake(op.name)},' for op in OPS)
    functions = "\n\n".join(map(_binding, OPS))
    return f'''\
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
from tf_bn_ops._arguments import with_epsilon_tensor
from tf_bn_ops._loader import load
from tf_bn_ops.spec import DataFormat

if TYPE_CHECKING:
    from tensorflow import Tensor

# What fused_batch_norm calls the activations, and the ops.
Activation = Literal[{", ".join(f'"{name}"' for name in ACTIVATION_MODES if name)}]
ActivationMode = Literal[{", ".join(f'"{name}"' for name in ACTIVATIONS)}]

# Results of raw_ops, by its names.
{tuples}
{functions}

OPS: dict[str, Callable[..., Any]] = {{
{names}
}}
'''


def raw_op_types() -> str:
    types = {op: f"bindings.{op.name}" if len(op.outputs) > 1 else "Any" for op in OPS}
    texts = "".join(f"{_signature(op, op.name, '*, ', types[op])} ...\n" for op in OPS)
    return f"""\
# Types of raw_ops: the bindings' signatures, by keyword only.
# {NOTE}
# fmt: off

from collections.abc import Sequence
from typing import Any

from tf_bn_ops.generated import bindings
from tf_bn_ops.generated.bindings import ActivationMode
from tf_bn_ops.spec import DataFormat

{texts}"""
