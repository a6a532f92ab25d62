"""What the tests of the core share: the ISA builds of this machine, a problem of any formula of the
table, and where arrays may lie.

Problems are drawn by the formula's model, as the conformance run draws them: the seed decides
activation, side input, moving averages and where a mask is taken from.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import bounds, formula_models
from tf_bn_ops.conformance.models.measure import assembled
from tf_bn_ops.harness import c_abi, problems
from tf_bn_ops.harness.problems import IDENTITY, VIEW_ROLES, Problem
from tf_bn_ops.spec import DTYPES

ISA_BUILDS = c_abi.supported_implementations()
View = tuple[int, int, int]
Outputs = Mapping[str, np.ndarray]

# (formula, mode) of the table: what there is a call for.
FORMULAS = [
    (formula, mode)
    for formula in dict.fromkeys(op.formula for op in spec.OPS.values())
    if formula in spec.ops.FORMULAS
    for mode in dict.fromkeys(mode for op in spec.of_formula(formula) for mode in op.modes)
]

# Some at the boundaries of cases in the code, see VIEWS in test_every_formula.py.
BOUNDARY_VIEWS: list[View] = [
    *((1, 1, 1), (129, 1, 1), (9, 2, 1), (33, 7, 1), (23, 17, 1), (18, 64, 1), (9, 1025, 1)),
    *((4000, 40, 1), (9, 5, 49), (9, 2, 1025), (3, 2, 4099), (70000, 1, 1)),
]


def swept(*axes: Iterable[Any], at_once: Callable[..., bool]) -> list[Any]:
    """The product of `axes` as parameters: where `at_once` holds they belong to every change, the
    others to the long tier."""
    return [
        pytest.param(*values, marks=() if at_once(*values) else pytest.mark.long)
        for values in itertools.product(*axes)
    ]


# ---- Problems ------------------------------------------------------------------------------------


def draw(
    formula: str,
    view: View,
    dtype: str = "float32",
    mode: str = "training",
    kind: str = "normal",
    seed: int | None = None,
) -> tuple[Problem, frozenset[str]]:
    """A problem, and the outputs that are exact; without a seed, by what else is given."""
    if seed is None:
        seed = zlib.crc32(repr((formula, view, dtype, mode, kind)).encode())
    ops = [op for op in spec.of_formula(formula) if mode in op.modes]
    op = max(ops, key=lambda op: len(op.inputs) + 9 * (dtype in op.dtypes))
    if dtype not in op.dtypes:  # No kernel has a type that no op has.
        dtype = "float32"
    epsilons = formula_models.model_of(op).kinds[kind].epsilons
    # Any layout with the axes of a view.
    call = problems.Call(
        op,
        dtype,
        kind,
        seed,
        "NCW",
        view,
        mode,
        ("given", "")[seed % 2],
        epsilons[seed // 2 % len(epsilons)],
    )
    inputs = formula_models.fill(call)
    return problems.of_call(call, inputs), inputs.exact


def problem_of(formula: str, view: View, *how: Any, **more: Any) -> Problem:
    return draw(formula, view, *how, **more)[0]


def repeated(formula: str, view: View, *how: Any, **more: Any) -> Problem:
    """A problem of a large view, whose elements are a small one's again and again: the model takes
    seconds to draw millions."""
    small = tuple(min(size, most) for size, most in zip(view, (64, view[1], 64), strict=True))
    problem = problem_of(formula, small, *how, **more)  # type: ignore[arg-type]
    rows, columns = (np.arange(view[i]) % small[i] for i in (0, 2))
    for role in set(problem.values) & VIEW_ROLES:
        problem[role] = np.ascontiguousarray(problem[role][rows][:, :, columns])
    return problem


def beyond_the_llc(view: View, dtype: str) -> View:
    """A view of the kind of `view` with as many bytes as that has in half: the longest axis is
    divided, and stays odd or even."""
    ratio = DTYPES[dtype].numpy.itemsize // 2
    sizes = list(view)
    longest = max(range(3), key=lambda i: sizes[i])
    size = -(-sizes[longest] // ratio)
    sizes[longest] = size + (size - sizes[longest]) % 2
    return sizes[0], sizes[1], sizes[2]


def view_inputs(problem: Problem) -> list[str]:
    return [role for role in problem.values if role in VIEW_ROLES]


def view_outputs(problem: Problem) -> list[str]:
    return [role for role in c_abi.required_outputs(problem) if role in VIEW_ROLES]


def has_view_outputs(formula: str, mode: str) -> bool:
    return bool(view_outputs(problem_of(formula, (1, 1, 1), mode=mode)))


def bits(outputs: Outputs) -> bytes:
    """All outputs as bytes, every NaN as the same one."""
    return c_abi.bits(
        {role: np.where(a == a, a, a.dtype.type(np.nan)) for role, a in outputs.items()}
    )


# ---- What is right -------------------------------------------------------------------------------


def assert_right(outputs: Outputs, problem: Problem, exact: Iterable[str] = ()) -> None:
    """Within the bounds, and equal where that is `exact`."""
    assert not formula_models.check(problem, outputs)
    if exact := set(exact) & set(outputs):
        model = formula_models.MODELS[problem.formula]
        parts = list(model.expected(problem, bounds.PROFILES["strict"]))
        for role in exact:
            value = assembled(parts, role, "value", outputs[role].shape)
            if outputs[role].dtype != np.float64:
                value = value.astype(np.float32)  # Which holds it, without the oracle's last bit.
            np.testing.assert_array_equal(outputs[role], problem.type_of(role).store(value))


def assert_builds_are_right_and_bitwise_identical(
    problem: Problem, exact: Iterable[str] = ()
) -> None:
    found = [c_abi.run(problem, implementation=name) for name in ISA_BUILDS]
    assert len({bits(outputs) for outputs in found}) == 1
    assert_right(found[0], problem, exact)


# ---- Where arrays lie ----------------------------------------------------------------------------


def in_place_choices(problem: Problem) -> Iterator[dict[str, str]]:
    """Each choice of outputs of view shape, and of the input whose buffer each of them is."""
    outputs = view_outputs(problem)
    for count in range(1, len(outputs) + 1):
        for chosen in itertools.combinations(outputs, count):
            for inputs in itertools.permutations(view_inputs(problem), count):
                over = dict(zip(chosen, inputs, strict=True))
                # Without an activation side_input_backprop is y_backprop, copied before x is read.
                copied = {"x_backprop": "y_backprop", "side_input_backprop": "x"}
                if problem.activation != IDENTITY or over != copied:
                    yield over


def run_over(problem: Problem, over: Mapping[str, str], **how: Any) -> dict[str, np.ndarray]:
    """The outputs of a call on a copy; those named are the buffers of inputs."""
    copy = problem.copy()
    return c_abi.run(copy, outputs={role: copy[name] for role, name in over.items()}, **how)


_GUARD = 7


def run_at(problem: Problem, offset: Callable[[], int], **how: Any) -> dict[str, np.ndarray]:
    """The outputs of a call whose arrays of view shape begin so many bytes, rounded to an element,
    behind a multiple of 4 KiB; nothing beside them is written."""

    def placed(array: np.ndarray) -> np.ndarray:
        at = offset() // array.itemsize * array.itemsize
        guarded = np.full(array.size + 128, _GUARD, array.dtype)
        guarded[64:-64] = array.ravel()
        return c_abi.placed(guarded, at)

    moved = dataclasses.replace(problem, values=dict(problem.values))
    stores = {}
    outputs = c_abi.new_outputs(problem, fill=np.nan)
    for arrays in (moved.values, outputs):
        for role in set(arrays) & VIEW_ROLES:
            shape, stores[role] = arrays[role].shape, placed(arrays[role])
            arrays[role] = stores[role][64:-64].reshape(shape)
    found = c_abi.run(moved, outputs=outputs, **how)
    for store in stores.values():
        assert (store[:64] == _GUARD).all() and (store[-64:] == _GUARD).all()
    return found
