"""A benchmark run as data: its rows, ratios computed from them, and the JSON file that keeps it.

SCHEMA describes the file; docs/benchmarks.md shows it. Only what was measured is kept: one row per
line with sorted keys, numbers of four digits, fields without a value left out.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from tf_bn_ops import _command
from tf_bn_ops.bench import implementations, stats
from tf_bn_ops.bench.bench_rows import Row

VERSION = 6

# Rows that move more than this are compared with the bandwidth limit: they exceed the LLC of most
# machines.
LIMIT_BYTES = 32 << 20
# Below this, a call's time is that of waking threads: no share of the limit is shown.
SMALL_BYTES = 1 << 20

# Object -> field -> meaning.
SCHEMA: dict[str, dict[str, str]] = {
    "The file": {
        "schema": f"version of this format, {VERSION}",
        "command": "the command line",
        "seconds": "how long the run took",
        "machine": "processor, caches, versions",
        "settings": "threads; seconds and rounds per row and implementation",
        "versions": "implementation -> versions of its libraries",
        "missing": "implementation -> why it was left out",
        "rows": "what was measured, see below",
        "networks": "step times of whole networks, see below",
        "memory": "peak extra memory of one call, see below",
        "eager_us": "an eager TensorFlow op without work: warm; cold (after 16 MiB of other data)",
    },
    "An element of rows": {
        "section": "gradient, forward, layer (forward and gradient), layer_relu, layer_add_relu "
        "(with what is behind it); of the gradient also latency, and the series elements, "
        "channels, threads",
        "network": "where the shape comes from",
        "shape": "in the layout",
        "layout": "data format",
        "dtype": "element type of x",
        "mode": "training or frozen",
        "threads": "threads of every implementation",
        "us": "implementation -> median time of a call in microseconds",
        "ratios": "implementation, or memory_bandwidth for the bandwidth limit -> its time over "
        "that of tf_bn_ops in adjacent pairs: median and quartiles",
        "p10_p90_us": "10th and 90th percentile of tf_bn_ops",
        "limit": "the bandwidth limit: reads and writes of a tensor, and their microseconds",
        "kernel_us": "median time of tf_bn_ops inside the kernel, of one op up to 32 MiB",
        "empty_us": "an eager TensorFlow op without work (section latency)",
        "refused": "implementation -> its error message",
        "wrong": "implementation -> what is wrong with its result",
        "skipped": "why the row was not measured",
    },
    "An element of networks": {
        "network": "its name",
        "batch": "images per step",
        "side": "height and width of the images",
        "threads": "number of threads",
        "turns": "milliseconds of adjacent steps with Keras' batch norm, ours, an identity, ours "
        "fused with the activations behind, and an identity for all of these",
        "skipped": "why it was not measured",
    },
    "An element of memory": {
        "implementation": "its name",
        "shape": "in the layout",
        "layout": "data format",
        "dtype": "element type of x",
        "mode": "training or frozen",
        "threads": "number of threads",
        "extra_bytes": "growth of the peak resident set in one call, less the outputs",
        "allowed_bytes": "1 MiB and 64 bytes per channel and thread",
    },
}


class ResultsError(ValueError):
    """A file that is not the result of a run; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """The bandwidth limit of a row: passes over a tensor, and the time that they take."""

    reads: int
    writes: int
    us: float


@dataclasses.dataclass
class Measurement:
    """A row and what was measured; the fields are those of SCHEMA."""

    row: Row
    us: dict[str, float] = dataclasses.field(default_factory=dict)
    ratios: dict[str, stats.Ratio] = dataclasses.field(default_factory=dict)
    p10_p90_us: tuple[float, float] | None = None
    limit: Limit | None = None
    kernel_us: float | None = None
    empty_us: float | None = None
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    wrong: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: str | None = None

    @property
    def own_us(self) -> float | None:
        """Time of this library's op."""
        return self.us.get(implementations.CANDIDATE)

    def speedup(self, peer: str) -> float | None:
        """The peer's time over ours, the median of adjacent pairs; None unless both results are
        there and right."""
        if self.wrong.keys() & {peer, implementations.CANDIDATE} or peer not in self.ratios:
            return None
        return self.ratios[peer].median

    def gb_per_s(self, name: str = implementations.CANDIDATE) -> float:
        """Bytes of all tensors of the size of x over the time, in 10^9 bytes per second."""
        return self.row.bytes / self.us[name] * 1e-3

    @property
    def limit_share(self) -> float | None:
        """Time of the bandwidth limit over ours, the median of adjacent pairs; None for small
        rows."""
        found = self.ratios.get(implementations.MEMORY_BANDWIDTH)
        return None if found is None or self.row.bytes < SMALL_BYTES else found.median

    def least_us(self, eager_us: float) -> float:
        """The time of an op that takes an eager call and the bandwidth limit, and nothing else."""
        return eager_us + (self.limit.us if self.limit else 0.0)

    def to_json(self) -> dict[str, Any]:
        """An element of the field "rows"."""
        row = self.row
        fields = {
            "section": row.section,
            "network": row.network,
            "shape": "x".join(map(str, row.dims)),
            "layout": row.layout,
            "dtype": row.dtype,
            "mode": row.mode,
            "threads": row.threads,
            "us": {name: _short(us) for name, us in self.us.items()},
            "ratios": {
                name: [_short(value) for value in dataclasses.astuple(ratio)]
                for name, ratio in self.ratios.items()
            },
            "p10_p90_us": self.p10_p90_us and [_short(us) for us in self.p10_p90_us],
            "limit": self.limit and [self.limit.reads, self.limit.writes, _short(self.limit.us)],
            "kernel_us": self.kernel_us and _short(self.kernel_us),
            "empty_us": self.empty_us and _short(self.empty_us),
            "refused": self.refused,
            "wrong": self.wrong,
            "skipped": self.skipped,
        }
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Measurement:
        """The inverse of to_json."""
        rest = dict(fields)
        described = (rest.pop(name) for name in ("section", "network", "shape", "layout"))
        section, network, shape, layout = described
        row = Row.of_dims(
            section,
            network,
            tuple(map(int, shape.split("x"))),
            layout,
            *(rest.pop(name) for name in ("dtype", "mode", "threads")),
        )
        if "limit" in rest:
            rest["limit"] = Limit(*rest["limit"])
        found = rest.pop("ratios", {}).items()
        rest["ratios"] = {name: stats.Ratio(*numbers) for name, numbers in found}
        if "p10_p90_us" in rest:
            rest["p10_p90_us"] = tuple(rest["p10_p90_us"])
        return cls(row, **rest)


# What stands for batch norm in a network, in the order of `turns`. FUSED is this library's with the
# activations behind it, and WITHOUT_BOTH an identity for batch norm and for each of these.
KERAS, OURS, IDENTITY, FUSED, WITHOUT_BOTH = VARIANTS = (
    *("keras", "tf_bn_ops", "identity"),
    *("fused", "without_both"),
)


@dataclasses.dataclass
class NetworkMeasurement:
    """Training steps of a network; the fields are those of SCHEMA."""

    network: str
    batch: int
    side: int
    threads: int
    turns: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    skipped: str | None = None

    def milliseconds(self, variant: str) -> float:
        """Median time of a step."""
        at = VARIANTS.index(variant)
        return stats.percentile([turn[at] for turn in self.turns], 0.5)

    def ratio(self, variant: str, other: str) -> stats.Spread:
        """The time of a variant over that of another one, in pairs of adjacent steps."""
        a, b = VARIANTS.index(variant), VARIANTS.index(other)
        return stats.spread([turn[a] / turn[b] for turn in self.turns])

    @property
    def share_removed(self) -> stats.Spread:
        """The share of batch norm's cost that this library removes."""
        return self._share_removed(OURS, IDENTITY)

    @property
    def share_of_both_removed(self) -> stats.Spread:
        """The share of the cost of batch norm and the activations behind it that fusing removes."""
        return self._share_removed(FUSED, WITHOUT_BOTH)

    def _share_removed(self, variant: str, without: str) -> stats.Spread:
        """(keras - variant) / (keras - without), turn by turn. In a turn in which Keras' step is
        not the slower one the cost is lost in noise; it counts as nothing removed."""
        at = [VARIANTS.index(v) for v in (KERAS, variant, without)]
        times = [[turn[i] for i in at] for turn in self.turns]
        return stats.spread([(k - v) / (k - w) if k > w else 0.0 for k, v, w in times])

    def to_json(self) -> dict[str, Any]:
        """An element of the field "networks"."""
        fields = dataclasses.asdict(self)
        fields["turns"] = [[_short(ms) for ms in turn] for turn in self.turns]
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> NetworkMeasurement:
        """The inverse of to_json."""
        turns = [tuple(map(float, turn)) for turn in fields.get("turns", ())]
        if any(len(turn) != len(VARIANTS) for turn in turns):
            raise ValueError("a turn has a step of every variant")
        return cls(**{**fields, "turns": turns})


@dataclasses.dataclass
class Run:
    """One run; the fields are those of SCHEMA."""

    command: str
    seconds: float
    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, dict[str, str]]
    missing: dict[str, str]
    rows: list[Measurement]
    networks: list[NetworkMeasurement]
    memory: list[dict[str, Any]]
    eager_us: dict[str, float] | None

    def of_section(self, section: str) -> list[Measurement]:
        """The rows of a section that were measured."""
        return [m for m in self.rows if m.row.section == section and m.skipped is None]

    @property
    def peers(self) -> list[str]:
        """Peers that were measured, or refused every row."""
        return peers_of(self.rows)


def peers_of(rows: Iterable[Measurement]) -> list[str]:
    """Peers that were measured, or refused, in some rows."""
    found = {name for m in rows for name in (*m.us, *m.refused)}
    return [peer for peer in implementations.PEERS if peer in found]


def _short(value: float) -> float:
    """Four digits: more than a benchmark reproduces, and few enough to read a diff."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def to_text(run: Run) -> str:
    """The JSON file: one line per field, and one per element of rows, networks and
    memory."""
    content = {
        **{field.name: getattr(run, field.name) for field in dataclasses.fields(run)},
        "schema": VERSION,
        "seconds": _short(run.seconds),
        "rows": [m.to_json() for m in run.rows],
        "networks": [m.to_json() for m in run.networks],
    }

    def dump(value: Any) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join(dump(element) for element in value) + "\n]"
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))

    lines = [f"{json.dumps(name)}: {dump(content[name])}" for name in sorted(content)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def save(run: Run, path: pathlib.Path) -> None:
    """Writes the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _command.write_whole(to_text(run), path)


def load(path: pathlib.Path) -> Run:
    """Reads the file of an earlier run.

    Raises:
      ResultsError: it cannot be read, or is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ResultsError(f"{path} cannot be read ({e})") from e
    version = content.pop("schema", None) if isinstance(content, dict) else None
    if version != VERSION:
        raise ResultsError(f"{path} has format {version}; this command reads format {VERSION}")
    try:
        content["rows"] = [Measurement.from_json(fields) for fields in content["rows"]]
        found = [NetworkMeasurement.from_json(fields) for fields in content["networks"]]
        content["networks"] = found
        if any(set(entry) != set(SCHEMA["An element of memory"]) for entry in content["memory"]):
            raise ValueError("an element of memory has other fields")
        return Run(**content)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ResultsError(f"{path} is not the result of a benchmark run ({e!r})") from e


# ---- What the rows say ---------------------------------------------------------------------------


def ratios(rows: Iterable[Measurement], peer: str) -> list[tuple[float, Measurement]]:
    """(the peer's time over ours, row) of all rows that have both."""
    return [(ratio, m) for m in rows if (ratio := m.speedup(peer)) is not None]


def mean_ratio(rows: Iterable[Measurement], peer: str) -> float | None:
    """Geometric mean of the peer's times over ours."""
    return stats.geometric_mean(ratio for ratio, _ in ratios(rows, peer))


def limit_shares(rows: Iterable[Measurement]) -> list[float]:
    """Our shares of the bandwidth limit in the rows that are compared with it."""
    large = (m for m in rows if m.row.bytes > LIMIT_BYTES)
    return [share for m in large if (share := m.limit_share) is not None]


def beyond_reach(rows: Iterable[Measurement], peer: str, eager_us: float) -> tuple[int, int]:
    """(rows in which the peer is faster, those of them in which no TensorFlow op can be faster:
    the peer's whole call takes less than an empty eager op and the bandwidth limit together)."""
    faster = [m for ratio, m in ratios(rows, peer) if ratio < 1]
    return len(faster), sum(m.us[peer] < m.least_us(eager_us) for m in faster)


def ceiling(rows: Iterable[Measurement], peer: str, eager_us: float) -> float | None:
    """mean_ratio of an op that takes an empty eager op and the bandwidth limit, nothing else."""
    return stats.geometric_mean(m.us[peer] / m.least_us(eager_us) for _, m in ratios(rows, peer))
