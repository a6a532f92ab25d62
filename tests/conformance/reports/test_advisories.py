"""Published malformed inputs: which ops they are run for, what has to become of them, and that a
crash is a verdict of its case alone."""

import os
import pathlib
import signal

import numpy as np
import pytest

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import advisories, generate
from tf_bn_ops.conformance.execution import fork, workers
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import Implementation
from tf_bn_ops.conformance.verdict.contract_judge import judge_advisory

TESTS = pathlib.Path(__file__).resolve().parents[1]
CASES = list(advisories.generate(list(spec.OPS)))


def _case(name, op):
    (case,) = (c for c in CASES if c.kind == f"advisory/{name}" and c.op == op)
    return case


def _found(case, **answer):
    return [d.what for d in judge_advisory(case, Answer(**answer)).paths["candidate"].disagreements]


def test_every_advisory_is_run_forward_and_backward_and_parsed_back():
    for name in advisories.load():
        outputs = {o.role for c in CASES if c.kind == f"advisory/{name}" for o in c.spec.outputs}
        assert {"y", "x_backprop"} <= outputs, name
    assert {case.op for case in CASES} == set(spec.OPS)
    assert all(generate.parse(str(case)) == case for case in CASES)


def test_inputs_are_those_that_were_published():
    values = advisories.fill(_case("CVE-2021-41223", "FusedBatchNormGrad")).values
    shapes = {role: array.shape for role, array in values.items()}
    assert shapes == {
        "y_backprop": (1, 1, 3, 3), "x": (1, 1, 1, 2), "scale": (1, 1), "mean": (1, 1),
        "variance": (1, 1, 1),
    }  # fmt: skip
    inputs = advisories.fill(_case("fuzzer/grad-v3-channels-last", "FusedBatchNormGradV3"))
    assert np.all(inputs.values["y_backprop"] == np.float32(-3.5e35))
    assert inputs.values["forward_coefficients"].shape == (3, 2, 4, 2)


@pytest.mark.parametrize(
    ("name", "op", "refused"),
    [
        ("CVE-2021-41223", "FusedBatchNormGrad", True),
        ("CVE-2021-29583/empty-vectors", "FusedBatchNorm", True),
        ("tensorflow-59399", "FusedBatchNormV3", False),
        ("fuzzer/format-of-five-dimensions", "FusedBatchNormGradV3", False),
        ("pytorch-85217", "FusedBatchNormEx", True),
    ],
)
def test_what_is_not_the_contract_is_refused_and_the_rest_survived(name, op, refused):
    case = _case(name, op)
    assert advisories.must_be_refused(case) == refused
    assert _found(case, error="InvalidArgumentError: scale must be a vector") == []
    assert _found(case, error="InternalError: a check failed") == ["code"]
    assert _found(case, crash="killed by SIGSEGV") == ["crash"]
    assert _found(case, outputs=[]) == (["accepted"] if refused else [])


def test_unread_statistics_may_have_any_shape(monkeypatch):
    """In training with a factor of 1 the forward op does not look at them; its gradient does."""
    vectors = {"mean": [], "variance": [1, 1]}
    advisory = advisories.Advisory("a", "w", "NHWC", (3, 2, 4, 2), vectors=vectors)
    monkeypatch.setattr(advisories, "load", lambda: {"a": advisory})
    for op, refused in (("FusedBatchNormV3", False), ("FusedBatchNormGradV3", True)):
        case = advisory.case_of(spec.OPS[op])
        assert advisories.must_be_refused(case) == refused


def test_call_in_a_fork_tells_how_it_ended():
    assert fork.call(lambda: ("outputs", [1])) == ("outputs", [1])
    killed = fork.call(lambda: os.kill(os.getpid(), signal.SIGSEGV) or ("outputs", []))
    assert killed == ("crash", "killed by SIGSEGV")
    assert fork.call(lambda: 1 / 0) == ("crash", "ended with status 1")


@pytest.mark.long
def test_crash_costs_its_case_alone(monkeypatch):
    """With what the process said last; the next one is forked from a sound one."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    worker = workers.Worker(Implementation("candidate", "odd_ops:fragile"))
    try:
        found = []
        for shape in ("1x2x2x3", "1x2x2x1"):
            rest = "training,normal,batch,eps=0.1,fresh,seed=1"
            case = generate.parse(f"FusedBatchNormGradV2,float32,NHWC,{shape},{rest}")
            worker.submit(case, workers.fill(case))
            found.append(worker.collect())
    finally:
        worker.close()
    assert "killed by SIGABRT: about to abort" in found[0].crash
    assert found[1].outputs is not None and not found[1].crash
