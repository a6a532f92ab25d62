"""A run over ops that are not batch norm: their processes, the cases, their record."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_bn_ops.conformance import devices, general
from tf_bn_ops.conformance.general import CANDIDATE, REFERENCE, Described, Signature
from tf_bn_ops.conformance.judge import Answer
from tf_bn_ops.conformance.mapping import Mapped
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.worker import LIBRARY_PREFIX
from tf_bn_ops.harness import processes


class Runner:
    """Candidate and TensorFlow, each in a process, and the oracles."""

    def __init__(
        self,
        entries: Sequence[Described],
        library: pathlib.Path,
        folder: pathlib.Path,
        timeout: float,
        memory: int = 0,
    ):
        """Starts the processes.

        Args:
          entries: the ops of the mapping file.
          library: holds the candidates.
          folder: where oracles are looked for first: that of the mapping file.
          timeout: seconds that a case may take.
          memory: bytes that a process may have; 0: no limit.

        Raises:
          general.GeneralError: an oracle is not there, or two entries are like one op.
        """
        self._entries = {entry.like: entry for entry in entries}
        if len(self._entries) < len(entries):
            raise general.GeneralError("two ops of the mapping file are like one of TensorFlow's")
        self._oracles = {
            like: general.Oracle(entry.oracle, str(folder))
            for like, entry in self._entries.items()
            if entry.oracle
        }
        self._timeout = timeout
        fields = ("name", "like", "inputs", "attrs", "outputs")
        ops = [{field: getattr(entry, field) for field in fields} for entry in entries]
        self._processes = {
            name: processes.Process(
                name,
                "tf_bn_ops.conformance.general_worker",
                [where, json.dumps(ops)],
                {"TF_CPP_MIN_LOG_LEVEL": "2"},
                memory,
            )
            for name, where in (
                (CANDIDATE, LIBRARY_PREFIX + str(library.resolve())),
                (REFERENCE, "tensorflow:raw_ops"),
            )
        }
        self._signatures: dict[str, Signature] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """What the candidate's process has said about itself."""
        return self._processes[CANDIDATE].facts or {}

    @property
    def names(self) -> list[str]:
        return list(self._processes)

    def wait_until_ready(self) -> None:
        """Waits for both processes, and checks devices.

        Raises:
          processes.WorkerError: one cannot start.
          devices.DeviceError: a device is not there.
        """
        for name, process in self._processes.items():
            process.wait_until_ready()
            for entry in self._entries.values():
                device = entry.device if name == CANDIDATE else entry.reference_device
                devices.check(device, process.facts)

    def describe(self) -> None:
        """Reads the signatures, which must leave a way to call the ops.

        Raises:
          general.GeneralError: the mapping file does not fit them.
        """
        for like, fields in self.facts["opdefs"].items():
            self._signatures[like] = Signature(**fields)
            self._signatures[like].check(self._entries[like])

    def cases(self, count: int, seed: int) -> list[general.Case]:
        """The cases of a run."""
        ops = {like: (self._entries[like], s) for like, s in self._signatures.items()}
        return list(general.generate(count, seed, ops))

    def _submit(self, name: str, case: general.Case, inputs: Mapping[str, Any]) -> Answer | None:
        entry = self._entries[case.op]
        theirs = name == CANDIDATE
        attrs = general.attrs_of(case, entry)
        rename = (entry.inputs, entry.attrs, entry.outputs) if theirs else ({}, {}, {})
        outputs = self._signatures[case.op].outputs
        request = {
            "op": entry.name.replace(">", "_") if theirs else entry.like,
            "inputs": {rename[0].get(n, n): value for n, value in inputs.items()},
            "attrs": {rename[1].get(n, n): value for n, value in attrs.items()},
            "outputs": [rename[2].get(n, n) for n in outputs],
            "call": case.call,
            "device": entry.device if theirs else entry.reference_device,
        }
        process = self._processes[name]
        try:
            process.wait_until_ready()
            process.send(request)
        except processes.Died as e:
            return self._crashed(name, str(e))
        return None

    def _collect(self, name: str) -> Answer:
        try:
            state, content = self._processes[name].receive(self._timeout)
        except processes.Died as e:
            return self._crashed(name, str(e))
        return Answer(outputs=content) if state == "done" else Answer(error=content)

    def _crashed(self, name: str, how: str) -> Answer:
        self._processes[name].kill()
        self._processes[name].start()
        return Answer(crash=how)

    def run(self, cases: Sequence[tuple[int, general.Case]]) -> Iterator[dict[str, Any]]:
        """Judges cases; yields entries of the record's "cases"."""
        for index, case in cases:
            entry, signature = self._entries[case.op], self._signatures[case.op]
            inputs = general.fill(case, entry, signature)
            early = {name: self._submit(name, case, inputs) for name in self._processes}
            answers = {name: answer or self._collect(name) for name, answer in early.items()}
            oracle = self._oracles.get(case.op)
            result = general.judge(case, entry, signature, inputs, answers, oracle)
            yield record_lib.of_result(index, result)

    def parse(self, text: str) -> general.Case:
        """The case that `text` names."""
        case = general.parse(text, self._entries)
        if case.dtype not in self._signatures[case.op].dtypes(self._entries[case.op]):
            raise general.GeneralError(f"{case.op} is not run in {case.dtype} here")
        return case

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes.values():
            process.close()


def mapped_record(
    entry: Described | Mapped, oracle: str | None, signature: Sequence[str]
) -> dict[str, Any]:
    """An entry of the field "mapped" of the record."""
    return {
        "name": entry.name,
        "like": entry.like,
        "device": entry.device,
        "reference_device": entry.reference_device,
        "oracle": oracle,
        "tolerances": [tolerance.of_record() for tolerance in entry.tolerances],
        "signature": list(signature),
    }
