"""Checks a result after timing against the formula models of the conformance run, large tensors in
some channels.

This library's outputs have to meet what it promises: the gradient of a layer is the one of x's own
mean and variance, in float64. A peer's have to meet what an honest float32 implementation does: its
gradient is the one of the statistics that its forward call saved, rounded, and it may also round
before the addition of a side input. Behind ReLU both have the mask of the y that was returned.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from bench.rows import EPSILON, Row
from tf_bn_ops.conformance.models import batch_norm, inputs
from tf_bn_ops.conformance.models.bounds import PROFILES
from tf_bn_ops.conformance.models.formula_models import MODELS
from tf_bn_ops.conformance.models.measure import Expected, errors_of
from tf_bn_ops.harness.problems import VIEW_ROLES, Problem

_ELEMENTS = 1 << 17  # To check in a row; at least one channel.


def channels_to_check(row: Row) -> np.ndarray:
    """The same ones in every run."""
    outer, channels, inner = row.view
    count = min(channels, max(1, _ELEMENTS // (outer * inner)))
    rng = np.random.default_rng(zlib.crc32(str(row).encode()))
    return np.sort(rng.choice(channels, count, replace=False))


def problems_of(
    row: Row, channels: np.ndarray, outputs: Mapping[str, np.ndarray], precise: bool
) -> Iterator[Problem]:
    """What a call computes for some channels: forward, then gradient, which gets the outputs;
    `precise`: of the statistics, what the forward op would keep of the exact ones."""
    values = {role: array[channels] for role, array in row.statistics().items()}
    for role, array in row.tensors().items():
        values[role] = np.ascontiguousarray(array.reshape(row.view)[:, channels])
    y_backprop, epsilon = values.pop("y_backprop"), float(np.float32(EPSILON))
    problem = Problem(values, epsilon, row.mode == "training")
    problem.activation = "Relu" if row.call.activated else "Identity"
    problem.saves_rstd = "saved_rstd" in outputs
    if row.call.forward:
        yield problem
    if not row.call.gradient:
        return
    values = {role: values[role] for role in ("x", "scale", "offset", "mean", "variance")}
    values["y_backprop"] = y_backprop
    if row.call.forward and problem.is_training:
        saved = "saved_rstd" if problem.saves_rstd else "saved_variance"
        values |= {"mean": outputs["saved_mean"], "variance": outputs[saved]}
        if precise:
            values["forward_coefficients"] = _kept(problem)
            rows = inputs.rows_of(values["forward_coefficients"], np.float32)
            # The oracle reads the rests, too.
            values |= {"mean": rows["mean"], "variance": rows["saved_variance"]}
    if row.call.activated:
        values["y"] = outputs["y"]
    gradient = dataclasses.replace(problem, values=values, num_side_inputs=int(row.call.adds))
    gradient.variance_is_rstd = problem.saves_rstd
    yield gradient


def _kept(problem: Problem) -> np.ndarray:
    """What the forward op keeps for the gradient, of the statistics of x in float64."""
    of = batch_norm.Oracle(problem).of_batch(around_zero=False)
    scale, epsilon = problem.wide("scale", np.float64), problem.epsilon
    return inputs.forward_coefficients(
        of.mean + of.rest, of.variance, scale, epsilon, np.float32, problem.saves_rstd
    )


def _expected(problem: Problem, precise: bool) -> Iterator[Expected]:
    """The parts of the right answer with their bounds; of rstd by the name of the output."""
    for part in MODELS[problem.formula].expected(
        problem, PROFILES["strict" if precise else "textbook"]
    ):
        if part.role == "y" and "side_input" in problem.values and not precise:
            twice = 2 * problem.dtype.unit_roundoff * part.magnitude
            part = dataclasses.replace(part, bound=part.bound + twice)
        if part.role == "saved_variance" and problem.saves_rstd:
            part = dataclasses.replace(part, role="saved_rstd")
        yield part


def what_is_wrong(
    row: Row, channels: np.ndarray, outputs: Mapping[str, np.ndarray], precise: bool
) -> str | None:
    """What is wrong with the outputs of some channels, tensors as [outer, channels, inner]; None if
    nothing is. `precise`: as this library computes, not as a peer may."""
    for problem in problems_of(row, channels, outputs, precise):
        parts = list(_expected(problem, precise))
        for role in dict.fromkeys(part.role for part in parts):
            if role in outputs:
                given, like = outputs[role], problem["x" if role in VIEW_ROLES else "scale"]
                if (given.shape, given.dtype) != (like.shape, like.dtype):
                    return f"{role} is {given.dtype} {given.shape}, not {like.dtype} {like.shape}"
            elif not role.startswith("batch_"):  # Moving averages, which PyTorch lacks.
                return f"{role} is missing"
        dtypes = {role: problem.type_of(role) for role in outputs}
        for role, error in errors_of(outputs, parts, dtypes).items():
            if error.bound > 1:
                return f"{role} is wrong {error.worst}"
    return None
