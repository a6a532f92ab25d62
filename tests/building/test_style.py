"""Style and types, by the same commands as `make lint`."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
from build_helpers import make


@pytest.mark.parametrize(
    ("target", "tools"),
    [("lint-python", ["ruff"]), ("lint-types", ["mypy"]), ("lint-cxx", ["clang_format"])],
)
def test_style(repo_root, target, tools):
    if not shutil.which("make"):
        pytest.skip("needs make")
    for tool in tools:
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"needs {tool} (requirements/dev.txt)")
    result = make(repo_root, target)
    assert result.returncode == 0, result.stdout + result.stderr
