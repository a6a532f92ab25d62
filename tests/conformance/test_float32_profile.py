"""Promised: careful float32 kernels pass by the profile `float32` with any seed, E[x^2] - E[x]^2
does not.
"""

import math

import numpy as np
import numpy_kernels
import pytest
from judged_faults import Filled, answer

from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.batch_norm import activated
from tf_bn_ops.conformance.models.formula_models import errors
from tf_bn_ops.conformance.verdict.judge import judge

FLOAT32 = bounds.PROFILES["float32"]
FORWARD = generate.combinations(["FusedBatchNormV3"])
GRADIENT = generate.combinations(["FusedBatchNormGradV3"])
F = np.float32


def _rows(x):
    """[M, channels] in float32."""
    rows = x.shape[0] * x.shape[2]
    return np.moveaxis(x, 1, 2).reshape(rows, x.shape[1]).astype(F)


def _naive(terms):
    """One chain of additions."""
    return np.cumsum(terms, axis=0, dtype=F)[-1] if len(terms) else np.zeros(terms.shape[1], F)


def _pairwise(terms):
    while len(terms) > 1:
        rest = terms[len(terms) // 2 * 2 :]
        terms = np.concatenate([terms[0:-1:2] + terms[1::2], rest])
    return terms[0] if len(terms) else np.zeros(terms.shape[1], F)


def _two_pass(total):
    def statistics(rows):
        count = F(max(len(rows), 1))
        mean = total(rows) * (F(1) / count)
        return mean, total((rows - mean) ** 2) * (F(1) / count)

    return statistics


def _welford(rows):
    mean, m2 = (np.zeros(rows.shape[1], F) for _ in range(2))
    for number, row in enumerate(rows, start=1):
        before = row - mean
        mean = mean + before / F(number)
        m2 = m2 + before * (row - mean)
    return mean, m2 / F(max(len(rows), 1))


def _merged(rows):
    """Welford's updates of eight parts, then Chan's merge of two parts at a time."""
    parts = [(*_welford(part), len(part)) for part in np.array_split(rows, 8)]
    mean, variance, count = parts[0]
    for other, its_variance, its_count in parts[1:]:
        if not its_count:
            continue
        total = F(count + its_count)
        apart = other - mean
        m2 = variance * F(count) + its_variance * F(its_count)
        m2 = m2 + apart**2 * (F(count) * F(its_count) / total)
        mean = mean + apart * (F(its_count) / total)
        variance, count = m2 / total, count + its_count
    return mean, variance


def _rearranged(rows):
    """What most complaints in public come from."""
    count = F(max(len(rows), 1))
    mean = _naive(rows) / count
    return mean, np.maximum(_naive(rows**2) / count - mean**2, 0)


def _forward(statistics):
    def kernel(case, problem):
        x, scale, offset = (problem.wide(role, F) for role in ("x", "scale", "offset"))
        count, f = x.shape[0] * x.shape[2], F(problem.exponential_avg_factor)
        mean, variance = (problem.wide(role, F) for role in ("mean", "variance"))
        batch = mean, variance
        if case.is_training:
            given, (mean, variance) = batch, statistics(_rows(x))
            if not count:
                mean, variance = mean * 0, variance * 0
            unbiased = variance * (F(count) / F(max(count - 1, 1)))
            batch = mean, unbiased
            if f != 1:
                batch = [(1 - f) * old + f * new for old, new in zip(given, batch, strict=True)]
            if not count:
                batch = [np.full_like(mean, np.nan)] * 2
        rstd = F(1) / np.sqrt(variance + F(problem.epsilon))
        y = (x - mean[:, None]) * (scale * rstd)[:, None] + offset[:, None]
        outputs = {"y": activated(y, problem.activation_kind), "saved_mean": mean}
        outputs |= {"saved_variance": variance, "batch_mean": batch[0], "batch_variance": batch[1]}
        return {role: problem.type_of(role).store(value) for role, value in outputs.items()}

    return kernel


class _Gradient(numpy_kernels.Kernel):
    """All in float32, with a sum that a subclass chooses."""

    total = staticmethod(_naive)

    def rstd(self):
        return F(1) / np.sqrt(self.variance + F(self.epsilon()))

    def xmu(self):
        return self.x.astype(F) - self.mean[:, None]

    def sums(self):
        dy = self.dy.astype(F)
        return self.total(_rows(dy)), self.total(_rows(dy * self.xmu()))

    def dy_mean(self, dy_sum):
        mean = (dy_sum * (F(1) / F(self.rows())))[:, None]
        return mean, np.zeros_like(mean)


class _PairwiseGradient(_Gradient):
    total = staticmethod(_pairwise)


class _RearrangedGradient(_Gradient):
    """sum(dy*x) - mean*sum(dy)."""

    def sums(self):
        dy, x = self.dy.astype(F), self.x.astype(F)
        first = self.total(_rows(dy))
        return first, self.total(_rows(dy * x)) - self.mean * first


HONEST = {"naive": _two_pass(_naive), "pairwise": _two_pass(_pairwise)}
HONEST |= {"welford": _welford, "merged": _merged}


def _filled(count, seed, combos):
    cases = generate.generate(count, seed, combos)
    return [Filled.of(c, numpy_kernels.fill) for c in cases if math.prod(c.shape) < 5000]


def _judge_forward(statistics, one, profile=FLOAT32):
    with np.errstate(all="ignore"):
        given = answer(_forward(statistics)(one.case, one.problem), one)
    return judge(one.case, one.inputs, {"candidate": given}, profile)


def _judge_gradient(kernel, one, profile=FLOAT32):
    answer = numpy_kernels.answer(kernel, one.case, one.inputs.values)
    return judge(one.case, one.inputs, {"candidate": answer}, profile)


@pytest.mark.parametrize("seed", range(1, 4))
def test_careful_kernels_pass(seed):
    for one in _filled(300, seed, FORWARD):
        for name, statistics in HONEST.items():
            result = _judge_forward(statistics, one)
            assert not result.failures, (name, str(one.case), result.failures)
    for one in _filled(300, seed, GRADIENT):
        for kernel in (_Gradient, _PairwiseGradient):
            result = _judge_gradient(kernel, one)
            assert not result.failures, (kernel.__name__, str(one.case), result.failures)


def test_the_second_order_in_float32_passes():
    """As TensorFlow's ops compute it."""
    tf = pytest.importorskip("tensorflow")
    from tf_bn_ops import _gradients

    combos = generate.combinations(["FusedBatchNormGradGrad"], ["float32", "half"])
    for one in _filled(300, 1, combos):
        if not one.problem["x"].size:
            continue
        found = _gradients._composed(
            tuple(tf.constant(one.problem[arg.role]) for arg in one.case.spec.inputs),
            epsilon=one.problem.epsilon, data_format="NCHW", is_training=one.case.is_training,
        )  # fmt: skip
        outputs = {a.role: o.numpy() for a, o in zip(one.case.spec.outputs, found, strict=True)}
        problem_errors = errors(one.problem, outputs, "float32")
        assert all(e.bound <= 1 for e in problem_errors.values()), (str(one.case), problem_errors)


@pytest.mark.parametrize("profile", ["float32", "textbook"])
def test_the_rearranged_variance_fails_where_the_mean_is_large(profile):
    """With evidence, in both kinds; TensorFlow's oldest path passes the textbook's bounds."""
    caught = {"large_offset": 0, "huge_offset": 0}
    for one in _filled(
        600, 1, [combo for combo in FORWARD if combo[1:] and combo[3] == "training"]
    ):
        result = _judge_forward(_rearranged, one, bounds.PROFILES[profile])
        if result.failures and one.case.kind in caught:
            failed = {failure.split()[0] for failure in result.failures}
            caught[one.case.kind] += any(result.evidence.get(role) for role in failed)
    assert min(caught.values()) >= 3 if profile == "float32" else not any(caught.values()), caught


def test_the_rearranged_sum_of_a_gradient_fails_where_the_mean_is_large():
    filled = [one for one in _filled(600, 1, GRADIENT) if one.case.kind == "large_offset"]
    caught = sum(bool(_judge_gradient(_RearrangedGradient, one).failures) for one in filled)
    assert caught >= len(filled) / 4, (caught, len(filled))


def test_an_exact_fill_is_exact_in_float32_in_any_order():
    """Bit by bit, so that its sums and elements show which kernel drops or repeats one."""
    filled = [one for one in _filled(1000, 1, GRADIENT) if one.case.kind == "exact"]
    of_elements = [o for o in filled if o.case.is_training and "x_backprop" in o.inputs.exact]
    assert len(of_elements) > 20
    for one in filled:
        for kernel in (_Gradient, _PairwiseGradient, _RearrangedGradient):
            result = _judge_gradient(kernel, one, bounds.PROFILES["strict"])
            assert not result.failures, (kernel.__name__, str(one.case), result.failures)


def test_half_the_mantissa_is_no_float32():
    """A mean that is summed in half, an rstd of 12 bits."""

    def coarse(rows):
        mean, variance = _two_pass(_naive)(rows)
        return mean, variance * F(1 + 2**-12)

    small = [one for one in _filled(300, 1, FORWARD) if one.case.is_training]
    assert sum(bool(_judge_forward(coarse, one).failures) for one in small) > len(small) / 10
