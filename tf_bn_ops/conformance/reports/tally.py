"""What a report says of a run besides verdicts: execution modes of its cases, and notes."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

# What a note begins with, after the implementation's name -> the summary of all such notes.
_NOTES = {
    "message": "errors with another text than the built-in's",
    "static:less": "static shapes that say less than the built-in's",
}
_DOES_NOT_APPLY = " does not apply"


def count_modes(record: dict[str, Any]) -> collections.Counter[tuple[str, str, str]]:
    """(implementation, further execution mode, "same" or another state) -> number of cases."""
    return collections.Counter(
        (name, mode, state)
        for case in record["cases"]
        for name, states in case["execution_modes"].items()
        for mode, state in states.items()
    )


@dataclasses.dataclass(frozen=True)
class Notes:
    """The notes of a run, counted.

    Attributes:
      counts: (implementation, what is said) -> number of cases.
      reasons: (implementation, execution mode) -> why it does not apply.
    """

    counts: dict[tuple[str, str], int]
    reasons: dict[tuple[str, str], str]

    @classmethod
    def of(cls, record: dict[str, Any]) -> Notes:
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        reasons: dict[tuple[str, str], str] = {}
        for case in record["cases"]:
            for note in case["notes"]:
                name, what, *rest = note.split(": ", 2)
                if what in _NOTES:
                    counts[name, _NOTES[what]] += 1
                elif what.endswith(_DOES_NOT_APPLY):
                    reasons[name, what.removesuffix(_DOES_NOT_APPLY)] = ": ".join(rest)
        return cls(dict(sorted(counts.items())), dict(sorted(reasons.items())))
