"""Prints, as JSON, what the libraries support under the TensorFlow of this Python: for make matrix.

Each is tried and not looked up: kernels that the override replaces, a graph that is fused, a
function that XLA compiles, a layer of the oldest Keras that trains on this library.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile

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


TRAINS = """
import keras, numpy as np, tf_bn_ops
tf_bn_ops.enable(kernels=False, fuse=False)
model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.BatchNormalization()])
model.compile("sgd", "mse", jit_compile=False)
x = np.ones((4, 8, 8, 3), "float32")
model.fit(x, x, verbose=0)
assert tf_bn_ops.report().calls, "the layer stayed with Keras"
print(keras.__version__)
"""


def oldest_keras() -> str:
    """The oldest Keras that this TensorFlow and this library take, if a layer trains on it."""
    required = importlib.metadata.requires(_loader.build_info()["tensorflow_distribution"]) or []
    found = [x[1] for x in (re.match(r"keras\b.*?>=([\d.]+)", y) for y in required) if x]
    oldest = max([_loader._KERAS[0], *found], key=lambda text: [*map(int, text.split("."))])
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}"]
        subprocess.run([*pip, f"keras=={oldest}", "dm-tree"], check=True)
        path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        trained = subprocess.run(
            [sys.executable, "-c", TRAINS], env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    return trained.stdout.split()[-1]


def main() -> None:
    found = {
        "fuse": fuses(),
        "jit_compile": compiles(),
        "overridden": len(tf_bn_ops.enable(keras=False, fuse=False).kernels),
        "keras": keras.__version__,
        "oldest_keras": oldest_keras(),
        "numpy": np.__version__,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
