"""Types as an editor sees them: fields, data formats, names of the package."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pathlib
import subprocess
import sys
import types
import typing

import pytest

import tf_bn_ops
from tf_bn_ops import _results
from tf_bn_ops.spec import DATA_FORMATS, OPS, DataFormat

# Every line with an error, and no other, is one to mypy.
PROGRAM = """
from typing import Any
import tf_bn_ops

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
    tf_bn_ops.sync_batch_norm(x, c, c, axis=1, activation="relu").batch_mean
    tf_bn_ops.sync_batch_norm(x, c, c, activation="gelu")  # error
    grads = tf_bn_ops.fused_batch_norm_grad_v3(x, x, c, c, c, c)
    grads.x_backprop, grads.reserve_space_5
    grads.reserve_space_3  # error
    tf_bn_ops.raw_ops.FusedBatchNormGrad(
        y_backprop=x, x=x, scale=c, reserve_space_1=c, reserve_space_2=c
    ).reserve_space_3
    tf_bn_ops.raw_ops.FusedBatchNormGrad(y_backprop=x, x=x, scale=c)  # error
    tf_bn_ops.batch_norm_training_backprop(x, c, c, c, c, x, 1e-3).gamma_delta
    tf_bn_ops.batch_norm_training_backprop(x, c, c, c, c, x, "1e-3")  # error
    tf_bn_ops.fused_batch_norm_grad_grad(x, c, c, x, x, c, c, c).scale_grad
    tf_bn_ops.fused_batchnorm  # error
    tf_bn_ops.rewrite.to_shim(x)
"""


def test_mypy_reports_wrong_fields_formats_and_names(repo_root: pathlib.Path, tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("needs mypy (requirements/dev.txt)")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--config-file=pyproject.toml", "--no-error-summary", f"--cache-dir={tmp_path}"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--follow-imports=silent", str(program)],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=False,
    )
    reported = {int(line.split(":")[1]) for line in run.stdout.splitlines() if ": error: " in line}
    lines = enumerate(PROGRAM.splitlines(), start=1)
    assert reported == {number for number, line in lines if line.endswith("# error")}, run.stdout


def test_the_package_says_that_it_is_typed():
    assert (pathlib.Path(tf_bn_ops.__file__).parent / "py.typed").is_file()


def test_types_say_what_the_specs_say():
    assert {f for f in typing.get_args(DataFormat) if isinstance(f, str)} == set(DATA_FORMATS)
    assert {f.decode() for f in typing.get_args(DataFormat) if isinstance(f, bytes)} == set(
        DATA_FORMATS
    )
    for name, spec in OPS.items():
        if len(spec.outputs) == 1:  # A tensor.
            continue
        assert getattr(_results, name)._fields == tuple(output.name for output in spec.outputs)


@pytest.mark.parametrize("name", ["tf_bn_ops", "tf_bn_ops.raw_ops", "tf_bn_ops.rewrite"])
def test_dir_shows_public_names(name):
    module: types.ModuleType = importlib.import_module(name)
    names = dir(module)
    assert set(names) == set(module.__all__)
    assert [n for n in names if n.startswith("_")] in ([], ["__version__"])
    for public in names:
        assert public == "__version__" or inspect.getdoc(getattr(module, public))
