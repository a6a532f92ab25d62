"""What the tests of all formulas share: the ISA builds of this machine, what is promised of each of
them, and sweeps whose expensive part belongs to the long tier."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits
from tf_bn_ops.harness.problems import Problem
from tf_bn_ops.spec import DTYPES

IMPLEMENTATIONS = c_abi.supported_implementations()
ISA_BUILDS = [name for name in IMPLEMENTATIONS if name != "reference"]
View = tuple[int, int, int]


def assert_right(outputs: dict[str, np.ndarray], problem: Problem) -> None:
    assert not formula_models.check(problem, outputs)


def assert_builds_are_right_and_bitwise_identical(problem: Problem) -> None:
    """The reference is right too, and may sum in another order."""
    results = {name: c_abi.run(problem, implementation=name) for name in IMPLEMENTATIONS}
    for result in results.values():
        assert_right(result, problem)
    assert len({bits(results[name]) for name in ISA_BUILDS}) == 1


def swept(*axes: Iterable[Any], at_once: Callable[..., bool]) -> list[Any]:
    """The product of `axes` as parameters: where `at_once` holds they belong to every change, the
    others to the long tier."""
    return [
        pytest.param(*values, marks=() if at_once(*values) else pytest.mark.long)
        for values in itertools.product(*axes)
    ]


def beyond_the_llc(view: View, dtype: str) -> View:
    """A view of the kind of `view` with as many bytes as that has in half: the longest axis is
    divided, and stays odd or even."""
    ratio = DTYPES[dtype].numpy.itemsize // 2
    sizes = list(view)
    longest = max(range(3), key=lambda i: sizes[i])
    size = -(-sizes[longest] // ratio)
    sizes[longest] = size + (size - sizes[longest]) % 2
    return sizes[0], sizes[1], sizes[2]
