"""Proof that the conformance run can fail: it has to catch every mutant of mutants.toml.

usage: python tests/mutants/run.py [NAME ...]

Copies the sources into a temporary folder and builds the TensorFlow-free core there (one
instruction set, little optimization; make rebuilds what an edit touches). Then every mutant is
judged by the cases of the default conformance run of the ops of its formula, in their order and
with their strict bounds, until one fails (judge_core.py). A mutant that is wrong only in large
tensors is judged by one case of more than 2^31 elements instead (large_core.py). The kernels are
called through the C ABI, in a process of their own, with two threads. At the end the unchanged
kernels have to pass, of each formula, as many cases as the toughest mutant took.

Exit status: 0 all mutants were caught, 1 some were not, or the unchanged kernels failed; 2 wrong
usage, a build that failed, or an edit that does not fit the sources any more.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# What the build reads.
_SOURCES = ("Makefile", "cc", "mk", "tools", "requirements", "tf_bn_ops/_version.py")
_LIBRARIES = ("libtf_bn_ops_core.so", "build_info.json")
# Seconds for the cases of one mutant; the whole default run takes one or two minutes here.
_TIMEOUT = 900
_UNCHANGED = "(unchanged)"


class MutantError(RuntimeError):
    """A mutant that cannot be built; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One wrong kernel: see mutants.toml; judged by the cases of the formula of `op`."""

    name: str
    what: str
    file: str
    edits: tuple[tuple[str, str], ...]
    large: bool = False
    op: str = "FusedBatchNormGradV3"

    def apply(self, source: str) -> str:
        """The source with the edits.

        Raises:
          MutantError: a text to be replaced does not occur exactly once.
        """
        for old, new in self.edits:
            if source.count(old) != 1:
                raise MutantError(
                    f"mutant {self.name}: {old!r} occurs {source.count(old)} times in {self.file}, "
                    "not once: adapt tests/mutants/mutants.toml to the sources"
                )
            source = source.replace(old, new)
        return source


def load_mutants(file: pathlib.Path = HERE / "mutants.toml") -> list[Mutant]:
    """All mutants, in the order of the file."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    return [
        Mutant(
            m["name"],
            m["what"],
            m["file"],
            tuple((old, new) for old, new in m["edits"]),
            m.get("large", False),
            m.get("op", Mutant.op),
        )
        for m in content["mutant"]
    ]


class Build:
    """A copy of the sources that builds the core library, with `flags` by `compiler`."""

    flags = "-O1 -w"
    compiler = ""  # Empty: make's.

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for name in _SOURCES:
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, target)

    def make(self) -> None:
        """Builds what the sources now say.

        Raises:
          MutantError: it does not compile.
        """
        command = ["make", f"PYTHON={sys.executable}", "BUILD_DIR=build", "LIB_DIR=lib"]
        command += ["ISA_BUILDS=baseline", f"CXXFLAGS={self.flags}"]
        command += [f"CXX={self.compiler}"] if self.compiler else []
        command += [f"lib/{name}" for name in _LIBRARIES]
        dropped = ("MAKE", "MFLAGS", "TF_BN_OPS")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["make said nothing"])[-12:]
            raise MutantError("the build failed:\n" + "\n".join(last))

    def library_of(self, mutant: Mutant | None, name: str = "") -> pathlib.Path:
        """Builds a mutant (or the unchanged kernels) into a folder of its own, and returns it; the
        folder has the mutant's name if it is not given another."""
        name = name or (mutant.name if mutant else "unchanged")
        if mutant is None:
            self.make()
        else:
            file = self.folder / mutant.file
            source = file.read_text(encoding="utf-8")
            file.write_text(mutant.apply(source), encoding="utf-8")
            try:
                self.make()
            finally:
                file.write_text(source, encoding="utf-8")
        target = self.folder / "libraries" / name
        target.mkdir(parents=True)
        for library in _LIBRARIES:
            shutil.copy2(self.folder / "lib" / library, target / library)
        return target


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How the cases went: the number run, and how the last of them failed ("" if it passed)."""

    cases: int
    failure: str


def judge(
    library: pathlib.Path, op: str = Mutant.op, most: int | None = None, large: bool = False
) -> Verdict:
    """Runs the default cases of the formula of `op` on a library until one fails, in a process of
    its own; or the one case of more than 2^31 elements."""
    judge_core = ["judge_core.py", op, *([str(most)] if most else [])]
    script, *arguments = ["large_core.py", op] if large else judge_core
    command = [sys.executable, str(HERE / script), *arguments]
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "TF_BN_OPS_LIBRARY": str(library),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        status, err = -1, ""
        out = (e.stdout or b"").decode()
    lines = out.splitlines() or ["0"]
    number, _, failure = lines[-1].partition(" ")
    if status < 0:
        return Verdict(int(number) + 1, "the process did not survive the next case")
    if status:
        raise MutantError(f"judging failed: {(err.strip().splitlines() or ['?'])[-1]}")
    return Verdict(int(number), failure)


def run(names: list[str], folder: pathlib.Path) -> int:
    """Runs the mutants of these names (all without), prints a line each, returns the status."""
    mutants = load_mutants()
    unknown = set(names) - {m.name for m in mutants}
    if unknown:
        raise MutantError(
            f"there is no mutant {', '.join(sorted(unknown))}; "
            f"known: {', '.join(m.name for m in mutants)}"
        )
    chosen = [m for m in mutants if not names or m.name in names]
    for mutant in chosen:  # Before anything is built.
        mutant.apply((ROOT / mutant.file).read_text(encoding="utf-8"))
    started = time.monotonic()
    build = Build(folder)
    unchanged = build.library_of(None)
    print(f"{'mutant':34} {'cases':>5}  caught by", flush=True)
    survivors, most = [], dict.fromkeys((m.op for m in chosen if not m.large), 1)
    for mutant in chosen:
        verdict = judge(build.library_of(mutant), mutant.op, large=mutant.large)
        if verdict.failure:
            if not mutant.large:
                most[mutant.op] = max(most[mutant.op], verdict.cases)
            print(f"{mutant.name:34} {verdict.cases:5}  {verdict.failure[:160]}", flush=True)
        else:
            survivors.append(mutant)
            print(f"{mutant.name:34} {verdict.cases:5}  NOT CAUGHT: {mutant.what}", flush=True)
    controls = [judge(unchanged, op, count) for op, count in most.items()]
    for op in dict.fromkeys(mutant.op for mutant in chosen if mutant.large):
        controls.append(judge(unchanged, op, large=True))
    for control in controls:
        how = f"FAILED: {control.failure}" if control.failure else "passed"
        print(f"{_UNCHANGED:34} {control.cases:5}  {how}")
    print(
        f"mutants: {len(chosen) - len(survivors)} of {len(chosen)} caught, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if survivors or any(control.failure for control in controls) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; all without")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return run(arguments.names, pathlib.Path(folder))
    except MutantError as e:
        print(f"mutants: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
