"""Derivatives that are Python functions, which tapes and tf.gradients find beside an operation.

tf.custom_gradient has no derivative in forward mode in a graph, and adds an IdentityN whose saved
gradient would need this library wherever the SavedModel is loaded. And what is known of a trace:
its callers, and whether XLA compiles it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


def captured(*tensors: Any) -> Any:
    """`tensors` as inputs of the current graph: what a tape sees of a captured tensor is recorded
    here, and not where recording is stopped."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return tensors
    capture = getattr(tf.compat.v1.get_default_graph(), "capture", None)
    return tensors if capture is None else [*map(capture, tensors)]


def attach(
    gradient: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    formula: Callable[..., Sequence[Any]] | None = None,
) -> None:
    """Makes `gradient` the derivative of `outputs` by `inputs`, for tapes and for tf.gradients.

    Args:
      gradient: function of the gradients of `outputs`, which returns the gradients of `inputs`.
      inputs: in a graph all inputs of the operation.
      outputs: the first outputs of one operation; the others have no gradient.
      formula: the outputs as a function of the inputs, of TensorFlow's ops. tf.vectorized_map makes
        another operation, without what is attached here, and differentiates this.
    """
    import tensorflow as tf
    from tensorflow.python.eager import record

    if not tf.executing_eagerly():
        op = outputs[0].op
        try:
            op.get_attr("_gradient_op_type")  # Of Graph.gradient_override_map, which has its way.
        except ValueError:
            # An attribute in Python and none of the node, which saving would have to follow.
            op._gradient_function = lambda _, *grads: gradient(*grads[: len(outputs)])
            if formula is not None:
                op.pfor_converter = functools.partial(_converted, formula, len(outputs))
    record.record_operation("TfBnOps", [*outputs], [*inputs], gradient)


def recorded(
    function: Callable[..., Sequence[Any]],
    gradient: Callable[..., Sequence[Any]],
    *inputs: Any,
    name: str | None = None,
    formula: Callable[..., Sequence[Any]] | None = None,
) -> Any:
    """The tensors that function(*inputs) returns, whose derivative by `inputs` is `gradient`.

    They are outputs of an operation behind, of that name, so that a derivative of something else
    that `function` reads computes nothing of it.
    """
    import tensorflow as tf
    from tensorflow.python.eager import record

    inputs = tuple(captured(*inputs))
    with record.stop_recording():
        values = function(*inputs)
        outputs = tf.identity_n([*values, *inputs], name)[: len(values)]
    nothing = [None] * len(values)
    attach(
        lambda *grads: [*nothing, *gradient(*grads)],
        [*values, *inputs],
        outputs,
        formula and (lambda *tensors: formula(*tensors[len(values) :])),
    )
    return outputs


def _converted(formula: Callable[..., Sequence[Any]], count: int, pfor_input: Any) -> list[Any]:
    """What tf.vectorized_map makes of an operation with a derivative of its own: `count` outputs by
    the rule of its type, in all iterations, whose derivative is `formula`'s."""
    import tensorflow as tf
    from tensorflow.python.ops.parallel_for import pfor

    def by_formula(*inputs: Any) -> Any:
        return tf.vectorized_map(lambda each: formula(*each), [*inputs])

    are_stacked = [pfor_input.input(i).is_stacked for i in range(pfor_input.num_inputs)]
    # TensorFlow's rule takes the same vectors in all iterations.
    has_rule = pfor_input.op_type != "FusedBatchNormV3" or not any(are_stacked[1:])
    outputs = has_rule and pfor._pfor_converter_registry[pfor_input.op_type](pfor_input)
    pfor_input.stack_inputs()
    inputs = [tensor for tensor, *_ in pfor_input.inputs]
    if not outputs:  # Nothing reads the others.
        (y,) = by_formula(*inputs)
        return [pfor.wrap(tensor, True) for tensor in (y, *[inputs[-1]] * 5)]
    n = pfor_input.pfor.loop_len_vector
    values = [o.t if o.is_stacked else pfor._stack(o.t, n).t for o in outputs[:count]]

    def gradient(*grads: Any) -> Any:
        here = [*map(tf.identity, inputs)]  # The current graph may be a function's gradient.
        return tf.gradients(by_formula(*here), here, grads)

    values = recorded(lambda *_: values, gradient, *inputs, formula=by_formula)
    return [*[pfor.wrap(value, True) for value in values], *outputs[count:]]


def callers() -> set[str]:
    """The methods that are being run in this thread, as "Class.method"."""
    found: set[str] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found.add(f"{type(frame.f_locals.get('self')).__name__}.{frame.f_code.co_name}")
        frame = frame.f_back
    return found


def in_xla() -> bool:
    """Whether XLA will compile what is being traced."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
