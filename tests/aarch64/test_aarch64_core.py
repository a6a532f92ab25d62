"""The core library of aarch64 under an emulator, beside this machine's.

Promised: every implementation, NEON's too, gives bitwise what this machine gives, whatever the
inputs, for any number of threads; the one that is taken is what the processor's features (HWCAP)
say; the core's own tests hold there.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import pickle
import platform
import re
import shutil
import subprocess
import sys
from typing import Any

import emulated
import forked
import numpy as np
import pytest
from build_helpers import assert_hardened

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.flags import DEFAULT_SEED
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness import c_abi, problems

sys.path.insert(0, str(emulated.ROOT / "tests" / "core"))

import builds

emulated.skip_without_parts()
pytestmark = pytest.mark.long


def isa_builds() -> dict[str, frozenset[str]]:
    """The features of the processor that each build of isa_builds.txt needs, fastest first."""
    listed = subprocess.run(
        [emulated.ROOT / "tools" / "list_flags.sh", "isa", "cc/cpu/isa/isa_builds.txt"],
        env={**os.environ, "ARCH": "aarch64"},
        cwd=emulated.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    fields = (line.split("|") for line in listed.stdout.splitlines())
    return {name: frozenset(re.findall(r"HAS\((\w+)\)", needs)) for name, needs, *_ in fields}


FEATURES = isa_builds()
ISA_BUILDS = list(FEATURES)
# Of Neoverse N1, as in Graviton 2: Armv8.2-A without bfloat16 and SVE.
NEOVERSE_N1 = {"asimd", "asimdhp", "asimdrdm", "asimddp"}
CASES = 240  # Of each formula.
MOST_ELEMENTS = 30_000


def answers(path: str) -> list[str]:
    """Of the problems in a file: digests of what this machine's implementations in turn answer,
    every NaN as the same one."""
    names, found = c_abi.supported_implementations(), []
    for i, problem in enumerate(pickle.loads(pathlib.Path(path).read_bytes())):
        how: dict[str, Any] = {"implementation": names[i % len(names)], "threads": 1 + i % 3}
        found.append(hashlib.sha256(builds.bits(c_abi.run(problem, **how))).hexdigest())
    return found


def test_bitwise_what_this_machine_gives(tmp_path):
    """On the conformance run's cases, of all kinds of inputs, which are drawn here."""
    cases = [
        case
        for formula in dict.fromkeys(op.formula for op in spec.OPS.values())
        for names in [[op.name for op in spec.of_formula(formula)]]
        for case in generate.generate(CASES, DEFAULT_SEED, generate.combinations(names))
        if np.prod(case.shape) <= MOST_ELEMENTS
    ]
    given = tmp_path / "problems"
    drawn = [problems.of_call(case, formula_models.fill(case)) for case in cases]
    given.write_bytes(pickle.dumps(drawn))
    there = json.loads(emulated.run_python("-c", *forked.program_of(answers, (str(given),))))
    here = answers(str(given))
    differ = [str(case) for case, a, b in zip(cases, there, here, strict=True) if a != b]
    assert not differ, "\n".join(differ[:10])


def test_the_features_of_the_processor_choose():
    """The emulated processor has everything; Neoverse N1 has not."""
    program = "from tf_bn_ops.harness import c_abi; print(*c_abi.supported_implementations())"
    assert emulated.run_python("-c", program).split() == ISA_BUILDS, (
        "the default processor of the emulator lacks a build: set QEMU_CPU in emulated.environment"
    )
    found = emulated.run_python("-c", program, QEMU_CPU="neoverse-n1")
    have = [name for name, needs in FEATURES.items() if needs <= NEOVERSE_N1]
    assert "neon" in have and "neonbf16" not in have
    assert found.split() == have


def test_an_isa_that_the_processor_lacks_is_refused():
    program = (
        "from tf_bn_ops.harness import c_abi, problems\n"
        "try: c_abi.run(problems.random_problem((2, 3, 1)))\n"
        "except ValueError as error: print(error)"
    )
    said = emulated.run_python("-c", program, QEMU_CPU="cortex-a72", TF_BN_OPS_CPU_ISA="neonbf16")
    assert "TF_BN_OPS_CPU_ISA is invalid: this processor lacks the instructions" in said


def disassembly(library: str) -> str:
    objdump = shutil.which("aarch64-linux-gnu-objdump") or next(
        map(str, emulated.FOLDER.glob("tools/usr/bin/aarch64-linux-gnu-objdump")), None
    )
    if objdump is None:
        pytest.skip("needs aarch64-linux-gnu-objdump")
    # The unpacked one finds its own libraries beside it.
    beside = ":".join(map(str, emulated.FOLDER.glob("tools/usr/lib/*-linux-gnu")))
    found = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", str(emulated.LIBRARIES / library)],
        env={**os.environ, "LD_LIBRARY_PATH": beside},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout


def test_the_instructions_are_those_of_arm():
    """Non-temporal stores, prefetches into L2, the hint of a spin loop, conversions, the control of
    subnormals; and no multiplication is fused with an addition, which would round otherwise."""
    found = set(re.findall(r"^\s+[0-9a-f]+:\s+(\S+)", disassembly("libtf_bn_ops_core.so"), re.M))
    assert {"stnp", "prfm", "yield", "fcvtl", "fcvtn", "bfcvtn", "mrs", "msr"} <= found
    assert not found & {"fmla", "fmls", "fmadd", "fmsub", "fnmadd", "fnmsub"}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf (binutils)")
@pytest.mark.parametrize(
    "library", sorted(emulated.LIBRARIES.glob("libtf_bn_ops*.so")), ids=lambda path: path.stem
)
def test_libraries_are_as_hardened_as_here(library):
    assert_hardened(library)


@pytest.mark.parametrize(("path", "every", "least"), [("test_cpu.py", 1, 30), (".", 4, 500)])
def test_the_core_tests_hold_there(tmp_path, path, every, least):
    """Every number of the narrow types, and every fourth of the core's own tests, but for tests of
    CUDA's emulator, which the compiler of this machine would build, and of a process without
    memory: the emulator ignores the limit."""
    report = tmp_path / "report.xml"
    emulated.run_python(
        "-m", "pytest", "-q", "-p", "sample", "-p", "no:cacheprovider",
        "-m", "not long and not large and not release",
        f"--junitxml={report}", "-k", "not emulator and not without_memory", f"tests/core/{path}",
        TFBN_TEST_EVERY=str(every),
    )  # fmt: skip
    passed, skipped = (
        len(re.findall(tag, report.read_text())) for tag in ("<testcase", "<skipped")
    )
    assert passed - skipped > least


def test_the_build_says_what_it_is_for():
    info = json.loads((emulated.LIBRARIES / "build_info.json").read_text())
    assert info["machine"] == "aarch64" != platform.machine()
    assert info["isa_builds"] == ISA_BUILDS
    assert "aarch64" in info["compiler"]
