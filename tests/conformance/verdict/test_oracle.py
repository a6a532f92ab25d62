"""The oracle against exact fractions. That its formula is a derivative, test_relations.py shows."""

import decimal
from fractions import Fraction

import numpy as np
import pytest
from numpy_kernels import fill

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.models import bounds, oracle, sums
from tf_bn_ops.conformance.models.formula_models import MODELS
from tf_bn_ops.harness import problems
from tf_bn_ops.harness.problems import Inputs
from tf_bn_ops.spec.ops import BATCH_NORM_GRAD_EX as GRAD_EX

decimal.getcontext().prec = 60


def _fraction(value: np.generic) -> Fraction:
    return Fraction(float(value))


def _exact(values, case):
    """All three outputs in fractions, but for rstd, a decimal of 60 digits."""
    dy, x = (spec.as_view(values[r], case.layout) for r in ("y_backprop", "x"))
    outer, channels, inner = x.shape
    x_backprop = np.empty(x.shape, object)
    scale, offset = [], []
    epsilon = _fraction(problems.of_call(case, Inputs({})).epsilon)
    for c in range(channels):
        total = _fraction(values["variance"][c]) + epsilon
        root = (decimal.Decimal(total.numerator) / decimal.Decimal(total.denominator)).sqrt()
        rstd = 1 / Fraction(root)
        mean = _fraction(values["mean"][c])
        at = [(o, c, i) for o in range(outer) for i in range(inner)]
        g = {p: _fraction(dy[p]) for p in at}
        xmu = {p: _fraction(x[p]) - mean for p in at}
        s1, s2 = sum(g.values()), sum(g[p] * xmu[p] for p in at)
        offset.append(s1)
        scale.append(rstd * s2)
        n = len(at) if case.is_training else None
        for p in at:
            inside = g[p] if n is None else g[p] - s1 / n - xmu[p] * rstd * rstd * s2 / n
            x_backprop[p] = _fraction(values["scale"][c]) * rstd * inside
    return x_backprop, np.array(scale, object), np.array(offset, object)


V3 = "FusedBatchNormGradV3,float32,{},{},{},{},given,eps=0.25,eager,seed=5"
NGRAPH = "BatchNormTrainingBackprop,float64,{},{},training,normal,given,eps=1.1e-09,eager,seed=5"
CASES = [
    *(
        V3.format(layout, shape, mode, kind)
        for layout, shape in (("NHWC", "3x2x5x3"), ("NCDHW", "2x2x3x1x5"))
        for mode in spec.MODES
        for kind in ("normal", "large_offset", "large_gradient_mean", "wide", "exact")
    ),
    # float64 with an epsilon in double, in every rank.
    *(NGRAPH.format(*of) for of in (("NC", "13x3"), ("NCW", "3x2x5"), ("NCTDHW", "2x3x1x2x1x3"))),
]


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("text", CASES)
def test_equals_fractions(text, is_wide):
    """Of float64, which V3's inputs may be made, far beyond its bits."""
    case = generate.parse(text)
    given = fill(case)
    values = dict(given.values)
    if is_wide:
        rng = np.random.default_rng(0)
        values = {
            r: a.astype(np.float64) * (1 + 1e-9 * rng.standard_normal(a.shape))
            for r, a in values.items()
        }
    epsilon = problems.of_call(case, Inputs({})).epsilon
    got = oracle.Oracle(problems.of_tensors(values, case.layout, epsilon, case.is_training))
    is_float64 = values["x"].dtype == np.float64
    unit = float(np.finfo(np.longdouble).eps) if is_float64 else 2.0**-53
    x_backprop, scale, offset = _exact(values, case)
    rstd = got.rstd.astype(np.float64)

    def check(value, exact, condition):
        error = abs(float(Fraction(*value.as_integer_ratio()) - exact))
        assert error <= 8 * unit * condition

    for c in range(len(scale)):
        check(got.offset_backprop[c], offset[c], float(got.sums.dy_abs[c]))
        check(got.scale_backprop[c], scale[c], float(rstd[c] * got.sums.dy_xmu_abs[c]))
    for chunk in got.chunks():
        terms = np.abs(got.factor[:, None]) * (
            np.abs(chunk.y_backprop)
            + np.abs(got.dy_mean)[:, None]
            + np.abs(chunk.xmu * got.slope[:, None])
            + np.abs(chunk.xmu) * (got.rstd**2 * got.sums.dy_xmu_abs / got.sums.n)[:, None]
        )
        for p in np.ndindex(chunk.x_backprop.shape):
            check(chunk.x_backprop[p], x_backprop[p], float(terms[p]))


def test_compensated_sum_of_what_cancels():
    rng = np.random.default_rng(0)
    big = rng.standard_normal((1000, 3, 7)) * 1e16
    small = rng.standard_normal((1000, 3, 7))
    terms = np.concatenate((big, small, -big))
    total, correction = sums.compensated_sum(terms)
    exact = [sum(map(Fraction, small[:, c].ravel())) for c in range(3)]
    np.testing.assert_allclose(total + correction, [float(e) for e in exact], rtol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 5), (5, 2, 1), (3, 4, 7), (1, 1, 70_001)])
def test_compensated_sum_of_any_shape(shape):
    terms = np.arange(np.prod(shape), dtype=float).reshape(shape)
    total, correction = sums.compensated_sum(terms)
    np.testing.assert_array_equal(total + correction, terms.sum(axis=(0, 2)))


def test_chunks_cover_every_element_once(monkeypatch):
    monkeypatch.setattr(sums, "_CHUNK", 10)
    rng = np.random.default_rng(0)
    for layout, shape in (("NHWC", (3, 4, 5, 13)), ("NCHW", (3, 2, 3, 7)), ("NCHW", (1, 2, 1, 37))):
        values = {r: rng.standard_normal(shape).astype(np.float32) for r in ("x", "y_backprop")}
        channels = spec.view_shape(shape, layout)[1]
        for role in ("scale", "mean", "variance"):
            values[role] = rng.uniform(0.5, 2, channels).astype(np.float32)
        problem = problems.of_tensors(values, layout, 0.1, True)
        small = oracle.Oracle(problem)
        seen, found = np.zeros(small.shape, int), np.zeros(small.shape)
        for chunk in small.chunks():
            seen[chunk.at] += 1
            found[chunk.at] = chunk.x_backprop
        assert np.all(seen == 1)
        monkeypatch.setattr(sums, "_CHUNK", 1 << 16)
        whole = next(oracle.Oracle(problem).chunks())
        monkeypatch.setattr(sums, "_CHUNK", 10)
        np.testing.assert_allclose(found, whole.x_backprop, rtol=1e-12)


def test_where_a_derivative_jumps_the_rounding_of_the_other_side_is_allowed():
    """At -3 the derivative of hard-SiLU is 0 on one side and -1/2 on the other; what rounds there,
    0.6832, is far from the value, 0."""
    tensors = {"y_backprop": np.full((1, 1, 2), 159 / 128), "x": np.full((1, 1, 2), -3.0)}
    scale = np.float32([1.1])
    vectors = {"scale": scale, "offset": [0.3], "mean": [0.0], "variance": [1.0]}
    values = problems.stored(
        {r: np.asarray(a) for r, a in {**tensors, **vectors}.items()}, "bfloat16"
    )
    problem = problems.Problem(values, 0.0, False, activation="HardSilu", part=GRAD_EX)
    strict = bounds.PROFILES["strict"]
    (part,) = (p for p in MODELS[GRAD_EX].expected(problem, strict) if p.role == "x_backprop")
    other_side = problem.dtype.store(-0.5 * 159 / 128 * scale.astype(np.float64))
    assert np.all(np.abs(problem.dtype.widen(other_side, np.float64) - part.value) <= part.bound)
