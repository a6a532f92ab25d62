"""The shape functions of two ops on the same questions: partial shapes of every rank and layout.

A question is a call whose inputs are placeholders: all shapes known, then one input, or all of view
shape, with an unknown rank, unknown dimensions, another rank, another size. Inside the worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops.spec import OpSpec

# None is an unknown dimension; None for all of it an unknown rank.
PartialShape = tuple[int | None, ...] | None
# Our name of an input -> its shape.
Question = dict[str, PartialShape]

_SIZES = (2, 3, 4, 5, 6, 7)
_MOST_RANKS = 7


def _variants(shape: tuple[int, ...]) -> Iterator[PartialShape]:
    """What may stand for a known shape."""
    yield None
    yield (None,) * len(shape)
    yield (*shape, 1)
    yield shape[1:]
    for axis in range(len(shape)):
        yield (*shape[:axis], None, *shape[axis + 1 :])
        yield (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :])


def questions(op: OpSpec, layout: str) -> Iterator[Question]:
    """The questions to an op in one layout."""
    shape = _SIZES[: spec.LAYOUTS[layout][0]]
    of_kind: dict[str, tuple[int, ...]] = {
        **dict.fromkeys((spec.VIEW, spec.VIEW_LIST), shape),
        **dict.fromkeys((spec.CHANNEL, spec.WIDE), (shape[spec.channel_axis(layout)],)),
        spec.COUNT: (),
        spec.OPAQUE: (0,),
    }
    known: Question = {arg.name: of_kind[arg.kind] for arg in op.inputs}
    yield known
    yield dict.fromkeys(known)
    for arg in op.inputs:
        for variant in _variants(of_kind[arg.kind]):
            yield {**known, arg.name: variant}
        yield {**dict.fromkeys(known), arg.name: known[arg.name]}
    views = [arg.name for arg in op.inputs if of_kind[arg.kind] is shape]
    others: list[PartialShape] = [None, *((None,) * rank for rank in range(_MOST_RANKS))]
    for other in others:
        yield {**known, **dict.fromkeys(views, other)}


# (question, attrs) -> the shapes of the outputs, None for an error.
Ask = Callable[[Question, dict[str, Any]], Sequence[PartialShape] | None]


def _text(shape: PartialShape) -> str:
    if shape is None:
        return "unknown"
    return "[" + ", ".join("?" if n is None else str(n) for n in shape) + "]"


def difference(
    op: OpSpec, layouts: Sequence[str], modes: Sequence[str], theirs: Ask, ours: Ask
) -> str:
    """How the inferred shapes of two ops that claim to be `op` differ in some layouts and modes, in
    one sentence; nothing where they are equal."""
    asked, found = 0, []
    for layout, mode in itertools.product(layouts, modes):
        attrs: dict[str, Any] = {"data_format": layout, "is_training": mode == "training"}
        attrs["axis"] = spec.channel_axis(layout)
        for question in questions(op, layout):
            given = {name: attrs.get(name, default) for name, default in op.attrs.items()}
            answers = theirs(question, given), ours(question, given)
            asked += 1
            if answers[0] != answers[1]:
                found.append((layout, mode, question, answers))
    if not found:
        return ""
    layout, mode, question, answers = found[0]
    said = ["an error" if shapes is None else ", ".join(map(_text, shapes)) for shapes in answers]
    of = ", ".join(f"{name} {_text(shape)}" for name, shape in question.items())
    return (
        f"the shape function differs in {len(found)} of {asked} questions, first in {layout}, "
        f"{mode}, of {of}: {said[0]} instead of {said[1]}"
    )
