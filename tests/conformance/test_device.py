"""--device: TensorFlow's ops as a pluggable device has them, right ones and with planted faults.

Promised: TensorFlow's ops on a pluggable device are judged by `--device`: right ones pass by either
convention of `reserve_space_2`, faults are caught, and what the device lacks is named.
"""

import re
import subprocess
import sys

import pytest
from test_mapping import _run

from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution import devices
from tf_bn_ops.conformance.execution.implementations import ANY_PATH, on_device
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.formula_models import errors, model_of
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.result import Disagreement
from tf_bn_ops.harness import problems

DEVICE = ("--device=TOY", "--kinds=random,contract", "--cases=120", "--shrink=1", "-x")
GRADIENT = "FusedBatchNormGradV3,float32,NHWC,{},training,normal,batch,eps=0.001,eager,seed=1"


@pytest.mark.long
@pytest.mark.parametrize("kept", ["the variance", "1/sqrt(variance + epsilon)"])
def test_a_right_device_passes_by_either_convention(library, kept, monkeypatch):
    if "sqrt" in kept:
        monkeypatch.setenv("TOY_SAVES_RSTD", "1")
    result = _run(f"--library={library}", *DEVICE)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"TOY:0 keeps {kept} in reserve_space_2" in result.stdout
    assert "TOY:0 has no kernel of FusedBatchNormV2 (half, bfloat16, float32)" in result.stdout
    judged = set(re.findall(r"^(Fused\w+) +(\w+) ", result.stdout, re.M))
    ops = ("FusedBatchNormV3", "FusedBatchNormGradV3", *devices.INTERNAL)
    assert judged == {(op, "float32") for op in ops}


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        *("KeepsEpsilonBySixDecimals", "EmptyOutputsUnwritten", "FrozenLayoutSwapped"),
        "SideInputNotMasked",
    ],
)
def test_a_fault_of_a_device_is_caught_and_reduced(library, fault, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_FAULT", fault)
    result = _run(f"--library={library}", *DEVICE)
    assert result.returncode == 1, result.stdout + result.stderr
    if fault == "FrozenLayoutSwapped":
        program = result.stdout[result.stdout.index("import sys") :]
        (tmp_path / "shown.py").write_text(program[: program.index("failed else 0)") + 14])
        done = subprocess.run([sys.executable, tmp_path / "shown.py"], capture_output=True)
        assert done.returncode == 1, done.stderr


@pytest.mark.long
def test_what_a_device_lacks_is_said(library):
    result = _run(f"--library={library}", *DEVICE, "--ops=FusedBatchNormGradV2")
    assert result.returncode == 2 and "TOY:0 has no kernel of the ops" in result.stderr
    result = _run(f"--library={library}", "--device=GPU:7")
    assert result.returncode == 2 and "there is no device GPU:7" in result.stderr


class _Output:
    def __init__(self, device):
        self.device = device


def test_an_output_on_another_device_is_an_error():
    on_toy, on_cpu = (_Output(f"/job:localhost/device:{d}:0") for d in ("TOY", "CPU"))
    devices.check_place("TOY:0", [on_toy])
    devices.check_place("CPU:0", [on_cpu])
    devices.check_place(None, [on_cpu])
    with pytest.raises(RuntimeError, match="the op ran elsewhere"):
        devices.check_place("TOY:0", [on_toy, on_cpu])


def test_both_conventions_have_the_same_answer():
    """Within the rounding of 1/sqrt(variance + epsilon); the other one is far off."""
    case = generate.parse(GRADIENT.format("2x3x4x5"))
    given = model_of(case.spec).fill(case)
    converted = problems.with_rstd(case, given)
    right = {p.role: p.value for p in model_of(case.spec).expected(
        problems.of_call(case, given), bounds.PROFILES["float32"])}  # fmt: skip
    outputs = {role: value.astype("float32") for role, value in right.items()}
    for inputs, is_right in ((given, True), (converted, True)):
        found = errors(problems.of_call(case, inputs), outputs, "float32")
        assert all(e.bound <= 1 for e in found.values()) == is_right
    kept = problems.with_variance(converted)
    assert (kept.values["variance"] == given.values["variance"]).all()
    mixed = problems.Inputs({**converted.values, "variance": given.values["variance"]},
                            attrs=converted.attrs)  # fmt: skip
    found = errors(problems.of_call(case, mixed), outputs, "float32")
    assert found["scale_backprop"].bound > 100


def test_a_device_may_depart_as_any_path_does_and_need_not():
    assert on_device("TOY:0", None).path == ANY_PATH
    known = divergences.Register.load()
    case = generate.parse(GRADIENT.format("2x3x4x5"))
    scalar = Disagreement("shape:placeholder", "reserve_space_4 has shape [], not [0]")
    assert not known.unexplained(ANY_PATH, case, [scalar])
    assert known.unexplained(ANY_PATH, case, [Disagreement("shape:x_backprop", "x")])
    fresh = divergences.Register.load()
    assert not fresh.unexplained(ANY_PATH, case, [])
    assert not any(entry.covered for entry in fresh.entries)
