"""The tests of the device code notice wrong device code (tests/mutants/device_mutants.toml).

Promised of each mutant: built into the host emulator, it fails one of the tests of every change
that are named with it, of tests/core/test_gpu_emulator.py or test_two_level_sums.py, and not by
failing to compile.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import shutil
import sys
from typing import Any

import pytest
from build_helpers import NOT_COPIED, run

from tf_bn_ops import _loader

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "mutants"
sys.path.insert(0, str(FOLDER))

import run as mutants  # noqa: E402

MUTANTS = mutants.load_mutants(FOLDER / "device_mutants.toml", key="tests")
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not long and not large and not release"]
TESTS = [f"tests/core/test_{name}.py" for name in ("gpu_emulator", "two_level_sums")]
pytestmark = [pytest.mark.long, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]


@pytest.fixture(scope="module")
def tree(repo_root: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of what the emulator and its tests are made of."""
    copy = tmp_path_factory.mktemp("mutants") / "tree"
    for folder in ("cc", "tests", "tools", "tf_bn_ops"):
        shutil.copytree(repo_root / folder, copy / folder, ignore=NOT_COPIED)
    for file in ("Makefile", "pyproject.toml"):
        shutil.copy(repo_root / file, copy)
    return copy


def _parameters() -> list[Any]:
    """One mutant a day belongs to the long tier, in turn; all to the release tier."""
    today = datetime.date.today().toordinal() % len(MUTANTS)
    return [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.release] * (i != today))
        for i, mutant in enumerate(MUTANTS)
    ]


@pytest.mark.parametrize("mutant", _parameters())
def test_a_test_fails(tree, mutant):
    file = tree / mutant.file
    original = file.read_text()
    file.write_text(mutant.apply(original))
    try:
        result = run(
            [sys.executable, "-m", "pytest", *OPTIONS, "-k", mutant.tests, *TESTS],
            tree,
            TF_BN_OPS_LIBRARY=os.path.dirname(_loader.core_library_path()),
        )
    finally:
        file.write_text(original)
    assert "CalledProcessError" not in result.stdout, "it does not compile: " + result.stderr
    # A mutant that accesses what it must not may end the process.
    assert result.returncode == 1 or result.returncode < 0, f"not noticed: {mutant.what}"
    assert result.returncode < 0 or " failed" in result.stdout.splitlines()[-1], result.stdout
