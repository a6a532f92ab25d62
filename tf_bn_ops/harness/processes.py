"""Modules in processes of their own, with requests over a pipe, and functions in threads: for
conformance run and benchmark.

The parent makes a `Process`; the module it names ends in

    if __name__ == "__main__":
        processes.serve(sys.argv, lambda *arguments: (facts, answer))

The child first sends ("ready", facts) or ("unusable", a sentence). Then every request gets one
reply, ("done", result) or ("error", "Code: message"). It ends with the pipe.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from tf_bn_ops import _startup

_PACKAGE_PARENT = str(pathlib.Path(__file__).resolve().parents[2])
# Seconds that the libraries of a process may take to load; TensorFlow takes 3 to 5 when idle.
_START_TIMEOUT = 180.0
# Lines of a dead process's output that are repeated.
_LAST_LINES = 5
# More of its output than that is not read.
_LAST_BYTES = 1 << 16
# Where a sentence of its output tells that memory ran out; signals alone do not.
_OUT_OF_MEMORY = ("std::bad_alloc", "MemoryError", "RESOURCE_EXHAUSTED", "Cannot allocate memory")
# A line of a stack trace as TensorFlow prints it: the message stands before them.
_FRAME = re.compile(r"\s+@\s+0x")


class WorkerError(RuntimeError):
    """A process that cannot start; the message is one sentence."""


class Died(RuntimeError):
    """A process that ended, or had to be ended, instead of answering; the message says how."""


class Process:
    """One module in one process; when that has died, `start` makes a new one.

    Attributes:
      facts: what the process has sent about itself.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str | None] | None = None,
        memory: int = 0,
    ):
        """Starts the process; does not wait for it.

        Args:
          name: what errors call it.
          module: the module that is run.
          arguments: its arguments.
          environment: variables that differ from this process's; None takes one away. TF_BN_OPS
            is taken away unless it is here: references would run this library's kernels.
          memory: bytes of data that it may have; 0: no limit. Code, files and memory that is only
            reserved do not count, so that a process with a GPU, which reserves terabytes, can be
            limited.
        """
        self.name = name
        self.facts: Any = None
        self._module, self._arguments = module, list(arguments)
        self._environment = dict(environment or {})
        self._memory = memory
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        self._mark = 0
        self.start()

    def start(self) -> None:
        """Starts the process anew."""
        self._connection, theirs = Pipe()
        self._mark = self._log_size()
        paths = [_PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")]
        changed: dict[str, str | None] = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            _startup.VARIABLE: None,
            **self._environment,
        }
        environment = {k: v for k, v in {**os.environ, **changed}.items() if v is not None}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", self._module),
                *(str(theirs.fileno()), str(self._memory), *self._arguments),
            ],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        theirs.close()
        self._ready = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Waits for the process to have loaded what it needs.

        Raises:
          WorkerError: it could not.
        """
        if self._ready:
            return
        try:
            if not self._connection.poll(_START_TIMEOUT):
                self.kill()
                raise WorkerError(f"{self.name}: no answer in {_START_TIMEOUT:.0f} s after start")
            state, content = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerError(f"{self.name}: {self.last_words()}") from None
        if state != "ready":
            raise WorkerError(content)
        self.facts = content
        self._ready = True

    def send(self, request: Any) -> None:
        """Sends a request to a process that is ready.

        Raises:
          Died: it is not there any more.
        """
        self._mark = self._log_size()
        try:
            self._connection.send(request)
        except OSError:
            raise Died(self.last_words()) from None

    def receive(self, timeout: float) -> tuple[str, Any]:
        """The reply to the request, ("done", result) or ("error", what).

        Raises:
          Died: it ended without one, or gave none in `timeout` seconds and was ended.
        """
        try:
            if not self._connection.poll(timeout):
                self.kill()
                raise Died(self.with_output(f"no answer in {timeout:.0f} s"))
            return self._connection.recv()
        except (EOFError, OSError):
            raise Died(self.last_words()) from None

    def kill(self) -> None:
        """Ends the process at once."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """How a process that closed its connection ended, with the end of its output."""
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.with_output("closed its connection without ending")
        how = f"ended with status {status}"
        if status < 0:
            try:
                how = f"killed by {signal.Signals(-status).name}"
            except ValueError:
                how = f"killed by signal {-status}"
        return self.with_output(how)

    def _log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def with_output(self, how: str) -> str:
        """`how`, and the last lines that the process has put out since the request."""
        begin = max(self._mark, self._log_size() - _LAST_BYTES)
        # Not seek: the process writes at the same offset.
        text = os.pread(self._log.fileno(), _LAST_BYTES, begin).decode(errors="replace")
        if any(sign in text for sign in _OUT_OF_MEMORY):
            how = f"{OUT_OF_MEMORY}{self._limit()}, {how}"
        lines = [line for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
        return ": ".join([how, " | ".join(lines[-_LAST_LINES:])]) if lines else how

    def _limit(self) -> str:
        return f" (limit {self._memory / 2**30:g} GiB)" if self._memory else ""

    def out_of_memory(self, how: str) -> str:
        """The words for a process that could say itself that its memory ran out."""
        return f"{OUT_OF_MEMORY}{self._limit()}: {how}"

    def close(self) -> None:
        """Closes the pipe, on which the process exits; SIGKILL after 5 s."""
        self._connection.close()
        deadline = time.monotonic() + 5
        while self.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.is_alive:
            self._process.kill()
            self._process.wait()
        self._log.close()


OUT_OF_MEMORY = "out of memory"


def serve(
    argv: Sequence[str],
    make: Callable[..., tuple[Any, Callable[[Any], Any]]],
    describe: Callable[[Exception], str] = lambda error: f"{type(error).__name__}: {error}",
) -> None:
    """The child's side: answers requests until the parent closes the connection, then exits.

    Args:
      argv: the program's arguments, as Process gives them.
      make: takes the arguments of Process, loads what is needed, and returns (facts, answer):
        `answer(request)` is the result, or raises what becomes the "error".
      describe: code and message of such an exception.
    """
    connection = Connection(int(argv[1]))
    if memory := int(argv[2]):
        with contextlib.suppress(OSError, ValueError):  # Above a hard limit that is there already.
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    try:
        facts, answer = make(*argv[3:])
    except Exception as error:  # Whatever it is, the parent has to say it.
        if not isinstance(error, (ImportError, WorkerError)):
            traceback.print_exc()
        connection.send(("unusable", str(error)))
        return
    connection.send(("ready", facts))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            break
        reply: tuple[str, Any]
        try:
            reply = ("done", answer(request))
        except Exception as error:  # An op may raise anything; it is the answer.
            reply = ("error", describe(error))
        connection.send(reply)
        del request, reply  # May be large, and the next request may be long in coming.
    sys.stdout.flush()
    os._exit(0)  # There is nothing to save, and TensorFlow takes a second to clean up.


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Calls work(0), ..., work(count - 1) in threads at once, which Python switches every 10 us:
    calls of kernels take microseconds, and must not wait for its lock."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
