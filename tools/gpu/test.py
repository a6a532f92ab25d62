"""Tests the GPU kernels on a GPU through the C ABI: python tools/gpu/test.py --library=LIBRARY.

Needs Python, NumPy and g++ (for the host emulator, whose results a GPU must reproduce bitwise); no
TensorFlow. `make gpu-test` builds the library and calls it. Without a GPU it prints why it is
skipped and succeeds; --emulated runs all of it on the host emulator instead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import cuda_device
import device_calls
import device_problems
import emulated_device
import numpy as np
import tool_flags
from device_calls import VIEWS, run, run_bits

from tf_bn_ops.conformance.models.gather_stats import random_parts
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem, random_forward_problem, random_problem

REPETITIONS = 20
SHIFTED_VIEWS = [(300, 5, 1), (301, 48, 1), (9, 5, 1300), (9, 5, 49), (2, 3, 70001)]
REPEATED_VIEWS = [(300, 40, 1), (8000, 300, 1), (70000, 3, 1), (64, 40, 784)]
# Views with more than 2^31 elements, of half.
HUGE = [((1 << 25) + 3, 65, 1), (5, 3, (1 << 27) + 1), (3, (1 << 29) + 5, 2)]

EmulatedDevice = emulated_device.EmulatedDevice
Device = cuda_device.CudaDevice | EmulatedDevice
Check = tuple[str, str]  # The case; what is wrong, or nothing.


def all_problems(view: tuple[int, int, int]) -> Iterator[tuple[str, Problem]]:
    """Labels and problems of every call and type."""
    for call, dtype in (
        (name, dtype) for name in device_problems.CALLS for dtype in device_problems.dtypes_of(name)
    ):
        # The count of no channels is the op's affair: the C ABI has 0.
        if call == "statistics" and view[1] == 0:
            continue
        yield f"{view} {dtype}, {call}", device_problems.CALLS[call](view, dtype)


def label(p: Problem) -> str:
    mode = ("training" if p.is_training else "frozen") + (", rstd" if p.variance_is_rstd else "")
    return f"{p.view} {p.dtype.name}, {p.formula}, {mode}"


def test_oracle(device: Device, emulator: EmulatedDevice) -> Iterator[Check]:
    """Every view, type and mode: within the bounds, and bitwise identical to the emulator."""
    for view in VIEWS:
        for what, p in all_problems(view):
            (result,) = run(device, p)
            wrong = device_calls.check(p, result)
            emulate = not wrong and np.prod(view) < 1 << 18
            if emulate and run_bits(emulator, p) != c_abi.bits(result):
                wrong = "not bitwise identical to the host emulator"
            yield what, wrong


def test_statistics_in_the_element_type(
    device: Device, emulator: EmulatedDevice
) -> Iterator[Check]:
    """As BatchNormTrainingBackprop calls it."""
    for dtype in ("half", "bfloat16"):
        p = random_problem((9, 5, 49), dtype, statistics_dtype=dtype)
        wrong = device_calls.check(p, run(device, p)[0])
        yield f"{label(p)}, statistics of the same type", wrong


def test_exact_sums(device: Device, emulator: EmulatedDevice) -> Iterator[Check]:
    """Sums of small integers have no rounding in any order."""
    for view in VIEWS:
        for dtype in device_problems.KERNEL_DTYPES:
            p = random_problem(view, dtype, variance_is_rstd=True, integers=True)
            (result,) = run(device, p)
            dy, x, mean = (p.wide(role, np.float64) for role in ("y_backprop", "x", "mean"))
            terms = 2 * dy * (x - mean[:, np.newaxis])
            right = (
                np.array_equal(result["offset_backprop"], dy.sum((0, 2))),
                np.array_equal(result["scale_backprop"], terms.sum((0, 2))),
            )
            yield f"{label(p)}, integers", "" if all(right) else "sums are not exact"


def test_alignment(device: Device, emulator: EmulatedDevice) -> Iterator[Check]:
    """Bitwise identical for any alignment of any tensor, and in place."""
    for view in SHIFTED_VIEWS:
        for what, p in all_problems(view):
            wrong = next(device_calls.alignment_differences(device, p), "")
            yield f"{what}, misaligned and in place", wrong


def test_repetition(device: Device, emulator: EmulatedDevice) -> Iterator[Check]:
    """Every run is bitwise identical."""
    for view in REPEATED_VIEWS:
        for what, p in all_problems(view):
            count = 2 if device.emulated else REPETITIONS
            distinct = {c_abi.bits(result) for result in run(device, p, repetitions=count)}
            wrong = "" if len(distinct) == 1 else f"{len(distinct)} different results"
            yield f"{what}, {count} times", wrong


def test_nan(device: Device, emulator: EmulatedDevice) -> Iterator[Check]:
    """A NaN or infinity stays in its channel."""
    for view in ((50, 5, 1), (50, 5, 3), (3, 5, 9000)):
        for bad in (np.nan, np.inf):
            for name in ("y_backprop", "x"):
                p = random_problem(view, "float32")
                p[name][2, 2, 0] = bad
                (result,) = run(device, p)
                others = (
                    np.delete(result["x_backprop"], 2, 1),
                    np.delete(result["scale_backprop"], 2),
                )
                clean = all(np.isfinite(o).all() for o in others)
                affected = not np.isfinite(result["scale_backprop"][2])
                wrong = "" if clean and affected else "it reached other channels, or was lost"
                yield f"{label(p)}, {bad} in {name}", wrong
            p = random_forward_problem(view)
            p["x"][2, 2, 0] = bad
            yield f"{label(p)}, {bad} in x", device_calls.check(p, run(device, p)[0])


def test_gather_stats(device: Device, emulator: EmulatedDevice) -> Iterator[Check]:
    """Results are bitwise the emulator's, which are the CPU's; counts that are none give NaN."""
    for rows, channels in ((1, 1), (6, 300), (3, 0), (0, 5)):
        parts = random_parts(rows, channels)
        got, want = (device_calls.gather_stats(d, parts) for d in (device, emulator))
        wrong = "" if c_abi.bits(got._asdict()) == c_abi.bits(want._asdict()) else "other bits"
        yield f"statistics of {rows} parts, {channels} channels", wrong
        parts.count[:1] = -1
        nan = all(np.isnan(array).all() for array in device_calls.gather_stats(device, parts))
        yield f"{rows} parts, a negative count", "" if nan or not rows else "not NaN"


# memset fills tensors of half with it.
HUGE_VALUE = np.uint16(0x3C3C).view(np.float16)  # 1.0585938


def allocate_constants(device: Device, view: tuple[int, int, int]) -> dict[str, int]:
    """y_backprop = x = HUGE_VALUE, scale = rstd = 1, mean = 0; addresses by role."""
    size, channels = 2 * int(np.prod(view)), view[1]
    addresses = {role: device.allocate(size) for role in ("y_backprop", "x", "x_backprop")}
    for role, byte in (("y_backprop", 0x3C), ("x", 0x3C), ("x_backprop", 0xFF)):
        device.fill(addresses[role], byte, size)
    for role, number in (("scale", 1), ("variance", 1), ("mean", 0)):
        addresses[role] = device.allocate(4 * channels)
        device.write(addresses[role], np.full(channels, number, np.float32))
    for role in ("scale_backprop", "offset_backprop"):
        addresses[role] = device.allocate(4 * channels)
        device.fill(addresses[role], 0xFF, 4 * channels)
    return addresses


def elements_beside(
    device: Device, address: int, elements: int, want: np.float16, ulps: int
) -> Iterator[str]:
    """Where a tensor of half has elements more than `ulps` from `want`."""
    step = 1 << 27
    for first in range(0, elements, step):
        part = np.empty(min(step, elements - first), np.float16)
        device.read(address + 2 * first, part)
        if not (np.abs(part.view(np.int16) - want.view(np.int16)) <= ulps).all():
            yield f"wrong in elements {first} and following"


def huge_errors(
    device: Device, view: tuple[int, int, int], addresses: dict[str, int]
) -> Iterator[str]:
    """With v = HUGE_VALUE and M = outer * inner: the sums are M * v and M * v^2, and x_backprop is
    v - v - v * v^2 everywhere."""
    value, m = float(HUGE_VALUE), view[0] * view[2]
    for role, want in (("offset_backprop", m * value), ("scale_backprop", m * value**2)):
        got = np.empty(view[1], np.float32)
        device.read(addresses[role], got)
        if not (np.abs(got / np.float64(want) - 1) <= 2.0**-23).all():
            yield f"{role} is {got[0]}, not {want}"
    want_dx = np.float16(-(value**3))
    x_backprop, elements = addresses["x_backprop"], int(np.prod(view))
    # One rounding.
    yield from elements_beside(device, x_backprop, elements, want_dx, 1)


def huge_forward_errors(
    device: Device, view: tuple[int, int, int], addresses: dict[str, int]
) -> Iterator[str]:
    """The same x everywhere: its mean is x, its variance 0, and y the offset, which is 1."""
    for role, want in (("saved_mean", np.float32(HUGE_VALUE)), ("batch_variance", 0)):
        got = np.empty(view[1], np.float32)
        device.read(addresses[role], got)
        if not (got == want).all():
            yield f"{role} is {got[0]}, not {want}"
    yield from elements_beside(device, addresses["y"], int(np.prod(view)), np.float16(1), 0)


def test_huge(device: Device, emulator: EmulatedDevice) -> Iterator[Check]:
    """More than 2^31 elements, all the same: the outputs are known."""
    for view in HUGE:
        elements = int(np.prod(view))
        what = f"{view}, {elements} elements of half"
        if device.free_bytes() < 6 * elements + 24 * view[1] + (1 << 30):
            yield f"{what}: skipped, not enough memory", ""
            continue
        addresses = allocate_constants(device, view)
        device.run(device_calls.args_at(view, "half", addresses, variance_is_rstd=1))
        device.wait()
        wrong = next(huge_errors(device, view, addresses), "")
        # The output and the arrays per channel serve the forward call too.
        y, ones = addresses["x_backprop"], addresses["scale"]
        statistics = [device.allocate(4 * view[1]) for _ in range(4)]
        names = ("batch_mean", "batch_variance", "saved_mean", "saved_variance")
        forward = {
            **{"x": addresses["x"], "y": y, "scale": ones, "offset": ones},
            **dict(zip(names, statistics, strict=True)),
        }
        device.fill(y, 0xFF, 2 * elements)
        fields = {"formula": 0, "epsilon": 1e-3, "exponential_avg_factor": 1}
        device.run(device_calls.args_at(view, "half", forward, **fields))
        device.wait()
        wrong = wrong or next(huge_forward_errors(device, view, forward), "")
        device.free_all()
        yield what, wrong


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]


def sanitize(arguments: list[str]) -> int:
    """Runs --quick under every tool of compute-sanitizer; the last exit status other than 0."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer: skipped, not found on the PATH")
        return 0
    status = 0
    for check in ("memcheck", "racecheck", "initcheck", "synccheck"):
        print(f"compute-sanitizer --tool={check}", flush=True)
        command = [tool, f"--tool={check}", "--error-exitcode=9", sys.executable, *arguments]
        status = subprocess.run([*command, "--quick", "--no-sanitizer"]).returncode or status
    return status


def run_all(device: Device, emulator: EmulatedDevice) -> int:
    """Runs all tests and prints failures; their number."""
    failures = 0
    for test in TESTS:
        cases = 0
        for what, wrong in test(device, emulator):
            cases += 1
            if "skipped" in what:
                print(f"  {what}")
            if wrong:
                failures += 1
                print(f"  FAILED {test.__name__} {what}: {wrong}")
        print(f"  {test.__name__}: {cases} cases", flush=True)
    return failures


def main(arguments: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--library", help="libtf_bn_ops_core.so, built with CUDA")
    parser.add_argument(
        "--emulated", action="store_true", help="run on the host emulator instead of a GPU"
    )
    parser.add_argument("--quick", action="store_true", help="only small views")
    parser.add_argument("--no-sanitizer", action="store_true")
    flags = parser.parse_args(arguments)
    if flags.quick:
        for views, most in ((VIEWS, 1024), (SHIFTED_VIEWS, 1 << 14), (REPEATED_VIEWS, 1 << 14)):
            views[:] = [view for view in views if np.prod(view) <= most]
        HUGE.clear()
    emulator = EmulatedDevice()
    try:
        device: Device = emulator if flags.emulated else cuda_device.CudaDevice(flags.library)
    except cuda_device.NoGpuError as error:
        print(f"gpu-test: skipped, {error}; nothing was tested.")
        return 0
    print(f"gpu-test on {device.name}")
    failures = run_all(device, emulator)
    if failures:
        print(f"gpu-test: {failures} cases failed.")
        return 1
    if not (flags.emulated or flags.no_sanitizer):
        return sanitize([__file__, *arguments])
    print("gpu-test: all passed.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
