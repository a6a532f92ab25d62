"""A training step's instance norm, forward and gradient, beside Keras' layer.

usage: python tools/bench/instance_norm.py

Both are functions in one process. A turn is one call of each, adjacent in time and in random order,
so that drift of the machine cancels in their ratio. Prints the table of docs/benchmarks.md.
"""

from __future__ import annotations

import pathlib
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import tool_flags  # noqa: E402

from bench.report import Table, time_text  # noqa: E402
from bench.results import percentiles  # noqa: E402

_SHAPES = ("8x64x56x56", "8x32x112x112", "16x128x8x8")  # Channels first.
_TURNS, _WARM_UP_CALLS = 51, 3


def step(normalize: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    import tensorflow as tf

    @tf.function(autograph=False)
    def call(x: Any, y_backprop: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = normalize(x)
        return y, tape.gradient(y, x, y_backprop)

    return lambda *arguments: call(*arguments)[0].numpy()


def main() -> None:
    import keras
    import tensorflow as tf

    import tf_bn_ops

    table = Table("", ["x", "layout", "Keras", "tf_bn_ops", "Keras / tf_bn_ops", "10-90%"], 2)
    for shape in _SHAPES:
        for data_format in ("NCHW", "NHWC"):
            n, c, *inner = map(int, shape.split("x"))
            size = [n, c, *inner] if data_format == "NCHW" else [n, *inner, c]
            x = tf.constant(np.random.default_rng(0).standard_normal(size, np.float32))
            axis = 1 if data_format == "NCHW" else -1
            layer = keras.layers.GroupNormalization(groups=-1, axis=axis)
            layer.build(x.shape)
            ours = lambda x, c=c, of=data_format: tf_bn_ops.instance_norm(  # noqa: E731
                x, tf.ones(c), tf.zeros(c), data_format=of
            )
            calls, turns = (step(layer), step(ours)), np.zeros((_TURNS, 2))
            for call in calls * _WARM_UP_CALLS:
                call(x, x)
            for turn in turns:
                for i in random.sample((0, 1), 2):
                    begin = time.perf_counter()
                    calls[i](x, x)
                    turn[i] = 1e6 * (time.perf_counter() - begin)
            low, median, high = percentiles(turns[:, 0] / turns[:, 1])
            times = (time_text(us) for us in np.median(turns, axis=0))
            cells = f"{median:.1f}", f"{low:.1f} {high:.1f}"
            table.rows.append(["x".join(map(str, size)), data_format, *times, *cells])
    print(table.markdown())


if __name__ == "__main__":
    tool_flags.Parser(__doc__).parse_args()
    main()
