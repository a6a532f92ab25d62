"""The C ABI: which arrays a call has.

Promised: of every subset of the outputs beside every subset of the inputs of a formula, inputs of
other formulas among them, each output that is given is written, or the call is refused in one
sentence about an array or an attribute, and writes nothing. No other end: no crash, and no success
that leaves an output as it was.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator

import build_helpers
import numpy as np
import pytest

from tf_bn_ops import spec
from tf_bn_ops.harness import c_abi
from tf_bn_ops.spec import call as call_spec

VIEW = (3, 2, 2)
# Bytes of each array: the most that one of this view has, coefficients of float64.
ROOM = spec.ops.NUM_FORWARD_COEFFICIENTS * VIEW[1] * 8
UNTOUCHED = 0x5A
NAMES = [array.role for array in call_spec.ARRAYS]
PLACES = {name: place for place, name in enumerate(NAMES)}
# Random subsets of the inputs beside each subset of the outputs; and all that an op reads, or all
# but one.
DRAWN = 10
FIELDS = [attr.name for attr in call_spec.ATTRS]


def of_formula(formula: str) -> tuple[list[set[str]], list[str]]:
    """The arrays that each op of a formula reads, and those that they write."""
    ops = [op for op in spec.OPS.values() if spec.ops.FORMULAS[op.formula] == formula]
    read = [{arg.role for arg in op.inputs} & call_spec.ROLES for op in ops]
    written = {arg.role for op in ops for arg in op.outputs} & call_spec.ROLES
    return [roles for i, roles in enumerate(read) if roles not in read[:i]], sorted(written)


def subsets(ops: list[set[str]], rng: np.random.Generator) -> Iterator[set[str]]:
    read = sorted(set().union(*ops))
    foreign = sorted({array.role for array in call_spec.INPUTS} - {*read})
    for roles in (*ops, {*read}):
        yield roles
        yield roles | {str(rng.choice(foreign))}
        yield from (roles - {lacking} for lacking in sorted(roles))
    for number in range(DRAWN):
        yield {name for name in read if rng.random() < (0.7, 0.93)[number % 2]}


def attributes(formula: str) -> Iterator[dict[str, float]]:
    factors = (1.0, 0.5) if formula == "kForward" else (1.0,)
    for training, wide, activation, factor in itertools.product(
        (0, 1), (0, 1), ("Identity", "Relu", "Silu"), factors
    ):
        yield {
            "is_training": training,
            "float64_statistics": wide,
            "activation": c_abi.ACTIVATION_CODES[activation],
            "exponential_avg_factor": factor,
        }


def size_of(name: str, wide: bool) -> tuple[int, int]:
    """Elements of an array, and bytes of each."""
    kind = next(array.kind for array in call_spec.ARRAYS if array.role == name)
    count = {spec.VIEW: int(np.prod(VIEW)), spec.COUNT: 1}.get(kind, VIEW[1])
    if kind == call_spec.COEFFICIENTS:
        count *= spec.ops.NUM_FORWARD_COEFFICIENTS
    is_wide = kind in (spec.WIDE, spec.COUNT) or (kind == call_spec.STATISTICS and wide)
    return count, 8 if is_wide else 4


def call_all(formula: str) -> tuple[int, list[str], list[str]]:
    """How many calls are accepted, which outputs they write, and what is wrong."""
    rng = np.random.default_rng(5)
    ops, written = of_formula(formula)
    read = sorted(set().union(*ops))
    foreign = sorted({array.role for array in call_spec.OUTPUTS} - {*read, *written})
    memory = np.full((len(NAMES), ROOM), UNTOUCHED, np.uint8)
    first = memory.ctypes.data
    call = c_abi.Call(c_abi.View(*VIEW), formula=call_spec.FORMULA_CODES[formula], epsilon=1e-3)
    pointers = np.frombuffer(memoryview(call), np.uint64)[c_abi.Call.x.offset // 8 :]
    error = ctypes.create_string_buffer(200)
    accepted, seen, wrong = 0, set(), []
    for attrs in attributes(formula):
        for name, value in attrs.items():
            setattr(call, name, value)
        for name in read:
            count, size = size_of(name, bool(attrs["float64_statistics"]))
            memory[PLACES[name], : count * size] = np.ones(count, f"f{size}").view(np.uint8)
        inputs = memory[[PLACES[name] for name in read]].copy()
        for number, chosen in enumerate(itertools.product((False, True), repeat=len(written))):
            own = set(itertools.compress(written, chosen))
            others = [own | {str(rng.choice(foreign))}] if number % 8 == 7 else []
            for outputs, given in itertools.product([own, *others], subsets(ops, rng)):
                pointers[:] = 0
                for name in given | outputs:
                    pointers[PLACES[name]] = first + PLACES[name] * ROOM
                status = c_abi.library().tfbn_cpu_run(call, None, 1, error, len(error))
                found = said(formula, attrs, given, outputs, memory, status, error.value.decode())
                wrong += found
                accepted += status == 0
                seen |= outputs if status == 0 else set()
                if status == 0 or found:
                    memory[[PLACES[name] for name in outputs]] = UNTOUCHED
                    memory[[PLACES[name] for name in read]] = inputs
                if len(wrong) > 5:
                    return accepted, sorted(seen), wrong
    return accepted, sorted(seen), wrong


def said(
    formula: str, attrs: dict[str, float], given: set[str], outputs: set[str],
    memory: np.ndarray, status: int, sentence: str,
) -> list[str]:  # fmt: skip
    """What is wrong with the end of a call."""
    what = f"{formula} {attrs} of {sorted(given)} to {sorted(outputs)}: "
    if status != 0:
        if any((memory[PLACES[name]] != UNTOUCHED).any() for name in outputs - given):
            return [what + "refused, and written"]
        known = re.match(r"(\w+) must (not )?be ", sentence)
        if known is None or known[1] not in (*NAMES, *FIELDS) or "\n" in sentence:
            return [what + sentence]
        return []
    for name in outputs - given:
        count, size = size_of(name, bool(attrs["float64_statistics"]))
        elements = memory[PLACES[name], : count * size].reshape(count, size)
        if (elements == UNTOUCHED).all(1).any():
            return [what + f"{name} is not written"]
    return []


@pytest.mark.parametrize("formula", call_spec.FORMULA_CODES)
def test_every_output_that_is_given_is_written_or_refused(formula):
    accepted, seen, wrong = build_helpers.call(call_all, formula)
    assert wrong == []
    assert accepted >= 6
    assert seen == of_formula(formula)[1]
