"""The record of a run, which all reports are generated from, and its JSON file.

SCHEMA describes the file, and the API page lists it; `check` holds a file against it. Names
of ops, outputs, implementations, kinds and verdicts are data: a reader takes those that come.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution import signatures
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.result import BITS_DIFFER, CaseResult, Disagreement, PathResult

# Raised when a field changes its meaning or goes; new fields need `check` to know them.
VERSION = 6

PASSED = "passed"
# The verdict on wrong numbers. Others are the first word of result.Disagreement.what.
VALUES = "values"
# The verdict where only a built-in departs from the contract, and no list of divergences says so.
UNLISTED = "unlisted-divergence"

# The verdict where values are right, but two execution modes differ bitwise.
BITS = "bits"

# Significant digits of errors in the file: it may hold 100,000 cases.
_DIGITS = 6

# Field -> meaning. The key is the field that the objects are in.
SCHEMA: dict[str, dict[str, str]] = {
    "": {
        "schema": f"version of this format, {VERSION}",
        "command": "what was run",
        "replay": "the command that replays a case when the case is appended",
        "date": "when, UTC",
        "seconds": "how long it took; the sum of the shards in a merged file",
        "settings": "what decides which cases are run, and how they are judged: see below",
        "shard": "null, or the index (from 1) and count of this part of a run",
        "total": "number of cases of the whole run",
        "versions": "software -> version",
        "machines": "where it ran: see below; more than one only in a merged file",
        "candidate": "what was judged: see below",
        "implementations": "what was run, the candidate first",
        "divergences": "the list of known divergences in this run: see below",
        "coverage": "op by op, which properties of cases came together: see below",
        "cases": "every case: see below",
    },
    "settings": {
        "seed": "the random cases are drawn from it",
        "cases": "number of random cases",
        "kinds": "the kinds of cases that were run, as --kinds names them; null with --repro",
        "selection": "the ops, dtypes, layouts, modes of the run; empty lists: all",
        "repro": "the one case of --repro, or null",
        "bounds": "what the candidate is held to",
        "timeout": "seconds after which a case counts as hanging",
        "shrink": "number of failing cases that are reduced",
        "x": "whether the run ends with the first case that fails",
        "execution_modes": "the further execution modes of every case; `default`: a random subset",
    },
    "machines": {
        "cpu": "the processor's name",
        "architecture": "the processor's architecture",
        "cores": "number of processors that the run could use",
        "isa": "the build of this library's kernels that was used; null where it is not there",
        "gpus": "names of the GPUs that TensorFlow saw",
        "system": "operating system",
    },
    "candidate": {
        "ops": "where the ops come from",
        "digest": "SHA-256 of the library that holds them; null where there is no single one",
        "mapped": "its ops, for the library of a third party: see below; else empty",
    },
    "mapped": {
        "name": "registered name of the op",
        "like": "the op of TensorFlow that it claims to equal",
        "device": "where it was run; null leaves it to TensorFlow",
        "reference_device": "where the op of TensorFlow was run; null as above",
        "tolerances": "what it is allowed beyond the bounds: see below",
        "signature": "how its contract differs, a sentence each",
        "departures": "those of them that fail the run: the mapping file does not name their kind",
    },
    "tolerances": {
        "outputs": "the outputs that it is for; empty for all",
        "dtypes": "the element types that it is for; empty for all",
        "times_bound": "how many times its bound an error may be",
        "reason": "why, in the words of the mapping file",
    },
    "divergences": {
        "name": "its name in the list",
        "what": "what differs",
        "reason": "why it is so",
        "may_hide": "whether cases that it speaks of need not show it: some processors do not, or "
        "some numbers",
        "covered": "number of cases that it speaks of",
        "shown": "number of cases that showed it; a list entry that none showed is stale",
    },
    "coverage": {
        "op": "op",
        "pairs": "number of pairs that cases may have, for instance of a layout and a kind",
        "missing": "those that no random case had, in words",
    },
    "cases": {
        "index": "its place in the whole run, from 0",
        "case": "its name, which --repro takes",
        "op": "op",
        "dtype": "element type",
        "layout": "data format; empty where the op has none",
        "mode": "training or frozen; empty where the op has none",
        "kind": "kind of inputs",
        "verdict": f"`{PASSED}`, or why it failed: `{VALUES}` (wrong numbers), `crash`, `error`, "
        f"`count`, `shape`, `dtype`, `changed-input`, `{BITS}` (of two execution modes), "
        f"`{UNLISTED}` (of the built-in), ...",
        "failures": "what is wrong, a sentence each",
        "evidence": "output -> whether wrong-on-purpose answers would have failed",
        "implementations": "implementation -> its answer: see below",
        "execution_modes": "implementation -> further execution mode -> same (bitwise), differs or "
        "unsupported",
        "notes": "what is worth knowing and fails nothing, a sentence each",
        "script": "a Python program that shows the failure, reduced, or null",
    },
    "implementations": {
        "departures": "how it departs from the contract in more than values: [what, detail]",
        "outputs": "output -> its error: see below; none where it gave no values",
    },
    "outputs": {
        "ulp": "the largest error in units in the last place; null for subnormal numbers, which "
        "may be flushed, and where it is not finite",
        "bound": "the same in units of the candidate's bound: above 1 is wrong; null where NaN or "
        "infinity is in the wrong place",
        "worst": "where the latter is and what is there; null where it is inside the bound",
    },
}

# Fields that have the name of objects, and hold names and a number.
_PLAIN = {("", "implementations"), ("settings", "cases"), ("tolerances", "outputs")}


def _rounded(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    # Rounding must not acquit.
    return math.nextafter(1.0, 2.0) if short <= 1 < value else short


def _path(path: PathResult, flushed: bool, result: CaseResult) -> dict[str, Any]:
    departures = [(*d.what.partition(":"), d.detail) for d in path.disagreements]
    return {
        "departures": [[k + c + result.name_of(role), text] for k, c, role, text in departures],
        "outputs": {
            result.name_of(role): {
                "ulp": None if flushed else _rounded(e.ulp),
                "bound": _rounded(e.bound),
                "worst": None if e.bound <= 1 else e.worst,
            }
            for role, e in path.errors.items()
        },
    }


def _verdict(result: CaseResult) -> str:
    if not result.failures:
        return PASSED
    candidate = result.paths.get(CANDIDATE)
    departures: Sequence[Disagreement] = candidate.disagreements if candidate else ()
    # A crash or an error is the whole story; a wrong shape comes with values at times.
    if departures:
        return departures[0].what.partition(":")[0]
    own = [path for name, path in result.paths.items() if name.partition(":")[0] == CANDIDATE]
    if any(not e.bound <= 1 for path in own for e in path.errors.values()):
        return VALUES
    differs = any(f.startswith(BITS_DIFFER) for f in result.failures)
    return BITS if differs else UNLISTED


def of_result(index: int, result: CaseResult) -> dict[str, Any]:
    """The entry of "cases" for the case at a place in the whole run."""
    case = result.case
    kind = model_of(case.spec).kinds.get(case.kind)
    flushed = kind is not None and kind.flushed
    modes: dict[str, dict[str, str]] = {}
    for (name, mode), state in result.modes.items():
        modes.setdefault(name, {})[mode] = state
    return {
        "index": index,
        "case": str(case),
        "op": case.op,
        "dtype": case.dtype,
        "layout": case.layout,
        "mode": case.mode,
        "kind": case.kind,
        "verdict": _verdict(result),
        "failures": list(result.failures),
        "evidence": {result.name_of(role): bool(e) for role, e in result.evidence.items()},
        "execution_modes": modes,
        "notes": list(result.notes),
        "implementations": {name: _path(p, flushed, result) for name, p in result.paths.items()},
        "script": None,
    }


def wrong(case: dict[str, Any]) -> frozenset[str]:
    """What is wrong with the candidate in an entry of "cases": outputs with wrong numbers, and
    departures in structure."""
    answer = case["implementations"].get(CANDIDATE)
    if answer is None or case["verdict"] == PASSED:
        return frozenset()
    outputs = {o for o, e in answer["outputs"].items() if e["bound"] is None or e["bound"] > 1}
    return frozenset(outputs | {what for what, _ in answer["departures"]})


def first_of_their_kind(cases: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first entries of "cases" in which the candidate fails, one of each op and what is wrong
    with it, at most `count`: those that are reduced."""
    first: dict[tuple[str, frozenset[str]], dict[str, Any]] = {}
    for case in cases:
        if (what := wrong(case)) and len(first) < count:
            first.setdefault((case["op"], what), case)
    return list(first.values())


def of_mapping(entry: OpMapping, signature: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """An entry of the field "mapped"."""
    return {
        "name": entry.name,
        "like": entry.spec.name,
        "device": entry.device,
        "reference_device": entry.reference_device,
        "tolerances": [dataclasses.asdict(tolerance) for tolerance in entry.tolerances],
        "signature": [text for _, text in signature],
        "departures": [t for kind, t in signature if kind not in (signatures.NOTE, *entry.differs)],
    }


def of_divergences(known: divergences.Register) -> list[dict[str, Any]]:
    """The field "divergences"."""
    return [
        {field: getattr(entry, field) for field in SCHEMA["divergences"]} for entry in known.entries
    ]


def is_stale(record: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Whether an entry of the list of divergences is stale. A part of a run cannot tell."""
    if record["shard"] is not None or is_cut_short(record) or entry["may_hide"]:
        return False
    return bool(entry["covered"] and not entry["shown"])


def failed(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The cases that failed."""
    return [case for case in record["cases"] if case["verdict"] != PASSED]


def stale(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The known divergences that no longer are any."""
    return [entry for entry in record["divergences"] if is_stale(record, entry)]


def is_cut_short(record: dict[str, Any]) -> bool:
    """Whether cases of a whole run are missing: a signal ended it, or the first failure did."""
    return record["shard"] is None and len(record["cases"]) < record["total"]


def verdict(record: dict[str, Any]) -> str:
    """Of a run: "passed", "failed", or "interrupted" where nothing failed until a signal came."""
    if not passed(record):
        return "failed"
    return "interrupted" if is_cut_short(record) else "passed"


def passed(record: dict[str, Any]) -> bool:
    """Whether nothing failed."""
    return not failed(record) and not stale(record) and not departures(record)


def departures(record: dict[str, Any]) -> list[str]:
    """How the contracts of mapped ops depart from what they claim to equal, a line each."""
    mapped = record["candidate"]["mapped"]
    return [f"contract of {op['name']}: {text}" for op in mapped for text in op["departures"]]


def _compare(what: str, given: Any, name: str) -> None:
    """Raises UsageError unless an object, and those in it, have the fields that SCHEMA says."""
    if not isinstance(given, dict) or set(given) != set(SCHEMA[name]):
        raise UsageError(f"{what} should have the fields {', '.join(SCHEMA[name])}")
    for field, value in given.items():
        if value is None and "null" not in SCHEMA[name][field]:
            raise UsageError(f"the field {field} of {what} is null")
        if field in ("settings", "candidate"):
            _compare(f"'{field}'", value, field)
        elif field in SCHEMA and (name, field) not in _PLAIN:
            for entry in value.values() if isinstance(value, dict) else value:
                _compare(f"an entry of '{field}'", entry, field)


def check(record: Any) -> None:
    """Raises UsageError unless `record` has the fields of SCHEMA."""
    if isinstance(record, dict) and record.get("schema", VERSION) != VERSION:
        raise UsageError(f"it has format {record['schema']}, this is for {VERSION}")
    _compare("the file", record, "")
    if record["shard"] is not None and set(record["shard"]) != {"index", "count"}:
        raise UsageError("'shard' should have the fields index, count")
    for case in record["cases"]:
        for path in case["implementations"].values():
            if any(not isinstance(d, list) or len(d) != 2 for d in path["departures"]):
                raise UsageError("an entry of 'departures' should be [what, detail]")


def load(path: pathlib.Path) -> dict[str, Any]:
    """Reads the JSON file of a run.

    Raises:
      UsageError: it cannot be read, or is something else.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        check(record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise UsageError(f"{path} is no record of a conformance run: {e}") from e
    assert isinstance(record, dict)
    return record


def dumps(record: dict[str, Any]) -> str:
    """The text of the JSON file: a line for every case, so that line tools can read it."""
    check(record)
    lines = [json.dumps(case, allow_nan=False) for case in record["cases"]]
    rest = {name: value for name, value in record.items() if name != "cases"}
    head = json.dumps(rest, indent=1, allow_nan=False).removesuffix("\n}")
    cases = ",\n".join(lines)
    return f'{head},\n "cases": [\n{cases}\n ]\n}}\n'
