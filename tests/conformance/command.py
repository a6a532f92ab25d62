"""Runs `python -m tf_bn_ops conformance` in the test's own process; a record as a run writes it.

The processes of references are kept for the next run: TensorFlow takes seconds to start.
Candidates' processes are not: their execution modes ask what a process has seen.
"""

from __future__ import annotations

import atexit
import contextlib
import io
from typing import Any, NamedTuple

import pytest

from tf_bn_ops import __main__ as commands
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.reports import record
from tf_bn_ops.harness import processes

_Process = processes.Process
# What a process is made of -> those that wait.
_idle: dict[str, list[_Pooled]] = {}


class _Pooled(_Process):
    key = ""

    def close(self) -> None:
        if self.is_alive:
            _idle.setdefault(self.key, []).append(self)
        else:
            super().close()


def _process(name, module, arguments, environment, memory=0):
    if name == CANDIDATE:
        return _Process(name, module, arguments, environment, memory)
    key = repr((module, arguments, sorted(environment.items()), memory))
    if _idle.get(key):
        found = _idle[key].pop()
        found.name = name
    else:
        found = _Pooled(name, module, arguments, environment, memory)
        found.key = key
    return found


@atexit.register
def _close() -> None:
    for process in (process for waiting in _idle.values() for process in waiting):
        _Process.close(process)


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*flags: str) -> Result:
    """What a run with these flags returns and prints."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "Process", _process)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = commands.main(["tf_bn_ops", "conformance", *map(str, flags)])
    return Result(status, out.getvalue(), err.getvalue())


def record_of(*cases: dict[str, Any]) -> dict[str, Any]:
    """The record of a run of these cases."""
    settings = dict.fromkeys(record.SCHEMA["settings"])
    settings |= {"seed": 1, "cases": len(cases), "bounds": "strict", "selection": {}, "shrink": 0}
    settings |= {"timeout": 1, "x": False, "execution_modes": "none"}
    machine = dict.fromkeys(record.SCHEMA["machines"], "one") | {"cores": 1, "gpus": []}
    return {
        "schema": record.VERSION, "command": "python -m tf_bn_ops conformance",
        "replay": "python -m tf_bn_ops conformance --repro", "date": "2026-01-01T00:00:00Z",
        "seconds": 1.0, "settings": settings, "total": len(cases),
        "versions": {"tensorflow": "2.21.0"}, "machines": [machine],
        "candidate": {"ops": "vendor:ops", "digest": "5e" * 32, "mapped": []},
        "implementations": ["candidate", "onednn", "eigen"], "divergences": [], "coverage": [],
        "cases": [*cases],
    }  # fmt: skip
