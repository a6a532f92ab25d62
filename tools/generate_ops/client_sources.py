"""The classes of the C++ API that follow from the table of ops."""

from __future__ import annotations

import op_words as ow
from cc_sources import source
from op_words import OPS, OpSpec, spec, wrapped


def _attrs(op: OpSpec) -> list[str]:
    """Those of the class Attrs: no lengths of inputs; what has no default is an argument."""
    names = {*op.attrs, *op.derived_attrs}
    return [n for n in ow.attr_names(op) if n in names and op.attrs.get(n) is not spec.REQUIRED]


def _attr(name: str) -> str:
    """A member and its setters, of an attr that has one default; text is copied."""
    defaults = {repr(op.attrs.get(name, [])) for op in OPS if name in _attrs(op)}
    (text,) = defaults
    for python, cpp in {"'": '"', "True": "true", "[]": "{}"}.items():
        text = text.replace(python, cpp)
    setter, cpp_type = ow.camel(name), spec.ATTRS[name].cpp_type
    taken = cpp_type.replace("std::string", "std::string_view")
    doc = "\n".join(wrapped(spec.ATTRS[name].doc, "    // ", "    // "))
    function = f"static A {setter}({taken} x) {{ return A().{setter}(x); }}"
    return f"""\
struct {setter} {{
  template <typename A> struct Member {{
{doc}
    {cpp_type} {name}_ = {text};
    [[nodiscard]] A {setter}({taken} x) const {{ return With<A>(*this, &Member::{name}_, x); }}
    void AddTo(AttrValues* all) const {{ SetAttrValue({name}_, &(*all)["{name}"]); }}
  }};
  template <typename A> struct Setter {{ {function} }};
}};"""


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
    outputs = ", ".join(
        f"{arg.name}~=~At({i})" for i, arg in enumerate(op.outputs) if arg.kind != spec.VIEW_LIST
    )
    lines = wrapped(op.summary, "// ", "// ")
    lines += wrapped(f"struct {op.name} : internal::OpClass<{base}> {{", "", "    ")
    lines += wrapped(f"{op.name}({', '.join(parameters)})", "  ", "      ")
    lines += wrapped(f": OpClass({', '.join(given)}) {{}}", "      ", "                ")
    lines += wrapped(f"Output~{outputs};", "  ", "         ")
    for i, arg in enumerate(op.outputs):
        lines += [f"  OutputList {arg.name} = From({i});"] * (arg.kind == spec.VIEW_LIST)
    return "\n".join([*lines, "};\n"])


def classes() -> str:
    attrs = "\n".join(_attr(n) for n in spec.ATTRS if any(n in _attrs(op) for op in OPS))
    body = f"namespace ops {{\nnamespace internal {{\n\n{attrs}\n\n}}  // namespace internal\n\n"
    return source(
        "The op classes; tf_bn_ops/ops.h includes this.",
        body + "\n".join(map(_class, OPS)) + "\n}  // namespace ops",
        [],
        "TF_BN_OPS_GENERATED_OP_CLASSES_H_",
    )
