"""The formula model of the first-order gradient: oracle.py and bounds.py as expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import bounds as bounds_lib
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models import oracle as oracle_lib
from tf_bn_ops.conformance.models.measure import WHOLE, Expected, FormulaModel
from tf_bn_ops.harness.problems import Problem

OUTPUTS = ("x_backprop", "scale_backprop", "offset_backprop")


def _expected(problem: Problem, profile: bounds_lib.Profile) -> Iterator[Expected]:
    yield from expected_of(oracle_lib.Oracle(problem), problem, profile)


def expected_of(
    oracle: oracle_lib.Oracle, problem: Problem, profile: bounds_lib.Profile
) -> Iterator[Expected]:
    """What is expected of a problem whose oracle is known."""
    bounds = bounds_lib.Bounds(profile, oracle, problem.dtype, problem.statistics_dtype)
    nan_required = inputs.channels_without_infinity(
        problem, oracle.sums.dy_xmu, oracle.mean, oracle.rstd
    )
    sums, n = oracle.sums, max(oracle.sums.n, 1)
    with np.errstate(all="ignore"):
        terms = np.abs(oracle.rstd) * sums.dy_xmu_abs / n
        yield Expected(
            "scale_backprop", WHOLE, oracle.scale_backprop, bounds.scale_backprop, terms,
            nan_required=nan_required,
        )  # fmt: skip
        yield Expected(
            "offset_backprop", WHOLE, oracle.offset_backprop, bounds.offset_backprop,
            sums.dy_abs / n, nan_required=nan_required,
        )  # fmt: skip
    for chunk in oracle.chunks():
        c = chunk.at[1]
        with np.errstate(all="ignore"):
            terms = np.fmax(
                np.abs(chunk.centered), np.abs(chunk.xmu) * np.abs(oracle.slope)[c, None]
            )
            yield Expected(
                "x_backprop",
                chunk.at,
                chunk.x_backprop,
                bounds.x_backprop(chunk),
                terms * np.abs(oracle.factor)[c, None],
                {"other mode": _other_mode(oracle, chunk), "identity": _identity(chunk)},
                None if nan_required is None else nan_required[c, None],
            )


def _identity(chunk: oracle_lib.Chunk) -> Callable[[], np.ndarray]:
    """The gradient itself."""
    return lambda: chunk.y_backprop


def _other_mode(oracle: oracle_lib.Oracle, chunk: oracle_lib.Chunk) -> Callable[[], np.ndarray]:
    """x_backprop as it would be in the other mode."""
    c, n = chunk.at[1], max(oracle.sums.n, 1)

    def answer() -> np.ndarray:
        if oracle.is_training:
            return oracle.factor[c, None] * chunk.y_backprop
        slope = oracle.rstd[c] ** 2 * (oracle.sums.dy_xmu[c] / n)
        inside = chunk.y_backprop - (oracle.sums.dy[c] / n)[:, None] - chunk.xmu * slope[:, None]
        return oracle.factor[c, None] * inside

    return answer


MODELS = {spec.ops.BATCH_NORM_GRAD: FormulaModel(inputs.KINDS, OUTPUTS, inputs.fill, _expected)}
