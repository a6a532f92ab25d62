"""The inputs of the parts of synchronised batch normalization.

They are drawn as for the ops that compute both passes (batch_norm_inputs.py,
batch_norm_grad_ex_inputs.py); statistics are float64, so that no mean is rounded. What the case's
string does not say, its seed decides: the activation, whether there is a side input, whether y is
given, and how many other batches the sums of BatchNormBackwardElemt are over.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import (
    batch_norm_grad_ex,
    batch_norm_grad_ex_inputs,
    batch_norm_inputs,
    inputs,
)
from tf_bn_ops.conformance.models.batch_norm import activated
from tf_bn_ops.harness.problems import IDENTITY, Call, Inputs, Problem, of_call

# The batches that sums are over, in sizes of the one at hand; powers of two keep sums exact.
_BATCHES = (1.0, 1.0, 2.0, 4.0, 3.5)


def _frozen(call: Call) -> Inputs:
    """Inputs of the forward ops that all are read."""
    return batch_norm_inputs.fill(dataclasses.replace(call, mode="frozen"))


def fill_stats(call: Call) -> Inputs:
    """The inputs of BatchNormStats."""
    # In training half of a channel's elements of an exact fill are as far above its mean as the
    # others are below.
    found = batch_norm_inputs.fill(call)
    exact = found.exact & {"saved_mean", "saved_variance"}
    names = {"saved_mean": "local_mean", "saved_variance": "local_m2"}
    return dataclasses.replace(found, exact=frozenset(names[role] for role in exact))


def fill_elemt(call: Call) -> Inputs:
    """The inputs of BatchNormElemt."""
    found = _frozen(call)
    return dataclasses.replace(found, exact=found.exact & {"y"})


def y_of_elemt(problem: Problem) -> np.ndarray:
    """The y that BatchNormElemt computes without a side input, bit by bit: the mask from x is the
    mask from this y."""
    compute = spec.DTYPES[problem.dtype.accumulator].numpy.type
    mean, variance, scale = (
        problem.wide(role, np.float64) for role in ("mean", "variance", "scale")
    )
    coefficients = inputs.forward_coefficients(mean, variance, scale, problem.epsilon, compute)
    v = batch_norm_grad_ex_inputs.before_activation(
        problem["x"], coefficients, problem["offset"], problem.dtype
    )
    with np.errstate(over="ignore"):
        return problem.dtype.store(activated(v, problem.activation_kind))


def masked_problems(problem: Problem) -> tuple[Problem, Problem]:
    """The problem with the y that its mask is taken from, and the plain gradient's problem."""
    y = problem.values.get("y")
    if y is None:
        y = problem["x"]
        if problem.activation != IDENTITY:
            y = y_of_elemt(problem)
    own = ("x", "y_backprop", "scale", "offset", "mean", "variance")
    values = {role: problem[role] for role in own} | {"y": y}
    with_y = dataclasses.replace(problem, values=values, part="")
    return with_y, batch_norm_grad_ex.masked_problem(with_y)


def fill_backward_reduce(call: Call) -> Inputs:
    """The inputs of BatchNormBackwardReduce; without y where that is what x gives."""
    found = batch_norm_grad_ex_inputs.fill(call)
    values = dict(found.values)
    rng = np.random.default_rng([call.seed, 13])
    coefficients = values.pop("forward_coefficients")
    from_x = coefficients.ndim == 2 and len(coefficients) == spec.ops.NUM_FORWARD_COEFFICIENTS
    from_x = from_x and not found.attrs["num_side_inputs"]
    if found.attrs["activation_mode"] == IDENTITY:
        from_x = True
    if from_x and rng.random() < 0.6:
        del values["y"]
    exact = set(found.exact & {"scale_backprop", "offset_backprop"})
    if exact:
        exact |= {"local_sum_dy", "local_sum_dy_xmu"}
    return dataclasses.replace(found, values=values, exact=frozenset(exact))


def fill_backward_elemt(call: Call) -> Inputs:
    """The inputs of BatchNormBackwardElemt, with the sums of the batch at hand and of others like
    it."""
    found = fill_backward_reduce(call)
    rng = np.random.default_rng([call.seed, 17])
    batches = float(rng.choice(_BATCHES))
    problem = of_call(call, found)
    outer, _, inner = problem.view
    _, masked = masked_problems(problem)
    wide = {role: masked.wide(role, np.float64) for role in ("y_backprop", "x", "mean")}
    with np.errstate(all="ignore"):
        xmu = wide["x"] - wide["mean"][:, None]
        sums = wide["y_backprop"].sum((0, 2)), (wide["y_backprop"] * xmu).sum((0, 2))
        totals = [total * batches for total in sums]
    values = {
        **found.values,
        "sum_dy": totals[0],
        "sum_dy_xmu": totals[1],
        "count": np.asarray(float(max(outer * inner, 1) * batches)),
    }
    exact = found.exact and frozenset({"x_backprop"})
    rows = outer * inner
    # As batch_norm_grad's exact fills: x_backprop divides by a power of two.
    if batches == 3.5 or rows * batches > 1024 or rows == 0 or rows & (rows - 1):
        exact = frozenset()
    if found.exact and found.attrs["num_side_inputs"]:
        exact |= {"side_input_backprop"}
    return dataclasses.replace(found, values=values, exact=exact)
