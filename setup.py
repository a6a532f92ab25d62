"""What pyproject.toml cannot say: the libraries come from the Makefile, the TensorFlow that was
built against becomes a requirement and a part of the version, and the wheel fits any Python 3 of
its platform.

The environment can say otherwise, for tools/release/wheels.py and for cross builds:
  TF_BN_OPS_PREBUILT   a folder of libraries, laid out as the package, that go into the wheel in the
                       place of a build. They choose among themselves when they are loaded: nothing
                       is required, and the version has no addition.
  TF_BN_OPS_PLATFORM   the platform of the wheel, such as linux_aarch64.
  PROJECT_URL          the repository that a release is built from, for the links of an index.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import backend  # noqa: E402

PREBUILT = os.environ.get("TF_BN_OPS_PREBUILT", "")
PLATFORM = os.environ.get("TF_BN_OPS_PLATFORM", "")


def built_against() -> backend.TensorFlow | None:
    """None for what fits several: an sdist, and a wheel of libraries for several."""
    return None if PREBUILT or "sdist" in sys.argv else backend.find_tensorflow()


def version() -> str:
    """With the TensorFlow that was built against: wheels for two of them are two versions."""
    tensorflow = built_against()
    public = backend.version()
    return f"{public}+tf{tensorflow.minor}" if tensorflow else public


def dependencies() -> list[str]:
    """The runtime requirements and the minor version of the TensorFlow that was built against.

    By the name under which it is installed (tensorflow, tensorflow-cpu, ...): another name would
    make pip install a second TensorFlow over the first.
    """
    tensorflow = built_against()
    if PREBUILT:
        return backend.requirements("runtime")
    if tensorflow is None:  # an sdist, or metadata alone: nothing was built against anything
        return backend.requirements("runtime") + backend.requirements("tensorflow")
    return [*backend.requirements("runtime"), f"{tensorflow.distribution}=={tensorflow.minor}.*"]


def urls() -> dict[str, str]:
    """None without PROJECT_URL: the sources do not know where they are published."""
    home = os.environ.get("PROJECT_URL", "").rstrip("/")
    pages = {
        "Homepage": "",
        "Documentation": "/tree/main/docs",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Source": "",
        "Issues": "/issues",
    }
    return {name: home + page for name, page in pages.items()} if home else {}


def _seen_by_make(folder: str | pathlib.Path) -> str:
    """Relative: in the path to the sources may be blanks, which make cannot take."""
    return os.path.relpath(folder, ROOT)


class BuildLibraries(Command):
    """Runs the Makefile for tf_bn_ops/lib; it knows all sources and flags."""

    description = "build the C++ libraries"
    user_options = []  # noqa: RUF012

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        if PREBUILT:
            target = ROOT / str(self.build_lib) / "tf_bn_ops"
            shutil.copytree(PREBUILT, target, dirs_exist_ok=True)
            return
        tensorflow = backend.find_tensorflow()
        if tensorflow is None:
            sys.exit(
                f"error: no TensorFlow in {sys.executable}: install one first (pip install "
                f"'{backend.requirements('tensorflow')[0].split(';')[0]}'), or build without "
                "--no-build-isolation."
            )
        make = shutil.which("gmake") or shutil.which("make")
        if make is None:
            sys.exit("error: GNU make was not found: install it (Debian/Ubuntu: apt install make).")
        package = ROOT if self.editable_mode else ROOT / str(self.build_lib)
        command = [
            make,
            "--no-print-directory",
            f"-j{backend.jobs()}",
            f"PYTHON={tensorflow.python}",
            "ISAS=all",
            f"LIB_DIR={_seen_by_make(package / 'tf_bn_ops' / 'lib')}",
            "all",
        ]
        backend.say(
            f"building the C++ libraries with {backend.jobs()} jobs (MAX_JOBS) for "
            f"{tensorflow.distribution} {tensorflow.version} of {tensorflow.python}: a few minutes"
        )
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            if tensorflow.temporary:  # its objects are of no use to a later build
                build = ROOT / "build"
                build.mkdir(exist_ok=True)
                objects = tempfile.TemporaryDirectory(dir=build)
                command.append(f"BUILD_DIR={_seen_by_make(stack.enter_context(objects))}")
            # A line per file, on stderr as all progress.
            made = subprocess.run(command, cwd=ROOT, env=tensorflow.environment, stdout=sys.stderr)
            if made.returncode != 0:
                sys.exit("error: the C++ libraries were not built: make's message above says why.")
        backend.say(f"built the C++ libraries in {time.monotonic() - start:.0f} s")
        if not self.editable_mode:
            (package / "tf_bn_ops" / "lib" / ".environment").unlink()  # of make alone

    def get_source_files(self) -> list[str]:
        return []  # the sdist takes them by MANIFEST.in

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    """The usual steps, then the libraries."""

    sub_commands = [*build.sub_commands, ("build_libraries", None)]  # noqa: RUF012


class BuildPy(build_py):
    """Starts from an empty folder: files of an earlier build do not end in the wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            # Into site-packages: TF_BN_OPS=1 then reaches programs that do not import us.
            shutil.copy(ROOT / "tools" / "tf_bn_ops.pth", self.build_lib)


class PlatformDistribution(Distribution):
    """Has compiled code, although there is no Extension."""

    def has_ext_modules(self) -> bool:
        return True


class BdistWheel(bdist_wheel):
    """py3-none-PLATFORM: the libraries use TensorFlow's C++ ABI and nothing of Python's."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", PLATFORM or super().get_tag()[2])


setup(
    version=version(),
    install_requires=dependencies(),
    project_urls=urls(),
    distclass=PlatformDistribution,
    cmdclass={
        "bdist_wheel": BdistWheel,
        "build": Build,
        "build_libraries": BuildLibraries,
        "build_py": BuildPy,
    },
)
