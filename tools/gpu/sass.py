"""Counts what nvcc's machine code says of the GPU kernels, without a GPU: make gpu-sass.

Compiles cc/gpu/kernels for some architectures and reads the disassembly: the 16-byte loads that a
thread has in flight in its loop over items, registers, spills. Prints a line per kernel, fails
where a kernel has fewer loads in flight than hide the latency of DRAM or spills registers, and with
--table prints the range over formulas and architectures instead.

nvdisasm is in the CUDA toolkit and in Triton's wheel (pip download triton); NVDISASM names it.
Without it, or without nvcc, the command prints why it is skipped and succeeds.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from repository import ROOT  # First: what follows is found by it.

# isort: split
import tool_flags

ARCHS = ("75", "80", "86", "89", "90")
# kMinVectorsAhead of cc/gpu/device_pass.h.
LEAST_LOADS = 4
_TYPES = {"f": "float32", "d": "float64", "7Float16": "half", "8Bfloat16": "bfloat16"}


class Skipped(Exception):
    """Why nothing was counted, in one sentence."""


@dataclasses.dataclass(frozen=True)
class Instruction:
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


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A pass kernel of one architecture.

    Attributes:
      kind: "sums", "stores", "sums and stores".
      loads: the fewest 16-byte loads in flight of the two ways through its loop, with whole vectors
        and with masks.
    """

    arch: str
    kind: str
    formula: str
    dtype: str
    layout: str
    loads: int
    registers: int
    spilled: int


def find_nvdisasm() -> str:
    """The path of nvdisasm: $NVDISASM, on the PATH, or in an installed Triton."""
    named = os.environ.get("NVDISASM") or shutil.which("nvdisasm")
    if named:
        if shutil.which(named) is None:
            raise Skipped(f"NVDISASM={named} is no program")
        return named
    spec = importlib.util.find_spec("triton")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = pathlib.Path(folder, "backends", "nvidia", "bin", "nvdisasm")
        if path.exists():
            return str(path)
    raise Skipped("there is no nvdisasm (it is in the CUDA toolkit and in Triton's wheel)")


def _flags() -> list[str]:
    command = [str(ROOT / "tools" / "list_flags.sh"), "flags", str(ROOT / "mk" / "nvccflags.txt")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [flag for flag in listed if not flag.startswith("--threads")]


def compile_cubin(nvcc: str, source: pathlib.Path, arch: str, folder: pathlib.Path) -> pathlib.Path:
    """A cubin of one source in `folder`, with what ptxas says of it beside; kept if newer than all
    sources."""
    target = folder / f"{source.stem}.sm_{arch}.cubin"
    newest = max(p.stat().st_mtime for d in ("core", "gpu") for p in ROOT.glob(f"cc/{d}/**/*.*"))
    if not target.exists() or target.stat().st_mtime < newest:
        command = [nvcc, *_flags(), "-I.", "-cubin", f"-arch=sm_{arch}", "-Xptxas=-v"]
        result = subprocess.run(
            [*command, "-o", str(target), str(source)], cwd=ROOT, capture_output=True, text=True
        )
        if result.returncode != 0:
            raise RuntimeError(f"{source.name}, sm_{arch}: {result.stderr.strip()}")
        target.with_suffix(".txt").write_text(result.stderr)
    return target


_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?);")
_LABEL = re.compile(r"^(\.L_\w+):")


def functions(disassembly: str) -> Iterator[tuple[str, list[Instruction], dict[str, int]]]:
    """(mangled name, instructions, label -> address) of each function."""
    name = ""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in disassembly.splitlines():
        if line.startswith("\t.section\t.text."):
            if code:
                yield name, code, labels
            name, code, labels, waiting = line.split(".text.")[1].split(",")[0], [], {}, []
        elif label := _LABEL.match(line):
            waiting.append(label[1])
        elif match := _CODE.match(line):
            address = int(match[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting = []
            jump = re.search(r"\((\.L_\w+)\)", match[3]) if match[2].startswith("BRA") else None
            code.append(Instruction(address, match[2], match[3], jump[1] if jump else None))
    if code:
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


def _template(name: str) -> tuple[str, str, str, str] | None:
    """Kind, formula, element type and layout of a mangled kernel name."""
    match = re.search(r"\d+PassKernelI\w*?PassOfINS_(?:\d+)(\w+?)FormulaE", name)
    if match is None:
        return None
    rest = name[match.end() :]
    dtype = next(
        text for code, text in _TYPES.items() if re.match(rf"(NS_{code}E|{code}L|{code}E)", rest)
    )
    flags = re.search(r"Lb([01])ELi(\d+)ELb([01])E", rest)
    assert flags is not None
    kind = ["sums"] * (flags[2] != "0") + ["stores"] * (flags[3] == "1")
    return " and ".join(kind), match[1], dtype, f"channels-{'last' if flags[1] == '1' else 'first'}"


def _resources(report: str) -> dict[str, tuple[int, int]]:
    """Mangled name -> registers, spilled bytes, of what ptxas says."""
    pattern = (
        r"Compiling entry function '(\S+)'.*?\n.*?\n\s+\d+ bytes stack frame, (\d+) bytes spill "
        r"stores, (\d+) bytes spill loads\n.*?Used (\d+) registers"
    )
    found = re.findall(pattern, report)
    return {name: (int(used), int(stores) + int(loads)) for name, stores, loads, used in found}


def kernels_of(cubin: pathlib.Path, arch: str, nvdisasm: str) -> Iterator[Kernel]:
    """The pass kernels of a cubin."""
    command = [nvdisasm, "-c", str(cubin)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    resources = _resources(cubin.with_suffix(".txt").read_text())
    for name, code, labels in functions(text):
        template = _template(name)
        if template is not None:
            # The two ways are the two batches with most loads, of one loop or of two.
            batches = sorted(n for body in loops(code, labels) for n in loads_in_flight(body))
            yield Kernel(arch, *template, batches[-2], *resources[name])


def count(archs: Sequence[str], folder: pathlib.Path, nvcc: str, jobs: int = 1) -> list[Kernel]:
    """The kernels of all families for some architectures.

    Raises:
      Skipped: nvcc or nvdisasm is missing.
    """
    nvdisasm = find_nvdisasm()
    if shutil.which(nvcc) is None:
        raise Skipped(f"there is no {nvcc}")
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(ROOT.glob("cc/gpu/kernels/*.cu"))
    wanted = [(source, arch) for arch in archs for source in sources]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        cubins = list(pool.map(lambda w: compile_cubin(nvcc, w[0], w[1], folder), wanted))
    return [
        kernel
        for cubin, (_, arch) in zip(cubins, wanted, strict=True)
        for kernel in kernels_of(cubin, arch, nvdisasm)
    ]


def problems(kernels: Iterable[Kernel]) -> list[str]:
    """What is wrong, a sentence each."""
    found = []
    for k in kernels:
        name = f"{k.kind} of {k.formula}, {k.dtype}, {k.layout}, sm_{k.arch}"
        if k.loads < LEAST_LOADS:
            found.append(f"{name}: {k.loads} loads in flight instead of {LEAST_LOADS}")
        if k.spilled:
            found.append(f"{name}: {k.spilled} bytes of registers are spilled")
    return found


def table(kernels: Sequence[Kernel]) -> str:
    """The range over formulas and architectures."""
    rows = collections.defaultdict(list)
    for k in kernels:
        rows[k.kind, k.dtype, k.layout].append(k)
    archs = ", ".join(f"sm_{arch}" for arch in sorted({k.arch for k in kernels}))
    lines = [
        f"All formulas, {archs}:",
        "",
        "| pass computes | type | layout | loads in flight | registers |",
        "|---|---|---|---|---|",
    ]
    for key, row in sorted(rows.items()):
        loads, registers = sorted(k.loads for k in row), sorted(k.registers for k in row)
        lines.append(
            f"| {' | '.join(key)} | {loads[0]} to {loads[-1]} | {registers[0]} to {registers[-1]} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--archs", nargs="+", default=ARCHS, help="as 80 90")
    parser.add_argument("--nvcc", default=os.environ.get("NVCC", "nvcc"))
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "sass")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print ranges, and not every kernel")
    flags = parser.parse_args()
    try:
        kernels = count(flags.archs, flags.folder, flags.nvcc, flags.jobs)
    except Skipped as reason:
        print(f"gpu-sass: skipped, {reason}; nothing was counted.")
        return
    if flags.table:
        print(table(kernels))
    for k in () if flags.table else kernels:
        print(
            f"sm_{k.arch} {k.kind:15} {k.formula:30} {k.dtype:8} {k.layout:14} "
            f"{k.loads} loads, {k.registers} registers"
        )
    wrong = problems(kernels)
    for line in wrong:
        print(f"gpu-sass: {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
