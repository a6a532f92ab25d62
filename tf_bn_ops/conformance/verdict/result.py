"""The result of a case: disagreements with the contract, errors of values, evidence."""

from __future__ import annotations

import dataclasses

from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.models.measure import OutputError

# How the sentence about two execution modes begins.
BITS_DIFFER = "bits differ"


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """A difference from the op's contract.

    Attributes:
      what: "error", "crash", "count", "shape:ROLE", "dtype:ROLE", "values:ROLE" or "changed-input";
        of malformed calls "accepted", "code", "message" or "crash".
      detail: for people.
    """

    what: str
    detail: str

    def __str__(self) -> str:
        """The detail has the name that an output goes by, which need not be its role."""
        return f"{self.what.partition(':')[0]}: {self.detail}"


@dataclasses.dataclass
class PathResult:
    """One implementation in one case; a further execution mode of the candidate whose results
    differ bitwise is a path of its own, "candidate:MODE".

    Attributes:
      disagreements: what is not about values.
      wrong_values: of the candidate, a sentence for each output beyond its bound.
      errors: output -> its error.
    """

    disagreements: list[Disagreement] = dataclasses.field(default_factory=list)
    wrong_values: list[Disagreement] = dataclasses.field(default_factory=list)
    errors: dict[str, OutputError] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class CaseResult:
    """Everything about one case.

    Attributes:
      case: its outputs have the names that reports call them by.
      paths: implementation -> its result; the candidate is "candidate".
      evidence: output -> whether wrong-on-purpose answers would have failed.
      failures: why the case fails, one sentence each; the runner adds structure.
      modes: (implementation, further execution mode) -> "same", "differs" or "unsupported".
      notes: what is worth knowing and fails nothing.
    """

    case: Case
    paths: dict[str, PathResult]
    evidence: dict[str, bool]
    failures: list[str] = dataclasses.field(default_factory=list)
    modes: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def name_of(self, role: str) -> str:
        """What reports call an output."""
        return next((arg.name for arg in self.case.spec.outputs if arg.role == role), role)
