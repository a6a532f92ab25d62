"""The library's C ABI (cc/c_api/tf_bn_ops_c.h) through ctypes: the structs, and calls in NumPy.

Needs the core library alone, no TensorFlow. The structs are declared here and in split_c_abi.py
(those of the split ops) and nowhere else; the drivers of tools/gpu fill them with addresses of
device memory.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tf_bn_ops import _loader, spec
from tf_bn_ops.harness.problems import ACTIVATIONS, VIEW_ROLES, Problem

# Forces a CPU implementation by its name; read by the library.
ISA_VARIABLE = "TF_BN_OPS_CPU_ISA"

# The values of the TFBN_ enumeration, by name.
DTYPE_CODES = {dtype.name: dtype.c_abi_code for dtype in spec.DTYPES.values()}

ACTIVATION_CODES = {name: code for code, name in enumerate(ACTIVATIONS)}

# The first fields of every struct that has a view.
SIZES = tuple((name, ctypes.c_int64) for name in ("outer", "channels", "inner"))


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
# The same of tfbn_batch_norm_grad_ex_args.
EX_POINTERS = (
    *POINTERS[:5],
    "y",
    "offset",
    "forward_coefficients",
    *POINTERS[5:],
    "side_input_backprop",
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
# The same of tfbn_batch_norm_args.
FORWARD_POINTERS = (
    "x",
    "side_input",
    "scale",
    "offset",
    "mean",
    "variance",
    "y",
    "batch_mean",
    "batch_variance",
    "saved_mean",
    "saved_variance",
    "forward_coefficients",
)


class Args(ctypes.Structure):
    """tfbn_batch_norm_grad_args."""

    call = "batch_norm_grad"

    _fields_ = (
        *SIZES,
        *_flags("dtype", "stat_dtype", "is_training", "variance_is_rstd"),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in POINTERS),
    )


class ExArgs(ctypes.Structure):
    """tfbn_batch_norm_grad_ex_args."""

    call = "batch_norm_grad_ex"

    _fields_ = (
        *SIZES,
        *_flags("dtype", "stat_dtype", "is_training", "variance_is_rstd", "activation"),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in EX_POINTERS),
    )


class SecondOrderArgs(ctypes.Structure):
    """tfbn_batch_norm_grad_grad_args."""

    call = "batch_norm_grad_grad"

    _fields_ = (
        *SIZES,
        *_flags("dtype", "stat_dtype", "is_training"),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in SECOND_ORDER_POINTERS),
    )


class ForwardArgs(ctypes.Structure):
    """tfbn_batch_norm_args."""

    call = "batch_norm"

    _fields_ = (
        *SIZES,
        *_flags("dtype", "stat_dtype", "is_training", "bessel_correction", "saves_rstd"),
        *_flags("activation"),
        ("epsilon", ctypes.c_double),
        ("exponential_avg_factor", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in FORWARD_POINTERS),
    )


class PartitionInfo(ctypes.Structure):
    """tfbn_partition_info."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("blocks", "fold", "workspace_bytes"))


class ExplainArgs(ctypes.Structure):
    """tfbn_explain_args."""

    _fields_ = (
        *SIZES,
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
        (lib.tfbn_cpu_batch_norm_grad_ex, ExArgs),
        (lib.tfbn_cpu_batch_norm_grad_grad, SecondOrderArgs),
        (lib.tfbn_cpu_batch_norm, ForwardArgs),
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


def shifted(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins this many elements behind where memory of NumPy's begins."""
    store = np.empty(array.size + offset, array.dtype)
    store[offset:] = array.ravel()
    return store[offset:].reshape(array.shape)


_PAGE_BYTES = 4096


def placed(array: np.ndarray, page_offset: int) -> np.ndarray:
    """A copy whose address is this many bytes behind a multiple of 4 KiB."""
    store = np.empty(array.nbytes + _PAGE_BYTES + page_offset, np.uint8)
    begin = -store.ctypes.data % _PAGE_BYTES + page_offset
    copy = store[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@dataclasses.dataclass(frozen=True)
class _Formula:
    """How a formula is called: its struct, and the roles of its pointers."""

    struct: type[ctypes.Structure]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


FORMULAS = {
    spec.ops.BATCH_NORM_GRAD: _Formula(Args, POINTERS[:5], POINTERS[5:]),
    spec.ops.BATCH_NORM_GRAD_EX: _Formula(ExArgs, EX_POINTERS[:8], EX_POINTERS[8:]),
    spec.ops.BATCH_NORM_GRAD_GRAD: _Formula(
        SecondOrderArgs,
        SECOND_ORDER_POINTERS[:8],
        SECOND_ORDER_POINTERS[8:],
    ),
    **dict.fromkeys(
        (spec.ops.BATCH_NORM, spec.ops.BATCH_NORM_ADD),
        _Formula(ForwardArgs, FORWARD_POINTERS[:6], FORWARD_POINTERS[6:]),
    ),
}


def has_call(formula: str) -> bool:
    """Whether the C ABI computes a formula, here or in split_c_abi.py."""
    return formula in FORMULAS or formula in spec.ops.PARTS


def required_outputs(problem: Problem) -> tuple[str, ...]:
    """The roles of the outputs of a problem that are no option: not the forward's coefficients, and
    the gradient of a side input where there was one."""
    optional = {"forward_coefficients"}
    if not problem.num_side_inputs:
        optional.add("side_input_backprop")
    return tuple(role for role in FORMULAS[problem.formula].outputs if role not in optional)


def _parts() -> Any:
    """The module of the parts of synchronised batch normalization, which is built on this one."""
    from tf_bn_ops.harness import split_c_abi

    return split_c_abi


def new_outputs(
    problem: Problem, fill: float | None = None, given: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Arrays for the outputs of a problem, by role: those that are given, and new ones, filled with
    a number if there is one. The forward's coefficients are stored where an array is given."""
    if problem.is_part:
        return {**_parts().new_outputs(problem, fill), **(given or {})}
    outputs = dict(given or {})
    for role in set(required_outputs(problem)) - set(outputs):
        like = problem["x"] if role in VIEW_ROLES else problem["scale"]
        outputs[role] = np.empty_like(like) if fill is None else np.full_like(like, fill)
    return outputs


def function_of(args: Any, backend: str) -> str:
    """The function of the C ABI that takes `args`, or structs of this type: that of backend "cpu",
    "cuda" or "emulate"."""
    return f"tfbn_{backend}_{args.call}"


def args_of(problem: Problem, outputs: Mapping[str, np.ndarray], **overrides: Any) -> Any:
    """The C struct for a problem, writing to `outputs`; `overrides` replace its fields."""
    arrays = {**problem.values, **outputs}
    addresses = {role: array.ctypes.data for role, array in arrays.items()}
    return args_at(problem, addresses, **overrides)


def args_at(problem: Problem, addresses: Mapping[str, int], **overrides: Any) -> Any:
    """The C struct for a problem whose arrays are at `addresses`, by role; `overrides` replace its
    fields."""
    formula = FORMULAS[problem.formula]
    outer, channels, inner = problem.view
    fields: dict[str, Any] = {
        "outer": outer,
        "channels": channels,
        "inner": inner,
        "dtype": DTYPE_CODES[problem.dtype.name],
        "stat_dtype": DTYPE_CODES[problem.statistics_dtype.name],
        "is_training": problem.is_training,
        "epsilon": problem.epsilon,
    }
    if formula.struct in (Args, ExArgs):
        fields["variance_is_rstd"] = int(problem.variance_is_rstd)
    if formula.struct is ForwardArgs:
        for name in ("bessel_correction", "saves_rstd", "exponential_avg_factor"):
            fields[name] = getattr(problem, name)
    if formula.struct in (ForwardArgs, ExArgs):
        fields["activation"] = ACTIVATION_CODES[problem.activation]
    # NULL: there is no such array.
    given = [role for role in (*formula.inputs, *formula.outputs) if role in addresses]
    coefficients = problem.values.get("forward_coefficients")
    if (
        coefficients is not None
        and coefficients.size != spec.ops.NUM_FORWARD_COEFFICIENTS * channels
    ):
        given.remove("forward_coefficients")  # As the op does.
    fields |= {role: addresses[role] for role in given}
    return formula.struct(**{**fields, **overrides})


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
    if problem.is_part:
        assert not overrides, "fields of parts are those of split_c_abi's structs"
        how = _parts().How(implementation, threads)
        return dict(_parts().run(problem, how, results))
    args = args_of(problem, results, **overrides)
    error = ctypes.create_string_buffer(512)
    name = None if implementation is None else implementation.encode()
    function = getattr(library(), function_of(args, "cpu"))
    if function(args, name, threads, error, ctypes.c_size_t(len(error))) != 0:
        raise ValueError(error.value.decode())
    return results


def bits(outputs: Mapping[str, np.ndarray]) -> bytes:
    """All outputs as bytes, to compare them bitwise."""
    return b"".join(outputs[role].tobytes() for role in sorted(outputs))
