"""enable(fuse=True): which graphs TensorFlow's optimizers fuse, and that results stay.

Promised: a graph whose place is refused runs as without the optimizer; beside another plug-in for
CPUs `enable(fuse=True)` is refused in one sentence.

What is fused and refused is specified in test_fuse.py; the rules are the same code.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
from collections.abc import Callable
from typing import Any

import forked
import pytest
import tensorflow as tf
from random_graphs import counted
from test_fuse import SHAPES, VECTORS, assert_close, data, norm
from test_saved_models import SmallResNet

import tf_bn_ops
from tf_bn_ops import _enable, _loader

SHAPE = SHAPES["NHWC"]


def train(batch: int | None) -> list[float]:
    """Losses of some steps of a new model; the tape is inside of the function, as in Keras' fit."""
    model = SmallResNet()
    step = tf.function(
        functools.partial(SmallResNet.serve.python_function, model),
        input_signature=[tf.TensorSpec((batch, *SHAPE[1:]))],
    )
    losses = [float(step(data(SHAPE))["loss"]) for _ in range(3)]
    assert len({*losses}) == len(losses), "nothing was trained"
    return losses


def train_without_plug_ins() -> list[float]:
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": False})
    try:
        return train(4)
    finally:
        tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": True})


def forward(x):
    return tf.nn.relu(norm(tf.sin(x)) + x)


def relu6_alone(x):
    """Without a side input the forward function returns coefficients, whose offset the backward
    function does not know: its mask is from y."""
    return tf.nn.relu6(norm(tf.sin(x)))


def with_a_tape_outside(layer):
    """TensorFlow then makes a forward and a backward function of it; each is fused by itself."""
    function, x = tf.function(layer), data(SHAPE)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x, tf.cos(3 * y))


def with_branches_loops_and_functions_that_are_not_inlined():
    @tf.function(experimental_attributes={"_noinline": True})
    def block(x):
        return forward(x)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = block(x)
            y = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.nn.relu6(norm(y)), lambda: y)
            y = tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, forward(z)), [0, y])[1]
        return y, tape.gradient(y, x, tf.cos(3 * y))

    return step(data(SHAPE))


def behind_a_function_that_is_not_inlined():
    """Such as Keras' convolution in groups, which XLA compiles: what it returns has a shape."""

    @tf.function(experimental_attributes={"_noinline": True})
    def before(x):
        return tf.sin(x)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.silu(norm(before(x)))
        return y, tape.gradient(y, x, tf.cos(3 * x))

    return step(data(SHAPE))


def in_a_session(build, *fed, optimizers=()):
    """What the second run of a graph that `build` makes of x fetches, but for placeholders."""
    x_fed = data(SHAPE).numpy()
    config = tf.compat.v1.ConfigProto()
    for name in optimizers:
        config.graph_options.rewrite_options.custom_optimizers.add().name = name
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        x = tf.compat.v1.placeholder(tf.float32, SHAPE)
        fetches, others = build(x)
        values = {x: x_fed, **dict(zip(others, fed, strict=True))}
        fetched = [session.run(fetches, values) for _ in range(2)]
    return [value for value in fetched[1] if value.size > 1]


def with_gradient(x):
    y = forward(x)
    return [y, tf.gradients(y, x, tf.cos(3 * y))[0]], []


def frozen_with_statistics(output, x):
    """TensorFlow's remapper takes a frozen norm apart once no node reads them, fetched or not."""
    scale, offset, mean, variance = VECTORS
    outputs = tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=offset, mean=mean, variance=variance, is_training=False
    )
    y = tf.nn.relu(outputs[0])
    return [outputs[output], tf.gradients(y, x, tf.cos(3 * y))[0]], []


def masked_by_what_is_fed(x):
    """A session may feed y: the mask must not come from x then."""
    y = relu6_alone(x)
    return [tf.gradients(y, x, tf.cos(3 * y))[0]], [y]


def that_returns_an_intermediate(x):
    y = norm(x)
    return y, tf.nn.relu(y)


# What is run, and how many places are fused in it.
PROGRAMS: dict[str, tuple[Callable[[], Any], int]] = {
    # Of four layers, both ways.
    "training": (lambda: train(4), 8),
    "training, dynamic batch": (lambda: train(None), 8),
    "training without plug-ins": (train_without_plug_ins, 0),
    "a tape outside": (lambda: with_a_tape_outside(forward), 2),
    "a tape outside, relu6": (lambda: with_a_tape_outside(relu6_alone), 2),
    "branches, loops": (with_branches_loops_and_functions_that_are_not_inlined, 6),
    "behind a function": (behind_a_function_that_is_not_inlined, 2),
    "session": (lambda: in_a_session(with_gradient), 2),
    **{
        f"frozen, output {output}": (
            functools.partial(in_a_session, functools.partial(frozen_with_statistics, output)),
            1,
        )
        for output in (1, 2, 5)
    },
    "y is fed": (lambda: in_a_session(masked_by_what_is_fed, data(SHAPE, seed=1).numpy()), 2),
    "y is returned": (lambda: tf.function(that_returns_an_intermediate)(data(SHAPE)), 0),
    "XLA": (lambda: [tf.function(forward, jit_compile=True)(data(SHAPE))], 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_without_the_optimizer(name):
    """Promise: Fusion changes results by rounding at most."""
    program, places = PROGRAMS[name]
    got, count = counted(program)
    want, none = counted(program, is_on=False)
    assert (count, none) == (places, 0)
    assert_close(got, want, tolerance=1e-5 if "training" in name else 1e-4)


def ops_that_run() -> list[str]:
    """Of a graph with a SiLU that is refused, since something else reads y."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        y = norm(tf.random.uniform(SHAPE))
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        metadata = tf.compat.v1.RunMetadata()
        session.run([tf.nn.silu(y), tf.sin(y)], options=options, run_metadata=metadata)
    return sorted(node.op for graph in metadata.partition_graphs for node in graph.node)


def test_a_place_that_is_refused_runs_as_without_the_optimizer():
    with_it, count = counted(ops_that_run)
    without, _ = counted(ops_that_run, is_on=False)
    assert (count, with_it) == (0, without)
    assert "IdentityN" in without


def test_a_name_for_the_rewriter_config():
    """Loading the library registers one, which a session may list; nothing else changes."""
    named = functools.partial(in_a_session, with_gradient, optimizers=["TfBnOpsFusion"])
    got, count = counted(named, is_on=False)
    assert count >= 1
    assert_close(got, in_a_session(with_gradient))


def train_enabled() -> None:
    want = train(None)
    assert tf_bn_ops.enable(kernels=False, keras=False) == tf_bn_ops.Enabled(fuse=True)
    assert_close(train(None), want, tolerance=1e-5)
    assert _enable.fused_so_far() == 8


def test_behind_onednns_remapper():
    """With oneDNN, TensorFlow's remapper has fused some forward ops before."""
    forked.call(train_enabled, TF_ENABLE_ONEDNN_OPTS="1")


def enable_behind(other: str) -> tuple[str, ...]:
    tf_bn_ops.load()
    assert ctypes.CDLL(other).tfbn_enable_graph_fusion(1) == 0
    return tf_bn_ops.enable(kernels=False, keras=False).refusals


def test_another_plug_in_for_cpus_is_one_sentence(tmp_path):
    """TensorFlow would end the process. The other one is a copy of this library's."""
    other = shutil.copy(_loader.installation().path(_loader.OPTIMIZER_LIBRARY), tmp_path)
    (sentence,) = forked.call(enable_behind, str(other))
    assert "another plug-in" in sentence
