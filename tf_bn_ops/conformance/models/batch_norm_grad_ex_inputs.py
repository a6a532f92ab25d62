"""The inputs of the gradient behind an activation: the plain gradient's, an offset, and y.

What the case's string does not say, its seed decides: the activation, whether there is a side
input, and whether reserve_space_3 holds the forward's coefficients. With them y is, bit by bit,
what the forward computes by them, so that masks from x and from y are the same. Without them some
elements are replaced by what a mask may stumble over: 0, 6, NaN, and numbers next to them. Of a
smooth activation y is the side input or, without one, not read, and NaN.

Each channel has an offset by which about three of four elements pass, with some elements exactly at
the activation's bounds, or a rounding away.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models.batch_norm import activated
from tf_bn_ops.harness.problems import IDENTITY, RELU, RELU6, Call, Inputs
from tf_bn_ops.spec import DType

KINDS = inputs.KINDS

# What is drawn of; one in this many for each entry.
_ACTIVATIONS = (RELU, RELU, RELU6, RELU6, RELU6, IDENTITY)
_SHARE_WITH_SIDE_INPUT = 0.35
_SHARE_WITH_COEFFICIENTS = 0.6
# Of the elements of a y that no coefficients belong to.
_SHARE_SPECIAL = 0.05
# Below it a result, or a sum on the way to it, may be flushed to zero: the forward's decision would
# depend on where it runs.
_TINY = 1e-30


def before_activation(
    x: np.ndarray, coefficients: np.ndarray, offset: np.ndarray, dtype: DType
) -> np.ndarray:
    """scale * (x - mean) * rstd + offset as the forward op computes it, each operation rounded to
    the type that it computes in."""
    compute = coefficients.dtype
    part, rest, factor = coefficients[:3, :, None]
    with np.errstate(all="ignore"):
        xmu = (dtype.widen(x, compute) - part) - rest
        return xmu * factor + offset.astype(compute)[:, None]


def _offsets(rng: np.random.Generator, scaled: np.ndarray, activation: str) -> np.ndarray:
    """An offset for each channel, from the channel's scale * (x - mean) * rstd."""
    outer, channels, inner = scaled.shape
    offset = rng.choice((-1, 1, 2, 4), channels).astype(scaled.dtype)
    ordered = np.sort(scaled.swapaxes(0, 1).reshape(channels, outer * inner), axis=1)
    finite = np.isfinite(ordered).sum(1) if ordered.size else np.zeros(channels, int)
    for c in np.flatnonzero(finite > 1):
        if ordered[c, 0] == ordered[c, finite[c] - 1]:
            continue  # A constant channel: all elements pass, or none.
        at_upper = activation == RELU6 and rng.random() < 0.3
        place = 0.8 if at_upper else 0.25
        element = ordered[c, int(place * (finite[c] - 1))]
        offset[c] = (6 if at_upper else 0) - element
        for _ in range(int(rng.integers(3))):
            offset[c] = np.nextafter(offset[c], offset[c] + rng.choice((-1, 1)))
    return offset


def _special(rng: np.random.Generator, y: np.ndarray, dtype: DType) -> np.ndarray:
    """y, with some elements at the activation's bounds, next to them, or NaN."""
    near_six = 6 * (1 - 2 * dtype.unit_roundoff)
    values = np.array(
        [0, 0, 6, 6, dtype.smallest_kept, near_six, 6 * (1 + 2 * dtype.unit_roundoff), np.nan]
    )
    chosen = values[rng.integers(len(values), size=y.shape)]
    return np.where(rng.random(y.shape, dtype=np.float32) < _SHARE_SPECIAL, chosen, y)


def _fill_y(
    rng: np.random.Generator, call: Call, values: dict[str, np.ndarray], activation: str,
    has_side_input: bool, wants_coefficients: bool,
) -> bool:  # fmt: skip
    """Sets offset and y as the forward op has them; whether its coefficients, and no others, give
    this y."""
    dtype, k = spec.DTYPES[call.dtype], inputs.coefficients_of(call, values)
    x, none = dtype.store(values["x"]), np.zeros(k.shape[1])
    offset = _offsets(rng, before_activation(x, k, none, dtype), activation)
    values["offset"] = offset.astype(spec.DTYPES[call.statistics_dtype].numpy)
    v = before_activation(x, k, values["offset"], dtype)
    tiny = (v != 0) & (np.abs(v) < _TINY)
    if wants_coefficients and not tiny.any():
        with np.errstate(over="ignore"):
            values["y"] = dtype.store(activated(v, spec.ACTIVATIONS[activation]))
        return True
    with np.errstate(all="ignore"):
        v = v.astype(np.float64)
        if has_side_input:
            v += rng.normal(0, 0.5, v.shape)
        y = _special(rng, activated(v, spec.ACTIVATIONS[activation]), dtype)
        flushed = spec.DTYPES[dtype.accumulator].smallest_normal
        values["y"] = dtype.store(np.where(np.abs(y) < flushed, 0, y))
    return False


def fill(call: Call) -> Inputs:
    """The inputs of a call, from its seed, by role, and the inputs of the family's other ops."""
    values, exact = inputs.draw(call)
    rng = np.random.default_rng([call.seed, len(call.shape), 11])
    activation = _ACTIVATIONS[int(rng.integers(len(_ACTIVATIONS)))]
    has_side_input = bool(rng.random() < _SHARE_WITH_SIDE_INPUT)
    smooth = inputs.smooth_activation(call)
    activation = smooth.get("activation_mode", activation)
    wanted = rng.random() < _SHARE_WITH_COEFFICIENTS
    channels = values["scale"].size
    reserve = inputs.reserve_space(rng, channels)
    behind_x = activation != IDENTITY and (bool(smooth) or not has_side_input)
    is_whole = call.kind in inputs.WITH_COEFFICIENTS
    wants = bool((wanted or is_whole) and behind_x)
    is_given = _fill_y(rng, call, values, activation, has_side_input, wants)
    if is_given or (is_whole and not behind_x):
        reserve = inputs.coefficients_of(call, values)
    if smooth:
        spread = 2 if has_side_input else np.nan
        values["y"] = spec.DTYPES[call.dtype].store(rng.normal(0, 1, values["y"].shape) * spread)
        exact = frozenset()
    values["forward_coefficients"] = reserve
    if activation == IDENTITY:  # Neither is read.
        values["offset"] = np.full(channels, np.nan)
        if rng.random() < 0.5:
            values["y"] = np.full_like(values["y"], np.nan)
    if has_side_input:
        exact |= {"side_input_backprop"} if exact else set()
    attrs = {"activation_mode": activation, "num_side_inputs": int(has_side_input)}
    attrs |= smooth
    return dataclasses.replace(inputs.tensors(call, values, exact), attrs=attrs)
