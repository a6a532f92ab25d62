"""What the ops of another library are called, and which op of the family each claims to equal.

On the command line `--map "TheirOp=FusedBatchNormGradV3"`; in a TOML file, where more is needed:

    [[op]]
    name = "Vendor>BnGrad"            # registered name of their op
    like = "FusedBatchNormGradV3"     # op of tf_bn_ops/spec.py that it claims to equal
    dtypes = ["float32"]              # optional: element types that it claims; all without
    layouts = ["NHWC"]                # optional: data formats that it claims; all without
    modes = ["training"]              # optional: modes that it claims; both without
    inputs = { x = "activations" }    # optional: our name -> theirs, where they differ
    attrs = { epsilon = "eps" }
    outputs = { x_backprop = "dx" }
    device = "GPU:0"                  # optional: where it runs; TensorFlow decides without
    reference_device = "CPU:0"        # optional: where the op of TensorFlow runs
    [[op.tolerance]]                  # optional: see tolerances.py
    times_bound = 4
    reason = "rstd comes from a table"

An op like one of TensorFlow's that is not batch norm says more: see general.py.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops.conformance import devices, general, tolerances
from tf_bn_ops.conformance.divergences import tomllib


class MappingError(ValueError):
    """A mapping that says nothing that can be run; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Mapped:
    """An op of another library; see the module's text."""

    name: str
    like: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    modes: tuple[str, ...] = spec.MODES
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    attrs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device: str | None = None
    reference_device: str | None = None
    tolerances: tuple[tolerances.Tolerance, ...] = ()

    @property
    def spec(self) -> spec.OpSpec:
        return spec.OPS[self.like]

    @property
    def function(self) -> str:
        """The name of its function in the module that tf.load_op_library returns."""
        return self.name.replace(">", "_")

    @property
    def output_names(self) -> list[str]:
        """Their names of our outputs, in our order."""
        return [self.outputs.get(arg.name, arg.name) for arg in self.spec.outputs]

    def times_bound(self, dtype: str) -> dict[str, float]:
        """Output, by role -> how many times its bound is allowed in cases of an element type."""
        roles = [arg.role for arg in self.spec.outputs]
        return {
            role: tolerance.times_bound
            for tolerance in reversed(self.tolerances)
            for role in roles
            if tolerance.applies(role, dtype)
        }

    def claims(self, dtype: str, layout: str, mode: str) -> bool:
        return dtype in self.dtypes and layout in self.layouts and mode in self.modes


def _op_like(text: str, where: str) -> spec.OpSpec:
    names = {name.lower(): op for name, op in spec.OPS.items()}
    if text.lower() not in names:
        raise MappingError(
            f"{where}: {text!r} is not one of {', '.join(spec.OPS)}; another op of TensorFlow "
            "is described in a mapping file, with [op.values.INPUT]"
        )
    return names[text.lower()]


def parse(text: str) -> Mapped:
    """The mapping that `TheirOp=OurOp` says.

    Raises:
      MappingError: it has another form, or there is no such op of ours.
    """
    name, _, like = (part.strip() for part in text.partition("="))
    if not name or not like:
        raise MappingError(f"--map takes TheirOp=FusedBatchNormGradV3 or so, not {text!r}")
    op = _op_like(like, "--map")
    return Mapped(name, op.name, op.dtypes, op.layouts)


# Keys of every entry of a file, and of those that are batch norm or are not.
_COMMON = ("name", "like", "dtypes", "inputs", "attrs", "outputs", "device", "reference_device")
_OF_BATCH_NORM = ("layouts", "modes")
_GENERAL = ("oracle", "sizes", "values", "attr_values")


def _renamed(content: Mapping[str, Any], where: str) -> dict[str, dict[str, str]]:
    renamed = {}
    for key in ("inputs", "attrs", "outputs"):
        renamed[key] = content.get(key, {})
        if not isinstance(renamed[key], dict):
            raise MappingError(f"{where}: {key} is a table of our names and theirs")
    return renamed


def _entry(content: Mapping[str, Any], file: pathlib.Path) -> Mapped | general.Described:
    name = content.get("name")
    where = f"{file}, op {name or '(without a name)'}"
    is_general = "values" in content
    known = (*_COMMON, "tolerance", *(_GENERAL if is_general else _OF_BATCH_NORM))
    for key in content:
        if key not in known:
            raise MappingError(f"{where}: there is no key {key!r}; known: {', '.join(known)}")
    if not name or not content.get("like"):
        raise MappingError(f"{where}: an op needs 'name' and 'like'")
    common: dict[str, Any] = {"name": name, **_renamed(content, where)}
    try:
        for key in ("device", "reference_device"):
            common[key] = devices.parse(content[key]) if key in content else None
        numbers = ("ulp", "relative", "absolute") if is_general else ("times_bound",)
        allowed = tolerances.parse(content.get("tolerance", []), where, numbers)
        common["tolerances"] = allowed
        if is_general:
            return general.described(content, where, {**common, "like": content["like"]})
    except devices.DeviceError as e:
        raise MappingError(f"{where}: {e}") from e
    except (tolerances.ToleranceError, general.GeneralError) as e:
        raise MappingError(str(e)) from e
    op = _op_like(content["like"], where)
    lists: dict[str, Any] = {}
    for key, choices in (
        ("dtypes", op.dtypes),
        ("layouts", op.layouts),
        ("modes", spec.MODES),
    ):
        lists[key] = tuple(content.get(key, choices))
        for value in lists[key]:
            if value not in choices:
                raise MappingError(f"{where}: {key} has {value!r}; {op.name} has {list(choices)}")
        if not lists[key]:
            raise MappingError(f"{where}: {key} is empty: leave it out where all are claimed")
    for key, ours in (
        ("inputs", [a.name for a in op.inputs]),
        ("attrs", list(op.attrs)),
        ("outputs", [a.name for a in op.outputs]),
    ):
        for left in common[key]:
            if left not in ours:
                raise MappingError(f"{where}: {op.name} has no {key[:-1]} {left!r}; it has {ours}")
    roles = [a.role for a in op.outputs if a.role != "placeholder"]
    for tolerance in allowed:
        for output in tolerance.outputs:
            if output not in roles:
                raise MappingError(f"{where}: a tolerance is for {output!r}; there are {roles}")
    return Mapped(like=op.name, **lists, **common)


def load(file: pathlib.Path) -> list[Mapped | general.Described]:
    """The ops of a mapping file.

    Raises:
      MappingError: it cannot be read or has a mistake.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise MappingError(f"cannot read the mapping file {file}: {e}") from e
    entries = [_entry(item, file) for item in content.get("op", [])]
    if not entries:
        raise MappingError(f"{file} has no [[op]]")
    return entries


def by_op(entries: Sequence[Mapped]) -> dict[str, Mapped]:
    """The entries by the op that they claim to equal.

    Raises:
      MappingError: two claim to equal the same.
    """
    result: dict[str, Mapped] = {}
    for entry in entries:
        if entry.like in result:
            raise MappingError(
                f"{result[entry.like].name} and {entry.name} are both mapped to {entry.like}: "
                "run them one after the other"
            )
        result[entry.like] = entry
    return result


def signature_differences(
    mapped: Any, attrs: Sequence[str], theirs: Any, ours: Any
) -> tuple[list[str], list[str]]:
    """Compares two OpDefs argument by argument.

    Args:
      mapped: how their names translate: a Mapped or a general.Described.
      attrs: the attrs of our op that are given a value.
      theirs: the OpDef of their op; None if TensorFlow knows none of this name.
      ours: the OpDef of the op that it claims to equal.

    Returns:
      (differences that leave no way to call it, other differences), a sentence each.
    """
    if theirs is None:
        return [f"the library registers no op {mapped.name}"], []
    fatal: list[str] = []
    other: list[str] = []
    their_attrs = {a.name: a for a in theirs.attr}
    our_attrs = {a.name: a for a in ours.attr}

    def listed(kind: str, names: list[str], wanted: list[str], sink: list[str]) -> None:
        for name in wanted:
            if name not in names:
                sink.append(f"{mapped.name} has no {kind} {name}; it has {', '.join(names)}")

    def type_of(arg: Any, attrs: Mapping[str, Any]) -> list[int]:
        if arg.type_attr:
            allowed = attrs[arg.type_attr].allowed_values.list.type
            return sorted(allowed) or [0]
        return [arg.type]

    for kind, ours_args, theirs_args, renamed, sink in (
        ("input", ours.input_arg, theirs.input_arg, mapped.inputs, fatal),
        ("output", ours.output_arg, theirs.output_arg, mapped.outputs, other),
    ):
        wanted = [renamed.get(a.name, a.name) for a in ours_args]
        names = [a.name for a in theirs_args]
        listed(kind, names, wanted, sink)
        extra = [name for name in names if name not in wanted]
        if extra:
            sink.append(f"{mapped.name} has further {kind}s: {', '.join(extra)}")
        elif names != wanted and set(names) == set(wanted):
            other.append(f"{kind}s are in another order: {', '.join(names)}")
        for arg in ours_args:
            match = [a for a in theirs_args if a.name == renamed.get(arg.name, arg.name)]
            if match and type_of(match[0], their_attrs) != type_of(arg, our_attrs):
                other.append(f"{kind} {match[0].name} allows other types than {arg.name}")
    wanted = [mapped.attrs.get(name, name) for name in attrs]
    listed("attr", list(their_attrs), wanted, fatal)
    for name in attrs:
        a, b = our_attrs.get(name), their_attrs.get(mapped.attrs.get(name, name))
        if a is None or b is None:
            continue
        if a.type == "tensor" and b.type == "float":
            # Ours keeps all digits of a double that way; Python hands either the same number.
            other.append(f"attr {b.name} is a float, {name} of {ours.name} has double precision")
        elif a.type != b.type:
            fatal.append(f"attr {b.name} is a {b.type}, {name} of {ours.name} a {a.type}")
        elif a.default_value != b.default_value:
            other.append(f"attr {b.name} has another default than {name}")
        elif a.allowed_values != b.allowed_values:
            other.append(f"attr {b.name} allows other values than {name}")
    used = {*wanted, *(a.type_attr for a in (*theirs.input_arg, *theirs.output_arg))}
    for attr in theirs.attr:
        if attr.name not in used:
            sink = other if attr.HasField("default_value") else fatal
            sink.append(f"{mapped.name} has the further attr {attr.name}")
    return fatal, other
