"""Concurrent calls, lack of memory.

Promised: concurrent calls are bitwise identical to sequential ones; where memory is exhausted, for
outputs or for the workspace, the error is ResourceExhausted.
"""

from __future__ import annotations

import pathlib
import threading
import time

import forked
import pytest
from op_calls import bits, call_of, small

from tf_bn_ops.spec import OPS


def call_for(seconds: float) -> tuple[int, set[str]]:
    """Calls the ops from 8 threads for some time: number of calls, and whose results differed."""
    # Small calls, which run on their caller's thread, and larger ones of either partition.
    shapes = {"NHWC": ((2, 3, 4, 8), (8, 40, 40, 16)), "NCHW": ((2, 8, 3, 4), (4, 3, 60, 80))}
    cases = [
        small(op, layout, mode, shape=shape)
        for op in OPS.values()
        for layout in {*shapes} & {*op.layouts}
        for mode in op.modes
        for shape in shapes[layout]
    ]
    calls_of_cases = [call_of(case)[:2] for case in cases]

    def results(i: int) -> list[bytes]:
        call, tensors = calls_of_cases[i % count]
        return bits(call(tensors))

    count = len(cases)
    alone = [results(i) for i in range(count)]
    calls, differed = [0] * 8, set()
    end = time.monotonic() + seconds

    def work(thread: int) -> None:
        i = thread
        while time.monotonic() < end:
            try:
                if results(i) != alone[i % count]:
                    differed.add(f"call {i % count}")
            except Exception as error:
                differed.add(repr(error))
            calls[thread] += 1
            i += 1

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(calls)
    return sum(calls), differed


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.large)])
def test_concurrent_calls_are_bitwise_identical_to_sequential_ones(seconds):
    calls, differed = call_for(seconds)
    assert differed == set()
    assert calls > 20


# Limits the address space to `spare` bytes more than is used, then calls; for each op.
SHORT_OF_MEMORY = """
import resource, sys
import numpy as np, tensorflow as tf, tf_bn_ops

def gradient(data, vector):
    return tf_bn_ops.fused_batch_norm_grad(data, data, vector, vector, vector)

def forward(data, vector):
    names = ("scale", "offset", "mean", "variance")
    return tf_bn_ops.raw_ops.FusedBatchNorm(x=data, **dict.fromkeys(names, vector))

def inputs(shape):
    return tf.ones(shape), tf.ones([shape[-1]])

big = inputs([int(size) for size in sys.argv[1].split(",")])
# Above the serial threshold, so that all threads are started before memory is limited.
small = inputs([64, 32, 32, 4])
for op in (gradient, forward):
    before = op(*small)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), unlimited[1]))
    try:
        op(*big)
        print("no error")
    except tf.errors.ResourceExhaustedError as error:
        print("ResourceExhausted:", " ".join(str(error).split()))
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    after = op(*small)
    print("same" if all(np.array_equal(a, b) for a, b in zip(before, after)) else "other")
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("what", "shape", "spare", "asked_for"),
    [
        # An output of 1 GiB.
        ("output", "256,1024,1024,1", 200 << 20, "shape[256,1024,1024,1] and type float"),
        # Outputs of 16 MiB; a workspace of 64 bytes a channel, 256 MiB.
        ("workspace", f"1,1,1,{1 << 22}", 150 << 20, "type int8"),
    ],
)
def test_exhausted_memory_is_resource_exhausted(what, shape, spare, asked_for):
    lines = forked.output(SHORT_OF_MEMORY, shape, spare).splitlines()
    assert len(lines) == 4, "two of each op"
    for refused, again in (lines[:2], lines[2:]):
        assert refused.startswith("ResourceExhausted: "), what
        assert "OOM when allocating tensor" in refused
        assert asked_for in refused
        assert again == "same", "with memory again, the next call has the same result"
