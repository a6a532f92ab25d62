"""Malformed calls, concurrent calls, lack of memory.

Promised: a malformed call is an error with a message, whatever is wrong with it, and changes
nothing for the calls that follow; concurrent calls are bitwise identical to sequential ones; where
memory is exhausted, for outputs or for the workspace, the error is ResourceExhausted.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from build_helpers import environment

import tf_bn_ops

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.Path(tf_bn_ops.__file__).parent.parent


def run_child(*arguments: str) -> str:
    """The output of Python with the package in a process of its own."""
    result = subprocess.run(
        [sys.executable, *arguments],
        env=environment(PYTHONPATH=str(PACKAGE), TF_CPP_MIN_LOG_LEVEL="3"),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"status {result.returncode}: {result.stderr[-2000:]}"
    return result.stdout


@pytest.mark.long
def test_ten_thousand_malformed_calls():
    report = json.loads(run_child(str(HERE / "malformed_calls.py"), "10000", "1"))
    assert report["useless"] == [], "refused with another exception than for wrong arguments"
    assert report["unchanged"], "valid calls have other results after malformed ones"
    outcomes = report["outcomes"]
    assert sum(outcomes.values()) == 10_000
    # Some mistakes cancel each other or are none, such as a shape that is unknown in a graph.
    assert outcomes["accepted"] < 2_000
    assert outcomes["InvalidArgumentError"] > 2_000, "most are to reach the kernels"
    assert outcomes["ValueError"] > 1_000, "and the shape functions"


def call_for(seconds: float) -> tuple[int, set[str]]:
    """Calls the ops from 8 threads for some time: number of calls, and whose results differed."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    problems = []
    # A small call, which runs on its caller's thread, and larger ones of either partition.
    for shape in ((2, 3, 4, 8), (8, 40, 40, 16), (4, 3, 60, 80)):
        for data_format in ("NHWC", "NCHW"):
            channels = shape[3 if data_format == "NHWC" else 1]
            data = [tf.constant(rng.normal(size=shape).astype(np.float32)) for _ in range(2)]
            vectors = [
                tf.constant(rng.uniform(0.5, 2, channels).astype(np.float32)) for _ in range(3)
            ]
            problems.append((data, vectors, data_format))

    def results(i: int) -> list[bytes]:
        (dy, x), (scale, mean, variance), data_format = problems[i % len(problems)]
        kind = (i // len(problems)) % 3
        if kind == 2:
            out = tf_bn_ops.batch_norm_training_backprop(
                *(x, scale, scale, mean, variance, dy), epsilon=1e-3
            ) if data_format == "NCHW" else ()  # fmt: skip
        else:
            out = tf_bn_ops.fused_batch_norm_grad(
                *(dy, x, scale, mean, variance),
                epsilon=1e-3,
                data_format=data_format,
                is_training=kind == 0,
            )
        return [np.asarray(output).tobytes() for output in out]

    count = 3 * len(problems)
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


# Limits the address space to `spare` bytes more than is used, then calls.
SHORT_OF_MEMORY = """
import resource, sys
import numpy as np, tensorflow as tf, tf_bn_ops

def call(shape):
    channels = shape[-1]
    data, vector = tf.ones(shape), tf.ones([channels])
    def go():
        return tf_bn_ops.fused_batch_norm_grad(data, data, vector, vector, vector)
    return go

big = call([int(size) for size in sys.argv[1].split(",")])
# Above the serial threshold, so that all threads are started before memory is limited.
small = call([64, 32, 32, 4])
before = small()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), unlimited[1]))
try:
    big()
    print("no error")
except tf.errors.ResourceExhaustedError as error:
    print("ResourceExhausted:", " ".join(str(error).split()))
resource.setrlimit(resource.RLIMIT_AS, unlimited)
after = small()
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
    lines = run_child("-c", SHORT_OF_MEMORY, shape, str(spare)).splitlines()
    assert lines[0].startswith("ResourceExhausted: "), what
    assert "OOM when allocating tensor" in lines[0]
    assert asked_for in lines[0]
    assert lines[1] == "same", "with memory again, the next call has the same result"
