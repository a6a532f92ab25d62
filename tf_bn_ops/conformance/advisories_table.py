"""What becomes of published malformed inputs, in this library and in TensorFlow's two CPU paths.

usage: python -m tf_bn_ops conformance advisories [--markdown=PATH] [NAME ...]

Runs every case of cases/advisories.toml, or those of the advisories of these names, in a process of
its own, prints a table, and writes it as the page docs/advisories.md. Exit status: 0 this library
refuses or survives all of them as its contract says, 1 it does not, 2 wrong usage.
"""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Mapping, Sequence

from absl import flags

from tf_bn_ops import _command, _version, spec
from tf_bn_ops.conformance.cases import advisories
from tf_bn_ops.conformance.cases.case import ADVISORY_PREFIX, Case
from tf_bn_ops.conformance.execution import implementations, workers
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import CANDIDATE, Implementation
from tf_bn_ops.conformance.verdict.contract_judge import judge_advisory

_FLAGS = flags.FlagValues()
flags.DEFINE_string(
    "markdown", None, "Also writes the table as a page, to this file.", flag_values=_FLAGS
)

_TITLE = "# Malformed inputs that were published\n"
_TEXT = """
Advisories, fuzzers' findings and bug reports on the batch-norm ops of TensorFlow and PyTorch. Each
is a case by name of `make conformance`, for all ops that have such inputs, forward and backward, in
a process of its own; `tf_bn_ops/conformance/cases/advisories.toml` has the inputs. A call with an
input that departs from the op's contract has to be *refused* with InvalidArgument (or a Python
error of its kind); any other has to be *survived*, whatever it gives. **Wrong** is what does
neither.

```sh
python -m tf_bn_ops conformance advisories --markdown=docs/advisories.md    # writes this page
python -m tf_bn_ops conformance advisories CVE-2021-41223                   # runs one of them
```

Cases by outcome, tf_bn_ops {version} and TensorFlow {tensorflow}:
"""

# Column -> what is run.
_Outcomes = dict[str, collections.Counter[str]]


def _outcome(case: Case, answer: Answer) -> str:
    """What became of a case, in a word or as **wrong**."""
    departures = judge_advisory(case, answer).paths[CANDIDATE].disagreements
    if departures:
        return f"**wrong** ({case.op}: {departures[0].what})"
    return "refused" if answer.error else "survived"


def _run(implementation: Implementation, cases: Sequence[Case]) -> tuple[_Outcomes, str]:
    """Advisory -> outcome -> number of cases, and the version of TensorFlow."""
    worker = workers.Worker(implementation)
    found: _Outcomes = collections.defaultdict(collections.Counter)
    try:
        worker.wait_until_ready()
        version = str(worker.facts["tensorflow"])
        for case in cases:
            worker.submit(case, advisories.fill(case))
            found[advisories.of(case).name][_outcome(case, worker.collect())] += 1
    finally:
        worker.close()
    return found, version


def _cell(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "-"


def _chosen(names: Sequence[str]) -> list[str]:
    """The advisories of these names, all without; a case of a report gives its name, too.

    Raises:
      UsageError: there is none of such a name, or the page would lack the others.
    """
    known = advisories.load()
    wanted = [name.removeprefix(ADVISORY_PREFIX) for name in names]
    if unknown := [name for name in wanted if name not in known]:
        raise _command.UsageError(
            f"no advisory is called {unknown[0]!r}: one of {', '.join(known)}"
        )
    if wanted and _FLAGS.markdown is not None:
        raise _command.UsageError(
            "--markdown writes the page of all advisories: leave out the names"
        )
    if _FLAGS.markdown is not None:
        _command.check_writable(pathlib.Path(_FLAGS.markdown))
    return wanted or list(known)


def _table(columns: Mapping[str, _Outcomes], names: Sequence[str]) -> str:
    lines = [
        "| " + " | ".join(("name", "what is wrong", *columns)) + " |",
        "|" + " --- |" * (2 + len(columns)),
    ]
    for name in names:
        what = advisories.load()[name].what
        cells = [f"`{name}`", what, *(_cell(found[name]) for found in columns.values())]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _body(names: Sequence[str]) -> int:
    chosen = _chosen(names)
    cases = [c for c in advisories.generate(list(spec.OPS)) if advisories.of(c).name in chosen]
    builtin = [case for case in cases if case.spec.builtin]
    own, version = _run(implementations.own(), cases)
    columns = {"tf_bn_ops": own}
    for path in implementations.PATHS:
        found, _ = _run(implementations.builtin(CANDIDATE, path), builtin)
        columns[f"TensorFlow ({path})"] = found
    table = _table(columns, chosen)
    print(table, end="")
    if _FLAGS.markdown is not None:
        text = _TEXT.format(version=_version.__version__, tensorflow=version)
        _command.write_whole(f"{_TITLE}{text}\n{table}", pathlib.Path(_FLAGS.markdown))
    return int(any("wrong" in outcome for counts in own.values() for outcome in counts))


def main(argv: Sequence[str]) -> int:
    """Runs the command; argv is its name, then flags and names; returns the exit status."""
    names: list[str] = []
    try:
        return _command.run(
            argv, __doc__, _FLAGS, lambda: _body(names), (workers.WorkerError,), names
        )
    finally:
        _FLAGS.unparse_flags()
