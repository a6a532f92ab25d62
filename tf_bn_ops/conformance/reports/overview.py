"""The first screen of the page: what was judged, against what, how strong the evidence is, what
failed, and how to replay it. For readers who know nothing of the run."""

from __future__ import annotations

import collections
import html
from typing import Any

from tf_bn_ops.conformance.cases.case import ALONE
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.reports.summary import Summary, number

# Failing groups that are named; the page has all below.
_NAMED = 3
# Ops that are named before the others are counted.
_MOST_OPS = 6

# What the names of references stand for.
_REFERENCES = {
    "onednn": "TensorFlow with oneDNN",
    "eigen": "TensorFlow without oneDNN (Eigen)",
    "autodiff": "TensorFlow's automatic differentiation in float64",
    "tensorflow": "TensorFlow's op",
}


def _esc(text: object) -> str:
    return html.escape(str(text))


def _names(ops: list[str]) -> str:
    more = f" and {len(ops) - _MOST_OPS} more" if len(ops) > _MOST_OPS else ""
    return ", ".join(ops[:_MOST_OPS]) + more


def _judged(record: dict[str, Any]) -> str:
    candidate = record["candidate"]
    ops = sorted({case["op"] for case in record["cases"]})
    mapped = [f"{op['name']} as {op['like']}" for op in candidate["mapped"]]
    what = f"<code>{_esc(candidate['ops'])}</code>: {_esc(_names(mapped or ops) or 'no op')}"
    if candidate["digest"]:
        what += f" (SHA-256 {_esc(candidate['digest'][:12])}…)"
    versions = record["versions"]
    return f"{what}, in TensorFlow {_esc(versions.get('tensorflow', '?'))}"


def _against(record: dict[str, Any]) -> str:
    if set(record["settings"]["kinds"] or ("",)) <= ALONE:
        return (
            "relations between its own answers, for instance that of a sum: no right answer and "
            "no other implementation was asked"
        )
    parts = [
        "the right answer, computed in float64 from the same inputs, within error bounds "
        f"derived from the arithmetic (<em>{_esc(record['settings']['bounds'])}</em>)"
    ]
    others = [_REFERENCES.get(name, name) for name in record["implementations"][1:]]
    if others:
        parts.append("beside it " + _esc(", ".join(others)))
    return "; ".join(parts)


def _evidence(summary: Summary) -> str:
    total = summary.total
    share = total.complete / max(total.cases, 1)
    worst = total.worst(record_lib.CANDIDATE, "bound")
    return (
        f"{total.complete:,} of {total.cases:,} cases ({share:.0%}) would have failed a wrong "
        "answer in every output; the others test shapes, errors, or outputs that are zero by "
        f"right. The worst error is {number(worst)} times what is allowed"
    )


def _failed(record: dict[str, Any]) -> str:
    failures, stale = record_lib.failed(record), record_lib.stale(record)
    if not failures and not stale:
        return "nothing"
    groups = collections.Counter((case["op"], case["dtype"], case["verdict"]) for case in failures)
    named = [f"{op} {dtype}: {count} ({verdict})"
             for (op, dtype, verdict), count in groups.most_common(_NAMED)]  # fmt: skip
    if len(groups) > _NAMED:
        named.append(f"and {len(groups) - _NAMED} more groups")
    named += [f"{len(stale)} known divergences that are none any more"] if stale else []
    first = f"<div>The first: {_esc(failures[0]['failures'][0])}</div>" if failures else ""
    return f'<a href="#failures">{_esc("; ".join(named))}</a>{first}'


def _replay(record: dict[str, Any]) -> str:
    failures = record_lib.failed(record)
    shown = failures or record["cases"]
    case = shown[0]["case"] if shown else "CASE"
    what = "the first failure" if failures else "any case, for instance the first"
    return f"{what}:<pre>{_esc(record['replay'])} {_esc(case)}</pre>"


def of_record(record: dict[str, Any], summary: Summary) -> str:
    """The overview as HTML."""
    items = (
        ("Judged", _judged(record)),
        ("Against", _against(record)),
        ("Evidence", _evidence(summary)),
        ("Failed", _failed(record)),
        ("Replay", _replay(record)),
    )
    pairs = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in items)
    return f'<dl class="overview">{pairs}</dl>'
