"""Judges results by the cases, right answers and bounds beside this file. It needs NumPy alone.

usage: python judge.py RESULTS [--without=OUTPUT,...]

RESULTS has a folder for each case that was answered, named by its "id" in cases.json, with a file
OUTPUT.npy for each output, in its shape and element type (bfloat16: its bits, as uint16). A case
without a folder was not answered, which is counted. A folder that is no case, and an output without
a file, fail: --without names the outputs that a system does not have, or not in all cases. Exit
status: 0 all that was answered passed, 1 a case failed, 2 nothing was judged.

An element passes where |given - value| <= bound. NaN and infinity have to be where the right answer
has them, either for the other unless the rule says otherwise; infinity is also right where the
answer and its bound exceed the type's largest number, and where the bound is infinite anything is.
"""

from __future__ import annotations

import argparse
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
    try:
        given = np.load(results / f"{role}.npy", allow_pickle=False)
        given.dtype, given.shape  # noqa: B018, an archive of arrays has neither.
    except FileNotFoundError:
        there = ", ".join(sorted(file.name for file in results.iterdir())) or "no file"
        return f"{role} is missing: there is no {role}.npy in {results}, but {there}"
    except Exception as error:  # Whatever is in the file.
        return f"{role} is no array in NumPy's format ({' '.join(str(error).split())})"
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


def _judge(here: pathlib.Path, results: pathlib.Path, without: set[str]) -> int:
    """Prints the verdict; returns the exit status."""
    run = json.loads((here / "cases.json").read_text(encoding="utf-8"))
    if run["schema"] != SCHEMA:
        raise ValueError(f"cases.json has format {run['schema']}, this is for {SCHEMA}")
    cases = {case["id"]: case for case in run["cases"]}
    if unknown := without - {role for case in cases.values() for role in case["outputs"]}:
        raise ValueError(f"no case has an output {', '.join(sorted(unknown))}: see --without")
    folders = sorted(f for f in results.iterdir() if f.is_dir() and f.name[0] not in "._")
    strays = [folder.name for folder in folders if folder.name not in cases]
    judged, failed = 0, []
    claims: dict[str, int] = {}
    for folder in (folder for folder in folders if folder.name in cases):
        case = cases[folder.name]
        there = {role for role in case["outputs"] if (folder / f"{role}.npy").exists()}
        judged += len(there)
        asked = {
            role: output
            for role, output in case["outputs"].items()
            if role in there or role not in without or not there
        }
        found = [(r, _fault(here / folder.name, folder, r, o)) for r, o in asked.items()]
        faults = [(role, text) for role, text in found if text]
        failed += [(case, faults)] if faults else []
        for role, _ in faults:
            claims[role] = claims.get(role, 0) + 1
    passed, answered = judged and not failed and not strays, len(folders) - len(strays)
    print(
        f"{'passed' if passed else 'FAILED'}: {len(failed)} of {answered} cases failed, "
        f"{len(cases) - answered} not answered (bounds {run['bounds']})"
    )
    print(f"  {judged} outputs judged" + f", without {', '.join(sorted(without))}" * bool(without))
    for name in strays[:20]:
        print(f"  {results / name} is no case: the ids in cases.json are the names of folders")
    for role, count in sorted(claims.items(), key=lambda item: -item[1]):
        print(f"  {role}: {count} cases")
    for case, faults in failed[:20]:
        print(f"FAIL {case['id']} {case['case']}")
        for _, text in faults:
            print(f"  {text}")
    return (0 if passed else 1) if judged else 2


def main(argv: list[str]) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser("judge.py", "python judge.py RESULTS [--without=OUTPUT,...]")
    parser.add_argument("results", type=pathlib.Path, help="a folder with a folder for each case")
    parser.add_argument("--without", default="", help="outputs that the system does not have")
    given = parser.parse_args(argv[1:])
    without = {role.strip() for role in given.without.split(",") if role.strip()}
    try:
        return _judge(pathlib.Path(__file__).resolve().parent, given.results, without)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"judge.py: cannot judge: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
