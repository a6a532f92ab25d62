"""The PEP 517 build backend: setuptools, plus the question which TensorFlow to build against.

The answer, in this order:
1. the Python that the environment variable TF_BN_OPS_PYTHON names;
2. the environment that pip installs into. Under build isolation pip shows its own overlay by
   PYTHONPATH; the same interpreter without that sees the environment behind it;
3. this very interpreter as it is (no build isolation, or the overlay, see below).

Where 1 and 2 have no TensorFlow, the pinned one becomes a build requirement. TensorFlow is no
static build requirement, because then every build would download one, and would build against
that instead of the one that is installed.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
from typing import Any, NamedTuple

import setuptools
from setuptools import build_meta

ROOT = pathlib.Path(__file__).resolve().parent.parent
OLDEST_SETUPTOOLS = 77
STATUS_NO_TENSORFLOW = 3

if int(setuptools.__version__.split(".")[0]) < OLDEST_SETUPTOOLS:
    sys.exit(
        f"error: setuptools {setuptools.__version__} is too old to build tf_bn_ops: run "
        f"'{sys.executable} -m pip install \"setuptools>={OLDEST_SETUPTOOLS}\"', or build without "
        "--no-build-isolation."
    )

build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """setuptools' archive, in an order and with dates that do not depend on the machine."""
    name: str = build_meta.build_sdist(sdist_directory, config_settings)
    path = pathlib.Path(sdist_directory) / name
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    with tarfile.open(path) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = [archive.extractfile(m).read() if m.isfile() else b"" for m in members]  # type: ignore[union-attr]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in zip(members, contents, strict=True):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, len(content), when
            plain.mode = 0o755 if member.mode & 0o100 else 0o644
            archive.addfile(plain, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=when))
    return name


class TensorFlow(NamedTuple):
    """A TensorFlow to build against."""

    python: str
    environment: dict[str, str]
    distribution: str
    version: str
    temporary: bool  # lives in pip's overlay, which is gone after the build

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


def version() -> str:
    """Of the package."""
    text = (ROOT / "tf_bn_ops" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
    if found is None:
        sys.exit('error: tf_bn_ops/_version.py has no line __version__ = "...".')
    return found[1]


def say(progress: str) -> None:
    """A line for the user; pip shows it with -v, and after a failure."""
    print(f"tf_bn_ops: {progress}", file=sys.stderr, flush=True)


def jobs() -> int:
    """How many files to compile at once: MAX_JOBS, or one per processor of this process."""
    chosen = os.environ.get("MAX_JOBS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) else len(os.sched_getaffinity(0))


def _environment(outer: bool) -> dict[str, str]:
    """Environment variables for a child; `outer` sees past pip's build isolation."""
    dropped = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}  # of a make that called us, e.g. make wheel
    if outer:
        dropped |= {"PYTHONPATH", "PYTHONNOUSERSITE"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _ask(python: str, outer: bool) -> TensorFlow | None:
    """The TensorFlow of `python`, None if it has none; a wrong one ends the build."""
    environment = _environment(outer)
    result = subprocess.run(
        [python, str(ROOT / "tools" / "tf_env.py"), "dist"],
        env=environment,
        capture_output=True,
        text=True,
    )
    if result.returncode == STATUS_NO_TENSORFLOW:
        return None
    if result.returncode != 0:
        sys.exit(result.stderr.strip())
    distribution, version = result.stdout.split()
    return TensorFlow(python, environment, distribution, version, temporary=not outer)


@functools.cache
def find_tensorflow(installed_only: bool = False) -> TensorFlow | None:
    """The TensorFlow to build against; `installed_only` leaves out the build's own overlay."""
    chosen = os.environ.get("TF_BN_OPS_PYTHON")
    if chosen:
        found = _ask(chosen, outer=True)
        if found is None:
            sys.exit(f"error: TF_BN_OPS_PYTHON={chosen} has no TensorFlow: install one there.")
        return found
    found = _ask(sys.executable, outer=True)
    if found is None and not installed_only:
        found = _ask(sys.executable, outer=False)
    return found


def requirements(name: str) -> list[str]:
    """The lines of requirements/NAME.txt without comments."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return []


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    if os.environ.get("TF_BN_OPS_PREBUILT") or find_tensorflow(installed_only=True):
        return []
    needed = requirements("tensorflow")
    say(f"no TensorFlow in {sys.executable}: pip downloads one to build against ({needed[0]})")
    return needed


get_requires_for_build_editable = get_requires_for_build_wheel
