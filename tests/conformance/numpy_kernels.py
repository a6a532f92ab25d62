"""Batch-norm gradients in NumPy as candidates for the harness: a right one, and many wrong ones.

`Kernel()` is what an honest float32 kernel does: sums in float64, coefficients rounded to float32
once, elements in float32 (float64 for float64). Every fault is one small change to it (FAULTS), so
that a test can ask which faults the harness lets pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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

    def take(self, role: str, array: np.ndarray) -> None:
        """Computes with another input."""
        setattr(self, role, array)

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


def fault(**steps: Callable[..., Any]) -> type[Kernel]:
    """A kernel with other steps, functions of the kernel and of what the step takes."""
    return type("Fault", (Kernel,), steps)


def wrong_outputs(change: Callable[..., Outputs]) -> type[Kernel]:
    """A kernel whose outputs are changed, by a function of the kernel and of them."""
    return fault(run=lambda k: change(k, *Kernel.run(k)))


def wrong_epsilon(change: Callable[[float], float]) -> type[Kernel]:
    return fault(epsilon=lambda k: change(Kernel.epsilon(k)))


def wrong_inputs(change: Callable[[Kernel], None]) -> type[Kernel]:
    """A kernel that changes what it was given before it computes."""

    def run(k: Kernel) -> Outputs:
        change(k)
        return Kernel.run(k)

    return fault(run=run)


def _without_last(terms: np.ndarray) -> np.ndarray:
    terms = terms.copy()
    terms[-1:, :, -1:] = 0
    return terms


def _last_element_is_0(k: Kernel, x: np.ndarray, *others: np.ndarray) -> Any:
    x.reshape(-1)[-1:] = 0
    return x, *others


def _full_vectors_of_8(k: Kernel, x: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> Any:
    if full := k.x.shape[1] // 8 * 8:
        scale[full:] = 0
        x[:, full:] = 0
    return x, scale, offset


def _bessel(k: Kernel) -> np.ndarray:
    bessel = k.rows() / max(k.rows() - 1, 1)
    return 1 / np.sqrt(k.variance.astype(np.float64) * bessel + k.epsilon())


def _of_batch(k: Kernel) -> None:
    if k.x.size:
        k.mean = k.x.astype(np.float64).mean(axis=(0, 2)).astype(k.mean.dtype)


def _in_element_type(k: Kernel, terms: np.ndarray) -> np.ndarray:
    """Half is summed in half (and float32 in float32)."""
    dtype = k.dy.dtype
    if not terms.size:
        return Kernel.sum(k, terms)
    total = np.zeros(terms.shape[1], dtype)
    for row in terms.transpose(0, 2, 1).reshape(-1, terms.shape[1]).astype(dtype):
        total = (total + row).astype(dtype)
    return total.astype(np.float64)


def _in_float32(k: Kernel, terms: np.ndarray) -> np.ndarray:
    """A naive float32 sum: right enough for a textbook, not what this library promises."""
    if not terms.size or k.dy.dtype == np.float64:
        return Kernel.sum(k, terms)
    rows = terms.transpose(0, 2, 1).reshape(-1, terms.shape[1]).astype(np.float32)
    return np.cumsum(rows, axis=0, dtype=np.float32)[-1].astype(np.float64)


def _swallow_nan(k: Kernel) -> None:
    k.dy, k.x = np.nan_to_num(k.dy), np.nan_to_num(k.x)


def _flush_half(k: Kernel, x: np.ndarray, *others: np.ndarray) -> Any:
    """Half results below its normal range are set to zero."""
    if k.case.dtype == "half":
        x[np.abs(x) < spec.DTYPES["half"].smallest_normal] = 0
    return x, *others


def _last_block_twice(k: Kernel, terms: np.ndarray) -> np.ndarray:
    """The last 16 rows are counted twice, as with overlapping blocks."""
    total = Kernel.sum(k, terms)
    return total + terms[-16:].sum(axis=(0, 2)) if len(terms) > 100 else total


def _truncated(k: Kernel, *sums: np.ndarray) -> np.ndarray:
    """bfloat16 by cutting bits off."""
    x = Kernel.x_backprop(k, *sums)
    if k.case.dtype != "bfloat16":
        return x
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def _last_as_first(k: Kernel, x: np.ndarray, *others: np.ndarray) -> Any:
    """The last channel of an even number is taken for the first."""
    if x.shape[1] % 2 == 0:
        x[:, -1:] = x[:, :1]
    return x, *others


def _zeros(k: Kernel, *outputs: np.ndarray) -> Any:
    return tuple(map(np.zeros_like, outputs))


SignFlip = fault(x_backprop=lambda k, dy, dy_xmu: Kernel.x_backprop(k, dy, -dy_xmu))
ScaleSignFlip = wrong_outputs(lambda k, x, scale, offset: (x, -scale, offset))
SwappedOutputs = wrong_outputs(lambda k, x, scale, offset: (x, offset, scale))
MissedTailOfSums = fault(sum=lambda k, terms: Kernel.sum(k, _without_last(terms)))
MissedTailOfElements = wrong_outputs(_last_element_is_0)
MissedVectorTail = wrong_outputs(_full_vectors_of_8)
EpsilonDoubled = wrong_epsilon(lambda epsilon: 2 * epsilon)
OneRowTooFew = fault(rows=lambda k: max(1, Kernel.rows(k) - 1))
OneRowTooMany = fault(rows=lambda k: Kernel.rows(k) + 1)
# The channel index is off by one.
NeighboursScale = wrong_inputs(lambda k: k.take("scale", np.roll(k.scale, 1)))
NeighboursMean = wrong_inputs(lambda k: k.take("mean", np.roll(k.mean, 1)))
ModesSwapped = fault(is_training=lambda k: not Kernel.is_training(k))
AlwaysFrozen = fault(is_training=lambda k: False)
AccumulatedInFloat32 = fault(sum=_in_float32)
AccumulatedInElementType = fault(sum=_in_element_type)
NanSwallowed = wrong_inputs(_swallow_nan)
AllZeros = wrong_outputs(_zeros)
Identity = fault(x_backprop=lambda k, *sums: k.dy)
SubnormalHalfFlushed = wrong_outputs(_flush_half)
TruncatedInsteadOfRounded = fault(x_backprop=_truncated)
BesselVariance = fault(rstd=_bessel)
EpsilonMissing = wrong_epsilon(lambda epsilon: 0.0)
# As TensorFlow's float attrs do it; wrong where the op keeps epsilon in double.
EpsilonRoundedToFloat32 = wrong_epsilon(lambda epsilon: float(np.float32(epsilon)))
EpsilonOutsideTheRoot = fault(
    rstd=lambda k: 1 / (np.sqrt(k.variance.astype(np.float64)) + k.epsilon())
)
Float64ComputedInFloat32 = fault(real=lambda k: np.float32)
MeanNotSubtracted = fault(xmu=lambda k: k.x.astype(np.float64))
# Statistics of x, although others were given.
BatchMeanInsteadOfGiven = wrong_inputs(_of_batch)
InverseStdTakenForVariance = fault(rstd=lambda k: k.variance.astype(np.float64))
# rstd where rstd^2 belongs.
SlopeWithOneRstd = fault(x_backprop=lambda k, dy, xmu: Kernel.x_backprop(k, dy, xmu / k.rstd()))
RstdMissingInScale = wrong_outputs(lambda k, x, s, o: (x, k.sums()[1].astype(s.dtype), o))
ScaleIgnored = wrong_inputs(lambda k: k.take("scale", np.ones_like(k.scale)))
# The second part of the gradient's mean is dropped.
MeanRoundedToFloat32 = fault(dy_mean=lambda k, dy_sum: (Kernel.dy_mean(k, dy_sum)[0], 0))
# As a loss scale that is too large makes it.
GradientClipped = wrong_inputs(lambda k: k.take("dy", np.clip(k.dy, -4, 4)))
LastChannelTakenForFirst = wrong_outputs(_last_as_first)
# Channels-last is right.
OneRowTooFewInNCHW = fault(
    rows=lambda k: Kernel.rows(k) - (k.x.shape[2] > 1 and k.case.layout.startswith("NC"))
)
LastBlockTwice = fault(sum=_last_block_twice)


def _named(values: Mapping[str, Any]) -> tuple[type[Kernel], ...]:
    """The faults among them, each with its name here as its own."""
    found = {n: k for n, k in values.items() if isinstance(k, type) and Kernel in k.__bases__}
    for name, kernel in found.items():
        kernel.__name__ = name
    return tuple(found.values())


FAULTS = _named(vars())


class KernelRunner:
    """A kernel in the role of a worker (workers.Runner), without a process."""

    name = "candidate"

    def __init__(self, kernel: Callable[..., Kernel] = Kernel):
        self._kernel = kernel
        self._answer = Answer()

    def supports(self, case: Case) -> bool:
        return case.compares_values

    def expect(self, modes: Iterable[str]) -> None:
        pass

    def submit(self, case: Case, inputs: Inputs) -> None:
        self._answer = answer(self._kernel, case, inputs.values)

    def collect(self) -> Answer:
        return self._answer

    def close(self, at_once: bool = False) -> None:
        pass


def outputs(
    kernel: Callable[..., Kernel], case: Case, values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """By role, of inputs by role, both as views."""
    dy, x = values["y_backprop"], values["x"]
    with np.errstate(all="ignore"):
        x_backprop, scale, offset = kernel(
            case, dy, x, *(values[role].copy() for role in ("scale", "mean", "variance"))
        ).run()
    return {
        "x_backprop": x_backprop.astype(dy.dtype),
        "scale_backprop": scale,
        "offset_backprop": offset,
        "placeholder": np.zeros(0, scale.dtype),
    }


def answer(kernel: Callable[..., Kernel], case: Case, values: Mapping[str, np.ndarray]) -> Answer:
    """What an op with this kernel answers."""
    views = {role: spec.as_view(values[role], case.layout) for role in ("y_backprop", "x")}
    by_role = outputs(kernel, case, {**values, **views})
    by_role["x_backprop"] = by_role["x_backprop"].reshape(case.shape)
    return Answer([by_role[arg.role] for arg in case.spec.outputs])
