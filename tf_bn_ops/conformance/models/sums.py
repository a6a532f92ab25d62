"""Per-channel sums of large views: in chunks that fit into L2, and compensated.

The error of a compensated sum is a few roundings of the type it is computed in, whatever the number
of terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

# Elements of a chunk: a few float64 temporaries of this size fit into L2.
_CHUNK = 1 << 16

# Where a chunk lies in a view.
Region = tuple[slice, slice, slice]


def regions(view: tuple[int, int, int]) -> Iterator[Region]:
    """Chunks that cover a view, each element once."""
    outer, channels, inner = view
    step_i = max(1, min(inner, _CHUNK))
    step_c = max(1, min(channels, _CHUNK // step_i))
    step_o = max(1, min(outer, _CHUNK // (step_i * step_c)))
    for o in range(0, outer, step_o):
        for c in range(0, channels, step_c):
            for i in range(0, inner, step_i):
                yield slice(o, o + step_o), slice(c, c + step_c), slice(i, i + step_i)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(s, e) with s = fl(a + b) and s + e = a + b exactly (Knuth)."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def _fold(s: np.ndarray, e: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Sums (s, e) over the first axis by adding its halves until one is left."""
    while s.shape[0] > 1:
        half = s.shape[0] // 2
        total, error = _two_sum(s[:half], s[half : 2 * half])
        if e is not None:
            error += e[:half]
            error += e[half : 2 * half]
        if s.shape[0] % 2:
            total[0], last = _two_sum(total[0], s[-1])
            error[0] += last if e is None else last + e[-1]
        s, e = total, error
    return s[0], None if e is None else e[0]


def compensated_sum(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums [outer, channels, inner] over outer and inner; neither may be empty.

    Returns:
      (sum, correction), both [channels]: their total misses the exact sum by about
      u^2 log2(n) sum |terms|.
    """
    s, e = _fold(terms, None)
    s, e = _fold(s.T, None if e is None else e.T)
    return s, np.zeros_like(s) if e is None else e


class ChannelSums:
    """Sums per channel that are added up chunk by chunk, by name."""

    def __init__(self, channels: int, work: type[np.floating[Any]]):
        self._zeros = np.zeros(channels, work)
        self._totals: dict[str, np.ndarray] = {}
        self._corrections: dict[str, np.ndarray] = {}

    def add(self, name: str, at: Region, terms: np.ndarray) -> None:
        """Adds the terms of a chunk to the sum `name`, compensated."""
        total = self._totals.setdefault(name, self._zeros.copy())
        correction = self._corrections.setdefault(name, self._zeros.copy())
        s, e = compensated_sum(terms)
        total[at[1]], error = _two_sum(total[at[1]], s)
        correction[at[1]] += error + e

    def add_magnitudes(self, name: str, at: Region, terms: np.ndarray) -> None:
        """Adds |terms| to the sum `name`, which is for bounds: not compensated."""
        total = self._totals.setdefault(name, self._zeros.copy())
        total[at[1]] += np.abs(terms).sum(axis=(0, 2))

    def __getitem__(self, name: str) -> np.ndarray:
        """A sum, [channels]; zero where nothing was added."""
        total = self._totals.get(name, self._zeros).copy()
        if name in self._corrections:
            # Infinity and NaN turn corrections into NaN: the plain total is right then.
            finite = np.isfinite(total)
            total[finite] += self._corrections[name][finite]
        return total
