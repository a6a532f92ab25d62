"""Cases, parsed from their strings or drawn at random: the same for the same seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases import contract, coverage, shapes
from tf_bn_ops.conformance.cases.case import ALIAS, STATISTICS, Case
from tf_bn_ops.conformance.cases.execution_modes import BASES, DRAWN, EXECUTION_MODES, MOST_CONSTANT
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.spec import OpSpec

# (op, dtype, layout, mode)
Combination = tuple[str, str, str, str]

# One case of this many is large (see shapes.LARGE_ELEMENTS), a prime, so that large ones go round
# over the combinations, too; the offset keeps short runs quick.
_LARGE_EVERY = 211
_LARGE_AT = 33
# (kind, mode) whose sums are rounded, the elements from which on a kernel may share them out, and
# the execution mode that then tells whether it adds them up by arrival: one case of each op has it.
_ORDER_SHOWS = ("normal", spec.MODES[0])
_SHARED_OUT = 1 << 20
_ONE_THREAD = "threads1"
# One of this many is executed in a graph.
_GRAPH_EVERY = 5
# Elements of a tensor that a case string may name.
_MOST_ELEMENTS = 1 << 36


def _member(what: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise UsageError(f"{value!r} is not a known {what}; known: {', '.join(allowed)}")
    return value


def _check_execution(text: str) -> None:
    names = text.split("+")
    for name in names:
        known = BASES if name == names[0] else tuple(EXECUTION_MODES)
        _member("execution mode", name, known)
    if len(set(names)) < len(names):
        raise UsageError(f"{text!r} names an execution mode twice")


def parse(text: str) -> Case:
    """The case that `text` names, as `str(case)` has it.

    Raises:
      UsageError: `text` has another form, or does not fit the op.
    """
    fields = [f.strip() for f in text.strip().split(",")]
    if len(fields) != 10:
        raise UsageError(
            f"a case has 10 fields separated by commas, {text!r} has {len(fields)}; "
            "copy it as the report prints it"
        )
    op_name, dtype, layout, shape_text, mode, kind, statistics, epsilon_text, execution, seed = (
        fields
    )
    op = spec.OPS[_member("op", op_name, tuple(spec.OPS))]
    _member(f"dtype of {op.name}", dtype, op.dtypes)
    _member(f"layout of {op.name}", layout, op.layouts)
    _member(f"mode of {op.name}", mode, op.modes)
    _member("kind of inputs", kind, (*model_of(op).kinds, *contract.kinds(op)))
    _member("source of statistics", statistics, STATISTICS)
    _check_execution(execution)
    try:
        shape = tuple(int(n) for n in shape_text.split("x"))
        epsilon = float(epsilon_text.removeprefix("eps="))
        seed_number = int(seed.removeprefix("seed="))
    except ValueError as e:
        raise UsageError(f"the shape, epsilon or seed of case {text!r} is not a number") from e
    rank = spec.LAYOUTS[layout][0]
    if len(shape) != rank or min(shape) < 0:
        raise UsageError(f"shape {shape_text} does not fit {layout}, which has {rank} dimensions")
    if math.prod(shape) > _MOST_ELEMENTS or not math.isfinite(epsilon):
        raise UsageError(
            f"case {text!r} has a tensor or an epsilon beyond what can be computed with"
        )
    if not (epsilon_text.startswith("eps=") and seed.startswith("seed=") and seed_number >= 0):
        raise UsageError(f"case {text!r} lacks eps=... or a non-negative seed=... in its place")
    return Case(
        op, dtype, kind, seed_number, layout, shape, mode, statistics, epsilon, execution=execution
    )


def combinations(
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    layouts: Sequence[str] = (),
    modes: Sequence[str] = (),
) -> list[Combination]:
    """All (op, dtype, layout, mode) that the ops allow; an empty filter lets all through."""
    return [
        (op.name, dtype, layout, mode)
        for op in spec.OPS.values()
        if not ops or op.name in ops
        for dtype in op.dtypes
        if not dtypes or dtype in dtypes
        for layout in op.layouts
        if not layouts or layout in layouts
        for mode in op.modes
        if not modes or mode in modes
    ]


def generate(
    count: int | None,
    seed: int,
    combos: Sequence[Combination] | None = None,
    largest: float = math.inf,
) -> Iterator[Case]:
    """`count` cases, the same for the same arguments on every machine; None: until each combination
    has had every kind of inputs, and each op all pairs.

    Of cases with more than `largest` elements the shape is the smallest that has the same pairs.
    They go round over the combinations, so that a short run has each of them about equally often,
    and for each combination round over the kinds of inputs, starting anywhere. The rest of a case
    is chosen for pairs that no case of its op has had (coverage.py), and at random when all were.
    After the last kind of each combination all of a case is chosen so, while a pair is open.
    """
    combos = combinations() if combos is None else combos
    if not combos:
        return
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(len(combos))
    kinds = {op: _weighted_kinds(spec.OPS[op]) for op in {combo[0] for combo in combos}}
    most = max(map(len, kinds.values()))
    starts = rng.integers(most, size=len(combos))
    # Coprime to all of their numbers, so that each kind has its turn.
    product = math.prod(len(of_op) for of_op in kinds.values())
    strides = [s for s in range(1, most + 1) if math.gcd(s, product) == 1]
    stride = strides[int(rng.integers(len(strides)))]
    covered = coverage.of_cases(combos, ())
    ordered: set[str] = set()
    had_all_kinds = most * len(combos)
    # As many again close every pair, and end a run of an op that has one which no case can have.
    for i in range(2 * had_all_kinds if count is None else count):
        case_rng = np.random.default_rng([seed, 1, i])
        open_ops = [op for op in covered if covered[op].missing] if i >= had_all_kinds else []
        if count is None and i >= had_all_kinds and not open_ops:
            return
        levels = covered[open_ops[0]].close(case_rng) if open_ops else None
        if levels is not None:
            op = open_ops[0]
            case = _of_levels(case_rng, op, levels)
        else:
            which = int(order[i % len(combos)])
            op, *_, mode = combos[which]
            kind = kinds[op][(int(starts[which]) + stride * (i // len(combos))) % len(kinds[op])]
            is_large = i % _LARGE_EVERY == _LARGE_AT or (
                i > _LARGE_AT and op not in ordered and (kind, mode) == _ORDER_SHOWS
            )
            case = _draw(case_rng, combos[which], kind, is_large, covered[op])
        ordered |= {op} if _shows_order(case) else set()
        if math.prod(case.shape) > largest:
            shape = _smaller(case_rng, case, int(largest))
            case = dataclasses.replace(case, shape=shape)
        covered[op].add(case)
        yield case


def _smaller(rng: np.random.Generator, case: Case, largest: int) -> tuple[int, ...]:
    """The smallest shape of the levels of a case; of levels that make no pair, one of at most
    `largest` elements, with fewer rows."""
    levels, sizes = coverage.SIZES.values(), coverage.sizes(case.shape, case.layout)
    channels, inner, rows = (
        max(least for least, _ in of_size.values() if least <= size)
        for of_size, size in zip(levels, sizes, strict=True)
    )
    if channels * max(inner, rows) > coverage.MOST_ELEMENTS:
        inner = inner if channels * inner <= largest else 1
        rows = min(rows, max(1, largest // (channels * inner)) * inner)
    rows = -(-rows // inner) * inner
    return shapes.draw_of_levels(rng, case.layout, *((n, n) for n in (channels, inner, rows)))


def _shows_order(case: Case) -> bool:
    """Whether the order shows in which threads that arrive add up what they have: sums are rounded,
    and large enough for kernels to share them out."""
    is_large = math.prod(case.shape) >= _SHARED_OUT
    return is_large and (case.kind, case.mode) == _ORDER_SHOWS


def _weighted_kinds(op: OpSpec) -> list[str]:
    """The kinds of inputs of an op, each as often as its weight says."""
    return [name for name, kind in model_of(op).kinds.items() for _ in range(kind.weight)]


def _draw(
    rng: np.random.Generator,
    combo: Combination,
    kind_name: str,
    large: bool,
    covered: coverage.Coverage,
) -> Case:
    op_name, dtype, layout, mode = combo
    op = spec.OPS[op_name]
    kind = model_of(op).kinds[kind_name]
    given = {"dtype": dtype, "layout": layout, "mode": mode, "kind": kind_name}
    power_of_two = not large and kind.exact and rng.random() < 0.6
    levels = None if large or power_of_two else covered.choose(rng, given)
    if levels is not None:
        return _of_levels(rng, op_name, levels)
    shape = shapes.draw(rng, layout, large, power_of_two, op.min_channels)
    statistics = STATISTICS[int(rng.random() < (0.35 if mode == "training" else 0.8))]
    return _drawn(rng, op, given, shape, statistics, inputs.epsilons(kind, op))


def _of_levels(rng: np.random.Generator, op_name: str, levels: dict[str, str]) -> Case:
    """A case that has these levels of all factors."""
    op = spec.OPS[op_name]
    wanted = (coverage.SIZES[name][levels[name]] for name in coverage.SIZES)
    shape = shapes.draw_of_levels(rng, levels["layout"], *wanted)
    known = inputs.epsilons(model_of(op).kinds[levels["kind"]], op)
    epsilons = [e for e in known if coverage.epsilon_level(e) == levels["epsilon"]]
    return _drawn(rng, op, levels, shape, levels["statistics"], epsilons)


def _drawn(
    rng: np.random.Generator,
    op: OpSpec,
    given: dict[str, str],
    shape: tuple[int, ...],
    statistics: str,
    epsilons: Sequence[float],
) -> Case:
    epsilon = float(rng.choice(epsilons))
    execution = DRAWN[int(rng.integers(_GRAPH_EVERY) == 0)]
    seed = int(rng.integers(1 << 31))
    return Case(
        op, given["dtype"], given["kind"], seed, given["layout"], shape, given["mode"], statistics,
        epsilon, execution=execution,
    )  # fmt: skip


def _may_alias(case: Case) -> bool:
    """Whether two of its inputs can be one tensor."""
    views = [arg for arg in case.spec.inputs if arg.kind in (spec.VIEW, spec.VIEW_LIST)]
    return len(views) > 1


def attach(cases: Iterable[Case], seed: int, names: Sequence[str] | None) -> Iterator[Case]:
    """The cases with further execution modes.

    Args:
      cases: those that compare values.
      seed: of the run, which the default run's random subset is drawn from.
      names: execution modes that every case gets; None: as in the default run.
    """
    rng = np.random.default_rng([seed, 2])
    known, ordered = EXECUTION_MODES, set[str]()
    for case in cases:
        must = case.op not in ordered and _shows_order(case)
        ordered |= {case.op} if must else set()
        drawn = rng.random(len(known))
        wanted = [
            name
            for (name, mode), chance in zip(known.items(), drawn, strict=True)
            if (name in names if names is not None else chance * mode.every < 1 and mode.every)
            or (must and names is None and name == _ONE_THREAD)
        ]
        further = [
            name
            for name in wanted
            if name not in case.execution_modes
            and not (known[name].small and math.prod(case.shape) > MOST_CONSTANT)
            and not (name == ALIAS and not _may_alias(case))
        ]
        yield dataclasses.replace(case, execution="+".join([*case.execution_modes, *further]))


def predecessors(case: Case) -> Iterator[Case]:
    """The calls that come before a case in the execution mode `history`, with its dimensions: one
    for each thing that differs, then one in which only the numbers do.

    An op may keep something between calls (a plan, a workspace, a compiled kernel) by a key that
    lacks what it depends on. TensorFlow's own kernels had such a fault: a key without the layout.
    """
    kind = case.kind if case.kind in model_of(case.spec).kinds else "normal"
    drawn = dataclasses.replace(case, kind=kind, execution="eager")
    changed: list[dict[str, Any]] = [
        # Of as many dimensions; the number of channels is another one.
        *({"layout": name} for name in case.spec.layouts
          if name != case.layout and spec.LAYOUTS[name][0] == len(case.shape)),
        *({"dtype": dtype} for dtype in case.spec.dtypes if dtype != case.dtype),
        # The same in six decimals, another number all the same.
        {"epsilon": 1.0002 * case.epsilon + 1e-9},
        {"epsilon": 4 * case.epsilon + 0.125},
        *({"mode": mode} for mode in case.spec.modes if mode != case.mode),
    ]  # fmt: skip
    for number, change in enumerate([*changed, {}], start=1):
        yield dataclasses.replace(drawn, seed=case.seed + number, **change)
