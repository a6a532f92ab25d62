"""Candidates from other libraries: mappings, signatures, a library built from its own C++ file."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tf_bn_ops.conformance import mapping

HERE = pathlib.Path(__file__).resolve().parent
VENDOR = HERE / "third_party"
FLAGS = """
import tensorflow as tf
print(*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags())
"""


def _run(*flags):
    paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "tf_bn_ops", "conformance", "--noreal", *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        pytest.skip("needs a C++ compiler")
    flags = subprocess.run([sys.executable, "-c", FLAGS], capture_output=True, text=True).stdout
    target = tmp_path_factory.mktemp("vendor") / "libvendor.so"
    command = [compiler, "-w", "-O1", "-shared", "-fPIC", "-o", target, VENDOR / "vendor_ops.cc"]
    subprocess.run([*map(str, command), *shlex.split(flags)], check=True)
    return target


def test_third_party_op_is_judged_by_mapping_file_alone(library):
    result = _run(f"--library={library}", f"--mapping={VENDOR / 'vendor.toml'}", "--cases=24")
    assert result.returncode == 0, result.stdout + result.stderr
    for said in (
        "inputs are in another order: activations, grad, gamma, mu, var",
        "outputs are in another order: dgamma, dbeta, dx",
        "attr eps has another default than epsilon",
        "bounds textbook",
    ):
        assert said in result.stdout
    assert re.search(r"FusedBatchNormGradV2 +float32 +NHWC +training +26 ", result.stdout)


def test_wrong_third_party_op_fails_and_replays(library, tmp_path):
    file = tmp_path / "wrong.toml"
    text = (VENDOR / "vendor.toml").read_text(encoding="utf-8")
    file.write_text(text.replace("Vendor>BnGrad", "VendorBnGradWrongSign"), encoding="utf-8")
    result = _run(f"--library={library}", f"--mapping={file}", "--cases=8")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "x_backprop" in result.stdout
    replay = re.search(r"replay: python -m tf_bn_ops conformance (.*)", result.stdout)
    again = _run(*shlex.split(replay.group(1)))
    assert again.returncode == 1, again.stdout + again.stderr
    assert "x_backprop" in again.stdout
    # What --repro prints last is a program that shows the fault with the library alone.
    program = again.stdout[again.stdout.index('"""VendorBn') :]
    program = program[: program.index("sys.exit(1 if failed else 0)") + 29]
    for name, status in (("VendorBnGradWrongSign", 1), ("Vendor_BnGrad", 0)):
        file = tmp_path / f"{name}.py"
        file.write_text(program.replace("ops.VendorBnGradWrongSign", f"ops.{name}"))
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status, done.stdout + done.stderr
        assert ("dx[" in done.stdout) == bool(status)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("Vendor>BnGrad", "Vendor>BnGrad has no input y_backprop; it has activations"),
        ("NoSuchOp", "the library registers no op NoSuchOp"),
    ],
)
def test_op_that_cannot_be_called_is_one_sentence(library, op, message):
    result = _run(f"--library={library}", f"--map={op}=FusedBatchNormGradV2", "--cases=1")
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_map_alone_is_enough_for_equal_signatures():
    """The library's own ops, mapped as if they were someone else's."""
    from tf_bn_ops import _loader

    flags = (
        f"--library={_loader.library_path()}",
        "--map=TfBnOps>FusedBatchNormGrad=FusedBatchNormGrad",
    )
    result = _run(*flags, "--cases=8", "--bounds=strict")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "signature of TfBnOps>FusedBatchNormGrad: as mapped, no difference" in result.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--library=/nowhere.so", "--map=A=FusedBatchNormGrad"], "no library /nowhere.so"),
        ([f"--library={__file__}"], "say what the ops of --library claim"),
        ([f"--library={__file__}", "--map=A=FusedBatchNormGrad"], "cannot be used"),
        (["--map=A=FusedBatchNormGrad"], "give one"),
        ([f"--library={__file__}", "--map=A"], "--map takes"),
        ([f"--library={__file__}", "--map=A=B"], "'B' is not one of"),
        ([f"--library={__file__}", "--map=A=BatchNormTrainingBackprop"], "equals no built-in"),
        (
            [f"--library={__file__}", "--map=A=FusedBatchNormGrad", "--candidate=os"],
            "either --candidate or --library",
        ),
        ([f"--library={__file__}", "--mapping=/nowhere.toml"], "cannot read the mapping file"),
    ],
)
def test_wrong_usage_is_one_sentence(flags, message):
    result = _run("--cases=1", *flags)
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr


ENTRY = '[[op]]\nname = "A"\nlike = "FusedBatchNormGradV2"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no"),
        ("[[op", "cannot read"),
        ('[[op]]\nname = "A"\n', "needs 'name' and 'like'"),
        ('[[op]]\nname = "A"\nlike = "B"\n', "'B' is not one of"),
        (ENTRY + "colour = 1\n", "no key 'colour'"),
        (ENTRY + 'dtypes = ["int8"]\n', "dtypes has 'int8'"),
        (ENTRY + 'layouts = ["NDHWC"]\n', "layouts has 'NDHWC'"),
        (ENTRY + "modes = []\n", "modes is empty"),
        (ENTRY + 'inputs = { z = "y" }\n', "no input 'z'"),
        (ENTRY + 'attrs = { z = "y" }\n', "no attr 'z'"),
    ],
)
def test_mistakes_in_a_mapping_file_are_said(tmp_path, text, message):
    file = tmp_path / "ops.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(mapping.MappingError, match=message):
        mapping.load(file)


def test_two_ops_for_one_are_refused():
    entries = [mapping.parse(f"{name}=FusedBatchNormGradV3") for name in "AB"]
    with pytest.raises(mapping.MappingError, match="A and B are both mapped"):
        mapping.by_op(entries)
