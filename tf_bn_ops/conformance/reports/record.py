"""The record of a run, which all reports are generated from, and its JSON file.

Record describes the file, and the API page lists its fields; `check` holds a file against it. Names
of ops, outputs, implementations, kinds and verdicts are data: a reader takes those that come.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, cast, get_type_hints

import msgspec

from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution import signatures
from tf_bn_ops.conformance.execution.implementations import CANDIDATE
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.result import BITS_DIFFER, CaseResult, Disagreement, PathResult

# Raised when a field changes its meaning or goes.
VERSION = 7

PASSED = "passed"
# The verdict on wrong numbers. Others are the first word of result.Disagreement.what.
VALUES = "values"
# The verdict where only a built-in departs from the contract, and no list of divergences says so.
UNLISTED = "unlisted-divergence"

# The verdict where values are right, but two execution modes differ bitwise.
BITS = "bits"

# Significant digits of errors in the file: it may hold 100,000 cases.
_DIGITS = 6


class ErrorRecord(TypedDict):
    """The error of an output."""

    ulp: Annotated[
        float | None,
        "the largest error in units in the last place; null for subnormal numbers, "
        "which may be flushed, and where it is not finite",
    ]
    bound: Annotated[
        float | None,
        "the same in units of the candidate's bound: above 1 is wrong; null where "
        "NaN or infinity is in the wrong place",
    ]
    worst: Annotated[
        str | None, "where the latter is and what is there; null where it is inside the bound"
    ]


class PathRecord(TypedDict):
    """The answer of an implementation to a case."""

    departures: Annotated[
        list[tuple[str, str]],
        "how it departs from the contract in more than values: [what, detail]",
    ]
    outputs: Annotated[
        dict[str, ErrorRecord], "output -> its error: see below; none where it gave no values"
    ]


class CaseRecord(TypedDict):
    """A case."""

    index: Annotated[int, "its place in the run, from 0"]
    case: Annotated[str, "its name, which --repro takes"]
    op: Annotated[str, "op"]
    dtype: Annotated[str, "element type"]
    layout: Annotated[str, "data format; empty where the op has none"]
    mode: Annotated[str, "training or frozen; empty where the op has none"]
    kind: Annotated[str, "kind of inputs"]
    verdict: Annotated[
        str,
        f"`{PASSED}`, or why it failed: `{VALUES}` (wrong numbers), `crash`, "
        f"`error`, `count`, `shape`, `dtype`, `changed-input`, `{BITS}` (of two execution modes), "
        f"`{UNLISTED}` (of the built-in), ...",
    ]
    failures: Annotated[list[str], "what is wrong, a sentence each"]
    evidence: Annotated[
        dict[str, bool], "output -> whether wrong-on-purpose answers would have failed"
    ]
    implementations: Annotated[dict[str, PathRecord], "implementation -> its answer: see below"]
    execution_modes: Annotated[
        dict[str, dict[str, str]],
        "implementation -> further execution mode -> same (bitwise), differs or unsupported",
    ]
    notes: Annotated[list[str], "what is worth knowing and fails nothing, a sentence each"]
    script: Annotated[str | None, "a Python program that shows the failure, reduced, or null"]


class SettingsRecord(TypedDict):
    """What decides which cases are run, and how they are judged."""

    seed: Annotated[int, "the random cases are drawn from it"]
    cases: Annotated[int, "number of random cases"]
    kinds: Annotated[
        list[str] | None,
        "the kinds of cases that were run, as --kinds names them; null with --repro",
    ]
    selection: Annotated[
        dict[str, list[str]], "the ops, dtypes, layouts, modes of the run; empty lists: all"
    ]
    repro: Annotated[str | None, "the one case of --repro, or null"]
    bounds: Annotated[str, "what the candidate is held to"]
    timeout: Annotated[int, "seconds after which a case counts as hanging"]
    shrink: Annotated[int, "number of failing cases that are reduced"]
    x: Annotated[bool, "whether the run ends with the first case that fails"]
    execution_modes: Annotated[
        str, "the further execution modes of every case; `default`: a random subset"
    ]


class MachineRecord(TypedDict):
    """Where the run took place."""

    cpu: Annotated[str, "the processor's name"]
    architecture: Annotated[str, "the processor's architecture"]
    cores: Annotated[int, "number of processors that the run could use"]
    isa: Annotated[
        str | None, "the build of this library's kernels that was used; null where it is not there"
    ]
    gpus: Annotated[list[str], "names of the GPUs that TensorFlow saw"]
    system: Annotated[str, "operating system"]


class ToleranceRecord(TypedDict):
    """What an op is allowed beyond the bounds."""

    outputs: Annotated[list[str], "the outputs that it is for; empty for all"]
    dtypes: Annotated[list[str], "the element types that it is for; empty for all"]
    times_bound: Annotated[float, "how many times its bound an error may be"]
    reason: Annotated[str, "why, in the words of the mapping file"]


class MappedRecord(TypedDict):
    """An op of the library of a third party."""

    name: Annotated[str, "registered name of the op"]
    like: Annotated[str, "the op of TensorFlow that it claims to equal"]
    device: Annotated[str | None, "where it was run; null leaves it to TensorFlow"]
    reference_device: Annotated[str | None, "where the op of TensorFlow was run; null as above"]
    tolerances: Annotated[list[ToleranceRecord], "what it is allowed beyond the bounds: see below"]
    signature: Annotated[list[str], "how its contract differs, a sentence each"]
    departures: Annotated[
        list[str], "the ones that fail the run: the mapping file does not name their kind"
    ]


class CandidateRecord(TypedDict):
    """What was judged."""

    ops: Annotated[str, "where the ops come from"]
    digest: Annotated[
        str | None, "SHA-256 of the library that holds them; null where there is no single one"
    ]
    mapped: Annotated[
        list[MappedRecord], "its ops, for the library of a third party: see below; else empty"
    ]


class DivergenceRecord(TypedDict):
    """An entry of the list of known divergences."""

    name: Annotated[str, "its name in the list"]
    what: Annotated[str, "what differs"]
    reason: Annotated[str, "why it is so"]
    may_hide: Annotated[
        bool,
        "whether cases that it speaks of need not show it: some processors do not, or some numbers",
    ]
    covered: Annotated[int, "number of cases that it speaks of"]
    shown: Annotated[int, "number of cases that showed it; a list entry that none showed is stale"]


class CoverageRecord(TypedDict):
    """Which properties of cases of an op came together."""

    op: Annotated[str, "op"]
    pairs: Annotated[
        int, "number of pairs that cases may have, for instance of a layout and a kind"
    ]
    missing: Annotated[list[str], "those that no random case had, in words"]


class VersionsRecord(TypedDict):
    """Software -> version: TensorFlow's, and what else there is."""

    tensorflow: str


class Record(TypedDict):
    """The record of a run."""

    schema: Annotated[int, f"version of this format, {VERSION}"]
    command: Annotated[str, "what was run"]
    replay: Annotated[str, "the command that replays a case when the case is appended"]
    date: Annotated[str, "when, UTC"]
    seconds: Annotated[float, "how long it took"]
    settings: Annotated[
        SettingsRecord, "what decides which cases are run, and how they are judged: see below"
    ]
    total: Annotated[int, "number of cases that the run set out with"]
    versions: Annotated[VersionsRecord, "software -> version"]
    machines: Annotated[list[MachineRecord], "where it ran: see below"]
    candidate: Annotated[CandidateRecord, "what was judged: see below"]
    implementations: Annotated[list[str], "what was run, the candidate first"]
    divergences: Annotated[
        list[DivergenceRecord], "the list of known divergences in this run: see below"
    ]
    coverage: Annotated[
        list[CoverageRecord], "op by op, which properties of cases came together: see below"
    ]
    cases: Annotated[list[CaseRecord], "every case: see below"]


# The objects by the field that they are in -> their fields -> what each means.
SCHEMA: dict[str, dict[str, str]] = {
    name: {
        field: hint.__metadata__[0]
        for field, hint in get_type_hints(of_field, include_extras=True).items()
    }
    for name, of_field in {
        "": Record,
        "settings": SettingsRecord,
        "machines": MachineRecord,
        "candidate": CandidateRecord,
        "mapped": MappedRecord,
        "tolerances": ToleranceRecord,
        "divergences": DivergenceRecord,
        "coverage": CoverageRecord,
        "cases": CaseRecord,
        "implementations": PathRecord,
        "outputs": ErrorRecord,
    }.items()
}


def _rounded(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    # Rounding must not acquit.
    return math.nextafter(1.0, 2.0) if short <= 1 < value else short


def _path(path: PathResult, flushed: bool, result: CaseResult) -> PathRecord:
    departures = [(*d.what.partition(":"), d.detail) for d in path.disagreements]
    return {
        "departures": [(k + c + result.name_of(role), text) for k, c, role, text in departures],
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


def of_result(index: int, result: CaseResult) -> CaseRecord:
    """The entry of "cases" for the case at a place in the run."""
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


def wrong(case: CaseRecord) -> frozenset[str]:
    """What is wrong with the candidate in an entry of "cases": outputs with wrong numbers, and
    departures in structure."""
    answer = case["implementations"].get(CANDIDATE)
    if answer is None or case["verdict"] == PASSED:
        return frozenset()
    outputs = {o for o, e in answer["outputs"].items() if e["bound"] is None or e["bound"] > 1}
    return frozenset(outputs | {what for what, _ in answer["departures"]})


def first_of_their_kind(cases: Sequence[CaseRecord], count: int) -> list[CaseRecord]:
    """The first entries of "cases" in which the candidate fails, one of each op and what is wrong
    with it, at most `count`: those that are reduced."""
    first: dict[tuple[str, frozenset[str]], CaseRecord] = {}
    for case in cases:
        if (what := wrong(case)) and len(first) < count:
            first.setdefault((case["op"], what), case)
    return list(first.values())


def of_mapping(entry: OpMapping, signature: Sequence[tuple[str, str]]) -> MappedRecord:
    """An entry of the field "mapped"."""
    return {
        "name": entry.name,
        "like": entry.spec.name,
        "device": entry.device,
        "reference_device": entry.reference_device,
        "tolerances": [msgspec.to_builtins(tolerance) for tolerance in entry.tolerances],
        "signature": [text for _, text in signature],
        "departures": [t for kind, t in signature if kind not in (signatures.NOTE, *entry.differs)],
    }


def of_divergences(known: divergences.Register) -> list[dict[str, Any]]:
    """The field "divergences"."""
    return [
        {field: getattr(entry, field) for field in SCHEMA["divergences"]} for entry in known.entries
    ]


def is_stale(record: Record, entry: DivergenceRecord) -> bool:
    """Whether an entry of the list of divergences is stale. A part of a run cannot tell."""
    if is_cut_short(record) or entry["may_hide"]:
        return False
    return bool(entry["covered"] and not entry["shown"])


def failed(record: Record) -> list[CaseRecord]:
    """The cases that failed."""
    return [case for case in record["cases"] if case["verdict"] != PASSED]


def stale(record: Record) -> list[DivergenceRecord]:
    """The known divergences that no longer are any."""
    return [entry for entry in record["divergences"] if is_stale(record, entry)]


def is_cut_short(record: Record) -> bool:
    """Whether cases of a whole run are missing: a signal ended it, or the first failure did."""
    return len(record["cases"]) < record["total"]


def verdict(record: Record) -> str:
    """A run's verdict: "passed", "failed", or "interrupted": nothing failed until a signal came."""
    if not passed(record):
        return "failed"
    return "interrupted" if is_cut_short(record) else "passed"


def passed(record: Record) -> bool:
    """Whether nothing failed."""
    return not failed(record) and not stale(record) and not departures(record)


def departures(record: Record) -> list[str]:
    """How the contracts of mapped ops depart from what they claim to equal, a line each."""
    mapped = record["candidate"]["mapped"]
    return [f"contract of {op['name']}: {text}" for op in mapped for text in op["departures"]]


def check(content: Any) -> Record:
    """Raises UsageError unless it is a record: the field, and the type that it should have. Further
    fields are ignored."""
    version = content.get("schema") if isinstance(content, dict) else None
    if type(version) is int and version != VERSION:
        raise UsageError(f"its schema is {version}, this is for {VERSION}")
    try:
        msgspec.convert(content, Record)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from error
    return cast(Record, content)


def load(path: pathlib.Path) -> Record:
    """Reads the JSON file of a run.

    Raises:
      UsageError: it cannot be read, or is something else.
    """
    try:
        return check(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError, RecursionError, UsageError) as error:
        raise UsageError(f"{path} is no record of a conformance run: {error}") from error


def dumps(record: Record) -> str:
    """The text of the JSON file: a line for every case, so that line tools can read it."""
    check(record)
    lines = [json.dumps(case, allow_nan=False) for case in record["cases"]]
    rest = {name: value for name, value in record.items() if name != "cases"}
    head = json.dumps(rest, indent=1, allow_nan=False).removesuffix("\n}")
    cases = ",\n".join(lines)
    return f'{head},\n "cases": [\n{cases}\n ]\n}}\n'
