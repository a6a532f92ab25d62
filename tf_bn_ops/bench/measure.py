"""Measures rows: rounds over all implementations, so that drift hits them alike; then verifies."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from tf_bn_ops.bench import implementations, stats
from tf_bn_ops.bench.shapes import Row
from tf_bn_ops.bench.verify import Verifier
from tf_bn_ops.bench.workers import CallError, Worker
from tf_bn_ops.harness import machine

# Between two implementations: threads of the one before may still spin, waiting for more work.
_PAUSE_SECONDS = 2e-3
# A row in which an implementation is this close to the candidate is measured this much longer.
_CLOSE = (0.8, 1.25)
_LONGER = 2


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long to measure.

    Attributes:
      seconds: per row and implementation.
      rounds: how many turns each implementation gets in a row.
    """

    seconds: float
    rounds: int


QUICK = Budget(0.03, 3)
FULL = Budget(0.1, 5)


def floor(row: Row, last_level_cache: int) -> dict[str, int]:
    """The least traffic of a row, in reads and writes of a whole tensor.

    Training needs both sums before the first element can be written. Channels-first works on a
    channel at a time, and where both inputs fit into the last-level cache their second reading is
    free; otherwise they are read twice. A frozen gradient is one pass in any layout.
    """
    twice = row.mode == "training" and row.channels_last and 2 * row.tensor_bytes > last_level_cache
    return {"reads": 4 if twice else 2, "writes": 1}


class Meter:
    """Measures rows on a set of workers."""

    def __init__(self, workers: Sequence[Worker], budget: Budget, last_level_cache: int):
        """`workers` are ready; the streaming limit may be one of them."""
        self._workers = [w for w in workers if w.name != implementations.STREAM]
        self._stream = next((w for w in workers if w.name == implementations.STREAM), None)
        self._budget = budget
        self._last_level_cache = last_level_cache

    @staticmethod
    def skip(row: Row, reason: str | None) -> dict[str, Any]:
        """One row of the JSON file (results.py) without figures."""
        return {
            "section": row.section,
            "network": row.network,
            "shape": list(row.dims),
            "layout": row.layout,
            "dtype": row.dtype,
            "mode": row.mode,
            "threads": row.threads,
            "channels": row.channels,
            "elements": row.elements,
            "bytes": row.bytes,
            "floor": None,
            "empty_call": None,
            "results": {},
            "refused": {},
            "skipped": reason,
        }

    def measure(self, row: Row) -> dict[str, Any]:
        """One row of the JSON file."""
        result = self.skip(row, None)
        needed = 2 * row.bytes * (len(self._workers) + 1)
        if needed > machine.available_memory():
            return self.skip(row, f"needs about {needed >> 30} GiB of memory")
        samples, refused = self._time(row)
        result["refused"] = refused
        traffic = floor(row, self._last_level_cache)
        limit = samples.pop(implementations.STREAM, None)
        if limit is not None:
            totals = [sum(parts) for parts in zip(*limit.values(), strict=True)]
            result["floor"] = {**traffic, **_seconds(stats.spread(totals))}
        verifier = Verifier(row)
        for worker in self._workers:
            if worker.name not in samples:
                continue
            spread = stats.spread(samples[worker.name]["call"])
            if "empty" in samples[worker.name]:
                result["empty_call"] = _seconds(stats.spread(samples[worker.name]["empty"]))
            try:
                outputs = worker.ask("result", row, verifier.channels)
                verdict = verifier.judge(outputs, worker.entry.bounds)
                error, wrong = verdict.error, verdict.wrong
            except CallError as e:
                error, wrong = None, str(e)
            result["results"][worker.name] = {
                **_seconds(spread),
                "samples": spread.samples,
                "gb_per_s": row.bytes / spread.median * 1e-9,
                "limit_share": (
                    result["floor"]["median_s"] / spread.median if result["floor"] else None
                ),
                "error_in_bounds": error if error is not None and error < 1e300 else None,
                "wrong": wrong,
            }
        if 4 * needed > machine.available_memory():
            for asked in (*self._workers, *([self._stream] if self._stream else [])):
                _try(asked, "forget")
        return result

    def _time(self, row: Row) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
        """Samples by implementation and kind of call, and why the others refused."""
        samples: dict[str, dict[str, list[float]]] = {}
        refused: dict[str, str] = {}
        turns = [*self._workers, *([self._stream] if self._stream else [])]
        running = []
        for worker in turns:
            try:
                if worker is self._stream:
                    traffic = floor(row, self._last_level_cache)
                    kinds = ["2r1w", *(["2r"] if traffic["reads"] == 4 else [])]
                    worker.ask("prepare_stream", row, kinds)
                else:
                    worker.ask("prepare", row)
                running.append(worker)
                samples[worker.name] = {}
            except CallError as e:
                refused[worker.name] = _shortened(str(e))
        rounds = self._budget.rounds
        turn = 0
        while turn < rounds:
            # Everyone comes first once.
            for worker in (*running[turn % len(running) :], *running[: turn % len(running)]):
                time.sleep(_PAUSE_SECONDS)
                try:
                    visit = worker.ask("time", self._budget.seconds / self._budget.rounds)
                except CallError as e:
                    refused[worker.name] = _shortened(str(e))
                    samples.pop(worker.name, None)
                    continue
                for kind, seconds in visit.items():
                    samples[worker.name].setdefault(kind, []).extend(seconds)
            running = [worker for worker in running if worker.name in samples]
            turn += 1
            if turn == self._budget.rounds and self._is_close(samples):
                rounds = self._budget.rounds * _LONGER
            if turn >= 3:  # Slow ones have used their time up.
                running = [w for w in running if not self._used_up(samples[w.name], rounds)]
            if not running:
                break
        if limit := samples.get(implementations.STREAM):
            count = min(map(len, limit.values()))  # The two kinds of traffic are added up.
            samples[implementations.STREAM] = {k: v[:count] for k, v in limit.items()}
        return samples, refused

    def _used_up(self, samples: dict[str, list[float]], rounds: int) -> bool:
        budget = self._budget.seconds * rounds / self._budget.rounds
        return any(sum(seconds) > 2 * budget for seconds in samples.values())

    def _is_close(self, samples: dict[str, dict[str, list[float]]]) -> bool:
        if implementations.CANDIDATE not in samples:
            return False
        medians = {
            name: stats.spread(kinds["call"]).median
            for name, kinds in samples.items()
            if name != implementations.STREAM
        }
        own = medians.pop(implementations.CANDIDATE)
        return any(_CLOSE[0] < other / own < _CLOSE[1] for other in medians.values())


def _seconds(spread: stats.Spread) -> dict[str, float]:
    return {"median_s": spread.median, "p10_s": spread.p10, "p90_s": spread.p90}


def _shortened(message: str) -> str:
    """The first sentence or so, on one line, without the place in the graph."""
    text = " ".join(message.split())
    text = text.replace("{{function_node __wrapped__", "").split("[Op:")[0].split(" Traceback")[0]
    _, bracket, rest = text.partition("}} ")
    text = rest if bracket else text
    return (text[:157] + "...").strip() if len(text) > 160 else text.strip()


def _try(worker: Worker, method: str) -> None:
    with contextlib.suppress(CallError):  # The next request finds out and says so.
        worker.ask(method)
