"""What a reader of a run wants to know first: which claim failed, in what cases, what they have in
common, the smallest program that shows it, and what the run did not cover."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from tf_bn_ops import spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases import case as case_lib
from tf_bn_ops.conformance.cases import coverage, generate
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.reports import record as record_lib

# Examples of what was not covered.
_EXAMPLES = 3


# Failing cases from which on a size that they have in common is no chance.
_LEAST_ALIKE = 4
# Of vectors and blocks.
_DIVISORS = (2, 4, 8, 16, 32)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim that failed.

    Attributes:
      name: what was claimed, for instance "values of x_backprop".
      count: number of cases in which it failed.
      common: the fewest properties that all of them have, and the fewest others.
      alike: number of cases with all of these in which it could have failed.
      first: the first of its sentences.
    """

    name: str
    count: int
    common: tuple[str, ...]
    alike: int
    first: str

    @property
    def text(self) -> str:
        """The claim in one sentence."""
        cases = f"{self.name}: {self.count} case{'s' * (self.count != 1)}"
        if self.count == 1:
            return cases
        if not self.common:
            is_all = self.count == self.alike
            return f"{cases}, {'all that could show it' if is_all else 'nothing in common'}"
        return f"{cases}, in common: {', '.join(self.common)} ({self.count} of {self.alike} such)"


def _claims_of(case: record_lib.CaseRecord) -> Iterator[tuple[str, str]]:
    """The claims that a case refutes, and the output that each is about, if any."""
    verdict, wrong = case["verdict"], record_lib.wrong(case)
    answer = case["implementations"].get(CANDIDATE)
    outputs = sorted(name for name in wrong if answer and name in answer["outputs"])
    if verdict != record_lib.VALUES or not outputs:
        yield verdict, ""
    for name in outputs:
        yield f"{record_lib.VALUES} of {name}", name


@dataclasses.dataclass(frozen=True)
class _Properties:
    """What cases may have in common: levels of factors, and sizes."""

    levels: Mapping[str, str]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, entry: record_lib.CaseRecord) -> _Properties:
        levels = {name: entry[name] for name in ("op", "dtype", "layout", "mode", "kind")}
        try:
            case = generate.parse(entry["case"])
        except UsageError:  # Of another version, or no case at all.
            return cls(levels, {})
        is_last = spec.LAYOUTS[case.layout][1]
        levels["layout with channels"] = "last" if is_last else "first"
        levels["type of"] = f"{8 * spec.DTYPES[case.dtype].numpy.itemsize} bits"
        channels, inner, rows = coverage.sizes(case.shape, case.layout)
        sizes = {"channels": channels, "inner": inner, "rows": rows, "batch": case.shape[0]}
        own = {n: level for n, level in coverage.traits(case).items() if n not in sizes}
        return cls({**levels, **own}, {**sizes, "elements": channels * rows})


@dataclasses.dataclass(frozen=True)
class _Property:
    """Something that cases may have in common: a level of a factor, a remainder of a size, or a
    size that is not beyond an end, the least (`sign` 1) or the greatest (-1)."""

    name: str
    level: str = ""
    divisor: int = 0
    remains: bool = False
    sign: int = 0
    end: int = 0

    def __call__(self, case: _Properties) -> bool:
        """Whether a case has it."""
        if self.level:
            return case.levels.get(self.name) == self.level
        size = case.sizes.get(self.name, 0)
        if self.divisor:
            return bool(size % self.divisor) == self.remains
        return self.sign * size >= self.sign * self.end

    def text(self, others: Sequence[_Properties]) -> str:
        """The property in words; `others` lack it, and have all else that is in common."""
        if self.level:
            return f"{self.name} {self.level}"
        if self.divisor:
            return f"{self.name} % {self.divisor} {'> 0' if self.remains else '= 0'}"
        near = (max if self.sign > 0 else min)(other.sizes.get(self.name, 0) for other in others)
        return (
            f"{self.name} of {self.end} and {'more' if self.sign > 0 else 'less'} (not of {near})"
        )


def _shared(cases: Sequence[_Properties]) -> list[_Property]:
    """What all cases have in common, the simplest first."""
    found = [_Property(name, level) for name, level in cases[0].levels.items()]
    for name in cases[0].sizes if len(cases) >= _LEAST_ALIKE else ():
        of = [case.sizes.get(name, 0) for case in cases]
        found += [_Property(name, divisor=m, remains=r) for m in _DIVISORS for r in (False, True)]
        found += [_Property(name, sign=1, end=min(of)), _Property(name, sign=-1, end=max(of))]
    return [one for one in found if all(map(one, cases))]


def _in_common(
    cases: Sequence[_Properties], others: Sequence[_Properties]
) -> tuple[tuple[str, ...], int]:
    """The fewest properties that all cases have and the fewest of others: one after the other the
    property that most of those left lack. And how many others have them all."""
    shared, left, chosen = _shared(cases), list(others), list[_Property]()
    while shared and left:
        best = min(shared, key=lambda one: sum(map(one, left)))
        if all(map(best, left)):
            break
        chosen.append(best)
        left = list(filter(best, left))

    def with_all_but(one: _Property) -> list[_Properties]:
        rest = [each for each in chosen if each is not one]
        return [other for other in others if all(has(other) for has in rest)]

    for one in chosen[:]:  # What later ones made superfluous.
        if len(with_all_but(one)) == len(left):
            chosen.remove(one)
    in_order = sorted(chosen, key=shared.index)
    lacking = {one: [o for o in with_all_but(one) if not one(o)] for one in in_order}
    return tuple(one.text(lacking[one]) for one in in_order), len(left)


def claims(record: record_lib.Record) -> list[Claim]:
    """The claims that failed, the most frequent first."""
    if not record_lib.failed(record):
        return []
    failed: dict[tuple[str, str], list[int]] = {}
    for number, case in enumerate(record["cases"]):
        for claim in _claims_of(case) if case["verdict"] != record_lib.PASSED else ():
            failed.setdefault(claim, []).append(number)
    properties = [_Properties.of(case) for case in record["cases"]]
    found = []
    for (name, output), numbers in failed.items():
        first = record["cases"][numbers[0]]
        is_call = first["kind"].startswith(case_lib.ERROR_PREFIX)
        # Of a case that would pass a wrong answer, too, it says nothing that it passed.
        others = [
            properties[number]
            for number, case in enumerate(record["cases"])
            if number not in set(numbers)
            and case["kind"].startswith(case_lib.ERROR_PREFIX) == is_call
            and (not output or case["evidence"].get(output))
        ]
        common, alike = _in_common([properties[number] for number in numbers], others)
        said = first["failures"][0] if first["failures"] else ""
        found.append(Claim(name, len(numbers), common, len(numbers) + alike, said))
    return sorted(found, key=lambda claim: -claim.count)


def smallest(record: record_lib.Record) -> record_lib.CaseRecord | None:
    """The failing case with the shortest program that shows it."""
    shown = [case for case in record["cases"] if case["script"]]
    return min(shown, key=lambda case: len(case["script"] or ""), default=None)


def not_covered(record: record_lib.Record) -> list[str]:
    """What the run says nothing about, a sentence each."""
    found = []
    cases, settings = record["cases"], record["settings"]
    if record_lib.is_cut_short(record):
        found.append(f"{record['total'] - len(cases)} of {record['total']} cases were not run")
    if settings["kinds"] is not None and (left := set(case_lib.KINDS) - set(settings["kinds"])):
        found.append(f"kinds of cases: {', '.join(sorted(left))}")
    found += missing_pairs(record["coverage"])
    answered, judged = collections.Counter[str](), set()
    for case in cases:
        judged |= set(case["evidence"])
        answered.update(role for role, holds in case["evidence"].items() if holds)
    if blind := sorted(judged - set(answered)):
        found.append(f"outputs without evidence: {', '.join(blind)}")
    return found


def missing_pairs(of_ops: Sequence[record_lib.CoverageRecord]) -> list[str]:
    """The pairs that no case had, a sentence for each op."""
    found = []
    for entry in of_ops:
        if missing := entry["missing"]:
            of = f"{len(missing)} of {entry['pairs']} pairs of {entry['op']}"
            more = len(missing) - _EXAMPLES
            examples = "; ".join(missing[:_EXAMPLES]) + (f", and {more} more" if more > 0 else "")
            found.append(f"{of}: {examples}")
    return found


def covered(of_ops: Sequence[record_lib.CoverageRecord]) -> str:
    """The pairs that the cases had, in one sentence."""
    pairs = sum(entry["pairs"] for entry in of_ops)
    missing = sum(len(entry["missing"]) for entry in of_ops)
    return (
        f"covered: {pairs - missing} of {pairs} pairs of element type, layout, mode, kind of "
        "inputs, statistics, epsilon, channels, inner size, rows"
    )
