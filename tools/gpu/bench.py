"""Measures the GPU kernels through the C ABI: python tools/gpu/bench.py --library=LIBRARY.

Shapes are those of the batch normalizations of ResNet-50 at batch 256. Beside our time stand those
of PyTorch's batch-norm backward (cuDNN's, and its own kernels) where a PyTorch that sees the GPU is
installed, and the copy bandwidth of this device, measured in the same run. Times are medians by
CUDA events; every call gets other tensors than the ones before, so that the L2 cache holds none of
them. `make gpu-bench` builds the library and calls it. Without a GPU it says so and succeeds;
--emulated tries the script itself on the host emulator and measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any

import driver
import numpy as np
import problems
from problems import TYPES

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
# Tensors that the calls of a row take in turn have at least this size together, and so several
# times that of any L2 cache.
ROTATED_BYTES = 1 << 30
WARM_UP, TIMED = 5, 30


@dataclasses.dataclass
class Row:
    """One line of the table; times in seconds, None: not measured."""

    layout: str
    side: int
    channels: int
    dtype: str
    training: bool
    tensor_bytes: int
    ours: float
    cudnn: float | None = None
    native: float | None = None
    # Of groups of half the L2 cache, whatever the device suggests; channels-first in training,
    # where the cache cannot hold both inputs.
    grouped: float | None = None
    # Bytes that must be moved, at least: 2 reads and 1 write; 4 and 1 where x and y_backprop,
    # needed twice, do not fit into the L2 cache.
    least_bytes: int = 0

    def percent_of_copy(self, bandwidth: float) -> float:
        return 100 * self.least_bytes / self.ours / bandwidth


def median_time(device: Any, calls: list[Callable[[], None]]) -> float:
    """Median seconds of a call; `calls` are taken in turn."""
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


def view_of(layout: str, batch: int, side: int, channels: int) -> tuple[int, int, int]:
    if layout == "NHWC":
        return batch * side * side, channels, 1
    return batch, channels, side * side


def measure(
    device: Any, layout: str, batch: int, side: int, channels: int, dtype: str, training: bool
) -> Row:
    """Our time of one row."""
    view = view_of(layout, batch, side, channels)
    size = TYPES[dtype].size * int(np.prod(view))
    sets = max(2, math.ceil(ROTATED_BYTES / (3 * size)))
    if device.emulated:
        sets = 2
    # Random, not constant: data decides how much power the arithmetic takes.
    rng = np.random.default_rng(0)
    block = problems.store(rng.normal(size=min(int(np.prod(view)), 1 << 22)), dtype)
    calls: list[driver.Args] = []
    for _ in range(sets):
        pointers = {name: device.allocate(size) for name in ("y_backprop", "x", "x_backprop")}
        for name in ("y_backprop", "x"):
            for at in range(0, size, block.nbytes):
                part = block[: (size - at) // block.itemsize]
                device.write(pointers[name] + at, part)
        for name in ("scale", "mean", "variance", "scale_backprop", "offset_backprop"):
            pointers[name] = device.allocate(8 * channels)
            device.write(pointers[name], rng.uniform(0.5, 1.5, channels).astype(np.float32))
        args = driver.Args(
            *view, TYPES[dtype].code, 0, int(training), int(training), 1e-3,
            *(pointers[name] for name in driver.POINTERS),
        )  # fmt: skip
        calls.append(args)
    seconds = median_time(device, [functools.partial(device.run, args) for args in calls])
    l2 = device.attribute(driver.L2_BYTES)
    fits = 2 * size <= l2
    grouped = None
    if layout == "NCHW" and training and not fits:
        grouped = median_time(
            device, [functools.partial(device.run, args, l2 // 2) for args in calls]
        )
    device.free_all()
    passes = 3 if fits or not training else 5
    return Row(
        layout, side, channels, dtype, training, size, seconds,
        grouped=grouped, least_bytes=passes * size,
    )  # fmt: skip


def torch_times(
    layout: str, batch: int, side: int, channels: int, dtype: str, training: bool
) -> tuple[float | None, float | None]:
    """Times of PyTorch's backward of the same: by cuDNN, and by its own kernels."""
    import torch

    types = {"half": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
    size = TYPES[dtype].size * batch * side * side * channels
    sets = max(2, math.ceil(ROTATED_BYTES / (3 * size)))
    layout_of = torch.channels_last if layout == "NHWC" else torch.contiguous_format
    result: list[float | None] = []
    for use_cudnn in (True, False):
        try:
            with torch.backends.cudnn.flags(enabled=use_cudnn, benchmark=True):
                inputs = []
                for _ in range(sets):
                    x, dy = (
                        torch.randn(
                            batch, channels, side, side, device="cuda", dtype=types[dtype]
                        ).contiguous(memory_format=layout_of)
                        for _ in range(2)
                    )
                    inputs.append((x, dy))
                weight, mean, var = (torch.rand(channels, device="cuda") + 0.5 for _ in range(3))
                bias = torch.zeros(channels, device="cuda")
                calls = []
                for x, dy in inputs:
                    if use_cudnn and training:
                        _, save_mean, save_var, reserve = torch.ops.aten.cudnn_batch_norm(
                            x, weight, bias, mean, var, True, 0.1, 1e-3
                        )
                        calls.append(
                            functools.partial(
                                torch.ops.aten.cudnn_batch_norm_backward,
                                *(x, dy, weight, mean, var, save_mean, save_var, 1e-3, reserve),
                            )
                        )
                    elif use_cudnn:  # cuDNN has no backward with frozen statistics.
                        raise NotImplementedError
                    else:
                        _, save_mean, save_rstd = torch.ops.aten.native_batch_norm(
                            x, weight, bias, mean, var, training, 0.1, 1e-3
                        )
                        calls.append(
                            functools.partial(
                                torch.ops.aten.native_batch_norm_backward,
                                *(dy, x, weight, mean, var, save_mean, save_rstd),
                                *(training, 1e-3, [True, True, True]),
                            )
                        )
                for i in range(WARM_UP):
                    calls[i % sets]()
                events = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED + 1)]
                events[0].record()
                for i in range(TIMED):
                    calls[i % sets]()
                    events[i + 1].record()
                torch.cuda.synchronize()
                result.append(
                    statistics.median(
                        events[i].elapsed_time(events[i + 1]) / 1e3 for i in range(TIMED)
                    )
                )
        except (NotImplementedError, RuntimeError):
            result.append(None)
        finally:
            inputs = calls = []
            torch.cuda.empty_cache()
    return result[0], result[1]


def torch_version() -> str:
    """PyTorch's version if it sees the GPU, or nothing."""
    try:
        import torch
    except ImportError:
        return ""
    return torch.__version__ if torch.cuda.is_available() else ""


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def print_table(rows: list[Row], bandwidth: float) -> None:
    """The rows, then what they come to."""

    def cell(seconds: float | None, ours: float) -> str:
        return "-" if seconds is None else f"{1e6 * seconds:.1f} ({seconds / ours:.2f}x)"

    print(
        "\nlayout  shape        dtype     mode      ours us   % of limit  "
        "cuDNN us (ratio)  native us (ratio)  in groups us (ratio)"
    )
    for r in rows:
        print(
            f"{r.layout:7} {f'{r.side}x{r.side}x{r.channels}':12} {r.dtype:9} "
            f"{'training' if r.training else 'frozen':9} {1e6 * r.ours:<9.1f} "
            f"{r.percent_of_copy(bandwidth):<11.0f} {cell(r.cudnn, r.ours):17} "
            f"{cell(r.native, r.ours):18} {cell(r.grouped, r.ours)}"
        )
    for name in ("cudnn", "native", "grouped"):
        ratios = [getattr(r, name) / r.ours for r in rows if getattr(r, name) is not None]
        if ratios:
            print(
                f"{name}: {len(ratios)} rows, ratio at least {min(ratios):.2f}, "
                f"geometric mean {geometric_mean(ratios):.2f}"
            )
    large = [r.percent_of_copy(bandwidth) for r in rows if r.tensor_bytes > 64e6]
    if large:
        print(f"tensors over 64 MB: at least {min(large):.0f}% of the streaming limit")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", help="libtf_bn_ops_core.so, built with CUDA")
    parser.add_argument("--emulated", action="store_true", help="try the script, measure nothing")
    parser.add_argument("--quick", action="store_true", help="three shapes")
    parser.add_argument("--json", help="write the rows to this file")
    flags = parser.parse_args(arguments)
    try:
        device: Any = driver.Emulated() if flags.emulated else driver.Device(flags.library)
    except driver.NoGpuError as error:
        print(f"gpu-bench: skipped, {error}; nothing was measured.")
        return 0
    shapes = [RESNET50[i] for i in (1, 5, 11)] if flags.quick else RESNET50
    batch, copied = BATCH, COPY_BYTES
    if flags.emulated:
        shapes, batch, copied = [(7, 16)], 2, 1 << 16
    bandwidth = copy_bandwidth(device, copied)
    torch = "" if flags.emulated else torch_version()
    print(f"{device.name}, batch {batch}, copy {bandwidth / 1e9:.0f} GB/s read and written")
    print(f"PyTorch {torch}" if torch else "PyTorch: none that sees the GPU, so nothing to compare")
    rows = []
    for layout in ("NHWC", "NCHW"):
        for dtype in ("float32", "half", "bfloat16"):
            for training in (True, False):
                for side, channels in shapes:
                    shape = (layout, batch, side, channels, dtype, training)
                    row = measure(device, *shape)
                    if torch:
                        row.cudnn, row.native = torch_times(*shape)
                    rows.append(row)
    if flags.emulated:
        print("gpu-bench: on the emulator, so no times.")
    else:
        print_table(rows, bandwidth)
    if flags.json:
        about = {"device": device.name, "torch": torch, "copy_bytes_per_second": bandwidth}
        with open(flags.json, "w", encoding="utf-8") as file:
            json.dump({**about, "rows": [dataclasses.asdict(r) for r in rows]}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
