"""A case: one call of one op, fully determined by a short string.

    FusedBatchNormGradV3,half,NHWC,2x3x4x5,training,normal,batch,eps=0.001,eager,seed=17

Op, dtype, layout, shape, mode, kind of inputs
(models/inputs.py), where mean and variance come from ("batch": the statistics of x; "given":
others), epsilon, execution modes (execution_modes.py: "eager", "graph", or several joined by "+"
whose results have to be bitwise identical), seed. Kinds "error/..." are described in contract.py.

generate.py parses such strings, and draws cases.
"""

from __future__ import annotations

import dataclasses
import math

from tf_bn_ops.harness.problems import Call, Inputs

# Kind of cases -> what they are; --kinds names them.
KINDS = {
    (RANDOM := "random"): "--cases of them, with values to compare",
    (CONTRACT := "contract"): "malformed calls, a tenth as many, all without random ones",
    (FOREIGN_SHAPES := "foreign_shapes"): "shapes on which other libraries failed",
}

STATISTICS = ("batch", "given")
# How kinds begin whose inputs no formula model draws.
ERROR_PREFIX = "error/"
# The execution mode in which a gradient and x are one tensor.
ALIAS = "alias"


@dataclasses.dataclass(frozen=True)
class Case(Call):
    """One call of one op. `str(case)` is its name, `generate.parse` the inverse.

    Attributes:
      execution: execution modes, joined by "+".
    """

    execution: str = "eager"

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return (
            f"{self.op},{self.dtype},{self.layout},{shape},{self.mode},{self.kind},"
            f"{self.statistics},eps={self.epsilon!r},{self.execution},seed={self.seed}"
        )

    @property
    def op(self) -> str:
        return self.spec.name

    @property
    def compares_values(self) -> bool:
        """Whether its outputs are compared with the right ones."""
        return not self.kind.startswith(ERROR_PREFIX)

    @property
    def execution_modes(self) -> tuple[str, ...]:
        """The modes: the first is judged, the others have to give bitwise identical results."""
        return tuple(self.execution.split("+"))

    @property
    def aliased(self) -> bool:
        return ALIAS in self.execution_modes

    @property
    def is_empty(self) -> bool:
        return math.prod(self.shape) == 0


@dataclasses.dataclass(frozen=True)
class Problem:
    """A case with its inputs, which need not be drawn from its seed."""

    case: Case
    inputs: Inputs
