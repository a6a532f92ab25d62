"""Faults of odd statistics or of one combination only: 500 cases of the op catch each of them."""

import numpy as np
from judged_faults import Judged, first_order
from numpy_kernels import Kernel, fault, fill, wrong_epsilon, wrong_inputs, wrong_outputs

from tf_bn_ops.conformance.cases import coverage
from tf_bn_ops.conformance.models import bounds


def _statistics(change):
    """A kernel that changes mean and variance before it uses them."""

    def changed(k):
        k.mean, k.variance = change(k.mean.copy(), k.variance.copy())

    return wrong_inputs(changed)


def _nan_to(value):
    return lambda mean, variance: (mean, np.where(np.isnan(variance), value, variance))


def _nan_of_all(mean, variance):
    """One odd channel spoils its neighbour."""
    odd = np.isnan(variance)
    return mean, np.where(odd | np.roll(odd, 1), np.nan, variance)


def _cached_by_six_decimals():
    """A cache of what depends on epsilon, by its text."""
    kept = {}
    return lambda epsilon: kept.setdefault(f"{epsilon:.6f}", epsilon)


def _where(applies):
    """A kernel that is off by a thousandth where a condition on a case's traits holds."""

    def off(k, x, scale, offset):
        wrong = applies(k.case, *coverage.sizes(k.case.shape, k.case.layout))
        return x, (scale * np.float64(1.001 if wrong else 1)).astype(scale.dtype), offset

    return wrong_outputs(off)


def _count_in(bits):
    """A kernel whose number of rows wraps around."""
    return fault(rows=lambda k: max(1, int(Kernel.rows(k)) % (1 << bits)))


def _until_row_65535(k, terms):
    return terms.transpose(1, 0, 2).reshape(terms.shape[1], -1)[:, :65535].sum(axis=1)


def _scale_of_zero_skips(k, x, scale, offset):
    """Also where 0 times NaN or infinity is NaN."""
    return np.where(k.scale[:, None] == 0, 0, x), scale, offset


def _saturated(k, x, scale, offset):
    return np.clip(x, -65504, 65504) if k.case.dtype == "half" else x, scale, offset


def _infinity_spreads(k, x, scale, offset):
    infinite = np.isinf(k.x).any(axis=(0, 2))
    neighbour = np.roll(infinite, 1) & ~infinite
    return x, np.where(neighbour, np.nan, scale).astype(scale.dtype), offset


FAULTS = {
    "33 to 48 channels": _where(lambda c, channels, *_: 33 <= channels <= 48),
    "an inner size of 7": _where(lambda c, channels, inner, rows: inner == 7),
    "a batch of one in training": _where(lambda c, *_: c.shape[0] == 1 and c.is_training),
    "more than 65535 channels": _where(lambda c, channels, *_: channels > 65535),
    "rows beyond 65535 are not summed": fault(sum=_until_row_65535),
    "epsilon is 1e-12 at least": wrong_epsilon(lambda epsilon: max(epsilon, 1e-12)),
    "epsilon is kept in half": wrong_epsilon(lambda epsilon: float(np.float16(epsilon))),
    "an infinity spoils its neighbour": wrong_outputs(_infinity_spreads),
    "a scale of 0 skips its channel": wrong_outputs(_scale_of_zero_skips),
    "half saturates": wrong_outputs(_saturated),
    "the sum of nothing is NaN": wrong_outputs(
        lambda k, x, scale, offset: (x, scale if k.x.size else scale * np.nan, offset)
    ),
    "NaN variance is taken for 0": _statistics(_nan_to(0)),
    "NaN variance is taken for 1": _statistics(_nan_to(1)),
    "NaN mean is taken for 0": _statistics(lambda m, v: (np.nan_to_num(m, nan=0.0), v)),
    "infinite variance is taken for a large one": _statistics(
        lambda m, v: (m, np.minimum(v, np.float32(1e3)))
    ),
    "negative variance is taken for 0": _statistics(lambda m, v: (m, np.maximum(v, 0))),
    "an odd channel spoils its neighbour": _statistics(_nan_of_all),
    "epsilon is cached by six decimals": wrong_epsilon(_cached_by_six_decimals()),
    "rows are counted in 16 bits": _count_in(16),
    "frozen NDHWC alone": _where(lambda c, *_: c.layout == "NDHWC" and not c.is_training),
    "inner sizes above 1024 of NCDHW": _where(
        lambda c, channels, inner, rows: inner > 1024 and c.layout == "NCDHW"
    ),
    "more than 32767 channels in half": _where(
        lambda c, channels, *_: channels > 32767 and c.dtype == "half"
    ),
    "tiny epsilon of a tiny variance": _where(
        lambda c, *_: c.epsilon < 1e-6 and c.kind == "tiny_variance"
    ),
}  # fmt: skip

FIRST_ORDER = Judged(
    ["FusedBatchNormGradV3"],
    {what: first_order(kernel) for what, kernel in FAULTS.items()},
    500,
    sizes=range(250_000),
    draw=fill,
    right=first_order(Kernel),
    profiles=(bounds.PROFILES["float32"],),
)
