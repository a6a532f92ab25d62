"""Inference of whole networks with their batch norms and with these folded into weights.

usage: python tools/bench/folding.py [network ...]

Both models are called in one process, as functions. A turn is one call of each, adjacent in time
and in random order, so that drift of the machine cancels in their ratio. Prints the table of
docs/benchmarks.md.
"""

from __future__ import annotations

import pathlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import tool_flags  # noqa: E402

from bench import networks  # noqa: E402
from bench.report import Table, time_text  # noqa: E402
from bench.results import percentiles  # noqa: E402

_BATCHES = (1, 16)
_SIDE, _TURNS, _WARM_UP_CALLS = 224, 31, 5


def measured(models: Sequence[Any], batch: int) -> np.ndarray:
    """Milliseconds of one call of each model, in rows of turns."""
    import tensorflow as tf

    images = np.random.default_rng(1).standard_normal((batch, _SIDE, _SIDE, 3), np.float32)
    x = tf.constant(images)
    calls = [tf.function(lambda x, m=m: m(x, training=False), autograph=False) for m in models]
    for call in calls * _WARM_UP_CALLS:
        call(x).numpy()
    turns = np.zeros((_TURNS, len(calls)))
    for turn in turns:
        for i in random.sample(range(len(calls)), len(calls)):
            begin = time.perf_counter()
            calls[i](x).numpy()
            turn[i] = 1e3 * (time.perf_counter() - begin)
    return turns


def main(names: Sequence[str]) -> None:
    from tf_bn_ops.keras import fold_batch_norm, fold_report

    headings = ["network", "images", "folded", "with batch norm", "without", "with / without"]
    table = Table("Inference of a network", [*headings, "10-90%"], 2)
    for name in names:
        model = networks.build(name, _SIDE)
        report, folded = fold_report(model), fold_batch_norm(model)
        share = f"{len(report.done)} of {len(report.done) + len(report.kept)}"
        for batch in _BATCHES:
            turns = measured((model, folded), batch)
            times = (time_text(1e3 * ms) for ms in np.median(turns, axis=0))
            low, median, high = percentiles(turns[:, 0] / turns[:, 1])
            cells = f"{median:.2f}", f"{low:.2f} {high:.2f}"
            table.rows.append([name, str(batch), share, *times, *cells])
    print(table.markdown())


if __name__ == "__main__":
    parser = tool_flags.Parser(__doc__)
    choices = list(networks.NETWORKS)
    parser.add_argument("names", nargs="*", metavar="network", choices=choices, default=choices)
    main(parser.parse_args().names)
