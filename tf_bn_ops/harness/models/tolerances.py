"""What the op of a mapping file may be off beyond the bounds, each time with a reason.

[[op.tolerance]]
outputs = ["x_backprop"]     # optional: all without
dtypes = ["half"]            # optional: all without
times_bound = 4              # a batch-norm gradient: the bound of bounds.py, times this
ulp = 2                      # other ops: units in the last place,
relative = 1e-6              # and times the right answer,
absolute = 1e-9              # and besides; what is given is added up
reason = "exp of a table of 256 entries"
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBERS = ("times_bound", "ulp", "relative", "absolute")


class ToleranceError(ValueError):
    """A tolerance that is none; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """See the module's text."""

    reason: str
    outputs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    times_bound: float = 1.0
    ulp: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0

    def applies(self, output: str, dtype: str) -> bool:
        """Whether it is for this output in cases of this element type."""
        return (not self.outputs or output in self.outputs) and (
            not self.dtypes or dtype in self.dtypes
        )

    @property
    def allowed(self) -> str:
        """What it allows, in words."""
        words = []
        if self.times_bound != 1:
            words.append(f"{self.times_bound:g} times the bound")
        if self.ulp:
            words.append(f"{self.ulp:g} ulp")
        if self.relative:
            words.append(f"{self.relative:g} of the result")
        if self.absolute:
            words.append(f"{self.absolute:g}")
        return " and ".join(words)

    def of_record(self) -> dict[str, Any]:
        """An entry of the field "tolerances" of a record (reports/record.py)."""
        return {
            "outputs": list(self.outputs),
            "dtypes": list(self.dtypes),
            "allowed": self.allowed,
            "reason": self.reason,
        }


def parse(items: Any, where: str, numbers: Sequence[str]) -> tuple[Tolerance, ...]:
    """The tolerances of an entry of a mapping file.

    Args:
      items: the list `tolerance` of the entry.
      where: for messages.
      numbers: which of the numbers may be given.

    Raises:
      ToleranceError: one has no reason, or allows nothing, or has another mistake.
    """
    found = []
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise ToleranceError(f"{where}: tolerances are written as [[op.tolerance]]")
    for item in items:
        known = ("reason", "outputs", "dtypes", *numbers)
        for key in item:
            if key not in known:
                raise ToleranceError(
                    f"{where}: a tolerance has no key {key!r}; known: {', '.join(known)}"
                )
        if not str(item.get("reason", "")).strip():
            raise ToleranceError(f"{where}: a tolerance needs a 'reason': add it")
        given = {name: item[name] for name in _NUMBERS if name in item}
        if not given or not all(
            isinstance(v, (int, float)) and 0 < v < math.inf for v in given.values()
        ):
            raise ToleranceError(
                f"{where}: a tolerance needs a positive, finite {' or '.join(numbers)}"
            )
        found.append(
            Tolerance(
                reason=str(item["reason"]),
                outputs=tuple(item.get("outputs", ())),
                dtypes=tuple(item.get("dtypes", ())),
                **{name: float(value) for name, value in given.items()},
            )
        )
    return tuple(found)
