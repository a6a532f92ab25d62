"""The classes of the C++ API that follow from the table of ops."""

from __future__ import annotations

import op_words as ow
from cc_sources import source
from op_words import OPS, OpSpec, spec, wrapped


def _attrs(op: OpSpec) -> list[str]:
    """Those of the class Attrs: no lengths of inputs; what has no default is an argument."""
    names = {*op.attrs, *op.derived_attrs}
    return [n for n in ow.attr_names(op) if n in names and op.attrs.get(n) is not spec.REQUIRED]


def _type(name: str, taken: bool = False) -> str:
    """Of an attr; `taken`: by its setter, which copies text."""
    cpp_type = spec.ATTRS[name].cpp_type
    return "std::string_view" if taken and cpp_type == "std::string" else cpp_type


def _setters(name: str) -> str:
    """The base of an Attrs with one attr."""
    setter = ow.camel(name)
    defaults = {repr(op.attrs.get(name, [])) for op in OPS if name in _attrs(op)}
    assert len(defaults) == 1, f"one {setter}Attr for all classes: ops differ in its default"
    text = defaults.pop().replace("'", '"').replace("True", "true").replace("[]", "{}")
    doc = "\n".join(wrapped(spec.ATTRS[name].doc, "  // ", "  // "))
    visit = f'template~<typename~F> void~Visit(F&&~f)~const~{{~f("{name}",~{name}_);~}}'
    visit = "\n".join(wrapped(visit, "  ", "  "))
    return f"""\
template <typename A>
struct {setter}Attr {{
{doc}
  [[nodiscard]] A {setter}({_type(name, taken=True)} x) const {{
    return With<A>(*this, &{setter}Attr::{name}_, x);
  }}
{visit}
  {_type(name)} {name}_ = {text};
}};"""


def _parameters(op: OpSpec, default: str = "") -> str:
    given = ["const~Scope&~scope"]
    for arg in op.inputs:
        given.append(f"Input{'List' * (arg.kind == spec.VIEW_LIST)}~{arg.name}")
    given += ["double~epsilon"] * (op.attrs.get("epsilon") is spec.REQUIRED)
    return ", ".join([*given, *[f"const~Attrs&~attrs{default}"] * bool(_attrs(op))])


def _class(op: OpSpec) -> str:
    lines = [*wrapped(op.summary, "// ", "// "), f"class TF_BN_OPS_EXPORT {op.name} {{", " public:"]
    bases = ", ".join(f"internal::{ow.camel(name)}Attr" for name in _attrs(op))
    base = f"struct~Attrs~: internal::AttrsOf<Attrs, {bases}>~{{}};"
    lines += wrapped(base, "  ", "      ") if bases else []
    lines += wrapped(f"{op.name}({_parameters(op, '~=~Attrs()')});", "  ", "      ")
    for setter, taken in ((ow.camel(name), _type(name, taken=True)) for name in _attrs(op)):
        lines.append(f"  static Attrs {setter}({taken} x) {{ return Attrs().{setter}(x); }}")
    lines += ["", "  Operation operation;"]
    for kind, is_list in (("Output", False), ("OutputList", True)):
        names = [arg.name for arg in op.outputs if (arg.kind == spec.VIEW_LIST) == is_list]
        lines += wrapped(f"{kind}~{', '.join(names)};", "  ", "      ") if names else []
    return "\n".join([*lines, "};\n"])


def _constructor(op: OpSpec) -> str:
    lists = [arg.name for arg in op.inputs if arg.kind == spec.VIEW_LIST]
    inputs = ", ".join(arg.name for arg in op.inputs if arg.name not in lists)
    outputs = ", ".join(f"&{arg.name}" for arg in op.outputs if arg.kind != spec.VIEW_LIST)
    of_lists = [f", &{arg.name}" for arg in op.outputs if arg.kind == spec.VIEW_LIST]
    attrs = "attrs" if _attrs(op) else "NoAttrs{}"
    if op.attrs.get("epsilon") is spec.REQUIRED:
        attrs = "EpsilonTensor{epsilon}"
    given = ", ".join(
        [f"{{{inputs}}}", *(f"&{name}" for name in lists), *(["nullptr"] * (not lists))]
    )
    lines = wrapped(f"{op.name}::{op.name}({_parameters(op)})~{{", "", "    ")
    call = f'AddOp(scope,~"{op.name}", {given}, {attrs}, &operation, {{{outputs}}}'
    lines += wrapped(f"{call}{''.join(of_lists)});", "  ", "        ")
    return "\n".join([*lines, "}\n"])


def header() -> str:
    attrs = "\n".join(_setters(n) for n in spec.ATTRS if any(n in _attrs(op) for op in OPS))
    body = f"namespace ops {{\nnamespace internal {{\n\n{attrs}\n\n}}  // namespace internal\n\n"
    body += "\n".join(map(_class, OPS)) + "\n}  // namespace ops"
    return source(
        "The op classes; tf_bn_ops/ops.h includes this.",
        body,
        ["<string>", "<string_view>", "<vector>", "tensorflow/cc/framework/ops.h"],
        "TF_BN_OPS_GENERATED_OP_CLASSES_H_",
    )


def constructors() -> str:
    return source(
        "Constructors of the op classes.",
        "\n".join(["namespace ops {\n", *map(_constructor, OPS), "}  // namespace ops"]),
        ["cc/client/add_op.h", "tf_bn_ops/ops.h"],
    )
