"""The inputs of batch-norm ops, by kind. A new kind is one function and one line of KINDS."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.harness.problems import VIEW_ROLES, Call, Inputs, Problem

# Largest integer below which float32 has all integers: the budget of an exact sum.
_EXACT_SUM = 2**24
# N*H*W up to which the elements of an exact x_backprop fit into 24 bits as well (see `_exact`).
_EXACT_ROWS = 1024


# Inputs of any shape, which stay as they were drawn.
_OPAQUE_ROLES = frozenset(
    arg.role for op in spec.OPS.values() for arg in op.inputs if arg.kind == spec.OPAQUE
)

# How often an op that takes smooth activations gets one, and the slopes of leaky ones.
_SHARE_SMOOTH = 0.3
_ALPHAS = (spec.LEAKYRELU_ALPHA, 0.01, 0.3, -0.5, 1.75, 0.0)

# The kinds whose gradient gets what this library's forward op leaves in reserve_space_3: beside the
# statistics that it leaves, and, in some channels, beside others.
WHOLE_LAYER, OTHER_STATISTICS = "whole_layer", "other_statistics"
WITH_COEFFICIENTS = frozenset((WHOLE_LAYER, OTHER_STATISTICS))

# (y_backprop, x)
Pair = tuple[np.ndarray, np.ndarray]


# Further epsilons where the op keeps their double precision: so close that a kernel which rounds
# them, or adds them in less than double, differs in the last digits of float64 only.
_DOUBLE_EPSILONS = (1e-9, 1.1e-9)


def smooth_activation(call: Call) -> dict[str, Any]:
    """The attrs of the smooth activation of a call, by its seed; none for those without one."""
    rng = np.random.default_rng([call.seed, 23])
    takes = {*call.spec.choices.get("activation_mode", ())} >= {*spec.SMOOTH_ACTIVATIONS}
    if not takes or rng.random() >= _SHARE_SMOOTH:
        return {}
    mode = str(rng.choice(spec.SMOOTH_ACTIVATIONS))
    if not spec.ACTIVATIONS[mode].parameters:
        return {"activation_mode": mode}
    return {"activation_mode": mode, "leakyrelu_alpha": float(rng.choice(_ALPHAS))}


def center_places(shape: tuple[int, int, int]) -> list[tuple[int, int]]:
    """(outer, inner) of the three elements of a channel whose median sums measure x from."""
    outer, _, inner = shape
    return [divmod(outer * inner * i // 7, inner) for i in (1, 3, 5)]


@dataclasses.dataclass(frozen=True)
class Draw:
    """What a kind draws its inputs with: a generator, the shape of the view, the element type."""

    rng: np.random.Generator
    shape: tuple[int, int, int]
    dtype: str

    @property
    def real(self) -> type[np.floating[Any]]:
        """The type to draw in: at least as precise as the element type."""
        return np.float64 if self.dtype == "float64" else np.float32

    def gauss(self) -> np.ndarray:
        return self.rng.standard_normal(self.shape, dtype=self.real)

    def mask(self, share: float) -> np.ndarray:
        """True for this share of the elements."""
        return self.rng.random(self.shape, dtype=np.float32) < share

    def per_channel(self, least: float, most: float, either_sign: bool = False) -> np.ndarray:
        """A number for every channel, to be broadcast over a view."""
        numbers = self.rng.uniform(least, most, (self.shape[1], 1)).astype(self.real)
        if either_sign:
            numbers *= self.rng.choice(np.array([-1, 1], self.real), numbers.shape)
        return numbers

    def gradient(self) -> np.ndarray:
        """Ordinary gradients; a mean of their own per channel, or sums would be mostly noise."""
        g = self.gauss()
        g += self.per_channel(0.1, 1.0, either_sign=True)
        return g

    def related(self, gradient: np.ndarray) -> np.ndarray:
        """x that correlates with the gradient, so that sum(dy * (x - mean)) is not just noise."""
        x = self.gauss()
        x += self.real(0.5) * gradient
        return x


@dataclasses.dataclass(frozen=True)
class Kind:
    """How inputs are drawn.

    Attributes:
      make: Draw -> (y_backprop, x), arrays of the view's shape that are rounded to the element
        type afterwards. None: `_exact` draws the kind.
      epsilons: what epsilon is drawn from.
      weight: how often it comes up beside the others.
      exact: sums are exact in any order.
      scales: (least, most) magnitude of `scale`.
      flushed: its numbers may be flushed to zero, so that errors in ulp say nothing.
    """

    make: Callable[[Draw], Pair] | None
    epsilons: tuple[float, ...] = (1e-4, 1e-3, 1e-5, 1.001e-5, 0.1, 1.0)
    weight: int = 1
    exact: bool = False
    scales: tuple[float, float] = (0.3, 3.0)
    flushed: bool = False


def _normal(d: Draw) -> Pair:
    g = d.gradient()
    return g, d.related(g) * d.per_channel(0.5, 2.0) + d.per_channel(-1.0, 1.0)


def _large_offset(d: Draw) -> Pair:
    """|mean of x| is 100 to 4000 of its standard deviations: x - mean cancels."""
    g = d.gradient()
    dtype = spec.DTYPES[d.dtype]
    is_narrow = dtype.unit_roundoff > spec.DTYPES["float32"].unit_roundoff
    top = min(500.0, dtype.largest / 4) if is_narrow else 4000.0
    return g, d.related(g) + d.per_channel(min(100.0, top / 5), top, either_sign=True)


def _tiny_variance(d: Draw) -> Pair:
    """Variance far below epsilon in some channels, around it in others."""
    g = d.gradient()
    return g, d.related(g) * d.per_channel(1e-4, 2e-2)


def _large_gradient_mean(d: Draw) -> Pair:
    """Gradients around 1000: both sums over dy cancel or carry a huge common part."""
    g = d.gauss()
    x = d.related(g) + d.per_channel(-1.0, 1.0)
    top = min(1300.0, spec.DTYPES[d.dtype].largest / 4)
    return g + d.per_channel(top * 7 / 13, top, either_sign=True), x


def _wide(d: Draw) -> Pair:
    """Magnitudes spread over many powers of ten within one channel."""
    span = min(6.0, np.floor(np.log10(spec.DTYPES[d.dtype].largest)) - 1)
    g, x = (
        d.gauss() * d.real(10) ** d.rng.uniform(-span, span, d.shape).astype(d.real)
        for _ in range(2)
    )
    return g, x


def _tail(d: Draw) -> Pair:
    """The gradient is zero but for the last elements: whoever forgets the tail loses it all."""
    g = np.zeros(d.shape, d.real)
    g[-1:, :, -3:] = d.rng.uniform(0.5, 2.0, g[-1:, :, -3:].shape)
    x = d.gauss() + d.per_channel(1.0, 2.0)
    # Far from the mean where the gradient is: this makes scale_backprop large as well.
    x[-1:, :, -3:] += 4
    return g, x


def _sparse(d: Draw) -> Pair:
    """Three of four gradients are zero, as behind a ReLU and max pooling."""
    g = d.gradient() * d.mask(0.25)
    return g, np.maximum(d.related(g), 0)


def _constant_input(d: Draw) -> Pair:
    """Every channel of x is constant: its variance is zero, epsilon alone remains."""
    x = np.broadcast_to(d.per_channel(-2.0, 2.0), d.shape)
    return d.gradient(), x.copy()


def _whole_layer(d: Draw) -> Pair:
    """Raw columns: |mean of x| is up to 10^7 of its standard deviations, as far as the type holds x
    at all; or float32 does not hold its variance. What the forward op leaves comes with it."""
    g, dtype = d.gradient(), spec.DTYPES[d.dtype]
    digits = min(7, np.floor(-np.log10(dtype.unit_roundoff)))
    mean = 10 ** d.per_channel(0.0, digits).astype(np.float64)
    around = d.related(g).astype(np.float64)
    x = around + mean * d.per_channel(1.0, 1.0, either_sign=True)
    if dtype.largest > 1e30:
        x = np.where(d.rng.random((d.shape[1], 1)) < 0.25, 1e20 * around, x)
    return g, x


def _denormals(d: Draw) -> Pair:
    """Many subnormal numbers in x and y_backprop, which TensorFlow's threads may flush."""
    small = d.real(0.5 * spec.DTYPES[d.dtype].smallest_normal)
    g, x = (d.gauss() * small + d.mask(0.2) * d.gauss() for _ in range(2))
    return g, x


def _overflow(d: Draw) -> Pair:
    """Results around the largest number of the type: some must become infinite, some must not."""
    top = d.real(spec.DTYPES[d.dtype].largest / 20)
    return np.clip(d.gauss(), -3, 3) * top, d.gauss()


def _nonfinite(d: Draw) -> Pair:
    """NaN in y_backprop or x, infinity in x, in a few channels; the others must not notice."""
    g, x = _normal(d)
    if g.size:
        channels = d.rng.permutation(d.shape[1])[: max(1, d.shape[1] - 1)]
        for array, value, c in zip((g, x, x), (np.nan, np.inf, np.nan), channels, strict=False):
            array[d.rng.integers(d.shape[0]), c, d.rng.integers(d.shape[2])] = value
    return g, x


def _odd(rng: np.random.Generator, call: Call, mean: np.ndarray, variance: np.ndarray) -> None:
    """Makes statistics odd, in every second channel, or the only one."""
    choices = [
        *((variance, value) for value in (np.nan, np.inf, -1.0, 0.0, -call.epsilon / 2)),
        *((mean, value) for value in (np.nan, np.inf, -np.inf, 0.0)),
    ]
    order = rng.permutation(len(choices))
    for number, channel in enumerate(range(int(rng.integers(2)) % max(len(mean), 1), len(mean), 2)):
        array, value = choices[order[number % len(order)]]
        array[channel] = value


KINDS: Mapping[str, Kind] = {
    "normal": Kind(_normal, weight=4),
    "exact": Kind(None, epsilons=(0.0, 0.25, 0.5), weight=3, exact=True),
    "large_offset": Kind(_large_offset, weight=2),
    "large_gradient_mean": Kind(_large_gradient_mean, weight=2),
    "tiny_variance": Kind(_tiny_variance, epsilons=(1e-3, 1e-5, 1e-6, 1e-8), weight=2),
    "tail": Kind(_tail),
    "wide": Kind(_wide),
    "sparse": Kind(_sparse),
    WHOLE_LAYER: Kind(_whole_layer, weight=2),
    OTHER_STATISTICS: Kind(_whole_layer, weight=2),
    "constant_input": Kind(_constant_input, epsilons=(1e-3, 1e-5)),
    "denormals": Kind(_denormals, flushed=True),
    "overflow": Kind(_overflow, scales=(10.0, 60.0)),
    "nonfinite": Kind(_nonfinite),
    "odd_statistics": Kind(_normal, epsilons=(0.0, 1e-20, 1e-12, 1e-3)),
}


def epsilons(kind: Kind, op: spec.OpSpec) -> tuple[float, ...]:
    """What epsilon is drawn from."""
    if op.epsilon_dtype == "float64" and not kind.exact:
        return (*kind.epsilons, *_DOUBLE_EPSILONS)
    return kind.epsilons


def _exact(rng: np.random.Generator, call: Call) -> tuple[dict[str, np.ndarray], frozenset[str]]:
    """Small integers and powers of two, so that every sum and product is exact in any order.

    |y_backprop| <= G, |x - mean| <= X, both integers, N*H*W * G * (X + 1) <= 2^24: every partial
    sum of y_backprop, y_backprop * (x - mean) or y_backprop * x (|mean| <= 1) is an integer that
    float32 holds. variance + epsilon is 1/4, 1 or 4, so rstd, and scale as well, is a power of two.
    x_backprop in training divides by N*H*W. Where this is a power of two P <= 1024, the subtrahend
    (x - mean) * rstd^2 * S / P is a multiple of 1/(4 P) below 3 * 4 * 4 * 4 < 2^8, and fits into
    8 + 2 + 10 < 24 bits: the result is exact as well, up to the one rounding to the output type.
    Values lean to the positive, or sums would be small.
    """
    shape = spec.view_shape(call.shape, call.layout)
    outer, channels, inner = shape
    rows = max(1, outer * inner)
    top = 4 if rows * 4 * 4 <= _EXACT_SUM else 1
    offset = 3 if top == 4 else 1
    y_backprop = rng.integers(-top + 1, top + 1, shape).astype(np.float32)
    mean = rng.integers(-1, 2, channels).astype(np.float32)
    x = rng.integers(-offset + 1, offset + 1, shape).astype(np.float32)
    if rows * (top * (offset + 1)) > _EXACT_SUM:
        # Too many rows even for ones: silence the gradient beyond the budget.
        keep = _EXACT_SUM / (rows * top * (offset + 1)) / 2
        y_backprop *= rng.random(shape, dtype=np.float32) < keep
    # Correlate x with the gradient, so that scale_backprop is far from zero.
    x = np.where(rng.random(shape, dtype=np.float32) < 0.5, np.sign(y_backprop) * offset, x)
    x = x.astype(np.float32) + mean[:, None]
    # variance + epsilon must be a power of 4: 1/4, 1 or 4.
    total = np.float32(4.0) ** rng.integers(-1 if call.epsilon <= 0.25 else 0, 2, channels)
    scale = np.float32(2.0) ** rng.integers(-2, 3, channels) * rng.choice((-1, 1), channels)
    exact = {"scale_backprop", "offset_backprop"}
    if not call.is_training or (rows <= _EXACT_ROWS and rows & (rows - 1) == 0):
        exact.add("x_backprop")
    values = {
        "y_backprop": y_backprop,
        "x": x,
        "scale": scale,
        "mean": mean,
        "variance": total - np.float32(call.epsilon),
    }
    return values, frozenset(exact)


def statistics(rng: np.random.Generator, call: Call, x: np.ndarray) -> Pair:
    """Mean and variance for x: its own, or others that are only of the same size."""
    mean, variance = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if x.size:
        wide = x.astype(np.float64 if call.dtype == "float64" else np.float32)
        if call.kind == "nonfinite":
            wide[~np.isfinite(wide)] = 0
        mean = wide.mean(axis=(0, 2), dtype=np.float64)
        variance = wide.var(axis=(0, 2), dtype=np.float64)
    if call.statistics == "given":
        std = np.sqrt(variance)
        mean = mean + rng.normal(0.2, 0.5, mean.shape) * (std + 1e-3 * np.abs(mean))
        # Zero variance stays zero in half of the channels only.
        variance = variance + np.where(rng.random(mean.shape) < 0.5, 1e-3, 0) * (variance == 0)
        variance = variance * np.exp(rng.normal(0, 0.7, mean.shape))
    if call.kind == "odd_statistics":
        _odd(rng, call, mean, variance)
    return mean, variance


def reserve_space(rng: np.random.Generator, channels: int) -> np.ndarray:
    """reserve_space_3 of another op than this library's: any that is not [5, C] will do."""
    shape = ((0,), (), (channels,), (2, 3))[int(rng.integers(4))]
    return np.full(shape, 7, np.float32)


def forward_coefficients(
    mean: np.ndarray, variance: np.ndarray, scale: np.ndarray, epsilon: float | np.ndarray,
    compute: Any, saves_rstd: bool = False,
) -> np.ndarray:  # fmt: skip
    """What the forward op leaves in reserve_space_3: spec.ops.FORWARD_COEFFICIENTS, each rounded to
    the type that it computes in; [rows, channels]. `saves_rstd`: on a GPU."""
    with np.errstate(all="ignore"):
        deviation = np.sqrt(variance + epsilon)
        factor = (scale * (1 / deviation)).astype(compute)
        saved = (1 / deviation if saves_rstd else variance).astype(compute)
        epsilons = _in_parts(np.broadcast_to(np.float64(epsilon), mean.shape), compute)
        parts = (*_in_parts(mean, compute), factor, *_in_parts(deviation, compute))
        return np.stack([*parts, saved, *epsilons])


def rows_of(coefficients: np.ndarray, work: Any) -> dict[str, np.ndarray]:
    """The rows of forward_coefficients by name."""
    return dict(zip(spec.ops.FORWARD_COEFFICIENTS, coefficients.astype(work), strict=True))


def are_kept(
    rows: Mapping[str, np.ndarray], mean: np.ndarray, variance: np.ndarray, epsilon: float,
    compute: Any,
) -> np.ndarray:  # fmt: skip
    """Whether forward_coefficients were computed from the statistics and the epsilon that a
    gradient is given, by channel: they hold only together with these."""
    part, rest = _in_parts(np.float64(epsilon), compute)
    kept = (rows["mean"] == mean) & (rows["saved_variance"] == variance)
    return np.asarray(kept & (rows["epsilon"] == part) & (rows["epsilon_rest"] == rest))


def _in_parts(value: np.ndarray, compute: Any) -> tuple[np.ndarray, np.ndarray]:
    part = value.astype(compute)
    return part, np.where(np.isfinite(value), value - part, 0).astype(compute)


def coefficients_of(call: Call, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The coefficients of the forward op behind a gradient; in training they are computed from mean
    and variance before these are rounded."""
    # Not np.float64(array): before NumPy 2.2 it makes a scalar of an array of one element.
    mean, variance, scale = (values[r].astype(np.float64) for r in ("mean", "variance", "scale"))
    statistics = spec.DTYPES[call.statistics_dtype].numpy
    if not call.is_training:
        with np.errstate(over="ignore"):
            mean, variance = (a.astype(statistics).astype(np.float64) for a in (mean, variance))
    scale = scale.astype(statistics).astype(np.float64)
    epsilon: Any = float(np.dtype(call.spec.epsilon_dtype).type(call.epsilon))
    compute = spec.DTYPES[spec.DTYPES[call.dtype].accumulator].numpy.type
    if call.kind == OTHER_STATISTICS:
        mean, variance, epsilon = _others(call, mean, variance, epsilon)
    return forward_coefficients(mean, variance, scale, epsilon, compute)


def _others(call: Call, mean: np.ndarray, variance: np.ndarray, epsilon: float) -> tuple[Any, ...]:
    """Mean, variance and epsilon of the forward op, of which each channel has none, one or several
    other than the gradient is given, by a few units in the last place or by far."""
    rng = np.random.default_rng([call.seed, 29])
    by = rng.choice((2.0**-20, 1.0), mean.shape)
    is_other = rng.random((3, *mean.shape)) < 0.35
    mean = np.where(is_other[0], mean + by * (np.abs(mean) + np.sqrt(np.abs(variance))), mean)
    variance = np.where(is_other[1], variance * (1 + by), variance)
    other = np.where(epsilon > 0, np.float32(epsilon * (1 + by)), np.float32(1e-3))
    return mean, variance, np.where(is_other[2], other.astype(np.float64), epsilon)


def as_given(inputs: Inputs) -> Inputs:
    """Inputs for other libraries' ops, which promise nothing about what this library's forward op
    leaves in reserve_space_3: without it, the right gradient is by mean and variance as given."""
    kept = inputs.values.get("forward_coefficients")
    if kept is None or kept.ndim != 2 or len(kept) != spec.ops.NUM_FORWARD_COEFFICIENTS:
        return inputs
    values = {**inputs.values, "forward_coefficients": kept[:0].reshape(-1)}
    return dataclasses.replace(inputs, values=values)


def draw(call: Call) -> tuple[dict[str, np.ndarray], frozenset[str]]:
    """The inputs of a first-order gradient as views, before they are rounded, and what is exact."""
    rng = np.random.default_rng([call.seed, len(call.shape)])
    kind = KINDS[call.kind]
    shape = spec.view_shape(call.shape, call.layout)
    channels = shape[1]
    exact: frozenset[str] = frozenset()
    if kind.make is None:
        values, exact = _exact(rng, call)
    else:
        dtype = spec.DTYPES[call.dtype].numpy
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            y_backprop, x = kind.make(Draw(rng, shape, call.dtype))
            y_backprop, x = y_backprop.astype(dtype), x.astype(dtype)
        scale = rng.uniform(*kind.scales, channels) * rng.choice((-1, 1), channels)
        if channels > 8:
            scale[rng.integers(channels)] = 0
        mean, variance = statistics(rng, call, x)
        if call.kind == "nonfinite" and channels > 5:
            mean[rng.integers(channels)] = np.nan
        values = {"y_backprop": y_backprop, "x": x, "scale": scale}
        values |= {"mean": mean, "variance": variance}
    # No result depends on it, so NaN will do as well as a number.
    values["offset"] = np.where(rng.random(channels) < 0.25, np.nan, rng.normal(size=channels))
    values["forward_coefficients"] = reserve_space(rng, channels)
    has_coefficients = "forward_coefficients" in {a.role for a in call.spec.inputs}
    if call.kind in WITH_COEFFICIENTS and has_coefficients:
        values["forward_coefficients"] = coefficients_of(call, values)
    return values, exact


def tensors(call: Call, values: Mapping[str, np.ndarray], exact: frozenset[str]) -> Inputs:
    """Drawn values in the types and shapes of the call's tensors."""
    types = {
        arg.role: spec.DTYPES[call.spec.type_of(arg, call.dtype, call.statistics_dtype)].numpy
        for arg in call.spec.inputs
    }
    of_view, of_vector = (spec.DTYPES[name].numpy for name in (call.dtype, call.statistics_dtype))
    cast: dict[str, np.ndarray] = {}
    for role, array in values.items():
        if role in _OPAQUE_ROLES:
            cast[role] = array
            continue
        in_view = role in VIEW_ROLES
        with np.errstate(over="ignore"):
            dtype = types.get(role, of_view if in_view else of_vector)
            array = array.astype(dtype, copy=False)
        cast[role] = np.ascontiguousarray(array).reshape(call.shape if in_view else (-1,))
    if call.aliased:
        # One tensor for two inputs: the exact fill has not counted on sums of squares.
        others = [a.role for a in call.spec.inputs if a.role in VIEW_ROLES and a.role in cast]
        role = next((r for r in others if r != "x"), "x")
        cast[role], exact = cast["x"], frozenset()
    return Inputs(cast, exact)


def fill(call: Call) -> Inputs:
    """The inputs of a call of a first-order gradient, from its seed: inputs of its spec by role,
    and others that no result depends on."""
    return tensors(call, *draw(call))


def channels_without_infinity(
    problem: Problem, sums: np.ndarray, *coefficients: np.ndarray
) -> np.ndarray | None:
    """Where a NaN among the results has to stay one: the order of operations decides whether
    infinities of x and of coefficients become NaN. None where `sums`, which every element
    enters, and the coefficients are finite."""
    if all(np.isfinite(array).all() for array in (sums, *coefficients)):
        return None
    infinite = np.isinf(problem.wide("x", np.float64)).any(axis=(0, 2))
    return ~np.logical_or.reduce([infinite, *map(np.isinf, coefficients)])
