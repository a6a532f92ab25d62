"""Faults of odd statistics or of one combination only: 500 cases of the op catch each of them."""

import math

import numpy as np
import numpy_kernels
import pytest
from numpy_kernels import Kernel, fault, fill, wrong_epsilon, wrong_inputs, wrong_outputs

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import coverage, generate
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.verdict.judge import judge

OP = "FusedBatchNormGradV3"
COMBOS = generate.combinations([OP])
CASES = list(generate.generate(500, 1, COMBOS))
FLOAT32 = bounds.PROFILES["float32"]


def _statistics(change):
    """A kernel that changes mean and variance before it uses them."""

    def changed(k):
        k.mean, k.variance = change(k.mean.copy(), k.variance.copy())

    return wrong_inputs(changed)


def _nan_to(value):
    return lambda mean, variance: (mean, np.where(np.isnan(variance), value, variance))


def _nan_of_all(mean, variance):
    """One odd channel spoils its neighbour."""
    odd = np.isnan(variance)
    return mean, np.where(odd | np.roll(odd, 1), np.nan, variance)


def _cached_by_six_decimals():
    """A cache of what depends on epsilon, by its text."""
    kept = {}
    return lambda epsilon: kept.setdefault(f"{epsilon:.6f}", epsilon)


def _where(applies):
    """A kernel that is off by a thousandth where a condition on a case's traits holds."""

    def off(k, x, scale, offset):
        wrong = applies(k.case, *coverage.sizes(k.case.shape, k.case.layout))
        return x, (scale * np.float64(1.001 if wrong else 1)).astype(scale.dtype), offset

    return wrong_outputs(off)


def _count_in(bits):
    """A kernel whose number of rows wraps around."""
    return fault(rows=lambda k: max(1, int(Kernel.rows(k)) % (1 << bits)))


def _until_row_65535(k, terms):
    return terms.transpose(1, 0, 2).reshape(terms.shape[1], -1)[:, :65535].sum(axis=1)


def _scale_of_zero_skips(k, x, scale, offset):
    """Also where 0 times NaN or infinity is NaN."""
    return np.where(k.scale[:, None] == 0, 0, x), scale, offset


def _saturated(k, x, scale, offset):
    return np.clip(x, -65504, 65504) if k.case.dtype == "half" else x, scale, offset


def _infinity_spreads(k, x, scale, offset):
    infinite = np.isinf(k.x).any(axis=(0, 2))
    neighbour = np.roll(infinite, 1) & ~infinite
    return x, np.where(neighbour, np.nan, scale).astype(scale.dtype), offset


FAULTS = {
    "33 to 48 channels": _where(lambda c, channels, *_: 33 <= channels <= 48),
    "an inner size of 7": _where(lambda c, channels, inner, rows: inner == 7),
    "frozen NCHW alone": _where(lambda c, *_: c.layout == "NCHW" and not c.is_training),
    "a batch of one in training": _where(lambda c, *_: c.shape[0] == 1 and c.is_training),
    "more than 65535 channels": _where(lambda c, channels, *_: channels > 65535),
    "rows beyond 65535 are not summed": fault(sum=_until_row_65535),
    "epsilon is 1e-12 at least": wrong_epsilon(lambda epsilon: max(epsilon, 1e-12)),
    "epsilon is kept in half": wrong_epsilon(lambda epsilon: float(np.float16(epsilon))),
    "an infinity spoils its neighbour": wrong_outputs(_infinity_spreads),
    "a scale of 0 skips its channel": wrong_outputs(_scale_of_zero_skips),
    "half saturates": wrong_outputs(_saturated),
    "the sum of nothing is NaN": wrong_outputs(
        lambda k, x, scale, offset: (x, scale if k.x.size else scale * np.nan, offset)
    ),
    "NaN variance is taken for 0": _statistics(_nan_to(0)),
    "NaN variance is taken for 1": _statistics(_nan_to(1)),
    "NaN mean is taken for 0": _statistics(lambda m, v: (np.nan_to_num(m, nan=0.0), v)),
    "infinite variance is taken for a large one": _statistics(
        lambda m, v: (m, np.minimum(v, np.float32(1e3)))
    ),
    "negative variance is taken for 0": _statistics(lambda m, v: (m, np.maximum(v, 0))),
    "an odd channel spoils its neighbour": _statistics(_nan_of_all),
    "epsilon is 1e-5 at least": wrong_epsilon(lambda epsilon: max(epsilon, 1e-5)),  # As some do.
    "epsilon is cached by six decimals": wrong_epsilon(_cached_by_six_decimals()),
    "rows are counted in 15 bits": _count_in(15),
    "rows are counted in 16 bits": _count_in(16),
    "frozen NDHWC alone": _where(lambda c, *_: c.layout == "NDHWC" and not c.is_training),
    "33 to 128 channels in training": _where(
        lambda c, channels, *_: 33 <= channels <= 128 and c.is_training
    ),
    "inner sizes above 1024 of NCDHW": _where(
        lambda c, channels, inner, rows: inner > 1024 and c.layout == "NCDHW"
    ),
    "more than 32767 channels in half": _where(
        lambda c, channels, *_: channels > 32767 and c.dtype == "half"
    ),
    "tiny epsilon of a tiny variance": _where(
        lambda c, *_: c.epsilon < 1e-6 and c.kind == "tiny_variance"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def filled():
    return [(c, fill(c)) for c in CASES if math.prod(c.shape) < 250_000]


def _failures(kernel, case, given):
    answer = numpy_kernels.answer(kernel, case, given.values)
    return judge(case, given, {"candidate": answer}, FLOAT32).failures


def test_a_right_kernel_passes(filled):
    for case, given in filled:
        assert not _failures(Kernel, case, given), str(case)


@pytest.mark.parametrize("name", FAULTS)
def test_500_cases_catch_it(name, filled):
    assert any(_failures(FAULTS[name], case, given) for case, given in filled)


def test_500_cases_have_every_pair_and_every_kind_in_each_layout_and_mode():
    (covered,) = coverage.of_cases(COMBOS, CASES).values()
    assert len(covered.pairs) > 900 and not covered.missing
    have = {(c.layout, c.mode, c.kind) for c in CASES}
    op = spec.OPS[OP]
    assert have == {(la, m, k) for la in op.layouts for m in op.modes for k in model_of(op).kinds}


def test_pairs_that_no_case_can_have_are_not_asked_for():
    combos = generate.combinations(["BatchNormTrainingBackprop"], (), ["NC"])
    ((_, covered),) = coverage.of_cases(combos, []).items()
    for pair in (
        {("layout", "NC"), ("inner", "2-8")},
        {("channels", "32768-70000"), ("rows", "65536-400000")},
        {("inner", "1025-12544"), ("rows", "2-16")},
        {("kind", "kink"), ("mode", "training")},
    ):
        assert frozenset(pair) not in covered.pairs, pair
    assert frozenset({("layout", "NC"), ("inner", "1")}) in covered.pairs
