"""Builds, tests and measures the GPU kernels in one call, on a machine rented by the minute.

    python tools/gpu/session.py [--log=FOLDER]

Needs g++, nvcc and NumPy. Builds for the device that is there, tests, times ResNet-50's batch
normalizations at batch 256 beside PyTorch's where that is installed, tests the ops where
TensorFlow sees the GPU, and tests again under compute-sanitizer. Times are medians by CUDA events
over rotating tensors, so that L2 holds none of them; the limit is the copy bandwidth, measured in
the same run. Without a GPU it says that it is skipped and succeeds; --emulated runs what measures
on the host emulator. Exit status 0: every step that could run passed.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cuda_device
import device_calls
import emulated_device
import numpy as np
import tool_flags

from tf_bn_ops.spec import DTYPES, layouts

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = "build/core/lib/libtf_bn_ops_core.so"
# (height = width, channels) of ResNet-50's batch normalizations.
RESNET50 = [
    *((112, 64), (56, 64), (56, 256), (56, 128), (28, 128), (28, 512), (28, 256)),
    *((14, 256), (14, 1024), (14, 512), (7, 512), (7, 2048)),
]  # fmt: skip
# What the calls of a row rotate through: several times any L2.
ROTATED_BYTES = 1 << 30
WARM_UP, TIMED = 5, 30
EPSILON = 1e-3
_STATISTICS = ["batch_mean", "batch_variance", "saved_mean", "saved_variance"]
# Inputs and output of x's shape, arrays per channel, fields of the call.
FORWARD = (
    *(["x"], "y"),
    ["scale", "offset", "mean", "variance", *_STATISTICS],
    {"formula": 0, "saves_rstd": 1, "bessel_correction": 1, "exponential_avg_factor": 1},
)
BACKWARD = (
    *(["y_backprop", "x"], "x_backprop"),
    ["scale", "mean", "variance", "scale_backprop", "offset_backprop"],
    {"formula": 1},
)


def median_time(device: Any, calls: list[Callable[[], Any]]) -> float:
    """Median seconds of a call, rotating through `calls`."""
    for i in range(1 if device.emulated else WARM_UP):
        calls[i % len(calls)]()
    count = 1 if device.emulated else TIMED
    return statistics.median(device.seconds([calls[i % len(calls)] for i in range(count)]))


def our_calls(device: Any, op: Any, view: Any, dtype: str, training: bool, sets: int) -> list[Any]:
    """Calls on tensors of their own; random ones, since power depends on the data."""
    inputs, output, vectors, fields = op
    rng = np.random.default_rng(0)
    block = DTYPES[dtype].store(rng.normal(size=min(math.prod(view), 1 << 22)))
    size = block.itemsize * math.prod(view)
    calls = []
    for _ in range(sets):
        addresses = {role: device.allocate(size) for role in (*inputs, output)}
        for role, at in itertools.product(inputs, range(0, size, block.nbytes)):
            device.write(addresses[role] + at, block[: (size - at) // block.itemsize])
        for role in vectors:
            addresses[role] = device.allocate(4 * view[1])
            device.write(addresses[role], rng.uniform(0.5, 1.5, view[1]).astype(np.float32))
        modes = {"is_training": int(training), "epsilon": EPSILON, **fields}
        modes |= {"variance_is_rstd": int(training)} if op is BACKWARD else {}
        args = device_calls.args_at(view, dtype, addresses, **modes)
        calls.append(functools.partial(device.run, args))
    return calls


def pytorch_calls(
    torch: Any, op: Any, x_like: Any, training: bool, cudnn: bool, sets: int
) -> list[Any]:
    """PyTorch's, by cuDNN where it has a kernel, or by its native kernels."""
    calls = []
    for _ in range(sets):
        x, dy = (torch.randn_like(x_like, requires_grad=op is BACKWARD) for _ in range(2))
        vectors = [torch.rand(x.shape[1], device="cuda") + 0.5 for _ in range(4)]
        mean, var, weight, bias = (
            v.requires_grad_(op is BACKWARD and i > 1) for i, v in enumerate(vectors)
        )
        averages = (None, None) if training else (mean, var)
        given = (x, weight, bias, *averages, training, 0.1, EPSILON, cudnn)
        call = functools.partial(torch.batch_norm, *given)
        if op is BACKWARD:
            sources = (x, weight, bias)
            call = functools.partial(torch.autograd.grad, call(), sources, dy, retain_graph=True)
        calls.append(call)
    return calls


def measure(device: Any, torch: Any, batch: int, shapes: list[tuple[int, int]]) -> list[Any]:
    """Prints and returns rows: name, seconds of ours, of cuDNN and native, part of the limit."""
    copied = 1 << (16 if device.emulated else 30)
    source, target = device.allocate(copied), device.allocate(copied)
    bandwidth = 2 * copied / median_time(device, [lambda: device.copy(target, source, copied)])
    device.free_all()
    print(f"{device.name}, batch {batch}, copy {bandwidth / 1e9:.0f} GB/s read and written")
    print("call, layout, shape, type, mode: us, % of the limit, cuDNN and native as multiples")
    rows = []
    kinds = itertools.product(
        (BACKWARD, FORWARD), ("NHWC", "NCHW"), ("float32", "half", "bfloat16")
    )
    for (op, layout, dtype), training, (side, c) in itertools.product(kinds, (True, False), shapes):
        shape = (batch, c, side, side)
        view = layouts.view_shape((batch, side, side, c) if layout == "NHWC" else shape, layout)
        size = DTYPES[dtype].numpy.itemsize * math.prod(view)
        sets = 2 if device.emulated else max(2, math.ceil(ROTATED_BYTES / (3 * size)))
        ours = median_time(device, our_calls(device, op, view, dtype, training, sets))
        device.free_all()
        is_kept = len(op[0]) * size <= device.attribute(cuda_device.L2_BYTES) or not training
        limit = (len(op[0]) * (1 if is_kept else 2) + 1) * size / bandwidth
        peers = []
        for cudnn in (True, False) if torch else ():
            kind = getattr(torch, {"half": "float16"}.get(dtype, dtype))
            memory = torch.channels_last if layout == "NHWC" else torch.contiguous_format
            like = torch.empty(shape, device="cuda", dtype=kind, memory_format=memory)
            peers.append(median_time(device, pytorch_calls(torch, op, like, training, cudnn, sets)))
        name = f"{op[1]} {layout} {side}x{side}x{c} {dtype} {'training' if training else 'frozen'}"
        multiples = [f"{peer / ours:.2f}" for peer in peers]
        print(f"{name}: {1e6 * ours:.1f}, {100 * limit / ours:.0f}%", *multiples, flush=True)
        rows.append((name, ours, *peers, limit / ours))
    return rows


def main(arguments: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--emulated", action="store_true", help="measure nothing, on the emulator")
    parser.add_argument("--log", default="build/gpu-session", help="folder of logs and rows.json")
    flags = parser.parse_args(arguments)
    if flags.emulated:
        return not measure(emulated_device.EmulatedDevice(), None, 2, [(7, 16)])
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        print("gpu-session: skipped, nvidia-smi finds no GPU; nothing was tested or measured.")
        return 0
    log, status = pathlib.Path(flags.log), 0
    log.mkdir(parents=True, exist_ok=True)

    def step(name: str, *command: str) -> int:
        """The exit status of a command, whose output goes to the log; prints its last lines."""
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        (log / f"{name}.log").write_bytes(result.stdout)
        print(
            f"== {name}: status {result.returncode}",
            *result.stdout.decode().splitlines()[-20:],
            sep="\n",
        )
        return result.returncode

    archs = "CUDA_ARCHS=" + found.replace(".", "")
    if step("build", "make", "gpu-core", archs):
        return 1
    test = (sys.executable, "tools/gpu/test.py", f"--library={LIBRARY}")
    status |= step("test", *test, "--no-sanitizer")
    try:
        import torch
    except ImportError:
        torch = None
    rows = measure(cuda_device.CudaDevice(ROOT / LIBRARY), torch, 256, RESNET50)
    (log / "rows.json").write_text(json.dumps(rows))
    tensorflow = (sys.executable, "tools/gpu/tensorflow_test.py")
    if subprocess.run([*tensorflow, "--probe"], cwd=ROOT).returncode == 0:
        status |= step("tensorflow-build", "make", "gpu", f"PYTHON={sys.executable}", archs)
        status |= step("tensorflow", *tensorflow)
    return status | step("sanitizer", *test, "--quick")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
