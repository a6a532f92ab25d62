"""The tables of a run, once, for the terminal and for Markdown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table

from tf_bn_ops.bench import implementations, results

# What the project wants to reach, by peer: the least ratio of a row, the geometric mean.
GOALS = {"tensorflow": (0.95, 2.5), "eigen": (None, 8.0), "torch": (1.0, 2.0)}
BUSY = 0.7  # Load average above which figures are not to be trusted.
LIMIT_GOALS = {0.65: 1.0, 0.8: 0.5}  # share of the limit -> share of rows that reach it


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

    def markdown(self, level: int = 3) -> str:
        """A heading, a table, notes."""
        lines = [f"{'#' * level} {self.title}", ""]
        lines.append(f"| {' | '.join(self.headings)} |")
        sides = ["---" if i < self.left else "---:" for i in range(len(self.headings))]
        lines.append(f"| {' | '.join(sides)} |")
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        if self.notes:
            lines += ["", *(f"- [{i + 1}] {_escaped(n)}" for i, n in enumerate(self.notes))]
        return "\n".join(lines)

    def print(self, console: rich.console.Console) -> None:
        """To the terminal."""
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


def seconds(value: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _bytes(value: float) -> str:
    if abs(value) >= 1 << 20:
        return f"{value / (1 << 20):.1f} MiB"
    return f"{value / (1 << 10):.0f} KiB"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def present(run: dict[str, Any]) -> list[str]:
    """Peers of which there is a figure."""
    found = {name for row in run["rows"] for name in row["results"]}
    found |= {name for row in run["rows"] for name in row["refused"]}
    return [peer for peer in implementations.PEERS if peer in found]


def label(name: str) -> str:
    return implementations.ENTRIES[name].label


def _cell(table: Table, row: dict[str, Any], name: str) -> str:
    cell = row["results"].get(name)
    if cell is None:
        reason = row["refused"].get(name)
        return f"- {table.note(f'{label(name)}: {reason}')}" if reason else "-"
    text = seconds(cell["median_s"])
    if cell["wrong"]:
        mark = table.note(f"{label(name)}: {cell['wrong']}")
        text += f" wrong {mark}"
    return text


def rows_table(title: str, run: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Table:
    """One line per row, with the times of all peers and their ratio to ours."""
    peers = present(run)
    table = Table(
        title,
        ["shape", "layout", "dtype", "mode", "tf_bn_ops", "10-90%", "GB/s", "limit"],
        4,
    )
    empty = any(row["empty_call"] for row in rows)
    if empty:
        table.headings.append("empty op")
    for peer in peers:
        table.headings += [label(peer), "ratio"]
    threads = {row["threads"] for row in rows}
    if len(threads) > 1:
        table.headings.insert(4, "threads")
    for row in rows:
        own = row["results"].get(implementations.CANDIDATE)
        line = ["x".join(map(str, row["shape"])), row["layout"], row["dtype"], row["mode"]]
        if len(threads) > 1:
            line.append(str(row["threads"]))
        line.append(_cell(table, row, implementations.CANDIDATE))
        if own is None:
            line += ["", "", ""]
        else:
            spread = (own["p10_s"] / own["median_s"] - 1, own["p90_s"] / own["median_s"] - 1)
            share = own["limit_share"]
            line.append(f"{spread[0]:+.0%} {spread[1]:+.0%}")
            line.append(f"{own['gb_per_s']:.1f}")
            # Below a megabyte it is the cost of waking threads that would be compared.
            line.append("" if share is None or row["bytes"] < 1 << 20 else f"{share:.0%}")
        if empty:
            line.append(seconds(row["empty_call"]["median_s"]) if row["empty_call"] else "")
        for peer in peers:
            line += [_cell(table, row, peer), _times(results.speedup(row, peer))]
        table.rows.append(line)
    return table


def summary_table(run: dict[str, Any]) -> Table:
    """Each peer's ratios over all rows, and the goals."""
    table = Table(
        "Time of a peer over ours",
        ["peer", "rows", "geometric mean", "goal", "at most", "minimum", "goal", "where"],
        1,
    )
    for peer in implementations.PEERS:
        if peer not in run["summary"]:
            continue
        s = run["summary"][peer]
        least, mean = GOALS.get(peer, (None, None))
        floor = run["eager_floor"]
        most = floor and results.ceiling(results.of_section(run, "layers"), peer, floor["warm_s"])
        table.rows.append(
            [
                label(peer),
                str(s["rows"]),
                f"{s['geometric_mean']:.2f}",
                "" if mean is None else f"{mean:g}",
                "" if most is None else f"{most:.2f}",
                f"{s['minimum']:.2f}",
                "" if least is None else f"{least:g}",
                s["minimum_at"],
            ]
        )
    return table


def limit_table(run: dict[str, Any]) -> Table:
    """Our shares of the streaming limit, by what decides how much there is to compute and read."""
    least = min(LIMIT_GOALS)
    table = Table(
        f"Share of the streaming limit, rows that move more than {results.LIMIT_BYTES >> 20} MiB",
        ["dtype", "layout", "mode", "rows", "median", "minimum", f"reach {least:.0%}"],
        3,
    )
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in results.of_section(run, "layers"):
        layout = "channels-last" if results.channels_last(row) else "channels-first"
        groups.setdefault((row["dtype"], layout, row["mode"]), []).append(row)
    for key, rows in groups.items():
        if shares := results.limit_rows(rows):
            reached = sum(share >= least for share in shares)
            figures = f"{statistics.median(shares):.0%}", f"{min(shares):.0%}", str(reached)
            table.rows.append([*key, str(len(shares)), *figures])
    return table


def summary_tables(run: dict[str, Any]) -> list[Table]:
    """What stands above all others; empty ones are left out."""
    return [table for table in (summary_table(run), limit_table(run)) if table.rows]


def limit_sentences(run: dict[str, Any]) -> list[str]:
    """What there is to say about the limits: the streaming limit, the eager call."""
    return [*_streaming_sentences(run), *_eager_sentences(run)]


def _eager_sentences(run: dict[str, Any]) -> list[str]:
    if run["eager_floor"] is None:
        return []
    warm, swept = (run["eager_floor"][field] for field in ("warm_s", "swept_s"))
    sentences = [
        f"An eager TensorFlow op that does nothing takes {seconds(warm)} again and again, "
        f"{seconds(swept)} after other data went through the caches, as that of a layer does."
    ]
    layers = results.of_section(run, "layers")
    for peer in run["summary"]:
        if peer not in ("torch", "jax"):
            continue
        faster, unreachable = results.beyond_reach(layers, peer, swept)
        sentences.append(
            f"{label(peer)} is faster than we are in {faster} rows; in {unreachable} of them its "
            "whole call takes less than that and the streaming limit together, which no op of "
            "TensorFlow can do."
        )
    return sentences


def _streaming_sentences(run: dict[str, Any]) -> list[str]:
    limit = run["summary"].get("limit", {})
    if not limit.get("rows"):
        return [f"No row of more than {results.LIMIT_BYTES >> 20} MiB has a streaming limit."]
    parts = [
        f"{limit[f'share_above_{share:.0%}']:.0%} of them reach {share:.0%} of the streaming limit "
        f"(goal: {goal:.0%} of them)"
        for share, goal in LIMIT_GOALS.items()
    ]
    return [
        f"{limit['rows']} rows move more than {results.LIMIT_BYTES >> 20} MiB: "
        f"{', '.join(parts)}; the lowest share is {limit['minimum']:.0%}, the median "
        f"{limit['median']:.0%}."
    ]


def memory_table(run: dict[str, Any]) -> Table:
    """Peak extra memory of one call."""
    table = Table(
        "Peak extra memory of one call", ["shape", "layout", "dtype", "mode", "allowed"], 4
    )
    names: list[str] = []
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in run["memory"]:
        key = tuple(
            "x".join(map(str, entry["shape"])) if field == "shape" else entry[field]
            for field in ("shape", "layout", "dtype", "mode", "allowed_bytes")
        )
        lines.setdefault(key, {})[entry["implementation"]] = entry["extra_bytes"]
        if entry["implementation"] not in names:
            names.append(entry["implementation"])
    table.headings += [label(name) for name in names]
    for key, values in lines.items():
        cells = [_bytes(values[n]) if n in values else "-" for n in names]
        table.rows.append([*map(str, key[:4]), _bytes(key[4]), *cells])
    return table


def tables(run: dict[str, Any]) -> list[Table]:
    """All of them, in the order of the report; empty ones are left out."""
    layers = results.of_section(run, "layers")
    found = []
    groups = {(row["dtype"], row["mode"]): None for row in layers}
    for dtype, mode in groups:
        rows = [row for row in layers if (row["dtype"], row["mode"]) == (dtype, mode)]
        found.append(rows_table(f"Layers of networks, {dtype}, {mode}", run, rows))
    for section, title in (
        ("latency", "Small tensors: the cost of a call"),
        ("elements", "Time against elements"),
        ("channels", "Time against channels"),
        ("threads", "Time against threads"),
    ):
        if rows := results.of_section(run, section):
            found.append(rows_table(title, run, rows))
    if run["memory"]:
        found.append(memory_table(run))
    return found


def skipped_sentences(run: dict[str, Any]) -> list[str]:
    """What was not measured, by reason."""
    reasons: dict[str, list[str]] = {}
    for row in run["rows"]:
        if row["skipped"]:
            reasons.setdefault(row["skipped"], []).append(results.describe(row))
    return [
        f"Not measured, {reason}: "
        + (", ".join(rows) if len(rows) <= 4 else f"{len(rows)} rows, from {rows[0]} on")
        + "."
        for reason, rows in reasons.items()
    ]


def wrong(run: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Sentences about wrong results: ours, and those of peers. Memory beyond the goal is ours."""
    own: list[str] = []
    others: list[str] = []
    for row in run["rows"]:
        for name, cell in row["results"].items():
            if cell["wrong"]:
                text = f"{label(name)}: {results.describe(row)}: {cell['wrong']}"
                (own if name == implementations.CANDIDATE else others).append(text)
        if implementations.CANDIDATE in row["refused"]:
            reason = row["refused"][implementations.CANDIDATE]
            own.append(f"tf_bn_ops: {results.describe(row)}: {reason}")
    return own, others


def print_report(run: dict[str, Any], console: rich.console.Console) -> None:
    """Everything, ending with what matters most."""
    for table in tables(run):
        table.print(console)
    if results.of_section(run, "layers"):
        for table in summary_tables(run):
            table.print(console)
        for sentence in limit_sentences(run):
            console.print(sentence, soft_wrap=True)
    load = run["machine"]["load_before"]
    if load > BUSY:
        console.print(
            f"The machine was busy when the run began (load {load:.1f}): repeat it when idle.",
            style="yellow",
            soft_wrap=True,
        )
    for sentence in skipped_sentences(run):
        console.print(sentence, soft_wrap=True)
    for name, reason in run["missing"].items():
        console.print(f"left out: {label(name)}: {reason}", soft_wrap=True, markup=False)
    own, others = wrong(run)
    for text in others:
        console.print(f"WRONG (a peer) {text}", style="yellow", soft_wrap=True, markup=False)
    for text in own:
        console.print(f"WRONG {text}", style="bold red", soft_wrap=True, markup=False)
