"""Runs cases on all implementations and judges them, with all of them working at the same time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import ANY_PATH, CANDIDATE
from tf_bn_ops.conformance.execution.workers import Runner
from tf_bn_ops.conformance.verdict.contract_judge import judge_contract
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.conformance.verdict.result import CaseResult
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness.problems import Inputs


def run(
    cases: Iterable[Case],
    fill: Callable[[Case], Inputs],
    runners: Sequence[Runner],
    settings: Settings,
) -> Generator[CaseResult, None, None]:
    """Runs cases on every runner, one of which is named "candidate", and judges them.

    While the runners work on one case, the previous one is judged here.
    """
    waiting: tuple[Case, Inputs, dict[str, Answer]] | None = None
    for case in cases:
        inputs = fill(case)
        asked = [runner for runner in runners if runner.supports(case)]
        for runner in asked:
            runner.submit(case, inputs)
        try:
            if waiting is not None:
                yield _conclude(*waiting, settings)
        except GeneratorExit:  # Nobody asks for more, but of the workers.
            for runner in asked:
                runner.collect()
            raise
        answers = {runner.name: runner.collect() for runner in asked}
        waiting = case, inputs, answers
    if waiting is not None:
        yield _conclude(*waiting, settings)


def _conclude(
    case: Case, inputs: Inputs, answers: Mapping[str, Answer], settings: Settings
) -> CaseResult:
    if case.compares_values:
        times = settings.times(case)
        exempt, unwritten = settings.exempt_in(case), _unwritten(case, answers, settings)
        named, profile = settings.named(case), settings.profile
        result = judge(named, inputs, answers, profile, exempt, times, unwritten)
    else:
        names = settings.names(case.spec)
        result = judge_contract(case, answers, names, settings.candidate.drop_in)
    _settle(result, settings)
    return result


def _settle(result: CaseResult, settings: Settings) -> None:
    """Fails a case for what departs from the contract and is no known divergence."""
    case = result.case
    for name, path in result.paths.items():
        who, _, mode = name.partition(":")
        known_as = settings.candidate.path if who == CANDIDATE else name
        found = [*path.disagreements, *path.wrong_values]
        left = settings.known.unexplained(known_as, case, found, mode, who == CANDIDATE)
        for d in left:
            if d in path.wrong_values:
                continue  # A failure already.
            text = f"{mode and mode + ': '}{d}"
            if known_as not in (CANDIDATE, ANY_PATH):
                text = f"unlisted divergence of the built-in ({known_as}): {text}"
            result.failures.append(text)
        for d in path.wrong_values:
            if d not in left:
                text = f"{mode and mode + ': '}{d.detail}"
                result.failures.remove(text)
                result.notes.append(f"{who}: {text}: a known divergence")


def _unwritten(
    case: Case, answers: Mapping[str, Answer], settings: Settings
) -> dict[str, frozenset[str]]:
    """Implementation, or "candidate:MODE" -> the outputs that it is known not to write."""
    found = {}
    for name, answer in answers.items():
        known_as = settings.candidate.path if name == CANDIDATE else name
        found[name] = settings.known.unwritten(known_as, case)
        for mode, other in answer.others.items() if name == CANDIDATE else ():
            if other.outputs is not None:
                found[f"{name}:{mode}"] = settings.known.unwritten(known_as, case, mode)
    return found
