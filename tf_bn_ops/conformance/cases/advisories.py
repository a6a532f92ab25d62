"""Malformed inputs that were published for batch norm (advisories.toml), as cases by name.

Their kind is "advisory/NAME". Each is run for all ops that have such inputs, forward and backward,
by the candidate alone, in a process of its own (the execution mode `fresh`). A call with an input
that the op reads and that departs from its contract has to be refused; any other one must be
survived, whatever it gives.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import contract
from tf_bn_ops.conformance.cases.case import ADVISORY_PREFIX, Case
from tf_bn_ops.conformance.cases.execution_modes import FRESH
from tf_bn_ops.conformance.cases.mapping import tomllib
from tf_bn_ops.harness.problems import IDENTITY, VIEW_ROLES, Inputs
from tf_bn_ops.spec import OpSpec

_FILE = pathlib.Path(__file__).with_name("advisories.toml")
_EVERY_OTHER = "*"

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Advisory:
    """An entry of advisories.toml, which explains the fields."""

    name: str
    what: str
    layout: str
    x: Shape
    views: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    vectors: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    mode: str = spec.MODES[0]
    dtype: str = "float32"
    dtypes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    epsilon: float = 1e-3
    reserve: Sequence[int] = (0,)

    def case_of(self, op: OpSpec) -> Case | None:
        """Its case of an op, None where the op has no such inputs."""
        rank, last = spec.LAYOUTS[self.layout]
        alike = [name for name in op.layouts if spec.LAYOUTS[name] == (rank, last)]
        fits = alike and self.mode in op.modes and set(self.attrs) <= set(op.attrs)
        if not fits or not self._differs(op):
            return None
        dtype = self.dtype if self.dtype in op.dtypes else op.dtypes[0]
        kind = ADVISORY_PREFIX + self.name
        return Case(
            op, dtype, kind, 0, alike[0], tuple(self.x), self.mode, "given", self.epsilon,
            execution=FRESH,
        )  # fmt: skip

    def _differs(self, op: OpSpec) -> bool:
        """Whether an op has one of the inputs that the entry speaks of."""
        special = {*self.views, *self.vectors, *self.dtypes, *self.values}
        roles = {arg.role for arg in op.inputs}
        return not special or _EVERY_OTHER in special or bool(special & roles)

    def shape(self, role: str, kind: str) -> Shape:
        """The shape of an input."""
        if kind in (spec.VIEW, spec.VIEW_LIST):
            return tuple(self.views.get(role, self.x))
        if kind == spec.OPAQUE:
            return tuple(self.reserve)
        channels = (self.x[spec.channel_axis(self.layout)],)
        return tuple(self.vectors.get(role, self.vectors.get(_EVERY_OTHER, channels)))


@functools.cache
def load() -> Mapping[str, Advisory]:
    """All advisories by name."""
    content = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {item["name"]: Advisory(**item) for item in content["advisory"]}


def of(case: Case) -> Advisory:
    """The advisory that a case is of."""
    return load()[case.kind.removeprefix(ADVISORY_PREFIX)]


def kinds() -> tuple[str, ...]:
    return tuple(ADVISORY_PREFIX + name for name in load())


def fill(case: Case) -> Inputs:
    """The inputs and attrs of a case."""
    advisory = of(case)
    values = {}
    for arg in case.spec.inputs:
        name = case.dtype if arg.role in VIEW_ROLES else case.statistics_dtype
        dtype = spec.DTYPES[name].numpy
        if arg.role in advisory.dtypes:
            dtype = np.dtype(advisory.dtypes[arg.role])
        shape = advisory.shape(arg.role, arg.kind)
        with np.errstate(over="ignore"):
            values[arg.role] = np.full(shape, advisory.values.get(arg.role, 1.0)).astype(dtype)
    attrs = dict(advisory.attrs)
    if "activation_mode" in case.spec.attrs:
        attrs["activation_mode"] = "Relu"  # So that all inputs are read.
    return Inputs(values, attrs=attrs)


def must_be_refused(case: Case) -> bool:
    """Whether an input that the op reads departs from its contract."""
    advisory, inputs = of(case), fill(case)
    channels = (case.shape[spec.channel_axis(case.layout)],)
    attrs = {"activation_mode": IDENTITY, **case.spec.attrs, **inputs.attrs}
    unread = set() if contract.reads_averages(case, attrs) else {"mean", "variance"}
    for arg in case.spec.inputs:
        right = case.shape if arg.role in VIEW_ROLES else channels
        if arg.kind == spec.OPAQUE or arg.role in unread:
            continue
        if arg.role in advisory.dtypes or inputs.values[arg.role].shape != right:
            return True
    return False


def generate(ops: Sequence[str]) -> Iterator[Case]:
    """The cases of some ops."""
    for advisory in load().values():
        for name in ops:
            case = advisory.case_of(spec.OPS[name])
            if case is not None:
                yield case
