"""Candidate and references: where their ops are, in which environment, and what they can answer."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import EXECUTION_MODES, OTHER_KERNELS
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.devices import INTERNAL
from tf_bn_ops.conformance.execution.worker import LIBRARY_PREFIX, PLUGIN_PREFIX
from tf_bn_ops.conformance.models.inputs import WHOLE_LAYER
from tf_bn_ops.harness.problems import IDENTITY, Inputs
from tf_bn_ops.spec import OpSpec

CANDIDATE = "candidate"
# Whose errors are the documented ones.
DOCUMENTED = "eigen"


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Something that has the ops.

    Attributes:
      name: "candidate", or what the report calls a reference.
      ops: where they are, as `module:attribute` (worker.py).
      environment: variables of its process.
      by_counterpart: it answers a case of an op with that op's counterpart (OpSpec).
      mapped: for the ops of another library, how each is called, by the op that it claims to equal.
      devices: op -> the device that it is placed on; TensorFlow decides about others.
      path: the name that it has in the list of known divergences.
      drop_in: it claims to replace the built-in in every detail, the texts of errors among them.
      exempt: execution modes that are exempt from the bitwise check.
      cannot: execution modes that it is not run in -> why.
    """

    name: str
    ops: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by_counterpart: bool = False
    mapped: Mapping[str, OpMapping] | None = None
    devices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    path: str = CANDIDATE
    drop_in: bool = False
    exempt: frozenset[str] = OTHER_KERNELS
    cannot: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def resolve_op(self, case: Case) -> OpSpec | None:
        """The op that this implementation answers a case with, None where it has none for it."""
        if not case.compares_values and self.by_counterpart:
            # What another op refuses says nothing.
            return case.spec if case.spec.builtin else None
        if self.mapped is not None:
            entry = self.mapped.get(case.op)
            return case.spec if entry and entry.claims(case.dtype, case.layout, case.mode) else None
        if not self.by_counterpart or case.spec.builtin:
            return case.spec
        counterpart = spec.OPS.get(case.spec.counterpart or "")
        if counterpart is None or case.layout not in counterpart.layouts:
            return None
        return counterpart if case.dtype in counterpart.dtypes else None

    def supports(self, case: Case) -> bool:
        """Whether it has an op for the case."""
        return self.resolve_op(case) is not None


OWN_OPS = "tf_bn_ops:raw_ops"
BUILTIN_OPS = "tensorflow:raw_ops"


def own() -> Implementation:
    """The ops of this library as the candidate."""
    return Implementation(CANDIDATE, OWN_OPS, drop_in=True)


def builtin(name: str, path: str) -> Implementation:
    """TensorFlow's ops on one of its two CPU paths, "onednn" or "eigen"."""
    return Implementation(
        name,
        BUILTIN_OPS,
        {"TF_ENABLE_ONEDNN_OPTS": str(int(path == "onednn"))},
        by_counterpart=name != CANDIDATE,
        path=path,
        # Its bits change with the number of threads, and its paths are different kernels.
        exempt=frozenset(EXECUTION_MODES),
        cannot={"unaligned": "TensorFlow's kernels abort on tensors that it has not allocated"},
    )


PATHS = ("onednn", "eigen")


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
        path=divergences_path(device),
        exempt=frozenset(EXECUTION_MODES),
        cannot=dict.fromkeys(elsewhere, f"not on {device}"),
    )


# What the list of known divergences calls a device: it may have those of any path.
ANY_PATH = "any"


def divergences_path(device: str) -> str:
    """The path whose known divergences apply to a device."""
    return ANY_PATH if not device.startswith("CPU") else default_path()


def references(
    ops: Sequence[OpSpec], entries: Mapping[str, OpMapping] | None = None
) -> list[Implementation]:
    """The references for some ops, on the devices that mapped ops ask for."""
    placed = {op: e.reference_device for op, e in (entries or {}).items() if e.reference_device}
    if not any(op.counterpart for op in ops):
        return []
    return [dataclasses.replace(builtin(path, path), devices=placed) for path in PATHS]


def request(
    case: Case,
    inputs: Inputs,
    op: OpSpec,
    mapped: OpMapping | None = None,
    modes: Sequence[str] = ("eager",),
) -> dict[str, Any]:
    """A request to a worker (worker.py): the case in the names and types of `op`, or in the names
    of another library."""
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
    for arg in op.inputs:
        if op is not case.spec and arg.kind not in (spec.VIEW, spec.VIEW_LIST):
            # A counterpart may take them in a wider type; every value is preserved.
            dtype = spec.DTYPES[op.statistics_dtype(case.dtype)].numpy
            given[arg.name] = given[arg.name].astype(dtype, copy=False)
    attrs = {name: values[name] for name in op.attrs}
    theirs = mapped or OpMapping(op.name, op)
    return {
        "op": theirs.function,
        "inputs": {theirs.inputs.get(name, name): value for name, value in given.items()},
        "lists": [theirs.inputs.get(name, name) for name in lists],
        "attrs": {theirs.attrs.get(name, name): value for name, value in attrs.items()},
        "outputs": [theirs.outputs.get(a.name, a.name) for a in op.outputs_with(attrs)],
        "modes": modes,
        **({} if mapped else _forward_first(case, inputs, op)),
    }


def _forward_first(case: Case, inputs: Inputs, op: OpSpec) -> dict[str, str]:
    """Which forward op computes the reserve spaces of a case of whole layers. In 16-bit types its
    statistics are off by what the bound of the gradient has no room for; behind an activation the
    mask would have to be that of its y."""
    forward = op.name.replace("Grad", "")
    is_whole = case.kind == WHOLE_LAYER and case.is_training and case.statistics == "batch"
    plain = inputs.attrs.get("activation_mode", IDENTITY) == IDENTITY
    if is_whole and plain and case.dtype == "float32" and op.name.endswith(("V3", "Ex")):
        kept = inputs.values["forward_coefficients"].ndim == 2  # Not `as_given`.
        return {"forward": forward} if kept else {}
    return {}


def translated(answer: Answer, case: Case, op: OpSpec) -> Answer:
    """An answer that `op` gave, in the outputs and types of the case's own op."""
    if op is case.spec or answer.outputs is None or len(answer.outputs) != len(op.outputs):
        return answer
    by_role = {arg.role: output for arg, output in zip(op.outputs, answer.outputs, strict=True)}
    statistics = spec.DTYPES[case.statistics_dtype].numpy
    outputs = []
    with np.errstate(over="ignore"):
        for arg in case.spec.outputs:
            output = by_role[arg.role]
            outputs.append(output if arg.kind == spec.VIEW else output.astype(statistics))
    return dataclasses.replace(answer, outputs=outputs)
