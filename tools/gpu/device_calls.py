"""Runs a problem on a GPU or the emulator, and checks its outputs by the error bounds of two-level
sums."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import cuda_device
import numpy as np

from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import VIEW_ROLES, Problem

# Sizes around every limit of the launch configuration (cc/gpu/launch_config.h): vectors of 2, 4
# and 8 elements, tiles of 32 vectors, 256 threads, segments of 1024 vectors, four items per thread,
# fold, few and many channels; and views without elements.
VIEWS = [
    *((1, 1, 1), (2, 1, 1), (7, 1, 1), (129, 1, 1), (1, 5, 1), (9, 2, 1), (100, 3, 1), (67, 4, 1)),
    *((33, 7, 1), (40, 15, 1), (41, 16, 1), (23, 17, 1), (31, 33, 1), (19, 63, 1), (18, 64, 1)),
    *((17, 65, 1), (11, 127, 1), (5, 1000, 1), (9, 1025, 1), (3, 2100, 1), (1500, 48, 1)),
    *((1100, 64, 1), (4000, 40, 1), (70000, 1, 1), (8000, 300, 1)),
    *((8, 3, 2), (9, 5, 49), (10, 40, 49), (5000, 3, 9), (8, 2, 1024), (9, 2, 1025), (2, 3, 63)),
    *((2, 3, 64), (2, 3, 65), (1, 3, 200), (6, 5, 784), (3, 2, 4099), (3, 2, 8200), (1, 1, 70001)),
    *((40, 3, 1300), (2, 2000, 3), (0, 3, 1), (4, 0, 2), (5, 3, 0)),
]

# Outputs that are in host memory.
_ON_HOST = frozenset({"local_count"})

# Bytes around every output that must stay as they are.
_GUARD = 64


def check(problem: Problem, outputs: Mapping[str, np.ndarray]) -> str:
    """The worst output beyond its error bound in one sentence, or nothing."""
    return formula_models.check(problem, outputs, "two-level")


def new_outputs(problem: Problem) -> dict[str, np.ndarray]:
    """Arrays for the outputs, all NaN."""
    return c_abi.new_outputs(problem, fill=np.nan)


def view_inputs(problem: Problem) -> list[str]:
    """The roles of its inputs of view shape."""
    return [role for role in problem.values if role in VIEW_ROLES]


def view_outputs(problem: Problem) -> list[str]:
    """The roles of its outputs of view shape."""
    return [role for role in c_abi.required_outputs(problem) if role in VIEW_ROLES]


def args_at(
    view: tuple[int, int, int],
    dtype: str,
    addresses: Mapping[str, int],
    **fields: Any,
) -> c_abi.Call:
    """The C struct for arrays at these addresses, by role; statistics in float32, of a gradient
    unless `fields` say so."""
    codes = c_abi.DTYPE_CODES
    defaults = {"dtype": codes[dtype], "stat_dtype": codes["float32"], "is_training": 1}
    return c_abi.Call(c_abi.View(*view), **{"formula": 1, **defaults, **addresses, **fields})


def _allocate(device: Any, problem: Problem, offsets: Mapping[str, int]) -> dict[str, int]:
    """Addresses by role, `offsets` elements from an aligned one, with room for the guards."""
    addresses = {}
    for role in (*problem.values, *c_abi.required_outputs(problem)):
        if role in _ON_HOST:
            continue
        itemsize = problem.type_of(role).numpy.itemsize
        base = device.allocate(_size(problem, role) + 2 * 256)
        addresses[role] = base + 256 + offsets.get(role, 0) * itemsize
    return addresses


def _shape(problem: Problem, role: str) -> tuple[int, ...]:
    return problem[role].shape if role in problem.values else c_abi.shape_of(problem, role)


def _size(problem: Problem, role: str) -> int:
    return int(np.prod(_shape(problem, role))) * problem.type_of(role).numpy.itemsize


def _read(device: Any, problem: Problem, role: str, address: int) -> np.ndarray:
    """An output; raises GpuError if the guards around it were overwritten."""
    size = _size(problem, role)
    memory = np.empty(size + 2 * _GUARD, np.uint8)
    device.read(address - _GUARD, memory)
    if (memory[:_GUARD] != 0xFF).any() or (memory[-_GUARD:] != 0xFF).any():
        raise cuda_device.GpuError(f"{role}: bytes outside the array were written")
    inside = memory[_GUARD : _GUARD + size].view(problem.type_of(role).numpy)
    return inside.reshape(_shape(problem, role))


def run(
    device: Any,
    problem: Problem,
    *,
    offsets: Mapping[str, int] | None = None,
    in_place: Mapping[str, str] | None = None,
    repetitions: int = 1,
) -> list[dict[str, np.ndarray]]:
    """Runs a problem with poisoned outputs; the outputs by role of every repetition.

    Args:
      device: a CudaDevice or EmulatedDevice.
      problem: the inputs.
      offsets: role -> elements by which the array is shifted from an aligned address.
      in_place: output of view shape -> the input whose buffer it is written to.
      repetitions: how many times.
    """
    addresses = _allocate(device, problem, offsets or {})
    for role, over in (in_place or {}).items():
        addresses[role] = addresses[over]
    on_host = {
        role: np.full((), np.nan) for role in c_abi.required_outputs(problem) if role in _ON_HOST
    }
    of_host = {role: array.ctypes.data for role, array in on_host.items()}
    call = c_abi.call_at(problem, {**addresses, **of_host})
    outputs = [role for role in c_abi.required_outputs(problem) if role not in on_host]
    written = {addresses[role] for role in outputs}
    for role, address in addresses.items():
        device.declare(address, _size(problem, role), role, address in written)
    results = []
    for _ in range(repetitions):
        for role in outputs:
            device.fill(addresses[role] - _GUARD, 0xFF, _size(problem, role) + 2 * _GUARD)
        for role in problem.values:
            device.write(addresses[role], problem[role])
        device.run(call)
        device.wait()
        found = {role: _read(device, problem, role, addresses[role]) for role in outputs}
        results.append({**found, **{role: array.copy() for role, array in on_host.items()}})
    device.free_all()
    return results


def run_bits(device: Any, problem: Problem, **options: Any) -> bytes:
    """The outputs of `run` as bytes."""
    return c_abi.bits(run(device, problem, **options)[0])


def alignment_differences(device: Any, problem: Problem) -> Iterator[str]:
    """What is not bitwise identical with misaligned tensors, and in place."""
    inputs, outputs = view_inputs(problem), view_outputs(problem)
    want, tensors = run_bits(device, problem), [*inputs, *outputs]
    for shifts in ((1, 0, 0), (0, 3, 0), (0, 0, 1), (5, 5, 5), (1, 2, 3), (7, 7, 6)):
        # From the last on, so that the outputs are always among them.
        offsets = dict(zip(reversed(tensors), itertools.cycle(reversed(shifts)), strict=False))
        if run_bits(device, problem, offsets=offsets) != want:
            yield f"not bitwise identical with tensors shifted by {offsets} elements"
    for output, name, shift in itertools.product(outputs[:1], inputs, (0, 1)):
        if run_bits(device, problem, offsets={inputs[0]: shift}, in_place={output: name}) != want:
            yield f"not bitwise identical in place of {name}, shifted by {shift} elements"


def gather_stats(device: Any, parts: c_abi.Stats) -> c_abi.Stats:
    """Combines the statistics of a batch's parts by the kernel."""
    rows, channels = parts.mean.shape
    found = c_abi.Stats(np.empty(()), *(np.empty(channels) for _ in range(2)))
    addresses = []
    for array, is_output in [*((a, False) for a in parts), *((a, True) for a in found)]:
        addresses.append(device.allocate(array.nbytes))
        device.declare(addresses[-1], array.nbytes, "statistics", is_output)
        if is_output:
            device.fill(addresses[-1], 0xFF, array.nbytes)
        else:
            device.write(addresses[-1], array)
    device.gather_stats(c_abi.GatherStats(rows, channels, *addresses))
    device.wait()
    for array, address in zip(found, addresses[3:], strict=True):
        device.read(address, array)
    device.free_all()
    return found
