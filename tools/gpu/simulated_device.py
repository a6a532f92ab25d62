"""A simulated GPU: nvcc's PTX executed on the CPU by libcudasim.so, a CUDA runtime and driver on
GPU Ocelot's emulator, with checks of every access.

Beside what the host emulator (emulated_device.py) tests, that is what nvcc makes of the kernels:
registers, shared memory, barriers, vector loads, conversions, launch geometry.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any

import cuda_device

# In lock-step, where races within a block are found; or warps one after the other, in random order,
# from barrier to barrier.
LOCK_STEP, RANDOM_ORDER = ORDERS = (0, 1)
_NAME = "libcudasim.so"


class SimulatedDevice(cuda_device.CudaDevice):
    """The methods of CudaDevice. Accesses outside declared arrays, misaligned ones and divergent
    barriers are errors; so are races, which `run` raises as GpuError."""

    # Of the size of its tensors a test takes what an emulator allows.
    emulated = True

    def __init__(
        self, folder: pathlib.Path, library: pathlib.Path, ptx: pathlib.Path, order: int
    ) -> None:
        """`library` is linked with the libcudasim.so in `folder`; `ptx` has its kernels."""
        os.environ.setdefault("OCELOT_CONFIG", str(folder / "configure.ocelot"))
        self._simulator = ctypes.CDLL(str(folder / _NAME), mode=ctypes.RTLD_GLOBAL)
        self._simulator.sim_add_range.argtypes = [
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int)
        ]
        for text in ("sim_error", "sim_race_text"):
            getattr(self._simulator, text).restype = ctypes.c_char_p
        super().__init__(library)
        self.load(ptx, order)

    def _driver(self) -> ctypes.CDLL:
        return self._simulator

    def load(self, ptx: pathlib.Path, order: int) -> None:
        """Takes the kernels from `ptx` from now on."""
        if self._simulator.sim_load(str(ptx).encode(), order) != 0:
            raise cuda_device.GpuError(f"{ptx}: {self._error()}")
        self._simulator.sim_options(1, 1, 32, 1)

    def _error(self) -> str:
        return (self._simulator.sim_error() or b"").decode().strip()

    def declare(self, address: int, size: int, role: str, writable: bool) -> None:
        self._simulator.sim_add_range(address, size, role.encode(), int(writable))

    def free_all(self) -> None:
        self._free()  # After an error too; every call has ended when it returns.
        self._simulator.sim_clear_ranges()

    def workspace(self, args: Any) -> tuple[int, int]:
        address, size = super().workspace(args)
        self.declare(address, size, "workspace", True)
        return address, size

    def run(self, args: Any, group_bytes: int = cuda_device.GROUPS_BY_DEVICE) -> None:
        try:
            super().run(args, group_bytes)
        except cuda_device.GpuError as error:
            raise cuda_device.GpuError(f"{error}: {self._error()}") from None
        races = (ctypes.c_long * 3)()
        self._simulator.sim_races(races)
        if any(races):
            text = (self._simulator.sim_race_text() or b"").decode().strip()
            raise cuda_device.GpuError(f"races (shared, double writes, reads): {text}")
