"""Runs ops in processes of their own, so that environments differ and a crash costs one case."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Protocol

from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import EXECUTION_MODES
from tf_bn_ops.conformance.execution import devices
from tf_bn_ops.conformance.execution.answer import Answer, combined
from tf_bn_ops.conformance.execution.implementations import (
    CANDIDATE,
    Implementation,
    request,
)
from tf_bn_ops.conformance.models.formula_models import fill
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.problems import Inputs, with_variance
from tf_bn_ops.harness.processes import WorkerError

# Errors by which a process says itself that its memory ran out.
_MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError")


class Runner(Protocol):
    """Answers cases one after the other: `submit`, then `collect`, where it `supports` the case."""

    name: str

    def supports(self, case: Case) -> bool: ...

    def submit(self, case: Case, inputs: Inputs) -> None: ...

    def collect(self) -> Answer: ...

    def close(self) -> None: ...


class Worker:
    """One implementation in one process, which is started again when it dies.

    Execution modes that need another environment have processes of their own, one each.
    """

    def __init__(
        self,
        implementation: Implementation,
        timeout: float = 120.0,
        memory: int = 0,
        own_processes: bool = True,
    ):
        """Starts the process, which may have some bytes of memory (0: no limit); does not wait for
        it. A case hangs after `timeout` seconds. `own_processes`: it answers in execution modes
        that need a process of their own, too."""
        self.name = implementation.name
        self._implementation = implementation
        self._timeout = timeout
        self._memory = memory
        self._own_processes = own_processes
        self._variants: dict[str, Worker] = {}
        self._crash = ""  # Known before `collect`.
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        self.process = processes.Process(
            self.name,
            "tf_bn_ops.conformance.execution.worker",
            [implementation.ops],
            {"TF_CPP_MIN_LOG_LEVEL": level, **implementation.environment},
            memory,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What the process has sent about itself; empty before it is ready."""
        return self.process.facts or {}

    def wait_until_ready(self) -> None:
        """Waits for the process to have loaded its ops.

        Raises:
          WorkerError: it could not.
          UsageError: a device that ops are to be placed on is missing.
        """
        self.process.wait_until_ready()
        for device in self._implementation.devices.values():
            devices.check(device, self.facts)

    def contract(self) -> dict[str, list[tuple[str, str]]]:
        """How the contracts of mapped ops differ from what they claim: name -> (kind, sentence).

        Raises:
          WorkerError: the process did not survive the question.
        """
        mapped = (self._implementation.mapped or {}).values()
        if not mapped:
            return {}
        return self._ask({"contract": [*mapped]}, "the contract of the ops cannot be compared")

    def kernels(self, device: str) -> dict[str, Any]:
        """Which ops have kernels on a device (devices.kernels).

        Raises:
          WorkerError: the process did not survive the question.
          UsageError: the device is missing.
        """
        return self._ask({"kernels": device}, f"{device} cannot be asked for its kernels")

    def _ask(self, request: dict[str, Any], otherwise: str) -> dict[str, Any]:
        """The answer to a request that is not about a case."""
        self.wait_until_ready()
        self.process.send(request)
        try:
            state, content = self.process.receive(self._timeout)
        except processes.Died as e:
            raise WorkerError(f"{otherwise}: {e}") from e
        if state == "error":
            raise WorkerError(f"{otherwise}: {content}")
        assert isinstance(content, dict)
        return content

    def supports(self, case: Case) -> bool:
        """Whether it has an op for the case."""
        return self._implementation.supports(case)

    def refusal(self, mode: str) -> str:
        """Why a further execution mode does not apply, or ""."""
        asked = dict(EXECUTION_MODES[mode].environment)
        if self._implementation.name != CANDIDATE:  # A reference is what it is by its environment.
            asked |= EXECUTION_MODES[mode].wishes
        if fixed := set(asked) & set(self._implementation.environment):
            return f"{fixed.pop()} selects this path"
        return self._implementation.cannot.get(mode, "")

    def variant(self, mode: str) -> Worker:
        """The worker with the environment of a mode, which is started if it has not been yet."""
        if mode not in self._variants:
            of_mode, own = EXECUTION_MODES[mode], self._implementation.environment
            environment = {**of_mode.wishes, **own, **of_mode.environment}
            implementation = dataclasses.replace(self._implementation, environment=environment)
            self._variants[mode] = Worker(implementation, self._timeout, self._memory, False)
        return self._variants[mode]

    def expect(self, modes: Iterable[str]) -> None:
        """Starts the processes that these execution modes will need."""
        for mode in modes:
            needs_process = self._own_processes and EXECUTION_MODES[mode].is_apart
            if needs_process and not self.refusal(mode):
                self.variant(mode)

    def submit(self, case: Case, inputs: Inputs) -> None:
        """Sends a case that it supports; the answer is for `collect` to fetch."""
        self._asked = case, inputs
        first, *others = case.execution_modes
        self._unsupported = {m: why for m in others if (why := self.refusal(m))}
        others = [m for m in others if m not in self._unsupported]
        self._elsewhere = [m for m in others if EXECUTION_MODES[m].is_apart]
        self._elsewhere = self._elsewhere if self._own_processes else []
        self._here = [first, *(m for m in others if not EXECUTION_MODES[m].is_apart)]
        for mode in self._elsewhere:
            call = first if EXECUTION_MODES[mode].environment else mode
            self.variant(mode).submit(dataclasses.replace(case, execution=call), inputs)
        self._send(self._here)

    def _send(self, modes: list[str]) -> None:
        case, inputs = self._asked
        mapped = self._implementation.mapping_of(case.spec)
        try:
            self.process.wait_until_ready()
            device = self._implementation.devices.get(case.op)
            if self.name != CANDIDATE:
                inputs = with_variance(inputs)
            asked = request(case, inputs, mapped, modes)
            if self.name != CANDIDATE:  # References have the formula of the gradient alone.
                asked.pop("forward", None)
            if EXECUTION_MODES[modes[0]].preceded:
                asked["before"] = self._before(case)
            self.process.send({**asked, "device": device})
        except (processes.Died, WorkerError) as e:
            self._crash = self._died(f"died before the case: {e}")

    def _before(self, case: Case) -> list[dict[str, Any]]:
        """The requests that come before a case: its predecessors whose op the worker has."""
        mapped = self._implementation.mapping_of(case.spec)
        return [
            request(earlier, fill(earlier), mapped)
            for earlier in generate.predecessors(case)
            if self.supports(earlier)
        ]

    def collect(self) -> Answer:
        """The answer to the case last submitted; a crash or a hang is one as well."""
        answer = self._receive()
        if len(self._here) > 1 and answer.crash:
            answers = {}  # Which of the modes was it?
            for mode in self._here:
                self._send([mode])
                answers[mode] = self._receive()
            answer = combined(answers)
        elsewhere = {mode: self.variant(mode).collect() for mode in self._elsewhere}
        answer = combined({self._here[0]: answer, **elsewhere})
        return dataclasses.replace(answer, unsupported={**self._unsupported, **answer.unsupported})

    def _receive(self) -> Answer:
        """The answer to what was sent."""
        crash, self._crash = self._crash, ""
        if crash:
            return Answer(crash=crash)
        try:
            state, content = self.process.receive(self._timeout)
        except processes.Died as e:
            return Answer(crash=self._died(str(e)))
        if state == "error":  # Not of an op.
            return Answer(error=content)
        errors = [a.error for a in (content, *content.others.values())]
        if lacking := [error for error in errors if error.startswith(_MEMORY_ERRORS)]:
            # It lives, but may still hold the memory.
            return Answer(crash=self._died(self.process.out_of_memory(lacking[0])))
        assert isinstance(content, Answer)
        return content

    def _died(self, how: str) -> str:
        """Starts a new process for the next case."""
        self.process.kill()
        self.process.start()
        return how

    def close(self, at_once: bool = False) -> None:
        """Ends the processes; `at_once`: whatever they do, which may take them seconds."""
        for worker in self._variants.values():
            worker.close(at_once)
        if at_once:
            self.process.kill()
        self.process.close()
