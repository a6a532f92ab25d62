"""Execution modes: ways to run an op on the same inputs, with bitwise identical results.

The field `execution` of a case (case.py) names one of EXECUTION_MODES, or several.
`--execution-modes` says which ones a run adds to its cases; `attach` does it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

# Modes that trace a graph or compile for every single case are for tensors up to this size: it
# keeps what the graph holds, and the time, small.
MOST_CONSTANT = 20_000


@dataclasses.dataclass(frozen=True)
class ExecutionMode:
    """One execution mode.

    Attributes:
      what: for people.
      environment: variables that its process needs; a mode with some is the first mode of a case,
        in a process of its own.
      wishes: further variables of that process, unless the candidate sets them itself.
      small: only for small tensors.
      every: in the default run one case in this many, a random subset, has this mode as well; 0:
        none has.
      other_kernel: it may run another kernel, whose bits may differ: both are held to the bounds,
        and the difference is reported.
      preceded: other calls come first (generate.predecessors), in a process of its own.
    """

    what: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wishes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    small: bool = False
    every: int = 0
    other_kernel: bool = False
    preceded: bool = False

    @property
    def is_apart(self) -> bool:
        """Whether it has a process of its own."""
        return self.preceded or bool(self.environment or self.wishes)


EXECUTION_MODES: Mapping[str, ExecutionMode] = {
    "eager": ExecutionMode("eagerly", every=40),
    "graph": ExecutionMode("in a tf.function of unknown shapes", every=30),
    "constant": ExecutionMode(
        "in a graph of constants, which TensorFlow folds", small=True, every=40
    ),
    "xla": ExecutionMode(
        "in a tf.function with jit_compile", small=True, every=200, other_kernel=True
    ),
    "slice": ExecutionMode("on parts of larger arrays, surrounded by NaN", every=12),
    "temporary": ExecutionMode("in a graph, on inputs whose buffers it may forward", every=20),
    "alias": ExecutionMode("with one tensor as gradient and as x", every=20),
    "unaligned": ExecutionMode("on tensors that are not aligned to a vector", every=12),
    "threads1": ExecutionMode("with 1 thread", {"TF_NUM_INTRAOP_THREADS": "1"}, every=6),
    "threads2": ExecutionMode("with 2 threads", {"TF_NUM_INTRAOP_THREADS": "2"}),
    "onednn0": ExecutionMode("with oneDNN turned off", {"TF_ENABLE_ONEDNN_OPTS": "0"}, every=15),
    # With oneDNN, TensorFlow has an allocator of its own for tensors of 256 KiB and more. Blocks
    # from tcache, the per-thread cache of malloc, are not filled: one small tensor in 100.
    "poison": ExecutionMode(
        "with all memory filled with a pattern, and with another one",
        wishes={"TF_ENABLE_ONEDNN_OPTS": "0", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
        every=8,
    ),
    "history": ExecutionMode(
        "after calls of equal dimensions with other layout, dtype, epsilon, mode and numbers",
        small=True,
        every=12,
        preceded=True,
    ),
    "concurrent": ExecutionMode("eagerly from 4 threads at once", small=True, every=15),
}
# Modes that may come first.
BASES = tuple(name for name, mode in EXECUTION_MODES.items() if not mode.is_apart)
# Modes that cases are drawn with; the others are added to cases by generate.attach.
DRAWN = ("eager", "graph")
OTHER_KERNELS = frozenset(name for name, mode in EXECUTION_MODES.items() if mode.other_kernel)
