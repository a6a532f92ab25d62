"""The ways to call an op on the same numbers, whose results have to have the same bits.

The field `call` of a case names one of CALLS, or several joined by "+": the answer to the first is
judged, and every other one has to give the same bits:

    eager+slice+threads1

`--modes` says which ones a run adds to its cases; `attach` does it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tf_bn_ops.conformance.case import Case

# Calls that trace a graph or compile for every single case are made for tensors up to this size:
# it keeps what the graph holds, and the time, small.
_MOST_CONSTANT = 20_000


@dataclasses.dataclass(frozen=True)
class Call:
    """One way to call.

    Attributes:
      what: for people.
      environment: variables of the process that it needs; those of a process of its own unless
        empty.
      small: only for small tensors.
      every: in the default run one case in this many is called in this way as well; 0: none is.
      other_kernel: it runs another kernel, whose bits may differ: both are held to the bounds, and
        the difference is told.
    """

    what: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    small: bool = False
    every: int = 0
    other_kernel: bool = False


CALLS: Mapping[str, Call] = {
    "eager": Call("eagerly", every=40),
    "graph": Call("in a tf.function of unknown shapes", every=30),
    "constant": Call("in a graph of constants, which TensorFlow folds", small=True, every=40),
    "xla": Call("in a tf.function with jit_compile", small=True, every=200, other_kernel=True),
    "slice": Call("with parts of larger arrays, which hold NaN around them", every=12),
    "temporary": Call("in a graph, with inputs whose memory the op may take over", every=20),
    "alias": Call("with one tensor as gradient and as x", every=20),
    "unaligned": Call("with tensors that begin between two vectors", every=12),
    "threads1": Call("with 1 thread", {"TF_NUM_INTRAOP_THREADS": "1"}, every=6),
    "threads2": Call("with 2 threads", {"TF_NUM_INTRAOP_THREADS": "2"}),
    "onednn0": Call("with oneDNN turned off", {"TF_ENABLE_ONEDNN_OPTS": "0"}, every=15),
}
# Those that may come first.
BASES = tuple(name for name, call in CALLS.items() if not call.environment)
# Those of them that cases are drawn with; the others are added to cases by `attach`.
DRAWN = ("eager", "graph")


def attach(cases: Iterable[Case], seed: int, modes: Sequence[str] | None) -> Iterator[Case]:
    """The cases with further calls.

    Args:
      cases: numbers, not kinds that ask for errors or static shapes.
      seed: of the run; which cases get what in the default run hangs on it.
      modes: names of CALLS that every case gets; None: those of the default run.
    """
    rng = np.random.default_rng([seed, 2])
    for case in cases:
        drawn = rng.random(len(CALLS))
        wanted = [
            name
            for (name, call), chance in zip(CALLS.items(), drawn, strict=True)
            if (name in modes if modes is not None else chance * call.every < 1 and call.every)
        ]
        size = math.prod(case.shape)
        further = [
            name
            for name in wanted
            if name not in case.calls
            and not (CALLS[name].small and size > _MOST_CONSTANT)
            # Real input is what it is; only made-up numbers can be the same for both tensors.
            and not (name == "alias" and case.is_real)
        ]
        yield dataclasses.replace(case, call="+".join([*case.calls, *further]))
