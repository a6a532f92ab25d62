"""Makes a failing case small: execution mode, type, shape and numbers, as long as it fails alike.

The problem is tried in simpler execution modes, in float32 and with an epsilon of 1, cut along its
axes by bisection, and its numbers are replaced by simpler ones: again until nothing changes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Problem
from tf_bn_ops.conformance.cases.execution_modes import DRAWN
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.execution.workers import Runner
from tf_bn_ops.conformance.reports import record
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness.problems import VIEW_ROLES, Inputs

# Time budget of a failing case.
SECONDS = 20.0
# Elements up to which the numbers of a tensor are simplified one by one.
_FEW = 64


class _Search:
    """Runs the candidate on problems until the time is up, and keeps the last that fails."""

    def __init__(
        self, start: Problem, wrong: frozenset[str], candidate: Runner, settings: Settings
    ):
        self.best = start
        self._wrong = wrong
        self._candidate = candidate
        self._settings = settings
        self._deadline = time.monotonic() + SECONDS

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def fails(self, problem: Problem) -> bool:
        """Whether the candidate fails in this problem in one of the ways that it failed first."""
        if self.is_over or not self._candidate.supports(problem.case):
            return False
        self._candidate.submit(problem.case, problem.inputs)
        answer = self._candidate.collect()
        result = judge(
            self._settings.named(problem.case),
            problem.inputs,
            {CANDIDATE: answer},
            self._settings.profile,
            times=self._settings.times(problem.case),
        )
        path = result.paths[CANDIDATE]
        # Another process for each try would take longer than there is.
        result.failures += [str(d) for d in path.disagreements if d.what != "crash"]
        if self._wrong.isdisjoint(record.wrong(record.of_result(0, result))):
            return False
        self.best = problem
        return True


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


def _has_coefficients(problem: Problem) -> bool:
    """Whether reserve_space_3 holds those that y was computed from x by."""
    channels = problem.inputs.values["scale"].size
    coefficients = problem.inputs.values.get("forward_coefficients", np.zeros(0))
    return coefficients.shape == (spec.ops.NUM_FORWARD_COEFFICIENTS, channels) and channels > 0


def _simplify_call(search: _Search) -> None:
    """The simplest execution mode, float32, whose numbers are the easiest to read, epsilon 1."""
    case = search.best.case
    modes = [*DRAWN[: DRAWN.index(case.execution)]] if case.execution in DRAWN else [*DRAWN]
    choices: list[dict[str, Any]] = [{"execution": mode} for mode in modes]
    if not _has_coefficients(search.best):
        choices += [{"dtype": "float32"}, {"epsilon": 1.0}]
    for choice in choices:
        new = dataclasses.replace(search.best.case, **choice)
        if new == search.best.case or new.dtype not in new.spec.dtypes:
            continue
        given = search.best.inputs
        values = dict(given.values)
        with np.errstate(all="ignore"):
            for role, dtype in _types(Problem(new, given)).items():
                values[role] = values[role].astype(dtype)
        exact = given.exact if "execution" in choice else frozenset()
        search.fails(Problem(new, Inputs(values, exact, given.attrs)))


def _cut(problem: Problem, axis: int, begin: int, end: int) -> Problem:
    """The problem with the indices [begin, end) of an axis only."""
    case = problem.case
    index = tuple(slice(begin, end) if a == axis else slice(None) for a in range(len(case.shape)))
    is_channel = axis == spec.channel_axis(case.layout)
    values = dict(problem.inputs.values)
    for role in _types(problem):
        if role in VIEW_ROLES:
            values[role] = np.ascontiguousarray(values[role][index])
        elif is_channel and values[role].ndim:
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
    """Cuts every axis from its end and from its beginning, the longest first."""
    for axis, from_begin in itertools.product(
        np.argsort(search.best.case.shape)[::-1], (False, True)
    ):
        start = search.best
        total = start.case.shape[axis]
        passes, fails = 0, total
        while fails - passes > 1 and not search.is_over:
            # One index is often enough.
            keep = 1 if fails == total and not passes else (passes + fails) // 2
            begin = total - keep if from_begin else 0
            if search.fails(_cut(start, int(axis), begin, begin + keep)):
                fails = keep
            else:
                passes = keep


def _simpler(value: float) -> list[float]:
    """Numbers to put in the place of one, the simplest first."""
    rounded = [round(value), float(f"{value:.1g}")] if math.isfinite(value) else []
    return list(dict.fromkeys([0.0, 1.0, *map(float, rounded)]))


def _replaced(problem: Problem, role: str, new: np.ndarray) -> Problem:
    values = {**problem.inputs.values, role: new.astype(problem.inputs.values[role].dtype)}
    return Problem(problem.case, Inputs(values, attrs=problem.inputs.attrs))


def _simpler_tensors(old: np.ndarray) -> Iterator[np.ndarray]:
    """Simpler tensors of one number, or of rounded ones."""
    if not np.all(old == 0):
        yield np.zeros_like(old)
    if not np.all((old == 0) | (old == 1)):
        yield np.ones_like(old)
        if not np.array_equal(np.round(old), old, equal_nan=True):
            yield np.round(old)


def _simplify_numbers(search: _Search) -> None:
    """Puts simpler numbers into every tensor: into all of it, then element by element."""
    # What would not belong together any more if one of them changed.
    kept = {"x", "offset", "y"} if _has_coefficients(search.best) else set()
    for role in sorted(set(_types(search.best)) - kept, key=lambda r: (r in VIEW_ROLES, r)):
        old = search.best.inputs.values[role].astype(np.float64)
        with np.errstate(all="ignore"):
            any(search.fails(_replaced(search.best, role, new)) for new in _simpler_tensors(old))
        for i in range(old.size if old.size <= _FEW else 0):
            now = search.best.inputs.values[role]
            value = float(now.reshape(-1)[i])
            for option in itertools.takewhile(value.__ne__, _simpler(value)):
                new = now.copy()
                new.reshape(-1)[i] = option
                # 0.4 rounded to the type is another number than 0.4, and no simpler one.
                is_same = new.reshape(-1)[i] == now.reshape(-1)[i]
                if is_same or search.fails(_replaced(search.best, role, new)):
                    break


def shrink(start: Problem, wrong: frozenset[str], candidate: Runner, settings: Settings) -> Problem:
    """The smallest problem found in SECONDS in which the candidate fails in one of the ways `wrong`
    (record.wrong) in which it does from `start`."""
    search = _Search(start, wrong, candidate, settings)
    before = None
    while search.best is not before and not search.is_over:
        before = search.best
        _simplify_call(search)
        _cut_axes(search)
        _simplify_numbers(search)
    return search.best
