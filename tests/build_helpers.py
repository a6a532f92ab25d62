"""Scratch copies of the source tree, clean environments, op libraries: what tests build with."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types
import unittest.mock
from collections.abc import Callable, Iterable
from typing import Any

import forked
import pytest

from tf_bn_ops import _loader

# Not part of the sources; build/ is copied apart.
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "/build", "dist", "lib", "bazel-*", "*.egg-info", "__pycache__", ".*_cache"
)


def environment(**changes: str | None) -> dict[str, str]:
    """os.environ without what an outer make or pytest set; None removes a variable."""
    dropped = ("MAKE", "MFLAGS", "PYTEST", "TF_BN_OPS")
    chosen = ("ARGS", "TESTS", "PYTHON", "PYTHONPATH", "BUILD_DIR", "LIB_DIR", "V")
    result = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(dropped) and name not in chosen
    }
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def run(
    command: Iterable[str | os.PathLike[str]], cwd: pathlib.Path, **changes: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs a command in `cwd`, with its output as text."""
    return subprocess.run(
        [os.fspath(word) for word in command],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=3000,  # Against a hang; a build on a busy machine takes its time.
    )


def call(function: Callable[..., Any], *arguments: Any, **changes: str | None) -> Any:
    """What a function of a test's file returns in a Python of its own, as JSON has it, with the
    library of this one; where it needs TensorFlow, forked.call is faster."""
    program = [sys.executable, "-c", *forked.program_of(function, arguments)]
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    kept = {"PYTHONPATH": path, "TF_BN_OPS_LIBRARY": os.environ.get("TF_BN_OPS_LIBRARY")}
    done = run(program, pathlib.Path.cwd(), **{**kept, **changes})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def make(
    tree: pathlib.Path, *arguments: str, python: str = sys.executable, **changes: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs make in `tree` with this Python, or another one; python="" for make's own .venv."""
    given = [f"PYTHON={python}"] if python else []
    return run(["make", *given, *arguments], tree, **changes)


def copy_tree(repo_root: pathlib.Path, target: pathlib.Path, objects: bool = True) -> pathlib.Path:
    """Copies the sources with their times, and the objects, so that little is compiled again."""
    shutil.copytree(repo_root, target, ignore=_ignored)
    for folder in repo_root.glob("build/cp*") if objects else ():
        shutil.copytree(folder, target / "build" / folder.name, symlinks=True)
    return target


def _ignored(folder: str, names: list[str]) -> set[str]:
    ignored = set(NOT_COPIED(folder, names))
    if "Makefile" in names:
        ignored.add("build")
    return ignored


def tool(name: str) -> types.ModuleType:
    """One of tools/*.py, tools/release/*.py and "bench.NAME", which no package is part of."""
    tools = pathlib.Path(__file__).resolve().parents[1] / "tools"
    if not tools.exists():
        pytest.skip("needs the source tree", allow_module_level=True)
    path = [str(tools), str(tools / "release"), *sys.path]
    with unittest.mock.patch.object(sys, "path", path):  # They import each other.
        return importlib.import_module(name)


def bare_venv(folder: pathlib.Path) -> pathlib.Path:
    """Makes an environment without any package, not even pip; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def site_packages(python: pathlib.Path) -> pathlib.Path:
    """Where the environment of bare_venv keeps its packages."""
    (folder,) = python.parent.parent.glob("lib/python*/site-packages")
    return folder


def installed(
    wheel: pathlib.Path, folder: pathlib.Path, outer: Iterable[str | os.PathLike[str]] | None = None
) -> pathlib.Path:
    """Installs a wheel into a fresh environment below `folder`, as pip does where there is neither
    an index nor any program on the path: what it asks for has to be there already. The environment
    sees the packages of `outer`, of this environment unless given; returns its Python."""
    python = bare_venv(folder / "venv")
    if outer is None:
        outer = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site_packages(python) / "outer.pth").write_text("".join(f"{path}\n" for path in outer))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-cache-dir"]
    result = run([*pip, "--no-index", wheel], folder, PATH=str(folder))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "building" not in result.stdout.lower()
    return python


def fake_tensorflow(folder: pathlib.Path, version: str, code: str = "") -> None:
    """Puts a package into `folder` that looks like an installed TensorFlow."""
    (folder / "tensorflow").mkdir()
    (folder / "tensorflow" / "__init__.py").write_text(code)
    metadata = folder / f"tensorflow_cpu-{version}.dist-info"
    metadata.mkdir()
    (metadata / "RECORD").write_text("tensorflow/__init__.py,,\n")


def edit_build_info(folder: pathlib.Path, **changes: object) -> None:
    """Changes what a copy of the libraries says about itself."""
    path = folder / _loader.BUILD_INFO
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    _loader._installation.cache_clear()


def package_without_build(folder: pathlib.Path) -> pathlib.Path:
    """Puts a copy of the package without libraries into `folder`: a checkout that was not built."""
    source = pathlib.Path(_loader.__file__).parent
    ignored = shutil.ignore_patterns("lib", "lib_tf*", "__pycache__")
    shutil.copytree(source, folder / "tf_bn_ops", ignore=ignored)
    return folder


def tensorflow_without(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Puts a TensorFlow of links to the installed one into `folder`, all but the file `name`."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None and spec.origin is not None
    installed = pathlib.Path(spec.origin).parent
    (folder / "tensorflow").mkdir(parents=True)
    for entry in installed.iterdir():
        if entry.name not in (name, "python"):
            (folder / "tensorflow" / entry.name).symlink_to(entry)
    # The libraries find each other from where they were opened: these are real folders.
    shutil.copytree(
        installed / "python", folder / "tensorflow" / "python", copy_function=os.symlink
    )
    return folder


def built(
    source: pathlib.Path,
    *options: str,
    includes: Iterable[str | os.PathLike[str]] = (),
    libraries: Iterable[pathlib.Path] = (),
) -> pathlib.Path:
    """A C++ file compiled with TensorFlow's own flags and these, headers of some folders and
    libraries that the options name, as another party would; skips the test where there is no
    compiler. It stays below build/, by what it is built of, for other tests and runs: TensorFlow's
    headers take half a minute."""
    import tensorflow as tf

    compiler = shlex.split(os.environ.get("CXX", "g++"))  # Perhaps two words: ccache g++.
    if not shutil.which(compiler[0]):
        pytest.skip("needs a C++ compiler")
    options = (*tf.sysconfig.get_compile_flags(), *options, *tf.sysconfig.get_link_flags())
    version = run([*compiler, "--version"], source.parent).stdout
    words = [tf.version.GIT_VERSION, tf.__version__, version, *compiler, *options]
    digest = hashlib.sha256("\0".join(words).encode())
    headers = (sorted(pathlib.Path(folder).rglob("*.h")) for folder in includes)
    for path in itertools.chain([source], libraries, *headers):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    folder = pathlib.Path(__file__).resolve().parents[1] / "build" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{source.stem}-{digest.hexdigest()[:16]}"
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Other workers wait for it.
        if not target.exists():
            command = [*compiler, "-w", "-o", f"{target}.new", source]
            command += [f"-I{folder}" for folder in includes]
            result = run(map(str, [*command, *options]), folder)
            assert result.returncode == 0, result.stderr[-5000:]
            os.replace(f"{target}.new", target)
    return target


def build_op_library(source: pathlib.Path) -> pathlib.Path:
    """An op library of one C++ file with TensorFlow's own flags."""
    return built(source, "-O1", "-shared", "-fPIC")


def assert_hardened(library: pathlib.Path) -> None:
    """Which memory a library asks for, and where it looks for others; by readelf."""
    command = ["readelf", "--wide", "--dynamic", "--program-headers", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Function pointers of the dynamic linker: resolved at load time, then read-only.
    assert "GNU_RELRO" in text and re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", text)
    # No memory is writable and executable, the stack least of all.
    assert re.search(r"GNU_STACK .* RW +0x", text)
    assert "TEXTREL" not in text and not re.search(r"LOAD .* RWE ", text)
    # Other libraries are looked for beside this one at most, never at a place of the build machine.
    assert "(RPATH)" not in text  # Which would go before LD_LIBRARY_PATH.
    paths = re.findall(r"\(RUNPATH\).*\[(.*)\]", text)
    for path in (path for entry in paths for path in entry.split(":")):
        assert re.fullmatch(r"\$ORIGIN|\$ORIGIN/\.\./(lib|\.\./tensorflow)", path), paths
