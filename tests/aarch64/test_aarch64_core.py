"""The core library of aarch64 under an emulator, beside that of this machine.

Promised: every implementation, NEON's too, gives bitwise what this machine gives, whatever the
inputs, for any number of threads; the one that is taken is what the processor's features (HWCAP)
say; the caller's floating-point state is untouched; the core's own tests hold there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator

import emulated
import numpy as np
import pytest
from build_helpers import assert_hardened

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution.answer import identical
from tf_bn_ops.conformance.flags import DEFAULT_SEED
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness import c_abi, problems, processes
from tf_bn_ops.harness.problems import Problem

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
CASES = 240  # Of each formula; all implementations.
MOST_ELEMENTS = 30_000


@pytest.fixture(scope="module")
def process() -> Iterator[processes.Process]:
    with emulated.emulation():
        core = processes.Process("aarch64", "core_server", [], emulated.environment())
        core.wait_until_ready()
    yield core
    core.close()


@pytest.fixture
def there(process):
    """Runs a problem on aarch64."""

    def run(problem: Problem, implementation: str | None = None, threads: int = 1):
        process.send((problem, implementation, threads))
        state, outputs = process.receive(emulated.SECONDS)
        assert state == "done", outputs
        return outputs

    return run


def here(problem: Problem, implementation: str | None = None):
    """Runs it on this machine."""
    return c_abi.run(problem, implementation=implementation)


def differing(a, b) -> list[str]:
    """The outputs that are not bitwise identical; every NaN is the same NaN."""
    assert set(a) == set(b)
    return [role for role in sorted(a) if not identical([a[role]], [b[role]])]


def test_the_features_of_the_processor_choose(process):
    """The emulated processor has everything; Neoverse N1 has not."""
    assert process.facts == [(name, True) for name in ISA_BUILDS], (
        "the default processor of the emulator lacks a build: set QEMU_CPU in emulated.environment"
    )
    program = "from tf_bn_ops.harness import c_abi; print(*c_abi.supported_implementations())"
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


@pytest.mark.parametrize("formula", list(dict.fromkeys(op.formula for op in spec.OPS.values())))
def test_bitwise_what_this_machine_gives(there, formula):
    """On the conformance run's cases, of all kinds of inputs."""
    names = [op.name for op in spec.of_formula(formula)]
    cases = list(generate.generate(CASES, DEFAULT_SEED, generate.combinations(names)))
    cases = [case for case in cases if np.prod(case.shape) <= MOST_ELEMENTS]
    assert len(cases) > CASES // 2
    for i, case in enumerate(cases):
        problem = problems.of_call(case, formula_models.fill(case))
        want = here(problem, "baseline")
        name = ISA_BUILDS[i % len(ISA_BUILDS)]
        assert not differing(there(problem, name, threads=1 + i % 3), want), f"{case} {name}"


def test_the_one_difference(there):
    """A product less than a quarter of a unit in the last place below the smallest normal number:
    x86 rounds before it looks whether the result is subnormal, Arm looks before it rounds."""
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, 1 << 20).astype(np.float32)
    b = (1 / a.astype(np.float64)).astype(np.float32)
    product = a.astype(np.float64) * b  # Exact.
    a, b = (v[(product < 1) & (product >= 1 - 2.0**-25)][:64] for v in (a, b))
    one, least = np.ones_like(a), np.float32(np.finfo(np.float32).smallest_normal)
    y_backprop = (a * least).reshape(1, -1, 1)
    values = {"y_backprop": y_backprop, "x": 0 * y_backprop, "scale": b}
    problem = Problem({**values, "mean": 0 * one, "variance": one}, 0.0, is_training=False)
    assert len(a) == 64
    assert np.all(here(problem, "baseline")["x_backprop"] == least)
    for name in ISA_BUILDS:
        assert np.all(there(problem, name)["x_backprop"] == 0), name


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


@pytest.mark.parametrize(("path", "every", "least"), [("test_cpu.py", 1, 30), (".", 5, 500)])
def test_the_core_tests_hold_there(tmp_path, path, every, least):
    """Every number of the narrow types, and every fifth of the core's own tests, but for those of
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
