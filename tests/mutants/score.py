"""The mutation score: how many mutants of each formula were caught, by which output, and why others
were not; as text, and as the page docs/mutants.md.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from tf_bn_ops import spec
from tf_bn_ops.conformance.models.formula_models import MODELS

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
    output: str
    caught_by: str
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


_PAGE = """\
# Mutation score

Is the conformance run able to fail? Each line of the second table is a kernel that is wrong on
purpose, an edit of the sources (`tests/mutants/mutants.toml`). The cases of the default conformance
run of the ops of its formula judge it with their strict bounds until one fails. Where a single
output is wrong it has to be that output that fails. Survivors have the reason why no case can catch
them; a survivor without one, or a caught one with one, fails the run.

```sh
make mutants ARGS=--markdown=docs/mutants.md    # writes this page, half an hour
```

| formula | mutants caught | survivors | outputs with a mutant of their own |
| --- | --- | --- | --- |
"""


def as_page(outcomes: Sequence[Outcome]) -> str:
    """The page; `outcomes` in the order of mutants.toml."""
    lines = [f"| `{f}` | {c} | {s} | {own} |" for f, c, s, own in _rows(outcomes)]
    lines += ["", "| mutant | formula | wrong output | what is wrong | caught by |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for o in outcomes:
        how = o.caught_by or f"survives: {o.reason}"
        lines.append(f"| `{o.name}` | `{o.formula}` | {o.output} | {_escaped(o.what)} | {how} |")
    return _PAGE + "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([*_|<>])", r"\\\1", text)


_ROW = re.compile(r"^\| `([\w-]+)` \| `(\w+)` \| (\w*) \| (.*) \| (.*) \|$", re.M)


def of_page(page: str) -> dict[str, Outcome]:
    """What a page says of each mutant."""
    found = {}
    for name, formula, output, what, how in _ROW.findall(page):
        survives = how.startswith("survives: ")
        reason = how.removeprefix("survives: ") if survives else ""
        plain = re.sub(r"\\(.)", r"\1", what)
        found[name] = Outcome(name, plain, formula, output, "" if survives else how, reason)
    return found
