"""Ops of other libraries: what they are called, and which op each claims to equal.

On the command line `--map "TheirOp=FusedBatchNormGradV3"`; where more is needed, in a TOML file
(docs/conformance.md).
"""

from __future__ import annotations

import importlib
import math
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

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


def _check_known(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises UsageError where something is given that is not known."""
    for one in given:
        if one not in known:
            raise UsageError(f"{what} {one!r}; known: {', '.join(known)}")


class Tolerance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many times its bound an op may be off, with a reason, in the outputs and element types
    that are named, or in all."""

    reason: str
    times_bound: float
    outputs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise UsageError("a tolerance needs a reason: add it")
        if not 0 < self.times_bound < math.inf:
            raise UsageError("a tolerance needs a positive, finite times_bound")

    def applies(self, output: str, dtype: str) -> bool:
        """Whether it covers this output in cases of this element type."""
        return (not self.outputs or output in self.outputs) and (
            not self.dtypes or dtype in self.dtypes
        )


# How contracts may differ (execution/signatures.py); without `differs` any of it fails the run.
DIFFERENCES = (
    "outputs", "order", "types", "defaults", "values", "attrs", "flags", "shapes",
)  # fmt: skip
# Without the key all are claimed; of none nothing would be judged.
_Some = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class OpMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An op of another library, and an entry of a file; see the module's text.

    Attributes:
      like: the op that it claims to equal.
      dtypes, layouts, modes: what it claims; empty: all.
      inputs, attrs, outputs: our names -> its names, where they differ.
      differs: kinds of differences between the contracts that fail nothing (DIFFERENCES).
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    like: str
    dtypes: _Some = ()
    layouts: _Some = ()
    modes: _Some = ()
    inputs: dict[str, str] = {}
    attrs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    device: str | None = None
    reference_device: str | None = None
    tolerances: tuple[Tolerance, ...] = msgspec.field(default=(), name="tolerance")
    differs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for a name that the op does not have; others get our spelling."""
        names = {name.lower(): name for name in spec.OPS}
        if self.like.lower() not in names:
            raise UsageError(f"{self.like!r} is not one of {', '.join(spec.OPS)}")
        msgspec.structs.force_setattr(self, "like", names[self.like.lower()])
        for key in ("device", "reference_device"):
            if (text := getattr(self, key)) is not None:
                msgspec.structs.force_setattr(self, key, parse_device(text))
        op = self.spec
        for key, ours in (
            ("dtypes", op.dtypes), ("layouts", op.layouts), ("modes", spec.MODES),
            ("inputs", [a.name for a in op.inputs]), ("attrs", [*op.attrs]),
            ("outputs", [a.name for a in op.outputs]), ("differs", DIFFERENCES),
        ):  # fmt: skip
            _check_known(f"{key} of {self.name} has", getattr(self, key), ours)
        roles = [a.role for a in op.outputs if a.kind != spec.PLACEHOLDER]
        for tolerance in self.tolerances:
            _check_known("a tolerance is for", tolerance.outputs, roles)
            _check_known("a tolerance is for", tolerance.dtypes, op.dtypes)

    @property
    def spec(self) -> OpSpec:
        """The op that it claims to equal."""
        return spec.OPS[self.like]

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


def parse(text: str) -> OpMapping:
    """The mapping that `TheirOp=OurOp` says.

    Raises:
      UsageError: it has another form, or there is no such op of ours.
    """
    name, _, like = (part.strip() for part in text.partition("="))
    if not name or not like:
        raise UsageError(f"it is TheirOp=FusedBatchNormGradV3 or so, not {text!r}")
    return OpMapping(name, like)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A mapping file."""

    op: Annotated[list[OpMapping], msgspec.Meta(min_length=1)]


def load(file: pathlib.Path) -> list[OpMapping]:
    """The ops of a mapping file.

    Raises:
      UsageError: it cannot be read or has a mistake: the field, and the type that it should have.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        return msgspec.convert(content, _File).op
    except msgspec.ValidationError as error:
        keys = ", ".join(field.encode_name for field in msgspec.structs.fields(OpMapping))
        raise UsageError(f"{file}: {error}; an op is a table [[op]] of {keys}") from error
    except (OSError, ValueError, RecursionError) as error:  # Of TOML or a number too long.
        raise UsageError(f"cannot read the mapping file {file}: {error}") from error


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
