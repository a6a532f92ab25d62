"""Writes a header of the C ABI as it is installed: one file of plain C.

    python tools/c_header.py cc/c_api/tf_bn_ops_c.h > tf_bn_ops_c.h

What it includes of the tree stands in it, without what C++ sees there: in the tree the struct of a
call has the core's types, elsewhere C's, which have the same layout.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

import tool_flags

ROOT = pathlib.Path(__file__).resolve().parent.parent
C_API = "cc/c_api/"
INCLUDE = re.compile(r'#include "(cc/.+)"')
# What a header has on its own account: a comment in front, and what includes it once.
FRONT = re.compile(r"\A(?:// clang-format off\n)?/\*.*?\*/\n\n#pragma once\n", re.S)
LEFT_OUT = re.compile(r"#(?:define|undef) TFBN_CPP|#include <stdint.h>")
TYPES = re.compile(r"TFBN_CPP\((\w+), (\w+)\)")


def plain(header: pathlib.Path | str) -> str:
    """The text of a header of the tree with what it includes of the tree, but for headers of the C
    ABI, which lie beside it."""
    lines = []
    for line in (ROOT / header).read_text("utf-8").splitlines():
        found = INCLUDE.fullmatch(line)
        if found is None:
            lines.append(line)
        elif found[1].startswith(C_API):
            lines.append(f'#include "{found[1].removeprefix(C_API)}"')
        else:
            text = FRONT.sub("", (ROOT / found[1]).read_text("utf-8"))
            lines += [TYPES.sub(r"\2", each) for each in without_cplusplus(text.splitlines())]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def without_cplusplus(lines: list[str]) -> Iterator[str]:
    """What a compiler of C sees of conditions on __cplusplus; nor what is for the types."""
    # Of each open condition: whether it is on __cplusplus, and whether C sees this branch.
    conditions: list[tuple[bool, bool]] = []
    for line in lines:
        word = re.match(r"#\s*(if|else|endif)", line)
        if word and word[1] == "if":
            is_on_it = "__cplusplus" in line
            conditions.append((is_on_it, not is_on_it or line.startswith("#ifndef")))
        elif word and word[1] == "else":
            is_on_it, sees = conditions[-1]
            conditions[-1] = (is_on_it, sees != is_on_it)
        is_own = bool(word) and conditions[-1][0]
        is_left_out = is_own or LEFT_OUT.match(line)
        if all(sees for _, sees in conditions) and not is_left_out:
            yield line
        if word and word[1] == "endif":
            conditions.pop()


if __name__ == "__main__":
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("header", type=pathlib.Path)
    sys.stdout.write(plain(parser.parse_args().header))
