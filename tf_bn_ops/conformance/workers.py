"""Runs ops in processes of their own, so that environments differ and a crash costs one case."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance import devices
from tf_bn_ops.conformance.calls import CALLS
from tf_bn_ops.conformance.case import Case
from tf_bn_ops.conformance.fills import Filled
from tf_bn_ops.conformance.judge import CANDIDATE, Answer
from tf_bn_ops.conformance.mapping import Mapped
from tf_bn_ops.conformance.worker import LIBRARY_PREFIX, same_bits
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.processes import WorkerError

__all__ = ["CANDIDATE", "Implementation", "Runner", "Worker", "WorkerError"]

OTHER_KERNELS = frozenset(name for name, call in CALLS.items() if call.other_kernel)

# Errors by which a process says itself that its memory ran out.
_MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError")


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Something that has the ops.

    Attributes:
      name: "candidate", or what the report calls a reference.
      ops: where they are, as `module:attribute` (worker.py).
      environment: variables of its process.
      by_counterpart: it answers a case of an op with that op's counterpart (spec.OpSpec).
      only: names of the ops that it has; None: all.
      devices: op -> the device that it is run on; TensorFlow decides about others.
      mapped: for the ops of another library, how each is called, by the op that it claims to equal.
      path: the name that it has in the list of known divergences.
      drop_in: it claims to replace the built-in in every detail: the texts of errors, and all that
        is known of static shapes.
      may_differ: calls (calls.py) whose bits may differ from those of the others; all of them where
        the bits are told but not judged.
      cannot: calls that it is not asked for -> why.
    """

    name: str
    ops: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by_counterpart: bool = False
    only: tuple[str, ...] | None = None
    mapped: Mapping[str, Mapped] | None = None
    devices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    path: str = CANDIDATE
    drop_in: bool = False
    may_differ: frozenset[str] = OTHER_KERNELS
    cannot: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def answers_with(self, case: Case) -> spec.OpSpec | None:
        """The op that this implementation answers a case with, None where it has none for it."""
        if not case.asks_for_values and (self.by_counterpart or self.only is not None):
            # What another op refuses, or infers, says nothing.
            return case.spec if case.spec.builtin and self.only is None else None
        if self.only is not None and case.op not in self.only:
            return None
        if self.mapped is not None:
            entry = self.mapped.get(case.op)
            return case.spec if entry and entry.claims(case.dtype, case.layout, case.mode) else None
        if not self.by_counterpart:
            return case.spec
        assert case.spec.counterpart
        op = spec.OPS[case.spec.counterpart]
        return op if case.layout in op.layouts and case.dtype in op.dtypes else None


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
        may_differ=frozenset(CALLS),
        cannot={"unaligned": "TensorFlow's kernels abort on tensors that it has not allocated"},
    )


PATHS = ("onednn", "eigen")
# TensorFlow has two CPU implementations of these ops; oneDNN is the default.
REFERENCES = tuple(builtin(path, path) for path in PATHS)


def default_path() -> str:
    """The path that TensorFlow takes in this environment."""
    return PATHS[os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false")]


def of_library(name: str, path: str, entries: Mapping[str, Mapped]) -> Implementation:
    """Ops of another library, in a process that loads it."""
    placed = {op: entry.device for op, entry in entries.items() if entry.device}
    return Implementation(
        name, LIBRARY_PREFIX + os.path.abspath(path), mapped=entries, devices=placed
    )


def references(entries: Mapping[str, Mapped]) -> tuple[Implementation, ...]:
    """REFERENCES, on the devices that the mapped ops ask for."""
    placed = {op: e.reference_device for op, e in entries.items() if e.reference_device}
    return tuple(dataclasses.replace(reference, devices=placed) for reference in REFERENCES)


# For ops that no built-in equals.
AUTODIFF = Implementation(
    "autodiff",
    "tf_bn_ops.conformance.autodiff",
    only=tuple(op.name for op in spec.of_formula(spec.BATCH_NORM_GRAD) if op.builtin is None),
)


class Runner(Protocol):
    """Answers cases one after the other: `submit`, then `collect`, where it `takes` the case."""

    name: str

    def takes(self, case: Case) -> bool: ...

    def submit(self, case: Case, filled: Filled) -> None: ...

    def collect(self) -> Answer: ...

    def close(self) -> None: ...


def request(
    case: Case,
    filled: Filled,
    op: spec.OpSpec,
    mapped: Mapped | None = None,
    calls: Sequence[str] = ("eager",),
) -> dict[str, Any]:
    """What a worker is asked (worker.py): the case in the names and types of `op`, or in the names
    of another library."""
    values = {"data_format": case.layout, "epsilon": case.epsilon, "is_training": case.is_training}
    values |= filled.attrs
    given: dict[str, Any]
    what = "inputs"
    if filled.static is not None:
        what, given = "static", {arg.name: filled.static[arg.role] for arg in op.inputs}
    else:
        given = {arg.name: filled.values[arg.role] for arg in op.inputs}
    for arg in op.inputs:
        if op is not case.spec and arg.role not in ("x", "y_backprop"):
            # A counterpart may take them in a wider type; every number is the same in it.
            dtype = spec.DTYPES[op.statistics_dtype(case.dtype)].numpy
            given[arg.name] = given[arg.name].astype(dtype, copy=False)
    attrs = {name: values[name] for name in op.attrs}
    if mapped is None:
        return {"op": op.name, what: given, "attrs": attrs, "calls": calls}
    return {
        "op": mapped.function,
        what: {mapped.inputs.get(name, name): value for name, value in given.items()},
        "attrs": {mapped.attrs.get(name, name): value for name, value in attrs.items()},
        "outputs": mapped.output_names,
        "calls": calls,
    }


def translated(answer: Answer, case: Case, op: spec.OpSpec) -> Answer:
    """An answer that `op` gave, in the outputs and types of the case's own op."""
    if (
        answer is _SAME
        or op is case.spec
        or answer.outputs is None
        or len(answer.outputs) != len(op.outputs)
    ):
        return answer
    by_role = {arg.role: output for arg, output in zip(op.outputs, answer.outputs, strict=True)}
    statistics = spec.DTYPES[case.spec.statistics_dtype(case.dtype)].numpy
    outputs = []
    with np.errstate(over="ignore"):
        for arg in case.spec.outputs:
            output = by_role[arg.role]
            outputs.append(output if arg.role == "x_backprop" else output.astype(statistics))
    return dataclasses.replace(answer, outputs=outputs)


class Worker:
    """One implementation in one process, which is started again when it dies.

    Calls that need another environment have processes of their own, one each.
    """

    def __init__(
        self,
        implementation: Implementation,
        timeout: float = 120.0,
        memory: int = 0,
        own_processes: bool = True,
    ):
        """Starts the process; does not wait for it.

        Args:
          implementation: what it runs.
          timeout: seconds that a case may take before it counts as hanging.
          memory: bytes that the process may have; 0: no limit.
          own_processes: answer also calls that need a process of their own.
        """
        self.name = implementation.name
        self._implementation = implementation
        self._timeout = timeout
        self._memory = memory
        self._processes = own_processes
        self._variants: dict[str, Worker] = {}
        self._crash = ""  # Known before `collect`.
        arguments = [implementation.ops]
        if implementation.mapped is not None:
            entries = implementation.mapped.values()
            arguments.append(json.dumps([dataclasses.asdict(entry) for entry in entries]))
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        self.process = processes.Process(
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

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [self.process.pid, *(pid for w in self._variants.values() for pid in w.pids)]

    def wait_until_ready(self) -> None:
        """Waits for the process to have loaded its ops.

        Raises:
          WorkerError: it could not.
          devices.DeviceError: a device that ops are to be run on is not there.
        """
        self.process.wait_until_ready()
        for device in self._implementation.devices.values():
            devices.check(device, self.facts)

    def takes(self, case: Case) -> bool:
        """Whether it has an op for the case."""
        return self._implementation.answers_with(case) is not None

    def _refuses(self, call: str) -> str:
        """Why a further call does not apply, or ""."""
        fixed = set(CALLS[call].environment) & set(self._implementation.environment)
        if fixed:
            return f"{fixed.pop()} is what this path is made by"
        return self._implementation.cannot.get(call, "")

    def variant(self, call: str) -> Worker:
        """The worker with the environment of a call, which is started if it has not been yet."""
        if call not in self._variants:
            environment = {**self._implementation.environment, **CALLS[call].environment}
            implementation = dataclasses.replace(self._implementation, environment=environment)
            self._variants[call] = Worker(implementation, self._timeout, self._memory, False)
        return self._variants[call]

    def expect(self, calls: Iterable[str]) -> None:
        """Starts the processes that these calls will need."""
        for call in calls:
            if self._processes and CALLS[call].environment and not self._refuses(call):
                self.variant(call)

    def submit(self, case: Case, filled: Filled) -> None:
        """Sends a case that it takes; the answer is for `collect` to fetch."""
        self._asked = case, filled
        first, *others = case.calls
        if self._implementation.only is not None:
            others = []  # A reference for values alone.
        self._unsupported = {c: self._refuses(c) for c in others if self._refuses(c)}
        others = [c for c in others if c not in self._unsupported]
        self._elsewhere = [c for c in others if CALLS[c].environment and self._processes]
        self._here = [first, *(c for c in others if not CALLS[c].environment)]
        for call in self._elsewhere:
            self.variant(call).submit(dataclasses.replace(case, call=first), filled)
        self._send(self._here)

    def _send(self, calls: list[str]) -> None:
        case, filled = self._asked
        op = self._implementation.answers_with(case)
        assert op is not None, case
        mapped = (self._implementation.mapped or {}).get(op.name)
        try:
            self.process.wait_until_ready()
            device = self._implementation.devices.get(case.op)
            self.process.send({**request(case, filled, op, mapped, calls), "device": device})
        except (processes.Died, WorkerError) as e:
            self._crash = self._died(f"died before the case: {e}")

    def collect(self) -> Answer:
        """The answer to the case last submitted; a crash or a hang is one as well."""
        answers = self._receive(self._here)
        if len(self._here) > 1 and any(answer.crash for answer in answers.values()):
            answers = {}  # Which of the calls was it?
            for call in self._here:
                self._send([call])
                answers |= self._receive([call])
        first = answers.pop(self._here[0])
        answers |= {call: self.variant(call).collect() for call in self._elsewhere}
        same, others, unsupported = [], {}, dict(self._unsupported)
        for call, answer in answers.items():
            if answer.unsupported:
                unsupported |= answer.unsupported
            elif answer is _SAME or _is_same(first, answer):
                same.append(call)
            else:
                others[call] = answer
        return dataclasses.replace(first, others=others, same=tuple(same), unsupported=unsupported)

    def _receive(self, calls: list[str]) -> dict[str, Answer]:
        """The answers to the calls that were sent together."""
        case, _ = self._asked
        crash, self._crash = self._crash, ""
        state, content = "", {}  # type: str, Any
        if not crash:
            try:
                state, content = self.process.receive(self._timeout)
            except processes.Died as e:
                crash = self._died(str(e))
        if crash:
            return dict.fromkeys(calls, Answer(crash=crash))
        if state == "error":  # Not of an op.
            return dict.fromkeys(calls, Answer(error=content))
        if "static" in content:
            content = {calls[0]: content["static"]}
        answers = {call: _answer(call, *content[call]) for call in calls}
        lacking = [a.error for a in answers.values() if a.error.startswith(_MEMORY_ERRORS)]
        if lacking:
            # It lives, but who knows what it still holds.
            crash = self._died(self.process.out_of_memory(lacking[0]))
            return dict.fromkeys(calls, Answer(crash=crash))
        op = self._implementation.answers_with(case)
        assert op is not None, case
        return {call: translated(answer, case, op) for call, answer in answers.items()}

    def _died(self, how: str) -> str:
        """A new process gets ready for the next case."""
        self.process.kill()
        self.process.start()
        return how

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._variants.values():
            worker.close()
        self.process.close()


# Stands for an answer that has the bits of the first call's.
_SAME = Answer()


def _answer(call: str, state: str, content: Any) -> Answer:
    """The answer that a process (worker.py) gave to one call."""
    if state == "same":
        return _SAME
    if state == "unsupported":
        return Answer(error=f"unsupported: {content}", unsupported={call: content})
    if state == "error":
        return Answer(error=content)
    return Answer(shapes=content) if state == "shapes" else Answer(outputs=content)


def _is_same(a: Answer, b: Answer) -> bool:
    """Whether two calls have the same bits; or both refused."""
    if a.outputs is None or b.outputs is None:
        return bool(a.error and b.error)
    return same_bits(a.outputs, b.outputs)
