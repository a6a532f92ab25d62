"""However a batch is cut over replicas, results equal the whole batch's, within its bounds.

Promised: however a batch is cut over replicas, one without samples included, results are within the
bounds of the op on the whole batch, at a mean of 1e5 too.

The bounds are the strict ones of tf_bn_ops/harness, as for the ops on one replica. The gradients
by scale and offset come from each replica for its own samples; their sum is judged, each with the
rounding of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import pickle
from collections.abc import Mapping

import numpy as np
import pytest
import replica_processes
import splits
import tensorflow as tf
from splits import Case

import tf_bn_ops
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.conformance.models.bounds import PROFILES
from tf_bn_ops.conformance.models.measure import assembled
from tf_bn_ops.harness.problems import IDENTITY, RELU, RELU6, Problem, of_tensors
from tf_bn_ops.spec import DTYPES

ACTIVATIONS = {None: IDENTITY, "relu": RELU, "relu6": RELU6}
BATCH = ("y", "x_backprop", "side_input_backprop")
AVERAGES = ("batch_mean", "batch_variance")
Results = Mapping[str, np.ndarray]


def forward_problem(case: Case) -> Problem:
    inputs = case.inputs()
    del inputs["y_backprop"]
    return of_tensors(
        inputs,
        case.data_format,
        splits.EPSILON,
        True,
        exponential_avg_factor=splits.FACTOR,
        activation=ACTIVATIONS[case.activation],
    )


def backward_problem(case: Case, y: np.ndarray) -> Problem:
    """With the statistics of the whole batch in float64, in which replicas exchange theirs."""
    inputs = case.inputs()
    layout = case.data_format
    values = {name: inputs[name] for name in ("x", "y_backprop", "scale", "offset")}
    problem = of_tensors(values | {"y": y}, layout, splits.EPSILON, True)
    x = problem.wide("x", np.longdouble)
    problem["mean"] = x.mean((0, 2)).astype(np.float64)
    problem["variance"] = x.var((0, 2)).astype(np.float64)
    activation = ACTIVATIONS[case.activation]
    return dataclasses.replace(problem, activation=activation, num_side_inputs=int(case.side_input))


def whole(replicas: list[Results], case: Case, name: str) -> np.ndarray:
    batch = np.concatenate([replica[name] for replica in replicas])
    return batch.view(DTYPES[case.dtype].numpy)


def assert_right(replicas: list[Results], case: Case) -> None:
    problem = forward_problem(case)
    y = whole(replicas, case, "y")
    outputs = {name: replicas[0][name] for name in AVERAGES}
    assert not formula_models.check(problem, outputs | {"y": y.reshape(problem.view)})

    problem = backward_problem(case, y)
    batch = BATCH[1:] if case.side_input else BATCH[1:2]
    outputs = {name: whole(replicas, case, name).reshape(problem.view) for name in batch}
    assert not formula_models.check(problem, outputs)
    expected = list(formula_models.MODELS[problem.formula].expected(problem, PROFILES["strict"]))
    for name in ("scale_backprop", "offset_backprop"):
        parts = np.array([replica[name] for replica in replicas], np.float64)
        value, bound = (assembled(expected, name, f, parts[0].shape) for f in ("value", "bound"))
        u = DTYPES[replicas[0][name].dtype.name].unit_roundoff
        assert np.all(np.abs(parts.sum(0) - value) <= bound + 2 * u * np.abs(parts).sum(0)), name


def assert_all_right(
    folder: pathlib.Path, replicas: int, which: str = "all", workers: int = 0
) -> None:
    """Of some cases, on workers or on the devices of a process."""
    path = f"{folder}/{{worker}}"
    replica_processes.run(splits.run_all, path, which, replicas=replicas, workers=workers)
    of_workers = [pickle.loads(file.read_bytes()) for file in sorted(folder.iterdir())]
    assert len(of_workers) == max(1, workers)
    for c, case in enumerate(splits.CASES[which]):
        for s, split in enumerate(splits.SPLITS[replicas]):
            results = [replica for of_worker in of_workers for replica in of_worker[c][s]]
            assert [len(result["y"]) for result in results] == split
            for name in AVERAGES:
                assert len({result[name].tobytes() for result in results}) == 1, (case, split)
            assert_right(results, case)


def test_two_replicas_are_right_at_a_large_mean(tmp_path):
    assert_all_right(tmp_path, 2, "quick")


@pytest.mark.long
@pytest.mark.parametrize("replicas", splits.SPLITS)
def test_any_split_over_the_devices_of_a_process(replicas, tmp_path):
    assert_all_right(tmp_path, replicas)


# ---- One replica ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*splits.CASES["all"], *splits.CASES["quick"]])
def test_of_one_replica_they_are_those_of_the_op(case: Case):
    inputs = {name: tf.constant(value) for name, value in case.inputs().items()}
    results = splits.replica_step(case, inputs, tf.constant([0, 7]))
    bits = {name: splits.numpy_bits(value) for name, value in results.items()}
    assert_right([bits], case)


def test_a_batch_without_samples_has_no_mean():
    x, one = tf.zeros([0, 2, 2, 3]), tf.ones([3])
    for synchronized in (True, False):
        y, mean, variance = tf_bn_ops.fused_batch_norm(x, one, one, synchronized=synchronized)
        assert y.shape == x.shape
        assert np.all(np.isnan(mean)) and np.all(np.isnan(variance))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_vectors_of_another_length_are_not_broadcast(dtype):
    x, vector, one = tf.ones([4, 1, 2, 3], dtype), tf.ones([3], dtype), tf.ones([1], dtype)
    call = functools.partial(tf_bn_ops.fused_batch_norm, x, synchronized=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(one, one, one, one, is_training=False)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(vector, vector, one, one, exponential_avg_factor=0.5)
