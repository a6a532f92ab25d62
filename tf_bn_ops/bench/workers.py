"""Starts implementations in processes of their own and asks them, one at a time."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Pipe
from typing import Any

from tf_bn_ops.bench import implementations

_PACKAGE_PARENT = str(pathlib.Path(__file__).resolve().parents[2])
_START_TIMEOUT = 180.0
_TIMEOUT = 300.0

# The C library gives large blocks back to the system when they are freed, and gets new ones page
# by page: for a call that makes a tensor of 100 MB this costs about as much as the call itself.
# It would be the same for all implementations, and hide how they differ, so freed memory is kept.
# NumPy's inputs get the same kind of pages as everything else.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",  # The others give back whatever these say.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "NUMPY_MADVISE_HUGEPAGE": "0",
}


class WorkerError(RuntimeError):
    """A worker that cannot start; the message is one sentence."""


class CallError(RuntimeError):
    """A request that failed: the op refuses it, or the process died."""


def is_installed(entry: implementations.Entry) -> bool:
    """Whether the library can be found, without importing it."""
    return importlib.util.find_spec(entry.module) is not None


class Worker:
    """One implementation in one process, which is started again when it dies."""

    def __init__(
        self,
        entry: implementations.Entry,
        threads: int,
        environment: dict[str, str] | None = None,
        module: str = "tf_bn_ops.bench.worker",
    ):
        """Starts the process; does not wait for it."""
        self.entry = entry
        self.name = entry.name
        self.facts: dict[str, str] = {}
        self._threads = threads
        self._environment = KEEP_MEMORY if environment is None else environment
        self._module = module
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        self._ready = False
        self._start()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._log.seek(0)
        self._log.truncate()
        paths = [_PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **self._environment,
        }
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        for name, value in self.entry.environment.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        command = [sys.executable, "-m", self._module]
        command += [str(theirs.fileno()), self.name, str(self._threads)]
        self._process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        theirs.close()
        self._ready = False

    def wait_until_ready(self) -> None:
        """Waits for the process to have loaded its library.

        Raises:
          WorkerError: it could not.
        """
        if self._ready:
            return
        try:
            if not self._connection.poll(_START_TIMEOUT):
                raise WorkerError(f"{self.name} did not start in {_START_TIMEOUT:.0f} s")
            state, content = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerError(f"{self.name}: {self._last_words()}") from None
        if state != "ready":
            raise WorkerError(f"{self.name}: {content}")
        self.facts = content
        self._ready = True

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of worker.Server.

        Raises:
          CallError: it raised an exception, crashed or hung.
        """
        try:
            if self._process.poll() is not None:
                self._start()
            self.wait_until_ready()
            self._connection.send((method, *arguments))
            if not self._connection.poll(_TIMEOUT):
                self._process.kill()
                self._process.wait()
                raise CallError(f"no answer in {_TIMEOUT:.0f} s")
            state, content = self._connection.recv()
        except (EOFError, OSError):
            raise CallError(self._last_words()) from None
        except WorkerError as e:
            raise CallError(str(e)) from None
        if state == "error":
            raise CallError(content)
        return content

    def _last_words(self) -> str:
        """How the process ended, with the end of its output."""
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "closed its connection without ending"
        how = f"ended with status {status}"
        if status < 0:
            try:
                how = f"killed by {signal.Signals(-status).name}"
            except ValueError:
                how = f"killed by signal {-status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1]}" if lines else how

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
