"""The collectives of synchronised batch normalization, between the replicas of tf.distribute.

Everything that is exchanged is gathered, and combined in rank order: bitwise identical on every
replica, in every run, whatever the engine. In a function the gather is one CollectiveGatherV2,
launched as the strategy launches its own; elsewhere a `ReplicaContext.all_reduce` (docs/adr/0026).
"""

from __future__ import annotations

import copy
import itertools
import threading
from typing import Any

from tf_bn_ops import _recording

# TensorFlow's group keys count up from 1; keys of gradients are larger by multiples of this.
_GROUPS = 1 << 16


class Replicas:
    """The replicas that take a step together, as one of them sees them in one call of the layer.

    Gradients keep it: they may be taken outside of the replica, by a tape around strategy.run.

    All collectives of a call have its instance key, which the function has anew whenever it is
    called, and each has a group key of its own. So gradients capture the key as any other tensor:
    values of call time are not fed to the gradient of a nested function, unless TensorFlow builds
    it late.
    """

    def __init__(self, size: int, context: Any) -> None:
        self.size = size
        self.context = context  # The replica's tf.distribute.ReplicaContext.
        self._instance_key: Any = None
        self._group_offsets = itertools.count(0, _GROUPS)

    def here(self) -> Replicas:
        """These replicas for collectives in the current graph, and for their gradients."""
        import tensorflow as tf

        launcher = self._launcher() if self.size > 1 else None
        if launcher is None:
            return self
        here = copy.copy(self)
        # In loops key, frame and iteration together name a collective.
        if self._instance_key is None or _in_loop(tf.compat.v1.get_default_graph()):
            here._instance_key = _in_branches(launcher._next_instance_key())
        else:
            _check_that_calls_are_ordered()
            (here._instance_key,) = _recording.captured(self._instance_key)
        return here

    def all_gather(self, row: Any) -> Any:
        """`row`, a vector of one length everywhere, of all replicas by rank: [replicas, length]."""
        import tensorflow as tf

        if self.size == 1:
            return row[tf.newaxis]

        def transposed(of_rows: Any) -> list[Any]:
            of_rows = tf.reshape(here.all_sum(tf.reshape(of_rows, [-1])), tf.shape(of_rows))
            return [of_rows[self.context.replica_id_in_sync_group]]

        here = self.here()
        (rows,) = _recording.recorded(lambda row: [here._gathered(row)], transposed, row)
        return rows

    def all_sum(self, row: Any) -> Any:
        """The sum of `row`, a vector, over all replicas in rank order."""
        import tensorflow as tf

        if self.size == 1:
            return row
        here = self.here()
        (total,) = _recording.recorded(
            lambda row: [tf.add_n(tf.unstack(here._gathered(row), num=self.size))],
            lambda of_total: [here.all_sum(of_total)],
            row,
        )
        return total

    def _gathered(self, row: Any) -> Any:
        import tensorflow as tf

        launcher = copy.copy(self._launcher())
        if launcher is not None:
            token = _in_branches(launcher._get_ordering_token())
            launcher._get_ordering_token = lambda: token
            launcher._next_instance_key = lambda: self._instance_key
            launcher._group_key += next(self._group_offsets)
            rows = launcher._all_gather(row[tf.newaxis], None)
            graph = rows.graph
            if graph.building_function and not graph._add_control_dependencies:
                # The gradient of a nested function: where a persistent tape calls it twice, the
                # second call has the same key, and waits for the first by the token.
                graph.control_outputs.append(rows.op)
            return tf.ensure_shape(rows, [self.size, row.shape[0]])
        if tf.distribute.get_replica_context() is not self.context:
            raise RuntimeError(
                "the gradient of a synchronized batch normalization was taken outside of the "
                "replicas: take it in the function that is given to strategy.run, or call both in "
                "a tf.function"
            )
        # A sum of rows of which all but one are zero: exact in any order.
        shape = tf.stack([self.size, tf.size(row)])
        rows = tf.scatter_nd([[self.context.replica_id_in_sync_group]], row[tf.newaxis], shape)
        return self.context.all_reduce(tf.distribute.ReduceOp.SUM, rows)

    def _launcher(self) -> Any:
        """What launches the collectives of this replica in the graph that is being built; None if
        that is for `all_reduce` to do: eagerly, under XLA, and where a strategy has other means.

        Private to tf.distribute: `ReplicaContext.all_gather` exchanges the shapes first, in a
        collective of its own.
        """
        import tensorflow as tf

        if tf.executing_eagerly() or _recording.in_xla():
            return None
        engine = getattr(self.context.strategy.extended, "_cross_device_ops", None)
        launchers = getattr(engine, "_launchers", [])
        local_id = getattr(self.context, "_replica_id", None)
        if not isinstance(local_id, int) or local_id >= len(launchers):
            return None
        if len(launchers) > 1:
            _check_that_replicas_meet(tf.compat.v1.get_default_graph())
        return launchers[local_id]


ALONE = Replicas(1, None)


def current() -> Replicas:
    """The replicas here: one without a strategy, in each worker of a parameter-server strategy,
    which takes steps of its own, and outside a strategy's replicas, where Keras builds models."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return ALONE if context is None else Replicas(int(context.num_replicas_in_sync), context)


def check_context(what: str) -> None:
    """Raises a RuntimeError where a strategy has several replicas, and this is none of them."""
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if tf.distribute.in_cross_replica_context() and replicas > 1:
        raise RuntimeError(
            f"{what} was called outside of the {replicas} replicas of "
            f"{type(tf.distribute.get_strategy()).__name__}: call it in the function that is given "
            "to strategy.run"
        )


def refuse_derivative(*_: Any) -> None:
    raise RuntimeError(
        "synchronized batch normalization below tf.cond has first-order gradients in reverse mode "
        "alone, below tf.vectorized_map none: call it outside of them"
    )


def _in_branches(value: Any) -> Any:
    """`value` in the current graph, where tf.cond's gradient finds it in the graph around it: it
    does not look further out."""
    import tensorflow as tf

    graphs = [tf.compat.v1.get_default_graph()]
    while getattr(graphs[0], "is_control_flow_graph", False):
        graphs.insert(0, graphs[0].outer_graph)
    if len(graphs) == 1:
        return value
    # Graphs of gradients of tf.cond know the graph that they differentiate.
    if hasattr(getattr(graphs[-1], "_forward_graph", None), "_forward_graph"):
        refuse_derivative()
    for graph in graphs:
        value = graph.capture(value)
    return value


def _check_that_calls_are_ordered() -> None:
    """Raises a RuntimeError where a persistent tape has the gradient of a function built within the
    gradient of another one: calls in it, which have the same key, are not ordered."""
    import tensorflow as tf

    # A gradient of tf.cond is traced anew by each call of a tape, with a group key of its own.
    if getattr(tf.compat.v1.get_default_graph(), "is_control_flow_graph", False):
        return
    callers = _recording.callers()
    in_another = {
        "_HigherOrderTapeGradientFunctions._build_functions_for_outputs",
        "_DelayedRewriteGradientFunctions._rewrite_forward_and_call_backward",
    }
    if callers >= in_another and not any("jvp" in name for name in callers):
        raise RuntimeError(
            "synchronized batch normalization in a tf.function that another one calls, both within "
            "the function of a replica, has first-order gradients alone, and of a tape that is not "
            "persistent: call it in one of them"
        )


def _check_that_replicas_meet(graph: Any) -> None:
    """Raises a RuntimeError where the replicas of one process would wait for each other forever.

    TensorFlow names a collective by its frame and iteration, and each replica's loop is a frame of
    its own. A function that a replica calls eagerly ends before the next replica's begins.
    """
    import tensorflow as tf

    called_eagerly = graph.building_function and not getattr(
        getattr(threading.current_thread(), "graph", graph), "building_function", True
    )
    if called_eagerly and tf.compat.v1.executing_eagerly_outside_functions():
        raise RuntimeError(
            "synchronized batch normalization in a tf.function (which tape.jacobian and "
            "tf.vectorized_map make, too) that the replicas of one process call eagerly would wait "
            "forever: call strategy.run in a tf.function"
        )
    if _in_loop(graph):
        raise RuntimeError(
            "synchronized batch normalization in a loop of a graph (tf.while_loop, tf.scan, "
            "tf.map_fn, keras.layers.RNN) would wait forever, where several replicas share a "
            "process: unroll the loop, as keras.layers.RNN(unroll=True) does, or leave "
            "synchronized at False"
        )


def _in_loop(graph: Any) -> bool:
    """Whether a graph, or one around it, is the body of a loop or has one open."""
    from tensorflow.python.ops import control_flow_util, control_flow_v2_func_graphs

    bodies = (
        control_flow_v2_func_graphs.WhileBodyFuncGraph,
        control_flow_v2_func_graphs.WhileCondFuncGraph,
    )
    while graph is not None:
        context = graph._get_control_flow_context()
        if isinstance(graph, bodies) or control_flow_util.GetContainingWhileContext(context):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
