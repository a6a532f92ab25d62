"""How each library is called: this one's ops, TensorFlow's, PyTorch's; and memory bandwidth.

A class runs in a worker process and imports its library there. It has `load(tensors)`, which keeps
the tensors of a row, flat, by role; `bind(row, statistics)`, which returns what row.call says as
one call; and `outputs(result)`, what that call returned by role, tensors in the row's layout.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import os
import pathlib
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench import bench_inputs
from bench.rows import FORWARD, GRADIENT, Row
from tf_bn_ops import spec

Call = Callable[[], Any]
Arrays = dict[str, np.ndarray]

_GRADIENTS = ("x_backprop", "scale_backprop", "offset_backprop")
_SAVED = ("y", "batch_mean", "batch_variance", "saved_mean", "saved_variance")


class TensorFlow:
    """FusedBatchNormV3 and FusedBatchNormGradV3, eagerly. With ReLU behind batch norm TensorFlow's
    are a chain with AddV2, Relu, ReluGrad; this library's are FusedBatchNormEx and its gradient."""

    def __init__(self, module: str, threads: int):
        """`module` has the ops as `raw_ops`."""
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        self._tf, self._ops = tf, importlib.import_module(module).raw_ops
        self._fuses = module != "tensorflow"

    def facts(self) -> dict[str, str]:
        return {"tensorflow": self._tf.__version__}

    def load(self, tensors: Arrays) -> None:
        self._flat: dict[str, Any] = {}  # Frees the tensors of the last row first.
        self._flat = {role: self._tf.constant(array) for role, array in tensors.items()}

    def bind(self, row: Row, statistics: Arrays) -> Call:
        tf, ops = self._tf, self._ops
        tensors = {role: tf.reshape(tensor, row.dims) for role, tensor in self._flat.items()}
        given = {role: tf.constant(array) for role, array in statistics.items()}
        training, empty = row.mode == "training", tf.zeros([0], tf.float32)
        attrs = dict(epsilon=bench_inputs.EPSILON, data_format=row.layout, is_training=training)
        y_backprop, x, scale, offset = tensors["y_backprop"], tensors["x"], given["scale"], None
        offset = given["offset"]
        # In training mean and variance are not read; a Keras layer gives empty ones, too.
        mean, variance = (empty, empty) if training else (given["mean"], given["variance"])
        forward_inputs = dict(x=x, scale=scale, offset=offset, mean=mean, variance=variance)
        side_inputs = [tensors[role] for role in row.inputs[2:]]
        self._roles = (*_SAVED, *_GRADIENTS, *(f"{role}_backprop" for role in row.inputs[2:]))

        def forward() -> Any:
            return ops.FusedBatchNormV3(**forward_inputs, **attrs)[:6]

        def gradient(masked: Any, mean: Any, variance: Any, third: Any) -> Any:
            return ops.FusedBatchNormGradV3(
                y_backprop=masked, x=x, scale=scale, reserve_space_1=mean,
                reserve_space_2=variance, reserve_space_3=third, **attrs,
            )[:3]  # fmt: skip

        def layer() -> Any:
            saved = forward()
            return (*saved[:5], *gradient(y_backprop, *saved[3:6]))

        def chain() -> Any:
            y, *saved = forward()
            for side_input in side_inputs:
                y = tf.raw_ops.AddV2(x=y, y=side_input)
            y = tf.raw_ops.Relu(features=y)
            masked = tf.raw_ops.ReluGrad(gradients=y_backprop, features=y)
            return (y, *saved[:4], *gradient(masked, *saved[2:5]), *(masked for _ in side_inputs))

        def fused() -> Any:
            y, *saved = ops.FusedBatchNormEx(
                **forward_inputs, side_input=side_inputs, activation_mode="Relu", **attrs
            )[:6]
            found = ops.FusedBatchNormGradEx(
                y_backprop=y_backprop, x=x, scale=scale, offset=offset, y=y,
                reserve_space_1=saved[2], reserve_space_2=saved[3], reserve_space_3=saved[4],
                num_side_inputs=len(side_inputs), activation_mode="Relu", **attrs,
            )  # fmt: skip
            return (y, *saved[:4], *found[:3], *found.side_input_backprop)

        if row.call == GRADIENT:
            self._roles = _GRADIENTS
            saved = given["mean"], given["variance"], empty
            return lambda: gradient(y_backprop, *saved)
        if row.call == FORWARD:
            self._roles = _SAVED
            return forward
        return (fused if self._fuses else chain) if row.activated else layer

    def outputs(self, result: Any) -> Arrays:
        return {role: tensor.numpy() for role, tensor in zip(self._roles, result, strict=False)}


class Torch:
    """native_batch_norm and its backward; NHWC is the memory format channels_last. An addition and
    ReLU are in place, as in torchvision's networks: the backward pass does not read y."""

    def __init__(self, threads: int):
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(threads)

    def facts(self) -> dict[str, str]:
        return {"torch": self._torch.__version__}

    def _tensor(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # NumPy's is not known to PyTorch.
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def load(self, tensors: Arrays) -> None:
        self._flat = {role: self._tensor(array) for role, array in tensors.items()}

    def bind(self, row: Row, statistics: Arrays) -> Call:
        self._row, aten, epsilon = row, self._torch.ops.aten, bench_inputs.EPSILON
        tensors = {role: tensor.view(row.dims) for role, tensor in self._flat.items()}
        if row.channels_last:  # Seen as NCHW, in memory as it was.
            tensors = {role: tensor.movedim(-1, 1) for role, tensor in tensors.items()}
        y_backprop, x = tensors["y_backprop"], tensors["x"]
        side_inputs = [tensors[role] for role in row.inputs[2:]]
        given = {role: self._torch.from_numpy(array) for role, array in statistics.items()}
        scale, offset, training = given["scale"], given["offset"], row.mode == "training"
        running = given["mean"], given["variance"]
        saved = (
            (running[0], 1 / self._torch.sqrt(running[1] + epsilon)) if training else (None,) * 2
        )
        if row.call != GRADIENT and training:
            running = None, None
        op, backward = aten.native_batch_norm, aten.native_batch_norm_backward
        self._roles = ("y", "saved_mean", "saved_rstd", *_GRADIENTS, "side_input_backprop")

        def forward() -> Any:
            return op(x, scale, offset, *running, training, 0.1, epsilon)

        def gradient(masked: Any, mean: Any, rstd: Any) -> Any:
            return backward(masked, x, scale, *running, mean, rstd, training, epsilon, [True] * 3)

        def layer() -> Any:
            first = forward()
            return (*first, *gradient(y_backprop, *first[1:]))

        def activated_layer() -> Any:
            y, mean, rstd = forward()
            for side_input in side_inputs:
                y.add_(side_input)
            self._torch.relu_(y)
            masked = aten.threshold_backward(y_backprop, y, 0)
            return (y, mean, rstd, *gradient(masked, mean, rstd), *(masked for _ in side_inputs))

        if row.call == GRADIENT:
            self._roles = _GRADIENTS
            return lambda: gradient(y_backprop, *saved)
        if row.call == FORWARD:
            return forward
        return activated_layer if row.activated else layer

    def outputs(self, result: Any) -> Arrays:
        found = {}
        for role, tensor in zip(self._roles, result, strict=False):
            if self._row.channels_last and tensor.ndim > 1:
                tensor = tensor.movedim(1, -1)
            tensor = tensor.contiguous()
            if tensor.dtype == self._torch.bfloat16:
                array = tensor.view(self._torch.int16).numpy().view(spec.DTYPES["bfloat16"].numpy)
            else:
                array = tensor.numpy()
            if array.size:  # Frozen, PyTorch saves nothing.
                found[role] = array
        return found


def bandwidth_library() -> pathlib.Path:
    """The library of memory_bandwidth.cc, compiled by $CXX where it is older than its source."""
    source = pathlib.Path(__file__).parents[1] / "memory_bandwidth.cc"
    library = source.parents[1] / "build" / "bench" / "libmemory_bandwidth.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        flags = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
        new = library.with_suffix(f".{os.getpid()}")
        subprocess.run([*compiler, *flags, "-o", new, source], check=True)
        new.replace(library)
    return library


class MemoryBandwidth:
    """Passes over tensors of the size of a row's, reads and writes alone: the limit of all."""

    def __init__(self, threads: int):
        self._library, self._threads = ctypes.CDLL(str(bandwidth_library())), threads
        pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        self._library.tfbn_bandwidth_mix.argtypes = [*[pointer] * 3, size, number, number]
        self._library.tfbn_bandwidth_copy.argtypes = [*[pointer] * 2, size, number, number]
        self._library.tfbn_bandwidth_sum.argtypes = [*[pointer] * 2, size, number]
        self._library.tfbn_bandwidth_sum.restype = ctypes.c_uint64

    def facts(self) -> dict[str, str]:
        return {}

    def load(self, tensors: Arrays) -> None:
        self._in = list(tensors.values())[:2]  # A pass over a third one is one over these again.
        self.out = bench_inputs.aligned_empty(self._in[0].nbytes)
        self.out[:] = 0  # Maps its pages.

    def passes(self) -> dict[str, list[Call]]:
        """Pass over memory -> calls that make it; writes with either store policy."""
        a, b, c = (array.ctypes.data for array in (*self._in, self.out))
        size, threads, library = self._in[0].nbytes, self._threads, self._library
        mix, copy, add = (getattr(library, f"tfbn_bandwidth_{n}") for n in ("mix", "copy", "sum"))
        half = size // 2  # One tensor is read as two halves.
        return {
            "2r1w": [lambda nt=nt: mix(a, b, c, size, nt, threads) for nt in (1, 0)],
            "2r": [lambda: add(a, b, size, threads)],
            "1r1w": [lambda nt=nt: copy(b, c, size, nt, threads) for nt in (1, 0)],
            "1r": [lambda: add(b, b + half, half, threads)],
        }


@dataclasses.dataclass(frozen=True)
class Entry:
    """An implementation, as described to the parent process.

    Attributes:
      name, label: on the command line and in JSON; in tables and plots.
      make: constructs it, in the worker, for a number of threads.
      environment: variables of the worker; None removes one.
      module: the Python module that it needs.
    """

    name: str
    label: str
    make: Callable[[int], Any]
    environment: Mapping[str, str | None]
    module: str = "tensorflow"


CANDIDATE, MEMORY_BANDWIDTH = "tf_bn_ops", "memory_bandwidth"
_DEFAULT = {"TF_ENABLE_ONEDNN_OPTS": None}
ENTRIES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(CANDIDATE, "tf_bn_ops", lambda n: TensorFlow("tf_bn_ops", n), _DEFAULT),
        Entry("tensorflow", "TensorFlow", lambda n: TensorFlow("tensorflow", n), _DEFAULT),
        Entry(
            "eigen",
            "TensorFlow, oneDNN off",
            lambda n: TensorFlow("tensorflow", n),
            {"TF_ENABLE_ONEDNN_OPTS": "0"},
        ),
        Entry("torch", "PyTorch", Torch, {}, "torch"),
        Entry(MEMORY_BANDWIDTH, "bandwidth limit", MemoryBandwidth, {}, "numpy"),
    )
}
PEERS = ("tensorflow", "eigen", "torch")
