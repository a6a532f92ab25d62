"""The mutation score: how many mutants of each formula were caught, by which output, and why others
were not; as text, and as the table of docs/evidence.md, with all mutants in a file.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence

from tf_bn_ops import spec
from tf_bn_ops.conformance.models.formula_models import MODELS

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import evidence

FILE = evidence.FOLDER / "mutants.json"

GATHER_STATS = "BatchNormGatherStats"  # No op of a view: it has no spec.
_GATHER_FORMULA = "batch_norm_gather_stats"


def formula_of(op: str) -> str:
    """The formula whose cases judge a mutant of `op`."""
    return _GATHER_FORMULA if op == GATHER_STATS else spec.OPS[op].formula


def outputs_of_formulas() -> dict[str, tuple[str, ...]]:
    """Formula -> the roles of its outputs, each of which has a mutant of its own. Mutants are
    judged through the C ABI: a formula without a call there has none."""
    outputs = {f: tuple(model.outputs) for f, model in MODELS.items() if f in spec.ops.FORMULAS}
    outputs[spec.ops.BATCH_NORM_ADD] += ("forward_coefficients",)
    return {**outputs, _GATHER_FORMULA: ("count", "mean", "m2")}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
      name, what: of the mutant.
      formula: whose cases judged it.
      output: the one output that is wrong, or "".
      caught_by: the output that caught it; "" for a survivor.
      reason: why no case can, where that is known.
    """

    name: str
    what: str
    formula: str
    output: str = ""
    caught_by: str = ""
    reason: str = ""


def output_that_failed(failure: str) -> str:
    """The output that a failure (judge_core.py) begins with, behind the name of the case."""
    return failure.partition(": ")[2].split(" ")[0] if ": " in failure else ""


def _rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str, str, str]]:
    """Of each formula: its name, mutants caught of those that can be, survivors, and the outputs
    that a mutant of their own was caught by."""
    for formula, roles in outputs_of_formulas().items():
        of_it = [o for o in outcomes if o.formula == formula]
        possible = [o for o in of_it if not o.reason]
        caught = [o for o in possible if o.caught_by]
        own = {o.output for o in caught}
        survivors = str(len(of_it) - len([o for o in of_it if o.caught_by]))
        yield (
            formula,
            f"{len(caught)} of {len(possible)}",
            survivors,
            ", ".join(role for role in roles if role in own),
        )


def survivors(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each mutant that was not caught."""
    return [
        f"{o.name}: {o.what}; {o.reason or 'NOT EXPECTED'}" for o in outcomes if not o.caught_by
    ]


def as_text(outcomes: Sequence[Outcome]) -> str:
    """The score of the formulas that have mutants among `outcomes`."""
    ran = {o.formula for o in outcomes}
    lines = [f"{'formula':28} {'caught':>9}  {'survive':>7}  outputs with a mutant of their own"]
    for formula, caught, survive, own in _rows(outcomes):
        if formula in ran:
            lines.append(f"{formula:28} {caught:>9}  {survive:>7}  {own}".rstrip())
    return "\n".join([*lines, *(f"survives: {line}" for line in survivors(outcomes))])


def as_table(outcomes: Sequence[Outcome]) -> str:
    cells = [[f"`{f}`", *others] for f, *others in _rows(outcomes)]
    columns = ["formula", "mutants caught", "survivors", "outputs with a mutant of their own"]
    return evidence.as_table(columns, cells)


def recorded() -> dict[str, Outcome]:
    rows = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    return {name: Outcome(name, **row) for name, row in rows.items()}


def record(outcomes: Sequence[Outcome]) -> None:
    """Keeps the outcomes, in the order of mutants.toml, and writes the table."""
    rows = []
    for o in outcomes:
        name, *others = dataclasses.asdict(o).items()
        row = {key: value for key, value in others if value}
        rows.append(f"{json.dumps(name[1])}: {json.dumps(row)}")
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
    page = evidence.with_table(evidence.PAGE.read_text("utf-8"), "mutants", as_table(outcomes))
    evidence.PAGE.write_text(page, "utf-8")
