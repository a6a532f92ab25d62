"""The gradient behind an activation is judged like the others: right answers pass, wrong masks are
caught, what counts as evidence fails wrong-on-purpose answers, and y is what the forward gives."""

import itertools
import math

import numpy as np
import pytest

from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models import batch_norm_grad_ex_inputs, bounds
from tf_bn_ops.conformance.models.batch_norm import activated
from tf_bn_ops.conformance.models.batch_norm_grad_ex import gradients_behind_an_activation
from tf_bn_ops.conformance.models.formula_models import fill
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.harness import problems
from tf_bn_ops.harness.problems import IDENTITY, RELU6

STRICT = bounds.PROFILES["strict"]
COMBOS = generate.combinations(["FusedBatchNormGradEx"])
CASES = [c for c in generate.generate(260, 1, COMBOS) if 0 < math.prod(c.shape) < 5_000]


def _problem(case, inputs):
    return problems.of_call(case, inputs)


def _right(problem, side_from=None, **changed):
    """The outputs by the formula in float64, rounded once; of changed inputs."""
    values = {
        role: problem.wide(role, np.float64)
        for role in problem.values
        if role != "forward_coefficients" or len(problem[role].shape) == 2
    }
    values |= {"epsilon": problem.epsilon, "activation_mode": problem.activation, **changed}
    with np.errstate(all="ignore"):
        found = gradients_behind_an_activation(np, values, (0, 2), (1, -1, 1), problem.is_training)
        if side_from is not None:
            found["side_input_backprop"] = values[side_from]
        return {role: problem.type_of(role).store(array) for role, array in found.items()}


def _no_upper_bound(problem):
    y = problem.wide("y", np.float64)
    return _right(problem, y=np.where(y >= 6, 1, y))


FAULTS = {
    "unmasked": lambda p: _right(p, activation_mode=IDENTITY),
    "mask from x": lambda p: _right(p, y=p.wide("x", np.float64)),
    "mask from the gradient": lambda p: _right(p, y=p.wide("y_backprop", np.float64)),
    ">= for >": lambda p: _right(p, y=np.where(p.wide("y", np.float64) == 0, 1, p["y"])),
    "ReLU6 as ReLU": _no_upper_bound,
    "NaN passes": lambda p: _right(p, y=np.nan_to_num(p.wide("y", np.float64), nan=1.0)),
    "side gradient unmasked": lambda p: _right(p, side_from="y_backprop"),
}


def _answer(case, inputs, outputs):
    placeholder = np.zeros(0, np.float32)
    arrays = [outputs.get(arg.role, placeholder) for arg in case.spec.outputs_with(inputs.attrs)]
    shaped = [a.reshape(case.shape) if a.ndim == 3 else a for a in arrays]
    return {"candidate": Answer(shaped)}


def _failures(case, inputs, outputs):
    return judge(case, inputs, _answer(case, inputs, outputs), STRICT).failures


@pytest.mark.parametrize("case", CASES[:120], ids=str)
def test_right_answers_pass(case):
    inputs = fill(case)
    assert not _failures(case, inputs, _right(_problem(case, inputs)))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_caught(fault):
    """Before 60 cases of the default run are over."""
    for case in CASES[:60]:
        inputs = fill(case)
        if _failures(case, inputs, FAULTS[fault](_problem(case, inputs))):
            return
    pytest.fail(f"{fault} passes")


def test_all_variants_come_up():
    """Activations with and without side input; with and without coefficients."""
    seen = set()
    for case in CASES:
        inputs = fill(case)
        shape = inputs.values["forward_coefficients"].shape
        has_coefficients = shape == (5, inputs.values["scale"].size)
        seen.add((*inputs.attrs.values(), has_coefficients))
    activations = problems.ACTIVATIONS
    assert seen >= {
        *itertools.product(activations, (0, 1), (False,)),
        *itertools.product(activations[1:], (0,), (True,)),
    }


def test_with_coefficients_y_is_what_they_give():
    """So a kernel may take the mask from x or from y."""
    checked = 0
    for case in CASES:
        inputs = fill(case)
        problem = _problem(case, inputs)
        k = inputs.values["forward_coefficients"]
        by_others = problem.activation == problems.IDENTITY or problem.num_side_inputs
        if k.shape != (5, problem.view[1]) or by_others:
            continue
        v = batch_norm_grad_ex_inputs.before_activation(
            problem["x"], k, problem["offset"], problem.dtype
        )
        with np.errstate(over="ignore"):
            y = problem.dtype.store(activated(v, problem.activation))
        np.testing.assert_array_equal(y, problem["y"])
        checked += 1
    assert checked > 20


def test_masks_stumble_over_the_kink():
    """Exact zeros, sixes and NaN under gradients that are not zero, in many cases."""
    found = dict.fromkeys((0.0, 6.0, math.nan), 0)
    for case in CASES:
        inputs = fill(case)
        y = inputs.values["y"].astype(np.float64)
        passing = inputs.values["y_backprop"].astype(np.float64) != 0
        for value in found:
            hit = np.isnan(y) if math.isnan(value) else y == value
            is_read = inputs.attrs["activation_mode"] == RELU6
            found[value] += bool((hit & passing).any() and is_read)
    assert min(found.values()) > 5


def test_evidence():
    """Most cases of each output fail all wrong-on-purpose answers."""
    counts: dict[str, list[bool]] = {}
    for case in CASES:
        inputs = fill(case)
        answers = _answer(case, inputs, _right(_problem(case, inputs)))
        for role, holds in judge(case, inputs, answers, STRICT).evidence.items():
            if role != "side_input_backprop" or inputs.attrs["num_side_inputs"]:
                counts.setdefault(role, []).append(holds)
    for role, held in counts.items():
        assert np.mean(held) > 0.5, role
