"""How fast a run is, in time and in processor time."""

from __future__ import annotations

import os
import pathlib
import resource
import time
from collections.abc import Callable, Iterable


def _processor_seconds(pids: Iterable[int]) -> float:
    """Time that this process, its children that have ended, and these processes have computed."""
    own = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    ended = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    total = own + ended
    for pid in pids:
        try:
            text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            continue
        # After the name in parentheses come the fields from the third on; utime is the 14th.
        fields = text.rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Speed:
    """Cases per second of time, and per second of processor time: what one core can do."""

    def __init__(self, pids: Callable[[], Iterable[int]]):
        """Starts the clock; `pids` names the processes that work for the run."""
        self._pids = pids
        self._begin = time.monotonic(), _processor_seconds(pids())

    def describe(self, cases: int) -> str:
        """One line about a run of this many cases that ends now."""
        wall = time.monotonic() - self._begin[0]
        computed = _processor_seconds(self._pids()) - self._begin[1]
        return (
            f"{cases} cases in {wall:.1f} s: {cases / max(wall, 1e-9):.0f} cases/s, "
            f"{cases / max(computed, 1e-9):.0f} cases/s per core "
            f"({1e3 * computed / max(cases, 1):.1f} ms of processor time each, all processes)"
        )
