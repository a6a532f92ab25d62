"""A table for the terminal and for Markdown, and numbers as its cells."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_bn_ops.bench import implementations


@dataclasses.dataclass
class Table:
    """Cells as text; the first `left` columns are words, the others numbers."""

    title: str
    headings: list[str]
    left: int
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def note(self, text: str) -> str:
        """The mark of a footnote."""
        if text not in self.notes:
            self.notes.append(text)
        return f"[{self.notes.index(text) + 1}]"

    def markdown(self) -> str:
        """The table and its notes, without the title."""
        sides = ["---" if i < self.left else "---:" for i in range(len(self.headings))]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.headings, sides, *self.rows)]
        if self.notes:
            lines += ["", *(f"- [{i + 1}] {_escaped(n)}" for i, n in enumerate(self.notes))]
        return "\n".join(lines)

    def print(self, console: Any) -> None:
        """To the terminal."""
        import rich.table

        table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
        for i, heading in enumerate(self.headings):
            table.add_column(heading, no_wrap=True, justify="left" if i < self.left else "right")
        for row in self.rows:
            style = "red" if any("wrong" in cell for cell in row) else None
            table.add_row(*(cell.replace("[", "\\[") for cell in row), style=style)
        console.print(f"\n{self.title}", style="bold", highlight=False)
        console.print(table)
        for i, note in enumerate(self.notes):
            console.print(f"[{i + 1}] {note}", highlight=False, markup=False, soft_wrap=True)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def time_text(us: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def bytes_text(value: float) -> str:
    if abs(value) >= 1 << 20:
        return f"{value / (1 << 20):.1f} MiB"
    return f"{value / (1 << 10):.0f} KiB"


def times_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def label(name: str) -> str:
    return implementations.ENTRIES[name].label
