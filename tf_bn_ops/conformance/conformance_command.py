"""Judges the ops of this library against TensorFlow's and a float64 oracle.

Exit status: 0 all cases passed, 1 a case failed, 2 wrong usage, a missing part, or a report that
cannot be written, 130 ended by SIGINT or SIGTERM before a case failed; what was judged is reported.
docs/conformance.md explains the report.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import math
import pathlib
import platform
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import rich.progress

from tf_bn_ops import _loader, _version, spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance import flags, program, runner, shrink
from tf_bn_ops.conformance.cases import case as case_lib
from tf_bn_ops.conformance.cases import (
    contract,
    coverage,
    foreign_shapes,
    generate,
)
from tf_bn_ops.conformance.cases.case import ERROR_PREFIX, Case, Problem
from tf_bn_ops.conformance.cases.generate import Combination
from tf_bn_ops.conformance.execution import devices, implementations, signatures, workers
from tf_bn_ops.conformance.models.formula_models import fill
from tf_bn_ops.conformance.models.inputs import as_given
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.reports import report_command, terminal
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness import builtin, machine, problems
from tf_bn_ops.harness.problems import Inputs
from tf_bn_ops.harness.processes import WorkerError

# Beside the random cases, one in so many is a malformed call.
_SHARE = 10


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Within it, SIGTERM raises KeyboardInterrupt, as SIGINT does: CI systems send it first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Run:
    """One run, from its flags to its record."""

    def __init__(self, console: terminal.Console, given: argparse.Namespace):
        """Checks the flags, before anything is started."""
        self._console, self._given = console, given
        self._saves_rstd = False  # By which convention training is judged.
        self._entries = flags.mapped_ops(given)
        self._count, self._drawn = flags.cases(given, self._entries), 0
        self._kinds = flags.kinds(given, self._count)
        self._candidate = flags.candidate(given, self._entries)
        self._doing, self._is_interrupted = "the processes start", False
        self._repro: Case | None = given.repro
        self._combos = self._combinations()
        self._profile = flags.profile(given)
        self._settings = Settings(self._profile, divergences.Register.load(), self._candidate)

    def _combinations(self) -> list[Combination]:
        combos = flags.combinations(self._given)
        if self._entries:
            entries = self._entries
            combos = [c for c in combos if c[0] in entries and entries[c[0]].claims(*c[1:])]
            if not combos or (self._repro and not self._candidate.supports(self._repro)):
                raise UsageError(
                    "no mapped op claims what --ops, --dtypes, --layouts, --modes or --repro select"
                )
        return combos

    def _fill(self, case: Case) -> Inputs:
        """The inputs of a case, as the candidate takes them."""
        found = fill(case) if case.compares_values else contract.fill(case)
        if self._candidate.ops != implementations.OWN_OPS:
            found = as_given(found)
        if self._given.device is not None and case.op in devices.INTERNAL:
            found = devices.as_internal(found)
        is_converted = self._saves_rstd and case.compares_values
        return problems.with_rstd(case, found) if is_converted else found

    def run(self) -> int:
        """Runs the cases, prints and writes the reports; returns the exit status."""
        self._started = time.monotonic()
        if note := builtin.switch_note():
            terminal.say(self._console, note)
        with _terminated_as_interrupted(), terminal.heartbeat(self._console, self._progress):
            record = self._record()
        return report_command.report(self._console, record, self._given)

    def _progress(self) -> str:
        return f"conformance: {self._doing}, {time.monotonic() - self._started:.0f} s"

    def _record(self) -> record_lib.Record:
        """Runs the cases; the record."""
        self._workers = [self._worker(self._candidate)]
        try:
            self._judge_contract()
            if self._given.device is not None:
                self._judge_placement(self._given.device)
            self._workers += self._start_references()
            for worker in self._workers:
                worker.wait_until_ready()
            facts = self._workers[0].facts
            cases = self._cases(facts)
            if not cases:
                raise UsageError("these flags select no case: a run without any proves nothing")
            for worker in self._workers:
                worker.expect({mode for case in cases for mode in case.execution_modes})
            found = self._judge(cases)
            return record_lib.check(
                {
                    **self._circumstances(facts),
                    "seconds": round(time.monotonic() - self._started, 3),
                    "total": len(cases),
                    "divergences": record_lib.of_divergences(self._settings.known),
                    "coverage": self._coverage(cases[: len(found)]),
                    "cases": found,
                }
            )
        except KeyboardInterrupt:
            self._is_interrupted = True
            raise
        finally:
            for worker in self._workers:
                worker.close(at_once=self._is_interrupted)

    def _worker(self, implementation: implementations.Implementation) -> workers.Worker:
        # In the default run references are compared only where that needs no further process.
        given = self._given
        everywhere = given.execution_modes is not None or implementation is self._candidate
        return workers.Worker(implementation, given.timeout, flags.memory(given), everywhere)

    def _start_references(self) -> list[workers.Worker]:
        ops = {self._repro.op} if self._repro else {op for op, *_ in self._combos}
        judged = [spec.OPS[op] for op in ops]
        most = {"most_elements": math.inf} if self._repro else {}
        found = implementations.references(judged, self._entries, **most)
        return [self._worker(reference) for reference in found]

    def _judge_contract(self) -> None:
        """Prints how the contracts of a library's ops differ, before any case runs, and leaves out
        the ops that cannot be called as they are mapped.

        Raises:
          UsageError: none can be called.
        """
        self._signatures = self._workers[0].contract()
        by_name = {entry.name: entry for entry in self._entries.values()}
        uncallable: dict[str, str] = {}
        for name, found in self._signatures.items():
            if fatal := [text for kind, text in found if kind == signatures.FATAL]:
                why = (
                    f"{name} cannot be called as it is mapped: {'; '.join(fatal)} (a mapping file "
                )
                uncallable[by_name[name].like] = why + "can rename inputs and attrs)"
                continue
            fails = 0
            for kind, text in found:
                differs = kind not in (signatures.NOTE, *by_name[name].differs)
                how = f"DIFFERS ({kind}): " if differs else ""
                terminal.say(self._console, f"contract of {name}: {how}{text}", "red" * differs)
                fails += differs
            verdict = f"FAILED: {fails} differences" if fails else "passed"
            text = f"contract of {name} {verdict} ({by_name[name].spec.name}: OpDef, static shapes"
            text += f", defaults) after {time.monotonic() - self._started:.0f} s"
            terminal.say(self._console, text, "bold red" if fails else "bold green")
        self._combos = [combo for combo in self._combos if combo[0] not in uncallable]
        if uncallable and (not self._combos or (self._repro and self._repro.op in uncallable)):
            raise UsageError("; ".join(uncallable.values()))
        for text in uncallable.values():
            terminal.say(self._console, f"FAILED, and not judged: {text}", "bold red")

    def _judge_placement(self, device: str) -> None:
        """Prints which ops have kernels on --device, and leaves out the others.

        Raises:
          UsageError: none has.
        """
        found = self._workers[0].kernels(device)
        self._saves_rstd = bool(found["saves_rstd"])
        has = {(op, dtype) for op, dtypes in found["dtypes"].items() for dtype in dtypes}
        asked = dict.fromkeys((op, dtype) for op, dtype, *_ in self._combos)
        for op in dict.fromkeys(op for op, _ in asked):
            lacking = [dtype for o, dtype in asked if o == op and (o, dtype) not in has]
            if lacking and spec.OPS[op].builtin:
                text = f"{device} has no kernel of {op} ({', '.join(lacking)}): not judged, "
                terminal.say(self._console, text + "TensorFlow runs it on the CPU, or fails")
        self._combos = [c for c in self._combos if c[:2] in has and c[2] in found["layouts"][c[0]]]
        if not self._combos:
            raise UsageError(f"{device} has no kernel of the ops and types that are to be judged")
        if self._repro and (self._repro.op, self._repro.dtype) not in has:
            raise UsageError(f"{device} has no kernel for the case of --repro")
        kept = "1/sqrt(variance + epsilon)" if self._saves_rstd else "the variance"
        terminal.say(self._console, f"{device} keeps {kept} in reserve_space_2 of training")

    def _cases(self, facts: Mapping[str, Any]) -> list[Case]:
        """All cases of the run."""
        seed, kinds = self._given.seed, self._kinds
        if self._repro:
            return [self._repro]
        if not self._entries:
            self._combos = flags.available(self._given, self._combos, facts["ops"])
        combos = self._combos
        drawn = [*generate.generate(self._count, seed, combos)]
        self._drawn = malformed = len(drawn)
        if case_lib.RANDOM in kinds:
            malformed //= _SHARE
        else:
            drawn = []
        asked = combos
        if self._given.device:  # What ops without a Python name refuse is nowhere documented.
            asked = [combo for combo in combos if combo[0] not in devices.INTERNAL]
        foreign = foreign_shapes.generate(combos) if case_lib.FOREIGN_SHAPES in kinds else ()
        return [
            *generate.attach(drawn, seed, self._given.execution_modes),
            *contract.generate(malformed if case_lib.CONTRACT in kinds else 0, seed, asked),
            *foreign,
        ]

    def _judge(self, cases: Sequence[Case]) -> list[record_lib.CaseRecord]:
        """Runs and judges cases until they end, or a signal comes; their entries of the record."""
        found: list[record_lib.CaseRecord] = []
        try:
            self._judge_each(cases, found)
            self._add_programs(found)
        except KeyboardInterrupt:  # What was judged until then is reported.
            self._is_interrupted = True
        return found

    def _judge_each(self, cases: Sequence[Case], found: list[record_lib.CaseRecord]) -> None:
        """Adds the entry of each case, until they end."""
        results = runner.run(cases, self._fill, self._workers, self._settings)
        shown = rich.progress.track(
            results, "conformance", total=len(cases), console=self._console, transient=True,
            disable=not self._console.is_terminal,
        )  # fmt: skip
        failed = 0
        self._doing = f"0 of {len(cases)} cases judged"
        for index, result in enumerate(shown):
            found.append(record_lib.of_result(index, result))
            failed += bool(result.failures)
            self._doing = f"{len(found)} of {len(cases)} cases judged, {failed} failed"
            if self._repro:
                terminal.print_details(self._console, result)
            if self._given.x and result.failures:
                break
        results.close()

    def _coverage(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        """The field "coverage" of the record."""
        if self._repro or case_lib.RANDOM not in self._kinds:
            return []
        return [of_op.of_record() for of_op in coverage.of_cases(self._combos, cases).values()]

    def _add_programs(self, found: Sequence[record_lib.CaseRecord]) -> None:
        """Reduces the first failures of each kind, and adds them to their entries as programs."""
        # A bad call is small as it is.
        failed = [e for e in found if not e["kind"].startswith(ERROR_PREFIX)]
        for entry in record_lib.first_of_their_kind(failed, self._given.shrink):
            self._doing = f"a program for {entry['case']} is looked for"
            try:
                entry["script"] = self._program(entry)
            except Exception as error:  # The record is worth more than a small program.
                how = f"not reduced ({type(error).__name__}: {error})"
                terminal.say(self._console, f"{how}: {entry['case']}", "red")

    def _program(self, entry: record_lib.CaseRecord) -> str | None:
        """A failing case, reduced, as a program."""
        case = generate.parse(entry["case"])
        inputs = self._fill(case)
        # The execution mode that is judged.
        case = dataclasses.replace(case, execution=case.execution_modes[0])
        problem = shrink.shrink(
            Problem(case, inputs), record_lib.wrong(entry), self._workers[0], self._settings
        )
        return program.program(problem, entry["case"], self._settings)

    def _circumstances(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the record that say what is run, how and where."""
        now, modes = datetime.datetime.now(datetime.timezone.utc), self._given.execution_modes
        return {
            "schema": record_lib.VERSION,
            "command": " ".join([flags.COMMAND, *map(shlex.quote, self._given.words)]),
            "replay": flags.replay_command(self._given),
            "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "settings": {
                **{name: getattr(self._given, name) for name in flags.SETTINGS},
                "repro": str(self._repro) if self._repro else None,
                "execution_modes": "default" if modes is None else ",".join(modes) or "none",
                "cases": self._drawn,
                "kinds": None if self._repro else sorted(self._kinds),
                "selection": {name: getattr(self._given, name) for name in flags.SELECTION},
                "bounds": self._profile.name,
            },
            "versions": {
                "tf_bn_ops": _version.__version__,
                "tensorflow": facts["tensorflow"],
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "machines": [{**machine.hardware(), "gpus": list(facts.get("gpus", ()))}],
            "candidate": self._judged(),
            "implementations": [worker.name for worker in self._workers],
        }

    def _judged(self) -> dict[str, Any]:
        """The field "candidate" of the record."""
        library = self._given.library
        device = f" on {self._given.device}" if self._given.device else ""
        if self._candidate.ops == implementations.OWN_OPS:
            library = _loader.library_path()
        content = pathlib.Path(library).read_bytes() if library else b""
        return {
            "ops": self._candidate.ops + device,
            "digest": hashlib.sha256(content).hexdigest() if library else None,
            "mapped": [
                record_lib.of_mapping(entry, self._signatures.get(entry.name, []))
                for entry in self._entries.values()
            ],
        }


add_flags = flags.add_to


def execute(given: argparse.Namespace) -> int:
    try:
        return _Run(terminal.console(), given).run()
    except WorkerError as error:
        raise UsageError(str(error)) from error
