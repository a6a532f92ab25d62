"""The oracle against exact fractions; its formulas as derivatives of the forward formula.

Promised: the oracle equals exact fractions, and its gradients are the derivatives of the forward
formula.
"""

import dataclasses
import decimal
import math
from fractions import Fraction

import numpy as np
import pytest
from judged_faults import Filled, right
from numpy_kernels import fill

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.models import bounds, oracle, sums
from tf_bn_ops.conformance.models.batch_norm import activated
from tf_bn_ops.conformance.models.batch_norm_grad_ex import passes
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


# ---- The formulas --------------------------------------------------------------------------------
# A sign or factor that every model shared would be found by nothing else: y is the formula in three
# lines of NumPy, first-order gradients are its derivatives, and second-order ones theirs.

_STEP, _AXES = 2.0**-9, (0, 2)
# Input -> the output that is its gradient.
_GRADIENTS = {"x": "x_backprop", "scale": "scale_backprop", "offset": "offset_backprop"}
_SECOND = {"y_backprop": "y_backprop_grad", "x": "x_grad", "scale": "scale_grad"}
# An op of each formula.
_OPS = (
    "FusedBatchNormEx",
    "FusedBatchNormGradV3",
    "FusedBatchNormGradEx",
    "FusedBatchNormGradGrad",
)


def _with(problem, **values):
    """The problem in float64, in training with x's mean and variance; unread values are 0."""
    values = {r: np.nan_to_num(problem.wide(r, np.float64)) for r in problem.values} | values
    values["forward_coefficients"] = np.zeros(0)
    if not values.get("offset", np.zeros(0)).size:
        values["offset"] = np.zeros(problem.view[1])
    if problem.is_training and "y_backprop" in values:
        values |= {"mean": values["x"].mean(_AXES), "variance": values["x"].var(_AXES)}
    return dataclasses.replace(problem, values=values)


def _drawn(op):
    """Of both modes, with numbers of ordinary size."""
    cases = generate.generate(150, 3, generate.combinations([op]))
    small = [c for c in cases if 8 <= math.prod(c.shape) <= 3000]
    changes = {"dtype": "float32", "kind": "normal", "statistics": "batch"}
    drawn = (dataclasses.replace(c, **changes) for c in small)
    problems = [_with(Filled.of(case).problem) for case in drawn]
    for problem in problems:
        if problem.activation == "LeakyRelu":  # Drawn offsets put elements where it bends.
            problem["offset"] += 0.11
    return problems


def _y(problem):
    """Before the activation and the side input."""
    x, is_training = problem["x"], problem.is_training
    mean = x.mean(_AXES) if is_training else problem["mean"]
    variance = x.var(_AXES) if is_training else problem["variance"]
    normalized = (x - mean[:, None]) / np.sqrt(variance + problem.epsilon)[:, None]
    return problem["scale"][:, None] * normalized + problem["offset"][:, None]


def _loss(problem):
    """What first-order gradients are derivatives of: the sum of y_backprop times y."""
    y, kind = _y(problem), problem.activation_kind
    if kind.is_smooth:
        y = activated(y + (problem["y"] if problem.num_side_inputs else 0), kind)
    elif "y" in problem.values:  # Which side of a clamp a number is on is what is given.
        y = np.where(passes(problem["y"], problem.activation), y, 0)
    return (problem["y_backprop"] * y).sum()


def _loss_of_gradients(problem):
    """What second-order ones are: the sum of what arrives times the first-order gradients."""
    arriving = {r: a for r, a in problem.values.items() if r.endswith("_backprop_grad")}
    values = {r: a for r, a in problem.values.items() if r not in arriving}
    first = right(None, dataclasses.replace(problem, values=values), problem.is_training)
    return sum((a * first[role.removesuffix("_grad")]).sum() for role, a in arriving.items())


def _derivative(loss, problem, role, direction):
    """By central differences, extrapolated; and how far it may be off. By small ones where many
    elements are next to a place where the derivative jumps."""
    first = _STEP / 32 if problem.activation == "LeakyRelu" else _STEP
    coarse, fine = (
        (loss(_with(problem, **{role: problem[role] + step * direction}))
         - loss(_with(problem, **{role: problem[role] - step * direction}))) / (2 * step)
        for step in (first, first / 2)
    )  # fmt: skip
    return (4 * fine - coarse) / 3, abs(fine - coarse) * 0.05 + 2.0**-40 * abs(loss(problem))


@pytest.mark.parametrize("op", _OPS)
def test_what_the_oracle_computes_is_the_formula_and_its_derivatives(op):
    seen = set()
    for number, problem in enumerate(_drawn(op)):
        found = right(None, problem, problem.is_training)
        checks = []  # (output, value, what it should be, how far it may be off)
        if op == _OPS[0]:
            y = activated(
                _y(problem) + problem.values.get("side_input", 0), problem.activation_kind
            )
            checks = [("y", found["y"], y, 2.0**-40 * (1 + np.abs(y)))]
            if problem.is_training:
                mean = problem["x"].mean(_AXES)
                checks.append(("saved_mean", found["saved_mean"], mean, 2.0**-44))
        second = "x_backprop_grad" in problem.values
        for role, output in (_SECOND if second else _GRADIENTS).items() if not checks else ():
            direction = np.random.default_rng(number).standard_normal(problem[role].shape)
            loss = _loss_of_gradients if second else _loss
            want, error = _derivative(loss, problem, role, direction)
            terms = found[output] * direction
            # Few elements cross a place where the derivative jumps.
            jumps = problem.activation in ("HardSilu", "LeakyRelu")
            share = 2.0**-7 if jumps else 2.0**-36
            checks.append((output, terms.sum(), want, error + share * np.abs(terms).sum()))
        for output, value, want, allowed in checks:
            assert np.all(np.abs(value - want) <= allowed), (number, output)
            if np.any(np.abs(value * (1 + 2.0**-10) - want) > allowed):  # A wrong factor shows.
                seen.add((output, problem.is_training))
    outputs = ("y", "saved_mean") if op == _OPS[0] else (_SECOND if second else _GRADIENTS).values()
    assert len(seen) == 2 * len(outputs) - (op == _OPS[0]), seen
