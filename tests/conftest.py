"""Fixtures shared by all tests; kept small, anything larger belongs to the test that needs it."""

import os
import pathlib
import shutil

import pytest

# Before any test module imports TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The built-in that tests compare with is the documented one, not oneDNN's variant of it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with nothing but long tests first, then those with most of them, then the largest: each
    goes to one worker (make test), and the others are idle while a long one ends last."""
    of_file: dict[pathlib.Path, list[bool]] = {}
    for item in items:
        is_long = item.get_closest_marker("long") is not None
        of_file.setdefault(item.path, []).append(is_long)
    order = {path: (not all(long), -sum(long), -len(long)) for path, long in of_file.items()}
    items.sort(key=lambda item: order[item.path])


@pytest.fixture(scope="session")
def repo_root() -> pathlib.Path:
    """The source tree that these tests belong to; against an installed wheel there is none."""
    root = pathlib.Path(__file__).resolve().parent.parent
    if not (root / "Makefile").exists():
        pytest.skip("needs the source tree")
    return root


@pytest.fixture
def startup_file(repo_root: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with what pip installs into site-packages; Python runs its line at every start."""
    folder = tmp_path / "startup"
    folder.mkdir(mode=0o755)
    shutil.copy(repo_root / "tools" / "tf_bn_ops.pth", folder)
    return folder


@pytest.fixture
def other_build(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A copy of the libraries that TF_BN_OPS_LIBRARY names, to be spoiled."""
    from tf_bn_ops import _loader

    folder = tmp_path / "lib"
    shutil.copytree(os.path.dirname(_loader.library_path()), folder)
    if not (folder / _loader.CORE_LIBRARY).exists():  # A package for several TensorFlows.
        shutil.copy(_loader.core_library_path(), folder)
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(folder))
    _loader._installation.cache_clear()
    return folder


@pytest.fixture(scope="session")
def library() -> pathlib.Path:
    """Ops and a device of another library."""
    from build_helpers import build_op_library

    return build_op_library(pathlib.Path(__file__).resolve().parent / "conformance" / "vendor.cc")


@pytest.fixture(autouse=True)
def _silent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conformance runs say nothing on stderr of how far they are, however slow the machine is."""
    if request.path.parent.name == "conformance":
        from tf_bn_ops.conformance.reports import terminal

        monkeypatch.setattr(terminal, "HEARTBEAT", 3600.0)
