"""What every implementation has, see Implementation; classes run in a worker process and import
their library there."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from tf_bn_ops.bench.bench_rows import CALLS, Row

Call = Callable[[], Any]
# Role -> array; tensors of view shape in the row's layout. A forward call has y, and those of the
# statistics that the library returns: batch_mean, batch_variance, saved_mean, and saved_variance or
# saved_rstd. The y of a layer with ReLU is what ReLU returns.
Outputs = dict[str, np.ndarray]


class Unavailable(Exception):
    """The implementation cannot run here, or not this row; the message says why."""


class Implementation(Protocol):
    """A library, or the way in which its ops are called."""

    def facts(self) -> dict[str, str]:
        """Versions."""

    def load(self, *tensors: np.ndarray) -> None:
        """Keeps the flat tensors of a row, those of Row.inputs; may be called again."""

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        """What row.call says as one call, complete when it returns."""

    def outputs(self, result: Any) -> Outputs:
        """What the call of the last `bind` returned."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """An implementation, as described to the parent process.

    Attributes:
      name: on the command line and in JSON.
      label: in tables and plots.
      make: constructs it, in the worker, for a number of threads.
      environment: variables of the worker; None removes one.
      module: the Python module that it needs.
      bounds: the error-bound profile that its results have to meet.
      calls: what it is measured in, of shapes.CALLS.
    """

    name: str
    label: str
    make: Callable[[int], Implementation]
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    module: str = "tensorflow"
    bounds: str = "textbook"
    calls: tuple[str, ...] = CALLS


def import_library(module: str, package: str) -> Any:
    """The module.

    Raises:
      Unavailable: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise Unavailable(f"{package} is not installed ({e})") from e
