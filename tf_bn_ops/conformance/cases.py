"""The cases there are: read from their names, or drawn at random, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance import calls, contract, fills, shapes
from tf_bn_ops.conformance.case import REAL_PREFIX, STATISTICS, Case, CaseError

# One case of this many is large (see shapes.LARGE_ELEMENTS); the offset keeps short runs quick.
_LARGE_EVERY = 70
_LARGE_AT = 33
# One of this many is called from a graph.
_GRAPH_EVERY = 5


def _member(what: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise CaseError(f"{value!r} is not a known {what}; known: {', '.join(allowed)}")
    return value


def parse(text: str) -> Case:
    """The case that `text` names.

    Raises:
      CaseError: `text` does not have the form that `str(case)` has.
    """
    fields = [f.strip() for f in text.strip().split(",")]
    if len(fields) != 10:
        raise CaseError(
            f"a case has 10 fields separated by commas, {text!r} has {len(fields)}; "
            "copy it as the report prints it"
        )
    op_name, dtype, layout, shape_text, mode, kind, statistics, epsilon_text, call, seed = fields
    op = spec.OPS[_member("op", op_name, tuple(spec.OPS))]
    _member(f"dtype of {op.name}", dtype, op.dtypes)
    _member(f"layout of {op.name}", layout, op.layouts)
    _member(f"mode of {op.name}", mode, op.modes)
    if not kind.startswith(REAL_PREFIX):
        _member("kind of values", kind, (*fills.KINDS, *contract.kinds(op)))
    _member("source of statistics", statistics, STATISTICS)
    ways = call.split("+")
    for way in ways:
        _member("way to call", way, calls.BASES if way == ways[0] else tuple(calls.CALLS))
    if len(set(ways)) < len(ways):
        raise CaseError(f"{call!r} names a way to call twice")
    try:
        shape = tuple(int(n) for n in shape_text.split("x"))
        epsilon = float(epsilon_text.removeprefix("eps="))
        seed_number = int(seed.removeprefix("seed="))
    except ValueError as e:
        raise CaseError(f"the shape, epsilon or seed of case {text!r} is not a number") from e
    rank = spec.LAYOUTS[layout][0]
    if len(shape) != rank or min(shape) < 0:
        raise CaseError(f"shape {shape_text} does not fit {layout}, which has {rank} dimensions")
    if not (epsilon_text.startswith("eps=") and seed.startswith("seed=") and seed_number >= 0):
        raise CaseError(f"case {text!r} lacks eps=... or a non-negative seed=... in its place")
    return Case(op.name, dtype, layout, shape, mode, kind, statistics, epsilon, call, seed_number)


def combinations(
    ops: Sequence[str] = (), dtypes: Sequence[str] = (), layouts: Sequence[str] = ()
) -> list[tuple[str, str, str, str]]:
    """All (op, dtype, layout, mode) that the ops allow; an empty filter lets all through."""
    return [
        (op.name, dtype, layout, mode)
        for op in spec.of_formula(spec.BATCH_NORM_GRAD)
        if not ops or op.name in ops
        for dtype in op.dtypes
        if not dtypes or dtype in dtypes
        for layout in op.layouts
        if not layouts or layout in layouts
        for mode in op.modes
    ]


def generate(
    count: int, seed: int, combos: Sequence[tuple[str, str, str, str]] | None = None
) -> Iterator[Case]:
    """`count` cases, the same for the same arguments on every machine.

    They go round over the combinations, so that a short run has each of them about equally often,
    and for each combination round over the kinds of values, starting anywhere.
    """
    combos = combinations() if combos is None else combos
    if not combos:
        return
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(len(combos))
    # A kind as often as its weight says.
    kinds = [name for name, kind in fills.KINDS.items() for _ in range(kind.weight)]
    starts = rng.integers(len(kinds), size=len(combos))
    strides = [s for s in range(1, len(kinds) + 1) if math.gcd(s, len(kinds)) == 1]
    stride = strides[int(rng.integers(len(strides)))]
    for i in range(count):
        which = int(order[i % len(combos)])
        op, dtype, layout, mode = combos[which]
        kind_name = kinds[(int(starts[which]) + stride * (i // len(combos))) % len(kinds)]
        kind = fills.KINDS[kind_name]
        case_rng = np.random.default_rng([seed, 1, i])
        large = i % _LARGE_EVERY == _LARGE_AT
        power_of_two = not large and kind.exact and case_rng.random() < 0.6
        yield Case(
            op=op,
            dtype=dtype,
            layout=layout,
            shape=shapes.draw(case_rng, layout, large, power_of_two, spec.OPS[op].min_channels),
            mode=mode,
            kind=kind_name,
            statistics=STATISTICS[int(case_rng.random() < (0.35 if mode == "training" else 0.8))],
            epsilon=float(case_rng.choice(fills.epsilons(kind, spec.OPS[op]))),
            call=calls.DRAWN[int(case_rng.integers(_GRAPH_EVERY) == 0)],
            seed=int(case_rng.integers(1 << 31)),
        )
