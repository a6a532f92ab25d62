"""Other builds of the core: by other compilers and optimization levels, whose results are bitwise
identical, and one that rounds at random, whose results are inside the bounds all the same.

Promised: results are bitwise identical with another compiler and without optimization; under random
rounding they are inside their bounds with room.

What these tests cost is compilation. All builds share one tree. They hold the baseline ISA alone:
tests/core/test_every_formula.py compares the ISAs, and the library of this checkout, which
all are compared with, runs its fastest one. A build that the checkout has is not made again.
"""

import collections
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys

import build_helpers
import numpy as np
import pytest

from tf_bn_ops import _loader, spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.flags import DEFAULT_SEED
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness import c_abi, problems

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "mutants"))

import run as mutants

if not (mutants.ROOT / "Makefile").exists():
    pytest.skip("needs the source tree", allow_module_level=True)

pytestmark = pytest.mark.long

CASES = 100

# Every task of the kernels, and what is computed between them, takes the next of the four rounding
# modes of the processor (to nearest, down, up, to zero) from a pseudo-random sequence.
RANDOM_ROUNDING = mutants.Mutant(
    "random-rounding",
    "the rounding mode is drawn anew for every task",
    "cc/core/fp_env.h",
    (
        (
            "static State Wanted(State s) { return (s & ~0x6000u) | 0x8040u; }",
            "static State Wanted(State s) {\n"
            "    static thread_local unsigned int draw = 1;\n"
            "    draw = draw * 1103515245u + 12345u;\n"
            "    return (s & ~0x6000u) | 0x8040u | ((draw >> 16 & 3u) << 13);\n"
            "  }",
        ),
    ),
)


def judged(left_out):
    """Of cases of the default conformance run on the core library: a digest of all outputs (NaN is
    NaN, whatever its payload), and for every output the worst error in units of its strict bound,
    also of outputs that have to be exact. Cases of the kinds that are named are left out; "masked",
    gradients behind an activation; "wide_mean", gradients of 16 or 32 bits by a float64 mean that
    float does not hold."""
    digest, worst = hashlib.sha256(), collections.defaultdict(float)
    # One op of each formula, in most types; the C ABI knows no more of ops.
    for formula in dict.fromkeys(op.formula for op in spec.OPS.values()):
        ops = [op.name for op in spec.of_formula(formula)][-2:]
        for case in generate.generate(CASES, DEFAULT_SEED, generate.combinations(ops)):
            if np.prod(case.shape) > 100_000 or case.kind in left_out:
                continue
            problem = problems.of_call(case, formula_models.fill(case))
            is_masked = "y_backprop" in problem.values and problem.activation != problems.IDENTITY
            if is_masked and "masked" in left_out:
                continue
            if "y_backprop" in problem.values and "wide_mean" in left_out:
                narrow = problem["mean"].astype(problem.dtype.accumulator)
                if np.any(narrow != problem["mean"]):
                    continue
            outputs = c_abi.run(problem, threads=2)
            for _, array in sorted(outputs.items()):
                digest.update(np.where(np.isnan(array), np.zeros_like(array), array).tobytes())
                digest.update(np.isnan(array).tobytes())
            for role, error in formula_models.errors(problem, outputs).items():
                worst[role] = max(worst[role], error.bound)
    return {"digest": digest.hexdigest(), "worst": worst}


def _judged(library, *left_out, isa=None):
    """`judged` of a library, in its fastest ISA unless one is named."""
    variables = {c_abi.ISA_VARIABLE: isa} if isa else {}
    return build_helpers.call(judged, left_out, TF_BN_OPS_LIBRARY=str(library), **variables)


CHECKOUT = pathlib.Path(_loader.core_library_path()).parent


def _is_the_checkouts(compiler, level):
    """Whether the library of the checkout is what this compiler builds at this level."""
    info = json.loads((CHECKOUT / _loader.BUILD_INFO).read_text(encoding="utf-8"))
    levels = [flag for flag in info["cxxflags"].split() if flag.startswith("-O")]
    return info["compiler"].split()[0] == compiler and levels[-1:] == [level]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds the core by a compiler at an optimization level; returns its folder."""
    tree = mutants.Build(tmp_path_factory.mktemp("builds") / "tree")

    def library(compiler, level, mutant=None):
        if mutant is None and _is_the_checkouts(compiler, level):
            return CHECKOUT
        if not shutil.which(compiler):
            pytest.skip(f"needs {compiler}")
        cached = ["ccache"] if shutil.which("ccache") else []
        tree.flags, tree.compiler = f"{level} -w", " ".join([*cached, compiler])
        name = "".join([compiler, level, *([mutant.name] if mutant else [])])
        return tree.library_of(mutant, name, whole=True)

    return library


@pytest.fixture(scope="module")
def reference():
    return _judged(CHECKOUT)


# Another compiler without optimization for the long tier, where there is one; all before a release.
# A compiler's levels stand together, those that take longest last.
LONG = "clang++" if shutil.which("clang++") else "g++", "-O0"


@pytest.mark.parametrize(
    ("compiler", "level"),
    [
        pytest.param(*build, marks=[pytest.mark.release] * (build != LONG))
        for build in itertools.product(("g++", "clang++"), ("-O0", "-O2", "-O3"))
    ],
)
def test_compilers_and_optimization_levels_give_the_same_bits(build, reference, compiler, level):
    built = _judged(build(compiler, level), isa="baseline")
    assert built["worst"] == reference["worst"]
    assert built["digest"] == reference["digest"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the edit is that of x86's MXCSR")
def test_bounds_hold_with_room_under_random_rounding(build):
    """A directed rounding is off by up to a unit in the last place, twice what a rounding to
    nearest is: so may be what it leads to. The bounds are not tuned to one rounding. What is too
    large for its type becomes the largest number instead of infinity where the rounding is towards
    zero: the kinds that have it are left out. So are gradients behind an activation, whose mask
    repeats the forward's rounding bit by bit, and those by a mean that float does not hold, which
    one task rounds to subtract it and another to correct by what that lost.

    Without optimization, which builds fastest and, as the test above shows, rounds no other way."""
    left_out = ("overflow", "odd_statistics", "masked", "wide_mean")
    nearest = _judged(CHECKOUT, *left_out)
    random = _judged(build("g++", "-O0", RANDOM_ROUNDING), *left_out, isa="baseline")
    assert random["digest"] != nearest["digest"]  # It did round otherwise.
    assert {role: bound for role, bound in nearest["worst"].items() if bound > 1} == {}
    assert {role: bound for role, bound in random["worst"].items() if bound > 2} == {}
