"""The verdict on one case: structure, errors against the bounds, and whether it is evidence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance import fills
from tf_bn_ops.conformance.case import Case
from tf_bn_ops.harness import bounds as bounds_lib
from tf_bn_ops.harness import oracle as oracle_lib

# The outputs that have a value, by role.
VALUES = ("x_backprop", "scale_backprop", "offset_backprop")

# Least share of an output's elements that must be told from zero before it counts as evidence:
# a kernel that writes mostly zeros must not pass on a tensor that is mostly zeros.
_EVIDENCE_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an implementation gave for a case: outputs in the op's order, or a failure.

    Attributes:
      outputs: the tensors; None where it failed.
      error: code and message of the error that it raised.
      crash: how its process ended, with its last words.
      shapes: where static shapes were asked for, those of the outputs.
      others: further calls of the case (calls.py) -> their answers, where they are not the same to
        the bit.
      same: the further calls whose answers are.
      unsupported: further calls that do not apply -> why.
    """

    outputs: Sequence[np.ndarray] | None = None
    error: str = ""
    crash: str = ""
    shapes: Sequence[tuple[int | None, ...] | None] | None = None
    others: Mapping[str, Answer] = dataclasses.field(default_factory=dict)
    same: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """A difference from the op's contract that is not about values.

    Attributes:
      what: "error", "crash", "count", "shape:ROLE", "dtype:ROLE"; where an error or static shapes
        were asked for, "accepted", "code", "message" or "static"; "bits" where two calls differ.
      detail: for people.
    """

    what: str
    detail: str


@dataclasses.dataclass
class OutputError:
    """The error of one output of one implementation.

    Attributes:
      ulp: the largest error in units in the last place of the output type, at the result or, where
        it has cancelled below them, at the mean magnitude of its terms or the bound.
      bound: the largest error in units of the bound; above 1 is wrong.
      worst: the place of the latter and the numbers there, for people.
    """

    ulp: float = 0.0
    bound: float = 0.0
    worst: str = ""


@dataclasses.dataclass
class PathResult:
    """One implementation in one case."""

    disagreements: list[Disagreement] = dataclasses.field(default_factory=list)
    errors: dict[str, OutputError] = dataclasses.field(default_factory=dict)

    @property
    def ulp(self) -> float:
        return max((e.ulp for e in self.errors.values()), default=0.0)

    @property
    def bound(self) -> float:
        return max((e.bound for e in self.errors.values()), default=0.0)


@dataclasses.dataclass
class CaseResult:
    """Everything about one case.

    Attributes:
      paths: implementation -> its result; the candidate is "candidate".
      evidence: output -> whether a wrong-on-purpose answer (all zeros; the other mode's, or the
        gradient itself as x_backprop) would have failed.
      failures: why the case fails, one sentence each; the runner adds structure.
      calls: (implementation, further call of the case) -> "same", "differs" or "unsupported".
      notes: what is worth knowing and fails nothing.
    """

    case: Case
    paths: dict[str, PathResult]
    evidence: dict[str, bool]
    failures: list[str] = dataclasses.field(default_factory=list)
    calls: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)


def _ulp(magnitude: np.ndarray, dtype: spec.DType) -> np.ndarray:
    """The unit in the last place of a number of `dtype` with this magnitude."""
    _, exponent = np.frexp(np.fmax(magnitude, dtype.smallest_normal))
    ulp = np.ldexp(magnitude.dtype.type(2 * dtype.unit_roundoff), exponent - 1)
    # Where anything is allowed, the bound is infinite, and nothing is off.
    return np.where(np.isinf(magnitude), np.inf, ulp)


@dataclasses.dataclass(frozen=True)
class _Expected:
    """Part of an output as it should be, all arrays of one shape."""

    value: np.ndarray
    bound: np.ndarray
    ulp: np.ndarray
    must_be_nan: np.ndarray | None  # Where a NaN may not be answered by infinity.


def _expect(
    value: np.ndarray,
    bound: np.ndarray,
    magnitude: np.ndarray,
    dtype: spec.DType,
    exact: bool,
    must_be_nan: np.ndarray | None,
) -> _Expected:
    ulp = _ulp(np.fmax(np.fmax(np.abs(value), magnitude), bound), dtype)
    if exact:
        value, bound = value.astype(dtype.numpy).astype(value.dtype), np.zeros_like(bound)
    return _Expected(value, bound, ulp, must_be_nan)


def _measure(
    given: np.ndarray,
    expected: _Expected,
    dtype: spec.DType,
    result: OutputError,
    at: tuple[slice, ...],
) -> None:
    """Adds the errors of part of an output to `result`."""
    c = given.astype(expected.value.dtype)
    r = expected.value
    error = np.abs(c - r)
    in_bounds = error / np.maximum(expected.bound, np.finfo(np.float64).tiny)
    in_ulp = error / expected.ulp
    if not math.isfinite(float(in_bounds.max())):
        right = (c == r) | ~np.isfinite(r) & ~np.isfinite(c)
        if expected.must_be_nan is not None:
            right &= ~np.broadcast_to(expected.must_be_nan, r.shape) | np.isnan(c) | ~np.isnan(r)
        overflow = np.isfinite(r) & (np.abs(r) + expected.bound > dtype.largest)
        right |= overflow & np.isinf(c) & (np.sign(c) == np.sign(r))
        right |= np.isfinite(r) & np.isposinf(expected.bound)
        wrong = ~right & ~np.isfinite(in_bounds)
        in_bounds = np.where(right, 0, np.where(wrong, np.inf, in_bounds))
        in_ulp = np.where(right, 0, np.where(wrong, np.inf, in_ulp))
    result.ulp = max(result.ulp, float(in_ulp.max()))
    worst = float(in_bounds.max())
    if worst > result.bound or not result.worst:
        result.bound = worst
        where = np.unravel_index(int(np.argmax(in_bounds)), c.shape)
        digits = 17 if dtype.name == "float64" else 9
        place = tuple(int(i) + (s.start or 0) for i, s in zip(where, at, strict=True))
        result.worst = (
            f"at {list(place)}: {c[where]:.{digits}g} instead of {r[where]:.{digits}g}, "
            f"allowed {expected.bound[where]:.2g}"
        )


def expected_shape(case: Case, role: str) -> tuple[int, ...]:
    """The shape that the op's contract gives to an output."""
    channels = spec.view_shape(case.shape, case.layout)[1]
    return {"x_backprop": case.shape, "placeholder": (0,)}.get(role, (channels,))


def structure(case: Case, answer: Answer) -> list[Disagreement]:
    """How an answer differs from the contract: failures, number of outputs, shapes, dtypes."""
    if answer.crash:
        return [Disagreement("crash", answer.crash)]
    if answer.outputs is None:
        return [Disagreement("error", answer.error)]
    op = case.spec
    if len(answer.outputs) != len(op.outputs):
        return [Disagreement("count", f"{len(answer.outputs)} outputs, not {len(op.outputs)}")]
    found = []
    for arg, output in zip(op.outputs, answer.outputs, strict=True):
        shape = expected_shape(case, arg.role)
        name = case.dtype if arg.role == "x_backprop" else op.statistics_dtype(case.dtype)
        dtype = spec.DTYPES[name]
        for what, has, should in (
            ("shape", list(output.shape), list(shape)),
            ("dtype", output.dtype, dtype.numpy),
        ):
            if has != should:
                d = Disagreement(f"{what}:{arg.role}", f"{arg.name} has {what} {has}, not {should}")
                if d not in found:
                    found.append(d)
    return found


def _values(case: Case, answer: Answer) -> dict[str, np.ndarray]:
    """The outputs whose values can be compared, x_backprop as a view."""
    if answer.outputs is None or len(answer.outputs) != len(case.spec.outputs):
        return {}
    result = {}
    for arg, output in zip(case.spec.outputs, answer.outputs, strict=True):
        if arg.role in VALUES and output.shape == expected_shape(case, arg.role):
            is_x = arg.role == "x_backprop"
            result[arg.role] = spec.as_view(output, case.layout) if is_x else output
    return result


CANDIDATE = "candidate"
# How the sentence about two calls begins.
BITS_DIFFER = "bits differ"


def _difference(case: Case, a: Answer, b: Answer) -> str:
    """Where two calls of one case differ, in one sentence."""
    for answer in (b, a):
        if answer.outputs is None:
            return answer.crash or f"error: {answer.error}"
    assert a.outputs is not None and b.outputs is not None
    if len(a.outputs) != len(b.outputs):
        return f"{len(b.outputs)} outputs instead of {len(a.outputs)}"
    for arg, x, y in zip(case.spec.outputs, a.outputs, b.outputs, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{arg.name} is {y.dtype}{list(y.shape)} instead of {x.dtype}{list(x.shape)}"
        differs = (x != y) & ~(np.isnan(x) & np.isnan(y)) | (np.signbit(x) != np.signbit(y))
        if np.any(differs):
            where = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(differs)))
            x, y = (np.atleast_1d(array)[where] for array in (x, y))
            return (
                f"{arg.name} in {np.count_nonzero(differs)} elements, first at {list(where)}: "
                f"{float(y)!r} instead of {float(x)!r}"
            )
    return "the bits of NaN"


def _compare_calls(
    case: Case, answers: Mapping[str, Answer], may_differ: Collection[str], result: CaseResult
) -> None:
    """Notes which further calls gave the same bits, and fails the candidate where they had to."""
    for name, answer in answers.items():
        for call in answer.same:
            result.calls[name, call] = "same"
        for call, why in answer.unsupported.items():
            result.calls[name, call] = "unsupported"
            result.notes.append(f"{name}: {call} does not apply: {why}")
        for call, other in answer.others.items():
            result.calls[name, call] = "differs"
            text = f"{BITS_DIFFER} between {case.calls[0]} and {call}: "
            text += _difference(case, answer, other)
            if name == CANDIDATE and (call not in may_differ or other.outputs is None):
                result.failures.append(text)
            else:
                result.notes.append(f"{name}: {text}")


def judge(
    case: Case,
    filled: fills.Filled,
    answers: Mapping[str, Answer],
    profile: bounds_lib.Profile,
    may_differ: Collection[str] = (),
    times: Mapping[str, float] | None = None,
) -> CaseResult:
    """Judges all answers to a case against the oracle.

    Every path is measured alike; an answer of the candidate to a further call that is not the same
    to the bit is a path of its own, "candidate:CALL". `failures` holds what is wrong with the
    *values* of the candidate, and its calls whose bits differ though they are not in `may_differ`;
    disagreements in structure are for the caller to hold against the list of known ones. `times`
    has the outputs that the candidate is allowed more for: as many times the bound, and no
    exactness.
    """
    times = times or {}
    by_name, answers = answers, dict(answers)
    if CANDIDATE in by_name:
        for call, answer in by_name[CANDIDATE].others.items():
            if answer.outputs is not None:
                answers[f"{CANDIDATE}:{call}"] = answer
    values = filled.values
    exact = filled.exact & profile.exact - set(times)
    dtype = spec.DTYPES[case.dtype]
    statistics_dtype = spec.DTYPES[case.spec.statistics_dtype(case.dtype)]
    oracle = oracle_lib.Oracle(
        values, case.layout, case.epsilon, case.is_training, case.spec.epsilon_dtype
    )
    bounds = bounds_lib.derive(profile, oracle, values["mean"], dtype, statistics_dtype)
    paths = {name: PathResult(structure(case, answer)) for name, answer in answers.items()}
    outputs = {name: _values(case, answer) for name, answer in answers.items()}
    for name, path in paths.items():
        path.errors = {role: OutputError() for role in VALUES if role in outputs[name]}

    # NaN must stay NaN; infinities may become NaN or not, by the order of operations.
    must_be_nan = None
    if case.kind == "nonfinite":
        must_be_nan = ~np.isinf(spec.as_view(values["x"], case.layout)).any(axis=(0, 2))

    told: dict[str, float] = dict.fromkeys(VALUES, 0)  # Elements that differ from zero.
    other_mode_differs = identity_differs = False
    n = max(oracle.sums.n, 1)
    with np.errstate(all="ignore"):
        for role, r, bound, terms in (
            ("scale_backprop", oracle.scale_backprop, bounds.scale_backprop,
             np.abs(oracle.rstd) * oracle.sums.dy_xmu_abs / n),
            ("offset_backprop", oracle.offset_backprop, bounds.offset_backprop,
             oracle.sums.dy_abs / n),
        ):  # fmt: skip
            if not r.size:
                continue
            told[role] = float(np.mean(np.abs(r) > bound))
            e = _expect(r, bound, terms, statistics_dtype, role in exact, must_be_nan)
            for name, path in paths.items():
                if role in path.errors:
                    at = (slice(0, None),)
                    _measure(outputs[name][role], e, statistics_dtype, path.errors[role], at)
        elements = 0
        for chunk in oracle.chunks():
            bound = bounds.x_backprop(chunk)
            c = chunk.at[1]
            factor = np.abs(oracle.factor)[c, None]
            slope = np.abs(oracle.slope)[c, None]
            terms = np.fmax(np.abs(chunk.centred), np.abs(chunk.xmu) * slope) * factor
            e = _expect(
                chunk.x_backprop, bound, terms, dtype, "x_backprop" in exact,
                None if must_be_nan is None else must_be_nan[c, None],
            )  # fmt: skip
            for name, path in paths.items():
                if "x_backprop" in path.errors:
                    given = outputs[name]["x_backprop"][chunk.at]
                    _measure(given, e, dtype, path.errors["x_backprop"], chunk.at)
            r = chunk.x_backprop
            elements += r.size
            told["x_backprop"] += int(np.count_nonzero(np.abs(r) > bound))
            if not other_mode_differs:
                other = _other_mode(oracle, chunk, n)
                other_mode_differs = bool(np.any(np.abs(other - r) > bound))
            if not identity_differs:
                identity_differs = bool(np.any(np.abs(chunk.y_backprop - r) > bound))
        told["x_backprop"] /= max(elements, 1)

    evidence = {role: share >= _EVIDENCE_SHARE for role, share in told.items()}
    evidence["x_backprop"] &= other_mode_differs and identity_differs
    result = CaseResult(case, paths, evidence)
    for name, path in paths.items():
        own, _, call = name.partition(":")
        if own != CANDIDATE:
            continue
        for role, error in path.errors.items():
            if not error.bound <= times.get(role, 1):
                how = "not exact" if role in exact else f"{error.bound:.3g} times the bound"
                result.failures.append(f"{call and call + ': '}{role} {how} {error.worst}")
    _compare_calls(case, by_name, may_differ, result)
    return result


def _other_mode(oracle: oracle_lib.Oracle, chunk: oracle_lib.Chunk, n: int) -> np.ndarray:
    """x_backprop as it would be in the mode that was not asked for."""
    c = chunk.at[1]
    if oracle.is_training:
        return oracle.factor[c, None] * chunk.y_backprop
    slope = oracle.rstd[c] ** 2 * (oracle.sums.dy_xmu[c] / n)
    inside = chunk.y_backprop - (oracle.sums.dy[c] / n)[:, None] - chunk.xmu * slope[:, None]
    return oracle.factor[c, None] * inside
