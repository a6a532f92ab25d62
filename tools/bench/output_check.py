"""Checks a result after timing: outputs against float64, large tensors in some channels.

The gradient of a layer is checked for the statistics that its forward call saved, behind ReLU with
the mask of the y that it returned. This library's outputs may be off by one rounding; a peer's by
what an honest float32 implementation is, which may also round before the addition of a side input.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from bench import bench_inputs
from bench.rows import FORWARD, GRADIENT, Row
from tf_bn_ops import spec

_ELEMENTS = 1 << 17  # To check in a row; at least one channel.
_GRADIENTS = ("x_backprop", "scale_backprop", "offset_backprop")


def channels_to_check(row: Row) -> np.ndarray:
    """The same ones in every run."""
    outer, channels, inner = row.view
    count = min(channels, max(1, _ELEMENTS // (outer * inner)))
    rng = np.random.default_rng(zlib.crc32(str(row).encode()))
    return np.sort(rng.choice(channels, count, replace=False))


def what_is_wrong(
    row: Row, channels: np.ndarray, outputs: Mapping[str, np.ndarray], precise: bool
) -> str | None:
    """What is wrong with the outputs of some channels, tensors as [outer, channels, inner]; None if
    nothing is. `precise`: as this library computes, not as a peer may."""
    side = tuple(f"{role}_backprop" for role in row.inputs[2:])
    layer = ("y", "saved_mean", *_GRADIENTS, *side)
    for role in {GRADIENT: _GRADIENTS, FORWARD: ("y",)}.get(row.call, layer):
        if role not in outputs:
            return f"{role} is missing"
    shape = (row.view[0], len(channels), row.view[2])
    for role in outputs.keys() & {"y", "x_backprop", "side_input_backprop"}:
        array, dtype = outputs[role], spec.DTYPES[row.dtype].numpy
        if array.shape != shape or array.dtype != dtype:
            return f"{role} is {array.dtype} {list(array.shape)}, not {dtype} {list(shape)}"
    for role, (value, tolerance) in _expected(row, channels, outputs, precise).items():
        if role in outputs:
            got = outputs[role].astype(np.float64)
            if got.shape != value.shape or not np.all(np.abs(got - value) <= tolerance):
                return f"{role} is not what float64 gives"
    return None


def _expected(
    row: Row, channels: np.ndarray, outputs: Mapping[str, np.ndarray], precise: bool
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Role -> value and tolerance."""
    view = row.view
    wide = {
        r: bench_inputs.channels_of(r, row.dtype, view, channels).astype(float) for r in row.inputs
    }
    given = {r: v[channels].astype(float) for r, v in bench_inputs.statistics(row.channels).items()}
    unit = spec.DTYPES[row.dtype].unit_roundoff
    tiny = spec.DTYPES[row.dtype].smallest_normal * unit  # The rounding of a subnormal.
    # Relative to the terms of a sum: the rounding of an output, and sums over a channel.
    rounding, sums = (1.01 * unit, 1e-6) if precise else (4 * unit, 1e-4)
    x, dy, count = wide["x"], wide["y_backprop"], view[0] * view[2]
    training, mean, variance = row.mode == "training", given["mean"], given["variance"]
    found = {}
    if row.call != GRADIENT:
        mean, variance = x.mean((0, 2)), x.var((0, 2))
        rstd = 1 / np.sqrt(variance + bench_inputs.EPSILON)
        found["saved_rstd"] = rstd, sums * rstd
        for name, factor in (("saved", 1), ("batch", count / max(count - 1, 1))):
            found[f"{name}_mean"] = mean, sums * (np.abs(mean) + np.sqrt(variance))
            found[f"{name}_variance"] = factor * variance, sums * factor * variance
        factor = (given["scale"] * rstd)[:, None]
        terms = [x * factor, -mean[:, None] * factor, given["offset"][:, None]]
        terms += [wide[role] for role in row.inputs[2:]]
        y, magnitude = sum(terms), sum(map(np.abs, terms))
        tolerance = rounding * (np.abs(y) if precise else magnitude) + sums * magnitude + tiny
        found["y"] = np.maximum(y, 0) if row.activated else y, tolerance
        # What the gradient gets, as it was rounded.
        mean = outputs.get("saved_mean", mean).astype(float)
        variance = outputs.get("saved_variance", variance).astype(float)
    if row.call == FORWARD:
        return found
    if row.activated:
        dy = np.where(outputs["y"] > 0, dy, 0)
        found["side_input_backprop"] = dy, np.zeros_like(dy)
    rstd = 1 / np.sqrt(variance + bench_inputs.EPSILON)
    normalized, factor = (x - mean[:, None]) * rstd[:, None], (given["scale"] * rstd)[:, None]
    for role, terms in (("offset_backprop", dy), ("scale_backprop", dy * normalized)):
        found[role] = terms.sum((0, 2)), sums * np.abs(terms).sum((0, 2))
    a, b = (found[role][0][:, None] * training / count for role in _GRADIENTS[:0:-1])
    off_a, off_b = (found[role][1][:, None] * training / count for role in _GRADIENTS[:0:-1])
    magnitude = np.abs(dy) + np.abs(a) + np.abs(normalized * b)
    off = (rounding + sums) * magnitude + off_a + np.abs(normalized) * off_b
    found["x_backprop"] = factor * (dy - a - normalized * b), factor * off + tiny
    return found
