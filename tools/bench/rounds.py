"""Measures rows: rounds over all implementations, so that drift affects all; then the check."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from bench import output_check
from bench.bench_worker import CallError, Worker
from bench.libraries import CANDIDATE, MEMORY_BANDWIDTH
from bench.results import Measurement, percentiles
from bench.rows import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, Row
from tf_bn_ops.harness import machine


class Budget(NamedTuple):
    """How long to measure: seconds per row and implementation, turns of each in a row."""

    seconds: float
    rounds: int


QUICK = Budget(0.03, 3)
FULL = Budget(0.1, 8)


class _Pass(NamedTuple):
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
    LAYER_ADD_RELU: (_Pass(("2r1w",), ("1r",), 1), _Pass(("2r1w", "1r1w"), ("2r",), 3)),
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


@dataclasses.dataclass
class _Samples:
    """What the visits of a row have measured, by implementation: the times of each kind of call;
    its time over ours in visits that follow each other; why it refused."""

    seconds: dict[str, dict[str, list[float]]]
    pairs: dict[str, list[float]]
    refused: dict[str, str]


class Meter:
    """Measures rows on a set of workers; memory bandwidth may be one of them."""

    def __init__(self, workers: Sequence[Worker], budget: Budget, last_level_cache: int):
        self._turns, self._budget, self._last_level_cache = workers, budget, last_level_cache

    def measure(self, row: Row) -> Measurement:
        """Times all implementations in turns, then checks their results."""
        needed = 2 * row.bytes * len(self._turns)
        if needed > machine.available_memory():
            return Measurement(row, skipped=f"needs about {needed >> 30} GiB of memory")
        samples = self._time(row)
        measured = Measurement(row, refused=samples.refused)
        for name, pairs in samples.pairs.items():
            low, median, high = percentiles(pairs, (25, 50, 75))
            measured.ratios[name] = (median, low, high)
        if limit := samples.seconds.pop(MEMORY_BANDWIDTH, None):
            kinds = traffic(row, self._last_level_cache)
            reads, writes = sum(int(k[0]) for k in kinds), sum(k.endswith("w") for k in kinds)
            measured.limit = (reads, writes, percentiles(limit["call"])[1] * 1e6)
        channels = output_check.channels_to_check(row)
        for worker in self._turns:
            if not (seconds := samples.seconds.get(worker.name)):
                continue
            p10, median, p90 = percentiles(seconds["call"])
            measured.us[worker.name] = median * 1e6
            if worker.name == CANDIDATE:
                measured.p10_p90_us = (p10 * 1e6, p90 * 1e6)
            try:
                outputs = worker.ask("result", row, channels)
                wrong = output_check.what_is_wrong(row, channels, outputs, worker.name == CANDIDATE)
            except CallError as e:
                wrong = str(e)
            if wrong:
                measured.wrong[worker.name] = wrong
        return measured

    def _prepare(self, row: Row) -> tuple[list[Worker], dict[str, str]]:
        """The workers that are ready for a row, and why the others refused."""
        ready, refused = [], {}
        for worker in self._turns:
            try:
                if worker.name == MEMORY_BANDWIDTH:
                    kinds = list(traffic(row, self._last_level_cache))
                    worker.ask("prepare_bandwidth", row, kinds)
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
        for turn in range(self._budget.rounds):
            before: tuple[str, float] | None = None
            for worker in _sequence(running, turn):
                before = self._visit(row, worker, samples, before)
            running = [worker for worker in running if worker.name in samples.seconds]
        return samples

    def _visit(
        self, row: Row, worker: Worker, samples: _Samples, before: tuple[str, float] | None
    ) -> tuple[str, float] | None:
        """One visit; returns its name and median for the next one. Two visits that follow each
        other are a pair if one is ours."""
        try:
            visit = worker.ask("time", self._budget.seconds / self._budget.rounds)
        except CallError as e:
            samples.refused[worker.name] = _shortened(str(e))
            samples.seconds.pop(worker.name, None)
            samples.pairs.pop(worker.name, None)
            return None
        if worker.name == MEMORY_BANDWIDTH:  # All passes, one after the other.
            counts = collections.Counter(traffic(row, self._last_level_cache))
            weighted = ([counts[kind] * s for s in seconds] for kind, seconds in visit.items())
            visit = {"call": [sum(parts) for parts in zip(*weighted, strict=False)]}
        for kind, seconds in visit.items():
            samples.seconds[worker.name].setdefault(kind, []).extend(seconds)
        now = worker.name, percentiles(visit["call"])[1]
        if before is not None:
            for (name, seconds), (other, own) in ((before, now), (now, before)):
                if other == CANDIDATE and name != CANDIDATE:
                    samples.pairs.setdefault(name, []).append(seconds / own)
        return now


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
    text = " ".join(message.split()).split("[Op:")[0].split(" Traceback")[0]
    text = text.split("}} ", 1)[-1]
    return text if len(text) <= 160 else text[:157] + "..."
