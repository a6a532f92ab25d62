"""What is promised of every formula of the table, through the C ABI, without TensorFlow.

Promised: results are within the strict bounds of the formula's model, for every kind of inputs that
it draws; exact where the terms are; bitwise identical for every ISA build, number of threads, place
of the arrays and kind of store, in place, and as a channel of a larger call; every output written,
nothing beside them; a bad channel spoils itself alone; errors are one sentence.

A formula, mode or element type that is added to the table is tested by being there; what is special
to one has a file of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from builds import (
    FORMULAS,
    ISA_BUILDS,
    View,
    assert_builds_are_right_and_bitwise_identical,
    beyond_the_llc,
    bits,
    draw,
    has_view_outputs,
    in_place_choices,
    problem_of,
    repeated,
    run_at,
    run_over,
    swept,
    view_inputs,
    view_outputs,
)

from tf_bn_ops import spec
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem
from tf_bn_ops.spec import DTYPES

OF_EVERY_FORMULA = pytest.mark.parametrize(("formula", "mode"), FORMULAS)
WITH_RESULTS = [case for case in FORMULAS if has_view_outputs(*case)]

# Sizes at the boundaries of cases in the code: lanes of a vector (2 to 16) and the numbers beside
# them, up to four vectors and three, as channels, rows and segments; 8 rows, segments of 64
# columns, 1024 columns a row, chains of 1024 rows, 2^15 elements for threads, 2^16 for a second
# block.
VIEWS: list[View] = [
    *((outer, 1, 1) for outer in (1, 2, 7, 15, 16, 17, 67, 129, 70000)),
    *((1, 5, 1), (9, 2, 1), (100, 3, 1), (67, 4, 1), (33, 7, 1), (9, 8, 1), (9, 9, 1)),
    *((40, 15, 1), (41, 16, 1), (23, 17, 1), (31, 33, 1), (9, 35, 1), (19, 63, 1), (18, 64, 1)),
    *((17, 65, 1), (9, 67, 1), (11, 127, 1), (5, 1000, 1), (9, 1025, 1), (3, 2100, 1)),
    *((1500, 48, 1), (1100, 64, 1), (4000, 40, 1), (8000, 300, 1)),
    *((2, 3, inner) for inner in (7, 8, 9, 15, 16, 17, 35, 63, 64, 65, 67)),
    *((8, 3, 2), (9, 5, 49), (10, 40, 49), (8, 2, 1024), (9, 2, 1025), (1, 3, 200)),
    *((3, 2, 4099), (1, 1, 70001), (40, 3, 1300), (70, 1, 3000)),
]
FEW_VIEWS: list[View] = [(4000, 40, 1), (9, 5, 49), (3, 2, 4099), (129, 1, 1)]


def in_turn(view: View, formula: str, mode: str) -> tuple[str, str]:
    """The element type and the kind of inputs that are this case's, of those that take turns."""
    number = VIEWS.index(view) + FORMULAS.index((formula, mode))
    return list(DTYPES)[number % len(DTYPES)], ("normal", "normal", "exact")[number % 3]


@pytest.mark.parametrize(
    ("view", "case"),
    swept(
        VIEWS, FORMULAS, at_once=lambda view, case: math.prod(view) < 1 << 20 or case == FORMULAS[0]
    ),
    ids=str,
)
def test_every_build_is_right_and_all_are_bitwise_identical(view, case):
    """Promise: Results are bitwise identical on every instruction set that runs here."""
    (formula, mode), (dtype, kind) = case, in_turn(view, *case)
    assert_builds_are_right_and_bitwise_identical(*draw(formula, view, dtype, mode, kind))


TYPES_AND_KINDS = [*zip(DTYPES, itertools.cycle(("exact", "normal")), strict=False)]


@pytest.mark.long
@pytest.mark.parametrize("view", [v for v in VIEWS if np.prod(v) < 100_000], ids=str)
@OF_EVERY_FORMULA
def test_every_build_is_right_in_every_type(formula, mode, view):
    for dtype, kind in TYPES_AND_KINDS:
        assert_builds_are_right_and_bitwise_identical(*draw(formula, view, dtype, mode, kind))


KINDS = [
    (formula, mode, kind)
    for formula, mode in FORMULAS
    for kind in formula_models.MODELS[formula].kinds
]


@pytest.mark.parametrize(("formula", "mode", "kind"), KINDS)
def test_every_kind_of_inputs(formula, mode, kind):
    """Large means, outliers, subnormal numbers, constants, NaN and infinities, ...

    Promise: Errors stay within the derived bounds for inputs of every kind.
    """
    for dtype, view in itertools.product(DTYPES, [(33, 7, 1), (5, 4, 67), (300, 3, 1)]):
        assert_builds_are_right_and_bitwise_identical(*draw(formula, view, dtype, mode, kind))


def test_the_draws_have_every_activation_with_and_without_a_side_input():
    small = [view for view in VIEWS if np.prod(view) < 5000]
    for formula, mode in FORMULAS:
        ops = spec.of_formula(formula)
        sides = (False, True) if formula != spec.ops.BATCH_NORM_BACKWARD_REDUCE else (False,)
        taken = set().union(*(op.choices.get("activation_mode", ()) for op in ops))
        missing = {*itertools.product(taken, sides)}
        for view, (dtype, kind) in itertools.product(small, TYPES_AND_KINDS):
            if missing:
                problem = problem_of(formula, view, dtype, mode, kind)
                has_side_input = "side_input" in problem.values or problem.num_side_inputs
                missing.discard((problem.activation, bool(has_side_input)))
        assert not missing, formula


# ---- Threads, places, stores ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("view", [(4000, 40, 1), (9000, 3, 1), (8, 300, 49), (3, 7, 9000)], ids=str)
@OF_EVERY_FORMULA
def test_bitwise_identical_for_any_number_of_threads(formula, mode, view, dtype):
    """Promise: Results are bitwise identical for any number of threads."""
    problem = repeated(formula, view, dtype, mode)
    assert len({bits(c_abi.run(problem, threads=n)) for n in (1, 2, 3, 7, 16)}) == 1


@pytest.mark.parametrize("view", FEW_VIEWS, ids=str)
@pytest.mark.parametrize(("formula", "mode"), WITH_RESULTS)
def test_in_place_over_any_inputs(formula, mode, view):
    for seed in range(4):
        problem = problem_of(formula, view, "float32", mode, seed=seed)
        want = bits(c_abi.run(problem))
        for over in in_place_choices(problem):
            assert bits(run_over(problem, over, threads=2)) == want, over


@pytest.mark.parametrize("view", FEW_VIEWS, ids=str)
@OF_EVERY_FORMULA
def test_all_inputs_may_be_one_tensor(formula, mode, view):
    """And the first output, which is then in place."""
    for seed, name in itertools.product(range(4), ISA_BUILDS):
        problem = problem_of(formula, view, "float32", mode, seed=seed)
        one = problem["x"]
        problem.values |= {role: one.copy() for role in view_inputs(problem)}
        want = bits(c_abi.run(problem, implementation=name))
        problem.values |= dict.fromkeys(view_inputs(problem), one)
        over = dict.fromkeys(view_outputs(problem)[:1], one)
        assert bits(c_abi.run(problem, implementation=name, outputs=over)) == want


def random_view(rng: np.random.Generator) -> View:
    """Of 2^12 to 2^21 elements: channels-last, channels-first, or rows of few outer indices."""
    size = int(2 ** rng.uniform(12, 21))
    kind = rng.integers(3)
    if kind == 0:
        channels = int(2 ** rng.uniform(0, 10))
        return max(1, size // channels), channels, 1
    inner = int(2 ** rng.uniform(3, 14))
    if kind == 1:
        channels = int(2 ** rng.uniform(0, 9))
        return max(1, min(size // (channels * inner), 64)), channels, inner
    outer = int(rng.integers(1, 4))
    return outer, max(1, size // (outer * inner)), inner


# A fault that cut two-level sums by alignment differed in 1 of 35 random cases of all dtypes, and
# in more cases of 16-bit types.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cases", [4, pytest.param(8, marks=pytest.mark.long)])
@OF_EVERY_FORMULA
def test_no_bit_depends_on_addresses_builds_or_threads(formula, mode, cases, dtype):
    """Views below and beyond L2: rows and segments, temporal and non-temporal stores, pipelines and
    first passes that store; arrays anywhere, or all equally far from a cache line.

    Promise: Results are bitwise identical on every run, wherever the arrays lie.
    """
    rng = np.random.default_rng([cases, *dtype.encode(), *formula.encode(), *mode.encode()])
    for _ in range(cases):
        view = random_view(rng)
        problem = repeated(formula, view, dtype, mode, seed=int(rng.integers(1 << 30)))
        found = set()
        for _ in range(5):
            offset = int(rng.integers(4096)) if rng.random() < 0.5 else None
            how = {
                "implementation": str(rng.choice(ISA_BUILDS)),
                "threads": int(rng.choice([1, 2, 3, 5])),
            }
            found.add(
                bits(
                    run_at(
                        problem, lambda at=offset: rng.integers(4096) if at is None else at, **how
                    )
                )
            )
        assert len(found) == 1, (view, problem.activation, sorted(problem.values))


# Beyond the LLC size that counts (cc/cpu/cache_sizes.cc), so that full cache lines of results get
# non-temporal stores: rows that begin anywhere in a line, which get temporal ones, rows of full
# lines, tiles that begin and end within a line, segments, folded rows. Sizes for half; other types
# have as many bytes.
FAR_VIEWS = [(140000, 65, 1), (140000, 64, 1), (64, 3008, 49), (5, 8, 240001), (3000001, 3, 1)]


def far_cases() -> Iterator[Any]:
    """A view of every formula and mode for every change; another one, and all of the first formula,
    for the long tier."""
    for case, (at, view) in itertools.product(range(len(WITH_RESULTS)), enumerate(FAR_VIEWS)):
        turn = (at - case) % len(FAR_VIEWS)
        if turn == 0 or turn == 2 or case < 2:
            yield pytest.param(case, view, marks=() if turn == 0 else pytest.mark.long)


@pytest.mark.parametrize(("case", "view"), list(far_cases()), ids=str)
def test_non_temporal_stores(case, view):
    """Bitwise identical to temporal stores, which a call in place uses; nothing else is written.
    So where one output is in place and the other is not."""
    formula, mode = WITH_RESULTS[case]
    dtype = ("float32", "half", "float64")[(case + FAR_VIEWS.index(view)) % 3]
    view = beyond_the_llc(view, dtype)
    problem = repeated(formula, view, dtype, mode, seed=1)
    alike = {
        spec.ops.BATCH_NORM_ELEMT: spec.ops.BATCH_NORM,
        spec.ops.BATCH_NORM_BACKWARD_ELEMT: spec.ops.BATCH_NORM_GRAD,
    }
    explained = alike.get(formula, problem.formula)
    is_training = mode == "training" and formula not in spec.ops.ELEMENTS_ALONE
    plan = c_abi.explain(explained, view, dtype=dtype, is_training=is_training, threads=2)
    apart = plan.reason("store") == "rows_apart"
    assert (plan["store"], apart) == (("non_temporal", "temporal")[apart], view[1] == 65)
    whole = dict(zip(view_outputs(problem), ("x", "y_backprop"), strict=False))
    want = bits(run_over(problem, whole, threads=2))
    for name in ISA_BUILDS[case % 2 :: 2] or ISA_BUILDS:  # In turn.
        for at in (0, 5 * problem["x"].itemsize):
            got = run_at(problem, lambda at=at: at, threads=2, implementation=name)
            assert bits(got) == want
    for role, over in whole.items():
        assert bits(run_over(problem, {role: over}, threads=2)) == want


# ---- Pipelines -----------------------------------------------------------------------------------

MACHINE = c_abi.explain(spec.ops.BATCH_NORM_GRAD, (1, 1, 1)).machine
L2, LLC = (int(MACHINE[name]) for name in ("l2_bytes", "llc_bytes"))


def packed_view(outer: int, inner: int, element_bytes: int = 4) -> View:
    """With the fewest channels that exceed the L2 of two threads."""
    tensors = 2 * element_bytes * outer * inner  # The forward op has the fewest, x and y.
    return outer, max(8, 2 * L2 // tensors + 1), inner


# A channel's inputs exceed the scratch, a tensor the LLC.
DIRECT = (5, max(8, LLC // (4 * 5 * (L2 // 40)) + 1), L2 // 40)
PIPELINED = [
    # Whole segments and part of one; rows that begin at no cache line; shorter than a stage; two
    # and more blocks; several channels in a group; an inner dimension in blocks. A channel of two
    # blocks is packed where it takes at most half of L2.
    *(
        (spec.ops.BATCH_NORM_GRAD, "float32", packed_view(outer, inner))
        for outer, inner in ((9, 1088), (8, 1099), (50, 1500), (3, 70), (2, 40000))
        if 2 * 4 * outer * inner <= L2 // 2
    ),
    (spec.ops.BATCH_NORM_GRAD, "float32", DIRECT),
    *(
        (formula, dtype, packed_view(9, 1111, DTYPES[dtype].numpy.itemsize))
        for (formula, mode), dtype in itertools.product(WITH_RESULTS, DTYPES)
        if mode == "training"  # Many of them have none; their groups follow each other.
    ),
    # The segments of a row end within a two-level sum (cc/core/two_level_sum.h), and the results up
    # to the first full cache line leave one segment less to the results than to the sums.
    *(
        (spec.ops.BATCH_NORM_GRAD, dtype, packed_view(1, 12 * 64 + 14, 2))
        for dtype in ("half", "bfloat16")
    ),
]


def of_channel(arrays: Mapping[str, np.ndarray], c: int) -> dict[str, np.ndarray]:
    parts = {role: a[:, c : c + 1] if a.ndim == 3 else a[..., c : c + 1] for role, a in
             arrays.items() if a.ndim}  # fmt: skip
    return {**arrays, **{role: np.ascontiguousarray(a) for role, a in parts.items()}}


# Those that have a pipeline, the last one behind a mask from x and without a side input.
PIPELINE_FORMULAS = (
    spec.ops.BATCH_NORM,
    spec.ops.BATCH_NORM_GRAD,
    spec.ops.BATCH_NORM_GRAD_EX,
)


def pipelined(formula: str, view: View, dtype: str) -> Problem:
    """A problem of one of these formulas, of a call that has a pipeline."""
    for seed in range(99):
        small = problem_of(formula, (2, 2, 2), dtype, seed=seed)
        from_x = {"forward_coefficients", "offset"} <= {*small.values}
        if formula != spec.ops.BATCH_NORM_GRAD_EX or (
            from_x and small.activation in ("Relu", "Relu6") and not small.num_side_inputs
        ):
            return repeated(formula, view, dtype, seed=seed)
    raise AssertionError(formula)


@pytest.mark.parametrize(("formula", "dtype", "view"), PIPELINED, ids=str)
def test_a_pipeline_changes_no_bit(formula, dtype, view):
    """A channel's results are bitwise identical in a call with it alone, which overlaps with no
    group, in every build, in place, at any alignment, whatever other channels hold."""
    if formula not in PIPELINE_FORMULAS or dtype == "float64":
        problem = repeated(formula, view, dtype, seed=1)
    else:
        problem = pipelined(formula, view, dtype)
        for threads in (1, 2):
            plan = c_abi.explain(formula, view, dtype=dtype, threads=threads)
            assert plan["pipeline"] == ("direct" if view == DIRECT else "packed")
        alone = c_abi.explain(formula, (view[0], 1, view[2]), dtype=dtype)
        assert alone["pipeline"] == "none"
    for at, role in enumerate(view_inputs(problem)):
        problem[role][-1, 1 + at % 2, 7] = (np.nan, np.inf)[at % 2]
    *_, over = in_place_choices(problem)
    results = [run_over(problem, over, threads=2)]
    for number, name in enumerate(ISA_BUILDS[: 1 if view == DIRECT else None]):
        how = {"implementation": name, "threads": (2, 1, 5)[number % 3]}
        for offset in range(0, 64, 6) if view[0] == 1 else [20 * number]:
            results.append(run_at(problem, lambda at=offset: at, **how))
    for c in {0, 1, 2, view[1] // 2, view[1] - 1}:
        values = of_channel(problem.values, c)
        want = bits(c_abi.run(dataclasses.replace(problem, values=values)))
        assert {bits(of_channel(got, c)) for got in results} == {want}, c


# ---- Channels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@OF_EVERY_FORMULA
def test_a_bad_channel_spoils_itself_alone(formula, mode, bad):
    """Whichever input it is in; all results of others are bitwise what they are without it. That
    its own are what they have to be is the kind `nonfinite`."""
    view, channel = (50, 5, 3), 2

    def others(problem, name):
        found = c_abi.run(problem, implementation=name)
        return [
            np.delete(array, channel, 1 if array.ndim == 3 else -1).tobytes()
            for role, array in sorted(found.items())
            if array.ndim
        ]

    for seed, name in itertools.product(range(2), ISA_BUILDS):
        problem = problem_of(formula, view, "float32", mode, seed=seed)
        want = others(problem, name)
        for role, array in problem.values.items():
            if array.shape[-1:] != (view[1],) and array.ndim != 3:
                continue
            spoiled = problem.copy()
            for at in (0, 7) if array.ndim == 3 else (0,):
                place = (at, channel, at % 3) if array.ndim == 3 else (..., channel)
                spoiled[role][place] = bad
                assert others(spoiled, name) == want, role


@pytest.mark.parametrize("view", [(0, 3, 1), (5, 3, 0), (0, 0, 0), (4, 0, 2)], ids=str)
@OF_EVERY_FORMULA
def test_every_output_of_an_empty_view_is_written(formula, mode, view):
    """As zero, as what was given, or as a statistic of nothing."""
    for dtype, name in itertools.product(DTYPES, ISA_BUILDS):
        problem = problem_of(formula, view, dtype, mode)
        found = [
            c_abi.run(problem, implementation=name, outputs=c_abi.new_outputs(problem, fill=fill))
            for fill in (7, np.nan)
        ]
        assert bits(found[0]) == bits(found[1])
        assert not formula_models.check(problem, found[0])


# ---- Errors --------------------------------------------------------------------------------------

NEGATIVE = "outer, channels and inner must not be negative"
UNKNOWN = "{} must be one of the TFBN_ element types"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"outer": -1}, NEGATIVE),
        ({"outer": 1 << 62}, "outer * channels * inner is larger than any memory"),
        ({"outer": 0, "channels": 1 << 62}, "channels is larger than any memory"),
        ({"dtype": 9}, UNKNOWN.format("dtype")),
        ({"stat_dtype": -1}, UNKNOWN.format("stat_dtype")),
        ({"activation": 99}, "activation must be one of the TFBN_ activations"),
        ({"formula": 9}, "formula must be TFBN_FORWARD, TFBN_GRADIENT or TFBN_SECOND_ORDER"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"implementation": "mmx"}, 'there is no CPU implementation "mmx"; this build has '),
    ],
)
@OF_EVERY_FORMULA
def test_errors_are_one_sentence(formula, mode, fields, sentence):
    """Promise: A wrong call of the C ABI gets one sentence, and no result."""
    with pytest.raises(ValueError) as error:
        c_abi.run(problem_of(formula, (2, 3, 1), mode=mode), **fields)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


# What may be missing: side inputs; statistics that training does not read; of a gradient y, where
# the mask may come from x instead, and what it comes from x by.
OPTIONAL = {
    spec.ops.BATCH_NORM: {"mean", "variance"},
    spec.ops.BATCH_NORM_ADD: {"mean", "variance", "side_input"},
    spec.ops.BATCH_NORM_STATS: {"mean", "variance", "side_input", "scale", "offset"},
    spec.ops.BATCH_NORM_ELEMT: {"side_input"},
    spec.ops.BATCH_NORM_GRAD: {"offset", "forward_coefficients"},
    spec.ops.BATCH_NORM_GRAD_EX: {"offset", "forward_coefficients", "y", "side_input_backprop"},
    spec.ops.BATCH_NORM_GRAD_GRAD: {"offset", "forward_coefficients"},
    spec.ops.BATCH_NORM_BACKWARD_REDUCE: {"offset", "y"},
    spec.ops.BATCH_NORM_BACKWARD_ELEMT: {"offset", "y", "side_input_backprop"},
}


@OF_EVERY_FORMULA
def test_a_missing_array_is_named(formula, mode):
    for seed in range(6):
        problem = problem_of(formula, (2, 3, 1), mode=mode, seed=seed)
        for role in {*problem.values, *c_abi.required_outputs(problem)}:
            try:
                c_abi.run(problem, **{role: None})
            except ValueError as error:
                assert str(error).startswith(f"{role} must not be NULL")
            else:
                assert role in OPTIONAL[formula], role


@pytest.mark.parametrize(
    "role", [field[0] for field in c_abi.Call._fields_ if field[0] in spec.call.ROLES]
)
def test_arrays_that_begin_within_an_element_are_refused(role):
    """Whole vectors are loaded and stored past the caches there, which ends the process."""
    memory = np.zeros(64)
    problem = problem_of(spec.ops.BATCH_NORM_GRAD_GRAD, (1, 1, 1))
    with pytest.raises(ValueError, match=rf"^{role} must be aligned to its element type"):
        c_abi.run(problem, **{role: memory.ctypes.data + 1})
