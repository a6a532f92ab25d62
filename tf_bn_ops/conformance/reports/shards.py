"""Parts of a run, and how the records of all its parts become one.

Shards are disjoint, and together they are the whole run; which case is in which is drawn from the
seed, so that each has its share of the large ones.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.reports import record as record_lib

_T = TypeVar("_T")

# Fields that are equal in all shards of one run; machines may differ, as in a cluster.
_COMMON = ("settings", "versions", "candidate", "implementations", "total")


@dataclasses.dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that `i/n` names.

        Raises:
          UsageError: it names none.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if not match or not 1 <= int(match.group(1)) <= int(match.group(2)):
            raise UsageError(
                f"--shard takes i/n with i from 1 to n, for instance 2/8, not {text!r}"
            )
        return cls(int(match.group(1)), int(match.group(2)))

    def of(self, items: Sequence[_T], seed: int) -> list[tuple[int, _T]]:
        """Its items of a whole run, in their order, each with its place in the run."""
        order = np.random.default_rng([seed, 2]).permutation(len(items))
        return [(int(i), items[i]) for i in np.sort(order[self.index - 1 :: self.count])]


def _difference(field: str, a: Any, b: Any) -> str:
    """Where two values of a field differ, in a few words."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted({*a, *b}):
            if a.get(name) != b.get(name):
                return _difference(f"{field}: {name}", a.get(name), b.get(name))
    return f"{field} {a!r} and {b!r}"


def _in_order(records: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The records of all shards of one run, by index; UsageError if they are not that."""
    if not records:
        raise UsageError("there is nothing to merge: name the JSON files of all shards")
    by_index: dict[int, tuple[str, dict[str, Any]]] = {}
    first_name, first = records[0]
    for name, record in records:
        if record["shard"] is None:
            raise UsageError(f"{name} is no shard: it holds a whole run")
        for field in _COMMON:
            if record[field] != first[field]:
                how = _difference(field, first[field], record[field])
                raise UsageError(f"{first_name} and {name} are of different runs: {how}")
        index, count = record["shard"]["index"], record["shard"]["count"]
        if count != first["shard"]["count"]:
            raise UsageError(
                f"{first_name} is one of {first['shard']['count']} shards, {name} one of {count}"
            )
        if index in by_index:
            raise UsageError(f"{by_index[index][0]} and {name} are both shard {index}/{count}")
        by_index[index] = name, record
    count = first["shard"]["count"]
    missing = [f"{i}/{count}" for i in range(1, count + 1) if i not in by_index]
    if missing:
        raise UsageError(f"missing: the shards {', '.join(missing)}")
    return [by_index[i][1] for i in range(1, count + 1)]


def _cases(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases of all shards, with the reduced programs that the whole run would have."""
    first = parts[0]
    cases = sorted((c for part in parts for c in part["cases"]), key=lambda c: int(c["index"]))
    if [case["index"] for case in cases] != list(range(first["total"])):
        raise UsageError(f"the shards do not hold the {first['total']} cases of the run, each once")
    # Every shard has reduced the first failures of its own; these are the first of all.
    reduced = record_lib.first_of_their_kind(cases, first["settings"]["shrink"])
    places = {case["index"] for case in reduced}
    return [c if c["index"] in places else {**c, "script": None} for c in cases]


def _divergences(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The known divergences, with the counts of all shards added up."""
    divergences = [dict(entry) for entry in parts[0]["divergences"]]
    for part in parts[1:]:
        for entry, more in zip(divergences, part["divergences"], strict=True):
            if entry["name"] != more["name"]:
                raise UsageError("the shards were run with different lists of known divergences")
            entry["covered"] += more["covered"]
            entry["shown"] += more["shown"]
    return divergences


def _coverage(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What no shard has covered."""
    found = []
    for entries in zip(*(part["coverage"] for part in parts), strict=True):
        missing = set.intersection(*(set(entry["missing"]) for entry in entries))
        found.append({**entries[0], "missing": sorted(missing)})
    return found


def merge(records: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The record of the whole run, as if it had not been sharded, from (name for messages, record)
    of every shard; `seconds` are added up.

    Raises:
      UsageError: they are not all the shards of one run, each once.
    """
    parts = _in_order(records)
    cases, machines = _cases(parts), [machine for part in parts for machine in part["machines"]]
    return {
        **parts[0],
        "command": re.sub(r" --shard[= ]\S+", "", parts[0]["command"]),
        "date": min(part["date"] for part in parts),
        "seconds": sum(part["seconds"] for part in parts),
        "shard": None,
        "machines": [one for i, one in enumerate(machines) if one not in machines[:i]],
        "divergences": _divergences(parts),
        "coverage": _coverage(parts),
        "cases": cases,
    }
