"""Environment variables of this library, which a process that must not trust them does not see.

They name libraries to load and switch code on: whoever sets them runs code in the process.
"""

from __future__ import annotations

import os
import sys


def is_trusted() -> bool:
    """False in Python's isolated runs (-I, -E), and in processes with the rights of another user
    (setuid, setgid), in which the dynamic loader ignores LD_LIBRARY_PATH for the same reason."""
    if sys.flags.ignore_environment:
        return False
    return (os.getuid(), os.getgid()) == (os.geteuid(), os.getegid())


def variable(name: str) -> str:
    """The value of a variable, "" where it is not set or not to be trusted."""
    return os.environ.get(name, "") if is_trusted() else ""
