"""Measures rows: rounds over all implementations, so that drift affects all; then the check."""

from __future__ import annotations

from collections.abc import Sequence

from bench import output_check
from bench.bench_worker import CallError, Worker
from bench.libraries import CANDIDATE, MEMORY_BANDWIDTH
from bench.results import Measurement, percentiles
from bench.rows import Row


def measure(row: Row, workers: Sequence[Worker], seconds: float, rounds: int) -> Measurement:
    """Times all implementations in turns, so that drift affects all; then checks their results.

    Args:
      row: what to measure.
      workers: memory bandwidth may be one of them.
      seconds, rounds: how long to measure with each, in how many turns.
    """
    measured = Measurement(row)
    for name, samples in _time(measured, workers, seconds / rounds, rounds).items():
        p10, median, p90 = (1e6 * s for s in percentiles(samples))
        if name != MEMORY_BANDWIDTH:
            measured.us[name] = median
        if name == CANDIDATE:
            measured.p10_p90_us = (p10, p90)
    channels = output_check.channels_to_check(row)
    for worker in workers:
        if worker.name not in measured.us:
            continue
        try:
            outputs = worker.ask("result", row, channels)
            wrong = output_check.what_is_wrong(row, channels, outputs, worker.name == CANDIDATE)
        except CallError as e:
            wrong = str(e)
        if wrong:
            measured.wrong[worker.name] = wrong
    return measured


def _time(
    measured: Measurement, workers: Sequence[Worker], seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Visits all implementations in rounds; returns the seconds of each one's samples. Notes the
    ratios of visits that follow each other, and which implementation refuses, and why."""
    samples: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}

    def ask(worker: Worker, method: str, argument: object) -> list[float] | None:
        try:
            return worker.ask(method, argument) or []
        except CallError as e:
            measured.refused[worker.name] = _shortened(str(e))
            samples.pop(worker.name, None)
            ratios.pop(worker.name, None)
            return None

    for worker in workers:
        if ask(worker, "prepare", measured.row) is not None:
            samples[worker.name] = []
    for turn in range(rounds):
        before: tuple[str, float] | None = None
        for worker in _sequence([worker for worker in workers if worker.name in samples], turn):
            found = worker.name in samples and ask(worker, "time", seconds)
            if not found:
                before = None
                continue
            samples[worker.name] += found
            now = worker.name, percentiles(found)[1]
            # Two visits that follow each other are a pair if one is ours.
            if before and CANDIDATE in (before[0], now[0]):
                (_, own), (peer, other) = sorted((before, now), key=lambda v: v[0] != CANDIDATE)
                ratios.setdefault(peer, []).append(other / own)
            before = now
    for name, pairs in ratios.items():
        low, median, high = percentiles(pairs, (25, 50, 75))
        measured.ratios[name] = (median, low, high)
    return samples


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
