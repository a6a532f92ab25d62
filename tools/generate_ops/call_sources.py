"""The struct of a call, which C, C++ and ctypes share, from tf_bn_ops/spec/call.py."""

from __future__ import annotations

from collections.abc import Iterator

import op_words as ow
from op_words import activations, call, spec, table, wrapped

_SHAPES = {
    **{spec.VIEW: "view", spec.CHANNEL: "vector", spec.WIDE: "wide", spec.COUNT: "scalar"},
    **{call.STATISTICS: "statistics", call.COEFFICIENTS: "coefficients"},
}
_KINDS = {kind: f"k{ow.camel(name)}" for kind, name in _SHAPES.items()}

_HEAD = """\
// clang-format off
/* The struct of a call, which the C ABI, XLA's custom call, the core and ctypes share, and
 * the roles of its arrays.
 * Written by tools/generate_ops from tf_bn_ops/spec (call.py, activations.py): edit those, then
 * make format. */

#ifndef TF_BN_OPS_CC_CORE_GENERATED_ROLES_H_
#define TF_BN_OPS_CC_CORE_GENERATED_ROLES_H_

#include <stdint.h>

#ifdef __cplusplus
#include "cc/core/view.h"
namespace tf_bn_ops {
enum class FormulaKind : int32_t;
enum class DType : int32_t;
@CPP_ACTIVATIONS@
}  // namespace tf_bn_ops
#define TFBN_CPP(cpp, c) tf_bn_ops::cpp
#else
typedef struct tfbn_view { int64_t outer, channels, inner; } tfbn_view;
#define TFBN_CPP(cpp, c) c
#endif

/* What is applied to y; NaN stays NaN. tf_bn_ops/spec/activations.py has the formulas, and
 * cc/core/formulas/smooth_activation.h the text of the smooth ones that kernels compute. */
enum { @C_ACTIVATIONS@ };

/* Arrays are borrowed, of these shapes: the view of x; [channels] of stat_dtype (vector), or of
 * stat_dtype or float64 (statistics), or of float64 (wide); one element of float64 (scalar);
 * [5, channels] of float, of double for TFBN_FLOAT64 (coefficients). NULL: there is none. An output
 * may be the buffer of an input where the formula says so, element for element. */
typedef struct tfbn_call {
  TFBN_CPP(View, tfbn_view) view;
"""


def _field(c_type: str, name: str, doc: str) -> list[str]:
    line = f"  {c_type} {name};"
    if len(line) + len(doc) < 92:
        return [f"{line}  /* {doc} */"]
    return [*wrapped(f"/* {doc} */", "  ", "   * "), line]


def _fields() -> Iterator[str]:
    for attr in call.ATTRS:
        c_type = f"TFBN_CPP({attr.enum}, {attr.c_type})" if attr.enum else attr.c_type
        yield from _field(c_type, attr.name, attr.doc)
    for arrays, c_type in ((call.INPUTS, "const void*"), (call.OUTPUTS, "void*")):
        for array in arrays:
            doc = f"{_SHAPES[array.kind]}. {array.doc}" if array.doc else _SHAPES[array.kind]
            yield from _field(c_type, array.role, doc)


def _gather_stats() -> list[str]:
    """BatchNormGatherStats has no view of x, and so a struct of its own."""
    op = table.BATCH_NORM_GATHER_STATS
    shapes = {spec.ROW: "[parts]", spec.ROWS: "[parts, channels]", spec.WIDE: "[channels]"}
    lines = ["", *wrapped(f"/* {op.summary} No output may overlap an input. */", "", " * ")]
    lines += ["typedef struct tfbn_gather_stats {", "  int64_t parts, channels;"]
    for args, c_type in ((op.inputs, "const double*"), (op.outputs, "double*")):
        for arg in args:
            shape = shapes.get(arg.kind, "One element")
            lines += _field(c_type, arg.name, f"{shape}. {arg.doc}")
    return [*lines, "} tfbn_gather_stats;"]


def _with_activations(text: str) -> str:
    """The enumerations of C and C++, whose values are the places in ACTIVATIONS."""
    names, clamps = [*activations.ACTIVATIONS], len(activations.CLAMPS)
    smooth = " ".join(f"X({name})" for name in activations.SMOOTH_ACTIVATIONS)
    cpp = (
        f"enum class Activation : int32_t {{ k{', k'.join(names)} }};",
        f"constexpr int kNumActivations = {len(names)}, kNumClamps = {clamps};",
        f"#define TFBN_FOR_EACH_SMOOTH_ACTIVATION(X) {smooth}",
        "// The values of the attr activation_mode.",
        "inline constexpr const char* kActivationModes[kNumActivations] = {",
        '    "' + '", "'.join(names) + '"};',
    )
    c = ", ".join(f"TFBN_{ow.snake(name).upper()}" for name in names)
    return text.replace("@CPP_ACTIVATIONS@", "\n".join(cpp)).replace("@C_ACTIVATIONS@", c)


def roles_header() -> str:
    lines = [_with_activations(_HEAD.rstrip()), *_fields(), "} tfbn_call;", *_gather_stats()]
    names = [f"k{ow.camel(array.role)}" for array in call.ARRAYS]
    lines += ["", "#ifdef __cplusplus", "namespace tf_bn_ops {"]
    lines += ["", "// In the order of the fields.", "enum class Role : int32_t {"]
    lines += [*wrapped(", ".join([*names, "kNone"]), "  ", "  "), "};"]
    lines += [f"constexpr int kNumRoles = {len(names)}, kNumInputRoles = {len(call.INPUTS)};", ""]
    lines += [f"enum class ArrayKind : int32_t {{ {', '.join(_KINDS.values())} }};"]
    lines += ["struct RoleInfo { const char* name; ArrayKind kind; };"]
    infos = [f'{{"{a.role}",~ArrayKind::{_KINDS[a.kind]}}}' for a in call.ARRAYS]
    lines += ["inline constexpr RoleInfo kRoles[kNumRoles] = {"]
    lines += [*wrapped(", ".join(infos), "    ", "    "), "};"]
    lines += ["", "}  // namespace tf_bn_ops", "#endif  /* __cplusplus */", "", "#undef TFBN_CPP"]
    return "\n".join([*lines, "", "#endif  /* TF_BN_OPS_CC_CORE_GENERATED_ROLES_H_ */", ""])
