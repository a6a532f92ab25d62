"""A record as one HTML page: tables, and plots as inline SVG; page.html has its text and looks.

It needs nothing from elsewhere. Plots place their marks in per cent of the width, so that they fit
any screen without a script.
"""

from __future__ import annotations

import collections
import importlib.resources
import math
from collections.abc import Iterable

import jinja2

from tf_bn_ops.conformance.reports import overview
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.conformance.reports import summary as summary_lib

# One shape for each implementation, beside its colour; around the origin, in pixels.
_MARKS = (
    "M0-5A5 5 0 1 1 0 5A5 5 0 1 1 0-5Z",
    "M-4.2-4.2H4.2V4.2H-4.2Z",
    "M0-5.2L5.2 4.2H-5.2Z",
    "M0-5.6L5 0L0 5.6L-5 0Z",
    "M-5.2-4.2H5.2L0 5.2Z",
    "M-5-1.8H-1.8V-5H1.8V-1.8H5V1.8H1.8V5H-1.8V1.8H-5Z",
)
# Powers of ten from the left to the right of a plot; what is beyond an end is drawn there. A tenth
# of a unit in the last place is as good as none, and 10^9 units are as wrong as any number.
_ULP = (-1, 9)
_BOUND = (-4, 6)
_BINS_PER_DECADE = 4
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# What the names of references stand for.
_REFERENCES = {"onednn": "TensorFlow with oneDNN", "eigen": "TensorFlow without oneDNN (Eigen)"}


def _percent(value: float, decades: tuple[int, int]) -> float:
    """The place of a value in a plot."""
    least, most = decades
    at = math.log10(value) if value > 0 else least
    return round(100 * (min(max(at, least), most) - least) / (most - least), 2)


def _ticks(decades: tuple[int, int]) -> list[tuple[float, str]]:
    """(place, label) of every power of ten."""
    short = {-1: "0.1", 0: "1", 1: "10"}
    exponents = range(decades[0], decades[1] + 1)
    labels = [short.get(e, f"10{str(e).translate(_SUPERSCRIPTS)}") for e in exponents]
    return [(_percent(10.0**e, decades), text) for e, text in zip(exponents, labels, strict=True)]


def _bars(values: Iterable[float], decades: tuple[int, int]) -> list[tuple[float, int, str]]:
    """(place, number of values, upper end) of the bars of a histogram."""
    count = _BINS_PER_DECADE * (decades[1] - decades[0])
    # A bin ends just above its upper end, so that 1 itself is inside the bound.
    at = [math.ceil(_percent(v, decades) / 100 * count - 1e-9) - 1 for v in values]
    bins = collections.Counter(min(max(i, 0), count - 1) for i in at)
    ends = {i: 10.0 ** (decades[0] + (i + 1) / _BINS_PER_DECADE) for i in bins}
    return [(100 * i / count, bins[i], summary_lib.number(ends[i])) for i in sorted(bins)]


def of_record(record: record_lib.Record) -> str:
    """The page's HTML text."""
    text = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = summary_lib.number
    failures, modes = record_lib.failed(record), summary_lib.count_modes(record)
    return environment.from_string(text).render(
        record=record,
        names=record["implementations"],
        summary=summary_lib.Summary.of(record),
        verdict=record_lib.verdict(record),
        failures=failures,
        claims=overview.claims(record),
        smallest=overview.smallest(record),
        not_covered=overview.not_covered(record),
        covered=overview.covered(record["coverage"]),
        stale=record_lib.stale(record),
        departures=record_lib.departures(record),
        modes=modes,
        mode_names=sorted({mode for _, mode, _ in modes}),
        references=_REFERENCES,
        group=summary_lib.GROUP,
        worst_cases=summary_lib.worst_cases,
        marks=_MARKS,
        ulp=_ULP,
        bound=_BOUND,
        percent=_percent,
        ticks=_ticks,
        bars=_bars,
    )
