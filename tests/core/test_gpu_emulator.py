"""The CUDA kernels on the host emulator: the indexing and arithmetic of a GPU.

tools/gpu/emulator.cc runs the device code of cc/gpu thread by thread.

Promised: GPU kernels keep the error bounds of the CPU backend; bitwise identical results for any
order of threads and blocks, any alignment, and in place; no access outside the arrays; no read of
uninitialized memory.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import pathlib
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tf_bn_ops.conformance.models.gather_stats import random_parts
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem, random_forward_problem, random_problem

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu"
if not TOOLS.exists() or shutil.which("g++") is None:
    pytest.skip("needs the source tree and g++", allow_module_level=True)
sys.path.insert(0, str(TOOLS))
import device_calls  # noqa: E402
import device_problems  # noqa: E402
import emulated_device  # noqa: E402

PROT_NONE = 0
# Threads run one by one, which is slow.
VIEWS = [view for view in device_calls.VIEWS if 0 < np.prod(view) <= 200_000]
CALLS = device_problems.CALLS
DTYPES = device_problems.KERNEL_DTYPES
DTYPES_OF = {call: device_problems.dtypes_of(call) for call in CALLS}
# One call for every kernel; the others take other branches in it.
KERNELS = tuple(device_problems.KERNEL_CALLS)
TRAINING = [call for call in KERNELS if "training" in call]


@pytest.fixture(scope="module")
def emulator() -> emulated_device.EmulatedDevice:
    return emulated_device.EmulatedDevice()


def emulate(
    device: emulated_device.EmulatedDevice,
    problem: Problem,
    *,
    seed: int = 0,
    outputs: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of one call by role, all NaN before; `outputs` are written to if given."""
    results = {**device_calls.new_outputs(problem), **(outputs or {})}
    arrays = {**problem.values, **results}
    addresses = {role: array.ctypes.data for role, array in arrays.items()}
    device.run(c_abi.call_at(problem, addresses), seed)
    return results


def emulated_bits(
    device: emulated_device.EmulatedDevice, problem: Problem, **options: Any
) -> bytes:
    return c_abi.bits(emulate(device, problem, **options))


def assert_within_bounds(outputs: dict[str, np.ndarray], problem: Problem) -> None:
    assert not device_calls.check(problem, outputs)


# A view for each layout of threads: few channels in folded rows, many channels, runs, long runs.
FEW_VIEWS = [(33, 7, 1), (5, 1000, 1), (9, 5, 49), (3, 2, 4099)]
assert set(FEW_VIEWS) <= set(VIEWS)


# The limits of the launch configuration hold for all formulas, but for the slices of vectors in
# the second order.
SWEPT = ("gradient, training", "forward, training, rstd", "second order, training")


def is_quick(view: tuple[int, int, int], dtype: str, call: str = SWEPT[0]) -> bool:
    """All limits of the launch configuration in one type, a few views in all."""
    return (dtype == "float32" and call in SWEPT) or view in FEW_VIEWS


def in_turn(view: tuple[int, int, int], call: str) -> str:
    """The element type that is this case's: every kernel meets every view, and each type every view
    in some kernels."""
    dtypes = DTYPES_OF[call]
    return dtypes[(sum(view) + KERNELS.index(call)) % len(dtypes)]


@pytest.mark.parametrize(
    ("view", "dtype", "call"),
    [
        pytest.param(*case, marks=() if is_quick(*case) else pytest.mark.long)
        for case in itertools.product(VIEWS, DTYPES, KERNELS)
        if case[1] in DTYPES_OF[case[2]]
        if is_quick(*case) or case[1] == in_turn(case[0], case[2])
    ],
)
def test_within_bounds_and_identical_in_any_thread_order(emulator, view, call, dtype):
    problem = CALLS[call](view, dtype)
    outputs = emulate(emulator, problem)
    assert_within_bounds(outputs, problem)
    if np.prod(view) < 20_000:
        assert emulated_bits(emulator, problem, seed=7) == c_abi.bits(outputs)


@pytest.mark.parametrize("view", [(100, 3, 1), (300, 40, 1), (9, 5, 49), (2, 3, 9000)])
@pytest.mark.parametrize(
    ("call", "dtype"),
    [(call, name) for call in sorted(set(CALLS) - set(KERNELS)) for name in DTYPES_OF[call]],
)
def test_other_calls_of_the_same_kernels(emulator, call, view, dtype):
    problem = CALLS[call](view, dtype)
    assert_within_bounds(emulate(emulator, problem), problem)


@pytest.mark.parametrize("view", [(100, 3, 1), (9, 5, 49), (2, 3, 9000), (1, 5, 1)])
@pytest.mark.parametrize("mean", [1e2, 1e5])
def test_the_forward_statistics_are_right_at_any_mean(emulator, mean, view):
    problem = random_forward_problem(view, offset=mean)
    assert_within_bounds(emulate(emulator, problem), problem)


@pytest.mark.parametrize("view", [(100, 3, 1), (9, 5, 49)])
def test_the_bits_are_those_of_the_cpu_but_for_the_order_of_sums(emulator, view):
    """Where no sums are computed, all outputs are bitwise identical to the CPU's."""
    for call in CALLS:
        if ("forward" in call and "frozen" in call) or call.startswith("elements"):
            problem = CALLS[call](view)
            assert emulated_bits(emulator, problem) == c_abi.bits(c_abi.run(problem)), call


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES_OF["gradient behind Relu, frozen"])
@pytest.mark.parametrize("view", FEW_VIEWS)
def test_the_mask_from_x_is_that_of_the_forward_in_both_passes(emulator, view, dtype, is_training):
    """The gradient that takes it from y is bitwise identical; y itself is not read."""
    problem = device_problems.behind_activation(view, dtype, is_training=is_training)
    if is_training:
        of_y = problem.copy()
        del of_y.values["offset"]
        problem["y"] = problem.dtype.store(np.full(view, -1.0))
    else:
        of_y = problem
        problem = of_y.copy()
        problem["forward_coefficients"] = problem["forward_coefficients"].copy()
    assert emulated_bits(emulator, problem) == emulated_bits(emulator, of_y)


def test_statistics_of_parts_are_bitwise_those_of_the_cpu(emulator):
    """Chan's formula in the order of the rows; rows of 0 are left out."""
    for channels in (0, 1, 300):
        parts = random_parts(6, channels)
        parts.count[2] = 0
        parts.m2[2] = np.nan
        want, got = c_abi.gather_stats(parts), device_calls.gather_stats(emulator, parts)
        assert c_abi.bits(got._asdict()) == c_abi.bits(want._asdict())


@pytest.mark.parametrize("count", [-1, np.inf, np.nan])
def test_counts_that_are_none_make_all_statistics_nan(emulator, count):
    parts = random_parts(3, 5)
    parts.count[1] = count
    assert all(np.isnan(array).all() for array in device_calls.gather_stats(emulator, parts))


def test_the_forward_writes_moving_averages_over_those_given(emulator):
    problem = CALLS["forward, training, averages, Relu"]((100, 3, 1))
    want = emulate(emulator, problem)
    own = {"batch_mean": problem["mean"], "batch_variance": problem["variance"]}
    assert c_abi.bits(emulate(emulator, problem, outputs=own)) == c_abi.bits(want)


def test_sums_alone_are_two_kernels(emulator):
    for call in CALLS:
        if call.startswith(("statistics", "sums")):
            emulate(emulator, CALLS[call]((5, 90, 49)))
            assert emulator.launches == 2


ALIGNED = [(61, 5, 1), (61, 48, 1), (3, 5, 1300), (9, 5, 49), (9, 5, 64), (5, 3, 2)]


@pytest.mark.parametrize("call", KERNELS)
@pytest.mark.parametrize("view", ALIGNED)
def test_any_alignment_and_in_place(emulator, view, call):
    """In training two passes and finish between them; with fixed statistics a pass and finish,
    whatever is overwritten."""
    problem = CALLS[call](view, in_turn(view, call))
    assert not [*device_calls.alignment_differences(emulator, problem)]
    assert emulator.launches == (3 if call in TRAINING else 2)


def at_the_end_of_a_page(array: np.ndarray) -> np.ndarray:
    """A copy that ends at a guard page: an access behind it is a segmentation fault."""
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    start = whole.ctypes.data
    for guard in (start, start + page + size):
        assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), PROT_NONE) == 0
    end = page + size
    copy = whole[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("view", [(61, 5, 1), (61, 48, 1), (3, 5, 1300), (9, 5, 49), (1, 1, 1)])
def test_no_access_outside_the_arrays(emulator, view):
    for call in KERNELS:
        problem = CALLS[call](view, in_turn(view, call))
        want = emulated_bits(emulator, problem)
        outputs = device_calls.new_outputs(problem)
        for arrays in (problem.values, outputs):
            for role, array in arrays.items():
                arrays[role] = at_the_end_of_a_page(array)
        assert emulated_bits(emulator, problem, outputs=outputs) == want


@pytest.mark.parametrize("view", [(0, 3, 1), (5, 3, 0), (4, 0, 2)])
def test_views_without_elements(emulator, view):
    outputs = emulate(emulator, random_problem(view))
    assert not outputs["scale_backprop"].any() and not outputs["offset_backprop"].any()
    for is_training in (True, False):
        problem = random_forward_problem(view, is_training=is_training)
        assert_within_bounds(emulate(emulator, problem), problem)


RESNET50 = [(112, 64), (56, 64), (56, 256), (28, 512), (14, 1024), (7, 2048), (7, 512)]
LARGE_VIEWS = [
    *((256 * side * side, channels, 1) for side, channels in RESNET50),
    *((256, channels, side * side) for side, channels in RESNET50),
    *((1 << 22, 3, 1), (1 << 16, 3, 49), (1, 1, 1 << 24), (8, 1 << 20, 1), (1 << 24, 129, 2)),
    *((1 << 31, 2, 1), (2, 3, 1 << 31)),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_views_fill_a_large_device(emulator, dtype):
    """Grid size, active threads per block and workspace of few and many channels."""
    for view in LARGE_VIEWS:
        c = emulator.launch_config(view, dtype)
        active = c["threads_x"] * c["threads_y"] * c["threads_z"]
        assert 256 * 3 // 4 < active <= 256, (view, c)
        assert 256 <= c["grid"] < 1 << 31, (view, c)
        assert c["splits"] <= 1024
        workspace = emulator.workspace_bytes(view, dtype)
        # The second order's seven sums, of which slices of vectors have more splits.
        assert workspace <= view[1] * (56 * 1024 * c["fold"] + 104)
        assert c["fold"] <= 8
