"""The forward ops are judged like the gradients: right answers pass, every fault is caught, what
counts as evidence fails wrong-on-purpose answers; what a built-in leaves unwritten is not compared.
"""

import dataclasses
import math

import numpy as np
import pytest
from judged_faults import STRICT, Filled, Judged

from tf_bn_ops import spec
from tf_bn_ops.conformance import runner
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.batch_norm import OUTPUTS, formula
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.conformance.verdict.settings import Settings

COMBOS = generate.combinations(["FusedBatchNormV3", "FusedBatchNormEx"])
CASES = [c for c in generate.generate(600, 1, COMBOS) if 0 < math.prod(c.shape) < 5_000]


def _right(case, problem, is_training=None):
    """The outputs by the formula in a wider type, rounded once."""
    read = {role for role in problem.values if problem[role].size}
    values = {role: problem.wide(role, np.float64) for role in problem.values}
    zeros = np.zeros(problem.view[1])
    values |= {role: zeros for role in ("mean", "variance") if role not in read}
    values |= {"epsilon": problem.epsilon, "activation_mode": problem.activation}
    values["exponential_avg_factor"] = problem.exponential_avg_factor
    values["bessel_correction"] = problem.bessel_correction
    training = case.is_training if is_training is None else is_training
    with np.errstate(all="ignore"):
        found = formula(np, values, (0, 2), (1, -1, 1), training)
        return {role: problem.type_of(role).store(found[role]) for role in OUTPUTS}


def _changed(role, change):
    """A fault that changes an input, where there is one."""

    def fault(case, problem):
        changed = problem.copy()
        if role in problem.values:
            with np.errstate(all="ignore"):
                changed[role] = change(problem[role]).astype(problem[role].dtype)
        return _right(case, changed)

    return fault


def _with(**fields):
    """A fault that takes an attr for another."""
    return lambda case, problem: _right(case, dataclasses.replace(problem.copy(), **fields))


def _epsilon_doubled(case, problem):
    return _right(case, dataclasses.replace(problem.copy(), epsilon=2 * problem.epsilon))


def _factor_swapped(case, problem):
    swapped = 1 - problem.exponential_avg_factor
    return _right(case, dataclasses.replace(problem.copy(), exponential_avg_factor=swapped or 1.0))


def _output(role, change):
    """A fault that changes an output."""

    def fault(case, problem):
        outputs = _right(case, problem)
        with np.errstate(all="ignore"):
            outputs[role] = change(outputs, problem).astype(outputs[role].dtype)
        return outputs

    return fault


def _unbiased(outputs, problem):
    count = problem["x"].size // max(problem.view[1], 1)
    factor = count / max(count - 1, 1) if problem.is_training else 1
    return outputs["saved_variance"] * np.float64(factor)


FAULTS = {
    "other mode": lambda case, problem: _right(case, problem, not case.is_training),
    "epsilon doubled": _epsilon_doubled,
    "scale ignored": _changed("scale", np.ones_like),
    "offset of the neighbor": _changed("offset", lambda a: np.roll(a, 1)),
    "side input ignored": _changed("side_input", np.zeros_like),
    "activation ignored": _with(activation="Identity"),
    "clamped at 6 without being asked": _with(activation="Relu6"),
    "Bessel's correction ignored": _with(bessel_correction=False),
    "factor ignored": _with(exponential_avg_factor=1.0),
    "factor swapped": _factor_swapped,
    "saved variance unbiased": _output("saved_variance", _unbiased),
    "saved mean a few ulp off": _output("saved_mean", lambda o, p: o["saved_mean"] * (1 + 2**-20)),
    "means swapped": _output("saved_mean", lambda o, p: o["batch_mean"]),
    "identity as y": _output("y", lambda o, p: p["x"]),
    "zeros": lambda case, problem: {r: np.zeros_like(a) for r, a in _right(case, problem).items()},
}


def _answer(outputs, case):
    nothing = np.zeros(0, np.float32)
    outputs = {**outputs, "placeholder": nothing, "forward_coefficients": nothing}
    shapes = {
        spec.VIEW: case.shape,
        spec.CHANNEL: (-1,),
        spec.OPAQUE: (0,),
        spec.PLACEHOLDER: (0,),
    }
    return Answer([outputs[arg.role].reshape(shapes[arg.kind]) for arg in case.spec.outputs])


JUDGED = Judged(_right, FAULTS, OUTPUTS, _answer)


@pytest.fixture(scope="module")
def filled():
    return [Filled.of(case) for case in CASES]


def test_the_formula_in_a_wider_type_passes(filled):
    JUDGED.assert_right_answers_pass(filled)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault, filled):
    JUDGED.assert_caught(fault, filled)


@pytest.mark.parametrize("wrong", ["zeros", "identity as y", "saved variance unbiased"])
def test_cases_that_count_as_evidence_fail_what_they_are_evidence_against(wrong, filled):
    roles = {"identity as y": ["y"], "saved variance unbiased": ["saved_variance"]}
    # Frozen, the saved variance is what was given.
    in_training = [one for one in filled if one.case.is_training]
    cases = in_training if "unbiased" in wrong else filled
    counted = JUDGED.evidence_against(wrong, roles.get(wrong, OUTPUTS), cases)
    assert min(counted.values()) > len(filled) / 6


def _case(text):
    return Filled.of(generate.parse(text))


def test_where_the_variance_cancels_any_number_may_do_but_not_nan():
    """XLA's mean(x^2) - mean(x)^2 at mean 10^5, judged by the bounds of an honest float32."""
    case, inputs, problem = _case(
        "FusedBatchNormV3,float32,NHWC,4x8x8x2,training,huge_offset,batch,eps=0.001,eager,seed=5"
    )
    problem["x"][...] = np.float32(1e5) + problem["x"] - problem["x"].mean((0, 2), keepdims=True)
    right = _right(case, problem)
    for wrong, failures in ((0.5, 0), (np.nan, 1)):
        y = np.full_like(right["y"], wrong)
        answer = _answer({**right, "y": y}, case)
        result = judge(case, inputs, {"candidate": answer}, bounds.PROFILES["textbook"])
        assert len(result.failures) == failures


FROZEN = "FusedBatchNormV3,float32,NDHWC,2x2x2x2x3,frozen,normal,given,eps=0.001,eager,seed=5"


@pytest.mark.parametrize(("path", "failures"), [("eigen", 0), ("onednn", 0), ("candidate", 1)])
def test_an_output_that_a_built_in_leaves_unwritten_is_not_compared(path, failures):
    """Whatever it holds, the verdict is the same; of any other candidate it has to be right."""
    case, inputs, problem = _case(FROZEN)
    for held in (0.0, np.nan, 77.0):
        outputs = {**_right(case, problem), "saved_mean": np.full(3, held, np.float32)}
        settings = Settings(STRICT, divergences.Register.load(), path)
        result = runner._conclude(case, inputs, {"candidate": _answer(outputs, case)}, settings)
        wrong = [failure for failure in result.failures if "saved_mean" in failure]
        assert len(wrong) == failures


def test_a_listed_wrong_value_is_a_note_of_the_built_in_alone():
    case, inputs, problem = _case(FROZEN.replace("2x2x2x2x3", "0x2x2x2x3"))
    outputs = _right(case, problem)
    outputs["batch_mean"] = np.full(3, np.nan, np.float32)
    for path in ("eigen", "candidate"):
        settings = Settings(STRICT, divergences.Register.load(), path)
        result = runner._conclude(case, inputs, {"candidate": _answer(outputs, case)}, settings)
        wrong = [failure for failure in result.failures if "batch_mean" in failure]
        assert len(wrong) == (path == "candidate")
        assert any("known divergence" in note for note in result.notes) == (path == "eigen")
