"""What the judge promises of any formula, asked with a right kernel and wrong ones: right answers
pass, a fault fails in some case, and a case that counts as evidence fails wrong-on-purpose answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy_kernels import fill

from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.conformance.verdict.result import CaseResult
from tf_bn_ops.harness import problems
from tf_bn_ops.harness.problems import Inputs, Problem

STRICT = bounds.PROFILES["strict"]
Outputs = dict[str, np.ndarray]
Kernel = Callable[[Case, Problem], Outputs]


class Filled(NamedTuple):
    case: Case
    inputs: Inputs
    problem: Problem

    @classmethod
    def of(cls, case: Case) -> Filled:
        inputs = fill(case)
        return cls(case, inputs, problems.of_call(case, inputs))


@dataclasses.dataclass(frozen=True)
class Judged:
    """A formula on filled cases.

    Attributes:
      right: the outputs by role, computed in a wider type and rounded once.
      faults: kernels with one thing wrong.
      outputs: the roles that are compared.
      answer: outputs in the shapes and the order of the case's op.
    """

    right: Kernel
    faults: Mapping[str, Kernel]
    outputs: Iterable[str]
    answer: Callable[[Outputs, Case], Answer]

    def judge(self, kernel: Kernel, filled: Filled) -> CaseResult:
        answer = self.answer(kernel(filled.case, filled.problem), filled.case)
        return judge(filled.case, filled.inputs, {"candidate": answer}, STRICT)

    def assert_right_answers_pass(self, cases: Iterable[Filled]) -> None:
        for filled in cases:
            # There the order of operations decides what infinity becomes.
            if filled.case.kind not in ("nonfinite", "overflow"):
                result = self.judge(self.right, filled)
                assert not result.failures, (str(filled.case), result.failures)
                assert set(result.evidence) == set(self.outputs)

    def assert_caught(self, fault: str, cases: Iterable[Filled]) -> None:
        assert any(self.judge(self.faults[fault], filled).failures for filled in cases)

    def evidence_against(
        self, wrong: str, roles: Iterable[str], cases: Iterable[Filled]
    ) -> dict[str, int]:
        """Cases that count as evidence, by role; each of them fails the wrong answer."""
        counted = dict.fromkeys(roles, 0)
        for filled in cases:
            evidence = self.judge(self.right, filled).evidence
            failures = self.judge(self.faults[wrong], filled).failures
            failed = {failure.split()[0] for failure in failures}
            for role in counted:
                counted[role] += evidence[role]
                assert role in failed or not evidence[role], (str(filled.case), role)
        return counted
