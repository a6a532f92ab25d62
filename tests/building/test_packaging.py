"""Packaging: what the sdist and the wheel hold, and what the wheel asks for. That one works when it
is installed, without a compiler, is in test_release.py.

Promised: the wheel holds every file of the package and asks for the TensorFlow that it was built
for.
"""

from __future__ import annotations

import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest
from build_helpers import bare_venv, copy_tree, fake_tensorflow, make, run, site_packages, tool

from tf_bn_ops import _loader, _version
from tf_bn_ops.conformance.cases.mapping import tomllib

setuptools = pytest.importorskip("setuptools", reason="needs requirements/build.txt")


pytestmark = pytest.mark.long

# Of the repository, in the links of the metadata.
PAGES = ("", "/tree/main/docs", "/blob/main/CHANGELOG.md", "/issues")

needs_build_tools = pytest.mark.skipif(
    not (
        int(setuptools.__version__.split(".")[0]) >= 77
        and shutil.which("make")
        and shutil.which("g++")
    ),
    reason="needs setuptools>=77 (requirements/build.txt), make and g++",
)


@pytest.fixture(scope="module")
def tree(repo_root: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the checkout; packaging leaves files in the source tree. There is a blank in the
    path of whatever is built from, as in many a home folder."""
    if not (repo_root / "pyproject.toml").exists():
        pytest.skip("needs the source tree")
    return copy_tree(repo_root, tmp_path_factory.mktemp("packaging") / "a tree")


def backend(tree: pathlib.Path, code: str, python: str = sys.executable, **changes: str) -> str:
    """Runs code that uses the build backend as pip does, and returns its output."""
    code = f"import sys; sys.path.insert(0, 'tools'); import backend\n{code}"
    result = run([python, "-c", code], tree, **changes)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def with_setuptools(folder: pathlib.Path) -> pathlib.Path:
    """Makes what pip shows a build by PYTHONPATH: a folder with setuptools and nothing else."""
    folder.mkdir()
    package = pathlib.Path(setuptools.__file__).parent
    for path in (*package.parent.glob("setuptools*"), *package.parent.glob("_distutils_hack")):
        os.symlink(path, folder / path.name)
    return folder


@pytest.fixture(scope="module")
def sdist(tree: pathlib.Path) -> pathlib.Path:
    backend(tree, "backend.build_sdist('dist')")
    (path,) = (tree / "dist").glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(tree: pathlib.Path, sdist: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    """Built from the unpacked sdist; the tree's objects spare the compile time."""
    folder = tmp_path_factory.mktemp("unpacked") / "an sdist"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    (source,) = folder.iterdir()
    (source / "build").symlink_to(tree / "build")
    backend(source, "backend.build_wheel('dist')")
    (path,) = (source / "dist").glob("*.whl")
    return path


def test_python_and_pages_need_a_wheel_and_no_compiler(wheel, repo_root, tmp_path):
    """As CONTRIBUTING.md says, but for the downloads: from a clone to a test that passes."""
    tree = copy_tree(repo_root, tmp_path / "tree", objects=False)
    (tree / "dist").mkdir()
    shutil.copy(wheel, tree / "dist")
    begin, how = time.monotonic(), {"CXX": "/nowhere/g++", "PATH": os.environ["PATH"]}
    told = make(tree, "PREBUILT=dist/*.whl", "test", "TESTS=tests/ops/test_single_ops.py", **how)
    assert told.returncode == 0, told.stdout + told.stderr
    assert (
        " passed" in told.stdout and "BUILT   nothing" in told.stdout and "CXX " not in told.stdout
    )
    assert time.monotonic() - begin < 600
    again = make(tree, "all", **how)
    assert again.returncode == 0 and "Nothing to be done" in again.stdout, again.stdout
    for wrong, sentence in (
        (["wheel"], "make wheel compiles"),
        (["PREBUILT=x.whl"], "is no wheel"),
    ):
        refused = make(tree, *wrong, **how)
        assert refused.returncode == 2 and sentence in refused.stderr, refused.stderr
    built = make(tree, "-n", "PREBUILT=", "all", CXX="g++")
    assert "CXX     cc/core/" in built.stdout


def test_build_requirements_are_the_same_everywhere(tree):
    listed = tomllib.loads((tree / "pyproject.toml").read_text())["build-system"]["requires"]
    assert listed == [
        line
        for line in (tree / "requirements" / "build.txt").read_text().splitlines()
        if not line.startswith("#")
    ]


def built_by(script: str, tree: pathlib.Path, folder: pathlib.Path, python, **changes: str) -> str:
    """What a build says whose make is this script, which fails."""
    make = folder / "gmake"
    make.write_text(f"#!/bin/sh\n{script}\nexit 1\n")
    make.chmod(0o755)
    command = [python, "-c", "import backend; backend.build_wheel('dist')"]
    result = run(command, tree, PATH=f"{folder}:{os.environ['PATH']}", **changes)
    assert result.returncode == 1, result.stdout
    return result.stderr


@needs_build_tools
def test_the_build_says_what_it_does_and_runs_in_parallel(tree, tmp_path):
    script = "echo '  CXX     all of it:' \"$@\""
    how = {"PYTHONPATH": "tools", "MAX_JOBS": "3", "MAKEFLAGS": ""}
    told = built_by(script, tree, tmp_path, sys.executable, **how)
    says = [line for line in told.splitlines() if "tf_bn_ops: " in line or " CXX " in line]
    info = _loader.build_info()
    what = f"{info['tensorflow_distribution']} {info['tensorflow_version']} of {sys.executable}"
    assert says[0] == (
        f"tf_bn_ops: building the C++ libraries with 3 jobs (MAX_JOBS) for {what}: a few minutes"
    )
    assert says[1].startswith("  CXX     all of it: --no-print-directory -j3 ")
    assert "error: the C++ libraries were not built" in told
    assert "a tree" not in says[1], "make takes no blank in a path"


@needs_build_tools
def test_objects_of_a_passing_tensorflow_are_passing_too(tree, tmp_path):
    """Of one in pip's overlay, which is gone after the build; in the sources, since there may be a
    blank in the path to where temporary files lie."""
    overlay = with_setuptools(tmp_path / "overlay")
    fake_tensorflow(overlay, "2.16.0")
    temporary = tmp_path / "a place"
    temporary.mkdir()
    how = {"PYTHONPATH": f"tools:{overlay}", "TMPDIR": str(temporary)}
    script = 'for word; do echo "word $word"; done'
    told = built_by(script, tree, tmp_path, bare_venv(tmp_path / "venv"), **how)
    (folder,) = re.findall(r"^word BUILD_DIR=(.*)$", told, re.MULTILINE)
    assert re.fullmatch(r"build/\w+", folder) and not (tree / folder).exists()


@needs_build_tools
def test_sdist_holds_all_sources(sdist, repo_root):
    """Promise: The sdist builds by itself."""
    assert sdist.name == f"tf_bn_ops-{_version.__version__}.tar.gz"  # Built against nothing.
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in ("Makefile", "cc/cpu/isa/isa_builds.txt", "tools/backend.py", "mk/exports.map"):
        assert name in names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]
    if (repo_root / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(
            ["git", "ls-files"], cwd=repo_root, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        tracked = {name for name in listed if (repo_root / name).exists()}
        assert tracked - names == set()


@needs_build_tools
def test_wheel_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_string(archive.read(path).decode())
    # The one that was built against, under the name by which it is installed, and in the version:
    # wheels for two of them do not have the same name.
    info = _loader.build_info()
    minor = ".".join(info["tensorflow_version"].split(".")[:2])
    assert metadata["Version"] == f"{_version.__version__}+tf{minor}"
    assert wheel.name.startswith(f"tf_bn_ops-{metadata['Version']}-py3-none-")
    required = [
        value for value in metadata.get_all("Requires-Dist") if value.startswith("tensorflow")
    ]
    required = [value for value in required if "extra" not in value]
    assert required == [f"{info['tensorflow_distribution']}=={minor}.*"]
    assert re.fullmatch(r"tf_bn_ops-.*-py3-none-(linux|manylinux)_\w+\.whl", wheel.name)
    libraries = {name for name in names if name.startswith("tf_bn_ops/lib/")}
    xla = [_loader.XLA_LIBRARY] if info["xla"] else []
    assert libraries == {
        f"tf_bn_ops/lib/{name}"
        for name in (_loader.OP_LIBRARY, *_loader.COMPANIONS, _loader.BUILD_INFO, *xla)
    }
    headers = (f"tf_bn_ops/include/tf_bn_ops/{name}" for name in ("ops.h", "tf_bn_ops_c.h"))
    more = {*headers, "tf_bn_ops/py.typed", "tf_bn_ops.pth"}
    assert more <= {*names}
    assert not [name for name in names if name.startswith(("tests/", "tools/", "cc/"))]


@needs_build_tools
@pytest.mark.parametrize("home", ["", "https://forge.example/them/tf_bn_ops/"])
def test_links_are_those_of_the_repository_that_builds(tree, home):
    name = backend(tree, "print(backend.prepare_metadata_for_build_wheel('.'))", PROJECT_URL=home)
    text = (tree / name.split()[-1] / "METADATA").read_text("utf-8")
    metadata = email.message_from_string(text)
    links = dict(link.split(", ") for link in metadata.get_all("Project-URL", []))
    assert set(links.values()) == ({home.rstrip("/") + page for page in PAGES} if home else set())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert "Typing :: Typed" in metadata.get_all("Classifier")


@needs_build_tools
def test_wheel_holds_every_file_of_the_package(wheel, tree):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = {
        str(path.relative_to(tree))
        for path in (tree / "tf_bn_ops").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "lib" not in path.parts
    }
    assert files - names == set()


@needs_build_tools
def test_tensorflow_is_a_build_requirement_where_there_is_none(tree, tmp_path):
    """pip shows a build its overlay by PYTHONPATH; the environment behind it counts. A TensorFlow
    that does not fit ends the build, rather than that another one is put beside or over it."""
    overlay, python = with_setuptools(tmp_path / "overlay"), bare_venv(tmp_path / "venv")
    code = "print(*backend.get_requires_for_build_wheel(), sep='\\n')"
    output = backend(tree, code, python=str(python), PYTHONPATH=str(overlay))
    lines = (tree / "requirements" / "tensorflow.txt").read_text().splitlines()
    assert output.splitlines() == [line for line in lines if not line.startswith("#")]
    fake_tensorflow(overlay, "2.16.0")
    code = "print(backend.find_tensorflow().version, backend.get_requires_for_build_wheel())"
    output = backend(tree, code, PYTHONPATH=str(overlay))
    assert output.split() == [_loader.build_info()["tensorflow_version"], "[]"]
    fake_tensorflow(site_packages(python), "2.9.0")
    command = [sys.executable, "-c", "import backend; backend.get_requires_for_build_wheel()"]
    result = run(command, tree, PYTHONPATH="tools", TF_BN_OPS_PYTHON=str(python))
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "TensorFlow 2.9.0" in result.stderr
    assert tool("tf_env").supported_versions() in result.stderr
