"""The C++ classes: source-compatible with TensorFlow's, results as in Python; loading.

Gradients, which are registered for C++ and the C API alike, are in test_c_api.py.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from op_calls import bits, call_of, in_all_layouts_and_modes, small
from tensorflow.core.framework import tensor_pb2

import tf_bn_ops
from tf_bn_ops import raw_ops
from tf_bn_ops.spec import OPS
from tf_bn_ops.spec.ops import BATCH_NORM

# What the test programs read of a case, in their order.
ATTRS: Mapping[str, Any] = {
    "epsilon": 0.0,
    "data_format": "NHWC",
    "is_training": True,
    "exponential_avg_factor": 1.0,
    "activation_mode": "Identity",
    "bessel_correction": True,
    "axis": -1,
    "num_side_inputs": 0,
}


def write(
    folder: pathlib.Path, name: str, tensors: Mapping[str, Any], attrs: Mapping[str, Any] | None
) -> pathlib.Path:
    """A call as the test programs read it; without attrs those of the op's default."""
    folder.mkdir()
    values = {**ATTRS, **(attrs or {})}
    if attrs is None:
        values["data_format"] = "-"
    words = [int(v) if isinstance(v, bool) else v for v in values.values()]
    (folder / "case").write_text(" ".join(map(str, [name, *words])))
    for i, tensor in enumerate(tensors.values()):
        proto = tf.make_tensor_proto(tensor.numpy())
        (folder / f"input{i}.pb").write_bytes(proto.SerializeToString())
    return folder


def results(folder: pathlib.Path, count: int) -> list[np.ndarray]:
    def read(path: pathlib.Path) -> np.ndarray:
        return tf.make_ndarray(tensor_pb2.TensorProto.FromString(path.read_bytes()))

    return [read(folder / f"output{i}.pb") for i in range(count)]


def test_every_class_is_bitwise_identical_to_python(run_program, tmp_path):
    """Of the table, in every type, layout and mode; and BatchNormGatherStats."""
    calls = [
        (op.name, *call_of(small(op, layout, mode, dtype=dtype, seed=number)))
        for op in OPS.values()
        for number, (layout, mode) in enumerate(in_all_layouts_and_modes(op))
        for dtype in op.dtypes
    ]
    parts = {
        "counts": [5.0, 0.0, 3.0],
        "means": [[1.0], [2.0], [4.0]],
        "m2s": [[1.0], [2.0], [3.0]],
    }
    parts = {name: tf.constant(values, tf.float64) for name, values in parts.items()}
    calls.append(("BatchNormGatherStats", lambda v: raw_ops.BatchNormGatherStats(**v), parts, {}))
    folders = [
        write(tmp_path / str(i), name, tensors, attrs)
        for i, (name, _, tensors, attrs) in enumerate(calls)
    ]
    result = run_program("every_class", *folders)
    assert result.returncode == 0, result.stderr
    for folder, (name, call, tensors, attrs) in zip(folders, calls, strict=True):
        python = tf.nest.flatten(tf.function(call)(tensors))
        got = results(folder, len(python))
        assert [a.shape for a in got] == [b.shape for b in python], (name, attrs)
        assert bits(got) == bits(python), (name, attrs)


@pytest.fixture(scope="module", params=["builtin", "ours"])
def same_source(request, run_program, tmp_path_factory) -> tuple[str, str, list[Any]]:
    """(namespace, output, calls and their folders) of tests/cpp/same_source.cc."""
    folder, calls = tmp_path_factory.mktemp(request.param), []
    for op in (op for op in OPS.values() if op.builtin):
        for number, (layout, mode) in enumerate(in_all_layouts_and_modes(op)):
            # The built-in on the CPU refuses channels-first frozen.
            if request.param == "ours" or mode == "training" or layout.endswith("C"):
                case = small(op, layout, mode, dtype=op.dtypes[number % len(op.dtypes)])
                calls.append((op, *call_of(case)))
        call, tensors, _ = call_of(small(op, "NHWC", dtype="float32"))
        calls.append((op, call, tensors, None))
    folders = [
        write(folder / str(i), op.name, tensors, attrs)
        for i, (op, _, tensors, attrs) in enumerate(calls)
    ]
    result = run_program(request.param, *folders)
    assert result.returncode == 0, result.stderr
    return request.param, result.stdout, list(zip(calls, folders, strict=True))


def test_same_source_is_bitwise_identical_to_python(same_source):
    which, _, found = same_source
    module = raw_ops if which == "ours" else tf.raw_ops
    for (op, call, tensors, attrs), folder in found:
        # In a graph, as in C++.
        def function(values: Any, op: Any = op, call: Any = call, attrs: Any = attrs) -> Any:
            return getattr(module, op.name)(**values) if attrs is None else call(values, module)

        python = list(tf.function(function, autograph=False)(tensors))
        got = results(folder, len(python))
        if which == "builtin" and op.formula == BATCH_NORM and attrs and not attrs["is_training"]:
            # Frozen, TensorFlow may leave the reserve spaces unwritten.
            got, python = got[:3], python[:3]
        assert [(a.dtype, a.shape) for a in got] == [(b.numpy().dtype, b.shape) for b in python]
        assert bits(got) == bits(python), (op.name, attrs)


def test_same_source_has_the_same_errors(same_source):
    """In the status of the scope, and a node where TensorFlow's own class has one."""
    _, printed, _ = same_source
    code = int(tf.errors.INVALID_ARGUMENT)
    # Types and formats are found before there is a node, shapes after.
    # Each once for a gradient and once for a forward op.
    assert printed.splitlines() == [
        f"{code} {no_node}" for no_node in (1, 0, 1, 1, 0) for _ in range(2)
    ]


# ---- Loading -------------------------------------------------------------------------------------


def test_loading_is_explicit_and_idempotent(run_program):
    result = run_program("client", "load")
    assert result.returncode == 0, result.stderr
    before, after = result.stdout.splitlines()
    assert before == (
        "the op TfBnOps>FusedBatchNormGrad is not registered: call tf_bn_ops::LoadOpLibrary() "
        "before building a graph that holds it"
    )
    assert after == "0 "


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_loading_by_path(run_program, folder, by_variable):
    path = tf_bn_ops.get_lib() if folder else tf_bn_ops.library_path()
    if by_variable:
        result = run_program("client", "load", TF_BN_OPS_LIBRARY=path)
    else:
        result = run_program("client", "load", path, TF_BN_OPS_LIBRARY="/nonexistent")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1] == "0 "


def test_loading_what_is_missing_or_no_op_library(run_program, tmp_path):
    missing = run_program("client", "load", tmp_path / "missing.so").stdout.splitlines()[1]
    assert missing == (
        f"{int(tf.errors.NOT_FOUND)} {tmp_path}/missing.so does not exist: pass the path of one "
        "to tf_bn_ops::LoadOpLibrary()"
    )
    variable = run_program("client", "load", TF_BN_OPS_LIBRARY="/nonexistent").stdout
    assert "TF_BN_OPS_LIBRARY" in variable.splitlines()[1]
    (tmp_path / "text.so").write_text("no library")
    text = run_program("client", "load", tmp_path / "text.so").stdout.splitlines()[1]
    assert text.startswith(f"{int(tf.errors.FAILED_PRECONDITION)} {tmp_path}/text.so cannot be ")
    assert f"TensorFlow {tf.__version__}" in text
    empty = run_program("client", "load", tmp_path).stdout.splitlines()[1]
    assert f"{tmp_path}/libtf_bn_ops.so does not exist" in empty
    core = run_program("client", "load", f"{tf_bn_ops.get_lib()}/libtf_bn_ops_core.so").stdout
    assert "holds no ops of tf_bn_ops" in core.splitlines()[1]


def test_a_bare_name_is_a_file_of_this_folder(programs, tmp_path):
    """And none that the dynamic loader finds elsewhere."""
    command = [programs["client"], "load", "libtf_bn_ops.so"]
    environment = {**os.environ, "LD_LIBRARY_PATH": tf_bn_ops.get_lib()}
    for folder, code in ((tf_bn_ops.get_lib(), 0), (tmp_path, int(tf.errors.NOT_FOUND))):
        told = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert told.stdout.splitlines()[1].startswith(f"{code} "), told.stdout
        # A file that is none: what is tested and what is loaded is one.
    (tmp_path / "libtf_bn_ops.so").write_text("no library")
    told = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "./libtf_bn_ops.so cannot be loaded" in told.stdout.splitlines()[1]


@pytest.mark.long
def test_the_documented_commands_compile_the_example(repo_root, tmp_path):
    """The shell code of docs/cpp.md, unchanged."""
    code = re.search(r"^```sh\n(.*?)^```", (repo_root / "docs/cpp.md").read_text(), re.S | re.M)[1]
    shutil.copy(repo_root / "examples" / "graph_construction.cc", tmp_path)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    result = subprocess.run(
        ["bash", "-e", "-c", code + "./graph_construction"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "warning:" not in result.stderr, result.stderr[:1000]  # about TensorFlow's headers
    # Sums of 2048 products near 1, in float32; a wrong formula is off by far more.
    differences = re.findall(r"largest difference: (\S+)", result.stdout)
    assert len(differences) == 3
    assert all(float(difference) < 1e-2 for difference in differences)
