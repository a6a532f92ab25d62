"""What is special to activations and their gradients, through the C ABI, without TensorFlow.

Promised besides what test_every_formula.py holds. Of clamps: bitwise the plain gradient of the
masked y_backprop; the mask is y's, whether it is taken from y or, without reading y, from x by the
forward's coefficients; NaN does not pass, an infinity passes a ReLU. Of smooth activations: their
derivatives in spec/activations.py, and the bounds of these, are right; exp is within 1 unit in the
last place, and in a vector bitwise what it is alone; at infinities and NaN values and derivatives
are what the formula gives; the gradient reads no y, but a side input in its place; what cannot be
has an error.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import shlex
import subprocess
from typing import Any

import builds
import numpy as np
import pytest
from builds import BOUNDARY_VIEWS, ISA_BUILDS, assert_right, swept

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import batch_norm_grad_ex, formula_models
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits
from tf_bn_ops.harness.problems import IDENTITY, RELU, RELU6, Problem, random_forward_problem
from tf_bn_ops.spec import ACTIVATIONS, DTYPES, SMOOTH_ACTIVATIONS

ROOT = pathlib.Path(__file__).parents[2]
FEW_VIEWS = [(33, 7, 1), (18, 64, 1), (9, 5, 49), (9, 2, 1025)]
# Of the ops behind whose y an activation stands.
FUSED_DTYPES = spec.OPS["FusedBatchNormEx"].dtypes
MODES = list(itertools.product((RELU, RELU6), (True, False)))


def forward_problem(
    view: tuple[int, int, int],
    dtype: str = "float32",
    *,
    activation: str = RELU,
    levels: int = 0,
    **fields: Any,
) -> Problem:
    """The forward op's call, with scales of both signs; with `levels`, x has that many values, as
    quantized data have."""
    forward = random_forward_problem(view, dtype, activation=activation, **fields)
    forward["scale"] *= np.random.default_rng(view).choice((-1, 1), view[1])
    if levels:
        x = np.round(forward.wide("x", np.float64) * levels / 8) * 8 / levels
        forward["x"] = forward.dtype.store(x)
    return forward


def compute_type(problem: Problem) -> np.dtype:
    return DTYPES[problem.dtype.accumulator].numpy


def run_forward(forward: Problem, implementation: str | None = None) -> dict[str, np.ndarray]:
    """The forward's outputs, its coefficients among them."""
    shape = (spec.ops.NUM_FORWARD_COEFFICIENTS, forward.view[1])
    coefficients = np.full(shape, np.nan, compute_type(forward))
    given = {"forward_coefficients": coefficients}
    return c_abi.run(forward, implementation=implementation, outputs=given)


def gradient_of(forward: Problem, outputs: dict[str, np.ndarray], seed: int = 1) -> Problem:
    """The gradient of a forward call, with the mask from x where there is no side input; where a
    smooth activation is behind one, that is in the place of y."""
    rng = np.random.default_rng([seed, *forward.view])
    y_backprop = forward.dtype.store(rng.normal(0.5, 1, forward.view))
    values = {
        "y_backprop": y_backprop,
        **{role: forward[role] for role in ("x", "scale", "offset")},
        "mean": outputs["saved_mean"],
        "variance": outputs["saved_variance"],
        "y": outputs["y"],
    }
    has_side_input = "side_input" in forward.values
    is_smooth = forward.activation in SMOOTH_ACTIVATIONS
    if is_smooth and has_side_input:
        values["y"] = forward["side_input"]
    if is_smooth or not has_side_input:
        values["forward_coefficients"] = outputs["forward_coefficients"]
    return Problem(
        values,
        forward.epsilon,
        forward.is_training,
        activation=forward.activation,
        leakyrelu_alpha=forward.leakyrelu_alpha,
        num_side_inputs=int(has_side_input),
    )


def make_problem(view: tuple[int, int, int], dtype: str = "float32", **fields: Any) -> Problem:
    forward = forward_problem(view, dtype, **fields)
    return gradient_of(forward, run_forward(forward))


def without_y(problem: Problem) -> Problem:
    """The same with a y that passes nowhere: whoever reads it shows."""
    nothing = problem.dtype.store(np.full(problem.view, -1.0))
    return dataclasses.replace(problem, values={**problem.values, "y": nothing})


def plain(problem: Problem, **how: Any) -> dict[str, np.ndarray]:
    """The plain gradient of the masked y_backprop, and that itself for a side input."""
    masked = batch_norm_grad_ex.masked_problem(problem)
    right = c_abi.run(masked, **how)
    if problem.num_side_inputs:
        right["side_input_backprop"] = masked["y_backprop"]
    return right


def assert_mask_from_x_is_that_of_y(forward: Problem, implementation: str, threads: int = 1):
    """The gradient, without reading y, is bitwise `plain`: y_backprop masked by the forward's y."""
    problem = gradient_of(forward, run_forward(forward, implementation))
    want = plain(problem, implementation=implementation)
    got = c_abi.run(without_y(problem), implementation=implementation, threads=threads)
    assert bits(got) == bits(want)


# ---- The mask from x -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FUSED_DTYPES)
@pytest.mark.parametrize(
    ("view", "levels"),
    swept(
        BOUNDARY_VIEWS, (0, 16, 256), at_once=lambda view, levels: view in FEW_VIEWS and not levels
    ),
)
def test_the_mask_from_x_is_bitwise_that_of_the_forward_s_y(view, levels, dtype):
    for (activation, is_training), name in itertools.product(MODES, ISA_BUILDS):
        forward = forward_problem(
            view, dtype, activation=activation, is_training=is_training, levels=levels
        )
        for threads in (1, 7) if levels else (1,):
            assert_mask_from_x_is_that_of_y(forward, name, threads)


def at_the_bounds(view: tuple[int, int, int], dtype: str, activation: str) -> Problem:
    """Frozen, y = x + offset, with elements at all distances from 0 and 6 that rounding decides."""
    forward = forward_problem(view, dtype, activation=activation, is_training=False)
    compute = compute_type(forward)
    channels = view[1]
    forward.epsilon = 0
    forward["mean"][:], forward["variance"][:] = 0, 1
    forward["scale"][:] = 1
    channel = np.arange(channels)
    bound = np.where((channel % 2 == 1) & (activation == RELU6), 6.0, 0.0)
    steps = np.array([0, 0.25, 0.5, 0.5000001, 0.75, 1, 1.5, 1.5000001, 2, 3])
    steps = np.concatenate([steps, -steps])[channel // 2 % 20]
    # Of 4 to 8, and next to 0; kernels flush numbers that are subnormal in the type computed in.
    is_half = dtype == "half"
    least = forward.dtype.smallest_subnormal if is_half else forward.dtype.smallest_normal
    step = np.where(bound == 6, 8 * forward.dtype.unit_roundoff, least)
    forward["offset"][:] = (steps * step).astype(compute)
    x = np.broadcast_to(bound[:, None], view).copy()
    x[1::2] += 0.5  # Ordinary elements beside them.
    forward["x"] = forward.dtype.store(x)
    return forward


@pytest.mark.parametrize("dtype", FUSED_DTYPES)
@pytest.mark.parametrize("activation", [RELU, RELU6])
def test_what_rounds_to_0_or_to_6_does_not_pass(activation, dtype):
    """To nearest even: half the least subnormal number is 0, and half a step below 6 is 6."""
    forward = at_the_bounds((10, 43, 3), dtype, activation)
    y = forward.dtype.widen(run_forward(forward)["y"])
    # The test sees what it is about: both sides of both bounds.
    assert (y[0] == 0).any() and (y[0] > 0).any()
    if activation == RELU6:
        step = max(0.1, 8 * forward.dtype.unit_roundoff)  # At least the type's step below 6.
        assert (y[0] == 6).any() and ((y[0] >= 6 - step) & (y[0] < 6)).any()
    for name in ISA_BUILDS:
        assert_mask_from_x_is_that_of_y(forward, name)


# ---- Which x pass, by any coefficients -----------------------------------------------------------


def flushed(values: np.ndarray) -> np.ndarray:
    """Subnormal numbers are 0 to the kernels."""
    return np.where(np.abs(values) < np.finfo(values.dtype).tiny, values.dtype.type(0), values)


def forward_value(x: np.ndarray, k: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """What the forward op activates, operation by operation; x is [outer, channels]."""
    mean, rest, scale_rstd = (flushed(row) for row in k)
    with np.errstate(all="ignore"):
        difference = flushed(flushed(flushed(x) - mean) - rest)
        return flushed(flushed(difference * scale_rstd) + flushed(offset))


def coefficients_of_any_kind(rng: np.random.Generator, count: int, type_: np.dtype) -> np.ndarray:
    """[mean, its rest, scale * rstd, offset] of channels: ordinary ones, with zeros, with x near 0
    against the mean, and with infinities, NaN, the largest, smallest and subnormal numbers."""
    info = np.finfo(type_)
    # Not the smallest normal number: by how little a product may be below it differs between
    # processors, see flushing in docs/design.md.
    small = 4 * info.tiny
    special = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, info.max, -info.max, info.max / 4]
    special += [small, -small, info.tiny / 2, -info.tiny / 2, info.eps]
    k = np.stack(
        [
            rng.normal(0, 3, count),
            rng.normal(0, 1e-8, count),
            rng.choice([-1, 1], count) * 10 ** rng.uniform(-3, 3, count),
            rng.normal(0, 3, count),
        ]
    )
    third = count // 3
    k[3, :third] = k[0, :third] * k[2, :third] * (1 + 10 ** rng.uniform(-9, 0, third))
    replaced = rng.random((4, count)) < np.where(np.arange(count) < 2 * third, 0, 0.4)
    with np.errstate(over="ignore"):
        return np.where(replaced, rng.choice(special, (4, count)), k).astype(type_)


def x_around_the_ends(k: np.ndarray, bounds: list[float], type_: np.dtype) -> np.ndarray:
    """[outer, channels]: steps of a unit in the last place around where y is a bound, and numbers
    that are special."""
    info = np.finfo(type_)
    mean, rest, scale_rstd, offset = k.astype(np.float64)
    rows = [np.full(len(mean), v) for v in (np.nan, np.inf, -np.inf, info.max, -info.max)]
    rows += [np.full(len(mean), v) for v in (0.0, -0.0, info.tiny, -info.tiny, info.tiny / 2)]
    with np.errstate(all="ignore"):
        for bound in bounds:
            end = ((bound - offset) / scale_rstd + mean + rest).astype(type_)
            for steps in (1, 2, 3, 5, 9, 1 << 10, 1 << 18):
                rows += [end, end + steps * np.spacing(end), end - steps * np.spacing(end)]
        return np.stack(rows).astype(type_)


@pytest.mark.parametrize("dtype", FUSED_DTYPES)
@pytest.mark.parametrize("activation", [RELU, RELU6])
def test_the_range_of_x_is_exact_for_any_coefficients(activation, dtype):
    """An element passes if and only if y, computed from that element, does: on both sides of both
    ends of the range, one unit in the last place apart, whatever the coefficients are."""
    kind, type_ = DTYPES[dtype], np.dtype(DTYPES[DTYPES[dtype].accumulator].numpy)
    k = coefficients_of_any_kind(np.random.default_rng(3), 3000, type_)
    with np.errstate(over="ignore"):
        stored_x = kind.store(x_around_the_ends(k, [0.0, 6.0], type_))
    view = (*stored_x.shape, 1)
    v = forward_value(kind.widen(stored_x, type_), k[:3], k[3])
    with np.errstate(all="ignore"):
        y = kind.widen(kind.store(v), type_)
        passes = (flushed(y) > 0) & ~((y >= 6) & (activation == RELU6))
    assert 0.1 < passes.mean() < 0.9
    channels = np.ones(view[1], type_)
    problem = Problem(
        {
            "y_backprop": kind.store(np.ones(view)),
            "x": stored_x.reshape(view),
            "scale": channels,
            "offset": k[3].copy(),
            "mean": channels,
            "variance": channels,
            "y": kind.store(np.full(view, -1.0)),
            "forward_coefficients": np.concatenate([k[:3], np.ones((5, len(channels)), type_)]),
        },
        0.0,
        False,  # Then, with these numbers, x_backprop is the masked y_backprop.
        activation=activation,
    )
    for name in ISA_BUILDS:
        x_backprop = kind.widen(c_abi.run(problem, implementation=name)["x_backprop"])
        assert ((x_backprop[..., 0] == 1) == passes).all(), name


# ---- The forward's coefficients ------------------------------------------------------------------


def test_a_subnormal_scale_is_flushed_for_the_coefficients_too():
    """By the kernels, whatever the caller's thread does with subnormal numbers: y is the offset,
    though scale * rstd is a normal number."""
    forward = forward_problem((40, 6, 3), is_training=False)
    forward.epsilon = 1e-8
    forward["x"] *= np.float32(1e36)
    forward["scale"][:] = 1e-39
    forward["offset"] = np.abs(forward["offset"])
    forward["mean"][:], forward["variance"][:] = 0, 0
    for name in ISA_BUILDS:
        outputs = run_forward(forward, name)
        assert (outputs["y"] == forward["offset"][:, None]).all()
        assert not outputs["forward_coefficients"][2].any()
        assert_mask_from_x_is_that_of_y(forward, name)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("dtype", FUSED_DTYPES)
def test_the_coefficients_are_right(dtype, is_training):
    """Within the bounds of models/batch_norm.py; second parts are the rests of first ones. Without
    elements they are written, too: as 0, as saved_mean and saved_variance are in training."""
    forward = forward_problem((500, 9, 2), dtype, is_training=is_training)
    nothing = forward_problem((0, 5, 3), dtype, is_training=is_training)
    for name in ISA_BUILDS:
        assert not run_forward(nothing, name)["forward_coefficients"].any()
        outputs = run_forward(forward, name)
        given = outputs.pop("forward_coefficients")
        assert bits(c_abi.run(forward, implementation=name)) == bits(outputs)  # Without an array.
        assert not formula_models.check_coefficients(forward, given)
        for part, rest in (given[:2], given[3:5], given[6:]):
            assert (np.abs(rest) <= np.spacing(np.abs(part)) / 2).all()


# ---- The mask from y -----------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("missing", ["offset", "forward_coefficients"])
def test_without_the_coefficients_or_the_offset_the_mask_is_that_of_y(missing, implementation):
    problem = make_problem((50, 7, 3))
    problem["y"][:, 3] = 0
    del problem.values[missing]
    want = plain(problem, implementation=implementation)
    assert bits(c_abi.run(problem, implementation=implementation)) == bits(want)


# ---- Without an activation -----------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("side_input", [False, True])
@pytest.mark.parametrize("is_training", [True, False])
def test_identity_is_the_plain_gradient(is_training, side_input, implementation):
    """y is not looked at, and the side input's gradient is y_backprop."""
    problem = make_problem(
        (33, 17, 5), activation=IDENTITY, is_training=is_training, side_input=side_input
    )
    problem["y"][:] = np.nan
    want = plain(problem, implementation=implementation)
    assert bits(c_abi.run(problem, implementation=implementation)) == bits(want)
    if side_input:
        assert want["side_input_backprop"].tobytes() == problem["y_backprop"].tobytes()


@pytest.mark.parametrize("dtype", FUSED_DTYPES)
@pytest.mark.parametrize(("activation", "is_training"), [(IDENTITY, True), *MODES[:2]])
def test_the_gradient_of_a_side_input_is_passed_on(activation, is_training, dtype):
    """It is not computed: NaN of any payload stays NaN, and subnormal numbers, which AVX-512's
    conversion to bfloat16 would flush, stay what they are."""
    fields = {"activation": activation, "is_training": is_training, "side_input": True}
    problem = make_problem((64, 32, 33), dtype, **fields)
    kind = DTYPES[dtype]
    patterns = kind.store(np.array([kind.smallest_subnormal, np.nan]))
    if patterns.itemsize == 2:
        patterns = np.arange(1 << 16, dtype=np.uint16).view(kind.numpy)
    problem["y_backprop"] = np.resize(patterns, problem.view)
    want = batch_norm_grad_ex.masked_problem(problem)["y_backprop"]
    for name in ISA_BUILDS:
        got = c_abi.run(problem, implementation=name)["side_input_backprop"]
        with np.errstate(invalid="ignore"):
            assert builds.bits({"": got}) == builds.bits({"": want}), name


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_does_not_pass_does_not_count(bad, implementation):
    """Not even NaN: it is replaced by 0, not multiplied with it."""
    problem = make_problem((50, 5, 3), side_input=True)
    problem["y"][7, 2] = 0
    problem["y_backprop"][7, 2] = 0
    want = c_abi.run(problem, implementation=implementation)
    problem["y_backprop"][7, 2] = bad
    assert bits(c_abi.run(problem, implementation=implementation)) == bits(want)


# ---- Smooth activations --------------------------------------------------------------------------

# Of float: all from -0 to -90 by this step. All of them take a minute.
STEPS = [pytest.param(4099), pytest.param(1, marks=pytest.mark.release)]


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
    assert 0.9 * kind.bend <= np.abs(rises[~jumps]).max() <= kind.bend * (1 + 1e-9)


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


def at(x: list[float], activation: str, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values and derivatives at x: frozen, y of x itself, and the gradient of 1."""
    array = np.array(x, np.float32).reshape(-1, 1, 1)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    values = {"x": array, "scale": one, "offset": -zero, "mean": zero, "variance": one}
    fields |= {"is_training": False, "activation": activation}
    forward = Problem(values, 0.0, **fields)
    y = c_abi.run(forward)["y"]
    values = {"y_backprop": np.ones_like(array), **values, "y": y}
    gradient = Problem(values, 0.0, **fields)
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


@pytest.mark.parametrize("alpha", [0.2, 0.01, -0.5, 1.75, 1.0, 0.0, 1e-30, -3e38])
def test_leaky_relu_at_the_ends_and_around_0(alpha):
    """Bitwise TensorFlow's; its derivative at 0 is alpha."""
    x = np.array([*ENDS, -0.0, 1e-30, -1e-30, -1, 1], np.float32)
    value, slope = at([*x], "LeakyRelu", leakyrelu_alpha=alpha)
    with np.errstate(all="ignore"):
        want = np.where(x > 0, x, np.float32(alpha) * x)
        want = np.where(np.abs(want) < 2.0**-126, 0 * want, want)
    np.testing.assert_array_equal(value, want)
    assert np.signbit(value[ENDS.index(0)]) == (alpha < 0)
    assert np.signbit(value[len(ENDS)]) == (alpha >= 0)
    want = np.where(x > 0, np.float32(1), np.float32(alpha))
    np.testing.assert_array_equal(slope[~np.isnan(x)], want[~np.isnan(x)])


@pytest.mark.parametrize("side_input", [False, True])
@pytest.mark.parametrize("dtype", FUSED_DTYPES)
@pytest.mark.parametrize("alpha", [0.01, -0.5, 1.75, 0.0])
def test_any_finite_slope_of_a_leaky_relu(alpha, dtype, side_input):
    for view in FEW_VIEWS:
        problem = make_problem(
            view, dtype, activation="LeakyRelu", leakyrelu_alpha=alpha, side_input=side_input
        )
        assert_right(c_abi.run(problem), problem)


@pytest.mark.parametrize("alpha", [np.nan, np.inf, -np.inf])
def test_the_slope_of_a_leaky_relu_is_finite(alpha):
    problem = forward_problem((3, 2, 1), activation="LeakyRelu")
    with pytest.raises(ValueError, match="leakyrelu_alpha must be finite"):
        c_abi.run(problem, leakyrelu_alpha=alpha)
    c_abi.run(problem, activation=c_abi.ACTIVATION_CODES["Silu"], leakyrelu_alpha=alpha)


@pytest.mark.parametrize("role", ["sum_dy", "local_sum_dy"])
def test_what_a_smooth_activation_has_no_formula_for_is_an_error(role):
    forward = forward_problem((33, 7, 1), activation="Silu")
    gradient = gradient_of(forward, run_forward(forward))
    array = np.zeros(forward.view[1], np.float64)
    call = c_abi.call_of(gradient, c_abi.new_outputs(gradient), **{role: array.ctypes.data})
    with pytest.raises(ValueError, match=f"{role} must be NULL with a smooth activation"):
        c_abi.run_call(call)
