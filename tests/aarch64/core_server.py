"""The process under the emulator that runs the core library: python -m core_server FD.

A request is (problem, implementation or None, threads), its result the outputs by role. The facts
are the implementations with whether this processor has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_bn_ops.harness import c_abi, processes

# Subnormal; the interpreter computes with subnormal numbers, the kernels do not.
_SUBNORMAL = np.float32(1e-40)


def run(request: tuple[Any, str | None, int]) -> dict[str, np.ndarray]:
    """The outputs of a problem; the caller's floating-point state has to be what it was."""
    problem, implementation, threads = request
    outputs = c_abi.run(problem, implementation=implementation, threads=threads)
    if _SUBNORMAL * np.float32(2) == 0:
        raise RuntimeError("the call has left the caller's thread flushing subnormal numbers")
    return outputs


def make() -> tuple[list[tuple[str, bool]], Callable[[Any], Any]]:
    return [*c_abi.implementations().items()], run


if __name__ == "__main__":
    processes.serve(sys.argv, make)
