"""Plots of a run with matplotlib, where it is installed: roofline, speedups, scaling."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tf_bn_ops.bench import implementations, results, stats
from tf_bn_ops.bench.bench_rows import GRADIENT
from tf_bn_ops.bench.reports.text_table import label
from tf_bn_ops.bench.results import Measurement, Run

TITLES = {
    "roofline": "Bytes per second of every layer, and the bandwidth limit",
    "speedup": "Time of a peer over ours, geometric means",
    "shapes": "Time of a peer over ours, shape by shape",
    "scaling": "Time against elements, channels and threads",
}
# Distinguishable with impaired colour vision (Okabe and Ito).
_COLOURS = {
    implementations.CANDIDATE: "#d55e00",
    "tensorflow": "#0072b2",
    "eigen": "#56b4e9",
    "torch": "#009e73",
    "jax": "#cc79a7",
}
_MARKERS = {
    implementations.CANDIDATE: "o",
    "tensorflow": "s",
    "eigen": "v",
    "torch": "^",
    "jax": "D",
}


def is_possible() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _pyplot() -> Any:
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 9,
            "legend.frameon": False,
            "svg.hashsalt": "tf_bn_ops",
            "svg.fonttype": "none",
        }
    )
    return importlib.import_module("matplotlib.pyplot")


def _plain_numbers(axis: Any) -> None:
    """Ticks of a logarithmic axis as 0.5, 1, 20 instead of powers."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    # Between the powers only where less than a decade is shown.
    axis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1, 0.4)))


def _limit(axis: Any, rows: Sequence[Measurement], key: Any, value: Any, style: str) -> None:
    """The bandwidth limit as a line: the median of the rows of one abscissa."""
    places: dict[Any, list[float]] = {}
    for m in rows:
        if m.limit and m.row.bytes >= results.SMALL_BYTES:
            places.setdefault(key(m.row), []).append(value(m))
    points = [(x, stats.percentile(places[x], 0.5)) for x in sorted(places)]
    axis.plot(
        [x for x, _ in points], [y for _, y in points],
        color="black", linewidth=1, linestyle=style, label="bandwidth limit",
    )  # fmt: skip


def _chosen(rows: Sequence[Measurement], last: bool, **values: str) -> list[Measurement]:
    """The rows of one kind of layout whose attributes have these values."""
    return [
        m for m in rows
        if m.row.channels_last == last
        and all(getattr(m.row, name) == value for name, value in values.items())
    ]  # fmt: skip


def _layout_name(last: bool) -> str:
    return "channels last" if last else "channels first"


def _roofline(pyplot: Any, run: Run) -> Any:
    rows = [m for m in run.of_section(GRADIENT) if m.row.mode == "training"]
    dtypes = list(dict.fromkeys(m.row.dtype for m in rows))
    if not dtypes:
        return None
    figure, axes = pyplot.subplots(
        len(dtypes), 2, figsize=(10, 3.2 * len(dtypes)), sharex=True, squeeze=False
    )
    for line, dtype in zip(axes, dtypes, strict=True):
        for axis, last in zip(line, (True, False), strict=True):
            chosen = sorted(_chosen(rows, last, dtype=dtype), key=lambda m: m.row.bytes)
            _limit(
                axis, chosen, lambda r: r.bytes, lambda m: m.row.bytes / m.limit.us * 1e-3, "-"
            )  # fmt: skip
            for name in (*results.peers_of(rows), implementations.CANDIDATE):
                points = [m for m in chosen if name in m.us]
                axis.plot(
                    [m.row.bytes for m in points],
                    [m.gb_per_s(name) for m in points],
                    _MARKERS[name], color=_COLOURS[name], label=label(name),
                    markersize=5 if name == implementations.CANDIDATE else 3, alpha=0.8,
                )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            _plain_numbers(axis.yaxis)
            axis.set_title(f"{_layout_name(last)}, {dtype}, training")
            axis.set_ylabel("GB/s")
    for axis in axes[-1]:
        axis.set_xlabel("bytes of y_backprop, x and x_backprop")
    _legend(figure, axes)
    return figure


def _legend(figure: Any, axes: Any) -> None:
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=6)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))


def _speedup(pyplot: Any, run: Run) -> Any:
    rows = run.of_section(GRADIENT)
    groups = list(dict.fromkeys((m.row.channels_last, m.row.dtype, m.row.mode) for m in rows))
    groups.sort(key=lambda g: (g[2] != "training", not g[0]))
    peers = results.peers_of(rows)
    if not groups or not peers:
        return None
    figure, axis = pyplot.subplots(figsize=(10, 4.2))
    width = 0.8 / len(peers)
    for i, peer in enumerate(peers):
        means = [
            results.mean_ratio(_chosen(rows, last, dtype=dtype, mode=mode), peer)
            for last, dtype, mode in groups
        ]
        at = [k + (i - (len(peers) - 1) / 2) * width for k in range(len(groups))]
        shown = [(x, mean) for x, mean in zip(at, means, strict=True) if mean is not None]
        bars = axis.bar(
            [x for x, _ in shown], [mean for _, mean in shown], width,
            color=_COLOURS[peer], label=label(peer),
        )  # fmt: skip
        axis.bar_label(bars, fmt="%.1f", fontsize=6)
    axis.axhline(1, color="black", linewidth=1)
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis)
    names = [f"{'last' if last else 'first'}\n{dtype}\n{mode}" for last, dtype, mode in groups]
    axis.set_xticks(range(len(groups)), names, fontsize=7)
    axis.set_ylabel("time of the peer over ours")
    axis.set_title("Geometric means over all shapes (channels last or first, dtype, mode)")
    axis.grid(axis="x", visible=False)
    axis.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.06))
    figure.tight_layout()
    return figure


def _shapes(pyplot: Any, run: Run) -> Any:
    rows = [
        m for m in run.of_section(GRADIENT)
        if m.row.dtype == "float32" and m.row.mode == "training"
    ]  # fmt: skip
    peers = [peer for peer in results.peers_of(rows) if results.ratios(rows, peer)]
    if not rows or not peers:
        return None
    figure, axes = pyplot.subplots(
        1, 2, figsize=(10, 1.5 + 0.09 * (len(peers) + 0.7) * len(rows) / 2), squeeze=False
    )
    for axis, last in zip(axes[0], (True, False), strict=True):
        chosen = _chosen(rows, last)
        height = 0.8 / len(peers)
        for i, peer in enumerate(peers):
            axis.barh(
                [k + (i - (len(peers) - 1) / 2) * height for k in range(len(chosen))],
                [m.speedup(peer) or 0 for m in chosen],
                height, color=_COLOURS[peer], label=label(peer),
            )  # fmt: skip
        axis.axvline(1, color="black", linewidth=1)
        axis.set_xscale("log")
        _plain_numbers(axis.xaxis)
        names = ["x".join(map(str, m.row.dims)) for m in chosen]
        axis.set_yticks(range(len(chosen)), names, fontsize=6)
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set_title(f"{_layout_name(last)}, float32, training")
        axis.set_xlabel("time of the peer over ours")
    _legend(figure, axes)
    return figure


# Series -> label of its abscissa; its name is the attribute of a row that varies.
_SERIES = {"elements": "elements", "channels": "channels (4 Mi elements)", "threads": "threads"}


def _scaling(pyplot: Any, run: Run) -> Any:
    given = [name for name in _SERIES if run.of_section(name)]
    if not given:
        return None
    figure, axes = pyplot.subplots(
        len(given), 2, figsize=(10, 3.2 * len(given)), squeeze=False, sharey="row"
    )
    for line, section in zip(axes, given, strict=True):
        rows, what = run.of_section(section), _SERIES[section]
        if section == "threads":
            most = max(m.row.elements for m in rows)
            rows = [m for m in rows if m.row.elements == most]
            what += f" ({most / 1e6:.0f} million elements, 64 channels)"
        for axis, last in zip(line, (True, False), strict=True):
            _scaling_axis(axis, _chosen(rows, last), section)
            axis.set_xlabel(what)
            axis.set_title(f"{_layout_name(last)}, float32, training")
    _legend(figure, axes)
    return figure


def _scaling_axis(axis: Any, rows: list[Measurement], section: str) -> None:
    def key(row: Any) -> Any:
        return getattr(row, section)

    rows.sort(key=lambda m: key(m.row))
    for name in (*results.peers_of(rows), implementations.CANDIDATE):
        points = [m for m in rows if name in m.us]
        axis.plot(
            [key(m.row) for m in points],
            [m.us[name] * 1e-3 for m in points],
            marker=_MARKERS[name], markersize=4, color=_COLOURS[name], label=label(name),
        )  # fmt: skip
    _limit(axis, rows, key, lambda m: m.limit.us * 1e-3, ":")
    axis.set_xscale("log", base=10 if section == "elements" else 2)
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis)
    if section != "elements":
        _plain_numbers(axis.xaxis)
    axis.set_ylabel("ms")


_FIGURES: dict[str, Callable[[Any, Run], Any]] = {
    "roofline": _roofline,
    "speedup": _speedup,
    "shapes": _shapes,
    "scaling": _scaling,
}


def write(
    run: Run, folder: pathlib.Path, formats: Sequence[str] = ("png", "svg")
) -> list[pathlib.Path]:
    """Draws the plots for which the run has data; returns the files, one per plot and format."""
    if not is_possible():
        return []
    pyplot = _pyplot()
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in _FIGURES.items():
        figure = draw(pyplot, run)
        if figure is None:
            continue
        for extension in formats:
            path = folder / f"{name}.{extension}"
            metadata = {"Date": None} if extension == "svg" else None
            figure.savefig(path, dpi=150, metadata=metadata)
            written.append(path)
        pyplot.close(figure)
    return written
