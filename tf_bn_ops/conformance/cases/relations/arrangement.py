"""Channels, batch and layout may be arranged otherwise: the outputs follow.

Not bitwise: a kernel may sum in another order. The outputs of both calls are inside their bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.relations.relation import (
    Answered,
    Comparison,
    Member,
    Relation,
    changed,
    outputs_of,
)
from tf_bn_ops.harness.problems import VIEW_ROLES, Inputs

# A tensor of view shape, or of a number per channel -> the same, arranged otherwise.
_Arrange = Callable[[np.ndarray], np.ndarray]


class _Arrangement(NamedTuple):
    """A call that follows from the base call, and how its tensors do."""

    case: Case
    of_view: _Arrange
    of_channels: _Arrange = lambda a: a


def _arranged(inputs: Inputs, by: _Arrangement, channels: int) -> Inputs:
    """The inputs, arranged; what is neither of the two, and is not read, stays."""
    values = {}
    for role, array in inputs.values.items():
        if role in VIEW_ROLES:
            values[role] = np.ascontiguousarray(by.of_view(array))
        elif array.shape == (channels,):
            values[role] = np.ascontiguousarray(by.of_channels(array))
    return changed(inputs, values)


def _relation(
    what: str,
    arrangements: Callable[[Case], Sequence[_Arrangement]],
    applies: Callable[[spec.OpSpec], bool] = lambda op: True,
) -> Relation:
    def calls(case: Case, inputs: Inputs) -> Sequence[Member]:
        _, channels = _channels(case)
        others = [(by.case, _arranged(inputs, by, channels)) for by in arrangements(case)]
        return [(case, inputs), *others]

    def check(answers: Sequence[Answered]) -> Iterator[Comparison]:
        base, *others = answers
        for other, by in zip(others, arrangements(base.case), strict=True):
            for role in outputs_of(base.case.spec):
                if role in base.outputs:
                    arrange = by.of_view if role in VIEW_ROLES else by.of_channels
                    difference = other.outputs[role] - arrange(base.outputs[role])
                    allowed = other.bounds[role] + arrange(base.bounds[role])
                    yield Comparison(role, difference, allowed)

    return Relation(what, calls, check, applies)


def _channels(case: Case) -> tuple[int, int]:
    """The axis of the channels, and their number."""
    axis = spec.channel_axis(case.layout)
    return axis, case.shape[axis]


def _order(case: Case, count: int) -> np.ndarray:
    return np.random.default_rng([case.seed, 5]).permutation(count)


def _taken(case: Case, which: np.ndarray) -> _Arrangement:
    """Some channels, in some order."""
    axis, _ = _channels(case)
    shape = tuple(len(which) if i == axis else n for i, n in enumerate(case.shape))
    other = dataclasses.replace(case, shape=shape)
    return _Arrangement(other, lambda a: a.take(which, axis), lambda a: a[which])


def _permuted(case: Case) -> list[_Arrangement]:
    return [_taken(case, _order(case, _channels(case)[1]))]


def _split(case: Case) -> list[_Arrangement]:
    _, channels = _channels(case)
    cut = 1 + int(np.random.default_rng([case.seed, 6]).integers(channels - 1))
    return [_taken(case, part) for part in np.split(np.arange(channels), [cut])]


def _reordered(case: Case) -> list[_Arrangement]:
    order = _order(case, case.shape[0])
    return [_Arrangement(case, lambda a: a[order])]


def _other_layout(op: spec.OpSpec, layout: str) -> str:
    """The layout of as many dimensions whose channels are elsewhere, or nothing."""
    rank, last = spec.LAYOUTS[layout]
    return next((name for name in op.layouts if spec.LAYOUTS[name] == (rank, not last)), "")


def _transposed(case: Case) -> list[_Arrangement]:
    axis, channels = _channels(case)
    to = 1 if axis == len(case.shape) - 1 else len(case.shape) - 1
    shape = [n for i, n in enumerate(case.shape) if i != axis]
    shape.insert(to, channels)
    layout = _other_layout(case.spec, case.layout)
    other = dataclasses.replace(case, layout=layout, shape=tuple(shape))
    return [_Arrangement(other, lambda a: np.moveaxis(a, axis, to))]


CHANNEL_ORDER = _relation("permuted channels give permuted outputs", _permuted)
CHANNEL_SPLIT = _relation("channels in two calls give what they give in one", _split)
BATCH_ORDER = _relation("a reordered batch gives reordered outputs and the same sums", _reordered)
LAYOUT = _relation(
    "transposed tensors in the other layout give transposed outputs",
    _transposed,
    lambda op: all(_other_layout(op, name) for name in op.layouts),
)
