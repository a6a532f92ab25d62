"""Measures rows: rounds over all implementations, so that drift affects all; then verification."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Sequence

from tf_bn_ops.bench import stats
from tf_bn_ops.bench.bench_rows import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, Row
from tf_bn_ops.bench.execution.timing_workers import CallError, Worker
from tf_bn_ops.bench.execution.verify import Verifier
from tf_bn_ops.bench.implementations import CANDIDATE, MEMORY_BANDWIDTH
from tf_bn_ops.bench.results import Limit, Measurement
from tf_bn_ops.harness import machine

# A row in which a peer's ratio to ours lies between these gets more rounds: factor _LONGER.
_CLOSE = (0.8, 1.25)
_LONGER = 2
# Rounds that slow calls get, too.
_LEAST_ROUNDS = 5


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
FULL = Budget(0.1, 8)


@dataclasses.dataclass(frozen=True)
class _Pass:
    """The least traffic of an op, as passes over tensors of the size of x.

    Attributes:
      apply: the passes that read inputs and write outputs.
      sums: in training, those that read again what the sums are taken of.
      inputs: how many tensors have to stay in cache for `sums` to read no memory.
    """

    apply: tuple[str, ...]
    sums: tuple[str, ...]
    inputs: int


_FORWARD, _GRADIENT = _Pass(("1r1w",), ("1r",), 1), _Pass(("2r1w",), ("2r",), 2)
# What is called -> the ops. Behind an addition the gradient reads y too, and writes two gradients:
# that of the side input from y_backprop and y, the other one from it and x, which the sums need.
_PASSES = {
    GRADIENT: (_GRADIENT,),
    FORWARD: (_FORWARD,),
    LAYER: (_FORWARD, _GRADIENT),
    LAYER_RELU: (_FORWARD, _GRADIENT),
    LAYER_ADD_RELU: (
        _Pass(("2r1w",), ("1r",), 1),
        _Pass(("2r1w", "1r1w"), ("2r",), 3),
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


@dataclasses.dataclass
class _Samples:
    """What the visits of a row have measured.

    Attributes:
      seconds: implementation -> kind of call -> its times.
      pairs: implementation -> its time over ours, in visits that follow each other.
      refused: implementation -> why.
    """

    seconds: dict[str, dict[str, list[float]]]
    pairs: dict[str, list[float]]
    refused: dict[str, str]

    def refuse(self, name: str, why: str) -> None:
        """Forgets what an implementation has measured."""
        self.refused[name] = why
        self.seconds.pop(name, None)
        self.pairs.pop(name, None)

    def add_pair(self, *visits: tuple[str, float]) -> None:
        """Two visits that follow each other; they are a pair if one is ours."""
        by_name = dict(visits)
        own = by_name.pop(CANDIDATE, None)
        if own is not None:
            for name, seconds in by_name.items():
                self.pairs.setdefault(name, []).append(seconds / own)

    @property
    def is_close(self) -> bool:
        """Whether a peer is about as fast as we are."""
        found = (stats.ratio(p).median for n, p in self.pairs.items() if n != MEMORY_BANDWIDTH)
        return any(_CLOSE[0] < median < _CLOSE[1] for median in found)


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
        samples = self._time(row)
        measured = Measurement(row, refused=samples.refused)
        measured.ratios = {name: stats.ratio(pairs) for name, pairs in samples.pairs.items()}
        if limit := samples.seconds.pop(MEMORY_BANDWIDTH, None):
            reads, writes = passes(row, self._last_level_cache)
            us = stats.spread(limit["call"]).median * 1e6
            measured.limit = Limit(reads, writes, us)
        verifier = Verifier(row)
        for worker in self._workers:
            if not (seconds := samples.seconds.get(worker.name)):
                continue
            spread = stats.spread(seconds["call"])
            measured.us[worker.name] = spread.median * 1e6
            if worker.name == CANDIDATE:
                measured.p10_p90_us = (spread.p10 * 1e6, spread.p90 * 1e6)
            if "empty" in seconds:
                measured.empty_us = stats.spread(seconds["empty"]).median * 1e6
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

    def _time(self, row: Row) -> _Samples:
        """Visits all implementations in rounds."""
        running, refused = self._prepare(row)
        samples = _Samples({worker.name: {} for worker in running}, {}, refused)
        rounds = self._budget.rounds
        turn = 0
        while turn < rounds and running:
            before: tuple[str, float] | None = None
            for worker in _sequence(running, turn):
                before = self._visit(row, worker, samples, before)
            running = [worker for worker in running if worker.name in samples.seconds]
            turn += 1
            if turn == self._budget.rounds and samples.is_close:
                rounds = self._budget.rounds * _LONGER
            if turn >= _LEAST_ROUNDS:
                running = [w for w in running if not self._used_up(samples.seconds[w.name], rounds)]
        return samples

    def _visit(
        self, row: Row, worker: Worker, samples: _Samples, before: tuple[str, float] | None
    ) -> tuple[str, float] | None:
        """One visit; returns its name and median for the next one, which it may be a pair with."""
        try:
            visit = worker.ask("time", self._budget.seconds / self._budget.rounds)
        except CallError as e:
            samples.refuse(worker.name, _shortened(str(e)))
            return None
        if worker is self._bandwidth:
            visit = {"call": self._limit_seconds(row, visit)}
        for kind, seconds in visit.items():
            samples.seconds[worker.name].setdefault(kind, []).extend(seconds)
        now = worker.name, stats.percentile(visit["call"], 0.5)
        if before is not None:
            samples.add_pair(before, now)
        return now

    def _limit_seconds(self, row: Row, visit: dict[str, list[float]]) -> list[float]:
        """The limit's time in each sample: all passes of the least traffic, one after the other."""
        counts = collections.Counter(traffic(row, self._last_level_cache))
        weighted = ([counts[kind] * s for s in seconds] for kind, seconds in visit.items())
        return [sum(parts) for parts in zip(*weighted, strict=False)]

    def _used_up(self, samples: dict[str, list[float]], rounds: int) -> bool:
        budget = self._budget.seconds * rounds / self._budget.rounds
        return any(sum(seconds) > 2 * budget for seconds in samples.values())


def _sequence(running: Sequence[Worker], turn: int) -> list[Worker]:
    """The visits of a round: ours stands between two others, so that each of them has a visit of
    ours beside it, before it in one round and after it in another."""
    others = [worker for worker in running if worker.name != CANDIDATE]
    own = [worker for worker in running if worker.name == CANDIDATE]
    if not others:
        return own
    reverse, first = divmod(turn, len(others))
    others = others[first:] + others[:first]
    sequence = []
    for i in range(0, len(others), 2):
        sequence += [others[i], *own, *others[i + 1 : i + 2]]
    return sequence[::-1] if reverse % 2 else sequence


def _shortened(message: str) -> str:
    """The first sentence or so, on one line, without the place in the graph."""
    text = " ".join(message.split())
    text = text.replace("{{function_node __wrapped__", "").split("[Op:")[0].split(" Traceback")[0]
    _, bracket, rest = text.partition("}} ")
    text = rest if bracket else text
    return (text[:157] + "...").strip() if len(text) > 160 else text.strip()
