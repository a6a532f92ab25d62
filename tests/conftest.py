"""Fixtures shared by all tests; kept small, anything larger belongs to the test that needs it."""

import os
import pathlib
import shutil

import pytest

# Before any test module imports TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The built-in that tests compare with is the documented one, not oneDNN's variant of it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


@pytest.fixture(scope="session")
def repo_root() -> pathlib.Path:
    """The source tree that these tests belong to; against an installed wheel there is none."""
    root = pathlib.Path(__file__).resolve().parent.parent
    if not (root / "Makefile").exists():
        pytest.skip("needs the source tree")
    return root


@pytest.fixture
def other_build(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A copy of the libraries that TF_BN_OPS_LIBRARY names, to be spoiled."""
    from tf_bn_ops import _loader

    folder = tmp_path / "lib"
    shutil.copytree(os.path.dirname(_loader.library_path()), folder)
    if not (folder / _loader.CORE_LIBRARY).exists():  # A package for several TensorFlows.
        shutil.copy(_loader.core_library_path(), folder)
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(folder))
    return folder
