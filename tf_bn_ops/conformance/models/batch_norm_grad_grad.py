"""The formula model of the second-order gradient: the right answer, and its error bound.

The formulas: see cc/core/formulas/second_order.h (docs/math.md derives them), with
its names: gx, gs, go are the gradients of x_backprop, scale_backprop, offset_backprop; a, s, b the
means of gx*xhat, dy*xhat and centered(gx)*centered(dy); f = scale*rstd, and

  y_backprop_grad = f*gx' + P*xhat + go                        P = gs - f*a
  x_grad          = rstd*P*dy' - rstd*f*s*gx' - Q*xhat         Q = rstd*(gs*s + f*(b - 3*a*s))
  scale_grad      = rstd*M*(b - a*s)

where a prime centers. Notation of the bounds: as in bounds.py, whose profiles give h, u_s and the
roundings of a mean (the text has the strict profile's). xc = x - x0 with x0 the median of
three elements of the channel (oracle.center; 0 where sums may be rearranged), d = mean(xc).

**Sums.** A mean of terms t is off by e(t) = h*u_s*mean|t| (two-level sums: by what bounds.py says,
for the roundings of each kind of term). From that, for products of errors too
small to matter a factor 2 is left where they are dropped:

  variance = mean(xc^2) - d^2        ev = e(xc^2) + 2|d|e(xc) + 3u_s*(mean(xc^2) + d^2)
  rstd, relative                     rho = ev/(variance + epsilon) + 4u_s
      (half of the first term, twice; no bound where ev exceeds half of variance + epsilon)
      (two passes, profile `float32`: x0 is the mean, d what it is off, em = h*u_s*mean|x|; d^2 and
      4d*sqrt(variance) more, as in batch_norm.py)
  a = rstd*(mean(gx*xc) - mean(gx)*d)
      ea = 2*rstd*(e(gx*xc) + |d|e(gx) + |mean(gx)|e(xc) + 3u_s*(mean|gx*xc| + |mean(gx)*d|))
           + |a|*(rho + u_s)         es in the same way from dy
  b = mean(gx*dy) - mean(gx)*mean(dy)
      eb = 2*(e(gx*dy) + |mean(dy)|e(gx) + |mean(gx)|e(dy))
           + 3u_s*(mean|gx*dy| + |mean(gx)*mean(dy)|)

**Coefficients**, in double, then rounded to the type computed in (counted with the elements):

  P        eP = |f|*ea + (|gs| + |f*a|)*(rho + 4u_s)
  rstd*P   rstd*eP + |rstd*P|*(rho + u_s)
  rstd*f*s rstd*|f|*es + |rstd*f*s|*(2*rho + 4u_s)
  Q        eQ = rstd*(|gs|*es + |f|*(eb + 3*E)) + Qa*(2*rho + 8u_s),  E = |a|es + |s|ea + ea*es,
           Qa = rstd*(|gs*s| + |f|*(|b| + 3|a*s|))
  scale_grad: rstd*M*(eb + E) + rstd*M*(|b| + |a*s|)*(rho + 6u_s), and the roundings to its type.

**Elements.** Each of the terms carries at most 9 roundings of the type computed in: two of a
difference, the coefficient, rstd and its product in xhat, the product, two additions, one to spare.
Means, in two parts, are off by mu(v) = e(v) + (u_s + 2u_c^2)*|mean(v)|. With xhat off by
ex = rstd*mu(xc) + |xhat|*rho + rstd*2u_c^2*|mean(x)|,

  y_backprop_grad: 9u_c*(|f*gx'| + |P*xhat| + |go|) + |f|*(mu(gx) + |gx'|*(rho + u_s)) + |P|*ex
                   + eP*|xhat|
  x_grad:          9u_c*(|rstd*P*dy'| + |rstd*f*s*gx'| + |Q*xhat|) + coefficient errors times
                   |dy'|, |gx'|, |xhat| + |rstd*P|*mu(dy) + |rstd*f*s|*mu(gx) + |Q|*ex

and u_T of the result, and the floor of its type, where subnormal numbers begin. Frozen, only the
first term of each sentence is left.

**Flushing.** Inputs and results below t, the smallest normal number of the type computed in, may be
set to zero: t counts beside every mean|t|, times the mean of the other factor in a product, and
beside every element, times its coefficient.

**Overflow.** The bound is infinite where a sum of |terms| exceeds the largest number of the sums'
type, or a coefficient or the sum of an element's |terms| the largest of the type computed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models import oracle as oracle_lib
from tf_bn_ops.conformance.models.bounds import Profile, flushed_below
from tf_bn_ops.conformance.models.measure import WHOLE, Expected, FormulaModel
from tf_bn_ops.conformance.models.sums import ChannelSums, Region, regions
from tf_bn_ops.harness.problems import Call, Inputs, Problem

OUTPUTS = ("y_backprop_grad", "x_grad", "scale_grad")
_ELEMENT_ROUNDINGS = 9
# Of a term before it is added, where that is in float32; x stands for x - x0.
_TERM_ROUNDINGS = {"gx": 0, "dy": 0, "x": 1, "gx_dy": 1, "gx_x": 2, "dy_x": 2, "x_x": 3}

_Array = np.ndarray


class _Constants:
    """What a profile and the element type fix."""

    def __init__(self, profile: Profile, problem: Problem, m: int):
        dtype = problem.dtype
        summed_in, computed_in = profile.sums_type(dtype), spec.DTYPES[dtype.accumulator]
        # Name of a term -> what its mean is off, times its magnitude.
        self.sum_errors = {
            name: profile.sum_error(dtype, m, q) for name, q in _TERM_ROUNDINGS.items()
        }
        self.u_s, self.largest_sum = summed_in.unit_roundoff, summed_in.largest
        self.u_c, self.largest_element = computed_in.unit_roundoff, computed_in.largest
        self.t = computed_in.smallest_normal
        self.mean_roundings = profile.mean_roundings * self.u_c
        self.sum_roundings = profile.sum_roundings / 2  # The rest is for a product with rstd.


class _Tensors(oracle_lib.Tensors):
    """The tensors, and what sums measure x from."""

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self.count = max(self.count, 1)
        self.center = oracle_lib.center(problem, self.work)

    def load(self, at: Region) -> list[_Array]:
        """gx, dy, x of a chunk."""
        return [self.part(role, at) for role in ("x_backprop_grad", "y_backprop", "x")]

    def means(
        self,
        terms: Callable[[Region], Mapping[str, _Array]],
        magnitudes: Callable[[Region], Mapping[str, _Array]] | None = None,
    ) -> Callable[[str], _Array]:
        """Means per channel of what `terms` returns for a chunk, by name; and of the magnitudes of
        what `magnitudes` returns, by "|name|"."""
        sums = ChannelSums(self.problem.view[1], self.work)
        for at in regions(self.problem.view):
            for name, array in terms(at).items():
                sums.add(name, at, array)
            for name, array in magnitudes(at).items() if magnitudes else ():
                sums.add_magnitudes(f"|{name}|", at, array)
        return lambda name: sums[name] / self.count


class _Moments:
    """Means per channel: of the tensors, of products of the centered ones (no rstd in them), and of
    magnitudes around the center that sums measure x from."""

    def __init__(self, tensors: _Tensors, profile: Profile):
        center = np.zeros_like(tensors.center) if profile.rearranged else tensors.center

        def plain(at: Region) -> Mapping[str, _Array]:
            g, y, v = tensors.load(at)
            # Around an element, so that a constant x is its own mean: with 28054 plain
            # terms xhat was 1e-15, and x_grad off by 1e-8 of it at an epsilon of 1e-9.
            return {"gx": g, "dy": y, "x": v - tensors.center[at[1], None]}

        def magnitudes(at: Region) -> Mapping[str, _Array]:
            g, y, v = tensors.load(at)
            c = v - center[at[1], None]
            terms = {"gx": g, "dy": y, "x": c, "x_x": c * c, "gx_x": g * c, "dy_x": y * c}
            if profile.two_pass:
                terms["x"] = v
            return {**terms, "gx_dy": g * y}

        means = tensors.means(plain, magnitudes)
        self.gx, self.dy, self.x = means("gx"), means("dy"), tensors.center + means("x")
        if profile.two_pass:
            center = self.x
            means = tensors.means(plain, magnitudes)

        def centered(at: Region) -> Mapping[str, _Array]:
            loaded = zip(tensors.load(at), (self.gx, self.dy, self.x), strict=True)
            gxc, dyc, xc = (v - mean[at[1], None] for v, mean in loaded)
            return {"x_x": xc * xc, "gx_x": gxc * xc, "dy_x": dyc * xc, "gx_dy": gxc * dyc}

        names = ("x_x", "gx_x", "dy_x", "gx_dy")
        self.variance, self.gx_x, self.dy_x, self.gx_dy = map(tensors.means(centered), names)
        self.magnitudes = lambda name: means(f"|{name}|")
        self.d = np.abs(self.x - center)


@dataclasses.dataclass(frozen=True)
class _Coefficients:
    """Per channel; an element is a sum of coefficients times gx', dy', xhat, with errors beside."""

    rstd: _Array
    rho: _Array | float  # Relative error of rstd.
    gx_mean: _Array
    dy_mean: _Array
    x_mean: _Array
    y: Mapping[str, tuple[_Array, _Array | float]]  # Term -> coefficient, its error.
    x: Mapping[str, tuple[_Array, _Array | float]]
    mu: Mapping[str, _Array | float]  # Absolute errors of gx', dy', and of x' without rstd.
    go: _Array
    scale_grad: _Array
    scale_grad_error: _Array
    scale_grad_magnitude: _Array
    unbounded: _Array
    means: tuple[_Array, _Array]  # Of gx and dy in either mode.


def _frozen(tensors: _Tensors, problem: Problem, k: _Constants) -> _Coefficients:
    m = tensors.count

    def terms(at: Region) -> Mapping[str, _Array]:
        gx, dy, _ = tensors.load(at)
        return {"gx": gx, "dy": dy, "gx_dy": gx * dy}

    means = tensors.means(terms, terms)
    total = means("gx_dy")
    size = lambda name: means(f"|{name}|")  # noqa: E731
    variance = tensors.column("variance") + tensors.work(problem.epsilon)
    rstd = tensors.column("variance") if problem.variance_is_rstd else 1 / np.sqrt(variance)
    gs = tensors.column("scale_backprop_grad")
    zero = np.zeros_like(rstd)
    e = k.sum_errors["gx_dy"] * size("gx_dy") + k.t * (size("gx") + size("dy") + 1)
    scale_grad = rstd * m * total
    return _Coefficients(
        rstd, 0.0, zero, zero, tensors.column("mean"),
        {"gx": (tensors.column("scale") * rstd, 0.0), "xhat": (gs, 0.0)},
        {"dy": (gs * rstd, 0.0)},
        {"gx": 0.0, "dy": 0.0, "x": 0.0},
        tensors.column("offset_backprop_grad"),
        scale_grad, rstd * m * e + 4 * k.u_s * np.abs(scale_grad), rstd * size("gx_dy"),
        size("gx_dy") * m > k.largest_sum, (means("gx"), means("dy")),
    )  # fmt: skip


def _training(
    tensors: _Tensors, problem: Problem, k: _Constants, profile: Profile
) -> _Coefficients:
    """The sentences of the module's text about sums and coefficients, in its order."""
    u_s, t, m = k.u_s, k.t, tensors.count
    moments = _Moments(tensors, profile)
    size, d = moments.magnitudes, moments.d
    total = moments.variance + tensors.work(problem.epsilon)
    rstd = 1 / np.sqrt(total)
    gs, f = tensors.column("scale_backprop_grad"), tensors.column("scale") * rstd
    a, s, b = rstd * moments.gx_x, rstd * moments.dy_x, moments.gx_dy
    p, rfs = gs - f * a, rstd * f * s
    q = rstd * (gs * s + f * (b - 3 * a * s))

    def e(name: str) -> _Array:
        flushed = sum((size(factor) for factor in name.split("_")), 1) if "_" in name else 1
        return k.sum_errors[name] * size(name) + t * flushed

    if profile.two_pass:
        d = e("x") + u_s * np.abs(moments.x)
    ev = e("x_x") + 2 * d * e("x") + 3 * u_s * (size("x_x") + d**2)
    if profile.two_pass:
        ev = ev + d**2 + 4 * d * np.sqrt(moments.variance)
    rho = np.where(ev == 0, 0, ev / total) + 4 * u_s
    rho[rho > 0.5] = np.inf

    def e_cov(name: str, mean: _Array, result: _Array) -> _Array:
        terms = size(name + "_x") + np.abs(mean) * d
        error = e(name + "_x") + d * e(name) + np.abs(mean) * e("x") + 3 * u_s * terms
        return 2 * rstd * error + np.abs(result) * (rho + u_s)

    ea, es = e_cov("gx", moments.gx, a), e_cov("dy", moments.dy, s)
    terms = size("gx_dy") + np.abs(moments.gx * moments.dy)
    eb = e("gx_dy") + np.abs(moments.dy) * e("gx") + np.abs(moments.gx) * e("dy")
    eb = 2 * eb + 3 * u_s * terms
    e_as = np.abs(a) * es + np.abs(s) * ea + ea * es
    e_p = np.abs(f) * ea + (np.abs(gs) + np.abs(f * a)) * (rho + 4 * u_s)
    e_rp = rstd * e_p + np.abs(rstd * p) * (rho + u_s)
    e_rfs = rstd * np.abs(f) * es + np.abs(rfs) * (2 * rho + 4 * u_s)
    q_size = rstd * (np.abs(gs * s) + np.abs(f) * (np.abs(b) + 3 * np.abs(a * s)))
    e_q = rstd * (np.abs(gs) * es + np.abs(f) * (eb + 3 * e_as)) + q_size * (2 * rho + 8 * u_s)

    def mu(name: str, mean: _Array) -> _Array:
        return e(name) + (u_s + k.mean_roundings) * np.abs(mean)

    mu_x = mu("x", d) + k.mean_roundings * np.abs(moments.x)
    scale_error = rstd * m * (eb + e_as + (np.abs(b) + np.abs(a * s)) * (rho + 6 * u_s))
    sums = m * np.stack([size(name) for name in ("x_x", "gx_x", "dy_x", "gx_dy")])
    return _Coefficients(
        rstd, rho, moments.gx, moments.dy, moments.x,
        {"gx": (f, np.abs(f) * (rho + u_s)), "xhat": (p, e_p)},
        {"dy": (rstd * p, e_rp), "gx": (-rfs, e_rfs), "xhat": (-q, e_q)},
        {"gx": mu("gx", moments.gx), "dy": mu("dy", moments.dy), "x": mu_x},
        tensors.column("offset_backprop_grad"),
        rstd * m * (b - a * s), scale_error, rstd * terms, np.any(sums > k.largest_sum, 0),
        (moments.gx, moments.dy),
    )  # fmt: skip


def _fill(call: Call) -> Inputs:
    """The inputs of the first-order gradient, and drawn after them those that arrive for its
    outputs. What is exact there is exact here, with x constant in training."""
    values, exact = inputs.draw(call)
    rng = np.random.default_rng([call.seed, len(call.shape), 2])
    kind = inputs.KINDS[call.kind]
    outer, channels, inner = values["x"].shape
    view = outer, channels, inner
    if kind.make is not None:
        with np.errstate(all="ignore"):
            gx, _ = kind.make(inputs.Draw(rng, view, call.dtype))
        vectors = rng.uniform(-1, 1, (2, channels))
    else:
        gx = rng.integers(-3, 5, view).astype(np.float32)
        vectors = rng.integers(-4, 5, (2, channels)) / 4
        if call.is_training:
            values["x"] = np.broadcast_to(values["mean"][:, None], view)
        exact = frozenset(OUTPUTS if "x_backprop" in exact else ())
    values["x_backprop_grad"] = gx
    values["scale_backprop_grad"], values["offset_backprop_grad"] = vectors
    return inputs.tensors(call, values, exact)


def _expected(problem: Problem, profile: Profile) -> Iterator[Expected]:
    tensors = _Tensors(problem)
    k = _Constants(profile, problem, tensors.count)
    statistic = problem.statistics_dtype
    with np.errstate(all="ignore"):
        if problem.is_training:
            c = _training(tensors, problem, k, profile)
        else:
            c = _frozen(tensors, problem, k)
        bound = c.scale_grad_error + flushed_below(statistic)
        bound = bound + k.sum_roundings * statistic.unit_roundoff * np.abs(c.scale_grad)
        if not problem["x"].size:
            c = dataclasses.replace(c, scale_grad=np.zeros_like(bound))
            bound = np.where(np.isfinite(c.rstd), 0, np.inf)  # 0 times that is NaN.
        bound[c.unbounded | np.isnan(bound)] = np.inf  # Zero times what has no bound.
    yield Expected("scale_grad", WHOLE, c.scale_grad, bound, c.scale_grad_magnitude)
    other = _other_mode(c, tensors.column("scale_backprop_grad"), problem.is_training)
    for at in regions(problem.view):
        with np.errstate(all="ignore"):
            elements = _Elements(at, tensors.load(at))
            for role in OUTPUTS[:2]:
                yield elements.expected(role, c, other, problem.dtype, k)


def _other_mode(c: _Coefficients, gs: _Array, is_training: bool) -> _Coefficients:
    """Wrong on purpose: training without means and their coefficients, frozen with the means."""
    if not is_training:
        return dataclasses.replace(c, gx_mean=c.means[0], dy_mean=c.means[1])
    zero = np.zeros_like(c.rstd)
    y, x = {"gx": c.y["gx"], "xhat": (gs, 0.0)}, {"dy": (gs * c.rstd, 0.0)}
    return dataclasses.replace(c, gx_mean=zero, dy_mean=zero, y=y, x=x)


class _Elements:
    """A chunk of the view-shaped outputs: sums of coefficients times gx', dy', xhat."""

    def __init__(self, at: Region, loaded: list[_Array]):
        self._at = at
        self._gx, self._dy, self._x = loaded

    def _column(self, array: _Array | float) -> Any:
        return array[self._at[1], None] if isinstance(array, np.ndarray) else array

    def _terms(self, role: str, c: _Coefficients) -> Iterator[tuple[str, _Array, _Array]]:
        """(name, coefficient, what it is multiplied by)."""
        factors = {
            "gx": lambda: self._gx - self._column(c.gx_mean),
            "dy": lambda: self._dy - self._column(c.dy_mean),
            "xhat": lambda: (self._x - self._column(c.x_mean)) * self._column(c.rstd),
        }
        for name, (coefficient, _) in (c.y if role == "y_backprop_grad" else c.x).items():
            yield name, self._column(coefficient), factors[name]()

    def value(self, role: str, c: _Coefficients) -> _Array:
        """The output."""
        value = np.zeros_like(self._x)
        if role == "y_backprop_grad":
            value = value + self._column(c.go)
        for _, coefficient, factor in self._terms(role, c):
            value = value + coefficient * factor
        return value

    def expected(
        self, role: str, c: _Coefficients, other: _Coefficients, dtype: spec.DType, k: _Constants
    ) -> Expected:
        """The output with its bound; the sentences of the module's text about elements."""
        value, rstd = self.value(role, c), self._column(c.rstd)
        errors = c.y if role == "y_backprop_grad" else c.x
        size = np.zeros_like(value)
        if role == "y_backprop_grad":
            size = size + np.abs(self._column(c.go))
        bound = np.zeros_like(value)
        unbounded = self._column(c.unbounded) | np.zeros(value.shape, bool)
        for name, coefficient, factor in self._terms(role, c):
            if name == "xhat":
                off = rstd * self._column(c.mu["x"]) + np.abs(factor) * self._column(c.rho)
                off = off + k.t * rstd
            else:
                off = self._column(c.mu[name]) + k.t
            bound = bound + np.abs(coefficient) * (off + k.t) + k.t
            bound = bound + self._column(errors[name][1]) * np.abs(factor)
            size = size + np.abs(coefficient * factor)
            unbounded |= np.abs(coefficient) > k.largest_element
        unbounded |= size > k.largest_element
        bound = bound + _ELEMENT_ROUNDINGS * k.u_c * size + dtype.unit_roundoff * np.abs(value)
        bound = bound + flushed_below(dtype)
        bound[unbounded | np.isnan(bound)] = np.inf  # Zero times what has no bound.
        gradient = self._gx if role == "y_backprop_grad" else self._dy
        impostors = {"other mode": lambda: self.value(role, other), "identity": lambda: gradient}
        return Expected(role, self._at, value, bound, size, impostors)


_KINDS = {name: k for name, k in inputs.KINDS.items() if name not in inputs.WITH_COEFFICIENTS}
# x of an exact fill is constant in training, so that rstd is 1/sqrt(epsilon).
_KINDS["exact"] = dataclasses.replace(_KINDS["exact"], epsilons=(0.25, 1.0))
MODELS = {spec.ops.BATCH_NORM_GRAD_GRAD: FormulaModel(_KINDS, OUTPUTS, _fill, _expected)}
