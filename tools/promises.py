"""The table of docs/evidence.md of what is promised, and of the tests that hold it.

usage: python tools/promises.py [--check]

A test says so in its docstring, by a paragraph `Promise: SENTENCE`; a file of tests in its own, by
one that begins with `Promised`. A promise that goes with its test is a line of the table less, and
shows in a diff. --check writes nothing: status 1 where the table is not the one of the tests.
"""

from __future__ import annotations

import ast
import re
import sys

import evidence
import tool_flags


def promises() -> list[tuple[str, str]]:
    """(sentence, file or file::test), in the order of the files."""
    found = []
    for path in sorted(evidence.ROOT.glob("tests/*/**/test_*.py")):
        module = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(module):
            if not isinstance(node, (ast.Module, ast.FunctionDef)):
                continue
            of_test = f"::{node.name}" if isinstance(node, ast.FunctionDef) else ""
            text = ast.get_docstring(node) or ""
            for promise in re.findall(r"^Promised?\b[:,]? (.*?)(?:\n\n|\Z)", text, re.M | re.S):
                sentence = " ".join(promise.split())
                name = path.relative_to(evidence.ROOT).as_posix()
                found.append((sentence[:1].upper() + sentence[1:], name + of_test))
    return found


def page() -> str:
    """docs/evidence.md with the table of now."""
    cells = [[sentence.replace("|", "\\|"), f"`{test}`"] for sentence, test in promises()]
    table = evidence.as_table(["promise", "test"], cells)
    return evidence.with_table(evidence.PAGE.read_text("utf-8"), "promises", table)


def main(argv: list[str] | None = None) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="fail where it is stale")
    if parser.parse_args(argv).check:
        is_stale = page() != evidence.PAGE.read_text("utf-8")
        if is_stale:
            print("error: docs/evidence.md is stale: run python tools/promises.py", file=sys.stderr)
        return int(is_stale)
    evidence.PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
