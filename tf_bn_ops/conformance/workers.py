"""Runs ops in processes of their own, so that environments differ and a crash costs one case."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Pipe
from typing import Any, Protocol

import numpy as np

from tf_bn_ops import _op_table
from tf_bn_ops.conformance.cases import Case
from tf_bn_ops.conformance.fills import Filled
from tf_bn_ops.conformance.judge import Answer
from tf_bn_ops.conformance.mapping import Mapped
from tf_bn_ops.conformance.worker import LIBRARY_PREFIX

_PACKAGE_PARENT = str(pathlib.Path(__file__).resolve().parents[2])
# Seconds that TensorFlow may take to start; it takes 3 to 5 on an idle machine.
_START_TIMEOUT = 180.0
# Lines of a crashed worker's standard error that go into the report.
_LAST_LINES = 5


class WorkerError(RuntimeError):
    """A worker that cannot start; the message is one sentence."""


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

    def __init__(self, implementation: Implementation, timeout: float = 120.0):
        """Starts the process; does not wait for it.

        Args:
          implementation: what it runs.
          timeout: seconds that a case may take before it counts as hanging.
        """
        self.name = implementation.name
        self.facts: dict[str, Any] = {}
        self._implementation = implementation
        self._timeout = timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        self._ready = self._running = False
        self._pending_crash = ""
        self._start()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._log.seek(0)
        self._log.truncate()
        paths = [_PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")]
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            **self._implementation.environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command = [sys.executable, "-m", "tf_bn_ops.conformance.worker"]
        command += [str(theirs.fileno()), self._implementation.ops]
        if self._implementation.mapped is not None:
            entries = self._implementation.mapped.values()
            command.append(json.dumps([dataclasses.asdict(entry) for entry in entries]))
        self._process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        theirs.close()
        self._ready, self._running = False, True

    def wait_until_ready(self) -> None:
        """Waits for the process to have loaded its ops.

        Raises:
          WorkerError: it could not.
        """
        if not self._running:
            self._start()
        if self._ready:
            return
        try:
            if not self._connection.poll(_START_TIMEOUT):
                self._process.kill()
                raise WorkerError(f"{self.name}: no answer in {_START_TIMEOUT:.0f} s after start")
            state, content = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerError(f"{self.name}: {self._last_words()}") from None
        if state != "ready":
            raise WorkerError(content)
        self.facts = content
        self._ready = True

    def takes(self, case: Case) -> bool:
        """Whether it has an op for the case."""
        return self._implementation.answers_with(case) is not None

    def submit(self, case: Case, filled: Filled) -> None:
        """Sends a case that it takes; the answer is for `collect` to fetch."""
        op = self._implementation.answers_with(case)
        assert op is not None, case
        self._asked = case, op
        try:
            self.wait_until_ready()
            mapped = (self._implementation.mapped or {}).get(op.name)
            self._connection.send(request(case, filled, op, mapped))
        except (OSError, WorkerError) as e:
            self._pending_crash = f"died before the case: {e}"

    def collect(self) -> Answer:
        """The answer to the case last submitted; a crash or a hang is one as well."""
        if self._pending_crash:
            crash, self._pending_crash = self._pending_crash, ""
            return self._crashed(crash)
        try:
            if not self._connection.poll(self._timeout):
                self._process.kill()
                return self._crashed(f"no answer in {self._timeout:.0f} s")
            state, content = self._connection.recv()
        except (EOFError, OSError):
            return self._crashed(self._last_words())
        if state != "outputs":
            return Answer(error=content)
        return translated(Answer(outputs=content), *self._asked)

    def _crashed(self, how: str) -> Answer:
        self._connection.close()
        self._process.kill()
        self._process.wait()
        self._running = False
        return Answer(crash=how)

    def _last_words(self) -> str:
        """How the process ended, with the end of its output."""
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "closed its connection without ending"
        how = f"ended with status {status}"
        if status < 0:
            try:
                how = f"killed by {signal.Signals(-status).name}"
            except ValueError:
                how = f"killed by signal {-status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return ": ".join([how, " | ".join(lines[-_LAST_LINES:])]) if lines else how

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()
