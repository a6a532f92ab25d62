"""The layouts of tensors, and the view [outer, channels, inner] that all of them have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

# Values of TensorFlow's attr data_format -> (rank, channels last).
DATA_FORMATS: Mapping[str, tuple[int, bool]] = {
    "NHWC": (4, True),
    "NCHW": (4, False),
    "NDHWC": (5, True),
    "NCDHW": (5, False),
}

# The same as a type. TensorFlow takes text and bytes; op.get_attr("data_format") gives bytes.
DataFormat = Literal["NHWC", "NCHW", "NDHWC", "NCDHW", b"NHWC", b"NCHW", b"NDHWC", b"NCDHW"]

# The same with the layouts of ops that take any rank. A rank without a data format gets a name
# here, so that cases and tables can speak of it: T is one more dimension.
LAYOUTS: Mapping[str, tuple[int, bool]] = {
    **DATA_FORMATS,
    "NC": (2, False),
    "NWC": (3, True),
    "NCW": (3, False),
    "NCTDHW": (6, False),
}


def channel_axis(layout: str) -> int:
    """The axis of the channels."""
    rank, channels_last = LAYOUTS[layout]
    return rank - 1 if channels_last else 1


def view_shape(shape: tuple[int, ...], layout: str) -> tuple[int, int, int]:
    """(outer, channels, inner) of a tensor shape in `layout`."""
    _, channels_last = LAYOUTS[layout]
    if channels_last:
        return math.prod(shape[:-1]), shape[-1], 1
    return shape[0], shape[1], math.prod(shape[2:])


def as_view(array: np.ndarray, layout: str) -> np.ndarray:
    """`array` seen as [outer, channels, inner], without a copy for contiguous arrays."""
    return array.reshape(view_shape(array.shape, layout))
