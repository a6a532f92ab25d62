"""Relations between a candidate's own answers: right kernels have them, wrong ones do not, and no
right answer is needed to tell."""

import dataclasses
import functools

import core_answer
import numpy as np
import numpy_kernels
import pytest
from numpy_kernels import FAULTS, FIRST_ORDER, Kernel, fault, wrong_inputs, wrong_outputs

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.cases.relations import table
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models import bounds, formula_models
from tf_bn_ops.conformance.verdict.relation_judge import judge_relation

STRICT = bounds.PROFILES["strict"]
# Faults below any bound that does not know the right answer, and those of numbers that these cases
# do not have: the oracle has to see them.
FOR_THE_ORACLE = {
    "EpsilonRoundedToFloat32", "MeanRoundedToFloat32", "NanSwallowed", "SubnormalHalfFlushed",
    "TruncatedInsteadOfRounded",
}  # fmt: skip


def _of(kernel):
    return lambda case, inputs: numpy_kernels.answer(kernel, case, inputs.values)


def _judged(case, op):
    members = table.calls(case, table.fill(case))
    return judge_relation(case, members, [op(*member) for member in members], STRICT)


@functools.cache
def _first_order(name, count=12):
    """Cases of one relation."""
    cases = table.generate(12 * count, 1, FIRST_ORDER)
    return [case for case in cases if case.kind == f"relation/{name}"][:count]


def _caught(name, op):
    return any(_judged(case, op).failures for case in _first_order(name))


def test_kernels_of_this_library_have_all_relations_in_every_op():
    combos = [c for c in generate.combinations() if spec.OPS[c[0]].formula in spec.ops.FORMULAS]
    cases = list(table.generate(200, 5, combos))
    results = [_judged(case, core_answer.answer) for case in cases]
    assert [f"{r.case}: {r.failures[0]}" for r in results if r.failures] == []
    assert {case.kind for case in cases} == {f"relation/{name}" for name in table.RELATIONS}
    # Those that are given sums or statistics of other batches have some relations or none.
    whole = {op for op, *_ in combos if spec.OPS[op].formula not in spec.ops.PARTS}
    assert {case.op for case in cases} >= whole
    # Zeros would have most relations, too: the outputs must be something else.
    assert sum(all(r.evidence.values()) for r in results) > 0.95 * len(results)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_wrong_kernels_are_caught_without_an_oracle(fault):
    cases = table.generate(80, 1, FIRST_ORDER)
    caught = any(_judged(case, _of(fault)).failures for case in cases)
    assert caught == (fault.__name__ not in FOR_THE_ORACLE)


def _last_as_first(k, x, scale, offset):
    """The last channel of an even number is taken for the first."""
    if len(scale) % 2 == 0:
        x[:, -1] = x[:, 0]
    return x, scale, offset


def _rows_of_one_layout(k):
    """Channels-last is right, channels-first has one row too few."""
    return Kernel.rows(k) - (k.x.shape[2] > 1 and k.case.layout.startswith("NC"))


# The gradient is clipped, as a loss scale that is too large makes it.
SATURATES = wrong_inputs(lambda k: k.take("dy", np.clip(k.dy, -4, 4)))


@pytest.mark.parametrize(
    ("relation", "fault"),
    [
        ("power_of_two", SATURATES),
        ("sum", SATURATES),
        ("channel_order", wrong_outputs(_last_as_first)),
        ("channel_split", numpy_kernels.MissedVectorTail),
        ("batch_order", numpy_kernels.MissedTailOfSums),
        ("layout", fault(rows=_rows_of_one_layout)),
        ("finite_differences", numpy_kernels.ScaleSignFlip),
    ],
)
def test_every_relation_finds_what_it_is_for(relation, fault):
    assert _caught(relation, _of(fault))
    assert not _caught(relation, _of(Kernel))


def test_the_right_answer_is_never_looked_at(monkeypatch):
    """An oracle with the same wrong sign, which lets a wrong kernel pass, changes no verdict."""
    cases = list(table.generate(30, 2, FIRST_ORDER))
    wrong = _of(numpy_kernels.SignFlip)
    before = [(_judged(c, core_answer.answer).failures, _judged(c, wrong).failures) for c in cases]
    formula = spec.ops.BATCH_NORM_GRAD
    model = formula_models.MODELS[formula]

    def unknown(problem, profile):
        for part in model.expected(problem, profile):
            yield dataclasses.replace(part, value=np.full_like(part.value, np.nan))

    blind = dataclasses.replace(model, expected=unknown)
    monkeypatch.setitem(formula_models.MODELS, formula, blind)
    after = [(_judged(c, core_answer.answer).failures, _judged(c, wrong).failures) for c in cases]
    assert after == before
    assert any(failures for _, failures in after)


def test_second_order_with_a_factor_wrong_is_seen_by_finite_differences():
    """MIOpen's frozen kernels had a wrong formula, and so had their oracle."""

    def wrong(case, inputs):
        answer = core_answer.answer(case, inputs)
        return Answer([answer.outputs[0], answer.outputs[1], 2 * answer.outputs[2]])

    combos = generate.combinations(["FusedBatchNormGradGrad"])
    cases = [c for c in table.generate(60, 3, combos) if c.kind == "relation/finite_differences"]
    assert cases
    for case in cases:
        assert _judged(case, core_answer.answer).failures == []
        assert any("scale_grad" in f for f in _judged(case, wrong).failures), str(case)


def test_cases_are_the_same_each_time_and_are_parsed_back():
    first, second = (list(table.generate(50, 4, generate.combinations())) for _ in range(2))
    assert first == second
    assert all(generate.parse(str(case)) == case for case in first)
    assert not any(case.compares_values for case in first)


def test_ops_with_roles_that_are_not_known_have_no_relation():
    """A relation that does not apply must not be claimed: an op of the family may take sums."""
    op = spec.OPS["FusedBatchNormGradV3"]
    inputs = (*op.inputs, spec.op_spec.Arg("sum_dy", "sum_dy", spec.CHANNEL))
    assert table.kinds(op)
    assert table.kinds(dataclasses.replace(op, inputs=inputs)) == ()


def test_wrong_shape_is_a_departure_from_the_contract():
    def short(case, inputs):
        answer = core_answer.answer(case, inputs)
        return Answer([answer.outputs[0][:1], *answer.outputs[1:]])

    result = _judged(_first_order("sum")[0], short)
    assert [d.what for d in result.paths["candidate"].disagreements] == ["shape:x_backprop"]
