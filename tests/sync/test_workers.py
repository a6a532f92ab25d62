"""Workers of MultiWorkerMirroredStrategy over loopback: right together, an error if one fails.

Promised: any split over real processes is right at a large mean, and bitwise identical on every
run; a step under parameter servers has the statistics of its own batch.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import forked
import pytest
import replica_processes
import tensorflow as tf
from test_splits import assert_all_right

import tf_bn_ops


def mean_of(x: Any) -> Any:
    one, zero = tf.ones([x.shape[-1]]), tf.zeros([x.shape[-1]])
    return tf_bn_ops.fused_batch_norm(x, one, zero, synchronized=True).batch_mean


def test_two_workers_are_right_at_a_large_mean(tmp_path):
    assert_all_right(tmp_path, 2, "quick", workers=2)


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 3])
def test_any_split_over_workers(workers, tmp_path):
    assert_all_right(tmp_path, workers, workers=workers)


def fail_in_the_second_step(how: str, seconds: float) -> None:
    """The second worker fails between two steps, the first one says what it got."""
    strategy = replica_processes.strategy(2, timeout_seconds=seconds)
    replica_step = lambda: mean_of(tf.random.normal([2, 3, 3, 4]))  # noqa: E731
    step = tf.function(lambda: strategy.run(replica_step), autograph=False)
    assert step().shape == [4]
    if strategy.cluster_resolver.task_id == 1:
        time.sleep(4 * seconds if how == "hangs" else 0)
        os._exit(1)
    start = time.monotonic()
    try:
        outcome = f"returned {step().numpy()}"
    except tf.errors.OpError as error:
        outcome = type(error).__name__ + ": " + error.message
    print(json.dumps([outcome, time.monotonic() - start]), flush=True)
    os._exit(0)  # Without TensorFlow's own end, which waits for the other worker.


@pytest.mark.long
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_worker_that_fails_is_an_error_in_the_time_of_the_collectives(how):
    """Promise: A worker that fails ends the others with an error."""
    timeout = 8
    first, _ = forked.cluster(fail_in_the_second_step, how, timeout, workers=2)
    assert first.returncode == 0, first.stderr[-3000:]
    outcome, seconds = json.loads(first.stdout.splitlines()[-1])
    assert not outcome.startswith("returned"), outcome
    # TensorFlow looks at its clock every now and then, and the machine has other work.
    assert seconds < 3 * timeout, outcome


def means_under_parameter_servers(*addresses: str) -> list[float]:
    """Two steps under ParameterServerStrategy, whose servers are threads of this process."""
    jobs = {"worker": list(addresses[:2]), "ps": list(addresses[2:])}
    servers = [
        tf.distribute.Server(jobs, job_name=job, task_index=i)
        for job, tasks in jobs.items()
        for i in range(len(tasks))
    ]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function(autograph=False)
    def step(value: Any) -> Any:
        return strategy.run(lambda: mean_of(tf.fill([2, 3, 3, 1], value)))

    steps = [coordinator.schedule(step, args=(tf.constant(value),)) for value in (1.0, 3.0)]
    means = [float(each.fetch()[0]) for each in steps]
    del servers
    return means


@pytest.mark.long
def test_a_step_under_parameter_servers_has_the_statistics_of_its_own_batch():
    """Workers take steps by themselves: each step's batch is a group of one."""
    assert forked.call(means_under_parameter_servers, *forked.free_addresses(3)) == [1, 3]
