"""tf.vectorized_map of every op, in every layout and mode: what a call for each iteration gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.spec import DATA_FORMATS, OPS, OpSpec
from tf_bn_ops.spec.op_spec import COUNT, VIEW, VIEW_LIST

LOOPS, CHANNELS = 3, 2


def calls() -> Any:
    for spec in OPS.values():
        for data_format in DATA_FORMATS:
            if "axis" in spec.attrs or data_format in spec.layouts:
                for is_training in (True, False) if "is_training" in spec.attrs else (True,):
                    yield spec, data_format, is_training


def attrs_of(spec: OpSpec, data_format: str, is_training: bool) -> dict[str, Any]:
    choices = {
        "data_format": data_format,
        "is_training": is_training,
        "axis": data_format.index("C"),
        "epsilon": 0.1,
    }
    return {name: value for name, value in choices.items() if name in spec.attrs}


@pytest.mark.parametrize(
    ("spec", "data_format", "is_training"),
    [pytest.param(*call, id=f"{call[0].name}-{call[1]}-{call[2]}") for call in calls()],
)
def test_an_op_is_one_call_for_all_iterations(spec, data_format, is_training):
    rng = np.random.default_rng(0)
    sizes = iter((2, 3, 4, 2))
    shape = [CHANNELS if letter == "C" else next(sizes) for letter in data_format]
    inputs = {}
    for argument in spec.inputs:
        if argument.kind == VIEW_LIST:
            continue
        size = shape if argument.kind == VIEW else [] if argument.kind == COUNT else [CHANNELS]
        dtype = np.float64 if argument.kind in ("wide", COUNT) else np.float32
        inputs[argument.name] = tf.constant(rng.uniform(0.5, 2, [LOOPS, *size]), dtype)
    op = getattr(tf_bn_ops.raw_ops, spec.name)
    attrs = attrs_of(spec, data_format, is_training)

    def call(values: Any) -> Any:
        # A placeholder may be of any size.
        outputs = op(**values, **attrs)
        return outputs if isinstance(outputs, tf.Tensor) else tuple(tf.nest.flatten(outputs))

    got = tf.vectorized_map(call, inputs, fallback_to_while_loop=False)
    want = [call({name: value[i] for name, value in inputs.items()}) for i in range(LOOPS)]
    for output, *each in zip(tf.nest.flatten(got), *map(tf.nest.flatten, want), strict=True):
        each = np.stack([value.numpy() for value in each])
        np.testing.assert_allclose(output, each, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_jacobians_are_those_of_a_loop(data_format, is_training):
    sizes = iter((2, 3, 2, 2))
    shape = [CHANNELS if letter == "C" else next(sizes) for letter in data_format]
    x = tf.constant(np.random.default_rng(1).normal(size=shape), tf.float32)
    one, zero = tf.ones([CHANNELS]), tf.zeros([CHANNELS])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf_bn_ops.fused_batch_norm(
            x, one, zero, zero, one, data_format=data_format, is_training=is_training
        ).y
    for jacobian in (tape.jacobian, tape.batch_jacobian):
        got, want = (jacobian(y, x, experimental_use_pfor=pfor) for pfor in (True, False))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_statistics_of_parts_with_other_counts_in_each_iteration():
    rng = np.random.default_rng(2)
    inputs = (
        tf.constant([[3.0, 0.0], [5.0, 2.0]], tf.float64),
        *(tf.constant(rng.uniform(1, 2, [2, 2, CHANNELS])) for _ in range(2)),
    )
    names = ("counts", "means", "m2s")

    def call(values: Any) -> Any:
        return tuple(
            tf_bn_ops.raw_ops.BatchNormGatherStats(**dict(zip(names, values, strict=True)))
        )

    got = tf.vectorized_map(call, inputs, fallback_to_while_loop=False)
    for i in range(2):
        for a, b in zip(got, call(tuple(value[i] for value in inputs)), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-14)
