"""All relations, the kinds of cases that they are, and the cases of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import shapes
from tf_bn_ops.conformance.cases.case import RELATION_PREFIX, Case
from tf_bn_ops.conformance.cases.execution_modes import DRAWN
from tf_bn_ops.conformance.cases.relations import arrangement, differences, linear
from tf_bn_ops.conformance.cases.relations.relation import Member, Relation, base, linear_in
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.harness.problems import Inputs
from tf_bn_ops.spec import OpSpec

RELATIONS: Mapping[str, Relation] = {
    "power_of_two": linear.POWER_OF_TWO,
    "sum": linear.SUM,
    "channel_order": arrangement.CHANNEL_ORDER,
    "channel_split": arrangement.CHANNEL_SPLIT,
    "batch_order": arrangement.BATCH_ORDER,
    "layout": arrangement.LAYOUT,
    "finite_differences": differences.FINITE_DIFFERENCES,
}

# Elements of a call: each costs an oracle's pass over every call of the relation, for the bounds.
_LEAST, _MOST = 8, 6000


def kinds(op: OpSpec) -> tuple[str, ...]:
    """The kinds that an op has."""
    if not linear_in(op)[0]:
        return ()
    return tuple(RELATION_PREFIX + name for name, each in RELATIONS.items() if each.applies(op))


def of(case: Case) -> Relation:
    """The relation that a case checks."""
    return RELATIONS[case.kind.removeprefix(RELATION_PREFIX)]


def fill(case: Case) -> Inputs:
    """The inputs of the base call."""
    return base(case, of(case).identity)


def calls(case: Case, base_inputs: Inputs) -> Sequence[Member]:
    """All calls of a case."""
    return of(case).calls(case, base_inputs)


def _shape(rng: np.random.Generator, layout: str) -> tuple[int, ...]:
    """A shape of some elements, with two channels, two in a batch and two rows at least."""
    while True:
        shape = shapes.draw(rng, layout)
        outer, channels, inner = spec.view_shape(shape, layout)
        enough = shape[0] > 1 and channels > 1 and outer * inner > 2
        if enough and _LEAST <= outer * channels * inner <= _MOST:
            return shape


def generate(count: int, seed: int, combos: Sequence[tuple[str, str, str, str]]) -> Iterator[Case]:
    """`count` cases, the same for the same arguments on every machine; they go round over ops and,
    for each, over relations."""
    rng = np.random.default_rng([seed, 5])
    by_op: dict[str, list[tuple[str, str, str, str]]] = {}
    for combo in combos:
        if kinds(spec.OPS[combo[0]]):
            by_op.setdefault(combo[0], []).append(combo)
    ops = list(by_op)
    for i in range(count if ops else 0):
        op = spec.OPS[ops[i % len(ops)]]
        known = kinds(op)
        kind = known[(i // len(ops)) % len(known)]
        _, dtype, layout, mode = by_op[op.name][int(rng.integers(len(by_op[op.name])))]
        epsilon = float(rng.choice(inputs.epsilons(model_of(op).kinds["normal"], op)))
        yield Case(
            op, dtype, kind, int(rng.integers(1 << 31)), layout, _shape(rng, layout), mode,
            "batch" if mode == "training" else "given", epsilon,
            execution=DRAWN[int(rng.integers(len(DRAWN)))],
        )  # fmt: skip
