"""The right answer, from the very bits that candidate and reference were given.

Element types up to float32 are computed in float64, float64 in NumPy's long double (64
significant bits on x86). Sums are compensated, so the oracle's own error is a few roundings of
its working type per term, whatever the number of terms: 2^-53 against the 2^-44 that bounds.py
allows float32 kernels. Big tensors are worked through in chunks that fit into cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec

# Elements worked on at once: a few float64 temporaries of this size fit into a second-level cache.
_CHUNK = 1 << 16


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


@dataclasses.dataclass(frozen=True)
class Sums:
    """Per channel; n is the number of terms, N*H*W."""

    n: int
    dy: np.ndarray  # sum of y_backprop
    dy_abs: np.ndarray  # sum of |y_backprop|
    dy_xmu: np.ndarray  # sum of y_backprop * (x - mean)
    dy_xmu_abs: np.ndarray  # sum of |y_backprop * (x - mean)|
    xmu_abs: np.ndarray  # sum of |x - mean|


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some elements of x_backprop and what they are made of; all arrays of one 3-D shape.

    x_backprop is factor * (centred - xmu * slope), frozen factor * centred.
    """

    at: tuple[slice, slice, slice]
    x_backprop: np.ndarray
    centred: np.ndarray  # y_backprop - its mean; frozen: y_backprop
    xmu: np.ndarray  # x - mean
    y_backprop: np.ndarray


class Oracle:
    """The exact gradient for one set of inputs.

    Attributes:
      sums: the sums per channel.
      rstd: 1 / sqrt(variance + epsilon), [channels].
      factor: scale * rstd.
      slope: rstd^2 * sum(dy * (x - mean)) / n; zero when frozen.
      dy_mean: sum(dy) / n; zero when frozen.
      offset_backprop, scale_backprop: the answers, [channels].
    """

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        layout: str,
        epsilon: float,
        is_training: bool,
        epsilon_dtype: str = "float32",
    ):
        """`values` by role, as fills.Filled has them; epsilon is rounded to `epsilon_dtype` here:
        TensorFlow's attrs are float32."""
        self._y_backprop = spec.as_view(values["y_backprop"], layout)
        self._x = spec.as_view(values["x"], layout)
        double = values["x"].dtype == np.float64
        self.work: type[np.floating[Any]] = np.longdouble if double else np.float64
        self._mean = values["mean"].astype(self.work)
        self.is_training = is_training
        with np.errstate(all="ignore"):
            variance = values["variance"].astype(self.work)
            epsilon = spec.DTYPES[epsilon_dtype].numpy.type(epsilon)
            self.rstd = 1 / np.sqrt(variance + self.work(epsilon))
            self.factor = values["scale"].astype(self.work) * self.rstd
            self.sums = self._sum()
            self.offset_backprop = self.sums.dy
            self.scale_backprop = self.sums.dy_xmu * self.rstd
            n = max(self.sums.n, 1)
            zero = np.zeros_like(self.rstd)
            self.dy_mean = self.sums.dy / n if is_training else zero
            self.slope = self.rstd * self.rstd * (self.sums.dy_xmu / n) if is_training else zero

    @property
    def shape(self) -> tuple[int, int, int]:
        outer, channels, inner = self._x.shape
        return outer, channels, inner

    def _slices(self) -> Iterator[tuple[slice, slice, slice]]:
        outer, channels, inner = self.shape
        step_i = max(1, min(inner, _CHUNK))
        step_c = max(1, min(channels, _CHUNK // step_i))
        step_o = max(1, min(outer, _CHUNK // (step_i * step_c)))
        for o in range(0, outer, step_o):
            for c in range(0, channels, step_c):
                for i in range(0, inner, step_i):
                    yield slice(o, o + step_o), slice(c, c + step_c), slice(i, i + step_i)

    def _load(self, at: tuple[slice, slice, slice]) -> tuple[np.ndarray, np.ndarray]:
        y_backprop = self._y_backprop[at].astype(self.work)
        xmu = self._x[at].astype(self.work)
        xmu -= self._mean[at[1], None]
        return y_backprop, xmu

    def _sum(self) -> Sums:
        outer, channels, inner = self.shape
        totals = np.zeros((5, channels), self.work)
        corrections = np.zeros((2, channels), self.work)
        for at in self._slices():
            c = at[1]
            y_backprop, xmu = self._load(at)
            product = y_backprop * xmu
            for row, terms in ((0, y_backprop), (2, product)):
                s, e = compensated_sum(terms)
                totals[row, c], error = _two_sum(totals[row, c], s)
                corrections[row // 2, c] += error + e
                totals[row + 1, c] += np.abs(terms).sum(axis=(0, 2))
            totals[4, c] += np.abs(xmu).sum(axis=(0, 2))
        for row in (0, 2):
            # Infinity and NaN turn corrections into NaN: the plain total is right then.
            finite = np.isfinite(totals[row])
            totals[row][finite] += corrections[row // 2][finite]
        return Sums(outer * inner, *totals)

    def chunks(self) -> Iterator[Chunk]:
        """x_backprop, chunk by chunk."""
        with np.errstate(all="ignore"):
            for at in self._slices():
                c = at[1]
                centred, xmu = self._load(at)
                y_backprop = centred
                if self.is_training:
                    centred = centred - self.dy_mean[c, None]
                    inside = centred - xmu * self.slope[c, None]
                else:
                    inside = centred
                yield Chunk(at, inside * self.factor[c, None], centred, xmu, y_backprop)

    def x_backprop(self) -> np.ndarray:
        """All of x_backprop as [outer, channels, inner]; for tests and small tensors."""
        result = np.zeros(self.shape, self.work)
        for chunk in self.chunks():
            result[chunk.at] = chunk.x_backprop
        return result
