"""Tensors that every process generates bitwise identically, instead of receiving them.

A tensor is a pool of normal numbers, repeated. The length of the pool is prime, so that its period
coincides with no channel or row. All layouts of a shape have the same elements.
"""

from __future__ import annotations

import functools

import numpy as np

from tf_bn_ops import spec

EPSILON = 1e-3
_PERIOD = 4194301  # The largest prime below 2^22.
# Seed, standard deviation and mean: roughly those of a network's activations and gradients. The
# mean of y_backprop is not zero, so that a missing offset_backprop term fails the check. The mean
# of side_input is zero: ReLU behind the addition lets about half of the elements through.
_POOLS = {"y_backprop": (1, 0.5, 0.125), "x": (2, 1.5, 0.75), "side_input": (4, 1.0, 0.0)}
_SEED = 20


@functools.lru_cache(maxsize=6)
def _pool(role: str, dtype: str) -> np.ndarray:
    seed, deviation, mean = _POOLS[role]
    normal = np.random.default_rng([_SEED, seed]).standard_normal(_PERIOD, np.float32)
    return (normal * np.float32(deviation) + np.float32(mean)).astype(spec.DTYPES[dtype].numpy)


def aligned_empty(nbytes: int) -> np.ndarray:
    """uint8 [nbytes], not written, that begins at a cache line, as TensorFlow's tensors do."""
    memory = np.empty(nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + nbytes]


def flat(role: str, dtype: str, elements: int) -> np.ndarray:
    """All elements of "y_backprop", "x" or "side_input", in the order of memory."""
    return np.resize(_pool(role, dtype), elements)


def channels_of(
    role: str, dtype: str, view: tuple[int, int, int], channels: np.ndarray
) -> np.ndarray:
    """Some channels of the tensor as [outer, len(channels), inner]."""
    outer, count, inner = view
    o = np.arange(outer, dtype=np.int64)[:, None, None]
    at = (o * count + channels.astype(np.int64)[:, None]) * inner + np.arange(inner, dtype=np.int64)
    return _pool(role, dtype)[at % _PERIOD]


def statistics(channels: int) -> dict[str, np.ndarray]:
    """float32 [channels]: scale, offset, and a mean and variance close to those of x."""
    rng = np.random.default_rng([_SEED, 3])
    _, deviation, mean = _POOLS["x"]
    return {
        "scale": rng.uniform(0.5, 1.5, channels).astype(np.float32),
        "mean": (mean + 0.1 * rng.standard_normal(channels)).astype(np.float32),
        "variance": (deviation**2 * rng.uniform(0.8, 1.25, channels)).astype(np.float32),
        "offset": rng.uniform(-1, 1, channels).astype(np.float32),
    }
