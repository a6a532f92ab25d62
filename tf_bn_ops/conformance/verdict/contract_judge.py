"""The verdict on malformed calls, by the rules of cases/contract.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_bn_ops.conformance.cases import contract
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import CANDIDATE, DOCUMENTED
from tf_bn_ops.conformance.verdict.result import CaseResult, Disagreement, PathResult


def _split(error: str, names: Sequence[str]) -> tuple[str, str]:
    """(code, text) of an error, without the names that the op goes by."""
    code, _, text = error.partition(": ")
    return code, contract.without_names(text, names)


def _errors(answer: Answer, expected: Answer | None, names: Sequence[str]) -> list[Disagreement]:
    """How an answer to a bad call differs from what is expected; None: any refusal will do."""
    if answer.crash:
        return [Disagreement("crash", answer.crash)]
    if not answer.error:
        return [Disagreement("accepted", "a bad call raised no error")]
    code, text = _split(answer.error, names)
    if expected is None:
        if code in contract.REFUSALS:
            return []
        wanted = " or ".join(contract.REFUSALS)
        return [Disagreement("code", f"{code} instead of {wanted}: {text}")]
    expected_code, expected_text = _split(expected.error, names)
    if code != expected_code:
        return [Disagreement("code", f"{code} instead of {expected_code}: {text}")]
    if text != expected_text:
        return [Disagreement("message", f"{text!r} instead of {expected_text!r}")]
    return []


def judge_contract(
    case: Case, answers: Mapping[str, Answer], names: Sequence[str], drop_in: bool
) -> CaseResult:
    """Judges all answers to a malformed call. The `names` of the op say nothing in an error; of a
    candidate that is a drop-in every detail counts, what others lack is a note."""
    result = CaseResult(case, {}, evidence={})
    reference = answers.get(DOCUMENTED) if case.spec.builtin else None
    for name, answer in answers.items():
        # What the reference itself takes, or dies of, is no example for the others.
        expected = reference if reference is not None and reference.error else None
        found = _errors(answer, expected, names)
        is_exact = drop_in and name == CANDIDATE
        notes = [d for d in found if d.what == "message" and not is_exact]
        result.paths[name] = PathResult([d for d in found if d not in notes])
        result.notes += [f"{name}: {d}" for d in notes]
    return result
