"""Every formula is judged alike: right answers pass, every fault is caught, what counts as evidence
fails wrong-on-purpose answers. What is special to one follows.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import rare_faults
from judged_faults import FORMULAS, STRICT, Filled, answer, right

from tf_bn_ops.conformance import runner
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution import implementations
from tf_bn_ops.conformance.models import batch_norm_grad_ex_inputs, bounds
from tf_bn_ops.conformance.models.batch_norm import activated
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness.problems import IDENTITY, RELU, RELU6
from tf_bn_ops.spec import SMOOTH_ACTIVATIONS

JUDGED = {**FORMULAS, "rare faults": rare_faults.FIRST_ORDER}


@pytest.mark.parametrize("name", JUDGED)
def test_a_right_kernel_passes(name):
    of = JUDGED[name]
    for one, profile in itertools.product(of.filled, of.profiles):
        result = of.judge(of.right, one, profile)
        assert not result.failures, (str(one.case), profile.name, result.failures)


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, of in JUDGED.items() for fault in of.faults]
)
def test_fault_is_caught(name, fault):
    of = JUDGED[name]
    assert any(of.judge(of.faults[fault], one).failures for one in of.filled)


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, of in FORMULAS.items() for wrong in of.evidence]
)
def test_cases_that_count_as_evidence_fail_what_they_are_evidence_against(name, wrong):
    of = FORMULAS[name]
    assert min(of.evidence_against(wrong).values()) > of.share * len(of.filled)


# ---- The forward ops -----------------------------------------------------------------------------


def test_where_the_variance_cancels_any_number_may_do_but_not_nan():
    """XLA's mean(x^2) - mean(x)^2 at mean 10^5, judged by the bounds of an honest float32."""
    text = "FusedBatchNormV3,float32,NHWC,4x8x8x2,training,huge_offset,batch,eps=0.001,eager,seed=5"
    one = Filled.of(generate.parse(text))
    x = one.problem["x"]
    x[...] = np.float32(1e5) + x - x.mean((0, 2), keepdims=True)
    outputs = right(one.case, one.problem)
    for wrong, failures in ((0.5, 0), (np.nan, 1)):
        given = answer({**outputs, "y": np.full_like(outputs["y"], wrong)}, one)
        result = judge(one.case, one.inputs, {"candidate": given}, bounds.PROFILES["textbook"])
        assert len(result.failures) == failures


FROZEN = "FusedBatchNormV3,float32,NDHWC,{},frozen,normal,given,eps=0.001,eager,seed=5"


def _concluded(shape, path, role, held):
    """A frozen case with another output, judged as on a path of the built-in."""
    one = Filled.of(generate.parse(FROZEN.format(shape)))
    outputs = {**right(one.case, one.problem), role: np.full(3, held, np.float32)}
    candidate = dataclasses.replace(implementations.own(), path=path)
    settings = Settings(STRICT, divergences.Register.load(), candidate)
    result = runner._conclude(one.case, one.inputs, {"candidate": answer(outputs, one)}, settings)
    return [failure for failure in result.failures if role in failure], result.notes


@pytest.mark.parametrize(("path", "failures"), [("eigen", 0), ("onednn", 0), ("candidate", 1)])
def test_an_output_that_a_built_in_leaves_unwritten_is_not_compared(path, failures):
    """Whatever it holds, the verdict is the same; of any other candidate it has to be right."""
    for held in (0.0, np.nan, 77.0):
        wrong, _ = _concluded("2x2x2x2x3", path, "saved_mean", held)
        assert len(wrong) == failures


def test_a_listed_wrong_value_is_a_note_of_the_built_in_alone():
    for path in ("eigen", "candidate"):
        wrong, notes = _concluded("0x2x2x2x3", path, "batch_mean", np.nan)
        assert len(wrong) == (path == "candidate")
        assert any("known divergence" in note for note in notes) == (path == "eigen")


# ---- The gradient behind an activation -----------------------------------------------------------


def test_all_variants_come_up():
    """Activations with and without side input; with and without coefficients."""
    seen = set()
    for one in FORMULAS["behind_activation"].filled:
        shape = one.inputs.values["forward_coefficients"].shape
        has_coefficients = shape == (5, one.inputs.values["scale"].size)
        seen.add((*one.inputs.attrs.values(), has_coefficients))
    activations = [IDENTITY, RELU, RELU6]
    assert seen >= {
        *itertools.product(activations, (0, 1), (False,)),
        *itertools.product(activations[1:], (0,), (True,)),
        *itertools.product(SMOOTH_ACTIVATIONS, (0, 1), (False, True)),
    }


def test_with_coefficients_y_is_what_they_give():
    """So a kernel may take the mask from x or from y."""
    checked = 0
    for one in FORMULAS["behind_activation"].filled:
        problem, k = one.problem, one.inputs.values["forward_coefficients"]
        by_others = problem.activation == IDENTITY or problem.num_side_inputs
        by_others |= problem.activation in SMOOTH_ACTIVATIONS  # y is not read.
        if k.shape != (5, problem.view[1]) or by_others:
            continue
        v = batch_norm_grad_ex_inputs.before_activation(
            problem["x"], k, problem["offset"], problem.dtype
        )
        with np.errstate(over="ignore"):
            y = problem.dtype.store(activated(v, problem.activation))
        np.testing.assert_array_equal(y, problem["y"])
        checked += 1
    assert checked > 15


def test_masks_stumble_over_the_kink():
    """Exact zeros, sixes and NaN under gradients that are not zero, in many cases."""
    found = dict.fromkeys((0.0, 6.0, math.nan), 0)
    for one in FORMULAS["behind_activation"].filled:
        y = one.inputs.values["y"].astype(np.float64)
        passing = one.inputs.values["y_backprop"].astype(np.float64) != 0
        for value in found:
            hit = np.isnan(y) if math.isnan(value) else y == value
            is_read = one.inputs.attrs["activation_mode"] == RELU6
            found[value] += bool((hit & passing).any() and is_read)
    assert min(found.values()) > 5


def test_most_cases_with_a_side_input_are_evidence_for_its_gradient():
    of, held = FORMULAS["behind_activation"], []
    for one in of.filled:
        if one.problem.num_side_inputs:
            held.append(of.judge(right, one).evidence["side_input_backprop"])
    assert np.mean(held) > 0.5


# ---- The second order ----------------------------------------------------------------------------


def test_statistics_have_either_type():
    seen = {(one.case.dtype, one.case.statistics_dtype) for one in FORMULAS["second_order"].filled}
    assert seen == {
        ("float64", "float64"), ("float32", "float32"), ("half", "float32"), ("half", "half"),
        ("bfloat16", "float32"), ("bfloat16", "bfloat16"),
    }  # fmt: skip
