"""PyTorch's native_batch_norm and native_batch_norm_backward, and what a network has behind them.

An addition and ReLU are in place, as in torchvision's networks: the backward pass of batch norm
does not read y.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.bench import data
from tf_bn_ops.bench.bench_rows import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, Row
from tf_bn_ops.bench.implementations.base import Call, Outputs, import_library
from tf_bn_ops.harness.problems import VIEW_ROLES

_GRADIENTS = ("x_backprop", "scale_backprop", "offset_backprop")
_OUTPUTS = ("y", "saved_mean", "saved_rstd")
_ROLES = {
    GRADIENT: _GRADIENTS,
    FORWARD: _OUTPUTS,
    LAYER: (*_OUTPUTS, *_GRADIENTS),
    LAYER_RELU: (*_OUTPUTS, *_GRADIENTS),
    LAYER_ADD_RELU: (*_OUTPUTS, *_GRADIENTS, "side_input_backprop"),
}
_MASK = [True, True, True]


class Torch:
    """NHWC is the memory format channels_last."""

    def __init__(self, threads: int):
        self._torch = import_library("torch", "PyTorch")
        self._torch.set_num_threads(threads)
        aten = self._torch.ops.aten
        self._forward_op, self._backward_op = (
            aten.native_batch_norm,
            aten.native_batch_norm_backward,
        )
        self._flat: tuple[Any, ...] | None = None

    def facts(self) -> dict[str, str]:
        return {"torch": self._torch.__version__}

    def _tensor(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # NumPy's is not known to PyTorch.
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def load(self, *tensors: np.ndarray) -> None:
        self._flat = None
        self._flat = tuple(self._tensor(array) for array in tensors)

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        assert self._flat is not None
        self._row = row
        tensors = [tensor.view(row.dims) for tensor in self._flat]
        if row.channels_last:  # Seen as NCHW, in memory as it was.
            tensors = [tensor.movedim(-1, 1) for tensor in tensors]
        y_backprop, x, *added = tensors
        given = {role: self._torch.from_numpy(array) for role, array in statistics.items()}
        if row.call == GRADIENT:
            return self._gradient(row, y_backprop, x, given)
        training, scale = row.mode == "training", given["scale"]
        running = (None, None) if training else (given["mean"], given["variance"])
        forward, backward = self._forward_op, self._backward_op
        rest = (x, scale, given["offset"], *running, training, 0.1, data.EPSILON)
        if row.call == FORWARD:
            return lambda: forward(*rest)

        def gradient(masked: Any, mean: Any, rstd: Any) -> Any:
            return backward(masked, x, scale, *running, mean, rstd, training, data.EPSILON, _MASK)

        def layer() -> Any:
            y, mean, rstd = forward(*rest)
            return (y, mean, rstd, *gradient(y_backprop, mean, rstd))

        relu, threshold = self._torch.relu_, self._torch.ops.aten.threshold_backward

        def activated_layer() -> Any:
            y, mean, rstd = forward(*rest)
            for side_input in added:
                y.add_(side_input)
            relu(y)
            masked = threshold(y_backprop, y, 0)
            return (y, mean, rstd, *gradient(masked, mean, rstd), *(masked for _ in added))

        return activated_layer if row.activated else layer

    def _gradient(self, row: Row, y_backprop: Any, x: Any, given: Mapping[str, Any]) -> Call:
        mean, variance, op = given["mean"], given["variance"], self._backward_op
        rstd = 1 / self._torch.sqrt(variance + data.EPSILON)
        training = row.mode == "training"
        arguments = (
            y_backprop, x, given["scale"], mean, variance, mean if training else None,
            rstd if training else None, training, data.EPSILON, _MASK,
        )  # fmt: skip
        return lambda: op(*arguments)

    def _array(self, role: str, tensor: Any) -> np.ndarray:
        if self._row.channels_last and role in VIEW_ROLES:
            tensor = tensor.movedim(1, -1)
        tensor = tensor.contiguous()
        if tensor.dtype != self._torch.bfloat16:
            return tensor.numpy()
        return tensor.view(self._torch.int16).numpy().view(spec.DTYPES["bfloat16"].numpy)

    def outputs(self, result: Any) -> Outputs:
        roles = _ROLES[self._row.call]
        found = {role: self._array(role, t) for role, t in zip(roles, result, strict=True)}
        # Frozen, PyTorch saves nothing.
        return {role: array for role, array in found.items() if array.size}
