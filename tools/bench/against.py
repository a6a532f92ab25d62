"""Compares two builds of the core library: `make bench-against LIB=/path/libtf_bn_ops_core.so`.

Both are called through the C ABI in this process, on the same tensors. A row is measured in pairs:
one sample of the other library and one of this tree's, adjacent in time and in random order, so
that drift of the machine cancels in their ratio. Rows are visited in random order.
"""

from __future__ import annotations

import ctypes
import math
import pathlib
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.libraries import Call, Timer
from bench.report import Table
from bench.results import percentiles
from bench.rows import Row, UsageError, rows_of
from tf_bn_ops import _loader
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import VIEW_ROLES, Problem, stored

_FORWARD = ("x", "scale", "offset", "mean", "variance")
_GRAD = ("y_backprop", "x", "scale", "mean", "variance")
_SECOND = ("x_backprop_grad", "scale_backprop_grad", "offset_backprop_grad")
_RELU = {"activation": "Relu"}
# Formula -> the roles of its inputs, and what differs from Problem's defaults.
FORMULAS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "batch_norm": (_FORWARD, {"exponential_avg_factor": 0.1}),
    "batch_norm_add": ((*_FORWARD, "side_input"), _RELU),
    "batch_norm_grad": (_GRAD, {}),
    "batch_norm_grad_ex": ((*_GRAD, "offset", "y"), _RELU),
    "batch_norm_grad_ex_add": ((*_GRAD, "offset", "y"), {**_RELU, "num_side_inputs": 1}),
    "batch_norm_grad_grad": ((*_GRAD, *_SECOND), {}),
}
# Larger than the caches of most cores, in L2, a few kilobytes.
_SHAPES = [(32, 56, 56, 64), (32, 14, 14, 256), (2, 4, 8, 8)]
_MIN_PAIRS = 11
# Differences below this do not count: the alignment of code makes as much.
_LEAST_DIFFERENCE = 0.02


class Comparison(NamedTuple):
    """Ratios of pairs: the other library's time over this tree's."""

    row: Row
    median: float
    quartiles: tuple[float, float]
    pairs: int

    @property
    def noise(self) -> float:
        """Half width of the 95% confidence interval of a median, from the quartiles (McGill,
        Tukey and Larsen, "Variations of Box Plots", 1978)."""
        return 1.57 * (self.quartiles[1] - self.quartiles[0]) / math.sqrt(self.pairs)

    @property
    def verdict(self) -> str:
        if abs(self.median - 1) < max(_LEAST_DIFFERENCE, 2 * self.noise):
            return "within noise"
        return "faster" if self.median > 1 else "slower than noise"


def _calls(row: Row, libraries: Sequence[Any]) -> list[Call]:
    """The row's call of each library, all on the same arrays."""
    rng = np.random.default_rng(1)
    roles, fields = FORMULAS[row.section]
    values = {
        role: rng.standard_normal(row.view if role in VIEW_ROLES else row.view[1]) for role in roles
    }
    values |= {role: np.abs(values[role]) + 0.5 for role in ("scale", "variance")}
    # Each array begins at a cache line, as TensorFlow's tensors do.
    inputs = {role: c_abi.placed(a, 64) for role, a in stored(values, row.dtype).items()}
    problem = Problem(inputs, 1e-3, row.mode == "training", **fields)
    outputs = {role: c_abi.placed(a, 64) for role, a in c_abi.new_outputs(problem, 0.0).items()}
    c_call = c_abi.call_of(problem, outputs)
    error = ctypes.create_string_buffer(256)

    def call_of(library: Any) -> Call:
        function = library.tfbn_cpu_run
        message = [ctypes.c_char_p, ctypes.c_size_t]
        function.argtypes = [ctypes.POINTER(c_abi.Call), ctypes.c_char_p, ctypes.c_int, *message]

        def call(keep: Any = (problem, outputs)) -> None:
            if function(c_call, None, row.threads, error, len(error)) != 0:
                raise UsageError(f"{row}: {error.value.decode()}")

        return call

    return [call_of(library) for library in libraries]


def _measure(row: Row, calls: Sequence[Call], seconds: float) -> Comparison:
    """Measures a row; `calls` are the other library's and this tree's."""
    timers = [Timer(call) for call in calls]
    times = [0.0, 0.0]
    ratios: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(ratios) < _MIN_PAIRS:
        for which in random.sample((0, 1), 2):
            times[which] = timers[which].sample()
        ratios.append(times[0] / times[1])
    low, median, high = percentiles(ratios, (25, 50, 75))
    return Comparison(row, median, (low, high), len(ratios))


def compare(path: str, of_each: Any, seconds: float) -> int:
    """Compares row by row and prints a table; a row that looks slower is measured again, four times
    as long. `of_each` has dtypes, layouts, modes and threads. Returns the exit status.

    Raises:
      UsageError: there is no library at `path`, or it has another C ABI.
    """
    if not pathlib.Path(path).is_file():
        raise UsageError(f"LIB={path} does not exist: name a libtf_bn_ops_core.so")
    chosen = [row for formula in FORMULAS for row in rows_of(formula, _SHAPES, *of_each)]
    libraries = [ctypes.CDLL(path), ctypes.CDLL(_loader.core_library_path())]
    found = []
    for row in random.sample(chosen, len(chosen)):
        try:
            calls = _calls(row, libraries)
        except AttributeError as e:
            raise UsageError(f"LIB={path} has another C ABI than this tree: {e}") from e
        try:
            calls[1]()
        except UsageError:
            if row.dtype != "float64":  # Which some formulas have no kernel for.
                raise
            continue
        result = _measure(row, calls, seconds)
        if result.verdict == "slower than noise":
            result = _measure(row, calls, 4 * seconds)
        found.append(result)
    slower = sum(c.verdict == "slower than noise" for c in found)
    mean = statistics.geometric_mean(c.median for c in found)
    print(_table(found))
    print(f"{len(found)} rows: {slower} slower than noise; geometric mean {mean:.3f}")
    return 1 if slower else 0


def _table(found: Sequence[Comparison]) -> Table:
    """One line per row, the slowest first."""
    headings = ["formula", "shape", "layout", "dtype", "mode", "verdict"]
    headings += ["ratio", "quartiles", "noise", "pairs"]
    made = Table("Time of the other library over this tree's", headings, 6)
    for c in sorted(found, key=lambda c: c.median):
        low, high = c.quartiles
        numbers = f"{c.median:.3f}", f"{low:.3f} {high:.3f}", f"{c.noise:.3f}", str(c.pairs)
        made.rows.append([c.row.section, *str(c.row).split(), c.verdict, *numbers])
    return made
