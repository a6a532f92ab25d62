"""The list of known divergences (known_divergences.toml) and what a run has shown of it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
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
    machine_dependent: bool = False
    data_dependent: bool = False
    covered: int = 0
    shown: int = 0

    @property
    def may_hide(self) -> bool:
        """Whether cases that it covers need not show it."""
        return self.machine_dependent or self.data_dependent

    @property
    def is_unwritten(self) -> bool:
        """Whether it speaks of an output that is not written, whose values say nothing."""
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
        # It speaks of results: of a case without values there are none, a relation compares some.
        has_results = case.compares_values or (
            case.checks_relation and not self.is_about_values and not self.is_unwritten
        )
        if not has_results and "kind" not in self.when:
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
        return cls([Divergence(**item) for item in content["divergence"]])

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
        """Notes what a case showed on a path; returns what no entry explains. What is not written
        counts as shown wherever it is covered: nobody looks.

        Args:
          path: as in the file.
          case: the case.
          disagreements: what it showed.
          mode: the further execution mode in which it did, if it was one.
          judged: whether wrong values are among the disagreements.
        """
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
