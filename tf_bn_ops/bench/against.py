"""Compares two builds of the core library: `make bench-against LIB=/path/libtf_bn_ops_core.so`.

Both are called through the C ABI in this process, on the same tensors. A row is measured in pairs:
one sample of the other library and one of this tree's, adjacent in time and in random order, so
that drift of the machine cancels in their ratio. Rows are visited in random order.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import pathlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_bn_ops import _loader, spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.bench import data, stats
from tf_bn_ops.bench.reports.text_table import Table
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import VIEW_ROLES

# The rows, of BATCH_NORM_GRAD_EX without the gradient of a side input.
_FORMULAS = {
    **c_abi.FORMULAS,
    spec.ops.BATCH_NORM_GRAD_EX_ADD: c_abi.FORMULAS[spec.ops.BATCH_NORM_GRAD_EX],
}
# Fields of a formula's struct that say what is computed, beyond those that all have.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    spec.ops.BATCH_NORM: {"exponential_avg_factor": 0.1, "bessel_correction": 1},
    spec.ops.BATCH_NORM_ADD: {
        "exponential_avg_factor": 1,
        "activation": c_abi.ACTIVATION_CODES["Relu"],
    },
    spec.ops.BATCH_NORM_GRAD_EX: {"activation": c_abi.ACTIVATION_CODES["Relu"]},
    spec.ops.BATCH_NORM_GRAD_EX_ADD: {"activation": c_abi.ACTIVATION_CODES["Relu"]},
}
# Formula -> pointers that stay NULL.
_WITHOUT = {
    spec.ops.BATCH_NORM: {"side_input"},
    spec.ops.BATCH_NORM_GRAD_EX: {"side_input_backprop"},
}
# Larger than the caches of most cores, in L2, a few kilobytes; [outer, channels, inner].
_VIEWS = {
    "NHWC": ((100352, 64, 1), (6272, 256, 1), (64, 8, 1)),
    "NCHW": ((32, 64, 3136), (32, 256, 196), (2, 8, 32)),
}
SECONDS = 0.5  # Default per row.
_SAMPLE_SECONDS = 5e-4
_MIN_PAIRS = 11
# Differences below this do not count: the alignment of code makes as much.
_LEAST_DIFFERENCE = 0.02


class AgainstRow(NamedTuple):
    """One thing to compare."""

    formula: str
    view: tuple[int, int, int]
    layout: str
    dtype: str
    mode: str


@dataclasses.dataclass(frozen=True)
class Comparison:
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
    return [
        AgainstRow(formula, view, layout, dtype, mode)
        for formula in _FORMULAS
        for layout, views in _VIEWS.items()
        if layout in layouts
        for view in views
        for dtype in dtypes
        for mode in modes
    ]


def _arrays(row: AgainstRow) -> dict[str, np.ndarray]:
    """Inputs and outputs of a row."""
    rng = np.random.default_rng(1)
    statistics = spec.DTYPES["float64" if row.dtype == "float64" else "float32"]
    arrays = {}
    formula = _FORMULAS[row.formula]
    for name in (*formula.inputs, *formula.outputs):
        if name in _WITHOUT.get(row.formula, ()):
            continue
        of_view = name in VIEW_ROLES
        # The coefficients of an activation's mask, see FusedBatchNormEx.
        length = row.view[1] * (
            spec.ops.NUM_FORWARD_COEFFICIENTS if name == "forward_coefficients" else 1
        )
        values = rng.standard_normal(row.view if of_view else length)
        if name in ("scale", "variance"):
            values = np.abs(values) + 0.5
        arrays[name] = _aligned((spec.DTYPES[row.dtype] if of_view else statistics).store(values))
    return arrays


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    copy = data.aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _calls(row: AgainstRow, libraries: Sequence[Any], threads: int) -> list[Callable[[], None]]:
    """The row's call of each library, all on the same arrays."""
    arrays = _arrays(row)
    statistics = "float64" if row.dtype == "float64" else "float32"
    formula = _FORMULAS[row.formula]
    args = formula.struct(
        **dict(zip(("outer", "channels", "inner"), row.view, strict=True)),
        **{name: array.ctypes.data for name, array in arrays.items()},
        dtype=c_abi.DTYPE_CODES[row.dtype],
        stat_dtype=c_abi.DTYPE_CODES[statistics],
        is_training=row.mode == "training",
        epsilon=1e-3,
        **_FIELDS.get(row.formula, {}),
    )

    def call_of(function: Any) -> Callable[[], None]:
        error = ctypes.create_string_buffer(256)
        message = [ctypes.c_char_p, ctypes.c_size_t]
        pointer = ctypes.POINTER(type(args))
        function.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int, *message]

        def call(keep: Any = arrays) -> None:
            if function(args, None, threads, error, len(error)) != 0:
                raise UsageError(f"{row}: {error.value.decode()}")

        return call

    return [call_of(getattr(library, function_of(row))) for library in libraries]


def function_of(row: AgainstRow) -> str:
    """The function of the C ABI that a row measures."""
    return c_abi.function_of(_FORMULAS[row.formula].struct, "cpu")


def compare(row: AgainstRow, libraries: Sequence[Any], threads: int, seconds: float) -> Comparison:
    """Measures a row; `libraries` are the other one and this tree's."""
    calls = _calls(row, libraries, threads)
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
    quartiles = (stats.percentile(ratios, 0.25), stats.percentile(ratios, 0.75))
    return Comparison(row, stats.percentile(ratios, 0.5), quartiles, len(ratios))


def run(
    path: str, chosen: Sequence[AgainstRow], threads: int, seconds: float
) -> Iterator[Comparison]:
    """Compares row by row; one that looks slower is measured again, four times as long. Formulas
    that the other library lacks are left out.

    Raises:
      UsageError: there is no library at `path`.
    """
    if not pathlib.Path(path).is_file():
        raise UsageError(f"--against={path} does not exist: name a libtf_bn_ops_core.so")
    libraries = [ctypes.CDLL(path), ctypes.CDLL(_loader.core_library_path())]
    known = [row for row in chosen if hasattr(libraries[0], function_of(row))]
    for row in random.sample(known, len(known)):
        result = compare(row, libraries, threads, seconds)
        if result.verdict == "slower than noise":
            result = compare(row, libraries, threads, 4 * seconds)
        yield result


def table(results: Sequence[Comparison]) -> Table:
    """One line per row, the slowest first."""
    headings = ["formula", "view", "layout", "dtype", "mode", "verdict"]
    made = Table("Time of the other library over this tree's", [*headings], 6)
    made.headings += ["ratio", "quartiles", "noise", "pairs"]
    for c in sorted(results, key=lambda c: c.median):
        formula, view, *rest = c.row
        low, high = c.quartiles
        numbers = f"{c.median:.3f}", f"{low:.3f} {high:.3f}", f"{c.noise:.3f}", str(c.pairs)
        made.rows.append([formula, "x".join(map(str, view)), *rest, c.verdict, *numbers])
    return made
