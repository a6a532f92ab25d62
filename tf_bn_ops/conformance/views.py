"""Every layout and rank as one picture: [outer, channels, inner] (docs/conformance.md)."""

from __future__ import annotations

import math

import numpy as np

from tf_bn_ops import _op_table


def view_shape(shape: tuple[int, ...], layout: str) -> tuple[int, int, int]:
    """(outer, channels, inner) of a tensor shape in `layout`."""
    _, channels_last = _op_table.LAYOUTS[layout]
    if channels_last:
        return math.prod(shape[:-1]), shape[-1], 1
    return shape[0], shape[1], math.prod(shape[2:])


def as_view(array: np.ndarray, layout: str) -> np.ndarray:
    """`array` seen as [outer, channels, inner], without a copy for contiguous arrays."""
    return array.reshape(view_shape(array.shape, layout))
