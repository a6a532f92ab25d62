"""Draws a conformance report as the README's picture, an SVG of a few kilobytes.

usage: python -m tf_bn_ops conformance ... | python tools/report_picture.py FILE [COMMAND]

The picture has the command (default: make conformance), the verdict with the claims that failed,
rows of the table by op, and the last lines of the report.
"""

from __future__ import annotations

import html
import pathlib
import re
import sys
import textwrap

import tool_flags

ROWS = 12
LAST_LINES = 2
WIDTH = 118  # Of a line of the command.
CHARACTER, LINE, MARGIN = 7.23, 17, 12  # Pixels of a 12-pixel monospace font.
# Text -> its colour: a verdict, and errors beyond any bound.
COLOURS = {
    r"conformance passed": "#7ee787",
    r"conformance FAILED|^FAIL\b": "#ff7b72",
    r"\binf\b|\b\d\.\de\d+\b": "#ffa657",
}


def excerpt(report: str, command: str) -> list[str]:
    """The verdict, headings and evenly chosen rows of the first table, the end of the report."""
    lines = [line.rstrip() for line in report.splitlines()]
    begin = next(i for i, line in enumerate(lines) if line.startswith("op "))
    end = next(i for i in range(begin, len(lines)) if not lines[i])
    rows = lines[begin + 1 : end]
    chosen = [rows[i * len(rows) // ROWS] for i in range(ROWS)] if len(rows) > ROWS else rows
    failed = [line for line in lines[:begin] if re.match("FAIL |  first: ", line)]
    tail = [line for line in lines if line][-LAST_LINES:]
    called = " \\\n".join(textwrap.wrap(f"$ {command}", WIDTH, subsequent_indent="      "))
    return [*called.splitlines(), *failed, "", *lines[begin - 1 : begin + 1], *chosen, "...", *tail]


def _colored(line: str) -> str:
    # Spaces that renderers keep: xml:space is not among what all of them know.
    text = re.sub(" {2,}", lambda run: "\u00a0" * len(run[0]), html.escape(line))
    for pattern, colour in COLOURS.items():
        text = re.sub(pattern, rf'<tspan fill="{colour}">\g<0></tspan>', text)
    return text


def draw(lines: list[str]) -> str:
    """The lines as they look in a terminal."""
    width = round(max(map(len, lines)) * CHARACTER + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12" fill="#e6edf3">',
        f'<rect width="{width}" height="{height}" rx="6" fill="#0d1117"/>',
    ]
    for i, line in enumerate(lines):
        if line:
            y = MARGIN + 12 + i * LINE
            length = round(len(line) * CHARACTER)
            parts.append(
                f'<text x="{MARGIN}" y="{y}" textLength="{length}">{_colored(line)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main(argv: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("command", nargs="?", default="make conformance")
    flags = parser.parse_args(argv)
    report = sys.stdin.read()
    if not re.search(r"^op ", report, re.M):
        parser.error("standard input is not a conformance report: run it as --help says")
    flags.picture.write_text(draw(excerpt(report, flags.command)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
