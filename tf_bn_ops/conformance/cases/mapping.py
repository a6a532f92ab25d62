"""Ops of other libraries: what they are called, and which op each claims to equal.

On the command line `--map "TheirOp=FusedBatchNormGradV3"`; in a TOML file, where more is needed:

    [[op]]
    name = "Vendor>BnGrad"            # registered name of their op
    like = "FusedBatchNormGradV3"     # op of tf_bn_ops/spec/ops.py that it claims to equal
    dtypes = ["float32"]              # optional: element types that it claims; all without
    layouts = ["NHWC"]                # optional: data formats that it claims; all without
    modes = ["training"]              # optional: modes that it claims; both without
    inputs = { x = "activations" }    # optional: our name -> theirs, where they differ
    attrs = { epsilon = "eps" }
    outputs = { x_backprop = "dx" }
    device = "GPU:0"                  # optional: where it runs; TensorFlow decides without
    reference_device = "CPU:0"        # optional: where the op of TensorFlow runs
    [[op.tolerance]]                  # optional: see harness/tolerances.py
    times_bound = 4
    reason = "rstd comes from a table"

Any other op of TensorFlow can be the reference as well. Of it only the OpDef is known, so the file
says what to call it with:

    [[op]]
    name = "Vendor>Softplus"
    like = "Softplus"                    # an op of tf.raw_ops
    dtypes = ["float32", "half"]         # of its first type attr; all that both ops allow without
    oracle = "vendor_oracle:softplus"    # optional: a function, see generic_model.Oracle
    [op.sizes]
    n = [0, 300]                         # a name for dimensions, and the range it is drawn from
    [op.values.features]                 # of every input, by TensorFlow's name
    shape = ["n", 3]                     # such names, or numbers
    range = [-120.0, 120.0]
    nonfinite = true                     # optional: NaN and infinity may come
    [op.attr_values]
    data_format = ["NHWC", "NCHW"]       # values to draw an attr from; others keep their default
"""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops.harness.models import tolerances
from tf_bn_ops.harness.models.generic_model import (
    GenericError,
    GenericModel,
    GenericOpSpec,
    Oracle,
    Signature,
    ValueRange,
    generic_spec,
)
from tf_bn_ops.spec import OpSpec

# In the standard library since Python 3.11; the same code as tomli before.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


class MappingError(ValueError):
    """A mapping that is invalid; the message is one sentence."""


def parse_device(text: str) -> str:
    """The name of a device as this package writes it, "GPU:0", of "/gpu:0", "GPU" and so on.

    Raises:
      MappingError: it is none.
    """
    match = re.fullmatch(r"/?(?:device:)?([A-Za-z_]+)(?::(\d+))?", text.strip())
    if not match:
        raise MappingError(f"{text!r} names no device; write CPU:0, GPU:0 or so")
    return f"{match.group(1).upper()}:{match.group(2) or 0}"


@dataclasses.dataclass(frozen=True)
class OpMapping:
    """An op of another library; see the module's text.

    Attributes:
      spec: what it claims to equal.
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
    tolerances: tuple[tolerances.Tolerance, ...] = ()

    @property
    def function(self) -> str:
        """The name of its function in the module that tf.load_op_library returns."""
        return self.name.replace(">", "_")

    @property
    def is_generic(self) -> bool:
        return isinstance(self.spec, GenericOpSpec)

    @property
    def output_names(self) -> list[str]:
        """Their names of our outputs, in our order."""
        return [self.outputs.get(arg.name, arg.name) for arg in self.spec.outputs]

    def times_bound(self, dtype: str) -> dict[str, float]:
        """Output, by role -> how many times its bound is allowed in cases of an element type."""
        if self.is_generic:
            return {}  # They are part of its model's bound.
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

    def opdef_query(self) -> dict[str, Any]:
        """What execution/signatures.py compares OpDefs by, in the words of JSON."""
        return {
            "name": self.name,
            "like": self.spec.builtin or self.spec.registered_name,
            "own": self.spec.builtin is None,
            "inputs": dict(self.inputs),
            "attrs": dict(self.attrs),
            "outputs": dict(self.outputs),
            "attr_names": None if self.is_generic else list(self.spec.attrs),
        }


def _op_like(text: str, where: str) -> OpSpec:
    names = {name.lower(): op for name, op in spec.OPS.items()}
    if text.lower() not in names:
        raise MappingError(
            f"{where}: {text!r} is not one of {', '.join(spec.OPS)}; another op of TensorFlow "
            "is described in a mapping file, with [op.values.INPUT]"
        )
    return names[text.lower()]


def parse(text: str) -> OpMapping:
    """The mapping that `TheirOp=OurOp` says.

    Raises:
      MappingError: it has another form, or there is no such op of ours.
    """
    name, _, like = (part.strip() for part in text.partition("="))
    if not name or not like:
        raise MappingError(f"--map takes TheirOp=FusedBatchNormGradV3 or so, not {text!r}")
    return OpMapping(name, _op_like(like, "--map"))


# Keys of every entry of a file, and of those that are batch-norm ops or are not.
_COMMON = (
    "name", "like", "dtypes", "inputs", "attrs", "outputs", "device", "reference_device",
    "tolerance",
)  # fmt: skip
_OF_BATCH_NORM = ("layouts", "modes")
_GENERIC = ("oracle", "sizes", "values", "attr_values")


def _common(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that both kinds of entries have."""
    is_generic = "values" in content
    known = (*_COMMON, *(_GENERIC if is_generic else _OF_BATCH_NORM))
    for key in content:
        if key not in known:
            raise MappingError(f"{where}: there is no key {key!r}; known: {', '.join(known)}")
    if not content.get("name") or not content.get("like"):
        raise MappingError(f"{where}: an op needs 'name' and 'like'")
    fields: dict[str, Any] = {"name": content["name"]}
    for key in ("inputs", "attrs", "outputs"):
        fields[key] = content.get(key, {})
        if not isinstance(fields[key], dict):
            raise MappingError(f"{where}: {key} is a table of our names and theirs")
    numbers = ("ulp", "relative", "absolute") if is_generic else ("times_bound",)
    try:
        for key in ("device", "reference_device"):
            fields[key] = parse_device(content[key]) if key in content else None
        fields["tolerances"] = tolerances.parse(content.get("tolerance", []), where, numbers)
    except tolerances.ToleranceError as e:
        raise MappingError(str(e)) from e
    except MappingError as e:
        raise MappingError(f"{where}: {e}") from e
    return fields


def _batch_norm_entry(
    content: Mapping[str, Any], where: str, fields: Mapping[str, Any]
) -> OpMapping:
    op = _op_like(content["like"], where)
    claims: dict[str, Any] = {}
    for key, choices in (("dtypes", op.dtypes), ("layouts", op.layouts), ("modes", spec.MODES)):
        claims[key] = tuple(content.get(key, choices))
        for value in claims[key]:
            if value not in choices:
                raise MappingError(f"{where}: {key} has {value!r}; {op.name} has {list(choices)}")
        if not claims[key]:
            raise MappingError(f"{where}: {key} is empty: leave it out where all are claimed")
    for key, ours in (
        ("inputs", [a.name for a in op.inputs]),
        ("attrs", list(op.attrs)),
        ("outputs", [a.name for a in op.outputs]),
    ):
        for left in fields[key]:
            if left not in ours:
                raise MappingError(f"{where}: {op.name} has no {key[:-1]} {left!r}; it has {ours}")
    roles = [a.role for a in op.outputs if a.kind != spec.PLACEHOLDER]
    for output in (o for tolerance in fields["tolerances"] for o in tolerance.outputs):
        if output not in roles:
            raise MappingError(f"{where}: a tolerance is for {output!r}; there are {roles}")
    return OpMapping(spec=op, **claims, **fields)


def _range(where: str, value: Any, kind: type) -> tuple[Any, Any]:
    pair = isinstance(value, list) and len(value) == 2
    if not pair or not all(isinstance(v, (int, kind)) for v in value) or value[0] > value[1]:
        raise MappingError(f"{where}: takes [least, most], not {value!r}")
    return kind(value[0]), kind(value[1])


def _value_range(where: str, given: Mapping[str, Any], sizes: Mapping[str, Any]) -> ValueRange:
    for key in given:
        if key not in ("shape", "range", "nonfinite"):
            raise MappingError(f"{where}: there is no key {key!r}; known: shape, range, nonfinite")
    shape = given.get("shape")
    if not isinstance(shape, list) or not all(n in sizes or isinstance(n, int) for n in shape):
        raise MappingError(f"{where}: shape is a list of numbers and names in 'sizes'")
    span = _range(f"{where}: range", given.get("range"), float)
    return ValueRange(tuple(shape), span, bool(given.get("nonfinite", False)))


def _generic_entry(
    content: Mapping[str, Any], where: str, fields: Mapping[str, Any], folder: str
) -> OpMapping:
    sizes = {n: _range(f"{where}: size {n}", v, int) for n, v in content.get("sizes", {}).items()}
    values = {
        name: _value_range(f"{where}: values of {name}", given, sizes)
        for name, given in content["values"].items()
    }
    attr_values = {}
    for name, choices in content.get("attr_values", {}).items():
        if not isinstance(choices, list) or not choices:
            raise MappingError(f"{where}: attr_values of {name} is a list of values")
        attr_values[name] = tuple(choices)
    oracle = Oracle(content["oracle"], folder) if "oracle" in content else None
    model = GenericModel(
        content["like"], values, sizes, attr_values, tuple(content.get("dtypes", ())),
        fields["tolerances"], oracle,
    )  # fmt: skip
    return OpMapping(spec=generic_spec(content["like"], model), **fields)


def load(file: pathlib.Path) -> list[OpMapping]:
    """The ops of a mapping file.

    Raises:
      MappingError: it cannot be read or has a mistake.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise MappingError(f"cannot read the mapping file {file}: {e}") from e
    entries = []
    for item in content.get("op", []):
        where = f"{file}, op {item.get('name') or '(without a name)'}"
        fields = _common(item, where)
        if "values" in item:
            entries.append(_generic_entry(item, where, fields, str(file.parent)))
        else:
            entries.append(_batch_norm_entry(item, where, fields))
    if not entries:
        raise MappingError(f"{file} has no [[op]]")
    return entries


def by_op(entries: Sequence[OpMapping]) -> dict[str, OpMapping]:
    """The entries by the op that they claim to equal.

    Raises:
      MappingError: two claim to equal the same.
    """
    result: dict[str, OpMapping] = {}
    for entry in entries:
        like = entry.spec.name
        if like in result:
            raise MappingError(
                f"{result[like].name} and {entry.name} are both mapped to {like}: "
                "run them one after the other"
            )
        result[like] = entry
    return result


def complete(entries: dict[str, OpMapping], opdefs: Mapping[str, Mapping[str, Any]]) -> None:
    """Completes the specs of generic ops by what a worker says of their OpDefs.

    Raises:
      GenericError: the mapping file does not fit them.
    """
    for like, fields in opdefs.items():
        entry = entries[like]
        assert isinstance(entry.spec, GenericOpSpec)
        model = entry.spec.model
        model.signature = Signature(**fields)
        try:
            model.check()
        except GenericError as e:
            raise GenericError(f"{entry.name}, like {e}") from e
        entries[like] = dataclasses.replace(entry, spec=generic_spec(like, model))
