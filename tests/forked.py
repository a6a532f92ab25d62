"""Fresh processes for tests, forked from one that has imported TensorFlow and Keras.

That import takes some three seconds of a processor; a fork takes milliseconds. The server is
multiprocessing's, one for each pytest worker, started on first use; nothing has used TensorFlow in
it. Tests of what happens before or during the import of TensorFlow (variables that it reads then,
startup files) start a Python of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
import unittest.mock
from collections.abc import Mapping
from multiprocessing import spawn
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tensorflow", "keras"])


def _child(
    folder: str, program: str, arguments: list[str], cwd: str, environment: dict[str, str]
) -> None:
    """Runs the program as `python -c` does."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = (open(d, "w", buffering=1, closefd=False) for d in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["-c", *arguments]
    # PYTHONPATH as Python puts it: behind the script's folder.
    sys.path[:0] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    status = 0
    main = sys.modules["__main__"] = type(sys)("__main__")
    try:
        exec(compile(program, "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Forked:
    """A program that runs; as much of subprocess.Popen as tests need."""

    def __init__(
        self,
        program: str,
        *arguments: Any,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = ".",
    ):
        self._folder = tempfile.TemporaryDirectory()
        given = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments]
        environment = dict(os.environ if env is None else env)
        where = (self._folder.name, program, given, os.path.abspath(cwd), environment)
        self._process = _CONTEXT.Process(target=_child, args=where, daemon=True)
        # The child does not import pytest's __main__.
        of_child = {"sys_path": [path or os.getcwd() for path in sys.path]}
        with unittest.mock.patch.object(spawn, "get_preparation_data", lambda name: of_child):
            self._process.start()

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """What it has written, when it has ended.

        Raises:
          subprocess.TimeoutExpired: it has not ended, and was killed.
        """
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise subprocess.TimeoutExpired("forked", timeout)
        self.returncode = self._process.exitcode
        out, err = (pathlib.Path(self._folder.name, name) for name in ("stdout", "stderr"))
        return out.read_text(errors="replace"), err.read_text(errors="replace")


def run(program: str, *arguments: Any, **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, as subprocess.run([sys.executable, "-c", program, ...]) does;
    `env` and `cwd` are those of that."""
    process = Forked(program, *arguments, **how)
    out, err = process.communicate()
    return subprocess.CompletedProcess(["forked", *arguments], process.returncode, out, err)

