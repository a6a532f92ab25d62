"""Inputs, the float64 oracle and error bounds for tests on a GPU. Needs NumPy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import driver
import numpy as np


@dataclasses.dataclass(frozen=True)
class ElementType:
    """An element type: its code in the C ABI, how NumPy stores it, how it rounds."""

    code: int
    storage: type[Any]
    unit_roundoff: float
    smallest_normal: float
    statistics: str  # Name of the type of scale, mean and variance in the fused ops.

    @property
    def size(self) -> int:
        return np.dtype(self.storage).itemsize


TYPES: Mapping[str, ElementType] = {
    "float32": ElementType(0, np.float32, 2.0**-24, 2.0**-126, "float32"),
    "half": ElementType(1, np.float16, 2.0**-11, 2.0**-14, "float32"),
    "bfloat16": ElementType(2, np.uint16, 2.0**-8, 2.0**-126, "float32"),
    "float64": ElementType(3, np.float64, 2.0**-53, 2.0**-1022, "float64"),
}


def store(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` rounded to `dtype`, as NumPy stores it (bfloat16: its bits)."""
    if dtype != "bfloat16":
        return values.astype(TYPES[dtype].storage)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The stored numbers as float64."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


@dataclasses.dataclass
class Problem:
    """One call: the arrays as stored, and how they are to be read."""

    view: tuple[int, int, int]
    dtype: str
    stat_dtype: str
    training: bool
    variance_is_rstd: bool
    epsilon: float
    arrays: dict[str, np.ndarray]

    def wide(self, name: str) -> np.ndarray:
        dtype = self.dtype if name in ("y_backprop", "x") else self.stat_dtype
        return widen(self.arrays[name], dtype)


def make_problem(
    view: tuple[int, int, int],
    dtype: str,
    *,
    training: bool = True,
    variance_is_rstd: bool = False,
    stat_dtype: str | None = None,
    seed: int = 0,
    integers: bool = False,
) -> Problem:
    """Normal data around +-0.5, or with `integers` small ones whose sums are exact in any order."""
    rng = np.random.default_rng([seed, *view])
    stat_dtype = stat_dtype or TYPES[dtype].statistics
    channels = view[1]
    if integers:
        dy, x = (rng.integers(-3, 4, view).astype(np.float64) for _ in range(2))
        mean = rng.integers(-2, 3, channels).astype(np.float64)
        variance = np.full(channels, 2.0 if variance_is_rstd else 0.25)
    else:
        dy, x = rng.normal(0.5, 1, view), rng.normal(-0.5, 2, view)
        mean, variance = rng.normal(-0.5, 0.1, channels), rng.uniform(0.5, 4, channels)
    arrays = {
        "y_backprop": store(dy, dtype),
        "x": store(x, dtype),
        "scale": store(rng.normal(1, 0.5, channels), stat_dtype),
        "mean": store(mean, stat_dtype),
        "variance": store(variance, stat_dtype),
    }
    epsilon = 0.0 if integers else 1e-3
    return Problem(view, dtype, stat_dtype, training, variance_is_rstd, epsilon, arrays)


def check(problem: Problem, result: Mapping[str, np.ndarray]) -> str:
    """What is wrong with a result: one sentence, or nothing.

    The bounds follow from the arithmetic: sums in double, x_backprop in float (double for float64)
    from coefficients that are rounded once, everything rounded to its type in the end.
    """
    p = problem
    column = (slice(None), np.newaxis)
    wide = np.longdouble
    dy, x = p.wide("y_backprop").astype(wide), p.wide("x").astype(wide)
    mean, variance = p.wide("mean").astype(wide), p.wide("variance").astype(wide)
    scale = p.wide("scale").astype(wide)
    rstd = variance if p.variance_is_rstd else 1 / np.sqrt(variance + wide(p.epsilon))
    centered = x - mean[column]
    terms = dy * centered
    m = max(p.view[0] * p.view[2], 1)
    offset, scaled = dy.sum((0, 2)), rstd * terms.sum((0, 2))
    offset_terms, scaled_terms = np.abs(dy).sum((0, 2)), rstd * np.abs(terms).sum((0, 2))
    # Chains of additions in double are shorter than 2^11 with all their levels.
    u_sums = 2.0**11 * 2.0**-53
    u_stat = TYPES[p.stat_dtype].unit_roundoff
    u = 2.0**-53 if p.dtype == "float64" else 2.0**-24
    mean_part, x_part = (offset / m)[column], centered * (rstd * scaled / m)[column]
    dx, error = dy, np.zeros_like(dy)
    if p.training:
        dx = dy - mean_part - x_part
        error = 8 * u * (np.abs(dy - mean_part) + np.abs(x_part))
        error += u_sums * (offset_terms / m)[column]
        error += u_sums * np.abs(centered) * (rstd * scaled_terms / m)[column]
    factor = (scale * rstd)[column]
    error = np.abs(factor) * (error + 5 * u * np.abs(dx))
    dx = factor * dx
    table = TYPES[p.dtype]
    tiny = TYPES[p.stat_dtype].smallest_normal
    for name, want, bound in (
        ("x_backprop", dx, error + table.unit_roundoff * np.abs(dx) + table.smallest_normal),
        ("scale_backprop", scaled, 2 * u_stat * np.abs(scaled) + u_sums * scaled_terms + tiny),
        ("offset_backprop", offset, 2 * u_stat * np.abs(offset) + u_sums * offset_terms + tiny),
    ):
        dtype = p.dtype if name == "x_backprop" else p.stat_dtype
        got = widen(result[name], dtype)
        wrong = ~(np.abs(got - want) <= bound)  # NaN is wrong, too.
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return (
                f"{name}: {int(wrong.sum())} of {wrong.size} elements are wrong, the first at "
                f"{at}: {got[at]!r}, but the oracle has {float(want[at])!r}"
            )
    return ""


def run(
    device: driver.Device | driver.Emulated,
    problem: Problem,
    *,
    offsets: Mapping[str, int] | None = None,
    in_place: str | None = None,
    repetitions: int = 1,
    group_bytes: int = driver.GROUPS_BY_DEVICE,
) -> list[dict[str, np.ndarray]]:
    """Runs a problem; the results of all repetitions.

    `offsets` shifts arrays by so many elements from an aligned address; outputs are poisoned before
    each run, and what lies around them is checked after it. `in_place`: x_backprop is written
    over this input.
    """
    p, offsets = problem, offsets or {}
    guard = 64
    sizes = dict.fromkeys(("y_backprop", "x", "x_backprop"), TYPES[p.dtype].size)
    addresses, spans = {}, {}
    for name in driver.POINTERS:
        size = sizes.get(name, TYPES[p.stat_dtype].size)
        count = int(np.prod(p.view)) if name in sizes else p.view[1]
        base = device.allocate(count * size + 2 * 256)
        addresses[name] = base + 256 + offsets.get(name, 0) * size
        spans[name] = count * size
    if in_place is not None:
        addresses["x_backprop"] = addresses[in_place]
    args = driver.Args(
        *p.view,
        TYPES[p.dtype].code,
        TYPES[p.stat_dtype].code,
        int(p.training),
        int(p.variance_is_rstd),
        p.epsilon,
        *(addresses[name] for name in driver.POINTERS),
    )
    outputs = driver.POINTERS[5:]
    results = []
    for _ in range(repetitions):
        for name in outputs:
            device.fill(addresses[name] - guard, 0xFF, spans[name] + 2 * guard)
        for name, array in p.arrays.items():
            device.write(addresses[name], array)
        device.run(args, group_bytes)
        device.wait()
        result = {}
        for name in outputs:
            around = np.empty(spans[name] + 2 * guard, np.uint8)
            device.read(addresses[name] - guard, around)
            if (around[:guard] != 0xFF).any() or (around[-guard:] != 0xFF).any():
                raise driver.GpuError(f"{name}: bytes beside the array were written")
            dtype = p.dtype if name == "x_backprop" else p.stat_dtype
            inside = around[guard : guard + spans[name]].view(TYPES[dtype].storage)
            result[name] = inside.reshape(p.view if name == "x_backprop" else (p.view[1],))
        results.append(result)
    device.free_all()
    return results


def bits(result: Mapping[str, np.ndarray]) -> bytes:
    return b"".join(result[name].tobytes() for name in sorted(result))
