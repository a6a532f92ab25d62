"""A case: one call of one op, fully determined by a short string.

    FusedBatchNormGradV3,half,NHWC,2x3x4x5,training,normal,batch,eps=0.001,eager,seed=17

Fields: op, dtype, layout, shape, training or frozen, kind of values (fills.py), where mean and
variance come from ("batch": the statistics of x; "given": others), epsilon, how the op is called
(calls.py: "eager", "graph", or several joined by "+" that must give the same bits), seed of the
values. Kinds "error/..." and "static/..." ask for no numbers: see contract.py. Kinds "digits/..."
are captured from a network: see real_input.py.

This is what all of the harness speaks of. cases.py has the way back from a string, and chance.
"""

from __future__ import annotations

import dataclasses
import math

from tf_bn_ops import spec

STATISTICS = ("batch", "given")
# How kinds begin that are not made from the seed by fills.py.
REAL_PREFIX = "digits/"
ERROR_PREFIX = "error/"
STATIC_PREFIX = "static/"


class CaseError(ValueError):
    """A case string that says nothing that can be run; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of one op. `str(case)` is its name, `cases.parse` the way back."""

    op: str
    dtype: str
    layout: str
    shape: tuple[int, ...]
    mode: str
    kind: str
    statistics: str
    epsilon: float
    call: str
    seed: int

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return (
            f"{self.op},{self.dtype},{self.layout},{shape},{self.mode},{self.kind},"
            f"{self.statistics},eps={self.epsilon!r},{self.call},seed={self.seed}"
        )

    @property
    def spec(self) -> spec.OpSpec:
        return spec.OPS[self.op]

    @property
    def is_training(self) -> bool:
        return self.mode == "training"

    @property
    def kernel_epsilon(self) -> float:
        """Epsilon as the kernel gets it: a `float` attr rounds it."""
        return float(spec.DTYPES[self.spec.epsilon_dtype].numpy.type(self.epsilon))

    @property
    def is_real(self) -> bool:
        return self.kind.startswith(REAL_PREFIX)

    @property
    def asks_for_error(self) -> bool:
        return self.kind.startswith(ERROR_PREFIX)

    @property
    def asks_for_static_shapes(self) -> bool:
        return self.kind.startswith(STATIC_PREFIX)

    @property
    def asks_for_values(self) -> bool:
        return not self.asks_for_error and not self.asks_for_static_shapes

    @property
    def calls(self) -> tuple[str, ...]:
        """How the op is called; the first is judged, the others have to give the same bits."""
        return tuple(self.call.split("+"))

    @property
    def is_empty(self) -> bool:
        return math.prod(self.shape) == 0
