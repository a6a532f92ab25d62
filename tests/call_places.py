"""Where in a program a function of a tensor may be called, and the ways to differentiate it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Function = Callable[[Any], Any]


def in_while_loop(norm: Function, x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, norm(x) + x), [0, x])[1]


def in_cond(norm: Function, x: Any) -> Any:
    return tf.cond(tf.size(x) >= 0, lambda: norm(x) + x, lambda: x)


def in_switch_case(norm: Function, x: Any) -> Any:
    index = tf.cast(tf.size(x) >= 0, tf.int32)
    return tf.switch_case(index, [lambda: x, lambda: norm(x) + x])


def in_nested_function(norm: Function, x: Any) -> Any:
    return tf.function(norm)(x) + x


def in_python_loop(norm: Function, x: Any) -> Any:
    for _ in range(2):
        x = norm(x) + x
    return x


PLACES: dict[str, Callable[[Function, Any], Any]] = {
    "while_loop": in_while_loop,
    "scan": lambda norm, x: tf.scan(lambda a, b: norm(a) + b, tf.stack([x, 2 * x, x]))[-1],
    "map_fn": lambda norm, x: tf.reduce_sum(tf.map_fn(norm, tf.stack([x, tf.square(x)])), 0),
    "cond": in_cond,
    "switch_case": in_switch_case,
    "cond in cond": lambda norm, x: tf.cond(tf.size(x) >= 0, lambda: in_cond(norm, x), lambda: x),
    "nested function": in_nested_function,
    "two functions": lambda norm, x: tf.function(lambda x: in_nested_function(norm, x))(x),
    "Python loop": in_python_loop,
    "vectorized_map": lambda norm, x: tf.reduce_sum(
        tf.vectorized_map(norm, tf.stack([x, tf.square(x)])), 0
    ),
    # x is used again after the call: what recording misses there would be lost.
    "captured tensors": lambda norm, x: tf.function(lambda: norm(x) * x)(),
    "recompute_grad": lambda norm, x: tf.recompute_grad(norm)(x),
    "XLA": lambda norm, x: tf.function(norm, jit_compile=True)(x),
}


def loss_of(function: Function, x: Any) -> Any:
    return tf.reduce_sum(tf.sin(function(x)))


def gradient(function: Function, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = loss_of(function, x)
    return tape.gradient(loss, x)


def persistent_gradient(function: Function, x: Any) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = loss_of(function, x)
        triple = 3 * loss
    return tape.gradient(loss, x) + tape.gradient(triple, x)


def second_gradient(function: Function, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        penalty = tf.reduce_sum(tf.square(gradient(function, x)))
    return tape.gradient(penalty, x)


def forward_mode(function: Function, x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
        y = function(x)
    return accumulator.jvp(y)


def forward_over_backward(function: Function, x: Any) -> Any:
    return forward_mode(lambda x: gradient(function, x), x)


def jacobian(function: Function, x: Any, pfor: bool = True) -> Any:
    """The Jacobian of a replica's sums over its part, which added up are the whole batch's."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        rows = tf.reshape(tf.sin(function(x)), [-1, x.shape[-1]])
        by_channel = tf.reduce_sum(rows**2, axis=0)
    rows = tape.jacobian(by_channel, x, experimental_use_pfor=pfor)
    return tf.einsum("cn...->nc...", rows)


DERIVATIVES: dict[str, Callable[[Function, Any], Any]] = {
    "forward": lambda function, x: function(x),
    "gradient": gradient,
    "persistent": persistent_gradient,
    "second": second_gradient,
    "forward mode": forward_mode,
    "forward over backward": forward_over_backward,
    "jacobian": jacobian,
    "jacobian by loop": lambda function, x: jacobian(function, x, pfor=False),
}
