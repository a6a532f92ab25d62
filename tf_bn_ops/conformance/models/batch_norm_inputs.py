"""The inputs of batch normalization, by kind; the kinds of gradients that are about x serve here.

What the case's string does not say, its seed decides: the factor of the moving averages, what an
input that is not read holds, and of ops that have them the activation and the side input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models.inputs import Draw, Kind, Pair
from tf_bn_ops.harness.problems import IDENTITY, RELU, RELU6, Call, Inputs

# How often the given averages are not read.
_SHARE_OF_FACTOR_1 = 0.5
_SHARE_WITHOUT_SIDE_INPUT = 0.4
# 0 is what code takes for "not given".
_FACTORS = (0.1, 0.25, 0.01, 0.9, 0.0)


# A pair is (side_input, x).


def _huge_offset(d: Draw) -> Pair:
    """|mean of x| is up to 10^7 of its standard deviations, as far as the type holds x at all."""
    digits = np.floor(-np.log10(spec.DTYPES[d.dtype].unit_roundoff))
    exponents = d.rng.uniform(min(2, digits), min(7, digits), (d.shape[1], 1))
    mean = 10**exponents * d.rng.choice([-1, 1], exponents.shape)
    return d.gauss(), d.gauss().astype(np.float64) + mean


def _outlier_first(d: Draw) -> Pair:
    """The first element of a channel, which sums may measure x from, is far from the others."""
    x = d.gauss() + d.per_channel(-1.0, 1.0)
    if x.size:
        top = min(1e4, spec.DTYPES[d.dtype].largest / 4)
        x[0, :, 0] = d.per_channel(top / 10, top, either_sign=True)[:, 0]
    return d.gauss(), x


def _far_center(d: Draw) -> Pair:
    """The elements whose median sums may be measured from are far from the others, which are equal:
    what rounds, rounds to one side."""
    x = np.zeros(d.shape, d.real) + d.per_channel(0.1, 1.0)
    if x.size:
        top = d.per_channel(30.0, 300.0, either_sign=True)[:, 0]
        for o, i in inputs.center_places(d.shape):
            x[o, :, i] = top
    return d.gauss(), x


def _kink(d: Draw) -> Pair:
    """Elements that are exactly at the mean: with an offset of zero, y is exactly zero there."""
    x = d.rng.integers(-1, 2, d.shape) * d.per_channel(0.5, 2.0)
    return np.zeros(d.shape, d.real), x.astype(d.real)


def _overflow(d: Draw) -> Pair:
    """Results around the largest number of the type: some must become infinite, some must not."""
    top = spec.DTYPES[d.dtype].largest
    x = np.clip(d.gauss(), -3, 3)
    return x * d.real(top / 5), x * d.real(top / 20)


_SHARED = (
    "normal", "large_offset", "tiny_variance", "tail", "wide", "sparse", "constant_input",
    "denormals", "nonfinite", "odd_statistics",
)  # fmt: skip

KINDS: Mapping[str, Kind] = {
    **{name: inputs.KINDS[name] for name in _SHARED},
    # In training the variance is 1/4 with the first, 1 with the second; see `_exact`.
    "exact": Kind(None, epsilons=(0.75, 3.0), weight=2, exact=True),
    "huge_offset": Kind(_huge_offset),
    "outlier_first": Kind(_outlier_first),
    "far_center": Kind(_far_center),
    "kink": Kind(_kink),
    "overflow": Kind(_overflow),
}


def _exact(rng: np.random.Generator, call: Call) -> tuple[dict[str, np.ndarray], frozenset[str]]:
    """Halves of small integers and powers of two, so that every sum is exact in any order.

    In training half of a channel's elements are as far above an integer mean as the others are
    below (of an odd number one is the mean itself): the mean is exact, and where the number is even
    so is the variance, 1/4 or 1, with which epsilon adds up to 1 or 4. rstd is a power of two, as
    scale is, and y exact up to the one rounding to its type.
    """
    shape = spec.view_shape(call.shape, call.layout)
    outer, channels, inner = shape
    rows = outer * inner
    deviation = 0.5 if call.epsilon < 1 else 1.0
    total = deviation**2 + call.epsilon
    mean = rng.integers(-2, 3, channels).astype(np.float32)
    signs = np.zeros((channels, rows), np.float32)
    signs[:, : rows // 2], signs[:, rows // 2 : 2 * (rows // 2)] = 1, -1
    signs = rng.permuted(signs, axis=1)
    x = mean[:, None] + np.float32(deviation) * signs
    x = np.ascontiguousarray(x.reshape(channels, outer, inner).swapaxes(0, 1))
    exact = {"saved_mean", "batch_mean"}
    if rows % 2 == 0 or not call.is_training:
        exact |= {"saved_variance", "y"}
    if not call.is_training:
        exact.add("batch_variance")
    values = {
        "x": x,
        "side_input": rng.integers(-3, 4, shape).astype(np.float32),
        "scale": np.float32(2.0) ** rng.integers(-2, 3, channels) * rng.choice((-1, 1), channels),
        "offset": rng.integers(-4, 5, channels) / np.float32(4),
        "mean": rng.integers(-2, 3, channels).astype(np.float32),
        "variance": np.full(channels, total - call.epsilon, np.float32),
    }
    return values, frozenset(exact)


def _random(rng: np.random.Generator, call: Call, kind: Kind) -> dict[str, np.ndarray]:
    shape = spec.view_shape(call.shape, call.layout)
    channels = shape[1]
    dtype = spec.DTYPES[call.dtype].numpy
    assert kind.make is not None
    with np.errstate(all="ignore"):
        side_input, x = kind.make(Draw(rng, shape, call.dtype))
        x = x.astype(dtype)
        mean, variance = inputs.statistics(rng, call, x)
    scale = rng.uniform(*kind.scales, channels) * rng.choice((-1, 1), channels)
    if channels > 8:
        scale[rng.integers(channels)] = 0
    offset = np.zeros(channels) if call.kind == "kink" else rng.normal(size=channels)
    if call.kind == "nonfinite" and channels > 5:
        mean[rng.integers(channels)] = np.nan
    values = {"x": x, "side_input": side_input, "scale": scale, "offset": offset}
    return values | {"mean": mean, "variance": variance}


def _attrs(rng: np.random.Generator, call: Call) -> dict[str, Any]:
    """The attrs that the case's string does not say."""
    attrs: dict[str, Any] = {"exponential_avg_factor": 1.0}
    if rng.random() > _SHARE_OF_FACTOR_1:
        attrs["exponential_avg_factor"] = float(rng.choice(_FACTORS))
    choices = {"activation_mode": (IDENTITY, RELU, RELU6), "bessel_correction": (True, False)}
    for name, values in choices.items():
        if name in call.spec.attrs:
            attrs[name] = values[int(rng.integers(len(values)))]
    return attrs


def _unread(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """What stands for an input that is not read: NaN, nothing, or numbers."""
    return (np.full_like(array, np.nan), array[:0], array)[int(rng.integers(3))]


def fill(call: Call) -> Inputs:
    """The inputs of a call, from its seed, by role, and the inputs of the family's other ops."""
    rng = np.random.default_rng([call.seed, len(call.shape), 7])
    attrs = _attrs(rng, call)
    kind = KINDS[call.kind]
    exact: frozenset[str] = frozenset()
    if kind.exact:
        values, exact = _exact(rng, call)
    else:
        values = _random(rng, call, kind)
    if attrs["exponential_avg_factor"] != 1 and call.is_training:
        exact -= {"batch_mean"}
    if call.is_training and attrs["exponential_avg_factor"] == 1:
        for role in ("mean", "variance"):
            values[role] = _unread(rng, values[role])
    takes_side_input = "side_input" in {arg.role for arg in call.spec.inputs}
    if smooth := inputs.smooth_activation(call):
        attrs |= smooth
        exact -= {"y"}
    if not takes_side_input or rng.random() < _SHARE_WITHOUT_SIDE_INPUT:
        del values["side_input"]
    found = inputs.tensors(call, values, exact)
    return dataclasses.replace(found, attrs=attrs)
