"""Pairwise coverage: which two properties of a case come together in some case of a run.

The factors of a case are its element type, layout, mode, kind of inputs, source of statistics, and
the levels of its epsilon, channels, inner size (D*H*W) and rows (N*D*H*W). A fault of one
combination, such as a layout in a mode or a count that outgrows a narrow type in a kind, needs a
case with that pair: generate.py draws cases that have pairs no earlier case had, for each op, until
none is left (AETG: Cohen, Dalal, Fredman and Patton 1997).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import STATISTICS, Case
from tf_bn_ops.conformance.models import inputs
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.spec import OpSpec

# (factor, level)
Trait = tuple[str, str]
Pair = frozenset[Trait]

# Level -> (least, most) of its values. Counts around 2^15 and 2^16 outgrow narrow integers, those
# above 2^11 the integers of half; see shapes.py for channels and inner sizes.
SIZES: dict[str, dict[str, tuple[int, int]]] = {
    name: {f"{a}-{b}" if b > a else f"{a}": (a, b) for a, b in levels}
    for name, levels in {
        "channels": (
            (1, 1), (2, 8), (9, 32), (33, 128), (129, 1024), (1025, 32767), (32768, 70_000),
        ),
        "inner": ((1, 1), (2, 8), (9, 64), (65, 1024), (1025, 12544)),
        "rows": (
            (0, 0), (1, 1), (2, 16), (17, 255), (256, 2048), (2049, 32767), (32768, 65535),
            (65536, 400_000),
        ),
    }.items()
}  # fmt: skip
# Elements from which on two levels of sizes are not combined.
MOST_ELEMENTS = 200_000
# Upper ends of the levels of epsilon.
_EPSILONS = {"0": 0.0, "below 1e-6": 1e-6, "below 1e-2": 1e-2, "large": math.inf}


def epsilon_level(epsilon: float) -> str:
    """The level of an epsilon."""
    return next(name for name, most in _EPSILONS.items() if epsilon < most or epsilon == most == 0)


def _size_level(name: str, value: int) -> str:
    for level, (least, most) in SIZES[name].items():
        if least <= value <= most:
            return level
    return "0" if value == 0 else "larger"


def sizes(shape: Sequence[int], layout: str) -> tuple[int, int, int]:
    """(channels, inner, rows) of a shape."""
    axis = spec.channel_axis(layout)
    inner = math.prod(n for i, n in enumerate(shape) if i not in (0, axis))
    return shape[axis], inner, shape[0] * inner


def traits(case: Case) -> dict[str, str]:
    """Factor -> level of a case."""
    measured = zip(SIZES, sizes(case.shape, case.layout), strict=True)
    return {
        "dtype": case.dtype,
        "layout": case.layout,
        "mode": case.mode,
        "kind": case.kind,
        "statistics": case.statistics,
        "epsilon": epsilon_level(case.epsilon),
        **{name: _size_level(name, value) for name, value in measured},
    }


class Coverage:
    """The pairs of one op, and which of them no case has had yet."""

    def __init__(self, op: OpSpec, combos: Iterable[tuple[str, str, str]]):
        """Takes the (dtype, layout, mode) of the run."""
        self._op = op
        self._combos = list(combos)
        kinds = model_of(op).kinds
        self._epsilons = {
            name: {epsilon_level(e) for e in inputs.epsilons(kind, op)}
            for name, kind in kinds.items()
        }
        self._levels: dict[str, list[str]] = {
            **{
                factor: list(dict.fromkeys(combo[i] for combo in self._combos))
                for i, factor in enumerate(("dtype", "layout", "mode"))
            },
            "kind": list(kinds),
            "statistics": list(STATISTICS),
            "epsilon": [e for e in _EPSILONS if any(e in of for of in self._epsilons.values())],
            **{name: list(levels) for name, levels in SIZES.items()},
        }
        self.pairs: set[Pair] = {
            frozenset(((f, a), (g, b)))
            for f, g in itertools.combinations(self._levels, 2)
            for a in self._levels[f]
            for b in self._levels[g]
            if self._possible(f, a, g, b)
        }
        self.missing = set(self.pairs)

    def _possible(self, f: str, a: str, g: str, b: str) -> bool:
        """Whether a case may have two levels; f comes before g in the order of the factors."""
        if (f, g) == ("kind", "epsilon"):
            return b in self._epsilons[a]
        if (f, g) == ("layout", "inner"):
            return spec.LAYOUTS[a][0] > 2 or b == "1"
        if f in SIZES and g in SIZES:
            (least, _), (other, most) = SIZES[f][a], SIZES[g][b]
            if f == "inner":
                return least <= most or most == 0
            return least * other <= MOST_ELEMENTS
        if {f, g} <= {"dtype", "layout", "mode"}:
            at = [("dtype", "layout", "mode").index(factor) for factor in (f, g)]
            return any((combo[at[0]], combo[at[1]]) == (a, b) for combo in self._combos)
        return True

    def _new(self, chosen: dict[str, str], factor: str, level: str) -> int:
        """Number of missing pairs that a level adds to what is chosen; below 0: impossible."""
        order = list(self._levels)
        found = 0
        for other, its in chosen.items():
            pair = frozenset(((other, its), (factor, level)))
            if pair not in self.pairs and order.index(other) != order.index(factor):
                return -1
            found += pair in self.missing
        return found

    def choose(self, rng: np.random.Generator, given: dict[str, str]) -> dict[str, str] | None:
        """Levels of all factors, the given ones and others by which a case has pairs that are
        missing; None where all of its pairs have been."""
        levels, gain = self._complete(rng, given)
        return levels if gain else None

    def close(self, rng: np.random.Generator) -> dict[str, str] | None:
        """Levels of all factors, with the first missing pair among them; None where none fit it."""
        return self._complete(rng, dict(min(self.missing, key=sorted)))[0]

    def _complete(
        self, rng: np.random.Generator, given: dict[str, str]
    ) -> tuple[dict[str, str] | None, int]:
        """Levels of all factors, None where what was chosen first fits none of the next, and how
        many missing pairs they add to the given ones."""
        chosen, total = dict(given), 0
        for name in rng.permutation([factor for factor in self._levels if factor not in given]):
            levels = self._levels[name]
            gains = [self._new(chosen, name, level) for level in levels]
            best = max(gains)
            if best < 0:
                return None, 0
            ties = [level for level, gain in zip(levels, gains, strict=True) if gain == best]
            chosen[str(name)] = ties[int(rng.integers(len(ties)))]
            total += best
        return chosen, total

    def add(self, case: Case) -> None:
        """Notes the pairs of a case."""
        of_case = traits(case)
        self.missing -= {frozenset(pair) for pair in itertools.combinations(of_case.items(), 2)}

    def of_record(self) -> dict[str, Any]:
        """An entry of the field "coverage" of a record (reports/record.py)."""
        texts = sorted(
            " with ".join(f"{name} {level}" for name, level in sorted(pair))
            for pair in self.missing
        )
        return {"op": self._op.name, "pairs": len(self.pairs), "missing": texts}


def of_cases(
    combos: Sequence[tuple[str, str, str, str]], cases: Iterable[Case]
) -> dict[str, Coverage]:
    """Op -> the coverage of some cases."""
    found = {
        op: Coverage(spec.OPS[op], [combo[1:] for combo in combos if combo[0] == op])
        for op in dict.fromkeys(combo[0] for combo in combos)
    }
    for case in cases:
        if case.op in found and case.kind in model_of(case.spec).kinds:
            found[case.op].add(case)
    return found
