"""Medians, spreads and means of ratios."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of the times of a call, in seconds."""

    median: float
    p10: float
    p90: float
    samples: int


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the sorted values; `share` is 0 to 1.

    Raises:
      ValueError: there are no values.
    """
    if not values:
        raise ValueError("a percentile of no values")
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of adjacent pairs."""

    median: float
    p25: float
    p75: float


def ratio(pairs: Sequence[float]) -> Ratio:
    """Median and quartiles.

    Raises:
      ValueError: there are no pairs.
    """
    return Ratio(*(percentile(pairs, share) for share in (0.5, 0.25, 0.75)))


def spread(values: Sequence[float]) -> Spread:
    """Median and percentiles of samples."""
    return Spread(
        percentile(values, 0.5), percentile(values, 0.1), percentile(values, 0.9), len(values)
    )


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """None where there are no ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None
