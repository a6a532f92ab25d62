"""enable(fuse=True): which graphs TensorFlow's optimizers fuse, and that results stay.

What is fused and refused is specified in test_fuse.py; the rules are the same code.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from test_fuse import SHAPES, VECTORS, SmallResNet, assert_close, data, norm

from tf_bn_ops import _graph_fusion

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = SHAPES["NHWC"]


@pytest.fixture
def fuses() -> Iterator[Callable[[Callable[[], Any]], tuple[Any, int]]]:
    """Runs something with the optimizer on; its result, and how many places were fused."""

    def run(call: Callable[[], Any]) -> tuple[Any, int]:
        _graph_fusion.set_enabled(True)
        before = _graph_fusion.fused_so_far()
        result = call()
        return result, _graph_fusion.fused_so_far() - before

    yield run
    _graph_fusion.set_enabled(False)


def train(batch: int | None) -> list[float]:
    """Losses of some steps of a new model; the tape is inside of the function, as in Keras' fit."""
    model = SmallResNet()
    step = tf.function(
        functools.partial(SmallResNet.train.python_function, model),
        input_signature=[tf.TensorSpec((batch, *SHAPE[1:]))],
    )
    return [float(step(data(SHAPE))["loss"]) for _ in range(3)]


@pytest.mark.parametrize("batch", [4, None], ids=["static", "dynamic"])
def test_a_step_of_training_is_fused_whole(fuses, batch):
    want = train(batch)
    got, count = fuses(lambda: train(batch))
    assert count == 8  # four layers, both ways
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert len(set(want)) == len(want), "nothing was trained"


def test_it_can_be_switched_off(fuses):
    assert fuses(lambda: train(4))[1] == 8
    before = _graph_fusion.fused_so_far()
    _graph_fusion.set_enabled(False)
    train(4)
    assert _graph_fusion.fused_so_far() == before
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": False})
    try:
        assert fuses(lambda: train(4))[1] == 0
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


def in_a_session(build, *fed):
    """What the second run of a graph that `build` makes of x fetches, but for placeholders."""
    x_fed = data(SHAPE).numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
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


# What is run, and how many places are fused in it.
PROGRAMS: dict[str, tuple[Callable[[], Any], int]] = {
    "a tape outside": (lambda: with_a_tape_outside(forward), 2),
    "a tape outside, relu6": (lambda: with_a_tape_outside(relu6_alone), 2),
    "branches, loops": (with_branches_loops_and_functions_that_are_not_inlined, 6),
    "session": (lambda: in_a_session(with_gradient), 2),
    **{
        f"frozen, output {output}": (
            lambda output=output: in_a_session(functools.partial(frozen_with_statistics, output)),
            1,
        )
        for output in (1, 2, 5)
    },
    "y is fed": (lambda: in_a_session(masked_by_what_is_fed, data(SHAPE, seed=1).numpy()), 2),
    "XLA": (lambda: [tf.function(forward, jit_compile=True)(data(SHAPE))], 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_without_the_optimizer(fuses, name):
    program, places = PROGRAMS[name]
    got, count = fuses(program)
    assert count == places
    _graph_fusion.set_enabled(False)
    assert_close(got, program())


def test_what_is_fetched_is_computed(fuses):
    @tf.function
    def both(x):
        y = norm(x)
        return y, tf.nn.relu(y)

    (y, activated), count = fuses(lambda: both(data(SHAPE)))
    assert count == 0
    np.testing.assert_array_equal(activated, tf.nn.relu(y))
    assert float(tf.reduce_min(y)) < 0


def test_a_name_for_the_rewriter_config():
    """Loading the library registers one, which a session may list; nothing else changes."""
    _graph_fusion.library()
    fed = data(SHAPE).numpy()

    def run(names: list[str]) -> tuple[Any, int]:
        config = tf.compat.v1.ConfigProto()
        for name in names:
            config.graph_options.rewrite_options.custom_optimizers.add().name = name
        before = _graph_fusion.fused_so_far()
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            x = tf.compat.v1.placeholder(tf.float32, SHAPE)
            result = session.run([forward(x)], {x: fed})
        return result, _graph_fusion.fused_so_far() - before

    got, count = run(["TfBnOpsFusion"])
    want, none = run([])
    assert count >= 1 and none == 0
    assert_close(got, want)


PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import tf_bn_ops
from test_fuse_graphs import train
from tf_bn_ops import _graph_fusion

plain = train(None)
assert tf_bn_ops.enable(kernels=False, keras=False) == tf_bn_ops.Enabled(fuse=True)
fused = train(None)
assert _graph_fusion.fused_so_far() == 8, _graph_fusion.fused_so_far()
assert max(abs(a - b) for a, b in zip(plain, fused)) < 1e-5
"""


def test_behind_onednns_remapper():
    """With oneDNN, TensorFlow's remapper has fused some forward ops before."""
    forked.output(PROGRAM, HERE, os.path.dirname(HERE), TF_ENABLE_ONEDNN_OPTS="1")


OTHER_PLUG_IN = """
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"

namespace grappler = tensorflow::grappler;

struct Nothing : grappler::CustomGraphOptimizer {
  std::string name() const override { return "Nothing"; }
  bool UsesFunctionLibrary() const override { return false; }
  absl::Status Init(const tensorflow::RewriterConfig_CustomGraphOptimizer*) override {
    return absl::OkStatus();
  }
  absl::Status Optimize(grappler::Cluster*, const grappler::GrapplerItem& item,
                        tensorflow::GraphDef* graph) override {
    *graph = item.graph;
    return absl::OkStatus();
  }
};

const bool registered = [] {
  grappler::ConfigList configs(false, {});
  grappler::PluginGraphOptimizerRegistry::RegisterPluginOptimizerOrDie(
      [] { return new Nothing; }, "CPU", configs);
  return true;
}();
"""

REFUSED = """
import sys
import tensorflow as tf
import tf_bn_ops

tf.load_library(sys.argv[1])
print(*tf_bn_ops.enable(kernels=False, keras=False).refusals)
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_another_plug_in_for_cpus_is_one_sentence(tmp_path):
    """TensorFlow would end the process."""
    source, library = tmp_path / "plug_in.cc", tmp_path / "plug_in.so"
    source.write_text(OTHER_PLUG_IN)
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    subprocess.run(["g++", "-shared", "-fPIC", "-w", source, "-o", library, *flags], check=True)
    assert "another plug-in" in forked.output(REFUSED, library)
