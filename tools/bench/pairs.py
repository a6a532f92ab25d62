"""Two ways to compute the same in TensorFlow, called in pairs: tables of docs/benchmarks.md.

usage: python tools/bench/pairs.py folding [NETWORK ...] | instance_norm

Both are in one process. A turn is one call of each, adjacent in time and in random order, so that
drift of the machine cancels in their ratio. `folding` is inference of whole networks with their
batch norms and with these folded into weights; `instance_norm` a step of it, forward and gradient,
beside Keras' layer.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import tool_flags  # noqa: E402

from bench import networks  # noqa: E402
from bench.report import Table, time_text  # noqa: E402
from bench.results import percentiles  # noqa: E402

_SIDE, _BATCHES = 224, (1, 16)
_SHAPES = ("8x64x56x56", "8x32x112x112", "16x128x8x8")  # Channels first.
_WARM_UP_CALLS = 5


def cells(calls: Sequence[Callable[[], Any]], turns: int) -> list[str]:
    """Medians of both, their ratio and its 10th and 90th percentile."""
    for call in [*calls] * _WARM_UP_CALLS:
        call()
    us = np.zeros((turns, 2))
    for turn in us:
        for i in random.sample((0, 1), 2):
            begin = time.perf_counter()
            calls[i]()
            turn[i] = 1e6 * (time.perf_counter() - begin)
    low, median, high = percentiles([*(us[:, 0] / us[:, 1])])
    return [*map(time_text, np.median(us, axis=0)), f"{median:.2f}", f"{low:.2f} {high:.2f}"]


def folding(names: Sequence[str]) -> Table:
    import tensorflow as tf

    from tf_bn_ops.keras import fold_batch_norm, fold_report

    headings = ["network", "images", "folded", "with batch norm", "without", "with / without"]
    table = Table("Inference of a network", [*headings, "10-90%"], 2)
    for name in names:
        model = networks.build(name, _SIDE)
        report, folded = fold_report(model), fold_batch_norm(model)
        share = f"{len(report.done)} of {len(report.done) + len(report.kept)}"
        for batch in _BATCHES:
            shape = (batch, _SIDE, _SIDE, 3)
            x = tf.constant(np.random.default_rng(1).standard_normal(shape, np.float32))
            infer = [
                tf.function(lambda x, m=m: m(x, training=False), autograph=False)
                for m in (model, folded)
            ]
            both = [lambda f=f, x=x: f(x).numpy() for f in infer]
            table.rows.append([name, str(batch), share, *cells(both, 31)])
    return table


def _step(normalize: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    import tensorflow as tf

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = normalize(x)
        return y, tape.gradient(y, x, x)

    return lambda: step(x)[0].numpy()


def instance_norm() -> Table:
    import keras
    import tensorflow as tf

    import tf_bn_ops

    table = Table("", ["x", "layout", "Keras", "tf_bn_ops", "Keras / tf_bn_ops", "10-90%"], 2)
    for shape in _SHAPES:
        for data_format, axis in (("NCHW", 1), ("NHWC", -1)):
            n, c, *inner = map(int, shape.split("x"))
            size = [n, c, *inner] if axis == 1 else [n, *inner, c]
            x = tf.constant(np.random.default_rng(0).standard_normal(size, np.float32))
            layer = keras.layers.GroupNormalization(groups=-1, axis=axis)
            layer.build(x.shape)
            vectors: dict[str, Any] = {"scale": tf.ones(c), "offset": tf.zeros(c)}
            ours = lambda x, v=vectors, of=data_format: tf_bn_ops.instance_norm(  # noqa: E731
                x, **v, data_format=of
            )
            both = [_step(layer, x), _step(ours, x)]
            table.rows.append(["x".join(map(str, size)), data_format, *cells(both, 51)])
    return table


def _network(name: str) -> str:
    if name not in networks.NETWORKS:
        known = ", ".join(networks.NETWORKS)
        raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {known})")
    return name


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("what", choices=("folding", "instance_norm"))
    # Not `choices`, with which Python 3.11 compares an empty list as a whole.
    parser.add_argument("names", nargs="*", metavar="network", type=_network)
    flags = parser.parse_args(argv)
    flags.names = flags.names or [*networks.NETWORKS]
    return flags


if __name__ == "__main__":
    flags = parsed()
    print((folding(flags.names) if flags.what == "folding" else instance_norm()).markdown())
