"""A GPU through the CUDA driver API and the library's C ABI, by ctypes: needs NumPy alone."""

from __future__ import annotations

import ctypes
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import repository  # noqa: F401

# CUdevice_attribute.
L2_BYTES = 38
# Functions of the driver that take more than pointers to results.
_ADDRESS, _SIZE = ctypes.c_uint64, ctypes.c_size_t
_ARGUMENTS = {
    "cuMemAlloc_v2": (ctypes.c_void_p, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemsetD8_v2": (_ADDRESS, ctypes.c_ubyte, _SIZE),
    "cuMemcpyHtoD_v2": (_ADDRESS, ctypes.c_void_p, _SIZE),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, _ADDRESS, _SIZE),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, ctypes.c_void_p),
}


class NoGpuError(RuntimeError):
    """There is no GPU; the message says why."""


class GpuError(RuntimeError):
    """A call of the driver or of the library failed; the message says which and why."""


class CudaDevice:
    """GPU 0: memory, events, and the library's calls on the default CUDA stream."""

    emulated = False

    def __init__(self, library: str | pathlib.Path) -> None:
        self._cuda = self._driver()
        count = ctypes.c_int(0)
        if self._cuda.cuInit(0) != 0 or self._cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            raise NoGpuError("the NVIDIA driver of this machine does not start")
        if count.value == 0:
            raise NoGpuError("the NVIDIA driver of this machine sees no GPU")
        self._device = ctypes.c_int(0)
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        # The CUDA runtime inside the library uses the primary context, as PyTorch does.
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, 256, self._device)
        self.name = name.value.decode()
        self._library = ctypes.CDLL(str(library))
        self._workspace: dict[tuple[int, ...], tuple[int, int]] = {}
        self._owned: list[int] = []

    def _driver(self) -> ctypes.CDLL:
        try:
            return ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise NoGpuError("this machine has no NVIDIA driver (libcuda.so.1)") from None

    def declare(self, address: int, size: int, role: str, writable: bool) -> None:
        """An array of the next call; for devices that check accesses."""

    def _call(self, function: str, *arguments: Any) -> None:
        entry = getattr(self._cuda, function)
        entry.argtypes = _ARGUMENTS.get(function)
        status = entry(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise GpuError(f"{function}: {(text.value or b'unknown error').decode()}")

    def attribute(self, number: int) -> int:
        value = ctypes.c_int(0)
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Address of `size` bytes, aligned to 256, kept until free_all."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), max(size, 1))
        self._owned.append(pointer.value)
        return pointer.value

    def free_all(self) -> None:
        self.wait()
        self._free()

    def _free(self) -> None:
        for pointer in self._owned:
            self._call("cuMemFree_v2", pointer)
        self._owned.clear()
        self._workspace.clear()

    def fill(self, address: int, byte: int, size: int) -> None:
        self._call("cuMemsetD8_v2", address, byte, size)

    def write(self, address: int, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        if array.nbytes:
            self._call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self._call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        """Device to device, on the default CUDA stream."""
        self._call("cuMemcpyDtoDAsync_v2", target, source, size, None)

    def wait(self) -> None:
        self._call("cuCtxSynchronize")

    def seconds(self, work: Sequence[Callable[[], None]]) -> list[float]:
        """Calls `work` in order; the time of each between CUDA events."""
        events = []
        for _ in range(len(work) + 1):
            event = ctypes.c_void_p()
            self._call("cuEventCreate", ctypes.byref(event), 0)
            events.append(event)
        self._call("cuEventRecord", events[0], None)
        for call, event in zip(work, events[1:], strict=True):
            call()
            self._call("cuEventRecord", event, None)
        self._call("cuEventSynchronize", events[-1])
        result = []
        for start, end in itertools.pairwise(events):
            milliseconds = ctypes.c_float()
            self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
            result.append(milliseconds.value / 1e3)
        for event in events:
            self._call("cuEventDestroy_v2", event)
        return result

    def _ask(self, function: str, *arguments: Any) -> None:
        """Calls a function of the library, whose last arguments are for its sentence."""
        error = ctypes.create_string_buffer(512)
        status = getattr(self._library, function)(*arguments, error, ctypes.c_size_t(len(error)))
        if status != 0:
            raise GpuError(error.value.decode())

    def workspace(self, args: Any) -> tuple[int, int]:
        """(address, bytes) of the workspace, reused for the same view and dtype."""
        key = (args.formula, args.outer, args.channels, args.inner, args.dtype)
        if key not in self._workspace:
            size = ctypes.c_int64()
            self._ask("tfbn_gpu_workspace", ctypes.byref(args), ctypes.byref(size))
            address = self.allocate(size.value)
            # NaNs, which spread from partial sums that are read but were not written.
            self.fill(address, 0xFF, size.value)
            self._workspace[key] = address, size.value
        return self._workspace[key]

    def run(self, args: Any) -> None:
        """Enqueues one call."""
        address, size = self.workspace(args)
        workspace = ctypes.c_void_p(address), ctypes.c_int64(size)
        self._ask("tfbn_gpu_run", ctypes.byref(args), *workspace, None)

    def gather_stats(self, args: Any) -> None:
        """Enqueues the combination of statistics."""
        self._ask("tfbn_gpu_gather_stats", ctypes.byref(args), None)
