"""Types as an editor sees them: fields, data formats, names of the package.

Promised: type checkers report wrong fields, data formats and names; each public name has its reason
in docs/api.md, and `dir` shows no other.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pathlib
import re
import subprocess
import sys
import types
import typing

import pytest

from tf_bn_ops.spec import DATA_FORMATS, DataFormat

# Every line with an error, and no other, is one to mypy and to pyright (VS Code's Pylance).
PROGRAM = """
from typing import Any
import tf_bn_ops
import tf_bn_ops.keras

def use(x: Any, c: Any, layout: str) -> None:
    normalized = tf_bn_ops.fused_batch_norm(x, c, c, data_format="NCHW")
    normalized.y, normalized.batch_variance
    normalized.running_mean  # error
    y, mean, variance = normalized
    y, mean = normalized  # error
    tf_bn_ops.fused_batch_norm(x, c, c, data_format=b"NDHWC")
    tf_bn_ops.fused_batch_norm(x, c, c, data_format="NWHC")  # error
    tf_bn_ops.fused_batch_norm(x, c, c, data_format=layout)  # error
    tf_bn_ops.fused_batch_norm(x, c, c, training=True)  # error
    tf_bn_ops.fused_batch_norm(x, c, c, synchronized=True, activation="relu").batch_mean
    tf_bn_ops.fused_batch_norm(x, c, c, synchronized=1)  # error
    grads = tf_bn_ops.raw_ops.FusedBatchNormGradV3(
        y_backprop=x, x=x, scale=c, reserve_space_1=c, reserve_space_2=c, reserve_space_3=c
    )
    grads.x_backprop, grads.reserve_space_5
    grads.reserve_space_3  # error
    tf_bn_ops.raw_ops.FusedBatchNormGrad(
        y_backprop=x, x=x, scale=c, reserve_space_1=c, reserve_space_2=c
    ).reserve_space_3
    tf_bn_ops.raw_ops.FusedBatchNormGrad(y_backprop=x, x=x, scale=c)  # error
    tf_bn_ops.raw_ops.FusedBatchNormGrad(x, x, c, c, c)  # error
    tf_bn_ops.raw_ops.BatchNormStats(x)  # error
    tf_bn_ops.raw_ops.BatchNormElemt(x=x, scale=c, offset=c, mean=c, variance=c, axis=1)
    tf_bn_ops.fused_batch_norm_grad(x, x, c, c, c, 1e-3).x_backprop
    tf_bn_ops.fused_batch_norm_grad(x, x, c, c, c, "1e-3")  # error
    tf_bn_ops.fused_batchnorm  # error
    tf_bn_ops.rewrite.to_shim(x)
    tf_bn_ops.rewrite.to_shim(x, gradient_only=True)  # error
    tf_bn_ops.rewrite.fusion_report(x)[0].refusal.upper()
    tf_bn_ops.rewrite.fusion_report(x)[0].reason  # error
    tf_bn_ops.enable().kernels[0].dtype.upper()
    tf_bn_ops.enable().kernels[0].type  # error
    tf_bn_ops.enable(kernel=True)  # error
    tf_bn_ops.fused_batch_norm(x, c, c, activation="relu6", side_input=x)
    tf_bn_ops.fused_batch_norm(x, c, c, activation="gelu")  # error

class Network:
    depth = 50

def use_keras(network: Network) -> None:
    tf_bn_ops.keras.replace_batch_norm(network, verify=[1.0]).depth
    tf_bn_ops.keras.replace_batch_norm(network).width  # error
    tf_bn_ops.keras.replace_batch_norm(network, fused=True)  # error
    tf_bn_ops.keras.restore_batch_norm(network).depth
    tf_bn_ops.keras.restore_batch_norm(network).width  # error
    tf_bn_ops.keras.batch_norm_report(network).unfused["bn"].upper()
    tf_bn_ops.keras.batch_norm_report(network).replaced  # error
    tf_bn_ops.keras.BatchNormalization(axis=1, activation="relu")
    tf_bn_ops.keras.BatchNormalization(activation="gelu")  # error
"""


def mypy_errors(repo_root: pathlib.Path, program: pathlib.Path) -> set[int]:
    options = ["--config-file=pyproject.toml", "--no-error-summary"]
    options += ["--follow-imports=silent", f"--cache-dir={program.parent}"]
    output = check(repo_root, "mypy", *options, str(program))
    return {int(line.split(":")[1]) for line in output.splitlines() if ": error: " in line}


def pyright_errors(repo_root: pathlib.Path, program: pathlib.Path) -> set[int]:
    settings = {
        "include": [program.name],
        "extraPaths": [str(repo_root)],
        "typeCheckingMode": "standard",
    }
    project = program.parent / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    options = ["--outputjson", f"--pythonpath={sys.executable}", f"--project={project}"]
    found = json.loads(check(repo_root, "pyright", *options))["generalDiagnostics"]
    return {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}


def check(folder: pathlib.Path, checker: str, *options: str) -> str:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"needs {checker} (requirements/dev.txt)")
    command = [sys.executable, "-m", checker, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("errors_of", [mypy_errors, pyright_errors])
def test_type_checkers_report_wrong_fields_formats_and_names(errors_of, repo_root, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    lines = enumerate(PROGRAM.splitlines(), start=1)
    wanted = {number for number, line in lines if line.endswith("# error")}
    assert errors_of(repo_root, program) == wanted


def test_types_say_what_the_specs_say():
    assert {f for f in typing.get_args(DataFormat) if isinstance(f, str)} == set(DATA_FORMATS)
    assert {f.decode() for f in typing.get_args(DataFormat) if isinstance(f, bytes)} == set(
        DATA_FORMATS
    )


PUBLIC_MODULES = ["tf_bn_ops", "tf_bn_ops.keras", "tf_bn_ops.raw_ops", "tf_bn_ops.rewrite"]


def test_each_public_name_has_its_reason(repo_root):
    text = (repo_root / "docs" / "api.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(tf_bn_ops[\w.]*)` \| \w.* \|$", text, re.MULTILINE)
    # The ops have theirs in the table of ops.
    modules = [module for module in PUBLIC_MODULES if module != "tf_bn_ops.raw_ops"]
    names = {f"{m}.{name}" for m in modules for name in importlib.import_module(m).__all__}
    assert sorted(table) == sorted([*names, "tf_bn_ops.raw_ops"])
    assert len(names) <= 26


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_dir_shows_public_names(name):
    module: types.ModuleType = importlib.import_module(name)
    names = dir(module)
    beside = {"__version__", "keras", "raw_ops", "rewrite"} if name == "tf_bn_ops" else set()
    assert set(names) == {*module.__all__, *beside}
    for public in names:
        assert public == "__version__" or inspect.getdoc(getattr(module, public))
