"""C++ sources include what is below them in the list of docs/design.md, which is complete."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = (".cc", ".h", ".cu", ".cuh", ".inc")
# The headers that users include.
PUBLIC = ROOT / "cc" / "client" / "include"


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
    assert {path.name for path in (ROOT / "cc").iterdir()} == {f.split("/")[1] for f in layers}


def test_no_include_points_up():
    layers, seen = _layers(), 0
    for file in (ROOT / "cc").rglob("*"):
        if file.suffix not in SOURCES:
            continue
        own = _folder(file.relative_to(ROOT), layers)
        for name in re.findall(r'#include "([^"]+)"', file.read_text(encoding="utf-8")):
            included = PUBLIC / name if (PUBLIC / name).exists() else ROOT / name
            other = _folder(included.relative_to(ROOT), layers) if included.exists() else None
            if other is None:
                continue  # Of TensorFlow, or beside the file.
            seen += 1
            downwards = other == own or layers[other] > layers[own]
            assert downwards, f"{file.relative_to(ROOT)} includes {name}"
    assert seen > 100
