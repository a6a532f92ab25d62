"""Measures the GPU kernels through the C ABI: python tools/gpu/bench.py --library=LIBRARY.

Shapes are those of the batch normalizations of ResNet-50 at batch 256, forward and backward. For
comparison: PyTorch's (by cuDNN, and by its native kernels) where a PyTorch that sees the GPU is
installed, and the copy bandwidth of the device, measured in the same run. Times are medians by CUDA
events over rotating tensors, so that L2 holds none of them. `make gpu-bench` builds the library and
calls it. Without a GPU it prints why it is skipped and succeeds; --emulated runs the script on the
host emulator and measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cuda_device
import device_calls
import emulated_device
import numpy as np
import pytorch_calls

from tf_bn_ops.spec import DTYPES, layouts

# (height = width, channels) of ResNet-50's batch normalizations.
RESNET50 = [
    (112, 64),
    (56, 64),
    (56, 256),
    (56, 128),
    (28, 128),
    (28, 512),
    (28, 256),
    (14, 256),
    (14, 1024),
    (14, 512),
    (7, 512),
    (7, 2048),
]
BATCH = 256
COPY_BYTES = 1 << 30
# Total size of the tensors that the calls of a row rotate through: several times any L2.
ROTATED_BYTES = 1 << 30
WARM_UP, TIMED = 5, 30


@dataclasses.dataclass
class Row:
    """One line of the table; times in seconds, None: not measured.

    Attributes:
      forward: batch normalization itself, not its gradient.
      least_bytes: bytes that must be moved: every input read, and the output written; in training
        every input read twice where they do not all fit into L2.
    """

    forward: bool
    layout: str
    side: int
    channels: int
    dtype: str
    training: bool
    tensor_bytes: int
    ours: float
    cudnn: float | None = None
    native: float | None = None
    least_bytes: int = 0

    @property
    def call(self) -> str:
        return "forward" if self.forward else "gradient"

    def percent_of_copy(self, bandwidth: float) -> float:
        return 100 * self.least_bytes / self.ours / bandwidth


def median_time(device: Any, calls: list[Callable[[], None]]) -> float:
    """Median seconds of a call, rotating through `calls`."""
    count = 1 if device.emulated else TIMED
    for i in range(1 if device.emulated else WARM_UP):
        calls[i % len(calls)]()
    work = [calls[i % len(calls)] for i in range(count)]
    return statistics.median(device.seconds(work))


def copy_bandwidth(device: Any, size: int) -> float:
    """Bytes read and written per second by a large copy on the device."""
    source, target = device.allocate(size), device.allocate(size)
    device.fill(source, 0x3C, size)
    seconds = median_time(device, [lambda: device.copy(target, source, size)])
    device.free_all()
    return 2 * size / seconds


def rotated_sets(tensor_bytes: int) -> int:
    """How many sets of three tensors the calls of a row rotate through."""
    return max(2, math.ceil(ROTATED_BYTES / (3 * tensor_bytes)))


# (inputs of view shape, output of view shape, arrays per channel) of a call.
_ROLES = {
    False: (
        ("y_backprop", "x"),
        "x_backprop",
        ("scale", "mean", "variance", "scale_backprop", "offset_backprop"),
    ),
    True: (
        ("x",),
        "y",
        (
            *("scale", "offset", "mean", "variance"),
            *("batch_mean", "batch_variance", "saved_mean", "saved_variance"),
        ),
    ),
}


def allocate_set(
    device: Any,
    forward: bool,
    view: tuple[int, int, int],
    dtype: str,
    block: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, int]:
    """Addresses by role of the arrays of one call; inputs repeat `block`."""
    inputs, output, per_channel = _ROLES[forward]
    size = DTYPES[dtype].numpy.itemsize * math.prod(view)
    addresses = {role: device.allocate(size) for role in (*inputs, output)}
    for role in inputs:
        for at in range(0, size, block.nbytes):
            device.write(addresses[role] + at, block[: (size - at) // block.itemsize])
    for role in per_channel:
        addresses[role] = device.allocate(4 * view[1])
        device.write(addresses[role], rng.uniform(0.5, 1.5, view[1]).astype(np.float32))
    return addresses


def call_args(
    device: Any, forward: bool, view: tuple[int, int, int], dtype: str, training: bool, sets: int
) -> list[Any]:
    """The C structs of calls on tensors of their own, as TensorFlow's ops make them."""
    # Random, not constant: power depends on the data.
    rng = np.random.default_rng(0)
    block = DTYPES[dtype].store(rng.normal(size=min(math.prod(view), 1 << 22)))
    fields: dict[str, Any] = {"is_training": int(training), "epsilon": 1e-3}
    if forward:
        fields |= {"saves_rstd": 1, "bessel_correction": 1, "exponential_avg_factor": 1}
    else:
        fields["variance_is_rstd"] = int(training)
    fields["formula"] = 0 if forward else 1
    return [
        device_calls.args_at(
            view, dtype, allocate_set(device, forward, view, dtype, block, rng), **fields
        )
        for _ in range(sets)
    ]


def measure(
    device: Any,
    forward: bool,
    layout: str,
    batch: int,
    side: int,
    channels: int,
    dtype: str,
    training: bool,
) -> Row:
    """Our time of one row."""
    shape = (batch, side, side, channels) if layout == "NHWC" else (batch, channels, side, side)
    view = layouts.view_shape(shape, layout)
    size = DTYPES[dtype].numpy.itemsize * math.prod(view)
    sets = 2 if device.emulated else rotated_sets(size)
    calls = call_args(device, forward, view, dtype, training, sets)
    seconds = median_time(device, [functools.partial(device.run, args) for args in calls])
    l2 = device.attribute(cuda_device.L2_BYTES)
    inputs = len(_ROLES[forward][0])
    fits = inputs * size <= l2
    device.free_all()
    passes = inputs * (1 if fits or not training else 2) + 1
    return Row(
        forward, layout, side, channels, dtype, training, size, seconds, least_bytes=passes * size
    )


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def print_table(rows: list[Row], bandwidth: float) -> None:
    """The rows, then a summary."""

    def cell(seconds: float | None, ours: float) -> str:
        return "-" if seconds is None else f"{1e6 * seconds:.1f} ({seconds / ours:.2f}x)"

    print(
        "\ncall      layout  shape        dtype     mode      ours us   % of limit  "
        "cuDNN us (ratio)  native us (ratio)"
    )
    for r in rows:
        print(
            f"{r.call:9} {r.layout:7} {f'{r.side}x{r.side}x{r.channels}':12} {r.dtype:9} "
            f"{'training' if r.training else 'frozen':9} {1e6 * r.ours:<9.1f} "
            f"{r.percent_of_copy(bandwidth):<11.0f} {cell(r.cudnn, r.ours):17} "
            f"{cell(r.native, r.ours)}"
        )
    for call, name in itertools.product(("gradient", "forward"), ("cudnn", "native")):
        of_call = [r for r in rows if r.call == call]
        ratios = [getattr(r, name) / r.ours for r in of_call if getattr(r, name) is not None]
        if ratios:
            print(
                f"{call}, {name}: {len(ratios)} rows, ratio at least {min(ratios):.2f}, "
                f"geometric mean {geometric_mean(ratios):.2f}"
            )
    large = [r.percent_of_copy(bandwidth) for r in rows if r.tensor_bytes > 64e6]
    if large:
        print(f"tensors over 64 MB: at least {min(large):.0f}% of the streaming limit")


def measure_all(
    device: Any, shapes: Sequence[tuple[int, int]], batch: int, has_torch: bool
) -> list[Row]:
    """Rows of every call, layout, type and mode, with PyTorch's times where there is one."""
    rows = []
    dtypes = ("float32", "half", "bfloat16")
    modes = itertools.product((False, True), ("NHWC", "NCHW"), dtypes, (True, False))
    for (forward, layout, dtype, training), (side, channels) in itertools.product(modes, shapes):
        row = measure(device, forward, layout, batch, side, channels, dtype, training)
        if has_torch:
            time_peer = functools.partial(
                pytorch_calls.seconds,
                *((batch, channels, side, side), layout, dtype),
                forward=forward,
                training=training,
                tensors=rotated_sets(row.tensor_bytes),
                warm_up=WARM_UP,
                timed=TIMED,
            )
            row.cudnn, row.native = time_peer(cudnn=True), time_peer(cudnn=False)
        rows.append(row)
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", help="libtf_bn_ops_core.so, built with CUDA")
    parser.add_argument(
        "--emulated", action="store_true", help="run on the host emulator, measure nothing"
    )
    parser.add_argument("--quick", action="store_true", help="three shapes")
    parser.add_argument("--json", help="write the rows to this file")
    flags = parser.parse_args(arguments)
    try:
        device: Any = (
            emulated_device.EmulatedDevice()
            if flags.emulated
            else cuda_device.CudaDevice(flags.library)
        )
    except cuda_device.NoGpuError as error:
        print(f"gpu-bench: skipped, {error}; nothing was measured.")
        return 0
    shapes = [RESNET50[i] for i in (1, 5, 11)] if flags.quick else RESNET50
    batch, copied = BATCH, COPY_BYTES
    if flags.emulated:
        shapes, batch, copied = [(7, 16)], 2, 1 << 16
    bandwidth = copy_bandwidth(device, copied)
    torch = "" if flags.emulated else pytorch_calls.version()
    print(f"{device.name}, batch {batch}, copy {bandwidth / 1e9:.0f} GB/s read and written")
    print(f"PyTorch {torch}" if torch else "PyTorch: not installed, or it sees no GPU")
    rows = measure_all(device, shapes, batch, has_torch=bool(torch))
    if flags.emulated:
        print("gpu-bench: no times on the emulator.")
    else:
        print_table(rows, bandwidth)
    if flags.json:
        about = {"device": device.name, "torch": torch, "copy_bytes_per_second": bandwidth}
        with open(flags.json, "w", encoding="utf-8") as file:
            json.dump({**about, "rows": [dataclasses.asdict(r) for r in rows]}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
