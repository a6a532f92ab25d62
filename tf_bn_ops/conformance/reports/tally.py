"""What a report says of a run besides verdicts: further calls of its cases, and notes."""

from __future__ import annotations

import collections
from typing import Any

import rich.console
import rich.table

from tf_bn_ops.conformance.calls import CALLS

# What a note begins with, after the implementation's name -> what is said of all of them.
_NOTES = {
    "message": "errors with another text than the built-in's",
    "static:less": "static shapes that say less than the built-in's",
}
_DOES_NOT_APPLY = " does not apply"


def count_calls(record: dict[str, Any]) -> collections.Counter[tuple[str, str, str]]:
    """(implementation, further call, "same" or another state of it) -> number of cases."""
    return collections.Counter(
        (name, call, state)
        for case in record["cases"]
        for name, states in case["calls"].items()
        for call, state in states.items()
    )


def print_tally(console: rich.console.Console, record: dict[str, Any]) -> None:
    """Prints a table of calls, where there were any, and a line for each kind of note."""
    calls = count_calls(record)
    notes: collections.Counter[tuple[str, str]] = collections.Counter()
    reasons: dict[tuple[str, str], str] = {}
    for case in record["cases"]:
        for note in case["notes"]:
            name, what, *rest = note.split(": ", 2)
            if what in _NOTES:
                notes[name, what] += 1
            elif what.endswith(_DOES_NOT_APPLY):
                reasons[name, what.removesuffix(_DOES_NOT_APPLY)] = ": ".join(rest)
    if calls:
        names = [n for n in record["implementations"] if any(key[0] == n for key in calls)]
        table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("called as well", no_wrap=True)
        for name in names:
            table.add_column(f"{name}\nsame bits", justify="right")
            table.add_column("\nother", justify="right")
        for call in CALLS:
            if not any(key[1] == call for key in calls):
                continue
            cells = [f"{call} ({CALLS[call].what})"]
            for name in names:
                same, differs = (calls[name, call, state] for state in ("same", "differs"))
                cells += [str(same), str(differs)] if same or differs else ["-", "-"]
            table.add_row(*cells)
        console.print(table)
        for (name, call), why in sorted(reasons.items()):
            count = calls[name, call, "unsupported"]
            console.print(
                f"{call} does not apply to {name} in {count} cases: {why}", soft_wrap=True
            )
        console.print()
    for (name, what), count in sorted(notes.items()):
        console.print(f"{name}: {_NOTES[what]} in {count} cases (told, not judged)")
