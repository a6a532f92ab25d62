"""The collectives of synchronised batch normalization, between the replicas of tf.distribute.

Everything that is exchanged is gathered, and combined in rank order: bitwise identical on every
replica, in every run, whatever the engine. In a function the gather is one CollectiveGatherV2,
launched as the strategy launches its own; elsewhere a `ReplicaContext.all_reduce` (docs/adr/0026).
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
    """`row`, a vector of one length everywhere, of all replicas by rank: [replicas, length]."""
    import tensorflow as tf

    replicas = count()
    if replicas == 1:
        return row[tf.newaxis]
    context = tf.distribute.get_replica_context()

    @tf.custom_gradient
    def gather(row: Any) -> Any:
        def gradient(of_rows: Any) -> Any:
            of_rows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(of_rows))
            return of_rows[context.replica_id_in_sync_group]

        launcher = _launcher(context)
        if launcher is None:
            return _gathered_by_sum(row), gradient
        return launcher._all_gather(row[tf.newaxis], None), gradient

    return tf.ensure_shape(gather(row), [replicas, row.shape[0]])


def all_sum(row: Any) -> Any:
    """The sum of `row`, a vector, over all replicas in rank order."""
    import tensorflow as tf

    return row if count() == 1 else tf.add_n(tf.unstack(all_gather(row), num=count()))


def _launcher(context: Any) -> Any:
    """What launches the collectives of this replica in the graph that is being built; None if that
    is for `all_reduce` to do: eagerly, under XLA, and where a strategy has other means.

    Private to tf.distribute: `ReplicaContext.all_gather` exchanges the shapes first, in a
    collective of its own.
    """
    import tensorflow as tf

    from tf_bn_ops._gradients import in_xla

    if tf.executing_eagerly() or in_xla():
        return None
    engine = getattr(context.strategy.extended, "_cross_device_ops", None)
    launchers = getattr(engine, "_launchers", [])
    local_id = getattr(context, "_replica_id", None)
    if not isinstance(local_id, int) or local_id >= len(launchers):
        return None
    return launchers[local_id] if hasattr(launchers[local_id], "_all_gather") else None


def _gathered_by_sum(row: Any) -> Any:
    """A sum of rows of which all but one are zero: exact in any order."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    shape = tf.stack([count(), tf.size(row)])
    rows = tf.scatter_nd([[context.replica_id_in_sync_group]], row[tf.newaxis], shape)
    return context.all_reduce(tf.distribute.ReduceOp.SUM, rows)
