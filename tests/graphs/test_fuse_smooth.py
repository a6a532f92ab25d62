"""tf_bn_ops.rewrite.fuse on smooth activations, in the forms that TensorFlow and Keras write."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_fuse import EX, GRAD_EX, SHAPES, VECTORS, close_fraction, data, norm, step

import tf_bn_ops
from tf_bn_ops import rewrite

FORMS = {
    "tf.nn.silu": ("Silu", tf.nn.silu),
    "keras silu": ("Silu", keras.activations.silu),
    "x sigmoid(x)": ("Silu", lambda y: y * tf.sigmoid(y)),
    "keras hard_silu": ("HardSilu", keras.activations.hard_silu),
    "(x relu6(x + 3)) / 6": ("HardSilu", lambda y: y * tf.nn.relu6(y + 3.0) / 6.0),
    "x (relu6(x + 3) / 6)": ("HardSilu", lambda y: y * (tf.nn.relu6(y + 3.0) / 6.0)),
    "x (relu6(x + 3) 0.167)": (
        "HardSilu",
        lambda y: (tf.nn.relu6(y + 3.0) * (1.0 / 6.0)) * y,
    ),
}
PARTS = {"Sigmoid", "SigmoidGrad", "Relu6", "Relu6Grad"}


def ops_of(concrete) -> set[str]:
    return {op.type for op in concrete.graph.get_operations()}


def check_fused(concrete, activation, is_training, inputs) -> None:
    """Bitwise what the fused ops give, near the graph, and all the way back. `inputs`: x, and the
    side input if there is one."""
    fused = rewrite.fuse(concrete)
    parts = PARTS | {"AddV2"} if inputs[1:] else PARTS
    assert {EX, GRAD_EX} <= ops_of(fused) and not parts & ops_of(fused)
    x, side = inputs[0], inputs[1:]
    y, x_backprop, *side_backprop = fused(*inputs)
    same = {"activation_mode": activation, "is_training": is_training}
    ex = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, **dict(zip(("scale", "offset", "mean", "variance"), VECTORS, strict=True)),
        side_input=side, **same,
    )  # fmt: skip
    np.testing.assert_array_equal(y, ex.y)
    gradient = tf_bn_ops.raw_ops.FusedBatchNormGradEx(
        y_backprop=tf.cos(3 * y), x=x, scale=VECTORS[0], reserve_space_1=ex.reserve_space_1,
        reserve_space_2=ex.reserve_space_2, reserve_space_3=ex.reserve_space_3,
        offset=VECTORS[1], y=inputs[-1], num_side_inputs=len(side), **same,
    )  # fmt: skip
    np.testing.assert_array_equal(x_backprop, gradient.x_backprop)
    for got, want in zip(side_backprop, gradient.side_input_backprop, strict=True):
        np.testing.assert_array_equal(got, want)
    backs = [rewrite.unfuse(fused), rewrite.to_builtin(fused)]
    for other in (concrete, *backs):
        for got, want in zip((y, x_backprop, *side_backprop), other(*inputs), strict=True):
            # dy differs, too: y is rounded several times in half.
            assert close_fraction(got, want, x.dtype) > (0.9 if x.dtype.size == 2 else 0.999)
    assert not any(EX in ops_of(back) or GRAD_EX in ops_of(back) for back in backs)


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "frozen"])
@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("dtype", [tf.float32, tf.half, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("form", FORMS)
def test_forward_and_backward(form, dtype, batch, is_training):
    shape = (batch, *SHAPES["NHWC"][1:])
    function = FORMS[form][1]
    concrete = step(lambda x: function(norm(x, "shimV3", is_training=is_training)), [shape], dtype)
    check_fused(concrete, FORMS[form][0], is_training, [data(SHAPES["NHWC"], dtype)])


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "frozen"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("form", FORMS)
def test_behind_an_addition(form, dtype, is_training):
    shape = SHAPES["NHWC"]
    activation, function = FORMS[form]
    concrete = step(
        lambda x, side: function(side + norm(x, "shimV3", is_training=is_training)),
        [shape, shape],
        dtype,
    )
    check_fused(concrete, activation, is_training, [data(shape, dtype), data(shape, dtype, seed=1)])


@pytest.mark.parametrize("other", [tf.tanh, lambda x: norm(tf.tanh(x), "shimV3")])
@pytest.mark.parametrize("batch", [4, None])
def test_both_branches_of_a_block(batch, other):
    """What is added follows from x, too, and may be a norm: one of both is fused with the sum."""
    shape = SHAPES["NHWC"]
    concrete = step(
        lambda x: tf.nn.silu(norm(tf.sin(x), "shimV3") + other(x)), [(batch, *shape[1:])]
    )
    report = rewrite.fusion_report(concrete)
    for direction in ("backward", "forward"):
        assert [p.refusal for p in report if p.direction == direction and not p.refusal] == [""]
    fused = rewrite.fuse(concrete)
    assert {EX, GRAD_EX} <= ops_of(fused) and not PARTS & ops_of(fused)
    x = data(shape)
    for got, want in zip(fused(x), concrete(x), strict=True):
        assert close_fraction(got, want, tf.float32) > 0.999


@pytest.mark.parametrize("activation", [tf.nn.silu, lambda y: y * tf.nn.relu6(y + 3.0) / 6.0])
def test_a_sum_that_others_read_is_a_refusal_with_a_reason(activation):
    def both(x):
        y = norm(x, "shimV3") + tf.tanh(x)
        return activation(y) + y

    concrete = step(both, [SHAPES["NHWC"]])
    (refused,) = [p for p in rewrite.fusion_report(concrete) if p.direction == "forward"]
    assert "reads" in refused.refusal and refused.refusal.endswith("too")
    x = data(SHAPES["NHWC"])
    for got, want in zip(rewrite.fuse(concrete)(x), concrete(x), strict=True):
        assert close_fraction(got, want, tf.float32) > 0.999


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y * tf.sigmoid(2 * y),
        lambda y: y * tf.nn.relu6(y + 3.0) / 5.0,
        lambda y: y * tf.nn.relu6(y + 2.0) / 6.0,
        lambda y: 2.0 * y * tf.sigmoid(y) / 1.9,
        lambda y: y * tf.sigmoid(tf.reverse(y, [0])),
    ],
    ids=["beta 2", "/ 5", "+ 2", "scaled", "of another y"],
)
def test_what_is_none_of_them_stays(function):
    concrete = step(lambda x: function(norm(x, "shimV3")), [SHAPES["NHWC"]])
    fused = rewrite.fuse(concrete)
    assert not any("Silu" in str(op.node_def) for op in fused.graph.get_operations())
    x = data(SHAPES["NHWC"])
    for got, want in zip(fused(x), concrete(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_squeezed_and_excited_block_is_fused_in_both_directions():
    """Two ops read the activation, and what arrives at its gradient is a sum."""

    def block(x):
        y = tf.nn.silu(norm(x, "shimV3"))
        gate = tf.sigmoid(tf.reduce_mean(y, [1, 2], keepdims=True))
        return y * gate

    concrete = step(block, [(None, *SHAPES["NHWC"][1:])])
    report = rewrite.fusion_report(concrete)
    assert [(place.direction, place.refusal) for place in report] == [
        ("backward", ""),
        ("forward", ""),
    ]
    x = data(SHAPES["NHWC"])
    for got, want in zip(rewrite.fuse(concrete)(x), concrete(x), strict=True):
        assert close_fraction(got, want, tf.float32) > 0.999


def test_a_long_chain_of_residual_blocks_is_fused_in_both_directions():
    """What arrives at a gradient is a sum over all later blocks."""

    def chain(x):
        for _ in range(60):
            x += tf.nn.silu(norm(x, "shimV3"))
        return x

    report = rewrite.fusion_report(step(chain, [SHAPES["NHWC"]]))
    assert [place.refusal for place in report] == [""] * 120


def test_y_that_others_read_is_a_refusal_with_a_reason():
    """The gradient alone is fused: it reads x."""

    def both(x):
        y = norm(x, "shimV3")
        return tf.nn.silu(y) + tf.tanh(y)

    concrete = step(both, [SHAPES["NHWC"]])
    (refused,) = [p for p in rewrite.fusion_report(concrete) if p.direction == "forward"]
    assert "reads" in refused.refusal and refused.refusal.endswith("too")
    x = data(SHAPES["NHWC"])
    for got, want in zip(rewrite.fuse(concrete)(x), concrete(x), strict=True):
        assert close_fraction(got, want, tf.float32) > 0.999


def test_what_waits_for_statistics_of_the_norm_stays():
    """Fused, it would wait for itself."""

    @tf.function(input_signature=[tf.TensorSpec(SHAPES["NHWC"])])
    def forward(x):
        outputs = tf_bn_ops.raw_ops.FusedBatchNormV3(
            x=x, **dict(zip(("scale", "offset", "mean", "variance"), VECTORS, strict=True))
        )
        with tf.control_dependencies([tf.sin(outputs.batch_mean)]):
            gate = tf.sigmoid(outputs.y)
        return outputs.y * gate

    concrete = forward.get_concrete_function()
    (refused,) = rewrite.fusion_report(concrete)
    assert "is waited for" in refused.refusal
    x = data(SHAPES["NHWC"])
    np.testing.assert_array_equal(rewrite.fuse(concrete)(x), concrete(x))


def test_another_device_is_refused():
    x = tf.TensorSpec(SHAPES["NHWC"], tf.float32)

    @tf.function(input_signature=[x])
    def forward(x):
        with tf.device("/device:GPU:0"):
            return tf.nn.silu(norm(x, "V3"))

    concrete = forward.get_concrete_function()
    (refused,) = rewrite.fusion_report(concrete)
    assert "it is on the device" in refused.refusal
