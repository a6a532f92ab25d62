"""Candidate and references: where their ops are, in which environment, and what they can answer."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import EXECUTION_MODES, OTHER_KERNELS
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution.devices import INTERNAL
from tf_bn_ops.conformance.execution.worker import LIBRARY_PREFIX, PLUGIN_PREFIX
from tf_bn_ops.conformance.models.inputs import WHOLE_LAYER
from tf_bn_ops.harness.problems import IDENTITY, Inputs
from tf_bn_ops.spec import OpSpec

CANDIDATE = "candidate"
# Whose errors are the documented ones.
DOCUMENTED = "eigen"
# Elements of a case up to which references are asked as well: they find no fault of the candidate,
# and what is larger takes most of a run's time.
_MOST_OF_REFERENCES = 1 << 18


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Something that has the ops.

    Attributes:
      name: "candidate", or what the report calls a reference.
      ops: where they are, as `module:attribute` (worker.py).
      environment: variables of its process.
      mapped: for the ops of another library, how each is called, by the op that it claims to equal.
      devices: op -> the device that it is placed on; TensorFlow decides about others.
      path: the name that it has in the list of known divergences.
      drop_in: it claims to replace the built-in in every detail, the texts of errors among them.
      exempt: execution modes that are exempt from the bitwise check.
      cannot: execution modes that it is not run in -> why.
      most_elements: of the cases that it is asked.
    """

    name: str
    ops: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mapped: Mapping[str, OpMapping] | None = None
    devices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    path: str = CANDIDATE
    drop_in: bool = False
    exempt: frozenset[str] = OTHER_KERNELS
    cannot: Mapping[str, str] = dataclasses.field(default_factory=dict)
    most_elements: float = math.inf

    def supports(self, case: Case) -> bool:
        """Whether it answers a case: references have the ops of TensorFlow."""
        if math.prod(case.shape) > self.most_elements:
            return False
        if self.mapped is not None:
            entry = self.mapping_of(case.spec)
            return entry is not None and entry.claims(case.dtype, case.layout, case.mode)
        return self.name == CANDIDATE or case.spec.builtin is not None

    def mapping_of(self, op: OpSpec) -> OpMapping | None:
        """How it calls an op of another library, None where it is no such op."""
        return (self.mapped or {}).get(op.name)


OWN_OPS = "tf_bn_ops:raw_ops"
BUILTIN_OPS = "tensorflow:raw_ops"


def own() -> Implementation:
    """The ops of this library as the candidate."""
    # XLA calls the same kernels: no mode is exempt.
    return Implementation(CANDIDATE, OWN_OPS, drop_in=True, exempt=frozenset())


def builtin(name: str, path: str) -> Implementation:
    """TensorFlow's ops on one of its two CPU paths, "onednn" or "eigen"."""
    return Implementation(
        name,
        BUILTIN_OPS,
        {"TF_ENABLE_ONEDNN_OPTS": str(int(path == "onednn"))},
        path=path,
        # Its bits change with the number of threads, and its paths are different kernels.
        exempt=frozenset(EXECUTION_MODES),
        cannot={"unaligned": "TensorFlow's kernels abort on tensors that it has not allocated"},
    )


PATHS = ("onednn", "eigen")
# The path of a device in the list of known divergences: it may have the divergences of any path.
ANY_PATH = "any"


def default_path() -> str:
    """The path that TensorFlow takes in this environment."""
    return PATHS[os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false")]


def of_library(
    path: str, entries: Mapping[str, OpMapping], cannot: Mapping[str, str]
) -> Implementation:
    """The mapped ops of another library as the candidate."""
    placed = {op: entry.device for op, entry in entries.items() if entry.device}
    library = LIBRARY_PREFIX + os.path.abspath(path)
    return Implementation(CANDIDATE, library, mapped=entries, devices=placed, cannot=cannot)


# Others are about the memory and threads of the host, need further ops, or fold constants there.
_ON_DEVICE = ("eager", "graph", "alias", "history", "concurrent")


def on_device(device: str, plugin: str | None) -> Implementation:
    """TensorFlow's own ops as placed on a device, which a plugin may bring."""
    elsewhere = [mode for mode in EXECUTION_MODES if mode not in _ON_DEVICE]
    return Implementation(
        CANDIDATE,
        PLUGIN_PREFIX + (os.path.abspath(plugin) if plugin else ""),
        devices={op.name: device for op in spec.OPS.values() if op.builtin or op.name in INTERNAL},
        path=default_path() if device.startswith("CPU") else ANY_PATH,
        exempt=frozenset(EXECUTION_MODES),
        cannot=dict.fromkeys(elsewhere, f"not on {device}"),
    )


def references(
    ops: Sequence[OpSpec],
    entries: Mapping[str, OpMapping] | None = None,
    most_elements: float = _MOST_OF_REFERENCES,
) -> list[Implementation]:
    """The references for some ops, on the devices that mapped ops ask for."""
    placed = {op: e.reference_device for op, e in (entries or {}).items() if e.reference_device}
    if not any(op.builtin for op in ops):
        return []
    return [
        dataclasses.replace(builtin(path, path), devices=placed, most_elements=most_elements)
        for path in PATHS
    ]


def request(
    case: Case, inputs: Inputs, mapped: OpMapping | None = None, modes: Sequence[str] = ("eager",)
) -> dict[str, Any]:
    """A request to a worker (worker.py): the case in the names of its op, or of another library."""
    op = case.spec
    values = {**op.attrs, "data_format": case.layout, "epsilon": case.epsilon}
    if "axis" in op.attrs:
        values["axis"] = 1 if spec.channel_axis(case.layout) == 1 else -1
    values |= {"is_training": case.is_training, **inputs.attrs}
    # Of a list of tensors, an element; there may be none.
    lists = [arg.name for arg in op.inputs if arg.kind == spec.VIEW_LIST]
    given = {
        arg.name: inputs.values[arg.role]
        for arg in op.inputs
        if arg.name not in lists or arg.role in inputs.values
    }
    attrs = {name: values[name] for name in op.attrs}
    theirs = mapped or OpMapping(op.name, op.name)
    return {
        "op": theirs.function,
        "inputs": {theirs.inputs.get(name, name): value for name, value in given.items()},
        "lists": [theirs.inputs.get(name, name) for name in lists],
        "attrs": {theirs.attrs.get(name, name): value for name, value in attrs.items()},
        "outputs": [theirs.outputs.get(a.name, a.name) for a in op.outputs_with(attrs)],
        "modes": modes,
        **({} if mapped else _forward_first(case, inputs)),
    }


def _forward_first(case: Case, inputs: Inputs) -> dict[str, str]:
    """Which forward op computes the reserve spaces of a case of whole layers. In 16-bit types its
    statistics are off by what the bound of the gradient has no room for; behind an activation the
    mask would have to come from its y."""
    forward = case.op.replace("Grad", "")
    is_whole = case.kind == WHOLE_LAYER and case.is_training and case.statistics == "batch"
    plain = inputs.attrs.get("activation_mode", IDENTITY) == IDENTITY
    if is_whole and plain and case.dtype == "float32" and case.op.endswith(("V3", "Ex")):
        kept = inputs.values["forward_coefficients"].ndim == 2  # Not `as_given`.
        return {"forward": forward} if kept else {}
    return {}
