"""What a run is judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import OTHER_KERNELS
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.spec import OpSpec


@dataclasses.dataclass
class Settings:
    """What a run is judged by.

    Attributes:
      profile: the bounds.
      known: the known divergences.
      path: the name that the candidate has in the list of them.
      exempt: execution modes in which the candidate is exempt from the bitwise check.
      drop_in: every detail of its errors counts.
      mapped: the names of another library's ops, by the op that they claim to equal.
    """

    profile: bounds.Profile
    known: divergences.Register
    path: str = CANDIDATE
    exempt: Collection[str] = ()
    drop_in: bool = False
    mapped: Mapping[str, OpMapping] | None = None

    def exempt_in(self, case: Case) -> Collection[str]:
        """The execution modes of a case that are exempt from the bitwise check."""
        return self.exempt if case.spec.xla_calls_kernel else {*self.exempt, *OTHER_KERNELS}

    def times(self, case: Case) -> Mapping[str, float]:
        """Output -> how many times the bound a mapping file allows for it."""
        entry = (self.mapped or {}).get(case.op)
        return entry.times_bound(case.dtype) if entry else {}

    def names(self, op: OpSpec) -> list[str]:
        """The names that an op goes by in errors."""
        mapped = (self.mapped or {}).get(op.name)
        names = [op.registered_name, op.name]
        names += [mapped.name] if mapped else []
        return [*names, *(name.replace(">", "_") for name in names)]
