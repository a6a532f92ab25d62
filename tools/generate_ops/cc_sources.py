"""The C and C++ that follow from tf_bn_ops/spec: the struct of a call, OpDefs, ..., op classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import op_words as ow
from op_words import NOTE, OPS, TYPES, camel, spec, table

from tf_bn_ops.spec import activations, call

_SHAPES = {
    **{spec.VIEW: "view", spec.CHANNEL: "vector", spec.WIDE: "wide", spec.COUNT: "scalar"},
    **{call.STATISTICS: "statistics", call.COEFFICIENTS: "coefficients"},
    **{spec.ROW: "[parts]", spec.ROWS: "[parts, channels]"},
}

# DType name -> its enumerator.
_ENUMERATORS = {
    **{"half": "Float16", "bfloat16": "Bfloat16"},
    **{"float32": "Float32", "float64": "Float64"},
}


def _source(what: str, body: str, *includes: str, is_header: bool = True) -> str:
    """A file in the namespace of the library."""
    lines = ["// clang-format off", f"// {what}", f"// {NOTE}", ""]
    lines += ["#pragma once", ""] * is_header
    lines += [*(f'#include "{name}"' for name in includes), ""] * bool(includes)
    return "\n".join([*lines, "namespace tf_bn_ops {", "", body, "}  // namespace tf_bn_ops", ""])


def _op_def(op: spec.OpSpec) -> str:
    def calls(method: str, values: Iterable[str]) -> str:
        return "    " + " ".join(f'.{method}("{value}")' for value in values)

    return f"""\
REGISTER_OP("{op.registered_name}")
{calls("Input", (f"{arg.name}: {ow.op_def_type(op, arg)}" for arg in op.inputs))}
{calls("Output", (f"{arg.name}: {ow.op_def_type(op, arg)}" for arg in op.outputs))}
{calls("Attr", ow.op_def_attrs(op))}
    .SetShapeFn({op.shape_function or f"InferShapes<k{op.name}>"})
    .Doc("{op.summary}");
"""


def op_defs() -> str:
    lines = ["namespace {", "", "bool RegisterOps() {", *map(_op_def, OPS), "return true;", "}", ""]
    lines += ["[[maybe_unused]] const bool kRegistered = IsFirstCopy() && RegisterOps();", ""]
    return _source(
        "OpDefs. Those of V1 to V3 equal TensorFlow's own in all but name and documentation,"
        " which tf_bn_ops.raw_ops has in full.",
        "\n".join([*lines, "}  // namespace", ""]),
        "cc/tf/ops/first_copy.h",
        "cc/tf/ops/generated/op_signatures.h",
        "cc/tf/ops/shape_functions.h",
        "tensorflow/core/framework/op.h",
        is_header=False,
    )


def _args(args: Iterable[spec.Arg]) -> str:
    roles = {arg.name: camel(arg.role) if arg.role in call.ROLES else "None" for arg in args}
    pairs = (f'{{"{name}", Role::k{role}}}' for name, role in roles.items())
    return f"    {{{', '.join(pairs)}}}"


def _signature(op: spec.OpSpec) -> str:
    layouts = {"axis": "kAxis", "data_format": "kDataFormat"}
    layout = next((layouts[name] for name in op.attrs if name in layouts), "kChannelsFirst")
    kind = table.FORMULAS[op.formula]
    as_builtin = op.builtin or op.formula in (table.BATCH_NORM_ADD, table.BATCH_NORM_GRAD_EX)
    flags = [op.formula in table.PARTS, op.formula not in table.ELEMENTS_ALONE]
    words = [f"    FormulaKind::{kind}", *map(json.dumps, flags), f"OpSignature::{layout}"]
    x = [arg.role for arg in op.inputs].index("x")
    numbers = map(str, (op.min_channels, x, len(op.inputs), len(op.outputs)))
    words += [f"OpSignature::{kind if as_builtin else 'kByKind'}", *numbers]
    return ",\n".join(["{\n" + ", ".join(words), _args(op.inputs), _args(op.outputs)]) + "}"


def signatures() -> str:
    """An op with the signature of one before is said to be so."""
    texts = {f"k{name}": _signature(op) for name, op in sorted(table.OPS.items())}
    first = {text: name for name, text in reversed(texts.items())}
    values = {name: text if first[text] == name else first[text] for name, text in texts.items()}
    body = "".join(f"inline constexpr OpSignature {k} = {text};\n\n" for k, text in values.items())
    return _source("Signatures of the ops that have an x.", body, "cc/tf/ops/op_signature.h")


def kernel_list() -> str:
    """X(op, T(...), constraints) for each kernel of an op on one device."""
    dt = {name: f"DT_{TYPES[name].upper()}" for name in TYPES}
    kernels: dict[str, list[str]] = {"TWIN": [], "OTHER": []}
    for op in OPS:
        several = len(ow.statistics_types(op)) > 1
        groups: dict[str, list[str]] = {}  # Statistics type -> element types that it goes with.
        for dtype in ow.in_order(op.dtypes):
            for statistics in op.statistics_choices(dtype):
                groups.setdefault(f"U({dt[statistics]})" * several, []).append(dt[dtype])
        # It follows from the shape, which the host knows.
        host = "".join(f"HOST({arg.name})" for arg in op.outputs if arg.kind == spec.COUNT)
        kernels["TWIN" if op.builtin else "OTHER"] += [
            f"  X({op.name}, T({', '.join(dtypes)}), {constraint}{host})"
            for constraint, dtypes in groups.items()
        ]
    macros = {f"#define TFBN_FOR_EACH_{name}_KERNEL(X)": lines for name, lines in kernels.items()}
    return _source(
        "The kernels of the twins of TensorFlow's ops, and of the others that have an x:"
        " X(op, T(types), constraints). T and constraints are words that the including file"
        " defines: U(type), HOST(output).",
        "\n".join(" \\\n".join([macro, *lines]) + "\n" for macro, lines in macros.items()),
        "cc/tf/ops/generated/op_signatures.h",
    )


def op_calls() -> str:
    """The calls of the core that ops make, each once."""
    parts = {table.BATCH_NORM_STATS: "Sums", table.BATCH_NORM_BACKWARD_REDUCE: "Sums"}
    parts[table.BATCH_NORM_BACKWARD_ELEMT] = "Elements"
    rows: dict[str, None] = {}
    for op in table.OPS.values():
        # A formula with an activation has all of them, or those that are clamps.
        chosen = op.activations if "activation_mode" in op.attrs else ("Identity",)
        count = {1: "1", len(activations.CLAMPS): "kNumClamps"}.get(len(chosen), "kNumActivations")
        if op.formula == table.BATCH_NORM_STATS:  # It does not read which.
            count = "kNumActivations"
        modes = ["frozen"] if op.formula == table.BATCH_NORM_ELEMT else op.modes
        flags = (json.dumps(mode in modes) for mode in spec.MODES)
        part = parts.get(op.formula, "Whole")
        dtypes = ", ".join(f"DType::k{_ENUMERATORS[name]}" for name in ow.in_order(op.dtypes))
        words = [f"FormulaKind::{table.FORMULAS[op.formula]}", f"CallPart::k{part}", *flags, count]
        rows[f"    {{{', '.join(words)}, BitsOf({dtypes})}},"] = None
    body = "\n".join(["inline constexpr OpCalls kOpCalls[] = {", *rows, "};", ""])
    return _source("The calls that ops make: a part of cc/core/op_calls.h.", body)


def _attrs(op: spec.OpSpec) -> list[str]:
    """The attrs of the class Attrs: no lengths of inputs; what has no default is an argument."""
    names = {*op.attrs, *op.derived_attrs}
    return [n for n in spec.ATTRS if n in names and op.attrs.get(n) is not spec.REQUIRED]


def _attr(name: str) -> str:
    """A member and its setters, of an attr that has one default; text is copied."""
    (default,) = {json.dumps(op.attrs.get(name, {})) for op in OPS if name in _attrs(op)}
    member = spec.ATTRS[name].cpp_type
    words = (camel(name), name, member, member.replace("string", "string_view"), default)
    return f"// {spec.ATTRS[name].doc}\nTF_BN_OPS_ATTR({', '.join(words)})"


def _class(op: spec.OpSpec) -> str:
    lists = [arg.name for arg in op.inputs if arg.kind == spec.VIEW_LIST]
    tensors = [arg.name for arg in op.inputs if arg.kind != spec.VIEW_LIST]
    parameters = ["const Scope& scope", *(f"Input {name}" for name in tensors)]
    parameters += [f"InputList {name}" for name in lists]
    if op.attrs.get("epsilon") is spec.REQUIRED:
        parameters, attrs = [*parameters, "double epsilon"], "internal::EpsilonTensor(epsilon)"
    elif _attrs(op):
        parameters, attrs = [*parameters, "const Attrs& attrs = Attrs()"], "attrs.Values()"
    else:
        attrs = "{}"
    base = ", ".join([op.name, *(f"internal::{camel(name)}" for name in _attrs(op))])
    given = ["scope", f'"{op.name}"', f"{{{', '.join(tensors)}}}", attrs, *(f"&{n}" for n in lists)]
    at = [arg.name for arg in op.outputs if arg.kind != spec.VIEW_LIST]
    results = [f"Output {', '.join(f'{name} = At({i})' for i, name in enumerate(at))};"]
    results += [f"OutputList {arg.name} = From({len(at)});" for arg in op.outputs[len(at) :]]
    return f"""\
// {op.summary}
struct {op.name} : internal::OpClass<{base}> {{
  {op.name}({", ".join(parameters)})
      : OpClass({", ".join(given)}) {{}}
  {" ".join(results)}
}};
"""


def classes() -> str:
    attrs = "\n".join(_attr(n) for n in spec.ATTRS if any(n in _attrs(op) for op in OPS))
    body = f"namespace ops {{\nnamespace internal {{\n\n{attrs}\n\n}}  // namespace internal\n\n"
    body += "\n".join(map(_class, OPS)) + "\n}  // namespace ops\n"
    return _source("The op classes; tf_bn_ops/ops.h includes this.", body)


def _fields(c_type: str, arrays: Iterable[call.Array | spec.Arg]) -> str:
    docs = {a.role: f"{_SHAPES[a.kind]}. {a.doc}".removesuffix(". ") for a in arrays}
    return "\n".join(f"  {c_type} {name};  /* {doc} */" for name, doc in docs.items())


def _layout() -> str:
    """A hash of what two builds have to agree on: the structs, the values of their enumerations,
    and the rows of the forward coefficients."""
    gathered = table.BATCH_NORM_GATHER_STATS
    agreed = [
        [(a.name, a.c_type) for a in call.ATTRS],
        [(a.role, a.kind) for a in (*call.INPUTS, *call.OUTPUTS)],
        [(a.role, a.kind) for a in (*gathered.inputs, *gathered.outputs)],
        [*call.FORMULA_CODES.items()],
        [*activations.ACTIVATIONS],
        [(name, dtype.c_abi_code) for name, dtype in spec.DTYPES.items()],
        [*table.FORWARD_COEFFICIENTS],
    ]
    return hashlib.sha256(json.dumps(agreed).encode()).hexdigest()[:12]


def layout_header() -> str:
    return f"""\
// clang-format off
/* A hash of the struct of a call, of the values in it and of what its arrays hold: part of the
 * names by which one library calls another, so that two of different layouts never meet.
 * Written by tools/generate_ops from tf_bn_ops/spec: edit that, then make format. */

#pragma once

#define TFBN_LAYOUT {_layout()}
"""


def roles_header() -> str:
    """The values of the enumerations of activations are their places in ACTIVATIONS."""
    directions = call.FORMULA_KINDS.values()
    formulas = [f"TFBN_{activations.snake(kind[1:]).upper()}" for kind in call.FORMULA_KINDS]
    names = [*activations.ACTIVATIONS]
    smooth = [f"X({name})" for name in activations.SMOOTH_ACTIVATIONS]
    types = {a: f"TFBN_CPP({a.enum}, {a.c_type})" if a.enum else a.c_type for a in call.ATTRS}
    attrs = "\n".join(f"  {types[a]} {a.name};  /* {a.doc} */" for a in call.ATTRS)
    kinds = {a.kind: f"k{camel(_SHAPES[a.kind])}" for a in call.ARRAYS}
    infos = [f'{{"{a.role}", ArrayKind::{kinds[a.kind]}}}' for a in call.ARRAYS]
    gathered = table.BATCH_NORM_GATHER_STATS  # It has no view of x, and so a struct of its own.
    size = f"[{table.NUM_FORWARD_COEFFICIENTS}, channels]"
    return f"""\
// clang-format off
/* The struct of a call, which the C ABI, XLA's custom call, the core and ctypes share, and
 * the roles of its arrays.
 * Written by tools/generate_ops from tf_bn_ops/spec (call.py, activations.py): edit those, then
 * make format. */

#pragma once

#include <stdint.h>

#ifdef __cplusplus
#include "cc/core/view.h"
namespace tf_bn_ops {{
// The kinds of formulas; cc/core/formulas has the arithmetic. What a call leaves out decides which
// sums, masks and outputs there are (all_formulas.h).
enum class FormulaKind : int32_t {{ {", ".join(call.FORMULA_KINDS)} }};
constexpr int kNumFormulaKinds = {len(call.FORMULA_KINDS)};
inline constexpr const char* kDirections[kNumFormulaKinds] = {{"{'", "'.join(directions)}"}};
enum class DType : int32_t;
enum class Activation : int32_t {{ k{", k".join(names)} }};
constexpr int kNumActivations = {len(names)}, kNumClamps = {len(activations.CLAMPS)};
#define TFBN_FOR_EACH_SMOOTH_ACTIVATION(X) {" ".join(smooth)}
// The values of the attr activation_mode.
inline constexpr const char* kActivationModes[kNumActivations] = {{"{'", "'.join(names)}"}};
}}  // namespace tf_bn_ops
#define TFBN_CPP(cpp, c) tf_bn_ops::cpp
#else
typedef struct tfbn_view {{ int64_t outer, channels, inner; }} tfbn_view;
#define TFBN_CPP(cpp, c) c
#endif

/* What is computed: docs/math.md. */
enum {{ {", ".join(formulas)} }};

/* What is applied to y; NaN stays NaN. tf_bn_ops/spec/activations.py has the formulas, and
 * cc/core/formulas/smooth_activation.h the text of the smooth ones that kernels compute. */
enum {{ {", ".join(f"TFBN_{activations.snake(name).upper()}" for name in names)} }};

/* Arrays are borrowed, of these shapes: the view of x; [channels] of stat_dtype (vector), or of
 * stat_dtype or float64 (statistics), or of float64 (wide); one element of float64 (scalar);
 * {size} of float, of double for TFBN_FLOAT64 (coefficients). NULL: there is none. An output
 * may be the buffer of an input where the formula says so, element for element. */
typedef struct tfbn_call {{
  TFBN_CPP(View, tfbn_view) view;
{attrs}
{_fields("const void*", call.INPUTS)}
{_fields("void*", call.OUTPUTS)}
}} tfbn_call;

/* {gathered.summary} No output may overlap an input. */
typedef struct tfbn_gather_stats {{
  int64_t parts, channels;
{_fields("const double*", gathered.inputs)}
{_fields("double*", gathered.outputs)}
}} tfbn_gather_stats;

#ifdef __cplusplus
namespace tf_bn_ops {{

// In the order of the fields.
enum class Role : int32_t {{ {", ".join(f"k{camel(a.role)}" for a in call.ARRAYS)}, kNone }};
constexpr int kNumRoles = {len(call.ARRAYS)}, kNumInputRoles = {len(call.INPUTS)};

enum class ArrayKind : int32_t {{ {", ".join(kinds.values())} }};
struct RoleInfo {{ const char* name; ArrayKind kind; }};
inline constexpr RoleInfo kRoles[kNumRoles] = {{{", ".join(infos)}}};

}}  // namespace tf_bn_ops
#endif  /* __cplusplus */

#undef TFBN_CPP
"""
