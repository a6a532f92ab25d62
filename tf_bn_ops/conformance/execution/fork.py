"""A call in a process that is forked for it: what becomes of that one, the next one does not see.

To fork costs milliseconds where to load TensorFlow takes seconds. It works as long as the forking
process has not started TensorFlow's threads, of which a fork has none.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def call(answer: Callable[[], tuple[str, Any]]) -> tuple[str, Any]:
    """What `answer` returns in a process of its own, or ("crash", how that ended)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # It ends with its parent, which is killed if the call takes too long.
            if hasattr(libc := ctypes.CDLL(None), "prctl"):  # Linux has it.
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer()))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    if status == 0:
        found: tuple[str, Any] = pickle.loads(content)
        return found
    if os.WIFSIGNALED(status):
        return "crash", f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return "crash", f"ended with status {os.WEXITSTATUS(status)}"
