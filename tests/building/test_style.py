"""Style and types, by the same commands as `make lint`; names of files."""

from __future__ import annotations

import collections
import importlib.util
import shutil

import pytest
from build_helpers import make

# What a tool looks for by this name in each folder.
CONVENTIONAL_NAMES = {"__init__.py", "conftest.py"}
# Where the build copies libraries, headers and programs to.
BUILT = ("tf_bn_ops/lib", "tf_bn_ops/include", "tf_bn_ops/bin")


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


def test_names_of_sources_are_unique(repo_root):
    """A name in a traceback, a compiler's message or a search is one file."""
    places = collections.defaultdict(list)
    for folder in ("cc", "examples", "tests", "tf_bn_ops", "tools"):
        for path in (repo_root / folder).rglob("*.*"):
            place = path.relative_to(repo_root).as_posix()
            if path.suffix in (".py", ".h", ".cc", ".cu", ".toml") and not place.startswith(BUILT):
                places[path.name].append(place)
    assert len(places) > 300
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: shared[name] for name in shared.keys() - CONVENTIONAL_NAMES} == {}
