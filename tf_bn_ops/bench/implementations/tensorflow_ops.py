"""FusedBatchNormV3 and FusedBatchNormGradV3 of TensorFlow and of this library.

With ReLU behind batch norm TensorFlow's are a chain with AddV2, Relu and ReluGrad; this library's
are FusedBatchNormEx and FusedBatchNormGradEx.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_bn_ops.bench import data
from tf_bn_ops.bench.bench_rows import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, Row
from tf_bn_ops.bench.implementations.base import Call, Outputs, import_library

# The outputs that are judged, in order.
_GRADIENTS = ("x_backprop", "scale_backprop", "offset_backprop")
_OF_LAYER = ("y", "saved_mean", "saved_variance", *_GRADIENTS)
_ROLES = {
    GRADIENT: _GRADIENTS,
    FORWARD: ("y", "batch_mean", "batch_variance", "saved_mean", "saved_variance"),
    LAYER: _OF_LAYER,
    LAYER_RELU: _OF_LAYER,
    LAYER_ADD_RELU: (*_OF_LAYER, "side_input_backprop"),
}

# A function of tensors, and the tensors.
_Bound = tuple[Callable[..., Any], list[Any]]


class TensorFlow:
    """Called eagerly, or compiled by XLA; a layer is the forward op, then that of its gradient."""

    def __init__(self, ops: str, threads: int, jit: bool = False):
        """`ops` is MODULE:ATTRIBUTE, under which the ops are found."""
        self._tf = import_library("tensorflow", "TensorFlow")
        self._tf.config.threading.set_intra_op_parallelism_threads(threads)
        module, _, attribute = ops.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        self._forward_op, self._gradient_op = found.FusedBatchNormV3, found.FusedBatchNormGradV3
        # TensorFlow has those with an activation for its graph optimizer alone, and none of them
        # for training on CPUs.
        self._fused_ops = None
        if hasattr(found, "FusedBatchNormGradEx"):
            self._fused_ops = found.FusedBatchNormEx, found.FusedBatchNormGradEx
        self._jit = jit
        self._flat: tuple[Any, ...] | None = None

    def facts(self) -> dict[str, str]:
        return {"tensorflow": self._tf.__version__}

    def load(self, *tensors: np.ndarray) -> None:
        self._flat = None  # Frees the tensors of the last row.
        self._flat = tuple(self._tf.constant(array) for array in tensors)

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        tf = self._tf
        assert self._flat is not None
        y_backprop, x, *added = (tf.reshape(tensor, row.dims) for tensor in self._flat)
        given = {role: tf.constant(array) for role, array in statistics.items()}
        self._roles = _ROLES[row.call]
        activated = self._chain if self._fused_ops is None else self._fused
        bind = {
            GRADIENT: self._gradient, FORWARD: self._forward, LAYER: self._layer,
            LAYER_RELU: activated, LAYER_ADD_RELU: activated,
        }[row.call]  # fmt: skip
        function, tensors = bind(row, y_backprop, x, given)
        tensors += added
        if self._jit:
            compiled = tf.function(function, jit_compile=True, autograph=False)
            function = compiled.get_concrete_function(*tensors)
        return lambda: function(*tensors)

    def _attrs(self, row: Row) -> dict[str, Any]:
        return {
            "epsilon": data.EPSILON,
            "data_format": row.layout,
            "is_training": row.mode == "training",
        }

    def _gradient(self, row: Row, y_backprop: Any, x: Any, given: Mapping[str, Any]) -> _Bound:
        op, attrs = self._gradient_op, self._attrs(row)
        names = ("y_backprop", "x", "scale", *(f"reserve_space_{i}" for i in (1, 2, 3)))
        reserved = [given["mean"], given["variance"], self._tf.zeros([0], self._tf.float32)]
        return (
            lambda *tensors: op(**dict(zip(names, tensors, strict=True)), **attrs),
            [y_backprop, x, given["scale"], *reserved],
        )

    def _forward(self, row: Row, y_backprop: Any, x: Any, given: Mapping[str, Any]) -> _Bound:
        op, attrs = self._forward_op, self._attrs(row)
        names = ("x", "scale", "offset", "mean", "variance")
        # Not read in training, as a Keras layer calls it.
        empty = self._tf.zeros([0], self._tf.float32)
        last = [empty, empty] if attrs["is_training"] else [given["mean"], given["variance"]]
        return (
            lambda *tensors: op(**dict(zip(names, tensors, strict=True)), **attrs),
            [x, given["scale"], given["offset"], *last],
        )

    def _layer(self, row: Row, y_backprop: Any, x: Any, given: Mapping[str, Any]) -> _Bound:
        forward, tensors = self._forward(row, y_backprop, x, given)
        gradient, _ = self._gradient(row, y_backprop, x, given)

        def layer(y_backprop: Any, x: Any, scale: Any, *others: Any) -> Any:
            y, _, _, *reserved = forward(x, scale, *others)
            backprop = gradient(y_backprop, x, scale, *reserved)
            return (y, *reserved[:2], *backprop[:3])

        return layer, [y_backprop, *tensors]

    def _chain(self, row: Row, y_backprop: Any, x: Any, given: Mapping[str, Any]) -> _Bound:
        """Of the ops of batch norm, addition and ReLU; the side input is the last tensor."""
        forward, tensors = self._forward(row, y_backprop, x, given)
        gradient, _ = self._gradient(row, y_backprop, x, given)
        ops, count = self._tf.raw_ops, len(tensors)

        def chain(y_backprop: Any, *others: Any) -> Any:
            (x, scale, *_), added = others[:count], others[count:]
            y, _, _, *reserved = forward(*others[:count])
            for side_input in added:
                y = ops.AddV2(x=y, y=side_input)
            y = ops.Relu(features=y)
            masked = ops.ReluGrad(gradients=y_backprop, features=y)
            backprop = gradient(masked, x, scale, *reserved)
            return (y, *reserved[:2], *backprop[:3], *(masked for _ in added))

        return chain, [y_backprop, *tensors]

    def _fused(self, row: Row, y_backprop: Any, x: Any, given: Mapping[str, Any]) -> _Bound:
        """Of one op in each direction."""
        assert self._fused_ops is not None
        forward, gradient = self._fused_ops
        _, tensors = self._forward(row, y_backprop, x, given)
        attrs = {**self._attrs(row), "activation_mode": "Relu"}

        def fused(
            y_backprop: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any, *added: Any
        ) -> Any:
            y, _, _, *reserved = forward(
                x=x, scale=scale, offset=offset, mean=mean, variance=variance,
                side_input=[*added], **attrs,
            )  # fmt: skip
            names = (f"reserve_space_{i}" for i in (1, 2, 3))
            backprop = gradient(
                y_backprop=y_backprop, x=x, scale=scale, offset=offset, y=y,
                num_side_inputs=len(added), **dict(zip(names, reserved, strict=True)), **attrs,
            )  # fmt: skip
            return (y, *reserved[:2], *backprop[:3], *backprop.side_input_backprop)

        return fused, [y_backprop, *tensors]

    def empty_call(self) -> Call:
        """An op without work on as many tensors: the overhead of an eager call."""
        tensors = [self._tf.zeros([1], self._tf.float32) for _ in range(6)]
        return lambda: self._tf.raw_ops.IdentityN(input=tensors)

    def outputs(self, result: Any) -> Outputs:
        return {role: tensor.numpy() for role, tensor in zip(self._roles, result, strict=False)}
