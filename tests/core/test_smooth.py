"""Smooth activations on the CPU through the C ABI, without TensorFlow.

Beside what test_every_formula.py holds of them: their derivatives in spec/activations.py, and the
bounds of these, are right; exp is within 1 unit in the last place, and in a vector bitwise what it
is alone; at infinities and NaN values and derivatives are what the formula gives; the gradient
reads no y, but a side input in its place; what cannot be has an error.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
import subprocess

import numpy as np
import pytest
from builds import assert_right
from test_batch_norm_grad_ex import forward_problem, gradient_of, run_forward

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits
from tf_bn_ops.harness.problems import Problem
from tf_bn_ops.spec import ACTIVATIONS, SMOOTH_ACTIVATIONS

ROOT = pathlib.Path(__file__).parents[2]
# Of float: all from -0 to -90 by this step.
STEPS = [pytest.param(4099), pytest.param(1, marks=pytest.mark.long)]


@pytest.mark.parametrize("step", STEPS)
def test_exp_is_within_one_unit_in_the_last_place(tmp_path, step):
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wno-psabi", f"-I{ROOT}"]
    program = tmp_path / "exponential"
    source = ROOT / "tests/core/exponential.cc"
    subprocess.run([*compiler, *flags, source, "-o", program], check=True)
    found = subprocess.run([program, str(step)], check=True, capture_output=True, text=True).stdout
    of_float, of_double, differ, at_ends = found.split()
    assert 0.5 <= float(of_float) < 1 and 0.5 <= float(of_double) < 1
    assert (differ, at_ends) == ("0", "1")


@pytest.mark.parametrize("activation", SMOOTH_ACTIVATIONS)
def test_derivatives_and_their_bounds(activation):
    kind, step = ACTIVATIONS[activation], 2.0**-10
    v = np.arange(-20, 20, step) + step / 2  # On both sides of where pieces meet.
    slope = kind.slope(np, v)
    between = (kind.value(np, v + step / 2) - kind.value(np, v - step / 2)) / step
    np.testing.assert_allclose(slope, between, rtol=0, atol=step**2)
    assert 0.9 * kind.steepest < np.abs(slope).max() <= kind.steepest
    rises = np.diff(slope) / step
    jumps = np.abs(rises) > 10
    np.testing.assert_allclose(v[:-1][jumps] + step / 2, [*kind.jumps], rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.abs(np.diff(slope)[jumps]), [*kind.jumps.values()], rtol=1e-2)
    assert 0.9 * kind.bend < np.abs(rises[~jumps]).max() <= kind.bend * (1 + 1e-9)


@pytest.mark.parametrize("activation", SMOOTH_ACTIVATIONS)
def test_y_is_not_read_and_neither_coefficients_nor_a_near_mean_are_needed(activation):
    forward = forward_problem((300, 8, 1), activation=activation)
    forward["x"][:] += 1e4
    gradient = gradient_of(forward, run_forward(forward))
    nan = np.full_like(gradient["y"], np.nan)
    unread = dataclasses.replace(gradient, values={**gradient.values, "y": nan})
    assert bits(c_abi.run(unread)) == bits(c_abi.run(gradient))
    assert_right(c_abi.run(gradient), gradient)
    values = {r: a for r, a in unread.values.items() if r != "forward_coefficients"}
    given = dataclasses.replace(gradient, values=values)  # A rounded mean is as given.
    assert_right(c_abi.run(given), given)


def at(x: list[float], activation: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and derivatives at x: frozen, y of x itself, and the gradient of 1."""
    array = np.array(x, np.float32).reshape(-1, 1, 1)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    values = {"x": array, "scale": one, "offset": zero, "mean": zero, "variance": one}
    forward = Problem(values, 0.0, is_training=False, activation=activation)
    y = c_abi.run(forward)["y"]
    values = {"y_backprop": np.ones_like(array), **values, "y": y}
    gradient = Problem(values, 0.0, is_training=False, activation=activation)
    return y.ravel(), c_abi.run(gradient)["x_backprop"].ravel()


ENDS = [-np.inf, -3e38, -1000, -100, 0, 100, 3e38, np.inf, np.nan]


def test_silu_at_the_ends():
    """As x * sigmoid(x) in TensorFlow: minus infinity times zero is NaN."""
    value, slope = at(ENDS, "Silu")
    want = np.array([np.nan, 0, 0, 0, 0, 100, 3e38, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(value, want)
    np.testing.assert_array_equal(slope, [np.nan, 0, 0, 0, 0.5, 1, 1, np.nan, np.nan])


def test_hard_silu_at_the_ends_and_where_pieces_meet():
    value, slope = at([*ENDS, -3, 3], "HardSilu")
    want = [np.nan, 0, 0, 0, 0, 100, 3e38, np.inf, np.nan, 0, 3]
    np.testing.assert_allclose(value, want, 2e-7)
    want = [0, 0, 0, 0, 0.5, 1, 1, 1, np.nan, 0, 1]
    np.testing.assert_allclose(slope, want, 2e-7)


@pytest.mark.parametrize("role", ["sum_dy", "local_sum_dy"])
def test_what_a_smooth_activation_has_no_formula_for_is_an_error(role):
    forward = forward_problem((33, 7, 1), activation="Silu")
    array = np.zeros(forward.view, np.float64)
    call = c_abi.call_of(forward, c_abi.new_outputs(forward), **{role: array.ctypes.data})
    with pytest.raises(ValueError, match=f"{role} must be NULL with a smooth activation"):
        c_abi.run_call(call)
