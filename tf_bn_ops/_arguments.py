"""Checks of arguments that several bindings have."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from tf_bn_ops import spec


def check_statistics_dtype(op: str, view: Any, vector: Any) -> None:
    """Raises a TypeError where no kernel of `op` takes the types of a tensor and of a vector."""
    names = [getattr(getattr(value, "dtype", None), "name", "") for value in (view, vector)]
    dtype, statistics = ({"float16": "half"}.get(name, name) for name in names)
    if dtype not in spec.DTYPES or statistics not in spec.DTYPES:
        return  # Not a tensor yet, or refused by TensorFlow.
    choices = spec.OPS[op].statistics_choices(dtype)
    if statistics not in choices:
        raise TypeError(
            f"{op} takes per-channel tensors of {' or '.join(choices)} with tensors of {dtype}, "
            f"not of {statistics}"
        )


def checked_number(value: Any, argument: str, function: str) -> float:
    """`value` as a float, or a TypeError; eager tensors are refused as those of a graph are."""
    is_number = isinstance(value, (numbers.Real, np.generic, np.ndarray))
    try:
        if is_number:
            return float(value)
    except (TypeError, ValueError):
        pass
    raise _no_number(value, argument, function)


def checked_epsilon(epsilon: Any, function: str) -> float:
    return checked_number(epsilon, "epsilon", function)


def not_a_tensor(epsilon: Any, function: str) -> Any:
    """`epsilon`, or a TypeError for a tensor; what else is no number, TensorFlow refuses with its
    message for the built-in op."""
    if hasattr(epsilon, "dtype") and not isinstance(epsilon, (np.generic, np.ndarray)):
        raise _no_number(epsilon, "epsilon", function)
    return epsilon


def _no_number(value: Any, argument: str, function: str) -> TypeError:
    return TypeError(
        f"{argument} must be a number, not {type(value).__name__}: "
        f"{function} takes it as an attribute, not as a tensor"
    )


def check_num_side_inputs(given: Any) -> None:
    """Raises ValueError for more than one, for which TensorFlow finds no kernel."""
    if isinstance(given, int) and given > 1:
        raise ValueError(f"num_side_inputs must be 0 or 1, not {given}")
