"""What a call of the core library on its own does not show: outputs left unwritten, state kept
between calls, calls that disturb each other. The execution modes `poison`, `history` and
`concurrent` of the conformance run, through the C ABI.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Mapping

import numpy as np

from tf_bn_ops.conformance.cases import history
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.cases.execution_modes import MOST_CONSTANT
from tf_bn_ops.conformance.execution import poison
from tf_bn_ops.conformance.execution.answer import identical
from tf_bn_ops.conformance.models.formula_models import fill
from tf_bn_ops.harness import c_abi, problems
from tf_bn_ops.harness.problems import Problem

# Calls take microseconds: it takes some until two of them are at work at the same time.
_THREADS, _CALLS = 4, 80

Outputs = Mapping[str, np.ndarray]


def is_looked_at(case: Case) -> bool:
    """Small calls, of which many take no time."""
    return math.prod(case.shape) <= MOST_CONSTANT


def call_predecessors(case: Case) -> None:
    """Calls of equal dimensions in which everything else differs, whatever they give."""
    for earlier in history.predecessors(case):
        c_abi.run(problems.of_call(earlier, fill(earlier)))


def failures(problem: Problem, right: Outputs) -> Iterator[str]:
    """How other calls of a problem differ from `right`, which one call gave."""
    yield from _unwritten(problem, right)
    yield from _concurrent(problem, right)


def _same(a: Outputs, b: Outputs) -> bool:
    roles = sorted(set(a) & set(b))
    return identical([a[role] for role in roles], [b[role] for role in roles])


def _unwritten(problem: Problem, right: Outputs) -> Iterator[str]:
    results = []
    for pattern in poison.PATTERNS:
        outputs = c_abi.new_outputs(problem)
        for array in outputs.values():
            array.reshape(-1).view(np.uint8)[:] = pattern
        with poison.filled(pattern):
            results.append(c_abi.run(problem, outputs=outputs))
    roles = sorted(results[0])
    found = poison.unwritten([[result[role] for role in roles] for result in results])
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

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    if wrong:
        yield f"bits differ in {len(wrong)} calls while other threads call"
