"""A release: one wheel for all TensorFlows, as users install it; version, changelog.

Promised: the wheel is installed by pip without a compiler, and the loader chooses; two builds give
the same bytes; a release without changes or with a wrong version is refused before anything
changes.

The wheel is built for the TensorFlow of this environment, and for a second one where
TF_BN_OPS_ENVIRONMENTS (or build/matrix) holds environments as `make matrix` makes them; without, a
copy of the libraries stands in for the second, which is chosen and not loaded.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys
import time
import zipfile

import pytest
from build_helpers import copy_tree, installed, run, site_packages, tool

from tf_bn_ops import _loader, _version

OWN = ".".join(str(_loader.build_info()["tensorflow_version"]).split(".")[:2])


# ---- Version and changelog ---------------------------------------------------------------------


@pytest.fixture
def sources(repo_root: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """What new_version.py changes, of a release 1.2.0 with one change since."""
    (tmp_path / "tf_bn_ops").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "tf_bn_ops" / "_version.py").write_text('"""Text."""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "docs" / "page.md").write_text("install tf_bn_ops_conformance-1.2.0-py3-none-any\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- A change.\n\n## [1.2.0] - 2026-01-01\n\n- First.\n"
    )
    return tmp_path


def test_a_release_names_its_changes(sources):
    new_version = tool("new_version")
    changed = new_version.release(sources, "1.3.0rc1", "2026-02-03")
    assert changed == ["tf_bn_ops/_version.py", "CHANGELOG.md", "docs/page.md"]
    assert '"1.3.0rc1"' in (sources / "tf_bn_ops" / "_version.py").read_text()
    assert "tf_bn_ops_conformance-1.3.0rc1-py3" in (sources / "docs" / "page.md").read_text()
    headings = re.findall(r"^(?:## .*|- .*)$", (sources / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings == [
        "## [Unreleased]", "## [1.3.0rc1] - 2026-02-03", "- A change.",
        "## [1.2.0] - 2026-01-01", "- First.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("1.3", "'1.3' is no version"),
        ("1.2.0", "1.2.0 is not higher than 1.2.0"),
        ("1.2.0rc1", "1.2.0rc1 is not higher than 1.2.0"),
    ],
)
def test_a_wrong_version_is_refused_before_anything_changes(sources, version, sentence):
    new_version = tool("new_version")
    before = {path: path.read_bytes() for path in sources.rglob("*.*")}
    with pytest.raises(new_version.Refused, match=re.escape(sentence)):
        new_version.release(sources, version, "2026-02-03")
    assert {path: path.read_bytes() for path in sources.rglob("*.*")} == before


def test_a_release_without_changes_is_refused(sources):
    new_version = tool("new_version")
    new_version.release(sources, "1.3.0", "2026-02-03")
    with pytest.raises(new_version.Refused, match="lists no change since the last version"):
        new_version.release(sources, "1.4.0", "2026-02-04")


# ---- The same bytes twice ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"same", "w.whl: the same bytes from another folder, with TensorFlow 2.16, 2.21 compiled"),
        (b"other", "two builds differ in w.whl"),
        (None, "dist/ has no w.whl"),
    ],
    ids=["same", "differ", "missing"],
)
def test_two_builds_are_compared(tmp_path, monkeypatch, first, said):
    """What is built the second time, and how, is the command's; here it writes a file."""
    pytest.importorskip("elftools", reason="needs auditwheel (requirements/dev.txt)")
    check = tool("check")
    commands = []

    def run(log: str, command: list[str], cwd: pathlib.Path, **changes: str) -> str:
        commands.append((command, changes))
        (cwd / "dist").mkdir(exist_ok=True)
        (cwd / "dist" / "w.whl").write_bytes(b"same")
        return ""

    versions = ["2.16", "2.17", "2.21"]
    arguments = f"--versions={' '.join(versions)} --environments={tmp_path} --folder={tmp_path}/f"
    rehearsal = check.Rehearsal(check.parse(re.split(" (?=--)", arguments)))
    assert rehearsal.versions == versions
    monkeypatch.setattr(rehearsal, "run", run)
    rehearsal.dist = tmp_path / "dist"
    rehearsal.dist.mkdir()
    if first:
        (rehearsal.dist / "w.whl").write_bytes(first)
    try:
        result = check.reproducible(rehearsal)
    except check.Failed as failure:
        result = str(failure)
    assert said in result
    (command, changes), _ = commands
    assert "--versions=2.16 2.21" in command and command[-1].startswith("--others=")
    assert not pathlib.Path(changes["CCACHE_DIR"]).exists(), "a compiler cache that is empty"


# ---- The wheel ---------------------------------------------------------------------------------

long = pytest.mark.long


def second_environment(repo_root: pathlib.Path) -> tuple[str, pathlib.Path] | None:
    """(version, its site-packages) of another TensorFlow than this one, newest first."""
    folder = pathlib.Path(os.environ.get("TF_BN_OPS_ENVIRONMENTS", repo_root / "build" / "matrix"))
    found = [path for path in folder.glob("2.*/venv/bin/python") if path.parts[-4] != OWN]
    for python in sorted(found, reverse=True):
        return python.parts[-4], site_packages(python)
    return None


@pytest.fixture(scope="module")
def environments(repo_root: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    """FOLDER/VERSION/venv for the versions of the wheel."""
    folder = tmp_path_factory.mktemp("environments")
    (folder / OWN).mkdir()
    (folder / OWN / "venv").symlink_to(sys.prefix)
    second = second_environment(repo_root)
    if second:
        (folder / second[0]).mkdir()
        (folder / second[0] / "venv").symlink_to(second[1].parents[2])
    return folder


@pytest.fixture(scope="module")
def wheel(repo_root: pathlib.Path, environments: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    """Built by the command of a release, in a copy of the tree with its objects; its path has a
    blank, as many have."""
    for name in ("auditwheel", "setuptools"):
        pytest.importorskip(name, reason="needs requirements/dev.txt and build.txt")
    tree = copy_tree(repo_root, tmp_path_factory.mktemp("release") / "a tree")
    versions = sorted(path.name for path in environments.iterdir())
    if len(versions) == 1:
        add_stand_in(tree)
    command = [sys.executable, "tools/release/wheels.py", f"--versions={' '.join(versions)}"]
    result = run([*command, f"--environments={environments}"], tree)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = (tree / "dist").glob("*.whl")
    return path


def add_stand_in(tree: pathlib.Path) -> None:
    """Makes the copy's wheels.py stage its one version twice, as a TensorFlow 2.16 too."""
    path = tree / "tools" / "release" / "wheels.py"
    text = path.read_text()
    before = "        arguments.dist.mkdir("
    copy = f'        shutil.copytree(stage / "lib_tf{OWN}", stage / "lib_tf2.16")\n'
    assert text.count(before) == 1
    path.write_text(text.replace(before, copy + before))


def minors_of(wheel: pathlib.Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(set(re.findall(r"lib_tf([\d.]+)/", " ".join(archive.namelist()))))


@long
def test_the_wheel_is_one_file_for_every_tensorflow(wheel):
    """Its name, requirements, licence and libraries; smaller than one version's was before.

    Promise: One wheel serves every TensorFlow that is supported.
    """
    contents = tool("contents")
    assert contents.problems(wheel, minors_of(wheel)) == []
    assert len(minors_of(wheel)) == 2
    assert wheel.stat().st_size < 10_000_000
    with zipfile.ZipFile(wheel) as archive:
        cores = [name for name in archive.namelist() if name.endswith(_loader.CORE_LIBRARY)]
    assert cores == [f"tf_bn_ops/lib/{_loader.CORE_LIBRARY}"]


@long
def test_a_spoiled_wheel_is_found_out(wheel, tmp_path):
    contents = tool("contents")
    spoiled = tmp_path / wheel.name.replace("-manylinux", "-linux")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(spoiled, "w") as target:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("/METADATA"):
                content = b"Requires-Dist: tensorflow-cpu==2.21.*\n" + content
            if name.endswith(_loader.OVERRIDE_LIBRARY):
                content = content.replace(b"$ORIGIN:$ORIGIN/../lib", b"/tmp/x:/tmp/abcdef1234")
            if not name.endswith("/LICENSE"):
                target.writestr(name, content)
    told = " ".join(contents.problems(spoiled, [*minors_of(wheel), "2.99"]))
    for wrong in (
        "is not tagged py3-none-manylinux", "it requires tensorflow-cpu==2.21.*",
        "does not hold the file LICENSE",
        "it lacks tf_bn_ops/lib_tf2.99/libtf_bn_ops.so", "looks for libraries in /tmp/x",
    ):  # fmt: skip
        assert wrong in told, told


# The line that Python runs at every start has put the package there.
USES_ALL = """
import sys
assert "tf_bn_ops" in sys.modules
import numpy as np, tensorflow as tf, tf_bn_ops
x, one = np.arange(8, dtype=np.float32).reshape(2, 2, 2, 1), np.ones(1, np.float32)
print(tf.__version__, tf_bn_ops.library_path(), tf_bn_ops._loader.core_library_path())
print(float(tf_bn_ops.fused_batch_norm_grad(x, x, one, one, one).offset_backprop[0]))
print(len(tf_bn_ops.enable(keras=False, fuse=False).kernels))
"""


@long
def test_pip_installs_it_and_the_loader_chooses(wheel, environments, tmp_path):
    """In a fresh environment for each TensorFlow, with nothing that compiles on the path."""
    for folder in sorted(environments.iterdir()):
        version, place = folder.name, tmp_path / folder.name
        place.mkdir()
        begin = time.monotonic()
        python = installed(wheel, place, [site_packages(folder / "venv" / "bin" / "python")])
        assert time.monotonic() - begin < 10, "what users wait for beside TensorFlow"
        how = {"PATH": str(place), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_BN_OPS": "kernels"}
        result = run([python, "-c", USES_ALL], place, **how)
        assert result.returncode == 0, result.stderr
        (tensorflow, library, core), (total,), (overridden,) = map(
            str.split, result.stdout.splitlines()
        )
        assert tensorflow.startswith(f"{version}.")
        assert f"/lib_tf{version}/" in library and library.startswith(str(place))
        assert core.endswith("/tf_bn_ops/lib/libtf_bn_ops_core.so")
        assert (float(total), int(overridden)) == (28.0, 34)
        doctor = run([python, "-m", "tf_bn_ops", "doctor"], place)
        assert doctor.returncode == 0, doctor.stdout


@long
def test_the_sdist_is_the_same_twice(repo_root, tmp_path):
    code = "import sys; sys.path.insert(0, 'tools'); import backend; backend.build_sdist('dist')"
    packed = []
    for name in ("one", "other place"):
        tree = copy_tree(repo_root, tmp_path / name)
        shutil.rmtree(tree / "build", ignore_errors=True)
        result = run([sys.executable, "-c", code], tree, SOURCE_DATE_EPOCH="1000000000")
        assert result.returncode == 0, result.stderr
        (path,) = (tree / "dist").glob("*.tar.gz")
        assert path.name == f"tf_bn_ops-{_version.__version__}.tar.gz"
        packed.append(path.read_bytes())
        time.sleep(1.1)  # Dates of files and archives have seconds.
    assert packed[0] == packed[1]
