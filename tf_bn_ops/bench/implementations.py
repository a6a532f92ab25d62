"""The implementations that are measured: this library's op, its peers, memory bandwidth.

ENTRIES is the table. Classes run in a worker process and import their library there. An
implementation has

    facts() -> dict                      versions
    load(flat y_backprop, flat x)        keeps the tensors of a row; may be called again
    bind(row, statistics) -> callable    one call, complete when it returns
    outputs(result) -> arrays            x_backprop in the row's layout, scale_, offset_backprop
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from tf_bn_ops import _loader, spec
from tf_bn_ops.bench import data
from tf_bn_ops.bench.shapes import Row

Call = Callable[[], Any]

MEMORY_BANDWIDTH_LIBRARY = "libtf_bn_ops_memory_bandwidth.so"


class Unavailable(Exception):
    """The implementation cannot run here, or not this row; the message says why."""


class Implementation(Protocol):
    def facts(self) -> dict[str, str]: ...

    def load(self, y_backprop: np.ndarray, x: np.ndarray) -> None: ...

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call: ...

    def outputs(self, result: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise Unavailable(f"{package} is not installed ({e})") from e


class TensorFlow:
    """FusedBatchNormGradV3, called eagerly: the op that TensorFlow's gradients call."""

    def __init__(self, ops: str, threads: int):
        self._tf = _import("tensorflow", "TensorFlow")
        self._tf.config.threading.set_intra_op_parallelism_threads(threads)
        module, _, attribute = ops.partition(":")
        self._op = getattr(importlib.import_module(module), attribute).FusedBatchNormGradV3

    def facts(self) -> dict[str, str]:
        return {"tensorflow": self._tf.__version__}

    def load(self, y_backprop: np.ndarray, x: np.ndarray) -> None:
        self._flat = None  # Frees the tensors of the last row.
        self._flat = tuple(self._tf.constant(array) for array in (y_backprop, x))

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        tf, op = self._tf, self._op
        assert self._flat is not None
        y_backprop, x = (tf.reshape(tensor, row.dims) for tensor in self._flat)
        given = {
            "y_backprop": y_backprop,
            "x": x,
            "scale": tf.constant(statistics["scale"]),
            "reserve_space_1": tf.constant(statistics["mean"]),
            "reserve_space_2": tf.constant(statistics["variance"]),
            "reserve_space_3": tf.zeros([0], tf.float32),
            "epsilon": data.EPSILON,
            "data_format": row.layout,
            "is_training": row.mode == "training",
        }
        return lambda: op(**given)

    def empty_call(self) -> Call:
        """An op without work on as many tensors: the overhead of an eager call."""
        tensors = [self._tf.zeros([1], self._tf.float32) for _ in range(6)]
        return lambda: self._tf.raw_ops.IdentityN(input=tensors)

    def outputs(self, result: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x_backprop, scale_backprop, offset_backprop = (tensor.numpy() for tensor in result[:3])
        return x_backprop, scale_backprop, offset_backprop


class Torch:
    """native_batch_norm_backward; NHWC is the memory format channels_last."""

    def __init__(self, threads: int):
        self._torch = _import("torch", "PyTorch")
        self._torch.set_num_threads(threads)
        self._op = self._torch.ops.aten.native_batch_norm_backward
        self._flat: tuple[Any, ...] | None = None

    def facts(self) -> dict[str, str]:
        return {"torch": self._torch.__version__}

    def _tensor(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # NumPy's is not known to PyTorch.
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def load(self, y_backprop: np.ndarray, x: np.ndarray) -> None:
        self._flat = None
        self._flat = tuple(self._tensor(array) for array in (y_backprop, x))

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        torch, op = self._torch, self._op
        assert self._flat is not None
        self._row = row
        y_backprop, x = (tensor.view(row.dims) for tensor in self._flat)
        if row.channels_last:  # Seen as NCHW, in memory as it was.
            y_backprop, x = (tensor.movedim(-1, 1) for tensor in (y_backprop, x))
        scale, mean, variance = (
            torch.from_numpy(statistics[name]) for name in ("scale", "mean", "variance")
        )
        rstd = 1 / torch.sqrt(variance + data.EPSILON)
        training = row.mode == "training"
        given = (
            y_backprop, x, scale, mean, variance, mean if training else None,
            rstd if training else None, training, data.EPSILON, [True, True, True],
        )  # fmt: skip
        return lambda: op(*given)

    def outputs(self, result: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x_backprop, scale_backprop, offset_backprop = result
        if self._row.channels_last:
            x_backprop = x_backprop.movedim(1, -1)
        x_backprop = x_backprop.contiguous()
        if x_backprop.dtype == self._torch.bfloat16:
            bits = x_backprop.view(self._torch.int16).numpy()
            array = bits.view(spec.DTYPES["bfloat16"].numpy)
        else:
            array = x_backprop.numpy()
        return array, scale_backprop.numpy(), offset_backprop.numpy()


class Jax:
    """The formulas under jax.jit, computed in float32; mean and variance are inputs."""

    def __init__(self, threads: int):
        # XLA starts a thread per CPU of the affinity mask, which the worker has set.
        del threads
        self._jax = _import("jax", "JAX")
        jnp = importlib.import_module("jax.numpy")

        def gradient(
            dy: Any, x: Any, scale: Any, mean: Any, variance: Any, axis: int, training: bool
        ) -> Any:
            axes = tuple(i for i in range(x.ndim) if i != axis)
            per_channel = tuple(-1 if i == axis else 1 for i in range(x.ndim))
            rstd = 1 / jnp.sqrt(variance + data.EPSILON)
            wide = dy.astype(jnp.float32)
            xmu = x.astype(jnp.float32) - mean.reshape(per_channel)
            offset_backprop = jnp.sum(wide, axes)
            dot = jnp.sum(wide * xmu, axes)
            inside = wide
            if training:
                count = x.size // x.shape[axis]
                inside = wide - (offset_backprop / count).reshape(per_channel)
                inside = inside - xmu * (rstd * rstd * dot / count).reshape(per_channel)
            x_backprop = (scale * rstd).reshape(per_channel) * inside
            return x_backprop.astype(x.dtype), rstd * dot, offset_backprop

        self._gradient = self._jax.jit(gradient, static_argnums=(5, 6))
        self._flat: tuple[Any, ...] | None = None

    def facts(self) -> dict[str, str]:
        return {"jax": self._jax.__version__}

    def load(self, y_backprop: np.ndarray, x: np.ndarray) -> None:
        self._flat = None
        self._flat = tuple(self._jax.device_put(array) for array in (y_backprop, x))

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        assert self._flat is not None
        y_backprop, x = (array.reshape(row.dims) for array in self._flat)
        given = [self._jax.device_put(statistics[name]) for name in ("scale", "mean", "variance")]
        axis = len(row.dims) - 1 if row.channels_last else 1
        compiled = self._gradient.lower(
            y_backprop, x, *given, axis, row.mode == "training"
        ).compile()
        wait = self._jax.block_until_ready
        return lambda: wait(compiled(y_backprop, x, *given))

    def outputs(self, result: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x_backprop, scale_backprop, offset_backprop = (np.asarray(array) for array in result)
        return x_backprop, scale_backprop, offset_backprop


class MemoryBandwidth:
    """Reads and writes alone (cc/bench/memory_bandwidth.cc): the limit of all others."""

    def __init__(self, threads: int):
        path = pathlib.Path(_loader.core_library_path()).with_name(MEMORY_BANDWIDTH_LIBRARY)
        if not path.is_file():
            raise Unavailable(f"{path.name} is missing, which `make bench` builds")
        self._library = ctypes.CDLL(str(path))
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._library.tfbn_bandwidth_mix.argtypes = [*[pointer] * 3, size, *[ctypes.c_int] * 2]
        self._library.tfbn_bandwidth_mix.restype = None
        self._library.tfbn_bandwidth_sum.argtypes = [*[pointer] * 2, size, ctypes.c_int]
        self._library.tfbn_bandwidth_sum.restype = ctypes.c_uint64
        self._threads = threads

    def facts(self) -> dict[str, str]:
        return {}

    def load(self, y_backprop: np.ndarray, x: np.ndarray) -> None:
        self._in = (y_backprop, x)
        self._out = np.zeros(x.nbytes + 64, np.uint8)

    def variants(self) -> dict[str, Call]:
        """Passes over memory -> a call that makes them; writes with either store policy."""
        a, b = (array.ctypes.data for array in self._in)
        c = self._out.ctypes.data + -self._out.ctypes.data % 64
        size, threads, library = self._in[0].nbytes, self._threads, self._library
        return {
            "2r1w non_temporal": lambda: library.tfbn_bandwidth_mix(a, b, c, size, 1, threads),
            "2r1w temporal": lambda: library.tfbn_bandwidth_mix(a, b, c, size, 0, threads),
            "2r": lambda: library.tfbn_bandwidth_sum(a, b, size, threads),
        }

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        raise NotImplementedError

    def outputs(self, result: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        raise NotImplementedError


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
    """

    name: str
    label: str
    make: Callable[[int], Implementation]
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    module: str = "tensorflow"
    bounds: str = "textbook"


CANDIDATE = "tf_bn_ops"
MEMORY_BANDWIDTH = "memory_bandwidth"

ENTRIES: Mapping[str, Entry] = {
    e.name: e
    for e in (
        Entry(
            CANDIDATE,
            "tf_bn_ops",
            lambda threads: TensorFlow("tf_bn_ops:raw_ops", threads),
            {"TF_ENABLE_ONEDNN_OPTS": None},
            bounds="strict",
        ),
        Entry(
            "tensorflow",
            "TensorFlow",
            lambda threads: TensorFlow("tensorflow:raw_ops", threads),
            {"TF_ENABLE_ONEDNN_OPTS": None},
        ),
        Entry(
            "eigen",
            "TensorFlow, oneDNN off",
            lambda threads: TensorFlow("tensorflow:raw_ops", threads),
            {"TF_ENABLE_ONEDNN_OPTS": "0"},
        ),
        Entry("torch", "PyTorch", Torch, module="torch"),
        Entry("jax", "JAX", Jax, {"JAX_PLATFORMS": "cpu"}, module="jax"),
        Entry(MEMORY_BANDWIDTH, "bandwidth limit", MemoryBandwidth, module="numpy"),
    )
}
PEERS = tuple(name for name in ENTRIES if name not in (CANDIDATE, MEMORY_BANDWIDTH))
