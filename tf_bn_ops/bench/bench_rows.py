"""The rows of the benchmark: shapes of batch-norm layers, and series of shapes for scaling.

Shapes are given channels-last, batch first; `dims` has them in any layout.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

from tf_bn_ops import spec

DTYPES = ("float32", "half", "bfloat16")

# What is called: the gradient op, the forward op, or one after the other as in a layer's training:
# of batch norm alone, with ReLU, or with the addition of a side input and ReLU behind it.
GRADIENT, FORWARD, LAYER, LAYER_RELU, LAYER_ADD_RELU = CALLS = (
    *("gradient", "forward"),
    *("layer", "layer_relu", "layer_add_relu"),
)
LAYERS = (LAYER, LAYER_RELU, LAYER_ADD_RELU)
# Tensors of the size of x that it has to read or write. The mask of ReLU can be computed from x and
# the statistics; behind an addition y is read for it, or the side input.
_TENSORS = {GRADIENT: 3, FORWARD: 2, LAYER: 5, LAYER_RELU: 5, LAYER_ADD_RELU: 8}


class ShapeError(ValueError):
    """A filter that names no shape; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      section: one of CALLS, of layers of networks; of the gradient also the scaling series
        "elements", "channels", "threads", and "latency".
      network: where the shape comes from.
      shape: batch, spatial dimensions, channels.
      layout: data format of the tensors.
      dtype: element type.
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

    @classmethod
    def of_dims(
        cls, section: str, network: str, dims: tuple[int, ...], layout: str, *rest: Any
    ) -> Row:
        """A row whose shape is given in its layout; `rest` is dtype, mode, threads."""
        last = spec.DATA_FORMATS[layout][1]
        return cls(section, network, dims if last else (dims[0], *dims[2:], dims[1]), layout, *rest)

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
        """The roles of the inputs of the size of x, in the order of Implementation.load."""
        added = ("side_input",) if self.call == LAYER_ADD_RELU else ()
        return ("y_backprop", "x", *added)

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
        """Bytes of x, y_backprop or x_backprop."""
        return self.elements * spec.DTYPES[self.dtype].numpy.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of the size of x: the least traffic. Of a gradient y_backprop, x and
        x_backprop, of a forward call x and y, of a layer both. An addition has three more: the side
        input, its gradient, and y for the mask of that."""
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
    # Cicek et al. 2016, two patches of 64x64x64, padded convolutions.
    "unet3d": tuple(
        (2, side, side, side, channels)
        for side, channels in (
            (64, 32), (64, 64), (32, 64), (32, 128), (16, 128), (16, 256), (8, 256), (8, 512),
        )
    ),
    # Radford et al. 2015, the generator for 64x64 images, batch 128.
    "dcgan": _square(128, ((4, 1024), (8, 512), (16, 256), (32, 128))),
    # An image, a dense layer's output, a tiny tensor.
    "odd": ((32, 224, 224, 3), (4096, 1, 1, 256), (2, 4, 4, 8)),
}  # fmt: skip

# A few shapes of every kind: --quick.
QUICK = ((32, 56, 56, 64), (32, 14, 14, 384), (2, 16, 16, 16, 128), (2, 4, 4, 8))

# Tensors of a few kilobytes: the time is the overhead of the call.
LATENCY = ((2, 4, 4, 8), (1, 8, 8, 16), (4, 8, 8, 16), (8, 8, 8, 16))

# Series: one size varies.
ELEMENTS = tuple(10**k for k in range(3, 9))
CHANNELS = (1, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_CHANNELS_ELEMENTS = 1 << 22
_THREADS_SHAPES = ((32, 112, 112, 64), (32, 56, 56, 64))

# Shapes of which the peak memory of a call is measured.
MEMORY = ((32, 56, 56, 64), (32, 112, 112, 64), (32, 7, 7, 2048), (32, 224, 224, 3))


def layouts(shape: Sequence[int]) -> tuple[str, str]:
    """The data formats of a shape, channels-last first."""
    return ("NHWC", "NCHW") if len(shape) == 4 else ("NDHWC", "NCDHW")


def choose(names: Sequence[str], quick: bool) -> list[tuple[str, tuple[int, ...]]]:
    """(network, shape) pairs that --shapes names: networks, or shapes as 32x56x56x64.

    Raises:
      ShapeError: a name is neither.
    """
    if not names:
        shapes = QUICK if quick else None
        return [
            (network, shape)
            for network, known in NETWORKS.items()
            for shape in known
            if shapes is None or shape in shapes
        ]
    chosen = []
    for name in names:
        if name.lower() in NETWORKS:
            chosen += [(name.lower(), shape) for shape in NETWORKS[name.lower()]]
        elif re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3,4}", name):
            shape = tuple(int(n) for n in name.split("x"))
            network = next((n for n, known in NETWORKS.items() if shape in known), "given")
            chosen.append((network, shape))
        else:
            raise ShapeError(
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
    if call != GRADIENT:
        modes = [mode for mode in modes if mode == "training"]
    return [
        Row(call, network, shape, layout, dtype, mode, threads)
        for network, shape in shapes
        for dtype in dtypes
        for layout in layouts(shape)
        if layout in layouts_
        for mode in modes
    ]


def scaling_rows(layouts_: Sequence[str], threads: int, quick: bool = False) -> list[Row]:
    """Time against elements (64 channels) and against channels (4 Mi elements)."""
    rows = []
    for elements in ELEMENTS[:4] if quick else ELEMENTS:
        # 64 channels, 16 images: 8e5 elements are [16, 1, 781, 64].
        batch = 16 if elements >= 10**4 else 1
        shape = (batch, 1, max(1, elements // (64 * batch)), 64)
        for layout in layouts(shape):
            rows.append(Row("elements", "series", shape, layout, "float32", "training", threads))
    for channels in CHANNELS[::4] if quick else CHANNELS:
        shape = (32, 1, _CHANNELS_ELEMENTS // 32 // channels, channels)
        for layout in layouts(shape):
            rows.append(Row("channels", "series", shape, layout, "float32", "training", threads))
    return [row for row in rows if row.layout in layouts_]


def latency_rows(threads: int, quick: bool = False) -> list[Row]:
    """Small tensors in float32 and half."""
    return [
        Row("latency", "small", shape, layout, dtype, "training", threads)
        for shape in LATENCY[: 2 if quick else None]
        for layout in layouts(shape)
        for dtype in ("float32", "half")
    ]


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    return sorted({2**k for k in range(cores.bit_length())} & set(range(1, cores + 1)) | {cores})


def thread_rows(threads: int) -> list[Row]:
    """Rows for one number of threads."""
    return [
        Row("threads", "series", shape, layout, "float32", "training", threads)
        for shape in _THREADS_SHAPES
        for layout in layouts(shape)
    ]
