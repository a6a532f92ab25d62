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
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, closefd=False))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = arguments
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


# Variables that are read before the program's first line, by Python, TensorFlow or the package; but
# for those of the package that are read when its libraries are loaded.
_EARLY = ("TF_", "KERAS_", "XLA_", "CUDA_", "LD_", "MALLOC_", "GLIBC_", "OMP_")
_LATE = ("TF_BN_OPS_LIBRARY", "TF_BN_OPS_CPU_ISA", "TF_BN_OPS_VERBOSE", "TF_BN_OPS_HUGE_PAGES")


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    names = (name for name in environment if name.startswith(_EARLY) and name not in _LATE)
    return {name: environment[name] for name in names}


def run(
    program: str,
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ".",
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, "-c", program, *arguments])` does, forked; a Python of
    its own where `env` differs in what is read before the program's first line.

    Raises:
      subprocess.TimeoutExpired: it has not ended, and was killed.
    """
    words = ["-c", *map(str, arguments)]
    environment = dict(os.environ if env is None else env)
    if _early(environment) != _early(os.environ):
        command = [sys.executable, "-c", program, *words[1:]]
        return subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout
        )
    with tempfile.TemporaryDirectory() as folder:
        where = (folder, program, words, os.path.abspath(cwd), environment)
        process = _CONTEXT.Process(target=_child, args=where, daemon=True)
        # The child does not import pytest's __main__.
        of_child = {"sys_path": [path or os.getcwd() for path in sys.path]}
        with unittest.mock.patch.object(spawn, "get_preparation_data", lambda name: of_child):
            process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        texts = (pathlib.Path(folder, name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, process.exitcode, *texts)
