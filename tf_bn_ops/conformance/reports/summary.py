"""What tables and plots show of a record: counts and worst errors by group, execution modes of its
cases, and notes."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from tf_bn_ops.conformance.reports import record as record_lib

_Key = TypeVar("_Key", bound=Hashable)

# What the rows of the first table stand for.
GROUP = ("op", "dtype", "layout", "mode")


def group_of(case: record_lib.CaseRecord) -> tuple[str, ...]:
    """Which of these rows a case belongs to."""
    return case["op"], case["dtype"], case["layout"], case["mode"]


@dataclasses.dataclass
class Errors:
    """The errors of one implementation in the cases of a row, the worst output of each case.

    Attributes:
      answered: number of cases in which it gave values.
      outside: number of cases in which a value was outside the candidate's bound.
      ulp, bound: the errors, finite ones, in the order of the cases.
    """

    answered: int = 0
    outside: int = 0
    ulp: list[float] = dataclasses.field(default_factory=list)
    bound: list[float] = dataclasses.field(default_factory=list)

    def add(self, outputs: Mapping[str, record_lib.ErrorRecord]) -> None:
        if not outputs:
            return
        self.answered += 1
        bounds = [o["bound"] for o in outputs.values()]
        self.outside += any(b is None or b > 1 for b in bounds)
        # NaN or infinity in the wrong place has an infinite error: `outside` counts it.
        finite = [b for b in bounds if b is not None]
        if len(finite) == len(bounds):
            self.bound.append(max(finite))
            ulps = [o["ulp"] for o in outputs.values() if o["ulp"] is not None]
            if ulps:
                self.ulp.append(max(ulps))

    def worst(self, unit: str) -> float | None:
        """The largest error in "ulp" or "bound"; infinite where none is finite, None where no
        value was given."""
        values: list[float] = getattr(self, unit)
        if values:
            return max(values)
        return math.inf if self.answered and not self.bound else None

    def median(self, unit: str) -> float | None:
        """The median error in "ulp" or "bound"; None where there is none."""
        values = sorted(getattr(self, unit))
        return values[len(values) // 2] if values else None


@dataclasses.dataclass
class Row:
    """What is known about a group of cases.

    Attributes:
      verdicts: verdict -> number of cases.
      evidence: output -> number of cases that are evidence for it.
      complete: number of cases that are evidence for all their outputs.
      errors: implementation -> its errors.
    """

    cases: int = 0
    verdicts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    evidence: dict[str, int] = dataclasses.field(default_factory=dict)
    complete: int = 0
    errors: dict[str, Errors] = dataclasses.field(default_factory=dict)

    def add(self, case: record_lib.CaseRecord) -> None:
        self.cases += 1
        self.verdicts[case["verdict"]] += 1
        for output, counts in case["evidence"].items():
            self.evidence[output] = self.evidence.get(output, 0) + counts
        self.complete += bool(case["evidence"]) and all(case["evidence"].values())
        for name, answer in case["implementations"].items():
            self.errors.setdefault(name, Errors()).add(answer["outputs"])

    @property
    def failed(self) -> int:
        return self.cases - self.verdicts[record_lib.PASSED]

    def worst(self, implementation: str, unit: str) -> float | None:
        errors = self.errors.get(implementation)
        return errors.worst(unit) if errors else None


def _by(
    cases: Iterable[record_lib.CaseRecord], key: Callable[[record_lib.CaseRecord], _Key]
) -> dict[_Key, Row]:
    rows: dict[_Key, Row] = {}
    for case in cases:
        rows.setdefault(key(case), Row()).add(case)
    return rows


@dataclasses.dataclass(frozen=True)
class Summary:
    """A record in rows.

    Attributes:
      groups: (op, dtype, layout, mode) -> its row, in alphabetical order.
      kinds: kind of inputs -> its row, in alphabetical order.
      total: all cases.
    """

    groups: Mapping[tuple[str, ...], Row]
    kinds: Mapping[str, Row]
    total: Row

    @classmethod
    def of(cls, record: record_lib.Record) -> Summary:
        cases = record["cases"]
        groups = _by(cases, group_of)
        # Of malformed calls one row.
        kinds = _by(cases, lambda case: case["kind"].split("/")[0])
        total = _by(cases, lambda case: None).get(None, Row())
        return cls(dict(sorted(groups.items())), dict(sorted(kinds.items())), total)


@dataclasses.dataclass(frozen=True)
class Worst:
    """The largest error of an implementation in one output of one case."""

    case: str
    output: str
    ulp: float | None
    bound: float
    where: str | None


def worst_cases(record: record_lib.Record, implementation: str, count: int) -> list[Worst]:
    """The cases in which an implementation is farthest off, in units of the bound."""
    found = []
    for case in record["cases"]:
        answer = case["implementations"].get(implementation)
        errors = [
            Worst(case["case"], output, e["ulp"],
                  math.inf if e["bound"] is None else e["bound"], e["worst"])
            for output, e in (answer["outputs"] if answer else {}).items()
        ]  # fmt: skip
        if errors:
            found.append(max(errors, key=lambda worst: worst.bound))
    # Sorting is stable: cases that are equally wrong stay in the order of the run.
    return sorted(found, key=lambda worst: -worst.bound)[:count]


# The judge divides by the smallest normal number where a bound is zero.
_ENDLESS = 1e250


def number(value: float | None) -> str:
    """An error for people: two decimals, or a power of ten; "-" where there is none.

    An error where none is allowed, in units of its bound of zero, is infinite.
    """
    if value is None:
        return "-"
    if value > _ENDLESS:
        return "inf"
    if value < 1000:
        return f"{value:.2f}"
    return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")


def count_modes(record: record_lib.Record) -> collections.Counter[tuple[str, str, str]]:
    """(implementation, further execution mode, "same" or another state) -> number of cases."""
    return collections.Counter(
        (name, mode, state)
        for case in record["cases"]
        for name, states in case["execution_modes"].items()
        for mode, state in states.items()
    )


def count_notes(record: record_lib.Record) -> collections.Counter[str]:
    """A note about an execution mode that does not apply, or one for all errors whose text is not
    the built-in's -> number of cases."""
    counts: collections.Counter[str] = collections.Counter()
    for note in (note for case in record["cases"] for note in case["notes"]):
        name, what, *_ = note.split(": ", 2)
        if what == "message":
            counts[f"{name}: errors with another text than the built-in's"] += 1
        elif what.endswith(" does not apply"):
            counts[note] += 1
    return counts
