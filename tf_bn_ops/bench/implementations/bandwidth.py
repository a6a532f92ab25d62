"""Reads and writes alone (cc/bench/memory_bandwidth.cc): the limit of all implementations."""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_bn_ops import _loader
from tf_bn_ops.bench import data
from tf_bn_ops.bench.bench_rows import Row
from tf_bn_ops.bench.implementations.base import Call, Outputs, Unavailable

MEMORY_BANDWIDTH_LIBRARY = "libtf_bn_ops_memory_bandwidth.so"


class MemoryBandwidth:
    """Passes over tensors of the size of a row's."""

    def __init__(self, threads: int):
        path = pathlib.Path(_loader.core_library_path()).with_name(MEMORY_BANDWIDTH_LIBRARY)
        if not path.is_file():
            raise Unavailable(f"{path.name} is missing, which `make bench` builds")
        self._library = ctypes.CDLL(str(path))
        pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        self._library.tfbn_bandwidth_mix.argtypes = [*[pointer] * 3, size, number, number]
        self._library.tfbn_bandwidth_copy.argtypes = [*[pointer] * 2, size, number, number]
        for write in (self._library.tfbn_bandwidth_mix, self._library.tfbn_bandwidth_copy):
            write.restype = None
        self._library.tfbn_bandwidth_sum.argtypes = [*[pointer] * 2, size, number]
        self._library.tfbn_bandwidth_sum.restype = ctypes.c_uint64
        self._threads = threads

    def facts(self) -> dict[str, str]:
        return {}

    def load(self, *tensors: np.ndarray) -> None:
        self._in = tensors[:2]  # What a third one would be read in is a pass over these again.
        self._out = data.aligned_empty(tensors[0].nbytes)
        self._out[:] = 0  # Maps its pages.

    def variants(self) -> dict[str, Call]:
        """Passes over memory -> a call that makes them; writes with either store policy."""
        a, b, c = (array.ctypes.data for array in (*self._in, self._out))
        size, threads, library = self._in[0].nbytes, self._threads, self._library
        half = size // 2  # One tensor is read as two halves.
        return {
            "2r1w non_temporal": lambda: library.tfbn_bandwidth_mix(a, b, c, size, 1, threads),
            "2r1w temporal": lambda: library.tfbn_bandwidth_mix(a, b, c, size, 0, threads),
            "2r": lambda: library.tfbn_bandwidth_sum(a, b, size, threads),
            "1r1w non_temporal": lambda: library.tfbn_bandwidth_copy(b, c, size, 1, threads),
            "1r1w temporal": lambda: library.tfbn_bandwidth_copy(b, c, size, 0, threads),
            "1r": lambda: library.tfbn_bandwidth_sum(b, b + half, half, threads),
        }

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        raise NotImplementedError

    def outputs(self, result: Any) -> Outputs:
        raise NotImplementedError
