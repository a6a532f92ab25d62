"""What the CPU backend does with single numbers, and without memory or threads.

Promised: NaN of any payload stays NaN; every 16-bit value is read, and rounded to nearest even;
kernels flush subnormal numbers, and no caller's thread; what the system refuses is a sentence or
costs time alone; on a small stack nothing of others is overwritten; a child of a fork computes.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform
import re
import shutil
import threading
import time

import build_helpers
import numpy as np
import pytest
from builds import ISA_BUILDS

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem, random_problem
from tf_bn_ops.spec import DTYPES

STATM = pathlib.Path("/proc/self/statm")


@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("payload", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFC00000])
def test_nan_of_any_payload_stays_nan(payload, implementation, dtype):
    """Also where rounding to a narrower type would carry into the exponent, or cut the payload."""
    for role in ("scale", "variance", "mean"):
        problem = random_problem((70, 64, 1), dtype)
        problem[role].view(np.uint32)[3] = payload
        got = c_abi.run(problem, implementation=implementation)["x_backprop"].astype(np.float32)
        assert np.isnan(got[:, 3]).all()
        assert np.isfinite(np.delete(got, 3, axis=1)).all()


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_every_16_bit_value_is_read_and_rounded_to_nearest_even(dtype, implementation):
    """All 65536 patterns through the frozen formula with factor 1, with one that makes ties, and
    with others that round. What is right is the conversion of NumPy and ml_dtypes."""
    element = DTYPES[dtype].numpy
    values = np.arange(1 << 16, dtype=np.uint16).view(element).reshape(1 << 14, 1, 4)
    one = np.ones(1, np.float32)
    for scale in np.float32([1, 1.5, 1 / 3, 1e-6, 1e6]):
        arrays = {"y_backprop": values, "x": values, "mean": 0 * one, "variance": one}
        problem = Problem({**arrays, "scale": scale * one}, 0.0, is_training=False)
        got = c_abi.run(problem, implementation=implementation)["x_backprop"]
        with np.errstate(over="ignore", invalid="ignore"):
            want = (values.astype(np.float32) * scale).astype(element)
        not_compared = np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), not_compared)
        if dtype == "bfloat16":  # Subnormal floats are flushed, as TensorFlow's threads do.
            for array in (want, values):
                not_compared |= np.abs(array.astype(np.float32)) <= DTYPES[dtype].smallest_normal
        np.testing.assert_array_equal(
            np.where(not_compared, 0, got.view(np.uint16)),
            np.where(not_compared, 0, want.view(np.uint16)),
        )


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_a_product_just_below_the_smallest_normal_number(implementation):
    """By less than a quarter of a unit in the last place: x86 rounds before it looks whether the
    result is subnormal, Arm looks before it rounds. The caller's thread flushes nothing."""
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, 1 << 20).astype(np.float32)
    b = (1 / a.astype(np.float64)).astype(np.float32)
    product = a.astype(np.float64) * b  # Exact.
    a, b = (v[(product < 1) & (product >= 1 - 2.0**-25)][:64] for v in (a, b))
    one, least = np.ones_like(a), np.float32(np.finfo(np.float32).smallest_normal)
    y_backprop = (a * least).reshape(1, -1, 1)
    values = {"y_backprop": y_backprop, "x": 0 * y_backprop, "scale": b}
    problem = Problem({**values, "mean": 0 * one, "variance": one}, 0.0, is_training=False)
    assert len(a) == 64
    found = c_abi.run(problem, implementation=implementation)["x_backprop"]
    assert np.all(found == (least if platform.machine() == "x86_64" else 0))
    assert least / np.float32(4) != 0


def _addresses(struct):
    return [name for name, kind in struct._fields_ if kind is ctypes.c_void_p]


@pytest.mark.parametrize("role", _addresses(c_abi.GatherStats))
def test_statistics_that_begin_within_an_element_are_refused(role):
    memory = np.zeros(64)
    fields = dict.fromkeys(_addresses(c_abi.GatherStats), memory.ctypes.data)
    fields[role] += 1
    with pytest.raises(ValueError, match=rf"^{role} must be aligned to its element type"):
        c_abi.run_gather_stats(c_abi.GatherStats(1, 1, **fields))


def short_of_memory():
    """The error of a call whose workspace does not fit into what is left, and whether another has
    its result whose threads do not start: a thread's stack takes 8 MB of address space."""
    import resource

    wide, tall = random_problem((1, 1 << 22, 1)), random_problem((4000, 40, 1))
    out, want = c_abi.run(wide), c_abi.bits(c_abi.run(tall))
    used = int(STATM.read_text().split()[0]) * resource.getpagesize()
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), unlimited[1]))
    try:
        c_abi.run(wide, outputs={"x_backprop": out["x_backprop"]})
        sentence = ""
    except (ValueError, MemoryError) as error:
        sentence = str(error)
    is_same = c_abi.bits(c_abi.run(tall, threads=200)) == want
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    return sentence, is_same


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer reserves address space"
)
def test_without_memory_there_is_a_sentence_and_without_threads_still_a_result():
    assert build_helpers.call(short_of_memory) == ["the system refused: std::bad_alloc", True]


# ---- Stacks --------------------------------------------------------------------------------------

BELOW, GUARD = 512 << 10, 4 << 10
# What Python and ctypes take of a stack themselves.
PYTHON = 96 << 10


def call_on_stack(size: int) -> tuple[int, int]:
    """The wait status of a process that calls the largest kernel on a thread with a stack of so
    many bytes, and how much of a mapping below the stack's guard page it has overwritten."""
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    shared = mmap.mmap(-1, BELOW + GUARD + size)  # The parent looks at it, too.
    base = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    shared[:BELOW] = b"\x5a" * BELOW
    lib, view = c_abi.library(), (70, 3, 3000)
    arrays: dict[str, np.ndarray] = {
        role: np.ones(view) for role in ("x_backprop_grad", "y_backprop", "x")
    }
    arrays |= {role: np.ones(view) for role in ("y_backprop_grad", "x_grad")}
    for role in ("scale_backprop_grad", "offset_backprop_grad", "scale", "mean", "variance"):
        arrays[role] = np.ones(view[1])
    arrays["scale_grad"] = np.ones(view[1])
    call = c_abi.Call(c_abi.View(*view), formula=2, dtype=3, stat_dtype=3, is_training=1)
    for role, array in arrays.items():
        setattr(call, role, array.ctypes.data)
    child = os.fork()
    if child == 0:
        libc.mprotect(ctypes.c_void_p(base + BELOW), ctypes.c_size_t(GUARD), 0)
        done = []
        start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
            lambda _: done.append(lib.tfbn_cpu_run(call, None, 1, None, 0))
        )
        attributes, thread = ctypes.create_string_buffer(128), ctypes.c_ulong()
        libc.pthread_attr_init(attributes)
        stack = ctypes.c_void_p(base + BELOW + GUARD), ctypes.c_size_t(size)
        refused = libc.pthread_attr_setstack(attributes, *stack)
        refused |= libc.pthread_create(ctypes.byref(thread), attributes, start, None)
        if refused == 0:
            libc.pthread_join(thread, None)
        os._exit(0 if done == [0] else 3)
    _, status = os.waitpid(child, 0)
    return status, BELOW - shared[:BELOW].count(0x5A)


def calls_on_stacks(sizes: list[int]) -> list[tuple[int, int]]:
    return [call_on_stack(size) for size in sizes]


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its frames are larger")
def test_a_stack_that_is_too_small_is_not_overrun(repo_root):
    """With what the header says is needed the call is computed; with less it ends the process, at
    the guard page at the latest."""
    header = (repo_root / "cc" / "c_api" / "tf_bn_ops_c.h").read_text()
    (kib,) = map(int, re.findall(r"TFBN_STACK_BYTES \((\d+) \* 1024\)", header))
    sizes = [kib << 10 for kib in range(64, kib, 16)]
    found = build_helpers.call(calls_on_stacks, [*sizes, (kib << 10) + PYTHON])
    assert [overwritten for _, overwritten in found] == [0] * len(found)
    assert found[-1][0] == 0


# ---- Forks ---------------------------------------------------------------------------------------


# Mutexes are held a millisecond longer than the core library wants.
SLOW_UNLOCK = """
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
int pthread_mutex_unlock(void* mutex) {
  static int (*unlock)(void*);
  Dl_info info;
  if (!unlock) unlock = (int (*)(void*))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
  if (dladdr(__builtin_return_address(0), &info) && strstr(info.dli_fname, "tf_bn_ops_core"))
    usleep(1000);
  return unlock(mutex);
}
"""


def children_of_forks(count: int) -> int:
    """How many children of a process whose other threads compute have computed the same."""
    problem = random_problem((8, 64, 1500))  # A pipeline, which takes scratch memory.
    assert c_abi.explain("batch_norm_grad", problem.view)["scratch_bytes"] != "0"
    want = c_abi.bits(c_abi.run(problem))
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            c_abi.run(problem)

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    computed = 0
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os._exit(0 if c_abi.bits(c_abi.run(problem)) == want else 3)
        end = time.monotonic() + 60
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.001)
        if found == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
            break
        computed += found[1] == 0
    stop.set()
    for thread in threads:
        thread.join()
    return computed


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_child_of_a_fork_computes_while_other_threads_did(tmp_path):
    """No thread holds a lock that the child would wait for, such as over its scratch memory."""
    (tmp_path / "slow.c").write_text(SLOW_UNLOCK)
    command = ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "slow.c", "-o", "slow.so", "-ldl"]
    assert build_helpers.run(command, tmp_path).returncode == 0
    preloaded = str(tmp_path / "slow.so")
    assert build_helpers.call(children_of_forks, 20, LD_PRELOAD=preloaded) == 20
