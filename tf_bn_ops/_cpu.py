"""What the core library says of the CPU backend: implementations (ISA builds), cache size."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from tf_bn_ops import _loader

# Forces one of them; read by cc/cpu/implementation.cc.
ISA_VARIABLE = "TF_BN_OPS_CPU_ISA"


class Implementation(NamedTuple):
    """One implementation of the CPU backend.

    Attributes:
      name: as TF_BN_OPS_CPU_ISA takes it: "avx2", ..., "reference".
      supported: whether this processor can run it.
    """

    name: str
    supported: bool


def implementations() -> list[Implementation]:
    """All that were built, fastest first; the last is the naive reference.

    Raises:
      LibraryError: (an ImportError) if there is no core library.
      OSError: if the dynamic loader refuses it.
    """
    library = ctypes.CDLL(_loader.core_library_path())
    library.tfbn_cpu_implementation.restype = ctypes.c_char_p
    supported = ctypes.c_int(0)
    found: list[Implementation] = []
    while name := library.tfbn_cpu_implementation(len(found), ctypes.byref(supported)):
        found.append(Implementation(name.decode(), bool(supported.value)))
    return found


def fastest() -> str | None:
    """The one that the ops use on this processor unless ISA_VARIABLE names another."""
    return next((name for name, supported in implementations() if supported), None)


def last_level_cache() -> int:
    """Bytes that the kernels count on of the largest cache (cc/cpu/cache.h).

    Raises:
      LibraryError, OSError: as `implementations`.
    """
    library = ctypes.CDLL(_loader.core_library_path())
    library.tfbn_last_level_cache_bytes.restype = ctypes.c_int64
    return int(library.tfbn_last_level_cache_bytes())
