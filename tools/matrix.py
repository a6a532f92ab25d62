"""Builds and tests with several versions of TensorFlow, one after the other.

usage: python tools/matrix.py [--versions="2.16 2.19 2.21"] [--folder=build/matrix] [--every=N]

For each version: an environment with the first Python on this machine that it supports, a copy of
the sources, then `make`, tools/supports.py, `make conformance` and `make test` in it, as a user
would; with --every, of cases and tests every N-th, and the table says so. The environment and
objects are kept for the next time. Results go to docs/versions.json, and from there into the table
of docs/support.md; versions that were not run keep the results they have.

Exit status: 0 all versions passed, 1 some did not (logs: FOLDER/VERSION/*.log), 2 wrong usage.
Uses the standard library alone.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import evidence
import tool_flags

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "support.md"

_VERSIONS = runpy.run_path(str(ROOT / "tf_bn_ops" / "_version.py"))
PYTHONS, CANDIDATES = _VERSIONS["TENSORFLOWS"], _VERSIONS["CANDIDATES"]
# About as many as the default run of `make conformance` has.
CASES = 5400
STEPS = ("build", "supports", "conformance", "test")
REQUIREMENTS = ("build", "commands", "dev", "lint", "runtime")
# Those that name a version of TensorFlow.
OF_A_VERSION = ("tensorflow", "without_dependencies")


def name_of(python: tuple[int, int]) -> str:
    return ".".join(map(str, python))


def find_python(version: str) -> str | None:
    """The first Python on this machine that has wheels of this TensorFlow."""
    oldest, newest = PYTHONS[version]
    names = [os.environ.get("VENV_PYTHON", ""), "python3"]
    names += [f"python3.{minor}" for minor in range(newest[1], oldest[1] - 1, -1)]
    for name in names:
        path = shutil.which(name) if name else None
        if path is None:
            continue
        code = f"import sys; sys.exit(not {oldest} <= sys.version_info[:2] <= {newest})"
        if subprocess.run([path, "-c", code], capture_output=True).returncode == 0:
            return path
    return None


def source_files() -> list[str]:
    """Tracked files, and those that git would not ignore; of an sdist, what it holds."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        return sorted({name for name in listed if (ROOT / name).is_file()})
    built = ("build/", ".venv/", "dist/", "tf_bn_ops/lib/", "tf_bn_ops/include/")
    files = (path for path in ROOT.rglob("*") if path.is_file())
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return sorted(n for n in names if not n.startswith(built) and "__pycache__" not in n)


def copy_sources(files: list[str], tree: pathlib.Path) -> None:
    """Brings `tree` up to date; unchanged files keep their time, so that make does little."""
    wanted = set(files)
    for path in sorted(tree.rglob("*"), reverse=True):
        name = path.relative_to(tree).as_posix()
        kept = name.startswith(("build/", "tf_bn_ops/lib", "tf_bn_ops/bin", "tf_bn_ops/include"))
        if path.is_file() and name not in wanted and not kept:
            path.unlink()
    for name in files:
        target = tree / name
        if not target.is_file() or target.read_bytes() != (ROOT / name).read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)


def environment() -> dict[str, str]:
    """Without what the make around this says to its own recipes."""
    dropped = ("MAKE", "MFLAGS", "TF_BN_OPS", "PYTHON", "VERSIONS", "ARGS", "TESTS", "BUILD_DIR")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


class Failed(Exception):
    """A step did not succeed; the message says which and where its log is."""


class Version:
    """The run of one version of TensorFlow."""

    def __init__(self, version: str, folder: pathlib.Path, every: int = 1) -> None:
        self.version = version
        self.folder = folder / version
        self.every = every
        # What docs/versions.json has of it; `passed`: step -> what was found.
        self.result: dict[str, Any] = {"date": f"{datetime.date.today()}", "passed": {}}
        if every > 1:
            self.result["every"] = every

    def step(self, name: str, command: list[str], **variables: str) -> str:
        """Runs a command into NAME.log; returns its output."""
        log = self.folder / f"{name}.log"
        begin = time.monotonic()
        print(f"  {self.version}: {name} ...", flush=True)
        with log.open("w") as file:
            status = subprocess.run(
                command, cwd=ROOT if name == "venv" else self.folder / "tree",
                env={**environment(), **variables}, stdout=file, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        seconds = time.monotonic() - begin
        output = log.read_text(errors="replace")
        if status != 0:
            last = next((x for x in reversed(output.splitlines()) if x.strip()), "")
            raise Failed(f"{name}: {last}  (see {log})")
        print(f"  {self.version}: {name} passed in {seconds:.0f} s", flush=True)
        return output

    def _of_this_version(self, name: str) -> pathlib.Path:
        """A copy of requirements/NAME.txt with this version in the place of its own."""
        copy = self.folder / f"{name}.txt"
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        candidate = CANDIDATES.get(self.version)
        if candidate is None:
            text = re.sub(r"==2\.\d+\.\*", f"=={self.version}.*", text)
        else:
            text = re.sub(r"^(tensorflow.*)==2\.\d+\.\*", rf"\1=={candidate}", text, flags=re.M)
        if not copy.exists() or copy.read_text() != text:
            copy.write_text(text)
        return copy

    def run(self, files: list[str]) -> bool:
        """Runs all steps until one fails; whether none did."""
        try:
            self._run(files)
        except Failed as failure:
            print(f"  {self.version}: FAILED: {failure}", flush=True)
            return False
        return True

    def environment(self) -> str:
        """Makes this version's environment, or brings it up to date; returns its Python."""
        base = find_python(self.version)
        if base is None:
            oldest, newest = map(name_of, PYTHONS[self.version])
            raise Failed(f"no Python {oldest} to {newest} found: install one, or name it with "
                         "VENV_PYTHON=/path/to/python")  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        venv = self.folder / "venv"
        lists = [str(self._of_this_version(name)) for name in OF_A_VERSION]
        lists += [f"requirements/{name}.txt" for name in REQUIREMENTS]
        self.step("venv", ["tools/make_venv.sh", str(venv), *lists], VENV_PYTHON=base,
                  VENV_NEWEST=str(PYTHONS[self.version][1][1]))  # fmt: skip
        return str(venv / "bin" / "python")

    def _run(self, files: list[str]) -> None:
        python = self.environment()
        asked = subprocess.run(
            [python, "tools/tf_env.py", "dist"], cwd=ROOT, capture_output=True, text=True
        )
        if asked.returncode != 0:
            raise Failed(f"venv: {asked.stderr.strip()} Remove {self.folder / 'venv'} and run make "
                         "matrix again")  # fmt: skip
        self.result["tensorflow"] = asked.stdout.split()[1]
        code = "import platform; print(platform.python_version())"
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        self.result["python"] = asked.stdout.strip()
        copy_sources(files, self.folder / "tree")
        make = [shutil.which("gmake") or "make", "--no-print-directory", f"PYTHON={python}"]
        if "CXX" in os.environ:
            make.append(f"CXX={os.environ['CXX']}")
        for step in STEPS:
            self.result["failed"] = step
            output = self.step(step, self._command(step, python, make), **self._variables(step))
            del self.result["failed"]
            self.result["passed"][step] = FOUND[step](output)

    def _command(self, step: str, python: str, make: list[str]) -> list[str]:
        selection = {"conformance": f"--cases={CASES // self.every}", "test": "-p sample"}
        if step == "build":
            return make
        if step == "supports":
            return [python, "tools/supports.py"]
        return [*make, step, *([f"ARGS={selection[step]}"] if self.every > 1 else [])]

    def _variables(self, step: str) -> dict[str, str]:
        if step == "supports":
            return {"PYTHONPATH": "."}
        if step == "test" and self.every > 1:  # tests/sample.py
            return {"PYTHONPATH": "tests", "TFBN_TEST_EVERY": str(self.every)}
        return {}


def cases_of(output: str) -> int:
    verdict = re.search(r"conformance passed: \d+ of (\d+) cases failed", output)
    return int(verdict.group(1)) if verdict else 0


def counts_of(output: str) -> dict[str, int]:
    """The last line of pytest: "... 2640 passed, 99 skipped ..."."""
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|skipped)", output)}
    return {"passed": counts.get("passed", 0), "skipped": counts.get("skipped", 0)}


# Columns of the table in docs/support.md; those in the middle are of tools/supports.py.
HOOKS = ("fuse", "jit_compile")
COLUMNS = [
    *("TensorFlow", "Python", "Keras", "override", *(f"`{hook}`" for hook in HOOKS)),
    *("conformance", "tests"),
]

# What is kept of the output of a step that passed.
FOUND: dict[str, Callable[[str], Any]] = {
    "build": lambda output: True,
    "supports": lambda output: json.loads(output.splitlines()[-1]),
    "conformance": cases_of,
    "test": counts_of,
}


def row(version: str, result: dict[str, Any]) -> list[str]:
    """The cells of a version; a dash where it was not run."""
    oldest, newest = map(name_of, PYTHONS[version])
    name, python = version, f"{oldest} to {newest}"
    passed, cells = result.get("passed", {}), dict.fromkeys(STEPS[1:], "-")
    if result.get("failed") == "build":
        name += " (**does not build**)"
    elif passed:
        name = result["tensorflow"]
        python = f"{'.'.join(result['python'].split('.')[:2])} (of {python})"
    supports = passed.get("supports", {})
    part = f" (1 in {result['every']})" if "every" in result else ""
    if "conformance" in passed:
        cells["conformance"] = f"{passed['conformance']} cases passed{part}"
    if "test" in passed:
        cells["test"] = "{passed} passed, {skipped} skipped".format(**passed["test"]) + part
    if result.get("failed") in cells:
        cells[result["failed"]] = "**failed**"
    override = f"{supports['overridden']} kernels" if supports else cells["supports"]
    hooks = [{True: "yes", False: "no"}.get(supports.get(what), "-") for what in HOOKS]
    kerases = [supports[name] for name in ("keras", "oldest_keras") if name in supports]
    keras = " and ".join(kerases) or "-"
    return [name, python, keras, override, *hooks, cells["conformance"], cells["test"]]


def table(results: dict[str, dict[str, Any]]) -> str:
    """The table of docs/support.md, newest version first."""
    versions = sorted(PYTHONS, reverse=True)
    return evidence.as_table(COLUMNS, [row(one, results.get(one, {})) for one in versions])


def main(argv: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument(
        "--versions", type=tool_flags.names("TensorFlow", list(PYTHONS)), default=list(PYTHONS)
    )
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args(argv)
    files, passed = source_files(), True
    for name in arguments.versions:
        version = Version(name, arguments.folder.resolve(), arguments.every)
        passed &= version.run(files)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[name] = {**version.result, "source": evidence.source()}
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")
        page = evidence.with_table(PAGE.read_text("utf-8"), "versions", table(results))
        PAGE.write_text(page, "utf-8")
    print(table(json.loads(RESULTS.read_text())))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
