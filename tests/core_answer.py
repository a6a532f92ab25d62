"""What an op on the core library answers to a case, through the C ABI, without TensorFlow."""

from __future__ import annotations

import numpy as np

from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.harness import c_abi, problems
from tf_bn_ops.harness.problems import VIEW_ROLES, Inputs

_THREADS = 2


def answer(case: Case, inputs: Inputs) -> Answer:
    """Of any op; outputs start as NaN, so that one left out fails."""
    problem = problems.of_call(case, inputs)
    outputs = c_abi.new_outputs(problem, fill=np.nan)
    c_abi.run(problem, threads=_THREADS, outputs=outputs)
    # No call of the C ABI has the first; the second is an option there.
    for role in ("placeholder", "forward_coefficients"):
        outputs[role] = np.zeros(0, problem.statistics_dtype.numpy)
    return Answer(
        [
            outputs[arg.role].reshape(case.shape) if arg.role in VIEW_ROLES else outputs[arg.role]
            for arg in case.spec.outputs_with(inputs.attrs)
        ]
    )
