"""Makes a failing case small: execution mode, type, shape and numbers, as long as it fails alike.

Hypothesis searches. First among small cases with small integers, which most faults show in, and
which it knows how to make smaller; where none of them fails, the failing tensors are cut along
their axes and their numbers replaced by simpler ones, one choice at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case, Problem
from tf_bn_ops.conformance.cases.execution_modes import DRAWN
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.execution.workers import Runner
from tf_bn_ops.conformance.reports import record
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness.problems import VIEW_ROLES, Inputs

# Dimensions of the small cases that are searched first: enough for every axis to matter, and few
# enough elements for Hypothesis, which draws one by one.
_SMALL = {2: 4, 3: 3, 4: 3}
_SMALL_OTHERS = 2
# Their numbers lie between this and its negative; every sum of them is exact.
_INTEGER = 4
# Time budget of a failing case.
SECONDS = 20.0
# How many of them are tried.
_EXAMPLES = 200
# Elements up to which the numbers of a tensor are simplified one by one.
_FEW = 64


class ShrinkError(RuntimeError):
    """Shrinking is not possible here; the message is one sentence."""


def is_possible() -> bool:
    """Whether Hypothesis is installed."""
    return importlib.util.find_spec("hypothesis") is not None


def check_possible() -> None:
    """Raises ShrinkError when Hypothesis is missing."""
    if not is_possible():
        raise ShrinkError(
            "reducing failing cases needs Hypothesis: install it (pip install hypothesis) or leave "
            "that out with --shrink=0"
        )


class _TimeIsUp(KeyboardInterrupt):
    """Ends a search: Hypothesis takes other exceptions for failures, and shrinks them."""


class _Search:
    """Runs the candidate on problems until the time is up, and keeps the last that fails."""

    def __init__(
        self,
        start: Problem,
        wrong: frozenset[str],
        candidate: Runner,
        settings: Settings,
        seconds: float,
    ):
        self.best = start
        self._wrong = wrong
        self._candidate = candidate
        self._settings = settings
        self._deadline = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def fails(self, problem: Problem) -> bool:
        """Whether the candidate fails in this problem in one of the ways that it failed first."""
        if not self._candidate.supports(problem.case):
            return False
        self._candidate.submit(problem.case, problem.inputs)
        answer = self._candidate.collect()
        result = judge(
            problem.case,
            problem.inputs,
            {CANDIDATE: answer},
            self._settings.profile,
            times=self._settings.times(problem.case),
        )
        if self._wrong.isdisjoint(record.wrong(record.of_result(0, result))):
            return False
        self.best = problem
        return True

    def find(self, strategy: Any, make: Callable[[Any], Problem]) -> bool:
        """Looks for the simplest value of a strategy whose problem fails; whether there is one."""
        import hypothesis

        seen: dict[str, bool] = {}
        before = self.best
        last: list[Problem] = []

        def condition(value: Any) -> bool:
            key = repr(value)
            if self.is_over:
                raise _TimeIsUp
            if key not in seen:
                problem = make(value)
                seen[key] = self.fails(problem)
                if seen[key]:
                    last.append(problem)
            return seen[key]

        settings = hypothesis.settings(
            max_examples=_EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        try:
            self.best = make(hypothesis.find(strategy, condition, settings=settings))
        except hypothesis.errors.NoSuchExample:
            self.best = before
        except (_TimeIsUp, hypothesis.errors.HypothesisException):
            # The latter from a candidate that answers differently each time. What failed, failed.
            self.best = last[-1] if last else before
        return self.best is not before


def _simpler_modes(mode: str) -> list[str]:
    """The mode, and before it those that are simpler."""
    return [*DRAWN[: DRAWN.index(mode)], mode] if mode in DRAWN else [*DRAWN, mode]


def _dtypes(case: Case) -> list[str]:
    """The case's type, and before it float32, whose numbers are the easiest to read."""
    return list(dict.fromkeys([d for d in ("float32",) if d in case.spec.dtypes] + [case.dtype]))


def _types(problem: Problem) -> Mapping[str, np.dtype[Any]]:
    """Role -> type of the input, of those that the problem has."""
    case = problem.case
    view = spec.DTYPES[case.dtype].numpy
    statistics = spec.DTYPES[case.statistics_dtype].numpy
    return {
        arg.role: view if arg.role in VIEW_ROLES else statistics
        for arg in case.spec.inputs
        if arg.kind != spec.OPAQUE and arg.role in problem.inputs.values
    }


def _cast(array: Any, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype)


def _small_cases(start: Problem) -> tuple[Any, Callable[[Any], Problem]]:
    """A strategy for small cases of the op and layout with small integers, and their problem."""
    from hypothesis import strategies as st

    case = start.case
    numbers: Any = st.integers(-_INTEGER, _INTEGER)
    views = [role for role in _types(start) if role in VIEW_ROLES]
    originals = [start.inputs.values[role].astype(np.float64) for role in views]
    special = [v for v in (math.nan, math.inf) if any(_has(array, v) for array in originals)]
    if special:
        numbers = numbers | st.sampled_from(special)
    most = _SMALL.get(len(case.shape), _SMALL_OTHERS)
    sizes = [st.integers(min(1, n), min(n, most)) for n in case.shape]
    epsilons = list(dict.fromkeys([1.0, case.epsilon]))
    of_channels = {
        "scale": st.integers(1, 2),
        "variance": st.integers(0, _INTEGER),
        "offset": st.just(0),
    }

    @st.composite
    def values(draw: Any) -> tuple[Any, ...]:
        shape = tuple(draw(size) for size in sizes)
        channels = spec.view_shape(shape, case.layout)[1]
        count = math.prod(shape)
        lists = {role: draw(st.lists(numbers, min_size=count, max_size=count)) for role in views}
        for role in (role for role in _types(start) if role not in VIEW_ROLES):
            elements = of_channels.get(role, st.integers(-1, 1))
            lists[role] = draw(st.lists(elements, min_size=channels, max_size=channels))
        return (
            draw(st.sampled_from(_simpler_modes(case.execution))),
            draw(st.sampled_from(_dtypes(case))),
            draw(st.sampled_from(epsilons)),
            shape,
            tuple(sorted(lists.items())),
        )

    def make(value: tuple[Any, ...]) -> Problem:
        mode, dtype, epsilon, shape, lists = value
        new = dataclasses.replace(case, execution=mode, dtype=dtype, epsilon=epsilon, shape=shape)
        arrays = {role: np.array(v, np.float64) for role, v in lists}
        values = {
            role: _cast(arrays[role], t).reshape(shape if role in VIEW_ROLES else (-1,))
            for role, t in _types(Problem(new, start.inputs)).items()
        }
        opaque = {
            a.role: np.zeros(0, np.float32) for a in case.spec.inputs if a.kind == spec.OPAQUE
        }
        return Problem(new, Inputs({**values, **opaque}, attrs=start.inputs.attrs))

    return values(), make


def _has(array: np.ndarray, value: float) -> bool:
    return bool(np.any(np.isnan(array) if math.isnan(value) else np.isinf(array)))


def _has_coefficients(problem: Problem) -> bool:
    """Whether reserve_space_3 holds those that y was computed from x by."""
    channels = problem.inputs.values["scale"].size
    coefficients = problem.inputs.values.get("forward_coefficients", np.zeros(0))
    return coefficients.shape == (spec.ops.NUM_FORWARD_COEFFICIENTS, channels) and channels > 0


def _cut(problem: Problem, axis: int, begin: int, end: int) -> Problem:
    """The problem with the indices [begin, end) of an axis only."""
    case = problem.case
    index = tuple(slice(begin, end) if a == axis else slice(None) for a in range(len(case.shape)))
    is_channel = axis == spec.channel_axis(case.layout)
    values = dict(problem.inputs.values)
    for role in _types(problem):
        if role in VIEW_ROLES:
            values[role] = np.ascontiguousarray(values[role][index])
        elif is_channel:
            values[role] = values[role][begin:end]
    if is_channel and _has_coefficients(problem):
        rows = values["forward_coefficients"]
        values["forward_coefficients"] = np.ascontiguousarray(rows[:, begin:end])
    shape = values["x"].shape
    # Partial sums of exact sums are exact; in training view-shaped outputs divide by the number of
    # rows.
    exact = problem.inputs.exact - (VIEW_ROLES if case.is_training else frozenset())
    return Problem(
        dataclasses.replace(case, shape=shape), Inputs(values, exact, problem.inputs.attrs)
    )


def _cut_axes(search: _Search) -> None:
    """Cuts every axis from its end and from its beginning, until that changes nothing."""
    from hypothesis import strategies as st

    changed = True
    while changed and not search.is_over:
        changed = False
        for axis in np.argsort(search.best.case.shape)[::-1]:
            for from_begin in (False, True):
                now = search.best
                size = now.case.shape[axis]
                if size <= 1:
                    continue

                def make(
                    keep: int, now: Problem = now, axis: int = int(axis), last: bool = from_begin
                ) -> Problem:
                    total = now.case.shape[axis]
                    begin, end = (total - keep, total) if last else (0, keep)
                    return _cut(now, axis, begin, end)

                # Most of the way in one step, if it can be gone.
                changed |= search.find(st.integers(1, size - 1), make)


def _simpler(value: float) -> list[float]:
    """Numbers to put in the place of one, the simplest first."""
    rounded = [round(value), float(f"{value:.1g}")] if math.isfinite(value) else []
    return list(dict.fromkeys([0.0, 1.0, *map(float, rounded)]))


def _replaced(problem: Problem, role: str, new: np.ndarray) -> Problem:
    values = {**problem.inputs.values, role: new.astype(problem.inputs.values[role].dtype)}
    return Problem(problem.case, Inputs(values, attrs=problem.inputs.attrs))


def _simplify_numbers(search: _Search) -> None:
    """Puts simpler numbers into every tensor: into all of it, then element by element."""
    from hypothesis import strategies as st

    # What would not belong together any more if one of them changed.
    kept = {"x", "offset", "y"} if _has_coefficients(search.best) else set()
    for role in sorted(set(_types(search.best)) - kept, key=lambda r: (r in VIEW_ROLES, r)):
        old = search.best.inputs.values[role]
        wide = old.astype(np.float64)
        with np.errstate(all="ignore"):
            wholes = [np.zeros_like(wide), np.ones_like(wide), np.round(wide)]
        whole = [w for w in wholes if not np.array_equal(w, wide, equal_nan=True)]
        if whole:
            replace = functools.partial(_replaced, search.best, role)
            search.find(st.sampled_from(whole), replace)
        if old.size > _FEW:
            continue
        for i in range(old.size):
            now = search.best.inputs.values[role]
            value = float(now.reshape(-1)[i])
            # Simpler than the present value.
            options = list(itertools.takewhile(value.__ne__, _simpler(value)))
            if not options or search.is_over:
                continue

            def make(new: float, now: np.ndarray = now, i: int = i, role: str = role) -> Problem:
                array = now.copy()
                array.reshape(-1)[i] = new
                return _replaced(search.best, role, array)

            search.find(st.sampled_from(options), make)


def _reduce(search: _Search) -> None:
    """Makes the failing problem itself smaller."""
    start = search.best
    for mode in _simpler_modes(start.case.execution)[:-1]:
        if search.is_over or search.fails(
            Problem(dataclasses.replace(start.case, execution=mode), start.inputs)
        ):
            break
    _cut_axes(search)
    _simplify_numbers(search)


def shrink(
    start: Problem,
    wrong: frozenset[str],
    candidate: Runner,
    settings: Settings,
) -> Problem:
    """The smallest problem found in which the candidate fails in one of the ways it did.

    Args:
      start: a problem in which it fails.
      wrong: how (record.wrong).
      candidate: answers problems.
      settings: what it is judged by.

    Returns:
      After SECONDS the smallest one so far.

    Raises:
      ShrinkError: Hypothesis is not installed.
    """
    check_possible()
    search = _Search(start, wrong, candidate, settings, SECONDS)
    if search.find(*_small_cases(start)):
        _cut_axes(search)
    else:
        _reduce(search)
    return search.best
