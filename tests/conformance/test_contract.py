"""Cases that ask for errors or static shapes (contract.py): what is asked, and how it is judged."""

import collections

import pytest

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import contract, generate
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.verdict import contract_judge

DEFAULT = list(contract.generate(160, 1, generate.combinations()))
NAMES = {"candidate": ["TfBnOps>FusedBatchNormGradV2", "FusedBatchNormGradV2"]}
NAMES["eigen"] = NAMES["onednn"] = NAMES["candidate"]


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
        assert first.attrs == second.attrs and first.static == second.static
        assert {r: (a.shape, a.dtype) for r, a in first.values.items()} == {
            r: (a.shape, a.dtype) for r, a in second.values.items()
        }


def _judge(case, candidate, eigen=None, drop_in=True):
    answers = {"candidate": candidate, **({"eigen": eigen} if eigen else {})}
    result = contract_judge.judge_contract(
        case, contract.fill(case), answers, NAMES, ["candidate"] if drop_in else []
    )
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


FULL = [(2, 3, 4, 5), (5,)]


@pytest.mark.parametrize(
    ("shapes", "drop_in", "whats"),
    [
        (FULL, True, []),
        ([(2, 3, 4, None), (5,)], True, ["static:less"]),
        ([(2, 3, 4, None), None], False, []),
        ([(2, 3, 4, 6), (5,)], False, ["static"]),
        (FULL[:1], False, ["static"]),
    ],
)
def test_static_shapes_have_to_be_the_builtins(shapes, drop_in, whats):
    case = _case("static/partial")
    found, result = _judge(case, Answer(shapes=shapes), Answer(shapes=FULL), drop_in)
    assert found == whats
    assert bool(result.notes) == (not drop_in and shapes[-1] is None)


def test_conflicting_shapes_have_to_be_refused_and_others_not():
    case, error = _case("static/conflict"), Answer(error="ValueError: no")
    assert _judge(case, error, error)[0] == []
    assert _judge(case, Answer(shapes=FULL), error)[0] == ["static:less"]
    assert _judge(case, Answer(shapes=FULL), error, drop_in=False)[0] == []
    assert _judge(case, error, Answer(shapes=FULL))[0] == ["error"]


@pytest.mark.parametrize(
    ("x", "delta", "vectors", "outputs"),
    [
        ((2, 3, 4), (2, 3, 4), (3,), [(2, 3, 4), (3,)]),
        (None, None, None, [None, (None,)]),
        ((2, None, None), (None, None, 4), (3,), [(2, 3, 4), (3,)]),
        ((2, 3, None), None, (None,), [(2, 3, None), (3,)]),
        ((2, 3), (2, 3, 4), (3,), None),
        ((2, 3, 4), (2, 3, 4), (4,), None),
        ((2,), None, None, None),
        ((2, 0, 4), None, (0,), None),
    ],
)
def test_rule_for_static_shapes_without_a_twin(x, delta, vectors, outputs):
    case = _case("static/partial", "BatchNormTrainingBackprop", "NCW", "2x3x4")
    inputs = {"x": x, "y_backprop": delta}
    inputs |= dict.fromkeys(("scale", "offset", "mean", "variance"), vectors)
    if outputs is None:
        with pytest.raises(contract.Conflict):
            contract.expected_static_shapes(case, inputs, {})
    else:
        assert contract.expected_static_shapes(case, inputs, {}) == [outputs[0], *[outputs[1]] * 2]


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
