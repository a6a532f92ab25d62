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
from tf_bn_ops import _command

_VERSION = 8
# Rows that move more than this are compared with the bandwidth limit: they exceed the LLC of most
# machines.
LIMIT_BYTES = 32 << 20
# Below this, a call's time goes into waking threads: no share of the limit is shown.
SMALL_BYTES = 1 << 20


def percentiles(values: Sequence[float], which: Sequence[int] = (10, 50, 90)) -> list[float]:
    """Percentiles by linear interpolation: of samples the 10th, the median and the 90th."""
    return [float(value) for value in np.percentile(values, which)]


@dataclasses.dataclass
class Measurement:
    """A row and what was measured.

    Attributes:
      row: its fields stand beside the others in the file, its shape in the layout.
      us: implementation -> median time of a call in microseconds.
      ratios: implementation, or memory_bandwidth for the bandwidth limit -> its time over ours in
        adjacent pairs: median and quartiles.
      p10_p90_us: 10th and 90th percentile of ours.
      refused, wrong: implementation -> its error message; what is wrong with its result.
    """

    row: Row
    us: dict[str, float] = dataclasses.field(default_factory=dict)
    ratios: dict[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    p10_p90_us: Sequence[float] = ()
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    wrong: dict[str, str] = dataclasses.field(default_factory=dict)

    def speedup(self, peer: str) -> float | None:
        """The peer's time over ours, the median of adjacent pairs; None unless both results are
        there and right."""
        if self.wrong.keys() & {peer, CANDIDATE} or peer not in self.ratios:
            return None
        return self.ratios[peer][0]

    @property
    def gb_per_s(self) -> float:
        """Bytes of all tensors of the size of x over our time, in 10^9 bytes per second."""
        return self.row.bytes / self.us[CANDIDATE] * 1e-3

    @property
    def limit_share(self) -> float | None:
        """Time of the bandwidth limit over ours; None for small rows."""
        return self.speedup(MEMORY_BANDWIDTH) if self.row.bytes >= SMALL_BYTES else None


# What stands for batch norm in a network, in the order of `turns`. FUSED is this library's with the
# activations behind it, and WITHOUT_BOTH an identity for batch norm and for each of these.
KERAS, OURS, IDENTITY, FUSED, WITHOUT_BOTH = VARIANTS = (
    *("keras", "tf_bn_ops", "identity"),
    *("fused", "without_both"),
)
# FUSED below tf.recompute_grad: what it keeps is counted, and its steps are not timed.
RECOMPUTED = "recomputed"


@dataclasses.dataclass
class NetworkMeasurement:
    """Training steps of a network; a turn has the milliseconds of one step of each of VARIANTS.
    `kept`: the bytes that a step of some of them keeps for its gradient."""

    network: str
    batch: int
    side: int
    threads: int
    turns: list[Sequence[float]] = dataclasses.field(default_factory=list)
    skipped: str | None = None
    kept: dict[str, int] = dataclasses.field(default_factory=dict)

    def of(self, variant: str) -> np.ndarray:
        """Milliseconds of its steps."""
        return np.array([turn[VARIANTS.index(variant)] for turn in self.turns])

    def median(self, variant: str) -> float:
        """Milliseconds of its median step."""
        return float(np.median(self.of(variant)))

    def gain(self, variant: str) -> float:
        """The median over turns of the time of Keras' step divided by the variant's."""
        return float(np.median(self.of(KERAS) / self.of(variant)))

    def share_removed(self, variant: str, without: str) -> list[float]:
        """(keras - variant) / (keras - without): 10th percentile, median and 90th of the turns. In
        a turn in which Keras' step is not the slower one the cost is lost in noise, and nothing
        counts as removed."""
        keras, ours, least = self.of(KERAS), self.of(variant), self.of(without)
        cost = np.where(keras > least, keras - least, np.inf)
        return percentiles((keras - ours) / cost)


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
    versions: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    rows: list[Measurement] = dataclasses.field(default_factory=list)
    networks: list[NetworkMeasurement] = dataclasses.field(default_factory=list)

    def of_section(self, section: str) -> list[Measurement]:
        """The rows of a section."""
        return [m for m in self.rows if m.row.section == section]


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
    """The JSON file: one line per field, and one per element of rows and networks; the fields of a
    row beside what was measured."""
    rows = [{**vars(m), **vars(m.row), "shape": m.row.name, "row": None} for m in run.rows]
    elements = {"rows": rows, "networks": list(map(vars, run.networks))}
    seconds = _short(float(run.seconds))
    content = {**vars(run), "schema": _VERSION, "seconds": seconds, **elements}

    def dump(value: Any) -> str:
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))

    def lines(fields: list[dict[str, Any]]) -> str:
        given = ({name: _short(value) for name, value in f.items() if value} for f in fields)
        return "[\n" + ",\n".join(map(dump, given)) + "\n]"

    texts = {
        name: lines(content[name]) if name in elements else dump(content[name]) for name in content
    }
    return "{\n" + ",\n".join(f'"{name}": {texts[name]}' for name in sorted(texts)) + "\n}\n"


def save(run: Run, path: pathlib.Path) -> None:
    """Writes the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _command.write_whole(to_text(run), path)


def _measurement(**fields: Any) -> Measurement:
    """The inverse of an element of rows."""
    row = {field.name: fields.pop(field.name) for field in dataclasses.fields(Row)}
    row["shape"] = tuple(map(int, row["shape"].split("x")))
    return Measurement(Row(**row), **fields)


def load(path: pathlib.Path) -> Run:
    """Reads the file of an earlier run.

    Raises:
      UsageError: it cannot be read, or is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != _VERSION:
            raise ValueError(f"not format {_VERSION}")
        content["rows"] = [_measurement(**fields) for fields in content["rows"]]
        content["networks"] = [NetworkMeasurement(**fields) for fields in content["networks"]]
        if any(len(turn) != len(VARIANTS) for m in content["networks"] for turn in m.turns):
            raise ValueError("a turn has a step of every variant")
        return Run(**content)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise UsageError(f"{path} is not the results.json of a benchmark run ({e!r})") from e
