"""A case: one call of one op, fully determined by a short string.

    FusedBatchNormGradV3,half,NHWC,2x3x4x5,training,normal,batch,eps=0.001,eager,seed=17
    Softplus,dtype=float32,kind=uniform,call=eager,seed=17,n=3

The first form is that of batch-norm ops: op, dtype, layout, shape, mode, kind of inputs
(harness/inputs.py), where mean and variance come from ("batch": the statistics of x; "given":
others), epsilon, execution modes (execution/modes.py: "eager", "graph", or several joined by "+"
whose results have to be bitwise identical), seed. Kinds "error/..." and "static/..." are described
in contract.py, kinds "digits/..." in real_inputs.py, kinds "relation/..." in relations/, kinds
"advisory/..." in advisories.py. The second form is that of any other op of a mapping file; sizes
and attrs come last.

generate.py parses both, and draws cases.
"""

from __future__ import annotations

import dataclasses
import math

from tf_bn_ops.harness.problems import Call, Inputs

STATISTICS = ("batch", "given")
# How kinds begin whose inputs no formula model draws.
REAL_PREFIX = "digits/"
ERROR_PREFIX = "error/"
STATIC_PREFIX = "static/"
RELATION_PREFIX = "relation/"
ADVISORY_PREFIX = "advisory/"
# The execution mode in which a gradient and x are one tensor.
ALIAS = "alias"


class CaseError(ValueError):
    """A case string that is invalid; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Case(Call):
    """One call of one op. `str(case)` is its name, `generate.parse` the inverse.

    Attributes:
      execution: execution modes, joined by "+".
    """

    execution: str = "eager"

    def __str__(self) -> str:
        if not self.layout:
            pairs = [("dtype", self.dtype), ("kind", self.kind), ("call", self.execution)]
            pairs += [("seed", str(self.seed)), *self.choices]
            return ",".join([self.op, *(f"{name}={value}" for name, value in pairs)])
        shape = "x".join(map(str, self.shape))
        return (
            f"{self.op},{self.dtype},{self.layout},{shape},{self.mode},{self.kind},"
            f"{self.statistics},eps={self.epsilon!r},{self.execution},seed={self.seed}"
        )

    @property
    def op(self) -> str:
        return self.spec.name

    @property
    def is_real(self) -> bool:
        return self.kind.startswith(REAL_PREFIX)

    @property
    def expects_error(self) -> bool:
        return self.kind.startswith(ERROR_PREFIX)

    @property
    def checks_static_shapes(self) -> bool:
        return self.kind.startswith(STATIC_PREFIX)

    @property
    def checks_relation(self) -> bool:
        return self.kind.startswith(RELATION_PREFIX)

    @property
    def is_advisory(self) -> bool:
        return self.kind.startswith(ADVISORY_PREFIX)

    @property
    def is_for_one(self) -> bool:
        """Whether the candidate answers it alone."""
        return self.checks_relation or self.is_advisory

    @property
    def compares_values(self) -> bool:
        """Whether its outputs are held against the right ones."""
        return not (self.expects_error or self.checks_static_shapes or self.is_for_one)

    @property
    def execution_modes(self) -> tuple[str, ...]:
        """The first is judged, the others have to give bitwise identical results."""
        return tuple(self.execution.split("+"))

    @property
    def aliased(self) -> bool:
        return ALIAS in self.execution_modes

    @property
    def is_empty(self) -> bool:
        return math.prod(self.shape) == 0


@dataclasses.dataclass(frozen=True)
class Problem:
    """A case with its inputs, which need not be those of its seed."""

    case: Case
    inputs: Inputs

    @property
    def size(self) -> int:
        return math.prod(self.case.shape)
