"""Compares two builds of the core library: `make bench-against LIB=/path/libtf_bn_ops_core.so`.

Both are called through the C ABI in this process, on the same tensors. A row is measured in pairs:
one sample of the other library and one of this tree's, adjacent in time and in random order, so
that drift of the machine cancels in their ratio. Rows are visited in random order.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import pathlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.bench_inputs import aligned_empty
from bench.report import Table
from bench.results import percentiles
from bench.rows import UsageError
from tf_bn_ops import _loader, spec
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import VIEW_ROLES, Problem

_FORWARD = ("x", "scale", "offset", "mean", "variance")
_GRAD = ("y_backprop", "x", "scale", "mean", "variance")
_SECOND = ("x_backprop_grad", "scale_backprop_grad", "offset_backprop_grad")
# Formula -> the roles of its inputs, and what differs from Problem's defaults.
FORMULAS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "batch_norm": (_FORWARD, {"exponential_avg_factor": 0.1}),
    "batch_norm_add": ((*_FORWARD, "side_input"), {"activation": "Relu"}),
    "batch_norm_grad": (_GRAD, {}),
    "batch_norm_grad_ex": ((*_GRAD, "offset", "y"), {"activation": "Relu"}),
    "batch_norm_grad_ex_add": (
        (*_GRAD, "offset", "y"),
        {"activation": "Relu", "num_side_inputs": 1},
    ),
    "batch_norm_grad_grad": ((*_GRAD, *_SECOND), {}),
}
# Larger than the caches of most cores, in L2, a few kilobytes; [outer, channels, inner].
_VIEWS = {
    "NHWC": ((100352, 64, 1), (6272, 256, 1), (64, 8, 1)),
    "NCHW": ((32, 64, 3136), (32, 256, 196), (2, 8, 32)),
}
_SAMPLE_SECONDS = 5e-4
_MIN_PAIRS = 11
# Differences below this do not count: the alignment of code makes as much.
_LEAST_DIFFERENCE = 0.02


class AgainstRow(NamedTuple):
    """One thing to compare."""

    formula: str
    layout: str
    view: tuple[int, int, int]
    dtype: str
    mode: str


class Comparison(NamedTuple):
    """Ratios of pairs: time of the other library over that of this tree's."""

    row: AgainstRow
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


def rows(dtypes: Sequence[str], layouts: Sequence[str], modes: Sequence[str]) -> list[AgainstRow]:
    views = [(layout, view) for layout in layouts for view in _VIEWS.get(layout, ())]
    combinations = itertools.product(FORMULAS, views, dtypes, modes)
    return [AgainstRow(formula, *view, dtype, mode) for formula, view, dtype, mode in combinations]


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    copy = aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _calls(row: AgainstRow, libraries: Sequence[Any], threads: int) -> list[Callable[[], None]]:
    """The row's call of each library, all on the same arrays.

    Raises:
      AttributeError: one of them lacks the formula.
    """
    rng = np.random.default_rng(1)
    roles, fields = FORMULAS[row.formula]
    statistics = "float64" if row.dtype == "float64" else "float32"
    values = {}
    for role in roles:
        is_tensor = role in VIEW_ROLES
        array = rng.standard_normal(row.view if is_tensor else row.view[1])
        if role in ("scale", "variance"):
            array = np.abs(array) + 0.5
        stored = spec.DTYPES[row.dtype if is_tensor else statistics].store(array)
        values[role] = _aligned(stored)
    problem = Problem(values, 1e-3, row.mode == "training", **fields)
    outputs = {role: _aligned(array) for role, array in c_abi.new_outputs(problem, 0.0).items()}
    c_call = c_abi.call_of(problem, outputs)
    error = ctypes.create_string_buffer(256)

    def call_of(library: Any) -> Callable[[], None]:
        function = library.tfbn_cpu_run
        message = [ctypes.c_char_p, ctypes.c_size_t]
        function.argtypes = [ctypes.POINTER(c_abi.Call), ctypes.c_char_p, ctypes.c_int, *message]

        def call(keep: Any = (problem, outputs)) -> None:
            if function(c_call, None, threads, error, len(error)) != 0:
                raise UsageError(f"{row}: {error.value.decode()}")

        return call

    return [call_of(library) for library in libraries]


def _compare(row: AgainstRow, calls: Sequence[Callable[[], None]], seconds: float) -> Comparison:
    """Measures a row; `calls` are the other library's and this tree's."""
    clock = time.perf_counter
    times = [0.0, 0.0]
    for _ in range(3):  # Warm-up, and an estimate.
        begin = clock()
        calls[0]()
        times[0] = clock() - begin
        calls[1]()
    inner = range(max(1, round(_SAMPLE_SECONDS / times[0])))
    ratios: list[float] = []
    end = clock() + seconds
    while clock() < end or len(ratios) < _MIN_PAIRS:
        for which in random.sample((0, 1), 2):
            begin = clock()
            for _ in inner:
                calls[which]()
            times[which] = clock() - begin
        ratios.append(times[0] / times[1])
    low, median, high = percentiles(ratios, (25, 50, 75))
    return Comparison(row, median, (low, high), len(ratios))


def run(
    path: str, chosen: Sequence[AgainstRow], threads: int, seconds: float
) -> Iterator[Comparison]:
    """Compares row by row; one that looks slower is measured again, four times as long. Formulas
    that the other library lacks are left out.

    Raises:
      UsageError: there is no library at `path`.
    """
    if not pathlib.Path(path).is_file():
        raise UsageError(f"LIB={path} does not exist: name a libtf_bn_ops_core.so")
    libraries = [ctypes.CDLL(path), ctypes.CDLL(_loader.core_library_path())]
    for row in random.sample(chosen, len(chosen)):
        try:
            calls = _calls(row, libraries, threads)
        except AttributeError:
            continue
        result = _compare(row, calls, seconds)
        if result.verdict == "slower than noise":
            result = _compare(row, calls, 4 * seconds)
        yield result


def table(results: Sequence[Comparison]) -> Table:
    """One line per row, the slowest first."""
    headings = ["formula", "layout", "view", "dtype", "mode", "verdict"]
    headings += ["ratio", "quartiles", "noise", "pairs"]
    made = Table("Time of the other library over this tree's", headings, 6)
    for c in sorted(results, key=lambda c: c.median):
        names = c.row._replace(view="x".join(map(str, c.row.view)))
        low, high = c.quartiles
        numbers = f"{c.median:.3f}", f"{low:.3f} {high:.3f}", f"{c.noise:.3f}", str(c.pairs)
        made.rows.append([*names, c.verdict, *numbers])
    return made
