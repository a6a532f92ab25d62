"""What a reader of a run wants to know first: which claim failed, in what cases, what they have in
common, the smallest program that shows it, and what the run did not cover."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases import case as case_lib
from tf_bn_ops.conformance.cases import coverage, generate
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.reports import record as record_lib

# Examples of what was not covered.
_EXAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim that failed.

    Attributes:
      name: what was claimed, for instance "values of x_backprop".
      count: number of cases in which it failed.
      common: factor -> level that all of them have, and not all cases of the run.
      alike: number of cases of the run with all of these.
      first: the first of its sentences.
    """

    name: str
    count: int
    common: Mapping[str, str]
    alike: int
    first: str

    @property
    def text(self) -> str:
        """The claim in one sentence."""
        cases = f"{self.name}: {self.count} case{'s' * (self.count != 1)}"
        if not self.common:
            return f"{cases}, nothing in common"
        of = ", ".join(f"{factor} {level}" for factor, level in self.common.items())
        return f"{cases}, in common: {of} ({self.count} of {self.alike} such cases)"


def _claims_of(case: dict[str, Any]) -> Iterator[str]:
    """The claims that a case refutes."""
    verdict, wrong = case["verdict"], record_lib.wrong(case)
    answer = case["implementations"].get(CANDIDATE, {"outputs": {}})
    outputs = sorted(name for name in wrong if name in answer["outputs"])
    if verdict != record_lib.VALUES or not outputs:
        yield verdict
    for name in outputs:
        yield f"{record_lib.VALUES} of {name}"


def _traits(case: dict[str, Any]) -> dict[str, str]:
    """Factor -> level."""
    try:
        found = coverage.traits(generate.parse(case["case"]))
    except UsageError:  # Of another version, or no case at all.
        found = {name: case[name] for name in ("dtype", "layout", "mode", "kind")}
    return {"op": case["op"], **found}


def claims(record: dict[str, Any]) -> list[Claim]:
    """The claims that failed, the most frequent first."""
    if not record_lib.failed(record):
        return []
    traits = [_traits(case) for case in record["cases"]]
    failed: dict[str, list[int]] = {}
    for number, case in enumerate(record["cases"]):
        if case["verdict"] != record_lib.PASSED:
            for name in _claims_of(case):
                failed.setdefault(name, []).append(number)
    found = []
    for name, numbers in failed.items():
        first = traits[numbers[0]]
        shared = {f: v for f, v in first.items() if all(traits[n].get(f) == v for n in numbers)}
        common = {f: v for f, v in shared.items() if any(t.get(f) != v for t in traits)}
        alike = sum(all(t.get(f) == v for f, v in common.items()) for t in traits)
        sentences = record["cases"][numbers[0]]["failures"]
        said = sentences[0] if sentences else ""
        found.append(Claim(name, len(numbers), common, alike, said))
    return sorted(found, key=lambda claim: -claim.count)


def smallest(record: dict[str, Any]) -> dict[str, Any] | None:
    """The failing case with the shortest program that shows it."""
    shown = [case for case in record["cases"] if case["script"]]
    return min(shown, key=lambda case: len(case["script"]), default=None)


def not_covered(record: dict[str, Any]) -> list[str]:
    """What the run says nothing about, a sentence each."""
    found = []
    cases, settings = record["cases"], record["settings"]
    if record_lib.is_cut_short(record):
        found.append(f"{record['total'] - len(cases)} of {record['total']} cases were not run")
    if settings["kinds"] is not None and (left := set(case_lib.KINDS) - set(settings["kinds"])):
        found.append(f"kinds of cases: {', '.join(sorted(left))}")
    for entry in record["coverage"]:
        if missing := entry["missing"]:
            of = f"{len(missing)} of {entry['pairs']} pairs of {entry['op']}"
            more = len(missing) - _EXAMPLES
            examples = "; ".join(missing[:_EXAMPLES]) + (f", and {more} more" if more > 0 else "")
            found.append(f"{of}: {examples}")
    answered, judged = collections.Counter[str](), set()
    for case in cases:
        judged |= set(case["evidence"])
        answered.update(role for role, holds in case["evidence"].items() if holds)
    if blind := sorted(judged - set(answered)):
        found.append(f"outputs without evidence: {', '.join(blind)}")
    return found


def covered(record: dict[str, Any]) -> str:
    """The pairs that the run had, in one sentence."""
    pairs = sum(entry["pairs"] for entry in record["coverage"])
    missing = sum(len(entry["missing"]) for entry in record["coverage"])
    return (
        f"covered: {pairs - missing} of {pairs} pairs of element type, layout, mode, kind of "
        "inputs, statistics, epsilon, channels, inner size, rows"
    )
