"""Times batch norm, forward and gradient, as XLA compiles it: TensorFlow's and this library's ops.

    python examples/xla_speed.py

Both run alternately in one process; prints the median of each, and their ratio.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from timing import compare, flags

import tf_bn_ops
from tf_bn_ops import _loader

SHAPES = (
    ("NHWC", (32, 56, 56, 64)),
    ("NHWC", (32, 14, 14, 256)),
    ("NCHW", (32, 64, 56, 56)),
)
ROUNDS = 15


def forward(op: Callable[..., Any], data_format: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    """The forward op in training before a ReLU, as one XLA program."""
    x = tf.random.normal(shape)
    vector = tf.ones([shape[1 if data_format == "NCHW" else 3]])

    @tf.function(jit_compile=True)
    def program() -> Any:
        empty = tf.zeros([0])
        y, mean, variance, *_ = op(
            x=x,
            scale=vector,
            offset=vector,
            mean=empty,
            variance=empty,
            epsilon=1e-3,
            data_format=data_format,
        )
        return tf.nn.relu(y), mean, variance

    return lambda: program()[0].numpy()


def gradient(op: Callable[..., Any], data_format: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    """The gradient behind a ReLU, as one XLA program."""
    x, y_backprop, activation = (tf.random.normal(shape) for _ in range(3))
    channels = shape[1 if data_format == "NCHW" else 3]
    mean, variance = tf.nn.moments(x, [0, 2, 3] if data_format == "NCHW" else [0, 1, 2])

    @tf.function(jit_compile=True)
    def program() -> Any:
        return op(
            y_backprop=tf.where(activation > 0, y_backprop, 0.0),
            x=x,
            scale=tf.ones([channels]),
            reserve_space_1=mean,
            reserve_space_2=variance,
            reserve_space_3=tf.zeros([1]),
            epsilon=1e-3,
            data_format=data_format,
        )[:3]

    return lambda: program()[0].numpy()


def main() -> None:
    rounds = 1 if flags(__doc__).parse_args().quick else ROUNDS
    if not _loader.build_info()["xla"]:
        sys.exit("this build has no kernels for XLA: build it with TensorFlow 2.20 or later")
    for what, step, op in (
        ("batch norm before a ReLU", forward, "FusedBatchNormV3"),
        ("gradient of batch norm behind a ReLU", gradient, "FusedBatchNormGradV3"),
    ):
        for data_format, shape in SHAPES:
            compare(
                f"{what}, {data_format} {list(shape)}",
                "TensorFlow",
                step(getattr(tf.raw_ops, op), data_format, shape),
                step(getattr(tf_bn_ops.raw_ops, op), data_format, shape),
                rounds,
            )


if __name__ == "__main__":
    main()
