"""What a run is judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import OTHER_KERNELS
from tf_bn_ops.conformance.execution.implementations import Implementation, own
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.spec import OpSpec


@dataclasses.dataclass
class Settings:
    """What a run is judged by: the bounds, the known divergences, what the candidate claims."""

    profile: bounds.Profile
    known: divergences.Register
    candidate: Implementation = dataclasses.field(default_factory=own)

    def exempt_in(self, case: Case) -> Collection[str]:
        """The execution modes of a case that are exempt from the bitwise check."""
        exempt = self.candidate.exempt
        return exempt if case.spec.xla_calls_kernel else {*exempt, *OTHER_KERNELS}

    def times(self, case: Case) -> Mapping[str, float]:
        """Output -> how many times the bound a mapping file allows for it."""
        entry = self.candidate.mapping_of(case.spec)
        return entry.times_bound(case.dtype) if entry else {}

    def named(self, case: Case) -> Case:
        """The case with outputs by the names that the candidate's library gives them."""
        entry = self.candidate.mapping_of(case.spec)
        if entry is None:
            return case
        theirs = entry.outputs
        outputs = [
            dataclasses.replace(a, name=theirs.get(a.name, a.name)) for a in case.spec.outputs
        ]
        return dataclasses.replace(
            case, spec=dataclasses.replace(case.spec, outputs=tuple(outputs))
        )

    def names(self, op: OpSpec) -> list[str]:
        """The names that an op goes by in errors."""
        mapped = self.candidate.mapping_of(op)
        names = [op.registered_name, op.name]
        names += [mapped.name] if mapped else []
        return [*names, *(name.replace(">", "_") for name in names)]
