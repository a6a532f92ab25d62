"""The library's C ABI (cc/c_api/tf_bn_ops_c.h) through ctypes: its structs, and calls in NumPy.

Needs the core library alone, no TensorFlow. The drivers of tools/gpu fill the struct of a call with
addresses of device memory.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tf_bn_ops import _loader, spec
from tf_bn_ops.harness.problems import CALL_ATTRS, IDENTITY, VIEW_ROLES, Problem
from tf_bn_ops.spec import call as call_spec

# Forces a CPU implementation by its name; read by the library.
ISA_VARIABLE = "TF_BN_OPS_CPU_ISA"

# The values of the TFBN_ enumeration, by name.
DTYPE_CODES = {dtype.name: dtype.c_abi_code for dtype in spec.DTYPES.values()}

ACTIVATION_CODES = {name: code for code, name in enumerate(spec.ACTIVATIONS)}

# The first fields of every struct that has a view.
SIZES = tuple((name, ctypes.c_int64) for name in ("outer", "channels", "inner"))

_C_TYPES: Mapping[str, Any] = {
    "int32_t": ctypes.c_int32,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


class View(ctypes.Structure):
    """The view of a call."""

    _fields_ = SIZES


class Call(ctypes.Structure):
    """tfbn_call; its sizes are fields of it, too."""

    _anonymous_ = ("view",)
    _fields_ = (
        ("view", View),
        *((attr.name, _C_TYPES[attr.c_type]) for attr in call_spec.ATTRS),
        *((array.role, ctypes.c_void_p) for array in call_spec.ARRAYS),
    )


class GatherStats(ctypes.Structure):
    """tfbn_gather_stats."""

    _fields_ = (
        ("parts", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        *(
            (arg.name, ctypes.c_void_p)
            for args in (
                spec.ops.BATCH_NORM_GATHER_STATS.inputs,
                spec.ops.BATCH_NORM_GATHER_STATS.outputs,
            )
            for arg in args
        ),
    )


class ExplainArgs(ctypes.Structure):
    """tfbn_explain_args."""

    _fields_ = (
        *SIZES,
        *(
            (name, ctypes.c_int32)
            for name in ("dtype", "is_training", "in_place", "threads", "activation")
        ),
        ("l2_bytes", ctypes.c_int64),
        ("llc_bytes", ctypes.c_int64),
    )


@functools.cache
def _load(path: str) -> ctypes.CDLL:
    lib = ctypes.CDLL(path)
    error: list[Any] = [ctypes.c_char_p, ctypes.c_size_t]
    lib.tfbn_cpu_run.argtypes = [ctypes.POINTER(Call), ctypes.c_char_p, ctypes.c_int, *error]
    lib.tfbn_cpu_gather_stats.argtypes = [ctypes.POINTER(GatherStats), *error]
    lib.tfbn_cpu_implementation.restype = ctypes.c_char_p
    lib.tfbn_cpu_implementation.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
    lib.tfbn_explain.argtypes = [
        ctypes.c_char_p,
        ctypes.POINTER(ExplainArgs),
        ctypes.c_char_p,
        *error,  # The JSON text goes into a buffer like the error's.
        *error,
    ]
    return lib


def library() -> ctypes.CDLL:
    """The core library, with argument types declared.

    Raises:
      LibraryError: (an ImportError) if there is no core library.
      OSError: if the dynamic loader refuses it.
    """
    return _load(_loader.core_library_path())


def implementations() -> dict[str, bool]:
    """The builds of the CPU backend, fastest first: name, as TF_BN_OPS_CPU_ISA takes it ("avx2",
    ..., "baseline") -> whether this processor can run it.

    Raises:
      LibraryError, OSError: as `library`.
    """
    lib = library()
    supported = ctypes.c_int(0)
    found: dict[str, bool] = {}
    while name := lib.tfbn_cpu_implementation(len(found), ctypes.byref(supported)):
        found[name.decode()] = bool(supported.value)
    return found


def supported_implementations() -> list[str]:
    """The names of the builds that this processor can run, fastest first."""
    return [name for name, supported in implementations().items() if supported]


def fastest() -> str | None:
    """The build that the ops use on this processor unless ISA_VARIABLE names another."""
    return next(iter(supported_implementations()), None)


def selected() -> str | None:
    """The build that the ops use: the fastest, or the one that ISA_VARIABLE names.

    Raises:
      LibraryError: it names none that can run, and no op can.
    """
    usable = supported_implementations()
    name = os.environ.get(ISA_VARIABLE) or next(iter(usable), None)
    if name is not None and name not in usable:
        raise _loader.LibraryError(
            f"{ISA_VARIABLE}={name} names no instruction set that can run here: unset it, or name "
            f"one of {', '.join(usable)}"
        )
    return name


def last_level_cache() -> int:
    """The size in bytes of the last-level cache that the kernels plan with.

    Raises:
      LibraryError, OSError: as `library`.
    """
    return int(explain("batch_norm", (1, 1, 1)).machine["llc_bytes"])


@dataclasses.dataclass(frozen=True)
class PlanField:
    """One field of a plan; `reason` (a name) and `why` (a sentence) are None where it follows from
    others."""

    name: str
    value: str
    reason: str | None = None
    why: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a call on the CPU would do (tfbn_explain).

    Attributes:
      machine: version, ISA, cache sizes, as TF_BN_OPS_VERBOSE=1 prints them.
      call: formula, mode, dtype, view, ...
      fields: the plan, in order.
    """

    machine: dict[str, str]
    call: dict[str, str]
    fields: tuple[PlanField, ...]

    def __getitem__(self, name: str) -> str:
        """The value of a field."""
        return next(field.value for field in self.fields if field.name == name)

    def reason(self, name: str) -> str | None:
        """The reason of a field."""
        return next(field.reason for field in self.fields if field.name == name)


def explain(
    formula: str,
    view: tuple[int, int, int],
    *,
    dtype: str = "float32",
    is_training: bool = True,
    in_place: bool = False,
    threads: int = 1,
    activation: str = "Silu",
    l2_bytes: int = 0,
    llc_bytes: int = 0,
    implementation: str | None = None,
) -> Plan:
    """The plan of a call on the CPU; cache sizes of 0 are this machine's. `activation` is
    read where the formula is one of smooth activations.

    Raises:
      ValueError: with the library's sentence.
      LibraryError, OSError: as `library`.
    """
    args = ExplainArgs(
        *view,
        DTYPE_CODES[dtype],
        is_training,
        in_place,
        threads,
        ACTIVATION_CODES[activation],
        l2_bytes,
        llc_bytes,
    )
    text = ctypes.create_string_buffer(8192)
    error = ctypes.create_string_buffer(512)
    name = None if implementation is None else implementation.encode()
    refused = library().tfbn_explain(
        formula.encode(), args, name, text, len(text), error, len(error)
    )
    if refused:
        raise ValueError(error.value.decode())
    found = json.loads(text.value)
    fields = tuple(PlanField(**field) for field in found["plan"])
    return Plan(found["machine"], found["call"], fields)


_PAGE_BYTES = 4096


def placed(array: np.ndarray, page_offset: int) -> np.ndarray:
    """A copy whose address is this many bytes behind a multiple of 4 KiB."""
    store = np.empty(array.nbytes + _PAGE_BYTES + page_offset, np.uint8)
    begin = -store.ctypes.data % _PAGE_BYTES + page_offset
    copy = store[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


_WITHOUT_ACTIVATION = (spec.ops.BATCH_NORM_GRAD, spec.ops.BATCH_NORM_GRAD_GRAD)


def required_outputs(problem: Problem) -> tuple[str, ...]:
    """The roles of the outputs of a problem that are no option: not the forward's coefficients, and
    the gradient of a side input where there was one."""
    optional = {"forward_coefficients"}
    if not problem.num_side_inputs:
        optional.add("side_input_backprop")
    outputs = {arg.role for op in spec.of_formula(problem.formula) for arg in op.outputs}
    wanted = (outputs & call_spec.ROLES) - optional
    return tuple(array.role for array in call_spec.ARRAYS if array.role in wanted)


def new_outputs(
    problem: Problem, fill: float | None = None, given: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Arrays for the outputs of a problem, by role: those that are given, and new ones, filled with
    a number if there is one. The forward's coefficients are stored where an array is given."""
    outputs = dict(given or {})
    for role in required_outputs(problem):
        if role not in outputs:
            shape = shape_of(problem, role)
            kind = problem.type_of(role)
            outputs[role] = (
                np.empty(shape, kind.numpy) if fill is None else kind.store(np.full(shape, fill))
            )
    return outputs


def is_op_call(problem: Problem) -> bool:
    """Whether an op of the table makes such a call; the core refuses others."""
    kind = spec.ops.FORMULAS[problem.part or problem.formula]
    mode = "training" if problem.is_training else "frozen"
    for op in spec.OPS.values():
        is_part = op.formula in spec.ops.PARTS
        if spec.ops.FORMULAS[op.formula] != kind or problem.dtype.name not in op.dtypes:
            continue
        if problem.is_part:
            found = op.formula == problem.part
        elif is_part:  # BatchNormElemt is the forward op of a frozen layer.
            found = op.formula == spec.ops.BATCH_NORM_ELEMT and mode == "frozen"
        else:
            found = mode in op.modes
        if found and problem.activation in (*op.choices.get("activation_mode", ()), IDENTITY):
            return True
    return False


def shape_of(problem: Problem, role: str) -> tuple[int, ...]:
    """The shape of an output."""
    if role in VIEW_ROLES:
        return problem.view
    return () if role == "local_count" else problem.view[1:2]


def call_of(problem: Problem, outputs: Mapping[str, np.ndarray], **overrides: Any) -> Call:
    """The C struct for a problem, writing to `outputs`; `overrides` replace its fields."""
    arrays = {**problem.values, **outputs}
    addresses = {role: array.ctypes.data for role, array in arrays.items()}
    return call_at(problem, addresses, **overrides)


def call_at(problem: Problem, addresses: Mapping[str, int], **overrides: Any) -> Call:
    """The C struct for a problem whose arrays are at `addresses`, by role; `overrides` replace its
    fields."""
    fields: dict[str, Any] = {
        "formula": call_spec.FORMULA_CODES[spec.ops.FORMULAS[problem.formula]],
        "dtype": DTYPE_CODES[problem.dtype.name],
        "stat_dtype": DTYPE_CODES[problem.statistics_dtype.name],
        "activation": ACTIVATION_CODES[problem.activation],
        "is_training": problem.is_training,
        "epsilon": problem.epsilon,
    }
    fields |= {name: getattr(problem, name) for name in CALL_ATTRS}
    if problem.formula in _WITHOUT_ACTIVATION:
        del fields["activation"]
    if problem.is_part:
        fields["is_training"] = problem.formula not in spec.ops.ELEMENTS_ALONE
        fields["float64_statistics"] = True
    fields |= {role: address for role, address in addresses.items() if role in call_spec.ROLES}
    coefficients = problem.values.get("forward_coefficients")
    if coefficients is not None and coefficients.shape != (
        spec.ops.NUM_FORWARD_COEFFICIENTS,
        problem.view[1],
    ):
        del fields["forward_coefficients"]  # As the op does.
    return Call(View(*problem.view), **{**fields, **overrides})


def run(
    problem: Problem,
    *,
    implementation: str | None = None,
    threads: int = 1,
    outputs: Mapping[str, np.ndarray] | None = None,
    **overrides: Any,
) -> dict[str, np.ndarray]:
    """Runs the CPU backend.

    Args:
      problem: of any formula, or of a part of one.
      implementation: its name; None: the one that the environment or the processor chooses.
      threads: how many.
      outputs: role -> array to write to instead of a new one.
      **overrides: replace fields of the C struct, for tests of its validation.

    Returns:
      The outputs by role.

    Raises:
      ValueError: the library's sentence.
    """
    results = new_outputs(problem, given=outputs)
    run_call(call_of(problem, results, **overrides), implementation, threads)
    return results


def run_call(call: Call, implementation: str | None = None, threads: int = 1) -> None:
    """Runs the CPU backend on the arrays of a struct, as `run` does."""
    error = ctypes.create_string_buffer(512)
    name = None if implementation is None else implementation.encode()
    if library().tfbn_cpu_run(call, name, threads, error, len(error)) != 0:
        raise ValueError(error.value.decode())


class Stats(NamedTuple):
    """Statistics of a batch, or of a batch's parts along a first axis."""

    count: np.ndarray  # type: ignore[assignment]  # Not the method of tuples.
    mean: np.ndarray
    m2: np.ndarray


def gather_stats(parts: Stats) -> Stats:
    """Combines the statistics of a batch's parts, [W], [W, C] and [W, C], into the batch's.

    Raises:
      ValueError: the library's sentence.
    """
    rows, channels = parts.mean.shape
    out = Stats(np.full((), np.nan), *(np.full(channels, np.nan) for _ in range(2)))
    given = [np.ascontiguousarray(array, np.float64) for array in parts]
    run_gather_stats(GatherStats(rows, channels, *(a.ctypes.data for a in (*given, *out))))
    return out


def run_gather_stats(args: GatherStats) -> None:
    """`gather_stats` on the arrays of a struct."""
    error = ctypes.create_string_buffer(512)
    if library().tfbn_cpu_gather_stats(args, error, len(error)) != 0:
        raise ValueError(error.value.decode())


def bits(outputs: Mapping[str, np.ndarray]) -> bytes:
    """All outputs as bytes, to compare them bitwise."""
    return b"".join(outputs[role].tobytes() for role in sorted(outputs))
