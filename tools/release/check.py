"""Rehearses a release: builds everything that would be published, and checks it as users get it.

usage: python tools/release/check.py [--versions="2.20 2.21"] [--steps="build metadata ..."]
                                     [--environments=build/matrix] [--folder=build/release]
                                     [--borrow-tensorflow] [--twice="2.16 2.21"]

The steps, each by itself and in this order:
  build         the wheel for all versions, the sdist, and the harness's wheel, into dist/
  metadata      twine's checks, long description, licence, tags, requirements, what libraries link
  reproducible  wheel and sdist of dist/ again, to the same bytes, from a copy of the sources in
                another folder and with an empty compiler cache; the libraries are compiled again
                for --twice, the first and the last of VERSIONS, between which TensorFlow's headers
                differ most, and the other versions' are taken from the first build
  install       for each version: a fresh environment, pip from dist/ in less than 10 s,
                `doctor`, quick tests, 200 conformance cases
  sbom          a CycloneDX bill of materials of the wheel and what it requires, and SHA256SUMS
  docs          the site; MkDocs checks every link in it
  tests         the release tier (CONTRIBUTING.md); PyTorch and ONNX Runtime are judged
                where requirements/bench.txt and dev.txt are installed

--borrow-tensorflow takes TensorFlow and what the tests need from ENVIRONMENTS/VERSION/venv instead
of the network. Logs are in FOLDER. Exit status: 0 all passed, 1 some did not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import contents
import wheels
from wheels import matrix, tool_flags

ROOT = wheels.ROOT
# Tests of what differs between environments, in less than a minute.
QUICK_TESTS = (
    "tests/package/test_loader.py",
    "tests/package/test_doctor.py",
    "tests/ops/test_single_ops.py",
)
CASES = 200
LONGEST_INSTALL = 10.0


def sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Failed(Exception):
    """A check did not pass; the message says what is wrong."""


class Rehearsal:
    """What the steps share: where things are, and how commands run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.versions: list[str] = arguments.versions
        self.environments: pathlib.Path = arguments.environments.resolve()
        self.folder: pathlib.Path = arguments.folder.resolve()
        self.borrow: bool = arguments.borrow_tensorflow
        ends = dict.fromkeys((self.versions[0], self.versions[-1]))
        self.twice: list[str] = arguments.twice or list(ends)
        self.dist = ROOT / "dist"
        self.folder.mkdir(parents=True, exist_ok=True)

    def wheel(self) -> pathlib.Path:
        (wheel,) = self.dist.glob("tf_bn_ops-*.whl")
        return wheel

    def run(self, log: str, command: list[str], cwd: pathlib.Path = ROOT, **changes: str) -> str:
        """Runs a command into FOLDER/LOG.log; returns its output."""
        path = self.folder / f"{log}.log"
        with path.open("w", encoding="utf-8") as file:
            status = subprocess.run(
                command, cwd=cwd, env={**wheels.build_environment(), **changes},
                stdout=file, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        output = path.read_text(encoding="utf-8", errors="replace")
        if status != 0:
            last = next((x for x in reversed(output.splitlines()) if x.strip()), "no output")
            raise Failed(f"{log}: {last}  (see {path})")
        return output

    def tools(self) -> pathlib.Path:
        """The programs of requirements/release.txt, in an environment of their own."""
        listed = ROOT / "requirements" / "release.txt"
        self.run("tools", ["tools/make_venv.sh", str(self.folder / "tools"), str(listed)])
        return self.folder / "tools" / "bin"


def build(rehearsal: Rehearsal) -> str:
    shutil.rmtree(rehearsal.dist, ignore_errors=True)
    rehearsal.dist.mkdir()
    command = [
        sys.executable,
        "tools/release/wheels.py",
        f"--versions={' '.join(rehearsal.versions)}",
    ]
    rehearsal.run("wheels", [*command, f"--environments={rehearsal.environments}"])
    rehearsal.run("sdist", sdist_command(rehearsal.dist))
    rehearsal.run("conformance", [sys.executable, "tools/conformance_wheel.py", "dist"])
    files = sorted(rehearsal.dist.iterdir())
    return ", ".join(f"{file.name} ({file.stat().st_size / 1e6:.1f} MB)" for file in files)


def sdist_command(folder: pathlib.Path) -> list[str]:
    code = (
        "import sys; sys.path.insert(0, 'tools'); import backend; "
        f"backend.build_sdist({str(folder)!r})"
    )
    return [sys.executable, "-c", code]


def metadata(rehearsal: Rehearsal) -> str:
    files = [str(file) for file in rehearsal.dist.iterdir() if file.suffix in (".whl", ".gz")]
    rehearsal.run("twine", [str(rehearsal.tools() / "twine"), "check", "--strict", *files])
    problems = contents.problems(rehearsal.wheel(), rehearsal.versions)
    if problems:
        raise Failed("; ".join(problems))
    return f"{len(files)} files accepted by twine, {rehearsal.wheel().name}"


def reproducible(rehearsal: Rehearsal) -> str:
    """Wheel and sdist of dist/ again, from sources in another folder, compiled anew."""
    tree = rehearsal.folder / "second place" / "sources"
    shutil.rmtree(tree.parent, ignore_errors=True)
    matrix.copy_sources(matrix.source_files(), tree)
    command = [sys.executable, "tools/release/wheels.py"]
    command += [f"--versions={' '.join(rehearsal.twice)}"]
    command += [f"--environments={rehearsal.environments}"]
    command += [f"--others={ROOT / 'build' / 'release' / 'stage'}"]
    # The copy knows no commit. ccache, where CXX has it, begins empty: what is the same for all
    # versions, most of the time, is compiled for the first of them alone.
    changes = {"SOURCE_DATE_EPOCH": wheels.source_date(), "CCACHE_DIR": str(tree.parent / "ccache")}
    rehearsal.run("again", command, cwd=tree, **changes)
    rehearsal.run("again-sdist", sdist_command(tree / "dist"), cwd=tree, **changes)
    again = {file.name: sha256(file) for file in (tree / "dist").iterdir()}
    for name, digest in sorted(again.items()):
        first = rehearsal.dist / name
        if not first.exists():
            raise Failed(f"dist/ has no {name}: run the step build first, with the same versions")
        if digest != sha256(first):
            raise Failed(f"two builds differ in {name}: compare dist/ and {tree / 'dist'}")
    compiled = f"with TensorFlow {', '.join(rehearsal.twice)} compiled again"
    return f"{', '.join(sorted(again))}: the same bytes from another folder, {compiled}"


def install(rehearsal: Rehearsal) -> str:
    told = []
    for version in rehearsal.versions:
        python = fresh_environment(rehearsal, version)
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir"]
        begin = time.monotonic()
        pip += ["--no-index", f"--find-links={rehearsal.dist}", "tf-bn-ops"]
        rehearsal.run(f"install-{version}", pip)
        seconds = time.monotonic() - begin
        if seconds > LONGEST_INSTALL:
            raise Failed(f"pip took {seconds:.0f} s with TensorFlow {version}")
        told.append(
            f"{version}: installed in {seconds:.1f} s, {try_out(rehearsal, version, python)}"
        )
    return "; ".join(told)


def fresh_environment(rehearsal: Rehearsal, version: str) -> str:
    """With this TensorFlow and what the tests need, and nothing of ours; returns its Python."""
    venv = rehearsal.folder / f"fresh-{version}"
    shutil.rmtree(venv, ignore_errors=True)
    lender = pathlib.Path(wheels.python_of(version, rehearsal.environments))
    subprocess.run([str(lender.resolve()), "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    if rehearsal.borrow:
        (site,) = venv.glob("lib/python*/site-packages")
        (lent,) = lender.parent.parent.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text(f"{lent}\n")
        return python
    lists = [f"requirements/{name}.txt" for name in ("commands", "runtime")]
    words = [word for name in lists for word in ("-r", name)]
    words += [
        "pytest",
        str(f"tensorflow-cpu=={version}.*" if cpu_wheels() else f"tensorflow=={version}.*"),
    ]
    rehearsal.run(f"fresh-{version}", [python, "-m", "pip", "install", "--quiet", *words])
    return python


def cpu_wheels() -> bool:
    """There are tensorflow-cpu wheels for x86 only."""
    return os.uname().machine == "x86_64"


def try_out(rehearsal: Rehearsal, version: str, python: str) -> str:
    """What a user would do first, from a folder without sources."""
    place = rehearsal.folder / f"user-{version}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / "tests", place / "tests")
    run = [python, "-m", "tf_bn_ops"]
    rehearsal.run(f"doctor-{version}", [*run, "doctor"], cwd=place)
    cases = rehearsal.run(f"cases-{version}", [*run, "conformance", f"--cases={CASES}"], cwd=place)
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m"]
    tests += ["not long and not large and not release"]
    tests += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={place}", *QUICK_TESTS]
    output = rehearsal.run(f"tests-{version}", tests, cwd=place)
    return f"{matrix.cases_of(cases)} cases and {matrix.counts_of(output)['passed']} tests passed"


def sbom(rehearsal: Rehearsal) -> str:
    """Of the wheel and what pip installs with it; then the sums of all that is published."""
    venv, wheel = rehearsal.folder / "bill", rehearsal.wheel()
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", str(wheel)]
    rehearsal.run("bill", pip)
    target = rehearsal.dist / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    command = [str(rehearsal.tools() / "cyclonedx-py"), "environment", "--output-reproducible"]
    rehearsal.run("sbom", [*command, f"--output-file={target}", python])
    told = check_bill(json.loads(target.read_text(encoding="utf-8")), wheel.name.split("-")[1])
    sums = rehearsal.dist / "SHA256SUMS"
    published = sorted(file for file in rehearsal.dist.iterdir() if file != sums)
    sums.write_text("".join(f"{sha256(file)}  {file.name}\n" for file in published))
    rehearsal.run("sums", ["sha256sum", "--check", sums.name], cwd=rehearsal.dist)
    return f"{target.name} ({told}), {sums.name}"


def check_bill(bill: dict[str, Any], version: str) -> str:
    """The bill names this release, and a licence for each thing in it; returns these in words."""
    found = {}
    for component in bill["components"]:
        licences = [
            one.get("expression") or one["license"].get("id") or one["license"].get("name", "")
            for one in component.get("licenses", [])
        ]
        found[component["name"]] = (component.get("version"), " and ".join(filter(None, licences)))
    if found.get("tf-bn-ops") != (version, contents.LICENCE):
        raise Failed(f"the bill of materials has {found.get('tf-bn-ops')} for tf-bn-ops {version}")
    without = [name for name, (_, licence) in found.items() if not licence]
    if without:
        raise Failed(f"nobody says under which licence {', '.join(without)} is")
    return ", ".join(f"{name} {number}: {licence}" for name, (number, licence) in found.items())


def docs(rehearsal: Rehearsal) -> str:
    command = [sys.executable, "tools/docs.py", str(rehearsal.folder / "docs")]
    return rehearsal.run("docs", command).strip()


def tests(rehearsal: Rehearsal) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "release", "tests"]
    counts = matrix.counts_of(rehearsal.run("tests", command))
    return "{passed} tests passed, {skipped} skipped for want of what tests.log names".format(
        **counts
    )


STEPS: dict[str, Callable[[Rehearsal], str]] = {
    step.__name__: step for step in (build, metadata, reproducible, install, sbom, docs, tests)
}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_flags.Parser(__doc__)
    versions = tool_flags.names("TensorFlow", list(matrix.PYTHONS))
    parser.add_argument("--versions", type=versions, default=list(matrix.PYTHONS))
    parser.add_argument("--steps", type=tool_flags.names("step", list(STEPS)), default=list(STEPS))
    parser.add_argument("--environments", type=pathlib.Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--borrow-tensorflow", action="store_true")
    parser.add_argument("--twice", type=versions, default=[])
    flags = parser.parse_args(argv)
    if not set(flags.twice) <= set(flags.versions):
        parser.error("--twice is of --versions")
    return flags


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    rehearsal, passed = Rehearsal(arguments), True
    for name in arguments.steps:
        begin = time.monotonic()
        try:
            said = STEPS[name](rehearsal)
            print(f"  {name:12} passed in {time.monotonic() - begin:4.0f} s: {said}", flush=True)
        except (Failed, wheels.WheelError, matrix.Failed) as failure:
            print(f"  {name:12} FAILED: {failure}", flush=True)
            passed = False
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
