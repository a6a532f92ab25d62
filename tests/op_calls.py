"""Calls of any op of the table (tf_bn_ops/spec/ops.py), and the harness's verdict on them.

Inputs, right answers, bounds, malformed calls and what is expected of them come from the
conformance harness, whose own tests show that it finds wrong ops; here it asks the ops in this
process.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.conformance import runner
from tf_bn_ops.conformance.cases import contract, generate
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution import implementations, worker
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.formula_models import fill
from tf_bn_ops.conformance.verdict.divergences import Register
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness.problems import Inputs
from tf_bn_ops.spec import LAYOUTS, OpSpec

# Larger cases take seconds each; `make conformance` has them.
MOST_ELEMENTS = 40_000


class Here:
    """An implementation in this process; a worker of the harness has one of its own."""

    def __init__(self, implementation: implementations.Implementation):
        self.name, self.supports = implementation.name, implementation.supports
        self._executor = worker.Executor(worker.find_ops(implementation.ops))

    def submit(self, case: Case, given: Inputs) -> None:
        asked = implementations.request(case, given, modes=case.execution_modes)
        if "history" in case.execution_modes:
            before = generate.predecessors(case)
            asked["before"] = [implementations.request(c, fill(c)) for c in before]
        self._answer = self._executor(asked)

    def collect(self) -> Answer:
        return self._answer

    def close(self) -> None: ...


@functools.cache
def own() -> Here:
    """The ops of this library; what it has traced for a case serves others."""
    return Here(implementations.own())


def inputs_of(case: Case) -> Inputs:
    return fill(case) if case.compares_values else contract.fill(case)


def assert_all_pass(cases: Iterable[Case], *runners: Here) -> None:
    settings = Settings(bounds.PROFILES["strict"], Register([]))
    asked = [own(), *runners]
    failures, count = [], 0
    for result in runner.run(cases, inputs_of, asked, settings):
        count += 1
        failures += [f"{result.case}: {text}" for text in result.failures]
    assert not failures, "\n".join(failures[:10])
    assert count, "no case was run"


def combinations(op: OpSpec) -> list[generate.Combination]:
    return generate.combinations([op.name])


def drawn(op: OpSpec, count: int, seed: int, execution: str) -> Iterator[Case]:
    """Cases with values, of all combinations of dtype, layout and mode in turn."""
    for case in generate.generate(count, seed, combinations(op)):
        if np.prod(case.shape, dtype=np.int64) <= MOST_ELEMENTS:
            yield dataclasses.replace(case, execution=execution)


def small(op: OpSpec, layout: str = "", mode: str = "", **changes: Any) -> Case:
    """A case of few elements, no two sizes of which are equal."""
    layout = layout or op.layouts[-1]
    shape = (3, 4, 5, 2, 6)[: LAYOUTS[layout][0]]
    statistics = "batch" if (mode or op.modes[0]) == "training" else "given"
    case = Case(op, op.dtypes[0], "normal", 5, layout, shape, mode or op.modes[0], statistics, 0.25)
    return dataclasses.replace(case, **changes)


def in_all_layouts_and_modes(op: OpSpec) -> Iterator[tuple[str, str]]:
    return itertools.product(op.layouts, op.modes)


def call_of(case: Case) -> tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]:
    """The op of a case as a function of tensors by name, those tensors, and its attrs."""
    asked = implementations.request(case, inputs_of(case))
    tensors = {name: tf.constant(value) for name, value in asked["inputs"].items()}

    def call(values: Mapping[str, Any], ops: Any = tf_bn_ops.raw_ops, **attrs: Any) -> Any:
        lists = {n: [values[n]] if n in values else [] for n in asked["lists"]}
        return getattr(ops, case.op)(**{**values, **lists}, **{**asked["attrs"], **attrs})

    return call, tensors, asked["attrs"]


def bits(outputs: Any) -> list[bytes]:
    return [np.asarray(output).tobytes() for output in tf.nest.flatten(outputs)]
