"""The verdict on errors and static shapes, by the rules of cases/contract.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_bn_ops.conformance.cases import advisories, contract
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import CANDIDATE, DOCUMENTED
from tf_bn_ops.conformance.verdict.result import CaseResult, Disagreement, PathResult
from tf_bn_ops.harness.problems import Inputs


def _split(error: str, names: Sequence[str]) -> tuple[str, str]:
    """(code, text) of an error, without the names that the op goes by."""
    code, _, text = error.partition(": ")
    return code, contract.without_names(text, names)


def _errors(
    answer: Answer, expected: Answer | None, names: Mapping[str, Sequence[str]], name: str
) -> list[Disagreement]:
    """How an answer to a bad call differs from what is expected; None: any refusal will do."""
    if answer.crash:
        return [Disagreement("crash", answer.crash)]
    if not answer.error:
        return [Disagreement("accepted", "a bad call raised no error")]
    code, text = _split(answer.error, names[name])
    if expected is None:
        if code in contract.REFUSALS:
            return []
        wanted = " or ".join(contract.REFUSALS)
        return [Disagreement("code", f"{code} instead of {wanted}: {text}")]
    expected_code, expected_text = _split(expected.error, names[DOCUMENTED])
    if code != expected_code:
        return [Disagreement("code", f"{code} instead of {expected_code}: {text}")]
    if text != expected_text:
        return [Disagreement("message", f"{text!r} instead of {expected_text!r}")]
    return []


def _knows_less(a: contract.PartialShape, b: contract.PartialShape) -> bool:
    """Whether all that `a` says is said by `b`."""
    if a is None or b is None:
        return a is None
    return len(a) == len(b) and all(n is None or n == m for n, m in zip(a, b, strict=True))


def _static(
    answer: Answer, expected: Answer, names: Mapping[str, Sequence[str]], name: str
) -> list[Disagreement]:
    """How static shapes differ from those expected."""
    if answer.crash:
        return [Disagreement("crash", answer.crash)]
    if expected.error or answer.error:
        if not answer.error:
            # Who infers nothing refuses nothing: a drop-in has to, others may know less.
            return [Disagreement("static:less", f"{list(answer.shapes or ())}, not an error")]
        if not expected.error:
            return [Disagreement("error", answer.error)]
        if expected.error == contract.CONFLICT:
            return _errors(answer, None, names, name)
        return _errors(answer, expected, names, name)
    has, wanted = list(answer.shapes or ()), list(expected.shapes or ())
    if has == wanted:
        return []
    less = len(has) == len(wanted) and all(map(_knows_less, has, wanted))
    return [Disagreement("static:less" if less else "static", f"{has} instead of {wanted}")]


def _expected_static(case: Case, inputs: Inputs) -> Answer:
    assert inputs.static is not None
    try:
        shapes = {role: shape for role, (_, shape) in inputs.static.items()}
        return Answer(shapes=contract.expected_static_shapes(case, shapes, inputs.attrs))
    except contract.Conflict:
        return Answer(error=contract.CONFLICT)


def judge_advisory(case: Case, answer: Answer) -> CaseResult:
    """Judges the candidate's answer to an input that was published: refused where its contract says
    so, survived otherwise."""
    found = []
    if answer.crash:
        found = [Disagreement("crash", answer.crash)]
    elif answer.error:
        code, _, text = answer.error.partition(": ")
        if code not in contract.REFUSALS:
            found = [Disagreement("code", f"{code}: {text}")]
    elif advisories.must_be_refused(case):
        found = [Disagreement("accepted", f"no error on {advisories.of(case).what}")]
    return CaseResult(case, {CANDIDATE: PathResult(found)}, evidence={})


def judge_contract(
    case: Case,
    inputs: Inputs,
    answers: Mapping[str, Answer],
    names: Mapping[str, Sequence[str]],
    drop_ins: Sequence[str],
) -> CaseResult:
    """Judges all answers to a case that expects an error or checks static shapes.

    Args:
      case: the case.
      inputs: what was asked.
      answers: implementation -> its answer.
      names: implementation -> names of the op, which say nothing in an error.
      drop_ins: the implementations whose every detail counts; what others lack is a note.
    """
    result = CaseResult(case, {}, evidence={})
    reference = answers.get(DOCUMENTED) if case.spec.builtin else None
    for name, answer in answers.items():
        if case.expects_error:
            # What the reference itself takes, or dies of, is no example for the others.
            expected = reference if reference is not None and reference.error else None
            found = _errors(answer, expected, names, name)
        else:
            found = _static(answer, reference or _expected_static(case, inputs), names, name)
        notes = [d for d in found if d.what in ("message", "static:less") and name not in drop_ins]
        result.paths[name] = PathResult([d for d in found if d not in notes])
        result.notes += [f"{name}: {d}" for d in notes]
    return result
