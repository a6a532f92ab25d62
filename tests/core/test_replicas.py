"""What is special to the parts of synchronised batch normalization, through the C ABI.

Promised besides what test_every_formula.py holds of each part: with one replica the
parts are bitwise the ops that compute both passes, in element types up to float32; combined
statistics are those of Chan's formula in rank order, bit by bit.

That any split of a batch is within the bounds of the whole is in tests/sync/test_splits.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from builds import BOUNDARY_VIEWS, problem_of
from test_plan import parse, run_verbose

from tf_bn_ops import spec
from tf_bn_ops.conformance.models.gather_stats import chan, random_parts
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import Stats
from tf_bn_ops.harness.problems import IDENTITY, RELU, RELU6, Problem, random_forward_problem
from tf_bn_ops.spec import DTYPES

# ---- The parts, as functions of arrays -----------------------------------------------------------


class Sums(NamedTuple):
    """The sums of the gradient over a batch, and the gradients of its scale and offset."""

    sum_dy: np.ndarray
    sum_dy_xmu: np.ndarray
    scale_backprop: np.ndarray
    offset_backprop: np.ndarray


def stats(x: np.ndarray) -> Stats:
    """BatchNormStats."""
    out = c_abi.run(Problem({"x": x}, part=spec.ops.BATCH_NORM_STATS))
    return Stats(out["local_count"], out["local_mean"], out["local_m2"])


def elemt(
    v: Mapping[str, np.ndarray], epsilon: float, activation: str = IDENTITY, **how: Any
) -> np.ndarray:
    """BatchNormElemt of inputs by role; "side_input" may be missing."""
    roles = ("x", "side_input", "scale", "offset", "mean", "variance")
    values = {role: v[role] for role in roles if role in v}
    part = spec.ops.BATCH_NORM_ELEMT
    return c_abi.run(Problem(values, epsilon, activation=activation, part=part), **how)["y"]


GRADIENT_ROLES = ("y_backprop", "x", "y", "scale", "offset", "mean", "variance")


def backward_reduce(
    v: Mapping[str, np.ndarray], epsilon: float, activation: str = IDENTITY, **how: Any
) -> Sums:
    """BatchNormBackwardReduce of inputs by role; "y" may be missing."""
    values = {role: v[role] for role in GRADIENT_ROLES if role in v}
    part = spec.ops.BATCH_NORM_BACKWARD_REDUCE
    out = c_abi.run(Problem(values, epsilon, activation=activation, part=part), **how)
    roles = ("local_sum_dy", "local_sum_dy_xmu", "scale_backprop", "offset_backprop")
    return Sums(*(out[role] for role in roles))


def backward_elemt(
    v: Mapping[str, np.ndarray],
    sums: Sums,
    count: float,
    epsilon: float,
    activation: str = IDENTITY,
    *,
    side_input: bool = False,
    **how: Any,
) -> dict[str, np.ndarray]:
    """BatchNormBackwardElemt of inputs by role, from the sums and the count of all batches; "y" may
    be missing."""
    values = {role: v[role] for role in GRADIENT_ROLES if role in v}
    values |= {"sum_dy": sums.sum_dy, "sum_dy_xmu": sums.sum_dy_xmu}
    values["count"] = np.asarray(count, np.float64)
    problem = Problem(values, epsilon, activation=activation, num_side_inputs=int(side_input))
    problem.part = spec.ops.BATCH_NORM_BACKWARD_ELEMT
    return c_abi.run(problem, **how)


# ---- One replica ---------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [IDENTITY, RELU, RELU6])
@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float32"])
@pytest.mark.parametrize("side_input", [False, True])
def test_with_one_replica_the_forward_is_bitwise_that_of_the_fused_op(
    side_input, dtype, activation
):
    """Statistics, a gather of one, and y: of the mean no float32 result shows what float64 rounds
    off. In float64 it shows in the last bits, where the bounds of the models hold."""
    for view in BOUNDARY_VIEWS:
        whole = random_forward_problem(view, dtype, side_input=side_input, activation=activation)
        want = c_abi.run(whole)
        local = stats(whole["x"])
        gathered = c_abi.gather_stats(Stats(*(array[None] for array in local)))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(local, gathered, strict=True))
        variance = gathered.m2 / gathered.count
        for role, wide in (("saved_mean", gathered.mean), ("saved_variance", variance)):
            assert wide.astype(np.float32).tobytes() == want[role].tobytes()
        v = {**whole.values, "mean": gathered.mean, "variance": variance}
        y = elemt(v, whole.epsilon, activation)
        assert y.tobytes() == want["y"].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", BOUNDARY_VIEWS, ids=str)
def test_with_one_replica_the_gradient_is_bitwise_that_of_the_fused_op(view, dtype):
    """Given the mean and variance that the fused op has, of its own type; the mask is from x or
    from y."""
    for seed in range(8):
        problem = problem_of(spec.ops.BATCH_NORM_BACKWARD_ELEMT, view, dtype, seed=seed)
        how = {"epsilon": problem.epsilon, "activation": problem.activation}
        v = problem.values
        for role in ("scale", "offset"):
            v[role] = v[role].astype(DTYPES[problem.dtype.accumulator].numpy)
        fused = {role: v[role] for role in ("y_backprop", "x", "scale", "offset")}
        for role in ("mean", "variance"):
            fused[role] = v[role].astype(v["scale"].dtype)
            v[role] = fused[role].astype(np.float64)
        masks = [v]
        if "y" not in v:
            masks.append({**v, "y": elemt(v, **how)})
        fused["y"] = masks[-1]["y"]
        whole = Problem(fused, **how, num_side_inputs=problem.num_side_inputs)
        if not c_abi.is_op_call(whole):  # float64 behind an activation.
            continue
        want = c_abi.run(whole)
        for given in masks:
            sums = backward_reduce(given, **how)
            has_side_input = bool(problem.num_side_inputs)
            got = backward_elemt(given, sums, view[0] * view[2], **how, side_input=has_side_input)
            of_batch = {role: getattr(sums, role) for role in ("scale_backprop", "offset_backprop")}
            assert c_abi.bits({**got, **of_batch}) == c_abi.bits(want)


# ---- Chan's formula ------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [0, 1, 2, 3, 8, 512])
@pytest.mark.parametrize("channels", [0, 1, 7, 64])
def test_the_formula_in_the_order_of_the_ranks_bit_by_bit(parts, channels):
    given = random_parts(parts, channels, 1e5)
    got = c_abi.gather_stats(given)
    for a, b in zip(got, chan(given), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_parts_without_samples_are_ignored_whatever_they_hold():
    given = random_parts(6, 4, 0.0, seed=1)
    given.count[:] = [0, 5, 0, 0, 3, 0]
    kept = Stats(*(array[[1, 4]] for array in given))
    for value in (np.nan, np.inf, -1e300):
        given.mean[given.count == 0] = given.m2[given.count == 0] = value
        for a, b in zip(c_abi.gather_stats(given), c_abi.gather_stats(kept), strict=True):
            assert a.tobytes() == b.tobytes()
    given.count[:] = 0
    for array in c_abi.gather_stats(given):
        assert not array.any()


# ---- Borders -------------------------------------------------------------------------------------


def test_sums_alone_are_one_pass():
    """What TF_BN_OPS_VERBOSE=1 says: x is read once, and nothing of its shape is written."""
    code = "import numpy, test_replicas as t; t.stats(numpy.ones((64, 32, 49), numpy.float32))"
    _, (_, plan) = map(parse, run_verbose(code, PYTHONPATH=os.pathsep.join(sys.path)))
    assert (plan["schedule"], plan["store"]) == ("reduce_only", "none")


@pytest.mark.parametrize(
    ("part", "fields", "sentence"),
    [
        (spec.ops.BATCH_NORM_STATS, {"is_training": 0}, "must not be 0 with local_mean"),
        (spec.ops.BATCH_NORM_ELEMT, {"is_training": 1}, "^float64_statistics must be 0"),
        (spec.ops.BATCH_NORM_BACKWARD_REDUCE, {"is_training": 0}, "not be 0 with local_sum_dy"),
        (spec.ops.BATCH_NORM_BACKWARD_REDUCE, {"offset": None}, "^offset must not be NULL"),
        (spec.ops.BATCH_NORM_BACKWARD_ELEMT, {"is_training": 1}, "must be 0 with sum_dy"),
        (spec.ops.BATCH_NORM_BACKWARD_ELEMT, {"y": None}, "^y must not be NULL"),
    ],
)
def test_what_is_wrong_with_a_part_is_one_sentence(part, fields, sentence):
    """Behind an activation the mask from x needs an offset, a side input needs y."""

    def is_wanted(problem: Problem) -> bool:
        if "is_training" in fields:
            return True
        has_y, has_side_input = "y" in problem.values, bool(problem.num_side_inputs)
        return problem.activation != IDENTITY and (has_side_input if "y" in fields else not has_y)

    drawn = (problem_of(part, (9, 3, 1), seed=seed) for seed in range(99))
    with pytest.raises(ValueError, match=sentence):
        c_abi.run(next(filter(is_wanted, drawn)), **fields)


def test_what_is_wrong_with_parts_is_one_sentence():
    given = random_parts(3, 2, 0.0)
    for count in (-1.0, np.nan, np.inf):
        given.count[1] = count
        with pytest.raises(ValueError, match="counts must be finite and not negative"):
            c_abi.gather_stats(given)
    for fields, sentence in (
        ({"parts": -1}, "parts must not be negative"),
        ({"channels": -1}, "^channels must not be negative"),
        ({"channels": 1 << 62}, "^channels is larger than any memory"),
        ({"parts": 1 << 40, "channels": 1 << 40}, r"^parts \* channels is larger than any memory"),
        ({"parts": 1 << 62, "channels": 1 << 20}, r"^parts \* channels is larger than any memory"),
        ({"parts": 1, "channels": 1}, "counts must not be NULL"),
        ({"channels": 1}, "count must not be NULL"),
    ):
        with pytest.raises(ValueError, match=sentence):
            c_abi.run_gather_stats(c_abi.GatherStats(**fields))
