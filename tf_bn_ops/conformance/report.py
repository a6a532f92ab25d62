"""What a run prints: a table by op, dtype, layout and mode, then failures and what else to know."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import rich.console
import rich.table

from tf_bn_ops.conformance import divergences, fills
from tf_bn_ops.conformance.judge import VALUES, CaseResult

# Failures printed in full; the others are counted.
_SHOWN_FAILURES = 20


@dataclasses.dataclass
class _Row:
    """What is known about one op, dtype, layout and mode."""

    cases: int = 0
    evidence: int = 0
    failed: int = 0
    ulp: dict[str, float] = dataclasses.field(default_factory=dict)
    bound: dict[str, float] = dataclasses.field(default_factory=dict)
    wrong: dict[str, int] = dataclasses.field(default_factory=dict)
    answered: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        self.cases += 1
        self.evidence += result.is_evidence
        self.failed += bool(result.failures)
        for name, path in result.paths.items():
            self.wrong.setdefault(name, 0)
            if not path.errors:
                continue
            self.answered[name] = self.answered.get(name, 0) + 1
            kind = fills.KINDS.get(result.case.kind)
            flushed = kind is not None and kind.flushed
            # An answer that is infinite or NaN in the wrong place has an infinite error: `wrong`
            # counts it, and the worst error is that of the others where there are any.
            for worst, value in ((self.ulp, path.ulp), (self.bound, path.bound)):
                if flushed and worst is self.ulp:
                    continue
                if math.isfinite(worst.setdefault(name, value)):
                    worst[name] = max(worst[name], value) if math.isfinite(value) else worst[name]
                else:
                    worst[name] = value
            self.wrong[name] += not path.bound <= 1


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1000:
        return f"{value:.2f}"
    return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")


@dataclasses.dataclass
class Report:
    """Collects the results of a run and prints them.

    Attributes:
      command: what replays a case when the case is appended.
      results: the results so far that failed.
    """

    command: str
    known: divergences.Register
    names: Sequence[str]
    failures: list[CaseResult] = dataclasses.field(default_factory=list)
    rows: dict[tuple[str, str, str, str], _Row] = dataclasses.field(default_factory=dict)
    kinds: dict[str, _Row] = dataclasses.field(default_factory=dict)
    total: _Row = dataclasses.field(default_factory=_Row)
    outputs_with_evidence: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(VALUES, 0)
    )

    def add(self, result: CaseResult) -> None:
        case = result.case
        key = (case.op, case.dtype, case.layout, case.mode)
        self.rows.setdefault(key, _Row()).add(result)
        kind = case.kind.split("/")[0]
        self.kinds.setdefault(kind, _Row()).add(result)
        self.total.add(result)
        for role, is_evidence in result.evidence.items():
            self.outputs_with_evidence[role] += is_evidence
        if result.failures:
            self.failures.append(result)

    @property
    def passed(self) -> bool:
        return not self.failures and not self.known.stale

    def _table(
        self, headings: Sequence[str], rows: Sequence[tuple[Sequence[str], _Row]]
    ) -> rich.table.Table:
        table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
        for heading in headings:
            table.add_column(heading, no_wrap=True)
        table.add_column("cases", justify="right")
        table.add_column("evidence", justify="right")
        table.add_column("failed", justify="right")
        for name in self.names:
            table.add_column(f"{name}\nulp", justify="right")
            table.add_column("\nx bound", justify="right")
        for key, row in rows:
            cells = [*key, str(row.cases), str(row.evidence), str(row.failed)]
            for name in self.names:
                cells += [_number(row.ulp.get(name)), _number(row.bound.get(name))]
            table.add_row(*cells, style="red" if row.failed else None)
        return table

    def print(self, console: rich.console.Console) -> None:
        """Prints the summary and the failures."""
        if self.total.cases:
            console.print(
                self._table(
                    ("op", "dtype", "layout", "mode"),
                    [*sorted(self.rows.items()), (("all", "", "", ""), self.total)],
                )
            )
            console.print()
            console.print(
                self._table(
                    ("kind of values",),
                    [((kind,), row) for kind, row in sorted(self.kinds.items())],
                )
            )
            console.print(
                "\nulp: the worst error in units in the last place (denormals left out: they may "
                "be flushed to zero); x bound: in units of the bound, 1 is allowed; -: no answer.",
                highlight=False,
            )
        counts = ", ".join(f"{role} {n}" for role, n in self.outputs_with_evidence.items())
        console.print(
            f"{self.total.cases} cases; with evidence: {counts} (the others would pass a wrong "
            "answer too)",
            highlight=False,
        )
        for name in self.names[1:]:
            wrong, answered = self.total.wrong.get(name, 0), self.total.answered.get(name, 0)
            console.print(
                f"{name}: outside the candidate's bound in {wrong} of {answered} cases "
                "(reported, not judged)",
                highlight=False,
            )
        for entry in self.known.entries:
            if entry.covered:
                how = "STALE: never seen" if entry.is_stale else f"seen in {entry.shown}"
                console.print(
                    f"known divergence {entry.name}: {how} of {entry.covered} cases",
                    highlight=False,
                    style="red" if entry.is_stale else None,
                )
        for result in self.failures[:_SHOWN_FAILURES]:
            self.print_failure(console, result)
        more = len(self.failures) - _SHOWN_FAILURES
        if more > 0:
            console.print(f"... and {more} more cases failed")
        verdict = "passed" if self.passed else "FAILED"
        failed = f"{len(self.failures)} of {self.total.cases} cases failed"
        stale = f", {len(self.known.stale)} stale known divergences" if self.known.stale else ""
        console.print(
            f"conformance {verdict}: {failed}{stale}",
            style="bold green" if self.passed else "bold red",
            highlight=False,
        )

    def print_failure(self, console: rich.console.Console, result: CaseResult) -> None:
        """Prints one failing case with the command that replays it."""
        console.print(f"\nFAIL {result.case}", style="red", soft_wrap=True, highlight=False)
        for failure in result.failures:
            console.print(f"  {failure}", soft_wrap=True, highlight=False, markup=False)
        console.print(
            f"  replay: {self.command} {result.case}", soft_wrap=True, highlight=False, markup=False
        )

    def print_details(self, console: rich.console.Console, result: CaseResult) -> None:
        """Prints everything about one case, as --repro does."""
        console.print(f"{result.case}", soft_wrap=True, highlight=False)
        for name, path in result.paths.items():
            for d in path.disagreements:
                console.print(f"  {name}: {d.what}: {d.detail}", soft_wrap=True, markup=False)
            for role, error in path.errors.items():
                console.print(
                    f"  {name} {role}: {_number(error.ulp)} ulp, {_number(error.bound)} x bound, "
                    f"worst {error.worst}",
                    soft_wrap=True,
                    highlight=False,
                    markup=False,
                )
        told = ", ".join(r for r, e in result.evidence.items() if e) or "no output"
        console.print(f"  evidence for: {told}", highlight=False)
