"""Verifies a result after timing: all outputs against float64, within error bounds.

Oracle and bounds are those of tf_bn_ops/harness: profile strict for this library's ops, textbook
for peers. Large tensors are verified in some channels, each of them in full. The gradient of a
layer is judged for the statistics that its forward call saved, which are judged themselves; behind
ReLU with the mask of the y that it returned, and the gradient of a side input is the masked
y_backprop. A peer may round between batch norm and the addition of a side input.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.bench import data
from tf_bn_ops.bench.bench_rows import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, Row
from tf_bn_ops.harness.bounds import PROFILES, flushed_below
from tf_bn_ops.harness.measure import Expected, OutputError, errors_of
from tf_bn_ops.harness.models import batch_norm, batch_norm_grad, batch_norm_grad_ex, formula_models
from tf_bn_ops.harness.problems import IDENTITY, RELU, VIEW_ROLES, Problem

# Elements to verify in a row; at least one channel.
_ELEMENTS = 1 << 17

# What a call has to return; forward calls may return more of the statistics.
_REQUIRED = {
    GRADIENT: batch_norm_grad.OUTPUTS,
    FORWARD: ("y",),
    LAYER: ("y", "saved_mean", *batch_norm_grad.OUTPUTS),
    LAYER_RELU: ("y", "saved_mean", *batch_norm_grad.OUTPUTS),
    LAYER_ADD_RELU: ("y", "saved_mean", *batch_norm_grad_ex.BatchNormGradEx.outputs),
}
_FORWARD_INPUTS = ("x", "scale", "offset", "mean", "variance")
_GRADIENT_INPUTS = ("y_backprop", "x", "scale", "mean", "variance")


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
        for role in row.inputs:
            values[role] = data.channels_of(role, row.dtype, row.view, self.channels)
        self._row, self._values = row, values
        self._added = tuple(role for role in row.inputs if role not in _GRADIENT_INPUTS)

    def _problem(
        self, roles: tuple[str, ...], given: Mapping[str, np.ndarray], is_rstd: bool
    ) -> Problem:
        """The problem of the inputs `roles`, of which `given` replaces some. `is_rstd`: rstd is
        saved and given in place of the variance."""
        return Problem(
            {role: given[role] if role in given else self._values[role] for role in roles},
            float(np.float32(data.EPSILON)),
            self._row.mode == "training",
            variance_is_rstd=is_rstd,
            saves_rstd=is_rstd,
            activation=RELU if self._row.activated else IDENTITY,
            num_side_inputs=len(self._added),
        )

    def _malformed(self, outputs: Mapping[str, np.ndarray]) -> str | None:
        """What is wrong with the shapes and types, if anything is."""
        for role in _REQUIRED[self._row.call]:
            if role not in outputs:
                return f"{role} is missing"
        problem = self._problem(_GRADIENT_INPUTS, {}, False)
        for role, output in outputs.items():
            dtype = problem.type_of(role).numpy
            if role in VIEW_ROLES and output.dtype != dtype:
                return f"{role} has dtype {output.dtype}"
            shape = problem.view if role in VIEW_ROLES else problem.view[1:2]
            if output.shape != shape:
                return f"{role} has shape {output.shape}"
        return None

    def judge(self, outputs: Mapping[str, np.ndarray], profile: str) -> Verdict:
        """Judges outputs by role, of the channels `self.channels`: tensors as [outer, channels,
        inner]; `profile` is a name of bounds.PROFILES."""
        if malformed := self._malformed(outputs):
            return Verdict(np.inf, malformed)
        by_role = dict(outputs)
        is_rstd = "saved_rstd" in by_role
        if is_rstd:  # cuDNN's convention.
            by_role["saved_variance"] = by_role.pop("saved_rstd")
        parts: list[tuple[Problem, tuple[str, ...]]] = []
        if self._row.call != GRADIENT:
            problem = self._problem((*_FORWARD_INPUTS, *self._added), {}, is_rstd)
            parts.append((problem, batch_norm.OUTPUTS))
        if self._row.call != FORWARD:
            given = {
                role: by_role[f"saved_{role}"]
                for role in ("mean", "variance")
                if f"saved_{role}" in by_role
            }
            masked_by: tuple[str, ...] = ()
            if self._row.activated:
                given["y"], masked_by = by_role["y"], ("y",)
            problem = self._problem((*_GRADIENT_INPUTS, *masked_by), given, is_rstd)
            parts.append((problem, batch_norm_grad_ex.BatchNormGradEx.outputs))
        bounds: dict[str, float] = {}
        for problem, outputs_of in parts:
            judged = {role: by_role[role] for role in outputs_of if role in by_role}
            errors = _errors(problem, judged, profile)
            bounds |= {role: error.bound for role, error in errors.items()}
        wrong = [
            f"{role} {bound:.3g} times its bound" for role, bound in bounds.items() if bound > 1
        ]
        return Verdict(max(bounds.values()), ", ".join(wrong) or None)


def _errors(
    problem: Problem, outputs: Mapping[str, np.ndarray], profile: str
) -> dict[str, OutputError]:
    """formula_models.errors, of a chain of ops where the profile is that of peers."""
    if profile == "strict" or problem.formula != spec.ops.BATCH_NORM_ADD:
        return formula_models.errors(problem, outputs, profile)
    types = {role: problem.type_of(role) for role in outputs}
    return errors_of(outputs, _of_chain(problem, profile), types)


def _of_chain(problem: Problem, profile: str) -> Iterator[Expected]:
    """What is expected where batch norm's result z is rounded before the side input is added: y is
    off by z's error, its rounding included, and by its own rounding."""
    values = {role: array for role, array in problem.values.items() if role != "side_input"}
    alone = dataclasses.replace(problem, values=values, activation=IDENTITY)
    model, dtype = formula_models.MODELS[problem.formula], problem.dtype
    both = (model.expected(p, PROFILES[profile]) for p in (problem, alone))
    for part, of_z in zip(*both, strict=True):
        if part.role != "y":
            yield part
            continue
        rounding = dtype.unit_roundoff * (np.abs(part.value) + of_z.bound) + flushed_below(dtype)
        yield dataclasses.replace(part, bound=np.maximum(part.bound, of_z.bound + rounding))
