"""Runs ops in processes of their own, so that environments differ and a crash costs one case."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from tf_bn_ops import _op_table, _processes
from tf_bn_ops._processes import WorkerError
from tf_bn_ops.conformance.cases import Case
from tf_bn_ops.conformance.fills import Filled
from tf_bn_ops.conformance.judge import Answer
from tf_bn_ops.conformance.mapping import Mapped
from tf_bn_ops.conformance.worker import LIBRARY_PREFIX

__all__ = ["Implementation", "Runner", "Worker", "WorkerError"]

# Errors by which a process says itself that its memory ran out.
_MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError")


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Something that has the ops.

    Attributes:
      name: "candidate", or what the report calls a reference.
      ops: where they are, as `module:attribute` (worker.py).
      environment: variables of its process.
      by_counterpart: it answers a case of an op with that op's counterpart (_op_table.Op).
      only: names of the ops that it has; None: all.
      mapped: for the ops of another library, how each is called, by the op that it claims to equal.
    """

    name: str
    ops: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by_counterpart: bool = False
    only: tuple[str, ...] | None = None
    mapped: Mapping[str, Mapped] | None = None

    def answers_with(self, case: Case) -> _op_table.Op | None:
        """The op that this implementation answers a case with, None where it has none for it."""
        if self.only is not None and case.op not in self.only:
            return None
        if self.mapped is not None:
            entry = self.mapped.get(case.op)
            return case.spec if entry and entry.claims(case.dtype, case.layout, case.mode) else None
        if not self.by_counterpart:
            return case.spec
        op = _op_table.OPS[case.spec.counterpart]
        return op if case.layout in op.data_formats and case.dtype in op.dtypes else None


OWN_OPS = "tf_bn_ops:raw_ops"
BUILTIN_OPS = "tensorflow:raw_ops"

# TensorFlow has two CPU implementations of these ops; oneDNN is the default.
REFERENCES = (
    Implementation("onednn", BUILTIN_OPS, {"TF_ENABLE_ONEDNN_OPTS": "1"}, by_counterpart=True),
    Implementation("eigen", BUILTIN_OPS, {"TF_ENABLE_ONEDNN_OPTS": "0"}, by_counterpart=True),
)


def of_library(name: str, path: str, entries: Mapping[str, Mapped]) -> Implementation:
    """Ops of another library, in a process that loads it."""
    return Implementation(name, LIBRARY_PREFIX + os.path.abspath(path), mapped=entries)


# For ops that no built-in equals.
AUTODIFF = Implementation(
    "autodiff",
    "tf_bn_ops.conformance.autodiff",
    only=tuple(op.name for op in _op_table.OPS.values() if op.builtin is None),
)


class Runner(Protocol):
    """Answers cases one after the other: `submit`, then `collect`, where it `takes` the case."""

    name: str

    def takes(self, case: Case) -> bool: ...

    def submit(self, case: Case, filled: Filled) -> None: ...

    def collect(self) -> Answer: ...

    def close(self) -> None: ...


def request(
    case: Case, filled: Filled, op: _op_table.Op, mapped: Mapped | None = None
) -> dict[str, Any]:
    """What a worker is asked (worker.py): the case in the names and types of `op`, or in the names
    of another library."""
    values = {"data_format": case.layout, "epsilon": case.epsilon, "is_training": case.is_training}
    inputs = {arg.name: filled.values[arg.role] for arg in op.inputs}
    for arg in op.inputs:
        if arg.role not in ("x", "y_backprop"):
            # A counterpart may take them in a wider type; every number is the same in it.
            dtype = _op_table.DTYPES[op.statistics_dtype(case.dtype)].numpy
            inputs[arg.name] = inputs[arg.name].astype(dtype, copy=False)
    attrs = {name: values[name] for name in op.attrs}
    if mapped is None:
        return {"op": op.name, "inputs": inputs, "attrs": attrs, "call": case.call}
    return {
        "op": mapped.function,
        "inputs": {mapped.inputs.get(name, name): value for name, value in inputs.items()},
        "attrs": {mapped.attrs.get(name, name): value for name, value in attrs.items()},
        "outputs": mapped.output_names,
        "call": case.call,
    }


def translated(answer: Answer, case: Case, op: _op_table.Op) -> Answer:
    """An answer that `op` gave, in the outputs and types of the case's own op."""
    if op is case.spec or answer.outputs is None or len(answer.outputs) != len(op.outputs):
        return answer
    by_role = {arg.role: output for arg, output in zip(op.outputs, answer.outputs, strict=True)}
    statistics = _op_table.DTYPES[case.spec.statistics_dtype(case.dtype)].numpy
    outputs = []
    with np.errstate(over="ignore"):
        for arg in case.spec.outputs:
            output = by_role[arg.role]
            outputs.append(output if arg.role == "x_backprop" else output.astype(statistics))
    return Answer(outputs)


class Worker:
    """One implementation in one process, which is started again when it dies."""

    def __init__(self, implementation: Implementation, timeout: float = 120.0, memory: int = 0):
        """Starts the process; does not wait for it.

        Args:
          implementation: what it runs.
          timeout: seconds that a case may take before it counts as hanging.
          memory: bytes that the process may have; 0: no limit.
        """
        self.name = implementation.name
        self._implementation = implementation
        self._timeout = timeout
        self._answer: Answer | None = None  # Known before `collect`.
        arguments = [implementation.ops]
        if implementation.mapped is not None:
            entries = implementation.mapped.values()
            arguments.append(json.dumps([dataclasses.asdict(entry) for entry in entries]))
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        self.process = _processes.Process(
            self.name,
            "tf_bn_ops.conformance.worker",
            arguments,
            {"TF_CPP_MIN_LOG_LEVEL": level, **implementation.environment},
            memory,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What the process has said about itself; empty before it is ready."""
        return self.process.facts or {}

    def wait_until_ready(self) -> None:
        """Waits for the process to have loaded its ops.

        Raises:
          WorkerError: it could not.
        """
        self.process.wait_until_ready()

    def takes(self, case: Case) -> bool:
        """Whether it has an op for the case."""
        return self._implementation.answers_with(case) is not None

    def submit(self, case: Case, filled: Filled) -> None:
        """Sends a case that it takes; the answer is for `collect` to fetch."""
        op = self._implementation.answers_with(case)
        assert op is not None, case
        self._asked, self._answer = (case, op), None
        mapped = (self._implementation.mapped or {}).get(op.name)
        try:
            self.process.wait_until_ready()
            self.process.send(request(case, filled, op, mapped))
        except (_processes.Died, WorkerError) as e:
            self._answer = self._crashed(f"died before the case: {e}")

    def collect(self) -> Answer:
        """The answer to the case last submitted; a crash or a hang is one as well."""
        if self._answer is not None:
            return self._answer
        try:
            state, content = self.process.receive(self._timeout)
        except _processes.Died as e:
            return self._crashed(str(e))
        if state == "error":
            if content.startswith(_MEMORY_ERRORS):
                # It lives, but who knows what it still holds.
                return self._crashed(self.process.out_of_memory(content))
            return Answer(error=content)
        return translated(Answer(outputs=content), *self._asked)

    def _crashed(self, how: str) -> Answer:
        """A crash for an answer; a new process gets ready for the next case."""
        self.process.kill()
        self.process.start()
        return Answer(crash=how)

    def close(self) -> None:
        """Ends the process."""
        self.process.close()
