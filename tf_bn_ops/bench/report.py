"""The tables and sentences of a run, for the terminal and for Markdown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from tf_bn_ops.bench import implementations, results
from tf_bn_ops.bench.results import Measurement, Run

# Goals of the project, by peer: (least ratio of a row, geometric mean).
GOALS = {"tensorflow": (0.95, 2.5), "eigen": (None, 8.0), "torch": (1.0, 2.0)}
LIMIT_GOALS = {0.65: 1.0, 0.8: 0.5}  # share of the limit -> share of rows that reach it
BUSY = 0.7  # Load average above which a run is unreliable.


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


def _bytes(value: float) -> str:
    if abs(value) >= 1 << 20:
        return f"{value / (1 << 20):.1f} MiB"
    return f"{value / (1 << 10):.0f} KiB"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def label(name: str) -> str:
    return implementations.ENTRIES[name].label


def layout_kind(row: Any) -> str:
    return "channels-last" if row.channels_last else "channels-first"


# ---- Summary -------------------------------------------------------------------------------------


def overview_table(run: Run) -> Table:
    """By layout and dtype: median of each peer's time over ours, rows in which it is faster."""
    table = Table("Time of a peer over ours, by layout and dtype", ["layout", "dtype"], 2)
    peers = [peer for peer in ("tensorflow", "torch", "jax") if peer in run.peers]
    modes = list(dict.fromkeys(m.row.mode for m in run.of_section("layers")))
    for peer in peers:
        table.headings += [f"{label(peer)}, {mode}" for mode in modes]
        table.headings.append(f"{label(peer)} faster in")
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in run.of_section("layers"):
        groups.setdefault((layout_kind(m.row), m.row.dtype), []).append(m)
    for key, rows in sorted(groups.items(), key=lambda item: item[0][0], reverse=True):
        line = list(key)
        for peer in peers:
            for mode in modes:
                found = [r for r, m in results.ratios(rows, peer) if m.row.mode == mode]
                line.append(f"{statistics.median(found):.1f}" if found else "-")
            all_ratios = results.ratios(rows, peer)
            faster = sum(ratio < 1 for ratio, _ in all_ratios)
            line.append(f"{faster} of {len(all_ratios)}")
        table.rows.append(line)
    return table


def summary_table(run: Run) -> Table:
    """Each peer's ratios over all rows, and the goals."""
    table = Table(
        "Time of a peer over ours",
        ["peer", "rows", "geometric mean", "goal", "at most", "minimum", "goal", "where"],
        1,
    )
    layers = run.of_section("layers")
    for peer in run.peers:
        if not (found := results.ratios(layers, peer)):
            continue
        minimum, where = min(found, key=lambda pair: pair[0])
        least, mean = GOALS.get(peer, (None, None))
        most = results.ceiling(layers, peer, run.eager_us["warm"]) if run.eager_us else None
        table.rows.append(
            [
                label(peer),
                str(len(found)),
                _times(results.mean_ratio(layers, peer)),
                "" if mean is None else f"{mean:g}",
                _times(most),
                f"{minimum:.2f}",
                "" if least is None else f"{least:g}",
                str(where.row),
            ]
        )
    return table


def limit_table(run: Run) -> Table:
    """Our shares of the bandwidth limit, by dtype, layout and mode."""
    least = min(LIMIT_GOALS)
    table = Table(
        f"Share of the bandwidth limit, rows that move more than {results.LIMIT_BYTES >> 20} MiB",
        ["dtype", "layout", "mode", "rows", "median", "minimum", f"reach {least:.0%}"],
        3,
    )
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in run.of_section("layers"):
        groups.setdefault((m.row.dtype, layout_kind(m.row), m.row.mode), []).append(m)
    for key, rows in groups.items():
        if shares := results.limit_shares(rows):
            reached = sum(share >= least for share in shares)
            cells = f"{statistics.median(shares):.0%}", f"{min(shares):.0%}", str(reached)
            table.rows.append([*key, str(len(shares)), *cells])
    return table


def summary_tables(run: Run) -> list[Table]:
    """The tables above all others; empty ones are left out."""
    tables = (overview_table(run), summary_table(run), limit_table(run))
    return [table for table in tables if table.rows]


def limit_sentences(run: Run) -> list[str]:
    """The bandwidth limit and the overhead of an eager call, in sentences."""
    layers = run.of_section("layers")
    sentences = []
    if shares := results.limit_shares(layers):
        parts = [
            f"{sum(s >= share for s in shares) / len(shares):.0%} of them reach {share:.0%} of the "
            f"bandwidth limit (goal: {goal:.0%} of them)"
            for share, goal in LIMIT_GOALS.items()
        ]
        sentences.append(
            f"{len(shares)} rows move more than {results.LIMIT_BYTES >> 20} MiB: "
            f"{', '.join(parts)}; the minimum is {min(shares):.0%}, the median "
            f"{statistics.median(shares):.0%}."
        )
    if run.eager_us is None:
        return sentences
    warm, cold = run.eager_us["warm"], run.eager_us["cold"]
    sentences.append(
        f"An eager TensorFlow op that does nothing takes {time_text(warm)} with warm caches, "
        f"{time_text(cold)} with cold ones, as after a layer's tensors."
    )
    for peer in run.peers:
        faster, unreachable = results.beyond_reach(layers, peer, cold)
        if faster and peer in ("torch", "jax"):
            sentences.append(
                f"{label(peer)} is faster in {faster} rows; in {unreachable} of them its call "
                "takes less than that and the bandwidth limit: no TensorFlow op can do that."
            )
    return sentences


# ---- Rows ----------------------------------------------------------------------------------------


def _cell(table: Table, m: Measurement, name: str) -> str:
    if name not in m.us:
        reason = m.refused.get(name)
        return f"- {table.note(f'{label(name)}: {reason}')}" if reason else "-"
    text = time_text(m.us[name])
    if name in m.wrong:
        text += f" wrong {table.note(f'{label(name)}: {m.wrong[name]}')}"
    return text


def _own_cells(m: Measurement) -> list[str]:
    """Spread, throughput, share of the bandwidth limit."""
    if m.own_us is None:
        return ["", "", ""]
    spread = " ".join(f"{us / m.own_us - 1:+.0%}" for us in m.p10_p90_us or ())
    share = m.limit_share
    return [spread, f"{m.gb_per_s():.1f}", "" if share is None else f"{share:.0%}"]


def rows_table(title: str, run: Run, rows: Sequence[Measurement]) -> Table:
    """One line per row, with the times of all peers and their ratio to ours."""
    table = Table(title, ["shape", "layout", "dtype", "mode"], 4)
    with_threads = len({m.row.threads for m in rows}) > 1
    with_empty = any(m.empty_us for m in rows)
    table.headings += ["threads"] * with_threads + ["tf_bn_ops", "10-90%", "GB/s", "limit"]
    table.headings += ["empty op"] * with_empty
    for peer in run.peers:
        table.headings += [label(peer), "ratio"]
    for m in rows:
        line = str(m.row).split()
        line += [str(m.row.threads)] * with_threads
        line += [_cell(table, m, implementations.CANDIDATE), *_own_cells(m)]
        if with_empty:
            line.append(time_text(m.empty_us) if m.empty_us else "")
        for peer in run.peers:
            line += [_cell(table, m, peer), _times(m.speedup(peer))]
        table.rows.append(line)
    return table


def memory_table(run: Run) -> Table:
    """Peak extra memory of one call."""
    names = list(dict.fromkeys(entry["implementation"] for entry in run.memory))
    headings = ["shape", "layout", "dtype", "mode", "allowed", *map(label, names)]
    table = Table("Peak extra memory of one call", headings, 4)
    lines: dict[tuple[Any, ...], dict[str, int]] = {}
    for entry in run.memory:
        key = tuple(entry[f] for f in ("shape", "layout", "dtype", "mode", "allowed_bytes"))
        lines.setdefault(key, {})[entry["implementation"]] = entry["extra_bytes"]
    for key, values in lines.items():
        cells = [_bytes(values[n]) if n in values else "-" for n in names]
        table.rows.append([*key[:4], _bytes(key[4]), *cells])
    return table


def tables(run: Run) -> list[Table]:
    """All tables of rows, in the order of the report; empty ones are left out."""
    found = []
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in run.of_section("layers"):
        groups.setdefault((m.row.dtype, m.row.mode), []).append(m)
    for (dtype, mode), rows in groups.items():
        found.append(rows_table(f"Layers of networks, {dtype}, {mode}", run, rows))
    for section, title in (
        ("latency", "Small tensors: the overhead of a call"),
        ("elements", "Time against elements"),
        ("channels", "Time against channels"),
        ("threads", "Time against threads"),
    ):
        if rows := run.of_section(section):
            found.append(rows_table(title, run, rows))
    return [*found, *([memory_table(run)] if run.memory else [])]


def skipped_sentences(run: Run) -> list[str]:
    """What was not measured, by reason."""
    reasons: dict[str, list[str]] = {}
    for m in run.rows:
        if m.skipped:
            reasons.setdefault(m.skipped, []).append(str(m.row))
    return [
        f"Not measured, {reason}: "
        + (", ".join(rows) if len(rows) <= 4 else f"{len(rows)} rows, from {rows[0]} on")
        + "."
        for reason, rows in reasons.items()
    ]


def wrong(run: Run) -> tuple[list[str], list[str]]:
    """Sentences about wrong results: ours, and those of peers."""
    own: list[str] = []
    others: list[str] = []
    for m in run.rows:
        for name, reason in m.wrong.items():
            text = f"{label(name)}: {m.row}: {reason}"
            (own if name == implementations.CANDIDATE else others).append(text)
        if reason := m.refused.get(implementations.CANDIDATE, ""):
            own.append(f"tf_bn_ops: {m.row}: {reason}")
    return own, others


def print_report(run: Run, console: Any) -> None:
    """Everything, the most important last."""
    for table in tables(run):
        table.print(console)
    if run.of_section("layers"):
        for table in summary_tables(run):
            table.print(console)
        for sentence in limit_sentences(run):
            console.print(sentence, soft_wrap=True)
    load = run.machine["load_before"]
    if load > BUSY:
        console.print(
            f"The machine was busy when the run began (load {load:.1f}): repeat it on an idle one.",
            style="yellow",
            soft_wrap=True,
        )
    for sentence in skipped_sentences(run):
        console.print(sentence, soft_wrap=True)
    for name, reason in run.missing.items():
        console.print(f"left out: {label(name)}: {reason}", soft_wrap=True, markup=False)
    own, others = wrong(run)
    for text in others:
        console.print(f"WRONG (a peer) {text}", style="yellow", soft_wrap=True, markup=False)
    for text in own:
        console.print(f"WRONG {text}", style="bold red", soft_wrap=True, markup=False)
