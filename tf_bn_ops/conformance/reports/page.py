"""A record as one HTML page: tables, and plots as inline SVG. It needs nothing from elsewhere.

Plots place their marks in per cent of the width, so that they fit any screen without a script;
page.html is the frame, page.css the looks.
"""

from __future__ import annotations

import dataclasses
import html
import importlib.resources
import math
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_bn_ops.conformance.reports import overview
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.reports.summary import (
    GROUP,
    Row,
    Summary,
    Worst,
    count_modes,
    number,
    worst_cases,
)

# Failures shown in full: a page of thousands is no help to anyone. The JSON file has all.
_SHOWN_FAILURES = 100
# Those that need no click.
_OPEN_FAILURES = 5
_WORST = 10

# One shape for each implementation, beside its colour; around the origin, in pixels.
_MARKS = (
    "M0-5A5 5 0 1 1 0 5A5 5 0 1 1 0-5Z",
    "M-4.2-4.2H4.2V4.2H-4.2Z",
    "M0-5.2L5.2 4.2H-5.2Z",
    "M0-5.6L5 0L0 5.6L-5 0Z",
    "M-5.2-4.2H5.2L0 5.2Z",
    "M-5-1.8H-1.8V-5H1.8V-1.8H5V1.8H1.8V5H-1.8V1.8H-5Z",
)

# Errors smaller or larger than these are drawn at the edge: a tenth of a unit is as good as none,
# and 10^9 units are as wrong as any number.
_ULP_RANGE = (-1, 9)
_BOUND_RANGE = (-4, 6)


def _esc(text: object) -> str:
    return html.escape(str(text))


def _case(name: str) -> str:
    """The name of a case, which may break after its commas."""
    return f'<span class="case">{_esc(name).replace(",", ",<wbr>")}</span>'


@dataclasses.dataclass(frozen=True)
class _Scale:
    """Powers of ten from left to right."""

    least: int
    most: int

    def percent(self, value: float) -> float:
        at = math.log10(value) if value > 0 else self.least
        at = min(max(at, self.least), self.most)
        return round(100 * (at - self.least) / (self.most - self.least), 2)

    def gridlines(self) -> str:
        return "".join(
            f'<line class="grid" x1="{x}%" x2="{x}%" y1="0" y2="100%"/>'
            for x in (self.percent(10.0**e) for e in range(self.least, self.most + 1))
        )

    def axis(self, unit: str) -> str:
        """A line of labels, for a strip of its own."""
        texts = []
        for exponent in range(self.least, self.most + 1, 2):
            x = self.percent(10.0**exponent)
            label = {-1: "0.1", 0: "1", 1: "10"}.get(exponent, f"10{_superscript(exponent)}")
            anchor = "middle"
            if exponent + 2 > self.most:
                # The last one, with the unit, must not leave the page.
                label, anchor = f"{label} {unit}", "end" if exponent == self.most else "middle"
            texts.append(f'<text x="{x}%" y="12" text-anchor="{anchor}">{_esc(label)}</text>')
        return f'<svg height="16" role="presentation">{"".join(texts)}</svg>'


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _series(index: int) -> int:
    return index % len(_MARKS)


def _mark(index: int, x: float, y: float, title: str) -> str:
    return (
        f'<svg x="{x}%" y="{y}" class="s{_series(index)}"><path class="mark" '
        f'd="{_MARKS[_series(index)]}"><title>{_esc(title)}</title></path></svg>'
    )


def _legend(implementations: Sequence[str]) -> str:
    items = (
        f'<span><svg width="12" height="12" viewBox="-6 -6 12 12" style="width:12px" '
        f'class="s{_series(i)}"><path class="mark" d="{_MARKS[_series(i)]}"/></svg>'
        f"{_esc(name)}</span>"
        for i, name in enumerate(implementations)
    )
    return f'<div class="legend">{"".join(items)}</div>'


def _strip(label: str, svg: str, kind: str = "") -> str:
    return (
        f'<div class="strip {kind}"><div class="label">{_esc(label)}</div>'
        f'<div class="plot">{svg}</div></div>'
    )


def _table(
    headings: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], classes: Sequence[str]
) -> str:
    """A table of HTML cells; every row comes with its class, every column with its own."""
    head = "".join(
        f'<th class="{c}">{_esc(h)}</th>' for h, c in zip(headings, classes, strict=True)
    )
    body = "".join(
        f'<tr class="{kind}">'
        + "".join(f'<td class="{c}">{cell}</td>' for cell, c in zip(cells, classes, strict=True))
        + "</tr>"
        for kind, cells in rows
    )
    return (
        '<div class="scroll"><table class="wide">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def _tiles(record: dict[str, Any], summary: Summary) -> str:
    total = summary.total
    candidate = record_lib.CANDIDATE
    tiles = [
        (f"{total.cases:,}", "cases", False),
        (f"{total.failed:,}", "failed", total.failed > 0),
        (f"{total.complete:,}", "are evidence for all outputs", False),
        (number(total.worst(candidate, "bound")), "× its bound: the candidate's worst error",
         total.errors.get(candidate) is not None and total.errors[candidate].outside > 0),
    ]  # fmt: skip
    for name in record["implementations"][1:]:
        if errors := total.errors.get(name):
            share = errors.outside / max(errors.answered, 1)
            tiles.append((f"{share:.0%}", f"of {name}'s answers are outside that bound", False))
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile{" alarm" if alarm else ""}"><b>{_esc(value)}</b>'
            f"<span>{_esc(what)}</span></div>"
            for value, what, alarm in tiles
        )
        + "</div>"
    )


def _errors(record: dict[str, Any], summary: Summary) -> str:
    """The errors in ulp, a strip for every row of the summary's table."""
    scale = _Scale(*_ULP_RANGE)
    implementations = record["implementations"]
    parts = [
        _note(
            "The line begins at the median case, the mark is the worst one. Each case counts with "
            "its worst output; half a unit in the last place is a perfect rounding. Hover over a "
            "mark for its number; what is beyond an end is drawn there."
        ),
        _legend(implementations),
    ]
    axis = _strip("", scale.axis("ulp"), "axis")
    op = None
    height = 9 * len(implementations) + 7
    for key, row in summary.groups.items():
        if key[0] != op:
            parts += [axis] if op is not None else []
            op = key[0]
            parts.append(f"<h3>{_esc(op)}</h3>")
        label = " ".join(filter(None, key[1:]))
        marks = [scale.gridlines()]
        for i, name in enumerate(implementations):
            worst, median = row.worst(name, "ulp"), None
            if worst is None:
                continue
            y = 8 + 9 * i
            median = row.errors[name].median("ulp")
            begin, end = scale.percent(worst if median is None else median), scale.percent(worst)
            title = f"{label}, {name}: worst {number(worst)} ulp, median {number(median)} ulp"
            marks.append(
                f'<line class="range s{_series(i)}" x1="{begin}%" x2="{end}%" y1="{y}" y2="{y}"/>'
            )
            marks.append(_mark(i, end, y, title))
        svg = f'<svg height="{height}" role="img" aria-label="{_esc(label)}">{"".join(marks)}</svg>'
        parts.append(_strip(label, svg))
    return "".join([*parts, axis])


def _distribution(record: dict[str, Any], summary: Summary) -> str:
    """How many cases have which error in units of the bound, a histogram per implementation."""
    scale = _Scale(*_BOUND_RANGE)
    per_decade = 4
    count = per_decade * (scale.most - scale.least)
    parts = [
        _note(
            "Cases by their worst error in units of the candidate's bound, on a logarithmic scale. "
            "Right of the dashed line an answer is wrong by the candidate's standard."
        )
    ]
    for i, name in enumerate(record["implementations"]):
        errors = summary.total.errors.get(name)
        if errors is None or not errors.answered:
            continue
        bins = [0] * count
        for value in errors.bound:
            # A bin ends just above its upper edge, so that 1 itself is inside the bound.
            at = math.ceil(scale.percent(value) / 100 * count - 1e-9) - 1
            bins[min(max(at, 0), count - 1)] += 1
        height = 56
        bars = [scale.gridlines()]
        for b, cases in enumerate(bins):
            if cases:
                top = max(2.0, height * cases / max(bins))
                edge = 10.0 ** (scale.least + (b + 1) / per_decade)
                bars.append(
                    f'<rect class="bar s{_series(i)}" x="{100 * b / count:.2f}%" '
                    f'width="{100 / count - 0.25:.2f}%" y="{height - top:.1f}" height="{top:.1f}">'
                    f"<title>{cases} cases up to {number(edge)} × the bound</title></rect>"
                )
        x = scale.percent(1)
        bars.append(f'<line class="limit" x1="{x}%" x2="{x}%" y1="0" y2="100%"/>')
        infinite = errors.answered - len(errors.bound)
        label = f"{name}, {errors.answered} cases"
        if infinite:
            label += f" ({infinite} not finite)"
        svg = f'<svg height="{height}" role="img" aria-label="{_esc(label)}">{"".join(bars)}</svg>'
        parts.append(_strip(label, svg))
    return "".join([*parts, _strip("", scale.axis("×"), "axis")])


def _rows(
    implementations: Sequence[str], rows: Iterable[tuple[Sequence[str], Row, str]]
) -> Iterable[tuple[str, Sequence[str]]]:
    for key, row, kind in rows:
        cells = [*map(_esc, key), str(row.cases), "/".join(map(str, row.evidence.values()))]
        cells.append(str(row.failed))
        for name in implementations:
            cells += [number(row.worst(name, "ulp")), number(row.worst(name, "bound"))]
        yield ("failed " if row.failed else "") + kind, cells


def _summary_table(
    record: dict[str, Any],
    headings: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Row, str]],
) -> str:
    implementations = record["implementations"]
    columns = [*headings, "cases", "evidence", "failed"]
    for name in implementations:
        columns += [f"{name} ulp", "× bound"]
    classes = ["k"] * len(headings) + ["n"] * (len(columns) - len(headings))
    return _table(columns, _rows(implementations, rows), classes)


def _groups(record: dict[str, Any], summary: Summary) -> str:
    rows = [(key, row, "") for key, row in summary.groups.items()]
    rows.append((("all", *[""] * (len(GROUP) - 1)), summary.total, "total"))
    note = _note(
        "Evidence: cases that are evidence for each output, in the op's order. Errors are the "
        "worst of the row; “-” means that no values came, “inf” NaN or infinity in the wrong place "
        "in all cases."
    )
    return note + _summary_table(record, GROUP, rows)


def _kinds(record: dict[str, Any], summary: Summary) -> str:
    rows = [((kind,), row, "") for kind, row in summary.kinds.items()]
    return _summary_table(record, ("kind of inputs",), rows)


def _evidence(record: dict[str, Any], summary: Summary) -> str:
    cases = record["cases"]
    rows = []
    for output in summary.total.evidence:
        having = [case for case in cases if output in case["evidence"]]
        count = sum(case["evidence"][output] for case in having)
        share = f"{count / max(len(having), 1):.0%}"
        rows.append(("", [f"<code>{_esc(output)}</code>", str(count), str(len(having)), share]))
    note = _note(
        "A case is evidence for an output only if wrong answers would have failed it: all zeros, "
        "for x_backprop also the other mode's answer and the gradient itself."
    )
    return note + _table(("output", "evidence", "of cases", "share"), rows, ("k", "n", "n", "n"))


def _worst_rows(found: Sequence[Worst]) -> Iterable[tuple[str, Sequence[str]]]:
    for worst in found:
        where = _esc(worst.where or "inside its bound")
        yield (
            "",
            [number(worst.bound), number(worst.ulp), _esc(worst.output), _case(worst.case), where],
        )


def _worst(record: dict[str, Any], summary: Summary) -> str:
    parts = [_note("The cases in which each implementation is farthest off.")]
    for name in record["implementations"]:
        found = worst_cases(record, name, _WORST)
        if found:
            parts.append(f"<h3>{_esc(name)}</h3>")
            headings = ("× bound", "ulp", "output", "case", "where")
            parts.append(_table(headings, _worst_rows(found), ("n", "n", "k", "w", "w")))
    return "".join(parts)


def _modes(record: dict[str, Any], summary: Summary) -> str:
    counts = count_modes(record)
    if not counts:
        return _note("Every case had one execution mode.")
    names = [name for name in record["implementations"] if any(key[0] == name for key in counts)]
    rows = []
    for mode in dict.fromkeys(key[1] for key in sorted(counts)):
        cells = [f"<code>{_esc(mode)}</code>"]
        for name in names:
            same, differs = (counts[name, mode, state] for state in ("same", "differs"))
            cells += [str(same), str(differs)] if same or differs else ["-", "-"]
        rows.append(("", cells))
    headings = ["execution mode"]
    for name in names:
        headings += [f"{name}: identical", "other"]
    note = _note("Cases that were run in a further execution mode on the same inputs.")
    return note + _table(headings, rows, ["k", *["n"] * (len(headings) - 1)])


def _divergences(record: dict[str, Any], summary: Summary) -> str:
    rows = []
    for entry in record["divergences"]:
        if entry["covered"]:
            is_stale = record_lib.is_stale(record, entry)
            seen = f"{entry['shown']} of {entry['covered']}"
            if is_stale:
                seen = f'<span class="alarm-text">stale: {seen}</span>'
            name = f"<code>{_esc(entry['name'])}</code>"
            cells = [name, _esc(entry["what"]), seen, _esc(entry["reason"])]
            rows.append(("failed" if is_stale else "", cells))
    if not rows:
        return _note("No case of this run is one of the list.")
    note = _note(
        "Where an implementation is known to depart from the op's contract in more than values. "
        "An entry that no case shows any more fails the run."
    )
    return note + _table(("name", "what", "seen", "reason"), rows, ("k", "k", "n", "w"))


def _failures(record: dict[str, Any], summary: Summary) -> str:
    failures = record_lib.failed(record)
    if not failures:
        return _note("No case failed.")
    verdicts = ", ".join(
        f"{count} {_esc(verdict)}"
        for verdict, count in sorted(summary.total.verdicts.items())
        if verdict != record_lib.PASSED
    )
    parts = [_note(f"By verdict: {verdicts}.")]
    for number_of, case in enumerate(failures[:_SHOWN_FAILURES]):
        is_open = " open" if number_of < _OPEN_FAILURES else ""
        sentences = "".join(f"<li>{_esc(failure)}</li>" for failure in case["failures"])
        replay = f"<pre>{_esc(record['replay'])} {_esc(case['case'])}</pre>"
        script = ""
        if case["script"]:
            script = f"<p>Reduced, as a program of its own:</p><pre>{_esc(case['script'])}</pre>"
        parts.append(
            f'<details{is_open}><summary><span class="pill bad">{_esc(case["verdict"])}</span> '
            f"{_case(case['case'])}</summary>"
            f"<ul>{sentences}</ul>{replay}{script}</details>"
        )
    if len(failures) > _SHOWN_FAILURES:
        parts.append(_note(f"… and {len(failures) - _SHOWN_FAILURES} more, in the JSON file."))
    return "".join(parts)


def _list(items: Iterable[tuple[str, object]]) -> str:
    pairs = "".join(f"<dt>{_esc(name)}</dt><dd>{_esc(value)}</dd>" for name, value in items)
    return f"<dl>{pairs}</dl>"


def _candidate(record: dict[str, Any], summary: Summary) -> str:
    candidate = record["candidate"]
    items = [("ops", candidate["ops"]), ("SHA-256 of the library", candidate["digest"] or "-")]
    parts = [_list([*items, ("held to", f"{record['settings']['bounds']} bounds")])]
    for op in candidate["mapped"]:
        parts.append(f"<h3>{_esc(op['name'])} like {_esc(op['like'])}</h3>")
        facts = [
            ("device", op["device"] or "left to TensorFlow"),
            ("device of the reference", op["reference_device"] or "left to TensorFlow"),
            ("signature", "; ".join(op["signature"]) or "as mapped, no difference"),
        ]
        for tolerance in op["tolerances"]:
            where = [*tolerance["outputs"], *tolerance["dtypes"]]
            what = f"{tolerance['allowed']} because {tolerance['reason']}"
            facts.append(("tolerance", f"{', '.join(where)}: {what}" if where else what))
        parts.append(_list(facts))
    return "".join(parts)


def _environment(record: dict[str, Any], summary: Summary) -> str:
    settings = record["settings"]
    selection = "; ".join(f"{k} {', '.join(v)}" for k, v in settings["selection"].items() if v)
    shard = record["shard"]
    items: list[tuple[str, object]] = [
        ("command", record["command"]),
        ("date", record["date"]),
        ("duration", f"{record['seconds']:.0f} s"),
        ("seed", settings["seed"]),
        ("random cases", settings["cases"]),
        ("selection", selection or "everything"),
        *((f"version of {name}", version) for name, version in record["versions"].items()),
    ]
    if shard:
        items.append(("shard", f"{shard['index']} of {shard['count']}"))
    parts = [_list(items)]
    for i, machine in enumerate(record["machines"], start=1):
        name = (
            f"Machine {i} of {len(record['machines'])}"
            if len(record["machines"]) > 1
            else "Machine"
        )
        parts.append(f"<h3>{name}</h3>")
        facts = [
            ("CPU", f"{machine['cpu']}, {machine['architecture']}, {machine['cores']} cores"),
            ("GPU", ", ".join(machine["gpus"]) or "none"),
            ("ISA build of tf_bn_ops", machine["isa"] or "-"),
            ("system", machine["system"]),
        ]
        parts.append(_list(facts))
    return "".join(parts)


# Anchor -> (heading, what writes the section).
_SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any], Summary], str]]] = {
    "failures": ("Failures", _failures),
    "errors": ("Errors in units in the last place", _errors),
    "distribution": ("Errors in units of the bound", _distribution),
    "groups": ("By op, dtype, layout and mode", _groups),
    "kinds": ("By kind of inputs", _kinds),
    "evidence": ("Evidence", _evidence),
    "modes": ("Execution modes", _modes),
    "worst": ("Worst cases", _worst),
    "divergences": ("Known divergences", _divergences),
    "candidate": ("Candidate", _candidate),
    "environment": ("Environment", _environment),
}


def _file(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def of_record(record: dict[str, Any]) -> str:
    """The page's HTML text."""
    summary = Summary.of(record)
    total = summary.total
    is_passed = record_lib.passed(record)
    stale = record_lib.stale(record)
    headline = f"{total.failed:,} of {total.cases:,} cases failed"
    if stale:
        headline += f", {len(stale)} stale known divergences"
    sections = [_tiles(record, summary)]
    for anchor, (heading, write) in _SECTIONS.items():
        content = write(record, summary)
        sections.append(f'<section id="{anchor}"><h2>{heading}</h2>{content}</section>')
    return string.Template(_file("page.html")).substitute(
        title=f"conformance {'passed' if is_passed else 'failed'}: {headline}",
        style=_file("page.css").strip(),
        state="good" if is_passed else "bad",
        verdict="passed" if is_passed else "failed",
        headline=_esc(headline),
        command=_esc(record["command"]),
        overview=overview.of_record(record, summary),
        contents="".join(f'<a href="#{a}">{heading}</a>' for a, (heading, _) in _SECTIONS.items()),
        sections="\n".join(sections),
    )
