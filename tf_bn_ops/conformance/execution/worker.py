"""The process that runs ops: `python -m tf_bn_ops.conformance.execution.worker FD OPS`.

OPS names what holds the ops, as `module` or `module:attribute` (`tensorflow:raw_ops`), as
`library:PATH` of an op library, or as `plugin:PATH` of a device that TensorFlow's ops run on (no
PATH: one that TensorFlow has itself). A request (harness/processes.py) is {"contract":
[OpMapping, ...]} (the result is a dict from the name of an op to its differences,
signatures.py), {"kernels": DEVICE} (devices.kernels), or a dict, whose result is an Answer: op,
attrs, inputs (name -> array), lists (inputs that are lists of tensors; at most one is given of
each), modes (cases/execution_modes.py), and perhaps outputs (their names in the order wanted),
device and before (requests that the mode `history` makes first).
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution import devices, signatures, stateful
from tf_bn_ops.conformance.execution.answer import Answer, combined, identical
from tf_bn_ops.harness import builtin, processes

LIBRARY_PREFIX = "library:"
PLUGIN_PREFIX = "plugin:"
# Where TensorFlow lets tensors begin: a multiple of this (EIGEN_MAX_ALIGN_BYTES).
_ALIGNMENT = 64
# What TensorFlow says of an op without a kernel for XLA.
_NOT_COMPILED = ("unsupported operations", "XLA_CPU_JIT", "XLA_GPU_JIT", "not compilable")


class _UnsupportedError(Exception):
    """An execution mode that does not apply; the message says why."""


def find_ops(name: str) -> Any:
    """The object that `module:attribute` names; op names are its attributes."""
    if name.startswith(LIBRARY_PREFIX):
        import tensorflow as tf

        return tf.load_op_library(name.removeprefix(LIBRARY_PREFIX))
    if name.startswith(PLUGIN_PREFIX):
        return devices.Ops(name.removeprefix(PLUGIN_PREFIX))
    module_name, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


class Executor:
    """Runs TensorFlow ops, eagerly or in graphs that are traced once."""

    def __init__(self, ops: Any):
        import tensorflow as tf

        self._tf = tf
        self._ops = ops
        self._graphs: dict[tuple, Any] = {}
        self._is_on_host = True
        self._changed: dict[str, None] = {}  # The inputs that the op has written to; it is a set.

    def facts(self) -> dict[str, Any]:
        has = [name for name in spec.OPS if hasattr(self._ops, name)]
        return {**devices.facts(self._tf), "ops": has}

    def __call__(self, request: dict[str, Any]) -> Any:
        if "kernels" in request:
            return self._on_device(request["kernels"])
        if "contract" in request:
            return {mapped.name: self._judge_contract(mapped) for mapped in request["contract"]}
        self._is_on_host = (request.get("device") or "CPU").startswith("CPU")
        with devices.placed(self._tf, request.get("device")):
            return self._answer(request)

    def _on_device(self, device: str) -> dict[str, Any]:
        def variance_of(**inputs: np.ndarray) -> np.ndarray:
            request = {"op": "FusedBatchNormV3", "inputs": inputs, "lists": (), "attrs": {}}
            return self._eager({**request, "device": device})[4]

        return devices.kernels(self._tf, device, variance_of)

    def _judge_contract(self, mapped: OpMapping) -> signatures.Differences:
        def in_order(names: Sequence[str], outputs: Any) -> list[Any]:
            return self._in_order({"outputs": names}, outputs)

        own = self._tf.raw_ops
        if mapped.spec.builtin is None:  # It is this package's library that registers it.
            own = importlib.import_module("tf_bn_ops").raw_ops
            importlib.import_module("tf_bn_ops").load()
        theirs, ours = (
            signatures.Op(self._tf, getattr(ops, name, None), mapped, renamed, in_order)
            for ops, name, renamed in (
                (self._ops, mapped.function, True),
                (own, mapped.spec.name, False),
            )
        )
        return signatures.judge(mapped, theirs, ours)

    def _answer(self, request: dict[str, Any]) -> Answer:
        if "forward" in request:
            request = self._behind(request["forward"], request)
        return combined({mode: self._attempt(mode, request) for mode in request["modes"]})

    def _behind(self, forward: str, request: dict[str, Any]) -> dict[str, Any]:
        """A request of a gradient with the reserve spaces that the forward op returns."""
        inputs, attrs = request["inputs"], request["attrs"]
        shared = {name: attrs[name] for name in ("epsilon", "data_format", "is_training")}
        lists: dict[str, Any] = {"side_input": []} if forward.endswith("Ex") else {}
        unread = np.zeros(0, np.float32)
        returned = getattr(self._ops, forward)(
            x=inputs["x"], scale=inputs["scale"], offset=np.zeros_like(inputs["scale"]),
            mean=unread, variance=unread, **shared, **lists,
        )  # fmt: skip
        names = [f"reserve_space_{i}" for i in (1, 2, 3)]
        own = {name: getattr(returned, name).numpy() for name in names}
        return {**request, "inputs": {**inputs, **own}}

    def _attempt(self, mode: str, request: dict[str, Any]) -> Answer:
        self._changed = {}
        try:
            given = getattr(self, "_" + mode)(request)
            answer = given if isinstance(given, Answer) else Answer(given)
            return dataclasses.replace(answer, changed=tuple(self._changed))
        except _UnsupportedError as error:
            return Answer(error=f"unsupported: {error}", unsupported={mode: str(error)})
        except Exception as error:  # An op may raise anything; it is the answer.
            return Answer(error=_describe(error))

    def _op(self, request: dict[str, Any]) -> Any:
        return getattr(self._ops, request["op"])

    def _call(self, request: dict[str, Any], tensors: dict[str, Any]) -> Any:
        lists = {name: [tensors[name]] if name in tensors else [] for name in request["lists"]}
        return self._op(request)(**{**tensors, **lists}, **request["attrs"])

    def _constants(self, request: dict[str, Any]) -> dict[str, Any]:
        return {name: self._tf.constant(value) for name, value in request["inputs"].items()}

    def _in_order(self, request: dict[str, Any], outputs: Any) -> Any:
        names = request.get("outputs", ())
        if not isinstance(outputs, (list, tuple)):
            return [outputs]
        if names and set(names) <= set(getattr(outputs, "_fields", ())):
            outputs = [getattr(outputs, name) for name in names]
        # The elements of lists; with one output of the op alone it is the list.
        lists = [output if isinstance(output, (list, tuple)) else [output] for output in outputs]
        return [tensor for tensors in lists for tensor in tensors]

    def _outputs(
        self, request: dict[str, Any], outputs: Any, tensors: dict[str, Any] | None = None
    ) -> list[np.ndarray]:
        """The outputs of a call as arrays; notes which of its inputs, `tensors`, it has changed."""
        found = self._in_order(request, outputs)
        devices.check_place(request.get("device"), found)
        arrays = [output.numpy() for output in found]
        for name, tensor in (tensors or {}).items():
            given = request["inputs"][name]
            now = np.asarray(tensor.numpy(), given.dtype)
            if not np.array_equal(_bytes(given), _bytes(now)):
                self._changed[name] = None
        return arrays

    def _called(self, request: dict[str, Any], tensors: dict[str, Any]) -> list[np.ndarray]:
        """The outputs of a call on these inputs."""
        return self._outputs(request, self._call(request, tensors), tensors)

    # One method per execution mode that makes a call of its own: the outputs, or the answer.

    def _eager(self, request: dict[str, Any]) -> list[np.ndarray]:
        return self._called(request, self._constants(request))

    def _graph(self, request: dict[str, Any]) -> list[np.ndarray]:
        """Calls a function of tensors of any shape, so that shapes do not trace anew."""
        tensors = self._constants(request)
        return self._outputs(request, self._function(request, tensors)(*tensors.values()), tensors)

    def _temporary(self, request: dict[str, Any]) -> list[np.ndarray]:
        """DeepCopy gives every input a buffer that dies with the op, which may write into it."""
        tensors = self._constants(request)
        copy = self._tf.raw_ops.DeepCopy
        function = self._function(request, tensors, lambda tensor: copy(x=tensor))
        return self._outputs(request, function(*tensors.values()), tensors)

    def _constant(self, request: dict[str, Any]) -> list[np.ndarray]:
        function = self._tf.function(lambda: self._call(request, self._constants(request)))
        return self._outputs(request, function())

    def _xla(self, request: dict[str, Any]) -> list[np.ndarray]:
        tensors = self._constants(request)
        function = self._tf.function(
            lambda *args: self._call(request, dict(zip(tensors, args, strict=True))),
            jit_compile=True,
        )
        try:
            outputs = function(*tensors.values())
        except self._tf.errors.OpError as error:
            if any(words in error.message for words in _NOT_COMPILED):
                raise _UnsupportedError("no kernel that XLA compiles") from error
            raise
        return self._outputs(request, outputs, tensors)

    def _alias(self, request: dict[str, Any]) -> list[np.ndarray]:
        """Inputs that are bitwise identical, a gradient and x, become one tensor."""
        tensors: dict[str, Any] = {}
        for name, value in request["inputs"].items():
            same = [
                tensors[other]
                for other in tensors
                if value.ndim > 1 and identical([value], [request["inputs"][other]])
            ]
            tensors[name] = same[0] if same else self._tf.constant(value)
        return self._called(request, tensors)

    def _slice(self, request: dict[str, Any]) -> list[np.ndarray]:
        return self._surrounded_call(request, 0)

    def _unaligned(self, request: dict[str, Any]) -> list[np.ndarray]:
        return self._surrounded_call(request, 1)

    def _surrounded_call(self, request: dict[str, Any], shift: int) -> list[np.ndarray]:
        tensors = {
            name: self._tensor_at(_surrounded(value, shift))
            for name, value in request["inputs"].items()
        }
        return self._called(request, tensors)

    def _poison(self, request: dict[str, Any]) -> Answer:
        if why := stateful.why_not_poisonable(self._empty, request):
            raise _UnsupportedError(why)
        return stateful.poisoned(self._eager, request)

    def _empty(self, size: int) -> np.ndarray:
        return self._tf.raw_ops.Empty(shape=[size], dtype=self._tf.uint8, init=False).numpy()

    def _history(self, request: dict[str, Any]) -> list[np.ndarray]:
        def prepare(asked: Any) -> tuple[dict[str, np.ndarray], Callable[[], list[np.ndarray]]]:
            inputs = {name: _surrounded(value, 0) for name, value in asked["inputs"].items()}
            tensors = {name: self._tensor_at(memory) for name, memory in inputs.items()}
            return inputs, lambda: self._outputs(asked, self._call(asked, tensors))

        return stateful.after_others(self._eager, prepare, request)

    def _concurrent(self, request: dict[str, Any]) -> list[np.ndarray]:
        """TensorFlow keeps one kernel for all eager calls with the same attrs."""

        def prepare(asked: Any) -> Callable[[], list[np.ndarray]]:
            tensors = self._constants(asked)
            return lambda: self._outputs(asked, self._call(asked, tensors))

        return stateful.concurrent(prepare, request)

    def _tensor_at(self, memory: np.ndarray) -> Any:
        """A tensor in the memory of an array."""
        if memory.size == 0 or not self._is_on_host:
            return self._tf.constant(memory)
        # NumPy has no DLPack for bfloat16: as integers, and back without a copy.
        plain = memory.view(f"int{8 * memory.itemsize}")
        tensor = self._tf.experimental.dlpack.from_dlpack(plain.__dlpack__())
        return self._tf.bitcast(tensor, memory.dtype.name)

    def _function(
        self,
        request: dict[str, Any],
        inputs: dict[str, Any],
        prepare: Callable[[Any], Any] | None = None,
    ) -> Any:
        """A function of the inputs, each of which is first handed to `prepare`."""
        tf = self._tf
        dtypes = tuple(tensor.dtype for tensor in inputs.values())
        attrs = repr(request["attrs"])
        key = (request["op"], tuple(inputs), dtypes, attrs, prepare is None)
        if key not in self._graphs:
            names = tuple(inputs)

            def call(*tensors: Any) -> Any:
                if prepare is not None:
                    tensors = tuple(prepare(tensor) for tensor in tensors)
                return self._call(request, dict(zip(names, tensors, strict=True)))

            signature = [tf.TensorSpec(None, dtype) for dtype in dtypes]
            # Traced here: a function that cannot be traced is not kept.
            function = tf.function(call, input_signature=signature)
            function.get_concrete_function()
            self._graphs[key] = function
        return self._graphs[key]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _surrounded(value: np.ndarray, shift: int) -> np.ndarray:
    """The value in the middle of a larger array that is filled with NaN, `shift` elements behind an
    aligned address."""
    if value.size == 0:
        return value
    around = 2 * _ALIGNMENT // value.itemsize
    with np.errstate(invalid="ignore"):  # Integers have no NaN.
        memory = np.full(value.size + 2 * around, np.nan).astype(value.dtype)
    begin = -memory.ctypes.data % _ALIGNMENT // value.itemsize + around // 2 + shift
    inside = memory[begin : begin + value.size].reshape(value.shape)
    inside[...] = value
    return inside


# Lines of an error that say where a node was created, which differs between execution modes.
_PLACE = re.compile(r'\s+File "|\s{8}|in user code:|Graph execution error:|Detected at node|\s*$')


def _describe(error: Exception) -> str:
    """Code and message; without the place in the graph."""
    code = type(error).__name__
    message = str(error).split("} ", 1)[-1] if str(error).startswith("{{") else str(error)
    lines = [line for line in message.splitlines() if not _PLACE.match(line)]
    return f"{code}: " + "\n".join(lines).strip().removeprefix(f"{code}: ")


def _make(ops_name: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    try:
        ops = find_ops(ops_name)
        if ops_name.startswith(("tensorflow", PLUGIN_PREFIX)):
            builtin.check_kernels()
        executor = Executor(ops)
        facts = executor.facts()
    except Exception as error:
        # The sentence names OPS; an import error needs no trace besides.
        kind = type(error) if isinstance(error, ImportError) else RuntimeError
        why = str(error) or type(error).__name__  # A MemoryError says nothing.
        raise kind(f"{ops_name} cannot be used: {why}") from error
    return facts, executor


if __name__ == "__main__":
    processes.serve(sys.argv, _make, _describe)
