"""The formulas under jax.jit, computed in float32."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_bn_ops.bench import data
from tf_bn_ops.bench.bench_rows import FORWARD, GRADIENT, LAYER, LAYER_ADD_RELU, LAYER_RELU, Row
from tf_bn_ops.bench.implementations.base import Call, Outputs, import_library


def _axes_of(x: Any, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes that sums run over, and the shape in which [channels] broadcasts."""
    axes = tuple(i for i in range(x.ndim) if i != axis)
    return axes, tuple(-1 if i == axis else 1 for i in range(x.ndim))


# Each formula takes jax.numpy, the tensors, the axis of channels and the mode.
def _gradient(
    jnp: Any, y_backprop: Any, x: Any, given: Mapping[str, Any], axis: int, training: bool
) -> dict[str, Any]:
    axes, column = _axes_of(x, axis)
    rstd = 1 / jnp.sqrt(given["variance"] + data.EPSILON)
    wide = y_backprop.astype(jnp.float32)
    xmu = x.astype(jnp.float32) - given["mean"].reshape(column)
    offset_backprop = jnp.sum(wide, axes)
    dot = jnp.sum(wide * xmu, axes)
    inside = wide
    if training:
        count = x.size // x.shape[axis]
        inside = wide - (offset_backprop / count).reshape(column)
        inside = inside - xmu * (rstd * rstd * dot / count).reshape(column)
    x_backprop = (given["scale"] * rstd).reshape(column) * inside
    return {
        "x_backprop": x_backprop.astype(x.dtype),
        "scale_backprop": rstd * dot,
        "offset_backprop": offset_backprop,
    }


def _forward(
    jnp: Any, y_backprop: Any, x: Any, given: Mapping[str, Any], axis: int, training: bool
) -> dict[str, Any]:
    del y_backprop
    axes, column = _axes_of(x, axis)
    wide = x.astype(jnp.float32)
    mean, variance = given["mean"], given["variance"]
    if training:
        mean = jnp.mean(wide, axes)
        variance = jnp.mean((wide - mean.reshape(column)) ** 2, axes)
    rstd = 1 / jnp.sqrt(variance + data.EPSILON)
    y = (wide - mean.reshape(column)) * (given["scale"] * rstd).reshape(column)
    y = (y + given["offset"].reshape(column)).astype(x.dtype)
    return {"y": y, "saved_mean": mean, "saved_variance": variance}


def _layer(
    jnp: Any, y_backprop: Any, x: Any, given: Mapping[str, Any], axis: int, training: bool
) -> dict[str, Any]:
    first = _forward(jnp, y_backprop, x, given, axis, training)
    used = {**given, "mean": first["saved_mean"], "variance": first["saved_variance"]}
    return {**first, **_gradient(jnp, y_backprop, x, used, axis, training)}


def _activated_layer(
    jnp: Any, y_backprop: Any, x: Any, given: Mapping[str, Any], axis: int, training: bool
) -> dict[str, Any]:
    first = _forward(jnp, y_backprop, x, given, axis, training)
    added = given.get("side_input")
    y = first["y"] if added is None else first["y"] + added
    y = jnp.maximum(y, jnp.zeros_like(y))  # NumPy 2.0 makes float32 of bfloat16 and a plain 0.
    masked = jnp.where(y > 0, y_backprop, jnp.zeros_like(y_backprop))
    used = {**given, "mean": first["saved_mean"], "variance": first["saved_variance"]}
    second = _gradient(jnp, masked, x, used, axis, training)
    side = {} if added is None else {"side_input_backprop": masked}
    return {**first, "y": y, **second, **side}


_FORMULAS: Mapping[str, Callable[..., dict[str, Any]]] = {
    GRADIENT: _gradient,
    FORWARD: _forward,
    LAYER: _layer,
    LAYER_RELU: _activated_layer,
    LAYER_ADD_RELU: _activated_layer,
}


def _formulas(jnp: Any) -> dict[str, Callable[..., dict[str, Any]]]:
    """What row.call says -> function of the tensors, the axis of channels and the mode."""
    return {call: functools.partial(formula, jnp) for call, formula in _FORMULAS.items()}


class Jax:
    """A layer is one compiled function."""

    def __init__(self, threads: int):
        # XLA starts a thread per CPU of the affinity mask, which the worker has set.
        del threads
        self._jax = import_library("jax", "JAX")
        self._functions = {
            call: self._jax.jit(function, static_argnums=(3, 4))
            for call, function in _formulas(importlib.import_module("jax.numpy")).items()
        }
        self._flat: tuple[Any, ...] | None = None

    def facts(self) -> dict[str, str]:
        return {"jax": self._jax.__version__}

    def load(self, *tensors: np.ndarray) -> None:
        self._flat = None
        self._flat = tuple(self._jax.device_put(array) for array in tensors)

    def bind(self, row: Row, statistics: Mapping[str, np.ndarray]) -> Call:
        assert self._flat is not None
        y_backprop, x, *added = (array.reshape(row.dims) for array in self._flat)
        given = {role: self._jax.device_put(array) for role, array in statistics.items()}
        given |= dict(zip(row.inputs[2:], added, strict=True))
        axis = len(row.dims) - 1 if row.channels_last else 1
        function = self._functions[row.call]
        compiled = function.lower(y_backprop, x, given, axis, row.mode == "training").compile()
        wait = self._jax.block_until_ready
        return lambda: wait(compiled(y_backprop, x, given))

    def outputs(self, result: Any) -> Outputs:
        return {role: np.asarray(array) for role, array in result.items()}
