"""Ops of other libraries: what they are called, and which op each claims to equal.

On the command line `--map "TheirOp=FusedBatchNormGradV3"`; where more is needed, in a TOML file
(docs/conformance.md).
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.spec import OpSpec

# In the standard library since Python 3.11; the same code as tomli before.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def parse_device(text: str) -> str:
    """The name of a device as this package writes it, "GPU:0", of "/gpu:0", "GPU" and so on.

    Raises:
      UsageError: it is none.
    """
    match = re.fullmatch(r"/?(?:device:)?([A-Za-z_]+)(?::(\d+))?", text.strip())
    if not match:
        raise UsageError(f"{text!r} names no device; write CPU:0, GPU:0 or so")
    return f"{match.group(1).upper()}:{match.group(2) or 0}"


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What an op may be off beyond the bounds, with a reason: so many times its bound, in outputs
    and element types that it names, or in all."""

    reason: str
    times_bound: float
    outputs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def applies(self, output: str, dtype: str) -> bool:
        """Whether it is for this output in cases of this element type."""
        return (not self.outputs or output in self.outputs) and (
            not self.dtypes or dtype in self.dtypes
        )


def _check_known(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises UsageError where something is given that is not known."""
    for one in given:
        if one not in known:
            raise UsageError(f"{what} {one!r}; known: {', '.join(known)}")


def _tolerances(items: Any) -> tuple[Tolerance, ...]:
    """The list `tolerance` of an entry of a file."""
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise UsageError("tolerances are written as [[op.tolerance]]")
    found = []
    for item in items:
        known = [field.name for field in dataclasses.fields(Tolerance)]
        _check_known("a tolerance has no key", item, known)
        if not str(item.get("reason", "")).strip():
            raise UsageError("a tolerance needs a 'reason': add it")
        times = item.get("times_bound")
        if not isinstance(times, (int, float)) or not 0 < times < math.inf:
            raise UsageError("a tolerance needs a positive, finite times_bound")
        lists = {name: tuple(item.get(name, ())) for name in ("outputs", "dtypes")}
        found.append(Tolerance(str(item["reason"]), float(times), **lists))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class OpMapping:
    """An op of another library; see the module's text.

    Attributes:
      spec: what it claims to equal.
      differs: kinds of differences between the contracts that fail nothing (DIFFERENCES).
    """

    name: str
    spec: OpSpec
    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    attrs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device: str | None = None
    reference_device: str | None = None
    tolerances: tuple[Tolerance, ...] = ()
    differs: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """The name of its function in the module that tf.load_op_library returns."""
        return self.name.replace(">", "_")

    def times_bound(self, dtype: str) -> dict[str, float]:
        """Output, by role -> how many times its bound is allowed in cases of an element type."""
        return {
            arg.role: tolerance.times_bound
            for tolerance in reversed(self.tolerances)
            for arg in self.spec.outputs
            if tolerance.applies(arg.role, dtype)
        }

    def claims(self, dtype: str, layout: str, mode: str) -> bool:
        """Whether it claims a combination; what is not listed does not matter."""
        return all(
            not claimed or value in claimed
            for value, claimed in ((dtype, self.dtypes), (layout, self.layouts), (mode, self.modes))
        )

    def claimed_types(self) -> list[dict[str, str]]:
        """Call by call: our name of an argument -> the type that it has to have."""
        arguments = (*self.spec.inputs, *self.spec.outputs)
        return [
            {a.name: a.op_def_type or self.spec.type_of(a, dtype, statistics) for a in arguments}
            for dtype in self.dtypes or self.spec.dtypes
            for statistics in self.spec.statistics_choices(dtype)
        ]


def _op_like(text: str, where: str) -> OpSpec:
    names = {name.lower(): op for name, op in spec.OPS.items()}
    if text.lower() not in names:
        raise UsageError(f"{where}: {text!r} is not one of {', '.join(spec.OPS)}")
    return names[text.lower()]


def parse(text: str) -> OpMapping:
    """The mapping that `TheirOp=OurOp` says.

    Raises:
      UsageError: it has another form, or there is no such op of ours.
    """
    name, _, like = (part.strip() for part in text.partition("="))
    if not name or not like:
        raise UsageError(f"--map takes TheirOp=FusedBatchNormGradV3 or so, not {text!r}")
    return OpMapping(name, _op_like(like, "--map"))


# How contracts may differ (execution/signatures.py); without `differs` any of it fails the run.
DIFFERENCES = (
    "outputs", "order", "types", "defaults", "values", "attrs", "flags", "shapes",
)  # fmt: skip
# Keys of an entry of a file.
_KNOWN = (
    "name", "like", "dtypes", "inputs", "attrs", "outputs", "device", "reference_device",
    "tolerance", "layouts", "modes", "differs",
)  # fmt: skip


def _entry(content: Mapping[str, Any]) -> OpMapping:
    """An entry of a file."""
    _check_known("there is no key", content, _KNOWN)
    if not content.get("name") or not content.get("like"):
        raise UsageError("an op needs 'name' and 'like'")
    op = _op_like(content["like"], "like")
    fields: dict[str, Any] = {"tolerances": _tolerances(content.get("tolerance", []))}
    for key, choices in (("dtypes", op.dtypes), ("layouts", op.layouts), ("modes", spec.MODES)):
        fields[key] = tuple(content.get(key, choices))
        _check_known(f"{key} has", fields[key], choices)
        if not fields[key]:
            raise UsageError(f"{key} is empty: leave it out where all are claimed")
    for key, ours in (
        ("inputs", [a.name for a in op.inputs]),
        ("attrs", list(op.attrs)),
        ("outputs", [a.name for a in op.outputs]),
    ):
        fields[key] = content.get(key, {})
        if not isinstance(fields[key], dict):
            raise UsageError(f"{key} is a table of our names and theirs")
        _check_known(f"{op.name} has no {key[:-1]}", fields[key], ours)
    for key in ("device", "reference_device"):
        fields[key] = parse_device(content[key]) if key in content else None
    fields["differs"] = tuple(content.get("differs", ()))
    _check_known("differs has", fields["differs"], DIFFERENCES)
    roles = [a.role for a in op.outputs if a.kind != spec.PLACEHOLDER]
    for tolerance in fields["tolerances"]:
        _check_known("a tolerance is for", tolerance.outputs, roles)
    return OpMapping(content["name"], op, **fields)


def load(file: pathlib.Path) -> list[OpMapping]:
    """The ops of a mapping file.

    Raises:
      UsageError: it cannot be read or has a mistake.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise UsageError(f"cannot read the mapping file {file}: {e}") from e
    entries = []
    for item in content.get("op", []):
        try:
            entries.append(_entry(item))
        except UsageError as e:
            where = f"{file}, op {item.get('name') or '(without a name)'}"
            raise UsageError(f"{where}: {e}") from e
    if not entries:
        raise UsageError(f"{file} has no [[op]]")
    return entries


def by_op(entries: Sequence[OpMapping]) -> dict[str, OpMapping]:
    """The entries by the op that they claim to equal.

    Raises:
      UsageError: two claim to equal the same.
    """
    result: dict[str, OpMapping] = {}
    for entry in entries:
        like = entry.spec.name
        if like in result:
            raise UsageError(
                f"{result[like].name} and {entry.name} are both mapped to {like}: "
                "run them one after the other"
            )
        result[like] = entry
    return result
