"""Processes under the emulator by harness/processes.py, whose other end runs on this machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import emulated
import pytest

from tf_bn_ops.harness import processes

# What the core's own tests share.
sys.path.insert(0, str(emulated.ROOT / "tests" / "core"))


@pytest.fixture(scope="session")
def emulation() -> Callable[[], AbstractContextManager[None]]:
    """A context in which harness/processes.py starts the Python of aarch64, and waits longer."""

    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(emulated.PYTHON))
            patch.setattr(processes, "_START_TIMEOUT", float(emulated.SECONDS))
            yield

    return patched
