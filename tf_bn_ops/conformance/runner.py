"""Runs cases on all implementations and judges them, with all of them working at the same time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from tf_bn_ops.conformance import bounds, divergences, fills
from tf_bn_ops.conformance.cases import Case
from tf_bn_ops.conformance.judge import Answer, CaseResult, judge
from tf_bn_ops.conformance.workers import Runner

CANDIDATE = "candidate"


@dataclasses.dataclass
class Settings:
    """What a run is judged by."""

    profile: bounds.Profile
    known: divergences.Register


def run(
    cases: Iterable[Case],
    fill: Callable[[Case], fills.Filled],
    runners: Sequence[Runner],
    settings: Settings,
) -> Iterator[CaseResult]:
    """Runs cases on every runner, one of which is named "candidate", and judges them.

    While the runners work on one case, the previous one is judged here.
    """
    waiting: tuple[Case, fills.Filled, dict[str, Answer]] | None = None
    for case in cases:
        filled = fill(case)
        asked = [runner for runner in runners if runner.takes(case)]
        for runner in asked:
            runner.submit(case, filled)
        if waiting is not None:
            yield _conclude(*waiting, settings)
        waiting = case, filled, {runner.name: runner.collect() for runner in asked}
    if waiting is not None:
        yield _conclude(*waiting, settings)


def _conclude(
    case: Case, filled: fills.Filled, answers: dict[str, Answer], settings: Settings
) -> CaseResult:
    result = judge(case, filled, answers, settings.profile)
    for name, path in result.paths.items():
        for d in settings.known.unexplained(name, case, path.disagreements):
            who = "" if name == CANDIDATE else f"unlisted divergence of the built-in ({name}): "
            result.failures.append(f"{who}{d.what}: {d.detail}")
    return result
