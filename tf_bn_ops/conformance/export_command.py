"""Writes cases with right answers and bounds into a folder, for any system to be judged by.

Flags mean what they mean in a run, but the default of --bounds is float32; the number of elements
is the smallest with which cases have the same pairs. Then, anywhere that has NumPy,
`python DIR/judge.py RESULTS` judges. DIR/cases.json says what the files are; docs/conformance.md
describes it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shlex
import shutil
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance import flags
from tf_bn_ops.conformance.cases import coverage, generate
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.models import bounds, portable_judge
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.models.inputs import as_given
from tf_bn_ops.conformance.reports import overview
from tf_bn_ops.conformance.verdict import judge

_DEFAULT_CASES = 500
# Cases of more elements get the smallest shape that has the same pairs: 84 of 500, 7 million
# elements together, of up to 132,225 (32,769 channels are a level).
_USUAL_ELEMENTS = 20_000
_TYPES = {"bfloat16": np.uint16}  # NumPy's files have no bfloat16: its bits.


def _save(folder: pathlib.Path, name: str, array: np.ndarray) -> dict[str, Any]:
    """Writes an array; its entry in cases.json."""
    dtype = spec.dtype_of(array).name
    stored = array.view(_TYPES[dtype]) if dtype in _TYPES else array
    np.save(folder / f"{name}.npy", stored, allow_pickle=False)
    return {"dtype": dtype, "shape": list(array.shape)}


def _expected(
    folder: pathlib.Path, case: Case, expected: judge.Expectation
) -> dict[str, dict[str, Any]]:
    """Writes the right answers with their bounds and rules; the outputs' entries."""
    dtypes = {output.role: spec.dtype_of(np.empty(0, output.dtype)) for output in expected.outputs}
    entries = {}
    for role, arrays in expected.arrays(case.layout).items():
        for name, array in arrays.items():
            np.save(folder / f"{role}.{name}.npy", array, allow_pickle=False)
        entries[role] = {"dtype": dtypes[role].name, "shape": list(arrays["value"].shape)}
    return entries


def write(case: Case, name: str, to: pathlib.Path, profile: bounds.Profile) -> dict[str, Any]:
    """Writes a case into a folder of its own; returns its entry in cases.json."""
    inputs = as_given(model_of(case.spec).fill(case))
    folder = to / name
    folder.mkdir()
    read = [arg.role for arg in case.spec.inputs if arg.kind != spec.OPAQUE]
    return {
        "id": name,
        "case": str(case),
        "op": case.op,
        "layout": case.layout,
        "attrs": {"epsilon": case.epsilon, "is_training": case.is_training, **inputs.attrs},
        "inputs": {
            role: _save(folder, role, inputs.values[role]) for role in read if role in inputs.values
        },
        "outputs": _expected(folder, case, judge.expect(case, inputs, profile)),
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    flags.add_selection(parser, f"{_DEFAULT_CASES}")
    parser.set_defaults(cases=_DEFAULT_CASES, bounds="float32")


def execute(given: argparse.Namespace) -> int:
    to = given.folder
    if to.exists() and any(to.iterdir()):
        raise UsageError(f"{to} is not empty: name a new folder")
    profile = bounds.PROFILES[given.bounds]
    combos = flags.combinations(given)
    cases = list(generate.generate(given.cases, given.seed, combos, _USUAL_ELEMENTS))
    if not cases:
        raise UsageError("--cases=0 writes no case: a judge of none proves nothing")
    to.mkdir(parents=True, exist_ok=True)
    entries = [write(case, f"{i:05}", to, profile) for i, case in enumerate(cases)]
    head = {"schema": portable_judge.SCHEMA, "bounds": profile.name, "seed": given.seed}
    text = json.dumps({**head, "cases": entries}, indent=1)
    (to / "cases.json").write_text(text + "\n", encoding="utf-8")
    shutil.copy(portable_judge.__file__, to / "judge.py")
    pairs: list[Any] = [of_op.of_record() for of_op in coverage.of_cases(combos, cases).values()]
    print(f"{len(cases)} cases in {to}; {overview.covered(pairs)}")
    for sentence in overview.missing_pairs(pairs):
        print(f"not covered: {sentence}")
    print(f"judge results with: python {shlex.quote(str(to / 'judge.py'))} RESULTS")
    return 0
