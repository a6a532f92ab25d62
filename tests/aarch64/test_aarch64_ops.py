"""The op library of aarch64 inside TensorFlow's aarch64 wheel, under an emulator.

Promised: it loads into TensorFlow; every op, in all types, layouts and modes, is within its strict
bounds on the conformance run's cases, and bitwise what this machine's op library gives; the Keras
layer, XLA and the doctor work there; `make wheel ARCH=aarch64` gives a wheel for that machine.
"""

from __future__ import annotations

import dataclasses
import email
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import emulated
import numpy as np
import pytest
from build_helpers import make

from tf_bn_ops import _loader, spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution import implementations, workers
from tf_bn_ops.conformance.execution.answer import identical
from tf_bn_ops.conformance.flags import DEFAULT_SEED
from tf_bn_ops.conformance.models import bounds, formula_models
from tf_bn_ops.conformance.verdict.judge import judge

emulated.skip_without_parts()
pytestmark = pytest.mark.long

CASES = 330
MOST_ELEMENTS = 20_000


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[workers.Worker, workers.Worker]]:
    """The ops on this machine, and those under the emulator."""
    own = dataclasses.replace(
        implementations.own(), environment={"TF_ENABLE_ONEDNN_OPTS": "0", "TF_BN_OPS_LIBRARY": ""}
    )
    here = workers.Worker(own, emulated.SECONDS)
    here.wait_until_ready()
    environment = emulated.environment()
    with emulated.emulation():
        there = workers.Worker(
            dataclasses.replace(own, environment=environment), float(emulated.SECONDS)
        )
        there.wait_until_ready()
    yield here, there
    here.close()
    there.close()


def test_conformance_cases(both):
    """Strict bounds against the oracle, which runs here; and bitwise what this machine gives."""
    cases = [
        case
        for case in generate.generate(2 * CASES, DEFAULT_SEED)
        if np.prod(case.shape) <= MOST_ELEMENTS
    ][:CASES]
    assert len(cases) == CASES
    assert {case.op for case in cases} == set(spec.OPS)
    wrong = []
    for case in cases:
        inputs = formula_models.fill(case)
        for worker in both:
            worker.submit(case, inputs)
        want, got = (worker.collect() for worker in both)
        failures = judge(case, inputs, {"candidate": got}, bounds.PROFILES["strict"]).failures
        if failures or not identical(got.outputs or [], want.outputs or []):
            wrong.append(f"{case}: {failures or 'the bits differ'}")
    assert not wrong, "\n".join(wrong)


def test_keras_layer_xla_and_statistics_of_replicas():
    """Some of the tests of this machine; BatchNormGatherStats has no conformance case."""
    emulated.run_python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "-k", "chain_of_keras or compiled_by_xla or gathered_statistics",
        "tests/keras_layers/test_keras.py", "tests/ops/test_single_ops.py",
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel() -> pathlib.Path:
    """What make wheel ARCH=aarch64 writes."""
    made = make(emulated.ROOT, "ARCH=aarch64", "wheel", python="")
    assert made.returncode == 0, made.stdout + made.stderr
    (built,) = (emulated.ROOT / "dist").glob("*_aarch64.whl")
    return built


def test_the_wheel_is_for_that_machine(wheel):
    """And asks for TensorFlow by the name that its aarch64 wheels have; all its programs and
    libraries are aarch64's."""
    assert re.fullmatch(r"tf_bn_ops-.*-py3-none-manylinux_\d+_\d+_aarch64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        about = email.message_from_bytes(archive.read(metadata))
        files = {name: archive.read(name)[:20] for name in archive.namelist()}
    minor = ".".join(_loader.build_info()["tensorflow_version"].split(".")[:2])
    assert f"tensorflow=={minor}.*" in about.get_all("Requires-Dist", [])
    programs = {name: head for name, head in files.items() if head.startswith(b"\x7fELF")}
    assert len(programs) >= len(_loader.COMPANIONS) + 1  # The op library.
    assert {head[18:20] for head in programs.values()} == {b"\xb7\x00"}


def test_the_doctor_finds_no_problem_in_the_installed_wheel(wheel, tmp_path):
    pip = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(tmp_path))
    emulated.run_python(*pip, str(wheel), PYTHONPATH="")
    command = ("-m", "tf_bn_ops", "doctor", "--format=json")
    where = {"PYTHONPATH": str(tmp_path), "TF_BN_OPS_LIBRARY": ""}
    report = json.loads(emulated.run_python(*command, cwd=tmp_path, **where))
    states = {finding["name"]: finding for finding in report["findings"]}
    assert str(tmp_path) in states["library"]["text"]
    assert [name for name, finding in states.items() if finding["state"] == "problem"] == []
    assert "neonbf16 is in use" in states["CPU"]["text"]
    assert "aarch64" in states["build"]["text"]
    assert "right on a small tensor" in states["ops"]["text"]


def test_libraries_of_another_machine_are_refused_here():
    program = "import tf_bn_ops; tf_bn_ops.load()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **emulated.environment()},
        capture_output=True,
        text=True,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert f"was built for aarch64, but this machine is {os.uname().machine}" in last
