"""The right first-order gradient, from the very bits that candidate and reference were given.

Element types up to float32 are computed in float64, float64 in NumPy's long double (64
significant bits on x86). Sums are compensated, so the oracle's own error is a few roundings of
its working type per term, whatever the number of terms: 2^-53 against the 2^-44 that bounds.py
allows float32 kernels. Large tensors are processed in chunks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models.sums import ChannelSums, Region, regions
from tf_bn_ops.harness.problems import Problem


def working_type(problem: Problem) -> type[np.floating[Any]]:
    """The type that the right answer to a problem is computed in."""
    return np.longdouble if problem.dtype.name == "float64" else np.float64


def center(problem: Problem, work: type[np.floating[Any]]) -> np.ndarray:
    """The value that sums over a channel measure x from: the median of elements M/7, 3M/7 and 5M/7,
    of which infinities and NaN count as zero."""
    outer, channels, inner = problem.view
    if not outer * inner:
        return np.zeros(channels, work)
    places = inputs.center_places(problem.view)
    elements = [problem.dtype.widen(problem["x"][o, :, i], work) for o, i in places]
    return np.median([np.where(np.isfinite(e), e, 0) for e in elements], axis=0)


def kept_rows(problem: Problem) -> dict[str, np.ndarray] | None:
    """What this library's forward op keeps for a gradient, by name; None: the problem has none."""
    kept = problem.values.get("forward_coefficients")
    shape = (spec.ops.NUM_FORWARD_COEFFICIENTS, problem.view[1])
    if kept is None or kept.shape != shape:
        return None
    return inputs.rows_of(kept, working_type(problem))


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums per channel; n is the number of terms, N*H*W."""

    n: int
    dy: np.ndarray  # sum of y_backprop
    dy_abs: np.ndarray  # sum of |y_backprop|
    dy_xmu: np.ndarray  # sum of y_backprop * (x - mean)
    dy_xmu_abs: np.ndarray  # sum of |y_backprop * (x - mean)|
    xmu_abs: np.ndarray  # sum of |x - mean|


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some elements of x_backprop and the terms that it is computed from; all of one 3-D shape.

    x_backprop is factor * (centered - xmu * slope), frozen factor * centered.
    """

    at: Region
    x_backprop: np.ndarray
    centered: np.ndarray  # y_backprop - its mean; frozen: y_backprop
    xmu: np.ndarray  # x - mean
    y_backprop: np.ndarray


class Tensors:
    """The inputs of a problem in its working type: vectors, and what has the shape of the view, a
    chunk at a time; `count` is N*H*W."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.work = working_type(problem)
        self.count = problem.view[0] * problem.view[2]

    def column(self, role: str) -> np.ndarray:
        return self.problem.wide(role, self.work)

    def part(self, role: str, at: Region) -> np.ndarray:
        return self.problem.dtype.widen(self.problem[role][at], self.work)


class Oracle(Tensors):
    """The exact gradient for one problem.

    Attributes:
      sums: the sums per channel.
      rstd: 1 / sqrt(variance + epsilon), [channels].
      factor: scale * rstd.
      slope: rstd^2 * sum(dy * (x - mean)) / n; zero when frozen.
      dy_mean: sum(dy) / n; zero when frozen.
      offset_backprop, scale_backprop: the answers, [channels].
    """

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self.mean = self.column("mean")
        self.is_training = problem.is_training
        with np.errstate(all="ignore"):
            variance = self.column("variance")
            self.rstd = 1 / np.sqrt(variance + self.work(problem.epsilon))
            if problem.variance_is_rstd:
                self.rstd = variance
            if self.is_training and (rows := kept_rows(problem)) is not None:
                compute = spec.DTYPES[problem.dtype.accumulator].numpy.type
                is_kept = inputs.are_kept(rows, self.mean, variance, problem.epsilon, compute)
                self.mean = np.where(is_kept, rows["mean"] + rows["mean_rest"], self.mean)
                deviation = rows["deviation"] + rows["deviation_rest"]
                self.rstd = np.where(is_kept, 1 / deviation, self.rstd)
            self.factor = self.column("scale") * self.rstd
            self.sums = self._sum()
            self.offset_backprop = self.sums.dy
            zero = np.zeros_like(self.rstd)
            self.scale_backprop = self.sums.dy_xmu * self.rstd if self.sums.n else zero
            n = max(self.sums.n, 1)
            self.dy_mean = self.sums.dy / n if self.is_training else zero
            slope = self.rstd * self.rstd * (self.sums.dy_xmu / n)
            self.slope = slope if self.is_training else zero

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.problem.view

    def load(self, at: Region) -> tuple[np.ndarray, np.ndarray]:
        return self.part("y_backprop", at), self.part("x", at) - self.mean[at[1], None]

    def _sum(self) -> Sums:
        sums = ChannelSums(self.shape[1], self.work)
        for at in regions(self.shape):
            y_backprop, xmu = self.load(at)
            product = y_backprop * xmu
            for name, terms in (("dy", y_backprop), ("dy_xmu", product)):
                sums.add(name, at, terms)
                sums.add_magnitudes(name + "_abs", at, terms)
            sums.add_magnitudes("xmu_abs", at, xmu)
        names = [field.name for field in dataclasses.fields(Sums)[1:]]
        return Sums(self.count, *(sums[name] for name in names))

    def chunks(self) -> Iterator[Chunk]:
        """x_backprop, chunk by chunk."""
        with np.errstate(all="ignore"):
            for at in regions(self.shape):
                c = at[1]
                y_backprop, xmu = self.load(at)
                centered = inside = y_backprop
                if self.is_training:
                    centered = y_backprop - self.dy_mean[c, None]
                    inside = centered - xmu * self.slope[c, None]
                yield Chunk(at, inside * self.factor[c, None], centered, xmu, y_backprop)
