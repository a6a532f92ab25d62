"""Verifies a result after timing: all three outputs against float64, within error bounds.

Oracle and bounds are those of tf_bn_ops/harness: profile strict for this library's op, textbook for
peers. Large tensors are verified in some channels, each of them in full.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from tf_bn_ops.bench import data
from tf_bn_ops.bench.shapes import Row
from tf_bn_ops.harness import formula_models
from tf_bn_ops.harness.batch_norm_grad import OUTPUTS
from tf_bn_ops.harness.problems import VIEW_ROLES, Problem

# Elements to verify in a row; at least one channel.
_ELEMENTS = 1 << 17


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The largest error in units of its bound, and what is wrong if it is above 1."""

    error: float
    wrong: str | None


class Verifier:
    """The right answer for some channels of a row."""

    def __init__(self, row: Row):
        outer, channels, inner = row.view
        count = min(channels, max(1, _ELEMENTS // (outer * inner)))
        rng = np.random.default_rng(zlib.crc32(str(row).encode()))
        self.channels = np.sort(rng.choice(channels, count, replace=False))
        values = {name: value[self.channels] for name, value in data.statistics(channels).items()}
        for role in ("y_backprop", "x"):
            values[role] = data.channels_of(role, row.dtype, row.view, self.channels)
        epsilon = float(np.float32(data.EPSILON))
        self._problem = Problem(values, epsilon, row.mode == "training")

    def judge(self, outputs: Sequence[np.ndarray], profile: str) -> Verdict:
        """Judges x_backprop [outer, channels, inner], scale_backprop and offset_backprop of the
        channels `self.channels`; `profile` is a name of bounds.PROFILES."""
        by_role = dict(zip(OUTPUTS, outputs, strict=True))
        for role, output in by_role.items():
            dtype = self._problem.type_of(role).numpy
            if role in VIEW_ROLES and output.dtype != dtype:
                return Verdict(np.inf, f"{role} has dtype {output.dtype}")
            shape = self._problem.view if role in VIEW_ROLES else self._problem.view[1:2]
            if output.shape != shape:
                return Verdict(np.inf, f"{role} has shape {output.shape}")
        errors = formula_models.errors(self._problem, by_role, profile)
        worst = max(error.bound for error in errors.values())
        wrong = [f"{r} {e.bound:.3g} times its bound" for r, e in errors.items() if e.bound > 1]
        return Verdict(worst, ", ".join(wrong) or None)
