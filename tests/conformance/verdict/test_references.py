"""The reference for BatchNormTrainingBackprop: its counterpart V3."""

import numpy as np
import pytest
from numpy_kernels import fill

from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import builtin, request, translated
from tf_bn_ops.conformance.verdict import judge


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
