"""The collectives of synchronised batch normalization, between the replicas of tf.distribute.

Both are one `ReplicaContext.all_reduce` each: TensorFlow's engine, its options (implementation,
timeout), its order of launches (docs/adr/0026).
"""

from __future__ import annotations

from typing import Any


def count() -> int:
    """How many replicas take a step together: 1 without a strategy, and in each worker of a
    parameter-server strategy, whose workers take steps of their own.

    Also 1 outside of the replicas of a strategy, where Keras builds its models.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def check_context(function: str) -> None:
    """Raises a RuntimeError where a strategy has several replicas, and this is none of them."""
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if tf.distribute.in_cross_replica_context() and replicas > 1:
        raise RuntimeError(
            f"{function} was called outside of the {replicas} replicas of "
            f"{type(tf.distribute.get_strategy()).__name__}: call it in the function that is given "
            "to strategy.run"
        )


def all_gather(row: Any) -> Any:
    """`row`, a vector of one length everywhere, of all replicas: [replicas, length] in rank order.

    A sum of rows of which all but one are zero: exact in any order, and a single collective.
    `ReplicaContext.all_gather` takes two, since it exchanges the shapes first.
    """
    import tensorflow as tf

    replicas = count()
    if replicas == 1:
        return row[tf.newaxis]
    rank = tf.distribute.get_replica_context().replica_id_in_sync_group
    shape = tf.stack([replicas, tf.size(row)])
    rows = all_sum(tf.scatter_nd([[rank]], row[tf.newaxis], shape))
    return tf.ensure_shape(rows, [replicas, row.shape[0]])


def all_sum(value: Any) -> Any:
    """The sum of `value` over all replicas, bitwise the same on each of them."""
    import tensorflow as tf

    if count() == 1:
        return value
    # A copy, whose device tells TensorFlow where to put the sum: an input of a function has none.
    value = tf.identity(value)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)
