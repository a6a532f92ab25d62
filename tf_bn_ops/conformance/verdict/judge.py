"""The verdict on the values of a case: structure, errors against the bounds, evidence.

What is expected comes from the op's formula model; nothing here knows a formula.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import OTHER_KERNELS
from tf_bn_ops.conformance.execution.answer import Answer, identical
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.models.measure import (
    Evidence,
    Expected,
    OutputError,
    assembled,
    floating_dtype,
    ulp_of,
)
from tf_bn_ops.conformance.verdict.result import BITS_DIFFER, CaseResult, Disagreement, PathResult
from tf_bn_ops.harness import problems
from tf_bn_ops.harness.problems import Inputs


@dataclasses.dataclass(frozen=True)
class Output:
    """An output by the op's contract; `judged` where its values are compared; a shape of None: it
    may have any."""

    name: str
    role: str
    shape: tuple[int, ...] | None
    dtype: np.dtype
    judged: bool


@dataclasses.dataclass(frozen=True)
class Expectation:
    """What is expected of a case: its outputs, and their values part by part; view-shaped ones are
    compared as [outer, channels, inner].

    Attributes:
      exact: the outputs that have to match bitwise.
    """

    outputs: Sequence[Output]
    parts: Iterator[Expected]
    exact: frozenset[str] = frozenset()

    @np.errstate(all="ignore")
    def arrays(self, layout: str) -> dict[str, dict[str, np.ndarray]]:
        """Judged output -> "value", "bound" (both float64) and "rule", as portable_judge.py takes
        them, in the shape of its tensor."""
        outputs = {output.role: output for output in self.outputs if output.judged}
        parts = []
        for part in self.parts:
            dtype = floating_dtype(outputs[part.role].dtype)
            if part.role in self.exact and dtype is not None:
                part = part.rounded(dtype)
            elif part.value.dtype.itemsize > 8:  # A long double is rounded here.
                bound = part.bound + 2.0**-52 * np.abs(part.value)
                part = dataclasses.replace(part, bound=bound)
            parts.append(part)
        found: dict[str, dict[str, np.ndarray]] = {}
        for role, output in outputs.items():
            shape = output.shape or ()
            view = spec.view_shape(shape, layout) if len(shape) > 1 else shape
            found[role] = {
                field: assembled(parts, role, field, view).astype(dtype).reshape(shape)
                for field, dtype in (("value", float), ("bound", float), ("rule", np.uint8))
            }
        return found


def outputs_of(case: Case, attrs: Mapping[str, Any] | None = None) -> list[Output]:
    """The outputs of an op of the family by its contract; `attrs`: the case's inputs' attrs."""
    channels = spec.view_shape(case.shape, case.layout)[1]
    shapes = {
        **dict.fromkeys((spec.VIEW, spec.VIEW_LIST), case.shape),
        **dict.fromkeys((spec.CHANNEL, spec.WIDE), (channels,)),
        spec.COUNT: (),
        spec.PLACEHOLDER: (0,),
        spec.OPAQUE: None,
    }
    judged = model_of(case.spec).outputs
    found = []
    for arg in case.spec.outputs_with(attrs or {}):
        name = case.spec.type_of(arg, case.dtype, case.statistics_dtype)
        dtype = spec.DTYPES[name].numpy
        found.append(Output(arg.name, arg.role, shapes[arg.kind], dtype, arg.role in judged))
    return found


def expect(case: Case, inputs: Inputs, profile: bounds.Profile) -> Expectation:
    """What is expected of a case."""
    model = model_of(case.spec)
    parts = model.expected(problems.of_call(case, inputs), profile)
    exact = inputs.exact if profile.exact is None else inputs.exact & profile.exact
    return Expectation(outputs_of(case, inputs.attrs), parts, exact)


# What kernels divide by zero for; docs/own_kernel.md says it, too.
_OF_EMPTY = (
    "x is empty: sums, and so the gradients of vectors, are 0; batch_mean and batch_variance of "
    "training are NaN, the statistics saved for the gradient 0; frozen all four are those given"
)


def structure(outputs: Sequence[Output], answer: Answer) -> list[Disagreement]:
    """How an answer differs from the contract: failures, number of outputs, shapes, dtypes."""
    if answer.crash:
        return [Disagreement("crash", answer.crash)]
    if answer.outputs is None:
        return [Disagreement("error", answer.error)]
    if len(answer.outputs) != len(outputs):
        return [Disagreement("count", f"{len(answer.outputs)} outputs, not {len(outputs)}")]
    found = []
    if answer.changed:
        text = f"has changed its input {' and '.join(answer.changed)}, which other ops may read"
        found.append(Disagreement("changed-input", text))
    for output, given in zip(outputs, answer.outputs, strict=True):
        shape = given.shape if output.shape is None else output.shape
        for what, has, should in (
            ("shape", list(given.shape), list(shape)),
            ("dtype", given.dtype, output.dtype),
        ):
            if has != should:
                text = f"{output.name} has {what} {has}, not {should}"
                d = Disagreement(f"{what}:{output.role}", text)
                if d not in found:
                    found.append(d)
    return found


def _comparable(case: Case, expected: Expectation, answer: Answer) -> dict[str, np.ndarray]:
    """The outputs whose values can be compared, by role."""
    if answer.outputs is None or len(answer.outputs) != len(expected.outputs):
        return {}
    result = {}
    for output, given in zip(expected.outputs, answer.outputs, strict=True):
        # A wrong type fails already, and is measured all the same.
        if output.judged and given.shape == output.shape:
            is_view = given.ndim > 1
            result[output.role] = spec.as_view(given, case.layout) if is_view else given
    return result


def judge(
    case: Case,
    inputs: Inputs,
    answers: Mapping[str, Answer],
    profile: bounds.Profile,
    exempt: Collection[str] = (),
    times: Mapping[str, float] | None = None,
    unwritten: Mapping[str, Collection[str]] | None = None,
) -> CaseResult:
    """Judges all answers to a case by what its formula model expects.

    Every path is measured alike. `failures` holds what is wrong with the *values* of the candidate,
    and its execution modes whose results differ bitwise though they are not in `exempt`;
    disagreements in structure are for the caller to hold against the list of known ones. `times`
    has the outputs that the candidate is allowed more for: as many times the bound, and no
    exactness. `unwritten` has the outputs that an implementation is known not to write: whatever
    was in their memory is not looked at.
    """
    times = times or {}
    paths = dict(answers)
    if CANDIDATE in paths:
        for mode, other in paths[CANDIDATE].others.items():
            if other.outputs is not None:
                paths[f"{CANDIDATE}:{mode}"] = other
    expected = expect(case, inputs, profile)
    results = {name: PathResult(structure(expected.outputs, a)) for name, a in paths.items()}
    for path in results.values() if case.is_empty else ():
        path.disagreements = [
            dataclasses.replace(d, detail=f"{d.detail} ({_OF_EMPTY})") for d in path.disagreements
        ]
    values = {name: _comparable(case, expected, answer) for name, answer in paths.items()}
    for name, roles in (unwritten or {}).items():
        for role in roles:
            values[name].pop(role, None)
    exact = expected.exact - set(times)
    evidence = _measure(expected, values, results, exact)
    result = CaseResult(case, results, {role: e.holds for role, e in evidence.items()})
    for name, path in results.items():
        who, _, mode = name.partition(":")
        for role, error in path.errors.items() if who == CANDIDATE else ():
            if not error.bound <= times.get(role, 1):
                how = "not exact" if role in exact else f"{error.bound:.3g} times the bound"
                text = f"{result.name_of(role)} {how} {error.worst}"
                text += f" ({_OF_EMPTY})" if case.is_empty else ""
                path.wrong_values.append(Disagreement(f"values:{role}", text))
                result.failures.append(f"{mode and mode + ': '}{text}")
    compare_modes(case, answers, exempt, result, unwritten)
    return result


def _measure(
    expected: Expectation,
    values: Mapping[str, Mapping[str, np.ndarray]],
    results: Mapping[str, PathResult],
    exact: frozenset[str],
) -> dict[str, Evidence]:
    """Measures all paths part by part; returns the evidence of each output."""
    evidence = {output.role: Evidence() for output in expected.outputs if output.judged}
    dtypes = {output.role: floating_dtype(output.dtype) for output in expected.outputs}
    for name, path in results.items():
        path.errors = {role: OutputError() for role in evidence if role in values[name]}
    for part in expected.parts:
        role, dtype = part.role, dtypes[part.role]
        evidence[role].add(part)
        ulp = ulp_of(part, dtype)
        if role in exact:
            assert dtype is not None
            part = part.rounded(dtype)
        for name, path in results.items():
            if role in path.errors:
                given = values[name][role][part.at]
                path.errors[role].add(given, part, ulp, dtype)
    return evidence


def _difference(case: Case, a: Answer, b: Answer) -> str:
    """Where the results of two execution modes differ, in one sentence."""
    for answer in (b, a):
        if answer.outputs is None:
            return answer.crash or f"error: {answer.error}"
    assert a.outputs is not None and b.outputs is not None
    if len(a.outputs) != len(b.outputs):
        return f"{len(b.outputs)} outputs instead of {len(a.outputs)}"
    # Outputs of lists come last, and may be missing.
    for arg, x, y in zip(case.spec.outputs, a.outputs, b.outputs, strict=False):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{arg.name} is {y.dtype}{list(y.shape)} instead of {x.dtype}{list(x.shape)}"
        differs = (x != y) & ~(np.isnan(x) & np.isnan(y))
        if floating_dtype(x.dtype) is not None:
            differs |= np.signbit(x) != np.signbit(y)
        if np.any(differs):
            where = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(differs)))
            x, y = (np.atleast_1d(array)[where] for array in (x, y))
            return (
                f"{arg.name} in {np.count_nonzero(differs)} elements, first at {list(where)}: "
                f"{float(y)!r} instead of {float(x)!r}"
            )
    return "the bits of NaN"


def _alike_but_for_opaque(case: Case, a: Answer, b: Answer) -> bool:
    """Whether two answers are bitwise identical but for outputs that may have any shape: what one
    op leaves to another may be something else where both run otherwise."""
    if a.outputs is None or b.outputs is None or len(a.outputs) != len(b.outputs):
        return False
    opaque = [i for i, arg in enumerate(case.spec.outputs) if arg.kind == spec.OPAQUE]
    kept = [[o for i, o in enumerate(x.outputs or ()) if i not in opaque] for x in (a, b)]
    return bool(opaque) and identical(*kept)


def _never_written(case: Case, answer: Answer, known: Collection[str]) -> str:
    """Which outputs were not written, but for those that are known not to be, in one sentence."""
    named = list(zip(case.spec.outputs, range(len(case.spec.outputs)), strict=True))
    return ", ".join(
        f"{arg.name} is not written in {answer.unwritten[index]}"
        for arg, index in named
        if index in answer.unwritten and arg.role not in known
    )


def compare_modes(
    case: Case,
    answers: Mapping[str, Answer],
    exempt: Collection[str],
    result: CaseResult,
    unwritten: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Notes which further execution modes were bitwise identical, and fails the candidate where
    they had to be; an output that was never written fails it in any mode, but for those that it is
    known not to write (`unwritten`, as in `judge`)."""
    for name, answer in answers.items():
        if answer.changed and name == CANDIDATE:
            continue  # Each later call has other inputs.
        for mode in answer.same:
            result.modes[name, mode] = "same"
        for mode, why in answer.unsupported.items():
            result.modes[name, mode] = "unsupported"
            result.notes.append(f"{name}: {mode} does not apply: {why}")
        for mode, other in answer.others.items():
            if mode in OTHER_KERNELS and _alike_but_for_opaque(case, answer, other):
                result.modes[name, mode] = "same"
                continue
            result.modes[name, mode] = "differs"
            known = (unwritten or {}).get(f"{name}:{mode}", ())
            left = _never_written(case, other, known)
            text = f"{BITS_DIFFER} between {case.execution_modes[0]} and {mode}: "
            text += left or _difference(case, answer, other)
            must_not = mode not in exempt or other.outputs is None or bool(left)
            if name == CANDIDATE and must_not:
                result.failures.append(text)
            else:
                result.notes.append(f"{name}: {text}")
