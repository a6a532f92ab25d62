"""Prints, as JSON, what the libraries support under the TensorFlow of this Python: for make matrix.

Each is tried and not looked up: kernels that the override replaces, a graph that is fused, a
function that XLA compiles.
"""

from __future__ import annotations

import json
import os

import tool_flags

if __name__ == "__main__":
    tool_flags.Parser(__doc__).parse_args()

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops import _enable, _loader


def fuses() -> bool:
    """Whether the graph optimizer gets to see a graph, and fuses batch norm and ReLU in it."""
    tf_bn_ops.enable(kernels=False, keras=False)

    @tf.function
    def normalized(x: tf.Tensor) -> tf.Tensor:
        y, _, _ = tf_bn_ops.fused_batch_norm(x, tf.ones([3]), tf.zeros([3]))
        return tf.nn.relu(y)

    normalized(tf.ones([2, 4, 4, 3]))
    return _enable.fused_so_far() == 1


def compiles() -> bool:
    """Whether XLA compiles the ops."""
    if not _loader.build_info()["xla"]:
        return False

    @tf.function(jit_compile=True)
    def sums(x: tf.Tensor) -> tf.Tensor:
        one = tf.ones([3])
        return tf_bn_ops.fused_batch_norm_grad(x, x, one, one, one).offset_backprop

    return bool(np.all(sums(tf.ones([2, 4, 4, 3])).numpy() == 32))


def main() -> None:
    found = {
        "fuse": fuses(),
        "jit_compile": compiles(),
        "overridden": len(tf_bn_ops.enable(keras=False, fuse=False).kernels),
        "keras": keras.__version__,
        "numpy": np.__version__,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
