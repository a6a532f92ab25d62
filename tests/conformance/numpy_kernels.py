"""Batch-norm gradients in NumPy as candidates for the harness: a right one, and many wrong ones.

`Kernel()` is what an honest float32 kernel does: sums in float64, coefficients rounded to float32
once, elements in float32 (float64 for float64). Every fault is one small change to it (FAULTS), so
that a test can ask which faults the harness lets pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.models.inputs import as_given
from tf_bn_ops.harness import problems
from tf_bn_ops.harness.problems import Inputs

Outputs = tuple[np.ndarray, np.ndarray, np.ndarray]  # x_backprop (as a view), scale, offset

# The combinations of the ops whose formula these kernels compute.
FIRST_ORDER = generate.combinations([op.name for op in spec.of_formula(spec.ops.BATCH_NORM_GRAD)])


def first_order_cases(count: int, seed: int) -> list[Case]:
    """The cases that the default run would have of first-order gradients alone."""
    return list(generate.generate(count, seed, FIRST_ORDER))


def fill(case: Case) -> Inputs:
    """The inputs that the case's formula model draws, for kernels that take the mean as given."""
    return as_given(model_of(case.spec).fill(case))


@dataclasses.dataclass
class Kernel:
    """The right answer; methods are the steps that a fault replaces."""

    case: Case
    dy: np.ndarray
    x: np.ndarray
    scale: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def real(self) -> type[np.floating]:
        """The type that elements are computed in."""
        return np.float64 if self.dy.dtype == np.float64 else np.float32

    def is_training(self) -> bool:
        return self.case.is_training

    def epsilon(self) -> float:
        return problems.of_call(self.case, Inputs({})).epsilon

    def rows(self) -> float:
        return max(1, self.x.shape[0] * self.x.shape[2])

    def rstd(self) -> np.ndarray:
        return 1 / np.sqrt(self.variance.astype(np.float64) + self.epsilon())

    def xmu(self) -> np.ndarray:
        return self.x.astype(np.float64) - self.mean[:, None].astype(np.float64)

    def sum(self, terms: np.ndarray) -> np.ndarray:
        """Blocked sums in float64, as the library's kernels promise."""
        return terms.sum(axis=2).sum(axis=0)

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        dy = self.dy.astype(np.float64)
        return self.sum(dy), self.sum(dy * self.xmu())

    def dy_mean(self, dy_sum: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean of the gradient as the sum of two float32 numbers."""
        mean = (dy_sum / self.rows())[:, None]
        first = mean.astype(self.real())
        # Infinity less infinity would be NaN.
        rest = np.where(np.isfinite(first), mean - first, 0)
        return first, rest.astype(self.real())

    def x_backprop(self, dy_sum: np.ndarray, dy_xmu_sum: np.ndarray) -> np.ndarray:
        real = self.real()
        factor = (self.scale * self.rstd()).astype(real)[:, None]
        dy = self.dy.astype(real)
        if not self.is_training():
            return factor * dy
        dy_mean, rest = self.dy_mean(dy_sum)
        slope = self.rstd() * (self.rstd() * dy_xmu_sum / self.rows())
        slope = slope.astype(real)[:, None]
        xmu = self.x.astype(real) - self.mean.astype(real)[:, None]
        return factor * (((dy - dy_mean) - rest) - xmu * slope)

    def run(self) -> Outputs:
        dy_sum, dy_xmu_sum = self.sums()
        scale_backprop = (self.rstd() * dy_xmu_sum).astype(self.scale.dtype)
        x_backprop = self.x_backprop(dy_sum, dy_xmu_sum).astype(self.dy.dtype)
        return x_backprop, scale_backprop, dy_sum.astype(self.scale.dtype)


class SignFlip(Kernel):
    """The wrong sign before the term with scale_backprop."""

    def x_backprop(self, dy_sum: np.ndarray, dy_xmu_sum: np.ndarray) -> np.ndarray:
        return super().x_backprop(dy_sum, -dy_xmu_sum)


class ScaleSignFlip(Kernel):
    def run(self) -> Outputs:
        x, scale, offset = super().run()
        return x, -scale, offset


class BesselVariance(Kernel):
    def rstd(self) -> np.ndarray:
        bessel = self.rows() / max(self.rows() - 1, 1)
        return 1 / np.sqrt(self.variance.astype(np.float64) * bessel + self.epsilon())


class SwappedOutputs(Kernel):
    def run(self) -> Outputs:
        x, scale, offset = super().run()
        return x, offset, scale


class MissedTailOfSums(Kernel):
    """The last element of every channel is not summed."""

    def sum(self, terms: np.ndarray) -> np.ndarray:
        terms = terms.copy()
        terms[-1:, :, -1:] = 0
        return super().sum(terms)


class MissedTailOfElements(Kernel):
    """The last element of x_backprop is not written."""

    def run(self) -> Outputs:
        x, scale, offset = super().run()
        x.reshape(-1)[-1:] = 0
        return x, scale, offset


class MissedVectorTail(Kernel):
    """Channels beyond the last full vector of 8 are left out."""

    def run(self) -> Outputs:
        x, scale, offset = super().run()
        full = self.x.shape[1] // 8 * 8
        if full:
            scale[full:] = 0
            x[:, full:] = 0
        return x, scale, offset


class EpsilonMissing(Kernel):
    def epsilon(self) -> float:
        return 0.0


class EpsilonDoubled(Kernel):
    def epsilon(self) -> float:
        return 2 * super().epsilon()


class EpsilonRoundedToFloat32(Kernel):
    """As TensorFlow's float attrs do it; wrong where the op keeps epsilon in double."""

    def epsilon(self) -> float:
        return float(np.float32(super().epsilon()))


class EpsilonOutsideTheRoot(Kernel):
    def rstd(self) -> np.ndarray:
        return 1 / (np.sqrt(self.variance.astype(np.float64)) + self.epsilon())


class Float64ComputedInFloat32(Kernel):
    def real(self) -> type[np.floating]:
        return np.float32


class OneRowTooFew(Kernel):
    def rows(self) -> float:
        return max(1, super().rows() - 1)


class OneRowTooMany(Kernel):
    def rows(self) -> float:
        return super().rows() + 1


class NeighboursMean(Kernel):
    """The channel index is off by one."""

    def run(self) -> Outputs:
        self.mean = np.roll(self.mean, 1)
        return super().run()


class NeighboursScale(Kernel):
    def x_backprop(self, dy_sum: np.ndarray, dy_xmu_sum: np.ndarray) -> np.ndarray:
        self.scale = np.roll(self.scale, 1)
        return super().x_backprop(dy_sum, dy_xmu_sum)


class MeanNotSubtracted(Kernel):
    def xmu(self) -> np.ndarray:
        return self.x.astype(np.float64)


class BatchMeanInsteadOfGiven(Kernel):
    """Takes the statistics of x, although others were given."""

    def run(self) -> Outputs:
        if self.x.size:
            self.mean = self.x.astype(np.float64).mean(axis=(0, 2)).astype(self.mean.dtype)
        return super().run()


class ModesSwapped(Kernel):
    def is_training(self) -> bool:
        return not super().is_training()


class AlwaysFrozen(Kernel):
    def is_training(self) -> bool:
        return False


class InverseStdTakenForVariance(Kernel):
    def rstd(self) -> np.ndarray:
        return self.variance.astype(np.float64)


class SlopeWithOneRstd(Kernel):
    """rstd where rstd^2 belongs."""

    def x_backprop(self, dy_sum: np.ndarray, dy_xmu_sum: np.ndarray) -> np.ndarray:
        return super().x_backprop(dy_sum, dy_xmu_sum / self.rstd())


class RstdMissingInScale(Kernel):
    def run(self) -> Outputs:
        x, _, offset = super().run()
        return x, self.sums()[1].astype(self.scale.dtype), offset


class ScaleIgnored(Kernel):
    def x_backprop(self, dy_sum: np.ndarray, dy_xmu_sum: np.ndarray) -> np.ndarray:
        self.scale = np.ones_like(self.scale)
        return super().x_backprop(dy_sum, dy_xmu_sum)


class AccumulatedInElementType(Kernel):
    """Half is summed in half (and float32 in float32)."""

    def sum(self, terms: np.ndarray) -> np.ndarray:
        dtype = self.dy.dtype
        if not terms.size:
            return super().sum(terms)
        total = np.zeros(terms.shape[1], dtype)
        for row in terms.transpose(0, 2, 1).reshape(-1, terms.shape[1]).astype(dtype):
            total = (total + row).astype(dtype)
        return total.astype(np.float64)


class AccumulatedInFloat32(Kernel):
    """A naive float32 sum: right enough for a textbook, not what this library promises."""

    def sum(self, terms: np.ndarray) -> np.ndarray:
        if not terms.size or self.dy.dtype == np.float64:
            return super().sum(terms)
        rows = terms.transpose(0, 2, 1).reshape(-1, terms.shape[1]).astype(np.float32)
        return np.cumsum(rows, axis=0, dtype=np.float32)[-1].astype(np.float64)


class MeanRoundedToFloat32(Kernel):
    """The second part of the gradient's mean is dropped."""

    def dy_mean(self, dy_sum: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, rest = super().dy_mean(dy_sum)
        return first, np.zeros_like(rest)


class NanSwallowed(Kernel):
    def run(self) -> Outputs:
        self.dy, self.x = np.nan_to_num(self.dy), np.nan_to_num(self.x)
        return super().run()


class AllZeros(Kernel):
    def run(self) -> Outputs:
        return np.zeros_like(self.dy), np.zeros_like(self.scale), np.zeros_like(self.scale)


class Identity(Kernel):
    def x_backprop(self, dy_sum: np.ndarray, dy_xmu_sum: np.ndarray) -> np.ndarray:
        return self.dy


class SubnormalHalfFlushed(Kernel):
    """Half results below its normal range are set to zero."""

    def run(self) -> Outputs:
        x, scale, offset = super().run()
        if self.case.dtype == "half":
            x[np.abs(x) < spec.DTYPES["half"].smallest_normal] = 0
        return x, scale, offset


class LastBlockTwice(Kernel):
    """The last 16 rows are counted twice, as with overlapping blocks."""

    def sum(self, terms: np.ndarray) -> np.ndarray:
        total = super().sum(terms)
        return total + terms[-16:].sum(axis=(0, 2)) if len(terms) > 100 else total


class TruncatedInsteadOfRounded(Kernel):
    """bfloat16 by cutting bits off."""

    def x_backprop(self, dy_sum: np.ndarray, dy_xmu_sum: np.ndarray) -> np.ndarray:
        x = super().x_backprop(dy_sum, dy_xmu_sum)
        if self.case.dtype != "bfloat16":
            return x
        return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


FAULTS: tuple[type[Kernel], ...] = tuple(Kernel.__subclasses__())


class KernelRunner:
    """A kernel in the role of a worker (workers.Runner), without a process."""

    name = "candidate"

    def __init__(self, kernel: Callable[..., Kernel] = Kernel):
        self._kernel = kernel
        self._answer = Answer()

    pids: Sequence[int] = ()

    def supports(self, case: Case) -> bool:
        return case.compares_values

    def expect(self, modes: Iterable[str]) -> None:
        pass

    def submit(self, case: Case, inputs: Inputs) -> None:
        self._answer = answer(self._kernel, case, inputs.values)

    def collect(self) -> Answer:
        return self._answer

    def close(self) -> None:
        pass


def answer(kernel: Callable[..., Kernel], case: Case, values: Mapping[str, np.ndarray]) -> Answer:
    """What an op with this kernel answers."""
    dy, x = (spec.as_view(values[role], case.layout) for role in ("y_backprop", "x"))
    with np.errstate(all="ignore"):
        x_backprop, scale, offset = kernel(
            case, dy, x, *(values[role].copy() for role in ("scale", "mean", "variance"))
        ).run()
    by_role = {
        "x_backprop": x_backprop.astype(dy.dtype).reshape(case.shape),
        "scale_backprop": scale,
        "offset_backprop": offset,
        "placeholder": np.zeros(0, scale.dtype),
    }
    return Answer([by_role[arg.role] for arg in case.spec.outputs])
