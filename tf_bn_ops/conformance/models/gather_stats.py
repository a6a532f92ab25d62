"""What BatchNormGatherStats answers, bit by bit: the formula of Chan, Golub and LeVeque in order of
the rows, one float64 operation after the other (cc/core/gather_stats.h)."""

from __future__ import annotations

import numpy as np

from tf_bn_ops.harness.c_abi import Stats


def chan(parts: Stats) -> Stats:
    """Combines the statistics of a batch's parts, [W], [W, C] and [W, C], into the batch's."""
    count, mean, m2 = np.float64(0), *(np.zeros(parts.mean.shape[1]) for _ in range(2))
    with np.errstate(all="ignore"):
        for n, part_mean, part_m2 in zip(*parts, strict=True):
            if n == 0:
                continue
            if count == 0:
                count, mean, m2 = n, part_mean.copy(), part_m2.copy()
                continue
            share = n / (count + n)
            delta = part_mean - mean
            mean = mean + delta * share
            m2 = m2 + (part_m2 + delta * delta * (count * share))
            count = count + n
    return Stats(np.asarray(count), mean, m2)


def random_parts(parts: int, channels: int, offset: float = 0.0, seed: int = 0) -> Stats:
    """Parts of up to 49 elements a channel, some without any, with means around `offset`."""
    rng = np.random.default_rng([parts, channels, seed])
    counts = rng.integers(0, 50, parts).astype(np.float64)
    counts[rng.random(parts) < 0.2] = 0
    return Stats(
        counts, rng.normal(offset, 1, (parts, channels)), rng.uniform(0, 50, (parts, channels))
    )
