"""The JSON file of a run: its fields, its summary, reading it back.

SCHEMA is the description that docs/benchmarks.md shows; `check` holds a file against it.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops.bench import implementations, stats
from tf_bn_ops.harness import command

VERSION = 2

# Rows that move at least this much are held against the streaming limit: they exceed the
# last-level cache of most machines.
LIMIT_BYTES = 32 << 20
LIMIT_SHARES = (0.65, 0.8)

# Field -> meaning. Indented names are those of the objects in the field above.
SCHEMA: dict[str, dict[str, str]] = {
    "": {
        "schema": f"version of this format, {VERSION}",
        "command": "what was run",
        "seconds": "how long it took",
        "machine": "processor, caches, versions",
        "settings": "threads, seconds and rounds per row and implementation",
        "versions": "implementation -> versions of its libraries",
        "missing": "implementation -> why it was left out",
        "rows": "what was measured, see below",
        "memory": "peak extra memory of one call, see below",
        "eager_floor": "seconds of an eager TensorFlow op without work, see below; or null",
        "summary": "of layers: peer -> its time over ours; shares of the limit; what is wrong",
    },
    "rows": {
        "section": "layers, latency, or the series elements, channels, threads",
        "network": "where the shape comes from",
        "shape": "in the layout",
        "layout": "data format",
        "dtype": "element type",
        "mode": "training or frozen",
        "threads": "threads that every implementation could use",
        "channels": "number of channels",
        "elements": "elements of a tensor",
        "bytes": "of y_backprop, x and x_backprop together",
        "floor": "the streaming limit: reads and writes of a tensor, and their seconds; or null",
        "empty_call": "seconds of an eager TensorFlow op without work (section latency), or null",
        "results": "implementation -> its figures, see below",
        "refused": "implementation -> why it has none",
        "skipped": "why the row was not measured, or null",
    },
    "results": {
        "median_s": "seconds of a call, median of the samples",
        "p10_s": "10th percentile",
        "p90_s": "90th percentile",
        "samples": "number of samples",
        "gb_per_s": "bytes of the row over the median, in 10^9 bytes per second",
        "limit_share": "seconds of the floor over the median; null without a floor",
        "error_in_bounds": "the largest error in units of its bound; null if it is not finite",
        "wrong": "what is wrong with the result, or null",
    },
    "memory": {
        "implementation": "its name",
        "shape": "in the layout",
        "layout": "data format",
        "dtype": "element type",
        "mode": "training or frozen",
        "threads": "number of threads",
        "channels": "number of channels",
        "extra_bytes": "growth of the peak resident set in one call, less the outputs",
        "allowed_bytes": "1 MiB and 64 bytes per channel and thread",
    },
    "eager_floor": {
        "warm_s": "called again and again, median",
        "swept_s": "after 16 MiB of other data went through the caches, median",
    },
}


class ResultsError(ValueError):
    """A file that is no result of a run; the message is one sentence."""


def check(results: Any) -> None:
    """Raises ResultsError unless `results` has the fields of SCHEMA."""

    def compare(what: str, given: Any, name: str) -> None:
        if not isinstance(given, dict) or set(given) != set(SCHEMA[name]):
            raise ResultsError(f"{what} should have the fields {', '.join(SCHEMA[name])}")

    compare("the file", results, "")
    if results["schema"] != VERSION:
        raise ResultsError(f"the file has format {results['schema']}, this is for {VERSION}")
    for row in results["rows"]:
        compare("a row", row, "rows")
        for cell in row["results"].values():
            compare("a result", cell, "results")
    if results["eager_floor"] is not None:
        compare("eager_floor", results["eager_floor"], "eager_floor")
    for entry in results["memory"]:
        compare("an entry of memory", entry, "memory")


def load(path: pathlib.Path) -> dict[str, Any]:
    """Reads the file of an earlier run.

    Raises:
      ResultsError: it cannot be read, or is something else.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ResultsError(f"{path} cannot be read ({e})") from e
    check(results)
    assert isinstance(results, dict)
    return results


def save(results: dict[str, Any], path: pathlib.Path) -> None:
    """Writes the file, whole or not at all."""
    check(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    command.write_whole(json.dumps(results, indent=1, allow_nan=False) + "\n", path)


def speedup(row: dict[str, Any], peer: str) -> float | None:
    """How many times as long as ours the peer takes; None unless both are there and right."""
    own = row["results"].get(implementations.CANDIDATE)
    other = row["results"].get(peer)
    if own is None or other is None or own["wrong"] or other["wrong"]:
        return None
    return float(other["median_s"] / own["median_s"])


def channels_last(row: dict[str, Any]) -> bool:
    """Whether the channel is the last dimension of the row's layout."""
    return spec.DATA_FORMATS[row["layout"]][1]


def limit_rows(rows: list[dict[str, Any]]) -> list[float]:
    """Our shares of the streaming limit in the rows that are held against it."""
    return [
        row["results"][implementations.CANDIDATE]["limit_share"]
        for row in rows
        if row["bytes"] > LIMIT_BYTES
        and row["floor"] is not None
        and implementations.CANDIDATE in row["results"]
    ]


def beyond_reach(rows: list[dict[str, Any]], peer: str, eager: float) -> tuple[int, int]:
    """Rows in which the peer is faster than we are; of these, those in which no op could be.

    Args:
      rows: of the section "layers".
      peer: its name.
      eager: seconds of an eager TensorFlow op that does nothing.

    Returns:
      How many there are; in how many the peer's whole call takes less than `eager` and the
      streaming limit together.
    """
    faster = [row for row in rows if (ratio := speedup(row, peer)) is not None and ratio < 1]
    unreachable = [row for row in faster if row["results"][peer]["median_s"] < _least(row, eager)]
    return len(faster), len(unreachable)


def ceiling(rows: list[dict[str, Any]], peer: str, eager: float) -> float | None:
    """Geometric mean of a peer's times over those of an op that takes the least possible: `eager`
    seconds and the streaming limit. None without a row in which both were measured."""
    ratios = [
        row["results"][peer]["median_s"] / _least(row, eager)
        for row in rows
        if speedup(row, peer) is not None
    ]
    return stats.geometric_mean(ratios) if ratios else None


def _least(row: dict[str, Any], eager: float) -> float:
    return eager + (row["floor"]["median_s"] if row["floor"] else 0.0)


def of_section(results: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """The rows of a section that were measured."""
    return [row for row in results["rows"] if row["section"] == section and row["skipped"] is None]


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The field "summary": what the rows of the section "layers" say."""
    rows = [row for row in rows if row["section"] == "layers"]
    summary: dict[str, Any] = {}
    for peer in implementations.PEERS:
        ratios = [(r, row) for row in rows if (r := speedup(row, peer)) is not None]
        if not ratios:
            continue
        worst, where = min(ratios, key=lambda pair: pair[0])
        summary[peer] = {
            "rows": len(ratios),
            "geometric_mean": stats.geometric_mean(ratio for ratio, _ in ratios),
            "minimum": worst,
            "minimum_at": describe(where),
        }
    shares = limit_rows(rows)
    summary["limit"] = {
        "rows": len(shares),
        "minimum": min(shares, default=None),
        "median": stats.percentile(shares, 0.5) if shares else None,
        **{f"share_above_{s:.0%}": stats.share_above(shares, s) for s in LIMIT_SHARES},
    }
    summary["wrong"] = [
        f"{describe(row)}: {name}: {cell['wrong']}"
        for row in rows
        for name, cell in row["results"].items()
        if cell["wrong"]
    ]
    return summary


def describe(row: dict[str, Any]) -> str:
    """A row in a few words."""
    return f"{'x'.join(map(str, row['shape']))} {row['layout']} {row['dtype']} {row['mode']}"
