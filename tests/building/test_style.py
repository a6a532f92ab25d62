"""Names of files; `make lint` checks what is in them."""

from __future__ import annotations

import collections

# What a tool looks for by this name in each folder.
CONVENTIONAL_NAMES = {"__init__.py", "conftest.py"}
# Where the build copies libraries and headers to.
BUILT = ("tf_bn_ops/lib", "tf_bn_ops/include")


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
