"""The second-order gradient: the right answer, and how far from it one may be.

The formulas are those of cc/core/formulas/batch_norm_grad_grad.h (docs/math.md derives them), with its
names: gx, gs, go arrive for x_backprop, scale_backprop and offset_backprop; a, s, b are the means
of gx*xhat, dy*xhat and centred(gx)*centred(dy); f = scale*rstd, and

  y_backprop_grad = f*gx' + P*xhat + go                        P = gs - f*a
  x_grad          = rstd*P*dy' - rstd*f*s*gx' - Q*xhat         Q = rstd*(gs*s + f*(b - 3*a*s))
  scale_grad      = rstd*M*(b - a*s)

where a prime centres. Notation of the bounds: as in bounds.py, whose strict profile gives h.
xc = x - x0 with x0 the channel's first element, d = mean(xc).

**Sums.** A mean of terms t is off by e(t) = h*u_s*mean|t|. From that, for products of errors too
small to matter a factor 2 is left where they are dropped:

  variance = mean(xc^2) - d^2        ev = e(xc^2) + 2|d|e(xc) + 3u_s*(mean(xc^2) + d^2)
  rstd, relative                     rho = ev/(variance + epsilon) + 4u_s
      (half of the first term, twice; no bound where ev exceeds half of variance + epsilon)
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
first term of each sentence is left. The bounds are for data whose products overflow nowhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.harness import bounds

_H = bounds.PROFILES["strict"].additions or 0  # A number in this profile.
_ELEMENT_ROUNDINGS = 9
OUTPUTS = ("y_backprop_grad", "x_grad", "scale_grad")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The exact results and the bound of each element; y_backprop_grad and x_grad as
    [outer, channels, inner], scale_grad [channels]."""

    value: Mapping[str, np.ndarray]
    bound: Mapping[str, np.ndarray]

    def assert_close(self, results: Mapping[str, np.ndarray]) -> None:
        """Raises AssertionError where a result, in the shapes of this class, is out of bounds."""
        for name in OUTPUTS:
            got = np.asarray(results[name]).astype(np.longdouble)
            error = np.abs(got - self.value[name])
            bad = ~(error <= self.bound[name])
            if bad.any():
                at = tuple(int(i[0]) for i in np.nonzero(bad))
                raise AssertionError(
                    f"{name}{list(at)} is {got[at]}, it should be {self.value[name][at]}: off by "
                    f"{error[at]:.3g}, {error[at] / self.bound[name][at]:.3g} times the bound; "
                    f"{bad.sum()} of {bad.size} elements are out of bounds"
                )


def answer(
    values: Mapping[str, np.ndarray],
    layout: str,
    epsilon: float,
    is_training: bool,
) -> Answer:
    """The right second-order gradient of one set of inputs, in NumPy's long double.

    Args:
      values: by name: x_backprop_grad, y_backprop, x (of one shape in `layout`, or of three
        dimensions [outer, channels, inner] if it is "view"), scale_backprop_grad,
        offset_backprop_grad, scale, mean, variance ([channels]).
      layout: a name of spec.LAYOUTS, or "view".
      epsilon: as the kernel has it, in the type of the kernel's epsilon.
      is_training: whether the statistics are those of x, and functions of it.
    """
    wide = np.longdouble
    element = spec.dtype_of(values["x"])
    statistic = spec.dtype_of(values["scale"])
    computed_in = spec.DTYPES[element.accumulator]
    u_c = wide(computed_in.unit_roundoff)
    u_s = wide(spec.DTYPES["float64"].unit_roundoff)

    def view(name: str) -> np.ndarray:
        array = values[name]
        return (array if layout == "view" else spec.as_view(array, layout)).astype(wide)

    def column(name: str) -> np.ndarray:
        return values[name].astype(wide)[:, None]

    gx, dy, x = view("x_backprop_grad"), view("y_backprop"), view("x")
    scale, gs, go = column("scale"), column("scale_backprop_grad"), column("offset_backprop_grad")
    m = x.shape[0] * x.shape[2]
    if m == 0:
        zero = np.zeros(x.shape[1], wide)
        both = {"y_backprop_grad": x, "x_grad": x, "scale_grad": zero}
        return Answer(both, both)

    def mean(v: np.ndarray) -> np.ndarray:
        return v.sum((0, 2))[:, None] / m

    def e(v: np.ndarray) -> np.ndarray:
        return _H * u_s * mean(np.abs(v))

    def finish(name: str, result: np.ndarray, bound: np.ndarray) -> None:
        dtype = statistic if name == "scale_grad" else element
        value[name] = result
        limits[name] = bound + dtype.unit_roundoff * np.abs(result) + dtype.smallest_normal

    value: dict[str, np.ndarray] = {}
    limits: dict[str, np.ndarray] = {}

    def in_elements(*terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sum of terms that are computed in the type of elements, and how far off it is."""
        result, size = np.zeros_like(x), np.zeros_like(x)
        for term in terms:
            result, size = result + term, size + np.abs(term)
        return result, _ELEMENT_ROUNDINGS * u_c * size

    if not is_training:
        rstd = 1 / np.sqrt(column("variance") + wide(epsilon))
        f, xhat = scale * rstd, (x - column("mean")) * rstd
        finish("y_backprop_grad", *in_elements(f * gx, gs * xhat, go))
        finish("x_grad", *in_elements(gs * rstd * dy))
        total = (rstd * m * mean(gx * dy))[:, 0]
        error = (rstd * m * e(gx * dy))[:, 0] + (4 * u_s + statistic.unit_roundoff) * np.abs(total)
        finish("scale_grad", total, error)
        return Answer(value, limits)

    gx_mean, dy_mean, x_mean = mean(gx), mean(dy), mean(x)
    gxc, dyc, centred = gx - gx_mean, dy - dy_mean, x - x_mean
    variance = mean(centred**2)
    rstd = 1 / np.sqrt(variance + wide(epsilon))
    xhat, f = centred * rstd, scale * rstd
    a, s, b = mean(gxc * xhat), mean(dyc * xhat), mean(gxc * dyc)
    big_p, rfs = gs - f * a, rstd * f * s
    q = rstd * (gs * s + f * (b - 3 * a * s))

    xc = x - x[:1, :, :1]
    d = np.abs(mean(xc))
    ev = e(xc**2) + 2 * d * e(xc) + 3 * u_s * (mean(xc**2) + d**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.where(ev == 0, 0, ev / (variance + wide(epsilon))) + 4 * u_s
    rho[rho > 0.5] = np.inf

    def e_cov(v: np.ndarray, of_mean: np.ndarray, result: np.ndarray) -> np.ndarray:
        size = mean(np.abs(v * xc)) + np.abs(of_mean) * d
        error = e(v * xc) + d * e(v) + np.abs(of_mean) * e(xc) + 3 * u_s * size
        return 2 * rstd * error + np.abs(result) * (rho + u_s)

    ea, es = e_cov(gx, gx_mean, a), e_cov(dy, dy_mean, s)
    size = mean(np.abs(gx * dy)) + np.abs(gx_mean * dy_mean)
    eb = 2 * (e(gx * dy) + np.abs(dy_mean) * e(gx) + np.abs(gx_mean) * e(dy)) + 3 * u_s * size
    e_as = np.abs(a) * es + np.abs(s) * ea + ea * es
    e_p = np.abs(f) * ea + (np.abs(gs) + np.abs(f * a)) * (rho + 4 * u_s)
    e_rp = rstd * e_p + np.abs(rstd * big_p) * (rho + u_s)
    e_rfs = rstd * np.abs(f) * es + np.abs(rfs) * (2 * rho + 4 * u_s)
    q_size = rstd * (np.abs(gs * s) + np.abs(f) * (np.abs(b) + 3 * np.abs(a * s)))
    e_q = rstd * (np.abs(gs) * es + np.abs(f) * (eb + 3 * e_as)) + q_size * (2 * rho + 8 * u_s)

    def mu(v: np.ndarray) -> np.ndarray:
        return e(v) + (u_s + 2 * u_c**2) * np.abs(mean(v))

    e_xhat = rstd * (mu(xc) + 2 * u_c**2 * np.abs(x_mean)) + np.abs(xhat) * rho
    result, error = in_elements(f * gxc, big_p * xhat, go)
    finish(
        "y_backprop_grad",
        result,
        error
        + np.abs(f) * (mu(gx) + np.abs(gxc) * (rho + u_s))
        + np.abs(big_p) * e_xhat
        + e_p * np.abs(xhat),
    )
    result, error = in_elements(rstd * big_p * dyc, -rfs * gxc, -q * xhat)
    finish(
        "x_grad",
        result,
        error
        + e_rp * np.abs(dyc)
        + e_rfs * np.abs(gxc)
        + e_q * np.abs(xhat)
        + np.abs(rstd * big_p) * mu(dy)
        + np.abs(rfs) * mu(gx)
        + np.abs(q) * e_xhat,
    )
    total = rstd * m * (b - a * s)
    error = rstd * m * (eb + e_as + (np.abs(b) + np.abs(a * s)) * (rho + 6 * u_s))
    error = error + statistic.unit_roundoff * np.abs(total)
    finish("scale_grad", total[:, 0], error[:, 0])
    return Answer(value, limits)
