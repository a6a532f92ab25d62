"""Times two programs alternately, for the examples whose names end in _speed.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


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
    times: dict[Callable[[], Any], list[float]] = {step: [], our_step: []}
    for i in range(rounds + 1):
        for run, taken in times.items():
            start = time.perf_counter()
            run()
            if i:
                taken.append(time.perf_counter() - start)
    theirs, ours = (statistics.median(taken) * 1e3 for taken in times.values())
    print(
        f"{what}: {name} {theirs:.1f} ms, tf_bn_ops {ours:.1f} ms, "
        f"{theirs / ours:.2f} times as fast"
    )
