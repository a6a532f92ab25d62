"""Two steps under ParameterServerStrategy, whose servers are threads of this process; prints means.

Arguments: three addresses, of two workers and of a server for parameters. Workers of this strategy
take steps by themselves: each step's batch is a group of one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

import tf_bn_ops


def main(*addresses: str) -> None:
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
        def replica_step() -> Any:
            x = tf.fill([2, 3, 3, 1], value)
            one, zero = tf.ones([1]), tf.zeros([1])
            return tf_bn_ops.fused_batch_norm(x, one, zero, synchronized=True).batch_mean

        return strategy.run(replica_step)

    results = [coordinator.schedule(step, args=(tf.constant(value),)) for value in (1.0, 3.0)]
    print(json.dumps([float(result.fetch()[0]) for result in results]), flush=True)
    del servers


if __name__ == "__main__":
    main(*sys.argv[1:])
