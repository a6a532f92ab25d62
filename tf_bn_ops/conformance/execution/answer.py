"""What an implementation gave for a case, and what its execution modes are to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Answer:
    """Outputs in the op's order, or a failure.

    Attributes:
      outputs: the tensors; None where it failed.
      error: code and message of the error that it raised.
      crash: how its process ended, with its last output.
      others: further execution modes of the case -> their answers, where they differ bitwise.
      same: the further execution modes whose answers are bitwise identical.
      unsupported: further execution modes that do not apply -> why.
      changed: the inputs, by name, that the op has written to, in any of its modes.
      unwritten: output, by number -> which of its elements were never written.
    """

    outputs: Sequence[np.ndarray] | None = None
    error: str = ""
    crash: str = ""
    others: Mapping[str, Answer] = dataclasses.field(default_factory=dict)
    same: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changed: tuple[str, ...] = ()
    unwritten: Mapping[int, str] = dataclasses.field(default_factory=dict)


def combined(answers: Mapping[str, Answer]) -> Answer:
    """The first answer by execution mode, with how the others compare with it."""
    first, *further = answers.values()
    same, others, unsupported = [*first.same], {**first.others}, {**first.unsupported}
    changed = dict.fromkeys(name for answer in answers.values() for name in answer.changed)
    for mode, answer in zip([*answers][1:], further, strict=True):
        if answer.unsupported:
            unsupported |= answer.unsupported
        elif _is_same(first, answer):
            same.append(mode)
        else:
            others[mode] = answer
    return dataclasses.replace(
        first, others=others, same=tuple(same), unsupported=unsupported, changed=tuple(changed)
    )


def _is_same(a: Answer, b: Answer) -> bool:
    """Whether two modes gave bitwise identical results; or both refused, in whatever words."""
    if a.outputs is None or b.outputs is None:
        return bool(a.error and b.error)
    return not b.unwritten and identical(a.outputs, b.outputs)


def identical(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    """Whether two lists of arrays are bitwise identical, but for the payload of NaN."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and (x.tobytes() == y.tobytes() or _identical_but_for_nan(x, y))
        for x, y in zip(a, b, strict=True)
    )


def _identical_but_for_nan(a: np.ndarray, b: np.ndarray) -> bool:
    nan = np.isnan(a)
    if not nan.any() or not np.array_equal(nan, np.isnan(b)):
        return False
    return a[~nan].tobytes() == b[~nan].tobytes()
