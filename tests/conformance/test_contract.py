"""Malformed calls (contract.py): what is asked, and how it is judged.

Promised: a malformed call has to end in the error of TensorFlow's Eigen path, of the same code, or,
without a twin, in a refusal; the default run has every kind of every op.
"""

import collections

import pytest

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import contract, generate
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.verdict import contract_judge

DEFAULT = list(contract.generate(160, 1, generate.combinations()))
NAMES = ["TfBnOps>FusedBatchNormGradV2", "FusedBatchNormGradV2"]


def _case(kind, op="FusedBatchNormGradV2", layout="NHWC", shape="2x3x4x5"):
    return generate.parse(f"{op},float32,{layout},{shape},training,{kind},given,eps=1,eager,seed=1")


def test_default_run_has_every_kind_of_every_op():
    kinds = collections.defaultdict(set)
    for case in DEFAULT:
        kinds[case.op].add(case.kind)
        assert generate.parse(str(case)) == case
    for op in spec.OPS.values():
        assert kinds[op.name] == set(contract.kinds(op))
    assert list(contract.generate(160, 1, generate.combinations())) == DEFAULT
    assert list(contract.generate(160, 2, generate.combinations())) != DEFAULT


def test_same_seed_same_question():
    for case in DEFAULT[:40]:
        first, second = contract.fill(case), contract.fill(case)
        assert first.attrs == second.attrs
        assert {r: (a.shape, a.dtype) for r, a in first.values.items()} == {
            r: (a.shape, a.dtype) for r, a in second.values.items()
        }


def _judge(case, candidate, eigen=None, drop_in=True):
    answers = {"candidate": candidate, **({"eigen": eigen} if eigen else {})}
    result = contract_judge.judge_contract(case, answers, NAMES, drop_in)
    return [d.what for d in result.paths["candidate"].disagreements], result


RIGHT = "InvalidArgumentError: x of FusedBatchNormGradV2 is bad"


@pytest.mark.parametrize(
    ("candidate", "whats"),
    [
        (Answer(error="InvalidArgumentError: x of TfBnOps>FusedBatchNormGradV2 is bad"), []),
        (Answer(error="InternalError: x of FusedBatchNormGradV2 is bad"), ["code"]),
        (Answer(error="InvalidArgumentError: y is bad"), ["message"]),
        (Answer(outputs=[]), ["accepted"]),
        (Answer(crash="killed by SIGABRT"), ["crash"]),
    ],
)
def test_an_error_has_to_be_the_builtins(candidate, whats):
    assert _judge(_case("error/rank"), candidate, Answer(error=RIGHT))[0] == whats


def test_other_words_are_a_note_for_those_who_are_no_drop_in():
    other = Answer(error="InvalidArgumentError: y is bad")
    whats, result = _judge(_case("error/rank"), other, Answer(error=RIGHT), drop_in=False)
    assert not whats
    assert result.notes[0].startswith("candidate: message: 'y is bad' instead of 'x of OP is bad'")


@pytest.mark.parametrize(
    ("code", "whats"),
    [("InvalidArgumentError", []), ("TypeError", []), ("InternalError", ["code"])],
)
def test_without_a_twin_any_refusal_will_do(code, whats):
    case = _case("error/size", "BatchNormTrainingBackprop", "NCHW")
    assert _judge(case, Answer(error=f"{code}: no"))[0] == whats


@pytest.mark.parametrize("eigen", [Answer(outputs=[]), Answer(crash="SIGABRT")])
def test_reference_that_takes_or_dies_of_a_bad_call_is_no_example(eigen):
    case = _case("error/rank")
    assert _judge(case, Answer(error="InvalidArgumentError: no"), eigen)[0] == []
    assert _judge(case, Answer(outputs=[]), eigen)[0] == ["accepted"]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("{{function_node __wrapped__Op>A_device}} bad [Op:Op>A] name: ", "bad"),
        ("bad\n\t [[{{node Op>A}}]] [Op:__inference_call_22]", "bad"),
        ("Op type not registered 'Op>A'", "Op type not registered 'OP'"),
    ],
)
def test_names_are_no_part_of_an_error(text, cleaned):
    assert contract.without_names(text, ["Op>A", "A"]) == cleaned
