"""A simulated GPU: nvcc's PTX executed on the CPU by libcudasim.so, a CUDA runtime and driver on
GPU Ocelot's emulator, with checks of every access.

Beside what the host emulator (emulated_device.py) tests, that is what nvcc makes of the kernels:
registers, shared memory, barriers, vector loads, conversions, launch geometry.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import tempfile
from typing import Any

import cuda_device

# In lock-step, where races within a block are found; or warps one after the other, in random order,
# from barrier to barrier.
LOCK_STEP, RANDOM_ORDER = ORDERS = (0, 1)
_NAME = "libcudasim.so"
# Comparisons that are true where one number is NaN, and the opposite ones: the simulator finds them
# false.
_COMPLEMENTS = {"ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "neu": "eq", "equ": "ne"}
# Instructions that the simulator lacks, and the same by others, each on a line of its own: two
# numbers that are rounded at once, the first to the upper half; and the upper half of 64 bits.
_SUBSTITUTES = (
    (
        r"cvt\.rn\.(b?f16)x2\.f32\s+(%\w+),\s*(%\w+),\s*(%\w+)\s*;",
        "{ .reg .b16 one;\n.reg .b16 two;\ncvt.rn.\\1.f32 one, \\4;\ncvt.rn.\\1.f32 two, \\3;\n"
        "mov.b32 \\2, {one, two}; }",
    ),
    (
        r"bfi\.b64\s+(%\w+),\s*(%\w+),\s*(%\w+),\s*32,\s*32\s*;",
        "{ .reg .b64 one;\n.reg .b64 two;\nshl.b64 one, \\2, 32;\nand.b64 two, \\3, 4294967295;\n"
        "or.b64 \\1, one, two; }",
    ),
    *(
        (rf"setp\.{one}(\.f\d+)\s+(%\w+),([^;]*);", rf"setp.{other}\1 \2,\3;\nnot.pred \2, \2;")
        for one, other in _COMPLEMENTS.items()
    ),
)


def _simulated(ptx: str) -> str:
    """`ptx` in the simulator's instructions.

    It takes the shared memory of successive blocks for one: a barrier at the begin of each keeps it
    from finding races between them.
    """
    kernels = re.split(r"(?m)^(?=(?:\.visible )?\.entry)", ptx)
    begin = re.compile(r"\n\s*ld\.param")
    ptx = "".join(begin.sub(lambda m: "\nbar.sync 0;" + m[0], k, count=1) for k in kernels)
    for pattern, substitute in _SUBSTITUTES:
        ptx = re.sub(pattern, substitute, ptx)
    return ptx


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
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(_simulated(ptx.read_text()))
            file.flush()
            if self._simulator.sim_load(file.name.encode(), order) != 0:
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

    def run(self, args: Any) -> None:
        try:
            super().run(args)
        except cuda_device.GpuError as error:
            raise cuda_device.GpuError(f"{error}: {self._error()}") from None
        races = (ctypes.c_long * 3)()
        self._simulator.sim_races(races)
        if any(races):
            text = (self._simulator.sim_race_text() or b"").decode().strip()
            raise cuda_device.GpuError(f"races (shared, double writes, reads): {text}")
