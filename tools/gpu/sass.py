"""Counts what nvcc's machine code says of the GPU kernels, without a GPU: make gpu-sass.

Compiles cc/cuda/kernels for some architectures and reads the disassembly: the 16-byte loads that
a thread has in flight in the loops over its items, instructions per loaded element, those of them
that the fp64 pipe executes, registers, spills.
Prints a line per kernel, fails where a kernel has fewer loads in flight than hide the latency of
DRAM or spills registers, and with --docs writes the summary into docs/gpu.md.

nvdisasm is in the CUDA toolkit and in Triton's wheel (pip download triton); NVDISASM names it.
Without it, or without nvcc, the command prints why it is skipped and succeeds.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import concurrent.futures
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCHS = ("75", "80", "86", "89", "90")
# kMinVectorsAhead of cc/cuda/device/device_loop.h.
LEAST_LOADS = 4
# kGroupItems there.
GROUP_ITEMS = 8
_BEGIN, _END = "<!-- written by make gpu-sass -->", "<!-- end -->"
_TYPES = {"f": "float32", "d": "float64", "7Float16": "half", "8Bfloat16": "bfloat16"}
_BYTES = {"half": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class Skipped(Exception):
    """Why nothing was counted, in one sentence."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of the disassembly."""

    address: int
    guard: str  # The predicate that it depends on, or nothing.
    name: str
    operands: str
    label: str | None  # Where it jumps to.

    @property
    def width(self) -> int:
        """Bytes that it loads from or stores to global memory."""
        if not self.name.startswith(("LDG", "STG")):
            return 0
        return 16 if ".128" in self.name else 8 if ".64" in self.name else 4

    @property
    def loads_vector(self) -> bool:
        """Of the aligned vector behind one, ptxas loads the eight bytes alone that a misaligned
        vector of float64 takes of it."""
        return self.loads and (self.width == 16 or (self.width == 8 and "+0x10]" in self.operands))

    @property
    def loads(self) -> bool:
        return self.name.startswith("LDG")

    @property
    def by_element(self) -> bool:
        """Whether it accesses less than a vector of a tensor: the path for edges."""
        return 0 < self.width < 16 and not self.loads_vector

    @property
    def is_fp64(self) -> bool:
        """Arithmetic, comparisons and conversions of double."""
        of_double = ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")
        return self.name.startswith(of_double) or ".F64" in self.name or "64H" in self.name

    @property
    def target_register(self) -> int | None:
        match = re.match(r"R(\d+)", self.operands)
        return int(match[1]) if match else None

    def registers(self) -> set[int]:
        """All general registers that it names, wide operands included roughly: their first."""
        return {int(n) for n in re.findall(r"\bR(\d+)", self.operands)}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel of one architecture.

    Attributes:
      kind: "reduce", "apply", "finish".
      formula, dtype, layout, variant: of its template arguments.
      loads: the fewest 16-byte loads in flight in a loop over items.
      per_element: instructions per loaded element in the fastest of these loops.
      fp64: at most so many of the fp64 pipe per loaded element, the end of a group of items
        included; what runs in some iterations alone counts in each.
    """

    arch: str
    kind: str
    formula: str
    dtype: str
    layout: str
    variant: str
    loads: int
    per_element: float
    fp64: float
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
    newest = max(p.stat().st_mtime for d in ("core", "cuda") for p in ROOT.glob(f"cc/{d}/**/*.*"))
    if not target.exists() or target.stat().st_mtime < newest:
        command = [nvcc, *_flags(), "-I.", "-cubin", f"-arch=sm_{arch}", "-Xptxas=-v"]
        result = subprocess.run(
            [*command, "-o", str(target), str(source)], cwd=ROOT, capture_output=True, text=True
        )
        if result.returncode != 0:
            raise RuntimeError(f"{source.name}, sm_{arch}: {result.stderr.strip()}")
        target.with_suffix(".txt").write_text(result.stderr)
    return target


_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?);")
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
            jump = re.search(r"\((\.L_\w+)\)", match[4]) if match[3].startswith("BRA") else None
            guard = (match[2] or "").strip()
            code.append(Instruction(address, guard, match[3], match[4], jump[1] if jump else None))
    if code:
        yield name, code, labels


Loop = list[Instruction]


def loops(code: Sequence[Instruction], labels: Mapping[str, int]) -> list[Loop]:
    """The loops, without the loops in them: from the target of a jump back to the jump."""
    spans = set()
    for jump in code:
        target = labels.get(jump.label) if jump.label else None
        if target is not None and target < jump.address:
            spans.add((target, jump.address))
    found = []
    for first, last in sorted(spans):
        inner = [(f, b) for f, b in spans if (f, b) != (first, last) and first <= f and b <= last]
        found.append(
            [
                i
                for i in code
                if first <= i.address <= last and not any(f <= i.address <= b for f, b in inner)
            ]
        )
    return [body for body in found if body]


def item_loops(code: Sequence[Instruction], labels: Mapping[str, int]) -> list[Loop]:
    """Those that load vectors. A loop over groups of items has none of its own where the items of a
    group have a loop."""
    return [body for body in loops(code, labels) if any(i.loads_vector for i in body)]


def around(body: Loop, all_loops: Iterable[Loop]) -> Loop:
    """The innermost loop that another one is in, or nothing."""
    outer = [o for o in all_loops if o[0].address <= body[0].address <= o[-1].address and o != body]
    outer = [o for o in outer if body[-1].address <= o[-1].address]
    return min(outer, key=lambda o: o[-1].address - o[0].address, default=[])


def loads_in_flight(body: Iterable[Instruction]) -> int:
    """The most vectors that were asked for before one of them is used."""
    pending: dict[int, range] = {}  # First register of a load -> its registers.
    most = 0
    for instruction in body:
        if instruction.loads_vector:
            target = instruction.target_register
            assert target is not None
            pending[target] = range(target, target + instruction.width // 4)
            most = max(most, len(pending))
            continue
        used = instruction.registers()
        pending = {first: all_ for first, all_ in pending.items() if not used & set(all_)}
    return most


def longest_path(
    body: Sequence[Instruction],
    labels: Mapping[str, int],
    counts: Callable[[Instruction], bool] = lambda _: True,
) -> int:
    """Instructions that count on the longest way through a loop that accesses no single elements;
    of ways that load vectors, or -1. Loops inside are passed over."""
    addresses = [instruction.address for instruction in body]
    # Instructions so far, before any load and behind one; -1: no way leads here.
    best = [[-1, -1] for _ in range(len(body) + 1)]
    best[0][0] = 0
    for n, instruction in enumerate(body):
        if instruction.by_element:
            continue
        following = []
        if instruction.label is not None:
            target = bisect.bisect_left(addresses, labels.get(instruction.label, -1))
            following += [target] if n < target < len(body) else []
        # The jump back is the last one, also where another instruction leaves the loop.
        if instruction.label is None or instruction.guard or n + 1 == len(body):
            following.append(n + 1)
        for loaded in (False, True):
            if best[n][loaded] < 0:
                continue
            to = loaded or instruction.loads_vector
            for target in following:
                best[target][to] = max(best[target][to], best[n][loaded] + counts(instruction))
    return best[len(body)][True]


def _template(name: str) -> tuple[str, str, str, list[bool]] | None:
    """Kind, formula, element type and boolean arguments of a mangled kernel name."""
    match = re.search(r"\d+(Reduce|Apply|Finish)KernelINS_(?:\d+)(\w+?Formula)E", name)
    if match is None:
        return None
    rest = name[match.end() :]
    dtype = next(
        (text for code, text in _TYPES.items() if re.match(rf"(NS_{code}E|{code}L|{code}E)", rest)),
        "",
    )
    flags = [bit == "1" for bit in re.findall(r"Lb([01])E", rest)]
    return match[1].lower(), match[2].removesuffix("Formula"), dtype, flags


def _spills(report: str) -> dict[str, tuple[int, int]]:
    """Mangled name -> registers, spilled bytes, of what ptxas says."""
    found = {}
    pattern = (
        r"Compiling entry function '(\S+)'.*?\n.*?\n\s+\d+ bytes stack frame, (\d+) bytes spill "
        r"stores, (\d+) bytes spill loads\n.*?Used (\d+) registers"
    )
    for name, stores, loads, registers in re.findall(pattern, report):
        found[name] = (int(registers), int(stores) + int(loads))
    return found


_TENSORS = """
#include <cstdio>
#include "cc/core/formulas/all_formulas.h"
#define X(unused, F, name) \\
  std::printf("%s %d %d\\n", #F, int{tf_bn_ops::F::kNumReduceInputs}, int{tf_bn_ops::F::kInputs});
int main() { TFBN_FOR_EACH_FORMULA(X, ) }
"""


@functools.cache
def _tensors() -> dict[str, tuple[int, int]]:
    """Formula -> tensors that a reduction reads, and all of them."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/tensors"
        command = ["g++", "-std=c++17", "-I.", "-x", "c++", "-", "-o", program]
        subprocess.run(command, cwd=ROOT, input=_TENSORS, text=True, check=True)
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {
        name.removesuffix("Formula"): (int(reduced), int(all_))
        for name, reduced, all_ in map(str.split, lines.splitlines())
    }


def costs_of(
    all_loops: Sequence[Loop], labels: Mapping[str, int], dtype: str, tensors: int, aligned: bool
) -> tuple[int, float, float]:
    """Loads in flight in the loop over items with the fewest; instructions, and those of the fp64
    pipe, per loaded element in the fastest one."""
    found = []
    items = [body for body in all_loops if any(i.loads_vector for i in body)]
    for body in items:
        steps = longest_path(body, labels)
        if steps <= 0:
            continue
        vectors = sum(i.loads_vector for i in body) / (1 if aligned else 2)
        in_vector = 16 / _BYTES[dtype]
        fp64 = longest_path(body, labels, lambda i: i.is_fp64) / vectors
        if vectors < GROUP_ITEMS * tensors:
            ends = sum(i.is_fp64 for i in around(body, all_loops))
            fp64 += ends / (GROUP_ITEMS * tensors)
        found.append((steps / vectors / in_vector, fp64 / in_vector))
    return (min(map(loads_in_flight, items), default=0), *min(found, default=(0.0, 0.0)))


def kernels_of(cubin: pathlib.Path, arch: str, nvdisasm: str) -> Iterator[Kernel]:
    """The kernels of a cubin."""
    text = subprocess.run(
        [nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    resources = _spills(cubin.with_suffix(".txt").read_text())
    for name, code, labels in functions(text):
        template = _template(name)
        if template is None:
            continue
        kind, formula, dtype, flags = template
        registers, spilled = resources[name]
        if kind == "finish":
            yield Kernel(arch, kind, formula, dtype, "", "", 0, 0.0, 0.0, registers, spilled)
            continue
        last, aligned = flags[:2]
        fused = kind == "reduce" and flags[2]
        all_loops = loops(code, labels)
        if last:  # Only the edges of a tensor are loaded by element.
            all_loops = [b for b in all_loops if not any(i.by_element and i.loads for i in b)]
        tensors = _tensors()[formula][0 if kind == "reduce" and not fused else 1]
        yield Kernel(
            arch, kind, formula, dtype, "channels-last" if last else "channels-first",
            "fused" if fused else "" if aligned else "misaligned",
            *costs_of(all_loops, labels, dtype, tensors, aligned), registers, spilled,
        )  # fmt: skip


def count(archs: Sequence[str], folder: pathlib.Path, nvcc: str, jobs: int = 1) -> list[Kernel]:
    """The kernels of all families for some architectures.

    Raises:
      Skipped: nvcc or nvdisasm is missing.
    """
    nvdisasm = find_nvdisasm()
    if shutil.which(nvcc) is None:
        raise Skipped(f"there is no {nvcc}")
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(ROOT.glob("cc/cuda/kernels/*.cu"))
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
        name = f"{k.kind} of {k.formula}, {k.dtype}, {k.layout} {k.variant}, sm_{k.arch}"
        if k.kind != "finish" and k.loads < LEAST_LOADS:
            found.append(f"{name}: {k.loads} loads in flight instead of {LEAST_LOADS}")
        if k.spilled:
            found.append(f"{name}: {k.spilled} bytes of registers are spilled")
    return found


def table(kernels: Sequence[Kernel]) -> str:
    """The summary of docs/gpu.md: the range over formulas and architectures."""
    rows = collections.defaultdict(list)
    for k in kernels:
        if k.kind != "finish":
            rows[k.kind, k.dtype, k.layout, k.variant or "aligned"].append(k)
    archs = ", ".join(f"sm_{arch}" for arch in sorted({k.arch for k in kernels}))
    lines = [
        f"All formulas, {archs}:",
        "",
        "| kernel | type | layout | tensors | loads in flight | instructions per loaded element "
        "| of the fp64 pipe | registers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(rows):
        group = rows[key]
        costs = [k.per_element for k in group]
        fp64 = [k.fp64 for k in group]
        registers = [k.registers for k in group]
        lines.append(
            f"| {' | '.join(key)} | {min(k.loads for k in group)} to {max(k.loads for k in group)} "
            f"| {min(costs):.1f} to {max(costs):.1f} | {min(fp64):.2f} to {max(fp64):.2f} "
            f"| {min(registers)} to {max(registers)} |"
        )
    return "\n".join(lines)


def write_docs(kernels: Sequence[Kernel]) -> None:
    """Replaces the table of docs/gpu.md."""
    path = ROOT / "docs" / "gpu.md"
    before, rest = path.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    path.write_text(f"{before}{_BEGIN}\n{table(kernels)}\n{_END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--archs", nargs="+", default=ARCHS, help="as 80 90")
    parser.add_argument("--nvcc", default=os.environ.get("NVCC", "nvcc"))
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "sass")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--docs", action="store_true", help="write the table of docs/gpu.md")
    flags = parser.parse_args()
    try:
        kernels = count(flags.archs, flags.folder, flags.nvcc, flags.jobs)
    except Skipped as reason:
        print(f"gpu-sass: skipped, {reason}; nothing was counted.")
        return
    for k in kernels:
        print(
            f"sm_{k.arch} {k.kind:6} {k.formula:30} {k.dtype:8} {k.layout:14} {k.variant:10} "
            f"{k.loads} loads, {k.per_element:4.1f} per element, "
            f"{k.fp64:4.2f} fp64, {k.registers} registers"
        )
    if flags.docs:
        write_docs(kernels)
    wrong = problems(kernels)
    for line in wrong:
        print(f"gpu-sass: {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
