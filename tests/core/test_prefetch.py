"""Software prefetch: a build of the kernels that records what they read and what they prefetch.

Promised: what a thread reads was prefetched a short distance before, from the first tile on; and
what is prefetched is read soon, so that no bandwidth is lost. "Before" and "soon" are counted in
bytes of x that the thread reads in between. Exempt is what lies at the beginning and at the end of
a call. Where the arrays begin, in a cache line and in a page, decides about stores and about the
rows of a step, and nothing of this: each view is read at several placements.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "mutants"))

import run as mutants  # noqa: E402

if not (mutants.ROOT / "Makefile").exists():
    pytest.skip("needs the source tree", allow_module_level=True)

pytestmark = pytest.mark.release

LINE = 64
# The distance is 16 KiB; rows and runs of up to 64 KiB are prefetched as a whole.
FARTHEST = 128 << 10
# Of a cache line and less each: more than L1 holds, less than any pass over a view below.
L1_RECORDS = 1 << 12
MOST_WASTED = MOST_MISSED = 0.05

RECORDING = mutants.Mutant(
    "recorded-prefetch",
    "what is read, what is prefetched, and their bytes are written to a file",
    "cc/cpu/isa/panel.h",
    (
        ("#include <cstdint>\n", "#include <cstdint>\n#include <cstdio>\n#include <cstdlib>\n"),
        (
            "// Prefetches for kVectors vectors of a row of a strip",
            "inline void Record(const void* read, const void* prefetched, int64_t bytes) {\n"
            '  static FILE* const file = std::fopen(std::getenv("RECORD"), "ab");\n'
            "  const int64_t record[] = {reinterpret_cast<int64_t>(read),\n"
            "                            reinterpret_cast<int64_t>(prefetched), bytes};\n"
            "  std::fwrite(record, sizeof(record), 1, file);\n"
            "}\n// Prefetches for kVectors vectors of a row of a strip",
        ),
        ("  if (strip.prefetch_offset == 0) return;\n", ""),
        (
            "    Prefetch<T, kVectors>(read + strip.prefetch_offset);\n",
            "    const int64_t offset = strip.prefetch_offset;\n"
            "    Record(read, offset == 0 ? nullptr : read + offset,\n"
            "           kVectors * kLanesOf<T> * static_cast<int64_t>(sizeof(T)));\n",
        ),
    ),
)

# x and y_backprop begin `lead` bytes behind a multiple of 4 KiB, and x_backprop `behind` bytes
# behind them in this sense. Prints the address and the size of x.
CALL = """
import sys
import numpy as np
from tf_bn_ops.harness.c_abi import placed, run
from tf_bn_ops.harness.problems import random_problem

outer, channels, inner, is_training, lead, behind = map(int, sys.argv[2:])
problem = random_problem((outer, channels, inner), sys.argv[1], is_training=bool(is_training))
x = problem.values["x"] = placed(problem.values["x"], lead)
problem.values["y_backprop"] = placed(problem.values["y_backprop"], lead)
print(x.ctypes.data, x.nbytes)
run(problem, outputs={"x_backprop": placed(np.zeros_like(x), lead + behind)})
"""
# As malloc places large arrays, 16 bytes behind a page; one behind the other, in cache lines, which
# aliases (kAliasBytes); and apart.
PLACEMENTS = ((16, 0), (0, 64), (0, 2048))


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    tree = mutants.Build(tmp_path_factory.mktemp("prefetch") / "tree")
    return tree.library_of(RECORDING, whole=True)


class Record(NamedTuple):
    """Lines of x that are read, and those that are prefetched, each with the bytes of x that were
    read before it."""

    read: np.ndarray
    read_at: np.ndarray
    prefetched: np.ndarray
    prefetched_at: np.ndarray


def record(library, path, dtype, view, is_training, placement):
    changed = {"TF_BN_OPS_LIBRARY": str(library), "PYTHONPATH": str(mutants.ROOT)}
    numbers = map(str, (*view, int(is_training), *placement))
    done = subprocess.run(
        [sys.executable, "-c", CALL, dtype, *numbers],
        env={**os.environ, **changed, "RECORD": str(path)}, capture_output=True, text=True,
        timeout=120,  # A loop without an end would fill the disk.
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, size = map(int, done.stdout.split())
    read, prefetched, length = np.fromfile(path, np.int64).reshape(-1, 3).T
    path.unlink()
    of_x = (first <= read) & (read < first + size)
    of_x[of_x] = ~read_again(read[of_x])
    read, prefetched, length = read[of_x], prefetched[of_x], length[of_x]
    at = np.cumsum(length) - length
    ahead = prefetched != 0
    return Record(
        *lines_of(read, length, at, whole=True),
        *lines_of(prefetched[ahead], length[ahead], at[ahead], whole=False),
    )


def read_again(address):
    """Whether an address was read a few records before: what is summed and then computed part by
    part comes from L1 the second time."""
    order = np.lexsort((np.arange(len(address)), address))
    again = np.zeros(len(address), bool)
    same = address[order][1:] == address[order][:-1]
    again[order[1:]] = same & (np.diff(order) < L1_RECORDS)
    return again


def lines_of(address, length, at, *, whole):
    """The lines of [address, address + length), and `at` for each; only those at multiples of LINE
    bytes behind the address, as prefetches are, unless it is to be the whole."""
    first = address // LINE
    count = (address + length - 1) // LINE - first + 1 if whole else -(-length // LINE)
    behind = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(first, count) + behind, np.repeat(at, count)


def share_without(lines, at, others, other_at, distance):
    """Of `lines`, which occur at `at`: the share without one of `others` within `distance` behind
    (before, if it is negative)."""
    first = min(lines.min(), others.min())
    # Lines a multiple of `apart` from each other, so that no distance reaches from one to the next.
    apart = max(at.max(), other_at.max()) + abs(distance) + 1
    wanted = (lines - first) * apart + at
    known = np.sort((others - first) * apart + other_at)
    low, high = min(distance, 0), max(distance, 0)
    found = np.searchsorted(known, wanted + high, "right") > np.searchsorted(known, wanted + low)
    return 1 - found.mean()


@pytest.mark.parametrize(
    ("dtype", "view", "is_training"),
    [
        # Blocks of a few outer indices, channel by channel.
        ("float32", (32, 12, 12544), False),
        ("float32", (32, 12, 12544), True),
        ("half", (32, 12, 112 * 112), False),
        ("float32", (32, 24, 3136), False),
        # Rows above 64 KiB.
        ("float32", (4, 9, 40000), False),
        # Tiles that are parts of rows, whose ends are partial cache lines.
        ("float32", (128, 80, 196), False),
        ("float64", (400, 2500, 1), True),
        ("float32", (800, 2500, 1), False),
        # Whole rows.
        ("float32", (60000, 64, 1), True),
        ("bfloat16", (9000, 384, 1), True),
    ],
)
def test_what_is_read_was_prefetched_shortly_before(recording, tmp_path, dtype, view, is_training):
    for placement in PLACEMENTS:
        path = tmp_path / "record"
        found = record(recording, path, dtype, view, is_training, placement)
        read, prefetched = (found.read, found.read_at), (found.prefetched, found.prefetched_at)
        assert share_without(*read, *prefetched, -FARTHEST) < MOST_MISSED, placement
        assert share_without(*prefetched, *read, FARTHEST) < MOST_WASTED, placement


# ---- Passes --------------------------------------------------------------------------------------

# A call of the C ABI by its arrays of view shape; prints where each input is.
ANY_CALL = """
import json, sys
import numpy as np
from tf_bn_ops.harness import c_abi
from tf_bn_ops.spec import call as call_spec

view, attrs, reads, writes = json.loads(sys.argv[1])
rng, arrays = np.random.default_rng(1), {}
for array in call_spec.ARRAYS:
    if array.role in (*reads, *writes):
        arrays[array.role] = rng.normal(size=view).astype(np.float32)
    elif array.kind in ("channel", "statistics"):
        arrays[array.role] = np.ones(view[1], np.float32)
of_formula = [("batch_", "saved_"), ("scale_backprop", "offset_backprop"), ("scale_grad",)]
for number, names in enumerate(of_formula):
    if number != attrs["formula"]:
        for role in [r for r in arrays if r.startswith(names) and not r.endswith("_grad")]:
            del arrays[role]
if attrs["formula"] != 2:
    arrays.pop("scale_grad")
call = c_abi.Call(c_abi.View(*view), epsilon=1e-3, **attrs)
for role, array in arrays.items():
    setattr(call, role, array.ctypes.data)
print(json.dumps({role: [arrays[role].ctypes.data, arrays[role].nbytes] for role in reads}))
c_abi.run_call(call)
"""
IDENTITY, RELU, SILU = 0, 1, 3
# The formula, its activation, what it writes, and how often it reads each input in training.
PASSES = {
    "batch_norm": (0, IDENTITY, ["y"], {"x": 2}),
    "batch_norm_smooth": (0, SILU, ["y"], {"x": 2}),
    "batch_norm_add": (0, RELU, ["y"], {"x": 2, "side_input": 1}),
    "batch_norm_smooth_add": (0, SILU, ["y"], {"x": 2, "side_input": 1}),
    "batch_norm_grad": (1, IDENTITY, ["x_backprop"], {"y_backprop": 2, "x": 2}),
    "batch_norm_grad_ex_from_y": (1, RELU, ["x_backprop"], {"y_backprop": 2, "x": 2, "y": 2}),
    "batch_norm_grad_smooth": (1, SILU, ["x_backprop"], {"y_backprop": 2, "x": 2}),
    "batch_norm_grad_ex_add": (
        1, RELU, ["x_backprop", "side_input_backprop"], {"y_backprop": 1, "x": 2, "y": 1}
    ),
    "batch_norm_grad_smooth_add": (
        1, SILU, ["x_backprop", "side_input_backprop"], {"y_backprop": 1, "x": 2, "y": 1}
    ),
    "batch_norm_grad_grad": (
        2, IDENTITY, ["y_backprop_grad", "x_grad"], {"x_backprop_grad": 2, "y_backprop": 2, "x": 2}
    ),
}  # fmt: skip


@pytest.mark.parametrize("formula", PASSES)
def test_a_pass_reads_and_prefetches_what_it_uses_alone(recording, tmp_path, formula):
    """The pass that sums x leaves the side input alone, which the second one reads."""
    view = (60000, 64, 1)  # Without a pipeline, whose copies are read instead.
    kind, activation, writes, passes = PASSES[formula]
    attrs = {"formula": kind, "activation": activation, "is_training": 1}
    attrs["exponential_avg_factor"] = 1.0
    path = tmp_path / "record"
    changed = {"TF_BN_OPS_LIBRARY": str(recording), "PYTHONPATH": str(mutants.ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ANY_CALL, json.dumps([view, attrs, [*passes], writes])],
        env={**os.environ, **changed, "RECORD": str(path)}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read, prefetched, length = np.fromfile(path, np.int64).reshape(-1, 3).T
    for role, (first, size) in json.loads(done.stdout).items():
        for what, at in (("read", read), ("prefetched", prefetched)):
            within = (first <= at) & (at < first + size)
            found = length[within].sum() / size
            most = passes[role] + (0.2 if what == "read" else 0)
            least = passes[role] - 0.2 if what == "read" else 0
            assert least <= found <= most, f"{role} is {what} {found:.2f} times"
