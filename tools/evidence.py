"""What recorded runs have in common: of which sources they are, where they are kept and shown.

A run adds its rows to docs/evidence/NAME.json, each with the hash of the sources that it ran on,
and writes the table NAME of docs/evidence.md from all rows. Uses the standard library alone.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "evidence"
PAGE = ROOT / "docs" / "evidence.md"
# What is compiled and installed. Tests and docs may change without a new run.
_INSTALLED = (
    *("Makefile", "cc", "mk", "pyproject.toml", "setup.py", "tf_bn_ops", "tools/backend.py"),
    *("tools/c_header.py", "tools/list_flags.sh", "tools/tf_bn_ops.pth", "tools/tf_env.py"),
    *(f"requirements/{name}.txt" for name in ("build", "commands", "runtime")),
)
_NO_SOURCE = re.compile(r"tf_bn_ops/(lib|include|bin)|.*(__pycache__|\.(pyc|so|md)$)")

Rows = dict[str, dict[str, Any]]


def source() -> str:
    """The hash of names and contents of what is built and installed."""
    result = hashlib.sha256()
    for place in map(ROOT.joinpath, _INSTALLED):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and not _NO_SOURCE.match(name):
                result.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return result.hexdigest()[:16]


def rows(name: str) -> Rows:
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def record(name: str, new: Mapping[str, dict[str, Any]], table: Callable[[Rows], str]) -> None:
    """Adds rows, or replaces rows of the same key, and writes the table of all."""
    said = {"source": source(), "date": f"{datetime.date.today()}"}
    kept = dict(sorted((rows(name) | {key: {**row, **said} for key, row in new.items()}).items()))
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(kept, indent=1) + "\n"
    (FOLDER / f"{name}.json").write_text(text, "utf-8")
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), name, table(kept)), "utf-8")


def with_table(page: str, name: str, table: str) -> str:
    """The page with another table between the markers of that name."""
    before, begin, rest = page.partition(f"<!-- {name}: ")
    remark, _, rest = rest.partition("\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    assert begin and end, f"the page has no place for {name}"
    return f"{before}{begin}{remark}\n{table}\n{end}{after}"


def as_table(columns: list[str], cells: list[list[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in [columns, *cells]]
    lines.insert(1, "|---" * len(columns) + "|")
    return "\n".join(lines)
