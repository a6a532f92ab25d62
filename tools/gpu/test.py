"""Tests the GPU kernels on a GPU through the C ABI: python tools/gpu/test.py --library=LIBRARY.

Needs Python, NumPy and g++ (for the host emulator, whose bits the GPU has to give); no TensorFlow.
`make gpu-test` builds the library and calls it. Without a GPU it says so and succeeds;
--emulated runs all of it on the host emulator instead.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator

import driver
import numpy as np
import problems
from problems import TYPES, make_problem

# Around the places where the kernels change their way: vectors of 2, 4 and 8 elements, tiles of 32
# vectors, 256 threads, runs of 1024 vectors, four items per thread, fold, few and many channels.
VIEWS = [
    (1, 1, 1),
    (7, 1, 1),
    (1, 5, 1),
    (100, 3, 1),
    (67, 4, 1),
    (33, 7, 1),
    (41, 16, 1),
    (19, 63, 1),
    (18, 64, 1),
    (17, 65, 1),
    (5, 1000, 1),
    (9, 1025, 1),
    (3, 2100, 1),
    (4000, 40, 1),
    (70000, 1, 1),
    (8000, 300, 1),
    (8, 3, 2),
    (9, 5, 49),
    (10, 40, 49),
    (5000, 3, 9),
    (8, 2, 1024),
    (2, 3, 63),
    (2, 3, 64),
    (2, 3, 65),
    (1, 3, 200),
    (6, 5, 784),
    (3, 2, 4099),
    (3, 2, 8200),
    (1, 1, 70001),
    (40, 3, 1300),
    (2, 2000, 3),
    (0, 3, 1),
    (4, 0, 2),
    (5, 3, 0),
]
REPETITIONS = 20
# (outer, channels, inner) with more than 2^31 elements, and of what type.
HUGE = [((1 << 25) + 3, 65, 1), (5, 3, (1 << 27) + 1), (3, (1 << 29) + 5, 2)]

Check = tuple[str, str]  # What was tried; what is wrong, or nothing.


def combinations() -> Iterator[tuple[str, bool, bool]]:
    for dtype in TYPES:
        for training, is_rstd in ((True, True), (True, False), (False, False)):
            yield dtype, training, is_rstd


def label(p: problems.Problem) -> str:
    mode = ("training" if p.training else "frozen") + (", rstd" if p.variance_is_rstd else "")
    return f"{p.view} {p.dtype}, {mode}"


def test_oracle(device: driver.Device, emulator: driver.Emulated) -> Iterator[Check]:
    """Every view, type and mode within the bounds, and to the bit what the emulator gives."""
    for view in VIEWS:
        for dtype, training, is_rstd in combinations():
            p = make_problem(view, dtype, training=training, variance_is_rstd=is_rstd)
            (result,) = problems.run(device, p)
            wrong = problems.check(p, result)
            if not wrong and np.prod(view) < 1 << 18:
                (want,) = problems.run(emulator, p)
                if problems.bits(want) != problems.bits(result):
                    wrong = "the bits are not those of the host emulator"
            yield label(p), wrong


def test_statistics_in_the_element_type(
    device: driver.Device, emulator: driver.Emulated
) -> Iterator[Check]:
    """As BatchNormTrainingBackprop calls it."""
    for dtype in ("half", "bfloat16"):
        p = make_problem((9, 5, 49), dtype, stat_dtype=dtype)
        yield (
            f"{label(p)}, statistics of the same type",
            problems.check(p, problems.run(device, p)[0]),
        )


def test_exact_sums(device: driver.Device, emulator: driver.Emulated) -> Iterator[Check]:
    """Sums of small integers have no rounding in any order."""
    for view in VIEWS:
        for dtype in TYPES:
            p = make_problem(view, dtype, variance_is_rstd=True, integers=True)
            (result,) = problems.run(device, p)
            dy = p.wide("y_backprop")
            terms = 2 * dy * (p.wide("x") - p.wide("mean")[:, np.newaxis])
            right = (
                np.array_equal(result["offset_backprop"], dy.sum((0, 2))),
                np.array_equal(result["scale_backprop"], terms.sum((0, 2))),
            )
            yield f"{label(p)}, integers", "" if all(right) else "sums are not exact"


def test_alignment(device: driver.Device, emulator: driver.Emulated) -> Iterator[Check]:
    """Any alignment of any tensor gives the same bits, in place as well."""
    for view in ((300, 5, 1), (301, 48, 1), (9, 5, 1300), (9, 5, 49), (2, 3, 70001)):
        for dtype, training, _ in combinations():
            p = make_problem(view, dtype, training=training)
            want = problems.bits(problems.run(device, p)[0])
            wrong = ""
            for shifts in ((1, 0, 0), (0, 3, 0), (0, 0, 1), (5, 5, 5), (1, 2, 3), (7, 7, 6)):
                offsets = dict(zip(("y_backprop", "x", "x_backprop"), shifts, strict=True))
                if problems.bits(problems.run(device, p, offsets=offsets)[0]) != want:
                    wrong = wrong or f"other bits with tensors shifted by {shifts} elements"
            for name in ("y_backprop", "x"):
                for shift in (0, 1):
                    got = problems.run(
                        device, p, offsets={"y_backprop": shift, "x": 0}, in_place=name
                    )
                    if problems.bits(got[0]) != want:
                        wrong = wrong or f"other bits in place of {name}, shifted by {shift}"
            yield f"{label(p)}, misaligned and in place", wrong


def test_groups(device: driver.Device, emulator: driver.Emulated) -> Iterator[Check]:
    """The second pass after a part of the channels gives the same bits."""
    for view in ((9, 90, 49), (3, 7, 4100), (64, 40, 784)):
        for dtype in TYPES:
            p = make_problem(view, dtype)
            whole = 2 * p.arrays["x"].nbytes
            distinct = {
                problems.bits(problems.run(device, p, group_bytes=size)[0])
                for size in (0, whole // 7, whole // 3, whole // 2)
            }
            yield f"{label(p)}, groups", "" if len(distinct) == 1 else "other bits with groups"


def test_repetition(device: driver.Device, emulator: driver.Emulated) -> Iterator[Check]:
    """Every run gives the same bits."""
    for view in ((8000, 300, 1), (70000, 3, 1), (64, 40, 784)):
        for dtype, training, _ in combinations():
            p = make_problem(view, dtype, training=training)
            count = 2 if device.emulated else REPETITIONS
            distinct = {problems.bits(r) for r in problems.run(device, p, repetitions=count)}
            wrong = "" if len(distinct) == 1 else f"{len(distinct)} different results"
            yield f"{label(p)}, {count} times", wrong


def test_nan(device: driver.Device, emulator: driver.Emulated) -> Iterator[Check]:
    """A NaN or infinity stays in its channel."""
    for view in ((50, 5, 1), (50, 5, 3), (3, 5, 9000)):
        for bad in (np.nan, np.inf):
            for name in ("y_backprop", "x"):
                p = make_problem(view, "float32")
                p.arrays[name][2, 2, 0] = bad
                (result,) = problems.run(device, p)
                others = (
                    np.delete(result["x_backprop"], 2, 1),
                    np.delete(result["scale_backprop"], 2),
                )
                fine = all(np.isfinite(o).all() for o in others)
                hit = not np.isfinite(result["scale_backprop"][2])
                yield (
                    f"{label(p)}, {bad} in {name}",
                    "" if fine and hit else "it spread or got lost",
                )


def test_huge(device: driver.Device, emulator: driver.Emulated) -> Iterator[Check]:
    """More than 2^31 elements: constant gradients, whose answer is known.

    With y_backprop = x = 1 (bytes are set on the device) and mean 0: both sums are M, exactly, and
    in training x_backprop = scale * rstd * (1 - 1 - 1 * rstd * rstd).
    """
    for view in HUGE:
        elements = int(np.prod(view))
        what = f"{view}, {elements} elements of half"
        if device.free_bytes() < 6 * elements + 24 * view[1] + (1 << 30):
            yield f"{what}: skipped, not enough memory", ""
            continue
        # 0x3c3c is a half, too: 1.0585938.
        value = float(np.uint16(0x3C3C).view(np.float16))
        pointers = {name: device.allocate(2 * elements) for name in ("y_backprop", "x")}
        pointers["x_backprop"] = device.allocate(2 * elements)
        for name in ("y_backprop", "x"):
            device.fill(pointers[name], 0x3C, 2 * elements)
        device.fill(pointers["x_backprop"], 0xFF, 2 * elements)
        channels = view[1]
        for name in ("scale", "variance"):
            pointers[name] = device.allocate(4 * channels)
            device.write(pointers[name], np.ones(channels, np.float32))
        pointers["mean"] = device.allocate(4 * channels)
        device.fill(pointers["mean"], 0, 4 * channels)
        for name in ("scale_backprop", "offset_backprop"):
            pointers[name] = device.allocate(4 * channels)
            device.fill(pointers[name], 0xFF, 4 * channels)
        args = driver.Args(*view, 1, 0, 1, 1, 0.0, *(pointers[n] for n in driver.POINTERS))
        device.run(args)
        device.wait()
        m = view[0] * view[2]
        wrong = ""
        for name, want in (("offset_backprop", m * value), ("scale_backprop", m * value * value)):
            got = np.empty(channels, np.float32)
            device.read(pointers[name], got)
            if (np.abs(got / np.float64(want) - 1) > 2.0**-23).any():
                wrong = wrong or f"{name} is {got[0]}, not {want}"
        want_dx = np.float16(-(value * value * value))
        step = 1 << 27
        for first in range(0, elements, step):
            part = np.empty(min(step, elements - first), np.float16)
            device.read(pointers["x_backprop"] + 2 * first, part)
            # One value everywhere, within a rounding.
            if not (np.abs(part.view(np.int16) - want_dx.view(np.int16)) <= 1).all():
                wrong = wrong or f"x_backprop is wrong in elements {first} and following"
        device.free_all()
        yield what, wrong


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]


def sanitize(arguments: list[str]) -> int:
    """The tests again under compute-sanitizer, with fewer views; 0, or its exit status."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer: skipped, it is not on the PATH")
        return 0
    status = 0
    for check in ("memcheck", "racecheck", "initcheck", "synccheck"):
        print(f"compute-sanitizer --tool={check}", flush=True)
        command = [tool, f"--tool={check}", "--error-exitcode=9", sys.executable, *arguments]
        status = subprocess.run([*command, "--quick", "--no-sanitizer"]).returncode or status
    return status


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", help="libtf_bn_ops_core.so, built with CUDA")
    parser.add_argument("--emulated", action="store_true", help="run on the host emulator")
    parser.add_argument("--quick", action="store_true", help="small views alone")
    parser.add_argument("--no-sanitizer", action="store_true")
    flags = parser.parse_args(arguments)
    if flags.quick:
        VIEWS[:] = [view for view in VIEWS if np.prod(view) <= 1024]
        HUGE.clear()
    emulator = driver.Emulated()
    try:
        device = emulator if flags.emulated else driver.Device(flags.library)
    except driver.NoGpuError as error:
        print(f"gpu-test: skipped, {error}; nothing was tested.")
        return 0
    print(f"gpu-test on {device.name}")
    failures = 0
    for test in TESTS:
        done = 0
        for what, wrong in test(device, emulator):
            done += 1
            if "skipped" in what:
                print(f"  {what}")
            if wrong:
                failures += 1
                print(f"  FAILED {test.__name__} {what}: {wrong}")
        print(f"  {test.__name__}: {done} cases", flush=True)
    if failures:
        print(f"gpu-test: {failures} cases failed.")
        return 1
    if not (flags.emulated or flags.no_sanitizer):
        return sanitize([__file__, *arguments])
    print("gpu-test: all passed.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
