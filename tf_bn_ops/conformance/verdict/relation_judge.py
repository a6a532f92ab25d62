"""The verdict on a relation: what the answers of several calls have to do with each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.relations import table
from tf_bn_ops.conformance.cases.relations.relation import Answered, Comparison, Member, outputs_of
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.models.bounds import Profile
from tf_bn_ops.conformance.models.measure import EVIDENCE_SHARE, OutputError, assembled
from tf_bn_ops.conformance.verdict.judge import compare_modes, expect, structure
from tf_bn_ops.conformance.verdict.judge import outputs_of as contract_of
from tf_bn_ops.conformance.verdict.result import CaseResult, Disagreement, PathResult
from tf_bn_ops.harness.problems import Inputs


def judge_relation(
    case: Case,
    members: Sequence[Member],
    answers: Sequence[Answer],
    profile: Profile,
    exempt: Collection[str] = (),
    times: Mapping[str, float] | None = None,
) -> CaseResult:
    """Judges the candidate's answers to the calls of a case that checks a relation, of which the
    first has the further execution modes; `exempt` and `times` are as in judge.judge."""
    path = PathResult()
    result = CaseResult(case, {CANDIDATE: path}, {})
    for (called, inputs), answer in zip(members, answers, strict=True):
        path.disagreements = structure(contract_of(called, inputs.attrs), answer)
        if path.disagreements:
            return result
    with np.errstate(all="ignore"):
        answered = [
            _answered(called, inputs, answer, profile, times or {})
            for (called, inputs), answer in zip(members, answers, strict=True)
        ]
        for comparison in table.of(case).check(answered):
            _add(result, path, comparison)
        result.evidence = _evidence(answered[0], list(path.errors))
    compare_modes(case, {CANDIDATE: answers[0]}, exempt, result)
    return result


def _answered(
    case: Case, inputs: Inputs, answer: Answer, profile: Profile, times: Mapping[str, float]
) -> Answered:
    """The judged outputs of an answer with their bounds."""
    assert answer.outputs is not None
    named = zip(case.spec.outputs_with(inputs.attrs), answer.outputs, strict=True)
    judged = outputs_of(case.spec)
    outputs = {arg.role: out.astype(np.float64) for arg, out in named if arg.role in judged}
    parts = list(expect(case, inputs, profile).parts)
    bounds = {}
    for role, array in outputs.items():
        view = spec.view_shape(array.shape, case.layout) if array.ndim > 1 else array.shape
        bound = assembled(parts, role, "bound", view).astype(np.float64)
        bounds[role] = bound.reshape(array.shape) * times.get(role, 1)
    return Answered(case, inputs, outputs, bounds)


def _add(result: CaseResult, path: PathResult, comparison: Comparison) -> None:
    """Adds the worst element of a comparison; what is not finite on both sides is not compared."""
    difference, allowed = np.broadcast_arrays(
        np.atleast_1d(comparison.difference), np.atleast_1d(comparison.allowed)
    )
    tiny = np.finfo(np.float64).tiny
    size = np.where(difference == 0, 0, np.abs(difference) / np.maximum(allowed, tiny))
    size = np.where(np.isnan(size), np.where(np.isinf(allowed), 0, np.inf), size)
    worst = float(size.max(initial=0))
    error = path.errors.setdefault(comparison.role, OutputError())
    if worst <= error.bound and error.worst:
        return
    where = np.unravel_index(int(np.argmax(size)), size.shape)
    error.bound = worst
    error.worst = (
        f"at {[int(i) for i in where]}: off by {difference[where]:.4g}, "
        f"allowed {allowed[where]:.2g}"
    )
    if worst > 1:
        what = table.of(result.case).what
        text = (
            f"{comparison.role} {worst:.3g} times what the relation allows {error.worst} ({what})"
        )
        path.wrong_values.append(Disagreement(f"values:{comparison.role}", text))
        result.failures.append(text)


def _evidence(answered: Answered, roles: Sequence[str]) -> dict[str, bool]:
    """Whether most elements of the outputs are distinguishable from zero, which fits relations."""
    found = {}
    for role in roles:
        told = np.abs(answered.outputs[role]) > answered.bounds[role]
        found[role] = bool(told.mean() >= EVIDENCE_SHARE)
    return found
