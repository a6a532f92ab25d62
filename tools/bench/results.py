"""A benchmark run as data, and the JSON file that keeps it (docs/benchmarks/results.json).

Only what was measured is kept: one row per line with sorted keys, numbers of four digits, fields
without a value left out.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bench.libraries import CANDIDATE, MEMORY_BANDWIDTH, PEERS
from bench.rows import Row, UsageError
from tf_bn_ops import _command, spec

_VERSION = 7
# Rows that move more than this are compared with the bandwidth limit: they exceed the LLC of most
# machines.
LIMIT_BYTES = 32 << 20
# Below this, a call's time is that of waking threads: no share of the limit is shown.
SMALL_BYTES = 1 << 20


def percentiles(values: Sequence[float], which: Sequence[int] = (10, 50, 90)) -> list[float]:
    """Percentiles by linear interpolation: of samples the 10th, the median and the 90th."""
    return [float(value) for value in np.percentile(values, which)]


def geometric_mean(values: Iterable[float]) -> float | None:
    """None where there are no values."""
    logs = np.log(list(values))
    return float(np.exp(logs.mean())) if logs.size else None


@dataclasses.dataclass
class Measurement:
    """A row and what was measured.

    Attributes:
      row: its fields stand beside the others in the file, its shape in the layout.
      us: implementation -> median time of a call in microseconds.
      ratios: implementation, or memory_bandwidth for the bandwidth limit -> its time over ours in
        adjacent pairs: median and quartiles.
      p10_p90_us: 10th and 90th percentile of ours.
      limit: the bandwidth limit: reads and writes of a tensor, and their microseconds.
      refused, wrong: implementation -> its error message; what is wrong with its result.
      skipped: why the row was not measured.
    """

    row: Row
    us: dict[str, float] = dataclasses.field(default_factory=dict)
    ratios: dict[str, tuple[float, float, float]] = dataclasses.field(default_factory=dict)
    p10_p90_us: tuple[float, float] | None = None
    limit: tuple[int, int, float] | None = None
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    wrong: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: str | None = None

    def speedup(self, peer: str) -> float | None:
        """The peer's time over ours, the median of adjacent pairs; None unless both results are
        there and right."""
        if self.wrong.keys() & {peer, CANDIDATE} or peer not in self.ratios:
            return None
        return self.ratios[peer][0]

    def gb_per_s(self, name: str = CANDIDATE) -> float:
        """Bytes of all tensors of the size of x over the time, in 10^9 bytes per second."""
        return self.row.bytes / self.us[name] * 1e-3

    @property
    def limit_share(self) -> float | None:
        """Time of the bandwidth limit over ours; None for small rows."""
        return self.speedup(MEMORY_BANDWIDTH) if self.row.bytes >= SMALL_BYTES else None

    def to_json(self) -> dict[str, Any]:
        """An element of the field "rows"."""
        fields = {**dataclasses.asdict(self.row), **vars(self)}
        fields["shape"] = "x".join(map(str, self.row.dims))
        del fields["row"]
        return {name: _short(value) for name, value in fields.items() if value}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Measurement:
        """The inverse of to_json."""
        of_row = [field.name for field in dataclasses.fields(Row)]
        values = {name: fields[name] for name in of_row if name != "network"}
        dims = tuple(map(int, values["shape"].split("x")))
        last = spec.DATA_FORMATS[values["layout"]][1]
        values["shape"] = dims if last else (dims[0], *dims[2:], dims[1])
        rest = {name: value for name, value in fields.items() if name not in of_row}
        for name in rest.keys() & {"p10_p90_us", "limit"}:
            rest[name] = tuple(rest[name])
        rest["ratios"] = {name: tuple(three) for name, three in rest.get("ratios", {}).items()}
        return cls(Row(network=fields.get("network", ""), **values), **rest)


# What stands for batch norm in a network, in the order of `turns`. FUSED is this library's with the
# activations behind it, and WITHOUT_BOTH an identity for batch norm and for each of these.
KERAS, OURS, IDENTITY, FUSED, WITHOUT_BOTH = VARIANTS = (
    *("keras", "tf_bn_ops", "identity"),
    *("fused", "without_both"),
)


@dataclasses.dataclass
class NetworkMeasurement:
    """Training steps of a network; a turn has the milliseconds of one step of each of VARIANTS."""

    network: str
    batch: int
    side: int
    threads: int
    turns: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    skipped: str | None = None

    def of(self, variant: str) -> np.ndarray:
        """Milliseconds of its steps."""
        return np.array([turn[VARIANTS.index(variant)] for turn in self.turns])

    def share_removed(self, variant: str, without: str) -> list[float]:
        """(keras - variant) / (keras - without): 10th percentile, median and 90th of the turns. In
        a turn in which Keras' step is not the slower one the cost is lost in noise, and nothing
        counts as removed."""
        keras, ours, least = self.of(KERAS), self.of(variant), self.of(without)
        cost = np.where(keras > least, keras - least, np.inf)
        return percentiles((keras - ours) / cost)

    def to_json(self) -> dict[str, Any]:
        """An element of the field "networks"."""
        return {name: _short(value) for name, value in vars(self).items() if value}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> NetworkMeasurement:
        """The inverse of to_json."""
        turns = [tuple(map(float, turn)) for turn in fields.get("turns", ())]
        if any(len(turn) != len(VARIANTS) for turn in turns):
            raise ValueError("a turn has a step of every variant")
        return cls(**{**fields, "turns": turns})


@dataclasses.dataclass
class Run:
    """One run.

    Attributes:
      command, seconds: how it was started, and how long it took.
      machine: processor, caches, versions.
      settings: threads; seconds and rounds per row and implementation.
      versions, missing: implementation -> versions of its libraries; why it was left out.
      rows, networks: what was measured.
    """

    command: str
    seconds: float
    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, dict[str, str]]
    missing: dict[str, str]
    rows: list[Measurement]
    networks: list[NetworkMeasurement]

    def of_section(self, section: str) -> list[Measurement]:
        """The rows of a section that were measured."""
        return [m for m in self.rows if m.row.section == section and m.skipped is None]


def peers_of(rows: Iterable[Measurement]) -> list[str]:
    """Peers that were measured, or refused, in some rows."""
    found = {name for m in rows for name in (*m.us, *m.refused)}
    return [peer for peer in PEERS if peer in found]


def ratios(rows: Iterable[Measurement], peer: str) -> list[tuple[float, Measurement]]:
    """(the peer's time over ours, row) of all rows that have both."""
    return [(ratio, m) for m in rows if (ratio := m.speedup(peer)) is not None]


def _short(value: Any) -> Any:
    """Numbers of four digits: more than a benchmark reproduces, and few enough to read a diff."""
    if isinstance(value, dict):
        return {name: _short(element) for name, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(element) for element in value]
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def to_text(run: Run) -> str:
    """The JSON file: one line per field, and one per element of rows and networks."""
    content = {
        **vars(run),
        "schema": _VERSION,
        "seconds": _short(float(run.seconds)),
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
      UsageError: it cannot be read, or is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != _VERSION:
            raise ValueError(f"not format {_VERSION}")
        content["rows"] = [Measurement.from_json(fields) for fields in content["rows"]]
        found = [NetworkMeasurement.from_json(fields) for fields in content["networks"]]
        return Run(**{**content, "networks": found})
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise UsageError(f"{path} is not the results.json of a benchmark run ({e!r})") from e
