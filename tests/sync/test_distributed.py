"""Without synchronisation, under TensorFlow's own distributed runtime: replicas train as on
TensorFlow's ops, and the ops run on the device of another process.

Promised: ops run on the devices of remote workers with bitwise identical results; replicas without
synchronisation train as on TensorFlow's ops.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import forked
import numpy as np
import pytest
import replica_processes
import tensorflow as tf

import tf_bn_ops


def losses_of(strategy: Any, norm: Callable[..., Any]) -> list[float]:
    """Of four steps of a small network; each worker has data of its own."""
    rng = np.random.default_rng(strategy.cluster_resolver.task_id)
    images = tf.constant(rng.normal(size=(8, 6, 6, 3)).astype(np.float32))
    labels, start = tf.constant(rng.integers(0, 4, 8)), np.random.default_rng(9)

    def create(*shape: int) -> tf.Variable:
        value = start.normal(size=shape).astype(np.float32) / 4
        return tf.Variable(value, aggregation=tf.VariableAggregation.MEAN)

    with strategy.scope():
        variables = kernel, dense, scale, offset = [
            create(*shape) for shape in ((3, 3, 3, 8), (8, 4), (8,), (8,))
        ]

    def replica_step() -> Any:
        with tf.GradientTape() as tape:
            x = norm(tf.nn.conv2d(images, kernel, 1, "SAME"), scale, offset, epsilon=1e-3)[0]
            logits = tf.reduce_mean(tf.nn.relu(x), [1, 2]) @ dense
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.5 * gradient)  # Averages over the workers.
        return tf.distribute.get_replica_context().all_reduce("mean", loss)

    step = tf.function(lambda: strategy.run(replica_step), autograph=False)
    return [float(step()) for _ in range(4)]


def losses_of_kinds(strategy: Any) -> dict[str, list[float]]:
    builtin = tf.compat.v1.nn.fused_batch_norm
    losses = {
        "builtin": losses_of(strategy, builtin),
        "fused_batch_norm": losses_of(strategy, tf_bn_ops.fused_batch_norm),
    }
    assert tf_bn_ops.enable(keras=False, fuse=False).kernels
    return {**losses, "override": losses_of(strategy, builtin)}


def test_two_workers_train_as_on_tensorflows_gradient():
    losses, others = replica_processes.run(losses_of_kinds, replicas=2, workers=2)
    assert losses == others
    for curve in losses.values():
        assert curve[-1] < curve[0]
    for kind in ("fused_batch_norm", "override"):
        # Four steps, each with some hundred roundings in float32.
        np.testing.assert_allclose(losses[kind], losses["builtin"], rtol=1e-5, err_msg=kind)


def on_a_remote_worker(done: str) -> None:
    """The first worker is a server, on which the second places ops."""
    config = json.loads(os.environ["TF_CONFIG"])
    addresses = config["cluster"]["worker"][:1]
    tf_bn_ops.load()
    if config["task"]["index"] == 0:
        server = tf.distribute.Server({"worker": addresses}, job_name="worker", task_index=0)
        while server and not pathlib.Path(done).exists():
            time.sleep(0.05)
        return
    try:
        tf.config.experimental_connect_to_host(addresses[0])
        rng = np.random.default_rng(0)
        dy, x = (tf.constant(rng.normal(size=(4, 5, 6, 3)).astype(np.float32)) for _ in range(2))
        inputs, op = (dy, x, *[tf.ones([3])] * 3), tf_bn_ops.fused_batch_norm_grad
        want = op(*inputs)
        with tf.device("/job:worker/task:0/device:CPU:0"):
            remote = [op(*inputs), tf.function(op)(*inputs)]
        for got in remote:
            assert "/job:worker" in got.x_backprop.device, got.x_backprop.device
            for a, b in zip(got[:3], want[:3], strict=True):
                assert a.numpy().tobytes() == b.numpy().tobytes()
    finally:
        pathlib.Path(done).touch()


@pytest.mark.long
def test_op_on_the_device_of_a_remote_worker(tmp_path):
    for process in forked.cluster(on_a_remote_worker, str(tmp_path / "done"), workers=2):
        assert process.returncode == 0, process.stderr[-3000:]
