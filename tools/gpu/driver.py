"""The CUDA driver and the library's C ABI through ctypes: all that a GPU test machine needs.

`Device` is a GPU; `Emulated` has the same methods and runs the kernels on the host
(cc/cuda/testing/emulator.cc), so that everything written on top of it can be tried without a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import pathlib
import subprocess
import tempfile
from typing import Any

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EMULATOR_SOURCES = ("cc/cuda/testing/emulator.cc", "cc/c_api/args.cc")
# The emulator's arithmetic is the device's: IEEE, nothing fused.
EMULATOR_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-I.")
# CUdevice_attribute values.
CLOCK_RATE, MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR = 13, 16, 38, 75, 76
# TFBN_CUDA_GROUPS_BY_DEVICE.
GROUPS_BY_DEVICE = -1

POINTERS = (
    "y_backprop",
    "x",
    "scale",
    "mean",
    "variance",
    "x_backprop",
    "scale_backprop",
    "offset_backprop",
)


class NoGpuError(RuntimeError):
    """There is no GPU to run on; one sentence."""


class GpuError(RuntimeError):
    """The GPU or the library refused; one sentence."""


class Args(ctypes.Structure):
    """tfbn_batch_norm_grad_args of cc/c_api/tf_bn_ops_c.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("outer", "channels", "inner")),
        *(
            (name, ctypes.c_int32)
            for name in ("dtype", "stat_dtype", "is_training", "variance_is_rstd")
        ),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in POINTERS),
    )


def build_emulator(folder: str | pathlib.Path) -> pathlib.Path:
    """Compiles the host emulator into `folder`; returns the library."""
    target = pathlib.Path(folder) / "libtf_bn_ops_emulator.so"
    command = ["g++", *EMULATOR_FLAGS, "-o", str(target), *EMULATOR_SOURCES]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return target


class Device:
    """GPU 0: memory, events, and the library's calls on the default stream."""

    emulated = False

    def __init__(self, library: str | pathlib.Path) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise NoGpuError("this machine has no NVIDIA driver (libcuda.so.1)") from None
        count = ctypes.c_int(0)
        if self._cuda.cuInit(0) != 0 or self._cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            raise NoGpuError("the NVIDIA driver of this machine does not start")
        if count.value == 0:
            raise NoGpuError("the NVIDIA driver of this machine sees no GPU")
        self._device = ctypes.c_int(0)
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        # The primary context is the one that the CUDA runtime inside the library uses, and
        # PyTorch.
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, 256, self._device)
        self.name = name.value.decode()
        self._library = ctypes.CDLL(str(library))
        self._workspace: dict[tuple[int, ...], tuple[int, int]] = {}
        self._owned: list[int] = []

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._cuda, function)(*arguments)
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
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        self._owned.append(pointer.value)
        return pointer.value

    def free_all(self) -> None:
        self.wait()
        for pointer in self._owned:
            self._call("cuMemFree_v2", ctypes.c_uint64(pointer))
        self._owned.clear()
        self._workspace.clear()

    def fill(self, address: int, byte: int, size: int) -> None:
        self._call(
            "cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size)
        )

    def write(self, address: int, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        if array.nbytes:
            self._call(
                "cuMemcpyHtoD_v2",
                ctypes.c_uint64(address),
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_size_t(array.nbytes),
            )

    def read(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self._call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_uint64(address),
                ctypes.c_size_t(array.nbytes),
            )

    def copy(self, target: int, source: int, size: int) -> None:
        """Device to device, on the default stream."""
        self._call(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size),
            None,
        )

    def wait(self) -> None:
        self._call("cuCtxSynchronize")

    def seconds(self, work: list[Any]) -> list[float]:
        """Runs the callables of `work` one after the other; what each took, by events."""
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

    def workspace(self, args: Args) -> tuple[int, int]:
        """(address, bytes) of what the call needs, reused for the same view and dtype."""
        key = (args.outer, args.channels, args.inner, args.dtype)
        if key not in self._workspace:
            size = ctypes.c_int64()
            error = ctypes.create_string_buffer(256)
            status = self._library.tfbn_cuda_workspace(
                *map(ctypes.c_int64, key[:3]),
                ctypes.c_int32(key[3]),
                ctypes.byref(size),
                error,
                ctypes.c_size_t(256),
            )
            if status != 0:
                raise GpuError(error.value.decode())
            address = self.allocate(size.value)
            self.fill(address, 0xFF, size.value)  # NaNs: every sum must be written first.
            self._workspace[key] = address, size.value
        return self._workspace[key]

    def run(self, args: Args, group_bytes: int = GROUPS_BY_DEVICE) -> None:
        """Enqueues one call; `group_bytes` as in tf_bn_ops_cuda_c.h."""
        address, size = self.workspace(args)
        error = ctypes.create_string_buffer(512)
        status = self._library.tfbn_cuda_batch_norm_grad(
            ctypes.byref(args),
            ctypes.c_void_p(address),
            ctypes.c_int64(size),
            None,
            ctypes.c_int64(group_bytes),
            error,
            ctypes.c_size_t(512),
        )
        if status != 0:
            raise GpuError(error.value.decode())


class Emulated:
    """The same on the host: addresses are those of host memory. It measures nothing."""

    emulated = True
    name = "host emulator"

    def __init__(self, library: str | pathlib.Path | None = None) -> None:
        if library is None:
            self._folder = tempfile.TemporaryDirectory()
            library = build_emulator(self._folder.name)
        self._library = ctypes.CDLL(str(library))
        self._library.tfbn_emulate_workspace.restype = ctypes.c_int64
        self._owned: list[np.ndarray] = []
        self.seed = 0  # Not 0: threads and blocks in a shuffled order.

    def attribute(self, number: int) -> int:
        return {MULTIPROCESSORS: 1}.get(number, 0)

    def free_bytes(self) -> int:
        return 1 << 28

    def allocate(self, size: int) -> int:
        store = np.empty(size + 256, np.uint8)
        self._owned.append(store)
        return -(-store.ctypes.data // 256) * 256

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

    def seconds(self, work: list[Any]) -> list[float]:
        for call in work:
            call()
        return [1.0] * len(work)

    def run(self, args: Args, group_bytes: int = 0) -> None:
        size = self._library.tfbn_emulate_workspace(
            *map(ctypes.c_int64, (args.outer, args.channels, args.inner)),
            ctypes.c_int32(args.dtype),
        )
        workspace = np.full(size // 8 + 1, np.nan)
        error = ctypes.create_string_buffer(512)
        status = self._library.tfbn_emulate(
            ctypes.byref(args),
            ctypes.c_void_p(workspace.ctypes.data),
            ctypes.c_uint32(self.seed),
            ctypes.c_int64(max(group_bytes, 0)),
            None,
            error,
            ctypes.c_size_t(512),
        )
        if status != 0:
            raise GpuError(error.value.decode())
