"""TensorFlow's C API, which other languages call: TF_LoadLibrary of the op library alone."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.spec import COUNT, OPS, VIEW, VIEW_LIST, WIDE, OpSpec

pytestmark = pytest.mark.long

# Neither has a gradient in Python.
OPS_WITH_GRADIENTS = [name for name in OPS if not name.startswith("BatchNormBackward")]
CHANNELS = 3


def inputs_of(op: OpSpec, side_inputs: int) -> dict[str, np.ndarray]:
    """Values by the names of the op's arguments; its view is channels-last, but for nGraph's."""
    rng = np.random.default_rng(0)
    shape = (4, CHANNELS, 2) if op.name == "BatchNormTrainingBackprop" else (2, 3, 2, CHANNELS)
    dtype = "float64" if op.name.startswith("BatchNorm") else "float32"
    values = {}
    for arg in op.inputs:
        if arg.kind == VIEW or (arg.kind == VIEW_LIST and side_inputs):
            values[arg.name] = rng.normal(0, 1, shape).astype(dtype)
        elif arg.kind == COUNT:
            values[arg.name] = np.float64(12)
        elif arg.kind != VIEW_LIST:
            wide = "float64" if arg.kind == WIDE else dtype
            values[arg.name] = rng.uniform(0.5, 1.5, CHANNELS).astype(wide)
    return values


def graph_of(
    op: OpSpec, values: dict[str, np.ndarray], attrs: dict[str, Any]
) -> tuple[tf.Graph, int]:
    """The op on placeholders x0, x1, ...; functions of its first outputs, y0, y1, ...; how many."""
    graph = tf.Graph()
    with graph.as_default():
        tensors: dict[str, Any] = {
            name: tf.compat.v1.placeholder(value.dtype, value.shape, name=f"x{i}")
            for i, (name, value) in enumerate(values.items())
        }
        for arg in op.inputs:
            if arg.kind == VIEW_LIST:
                tensors[arg.name] = [tensors[arg.name]] if arg.name in tensors else []
        outputs = getattr(tf_bn_ops.raw_ops, op.name)(**tensors, **attrs)
        outputs = [outputs] if isinstance(outputs, tf.Tensor) else tf.nest.flatten(outputs[:3])
        if "Grad" not in op.name and "Stats" not in op.name and "Backprop" not in op.name:
            outputs = outputs[:1]  # y alone has a gradient.
        for i, output in enumerate(outputs):
            # Of another derivative for each element.
            tf.sin(output, name=f"y{i}")
    return graph, len(outputs)


def run(graph: tf.Graph, fetches: list[Any], values: dict[str, np.ndarray]) -> list[np.ndarray]:
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(fetches, {f"x{i}:0": v for i, v in enumerate(values.values())})


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "frozen"])
@pytest.mark.parametrize("name", OPS_WITH_GRADIENTS)
def test_gradients_are_those_of_python(c_gradients, tmp_path, name, is_training):
    op = OPS[name]
    if not is_training and "is_training" not in op.attrs:
        pytest.skip("has no mode")
    attrs: dict[str, Any] = {"is_training": is_training} if "is_training" in op.attrs else {}
    if name == "BatchNormTrainingBackprop":
        attrs["epsilon"] = 1e-3
    if "activation_mode" in op.attrs:
        attrs["activation_mode"] = "Relu6"
    values = inputs_of(op, side_inputs="Grad" not in name)
    graph, outputs = graph_of(op, values, attrs)
    (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    command = [c_gradients, tf_bn_ops.library_path(), tmp_path / "graph.pb", outputs, len(values)]
    told = subprocess.run(
        [*map(str, command), str(tmp_path / "result.pb")], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    with graph.as_default():
        inputs = [graph.get_tensor_by_name(f"x{i}:0") for i in range(len(values))]
        ys = [graph.get_tensor_by_name(f"y{i}:0") for i in range(outputs)]
        wanted = tf.gradients(ys, inputs)
    names = told.stdout.split()
    assert [n != "-" for n in names] == [gradient is not None for gradient in wanted]
    want = run(graph, [gradient for gradient in wanted if gradient is not None], values)
    result = tf.compat.v1.GraphDef.FromString((tmp_path / "result.pb").read_bytes())
    with tf.Graph().as_default() as differentiated:
        tf.import_graph_def(result, name="")
    got = run(differentiated, [n for n in names if n != "-"], values)
    for a, b in zip(got, want, strict=True):
        assert np.any(b)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * np.abs(b).max())


def test_a_copy_without_its_companions_runs_but_has_no_gradients(c_gradients, tmp_path):
    for library in (tf_bn_ops.library_path(), f"{tf_bn_ops.get_lib()}/libtf_bn_ops_core.so"):
        shutil.copy(library, tmp_path)
    op = OPS["FusedBatchNorm"]
    graph, _ = graph_of(op, values := inputs_of(op, 0), {})
    (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    command = [c_gradients, tmp_path / pathlib.Path(tf_bn_ops.library_path()).name]
    command += [tmp_path / "graph.pb", 1, len(values), tmp_path / "result.pb"]
    told = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert "No gradient defined for op: TfBnOps>FusedBatchNorm" in told.stderr
