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
from tf_bn_ops import _ops

TESTS = pathlib.Path(__file__).resolve().parents[1]
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
    report = json.loads(run_child(str(TESTS / "malformed_calls.py"), "10000", "1"))
    assert report["useless"] == [], "refused with another exception than for wrong arguments"
    assert report["unchanged"], "valid calls have other results after malformed ones"
    outcomes = report["outcomes"]
    assert sum(outcomes.values()) == 10_000
    # Some mistakes cancel each other or are none, such as a shape that is unknown in a graph.
    assert outcomes["accepted"] < 2_000
    assert outcomes["InvalidArgumentError"] > 2_000, "most are to reach the kernels"
    assert outcomes["ValueError"] > 1_000, "and the shape functions"


# Malformed inputs that crashed ops of this family, or made them read what is not theirs, somewhere:
# (where it was published, op, element type, attrs, shapes by role).
PUBLISHED: list[tuple[str, str, str, dict, dict]] = [
    ("CVE-2021-29583, one of each vector", "FusedBatchNorm", "float32", {},
     {"x": [1, 2, 2, 6], "scale": [1], "offset": [1], "mean": [1], "variance": [1]}),
    ("CVE-2021-29583, empty vectors", "FusedBatchNorm", "float32", {},
     {"x": [1, 2, 2, 1], "scale": [0], "offset": [0], "mean": [0], "variance": [0]}),
    ("CVE-2021-41223", "FusedBatchNormGrad", "float32", {"data_format": "NCHW", "epsilon": 1.0},
     {"y_backprop": [1, 1, 3, 3], "x": [1, 1, 1, 2], "scale": [1, 1], "mean": [1, 1],
      "variance": [1, 1, 1]}),
    ("TensorFlow issue 58999", "FusedBatchNormGrad", "float32", {},
     {"y_backprop": [1, 1, 6, 2], "x": [1, 1, 6, 2], "scale": [], "mean": [2], "variance": [2]}),
    ("TensorFlow issue 59001", "FusedBatchNormV3", "half", {},
     {"x": [3, 2, 4, 2], "scale": [], "offset": [2], "mean": [2], "variance": [2]}),
    ("TensorFlow issue 59014", "FusedBatchNormV3", "half", {"data_format": "NCDHW"},
     {"x": [1, 2, 6, 1, 3], "scale": [], "offset": [2], "mean": [2], "variance": [2]}),
    ("fuzzer, frozen", "FusedBatchNormV3", "float32", {"is_training": False},
     {"x": [3, 2, 4, 2], "scale": [2], "offset": [2], "mean": [], "variance": [1, 1]}),
    ("fuzzer, V2", "FusedBatchNormGradV2", "float32", {},
     {"y_backprop": [1, 1, 6, 2], "x": [1, 1, 6, 2], "scale": [], "mean": [2], "variance": [2]}),
    ("fuzzer, V3", "FusedBatchNormGradV3", "float32", {"data_format": "NCHW"},
     {"y_backprop": [1, 6, 4, 1], "x": [1, 6, 4, 1], "scale": [], "mean": [6], "variance": [6],
      "forward_coefficients": [1, 6, 4, 1]}),
    ("PyTorch 85217, weight", "FusedBatchNormV3", "float32", {},
     {"x": [2, 3, 4, 5], "scale": [0] * 10, "offset": [5], "mean": [5], "variance": [5]}),
    ("PyTorch 85217, running statistics", "FusedBatchNormV3", "float32", {"is_training": False},
     {"x": [2, 3, 4, 5], "scale": [5], "offset": [5], "mean": [0], "variance": [0]}),
    ("the same, averaged", "FusedBatchNormEx", "float32", {"exponential_avg_factor": 0.5},
     {"x": [2, 3, 4, 5], "scale": [5], "offset": [5], "mean": [0], "variance": [0],
      "side_input": [2, 3, 4, 5]}),
    ("a side input of another size", "FusedBatchNormEx", "float32", {"activation_mode": "Relu"},
     {"x": [2, 3, 4, 5], "scale": [5], "offset": [5], "mean": [5], "variance": [5],
      "side_input": [1, 1, 1, 5]}),
]  # fmt: skip

CALL_PUBLISHED = """
import json, sys
import tensorflow as tf, tf_bn_ops
from tf_bn_ops.spec import OPS, VIEW, VIEW_LIST

for _, name, dtype, attrs, shapes in json.loads(sys.argv[1]):
    inputs = {}
    for arg in OPS[name].inputs:
        kind = dtype if arg.kind in (VIEW, VIEW_LIST) else "float32"
        value = tf.cast(tf.fill(shapes.get(arg.role, [0]), -3.5e35), kind)
        inputs[arg.name] = [value] if arg.kind == VIEW_LIST else value
    try:
        getattr(tf_bn_ops.raw_ops, name)(**inputs, **attrs)
        print("accepted")
    except tf.errors.InvalidArgumentError as error:
        print(error.message.splitlines()[0])
"""


# oneDNN is TensorFlow's default; the ops are this library's under both.
@pytest.mark.parametrize("onednn", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_published_malformed_inputs_are_refused_in_one_sentence(onednn, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    lines = run_child("-c", CALL_PUBLISHED, json.dumps(PUBLISHED)).splitlines()
    assert len(lines) == len(PUBLISHED)
    for (source, *_), line in zip(PUBLISHED, lines, strict=True):
        says = ("must be 1-dimensional", "must have the same", "shape must be equal")
        assert any(words in line for words in says), f"{source}: {line}"


# First-order op in training and frozen, BatchNormTrainingBackprop, forward op in either mode.
KINDS = 5
FORWARD_INPUTS = ("x", "scale", "offset", "mean", "variance")


def concurrent_problems() -> list[tuple]:
    """Tensors of x's shape, vectors of channels, and the data format."""
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
    return problems


def results_of(problem: tuple, kind: int) -> list[bytes]:
    (dy, x), (scale, mean, variance), data_format = problem
    if kind > 2:
        out = tf_bn_ops.raw_ops.FusedBatchNormEx(
            **dict(zip(FORWARD_INPUTS, (x, scale, mean, mean, variance), strict=True)),
            side_input=[dy],
            data_format=data_format,
            is_training=kind == 3,
            activation_mode="Relu",
        )
    elif kind == 2:
        out = _ops.batch_norm_training_backprop(
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


def call_for(seconds: float) -> tuple[int, set[str]]:
    """Calls the ops from 8 threads for some time: number of calls, and whose results differed."""
    problems = concurrent_problems()

    def results(i: int) -> list[bytes]:
        return results_of(problems[i % len(problems)], (i // len(problems)) % KINDS)

    count = KINDS * len(problems)
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
    lines = run_child("-c", SHORT_OF_MEMORY, shape, str(spare)).splitlines()
    assert len(lines) == 4, "two of each op"
    for refused, again in (lines[:2], lines[2:]):
        assert refused.startswith("ResourceExhausted: "), what
        assert "OOM when allocating tensor" in refused
        assert asked_for in refused
        assert again == "same", "with memory again, the next call has the same result"
