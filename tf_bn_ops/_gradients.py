"""Second-order gradients and vectorization rules of the ops.

Imported after the op library is loaded. For the twins of TensorFlow's ops the rules are
TensorFlow's own functions: the OpDefs are equal, so what differentiates the built-in
differentiates the shim, with the same result.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops.parallel_for import pfor

from tf_bn_ops._op_table import OPS


@functools.cache
def register() -> None:
    """Registers everything of this file with TensorFlow, once."""
    for op in OPS.values():
        if op.builtin is None:
            continue
        tf.RegisterGradient(op.registered_name)(tf_ops.gradient_registry.lookup(op.builtin))
        # The rules of tf.vectorized_map; TensorFlow loops over ops without one.
        rules = pfor._pfor_converter_registry
        if op.builtin in rules:
            rules.setdefault(op.registered_name, rules[op.builtin])
    tf.RegisterGradient(OPS["BatchNormTrainingBackprop"].registered_name)(
        _batch_norm_training_backprop_grad
    )


def _batch_norm_training_backprop_grad(op: Any, *grad: Any) -> tuple[Any, ...]:
    """Gradient of BatchNormTrainingBackprop with respect to its inputs.

    As for TensorFlow's FusedBatchNormGrad, the statistics count as functions of `input`: the result
    is that of differentiating the formula with mean and variance computed from `input`, and the
    inputs `mean` and `variance` get no gradient of their own. Half and bfloat16 are computed in
    float32.

    Args:
      op: the operation (input, gamma, beta, mean, variance, normalized_delta).
      *grad: gradients with respect to input_delta, gamma_delta, beta_delta.

    Returns:
      Gradients with respect to the six inputs; None for beta, mean and variance.
    """
    element_type = op.inputs[0].dtype
    computed_in = element_type if element_type == tf.float64 else tf.float32
    x = tf.cast(op.inputs[0], computed_in)
    gamma = tf.cast(op.inputs[1], computed_in)
    delta = tf.cast(op.inputs[5], computed_in)
    # A scalar double in the attr; the double precision is kept where the computation has it.
    epsilon = tf.cast(tf.constant(tf.make_ndarray(op.get_attr("epsilon"))), computed_in)
    rank = x.shape.rank
    others = (
        [0, *range(2, rank)]
        if rank is not None
        else tf.concat([[0], tf.range(2, tf.rank(x))], axis=0)
    )
    with tf.GradientTape() as tape:
        tape.watch([x, gamma, delta])
        mean = tf.reduce_mean(x, others, keepdims=True)
        centered = x - mean
        rstd = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), others, keepdims=True) + epsilon)
        normalized = centered * rstd
        shape = tf.shape(rstd)
        input_delta = (
            tf.reshape(gamma, shape)
            * rstd
            * (
                delta
                - tf.reduce_mean(delta, others, keepdims=True)
                - normalized * tf.reduce_mean(delta * normalized, others, keepdims=True)
            )
        )
        gamma_delta = tf.reduce_sum(delta * normalized, others)
        beta_delta = tf.reduce_sum(delta, others)
    x_grad, gamma_grad, delta_grad = tape.gradient(
        [input_delta, gamma_delta, beta_delta],
        [x, gamma, delta],
        output_gradients=[tf.cast(g, computed_in) for g in grad],
    )
    return (
        tf.cast(x_grad, element_type),
        tf.cast(gamma_grad, element_type),
        None,
        None,
        None,
        tf.cast(delta_grad, element_type),
    )
