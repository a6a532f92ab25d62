"""How far from float64 a model's training is: in Keras alone, and on this library.

The rule of every comparison with Keras: losses, gradients, weights, moving statistics and
predictions are at most LARGEST times as far from the same model's in float64 as Keras' own.
Some models amplify rounding, so Keras' own distance is the largest of several runs, all but one of
which get inputs that are a unit in the last place off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

KINDS = ("losses", "gradients", "weights", "statistics", "predictions")
LARGEST = 4.0
# Keras' runs with other inputs.
NUDGES = 2

# What a run computes: arrays of each kind.
Values = dict[str, list[np.ndarray]]


def set_weights(model: Any, seed: int) -> None:
    """Sets weights and moving statistics to numbers that depend on seed, order and shape alone, so
    that they are the same in each element type; zero moving means would hide a fault."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if "float" not in str(weight.dtype):
            continue
        draw, shape = rng.standard_normal(weight.shape), tuple(weight.shape)
        if len(shape) > 1:
            inner = shape[:2] if "depthwise" in weight.path and len(shape) == 4 else shape[:-1]
            value = draw * math.sqrt(2 / math.prod(inner))
        elif "variance" in weight.name:
            value = 1 + 0.1 * np.abs(draw)
        else:
            is_scale = weight.name in ("gamma", "scale")
            value = is_scale + 0.1 * draw
        weight.assign(np.asarray(value, np.float32))


def nudged(x: np.ndarray, number: int, unit: float) -> np.ndarray:
    """The inputs of a run of Keras': `x` itself as number 0, else two unit roundoffs off."""
    signs = np.random.default_rng(number).choice([-1, 1], x.shape) if number else 0
    return (x * (1 + 2 * unit * signs)).astype(x.dtype)


def split_weights(model: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Values of weights that are trained or might be, and of moving statistics."""
    of: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for weight in model.weights:
        if "float" in str(weight.dtype):
            of["moving" in weight.name].append(as_float64(weight))
    return of


def as_float64(tensor: Any) -> np.ndarray:
    import tensorflow as tf

    return tf.cast(tf.convert_to_tensor(tensor), tf.float64).numpy()


def distances(got: Mapping[str, Sequence[Any]], want: Mapping[str, Sequence[Any]]) -> dict:
    """The root mean square of the differences of each kind, relative to the root mean square of
    what is wanted; infinite where numbers are not finite that should be."""
    result = {}
    for kind in KINDS:
        assert len(got[kind]) == len(want[kind]), kind
        error = size = 0.0
        for a, b in zip(got[kind], want[kind], strict=True):
            assert a.shape == b.shape, f"{kind}: {a.shape} instead of {b.shape}"
            is_finite = np.isfinite(b)
            with np.errstate(invalid="ignore"):
                squares = np.where(is_finite, np.square(np.float64(a) - b), 0.0)
            error += float(np.sum(np.where(np.isnan(squares), np.inf, squares)))
            size += float(np.sum(np.square(b), where=is_finite))
        distance = math.sqrt(error / size) if size else (math.inf if error else 0.0)
        result[kind] = float(f"{distance:.3g}")
    return result


def ratios(ours: Mapping[str, float], keras: Sequence[Mapping[str, float]], unit: float) -> dict:
    """How many times as far as Keras'; a distance below the unit roundoff counts as one, and of
    what is beyond float32 in Keras too, as where training diverges, nothing is asked."""
    own = {k: max(unit, *(run[k] for run in keras)) for k in KINDS}
    return {k: float(f"{ours[k] / own[k]:.3g}") if own[k] < math.inf else 0.0 for k in KINDS}


def runs(
    run: Callable[[np.ndarray], Values], x: np.ndarray, number: int, unit: float = 2.0**-24
) -> list[Values]:
    """A run with the inputs, and others with inputs nearby."""
    return [run(nudged(x, i, unit)) for i in range(number)]
