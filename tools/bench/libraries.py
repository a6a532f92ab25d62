"""How each library is called: this one's ops, TensorFlow's, PyTorch's; memory bandwidth; a timer.

A class runs in a worker process and imports its library there. It has `load(tensors)`, which keeps
the tensors of a row, flat, by role; `bind(row, statistics)`, which returns what row.call says as
one call; `outputs(result)`, what that call returned by role, tensors in the row's layout; and
`facts`, the versions of its libraries.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import math
import os
import pathlib
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bench.rows import EPSILON, Row
from tf_bn_ops import spec
from tf_bn_ops.harness import builtin, c_abi

Call = Callable[[], Any]
Arrays = dict[str, np.ndarray]

_GRADIENTS = ("x_backprop", "scale_backprop", "offset_backprop")
_SAVED = ("y", "batch_mean", "batch_variance", "saved_mean", "saved_variance")


def _roles(row: Row, saved: tuple[str, ...]) -> tuple[str, ...]:
    """What a call returns, after what of the forward op."""
    gradients = (*_GRADIENTS, "side_input_backprop") if row.call.gradient else ()
    return (*saved, *gradients) if row.call.forward else gradients


# Least length of a sample: the clock's resolution and an interrupt are small against it.
_SAMPLE_SECONDS = 2e-3
# A call this long is not warmed up: its own data evicts whatever was in the caches.
_NO_WARM_UP_SECONDS = 0.05


class Timer:
    """A call, and an estimate of how long it takes."""

    def __init__(self, call: Call):
        """Warms it up: the first calls allocate and start threads."""
        self._call, end = call, time.perf_counter() + 0.2
        for _ in range(4):
            self._seconds = 1.0  # One call is a sample.
            self.sample()
            if time.perf_counter() > end:
                break

    def sample(self) -> float:
        """Seconds per call: the mean of the calls that fill _SAMPLE_SECONDS."""
        call, clock = self._call, time.perf_counter
        inner = range(math.ceil(_SAMPLE_SECONDS / self._seconds))
        start = clock()
        for _ in inner:
            call()
        self._seconds = max((clock() - start) / len(inner), 1e-7)
        return self._seconds

    def visit(self, seconds: float) -> list[float]:
        """As many samples as fit, at least one."""
        if self._seconds < _NO_WARM_UP_SECONDS:
            self._call()
        samples: list[float] = []
        end = time.perf_counter() + seconds
        gc.disable()
        try:
            while not samples or time.perf_counter() + self._seconds < end:
                samples.append(self.sample())
        finally:
            gc.enable()
        return samples


class TensorFlow:
    """FusedBatchNormV3 and FusedBatchNormGradV3, eagerly. With ReLU behind batch norm TensorFlow's
    are a chain with AddV2, Relu, ReluGrad; this library's are FusedBatchNormEx and its gradient. Or
    fused_batch_norm and its gradient."""

    def __init__(self, module: str, threads: int):
        """`module` has the ops as `raw_ops`."""
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        self._tf, self._module = tf, importlib.import_module(module)
        self._ops, self._is_peer = self._module.raw_ops, module == "tensorflow"
        if self._is_peer:
            builtin.check_kernels()
        self.facts = {"tensorflow": tf.__version__}

    def load(self, tensors: Arrays) -> None:
        self._flat: dict[str, Any] = {}  # Frees the tensors of the last row first.
        self._flat = {role: self._tf.constant(array) for role, array in tensors.items()}

    def bind(self, row: Row, statistics: Arrays) -> Call:
        tf, ops = self._tf, self._ops
        tensors = {role: tf.reshape(tensor, row.shape) for role, tensor in self._flat.items()}
        given = {role: tf.constant(array) for role, array in statistics.items()}
        training, empty = row.mode == "training", tf.zeros([0], tf.float32)
        attrs = dict(epsilon=EPSILON, data_format=row.layout, is_training=training)
        y_backprop, x = tensors["y_backprop"], tensors["x"]
        scale, offset = given["scale"], given["offset"]
        # In training mean and variance are not read; a Keras layer gives empty ones, too.
        mean, variance = (empty, empty) if training else (given["mean"], given["variance"])
        forward_inputs = dict(x=x, scale=scale, offset=offset, mean=mean, variance=variance)
        side_inputs = list(tensors.values())[2:]
        self._roles = _roles(row, _SAVED)

        def forward() -> Any:
            return ops.FusedBatchNormV3(**forward_inputs, **attrs)[:6]

        def gradient(masked: Any, mean: Any, variance: Any, third: Any) -> Any:
            return ops.FusedBatchNormGradV3(
                y_backprop=masked, x=x, scale=scale, reserve_space_1=mean,
                reserve_space_2=variance, reserve_space_3=third, **attrs,
            )[:3]  # fmt: skip

        def layer() -> Any:
            (y, *saved), masked = forward(), y_backprop
            if row.call.activated:
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

        if row.call.function:
            owner = tf.compat.v1.nn if self._is_peer else self._module
            frozen = {} if training else dict(mean=mean, variance=variance)
            call = functools.partial(owner.fused_batch_norm, **attrs, **frozen)
            # What the function computes beside y, and does not return all of.
            saved = forward()[1:5] if training else (mean, variance) * 2

            def function() -> Any:
                return (call(x, scale, offset)[0], *saved)

            def function_gradient() -> Any:
                with tf.GradientTape() as tape:
                    tape.watch((x, scale, offset))
                    y = call(x, scale, offset)[0]
                return (y, *saved, *tape.gradient(y, (x, scale, offset), y_backprop))

            return function_gradient if row.call.gradient else function
        if not row.call.forward:
            return lambda: gradient(y_backprop, given["mean"], given["variance"], empty)
        if not row.call.gradient:
            return forward
        return fused if row.call.activated and not self._is_peer else layer

    def outputs(self, result: Any) -> Arrays:
        return {role: tensor.numpy() for role, tensor in zip(self._roles, result, strict=False)}


class Torch:
    """native_batch_norm and its backward; NHWC is the memory format channels_last. An addition and
    ReLU are in place, as in torchvision's networks: the backward pass does not read y."""

    def __init__(self, threads: int):
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(threads)
        self.facts = {"torch": self._torch.__version__}

    def _tensor(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # NumPy's is not known to PyTorch.
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def load(self, tensors: Arrays) -> None:
        self._flat = {role: self._tensor(array) for role, array in tensors.items()}

    def bind(self, row: Row, statistics: Arrays) -> Call:
        if row.call.function:
            raise NotImplementedError("PyTorch's ops alone are measured")
        self._row, aten, epsilon = row, self._torch.ops.aten, EPSILON
        tensors = {role: tensor.view(row.shape) for role, tensor in self._flat.items()}
        if row.channels_last:  # Seen as NCHW, in memory as it was.
            tensors = {role: tensor.movedim(-1, 1) for role, tensor in tensors.items()}
        y_backprop, x = tensors["y_backprop"], tensors["x"]
        side_inputs = list(tensors.values())[2:]
        given = {role: self._torch.from_numpy(array) for role, array in statistics.items()}
        scale, offset, training = given["scale"], given["offset"], row.mode == "training"
        # The forward op is called in training only, without running statistics.
        running = (given["mean"], given["variance"]) if not row.call.forward else (None, None)
        rstd = 1 / self._torch.sqrt(given["variance"] + epsilon)
        saved = (given["mean"], rstd) if training else (None, None)
        self._roles = _roles(row, ("y", "saved_mean", "saved_rstd"))

        def forward() -> Any:
            op = aten.native_batch_norm
            return op(x, scale, offset, *running, training, 0.1, epsilon)

        def gradient(masked: Any, mean: Any, rstd: Any) -> Any:
            op = aten.native_batch_norm_backward
            return op(masked, x, scale, *running, mean, rstd, training, epsilon, [True] * 3)

        def layer() -> Any:
            (y, mean, rstd), masked = forward(), y_backprop
            if row.call.activated:
                for side_input in side_inputs:
                    y.add_(side_input)
                self._torch.relu_(y)
                masked = aten.threshold_backward(y_backprop, y, 0)
            return (y, mean, rstd, *gradient(masked, mean, rstd), *(masked for _ in side_inputs))

        if not row.call.forward:
            return lambda: gradient(y_backprop, *saved)
        return layer if row.call.gradient else forward

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
    """The least traffic of a row, reads and writes alone: the limit of all."""

    facts: Mapping[str, str] = {}

    def __init__(self, threads: int):
        self._pass, self._threads = (
            ctypes.CDLL(str(bandwidth_library())).tfbn_bandwidth_pass,
            threads,
        )
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self._pass.argtypes = [*[pointer] * 3, ctypes.c_int64, *[number] * 4]
        self._pass.restype = ctypes.c_uint64

    def load(self, tensors: Arrays) -> None:
        self._in = list(tensors.values())[:2]  # A pass over a third one is one over these again.
        self.out = c_abi.placed(np.zeros_like(self._in[0]), 64)  # Its pages are mapped.

    def calls(self, reads: int, writes: int) -> list[Call]:
        """Calls that make a pass, with either store policy."""
        a, b, c = (array.ctypes.data for array in (*self._in, self.out))
        how = a, b, c, self.out.nbytes, reads, writes, self._threads
        return [lambda: self._pass(*how, 0), *[lambda: self._pass(*how, 1)] * writes]

    def bind(self, row: Row, statistics: Arrays) -> Call:
        """All passes of the row, one after the other, each with the faster store policy."""
        del statistics
        passes = row.passes(c_abi.last_level_cache())
        fastest = {
            one: min(self.calls(*one), key=lambda call: min(Timer(call).visit(0.01)))
            for one in set(passes)
        }
        calls = [fastest[one] for one in passes]

        def all_passes() -> None:
            for call in calls:
                call()

        return all_passes


class Entry(NamedTuple):
    """An implementation: its name in tables, what constructs it in its process for a number of
    threads, and variables of that process."""

    label: str
    make: Callable[[int], Any]
    environment: Mapping[str, str] = {}


CANDIDATE, MEMORY_BANDWIDTH = "tf_bn_ops", "memory_bandwidth"
PEERS = ("tensorflow", "eigen", "torch")
_EIGEN = {"TF_ENABLE_ONEDNN_OPTS": "0"}
# By the names on the command line and in JSON.
ENTRIES: Mapping[str, Entry] = {
    CANDIDATE: Entry("tf_bn_ops", lambda threads: TensorFlow("tf_bn_ops", threads)),
    "tensorflow": Entry("TensorFlow", lambda threads: TensorFlow("tensorflow", threads)),
    "eigen": Entry("TensorFlow, oneDNN off", lambda n: TensorFlow("tensorflow", n), _EIGEN),
    "torch": Entry("PyTorch", Torch),
    MEMORY_BANDWIDTH: Entry("bandwidth limit", MemoryBandwidth),
}
