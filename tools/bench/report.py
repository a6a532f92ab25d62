"""The tables and sentences of a run: in the terminal, in README.md and docs/benchmarks.md between
markers (`record`), and on the site's page (`page`)."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench import results
from bench.libraries import CANDIDATE, ENTRIES, PEERS
from bench.results import FUSED, IDENTITY, KERAS, OURS, WITHOUT_BOTH, Measurement, Run
from bench.rows import CALLS, FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, UsageError

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "benchmarks" / "results.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
BEGIN = "<!-- written by make bench ARGS=--record from docs/benchmarks/results.json -->"
END = "<!-- end of what make bench ARGS=--record writes -->"
ALL_TABLES = "<!-- make docs inserts all tables here -->"  # Replaced by `page`.

CALL_TITLES = {
    GRADIENT: "gradient",
    FORWARD: "forward",
    LAYER: "forward + gradient",
    LAYER_RELU: "batch norm + ReLU, forward + gradient",
    LAYER_ADD_RELU: "batch norm + add + ReLU, forward + gradient",
}
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


def time_text(us: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def _size(value: float) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if abs(value) >= 1 << shift:
            return f"{value / (1 << shift):.3g} {unit}"
    return f"{value / 1024:.0f} KiB"


def _plain(value: Any) -> str:
    """A fact about a run as a cell."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(element)}" for name, element in value.items())
    return _size(value) if isinstance(value, int) and value > 1 << 14 else str(value)


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


def overview_table(run: Run, call: str = GRADIENT) -> Table:
    """By layout and dtype: median of each peer's time over ours, rows in which it is faster."""
    layers = run.of_section(call)
    title = f"Time of a peer over ours, {CALL_TITLES[call]}, by layout and dtype"
    table = Table(title, ["layout", "dtype"], 2)
    peers = [peer for peer in results.peers_of(layers) if peer != "eigen"]
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
    for peer in PEERS:
        for call in CALLS:
            for key, rows in _groups(run.of_section(call), "layout", "dtype").items():
                found = sorted(results.ratios(rows, peer), key=lambda pair: pair[0])
                cells = [
                    f"{'x'.join(map(str, m.row.dims))}{' frozen' * (m.row.mode == 'frozen')} "
                    f"{ratio:.2f}"
                    for ratio, m in found
                    if ratio < 1
                ]
                if cells:
                    line = [_label(peer), CALL_TITLES[call], *key, ", ".join(cells)]
                    table.rows.append(line)
    return table


def limit_table(run: Run, call: str) -> Table:
    """Our shares of the bandwidth limit, by dtype, layout and mode."""
    large = f"rows that move more than {results.LIMIT_BYTES >> 20} MiB"
    headings = ["dtype", "layout", "mode", "rows", "median", "minimum"]
    headings += [f"reach {share:.0%}" for share in _LIMIT_SHARES]
    table = Table(f"Share of the bandwidth limit, {CALL_TITLES[call]}, {large}", headings, 3)
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
        medians = (statistics.median(m.of(variant)) for variant in (KERAS, ours, without))
        ratio = statistics.median(m.of(KERAS) / m.of(ours))
        low, median, high = m.share_removed(ours, without)
        cells = f"{ratio:.2f}", f"{median:.0%}", f"{low:.0%} {high:.0%}"
        times = (time_text(1e3 * float(ms)) for ms in medians)
        table.rows.append([m.network, size, *times, *cells])
    return table


def rows_table(title: str, rows: Sequence[Measurement]) -> Table:
    """One line per row, with the times of all peers and their ratio to ours."""
    headings = ["shape", "layout", "dtype", "mode"]
    headings += ["tf_bn_ops", "10-90%", "GB/s", "limit"]
    peers = results.peers_of(rows)
    table = Table(title, headings + [h for p in peers for h in (_label(p), "ratio")], 4)

    def cell(m: Measurement, name: str) -> str:
        if name not in m.us:
            reason = m.refused.get(name)
            return f"- {table.note(f'{_label(name)}: {reason}')}" if reason else "-"
        if name in m.wrong:
            return f"{time_text(m.us[name])} wrong {table.note(f'{_label(name)}: {m.wrong[name]}')}"
        return time_text(m.us[name])

    for m in rows:
        line = [*str(m.row).split(), cell(m, CANDIDATE)]
        own, share = m.us.get(CANDIDATE), m.limit_share
        line.append(" ".join(f"{us / own - 1:+.0%}" for us in m.p10_p90_us or ()) if own else "")
        line.append(f"{m.gb_per_s():.1f}" if own else "")
        line.append("" if share is None else f"{share:.0%}")
        for peer in peers:
            ratio = m.speedup(peer)
            line += [cell(m, peer), "" if ratio is None else f"{ratio:.2f}"]
        table.rows.append(line)
    return table


def summary_tables(run: Run) -> list[Table]:
    """The tables above all others; empty ones are left out."""
    kinds = (overview_table, limit_table)
    tables = [make(run, call) for call in CALLS for make in kinds]
    tables += [network_table(run, fused) for fused in (False, True)]
    tables.append(slower_table(run))
    return [table for table in tables if table.rows]


def tables(run: Run) -> Iterator[Table]:
    """All tables of rows; empty ones are left out."""
    for call in CALLS:
        for (dtype, mode), rows in _groups(run.of_section(call), "dtype", "mode").items():
            yield rows_table(f"Layers of networks, {CALL_TITLES[call]}, {dtype}, {mode}", rows)
    if rows := run.of_section("latency"):
        yield rows_table("Small tensors: the overhead of a call", rows)


# ---- Sentences -----------------------------------------------------------------------------------


def sentences(run: Run) -> Iterator[str]:
    """What was not measured, and wrong results of peers."""
    if run.machine["load_before"] > _BUSY:
        load = f"load {run.machine['load_before']:.1f}"
        yield f"The machine was busy when the run began ({load}): repeat it on an idle one."
    for name, reason in run.missing.items():
        yield f"Left out: {_label(name)}: {reason}."
    skipped = [m for m in run.rows if m.skipped]
    for reason in dict.fromkeys(m.skipped for m in skipped):
        names = ", ".join(str(m.row) for m in skipped if m.skipped == reason)
        yield f"Not measured, {reason}: {names}."
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


def _caption(run: Run, call: str) -> str:
    shapes = len({m.row.shape for m in run.of_section(call)})
    versions = ", ".join(
        f"{_label(peer)} {next(iter(run.versions[peer].values()))}"
        for peer in PEERS
        if peer in run.versions and peer != "eigen"
    )
    return (
        f"Median over {shapes} layer shapes of the peer's time over that of tf_bn_ops, "
        f"{CALL_TITLES[call]}: above 1 tf_bn_ops is faster; -: the peer refuses. "
        f"{run.machine['cpu']}, {run.settings['threads']} threads, {versions}, "
        f"{run.machine['date']}."
    )


def headline_table(run: Run) -> Table:
    """What a program gains: networks of the largest side, and of the others the one that gains
    least. Layers are exchanged and fused, as in a program with every switch on."""
    headings = ["training step", "Keras", "tf_bn_ops", "times as fast"]
    table = Table("A training step of a network", headings, 1)
    gains = [
        (statistics.median(m.of(KERAS) / m.of(FUSED)), m) for m in run.networks if not m.skipped
    ]
    side = max((m.side for _, m in gains), default=0)
    small = sorted((pair for pair in gains if pair[1].side < side), key=lambda pair: pair[0])
    for gain, m in [*(pair for pair in gains if pair[1].side == side), *small[:1]]:
        times = (time_text(1e3 * float(statistics.median(m.of(kind)))) for kind in (KERAS, FUSED))
        name = f"{m.network}, {m.batch} images of {m.side} x {m.side}"
        table.rows.append([name, *times, f"{gain:.2f}"])
    return table


def _headline(run: Run) -> str:
    """For the README."""
    machine, settings = run.machine, run.settings
    peer = next(iter(run.versions["tensorflow"].values()))
    where = f"{machine['cpu']}, {settings['threads']} threads, TensorFlow {peer}, {machine['date']}"
    return f"{headline_table(run).markdown()}\n\nfloat32, medians; {where}."


def on_page(page: pathlib.Path, run: Run) -> str:
    """What stands between the markers of a page: in the README what networks gain; on the page of
    the benchmarks all calls, and how many rows there are in which a peer is faster."""
    if page.name == "README.md":
        return _headline(run)
    lines = [overview_table(run).markdown(), "", _caption(run, GRADIENT)]
    titles = {
        FORWARD: "The forward op, likewise:",
        LAYER: "A layer in training, the forward op and its gradient, likewise:",
        LAYER_RELU: "A layer with ReLU behind it, likewise; TensorFlow's is a chain of ops:",
        LAYER_ADD_RELU: "A layer with the addition of a side input and ReLU behind it, likewise:",
    }
    for call, what in titles.items():
        if run.of_section(call):
            lines += ["", what, "", overview_table(run, call).markdown()]
    if run.networks:
        what = "A training step of whole networks: Keras' batch norm, this library's, and none:"
        lines += ["", what, "", network_table(run, False).markdown()]
        what = "With batch norm fused with the activations behind it, and with neither of both:"
        lines += ["", what, "", network_table(run, True).markdown()]
    return "\n".join(lines)


def with_overview(text: str, written: str) -> str:
    """A page with what is between its markers replaced.

    Raises:
      UsageError: it has not one pair of markers.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UsageError(f"the page needs one line {BEGIN!r} and after it one line {END!r}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{written}\n{END}{rest.split(END)[1]}"


def record(run: Run) -> list[pathlib.Path]:
    """Writes results.json and the overviews; returns the files."""
    results.save(run, RECORDED)
    run = results.load(RECORDED)  # The file's figures are rounded, and the pages show the file.
    for page in PAGES:
        page.write_text(with_overview(page.read_text("utf-8"), on_page(page, run)), "utf-8")
    return [RECORDED, *PAGES]


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
