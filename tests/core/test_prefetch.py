"""Software prefetch: a build of the kernels that records what they read and what they prefetch.

Promised: what a thread reads was prefetched a short distance before, from the first tile on; and
what is prefetched is read soon, so that no bandwidth is lost. "Before" and "soon" are counted in
bytes of an input that the thread reads in between. Exempt is what lies at the beginning and at the
end of a call.
"""

from __future__ import annotations

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

pytestmark = pytest.mark.long

LINE = 64
# The distance is 16 KiB; rows and runs of up to 64 KiB are prefetched as a whole.
FARTHEST = 128 << 10
MOST_WASTED = MOST_MISSED = 0.05

RECORDING = mutants.Mutant(
    "recorded-prefetch",
    "what is read and what is prefetched is written to a file, in pairs of addresses",
    "cc/cpu/isa/panel.h",
    (
        ("#include <cstdint>\n", "#include <cstdint>\n#include <cstdio>\n#include <cstdlib>\n"),
        (
            "// Prefetches for kVectors vectors of a row of a step",
            "inline void Record(const void* read, const void* prefetched) {\n"
            '  static FILE* const file = std::fopen(std::getenv("RECORD"), "ab");\n'
            "  const void* const pair[] = {read, prefetched};\n"
            "  std::fwrite(pair, sizeof(pair), 1, file);\n"
            "}\n// Prefetches for kVectors vectors of a row of a step",
        ),
        ("  if (step.prefetch_offset == 0) return;\n", ""),
        (
            "    Prefetch<T, kVectors>(read + step.prefetch_offset);\n",
            "    const int64_t offset = step.prefetch_offset;\n"
            "    Record(read, offset == 0 ? nullptr : read + offset);\n",
        ),
    ),
)

# Prints the address of x.
CALL = """
import sys
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import random_problem

outer, channels, inner, is_training = map(int, sys.argv[2:])
view = outer, channels, inner
problem = random_problem(view, sys.argv[1], is_training=bool(is_training))
problem.values["x"] = c_abi.shifted(problem.values["x"], 0)
print(problem.values["x"].ctypes.data, problem.values["x"].nbytes)
c_abi.run(problem)
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    tree = mutants.Build(tmp_path_factory.mktemp("prefetch") / "tree")
    return tree.library_of(RECORDING, whole=True)


class Record(NamedTuple):
    """Lines of x in the order in which they are read, and those that are prefetched meanwhile, -1
    where none is."""

    read: np.ndarray
    prefetched: np.ndarray


def record(library, path, dtype, view, is_training):
    changed = {"TF_BN_OPS_LIBRARY": str(library), "PYTHONPATH": str(mutants.ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CALL, dtype, *map(str, view), str(int(is_training))],
        env={**os.environ, **changed, "RECORD": str(path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, size = map(int, done.stdout.split())
    read, prefetched = np.fromfile(path, np.int64).reshape(-1, 2).T
    of_x = (first <= read) & (read < first + size)
    lines = (prefetched[of_x] - first) // LINE
    lines[prefetched[of_x] == 0] = -1
    return Record((read[of_x] - first) // LINE, lines)


def bytes_read(read):
    """Before each entry, each line of a visit once."""
    new = np.ones(len(read), bool)
    new[1:] = read[1:] != read[:-1]
    return (np.cumsum(new) - 1) * LINE


def times_of(lines, at):
    """Line -> when it occurs, sorted."""
    order = np.lexsort((at, lines))
    lines, at = lines[order], at[order]
    starts = np.flatnonzero(np.r_[True, lines[1:] != lines[:-1]])
    return dict(zip(lines[starts].tolist(), np.split(at, starts[1:]), strict=True))


def share_without(lines, at, others, other_at, distance):
    """Of `lines`, which occur at `at`: the share without one of `others` within `distance` behind
    (before, if it is negative)."""
    times = times_of(others, other_at)
    found = 0
    for line, when in zip(lines.tolist(), at.tolist(), strict=True):
        known = times.get(line)
        if known is None:
            continue
        i = np.searchsorted(known, when, "left" if distance > 0 else "right")
        i -= distance < 0
        found += 0 <= i < len(known) and abs(known[i] - when) <= abs(distance)
    return 1 - found / len(lines)


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
        ("float64", (400, 2500, 1), False),
        # Whole rows.
        ("float32", (60000, 64, 1), True),
        ("bfloat16", (9000, 384, 1), True),
    ],
)
def test_what_is_read_was_prefetched_shortly_before(recording, tmp_path, dtype, view, is_training):
    read, prefetched = record(recording, tmp_path / "record", dtype, view, is_training)
    at = bytes_read(read)
    fetched = prefetched >= 0
    missed = share_without(read, at, prefetched[fetched], at[fetched], -FARTHEST)
    wasted = share_without(prefetched[fetched], at[fetched], read, at, FARTHEST)
    assert missed < MOST_MISSED
    assert wasted < MOST_WASTED
