"""Proof that the conformance run can fail: it has to catch every mutant of mutants.toml.

usage: python tests/mutants/run.py [--record] [NAME ...]

Copies the sources into a temporary folder and builds the TensorFlow-free core there (one ISA, no
optimization, which is bitwise identical; make rebuilds what an edit touches). Then every mutant is
judged by the cases of the default conformance run of the ops of its formula, in their order and
with their strict bounds, until one fails (judge_core.py). The kernels are called through the C ABI,
in a process of their own, with two threads. At the end the unchanged kernels have to pass, of each
formula, as many cases as the toughest mutant took. The score by formula is printed last (score.py),
and written to PAGE, which keeps what it says of other mutants.

Exit status: 0 all mutants were caught but those that no case can catch; 1 others were not, or one
of those was, or the unchanged kernels failed; 2 wrong usage, a build that failed, or an edit that
does not fit the sources any more.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import score  # noqa: E402
from score import Outcome  # noqa: E402

from tf_bn_ops.conformance.cases.mapping import tomllib  # noqa: E402

# What the build reads.
_SOURCES = ("Makefile", "cc", "mk", "tools", "requirements", "tf_bn_ops/_version.py")
_LIBRARIES = ("libtf_bn_ops_core.so", "build_info.json")
# Seconds for the cases of one mutant; the whole default run takes one or two minutes here.
_TIMEOUT = 900
# Cases of a mutant that none can catch.
_SURVIVOR_CASES = 300
_UNCHANGED = "(unchanged)"


class MutantError(RuntimeError):
    """A mutant that cannot be built; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Wrong code: see mutants.toml; judged by the cases of the formula of `op`, or by `tests`."""

    name: str
    what: str
    file: str
    edits: tuple[tuple[str, str], ...]
    op: str = "FusedBatchNormGradV3"
    output: str = ""
    survives: str = ""
    tests: str = ""

    def apply(self, source: str) -> str:
        """The source with the edits.

        Raises:
          MutantError: a text to be replaced does not occur exactly once.
        """
        for old, new in self.edits:
            if source.count(old) != 1:
                raise MutantError(
                    f"mutant {self.name}: {old!r} occurs {source.count(old)} times in {self.file}, "
                    "not once: adapt the mutant's edits to the sources"
                )
            source = source.replace(old, new)
        return source


def load_mutants(file: pathlib.Path = HERE / "mutants.toml", key: str = "op") -> list[Mutant]:
    """All mutants, in the order of the file; `key`: the field that the second part of a heading
    is."""
    return [
        Mutant(
            name, file=source, edits=tuple(map(tuple, fields.pop("edits"))), **fields, **{key: of}
        )
        for source, headings in tomllib.loads(file.read_text(encoding="utf-8")).items()
        for of, mutants in headings.items()
        for name, fields in mutants.items()
    ]


# Formula -> the file of cc/cpu/isa with its kernels; what is not here is forward.
_KERNELS_OF = {
    "batch_norm_backward_elemt": "gradient",
    "batch_norm_backward_reduce": "gradient",
    "batch_norm_gather_stats": "gather_stats",  # It has no vectors, and no file.
    "batch_norm_grad": "gradient",
    "batch_norm_grad_ex": "gradient",
    "batch_norm_grad_grad": "second_order",
}


def kernels_of(formula: str) -> str:
    """The file of cc/cpu/isa with the kernels of a formula."""
    return _KERNELS_OF.get(formula, "forward") + "_kernels"


class Build:
    """A copy of the sources that builds the core library, with `flags` by `compiler`."""

    flags = "-O0 -w"
    compiler = ""  # Empty: make's.

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for name in _SOURCES:
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, target)

    def _other_kernels(self, formula: str) -> list[str]:
        """The objects of other formulas' kernels, as make calls them."""
        own = kernels_of(formula) + "."
        found = self.folder.glob("build/*/cc/cpu/isa/*.o")
        return [str(o.relative_to(self.folder)) for o in found if not o.name.startswith(own)]

    def make(self, formula: str = "") -> None:
        """Builds what the sources now say. With a formula, whose cases alone judge the library, the
        kernels of others stay as they are: they are two thirds of what there is to compile.

        Raises:
          MutantError: it does not compile.
        """
        command = ["make", f"PYTHON={sys.executable}", "BUILD_DIR=build", "LIB_DIR=lib"]
        command += ["ISA_BUILDS=baseline", f"CXXFLAGS={self.flags}"]
        command += [f"CXX={self.compiler}"] if self.compiler else []
        if formula:
            command += [f"--old-file={name}" for name in self._other_kernels(formula)]
        command += [f"lib/{name}" for name in _LIBRARIES]
        dropped = ("MAKE", "MFLAGS", "TF_BN_OPS")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["make said nothing"])[-12:]
            raise MutantError("the build failed:\n" + "\n".join(last))

    def library_of(
        self, mutant: Mutant | None, name: str = "", whole: bool = False
    ) -> pathlib.Path:
        """Builds a mutant (or the unchanged kernels) into a folder of its own, and returns it; the
        folder has the mutant's name if it is not given another. Only the mutant's formula is
        compiled from its sources, unless `whole`."""
        name = name or (mutant.name if mutant else "unchanged")
        if mutant is None:
            self.make()
        else:
            file = self.folder / mutant.file
            source = file.read_text(encoding="utf-8")
            file.write_text(mutant.apply(source), encoding="utf-8")
            try:
                self.make("" if whole else score.formula_of(mutant.op))
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


def judge(library: pathlib.Path, op: str = Mutant.op, most: int | None = None) -> Verdict:
    """Runs the default cases of the formula of `op` on a library until one fails, in a process of
    its own."""
    command = [sys.executable, str(HERE / "judge_core.py"), op, *([str(most)] if most else [])]
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


def chosen_mutants(names: list[str]) -> list[Mutant]:
    """The mutants of these names, all without names; their edits fit the sources.

    Raises:
      MutantError: there is no such mutant, or an edit does not fit.
    """
    mutants = load_mutants()
    unknown = set(names) - {m.name for m in mutants}
    if unknown:
        raise MutantError(
            f"there is no mutant {', '.join(sorted(unknown))}; "
            f"known: {', '.join(m.name for m in mutants)}"
        )
    chosen = [m for m in mutants if not names or m.name in names]
    for mutant in chosen:
        mutant.apply((ROOT / mutant.file).read_text(encoding="utf-8"))
    return chosen


def outcome_of(mutant: Mutant, verdict: Verdict) -> Outcome:
    """Where one output is wrong, only that output catches the mutant. The number of the case is not
    kept: it changes with whatever is drawn."""
    caught_by = ""
    if verdict.failure:
        output = score.output_that_failed(verdict.failure)
        if not mutant.output or mutant.output == output:
            caught_by = output or "a case"
    formula = score.formula_of(mutant.op)
    return Outcome(mutant.name, mutant.what, formula, mutant.output, caught_by, mutant.survives)


def judge_all(mutants: list[Mutant], build: Build) -> tuple[list[Outcome], dict[str, int]]:
    """Judges mutants, prints a line each; returns also the most cases that one of an op took."""
    outcomes, most = [], dict.fromkeys((m.op for m in mutants), 1)
    print(f"{'mutant':34} {'cases':>5}  caught by", flush=True)
    for mutant in mutants:
        limit = _SURVIVOR_CASES if mutant.survives else None
        verdict = judge(build.library_of(mutant), mutant.op, limit)
        outcome = outcome_of(mutant, verdict)
        outcomes.append(outcome)
        if outcome.caught_by:
            how = verdict.failure[:160]
            most[mutant.op] = max(most[mutant.op], verdict.cases)
        elif verdict.failure:
            how = f"NOT CAUGHT by {mutant.output}: {verdict.failure[:160]}"
        else:
            how = (
                f"survives: {mutant.survives}" if mutant.survives else f"NOT CAUGHT: {mutant.what}"
            )
        print(f"{mutant.name:34} {verdict.cases:5}  {how}", flush=True)
    return outcomes, most


def unchanged_passes(library: pathlib.Path, most: dict[str, int]) -> bool:
    """Whether the unchanged kernels pass what the mutants were judged by; prints a line each."""
    controls = [judge(library, op, count) for op, count in most.items()]
    for control in controls:
        how = f"FAILED: {control.failure}" if control.failure else "passed"
        print(f"{_UNCHANGED:34} {control.cases:5}  {how}")
    return not any(control.failure for control in controls)


def record(outcomes: list[Outcome]) -> None:
    """Records the score; mutants that did not run keep what was recorded of them."""
    known = score.recorded() | {outcome.name: outcome for outcome in outcomes}
    score.record([known[m.name] for m in load_mutants() if m.name in known])


def run(names: list[str], folder: pathlib.Path, keep: bool = False) -> int:
    """Runs the mutants of these names (all without), prints the score, returns the status."""
    chosen = chosen_mutants(names)  # Before anything is built.
    started = time.monotonic()
    build = Build(folder)
    unchanged = build.library_of(None)
    outcomes, most = judge_all(chosen, build)
    passes = unchanged_passes(unchanged, most)
    possible = [o for o in outcomes if not o.reason]
    caught = sum(bool(o.caught_by) for o in possible)
    print(score.as_text(outcomes))
    print(
        f"mutants: {caught} of {len(possible)} caught, "
        f"{len(outcomes) - len(possible)} that no case can catch, "
        f"{time.monotonic() - started:.0f} s"
    )
    if keep:
        record(outcomes)
    as_expected = all(bool(o.caught_by) != bool(o.reason) for o in outcomes)
    return 0 if passes and as_expected else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; all without")
    parser.add_argument("--record", action="store_true", help="keep results, write the table")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return run(arguments.names, pathlib.Path(folder), arguments.record)
    except MutantError as e:
        print(f"mutants: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
