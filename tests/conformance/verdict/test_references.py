"""References for BatchNormTrainingBackprop: TensorFlow's autodiff, and its counterpart V3."""

import numpy as np
import pytest
from numpy_kernels import fill

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution import autodiff as autodiff_lib
from tf_bn_ops.conformance.execution import workers
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import (
    AUTODIFF,
    builtin,
    request,
    translated,
)
from tf_bn_ops.conformance.models import bounds, inputs
from tf_bn_ops.conformance.models.batch_norm_grad import OUTPUTS
from tf_bn_ops.conformance.verdict import judge

# Finite kinds: what overflows on the way is the business of each implementation.
KINDS = [k for k in inputs.KINDS if k not in ("nonfinite", "overflow", "whole_layer")]
CASES = [
    c
    for c in generate.generate(300, 3, generate.combinations(["BatchNormTrainingBackprop"]))
    if c.kind in KINDS and np.prod(c.shape) < 20_000
]


@pytest.fixture(scope="module")
def autodiff():
    worker = workers.Worker(AUTODIFF)
    yield worker
    worker.close()


def test_autodiff_in_float64_agrees_with_the_oracle(autodiff):
    """Nobody derived its gradient by hand, so it is evidence for the oracle's formula."""
    told = dict.fromkeys(OUTPUTS, 0)
    double = [c for c in CASES if c.dtype == "float64"]
    for case in double:
        given = fill(case)
        autodiff.submit(case, given)
        answers = {"candidate": autodiff.collect()}
        result = judge.judge(case, given, answers, bounds.PROFILES["textbook"])
        assert not result.failures, (str(case), result.failures)
        assert not result.paths["candidate"].disagreements
        for role, is_evidence in result.evidence.items():
            told[role] += is_evidence
    assert min(told.values()) > len(double) / 2


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float32"])
def test_counterpart_is_asked_in_its_own_types(dtype):
    text = f"BatchNormTrainingBackprop,{dtype},NCDHW,2x3x1x2x2,training,normal,batch"
    case = generate.parse(text + ",eps=0.001,eager,seed=1")
    op = builtin("onednn", "onednn").resolve_op(case)
    assert op.name == "FusedBatchNormGradV3"
    given = fill(case)
    asked = request(case, given, op)
    assert set(asked["inputs"]) == {arg.name for arg in op.inputs}
    assert asked["attrs"] == {"epsilon": 0.001, "data_format": "NCDHW", "is_training": True}
    # Wider, and not one value changed.
    assert asked["inputs"]["scale"].dtype == np.float32
    np.testing.assert_array_equal(asked["inputs"]["scale"], given.values["scale"])
    outputs = [given.values["x"], *[np.ones(3, np.float32)] * 2, *[np.ones(0, np.float32)] * 2]
    answer = translated(Answer(outputs), case, op)
    assert not judge.structure(judge.outputs_of(case), answer)


@pytest.mark.parametrize(
    ("dtype", "layout", "shape"),
    [
        ("float64", "NCHW", "1x1x1x1"),
        ("float32", "NC", "1x1"),
        ("float32", "NCTDHW", "1x1x1x1x1x1"),
    ],
)
def test_counterpart_is_not_asked_what_it_does_not_take(dtype, layout, shape):
    text = f"BatchNormTrainingBackprop,{dtype},{layout},{shape},training,normal,batch"
    case = generate.parse(text + ",eps=0.001,eager,seed=1")
    assert builtin("onednn", "onednn").resolve_op(case) is None
    text = "FusedBatchNormGradV2,half,NHWC,1x1x1x1,frozen,normal,given,eps=1,eager,seed=1"
    other = generate.parse(text)
    assert AUTODIFF.resolve_op(other) is None
    assert AUTODIFF.resolve_op(case) is spec.OPS["BatchNormTrainingBackprop"]


def test_autodiff_has_the_ops_that_it_is_asked():
    """The list stands where TensorFlow is not imported."""
    assert all(callable(getattr(autodiff_lib.elementary, op, None)) for op in AUTODIFF.only)
