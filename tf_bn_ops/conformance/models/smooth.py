"""Smooth activations: values, derivatives, and how far off these may be.

For an activation of v that is off by d, computed in a type with roundoff u whose smallest normal
number is t:

  Silu      value  1.1d + 8u|value| + 128t               (the derivative is at most 1.1)
            slope  0.5d + 8u*(s + |v|*s*(1 - s)) + 128t  (the second one at most 0.5; s the sigmoid)
  HardSilu  value  1.5d + 8u|v| above -3 - d, 0 below it
            slope  d/3 + 8u, and 0.5 more where -3 or 3 is nearer than d + 4u: there it jumps

exp is 0 instead of subnormal, which 128t covers: |v| of the smallest sigmoid is 87.
"""

from __future__ import annotations

import numpy as np

from tf_bn_ops.harness.problems import SILU

_Array = np.ndarray


def value(v: _Array, kind: str) -> _Array:
    """The activation; at infinities what the formula gives."""
    with np.errstate(all="ignore"):
        return v / (1 + np.exp(-v)) if kind == SILU else v * (np.clip(v + 3, 0, 6) / 6)


def slope(v: _Array, kind: str) -> _Array:
    """Its derivative."""
    with np.errstate(all="ignore"):
        if kind == SILU:
            s, rest = 1 / (1 + np.exp(-v)), 1 / (1 + np.exp(v))
            return s + v * s * rest
        return np.clip(v + 3, 0, 6) / 6 + np.where(np.abs(v) < 3, v / 6, 0)


def value_error(v: _Array, kind: str, off: _Array, u: float, t: float) -> _Array:
    """How far off the value may be."""
    with np.errstate(all="ignore"):
        if kind == SILU:
            return 1.1 * off + 8 * u * np.abs(value(v, kind)) + 128 * t
        return np.where(v > -3 - off, 1.5 * off + 8 * u * np.abs(v), 0) + t


def slope_error(v: _Array, kind: str, off: _Array, u: float, t: float) -> _Array:
    """How far off the derivative may be."""
    with np.errstate(all="ignore"):
        if kind == SILU:
            s, rest = 1 / (1 + np.exp(-v)), 1 / (1 + np.exp(v))
            return 0.5 * off + 8 * u * (s + np.abs(v) * s * rest) + 128 * t
        jumps = np.abs(np.abs(v) - 3) <= off + 4 * 3 * u
        return off / 3 + 8 * u + np.where(jumps, 0.5, 0) + t
