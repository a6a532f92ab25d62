"""What nvcc's machine code says of the GPU kernels, without a GPU: loads in flight, spills.

Promised: every GPU kernel keeps at least four loads in flight and spills no register, where nvcc
and nvdisasm are.

Each source of cc/gpu/kernels is compiled for an architecture. ptxas says what is spilled. The
disassembly, where nvdisasm is ($NVDISASM, the CUDA toolkit's, or Triton's wheel's), has the
16-byte loads that a thread has in flight in its loop over items. How these are counted is tested on
disassembly with known answers.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest
from build_helpers import run

NVCC = os.environ.get("NVCC", "nvcc")
ARCHS = ("75", "80", "86", "89", "90")
# kMinVectorsAhead of cc/gpu/device_pass.h.
LEAST_LOADS = 4
# Of 3 element types and 2 layouts (the type of statistics is an argument) the 11 formulas have 7
# passes of sums, 11 that store, and 7 with fixed statistics; of float64 those that ops call.
KERNELS = {
    "PassKernel": 3 * 2 * (7 + 11 + 7) + 2 * (5 + 7 + 1), "FinishKernel": 2 * 11,
    "GatherKernel": 1,
}  # fmt: skip


class Instruction(NamedTuple):
    """One line of the disassembly."""

    address: int
    name: str
    operands: str
    label: str | None  # Where it jumps to.

    @property
    def loads_vector(self) -> bool:
        return self.name.startswith("LDG") and ".128" in self.name

    def registers(self) -> list[int]:
        """The general registers that it names, of wide operands the first; a target first."""
        return [int(n) for n in re.findall(r"\bR(\d+)", self.operands)]


_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?);")
_LABEL = re.compile(r"^(\.L_\w+):")


def functions(disassembly: str) -> Iterator[tuple[str, list[Instruction], dict[str, int]]]:
    """(mangled name, instructions, label -> address) of each function."""
    for section in disassembly.split("\t.section\t.text.")[1:]:
        name, _, lines = section.partition(",")
        code: list[Instruction] = []
        labels: dict[str, int] = {}
        waiting: list[str] = []
        for line in lines.splitlines():
            if label := _LABEL.match(line):
                waiting.append(label[1])
            elif match := _CODE.match(line):
                address = int(match[1], 16)
                labels.update(dict.fromkeys(waiting, address))
                waiting = []
                jump = re.search(r"\((\.L_\w+)\)", match[3]) if match[2].startswith("BRA") else None
                code.append(Instruction(address, match[2], match[3], jump[1] if jump else None))
        yield name, code, labels


def loops(code: Sequence[Instruction], labels: Mapping[str, int]) -> list[list[Instruction]]:
    """The loops, without the loops in them: from the target of a jump back to the jump."""
    spans = set()
    for jump in code:
        target = labels.get(jump.label) if jump.label else None
        if target is not None and target < jump.address:
            spans.add((target, jump.address))

    def inside(span: tuple[int, int], address: int) -> bool:
        return span[0] <= address <= span[1]

    found = []
    for span in sorted(spans):
        inner = [s for s in spans if s != span and inside(span, s[0]) and inside(span, s[1])]
        body = [i for i in code if inside(span, i.address)]
        found.append([i for i in body if not any(inside(s, i.address) for s in inner)])
    return [body for body in found if body]


def loads_in_flight(body: Iterable[Instruction]) -> list[int]:
    """For each batch of vectors: how many are loaded before one of them is used."""
    pending: list[range] = []  # The registers of each load.
    batches = []
    loading = False
    for instruction in body:
        registers = instruction.registers()
        if instruction.loads_vector:
            pending.append(range(registers[0], registers[0] + 4))
            loading = True
        elif any(r in vector for vector in pending for r in registers):
            if loading:
                batches.append(len(pending))
            loading = False
            pending = [v for v in pending if not any(r in v for r in registers)]
    return [*batches, *([len(pending)] if loading else [])]


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
    ((name, code, labels),) = functions(disassembly(body))
    assert name == "_Z1f"
    (loop,) = loops(code, labels)
    assert len(loop) == len(body) + 1, "the loop begins at its label"
    assert loads_in_flight(loop) == batches


def find_nvdisasm() -> str | None:
    if named := os.environ.get("NVDISASM") or shutil.which("nvdisasm"):
        return named
    spec = importlib.util.find_spec("triton")
    folders = (spec.submodule_search_locations or []) if spec else []
    paths = (pathlib.Path(folder, "backends", "nvidia", "bin", "nvdisasm") for folder in folders)
    return next((str(path) for path in paths if path.exists()), None)


def compiled(arch: str, repo_root: pathlib.Path, folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Of each source of kernels its cubin, and what ptxas says of the kernels in it."""
    listed = run(["tools/list_flags.sh", "flags", "mk/nvccflags.txt"], repo_root).stdout.split()
    flags = [flag for flag in listed if not flag.startswith("--threads")]
    for source in sorted(repo_root.glob("cc/gpu/kernels/*.cu")):
        cubin = str(folder / f"{source.stem}.cubin")
        command = [NVCC, *flags, "-I.", "-cubin", f"-arch=sm_{arch}", "-Xptxas=-v", "-o", cubin]
        told = run([*command, source], repo_root)
        assert told.returncode == 0, told.stderr
        yield cubin, told.stderr


def assert_none_spills(arch: str, report: str) -> None:
    """All kernels are in what ptxas says, and none spills registers."""
    found = re.findall(
        r"Compiling entry function '(\S+)' for 'sm_(\d+)'\n.*\n"
        r"\s+\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        report,
    )
    for name, of, stores, loads in found:
        # Two blocks of 256 threads leave 128 registers.
        is_tight = arch == "75" and "GradSmoothFormulaENS_8Bfloat16ELb1ELi2ELb0" in name
        assert (of, int(stores) + int(loads) <= 36 * is_tight) == (arch, True), name
    assert {kind: sum(kind in name for name, *_ in found) for kind in KERNELS} == KERNELS


@pytest.mark.long
@pytest.mark.parametrize(
    "arch",
    [ARCHS[0], *(pytest.param(arch, marks=pytest.mark.release) for arch in ARCHS[1:])],
)
def test_kernels_keep_four_loads_in_flight_without_spills(arch, repo_root, tmp_path):
    """Every kernel; docs/gpu.md says what follows from it. It takes a processor four minutes."""
    if shutil.which(NVCC) is None:
        pytest.skip(f"there is no {NVCC}")
    nvdisasm, reports = find_nvdisasm(), ""
    if nvdisasm is None and arch == ARCHS[0]:
        pytest.skip("there is no nvdisasm; test_gpu_build.py has the spills")
    for cubin, report in compiled(arch, repo_root, tmp_path):
        reports += report
        told = nvdisasm and subprocess.check_output([nvdisasm, "-c", cubin], text=True)
        for name, code, labels in functions(told or ""):
            # The two ways are the two batches with most loads, of one loop or of two.
            batches = sorted(n for body in loops(code, labels) for n in loads_in_flight(body))
            assert "PassKernel" not in name or batches[-2] >= LEAST_LOADS, (name, batches)
    assert_none_spills(arch, reports)
    if nvdisasm is None:
        pytest.skip("there is no nvdisasm; nothing is spilled")
