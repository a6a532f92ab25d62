"""A batch that replicas share, and the ways to cut it; read by program and test alike."""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_bn_ops.spec import DTYPES

EPSILON = 2.0**-10  # The same number in float32.
FACTOR = 0.25


@dataclasses.dataclass(frozen=True)
class Case:
    """A synchronized call of fused_batch_norm on a batch of seven samples."""

    dtype: str = "float32"
    mean: float = 0.5
    activation: str | None = None
    side_input: bool = False
    channels_last: bool = True

    @property
    def data_format(self) -> str:
        return "NHWC" if self.channels_last else "NCHW"

    def inputs(self) -> dict[str, np.ndarray]:
        """The whole batch by name: x of deviation 2 around `mean`."""
        rng = np.random.default_rng(5)
        element = DTYPES[self.dtype]
        vector = DTYPES["float64" if self.dtype == "float64" else "float32"]
        channels = 5
        shape = (7, 6, 9, channels) if self.channels_last else (7, channels, 6, 9)
        values = {"x": rng.normal(self.mean, 2, shape), "y_backprop": rng.normal(0.3, 1, shape)}
        if self.side_input:
            values["side_input"] = rng.normal(0, 1, shape)
        vectors = {name: rng.uniform(0.5, 2, channels) for name in ("scale", "offset", "variance")}
        vectors["mean"] = rng.normal(self.mean, 1, channels)
        stored = {name: element.store(value) for name, value in values.items()}
        return stored | {name: vector.store(value) for name, value in vectors.items()}


# Samples of each replica: even, uneven, one sample, none.
SPLITS = {
    2: [[3, 4], [6, 1], [0, 7], [7, 0]],
    3: [[2, 2, 3], [1, 0, 6], [0, 0, 7]],
    4: [[2, 2, 2, 1], [0, 1, 0, 6]],
}
# Not a mean of 1e5 in half and bfloat16, which cannot hold a deviation of 2 beside it; nor in
# float64: there the mean that is exchanged is rounded by as much as the bound of y allows x.
QUICK = [Case(mean=1e5, activation="relu6", side_input=True)]
ALL = [
    Case(),
    Case(mean=1e5, activation="relu"),
    Case(mean=1e5, activation="relu6", side_input=True, channels_last=False),
    Case("half", 30, "relu"),
    Case("bfloat16", side_input=True),
    Case("float64", activation="relu", side_input=True),
]
