"""TF_BN_OPS_HUGE_PAGES (cc/cpu/call_memory.h): what a call writes may be mapped in huge pages.

Promised: unless the variable is set, no call changes how memory is mapped; if it is, whole huge
pages of an output are advised, and no bit of a result changes.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tf_bn_ops import _loader

SMAPS = pathlib.Path("/proc/self/smaps")
if not SMAPS.exists() or "VmFlags" not in SMAPS.read_text():
    pytest.skip("needs the VmFlags of /proc/self/smaps", allow_module_level=True)

# Writes to private memory that nobody has touched; prints whether part of it is advised ("hg"), and
# the bits of the result.
CALL = """
import ctypes, mmap, re, zlib
import numpy as np
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import random_problem
problem = random_problem((40000, 40, 1))
size = problem["x"].nbytes
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
dx = np.frombuffer(memory, np.float32).reshape(problem["x"].shape)
got = c_abi.run(problem, outputs={"x_backprop": dx})
begin = dx.ctypes.data
advised = False
for entry in re.split(r"\\n(?=[0-9a-f]+-)", open("/proc/self/smaps").read()):
    low, high = (int(edge, 16) for edge in entry.split()[0].split("-"))
    inside = max(low, begin) < min(high, begin + size)
    advised |= inside and "hg" in entry.rsplit("VmFlags:")[1].split()
print(advised, zlib.crc32(c_abi.bits(got)))
"""


def run(value: str | None) -> tuple[str, str]:
    environment = {k: v for k, v in os.environ.items() if k != "TF_BN_OPS_HUGE_PAGES"}
    if value is not None:
        environment["TF_BN_OPS_HUGE_PAGES"] = value
    environment["PYTHONPATH"] = str(pathlib.Path(_loader.__file__).resolve().parents[1])
    # NumPy asks for huge pages itself; the output is no array of NumPy's, but may merge with one.
    environment["NUMPY_MADVISE_HUGEPAGE"] = "0"
    command = [sys.executable, "-c", CALL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    advised, bits = done.stdout.split()
    return advised, bits


def test_outputs_are_advised_if_the_variable_is_set():
    off, on = run(None), run("1")
    assert (off[0], on[0]) == ("False", "True")
    assert off[1] == on[1]


@pytest.mark.parametrize("value", ["", "0"])
def test_otherwise_nothing_is(value):
    assert run(value)[0] == "False"
