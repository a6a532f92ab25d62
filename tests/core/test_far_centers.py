"""Variances in 16-bit types, whose sums are in two levels, where the elements that sums are around
are outliers: at most 2^-14 off, whatever the others are and however many."""

from __future__ import annotations

import numpy as np
import pytest
import split_parts

from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.spec import DTYPES

BOUND = 2.0**-14
# Outlier, value of the others.
PAIRS = ((100, 0.1), (1, 0.1), (3, 0.7), (300, 0.3), (50, 0.03), (1000, 0.7))


def off(x: np.ndarray, dtype: str) -> float:
    """The relative error of the variance of x, [outer, channels, inner]."""
    wide = DTYPES[dtype].widen(x, np.float64)
    found = split_parts.stats(x)
    variance = wide.var((0, 2))
    return float(np.max(np.abs(found.m2 / found.count - variance) / variance))


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
@pytest.mark.parametrize("view", [(1 << 18, 1), (1 << 12, 1), (5, 7777)], ids=str)
@pytest.mark.parametrize("places", ["centers", "first", "two of three"])
def test_outliers_that_sums_are_around(places, view, dtype):
    outer, inner = view
    x = np.empty((outer, len(PAIRS), inner), np.float32)
    x[...] = np.array([value for _, value in PAIRS])[:, None]
    chosen = inputs.center_places(x.shape)
    for o, i in {"centers": chosen, "first": [(0, 0)], "two of three": chosen[1:]}[places]:
        x[o, :, i] = [outlier for outlier, _ in PAIRS]
    assert off(DTYPES[dtype].store(x), dtype) < BOUND
