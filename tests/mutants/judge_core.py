"""Judges the core library that TF_BN_OPS_LIBRARY names by the cases of the default conformance run.

usage: python judge_core.py OP [MOST]

It runs the cases of all ops of OP's formula. Prints the number of cases passed so far, a
line each time; when one fails, its number, its name and the reason, and ends. run.py reads the last
line.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping

import core_answer
import numpy as np
from score import GATHER_STATS

from tf_bn_ops import spec
from tf_bn_ops.conformance import flags
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import MOST_CONSTANT
from tf_bn_ops.conformance.execution import stateful
from tf_bn_ops.conformance.execution.answer import identical
from tf_bn_ops.conformance.models import bounds, formula_models, gather_stats
from tf_bn_ops.conformance.models.formula_models import fill, model_of
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.harness import c_abi, problems
from tf_bn_ops.harness.problems import Problem
from tf_bn_ops.harness.processes import in_threads

_STRICT = bounds.PROFILES["strict"]
# About as many as the default run of conformance has.
_MOST = 5400
# One case of this many is looked at for state.
_STATE_EVERY = 8


def judge_gather_stats(count: int) -> None:
    """The same of BatchNormGatherStats, which has no case: bitwise Chan's formula."""
    for number in range(1, count + 1):
        parts = gather_stats.random_parts(number % 9, number % 5, 1e3 * (number % 2), number)
        parts.mean[parts.count == 0] = np.nan
        got, want = c_abi.gather_stats(parts), gather_stats.chan(parts)
        for role, a, b in zip(got._fields, got, want, strict=True):
            if a.tobytes() != b.tobytes():
                counts = " ".join(f"{count:g}" for count in parts.count)
                print(f"{number} replicas of {counts}: {role} is {a} instead of {b}", flush=True)
                return
        print(number, flush=True)


def coefficients_failure(problem: Problem) -> str:
    """How reserve_space_3 of FusedBatchNormEx is wrong, which is opaque and so not compared in
    cases."""
    if not problem["x"].size:
        return ""
    in_float64 = problem.dtype.name == "float64"
    shape = (spec.ops.NUM_FORWARD_COEFFICIENTS, problem.view[1])
    given = np.full(shape, np.nan, np.float64 if in_float64 else np.float32)
    c_abi.run(problem, outputs={"forward_coefficients": given})
    return formula_models.check_coefficients(problem, given)


# ---- What a call on its own does not show --------------------------------------------------------
# Outputs left unwritten, state kept between calls, calls that disturb each other: the execution
# modes `poison`, `history` and `concurrent` of the conformance run, through the C ABI.

# Calls take microseconds: it takes some until two of them are at work at the same time.
_THREADS, _CALLS = 4, 80

Outputs = Mapping[str, np.ndarray]


def _same(a: Outputs, b: Outputs) -> bool:
    roles = sorted(set(a) & set(b))
    return identical([a[role] for role in roles], [b[role] for role in roles])


def _unwritten(problem: Problem, right: Outputs) -> Iterator[str]:
    results = []
    for pattern in stateful.PATTERNS:
        outputs = c_abi.new_outputs(problem)
        for array in outputs.values():
            array.reshape(-1).view(np.uint8)[:] = pattern
        with stateful.filled(pattern):
            results.append(c_abi.run(problem, outputs=outputs))
    roles = sorted(results[0])
    found = stateful.unwritten([[result[role] for role in roles] for result in results])
    for index, where in found.items():
        yield f"{roles[index]} is not written in {where}"
    if not found and not all(_same(result, right) for result in results):
        yield "bits differ where memory is filled with a pattern"


def _concurrent(problem: Problem, right: Outputs) -> Iterator[str]:
    other = problem.copy()
    for role, array in other.values.items():
        other.values[role] = np.roll(array, 1)
    wrong: list[int] = []

    def work(thread: int) -> None:
        for i in range(_CALLS):
            if (i + thread) % 2:
                c_abi.run(other)
            elif not _same(c_abi.run(problem), right):
                wrong.append(thread)

    in_threads(work, _THREADS)
    if wrong:
        yield f"bits differ in {len(wrong)} calls while other threads call"


# ---- Cases ---------------------------------------------------------------------------------------


def _by_roles(case: Case) -> Case:
    """The case with outputs that go by their roles, which mutants.toml names: each op of a formula
    calls them otherwise."""
    outputs = tuple(dataclasses.replace(arg, name=arg.role) for arg in case.spec.outputs)
    return dataclasses.replace(case, spec=dataclasses.replace(case.spec, outputs=outputs))


def main() -> None:
    op, *most = sys.argv[1:]
    count = int(most[0]) if most else _MOST
    if op == GATHER_STATS:
        judge_gather_stats(count)
        return
    ops = spec.of_formula(spec.OPS[op].formula)
    combos = generate.combinations([op.name for op in ops])
    cases = generate.generate(count, flags.DEFAULT_SEED, combos)
    for number, case in enumerate(cases, start=1):
        inputs = model_of(case.spec).fill(case)
        # Small calls, of which many take no time, after others of equal dimensions.
        looks_for_state = number % _STATE_EVERY == 0 and math.prod(case.shape) <= MOST_CONSTANT
        for earlier in generate.predecessors(case) if looks_for_state else ():
            c_abi.run(problems.of_call(earlier, fill(earlier)))
        answers = {"candidate": core_answer.answer(case, inputs)}
        failures = judge(_by_roles(case), inputs, answers, _STRICT).failures
        if looks_for_state and not failures:
            problem = problems.of_call(case, inputs)
            right = c_abi.run(problem)
            failures = [*_unwritten(problem, right), *_concurrent(problem, right)]
        if ops[0].formula == spec.ops.BATCH_NORM_ADD and not failures:
            failures = [*filter(None, [coefficients_failure(problems.of_call(case, inputs))])]
        if failures:
            print(f"{number} {case}: {failures[0]}", flush=True)
            return
        print(number, flush=True)


if __name__ == "__main__":
    main()
