"""What becomes of published malformed inputs, in this library and in TensorFlow's two CPU paths.

usage: python -m tf_bn_ops conformance advisories [--markdown=PATH]

Runs every case of cases/advisories.toml in a process of its own, prints a table, and writes it as
the page docs/advisories.md. Exit status: 0 this library refuses or survives all of them as its
contract says, 1 it does not, 2 wrong usage.
"""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Mapping, Sequence

from absl import flags

from tf_bn_ops import _version, spec
from tf_bn_ops.conformance.cases import advisories
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution import implementations, workers
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import CANDIDATE, Implementation
from tf_bn_ops.conformance.verdict.contract_judge import judge_advisory
from tf_bn_ops.harness import command

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


def _table(columns: Mapping[str, _Outcomes]) -> str:
    lines = [
        "| " + " | ".join(("name", "what is wrong", *columns)) + " |",
        "|" + " --- |" * (2 + len(columns)),
    ]
    for name, advisory in advisories.load().items():
        cells = [f"`{name}`", advisory.what, *(_cell(found[name]) for found in columns.values())]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _body() -> int:
    cases = list(advisories.generate(list(spec.OPS)))
    builtin = [case for case in cases if case.spec.builtin]
    own, version = _run(implementations.own(), cases)
    columns = {"tf_bn_ops": own}
    for path in implementations.PATHS:
        found, _ = _run(implementations.builtin(CANDIDATE, path), builtin)
        columns[f"TensorFlow ({path})"] = found
    table = _table(columns)
    print(table, end="")
    if _FLAGS.markdown is not None:
        text = _TEXT.format(version=_version.__version__, tensorflow=version)
        command.write_whole(f"{_TITLE}{text}\n{table}", pathlib.Path(_FLAGS.markdown))
    return int(any("wrong" in outcome for counts in own.values() for outcome in counts))


def main(argv: Sequence[str]) -> int:
    """Runs the command; argv is its name, then flags; returns the exit status."""
    try:
        return command.run(argv, __doc__, _FLAGS, _body, (workers.WorkerError,))
    finally:
        _FLAGS.unparse_flags()
