"""Measures outputs against what is expected: errors in units of the bound and in ulp; evidence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tf_bn_ops.conformance.models import portable_judge
from tf_bn_ops.spec import DTYPES, DType

if TYPE_CHECKING:
    from tf_bn_ops.conformance.models.bounds import Profile
    from tf_bn_ops.conformance.models.inputs import Kind
    from tf_bn_ops.harness.problems import Call, Inputs, Problem

# Share of an output's elements that must be distinguishable from zero for a case to be
# discriminating: a kernel that writes mostly zeros must not pass on a tensor that is mostly zeros.
EVIDENCE_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Expected:
    """Part of an output as it should be, all arrays of one shape.

    Attributes:
      role: which output.
      at: where the part lies in it.
      value: the right answer.
      bound: how far from it an answer may be; infinite where anything is right.
      magnitude: of the terms that it is a sum of: a unit in the last place is the value's or, where
        it has cancelled below them, its terms'.
      impostors: answers that are wrong on purpose, by name; a case is evidence if each fails.
      nan_required: where a NaN may not be answered by infinity; None: it may.
      finite_required: where the answer has to be finite though the bound is infinite, because
        nothing overflows on the way to it; None: nowhere.
      nonfinite_exact: NaN and infinity have to be answered by the same.
    """

    role: str
    at: tuple[slice, ...]
    value: np.ndarray
    bound: np.ndarray
    magnitude: np.ndarray
    impostors: Mapping[str, Callable[[], np.ndarray]] = dataclasses.field(default_factory=dict)
    nan_required: np.ndarray | None = None
    finite_required: np.ndarray | None = None
    nonfinite_exact: bool = False

    @property
    def rule(self) -> np.ndarray:
        """The last three fields as portable_judge.py's flags, broadcastable to the part."""
        flags = (
            (portable_judge.NAN_REQUIRED, self.nan_required),
            (portable_judge.FINITE_REQUIRED, self.finite_required),
            (portable_judge.NONFINITE_EXACT, self.nonfinite_exact),
        )
        rule = np.zeros((), np.uint8)
        for flag, where in flags:
            rule = rule | np.where(False if where is None else where, flag, 0).astype(np.uint8)
        return rule

    def rounded(self, dtype: DType) -> Expected:
        """What an exact output has to match: the value rounded once, and no error."""
        value = dtype.widen(dtype.store(self.value), self.value.dtype)
        return dataclasses.replace(self, value=value, bound=np.zeros_like(self.bound))


WHOLE: tuple[slice, ...] = (slice(0, None),)


@dataclasses.dataclass(frozen=True)
class FormulaModel:
    """The inputs, right answers and bounds of a formula.

    Attributes:
      kinds: kinds of values that inputs are drawn of.
      outputs: the roles whose values are judged.
      fill: the inputs of a call, the same for the same call.
      expected: the right answer to a problem with its bound, part by part.
    """

    kinds: Mapping[str, Kind]
    outputs: Sequence[str]
    fill: Callable[[Call], Inputs]
    expected: Callable[[Problem, Profile], Iterator[Expected]]


@dataclasses.dataclass
class OutputError:
    """The error of one output.

    Attributes:
      ulp: the largest error in units in the last place of the output type, at the result or, where
        it has cancelled below them, at the magnitude of its terms or the bound.
      bound: the largest error in units of the bound; above 1 is wrong.
      worst: the place of the latter and the numbers there, for people.
    """

    ulp: float = 0.0
    bound: float = 0.0
    worst: str = ""

    def add(self, given: np.ndarray, part: Expected, ulp: np.ndarray, dtype: DType | None) -> None:
        """Adds the errors of a part of the output; `dtype` is None for integers."""
        if not part.value.size:
            return
        with np.errstate(all="ignore"):
            c = given if dtype is None else dtype.widen(given)
            c = c.astype(part.value.dtype)
            in_bounds, in_ulp = _errors(c, part, ulp, math.inf if dtype is None else dtype.largest)
        self.ulp = max(self.ulp, float(in_ulp.max()))
        worst = float(in_bounds.max())
        if worst > self.bound or not self.worst:
            self.bound = worst
            where = np.unravel_index(int(np.argmax(in_bounds)), c.shape)
            digits = 17 if dtype is None or dtype.name == "float64" else 9
            place = [int(i) for i in where]
            place = [i + (s.start or 0) for i, s in zip(place, part.at, strict=False)] or place
            self.worst = (
                f"at {place}: {c[where]:.{digits}g} instead of {part.value[where]:.{digits}g}, "
                f"allowed {part.bound[where]:.2g}"
            )


def _errors(
    c: np.ndarray, part: Expected, ulp: np.ndarray, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """The errors of `c` in units of the bound and in ulp; infinite where NaN or inf is wrong."""
    r = part.value
    error = np.abs(c - r)
    in_bounds = error / np.maximum(part.bound, np.finfo(np.float64).tiny)
    in_ulp = error / ulp
    if math.isfinite(float(in_bounds.max())):
        return in_bounds, in_ulp
    odd = ~np.isfinite(in_bounds)
    verdict = np.where(portable_judge.wrong(c, r, part.bound, part.rule, largest), np.inf, 0)
    return np.where(odd, verdict, in_bounds), np.where(odd, verdict, in_ulp)


def floating_dtype(dtype: np.dtype) -> DType | None:
    """The entry of spec.DTYPES for a NumPy type; None for integers."""
    return DTYPES.get({"float16": "half"}.get(dtype.name, dtype.name))


def ulp_of(part: Expected, dtype: DType | None) -> np.ndarray:
    """The unit in the last place of every element of a part."""
    if dtype is None:
        return np.ones(part.value.shape)
    with np.errstate(all="ignore"):
        magnitude = np.fmax(np.fmax(np.abs(part.value), part.magnitude), part.bound)
        _, exponent = np.frexp(np.fmax(magnitude, dtype.smallest_normal))
        ulp = np.ldexp(magnitude.dtype.type(2 * dtype.unit_roundoff), exponent - 1)
    # Where anything is allowed, the bound is infinite, and nothing is off.
    return np.where(np.isinf(magnitude), np.inf, ulp)


class Evidence:
    """Whether wrong-on-purpose answers to one output would fail."""

    def __init__(self) -> None:
        self._elements = self._distinguishable = 0
        self._fails: dict[str, bool] = {}

    def add(self, part: Expected) -> None:
        """Adds a part of the output: zeros have to fail in most elements, impostors in one."""
        with np.errstate(all="ignore"):
            self._elements += part.value.size
            self._distinguishable += int(np.count_nonzero(np.abs(part.value) > part.bound))
            for name, impostor in part.impostors.items():
                if not self._fails.setdefault(name, False):
                    differs = np.abs(impostor() - part.value) > part.bound
                    self._fails[name] = bool(np.any(differs))

    @property
    def holds(self) -> bool:
        share = self._distinguishable / max(self._elements, 1)
        return share >= EVIDENCE_SHARE and all(self._fails.values())


def errors_of(
    outputs: Mapping[str, np.ndarray], parts: Iterable[Expected], dtypes: Mapping[str, DType | None]
) -> dict[str, OutputError]:
    """The errors of outputs, by role, against all that is expected of them."""
    errors = {role: OutputError() for role in outputs}
    for part in parts:
        if part.role in outputs:
            dtype = dtypes[part.role]
            given = outputs[part.role][part.at]
            errors[part.role].add(given, part, ulp_of(part, dtype), dtype)
    return errors


def assembled(
    parts: Sequence[Expected], role: str, field: str, shape: tuple[int, ...]
) -> np.ndarray:
    """The arrays of a field ("value", "bound", "rule") of all parts of an output as one array."""
    arrays = [(part.at, getattr(part, field)) for part in parts if part.role == role]
    result = np.zeros(shape, arrays[0][1].dtype if arrays else np.float64)
    for at, array in arrays:
        result[at] = array
    return result
