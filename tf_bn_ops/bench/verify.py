"""Verifies a result after timing: all three outputs against float64, within error bounds.

Oracle and bounds are those of tf_bn_ops/harness: profile strict for this library's op, textbook for
peers. Large tensors are verified in some channels, each of them in full.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.bench import data
from tf_bn_ops.bench.shapes import Row
from tf_bn_ops.harness import bounds, oracle

# Elements to verify in a row; at least one channel.
_ELEMENTS = 1 << 17


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The largest error in units of its bound, and what is wrong if it is above 1."""

    error: float
    wrong: str | None


class Verifier:
    """The right answer for some channels of a row."""

    def __init__(self, row: Row):
        outer, channels, inner = row.view
        count = min(channels, max(1, _ELEMENTS // (outer * inner)))
        rng = np.random.default_rng(zlib.crc32(str(row).encode()))
        self.channels = np.sort(rng.choice(channels, count, replace=False))
        self._row = row
        self._mean = data.statistics(channels)["mean"][self.channels]
        values = {name: value[self.channels] for name, value in data.statistics(channels).items()}
        for role in ("y_backprop", "x"):
            values[role] = data.channels_of(role, row.dtype, row.view, self.channels)[..., None]
        self._oracle = oracle.Oracle(values, "NCHW", data.EPSILON, row.mode == "training")

    def judge(self, outputs: Sequence[np.ndarray], profile: str) -> Verdict:
        """Judges x_backprop [outer, channels, inner], scale_backprop and offset_backprop of the
        channels `self.channels`; `profile` is a name of bounds.PROFILES."""
        x_backprop, scale_backprop, offset_backprop = outputs
        dtype = spec.DTYPES[self._row.dtype]
        limits = bounds.derive(
            bounds.PROFILES[profile],
            self._oracle,
            self._mean,
            dtype,
            spec.DTYPES["float32"],
        )
        if x_backprop.dtype != dtype.numpy:
            return Verdict(np.inf, f"x_backprop has dtype {x_backprop.dtype}")
        errors = {
            "scale_backprop": _error(
                scale_backprop, self._oracle.scale_backprop, limits.scale_backprop
            ),
            "offset_backprop": _error(
                offset_backprop, self._oracle.offset_backprop, limits.offset_backprop
            ),
            "x_backprop": 0.0,
        }
        for chunk in self._oracle.chunks():
            found = _error(x_backprop[chunk.at], chunk.x_backprop, limits.x_backprop(chunk))
            errors["x_backprop"] = max(errors["x_backprop"], found)
        wrong = [f"{name} {e:.3g} times its bound" for name, e in errors.items() if not e <= 1]
        return Verdict(max(errors.values()), ", ".join(wrong) or None)


def _error(given: np.ndarray, right: np.ndarray, bound: np.ndarray) -> float:
    """The largest error in units of the bound; infinite where a number is NaN or missing."""
    if given.shape != right.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        ratio = np.abs(given.astype(np.float64) - right) / bound
    worst = float(np.max(ratio))
    return worst if worst == worst else float("inf")
