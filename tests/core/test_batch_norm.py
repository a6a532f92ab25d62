"""Batch normalization itself on the CPU through the C ABI, without TensorFlow.

Promised: results within the bounds of tf_bn_ops/conformance/models/batch_norm.py, which with these
kernels are 8u (|x - mean| rstd |scale| + |offset|) for y and 2u and 4u for mean and variance, at
any mean; exact where the terms are; bitwise identical for every ISA build, thread count, alignment,
and in place; every output written in every mode; the documented errors.
"""

from __future__ import annotations

import numpy as np
import pytest
from builds import (
    IMPLEMENTATIONS,
    ISA_BUILDS,
    assert_builds_are_right_and_bitwise_identical,
    assert_right,
    beyond_the_llc,
)

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import batch_norm, bounds
from tf_bn_ops.conformance.models.measure import assembled
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits, shifted
from tf_bn_ops.harness.problems import (
    ACTIVATIONS,
    IDENTITY,
    RELU,
    RELU6,
    Problem,
    random_forward_problem,
)
from tf_bn_ops.spec import DTYPES

STATISTICS = ("batch_mean", "batch_variance", "saved_mean", "saved_variance")
U = DTYPES["float32"].unit_roundoff


def lane_count(dtype: str) -> int:
    """Lanes of the widest vector: 512 bits of the type that elements are computed in."""
    return 64 // (8 if dtype == "float64" else 4)


def views(dtype: str) -> list[tuple[int, int, int]]:
    """Views with sizes around the lane count, as channels, as runs and as the elements of one
    channel; and at the boundaries of the partition: 8 rows, runs of 64, rows of 1024 columns,
    chains of 1024 rows, 2^15 elements for threads, 2^16 for a second block."""
    n = lane_count(dtype)
    sizes = (1, n - 1, n, n + 1, 4 * n + 3)
    found = [(9, size, 1) for size in sizes] + [(2, 3, size) for size in sizes]
    found += [(size, 1, 1) for size in sizes]
    return [
        *found, (1, 5, 1), (100, 3, 1), (5, 1000, 1), (9, 1025, 1), (2, 3, 64), (2, 3, 65),
        (9, 5, 49), (9, 2, 1025), (3, 2, 4099), (1, 1, 70001), (70000, 1, 1), (1100, 64, 1),
        (4000, 40, 1),
    ]  # fmt: skip


CASES = [(dtype, view) for dtype in DTYPES for view in views(dtype)]


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("dtype", "view"), CASES)
def test_every_build_is_right_and_all_are_bitwise_identical(view, is_training, dtype):
    for side_input, activation in ((False, IDENTITY), (True, RELU), (False, RELU6)):
        problem = random_forward_problem(
            view, dtype, side_input=side_input, is_training=is_training, activation=activation
        )
        assert_builds_are_right_and_bitwise_identical(problem)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("view", [(4000, 40, 1), (9000, 3, 1), (8, 300, 49), (3, 7, 9000)])
def test_bitwise_identical_for_any_number_of_threads(view, dtype, is_training):
    problem = random_forward_problem(view, dtype, side_input=True, is_training=is_training)
    assert len({bits(c_abi.run(problem, threads=n)) for n in (1, 2, 7)}) == 1


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("view", [(4000, 40, 1), (9, 5, 49), (3, 2, 4099), (129, 1, 1)])
@pytest.mark.parametrize("over", ["x", "side_input"])
def test_in_place_over_x_and_over_the_side_input(over, view, is_training):
    want = c_abi.run(random_forward_problem(view, side_input=True, is_training=is_training))
    problem = random_forward_problem(view, side_input=True, is_training=is_training)
    assert bits(c_abi.run(problem, outputs={"y": problem[over]}, threads=2)) == bits(want)


@pytest.mark.parametrize("is_training", [True, False])
def test_averages_in_place_over_the_given_ones(is_training):
    fields = {"is_training": is_training, "exponential_avg_factor": 0.1}
    want = c_abi.run(random_forward_problem((9, 70, 5), **fields))
    problem = random_forward_problem((9, 70, 5), **fields)
    outputs = {"batch_mean": problem["mean"], "batch_variance": problem["variance"]}
    assert bits(c_abi.run(problem, outputs=outputs)) == bits(want)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_side_input_may_be_x(is_training):
    problem = random_forward_problem((50, 20, 3), side_input=True, is_training=is_training)
    problem["side_input"] = problem["x"].copy()
    want = c_abi.run(problem)
    assert_right(want, problem)
    problem["side_input"] = problem["x"]
    assert bits(c_abi.run(problem, outputs={"y": problem["x"]})) == bits(want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1, 3])
def test_any_alignment_of_the_elements(dtype, offset):
    problem = random_forward_problem((9, 5, 1300), dtype, side_input=True)
    want = c_abi.run(problem)
    for name, array in problem.values.items():
        problem[name] = shifted(array, offset)
    outputs = {"y": shifted(np.zeros_like(problem["x"]), offset)}
    assert bits(c_abi.run(problem, outputs=outputs)) == bits(want)


# Beyond the LLC size that counts, so that full cache lines of y get non-temporal stores; see the
# test of the same name in test_cpu.py. Sizes for half; other types have as many bytes.
NT_VIEWS = [(64, 3000, 49), (140000, 65, 1), (140000, 64, 1), (5, 8, 240001)]


@pytest.mark.parametrize("dtype", ["float32", "half"])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("view", NT_VIEWS)
def test_non_temporal_stores(view, is_training, dtype):
    """Bitwise identical to temporal stores, as in place; nothing else is written."""
    view = beyond_the_llc(view, dtype)
    problem = random_forward_problem(view, dtype, is_training=is_training)
    assert 2 * problem["x"].nbytes > 32 << 20
    plan = c_abi.explain(spec.ops.BATCH_NORM, view, dtype=dtype, is_training=is_training, threads=2)
    assert plan["store"] == "non_temporal"
    copy = problem.copy()
    want = bits(c_abi.run(copy, outputs={"y": copy["x"]}, threads=2))
    for offset in (0, 5):
        store = np.full(problem["x"].size + 64, 7, problem["x"].dtype)
        begin = 32 - store.ctypes.data % 64 // store.itemsize + offset
        y = store[begin : begin + problem["x"].size].reshape(view)
        assert bits(c_abi.run(problem, outputs={"y": y}, threads=2)) == want
        assert (store[:begin] == 7).all()
        assert (store[begin + problem["x"].size :] == 7).all()


def test_frozen_is_one_pass_without_sums_and_training_is_two():
    """What tfbn_explain says of both modes."""
    frozen = c_abi.explain(spec.ops.BATCH_NORM, (64, 32, 3136), is_training=False, threads=2)
    training = c_abi.explain(spec.ops.BATCH_NORM, (64, 32, 3136), threads=2)
    assert frozen["schedule"] != training["schedule"]
    add = c_abi.explain(spec.ops.BATCH_NORM_ADD, (64, 32, 3136), threads=2)
    assert add.call["formula"] == spec.ops.BATCH_NORM_ADD


# ---- Accuracy ------------------------------------------------------------------------------------


def expected(problem: Problem, field: str) -> dict[str, np.ndarray]:
    """By role, "value" or "bound" of the model: the right answer, and how far off one may be."""
    parts = list(batch_norm.BatchNorm().expected(problem, bounds.PROFILES["strict"]))
    shapes = {"y": problem.view} | dict.fromkeys(STATISTICS, (problem.view[1],))
    return {role: assembled(parts, role, field, shape) for role, shape in shapes.items()}


def assert_within_the_bounds(
    got: dict[str, np.ndarray], problem: Problem, **want: np.ndarray
) -> None:
    """`want` is computed anew by the test, the bounds are the model's."""
    allowed = expected(problem, "bound")
    for role, value in want.items():
        assert (np.abs(got[role] - value) <= allowed[role]).all(), role


def promised(problem: Problem, right: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The accuracy that is promised, written out anew: what the harness allows must not be more."""
    x = problem["x"].astype(np.float64)
    mean, variance = right["saved_mean"], right["saved_variance"]
    rstd = 1 / np.sqrt(variance + problem.epsilon)
    column = (1, -1, 1)
    scaled = np.abs(x - mean.reshape(column)) * (rstd * np.abs(problem["scale"])).reshape(column)
    y = 8 * U * (scaled + np.abs(problem["offset"]).reshape(column)) + U * np.abs(right["y"])
    of_mean, squares = 2 * U * np.abs(mean), (x**2).mean((0, 2))
    of_variance = 4 * U * variance + 2.0**-48 * squares
    return {"y": y, "saved_mean": of_mean, "saved_variance": of_variance}


@pytest.mark.parametrize("offset", [0.5, 1e2, 1e3, 1e5, 1e7])
def test_what_the_harness_allows_is_what_is_promised(offset):
    """With room for what the promise leaves out: 10^-5 of it for the sums, whose own error is
    2^-44, and for y the 2^-47 of a mean in two parts, which shows where |x - mean| is tiny."""
    problem = random_forward_problem((3000, 8, 1), offset=offset)
    right, allowed = expected(problem, "value"), expected(problem, "bound")
    for role, most in promised(problem, right).items():
        room = 2.0**-47 * offset * np.abs(problem["scale"]).max() if role == "y" else 0
        assert (allowed[role] <= most * (1 + 1e-5) + room).all(), role


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("offset", [1e2, 1e3, 1e5, 1e7])
def test_a_large_mean_costs_no_accuracy(implementation, offset):
    """TensorFlow's y is off by 5.5 at mean 1e5 and deviation 1; ours by what it is at mean 0."""
    problem = random_forward_problem((3000, 8, 1), offset=offset)
    got = c_abi.run(problem, implementation=implementation)
    assert_right(got, problem)
    x = problem["x"].astype(np.longdouble)
    mean = x.mean((0, 2), keepdims=True)
    variance = ((x - mean) ** 2).mean((0, 2), keepdims=True)
    scale, added = problem["scale"][:, None], problem["offset"][:, None]
    y = (x - mean) / np.sqrt(variance + problem.epsilon) * scale + added
    assert np.abs(got["y"] - y).max() < 5e-6
    assert_within_the_bounds(
        got, problem, saved_mean=mean.reshape(-1), saved_variance=variance.reshape(-1)
    )


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outlier", [1e4, -1e7])
def test_an_outlier_in_the_first_element_which_is_the_shift(implementation, dtype, outlier):
    """The element that sums measure x from is the worst there can be."""
    problem = random_forward_problem((5000, 3, 1), dtype)
    problem["x"][0] = outlier
    assert_right(c_abi.run(problem, implementation=implementation), problem)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_constant_channel_has_no_variance(implementation):
    """Not even a rounding error: y is the offset."""
    problem = random_forward_problem((1000, 3, 7))
    problem["x"][:] = np.float32(0.1)
    got = c_abi.run(problem, implementation=implementation)
    np.testing.assert_array_equal(got["saved_mean"], np.full(3, 0.1, np.float32))
    np.testing.assert_array_equal(got["saved_variance"], np.zeros(3))
    np.testing.assert_array_equal(
        got["y"], np.broadcast_to(problem["offset"][:, None], (1000, 3, 7))
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_statistics_of_small_integers_are_exact(implementation, dtype):
    """Half of the elements 1 above the mean and half 1 below: all sums are exact, rstd is 1/2."""
    view = (34, 5, 16)
    problem = random_forward_problem(view, dtype, epsilon=3.0)
    signs = np.where(np.arange(34) % 2, 1, -1)[:, None, None]
    problem["x"] = np.broadcast_to(np.arange(5)[:, None] + signs, view).astype(problem["x"].dtype)
    problem["scale"][:], problem["offset"][:] = 2, 0.25
    got = c_abi.run(problem, implementation=implementation, threads=2)
    np.testing.assert_array_equal(got["saved_mean"], np.arange(5))
    np.testing.assert_array_equal(got["saved_variance"], np.ones(5))
    want = np.broadcast_to(signs + 0.25, view)
    np.testing.assert_array_equal(got["y"].astype(float), want)


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_results_are_rounded_to_nearest_even(implementation, dtype):
    """Frozen, y = x + offset, exact in float32: ties, their neighbours, and halfway between. The
    reference is the conversion of NumPy and ml_dtypes."""
    unit = 2 * DTYPES[dtype].unit_roundoff  # Between numbers of 1 to 2.
    steps = np.array([0, 0.25, 0.5 - 2.0**-10, 0.5, 0.5 + 2.0**-10, 0.75, 1.5])
    offset = np.concatenate([steps, -steps]) * unit
    x = np.arange(1, 2, unit)
    x = np.concatenate([x, -x])[:, None, None]
    problem = random_forward_problem(
        (x.size, offset.size, 1), dtype, is_training=False, epsilon=0.0
    )
    problem["x"] = np.broadcast_to(x, problem.view).astype(problem["x"].dtype)
    problem["mean"][:], problem["variance"][:], problem["scale"][:] = 0, 1, 1
    problem["offset"][:] = offset
    got = c_abi.run(problem, implementation=implementation)["y"]
    want = (x + offset[:, None]).astype(np.float32).astype(got.dtype)
    assert got.tobytes() == want.tobytes()


# ---- Statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("factor", [1.0, 0.1, 0.0])
@pytest.mark.parametrize("bessel_correction", [True, False])
def test_moving_averages(implementation, factor, bessel_correction):
    """(1 - f) * given + f * new; the new variance with or without M / (M - 1)."""
    problem = random_forward_problem(
        (3, 5, 7), exponential_avg_factor=factor, bessel_correction=bessel_correction
    )
    got = c_abi.run(problem, implementation=implementation)
    assert_right(got, problem)
    x = problem["x"].astype(np.float64)
    new = x.var((0, 2)) * (21 / 20 if bessel_correction else 1)
    want = (1 - factor) * problem["variance"] + factor * new
    assert_within_the_bounds(got, problem, batch_variance=want, saved_variance=x.var((0, 2)))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_with_a_factor_of_1_the_given_averages_are_not_read(implementation):
    problem = random_forward_problem((40, 5, 7))
    want = c_abi.run(problem, implementation=implementation)
    problem["mean"][:], problem["variance"][:] = np.nan, np.nan
    assert bits(c_abi.run(problem, implementation=implementation)) == bits(want)
    assert bits(
        c_abi.run(problem, implementation=implementation, mean=None, variance=None)
    ) == bits(want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_cudnn_s_convention_saves_rstd_in_training(implementation):
    problem = random_forward_problem((40, 5, 7), saves_rstd=True)
    got = c_abi.run(problem, implementation=implementation)
    assert_right(got, problem)
    variance = problem["x"].astype(np.float64).var((0, 2))
    assert_within_the_bounds(got, problem, saved_variance=1 / np.sqrt(variance + problem.epsilon))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_frozen_all_statistics_are_those_given(implementation, factor):
    """Every output is written; TensorFlow's Eigen kernel leaves the reserve spaces unwritten."""
    problem = random_forward_problem((40, 5, 7), is_training=False, exponential_avg_factor=factor)
    outputs = c_abi.new_outputs(problem, fill=np.nan)
    got = c_abi.run(problem, implementation=implementation, outputs=outputs)
    for role in STATISTICS:
        np.testing.assert_array_equal(got[role], problem[role.partition("_")[2]])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("view", [(1, 5, 1), (1, 40, 1)])
def test_one_element_per_channel_is_its_mean(implementation, view):
    problem = random_forward_problem(view)
    got = c_abi.run(problem, implementation=implementation)
    np.testing.assert_array_equal(got["y"].reshape(-1), problem["offset"])
    np.testing.assert_array_equal(got["batch_mean"], problem["x"].reshape(-1))
    np.testing.assert_array_equal(got["batch_variance"], np.zeros(view[1]))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("view", [(0, 3, 1), (5, 3, 0), (0, 0, 0), (4, 0, 2)])
@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_empty_views(implementation, view, factor):
    """Statistics of nothing are NaN, those saved for a gradient that is empty too are 0."""
    problem = random_forward_problem(view, exponential_avg_factor=factor)
    outputs = c_abi.new_outputs(problem, fill=7)
    got = c_abi.run(problem, implementation=implementation, outputs=outputs)
    for role in STATISTICS:
        want = np.full(view[1], np.nan if role.startswith("batch") else 0)
        np.testing.assert_array_equal(got[role], want)
    problem.is_training = False
    outputs = c_abi.new_outputs(problem, fill=7)
    got = c_abi.run(problem, implementation=implementation, outputs=outputs)
    for role in STATISTICS:
        np.testing.assert_array_equal(got[role], problem[role.partition("_")[2]])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [(7, 2, 1), (0, 2, 0)])
def test_nan_and_infinity_stay_in_their_channel(implementation, bad, at):
    """Also in the first element, which is the shift: an infinite mean is infinite, not NaN."""
    problem = random_forward_problem((50, 5, 3))
    problem["x"][at] = bad
    got = c_abi.run(problem, implementation=implementation)
    assert_right(got, problem)
    for output in (got["y"].swapaxes(0, 1), *(got[role] for role in STATISTICS)):
        finite = [bool(np.isfinite(output[c]).all()) for c in range(5)]
        assert finite == [True, True, False, True, True]
    assert np.isnan(got["y"][:, 2]).all()
    np.testing.assert_array_equal(got["saved_mean"][2], bad)
    assert np.isnan(got["saved_variance"][2])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_frozen_one_bad_element_spoils_itself_alone(implementation, bad):
    problem = random_forward_problem((50, 5, 3), is_training=False)
    problem["scale"][:] = 1
    problem["x"][7, 2, 1] = bad
    got = c_abi.run(problem, implementation=implementation)["y"]
    assert np.count_nonzero(~np.isfinite(got)) == 1
    np.testing.assert_array_equal(got[7, 2, 1], bad)


# ---- Activation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("side_input", [False, True])
def test_the_activation_is_that_of_the_plain_result(activation, dtype, is_training, side_input):
    """Clamping and rounding commute, since 0 and 6 are numbers of every type."""
    fields = {"side_input": side_input, "is_training": is_training}
    problem = random_forward_problem((33, 17, 5), dtype, **fields)
    problem["scale"][:] = 4
    plain = c_abi.run(problem)["y"]
    problem.activation = activation
    for name in IMPLEMENTATIONS:
        got = c_abi.run(problem, implementation=name)
        assert_right(got, problem)
        if name != "reference":
            want = batch_norm.activated(plain.astype(np.float64), activation)
            np.testing.assert_array_equal(got["y"].astype(np.float64), want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("activation", [RELU, RELU6])
def test_an_activation_lets_nan_through_and_clamps_infinity(implementation, activation):
    """A ReLU that answers NaN with 0 hides where a network broke."""
    problem = random_forward_problem((50, 5, 3), is_training=False, activation=activation)
    problem["scale"][:] = 1
    problem["x"][7, 2] = np.nan, np.inf, -np.inf
    got = c_abi.run(problem, implementation=implementation)["y"][7, 2]
    np.testing.assert_array_equal(got, [np.nan, 6 if activation == RELU6 else np.inf, 0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_element_at_the_mean_with_offset_0_is_exactly_0(implementation):
    """The kink of the ReLU: a gradient that masks by y > 0 finds the same elements everywhere."""
    problem = random_forward_problem((30, 4, 8), activation=RELU)
    problem["x"] = np.tile(np.float32([-1, 0, 1]), 320).reshape(30, 4, 8)
    problem["offset"][:] = 0
    x = problem["x"].astype(np.float64)
    centered = np.abs(x - x.mean((0, 2), keepdims=True)) < 1e-12
    got = c_abi.run(problem, implementation=implementation)["y"]
    assert not got[centered].any()
    assert_right({"y": got}, problem)


# ---- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"outer": -1}, "outer, channels and inner must not be negative"),
        ({"dtype": 9}, "dtype must be one of the TFBN_ element types"),
        ({"threads": 0}, "threads must be at least 1"),
    ],
)
def test_errors_are_one_sentence(overrides, sentence):
    with pytest.raises(ValueError) as error:
        c_abi.run(random_forward_problem((2, 3, 1)), **overrides)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({}, "x"),
        ({}, "y"),
        ({}, "scale"),
        ({}, "offset"),
        ({}, "batch_mean"),
        ({}, "saved_variance"),
        ({"is_training": False}, "mean"),
        ({"exponential_avg_factor": 0.5}, "variance"),
    ],
)
def test_a_missing_array_is_named(fields, missing):
    with pytest.raises(ValueError, match=rf"^{missing} must not be NULL"):
        c_abi.run(random_forward_problem((2, 3, 1), **fields), **{missing: None})


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation"):
        c_abi.run(random_forward_problem((2, 3, 1)), activation=3)
