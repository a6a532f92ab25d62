"""Runs the programs beside this file: workers of tf.distribute over loopback, or one process."""

from __future__ import annotations

import pathlib
import subprocess

import forked

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
file = sys.argv[1] + "/" + sys.argv[2]
del sys.argv[:2]
runpy.run_path(file, run_name="__main__")
"""


def processes(
    program: str, *arguments: str, workers: int = 0, timeout: float = 280
) -> list[subprocess.CompletedProcess[str]]:
    """What became of every process of a program: one of no cluster if `workers` is 0."""
    return forked.cluster(PROGRAM, HERE, program, *arguments, workers=workers, timeout=timeout)


def run(program: str, *arguments: str, workers: int = 0, timeout: float = 280) -> list[str]:
    """The last line of output of every process; each has to succeed."""
    ended = processes(program, *arguments, workers=workers, timeout=timeout)
    for process in ended:
        assert process.returncode == 0, process.stderr[-3000:]
    return [process.stdout.splitlines()[-1] for process in ended]
