"""C++ sources include what is below them in the list of docs/design.md, which is complete; names of
files. `make lint` checks what is in them.

Promised: nothing below `cc/tf/ops` includes TensorFlow, and no include points up; no two sources
have the same base name.
"""

import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = (".cc", ".h", ".cu", ".cuh", ".inc")
# The headers that users include.
PUBLIC = ROOT / "cc" / "client" / "include"
# What a tool looks for by this name in each folder.
CONVENTIONAL_NAMES = {"__init__.py", "conftest.py"}
# Where the build copies libraries and headers to.
BUILT = ("tf_bn_ops/lib", "tf_bn_ops/include")


def _layers():
    """Folder -> its place in the list, counted from the top; folders of one line share it."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (cc/\w[\w/]*(?:, cc/\w[\w/]*)*)  ", text, re.MULTILINE)
    return {folder: i for i, line in enumerate(lines) for folder in line.split(", ")}


def _folder(path, layers):
    """The folder of the list that a source belongs to: the longest one."""
    inside = [folder for folder in layers if f"{path}".startswith(f"{folder}/")]
    return max(inside, key=len, default=None)


def test_every_folder_has_its_layer():
    layers = _layers()
    folders = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cc").glob("*")}
    folders |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "cc/tf").glob("*")}
    assert folders - {"cc/tf"} == set(layers)


def test_no_include_points_up():
    layers, seen = _layers(), 0
    for file in (ROOT / "cc").rglob("*"):
        if file.suffix not in SOURCES:
            continue
        own = _folder(file.relative_to(ROOT), layers)
        for name in re.findall(r'#include ["<]([^">]+)', file.read_text(encoding="utf-8")):
            if name.startswith("tensorflow/"):
                assert layers[own] <= layers["cc/tf/ops"], f"{file.name} includes {name}"
            included = PUBLIC / name if (PUBLIC / name).exists() else ROOT / name
            other = _folder(included.relative_to(ROOT), layers) if included.exists() else None
            if other is None:
                continue  # Of others, or beside the file.
            seen += 1
            downwards = other == own or layers[other] > layers[own]
            assert downwards, f"{file.relative_to(ROOT)} includes {name}"
    assert seen > 100


def test_names_of_sources_are_unique():
    """A name in a traceback, a compiler's message or a search is one file."""
    places = collections.defaultdict(list)
    for folder in ("cc", "examples", "tests", "tf_bn_ops", "tools"):
        for path in (ROOT / folder).rglob("*.*"):
            place = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".h", ".cc", ".cu", ".toml") and not place.startswith(BUILT):
                places[path.name].append(place)
    assert len(places) > 300
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: shared[name] for name in shared.keys() - CONVENTIONAL_NAMES} == {}
