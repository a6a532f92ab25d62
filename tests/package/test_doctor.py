"""`python -m tf_bn_ops doctor`: each way in which an installation breaks is found and named.

Promised: a line for each thing looked at; one of the state "problem" for what the loader refuses
(test_loader.py has each), with what to do; exit status 1 if there is one, 0 otherwise, also with
warnings; the same as JSON; nothing that kills TensorFlow kills the doctor.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys

import pytest
from build_helpers import edit_build_info, run

from tf_bn_ops import __main__ as commands
from tf_bn_ops import _enable, _loader, _startup, doctor
from tf_bn_ops.harness import c_abi

PACKAGE = pathlib.Path(doctor.__file__).parent.parent


def run_doctor(
    *arguments: str, path: tuple[pathlib.Path, ...] = (PACKAGE,), **changes: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tf_bn_ops", "doctor", *arguments]
    return run(command, path[0], PYTHONPATH=os.pathsep.join(map(str, path)), **changes)


@functools.cache
def healthy() -> doctor.Probe:
    """What the doctor's child process finds where all is well."""
    import tensorflow as tf

    folder, flag = os.path.dirname(tf.__file__), int(tf.sysconfig.CXX11_ABI_FLAG)
    facts = {"version": tf.__version__, "folder": folder, "cxx11_abi": flag, "gpus": []}
    return doctor.Probe(tensorflow=facts)


def problems(findings: list[doctor.Finding]) -> dict[str, str]:
    return {f.name: f.text for f in findings if f.state == doctor.PROBLEM}


def test_all_is_well_here():
    result = run_doctor("--format=json")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["problems"], report["warnings"]) == (0, 0)
    findings = {f["name"]: f["text"] for f in report["findings"]}
    import tensorflow as tf

    assert findings["TensorFlow"].startswith(tf.__version__)
    assert "not installed by pip" not in findings["TensorFlow"]
    assert findings["library"] == _loader.library_path()
    assert f"{c_abi.fastest()} is in use" in findings["CPU"]
    for name in ("Python", "build", "ABI: version", "ABI: C++ strings"):
        assert findings[name]
    for name in ("ops", "GPU", "XLA", "switch"):
        assert findings[name]
    here = _loader.installation()
    assert report["installation"]["op_library"] == str(here.op_library)
    assert report["installation"]["build"] == here.build
    assert report["installation"]["tensorflow"]["owner"] in findings["TensorFlow"]


def test_an_environment_that_is_reached_by_a_link_is_the_same(tmp_path):
    """As a virtual environment's folder in another place."""
    assert healthy().tensorflow is not None
    here = _loader.installation()
    assert here.tensorflow is not None
    (tmp_path / "link").symlink_to(here.tensorflow.folder.parent)
    facts = {**(healthy().tensorflow or {}), "folder": str(tmp_path / "link" / "tensorflow")}
    findings = doctor.diagnose(doctor.Probe(tensorflow=facts))
    (tensorflow,) = (f.text for f in findings if f.name == "TensorFlow")
    assert f"({here.tensorflow.owner}) in {tmp_path}" in tensorflow


def test_lines_and_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "probe", healthy)
    assert commands.main(["tf_bn_ops", "doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "everything fits"
    assert all(line.startswith("ok ") for line in lines[:-2])
    monkeypatch.setenv(c_abi.ISA_VARIABLE, "baseline")
    assert commands.main(["tf_bn_ops", "doctor"]) == 0, "a warning is no failure"
    lines = capsys.readouterr().out.splitlines()
    (warning,) = (line for line in lines if line.startswith("warning "))
    assert f"unset it to get {c_abi.fastest()}" in warning and lines[-1] == "1 warning"
    monkeypatch.setenv(c_abi.ISA_VARIABLE, "mmx")
    assert commands.main(["tf_bn_ops", "doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 problem"


def test_an_instruction_set_that_there_is_not_is_no_reason_to_rebuild():
    result = run_doctor(**{c_abi.ISA_VARIABLE: "mmx"})
    ops, _ = (line for line in result.stdout.splitlines() if line.startswith("problem "))
    assert ops.split(maxsplit=2)[2] == (
        f"cannot be used: The environment variable {c_abi.ISA_VARIABLE} is invalid: there is no "
        f'CPU implementation "mmx"; this build has {", ".join(c_abi.implementations())}'
    )


# ---- The failures of the loader; more in test_loader.py ------------------------------------------


@pytest.mark.parametrize("name", [_loader.OP_LIBRARY, *_loader.COMPANIONS])
def test_truncated_file(other_build, name):
    library = other_build / name
    library.write_bytes(library.read_bytes()[:-1000])
    found = problems(doctor.diagnose(healthy()))
    assert name in found["library"]
    assert "is cut off" in found["library"]
    assert "rebuild it" in found["library"]


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"machine": "pdp11"}, doctor.PROBLEM, "pdp11, by"),
        ({"version": "0.0.1"}, doctor.WARNING, "but the Python files are version"),
    ],
)
def test_build_for_something_else(other_build, changes, state, words):
    edit_build_info(other_build, **changes)
    (build,) = (f for f in doctor.diagnose(healthy()) if f.name == "build")
    assert build.state == state
    assert words in build.text
    assert "rebuild it" in build.text


def test_a_death_of_tensorflow_is_reported(tmp_path, monkeypatch):
    """As of a TensorFlow that was built for instructions which the processor lacks."""
    (tmp_path / "tensorflow.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = doctor.probe()
    assert found.tensorflow is None
    assert found.import_error == "the process ended with SIGILL"


# ---- What the environment and the machine change -------------------------------------------------


def test_gpus_without_kernels(other_build):
    facts = {**(healthy().tensorflow or {}), "gpus": ["GPU:0"]}
    with_gpu = doctor.Probe(tensorflow=facts)
    edit_build_info(other_build, cuda=None)
    (gpu,) = (f for f in doctor.diagnose(with_gpu) if f.name == "GPU")
    assert gpu.state == doctor.WARNING
    assert "make gpu" in gpu.text
    edit_build_info(other_build, cuda={"version": "13.0", "archs": ["80", "90"], "ptx": "90"})
    (gpu,) = (f for f in doctor.diagnose(with_gpu) if f.name == "GPU")
    assert gpu.state == doctor.OK
    assert "sm_80, sm_90" in gpu.text


def test_xla_library(other_build):
    library = other_build / _loader.XLA_LIBRARY
    library.unlink(missing_ok=True)
    assert "XLA" not in problems(doctor.diagnose(healthy()))
    library.write_bytes(b"\x7fELF\x02")
    assert "is cut off" in problems(doctor.diagnose(healthy()))["XLA"]


@pytest.mark.parametrize(
    ("value", "state", "words"),
    [
        ("", doctor.OK, "off"),
        ("1", doctor.OK, "TF_BN_OPS turns on kernels, keras, fuse"),
        ("keras", doctor.OK, "TF_BN_OPS turns on keras"),
        ("keros", doctor.PROBLEM, "has the word 'keros': set it to 1"),
    ],
)
@pytest.mark.parametrize("is_installed", [True, False])
def test_the_switch(monkeypatch, value, state, words, is_installed):
    monkeypatch.setenv(_startup.VARIABLE, value)
    monkeypatch.setattr(_startup, "has_hook", lambda: is_installed)
    if "turns on" in words and not is_installed:
        state, words = doctor.WARNING, f"{words} in programs that import tf_bn_ops alone"
    (switch,) = (f for f in doctor.diagnose(healthy()) if f.name == "switch")
    assert switch.state == state
    assert words in switch.text


def test_kernels_of_an_unknown_tensorflow(monkeypatch):
    monkeypatch.setenv(_startup.VARIABLE, "1")
    monkeypatch.setattr(_enable, "_KNOWN_TENSORFLOW", ("2.1",))
    assert "cannot be replaced" in problems(doctor.diagnose(healthy()))["switch"]
