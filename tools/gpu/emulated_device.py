"""The host emulator of the CUDA kernels, with the methods of cuda_device.CudaDevice.

tools/gpu/emulator.cc executes the device code thread by thread, so that all that is written
for a GPU can be tried without one. It measures nothing. A library for each call of the C ABI is
compiled once, when it is first needed, into build/emulator.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import repository

from tf_bn_ops.harness import c_abi

_SOURCES = ("tools/gpu/emulator.cc", "cc/c_api/read_call.cc")
# The arithmetic of the device: IEEE, without fused multiply-add. Functions that kernels share are
# compiled once.
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-DTFBN_INLINE=inline",
    "-shared",
    "-fPIC",
    "-I.",
)

_VIEW = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
_CONFIG = ("grid", "threads_x", "threads_y", "threads_z", "fold", "strides", "items", "splits")


def _digest() -> str:
    """Of all that the emulator is compiled from, and how."""
    digest = hashlib.sha256(repr((_SOURCES, _FLAGS)).encode())
    for folder in ("core", "gpu", "c_api"):
        for file in sorted(repository.ROOT.glob(f"cc/{folder}/**/*.*")):
            digest.update(str(file.relative_to(repository.ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Where the tree cannot be written to."""
    return tempfile.TemporaryDirectory()


def _folder() -> pathlib.Path:
    folder = repository.ROOT / "build" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    return folder if is_writable else pathlib.Path(_scratch().name)


def _compile(formula: str) -> pathlib.Path:
    """The library of a formula, of all that is none without a name, in build/; compiled (5 to 20 s)
    where there is none of these sources, by one process at a time."""
    folder = _folder()
    name = f"libtf_bn_ops_emulator-{formula or 'common'}"
    target = folder / f"{name}-{_digest()[:16]}.so"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            new = target.with_suffix(".new")
            defined = [f"-DTFBN_EMULATED_FORMULA={formula}"] if formula else []
            command = ["g++", *_FLAGS, *defined, "-o", str(new), *_SOURCES]
            subprocess.run(command, cwd=repository.ROOT, check=True)
            for other in folder.glob(f"{name}-*.so"):
                other.unlink()
            new.replace(target)
    return target


@functools.cache
def _common() -> ctypes.CDLL:
    """What is no call of a formula, with argument types declared."""
    lib = ctypes.CDLL(str(_compile("")))
    lib.tfbn_emulate_workspace.restype = ctypes.c_int64
    lib.tfbn_emulate_workspace.argtypes = [ctypes.POINTER(c_abi.Call)]
    lib.tfbn_emulate_formula.restype = ctypes.c_char_p
    lib.tfbn_emulate_formula.argtypes = [ctypes.POINTER(c_abi.Call)]
    lib.tfbn_emulate_launch_config.argtypes = [*_VIEW, ctypes.POINTER(ctypes.c_int64)]
    lib.tfbn_emulate_gather_stats.argtypes = [
        ctypes.POINTER(c_abi.GatherStats),
        ctypes.c_uint32,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    return lib


@functools.cache
def _function(formula: str) -> Callable[..., int]:
    """What executes the calls of a formula."""
    function = ctypes.CDLL(str(_compile(formula))).tfbn_emulate_run
    function.argtypes = [
        ctypes.POINTER(c_abi.Call),
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_int32),
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    return function


class EmulatedDevice:
    """Device memory is host memory, and addresses are its addresses."""

    emulated = True
    name = "host emulator"

    def __init__(self) -> None:
        self._library = _common()
        self._owned: list[np.ndarray] = []
        self.launches = 0  # Kernels of the last call.

    def attribute(self, number: int) -> int:
        return 0

    def free_bytes(self) -> int:
        return 1 << 28

    def allocate(self, size: int) -> int:
        """Address of `size` bytes, aligned to 256, kept until free_all."""
        store = np.empty(size + 256, np.uint8)
        self._owned.append(store)
        return -(-store.ctypes.data // 256) * 256

    def declare(self, address: int, size: int, role: str, writable: bool) -> None:
        pass

    def free_all(self) -> None:
        self._owned.clear()

    def fill(self, address: int, byte: int, size: int) -> None:
        ctypes.memset(address, byte, size)

    def write(self, address: int, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: np.ndarray) -> None:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def wait(self) -> None:
        pass

    def seconds(self, work: Sequence[Callable[[], None]]) -> list[float]:
        for call in work:
            call()
        return [1.0] * len(work)

    def run(self, args: Any, seed: int = 0) -> None:
        """Executes one call. `seed` other than 0 shuffles threads and blocks."""
        size = self._library.tfbn_emulate_workspace(args)
        workspace = np.full(size // 8 + 1, np.nan)
        launches = ctypes.c_int32()
        error = ctypes.create_string_buffer(512)
        formula = self._library.tfbn_emulate_formula(args).decode()
        status = _function(formula)(args, workspace.ctypes.data, seed, launches, error, len(error))
        if status != 0:
            raise RuntimeError(error.value.decode())
        self.launches = launches.value

    def gather_stats(self, args: c_abi.GatherStats, seed: int = 0) -> None:
        """Combines statistics."""
        error = ctypes.create_string_buffer(512)
        if self._library.tfbn_emulate_gather_stats(args, seed, error, len(error)) != 0:
            raise RuntimeError(error.value.decode())

    def workspace_bytes(self, view: tuple[int, int, int], dtype: str) -> int:
        call = c_abi.Call(c_abi.View(*view), formula=1, dtype=c_abi.DTYPE_CODES[dtype])
        return self._library.tfbn_emulate_workspace(call)

    def launch_config(self, view: tuple[int, int, int], dtype: str) -> dict[str, int]:
        """The launch configuration of the reduction, see cc/gpu/launch_config.h."""
        values = (ctypes.c_int64 * len(_CONFIG))()
        self._library.tfbn_emulate_launch_config(*view, c_abi.DTYPE_CODES[dtype], values)
        return dict(zip(_CONFIG, values, strict=True))
