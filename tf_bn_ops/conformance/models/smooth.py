"""Smooth activations: the derivative, and how far off value and derivative may be.

For an activation of v that is off by d, computed in a type with roundoff u whose smallest normal
number is t; its `kind` in spec/activations.py has the numbers and the terms of the derivative:

  value  steepest*d + 8u|value| + 128t; t where v is flat_below - d or less
  slope  bend*d + 8u*sum|terms| + 128t, and the jump where the derivative jumps at a place that is
         nearer to v than d + 4u*|place|

exp is 0 instead of subnormal, which 128t covers: |v| of the smallest sigmoid is 87.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_Array = np.ndarray


def slope(v: _Array, kind: Any) -> _Array:
    """The derivative; at infinities what the formula gives."""
    with np.errstate(all="ignore"):
        return np.asarray(kind.slope(np, v))


def value_error(v: _Array, kind: Any, off: _Array, u: float, t: float) -> _Array:
    """How far off the value may be."""
    with np.errstate(all="ignore"):
        error = kind.steepest * off + 8 * u * np.abs(kind.value(np, v)) + 128 * t
        return np.where(v < kind.flat_below - off, t, error)


def slope_error(v: _Array, kind: Any, off: _Array, u: float, t: float) -> _Array:
    """How far off the derivative may be."""
    with np.errstate(all="ignore"):
        size = sum(np.abs(term) for term in kind.slope_terms(np, v))
        error = kind.bend * off + 8 * u * size + 128 * t
        for place, height in kind.jumps.items():
            near = np.abs(v - place) <= off + 4 * abs(place) * u
            error = error + np.where(near, height, 0)
        return error
