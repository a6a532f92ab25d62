"""The variables of this library, which name libraries to load and switch code on.

Whoever sets them runs code in the process, so one that must not trust its environment sees none.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Of the auxiliary vector (getauxval): the kernel set it where the program that it started had more
# rights than its caller, also by file capabilities, of which no id tells.
_AT_SECURE = 23


def is_trusted() -> bool:
    """False in Python's isolated runs (-I, -E), and in processes with the rights of another user
    (setuid, setgid, capabilities), in which the dynamic loader ignores LD_LIBRARY_PATH for the
    same reason."""
    if sys.flags.ignore_environment:
        return False
    if (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return False
    return not _auxiliary(_AT_SECURE)


def _auxiliary(kind: int) -> int:
    """What the kernel told the program about itself; 0 where the C library cannot say."""
    getauxval = getattr(ctypes.CDLL(None), "getauxval", None)
    if getauxval is None:
        return 0
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(getauxval(kind))


def variable(name: str) -> str:
    """The value of a variable, "" where it is not set or not to be trusted."""
    value = os.environ.get(name, "")
    return value if value and is_trusted() else ""
