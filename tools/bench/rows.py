"""The rows of the benchmark: shapes of batch-norm layers of networks, and small ones.

Shapes are given channels-last, batch first; `dims` has them in any layout.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from tf_bn_ops import spec

DTYPES = ("float32", "half", "bfloat16")
# What is called: the gradient op, the forward op, or one after the other as in a layer's training:
# of batch norm alone, with ReLU, or with the addition of a side input and ReLU behind it.
GRADIENT, FORWARD, LAYER, LAYER_RELU, LAYER_ADD_RELU = CALLS = (
    *("gradient", "forward"),
    *("layer", "layer_relu", "layer_add_relu"),
)
# Tensors of the size of x that a call has to read or write. The mask of ReLU can be computed from x
# and the statistics; an addition has three more: the side input, its gradient, and y for the mask.
_TENSORS = {GRADIENT: 3, FORWARD: 2, LAYER: 5, LAYER_RELU: 5, LAYER_ADD_RELU: 8}


class UsageError(ValueError):
    """Wrong usage; the message is one sentence that says what to do."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      section: one of CALLS, of layers of networks; or "latency", of the gradient.
      network: where the shape comes from.
      shape: batch, spatial dimensions, channels.
      layout, dtype: of the tensors.
      mode: "training" or "frozen".
      threads: number of threads that every implementation may use.
    """

    section: str
    network: str
    shape: tuple[int, ...]
    layout: str
    dtype: str
    mode: str
    threads: int

    @property
    def call(self) -> str:
        """One of CALLS."""
        return self.section if self.section in CALLS else GRADIENT

    @property
    def activated(self) -> bool:
        """Whether ReLU is behind batch norm."""
        return self.call in (LAYER_RELU, LAYER_ADD_RELU)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The roles of the inputs of the size of x."""
        return ("y_backprop", "x", *["side_input"] * (self.call == LAYER_ADD_RELU))

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape in the layout."""
        if self.channels_last:
            return self.shape
        return (self.shape[0], self.shape[-1], *self.shape[1:-1])

    @property
    def view(self) -> tuple[int, int, int]:
        """[outer, channels, inner]."""
        return spec.view_shape(self.dims, self.layout)

    @property
    def channels_last(self) -> bool:
        return spec.DATA_FORMATS[self.layout][1]

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor of the size of x."""
        return self.elements * spec.DTYPES[self.dtype].numpy.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of the size of x: the least traffic."""
        return _TENSORS[self.call] * self.tensor_bytes

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.dims))} {self.layout} {self.dtype} {self.mode}"


def _square(batch: int, layers: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    return tuple((batch, side, side, channels) for side, channels in layers)


# Distinct shapes only; a network may have many layers of one shape.
NETWORKS: dict[str, tuple[tuple[int, ...], ...]] = {
    # He et al. 2015, 224x224 input, stride in the first 1x1 convolution of a stage.
    "resnet50": _square(
        32,
        (
            (112, 64), (56, 64), (56, 256), (28, 128), (28, 512), (14, 256), (14, 1024), (7, 512),
            (7, 2048),
        ),
    ),
    # Sandler et al. 2018, 224x224 input, width 1.
    "mobilenetv2": _square(
        32,
        (
            (112, 32), (112, 16), (112, 96), (56, 96), (56, 24), (56, 144), (28, 144), (28, 32),
            (28, 192), (14, 192), (14, 64), (14, 384), (14, 96), (14, 576), (7, 576), (7, 160),
            (7, 960), (7, 320), (7, 1280),
        ),
    ),
}  # fmt: skip
# What is measured unless --shapes names others; with --quick two of them.
DEFAULT = [("resnet50", shape) for shape in NETWORKS["resnet50"]]
DEFAULT += [
    ("mobilenetv2", (32, side, side, c)) for side, c in ((28, 32), (14, 96), (7, 320), (7, 960))
]
QUICK = [("resnet50", (32, 56, 56, 64)), ("mobilenetv2", (32, 14, 14, 96))]
# Tensors of a few kilobytes: the time is the overhead of the call.
_LATENCY = ((2, 4, 4, 8), (1, 8, 8, 16), (4, 8, 8, 16), (8, 8, 8, 16))


def layouts(shape: Sequence[int]) -> tuple[str, str]:
    """The data formats of a shape, channels-last first."""
    return ("NHWC", "NCHW") if len(shape) == 4 else ("NDHWC", "NCDHW")


def choose(names: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """(network, shape) pairs that --shapes names: networks, or shapes as 32x56x56x64.

    Raises:
      UsageError: a name is neither.
    """
    known = [(network, shape) for network, shapes in NETWORKS.items() for shape in shapes]
    chosen = []
    for name in names:
        if name in NETWORKS:
            chosen += [(name, shape) for shape in NETWORKS[name]]
        elif re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3,4}", name):
            shape = tuple(map(int, name.split("x")))
            chosen.append((next((n for n, s in known if s == shape), "given"), shape))
        else:
            raise UsageError(
                f"{name!r} is no network ({', '.join(NETWORKS)}) and no shape of 4 or 5 "
                "dimensions, channels last, such as 32x56x56x64"
            )
    return chosen


def rows_of_call(
    call: str,
    shapes: Sequence[tuple[str, tuple[int, ...]]],
    dtypes: Sequence[str],
    layouts_: Sequence[str],
    modes: Sequence[str],
    threads: int,
) -> list[Row]:
    """The rows of one of CALLS; forward calls and layers are measured in training. Rows of one
    shape and dtype are neighbours: they share their inputs."""
    return [
        Row(call, network, shape, layout, dtype, mode, threads)
        for network, shape in shapes
        for dtype in dtypes
        for layout in layouts(shape)
        if layout in layouts_
        for mode in modes
        if call == GRADIENT or mode == "training"
    ]


def latency_rows(threads: int) -> list[Row]:
    """Small tensors in float32 and half."""
    return [
        Row("latency", "small", shape, layout, dtype, "training", threads)
        for shape in _LATENCY
        for layout in layouts(shape)
        for dtype in ("float32", "half")
    ]
