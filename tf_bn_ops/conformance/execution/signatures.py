"""The contract of another library's ops beside those that they claim to equal: OpDefs, shape
functions, and what a call without the optional attrs computes. Inside the worker.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution import devices, static_shapes
from tf_bn_ops.conformance.execution.answer import identical
from tf_bn_ops.conformance.execution.static_shapes import PartialShape, Question

# Kinds of differences besides mapping.DIFFERENCES: the op cannot be called; worth knowing.
FATAL, NOTE = "fatal", "note"

# (kind, sentence)
Differences = list[tuple[str, str]]


# Of an OpDef; a stateful op, for instance, is not folded.
_FLAGS = ("is_stateful", "is_commutative", "is_aggregate", "allows_uninitialized_input")
# Given for an attr that has no default.
_REQUIRED = {"epsilon": 1e-3, "data_format": "NHWC", "axis": 1, "is_training": True}
# Channels of the call without optional attrs, in all dimensions that may be theirs.
_CHANNELS = 3


@dataclasses.dataclass
class Op:
    """An op, called in the names of the one that it claims to equal.

    Attributes:
      tf: TensorFlow.
      function: calls it; None where it is missing.
      mapped: how names translate, what is claimed.
      renamed: whether `function` takes the names of their op.
      in_order: (names of outputs, what it returned) -> the tensors in that order.
    """

    tf: Any
    function: Any
    mapped: OpMapping
    renamed: bool
    in_order: Callable[[Sequence[str], Any], list[Any]]

    def __call__(self, tensors: Mapping[str, Any], attrs: Mapping[str, Any]) -> list[Any]:
        lists = [a.name for a in self.mapped.spec.inputs if a.kind == spec.VIEW_LIST]
        given = {
            **{self._name("inputs", n): [t] if n in lists else t for n, t in tensors.items()},
            **{self._name("attrs", n): value for n, value in attrs.items()},
        }
        outputs = [self._name("outputs", a.name) for a in self.mapped.spec.outputs]
        return self.in_order(outputs, self.function(**given))

    def _name(self, kind: str, name: str) -> str:
        return getattr(self.mapped, kind).get(name, name) if self.renamed else name

    @functools.cached_property
    def _types(self) -> dict[str, str]:
        return self.mapped.claimed_types()[0]

    def _type(self, name: str) -> str:
        return self._types.get(name, "float32")

    def shapes(self, question: Question, attrs: dict[str, Any]) -> list[PartialShape] | None:
        """The static shapes of its outputs, None for an error."""
        tf = self.tf
        try:
            with tf.Graph().as_default():
                placeholder = tf.compat.v1.placeholder
                given = {n: placeholder(self._type(n), shape) for n, shape in question.items()}
                outputs = self(given, {n: _value(n, value) for n, value in attrs.items()})
                return [None if o.shape.rank is None else tuple(o.shape) for o in outputs]
        except (ValueError, TypeError, tf.errors.OpError):
            return None

    def values(self, attrs: Mapping[str, Any]) -> list[np.ndarray] | None:
        """What the op computes from a few numbers, None for an error."""
        rng, layout = np.random.default_rng(1), self.mapped.spec.layouts[0]
        rank, shapes = spec.LAYOUTS[layout][0], {spec.COUNT: (), spec.OPAQUE: (0,)}
        shapes |= dict.fromkeys((spec.VIEW, spec.VIEW_LIST), (_CHANNELS,) * rank)
        tensors = {
            a.name: rng.uniform(0.5, 1.5, shapes.get(a.kind, (_CHANNELS,)))
            for a in self.mapped.spec.inputs
        }
        try:
            with devices.placed(self.tf, self.mapped.device if self.renamed else None):
                given = {n: self.tf.cast(t, self._type(n)) for n, t in tensors.items()}
                return [output.numpy() for output in self(given, attrs)]
        except Exception:  # Of an op of somebody else.
            return None


def _value(name: str, value: Any) -> Any:
    return _REQUIRED[name] if value is spec.op_spec.REQUIRED else value


def judge(mapped: OpMapping, theirs: Op, ours: Op) -> Differences:
    """Compares what needs no case: OpDefs, static shapes, defaults in a call."""
    from tensorflow.python.framework import op_def_registry

    op = mapped.spec
    like = op.builtin or op.registered_name
    op_def = op_def_registry.get(like)
    if op_def is None:
        raise ValueError(f"TensorFlow has no op {like}")
    found = differences(mapped, op_def_registry.get(mapped.name), op_def)
    if any(kind == FATAL for kind, _ in found):
        return found
    layouts, modes = mapped.layouts or op.layouts, mapped.modes or op.modes
    said = static_shapes.difference(op, layouts, modes, theirs.shapes, ours.shapes)
    found += [("shapes", said)] if said else []
    defaults = {n: _value(n, value) for n, value in op.attrs.items()}
    required = {n: defaults[n] for n, v in op.attrs.items() if v is spec.op_spec.REQUIRED}
    explicit = theirs.values(defaults)
    if explicit is None:
        return found
    for name in sorted(set(defaults) - set(required)):
        attr, value = mapped.attrs.get(name, name), defaults[name]
        without = theirs.values({n: v for n, v in defaults.items() if n != name})
        is_said = any(text.startswith(f"attr {attr} has the default ") for _, text in found)
        if not is_said and (without is None or not identical(explicit, without)):
            how = "fails, unlike" if without is None else "computes something else than"
            text = f"a call without attr {attr} {how} one with {attr}={value!r}, which is the "
            found.append(("defaults", text + f"default of {name} of {like}"))
    return found


def _default(attr: Any) -> str:
    """The default of an attr of an OpDef, for people."""
    value = attr.default_value
    kind = value.WhichOneof("value")
    if kind is None:
        return "none"
    its = getattr(value, kind)
    return repr(its.decode()) if kind == "s" else f"{its:.7g}" if kind == "f" else str(its)


def differences(mapped: OpMapping, theirs: Any, ours: Any) -> Differences:
    """Compares two OpDefs argument by argument: of their op, None if TensorFlow knows none of this
    name, and of the op that it claims to equal."""
    if theirs is None:
        return [(FATAL, f"the library registers no op {mapped.name}")]
    found: Differences = []
    for kind in ("input", "output"):
        _compare_args(kind, mapped, theirs, ours, found)
    _compare_types(mapped, theirs, ours, found)
    _compare_attrs(mapped, theirs, ours, found)
    for flag in _FLAGS:
        a, b = bool(getattr(theirs, flag)), bool(getattr(ours, flag))
        if a != b:
            found.append(("flags", f"{flag} of {mapped.name} is {a}, of {ours.name} {b}"))
    if theirs.HasField("deprecation"):
        found.append(("flags", f"{mapped.name} is deprecated"))
    return found


def _missing(
    name: str, kind: str, there: Sequence[str], wanted: Sequence[str], sink: str
) -> Differences:
    return [
        (sink, f"{name} has no {kind} {one}; it has {', '.join(there) or 'none'}")
        for one in wanted
        if one not in there
    ]


def _compare_args(kind: str, mapped: OpMapping, theirs: Any, ours: Any, found: Differences) -> None:
    """Names and order of the inputs or outputs."""
    name, renamed = mapped.name, getattr(mapped, f"{kind}s")
    sink = FATAL if kind == "input" else "outputs"
    wanted = [renamed.get(a.name, a.name) for a in getattr(ours, f"{kind}_arg")]
    names = [a.name for a in getattr(theirs, f"{kind}_arg")]
    found += _missing(name, kind, names, wanted, sink)
    extra = [one for one in names if one not in wanted]
    if extra:
        found.append((sink, f"{name} has further {kind}s: {', '.join(extra)}"))
    elif names != wanted and set(names) == set(wanted):
        found.append(("order", f"{kind}s are in another order: {', '.join(names)}"))


def _compare_types(mapped: OpMapping, theirs: Any, ours: Any, found: Differences) -> None:
    """Lists, references, and the types that arguments have together in every claimed call."""
    from tensorflow.python.framework import dtypes

    allowed = {a.name: a.allowed_values.list.type for a in theirs.attr}
    pairs = []
    for kind in ("input", "output"):
        by_name = {a.name: a for a in getattr(theirs, f"{kind}_arg")}
        renamed = getattr(mapped, f"{kind}s")
        its = [(a, by_name.get(renamed.get(a.name, a.name))) for a in getattr(ours, f"{kind}_arg")]
        pairs += [(kind, a, b) for a, b in its if b is not None]
    for kind, a, b in pairs:
        forms = [(bool(c.number_attr), bool(c.type_list_attr), c.is_ref) for c in (a, b)]
        if forms[0] != forms[1]:
            found.append(("types", f"{kind} {b.name} is a list or a reference, or should be"))
    lacks: dict[str, list[str]] = {}
    for claimed in mapped.claimed_types():
        chosen: dict[str, int] = {}
        for kind, a, b in pairs:
            wanted = dtypes.as_dtype(claimed[a.name]).as_datatype_enum
            has = chosen.setdefault(b.type_attr, wanted) if b.type_attr else b.type
            if has != wanted or wanted not in (allowed.get(b.type_attr) or [wanted]):
                lacks.setdefault(f"{kind} {b.name}", []).append(claimed[a.name])
    for name, no in lacks.items():
        said = " or ".join(dict.fromkeys(no))
        found.append(("types", f"{name} is not of type {said}, which is claimed"))


def _compare_attrs(mapped: OpMapping, theirs: Any, ours: Any, found: Differences) -> None:
    attrs, layouts = mapped.spec.attrs, mapped.layouts or mapped.spec.layouts
    their_attrs = {a.name: a for a in theirs.attr}
    our_attrs = {a.name: a for a in ours.attr}
    wanted = [mapped.attrs.get(name, name) for name in attrs]
    found += _missing(mapped.name, "attr", list(their_attrs), wanted, FATAL)
    for name in attrs:
        a, b = our_attrs.get(name), their_attrs.get(mapped.attrs.get(name, name))
        if a is None or b is None:
            continue
        if a.type == "tensor" and b.type == "float":
            # Ours keeps all digits of a double that way; Python hands either the same number.
            text = f"attr {b.name} is a float, {name} of {ours.name} has double precision"
            found.append((NOTE, text))
            continue
        if a.type != b.type:
            text = f"attr {b.name} is a {b.type}, {name} of {ours.name} a {a.type}"
            found.append((FATAL, text))
            continue
        if a.default_value != b.default_value:
            its, right = (_default(c) for c in (b, a))
            text = f"attr {b.name} has the default {its}, {name} of {ours.name} has {right}"
            found.append(("defaults", text))
        values, has = ([v.decode() for v in c.allowed_values.list.s] for c in (a, b))
        claimed = [v for v in values if name != "data_format" or v in layouts]
        if no := [v for v in claimed if has and v not in has]:
            text = f"attr {b.name} does not allow {' or '.join(no)}, which is claimed"
            found.append(("values", text))
        more = [v for v in has if v not in values] or ["any"] * (bool(values) and not has)
        if more or (a.has_minimum, a.minimum) != (b.has_minimum, b.minimum):
            text = f"attr {b.name} allows other values than {name}: "
            found.append(("values", text + (", ".join(more) or "a minimum")))
    if [n for n in their_attrs if n in wanted] != [n for n in wanted if n in their_attrs]:
        found.append(("order", f"attrs are in another order: {', '.join(their_attrs)}"))
    arguments = (*theirs.input_arg, *theirs.output_arg)
    used = {*wanted, *(name for a in arguments for name in (a.type_attr, a.number_attr))}
    for attr in theirs.attr:
        if attr.name not in used:
            sink = "attrs" if attr.HasField("default_value") else FATAL
            found.append((sink, f"{mapped.name} has the further attr {attr.name}"))
