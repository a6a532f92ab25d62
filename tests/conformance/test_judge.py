"""The verdict of any formula: right answers pass, every fault is caught, what counts as evidence
fails wrong-on-purpose answers. Then structure, bounds, divergences, and what is special to one.

Promised: right kernels pass and every fault is caught, for each formula; cases that count as
evidence fail the answers that are wrong on purpose; most cases are evidence, for every output; a
divergence that is not listed fails, and so does an entry that no case shows.
"""

import dataclasses
import itertools
import math

import numpy as np
import numpy_kernels
import pytest
import rare_faults
from judged_faults import FORMULAS, STRICT, Filled, Judged, answer, right
from numpy_kernels import fill, first_order_cases

from tf_bn_ops import spec
from tf_bn_ops.conformance import runner
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution import implementations
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models import (
    bounds,
    formula_models,
    oracle,
)
from tf_bn_ops.conformance.models.batch_norm_grad import OUTPUTS
from tf_bn_ops.conformance.models.inputs import WHOLE_LAYER
from tf_bn_ops.conformance.reports import record
from tf_bn_ops.conformance.verdict import divergences, judge
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness import problems
from tf_bn_ops.harness.problems import IDENTITY, RELU, RELU6, Inputs
from tf_bn_ops.spec import DTYPES, SMOOTH_ACTIVATIONS
from tf_bn_ops.spec.ops import NUM_FORWARD_COEFFICIENTS as ROWS

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


# How many of the cases of a run would fail an answer that is wrong on purpose: in %, at least. Half
# of the elements of a y that a ReLU has clamped are 0, as they are in many a wrong one.
EVIDENCE = {("batch_norm_elemt", "y"): 20, ("batch_norm_add", "y"): 45}


@pytest.mark.parametrize("formula", spec.ops.FORMULAS)
def test_most_cases_of_a_run_are_evidence_for_every_output(formula):
    """The first draws of an op's run, without its large cases, which take minutes here."""
    found: dict[str, list[bool]] = {}
    for one in Judged([op.name for op in spec.of_formula(formula)], {}, 400).filled:
        result = judge.judge(
            one.case, one.inputs, {"candidate": answer(right(one.case, one.problem), one)}, STRICT
        )
        for role, holds in result.evidence.items():
            found.setdefault(role, []).append(holds)
    least = {role: EVIDENCE.get((formula, role), 60) for role in found}
    shares = {role: round(100 * float(np.mean(held))) for role, held in found.items()}
    assert all(shares[role] >= least[role] for role in found), shares
    assert min(map(len, found.values())) > 40


@pytest.mark.parametrize("given", ["NaN", "nothing"])
def test_what_an_empty_tensor_gives_stands_in_the_failure(given):
    case = generate.parse(
        "FusedBatchNormGradV2,float32,NHWC,0x2x3x4,training,normal,given,eps=0.1,eager,seed=1"
    )
    right = numpy_kernels.answer(numpy_kernels.Kernel, case, fill(case).values)
    wrong = Answer(error="InvalidArgumentError: x is empty")
    if given == "NaN":
        outputs = [right.outputs[0], right.outputs[1] * np.nan, *right.outputs[2:]]
        wrong = Answer(outputs)
    result = judge.judge(case, fill(case), {"candidate": wrong}, STRICT)
    (text,) = result.failures or map(str, result.paths["candidate"].disagreements)
    assert "(x is empty: sums, and so the gradients of vectors, are 0; " in text
    assert not judge.judge(case, fill(case), {"candidate": right}, STRICT).failures


# ---- First-order gradients -----------------------------------------------------------------------

# The default run, without its few large cases: 4 of 5 of it, in a second or two.
CASES = [c for c in first_order_cases(1600, 1) if math.prod(c.shape) < 20_000]


def _judge(kernel, case, given, profile=STRICT):
    answers = {"candidate": numpy_kernels.answer(kernel, case, given.values)}
    return judge.judge(case, given, answers, profile)


def test_a_kernel_that_takes_the_mean_as_given_is_judged_by_it():
    """A foreign one; of this library's ops the same answers are wrong, as they do not use what the
    forward op kept."""
    whole = [c for c in CASES if c.kind == WHOLE_LAYER and c.is_training and c.op[-2:] == "V3"]
    failed = {"given": 0, "kept": 0}
    for case in whole:
        for what, given in (("given", fill(case)), ("kept", formula_models.fill(case))):
            failed[what] += bool(_judge(numpy_kernels.Kernel, case, given).failures)
    assert not failed["given"] and failed["kept"] > len(whole) / 2 > 5, (failed, len(whole))


def test_textbook_lets_a_naive_float32_sum_pass_and_strict_does_not():
    of = FORMULAS["first_order"]
    naive = of.faults["AccumulatedInFloat32"]
    failed = [[of.judge(naive, one, p).failures != [] for one in of.filled] for p in of.profiles]
    assert np.mean(failed[0]) > 0.1 and not any(failed[1])


def _case(text, **values):
    case = generate.parse(text)
    given = fill(case)
    replaced = {
        role: np.broadcast_to(np.asarray(v, given.values[role].dtype), given.values[role].shape)
        for role, v in values.items()
    }
    return case, Inputs({**given.values, **replaced}, given.exact)


V2 = "FusedBatchNormGradV2,float32,NHWC,"


OF_SUM_ALONE = {"x_backprop": False, "scale_backprop": False, "offset_backprop": True}


@pytest.mark.parametrize(
    ("name", "values", "evidence"),
    [
        (
            V2 + "2x3x4x5,training,normal,batch,eps=0.1,eager,seed=1",
            {"y_backprop": 0},
            dict.fromkeys(OUTPUTS, False),
        ),
        # A constant gradient in training: zero is a right answer. So it is in nGraph's own test.
        (
            V2 + "2x4x4x5,training,exact,batch,eps=0.25,eager,seed=1",
            {"y_backprop": 1, "x": np.tile([1, -1], 16).reshape(2, 4, 4, 1), "mean": 0},
            OF_SUM_ALONE,
        ),
        (
            "BatchNormTrainingBackprop,float32,NCHW,1x2x2x2,training,normal,batch,eps=0.001,eager,"
            "seed=1",
            {
                "y_backprop": 1, "x": np.arange(8).reshape(1, 2, 2, 2),
                "mean": [1.5, 5.5], "variance": [1.25, 1.25],
            },
            OF_SUM_ALONE,
        ),
        # One element has no gradient in training.
        (
            V2 + "1x1x1x3,training,normal,batch,eps=0.1,eager,seed=1", {},
            {"x_backprop": False},
        ),
        # Without a mean and without correlation to x: training equals frozen.
        (
            V2 + "1x2x2x1,training,exact,batch,eps=0.25,eager,seed=1",
            {
                "y_backprop": np.reshape([1, 1, -1, -1], (1, 2, 2, 1)),
                "x": np.reshape([1, -1, 1, -1], (1, 2, 2, 1)),
                "mean": 0, "scale": 0.5, "variance": 0.75,
            },
            {"x_backprop": False},
        ),
    ],
)  # fmt: skip
def test_what_a_wrong_answer_would_pass_is_no_evidence(name, values, evidence):
    result = _judge(numpy_kernels.Kernel, *_case(name, **values))
    assert not result.failures
    assert result.evidence | evidence == result.evidence


F64 = "BatchNormTrainingBackprop,float64,NCW,7x3x11,training,normal,batch,eps={},eager,seed=4"


def test_close_epsilons_are_told_apart_in_float64():
    """1e-9 and 1.1e-9 differ in the last digits only; each is wrong for the other."""
    answers, given = {}, {}
    for epsilon in ("1e-09", "1.1e-09"):
        case = generate.parse(F64.format(epsilon))
        given[epsilon] = fill(case)
        answers[epsilon] = numpy_kernels.answer(numpy_kernels.Kernel, case, given[epsilon].values)
    one, other = answers.values()
    for role, a, b in zip(OUTPUTS[:2], one.outputs, other.outputs, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9, err_msg=role)
        assert np.mean(a != b) > 0.9
    for epsilon in answers:
        for answered in answers:
            result = judge.judge(
                generate.parse(F64.format(epsilon)), given[epsilon],
                {"candidate": answers[answered]}, STRICT,
            )  # fmt: skip
            assert bool(result.failures) == (answered != epsilon)


@pytest.mark.parametrize("shape", [(3, 5, 2), (100, 3, 700), (70_000, 2, 1)])
def test_float64_bound_is_below_1e_13_of_the_condition(shape):
    """Of sum |terms| for the sums; of the magnitudes that an element is made of."""
    text = f"BatchNormTrainingBackprop,float64,NCW,{'x'.join(map(str, shape))},training"
    for kind in ("normal", "large_offset", "large_gradient_mean", "wide", "constant_input"):
        case = generate.parse(f"{text},{kind},given,eps=1e-09,eager,seed=4")
        given = fill(case)
        right = oracle.Oracle(problems.of_call(case, given))
        dtype = DTYPES["float64"]
        b = bounds.Bounds(STRICT, right, dtype, dtype)
        condition = right.sums.dy_abs
        assert np.all(b.offset_backprop < 1e-13 * condition)
        assert np.all(b.scale_backprop < 1e-13 * right.rstd * right.sums.dy_xmu_abs)
        n = right.sums.n
        for chunk in right.chunks():
            slope = (right.rstd**2 * right.sums.dy_xmu_abs / n)[:, None]
            terms = np.abs(chunk.y_backprop) + (condition / n)[:, None] + np.abs(chunk.xmu) * slope
            condition_of_elements = np.abs(right.factor[:, None]) * terms
            assert np.all(b.x_backprop(chunk) < 1e-13 * condition_of_elements + 1e-300)


def test_structure_is_held_to_the_contract():
    case, given = _case(V2 + "2x3x4x5,training,normal,batch,eps=0.1,eager,seed=1")
    right = list(numpy_kernels.answer(numpy_kernels.Kernel, case, given.values).outputs)

    def whats(outputs):
        return sorted({d.what for d in judge.structure(judge.outputs_of(case), Answer(outputs))})

    assert whats(right) == []
    assert whats(right[:4]) == ["count"]
    scalar = np.zeros((), np.float32)
    assert whats([*right[:3], scalar, scalar]) == ["shape:placeholder"]
    assert whats([right[0].reshape(2, 12, 5), *right[1:]]) == ["shape:x_backprop"]
    assert whats([right[0], right[1].astype(np.float64), *right[2:]]) == ["dtype:scale_backprop"]
    assert [d.what for d in judge.structure(judge.outputs_of(case), Answer(error="x"))] == ["error"]
    assert [d.what for d in judge.structure(judge.outputs_of(case), Answer(crash="x"))] == ["crash"]


def test_infinity_is_right_only_beyond_the_largest_number():
    case, given = _case(
        "FusedBatchNormGradV2,half,NHWC,1x1x4x1,frozen,exact,given,eps=0.25,eager,seed=1",
        y_backprop=np.array([60000, 30000, 1, -60000], np.float16).reshape(1, 1, 4, 1),
        scale=2, variance=0.75,
    )  # fmt: skip
    answer = numpy_kernels.answer(numpy_kernels.Kernel, case, given.values)
    given = Inputs(given.values)

    def failures(outputs):
        return judge.judge(case, given, {"candidate": Answer(outputs)}, STRICT).failures

    assert not failures(answer.outputs)
    assert np.isinf(answer.outputs[0]).ravel().tolist() == [True, False, False, True]
    for place, value in ((0, -np.inf), (0, np.nan), (0, 65504), (1, np.inf), (2, np.nan)):
        wrong = answer.outputs[0].copy()
        wrong.reshape(-1)[place] = value
        assert failures([wrong, *answer.outputs[1:]]), (place, value)


def test_error_in_ulp_is_none_where_the_bound_is_infinite():
    """Products overflow on the way, and anything is right."""
    text = "BatchNormTrainingBackprop,float64,NCW,4x4x8,training,overflow,given,eps=0.001,eager"
    result = _judge(numpy_kernels.Kernel, *_case(text + ",seed=1181382390"))
    assert not result.failures
    assert all(error.ulp < 100 for error in result.paths["candidate"].errors.values())


def test_bound_does_not_grow_with_the_number_of_elements():
    """Twice the elements, twice the condition, the same bound in units of it."""
    ratios = []
    for rows in (64, 4096):
        rng = np.random.default_rng(0)
        values = {r: rng.standard_normal((rows, 1, 1, 1)) for r in ("x", "y_backprop")}
        values |= {r: np.ones(1) for r in ("scale", "mean", "variance")}
        values = {r: a.astype(np.float32) for r, a in values.items()}
        right = oracle.Oracle(problems.of_tensors(values, "NHWC", 0.1, True))
        dtype = DTYPES["float32"]
        b = bounds.Bounds(STRICT, right, dtype, dtype)
        ratios.append(b.scale_backprop[0] / (right.rstd[0] * right.sums.dy_xmu_abs[0]))
        assert b.offset_backprop[0] < 2e-7 * right.sums.dy_abs[0]
    assert ratios[1] < 2 * ratios[0] + 1e-6


def _run(register, whose, runners=None):
    settings = Settings(STRICT, register)
    with_placeholders = [c for c in CASES if len(c.spec.outputs) == 5]
    return list(runner.run(with_placeholders[:whose], fill, runners or [_Reference()], settings))


class _Reference(numpy_kernels.KernelRunner):
    """A reference whose placeholders are scalars, as oneDNN's are."""

    name = "onednn"

    def collect(self):
        outputs = super().collect().outputs
        scalar = np.zeros((), np.float32)
        return Answer([*outputs[:3], scalar, scalar])


def _divergence(**changes):
    fields = {
        "name": "scalars", "what": "shape:placeholder", "reason": "so it is",
        "when": {"path": ["onednn"]}, **changes,
    }  # fmt: skip
    return divergences.Divergence(**fields)


def _stale(register):
    run = {"cases": [], "total": 0, "divergences": record.of_divergences(register)}
    return bool(record.stale(run))


def test_listed_divergence_is_no_failure():
    register = divergences.Register([_divergence()])
    assert not any(result.failures for result in _run(register, 20))
    assert register.entries[0].shown == register.entries[0].covered == 20
    assert not _stale(register)


def test_divergence_covers_no_case_whose_op_lacks_the_output():
    case = generate.parse(F64.format("0.1"))
    assert not _divergence().covers("onednn", case)
    assert _divergence(what="shape:x_backprop").covers("onednn", case)


def test_unlisted_divergence_fails():
    register = divergences.Register([_divergence(when={"path": ["eigen"]})])
    results = _run(register, 3)
    assert all("unlisted divergence" in r.failures[0] for r in results)
    assert not _stale(register)  # Its path was not run.


@pytest.mark.parametrize(
    ("changes", "stale"),
    [
        ({"what": "error"}, True),
        ({"detail": "has shape [7]"}, True),
        ({"what": "error", "may_hide": True}, False),
        ({"what": "error", "when": {"path": ["onednn"], "rank": [9]}}, False),
    ],
)
def test_entry_that_never_shows_is_stale(changes, stale):
    register = divergences.Register([_divergence(**changes)])
    _run(register, 3)
    assert _stale(register) == stale


def test_shipped_list_is_readable():
    entries = divergences.Register.load().entries
    assert entries and all(entry.name and entry.reason and entry.when for entry in entries)
    assert all(isinstance(some, list) for entry in entries for some in entry.when.values())
    for entry in entries:
        entry.covers("eigen", CASES[0])  # Of conditions that there are.


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
        result = judge.judge(
            one.case, one.inputs, {"candidate": given}, bounds.PROFILES["textbook"]
        )
        assert len(result.failures) == failures


FROZEN = "FusedBatchNormV3,float32,NDHWC,{},frozen,normal,given,eps=0.001,eager,seed=5"


def _concluded(shape, path, role, held):
    """A frozen case with another output, judged as on a path of the built-in."""
    one = Filled.of(generate.parse(FROZEN.format(shape)))
    outputs = {**right(one.case, one.problem), role: np.full(3, held, np.float32)}
    candidate = dataclasses.replace(implementations.own(), path=path)
    settings = Settings(STRICT, divergences.Register.load(), candidate)
    result = runner._conclude(one.case, one.inputs, {"candidate": answer(outputs, one)}, settings)
    name = result.name_of(role)
    return [failure for failure in result.failures if name in failure], result.notes


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
        has_coefficients = shape == (ROWS, one.inputs.values["scale"].size)
        attrs = (one.inputs.attrs[name] for name in ("activation_mode", "num_side_inputs"))
        seen.add((*attrs, has_coefficients))
    activations = [IDENTITY, RELU, RELU6]
    assert seen >= {
        *itertools.product(activations, (0, 1), (False,)),
        *itertools.product(activations[1:], (0,), (True,)),
        *itertools.product(SMOOTH_ACTIVATIONS, (0, 1), (False, True)),
    }


# ---- The second order ----------------------------------------------------------------------------


def test_statistics_have_either_type():
    seen = {(one.case.dtype, one.case.statistics_dtype) for one in FORMULAS["second_order"].filled}
    assert seen == {
        ("float64", "float64"), ("float32", "float32"), ("half", "float32"), ("half", "half"),
        ("bfloat16", "float32"), ("bfloat16", "bfloat16"),
    }  # fmt: skip
