"""Outputs that are linear in some inputs: times a power of two, and of a sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.relations.relation import (
    Answered,
    Comparison,
    Member,
    Relation,
    changed,
    linear_in,
    quantized,
)
from tf_bn_ops.harness.problems import Inputs

_FACTOR = 8.0


def _given(case: Case, inputs: Inputs) -> list[str]:
    return [role for role in linear_in(case.spec)[0] if role in inputs.values]


def _scaled(case: Case, inputs: Inputs) -> Sequence[Member]:
    values = {r: inputs.values[r] for r in _given(case, inputs)}
    larger = {r: (a * np.asarray(_FACTOR, a.dtype)).astype(a.dtype) for r, a in values.items()}
    return [(case, inputs), (case, changed(inputs, larger))]


def _check_scaled(answers: Sequence[Answered]) -> Iterator[Comparison]:
    """Exact but where a number is subnormal: nothing else rounds otherwise."""
    one, larger = answers
    for role in linear_in(one.case.spec)[1]:
        if role not in one.outputs:
            continue
        a, b = one.outputs[role], larger.outputs[role]
        dtype = one.case.dtype if a.ndim > 1 else one.case.statistics_dtype
        is_normal = np.abs(a) >= spec.DTYPES[dtype].smallest_normal
        allowed = np.where(is_normal, 0, _FACTOR * one.bounds[role] + larger.bounds[role])
        yield Comparison(role, b - _FACTOR * a, allowed)


def _summed(case: Case, inputs: Inputs) -> Sequence[Member]:
    first = {role: quantized(inputs.values[role]) for role in _given(case, inputs)}
    second = {role: np.roll(array, 1) for role, array in first.items()}
    both = {role: first[role] + second[role] for role in first}
    return [(case, changed(inputs, values)) for values in (first, second, both)]


def _check_summed(answers: Sequence[Answered]) -> Iterator[Comparison]:
    first, second, both = answers
    for role in linear_in(first.case.spec)[1]:
        if role in first.outputs:
            difference = both.outputs[role] - first.outputs[role] - second.outputs[role]
            allowed = first.bounds[role] + second.bounds[role] + both.bounds[role]
            yield Comparison(role, difference, allowed)


POWER_OF_TWO = Relation(
    "8 times the linear inputs give exactly 8 times the outputs",
    _scaled, _check_scaled, identity=True,
)  # fmt: skip
SUM = Relation(
    "the outputs of a sum are the sum of the outputs", _summed, _check_summed, identity=True
)
