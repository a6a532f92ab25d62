"""Whether a model computes the same before and after its layers were replaced, on one batch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Inference, training: allowed differences relative to the largest output. Each layer amplifies the
# roundings of those before it. ResNet-50 in training differs by 1.3e-4 in float32, 2.8e-2 in
# mixed_float16 and 1.8e-1 in mixed_bfloat16 (random weights, images [8, 64, 64, 3]).
_TOLERANCES = {"float16": (2e-2, 1e-1), "bfloat16": (1e-1, 5e-1)}
_TOLERANCE = (1e-3, 1e-3)


class Verification:
    """Calls a model with `x` as it is when this is made, to compare with what replaces it."""

    def __init__(self, model: Any, x: Any) -> None:
        self._x = x
        self._name = f"{type(model).__name__} {model.name!r}"
        self._expected = {}
        if not model.built:
            model(x)  # The variables are made here, not between two calls that are compared.
        dtypes = {layer.compute_dtype for layer in model._flatten_layers()}
        self._tolerances = max(_TOLERANCES.get(dtype, _TOLERANCE) for dtype in dtypes)
        for training in (False, True):
            results = _results(model, x, training)
            # A layer with random numbers of its own differs from call to call.
            if _largest_difference(results, _results(model, x, training)) == 0:
                self._expected[training] = results
                continue
            mode = "training" if training else "inference"
            logging.getLogger("tf_bn_ops").warning(
                "%s is not verified in %s: its outputs differ from call to call", self._name, mode
            )

    def check(self, model: Any) -> None:
        """Compares the forward pass in inference and in training, moving statistics included.

        Raises:
          ValueError: they differ by more than rounding.
        """
        for training, expected in self._expected.items():
            difference = _largest_difference(expected, _results(model, self._x, training))
            tolerance = self._tolerances[training]
            if not difference <= tolerance:
                how = f"by {difference:.1e} of the largest (allowed: {tolerance:.0e})"
                if np.isinf(difference):
                    how = "in their shapes, or in which values are finite"
                raise ValueError(
                    f"{self._name} computes something else with its layers replaced: in "
                    f"{'training' if training else 'inference'} outputs or moving statistics "
                    f"differ {how}; nothing was replaced"
                )


def check_outputs(model: Any, other: Any, x: Any) -> None:
    """Compares what two models compute of `x` in inference.

    Raises:
      ValueError: it differs by more than rounding.
    """
    expected, found = (_outputs(m, x, training=False) for m in (model, other))
    difference = _largest_difference(expected, found)
    dtypes = {layer.compute_dtype for layer in model._flatten_layers()}
    tolerance = max(_TOLERANCES.get(dtype, _TOLERANCE)[0] for dtype in dtypes)
    if not difference <= tolerance:
        raise ValueError(
            f"{type(model).__name__} {model.name!r} and the new model differ by {difference:.1e} "
            f"of the largest output (allowed: {tolerance:.0e})"
        )


def _outputs(model: Any, x: Any, training: bool) -> list[np.ndarray]:
    """All outputs, of ragged and sparse tensors too; an output may be None."""
    outputs = tf.nest.flatten(model(x, training=training), expand_composites=True)
    return [np.asarray(keras.ops.convert_to_numpy(v)) for v in outputs if v is not None]


def _results(model: Any, x: Any, training: bool) -> list[np.ndarray]:
    """Outputs of the model, and by how much the call changes its state; the change is undone."""
    with _restored(model) as values:
        results = _outputs(model, x, training)
        changes = [
            (variable.numpy().astype(np.float64) - value.astype(np.float64)).ravel()
            for variable, value in values
            if "float" in variable.dtype
        ]
        # As one array: the mean of what has been normalized before is a rounding error.
        return [*results, np.concatenate([np.zeros(1), *changes])]


@contextlib.contextmanager
def _restored(model: Any) -> Iterator[list[tuple[Any, np.ndarray]]]:
    """Gives every variable of the model with its value, which it has again at the end."""
    variables = {id(v): v for v in (*model.variables, *model.metrics_variables)}.values()
    values = [(variable, np.array(variable.numpy())) for variable in variables]
    try:
        yield values
    finally:
        for variable, value in values:
            variable.assign(value)


def _largest_difference(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    """The largest over all arrays of |expected - found|, relative to the array's largest value.

    Of integers, truth values and strings it is the share that differs, since rounding changes
    single ones: an argmax between two equals, what is rounded to an integer.
    """
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape:
            return np.inf
        if a.dtype.kind not in "fcV":  # V: bfloat16
            worst = max(worst, float(np.mean(a != b)) if a.size else 0.0)
            continue
        a, b = _parts(a), _parts(b)
        finite = np.isfinite(a)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return np.inf
        if np.any(finite):
            size = np.max(np.abs(a[finite]))
            difference = np.max(np.abs(a[finite] - b[finite]))
            worst = max(worst, float(difference / size) if size else float(difference))
    return worst


def _parts(array: np.ndarray) -> np.ndarray:
    """The array as float64; of complex numbers real and imaginary parts."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag])
    return array.astype(np.float64)
