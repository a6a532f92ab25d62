"""Judges results by the cases, right answers and bounds beside this file. It needs NumPy alone.

usage: python judge.py RESULTS

RESULTS has a folder for each case that was answered, named by its "id" in cases.json, with a file
OUTPUT.npy for each output, in its shape and element type (bfloat16: its bits, as uint16). A case
without a folder, or an output without a file, was not answered, which is counted. Exit status: 0
all that was answered passed, 1 a case failed, 2 there is nothing to judge.

An element passes where |given - value| <= bound. NaN and infinity have to be where the right answer
has them, either for the other unless the rule says otherwise; infinity is also right where the
answer and its bound exceed the type's largest number, and where the bound is infinite anything is.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy as np

SCHEMA = 1
# Bits of OUTPUT.rule.npy: NaN may not be infinity; the answer has to be finite though the bound is
# not; NaN and infinity have to be the same.
NAN_REQUIRED, FINITE_REQUIRED, NONFINITE_EXACT = 1, 2, 4
_LARGEST = {
    "half": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}
_STORED = {"half": "float16", "bfloat16": "uint16"}


def _widened(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def wrong(
    given: np.ndarray, value: np.ndarray, bound: np.ndarray, rule: np.ndarray, largest: float
) -> np.ndarray:
    """Which elements are wrong."""
    with np.errstate(all="ignore"):
        same = (given == value) | (np.isnan(given) & np.isnan(value))
        finite = np.isfinite(value)
        right = same | (finite & np.isfinite(bound) & (np.abs(given - value) <= bound))
        either = ~np.isfinite(value) & ~np.isfinite(given)
        either &= ~((rule & NAN_REQUIRED).astype(bool) & np.isnan(value))
        either &= ~(rule & NONFINITE_EXACT).astype(bool)
        # Of the sign that the bound reaches beyond the largest number with.
        beyond = finite & np.isinf(given) & (np.sign(given) * value + bound > largest)
        anything = finite & np.isposinf(bound)
        anything &= np.isfinite(given) | ~(rule & FINITE_REQUIRED).astype(bool)
        return ~(right | either | beyond | anything)


def _fault(folder: pathlib.Path, results: pathlib.Path, role: str, output: dict[str, Any]) -> str:
    """What is wrong with an output, in one sentence, or nothing."""
    given = np.load(results / f"{role}.npy", allow_pickle=False)
    dtype = _STORED.get(output["dtype"], output["dtype"])
    if list(given.shape) != output["shape"] or given.dtype != dtype:
        return f"{role} is {given.dtype}{list(given.shape)} instead of {dtype}{output['shape']}"
    value, bound, rule = (np.load(folder / f"{role}.{n}.npy") for n in ("value", "bound", "rule"))
    given = _widened(given, output["dtype"])
    where = wrong(given, value, bound, rule, _LARGEST[output["dtype"]])
    if not where.any():
        return ""
    with np.errstate(all="ignore"):
        off = np.where(where, np.abs(given - value) / np.maximum(bound, 5e-324), -1)
    at = np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off))), where.shape)
    place = [int(i) for i in at]
    return (
        f"{role} in {int(where.sum())} of {where.size} elements, worst at {place}: "
        f"{given[at]:.9g} instead of {value[at]:.9g}, allowed {bound[at]:.2g}"
    )


def main(argv: list[str]) -> int:
    """Prints the verdict; returns the exit status."""
    here = pathlib.Path(__file__).resolve().parent
    if len(argv) != 2 or not pathlib.Path(argv[1]).is_dir():
        print("usage: python judge.py RESULTS (a folder)", file=sys.stderr)
        return 2
    run = json.loads((here / "cases.json").read_text(encoding="utf-8"))
    if run["schema"] != SCHEMA:
        print(f"cases.json has format {run['schema']}, this is for {SCHEMA}", file=sys.stderr)
        return 2
    answered, missing, failed = 0, 0, []
    claims: dict[str, int] = {}
    for case in run["cases"]:
        results = pathlib.Path(argv[1]) / case["id"]
        if not results.is_dir():
            continue
        answered += 1
        there = {r: o for r, o in case["outputs"].items() if (results / f"{r}.npy").exists()}
        missing += len(case["outputs"]) - len(there)
        found = [_fault(here / case["id"], results, r, o) for r, o in there.items()]
        found = [text for text in found if text]
        failed += [(case, found)] if found else []
        for text in found:
            claims[text.split()[0]] = claims.get(text.split()[0], 0) + 1
    passed = answered and not failed
    print(
        f"{'passed' if passed else 'FAILED'}: {len(failed)} of {answered} cases failed, "
        f"{len(run['cases']) - answered} not answered (bounds {run['bounds']})"
    )
    if missing:
        print(f"  {missing} outputs not answered in these cases")
    for role, count in sorted(claims.items(), key=lambda item: -item[1]):
        print(f"  {role}: {count} cases")
    for case, found in failed[:20]:
        print(f"FAIL {case['id']} {case['case']}")
        for text in found:
            print(f"  {text}")
    if not answered:
        return 2
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
