"""What nvcc's machine code says of the GPU kernels (tools/gpu/sass.py): loads in flight, spills.

Promised: every GPU kernel keeps at least four loads in flight and spills no register, where nvcc
and nvdisasm are.

The counting is tested on disassembly with known answers; the kernels, where nvcc and nvdisasm are.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu"
if not TOOLS.exists():
    pytest.skip("needs the source tree", allow_module_level=True)
sys.path.insert(0, str(TOOLS))
import sass  # noqa: E402

NVCC = os.environ.get("NVCC", "nvcc")


def disassembly(body: list[str]) -> str:
    """A function: a loop of these instructions behind one that is none of its own."""
    lines = ['\t.section\t.text._Z1f,"ax",@progbits', "        /*0000*/  MOV R1, c[0x0][0x28] ;"]
    lines.append(".L_x_1:")
    for n, instruction in enumerate(body, 1):
        lines.append(f"        /*{16 * n:04x}*/  {instruction} ;")
    lines.append(f"        /*{16 * (len(body) + 1):04x}*/  @P0 BRA `(.L_x_1) ;")
    return "\n".join(lines)


def loads(n: int) -> list[str]:
    return [f"@!P1 LDG.E.128 R{20 + 4 * i}, desc[UR4][R2.64+0x{16 * i:x}]" for i in range(n)]


@pytest.mark.parametrize(
    ("body", "batches"),
    [
        ([*loads(1), "FADD R5, R23, R6", "LDG.E.128 R24, [R2]", "FADD R5, R24, R6"], [1, 1]),
        ([*loads(4), "FADD R5, R20, R6", "FADD R5, R24, R6"], [4]),
        # The second half of the registers is used before the last two loads.
        ([*loads(2), "FADD R5, R27, R21", *loads(4)[2:], "FADD R5, R28, R6"], [2, 2]),
        # Elements one by one are no vectors.
        ([*loads(3), "LDG.E.U16 R60, [R2]"], [3]),
    ],
)
def test_what_is_counted(body, batches):
    ((name, code, labels),) = sass.functions(disassembly(body))
    assert name == "_Z1f"
    (loop,) = sass.loops(code, labels)
    assert len(loop) == len(body) + 1, "the loop begins at its label"
    assert sass.loads_in_flight(loop) == batches


def test_few_loads_and_spills_are_problems():
    kernel = sass.Kernel("90", "sums", "F", "half", "channels-last", 4, 128, 0)
    assert sass.problems([kernel]) == []
    for field, value, words in (("loads", 3, "3 loads in flight"), ("spilled", 8, "8 bytes")):
        (sentence,) = sass.problems([sass.dataclasses.replace(kernel, **{field: value})])
        assert words in sentence


FIRST_AND_LAST = sass.ARCHS[:: len(sass.ARCHS) - 1]


@pytest.mark.parametrize(
    "arch",
    [
        pytest.param(
            arch, marks=pytest.mark.long if arch in FIRST_AND_LAST else pytest.mark.release
        )
        for arch in sass.ARCHS
    ],
)
def test_kernels_keep_four_loads_in_flight_without_spills(arch, repo_root):
    """Every kernel; docs/gpu.md says what follows from it. Compiled where make gpu-sass compiles
    them, once for both."""
    if shutil.which(NVCC) is None:
        pytest.skip(f"there is no {NVCC}")
    try:
        kernels = sass.count([arch], repo_root / "build" / "sass", NVCC)
    except sass.Skipped as reason:
        pytest.skip(str(reason))
    assert len(kernels) > 100
    assert not sass.problems(kernels)
