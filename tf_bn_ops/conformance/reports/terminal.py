"""What a run prints: a table by op, dtype, layout and mode, then failures and what else to know."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import rich.console
import rich.table

from tf_bn_ops.conformance.cases.execution_modes import EXECUTION_MODES
from tf_bn_ops.conformance.reports import overview
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.reports.summary import (
    GROUP,
    Row,
    Summary,
    count_modes,
    count_notes,
    number,
)
from tf_bn_ops.conformance.verdict.result import CaseResult

Console = rich.console.Console

# Columns of the widest table that is printed.
_TABLE_WIDTH = 176

# Seconds between two lines that say how far a run is.
HEARTBEAT = 10.0

# Failures printed in full; the others are counted.
_SHOWN_FAILURES = 20


def console() -> Console:
    """A console for reports: a table that wraps is easier to read than one that is cut off."""
    result = Console(highlight=False)
    result.width = max(result.width, _TABLE_WIDTH)
    return result


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


@contextlib.contextmanager
def heartbeat(console: Console, progress: Callable[[], str]) -> Iterator[None]:
    """Says `progress` on stderr every ten seconds inside it; not where a terminal has a bar."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(HEARTBEAT):
            if sys.stderr is not None:
                with contextlib.suppress(OSError, ValueError):  # Its reader has gone.
                    print(progress(), file=sys.stderr, flush=True)

    thread = threading.Thread(target=work, daemon=True)
    if not console.is_terminal:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


def _print_failure(
    console: Console, record: record_lib.Record, case: record_lib.CaseRecord
) -> None:
    console.print()
    say(console, f"FAIL ({case['verdict']}) {case['case']}", "red")
    for failure in case["failures"]:
        say(console, f"  {failure}")
    say(console, f"  replay: {record['replay']} {case['case']}")
    if case["script"] and case is not overview.smallest(record):
        say(console, "  reduced, as a program of its own:\n")
        say(console, case["script"])


def _print_modes(console: Console, record: record_lib.Record) -> None:
    """Prints a table of execution modes, where there were any, and a line for each kind of note."""
    counts = count_modes(record)
    if counts:
        names = [n for n in record["implementations"] if any(key[0] == n for key in counts)]
        table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("execution mode", no_wrap=True)
        for name in names:
            table.add_column(f"{name}\nidentical", justify="right")
            table.add_column("\nother", justify="right")
        for mode, what in EXECUTION_MODES.items():
            if not any(key[1] == mode for key in counts):
                continue
            cells = [f"{mode} ({what.what})"]
            for name in names:
                same, differs = (counts[name, mode, state] for state in ("same", "differs"))
                cells += [str(same), str(differs)] if same or differs else ["-", "-"]
            table.add_row(*cells)
        console.print(table)
        console.print()
    for text, count in sorted(count_notes(record).items()):
        say(console, f"{text} in {count} cases (reported, not judged)")


def _print_tables(console: Console, summary: Summary, implementations: Sequence[str]) -> None:
    every = ("all", *[""] * (len(GROUP) - 1))
    groups = [*summary.groups.items(), (every, summary.total)]
    console.print(_table(GROUP, groups, implementations))
    console.print()
    kinds = [((kind,), row) for kind, row in summary.kinds.items()]
    console.print(_table(("kind of inputs",), kinds, implementations))
    say(
        console,
        "\nevidence: cases that are evidence for each output, in the op's order; ulp: the "
        "worst error in units in the last place (denormals left out: they may be flushed to "
        "zero); x bound: in units of the bound, 1 is allowed; -: no answer.",
    )


def _print_references(console: Console, record: record_lib.Record, total: Row) -> None:
    """Prints how the other implementations fared, and the known divergences."""
    for name in record["implementations"][1:]:
        if errors := total.errors.get(name):
            say(
                console,
                f"{name}: outside the candidate's bound in {errors.outside} of {errors.answered} "
                "cases (reported, not judged)",
            )
    for entry in record["divergences"]:
        if entry["covered"]:
            is_stale = record_lib.is_stale(record, entry)
            how = "STALE: never seen" if is_stale else f"seen in {entry['shown']}"
            text = f"known divergence {entry['name']}: {how} of {entry['covered']} cases"
            say(console, text, "red" if is_stale else None)


def _print_result(console: Console, record: record_lib.Record) -> None:
    stale = record_lib.stale(record)
    departures = record_lib.departures(record)
    verdict = record_lib.verdict(record)
    passed, failed = verdict == "passed", len(record_lib.failed(record))
    say(
        console,
        f"conformance {verdict if passed else verdict.upper()}: {failed} of "
        f"{len(record['cases'])} cases failed"
        f"{f', {len(stale)} stale known divergences' if stale else ''}"
        f"{f', {len(departures)} differences of contracts' if departures else ''}",
        "bold green" if passed else "bold red",
    )


def _print_overview(console: Console, record: record_lib.Record) -> None:
    """Prints what a reader wants to know first."""
    _print_result(console, record)
    for departure in record_lib.departures(record):
        say(console, f"FAIL ({departure})", "red")
    for claim in overview.claims(record):
        say(console, f"FAIL ({claim.text})", "red")
        say(console, f"  first: {claim.first}")
    if case := overview.smallest(record):
        say(console, f"the smallest failing program, of {case['case']}:\n")
        say(console, str(case["script"]))
    say(console, overview.covered(record["coverage"]))
    for sentence in overview.not_covered(record):
        say(console, f"not covered: {sentence}")
    console.print()


def _print_circumstances(console: Console, record: record_lib.Record) -> None:
    _print_result(console, record)
    settings = record["settings"]
    say(
        console,
        f"TensorFlow {record['versions']['tensorflow']}, seed {settings['seed']}, "
        f"bounds {settings['bounds']}, {record['seconds']:.0f} s",
    )


def print_record(console: Console, record: record_lib.Record) -> None:
    """Prints the summary and the failures."""
    summary = Summary.of(record)
    total = summary.total
    _print_overview(console, record)
    if total.cases:
        _print_tables(console, summary, record["implementations"])
    _print_modes(console, record)
    evidence = ", ".join(f"{output} {count}" for output, count in total.evidence.items()) or "none"
    others = "the others would pass a wrong answer too"
    say(console, f"{total.cases} cases; with evidence: {evidence} ({others})")
    _print_references(console, record, total)
    failures = record_lib.failed(record)
    for case in failures[:_SHOWN_FAILURES]:
        _print_failure(console, record, case)
    if len(failures) > _SHOWN_FAILURES:
        say(console, f"... and {len(failures) - _SHOWN_FAILURES} more cases failed")
    _print_circumstances(console, record)


def print_details(console: Console, result: CaseResult) -> None:
    """Prints everything about one case, as --repro does."""
    say(console, f"{result.case}")
    for name, path in result.paths.items():
        for d in path.disagreements:
            say(console, f"  {name}: {d.what}: {d.detail}")
        for role, error in path.errors.items():
            say(
                console,
                f"  {name} {result.name_of(role)}: {number(error.ulp)} ulp, "
                f"{number(error.bound)} x bound, worst {error.worst}",
            )
    for note in result.notes:
        say(console, f"  note: {note}")
    evidence = ", ".join(result.name_of(r) for r, e in result.evidence.items() if e) or "no output"
    say(console, f"  evidence for: {evidence}")
