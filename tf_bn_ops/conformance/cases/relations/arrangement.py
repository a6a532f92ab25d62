"""Channels, batch and layout may be arranged otherwise: the outputs follow.

Not bitwise: a kernel may sum in another order. The outputs of both calls are inside their bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

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
    outputs_of,
)
from tf_bn_ops.harness.problems import VIEW_ROLES, Inputs

# A tensor of view shape, or of a number per channel -> the same, arranged otherwise.
_Arrange = Callable[[np.ndarray], np.ndarray]


def _is_known(op: spec.OpSpec, mode: str) -> bool:
    return bool(linear_in(op)[0])


def _arranged(inputs: Inputs, of_view: _Arrange, of_channels: _Arrange, channels: int) -> Inputs:
    """The inputs, arranged; what is neither of the two, and is not read, stays."""
    values = {}
    for role, array in inputs.values.items():
        if role in VIEW_ROLES:
            values[role] = np.ascontiguousarray(of_view(array))
        elif array.shape == (channels,):
            values[role] = np.ascontiguousarray(of_channels(array))
    return changed(inputs, values)


def _compared(
    a: Answered, b: Answered, of_view: _Arrange, of_channels: _Arrange
) -> Iterator[Comparison]:
    """The outputs of `b` against those of `a`, arranged like its inputs."""
    for role in outputs_of(a.case.spec):
        if role not in a.outputs:
            continue
        arrange = of_view if role in VIEW_ROLES else of_channels
        difference = b.outputs[role] - arrange(a.outputs[role])
        yield Comparison(role, difference, b.bound(role) + arrange(a.bound(role)))


def _channels(case: Case) -> tuple[int, int]:
    """The axis of the channels, and their number."""
    axis = spec.channel_axis(case.layout)
    return axis, case.shape[axis]


def _order(case: Case, count: int) -> np.ndarray:
    return np.random.default_rng([case.seed, 5]).permutation(count)


# ---- Channels ------------------------------------------------------------------------------------


def _permuted(case: Case, inputs: Inputs) -> Sequence[Member]:
    axis, channels = _channels(case)
    order = _order(case, channels)
    other = _arranged(inputs, lambda a: a.take(order, axis), lambda a: a[order], channels)
    return [(case, inputs), (case, other)]


def _check_permuted(answers: Sequence[Answered]) -> Iterator[Comparison]:
    case = answers[0].case
    axis, channels = _channels(case)
    order = _order(case, channels)
    yield from _compared(answers[0], answers[1], lambda a: a.take(order, axis), lambda a: a[order])


def _cut(case: Case) -> int:
    _, channels = _channels(case)
    return 1 + int(np.random.default_rng([case.seed, 6]).integers(channels - 1))


def _parts(case: Case) -> list[np.ndarray]:
    _, channels = _channels(case)
    return np.split(np.arange(channels), [_cut(case)])


def _taken(which: np.ndarray, axis: int) -> _Arrange:
    """Takes some channels, whose axis it is."""
    return lambda a: a.take(which, axis)


def _split(case: Case, inputs: Inputs) -> Sequence[Member]:
    axis, channels = _channels(case)
    members = [(case, inputs)]
    for part in _parts(case):
        shape = tuple(len(part) if i == axis else n for i, n in enumerate(case.shape))
        own = _arranged(inputs, _taken(part, axis), _taken(part, 0), channels)
        members.append((dataclasses.replace(case, shape=shape), own))
    return members


def _check_split(answers: Sequence[Answered]) -> Iterator[Comparison]:
    whole, *parts = answers
    axis, _ = _channels(whole.case)
    for part, channels in zip(parts, _parts(whole.case), strict=True):
        yield from _compared(whole, part, _taken(channels, axis), _taken(channels, 0))


# ---- Batch and layout ----------------------------------------------------------------------------


def _reordered(case: Case, inputs: Inputs) -> Sequence[Member]:
    order = _order(case, case.shape[0])
    other = _arranged(inputs, lambda a: a[order], lambda a: a, _channels(case)[1])
    return [(case, inputs), (case, other)]


def _check_reordered(answers: Sequence[Answered]) -> Iterator[Comparison]:
    order = _order(answers[0].case, answers[0].case.shape[0])
    yield from _compared(answers[0], answers[1], lambda a: a[order], lambda a: a)


def _other_layout(op: spec.OpSpec, layout: str) -> str | None:
    """The layout of as many dimensions whose channels are elsewhere."""
    rank, last = spec.LAYOUTS[layout]
    found = [name for name in op.layouts if spec.LAYOUTS[name] == (rank, not last)]
    return found[0] if found else None


def _transpose(case: Case) -> _Arrange:
    axis = spec.channel_axis(case.layout)
    return lambda a: np.moveaxis(a, axis, 1 if axis == a.ndim - 1 else a.ndim - 1)


def _transposed(case: Case, inputs: Inputs) -> Sequence[Member]:
    other = _other_layout(case.spec, case.layout)
    assert other is not None
    moved = _arranged(inputs, _transpose(case), lambda a: a, _channels(case)[1])
    shape = moved.values["x"].shape
    return [(case, inputs), (dataclasses.replace(case, layout=other, shape=shape), moved)]


def _check_transposed(answers: Sequence[Answered]) -> Iterator[Comparison]:
    yield from _compared(answers[0], answers[1], _transpose(answers[0].case), lambda a: a)


CHANNEL_ORDER = Relation(
    "permuted channels give permuted outputs", _is_known, _permuted, _check_permuted
)
CHANNEL_SPLIT = Relation(
    "channels in two calls give what they give in one", _is_known, _split, _check_split
)
BATCH_ORDER = Relation(
    "a reordered batch gives reordered outputs and the same sums",
    _is_known, _reordered, _check_reordered,
)  # fmt: skip
LAYOUT = Relation(
    "transposed tensors in the other layout give transposed outputs",
    lambda op, mode: _is_known(op, mode) and all(_other_layout(op, n) for n in op.layouts),
    _transposed, _check_transposed,
)  # fmt: skip
