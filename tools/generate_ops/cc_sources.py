"""The C++ that follows from the table of ops."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator

import op_words as ow
from op_words import NOTE, OPS, TYPES, OpSpec, spec, table, wrapped

call = importlib.import_module("tf_bn_ops.spec.call")


def source(what: str, body: str, includes: list[str], guard: str = "") -> str:
    """A file in the namespace of the library; with a guard, a header."""
    lines = ["// clang-format off", *wrapped(what, "// ", "// "), f"// {NOTE}", ""]
    lines += [f"#ifndef {guard}", f"#define {guard}", ""] if guard else []
    lines += [f'#include "{name}"' for name in includes] + [""] * bool(includes)
    lines += ["namespace tf_bn_ops {", "", body.rstrip(), "", "}  // namespace tf_bn_ops"]
    return "\n".join([*lines, *(["", f"#endif  // {guard}"] if guard else [])]) + "\n"


_OP_H = "tensorflow/core/framework/op.h"


def _op_def(op: OpSpec) -> str:
    lines = [f'REGISTER_OP("{op.registered_name}")']
    for method, values in (
        ("Input", [f"{arg.name}: {ow.op_def_type(op, arg)}" for arg in op.inputs]),
        ("Output", [f"{arg.name}: {ow.op_def_type(op, arg)}" for arg in op.outputs]),
        ("Attr", list(ow.op_def_attrs(op))),
    ):
        calls = " ".join(f'.{method}("{value}")'.replace(" ", "~") for value in values)
        lines += [line.replace('") .', '").') for line in wrapped(calls, "    ", "    ")]
    shapes = op.shape_function or f"InferShapes<k{op.name}>"
    return "\n".join([*lines, f"    .SetShapeFn({shapes})", f'    .Doc("{op.summary}");\n'])


def op_defs() -> str:
    lines = ["namespace {", "", "bool RegisterOps() {", *map(_op_def, OPS), "return true;", "}", ""]
    lines += ["[[maybe_unused]] const bool kRegistered = IsFirstCopy() && RegisterOps();", ""]
    return source(
        "OpDefs. Those of V1 to V3 equal TensorFlow's own in all but name and documentation,"
        " which tf_bn_ops.raw_ops has in full.",
        "\n".join([*lines, "}  // namespace"]),
        [
            "cc/ops/first_copy.h",
            "cc/ops/generated/op_signatures.h",
            "cc/ops/shape_functions.h",
            _OP_H,
        ],
    )


def _args(args: Iterable[spec.Arg]) -> list[str]:
    roles = (ow.camel(arg.role) if arg.role in call.ROLES else "None" for arg in args)
    texts = [f'{{"{arg.name}",~Role::k{role}}}' for arg, role in zip(args, roles, strict=True)]
    return wrapped(f"{{{', '.join(texts)}}}", "    ", "     ")


def _signature(op: OpSpec) -> str:
    layouts = {"axis": "kAxis", "data_format": "kDataFormat"}
    layout = next((layouts[name] for name in op.attrs if name in layouts), "kChannelsFirst")
    kind = table.FORMULAS[op.formula]
    as_builtin = op.builtin or op.formula in (table.BATCH_NORM_ADD, table.BATCH_NORM_GRAD_EX)
    checks = kind if as_builtin else "kByKind"
    is_part = op.formula in table.PARTS
    flags = [str(flag).lower() for flag in (is_part, op.formula not in table.ELEMENTS_ALONE)]
    x = [arg.role for arg in op.inputs].index("x")
    numbers = f"{op.min_channels}, {x}, {len(op.inputs)}, {len(op.outputs)}"
    lines = [
        f"inline constexpr OpSignature k{op.name} = {{",
        f"    FormulaKind::{kind}, {', '.join(flags)}, OpSignature::{layout},"
        f" OpSignature::{checks}, {numbers},",
    ]
    inputs, outputs = _args(op.inputs), _args(op.outputs)
    inputs[-1] += ","
    outputs[-1] += "};"
    return "\n".join([*lines, *inputs, *outputs])


def signatures() -> str:
    """An op with the signature of one before is said to be so."""
    first: dict[str, str] = {}  # A signature without its name -> the first op that has it.
    texts = []
    for op in (op for op in OPS if op.name in table.OPS):
        text = _signature(op)
        head = f"inline constexpr OpSignature k{op.name} = "
        same = first.setdefault(text.removeprefix(head), op.name)
        texts.append(text if same == op.name else f"{head}k{same};")
    return source(
        "Signatures of the ops that have an x.",
        "\n\n".join(texts),
        ["cc/ops/op_signature.h"],
        "TF_BN_OPS_CC_OPS_GENERATED_OP_SIGNATURES_H_",
    )


def _kernels(op: OpSpec) -> Iterator[str]:
    """X(op, T(...), constraints) for each kernel of an op on one device."""
    several = len(ow.statistics_types(op)) > 1
    dt = {name: f"DT_{TYPES[name].upper()}" for name in TYPES}
    groups: dict[str, list[str]] = {}  # Statistics type -> the element types that it goes with.
    for dtype in ow.in_order(op.dtypes):
        for statistics in op.statistics_choices(dtype):
            groups.setdefault(f"U({dt[statistics]})" * several, []).append(dt[dtype])
    # It follows from the shape, which the host knows.
    host = [f"HOST({arg.name})" for arg in op.outputs if arg.kind == spec.COUNT]
    for constraint, dtypes in groups.items():
        words = [constraint, *host] if constraint else host
        yield f"  X({op.name}, T({', '.join(dtypes)}), {' '.join(words)})"


def kernel_list() -> str:
    macros = []
    for macro, is_twin in (("TWIN", True), ("OTHER", False)):
        ops = [op for op in OPS if bool(op.builtin) == is_twin]
        head = f"#define TFBN_FOR_EACH_{macro}_KERNEL(X)"
        macros.append(" \\\n".join([head, *(k for op in ops for k in _kernels(op))]) + "\n")
    return source(
        "The kernels of the twins of TensorFlow's ops, and of the others that have an x:"
        " X(op, T(types), constraints). T and constraints are words that the including file"
        " defines: U(type), HOST(output).",
        "\n".join(macros),
        ["cc/ops/generated/op_signatures.h"],
        "TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_",
    )
