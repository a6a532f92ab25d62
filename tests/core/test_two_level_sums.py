"""Two-level sums (cc/core/two_level_sum.h) in the GPU kernels, on the host emulator, and in
every build of the CPU kernels, of 16-bit elements.

Promised: sums have runs of eight terms in float32, whose error does not grow with their number;
infinities and NaN where double makes them; a center wider than float costs nothing; float64 stays
double.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from builds import ISA_BUILDS
from test_gpu_emulator import TOOLS, device_calls, device_problems, emulate, emulated_device

from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem, random_problem, stored

# Columns with full groups of items and a rest; runs of whole vectors; runs that vectors straddle.
VIEWS = [(1700, 40, 1), (90, 3, 1), (9, 5, 64), (9, 5, 49), (2, 3, 4099)]


# The emulator, or the name of a CPU build.
Device = emulated_device.EmulatedDevice | str


@pytest.fixture(scope="module", params=["emulator", *ISA_BUILDS])
def device(request) -> Device:
    return emulated_device.EmulatedDevice() if request.param == "emulator" else request.param


def run(device: Device, problem: Problem, **given: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs by role; into those that are given."""
    if isinstance(device, str):
        return c_abi.run(problem, implementation=device, outputs=given)
    return emulate(device, problem, outputs=given)


def powers_of_two(view, dtype: str, dy: float, x: float, is_training: bool) -> Problem:
    """Small integers times powers of two, whose sums double holds exactly; rstd takes both back."""
    problem = random_problem(
        view, dtype, variance_is_rstd=True, integers=True, is_training=is_training
    )
    values = {role: problem.wide(role, np.float64) for role in problem.values}
    values["y_backprop"], values["x"] = values["y_backprop"] * dy, values["x"] * x
    values["mean"] = values["mean"] * x
    values["variance"] = values["variance"] * 0 + 2.0**-120
    return Problem(stored(values, dtype, None), 0.0, is_training, is_training)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("view", VIEWS)
def test_runs_beyond_float32_are_added_in_double(device, view, dtype, is_training):
    """Products up to 2^134 in runs whose exact sums, times rstd, are small integers times 2^10."""
    problem = powers_of_two(view, dtype, 2.0**60, 2.0**70, is_training)
    if not is_training:  # rstd = 1/sqrt(variance).
        problem["variance"] = np.full(view[1], 2.0**120, np.float32)
    outputs = run(device, problem)
    dy, x, mean = (problem.wide(role, np.float64) for role in ("y_backprop", "x", "mean"))
    rstd = 2.0**-120 if is_training else 2.0**-60
    want = (dy * (x - mean[:, None])).sum((0, 2)) * rstd
    assert np.abs(want).max() < np.finfo(np.float32).max
    np.testing.assert_array_equal(outputs["scale_backprop"], want)
    np.testing.assert_array_equal(outputs["offset_backprop"], dy.sum((0, 2)))
    # In place a run cannot be read again behind its results.
    for role in ("x", "y_backprop"):
        copy = problem.copy()
        in_place = run(device, copy, x_backprop=copy[role])
        for name, array in outputs.items():
            np.testing.assert_array_equal(in_place[name], array)


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("view", VIEWS)
def test_infinities_and_nan_are_those_of_double(device, view, dtype):
    problem = random_problem(view, dtype)
    values = {role: problem.wide(role, np.float64) for role in problem.values}
    inf = np.inf
    values["y_backprop"][0, 0, 0] = inf
    values["y_backprop"][-1, 1, -1] = np.nan
    values["x"][0, 2, 0], values["x"][-1, 2, -1] = inf, -inf
    problem = Problem(stored(values, dtype, None), problem.epsilon, True, False)
    outputs = run(device, problem)
    dy, x, mean = (problem.wide(role, np.float64) for role in ("y_backprop", "x", "mean"))
    for role, terms in (("offset_backprop", dy), ("scale_backprop", dy * (x - mean[:, None]))):
        with np.errstate(invalid="ignore"):
            right = terms.sum((0, 2))
        np.testing.assert_equal(np.isnan(outputs[role]), np.isnan(right))
        np.testing.assert_equal(np.isinf(outputs[role]), np.isinf(right))


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float32"])
@pytest.mark.parametrize("mean", [1 / 3, 1e4 + 1 / 3, -1e30, 1e300, np.inf])
def test_a_float64_mean_is_not_rounded(device, dtype, mean):
    """x is measured from a float; that it is not the mean shows in no sum. Beyond what half or
    float32 measure from, the mean is subtracted in double alone."""
    view = (170, 4, 9)
    problem = device_problems.backward_reduce(view, dtype)
    problem["mean"] = np.full(view[1], mean)
    outputs = run(device, problem)
    assert not device_calls.check(problem, outputs)
    if np.isfinite(mean) and abs(mean) < 1e38:
        dy, x = (problem.wide(role, np.longdouble) for role in ("y_backprop", "x"))
        right = (dy * (x - np.longdouble(mean))).sum((0, 2))
        size = np.abs(dy * (x - np.longdouble(mean))).sum((0, 2))
        assert (np.abs(outputs["local_sum_dy_xmu"] - right) <= 9.01 * 2.0**-24 * size).all()


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float32"])
@pytest.mark.parametrize("mean", [0.3, 0.7])
def test_an_infinity_around_a_float64_mean_is_that_of_double(device, dtype, mean):
    """Whichever way the mean was rounded to what x is measured from."""
    view = (170, 4, 9)
    problem = device_problems.backward_reduce(view, dtype)
    problem["mean"] = np.full(view[1], mean)
    problem["x"][0, 0, 0] = problem.dtype.store(np.array(1.5))
    problem["y_backprop"][0, 0, 0] = problem.dtype.store(np.array(np.inf))
    outputs = run(device, problem)
    assert outputs["local_sum_dy"][0] == outputs["local_sum_dy_xmu"][0] == np.inf
    assert np.isfinite(outputs["local_sum_dy_xmu"][1:]).all()


def test_the_error_does_not_grow_with_the_number_of_terms(device):
    """A constant of many digits: float32 throughout would be off by 1e-4 of the sum, double by
    nothing. Here it is off by the roundings of a run, and no more."""
    view = (70_000, 1, 1)
    problem = random_problem(view, "float32", variance_is_rstd=True)
    problem["y_backprop"] = np.full(view, 0.1, np.float32)
    total = run(device, problem)["offset_backprop"][0]
    exact = 70_000 * float(np.float32(0.1))
    assert abs(total - exact) <= bounds.TWO_LEVEL_CHAIN * 2.0**-24 * exact


@pytest.mark.parametrize("view", VIEWS)
def test_a_run_that_overflows_changes_no_other_column_in_any_build(view):
    """Columns that share a vector differ between builds."""
    problem = random_problem(view, "bfloat16")
    values = {role: problem.wide(role, np.float64) for role in problem.values}
    for role, large in (("y_backprop", 2.0**80), ("x", 2.0**90)):
        values[role][:, 1, ::5] *= large
    problem = Problem(stored(values, "bfloat16", None), problem.epsilon, True, False)
    assert len({c_abi.bits(c_abi.run(problem, implementation=i)) for i in ISA_BUILDS}) == 1


def test_the_bound_would_show_longer_runs():
    """The bound has the kernels' constant, and no slack hides a run twice as long."""
    text = (TOOLS.parents[1] / "cc" / "core" / "partition.h").read_text()
    (run,) = re.findall(r"constexpr int kTwoLevelChain = (\d+);", text)
    assert int(run) == bounds.TWO_LEVEL_CHAIN
    profile, strict = (bounds.PROFILES[name] for name in ("two-level", "strict"))
    for name, dtype in bounds.DTYPES.items():
        if name == "float64":
            assert profile.sum_error(dtype, 1000, 2) == strict.sum_error(dtype, 1000, 2)
        else:
            error = profile.sum_error(dtype, 1000, 2)
            assert error == profile.sum_error(dtype, 10**9, 2)
            assert 9 * 2.0**-24 < error < 9.001 * 2.0**-24
