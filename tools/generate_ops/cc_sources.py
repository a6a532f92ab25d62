"""The C++ that follows from the table of ops: OpDefs, signatures, kernels, and op classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import op_words as ow
from op_words import NOTE, OPS, TYPES, OpSpec, call, spec, table, wrapped


def _source(what: str, body: str, includes: Iterable[str] = (), guard: str = "") -> str:
    """A file in the namespace of the library; with a guard, a header."""
    lines = ["// clang-format off", *wrapped(what, "// ", "// "), f"// {NOTE}", ""]
    lines += [f"#ifndef {guard}", f"#define {guard}", ""] * bool(guard)
    lines += [*(f'#include "{name}"' for name in includes), ""] * bool(includes)
    lines += ["namespace tf_bn_ops {", "", body.rstrip(), "", "}  // namespace tf_bn_ops", ""]
    return "\n".join([*lines, *[f"#endif  // {guard}", ""] * bool(guard)])


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
    includes = [f"cc/ops/{name}.h" for name in ("first_copy", "generated/op_signatures")]
    return _source(
        "OpDefs. Those of V1 to V3 equal TensorFlow's own in all but name and documentation,"
        " which tf_bn_ops.raw_ops has in full.",
        "\n".join([*lines, "}  // namespace"]),
        [*includes, "cc/ops/shape_functions.h", "tensorflow/core/framework/op.h"],
    )


def _args(args: Iterable[spec.Arg]) -> str:
    roles = {arg.name: ow.camel(arg.role) if arg.role in call.ROLES else "None" for arg in args}
    texts = [f'{{"{name}",~Role::k{role}}}' for name, role in roles.items()]
    return "\n".join(wrapped(f"{{{', '.join(texts)}}}", "    ", "     "))


def _signature(op: OpSpec) -> str:
    """Without the name."""
    layouts = {"axis": "kAxis", "data_format": "kDataFormat"}
    layout = next((layouts[name] for name in op.attrs if name in layouts), "kChannelsFirst")
    kind = table.FORMULAS[op.formula]
    as_builtin = op.builtin or op.formula in (table.BATCH_NORM_ADD, table.BATCH_NORM_GRAD_EX)
    flags = (op.formula in table.PARTS, op.formula not in table.ELEMENTS_ALONE)
    words = [f"FormulaKind::{kind}", *(str(flag).lower() for flag in flags)]
    words += [f"OpSignature::{layout}", f"OpSignature::{kind if as_builtin else 'kByKind'}"]
    x = [arg.role for arg in op.inputs].index("x")
    words += map(str, (op.min_channels, x, len(op.inputs), len(op.outputs)))
    return f"{{\n    {', '.join(words)},\n{_args(op.inputs)},\n{_args(op.outputs)}}}"


def signatures() -> str:
    """An op with the signature of one before is said to be so."""
    first: dict[str, str] = {}
    texts = []
    for op in (op for op in OPS if op.name in table.OPS):
        text = _signature(op)
        same = first.setdefault(text, f"k{op.name}")
        text = text if same == f"k{op.name}" else same
        texts.append(f"inline constexpr OpSignature k{op.name} = {text};")
    return _source(
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
        kernels = (k for op in OPS if bool(op.builtin) == is_twin for k in _kernels(op))
        macros.append(" \\\n".join([f"#define TFBN_FOR_EACH_{macro}_KERNEL(X)", *kernels]) + "\n")
    return _source(
        "The kernels of the twins of TensorFlow's ops, and of the others that have an x:"
        " X(op, T(types), constraints). T and constraints are words that the including file"
        " defines: U(type), HOST(output).",
        "\n".join(macros),
        ["cc/ops/generated/op_signatures.h"],
        "TF_BN_OPS_CC_KERNELS_GENERATED_KERNEL_LIST_H_",
    )


def _attrs(op: OpSpec) -> list[str]:
    """Those of the class Attrs: no lengths of inputs; what has no default is an argument."""
    names = {*op.attrs, *op.derived_attrs}
    return [n for n in ow.attr_names(op) if n in names and op.attrs.get(n) is not spec.REQUIRED]


def _attr(name: str) -> str:
    """A member and its setters, of an attr that has one default; text is copied."""
    (text,) = {repr(op.attrs.get(name, [])) for op in OPS if name in _attrs(op)}
    for python, cpp in {"'": '"', "True": "true", "[]": "{}"}.items():
        text = text.replace(python, cpp)
    member = spec.ATTRS[name].cpp_type
    words = (ow.camel(name), name, member, member.replace("string", "string_view"), text)
    lines = wrapped(spec.ATTRS[name].doc, "// ", "// ")
    return "\n".join([*lines, f"TF_BN_OPS_ATTR({', '.join(words)})"])


def _class(op: OpSpec) -> str:
    lists = [arg.name for arg in op.inputs if arg.kind == spec.VIEW_LIST]
    tensors = [arg.name for arg in op.inputs if arg.kind != spec.VIEW_LIST]
    parameters = ["const~Scope&~scope", *(f"Input~{name}" for name in tensors)]
    parameters += [f"InputList~{name}" for name in lists]
    if op.attrs.get("epsilon") is spec.REQUIRED:
        parameters, attrs = [*parameters, "double~epsilon"], "internal::EpsilonTensor(epsilon)"
    elif _attrs(op):
        parameters, attrs = [*parameters, "const~Attrs&~attrs~=~Attrs()"], "attrs.Values()"
    else:
        attrs = "{}"
    given = ["scope", f'"{op.name}"', f"{{{', '.join(tensors)}}}", attrs, *(f"&{n}" for n in lists)]
    base = ", ".join([op.name, *(f"internal::{ow.camel(name)}" for name in _attrs(op))])
    at = {arg.name: i for i, arg in enumerate(op.outputs) if arg.kind != spec.VIEW_LIST}
    outputs = ", ".join(f"{name}~=~At({i})" for name, i in at.items())
    lines = wrapped(op.summary, "// ", "// ")
    lines += wrapped(f"struct {op.name} : internal::OpClass<{base}> {{", "", "    ")
    lines += wrapped(f"{op.name}({', '.join(parameters)})", "  ", "      ")
    lines += wrapped(f": OpClass({', '.join(given)}) {{}}", "      ", "                ")
    lines += wrapped(f"Output~{outputs};", "  ", "         ")
    lines += [f"  OutputList {arg.name} = From({len(at)});" for arg in op.outputs[len(at) :]]
    return "\n".join([*lines, "};\n"])


def classes() -> str:
    attrs = "\n".join(_attr(n) for n in spec.ATTRS if any(n in _attrs(op) for op in OPS))
    body = f"namespace ops {{\nnamespace internal {{\n\n{attrs}\n\n}}  // namespace internal\n\n"
    return _source(
        "The op classes; tf_bn_ops/ops.h includes this.",
        body + "\n".join(map(_class, OPS)) + "\n}  // namespace ops",
        guard="TF_BN_OPS_GENERATED_OP_CLASSES_H_",
    )
