"""The tables and sentences of a run, for the terminal and for Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tf_bn_ops.bench import implementations, results, stats
from tf_bn_ops.bench.bench_rows import (
    CALLS,
    FORWARD,
    GRADIENT,
    LAYER,
    LAYER_ADD_RELU,
    LAYER_RELU,
    LAYERS,
)
from tf_bn_ops.bench.reports.text_table import Table, bytes_text, label, time_text, times_text
from tf_bn_ops.bench.results import (
    FUSED,
    IDENTITY,
    KERAS,
    OURS,
    WITHOUT_BOTH,
    Measurement,
    NetworkMeasurement,
    Run,
)

# Goals of the project, by what is called and by peer: (least ratio of a row, geometric mean).
GOALS: dict[str, dict[str, tuple[float | None, float | None]]] = {
    GRADIENT: {"tensorflow": (0.95, 2.5), "eigen": (None, 8.0), "torch": (1.0, 2.0)},
    FORWARD: {"tensorflow": (1.0, 2.5)},
    LAYER: {},
    LAYER_RELU: {"tensorflow": (None, 3.0)},
    LAYER_ADD_RELU: {},
}
# Of layers the geometric mean in float32, channels-last, against TensorFlow, of tensors of more
# bytes than these: call -> (goal, bytes).
LAYER_GOALS = {LAYER: (1.5, 0), LAYER_RELU: (2.0, 8 << 20)}
# What is called, in titles.
CALL_TITLES = {
    GRADIENT: "gradient",
    FORWARD: "forward",
    LAYER: "forward + gradient",
    LAYER_RELU: "batch norm + ReLU, forward + gradient",
    LAYER_ADD_RELU: "batch norm + add + ReLU, forward + gradient",
}
LIMIT_GOALS = {0.65: 1.0, 0.8: 0.5}  # share of the limit -> share of rows that reach it
BUSY = 0.7  # Load average above which a run is unreliable.


def layout_kind(row: Any) -> str:
    return "channels-last" if row.channels_last else "channels-first"


# ---- Summary -------------------------------------------------------------------------------------


def _groups(rows: Sequence[Measurement], *names: str) -> dict[tuple[str, ...], list[Measurement]]:
    """Rows by some of layout, dtype and mode."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in rows:
        values = {"layout": layout_kind(m.row), "dtype": m.row.dtype, "mode": m.row.mode}
        groups.setdefault(tuple(values[name] for name in names), []).append(m)
    return groups


def overview_table(run: Run, call: str = GRADIENT) -> Table:
    """By layout and dtype: median of each peer's time over ours, rows in which it is faster."""
    layers = run.of_section(call)
    title = f"Time of a peer over ours, {CALL_TITLES[call]}, by layout and dtype"
    table = Table(title, ["layout", "dtype"], 2)
    found = results.peers_of(layers)
    peers = [peer for peer in ("tensorflow", "xla", "torch", "jax") if peer in found]
    modes = list(dict.fromkeys(m.row.mode for m in layers))
    for peer in peers:
        table.headings += [f"{label(peer)}, {mode}" for mode in modes]
        table.headings.append(f"{label(peer)} faster in")
    by_group = _groups(layers, "layout", "dtype")
    for key, rows in sorted(by_group.items(), key=lambda item: item[0][0], reverse=True):
        line = list(key)
        for peer in peers:
            for mode in modes:
                ratios = [r for r, m in results.ratios(rows, peer) if m.row.mode == mode]
                line.append(f"{statistics.median(ratios):.1f}" if ratios else "-")
            all_ratios = results.ratios(rows, peer)
            faster = sum(ratio < 1 for ratio, _ in all_ratios)
            line.append(f"{faster} of {len(all_ratios)}")
        table.rows.append(line)
    return table


def slower_table(run: Run) -> Table:
    """The rows in which a peer is faster, by peer, call, layout and dtype; the slowest first."""
    table = Table("Rows in which a peer is faster", ["peer", "call", "layout", "dtype", "rows"], 5)
    for peer in run.peers:
        for call in CALLS:
            for key, rows in _groups(run.of_section(call), "layout", "dtype").items():
                slower = sorted(
                    ((ratio, m) for ratio, m in results.ratios(rows, peer) if ratio < 1),
                    key=lambda pair: pair[0],
                )
                if slower:
                    cells = [
                        f"{'x'.join(map(str, m.row.dims))}{' frozen' * (m.row.mode == 'frozen')} "
                        f"{ratio:.2f}"
                        for ratio, m in slower
                    ]
                    table.rows.append([label(peer), CALL_TITLES[call], *key, ", ".join(cells)])
    return table


def summary_table(run: Run, call: str = GRADIENT) -> Table:
    """Each peer's ratios over all rows, and the goals."""
    headings = ["peer", "rows", "geometric mean", "goal", "at most", "minimum", "goal", "where"]
    table = Table(f"Time of a peer over ours, {CALL_TITLES[call]}", headings, 1)
    layers = run.of_section(call)
    for peer in results.peers_of(layers):
        if not (found := results.ratios(layers, peer)):
            continue
        minimum, where = min(found, key=lambda pair: pair[0])
        least, mean = GOALS[call].get(peer, (None, None))
        # A layer is two eager calls.
        calls = 2 if call in LAYERS else 1
        eager_us = calls * run.eager_us["warm"] if run.eager_us else None
        most = results.ceiling(layers, peer, eager_us) if eager_us else None
        table.rows.append(
            [
                label(peer),
                str(len(found)),
                times_text(results.mean_ratio(layers, peer)),
                "" if mean is None else f"{mean:g}",
                times_text(most),
                f"{minimum:.2f}",
                "" if least is None else f"{least:g}",
                str(where.row),
            ]
        )
    return table


def limit_table(run: Run, call: str = GRADIENT) -> Table:
    """Our shares of the bandwidth limit, by dtype, layout and mode."""
    least = min(LIMIT_GOALS)
    table = Table(
        f"Share of the bandwidth limit, {CALL_TITLES[call]}, rows that move more than "
        f"{results.LIMIT_BYTES >> 20} MiB",
        ["dtype", "layout", "mode", "rows", "median", "minimum", f"reach {least:.0%}"],
        3,
    )
    for key, rows in _groups(run.of_section(call), "dtype", "layout", "mode").items():
        if shares := results.limit_shares(rows):
            reached = sum(share >= least for share in shares)
            cells = f"{statistics.median(shares):.0%}", f"{min(shares):.0%}", str(reached)
            table.rows.append([*key, str(len(shares)), *cells])
    return table


def network_table(run: Run) -> Table:
    """Step times of whole networks, and the share of batch norm's cost that is removed."""
    headings = ["tf_bn_ops", "without batch norm", "Keras / tf_bn_ops", "batch norm's cost removed"]
    table = _network_table("A training step of a network", headings)
    for m in run.networks:
        removed = None if m.skipped else m.share_removed
        _add_network(table, m, (OURS, IDENTITY), removed)
    return table


def fused_network_table(run: Run) -> Table:
    """The same with batch norm and the activations behind it fused, and of the cost of both."""
    headings = ["fused", "without both", "Keras / fused", "cost of both removed"]
    title = "A training step of a network, batch norm fused with the activations behind it"
    table = _network_table(title, headings)
    for m in run.networks:
        removed = None if m.skipped else m.share_of_both_removed
        _add_network(table, m, (FUSED, WITHOUT_BOTH), removed)
    return table


def _network_table(title: str, headings: Sequence[str]) -> Table:
    return Table(title, ["network", "input", "Keras", *headings, "10-90%"], 2)


def _add_network(
    table: Table,
    m: NetworkMeasurement,
    variants: tuple[str, str],
    removed: stats.Spread | None,
) -> None:
    """A line; `variants` are this library's and an identity."""
    size = f"{m.batch}x{m.side}x{m.side}x3"
    if removed is None:
        table.rows.append([m.network, f"{size} {table.note(str(m.skipped))}", *["-"] * 6])
        return
    table.rows.append(
        [
            m.network,
            size,
            *(time_text(1e3 * m.milliseconds(v)) for v in (KERAS, *variants)),
            f"{m.ratio(KERAS, variants[0]).median:.2f}",
            f"{removed.median:.0%}",
            f"{removed.p10:.0%} {removed.p90:.0%}",
        ]
    )


def summary_tables(run: Run) -> list[Table]:
    """The tables above all others; empty ones are left out."""
    tables = [
        make(run, call) for call in CALLS for make in (overview_table, summary_table, limit_table)
    ]
    tables += [network_table(run), fused_network_table(run)]
    return [table for table in tables if table.rows]


def layer_sentences(run: Run) -> list[str]:
    """The goals of layers in float32, channels-last."""
    sentences = []
    for call, (goal, least_bytes) in LAYER_GOALS.items():
        groups = _groups(run.of_section(call), "layout", "dtype")
        rows = groups.get(("channels-last", "float32"), [])
        rows = [m for m in rows if m.row.tensor_bytes > least_bytes]
        mean = results.mean_ratio(rows, "tensorflow")
        if mean is None:
            continue
        what = "A layer" if call == LAYER else "A layer with ReLU"
        size = f", tensors of more than {least_bytes >> 20} MiB," if least_bytes else ""
        sentences.append(
            f"{what}, forward and gradient, in float32 channels-last{size} takes TensorFlow "
            f"{mean:.2f} times our time, geometric mean (goal: {goal:g})."
        )
    return sentences


def limit_sentences(run: Run) -> list[str]:
    """The bandwidth limit and the overhead of an eager call, in sentences."""
    layers = run.of_section(GRADIENT)
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


def rows_table(title: str, rows: Sequence[Measurement]) -> Table:
    """One line per row, with the times of all peers and their ratio to ours."""
    table = Table(title, ["shape", "layout", "dtype", "mode"], 4)
    with_threads = len({m.row.threads for m in rows}) > 1
    with_kernel = any(m.kernel_us for m in rows)
    with_empty = any(m.empty_us for m in rows)
    table.headings += ["threads"] * with_threads + ["tf_bn_ops", "10-90%", "GB/s", "limit"]
    table.headings += ["in the kernel"] * with_kernel + ["empty op"] * with_empty
    peers = results.peers_of(rows)
    for peer in peers:
        table.headings += [label(peer), "ratio"]
    for m in rows:
        line = str(m.row).split()
        line += [str(m.row.threads)] * with_threads
        line += [_cell(table, m, implementations.CANDIDATE), *_own_cells(m)]
        if with_kernel:
            line.append(time_text(m.kernel_us) if m.kernel_us else "")
        if with_empty:
            line.append(time_text(m.empty_us) if m.empty_us else "")
        for peer in peers:
            line += [_cell(table, m, peer), times_text(m.speedup(peer))]
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
        cells = [bytes_text(values[n]) if n in values else "-" for n in names]
        table.rows.append([*key[:4], bytes_text(key[4]), *cells])
    return table


def tables(run: Run) -> list[Table]:
    """All tables of rows, in the order of the report; empty ones are left out."""
    found = []
    for call in CALLS:
        for (dtype, mode), rows in _groups(run.of_section(call), "dtype", "mode").items():
            title = f"Layers of networks, {CALL_TITLES[call]}, {dtype}, {mode}"
            found.append(rows_table(title, rows))
    for section, title in (
        ("latency", "Small tensors: the overhead of a call"),
        ("elements", "Time against elements"),
        ("channels", "Time against channels"),
        ("threads", "Time against threads"),
    ):
        if rows := run.of_section(section):
            found.append(rows_table(title, rows))
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
    for table in summary_tables(run):
        table.print(console)
    if run.of_section(GRADIENT):
        for sentence in limit_sentences(run):
            console.print(sentence, soft_wrap=True)
    for sentence in layer_sentences(run):
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
