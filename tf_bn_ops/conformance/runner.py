"""Runs cases on all implementations and judges them, with all of them working at the same time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from tf_bn_ops import spec
from tf_bn_ops.conformance import divergences, fills
from tf_bn_ops.conformance.case import Case
from tf_bn_ops.conformance.judge import CANDIDATE, Answer, CaseResult, judge
from tf_bn_ops.conformance.judge_contract import judge_contract
from tf_bn_ops.conformance.mapping import Mapped
from tf_bn_ops.conformance.workers import Runner
from tf_bn_ops.harness import bounds


@dataclasses.dataclass
class Settings:
    """What a run is judged by.

    Attributes:
      profile: the bounds.
      known: the known divergences.
      path: the name that the candidate has in the list of them.
      may_differ: calls in which the candidate's bits may differ.
      drop_in: every detail of its errors and static shapes counts.
      mapped: the names of another library's ops, by the op that they claim to equal.
    """

    profile: bounds.Profile
    known: divergences.Register
    path: str = CANDIDATE
    may_differ: Collection[str] = ()
    drop_in: bool = False
    mapped: Mapping[str, Mapped] | None = None

    def times(self, case: Case) -> Mapping[str, float]:
        """Output -> how many times the bound a mapping file allows for it."""
        entry = (self.mapped or {}).get(case.op)
        return entry.times_bound(case.dtype) if entry else {}

    def names(self, op: spec.OpSpec) -> list[str]:
        """The names that an op goes by in errors."""
        mapped = (self.mapped or {}).get(op.name)
        names = [op.registered_name, op.name]
        names += [mapped.name] if mapped else []
        return [*names, *(name.replace(">", "_") for name in names)]


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
    if case.asks_for_values:
        times = settings.times(case)
        result = judge(case, filled, answers, settings.profile, settings.may_differ, times)
    else:
        names = dict.fromkeys(answers, settings.names(case.spec))
        drop_ins = (CANDIDATE,) if settings.drop_in else ()
        result = judge_contract(case, filled, answers, names, drop_ins)
    for name, path in result.paths.items():
        who, _, call = name.partition(":")
        known_as = settings.path if who == CANDIDATE else name
        for d in settings.known.unexplained(known_as, case, path.disagreements):
            text = f"{call and call + ': '}{d.what}: {d.detail}"
            if known_as != CANDIDATE:
                text = f"unlisted divergence of the built-in ({known_as}): {text}"
            result.failures.append(text)
    return result
