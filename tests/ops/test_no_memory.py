"""Without memory: an allocation of the library that fails is an error of the call.

Promised: `std::bad_alloc` leaves neither an op's Compute, nor the handler of XLA's custom call, nor
the C ABI, whose callers are not to be unwound: whichever allocation fails, the call has its result,
or ends in ResourceExhaustedError, or in the status 1 with a sentence; the next call is right.
"""

from __future__ import annotations

import os
import shutil

import forked
import pytest
from build_helpers import run

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

# Of the allocations that the libraries of this project ask for, one fails.
ALLOCATOR = """
#include <dlfcn.h>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
std::atomic<long> left{-1};
extern "C" void fail_after(long count) { left = count; }
extern "C" long still_left() { return left; }
static bool IsOurs(void* caller) {
  Dl_info info;
  return dladdr(caller, &info) != 0 && std::strstr(info.dli_fname, "libtf_bn_ops") != nullptr;
}
static void* Get(std::size_t bytes, void* caller) {
  if (left >= 0 && IsOurs(caller) && left-- == 0) throw std::bad_alloc();
  void* const memory = std::malloc(bytes ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes) { return Get(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return Get(bytes, __builtin_return_address(0)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
"""

PROGRAM = """
import ctypes, sys
import numpy as np, tensorflow as tf
import tf_bn_ops
from tf_bn_ops import raw_ops
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import random_problem

allocator = ctypes.CDLL(sys.argv[1])
rng = np.random.default_rng(1)
x, dy = (tf.constant(rng.normal(size=(16, 12, 12, 64)), tf.float32) for _ in range(2))
wide = tf.constant(rng.normal(size=(8, 4, 64, 1500)), tf.float32)  # Takes a pipeline's scratch.
ones, rows = tf.ones(64), tf.ones([2, 64], tf.float64)
channels = tf.ones(4)

def forward(x, scale, layout="NHWC"):
    return raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=scale, mean=scale, variance=scale,
                                    data_format=layout).y
def gradient(x):
    return raw_ops.FusedBatchNormGradV2(y_backprop=dy, x=x, scale=ones, reserve_space_1=ones,
                                        reserve_space_2=ones).x_backprop
def gather(rows):
    return raw_ops.BatchNormGatherStats(counts=tf.ones(2, tf.float64), means=rows, m2s=rows).m2
compiled = tf.function(lambda x: forward(x, ones), jit_compile=True, autograph=False)
problem = random_problem((2000, 40, 1))
calls = {
    "forward": lambda: forward(x, ones).numpy(),
    "forward, channels first": lambda: forward(wide[0:8, 0:4], channels, "NCHW").numpy(),
    "gradient": lambda: gradient(x).numpy(),
    "gather": lambda: gather(rows).numpy(),
    "compiled": lambda: compiled(x).numpy(),
    "C ABI": lambda: c_abi.run(problem, threads=2)["x_backprop"],
    "explain": lambda: c_abi.explain("batch_norm", (3, 4, 5)).fields,
    "implementations": c_abi.implementations,
}
for name, call in calls.items():
    want, count, failed = call(), 0, 0
    while True:
        allocator.fail_after(count)
        try:
            got = call()
        except tf.errors.ResourceExhaustedError as error:
            failed += "bad_alloc" in str(error)
        except ValueError as error:
            failed += str(error) == "the system refused: std::bad_alloc"
        else:
            assert np.array_equal(np.asarray(got), np.asarray(want)), name
        left = allocator.still_left()
        allocator.fail_after(-1)
        assert np.array_equal(np.asarray(call()), np.asarray(want)), name
        if left >= 0:
            break
        count += 1
    print(name, "|", count, failed, flush=True)
"""


def test_an_allocation_that_fails_is_an_error_of_the_call(tmp_path):
    """Promise: A failing allocation is an error of the call, and never the end of the process."""
    source, library = tmp_path / "allocator.cc", tmp_path / "allocator.so"
    source.write_text(ALLOCATOR)
    built = run(["g++", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], tmp_path)
    assert built.returncode == 0, built.stderr
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = forked.run(PROGRAM, library, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split(" | ") for line in done.stdout.splitlines() if " | " in line)
    counts = {name: [*map(int, numbers.split())] for name, numbers in found.items()}
    # Some are made up for: a thread less does the work.
    assert counts.pop("implementations") == counts.pop("gather") == [0, 0]
    assert len(counts) == 6
    assert all(0 < failed <= count for count, failed in counts.values()), counts
