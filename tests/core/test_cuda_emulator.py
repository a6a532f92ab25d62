"""The CUDA kernels on the host emulator: the indexing and arithmetic of a GPU.

cc/cuda/testing/emulator.cc runs the device code of cc/cuda thread by thread. Promised: the error
bounds of the CPU backend; bitwise identical results for any order of threads and blocks, any
alignment, and in place; no access outside the arrays; no read of uninitialized memory.
"""

from __future__ import annotations

import ctypes
import mmap
import pathlib
import shutil
import sys

import numpy as np
import pytest
from test_cpu import VIEWS as CPU_VIEWS
from test_cpu import assert_close, make_problem

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import Problem, Result
from tf_bn_ops.spec import DTYPES

PROT_NONE = 0
# Threads run one by one, which is slow: large views only where the launch configuration differs.
VIEWS = [view for view in CPU_VIEWS if np.prod(view) <= 200_000] + [(3, 2, 8200), (2, 2000, 3)]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def emulator(repo_root: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sys.path.insert(0, str(repo_root / "tools" / "gpu"))
    import driver

    lib = ctypes.CDLL(str(driver.build_emulator(tmp_path_factory.mktemp("emulator"))))
    lib.tfbn_emulate_workspace.restype = ctypes.c_int64
    lib.tfbn_emulate_group_bytes.restype = ctypes.c_int64
    lib.tfbn_emulate_group_bytes.argtypes = [
        *[ctypes.c_int64] * 3,
        ctypes.c_int32,
        ctypes.c_int64,
        ctypes.c_double,
    ]
    lib.tfbn_emulate_workspace.argtypes = [*[ctypes.c_int64] * 3, ctypes.c_int32]
    lib.tfbn_emulate.argtypes = [
        ctypes.POINTER(c_abi.Args),
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_int32),
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    return lib


def emulate(
    lib: ctypes.CDLL,
    p: Problem,
    *,
    seed: int = 0,
    group_bytes: int = 0,
    launches: ctypes.c_int32 | None = None,
    x_backprop: np.ndarray | None = None,
    **overrides: int,
) -> Result:
    """One call on the emulator; `seed` other than 0 shuffles threads and blocks. `launches` receives
    the number of kernels; `group_bytes` as in cc/cuda/cuda_backend.h."""
    out = np.full_like(p.x, np.nan) if x_backprop is None else x_backprop
    result = Result(out, np.full_like(p.scale, np.nan), np.full_like(p.scale, np.nan))
    args = c_abi.args_of(p, result, **overrides)
    workspace = np.full(
        lib.tfbn_emulate_workspace(args.outer, args.channels, args.inner, args.dtype) // 8 + 1,
        np.nan,
    )
    error = ctypes.create_string_buffer(512)
    status = lib.tfbn_emulate(
        args, workspace.ctypes.data, seed, group_bytes, launches, error, len(error)
    )
    assert status == 0, error.value
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_within_bounds_and_bitwise_identical_in_any_thread_order(
    emulator, view, is_training, dtype
):
    problem = make_problem(view, dtype, is_training=is_training)
    result = emulate(emulator, problem)
    assert_close(result, problem, dtype)
    if np.prod(view) < 20_000:
        assert emulate(emulator, problem, seed=7).bits() == result.bits()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", [(100, 3, 1), (300, 40, 1), (9, 5, 49), (2, 3, 9000)])
def test_variance_is_rstd(emulator, view, dtype):
    problem = make_problem(view, dtype)
    rstd = 1 / np.sqrt(problem.variance.astype(np.float64) + problem.epsilon)
    given = make_problem(view, dtype)
    given.variance = rstd.astype(problem.variance.dtype)
    result = emulate(emulator, given, variance_is_rstd=1)
    # The oracle gets the variance whose rstd is the rounded one.
    given.variance = (given.variance.astype(np.longdouble) ** -2).astype(np.longdouble)
    given.epsilon = 0.0
    assert_close(result, given, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", [(5, 90, 49), (2, 24, 4100), (9, 1500, 3), (2, 2000, 3)])
def test_groups_of_channels_are_bitwise_identical(emulator, view, dtype):
    """Each group of channels is applied before the next one is reduced."""
    problem = make_problem(view, dtype)
    want = emulate(emulator, problem).bits()
    whole = 2 * problem.x.nbytes
    counts = []
    for group_bytes in (1, whole // 50, whole // 7, whole // 3, whole // 2, whole - 1, whole):
        launches = ctypes.c_int32()
        got = emulate(emulator, problem, seed=9, group_bytes=group_bytes, launches=launches)
        assert got.bits() == want, group_bytes
        counts.append(launches.value)
    # Three kernels per group; one group where the view fits, or where not even one tile does.
    assert counts[0] == counts[-1] == 3
    assert max(counts) >= 9
    assert all(count % 3 == 0 for count in counts)
    for is_training, shape in ((False, view), (True, (view[0], view[1], 1))):
        other = make_problem(shape, dtype, is_training=is_training)
        launches = ctypes.c_int32()
        emulate(emulator, other, group_bytes=2 * other.x.nbytes // 3, launches=launches)
        assert launches.value == (3 if is_training else 2), "no groups if frozen or channels-last"


def test_large_channels_first_tensor(emulator):
    """From 32 MiB on: one channel per tile, splits of 128 KiB, and groups."""
    view = (64, 52, 1300)
    config = launch_config(emulator, view, "float64")
    assert config["threads_y"] == 1 and config["grid"] == 52 * config["splits"]
    assert config["splits"] == max(-(-1024 // 52), -(-64 * 1300 * 8 // (128 << 10)))
    problem = make_problem(view, "float64")
    result = emulate(emulator, problem)
    assert_close(result, problem, "float64")
    launches = ctypes.c_int32()
    grouped = emulate(emulator, problem, group_bytes=problem.x.nbytes, launches=launches)
    assert launches.value == 6
    assert grouped.bits() == result.bits()


def test_groups_where_they_pay(emulator):
    """By L2 size and memory bandwidth, from data sheets."""
    mb, gb = 1 << 20, 1e9
    l4, h200 = (48 * mb, 300 * gb), (50 * mb, 4800 * gb)

    def group(view: tuple[int, int, int], traits: tuple[int, float]) -> int:
        return emulator.tfbn_emulate_group_bytes(*view, c_abi.DTYPE_CODES["float32"], *traits)

    resnet = [(256, c, s * s) for s, c in ((56, 64), (56, 256), (28, 512), (14, 1024))]
    for view in resnet:
        # At most half of L2, at least 40 us of reading DRAM: four times the launch overhead.
        assert 12e6 <= group(view, l4) <= 24 * mb, view
        # Half of L2 is read in less than that.
        assert group(view, h200) == 0
    assert group((256, 512, 49), (128 * mb, 300 * gb)) == 0, "both inputs fit into L2"
    assert group((256 * 56 * 56, 64, 1), l4) == 0, "channels-last"
    assert group((256, 64, 112 * 112), l4) == 0, "not even one channel fits into L2"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("view", [(61, 5, 1), (61, 48, 1), (3, 5, 1300), (9, 5, 49), (5, 3, 2)])
def test_any_alignment_and_in_place(emulator, view, is_training, dtype):
    def shifted(array: np.ndarray, offset: int) -> np.ndarray:
        store = np.zeros(array.nbytes + 64 + 16 * array.itemsize, np.uint8)
        start = -store.ctypes.data % 64 + offset * array.itemsize
        copy = store[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    original = make_problem(view, dtype, is_training=is_training)
    want = emulate(emulator, original).bits()
    for offsets in [(0, 0, 0), (1, 0, 0), (0, 3, 0), (0, 0, 1), (5, 5, 5), (1, 2, 3), (7, 7, 6)]:
        p = make_problem(view, dtype, is_training=is_training)
        p.y_backprop = shifted(original.y_backprop, offsets[0])
        p.x = shifted(original.x, offsets[1])
        out = shifted(np.zeros_like(original.x), offsets[2])
        assert emulate(emulator, p, x_backprop=out, seed=3).bits() == want
        assert emulate(emulator, p, x_backprop=p.x, seed=5).bits() == want
        p.x = shifted(original.x, offsets[1])
        assert emulate(emulator, p, x_backprop=p.y_backprop).bits() == want


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", [(61, 5, 1), (61, 48, 1), (3, 5, 1300), (9, 5, 49), (1, 1, 1)])
def test_no_access_outside_the_arrays(emulator, view, dtype):
    for is_training in (True, False):
        problem = make_problem(view, dtype, is_training=is_training)
        want = emulate(emulator, problem).bits()
        for name in ("y_backprop", "x", "scale", "mean", "variance"):
            setattr(problem, name, at_the_end_of_a_page(getattr(problem, name)))
        out = at_the_end_of_a_page(problem.x)
        assert emulate(emulator, problem, x_backprop=out).bits() == want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
def test_sums_of_small_integers_are_exact(emulator, view, dtype):
    rng = np.random.default_rng(list(view))
    problem = make_problem(view, dtype)
    problem.y_backprop = rng.integers(-3, 4, view).astype(problem.x.dtype)
    problem.x = rng.integers(-3, 4, view).astype(problem.x.dtype)
    problem.mean = rng.integers(-2, 3, view[1]).astype(problem.mean.dtype)
    problem.variance = np.full_like(problem.variance, 2)
    result = emulate(emulator, problem, variance_is_rstd=1)
    dy = problem.y_backprop.astype(int)
    centered = problem.x.astype(int) - problem.mean.astype(int)[:, np.newaxis]
    np.testing.assert_array_equal(result.offset_backprop, dy.sum((0, 2)))
    np.testing.assert_array_equal(result.scale_backprop, 2 * (dy * centered).sum((0, 2)))


@pytest.mark.parametrize("view", [(0, 3, 1), (5, 3, 0), (4, 0, 2)])
def test_empty_views_give_zero_sums(emulator, view):
    result = emulate(emulator, make_problem(view))
    assert not result.scale_backprop.any() and not result.offset_backprop.any()


def launch_config(lib: ctypes.CDLL, view: tuple[int, int, int], dtype: str) -> dict[str, int]:
    names = ["grid", "threads_x", "threads_y", "threads_z", "fold", "steps", "items", "splits"]
    out = (ctypes.c_int64 * len(names))()
    lib.tfbn_emulate_launch_config(
        *map(ctypes.c_int64, view), ctypes.c_int32(c_abi.DTYPE_CODES[dtype]), out
    )
    return dict(zip(names, out, strict=True))


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
        c = launch_config(emulator, view, dtype)
        active = c["threads_x"] * c["threads_y"] * c["threads_z"]
        assert 256 * 3 // 4 < active <= 256, (view, c)
        assert 256 <= c["grid"] < 1 << 31, (view, c)
        tile_bytes = np.prod(view) * DTYPES[dtype].numpy.itemsize * c["splits"] / c["grid"]
        # A split of channels-first data is 128 KiB long, or more.
        assert c["splits"] <= max(1024, 1 + tile_bytes / (128 << 10))
        workspace = emulator.tfbn_emulate_workspace(*view, c_abi.DTYPE_CODES[dtype])
        assert workspace <= view[1] * (16 * c["splits"] * c["fold"] + 48)
        assert c["fold"] <= 8
