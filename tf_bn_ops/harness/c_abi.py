"""The library's C ABI (cc/c_api/tf_bn_ops_c.h) through ctypes: the structs, and calls in NumPy.

Needs the core library alone, no TensorFlow. The structs are declared here and nowhere else; the
drivers of tools/gpu fill them with addresses of device memory.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
from typing import Any, NamedTuple

import numpy as np

from tf_bn_ops import _loader, spec

# Forces a CPU implementation by its name; read by the library.
ISA_VARIABLE = "TF_BN_OPS_CPU_ISA"

# The values of the TFBN_ enumeration.
DTYPE_CODES = {"float32": 0, "half": 1, "bfloat16": 2, "float64": 3}

_SIZES = tuple((name, ctypes.c_int64) for name in ("outer", "channels", "inner"))


def _flags(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_int32) for name in names)


# The pointers of tfbn_batch_norm_grad_args, inputs first.
POINTERS = (
    "y_backprop",
    "x",
    "scale",
    "mean",
    "variance",
    "x_backprop",
    "scale_backprop",
    "offset_backprop",
)
# The same of tfbn_batch_norm_grad_grad_args.
SECOND_ORDER_POINTERS = (
    "x_backprop_grad",
    "scale_backprop_grad",
    "offset_backprop_grad",
    "y_backprop",
    "x",
    "scale",
    "mean",
    "variance",
    "y_backprop_grad",
    "x_grad",
    "scale_grad",
)


class Args(ctypes.Structure):
    """tfbn_batch_norm_grad_args."""

    _fields_ = (
        *_SIZES,
        *_flags("dtype", "stat_dtype", "is_training", "variance_is_rstd"),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in POINTERS),
    )


class SecondOrderArgs(ctypes.Structure):
    """tfbn_batch_norm_grad_grad_args."""

    _fields_ = (
        *_SIZES,
        *_flags("dtype", "stat_dtype", "is_training"),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in SECOND_ORDER_POINTERS),
    )


class PartitionInfo(ctypes.Structure):
    """tfbn_partition_info."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("blocks", "fold", "workspace_bytes"))


class ExplainArgs(ctypes.Structure):
    """tfbn_explain_args."""

    _fields_ = (
        *_SIZES,
        *_flags("dtype", "is_training", "in_place", "threads"),
        ("l2_bytes", ctypes.c_int64),
        ("llc_bytes", ctypes.c_int64),
    )


@functools.cache
def _load(path: str) -> ctypes.CDLL:
    lib = ctypes.CDLL(path)
    error: list[Any] = [ctypes.c_char_p, ctypes.c_size_t]
    for function, args in (
        (lib.tfbn_cpu_batch_norm_grad, Args),
        (lib.tfbn_cpu_batch_norm_grad_grad, SecondOrderArgs),
    ):
        function.argtypes = [ctypes.POINTER(args), ctypes.c_char_p, ctypes.c_int, *error]
    lib.tfbn_cpu_implementation.restype = ctypes.c_char_p
    lib.tfbn_cpu_implementation.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
    lib.tfbn_partition.argtypes = [*[ctypes.c_int64] * 3, ctypes.POINTER(PartitionInfo), *error]
    lib.tfbn_last_level_cache_bytes.restype = ctypes.c_int64
    lib.tfbn_explain.argtypes = [
        ctypes.c_char_p,
        ctypes.POINTER(ExplainArgs),
        ctypes.c_char_p,
        *error,  # The JSON text goes into a buffer like that of the error.
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


class Implementation(NamedTuple):
    """One implementation of the CPU backend.

    Attributes:
      name: as TF_BN_OPS_CPU_ISA takes it: "avx2", ..., "reference".
      supported: whether this processor can run it.
    """

    name: str
    supported: bool


def implementations() -> list[Implementation]:
    """All that were built, fastest first; the last is the naive reference.

    Raises:
      LibraryError, OSError: as `library`.
    """
    lib = library()
    supported = ctypes.c_int(0)
    found: list[Implementation] = []
    while name := lib.tfbn_cpu_implementation(len(found), ctypes.byref(supported)):
        found.append(Implementation(name.decode(), bool(supported.value)))
    return found


def supported_implementations() -> list[str]:
    """The names of those that this processor can run, fastest first."""
    return [name for name, supported in implementations() if supported]


def fastest() -> str | None:
    """The one that the ops use on this processor unless ISA_VARIABLE names another."""
    return next(iter(supported_implementations()), None)


def last_level_cache() -> int:
    """The size in bytes of the last-level cache that the kernels plan with.

    Raises:
      LibraryError, OSError: as `library`.
    """
    return int(library().tfbn_last_level_cache_bytes())


def partition(outer: int, channels: int, inner: int) -> PartitionInfo:
    """The fixed partition of a view."""
    info = PartitionInfo()
    error = ctypes.create_string_buffer(256)
    if library().tfbn_partition(outer, channels, inner, info, error, len(error)) != 0:
        raise ValueError(error.value.decode())
    return info


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
    l2_bytes: int = 0,
    llc_bytes: int = 0,
    implementation: str | None = None,
) -> Plan:
    """The plan of a call on the CPU; cache sizes of 0 are those of this machine.

    Raises:
      ValueError: with the library's sentence.
      LibraryError, OSError: as `library`.
    """
    args = ExplainArgs(
        *view, DTYPE_CODES[dtype], is_training, in_place, threads, l2_bytes, llc_bytes
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


@dataclasses.dataclass
class Problem:
    """Inputs of one batch-norm gradient on the view [outer, channels, inner]."""

    y_backprop: np.ndarray  # [outer, channels, inner]
    x: np.ndarray  # the same
    scale: np.ndarray  # [channels], as mean and variance
    mean: np.ndarray
    variance: np.ndarray
    epsilon: float = 1e-3
    is_training: bool = True


@dataclasses.dataclass
class Result:
    """Outputs of one batch-norm gradient."""

    x_backprop: np.ndarray
    scale_backprop: np.ndarray
    offset_backprop: np.ndarray

    def bits(self) -> bytes:
        return b"".join(
            a.tobytes() for a in (self.x_backprop, self.scale_backprop, self.offset_backprop)
        )


def shifted(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins this many elements behind where memory of NumPy's begins."""
    store = np.empty(array.size + offset, array.dtype)
    store[offset:] = array.ravel()
    return store[offset:].reshape(array.shape)


def _shared_fields(p: Problem) -> dict[str, Any]:
    """What the C structs of both orders hold besides pointers."""
    outer, channels, inner = p.x.shape
    return {
        "outer": outer,
        "channels": channels,
        "inner": inner,
        "dtype": DTYPE_CODES[spec.dtype_of(p.x).name],
        "stat_dtype": DTYPE_CODES[spec.dtype_of(p.scale).name],
        "is_training": p.is_training,
        "epsilon": p.epsilon,
    }


def args_of(problem: Problem, result: Result, **overrides: Any) -> Args:
    """The C struct for a problem, writing to `result`; `overrides` replace its fields."""
    p = problem
    fields: dict[str, Any] = {
        **_shared_fields(p),
        "variance_is_rstd": 0,
        "y_backprop": p.y_backprop.ctypes.data,
        "x": p.x.ctypes.data,
        "scale": p.scale.ctypes.data,
        "mean": p.mean.ctypes.data,
        "variance": p.variance.ctypes.data,
        "x_backprop": result.x_backprop.ctypes.data,
        "scale_backprop": result.scale_backprop.ctypes.data,
        "offset_backprop": result.offset_backprop.ctypes.data,
    }
    return Args(**{**fields, **overrides})


def run(
    problem: Problem,
    *,
    implementation: str | None = None,
    threads: int = 1,
    x_backprop: np.ndarray | None = None,
    **overrides: Any,
) -> Result:
    """Runs the CPU backend; `x_backprop` is written if given. Raises ValueError with its sentence.

    `overrides` replace fields of the C struct, for tests of its checks.
    """
    p = problem
    result = Result(
        np.empty_like(p.x) if x_backprop is None else x_backprop,
        np.empty_like(p.scale),
        np.empty_like(p.scale),
    )
    args = args_of(p, result, **overrides)
    _call(library().tfbn_cpu_batch_norm_grad, args, implementation, threads)
    return result


def _call(function: Any, args: Any, implementation: str | None, threads: int) -> None:
    error = ctypes.create_string_buffer(512)
    name = None if implementation is None else implementation.encode()
    if function(args, name, threads, error, ctypes.c_size_t(len(error))) != 0:
        raise ValueError(error.value.decode())


@dataclasses.dataclass
class SecondOrderProblem(Problem):
    """Inputs of one second-order gradient: those of the first order, and what arrives for its
    outputs."""

    x_backprop_grad: np.ndarray = dataclasses.field(kw_only=True)  # [outer, channels, inner]
    scale_backprop_grad: np.ndarray = dataclasses.field(kw_only=True)  # [channels]
    offset_backprop_grad: np.ndarray = dataclasses.field(kw_only=True)  # [channels]

    def arrays(self) -> dict[str, np.ndarray]:
        return {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}


def run_second_order(
    problem: SecondOrderProblem,
    *,
    implementation: str | None = None,
    threads: int = 1,
    outputs: dict[str, np.ndarray] | None = None,
    **overrides: Any,
) -> dict[str, np.ndarray]:
    """As `run`; the results by name. `outputs`: arrays to write to instead of new ones."""
    p = problem
    results = {
        "y_backprop_grad": np.empty_like(p.x),
        "x_grad": np.empty_like(p.x),
        "scale_grad": np.empty_like(p.scale),
        **(outputs or {}),
    }
    fields: dict[str, Any] = {
        **_shared_fields(p),
        **{name: array.ctypes.data for name, array in {**p.arrays(), **results}.items()},
    }
    args = SecondOrderArgs(**{**fields, **overrides})
    _call(library().tfbn_cpu_batch_norm_grad_grad, args, implementation, threads)
    return results
