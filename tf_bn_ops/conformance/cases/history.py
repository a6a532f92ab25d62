"""Calls that come before a case in the execution mode `history`: of equal dimensions, and
everything else different.

An op may keep something between calls (a plan, a workspace, a compiled kernel) by a key that lacks
what it depends on. TensorFlow's own kernels had such a fault: a key without the layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.models.formula_models import model_of


def predecessors(case: Case) -> Iterator[Case]:
    """Cases with the dimensions of `case`: one for each thing that differs, then one in which only
    the numbers do."""
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
