"""The table of docs/evidence.md of what is promised, and of the tests that hold it.

usage: python tools/promises.py

A test says so in a line of its docstring, `Promise: SENTENCE`, which a blank line or the end of the
docstring ends. A promise that goes with its test is a line of the table less, and shows in a diff.
"""

from __future__ import annotations

import ast
import re

import evidence
import tool_flags


def promises() -> list[tuple[str, str]]:
    """(sentence, file::test) of all tests, in the order of the files."""
    found = []
    for path in sorted(evidence.ROOT.glob("tests/*/**/test_*.py")):
        name = path.relative_to(evidence.ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            text = ast.get_docstring(node) or ""
            for promise in re.findall(r"^Promise: (.*?)(?:\n\n|\Z)", text, re.M | re.S):
                found.append((" ".join(promise.split()), f"{name}::{node.name}"))
    return found


def table() -> str:
    cells = [[sentence, f"`{test}`"] for sentence, test in promises()]
    return evidence.as_table(["promise", "test"], cells)


def main() -> None:
    tool_flags.Parser(__doc__).parse_args()
    page = evidence.PAGE.read_text("utf-8")
    evidence.PAGE.write_text(evidence.with_table(page, "promises", table()), "utf-8")


if __name__ == "__main__":
    main()
