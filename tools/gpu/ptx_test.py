"""Tests nvcc's PTX of the kernels on a simulated GPU: python tools/gpu/ptx_test.py --help.

`make gpu-ptx-test SIM=FOLDER` builds what it needs and calls it; FOLDER has libcudasim.so. Sampled
calls (views, types, alignments, in place) run in both orders of execution, with
every access and race checked. Results are within the error bounds and bitwise the host
emulator's. Then faults are planted into the PTX, dropped barriers, shifted loads, stores without a
mask, each of which has to be caught.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import cuda_device
import device_calls
import emulated_device
import numpy as np
import tool_flags
from device_calls import VIEWS
from device_problems import CALLS, dtypes_of
from simulated_device import LOCK_STEP, ORDERS, SimulatedDevice

from tf_bn_ops.conformance.models.gather_stats import random_parts
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem

# The simulator executes about a million elements a minute.
MAX_ELEMENTS = 4000
# Elements by which tensors are shifted from an aligned address.
SHIFTS = ((), (), (1,), (0, 3), (5, 5, 5), (1, 2, 3, 4))


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of the kernels on a small view."""

    call: str
    dtype: str
    view: tuple[int, int, int]
    offsets: Mapping[str, int]
    in_place: Mapping[str, str]

    def __str__(self) -> str:
        shifted = f", shifted by {dict(self.offsets)}" if any(self.offsets.values()) else ""
        place = "".join(f", {out} in place of {role}" for out, role in self.in_place.items())
        return f"{self.call}, {self.dtype}, {self.view}{shifted}{place}"

    def problem(self) -> Problem:
        return CALLS[self.call](self.view, self.dtype)


def sampled_cases(seed: int) -> list[Case]:
    """One case of every call, type and layout."""
    rng = random.Random(seed)
    small = [view for view in VIEWS if np.prod(view) <= MAX_ELEMENTS]
    layouts = [[v for v in small if v[2] == 1], [v for v in small if v[2] != 1]]
    cases = []
    calls = ((call, dtype) for call in CALLS for dtype in dtypes_of(call))
    for (call, dtype), views in itertools.product(calls, layouts):
        view = rng.choice(views)
        problem = CALLS[call](view, dtype)
        inputs, outputs = device_calls.view_inputs(problem), device_calls.view_outputs(problem)
        shifts = dict(zip((*outputs, *inputs), rng.choice(SHIFTS), strict=False))
        in_place = {}
        if outputs and rng.random() < 0.3:
            in_place = {outputs[0]: rng.choice(inputs)}
        cases.append(Case(call, dtype, view, shifts, in_place))
    return cases


def result_of(device: object, case: Case, problem: Problem) -> dict[str, np.ndarray]:
    (result,) = device_calls.run(device, problem, offsets=case.offsets, in_place=case.in_place)
    return result


def fault(device: SimulatedDevice, emulator: emulated_device.EmulatedDevice, case: Case) -> str:
    """What is wrong in one sentence, or nothing."""
    problem = case.problem()
    try:
        result = result_of(device, case, problem)
    except cuda_device.GpuError as error:
        device.free_all()
        return str(error)
    if c_abi.bits(result) != c_abi.bits(result_of(emulator, case, problem)):
        return "not bitwise identical to the host emulator"
    return device_calls.check(problem, result)


def gather_faults(device: SimulatedDevice, emulator: emulated_device.EmulatedDevice) -> list[str]:
    """What is wrong with the combination of statistics."""
    parts = random_parts(6, 300)
    try:
        got = device_calls.gather_stats(device, parts)
    except cuda_device.GpuError as error:
        device.free_all()
        return [f"statistics of parts: {error}"]
    want = device_calls.gather_stats(emulator, parts)
    same = c_abi.bits(got._asdict()) == c_abi.bits(want._asdict())
    return [] if same else ["statistics of parts: not bitwise identical to the host emulator"]


# Kind of kernel -> its mangled name: PassKernel<..., kSums, kStores>.
KINDS = {
    "sums": r"PassKernel\w*ELi[1-9]\d*ELb0E",
    "stores": r"PassKernel\w*ELi0ELb1E",
    "finish": "FinishKernel",
}


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted into every kernel of a kind: all matches of a pattern are replaced, or one.

    Attributes:
      only: the number of the match, from 0.
      cases: the calls that have to notice; their views have whole vectors and several threads per
        channel, or tails.
    """

    what: str
    kind: str
    pattern: str
    replacement: str
    only: int | None = None
    cases: Sequence[Case] = ()

    def planted(self, ptx: str) -> str:
        parts = re.split(r"(?m)^(?=(?:\.visible )?\.entry)", ptx)
        kind = re.compile(KINDS[self.kind])
        changed = [
            self._changed(part) if kind.search(part.partition("(")[0]) else part for part in parts
        ]
        if changed == parts:
            raise ValueError(f"no {self.kind} kernel has {self.pattern!r}")
        return "".join(changed)

    def _changed(self, kernel: str) -> str:
        found = list(re.finditer(self.pattern, kernel))
        chosen = found if self.only is None else found[self.only : self.only + 1]
        for match in reversed(chosen):
            kernel = (
                kernel[: match.start()] + match.expand(self.replacement) + kernel[match.end() :]
            )
        return kernel


def _cases(*types_and_views: tuple[str, tuple[int, int, int]]) -> tuple[Case, ...]:
    calls = ("gradient, training", "forward, training, rstd")
    return tuple(
        Case(call, dtype, view, {}, {}) for call in calls for dtype, view in types_and_views
    )


_WHOLE = _cases(("float32", (40, 64, 1)), ("half", (3, 2, 256)))
_TAILS = _cases(("half", (9, 5, 49)), ("float32", (33, 7, 1)))
_BARRIER = r"\n\s*(?:bar|barrier)\.sync[^;]*;"
_LOAD = r"(ld\.global[.\w]*\.v4\.\w+\s*\{[^}]*\},\s*\[%\w+)(?:\+\d+)?\]"
# The branch over the store of one element, whose address may be computed in between.
_GUARD = r"@%p\d+ bra[^;]*;((?:\s*(?:shl|add)\.\w+[^;]*;){0,2}\s*st\.(?:global\.)?[bfu]\d+)"
FAULTS = (
    Fault("no barrier before the loop", "sums", _BARRIER, "\n", 0, _WHOLE),
    Fault("no barrier behind the loop", "sums", _BARRIER, "\n", 1, _WHOLE),
    Fault("no barrier before the total sums", "finish", _BARRIER, "\n", 0, _WHOLE),
    Fault("no barrier behind the coefficients", "stores", _BARRIER, "\n", 0, _WHOLE),
    Fault("shifted loads", "sums", _LOAD, r"\1+48]", None, _WHOLE),
    Fault("shifted loads", "stores", _LOAD, r"\1+48]", None, _WHOLE),
    Fault("stores of tails without a guard", "stores", _GUARD, r"\1", None, _TAILS),
)


def missed_faults(
    device: SimulatedDevice, emulator: emulated_device.EmulatedDevice, ptx: pathlib.Path
) -> Iterator[str]:
    """Planted faults that no check noticed."""
    text = ptx.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for planted in FAULTS:
            wrong = pathlib.Path(folder) / "wrong.ptx"
            wrong.write_text(planted.planted(text))
            device.load(wrong, LOCK_STEP)
            for case in planted.cases:
                if not fault(device, emulator, case):
                    yield f"{planted.what} in {planted.kind} not noticed: {case}"


def main(arguments: list[str]) -> int:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--sim", type=pathlib.Path, required=True, help="folder of libcudasim.so")
    parser.add_argument("--library", type=pathlib.Path, required=True, help="linked with it")
    parser.add_argument("--ptx", type=pathlib.Path, required=True, help="of its kernels")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--cases", type=int, help="only so many, evenly taken from all")
    flags = parser.parse_args(arguments)
    emulator = emulated_device.EmulatedDevice()
    device = SimulatedDevice(flags.sim, flags.library, flags.ptx, LOCK_STEP)
    cases = sampled_cases(flags.seed)
    if flags.cases:
        cases = cases[:: -(-len(cases) // flags.cases)]
    failures = []
    for order in ORDERS:
        device.load(flags.ptx, order)
        for case in cases:
            wrong = fault(device, emulator, case)
            if wrong:
                failures.append(f"{case}, order {order}: {wrong}")
        failures += gather_faults(device, emulator)
    failures += missed_faults(device, emulator, flags.ptx)
    for failure in failures:
        print(f"  FAILED {failure}")
    print(
        f"gpu-ptx-test on {device.name}: {len(cases)} cases in {len(ORDERS)} orders, "
        f"{len(FAULTS)} planted faults; {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
