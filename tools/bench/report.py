"""The tables and sentences of a run: in the terminal, in README.md and docs/benchmarks.md between
markers (`record`), and on the site's page (`page`)."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import results
from bench.libraries import CANDIDATE, ENTRIES, PEERS
from bench.results import FUSED, IDENTITY, KERAS, OURS, RECOMPUTED, WITHOUT_BOTH, Measurement, Run
from bench.rows import CALLS, GRADIENT, LATENCY

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "benchmarks" / "results.json"
BEGIN = "<!-- written by make bench ARGS=--record from docs/benchmarks/results.json -->"
# Of a run of networks alone: a second processor.
NETWORKS = ROOT / "docs" / "benchmarks" / "networks.json"
BEGIN_NETWORKS = '<!-- written by make bench ARGS="--sections=network --record" -->'
END = "<!-- end of what make bench ARGS=--record writes -->"
ALL_TABLES = "<!-- make docs inserts all tables here -->"  # Replaced by `page`.

_LIMIT_SHARES = (0.65, 0.8)  # Of the bandwidth limit: how many rows reach them.
_BUSY = 0.7  # Load average above which a run is unreliable.
_LONG = 30  # Tables of more rows are folded on the site's page.


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
        escaped = (note.replace("|", "\\|").replace("<", "&lt;") for note in self.notes)
        notes = [f"- [{i + 1}] {note}" for i, note in enumerate(escaped)]
        return "\n".join([*lines, *[""] * bool(notes), *notes])

    def __str__(self) -> str:
        return f"\n{self.title}\n\n{self.markdown()}"


def _in_units(value: float, *units: tuple[float, str]) -> str:
    """Three digits and the first unit that is not larger than the value, or the last."""
    size, unit = next((unit for unit in units if value >= unit[0]), units[-1])
    return f"{value / size:.3g} {unit}"


def time_text(us: float) -> str:
    """Three digits with a unit."""
    return _in_units(float(us), (1e6, "s"), (1e3, "ms"), (1, "µs"))


def _plain(value: Any) -> str:
    """A fact about a run as a cell."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(element)}" for name, element in value.items())
    if isinstance(value, int) and value > 1 << 14:
        return _in_units(value, (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    return str(value)


def processor(machine: Mapping[str, Any]) -> str:
    """Its name, and the instruction set whose kernels ran: names of virtual machines say little."""
    return f"{machine['cpu']} ({machine['isa']})"


def _label(name: str) -> str:
    return ENTRIES[name].label


def _groups(rows: Sequence[Measurement], *names: str) -> dict[tuple[str, ...], list[Measurement]]:
    """Rows by some of layout, dtype and mode."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in rows:
        layout = "channels-last" if m.row.channels_last else "channels-first"
        values = {"layout": layout, "dtype": m.row.dtype, "mode": m.row.mode}
        groups.setdefault(tuple(values[name] for name in names), []).append(m)
    return groups


# ---- Tables --------------------------------------------------------------------------------------


def overview_table(run: Run, call: str) -> Table:
    """By layout and dtype: median of each peer's time over ours, rows in which it is faster."""
    layers = run.of_section(call)
    title = f"Time of a peer over ours, {CALLS[call].title}, by layout and dtype"
    table = Table(title, ["layout", "dtype"], 2)
    peers = [p for p in results.peers_of(layers) if p != "eigen" and results.ratios(layers, p)]
    modes = list(dict.fromkeys(m.row.mode for m in layers))
    for peer in peers:
        table.headings += [f"{_label(peer)}, {mode}" for mode in modes]
        table.headings.append(f"{_label(peer)} faster in")
    by_group = _groups(layers, "layout", "dtype")
    for key, rows in sorted(by_group.items(), key=lambda item: item[0][0], reverse=True):
        line = list(key)
        for peer in peers:
            found = results.ratios(rows, peer)
            for mode in modes:
                ratios = [ratio for ratio, m in found if m.row.mode == mode]
                line.append(f"{statistics.median(ratios):.1f}" if ratios else "-")
            line.append(f"{sum(ratio < 1 for ratio, _ in found)} of {len(found)}")
        table.rows.append(line)
    return table


def slower_table(run: Run) -> Table:
    """The rows in which a peer is faster, by peer, call, layout and dtype; the slowest first."""
    table = Table("Rows in which a peer is faster", ["peer", "call", "layout", "dtype", "rows"], 5)
    for peer, call in itertools.product(PEERS, CALLS):
        for key, rows in _groups(run.of_section(call), "layout", "dtype").items():
            cells = [
                f"{m.row.name}{' frozen' * (m.row.mode == 'frozen')} {ratio:.2f}"
                for ratio, m in sorted(results.ratios(rows, peer), key=lambda pair: pair[0])
                if ratio < 1
            ]
            if cells:
                table.rows.append([_label(peer), CALLS[call].title, *key, ", ".join(cells)])
    return table


def limit_table(run: Run, call: str) -> Table:
    """Our shares of the bandwidth limit, by dtype, layout and mode."""
    large = f"rows that move more than {results.LIMIT_BYTES >> 20} MiB"
    headings = ["dtype", "layout", "mode", "rows", "median", "minimum"]
    headings += [f"reach {share:.0%}" for share in _LIMIT_SHARES]
    table = Table(f"Share of the bandwidth limit, {CALLS[call].title}, {large}", headings, 3)
    for key, rows in _groups(run.of_section(call), "dtype", "layout", "mode").items():
        found = [m.limit_share for m in rows if m.row.bytes > results.LIMIT_BYTES]
        if shares := [share for share in found if share is not None]:
            reached = (str(sum(share >= least for share in shares)) for least in _LIMIT_SHARES)
            cells = f"{statistics.median(shares):.0%}", f"{min(shares):.0%}", *reached
            table.rows.append([*key, str(len(shares)), *cells])
    return table


def network_table(run: Run, fused: bool) -> Table:
    """Step times of whole networks, and the share of batch norm's cost that is removed; or with
    the activations behind it fused, of the cost of both."""
    title, ours, without, of = "A training step of a network", OURS, IDENTITY, "batch norm's cost"
    headings = ["tf_bn_ops", "without batch norm"]
    if fused:
        title += ", batch norm fused with the activations behind it"
        headings, ours, without, of = ["fused", "without both"], FUSED, WITHOUT_BOTH, "cost of both"
    headings += [f"Keras / {headings[0]}", f"{of} removed", "10-90%"]
    table = Table(title, ["network", "input", "Keras", *headings], 2)
    for m in run.networks:
        size = f"{m.batch}x{m.side}x{m.side}x3"
        if m.skipped:
            table.rows.append([m.network, f"{size} {table.note(m.skipped)}", *["-"] * 6])
            continue
        if not m.turns:
            continue
        times = (time_text(1e3 * m.median(variant)) for variant in (KERAS, ours, without))
        low, median, high = m.share_removed(ours, without)
        cells = f"{m.gain(ours):.2f}", f"{median:.0%}", f"{low:.0%} {high:.0%}"
        table.rows.append([m.network, size, *times, *cells])
    return table


def kept_table(run: Run) -> Table:
    """What a training step keeps for its gradient; older runs have no recomputed ones."""
    kept = [m for m in run.networks if m.kept]
    variants = [v for v in (KERAS, FUSED, RECOMPUTED) if any(v in m.kept for m in kept)]
    shares = [f"{variant} / Keras" for variant in variants[1:]]
    headings = ["network", "input", "Keras", *variants[1:], *shares]
    table = Table("Kept for the gradient in a training step", headings, 2)
    for m in kept:
        sizes = [m.kept.get(variant) for variant in variants]
        cells = ["-" if size is None else f"{size / 1e6:.0f} MB" for size in sizes]
        cells += ["-" if size is None else f"{size / m.kept[KERAS]:.2f}" for size in sizes[1:]]
        table.rows.append([m.network, f"{m.batch}x{m.side}x{m.side}x3", *cells])
    return table


def headline_table(run: Run) -> Table:
    """What a program gains: of the largest side the networks that gain most, the median and least,
    and of the others the one that gains least. Layers are exchanged and fused, as in a program with
    every switch on."""
    table = Table("", ["training step", "Keras", "tf_bn_ops", "times as fast"], 1)
    measured = sorted((m for m in run.networks if m.turns), key=lambda m: -m.gain(FUSED))
    side = max((m.side for m in measured), default=0)
    large = [m for m in measured if m.side == side]
    if len(large) > 3:
        large = [large[0], large[len(large) // 2], large[-1]]
    for m in [*large, *[m for m in measured if m.side < side][-1:]]:
        times = (time_text(1e3 * m.median(variant)) for variant in (KERAS, FUSED))
        name = f"{m.network}, {m.batch} images of {m.side} x {m.side}"
        table.rows.append([name, *times, f"{m.gain(FUSED):.2f}"])
    return table


def rows_table(title: str, rows: Sequence[Measurement]) -> Table:
    """One line per row, with the times of all peers and their ratio to ours."""
    headings = ["shape", "layout", "dtype", "mode", "tf_bn_ops", "10-90%", "GB/s", "limit"]
    peers = results.peers_of(rows)
    table = Table(title, headings + [h for p in peers for h in (_label(p), "ratio")], 4)

    def cell(m: Measurement, name: str) -> str:
        shown = [time_text(m.us[name])] if name in m.us else ["-"]
        shown += ["wrong"] * (name in m.wrong)
        if reason := m.wrong.get(name) or m.refused.get(name):
            shown.append(table.note(f"{_label(name)}: {reason}"))
        return " ".join(shown)

    for m in rows:
        line = [*str(m.row).split(), cell(m, CANDIDATE), "", ""]
        if own := m.us.get(CANDIDATE):
            line[-2:] = " ".join(f"{us / own - 1:+.0%}" for us in m.p10_p90_us), f"{m.gb_per_s:.1f}"
        line.append("" if m.limit_share is None else f"{m.limit_share:.0%}")
        for peer in peers:
            ratio = m.speedup(peer)
            line += [cell(m, peer), "" if ratio is None else f"{ratio:.2f}"]
        table.rows.append(line)
    return table


def summary_tables(run: Run) -> list[Table]:
    """The tables above all others; empty ones are left out."""
    tables = [make(run, call) for call in CALLS for make in (overview_table, limit_table)]
    tables += [network_table(run, False), network_table(run, True), kept_table(run)]
    tables.append(slower_table(run))
    return [table for table in tables if table.rows]


def tables(run: Run) -> Iterator[Table]:
    """All tables of rows; empty ones are left out."""
    for call in CALLS:
        for (dtype, mode), rows in _groups(run.of_section(call), "dtype", "mode").items():
            yield rows_table(f"Layers of networks, {CALLS[call].title}, {dtype}, {mode}", rows)
    if rows := run.of_section(LATENCY):
        yield rows_table("Small tensors: the overhead of a call", rows)


# ---- Sentences -----------------------------------------------------------------------------------


def sentences(run: Run) -> Iterator[str]:
    """A busy machine, peers that were left out, and wrong results of peers."""
    if run.machine["load_before"] > _BUSY:
        load = f"load {run.machine['load_before']:.1f}"
        yield f"The machine was busy when the run began ({load}): repeat it on an idle one."
    for name, reason in run.missing.items():
        yield f"Left out: {_label(name)}: {reason}."
    for m in run.rows:
        for name, reason in m.wrong.items():
            if name != CANDIDATE:
                yield f"Wrong, left out of the ratios: {_label(name)}: {m.row}: {reason}."


def wrong(run: Run) -> list[str]:
    """Wrong results of this library, and rows that it refused."""
    found = ((m.row, m.wrong.get(CANDIDATE) or m.refused.get(CANDIDATE)) for m in run.rows)
    return [f"WRONG tf_bn_ops: {row}: {reason}" for row, reason in found if reason]


def text(run: Run) -> str:
    """Everything, the most important last."""
    parts = [*tables(run), *summary_tables(run), "", *sentences(run), *wrong(run)]
    return "\n".join(map(str, parts))


# ---- The recorded run in the documentation -------------------------------------------------------


def _where(run: Run) -> list[str]:
    """Machine, versions of peers, date."""
    versions = [
        f"{_label(peer)} {next(iter(run.versions[peer].values()))}"
        for peer in PEERS
        if peer in run.versions and peer != "eigen"
    ]
    threads = f"{run.settings['threads']} threads"
    return [processor(run.machine), threads, *versions, run.machine["date"]]


# Calls whose tables the site's page has, and the repository's has not.
_SITE_ALONE = ("layer_relu", "layer_add_relu", "function_gradient", "layer")


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _headline(run: Run) -> str:
    """For the README."""
    where = ", ".join(word for word in _where(run) if "PyTorch" not in word)
    number = len({m.network for m in run.networks if m.turns})
    caption = (
        f"The largest, the median and the smallest gain of {number} networks, and the smallest in "
        f"smaller images; float32, medians; {where}."
    )
    return f"{headline_table(run).markdown()}\n\n{wrapped(caption)}"


def _overviews(run: Run) -> str:
    """For the page of the benchmarks: all calls, and how many rows there are in which a peer is
    faster."""
    shapes = {m.row.shape for m in run.of_section(GRADIENT) if m.row.channels_last}
    caption = (
        f"Median over {len(shapes)} layer shapes of the peer's time over tf_bn_ops', "
        f"{CALLS[GRADIENT].title}: above 1 tf_bn_ops is faster; -: the peer refuses. "
        f"{', '.join(_where(run))}."
    )
    parts = [overview_table(run, GRADIENT).markdown(), wrapped(caption)]
    for name, call in CALLS.items():
        if call.lead and name not in _SITE_ALONE and run.of_section(name):
            parts += [call.lead, overview_table(run, name).markdown()]
    if side := max((m.side for m in run.networks), default=0):
        largest = dataclasses.replace(run, networks=[m for m in run.networks if m.side == side])
        parts.append(_networks(largest))
        if (kept := kept_table(largest)).rows:
            parts += [
                "What it keeps for its gradient, beside weights and images:",
                kept.markdown(),
            ]
    return "\n\n".join(parts)


def _networks(run: Run) -> str:
    words = (
        f"A training step of whole networks on {processor(run.machine)}: with Keras' batch norm, "
        "with this library's, fused with the activations behind it, and with none of them:"
    )
    measured = dataclasses.replace(run, networks=[m for m in run.networks if m.turns])
    missing = {m.network for m in run.networks} - {m.network for m in measured.networks}
    parts = [wrapped(words), network_table(measured, True).markdown()]
    return "\n\n".join(parts + [f"Not measured: {', '.join(sorted(missing))}."] * bool(missing))


# What `record` writes into which page.
PAGE = ROOT / "docs" / "benchmarks.md"
PAGES = {ROOT / "README.md": _headline, PAGE: _overviews}


def with_overview(text: str, written: str, begin: str = BEGIN) -> str:
    """A page with what is between its markers replaced."""
    before, rest = text.split(begin)
    return f"{before}{begin}\n{written}\n{END}{rest.split(END, 1)[1]}"


def record(run: Run) -> list[pathlib.Path]:
    """Writes results.json and the overviews, or, of networks alone, a file and a table beside them;
    returns the files."""
    alone = bool(run.networks) and not run.rows
    recorded, begin = (NETWORKS, BEGIN_NETWORKS) if alone else (RECORDED, BEGIN)
    pages = {PAGE: _networks} if alone else PAGES
    results.save(run, recorded)
    run = results.load(recorded)  # The file's figures are rounded, and the pages show the file.
    for page, write in pages.items():
        page.write_text(with_overview(page.read_text("utf-8"), write(run), begin), "utf-8")
    return [recorded, *pages]


def site_page(run: Run) -> str:
    """All tables, for the site."""
    machine = run.machine
    peers = {_label(name): v for name, v in run.versions.items() if v}
    facts = {**machine, "peers": peers, "settings": run.settings, "command": run.command}
    lines = ["## Machine", "", "| | |", "| --- | --- |"]
    lines += [f"| {name.replace('_', ' ')} | {_plain(fact)} |" for name, fact in facts.items()]
    lines += ["", *(f"**{reason}**" for reason in wrong(run)), *sentences(run), "", "## Summary"]
    for table in summary_tables(run):
        lines += ["", f"### {table.title}", "", table.markdown()]
    lines += ["", "## Tables"]
    for table in tables(run):
        text = table.markdown()
        if len(table.rows) > _LONG:
            text = f"<details markdown>\n\n{text}\n\n</details>"
        lines += ["", f"### {table.title}", "", text]
    return "\n".join(lines)
