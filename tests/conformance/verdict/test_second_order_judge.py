"""The second order is judged like the first: right answers pass, every fault is caught, and what
counts as evidence fails wrong-on-purpose answers."""

import math

import numpy as np
import pytest
from judged_faults import Filled, Judged

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models.batch_norm_grad_grad import OUTPUTS, formula

COMBOS = generate.combinations(["FusedBatchNormGradGrad"])
CASES = [c for c in generate.generate(400, 1, COMBOS) if 0 < math.prod(c.shape) < 5_000]
TENSORS = ("x_backprop_grad", "y_backprop", "x")


def _right(case, problem, is_training=None):
    """The outputs by the formula in a wider type, rounded once."""
    wide = np.longdouble if case.dtype == "float64" else np.float64
    values = {role: problem.wide(role, wide) for role in problem.values}
    values["epsilon"] = wide(problem.epsilon)
    training = case.is_training if is_training is None else is_training
    with np.errstate(all="ignore"):
        found = formula(np, values, (0, 2), (1, -1, 1), training)
        return {role: problem.type_of(role).store(found[role]) for role in OUTPUTS}


def _changed(role, change):
    """A fault that changes an input."""

    def fault(case, problem):
        changed = problem.copy()
        with np.errstate(all="ignore"):
            changed[role] = change(problem[role]).astype(problem[role].dtype)
        return _right(case, changed)

    return fault


def _epsilon_doubled(case, problem):
    changed = problem.copy()
    changed.epsilon *= 2
    return _right(case, changed)


def _other_mode(case, problem):
    return _right(case, problem, not case.is_training)


def _output(role, change):
    """A fault that changes an output."""

    def fault(case, problem):
        outputs = _right(case, problem)
        with np.errstate(all="ignore"):
            outputs[role] = change(outputs[role], problem).astype(outputs[role].dtype)
        return outputs

    return fault


def _without_last(array):
    array = array.copy()
    array[-1:, :, -1:] = 0
    return array


FAULTS = {
    "other mode": _other_mode,
    "epsilon doubled": _epsilon_doubled,
    "scale ignored": _changed("scale", np.ones_like),
    "scale of the neighbor": _changed("scale", lambda a: np.roll(a, 1)),
    "scale_backprop_grad ignored": _changed("scale_backprop_grad", np.zeros_like),
    "offset_backprop_grad ignored": _changed("offset_backprop_grad", np.zeros_like),
    "x_backprop_grad negated": _changed("x_backprop_grad", np.negative),
    "last x_backprop_grad missed": _changed("x_backprop_grad", _without_last),
    "last y_backprop missed": _changed("y_backprop", _without_last),
    "y_backprop_grad negated": _output("y_backprop_grad", lambda a, p: -a),
    "x_grad negated": _output("x_grad", lambda a, p: -a),
    "identity as x_grad": _output("x_grad", lambda a, p: p["y_backprop"]),
    "identity as y_backprop_grad": _output("y_backprop_grad", lambda a, p: p["x_backprop_grad"]),
    "scale_grad a few ulp off": _output("scale_grad", lambda a, p: a * np.float64(1 + 2**-6)),
    "zeros": lambda case, problem: {r: np.zeros_like(a) for r, a in _right(case, problem).items()},
}


def _answer(outputs, case):
    return Answer(
        [
            outputs[arg.role].reshape(case.shape if arg.kind == spec.VIEW else (-1,))
            for arg in case.spec.outputs
        ]
    )


JUDGED = Judged(_right, FAULTS, OUTPUTS, _answer)


@pytest.fixture(scope="module")
def filled():
    return [Filled.of(case) for case in CASES]


def test_the_formula_in_a_wider_type_passes(filled):
    JUDGED.assert_right_answers_pass(filled)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault, filled):
    JUDGED.assert_caught(fault, filled)


@pytest.mark.parametrize("wrong", ["zeros", "identity as x_grad", "identity as y_backprop_grad"])
def test_cases_that_count_as_evidence_fail_what_they_are_evidence_against(wrong, filled):
    roles = [role for role in OUTPUTS if role in wrong] or OUTPUTS
    counted = JUDGED.evidence_against(wrong, roles, filled)
    assert min(counted.values()) > len(filled) / 2


def test_statistics_have_either_type():
    seen = {(case.dtype, case.statistics_dtype) for case in CASES}
    assert seen == {
        ("float64", "float64"), ("float32", "float32"), ("half", "float32"), ("half", "half"),
        ("bfloat16", "float32"), ("bfloat16", "bfloat16"),
    }  # fmt: skip
