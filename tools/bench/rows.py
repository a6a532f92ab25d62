"""The rows of the benchmark: shapes of batch-norm layers of networks, and small ones; their inputs.

Every process generates the inputs bitwise identically, instead of receiving them. A tensor is a
pool of normal numbers, repeated. The length of the pool is prime, so that its period coincides with
no channel or row. All layouts of a shape have the same elements.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tf_bn_ops import spec

DTYPES = ("float32", "half", "bfloat16")
LAYOUTS = ("NHWC", "NCHW")


class UsageError(ValueError):
    """Wrong usage; the message is one sentence that says what to do."""


Pass = tuple[int, int]  # Over memory: how many tensors of the size of x it reads and writes.


class _Op(NamedTuple):
    """The least traffic of an op.

    Attributes:
      apply: the passes that read inputs and write outputs.
      sums: in training, the pass that reads again what the sums are taken of.
      inputs: how many tensors have to stay in cache for `sums` to read no memory.
    """

    apply: tuple[Pass, ...]
    sums: Pass
    inputs: int


class Call(NamedTuple):
    """What is called: one op, or both one after the other as in a layer's training.

    Attributes:
      title: in titles of tables.
      lead: above the table on the page of the benchmarks.
      ops: what it calls.
      forward, gradient: whether the forward op is among these, and its gradient.
      activated, adds: whether ReLU is behind batch norm; whether a side input is added before it.
      function: whether it is fused_batch_norm, and GradientTape's gradient of it, that is called.
    """

    title: str
    lead: str
    ops: tuple[_Op, ...]
    forward: bool = True
    gradient: bool = True
    activated: bool = False
    adds: bool = False
    function: bool = False


GRADIENT, FORWARD, LATENCY = "gradient", "forward", "latency"
_FORWARD, _GRADIENT = _Op(((1, 1),), (1, 0), 1), _Op(((2, 1),), (2, 0), 2)
CALLS = {
    GRADIENT: Call("gradient", "", (_GRADIENT,), forward=False),
    FORWARD: Call("forward", "The forward op, likewise:", (_FORWARD,), gradient=False),
    "layer": Call(
        "forward + gradient",
        "A layer in training, the forward op and its gradient, likewise:",
        (_FORWARD, _GRADIENT),
    ),
    # The mask of ReLU can be computed from x and the statistics.
    "layer_relu": Call(
        "batch norm + ReLU, forward + gradient",
        "A layer with ReLU behind it, likewise; TensorFlow's is a chain of ops:",
        (_FORWARD, _GRADIENT),
        activated=True,
    ),
    # The gradient reads y too, and writes two gradients: the side input's from y_backprop and y,
    # the other one from it and x, which the sums need.
    "layer_add_relu": Call(
        "batch norm + add + ReLU, forward + gradient",
        "A layer with the addition of a side input and ReLU behind it, likewise:",
        (_Op(((2, 1),), (1, 0), 1), _Op(((2, 1), (1, 1)), (2, 0), 3)),
        activated=True,
        adds=True,
    ),
    "function": Call(
        "fused_batch_norm",
        "An eager call of `fused_batch_norm` on a few kilobytes; TensorFlow's is "
        "`tf.compat.v1.nn.fused_batch_norm`:",
        (_FORWARD,),
        gradient=False,
        function=True,
    ),
    "function_gradient": Call(
        "fused_batch_norm and its gradient",
        "Such a call and its gradient by `tf.GradientTape`, likewise:",
        (_FORWARD, _GRADIENT),
        function=True,
    ),
}


def call_of(section: str) -> Call:
    """What the rows of a section call."""
    return CALLS[GRADIENT if section == LATENCY else section]


EPSILON = 1e-3
_PERIOD = 4194301  # The largest prime below 2^22.
# Seed, standard deviation and mean: roughly as in a network's activations and gradients. The
# mean of y_backprop is not zero, so that a missing offset_backprop term fails the check. The mean
# of side_input is zero: ReLU behind the addition lets about half of the elements through.
_POOLS = {"y_backprop": (1, 0.5, 0.125), "x": (2, 1.5, 0.75), "side_input": (4, 1.0, 0.0)}
_SEED = 20


@functools.lru_cache(maxsize=6)
def _pool(role: str, dtype: str) -> np.ndarray:
    seed, deviation, mean = _POOLS[role]
    normal = np.random.default_rng([_SEED, seed]).standard_normal(_PERIOD, np.float32)
    return (normal * np.float32(deviation) + np.float32(mean)).astype(spec.DTYPES[dtype].numpy)


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      section: one of CALLS, of layers of networks; or LATENCY, of the gradient on small tensors.
      shape: of x, in the layout.
      layout, dtype: of the tensors.
      mode: "training" or "frozen".
      threads: number of threads that every implementation may use.
    """

    section: str
    shape: tuple[int, ...]
    layout: str
    dtype: str
    mode: str
    threads: int

    @property
    def call(self) -> Call:
        return call_of(self.section)

    def tensors(self) -> dict[str, np.ndarray]:
        """The inputs of the size of x by role, flat; the side inputs last."""
        roles = ("y_backprop", "x", *["side_input"] * self.call.adds)
        return {role: np.resize(_pool(role, self.dtype), math.prod(self.shape)) for role in roles}

    def statistics(self) -> dict[str, np.ndarray]:
        """float32 [channels]: scale, offset, and a mean and variance close to x's."""
        rng, channels = np.random.default_rng([_SEED, 3]), self.view[1]
        _, deviation, mean = _POOLS["x"]
        found = {
            "scale": rng.uniform(0.5, 1.5, channels),
            "mean": mean + 0.1 * rng.standard_normal(channels),
            "variance": deviation**2 * rng.uniform(0.8, 1.25, channels),
            "offset": rng.uniform(-1, 1, channels),
        }
        return {role: array.astype(np.float32) for role, array in found.items()}

    @property
    def view(self) -> tuple[int, int, int]:
        """[outer, channels, inner]."""
        return spec.view_shape(self.shape, self.layout)

    @property
    def channels_last(self) -> bool:
        return spec.DATA_FORMATS[self.layout][1]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor of the size of x."""
        return math.prod(self.shape) * spec.DTYPES[self.dtype].numpy.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of the size of x: the traffic where the sums read no memory."""
        return sum(map(sum, self.passes(sys.maxsize))) * self.tensor_bytes

    def passes(self, last_level_cache: int) -> list[Pass]:
        """The least traffic.

        Training needs all sums of a channel before its first element can be written.
        Channels-first reduces and applies one channel at a time, and inputs that fit into the LLC
        are read from memory once; other channels-last inputs are read twice. A frozen call is one
        pass. A layer is a forward call and a gradient.
        """
        twice = self.mode == "training" and self.channels_last
        found: list[Pass] = []
        for op in self.call.ops:
            found += op.apply
            if twice and op.inputs * self.tensor_bytes > last_level_cache:
                found.append(op.sums)
        return found

    @property
    def name(self) -> str:
        """The shape as text."""
        return "x".join(map(str, self.shape))

    def __str__(self) -> str:
        return f"{self.name} {self.layout} {self.dtype} {self.mode}"


Shapes = Sequence[tuple[int, ...]]  # Channels last.
# Distinct shapes only; a network may have many layers of one shape. At 224x224 input, ResNet-50 (He
# et al. 2015) with the stride in the first 1x1 convolution of a stage, and some layers of
# MobileNetV2 (Sandler et al. 2018) of width 1.
_RESNET50 = (
    (112, 64), (56, 64), (56, 256), (28, 128), (28, 512), (14, 256), (14, 1024), (7, 512), (7, 2048)
)  # fmt: skip
_MOBILENETV2 = ((28, 32), (14, 96), (7, 320), (7, 960))
# What is measured unless --shapes names others; with --quick two of them.
DEFAULT = [(32, side, side, channels) for side, channels in _RESNET50 + _MOBILENETV2]
QUICK = [(32, 56, 56, 64), (32, 14, 14, 96)]
# Tensors of a few kilobytes: the time is the overhead of the call.
SMALL = [(2, 4, 4, 8), (1, 8, 8, 16), (4, 8, 8, 16), (8, 8, 8, 16)]


def shapes_of(text: str) -> Shapes:
    """The shapes that --shapes names, as 32x56x56x64.

    Raises:
      UsageError: a name is none.
    """
    for name in text.split(","):
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", name):
            raise UsageError(
                f"{name!r} is no shape of 4 dimensions, channels last, such as 32x56x56x64"
            )
    return [tuple(map(int, name.split("x"))) for name in text.split(",")]


def rows_of(
    section: str,
    shapes: Shapes,
    dtypes: Sequence[str],
    layouts: Sequence[str],
    modes: Sequence[str],
    threads: int,
) -> list[Row]:
    """The rows of a section; rows of one shape and dtype are neighbours and share their inputs."""
    return [
        Row(section, dims[layout], layout, dtype, mode, threads)
        for n, h, w, c in shapes
        for dims in [{"NHWC": (n, h, w, c), "NCHW": (n, c, h, w)}]
        for dtype in dtypes
        for layout in layouts
        for mode in modes
    ]
