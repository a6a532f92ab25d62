"""TensorFlow's C API, which other languages call: TF_LoadLibrary of the op library alone.

Promised: `TF_AddGradients` differentiates the ops in any language as Python does; what has no
gradient is an error.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from typing import Any

import forked
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from op_calls import call_of, small

import tf_bn_ops
from tf_bn_ops import raw_ops
from tf_bn_ops.spec import OPS, SMOOTH_ACTIVATIONS

pytestmark = pytest.mark.long
PROGRAM = pathlib.Path(__file__).with_name("tensorflow_c.py").read_text()

# BatchNormBackwardReduce and BatchNormBackwardElemt have no gradient in Python either, and
# FusedBatchNormGradGrad has none in C++.
OPS_WITH_GRADIENTS = [
    name
    for name in OPS
    if not name.startswith("BatchNormBackward") and name != "FusedBatchNormGradGrad"
]
# Of BatchNormGatherStats: counts, means and m2s of two parts.
PARTS = {
    "counts": tf.constant([5.0, 3.0], tf.float64),
    "means": tf.constant([[1.0, 2.0], [4.0, 8.0]], tf.float64),
    "m2s": tf.constant([[1.0, 2.0], [3.0, 4.0]], tf.float64),
}


def graph_of(name: str, calls: list[Any]) -> tuple[tf.Graph, dict[str, np.ndarray], int]:
    """Calls of an op on placeholders x0, x1, ...; functions of its first outputs, y0, y1, ...;
    what is fed, and how many outputs there are."""
    fed: dict[str, np.ndarray] = {}
    number = 0
    with tf.Graph().as_default() as graph:
        for call, tensors in calls:
            placeholders = {}
            for argument, tensor in tensors.items():
                key = f"x{len(fed)}"
                placeholders[argument] = tf.compat.v1.placeholder(tensor.dtype, tensor.shape, key)
                fed[key + ":0"] = tensor.numpy()
            outputs = tf.nest.flatten(call(placeholders))
            if not any(word in name for word in ("Grad", "Stats", "Backprop")):
                outputs = outputs[:1]  # y alone has a gradient.
            for output in outputs[:3]:
                # Of another derivative for each element.
                tf.sin(output, name=f"y{number}")
                number += 1
    return graph, fed, number


def differentiate(
    library: str | pathlib.Path, folder: pathlib.Path, name: str, calls: list[Any]
) -> tuple[subprocess.CompletedProcess[str], tf.Graph, dict[str, np.ndarray]]:
    """What tensorflow_c.py tells of the graph of some calls, that graph and what is fed to it."""
    graph, fed, outputs = graph_of(name, calls)
    (folder / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    words = (tf.sysconfig.get_lib(), folder, outputs, len(fed), library)
    told = forked.run(PROGRAM, *words)
    return told, graph, fed


def run(graph: tf.Graph, fetches: list[Any], fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(fetches, fed)


@pytest.mark.parametrize("mode", ["training", "frozen"])
@pytest.mark.parametrize("name", [*OPS_WITH_GRADIENTS, "BatchNormGatherStats"])
def test_gradients_are_those_of_python(tmp_path, name, mode):
    """In every layout and type; of the first-order ops they are the second derivatives."""
    calls = [(lambda v: raw_ops.BatchNormGatherStats(**v), PARTS)]
    if name in OPS:
        op = OPS[name]
        if mode not in op.modes:
            pytest.skip("has no mode")
        # Gradients of smooth activations are composed in Python alone.
        drawn = (
            (call_of(small(op, layout, mode, dtype=dtype, seed=seed)) for seed in range(9))
            for layout in op.layouts
            for dtype in op.dtypes
        )
        calls = [
            next(c[:2] for c in each if c[2].get("activation_mode") not in SMOOTH_ACTIVATIONS)
            for each in drawn
        ]
    if name == "FusedBatchNormEx":  # The first derivative takes the slope with it.
        drawn = (call_of(small(op, mode=mode, seed=seed)) for seed in range(200))
        calls += [next(c[:2] for c in drawn if c[2].get("leakyrelu_alpha", 0.2) != 0.2)]
    library = tf_bn_ops.library_path()
    told, graph, fed = differentiate(library, tmp_path, name, calls)
    assert told.returncode == 0, told.stderr
    with graph.as_default():
        ys = [o.outputs[0] for o in graph.get_operations() if re.fullmatch(r"y\d+", o.name)]
        wanted = tf.gradients(ys, [graph.get_tensor_by_name(key) for key in fed])
    names = told.stdout.split()
    assert [n != "-" for n in names] == [gradient is not None for gradient in wanted]
    want = run(graph, [gradient for gradient in wanted if gradient is not None], fed)
    result = tf.compat.v1.GraphDef.FromString((tmp_path / "result.pb").read_bytes())
    with tf.Graph().as_default() as differentiated:
        tf.import_graph_def(result, name="")
    got = run(differentiated, [n for n in names if n != "-"], fed)
    assert sum(map(np.any, want)) > len(want) / 2
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        unit = float(ml_dtypes.finfo(a.dtype).eps)
        a, b = np.float64(a), np.float64(b)
        np.testing.assert_allclose(a, b, rtol=0, atol=170 * unit * max(np.abs(b).max(), 1))


@pytest.mark.parametrize("name", ["FusedBatchNorm", "FusedBatchNormGradGrad"])
def test_no_gradients_of_a_copy_without_its_companions_nor_third_derivatives(tmp_path, name):
    library = pathlib.Path(tf_bn_ops.library_path())
    if name == "FusedBatchNorm":
        for path in (library, f"{tf_bn_ops.get_lib()}/libtf_bn_ops_core.so"):
            shutil.copy(path, tmp_path)
        library = tmp_path / library.name
    told, _, _ = differentiate(library, tmp_path, name, [call_of(small(OPS[name]))[:2]])
    assert f"No gradient defined for op: TfBnOps>{name}" in told.stderr
