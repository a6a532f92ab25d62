"""The list of known divergences (known_divergences.toml) and what a run has shown of it."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.mapping import tomllib
from tf_bn_ops.conformance.execution.implementations import ANY_PATH
from tf_bn_ops.conformance.verdict.result import Disagreement

_FILE = pathlib.Path(__file__).with_name("known_divergences.toml")


@dataclasses.dataclass
class Divergence:
    """An entry of the file, and how often its cases were run and showed it."""

    name: str
    what: str
    reason: str
    when: Mapping[str, list[Any]]
    detail: str = ""
    may_hide: bool = False
    covered: int = 0
    shown: int = 0

    @classmethod
    def of(
        cls, name: str, what: Sequence[str], when: Sequence[Mapping[str, Any]], **fields: Any
    ) -> Iterator[Divergence]:
        """The entries of an item of the file."""
        for number, (one, cases) in enumerate(itertools.product(what, when), start=1):
            its_name = name if number == 1 else f"{name}-{number}"
            conditions = {key: value for key, value in cases.items() if key != "may_hide"}
            may_hide = cases.get("may_hide", False)
            yield cls(its_name, one, when=conditions, may_hide=may_hide, **fields)

    @property
    def is_unwritten(self) -> bool:
        """Whether it is about an output that is not written, whose values say nothing."""
        return self.what.startswith("unwritten:")

    @property
    def is_about_values(self) -> bool:
        """Whether it speaks of values, which the candidate's alone are judged for."""
        return self.what.startswith("values:")

    def covers(self, path: str, case: Case, mode: str = "") -> bool:
        """Whether this case on this path, in this further execution mode, is one of its cases."""
        values = {
            "path": path,
            "op": case.op,
            "dtype": case.dtype,
            "layout": case.layout,
            "mode": case.mode,
            "kind": case.kind,
            "execution": mode or case.execution_modes[0],
            "rank": spec.LAYOUTS[case.layout][0],
            "empty": case.is_empty,
        }
        # It speaks of results: a case without values has none.
        if not case.compares_values and "kind" not in self.when:
            return False
        if self.what.partition(":")[2] not in ("", *(arg.role for arg in case.spec.outputs)):
            return False
        # A device's own kernels may depart as any path of the built-in does.
        given = {k: v for k, v in self.when.items() if k != "path" or path != ANY_PATH}
        return all(values[key] in allowed for key, allowed in given.items())

    def explains(self, disagreement: Disagreement) -> bool:
        return self.what == disagreement.what and self.detail in disagreement.detail


class Register:
    """All known divergences, through one run."""

    def __init__(self, entries: list[Divergence]):
        self.entries = entries

    @classmethod
    def load(cls) -> Register:
        """The entries of the file."""
        content = tomllib.loads(_FILE.read_text(encoding="utf-8"))
        return cls([entry for item in content["divergence"] for entry in Divergence.of(**item)])

    def unwritten(self, path: str, case: Case, mode: str = "") -> frozenset[str]:
        """The outputs of a case that are known not to be written on a path."""
        return frozenset(
            entry.what.partition(":")[2]
            for entry in self.entries
            if entry.is_unwritten and entry.covers(path, case, mode)
        )

    def unexplained(
        self,
        path: str,
        case: Case,
        disagreements: Sequence[Disagreement],
        mode: str = "",
        judged: bool = True,
    ) -> list[Disagreement]:
        """Notes what a case showed on a path, perhaps in a further execution mode; returns what no
        entry explains. What is not written counts as shown wherever it is covered: nobody looks.
        `judged`: whether wrong values are among the disagreements."""
        left = list(disagreements)
        for entry in self.entries:
            if not entry.covers(path, case, mode) or (entry.is_about_values and not judged):
                continue
            explained = [d for d in left if entry.explains(d)]
            if path == ANY_PATH and not explained:
                continue  # Nor is it stale where a device does better.
            entry.covered += 1
            if explained or entry.is_unwritten:
                entry.shown += 1
                left = [d for d in left if d not in explained]
        return left
