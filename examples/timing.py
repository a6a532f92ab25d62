"""Times programs alternately, for the examples whose names end in _speed.py."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def flags(doc: str) -> argparse.ArgumentParser:
    """The flags of a program that times, from its docstring."""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="end in seconds, and measure nothing worth keeping"
    )
    return parser


def medians(steps: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of each step: the median of `rounds` alternating runs, after a warm-up of each.

    Args:
      steps: name of an implementation -> runs it to its end.
      rounds: number of runs of each.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) * 1e3 for name, taken in times.items()}


def compare(
    what: str, name: str, step: Callable[[], Any], our_step: Callable[[], Any], rounds: int
) -> None:
    """Prints the medians of `rounds` alternating runs, after one warm-up run of each.

    Args:
      what: what is timed.
      name: the implementation that `step` belongs to.
      step: runs the other implementation to its end.
      our_step: runs this library's to its end.
      rounds: number of runs of each.
    """
    theirs, ours = medians({name: step, "tf_bn_ops": our_step}, rounds).values()
    print(
        f"{what}: {name} {theirs:.1f} ms, tf_bn_ops {ours:.1f} ms, "
        f"{theirs / ours:.2f} times as fast"
    )


def print_header(what: str, names: Iterable[str]) -> None:
    """Prints the head of a Markdown table, for `print_row`."""
    names = list(names)
    print(f"| {what} | {' | '.join(names)} |")
    print("|---" * (1 + len(names)) + "|")


def print_row(what: str, milliseconds: Iterable[float | None]) -> None:
    """Prints a row: the first time, then each other and the first over it; None is a dash."""
    first, *others = milliseconds
    assert first is not None
    cells = [_text(first)]
    cells += ["-" if ms is None else f"{_text(ms)} ({first / ms:.2f})" for ms in others]
    print(f"| {what} | {' | '.join(cells)} |", flush=True)


def _text(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"
