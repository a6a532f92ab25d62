"""The libraries of aarch64 and the Python that runs them under an emulator, for the tests beside.

`make aarch64-parts` fetches that Python, `make aarch64-test` builds the libraries and runs these
tests; without either they are skipped.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from tf_bn_ops import _loader
from tf_bn_ops.harness import processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "aarch64"
PYTHON = FOLDER / "bin" / "python"
LIBRARIES = FOLDER / "tf_bn_ops" / "lib"

# The emulator takes some thirty times as long: an import of TensorFlow two minutes on a busy
# machine.
SECONDS = 1500


def skip_without_parts() -> None:
    """Skips the module that calls it where something of the above is missing or out of date."""
    if not PYTHON.exists():
        pytest.skip("no parts of aarch64: make aarch64-parts fetches them", allow_module_level=True)
    built = LIBRARIES / _loader.OP_LIBRARY
    sources = [path.stat().st_mtime for path in (ROOT / "cc").rglob("*.[ch]*")]
    if not built.exists() or built.stat().st_mtime < max(sources):
        pytest.skip(
            "no libraries of aarch64 of these sources: make aarch64-test builds them",
            allow_module_level=True,
        )


def environment(**changes: str) -> dict[str, str]:
    """Of a child under the emulator: this tree's package with the libraries of aarch64."""
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "aarch64")]
    ours: Mapping[str, str] = {
        "PYTHONPATH": os.pathsep.join(paths),
        "TF_BN_OPS_LIBRARY": str(LIBRARIES),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    return {**ours, **changes}


def run_python(*arguments: str, cwd: pathlib.Path = ROOT, **changes: str) -> str:
    """The output of a program under the emulator, which has to succeed."""
    done = subprocess.run(
        [str(PYTHON), *arguments],
        env={**os.environ, **environment(**changes)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def emulation() -> Iterator[None]:
    """In this context harness/processes.py starts the Python of aarch64, and waits longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(PYTHON))
        patch.setattr(processes, "_START_TIMEOUT", float(SECONDS))
        yield
