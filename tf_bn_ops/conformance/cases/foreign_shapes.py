"""Shapes on which batch norm of other libraries failed, as cases of every whole run.

A wrong result or a crash that was reported once comes back in another library: in kernels whose
grid or workspace grows with a product of dimensions, that tile rows of one size, or take N for H*W.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case

NHWC, NCHW = "NHWC", "NCHW"


@dataclasses.dataclass(frozen=True)
class ForeignShape:
    """A shape (N, C, H, W) with the layouts and element type that it is run in; `only`: the one
    formula of a large shape, which costs seconds."""

    shape: tuple[int, int, int, int]
    layouts: tuple[str, ...] = (NHWC, NCHW)
    dtype: str = "float32"
    only: str = ""

    def in_layout(self, layout: str) -> tuple[int, ...]:
        n, c, h, w = self.shape
        return (n, h, w, c) if layout == NHWC else self.shape


SHAPES = (
    # Layers of Inception.
    ForeignShape((16, 64, 147, 147), (NHWC,), only=spec.ops.BATCH_NORM_GRAD),
    ForeignShape((16, 80, 73, 73), (NCHW,), only=spec.ops.BATCH_NORM),
    ForeignShape((16, 96, 35, 35)),
    # Half: sums of 50,176 numbers for each of many channels.
    ForeignShape((256, 1024, 14, 14), (NCHW,), "half", spec.ops.BATCH_NORM_GRAD),
    # Behind a dense layer: N alone is what is summed over.
    ForeignShape((769, 64, 1, 1)),
    ForeignShape((1024, 10, 1, 1), dtype="half"),
    # One channel more than a warp or a cache line has twice.
    ForeignShape((1, 65, 100, 100), (NHWC,)),
    # Layer normalization as batch norm of [1, rows, depth, 1]: the rows are the channels.
    ForeignShape((1, 512, 768, 1), (NCHW,)),
    ForeignShape((1, 4096, 64, 1), (NCHW,)),
)


def generate(combos: Sequence[tuple[str, str, str, str]]) -> Iterator[Case]:
    """Every shape in training, once for every formula and layout; ops of a formula take turns."""
    training = [combo for combo in combos if combo[3] == spec.MODES[0]]
    for number, foreign in enumerate(SHAPES):
        for layout in foreign.layouts:
            fitting = [c[0] for c in training if c[1:3] == (foreign.dtype, layout)]
            for formula in dict.fromkeys(spec.OPS[op].formula for op in fitting):
                if foreign.only not in ("", formula):
                    continue
                ops = [op for op in fitting if spec.OPS[op].formula == formula]
                op = spec.OPS[ops[number % len(ops)]]
                yield Case(
                    op, foreign.dtype, "normal", number, layout, foreign.in_layout(layout),
                    spec.MODES[0], "batch", 1e-3,
                )  # fmt: skip
