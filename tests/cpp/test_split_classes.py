"""The C++ classes of synchronised batch normalization: two replicas in one graph.

Promised: bitwise the results of the same ops in Python; by the backward ops and by
`AddSymbolicGradients` the gradient of the whole batch, within its bound.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from tf_bn_ops import raw_ops
from tf_bn_ops.spec import DTYPES

EPSILON = 2.0**-10
# Outputs of a replica in the program, after which the gradients by x follow.
OF_REPLICA = ("y", "x_backprop", "side_input_backprop", "scale_backprop", "offset_backprop")
CASES = [
    ("float32", "NHWC", "Relu"),
    ("float32", "NCHW", "Identity"),
    ("float64", "NHWC", "Relu6"),
    ("half", "NCHW", "Relu"),
    ("bfloat16", "NHWC", "Identity"),
]


def inputs(dtype: str, data_format: str) -> list[np.ndarray]:
    """As split_client.cc lists them; batches of 3 and 5 samples."""
    rng = np.random.default_rng(3)
    element, vector = DTYPES[dtype], DTYPES["float64" if dtype == "float64" else "float32"]
    values = []
    for samples in (3, 5):
        shape = (samples, 4, 6, 7) if data_format == "NHWC" else (samples, 7, 4, 6)
        values += [rng.normal(2, 3, shape), rng.normal(0.5, 1, shape), rng.normal(0, 1, shape)]
    vectors = [rng.uniform(0.5, 2, 7), rng.normal(0, 1, 7)]
    return [*map(element.store, values), *map(vector.store, vectors)]


def in_python(given: list[Any], activation: str, axis: int) -> list[Any]:
    """The ops of split_client.cc, with raw_ops, but for the gradients by x."""
    *views, scale, offset = given
    replicas = [views[:3], views[3:]]
    local = [raw_ops.BatchNormStats(x=x, axis=axis) for x, _, _ in replicas]
    counts, means, m2s = (tf.stack(rows) for rows in zip(*local, strict=True))
    count, mean, m2 = raw_ops.BatchNormGatherStats(counts=counts, means=means, m2s=m2s)
    vectors = {"scale": scale, "offset": offset, "mean": mean, "variance": m2 / count}
    attrs = {"epsilon": EPSILON, "activation_mode": activation, "axis": axis}
    ys = [
        raw_ops.BatchNormElemt(x=x, side_input=[side_input], **vectors, **attrs)
        for x, _, side_input in replicas
    ]
    backward = [
        {"y_backprop": dy, "x": x, "y": [y]} | vectors | attrs
        for (x, dy, _), y in zip(replicas, ys, strict=True)
    ]
    sums = [raw_ops.BatchNormBackwardReduce(**arguments) for arguments in backward]
    of_all = {
        "sum_dy": tf.add_n([s.sum_dy for s in sums]),
        "sum_dy_xmu": tf.add_n([s.sum_dy_xmu for s in sums]),
        "count": count,
    }
    results = []
    for y, arguments, s in zip(ys, backward, sums, strict=True):
        op = raw_ops.BatchNormBackwardElemt(**arguments, **of_all, num_side_inputs=1)
        results += [y, op.x_backprop, *op.side_input_backprop, s.scale_backprop, s.offset_backprop]
    return results


@pytest.mark.parametrize(("dtype", "data_format", "activation"), CASES)
def test_two_replicas_in_a_graph(dtype, data_format, activation, run_program, tmp_path):
    given = inputs(dtype, data_format)
    (tmp_path / "case").write_text(f"- {EPSILON!r} {data_format} 1 1.0 {activation} 1")
    for i, value in enumerate(given):
        (tmp_path / f"input{i}.pb").write_bytes(tf.make_tensor_proto(value).SerializeToString())
    result = run_program("split_client", tmp_path)
    assert result.returncode == 0, result.stderr
    outputs = [read(tmp_path / f"output{i}.pb") for i in range(2 * len(OF_REPLICA) + 2)]
    axis = 1 if data_format == "NCHW" else -1
    in_graph = tf.function(lambda *values: in_python(list(values), activation, axis))
    *of_ops, by_x_0, by_x_1 = outputs
    for k, (got, python) in enumerate(zip(of_ops, in_graph(*map(tf.constant, given)), strict=True)):
        assert got.tobytes() == python.numpy().tobytes(), OF_REPLICA[k % len(OF_REPLICA)]
    # Roundings: of x_backprop, and of the terms, in the type of x, that TensorFlow adds up.
    tolerance = 8 * DTYPES[dtype].unit_roundoff
    for got, by_ops in ((by_x_0, outputs[1]), (by_x_1, outputs[len(OF_REPLICA) + 1])):
        wide, reference = got.astype(np.float64), by_ops.astype(np.float64)
        scale = np.abs(given[1].astype(np.float64)).max() * np.abs(given[6]).max()
        assert np.abs(wide - reference).max() <= tolerance * scale


def read(path: pathlib.Path) -> np.ndarray:
    return tf.make_ndarray(tensor_pb2.TensorProto.FromString(path.read_bytes()))
