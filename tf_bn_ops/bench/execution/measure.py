"""Measures rows: rounds over all implementations, so that drift affects all; then verification."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Sequence

from tf_bn_ops.bench import stats
from tf_bn_ops.bench.execution.verify import Verifier
from tf_bn_ops.bench.execution.workers import CallError, Worker
from tf_bn_ops.bench.implementations import CANDIDATE, MEMORY_BANDWIDTH
from tf_bn_ops.bench.results import Limit, Measurement
from tf_bn_ops.bench.shapes import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, Row
from tf_bn_ops.harness import machine

# Between two implementations: threads of the first may still spin.
_PAUSE_SECONDS = 2e-3
# A row in which a peer's ratio to ours lies between these gets more rounds: factor _LONGER.
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


@dataclasses.dataclass(frozen=True)
class _Pass:
    """The least traffic of an op, as passes over tensors of the size of x.

    Attributes:
      apply: the passes that read inputs and write outputs.
      sums: in training, those that read what the sums are taken of.
    """

    apply: tuple[str, ...]
    sums: tuple[str, ...]

    @property
    def inputs(self) -> int:
        """Tensors that the sums are taken of."""
        return sum(int(kind[0]) for kind in self.sums)


_FORWARD, _GRADIENT = _Pass(("1r1w",), ("1r",)), _Pass(("2r1w",), ("2r",))
# What is called -> the ops. Behind an addition the gradient reads y too, and writes two gradients.
_PASSES = {
    GRADIENT: (_GRADIENT,),
    FORWARD: (_FORWARD,),
    LAYER: (_FORWARD, _GRADIENT),
    LAYER_RELU: (_FORWARD, _GRADIENT),
    LAYER_ADD_RELU: (
        _Pass(("2r1w",), ("1r",)),
        _Pass(("2r1w", "1r1w"), ("2r", "1r")),
    ),
}


def traffic(row: Row, last_level_cache: int) -> tuple[str, ...]:
    """The least traffic of a row as passes over tensors of the size of x, "2r1w" and so on.

    Training needs all sums of a channel before its first element can be written. Channels-first
    reduces and applies one channel at a time, and inputs that fit into the LLC are read from
    memory once; other channels-last inputs are read twice. A frozen call is one pass. A layer is a
    forward call and a gradient.
    """
    kinds: list[str] = []
    for op in _PASSES[row.call]:
        kinds += op.apply
        large = op.inputs * row.tensor_bytes > last_level_cache
        if row.mode == "training" and row.channels_last and large:
            kinds += op.sums
    return tuple(kinds)


def passes(row: Row, last_level_cache: int) -> tuple[int, int]:
    """The reads and writes of a whole tensor in the least traffic of a row."""
    kinds = traffic(row, last_level_cache)
    return sum(int(kind[0]) for kind in kinds), sum(kind.endswith("w") for kind in kinds)


class Meter:
    """Measures rows on a set of workers."""

    def __init__(self, workers: Sequence[Worker], budget: Budget, last_level_cache: int):
        """`workers` are ready; memory bandwidth may be one of them."""
        self._workers = [w for w in workers if w.name != MEMORY_BANDWIDTH]
        self._bandwidth = next((w for w in workers if w.name == MEMORY_BANDWIDTH), None)
        self._turns = [*self._workers, *([self._bandwidth] if self._bandwidth else [])]
        self._budget = budget
        self._last_level_cache = last_level_cache

    def measure(self, row: Row) -> Measurement:
        """Times all implementations in turns, then verifies their results."""
        needed = 2 * row.bytes * (len(self._workers) + 1)
        if needed > machine.available_memory():
            return Measurement(row, skipped=f"needs about {needed >> 30} GiB of memory")
        samples, refused = self._time(row)
        measured = Measurement(row, refused=refused)
        if (limit := samples.pop(MEMORY_BANDWIDTH, None)) is not None:
            counts = collections.Counter(traffic(row, self._last_level_cache))
            weighted = ([counts[kind] * s for s in seconds] for kind, seconds in limit.items())
            totals = [sum(parts) for parts in zip(*weighted, strict=True)]
            reads, writes = passes(row, self._last_level_cache)
            measured.limit = Limit(reads, writes, stats.spread(totals).median * 1e6)
        verifier = Verifier(row)
        for worker in self._workers:
            if worker.name not in samples:
                continue
            spread = stats.spread(samples[worker.name]["call"])
            measured.us[worker.name] = spread.median * 1e6
            if worker.name == CANDIDATE:
                measured.p10_p90_us = (spread.p10 * 1e6, spread.p90 * 1e6)
            if "empty" in samples[worker.name]:
                measured.empty_us = stats.spread(samples[worker.name]["empty"]).median * 1e6
            if wrong := self._verify(worker, verifier, row):
                measured.wrong[worker.name] = wrong
        if 4 * needed > machine.available_memory():
            for worker in self._turns:
                with contextlib.suppress(CallError):  # The next request reports it.
                    worker.ask("forget")
        return measured

    @staticmethod
    def _verify(worker: Worker, verifier: Verifier, row: Row) -> str | None:
        """What is wrong with the result of one more call."""
        try:
            outputs = worker.ask("result", row, verifier.channels)
        except CallError as e:
            return str(e)
        return verifier.judge(outputs, worker.entry.bounds).wrong

    def _prepare(self, row: Row) -> tuple[list[Worker], dict[str, str]]:
        """The workers that are ready for a row, and why the others refused."""
        ready, refused = [], {}
        for worker in self._turns:
            if row.call not in worker.entry.calls:
                continue
            try:
                if worker is self._bandwidth:
                    kinds = traffic(row, self._last_level_cache)
                    worker.ask("prepare_bandwidth", row, list(kinds))
                else:
                    worker.ask("prepare", row)
                ready.append(worker)
            except CallError as e:
                refused[worker.name] = _shortened(str(e))
        return ready, refused

    def _time(self, row: Row) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
        """Samples by implementation and kind of call, and why the others refused."""
        running, refused = self._prepare(row)
        samples: dict[str, dict[str, list[float]]] = {worker.name: {} for worker in running}
        rounds = self._budget.rounds
        turn = 0
        while turn < rounds and running:
            first = turn % len(running)  # Each is the first of a round in turn.
            for worker in (*running[first:], *running[:first]):
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
            if turn >= 3:
                running = [w for w in running if not self._used_up(samples[w.name], rounds)]
        if limit := samples.get(MEMORY_BANDWIDTH):
            count = min(map(len, limit.values()))  # The two kinds of traffic are added up.
            samples[MEMORY_BANDWIDTH] = {k: v[:count] for k, v in limit.items()}
        return samples, refused

    def _used_up(self, samples: dict[str, list[float]], rounds: int) -> bool:
        budget = self._budget.seconds * rounds / self._budget.rounds
        return any(sum(seconds) > 2 * budget for seconds in samples.values())

    def _is_close(self, samples: dict[str, dict[str, list[float]]]) -> bool:
        if CANDIDATE not in samples:
            return False
        medians = {
            name: stats.spread(kinds["call"]).median
            for name, kinds in samples.items()
            if name != MEMORY_BANDWIDTH
        }
        own = medians.pop(CANDIDATE)
        return any(_CLOSE[0] < other / own < _CLOSE[1] for other in medians.values())


def _shortened(message: str) -> str:
    """The first sentence or so, on one line, without the place in the graph."""
    text = " ".join(message.split())
    text = text.replace("{{function_node __wrapped__", "").split("[Op:")[0].split(" Traceback")[0]
    _, bracket, rest = text.partition("}} ")
    text = rest if bracket else text
    return (text[:157] + "...").strip() if len(text) > 160 else text.strip()
