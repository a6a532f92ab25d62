"""What a run prints: a table by op, dtype, layout and mode, then failures and what else to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table

from tf_bn_ops.conformance.judge import CaseResult
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.reports.summary import GROUP, Row, Summary, number, told
from tf_bn_ops.conformance.reports.tally import print_tally

# Failures printed in full; the others are counted.
_SHOWN_FAILURES = 20


def _table(
    headings: Sequence[str],
    rows: Sequence[tuple[Sequence[str], Row]],
    implementations: Sequence[str],
) -> rich.table.Table:
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("evidence", justify="right")
    table.add_column("failed", justify="right")
    for name in implementations:
        table.add_column(f"{name}\nulp", justify="right")
        table.add_column("\nx bound", justify="right")
    for key, row in rows:
        # In the order of the op's outputs.
        evidence = "/".join(map(str, row.evidence.values()))
        cells = [*key, str(row.cases), evidence, str(row.failed)]
        for name in implementations:
            cells += [number(row.worst(name, "ulp")), number(row.worst(name, "bound"))]
        table.add_row(*cells, style="red" if row.failed else None)
    return table


def _say(console: rich.console.Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


def _print_failure(
    console: rich.console.Console, record: dict[str, Any], case: dict[str, Any]
) -> None:
    console.print()
    _say(console, f"FAIL ({case['verdict']}) {case['case']}", "red")
    for failure in case["failures"]:
        _say(console, f"  {failure}")
    _say(console, f"  replay: {record['replay']} {case['case']}")
    if case["script"]:
        _say(console, "  reduced, as a program of its own:\n")
        _say(console, case["script"])


def print_record(console: rich.console.Console, record: dict[str, Any]) -> None:
    """Prints the summary and the failures."""
    summary = Summary.of(record)
    implementations = record["implementations"]
    total = summary.total
    if total.cases:
        every = ("all", *[""] * (len(GROUP) - 1))
        groups = [*summary.groups.items(), (every, total)]
        console.print(_table(GROUP, groups, implementations))
        console.print()
        kinds = [((kind,), row) for kind, row in summary.kinds.items()]
        console.print(_table(("kind of values",), kinds, implementations))
        _say(
            console,
            "\nevidence: cases that are evidence for each output, in the op's order; ulp: the "
            "worst error in units in the last place (denormals left out: they may be flushed to "
            "zero); x bound: in units of the bound, 1 is allowed; -: no answer.",
        )
    print_tally(console, record)
    _say(
        console,
        f"{total.cases} cases; with evidence: {told(total) or 'none'} (the others would pass a "
        "wrong answer too)",
    )
    for name in implementations[1:]:
        if errors := total.errors.get(name):
            _say(
                console,
                f"{name}: outside the candidate's bound in {errors.outside} of {errors.answered} "
                "cases (reported, not judged)",
            )
    for entry in record["divergences"]:
        if entry["covered"]:
            is_stale = record_lib.is_stale(record, entry)
            how = "STALE: never seen" if is_stale else f"seen in {entry['shown']}"
            text = f"known divergence {entry['name']}: {how} of {entry['covered']} cases"
            _say(console, text, "red" if is_stale else None)
    failures = record_lib.failed(record)
    for case in failures[:_SHOWN_FAILURES]:
        _print_failure(console, record, case)
    if len(failures) > _SHOWN_FAILURES:
        _say(console, f"... and {len(failures) - _SHOWN_FAILURES} more cases failed")
    for verdict, count in sorted(total.verdicts.items()):
        if verdict != record_lib.PASSED:
            _say(console, f"failed ({verdict}): {count} of {total.cases} cases")
    stale = record_lib.stale(record)
    passed = record_lib.passed(record)
    _say(
        console,
        f"conformance {'passed' if passed else 'FAILED'}: {len(failures)} of {total.cases} cases "
        f"failed{f', {len(stale)} stale known divergences' if stale else ''}",
        "bold green" if passed else "bold red",
    )
    settings = record["settings"]
    shard = record["shard"]
    part = f"shard {shard['index']} of {shard['count']}, " if shard else ""
    _say(
        console,
        f"TensorFlow {record['versions']['tensorflow']}, seed {settings['seed']}, "
        f"bounds {settings['bounds']}, {part}{record['seconds']:.0f} s",
    )


def print_details(console: rich.console.Console, result: CaseResult) -> None:
    """Prints everything about one case, as --repro does."""
    _say(console, f"{result.case}")
    for name, path in result.paths.items():
        for d in path.disagreements:
            _say(console, f"  {name}: {d.what}: {d.detail}")
        for role, error in path.errors.items():
            _say(
                console,
                f"  {name} {role}: {number(error.ulp)} ulp, {number(error.bound)} x bound, "
                f"worst {error.worst}",
            )
    for note in result.notes:
        _say(console, f"  note: {note}")
    evidence = ", ".join(r for r, e in result.evidence.items() if e) or "no output"
    _say(console, f"  evidence for: {evidence}")
