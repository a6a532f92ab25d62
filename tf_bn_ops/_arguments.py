"""Checks of arguments, for the bindings, and calls whose epsilon is a tensor."""

from __future__ import annotations

import functools
import numbers
from typing import Any

import numpy as np

from tf_bn_ops import _loader, spec


def split_epsilon(epsilon: Any, function: str) -> tuple[float, list[float]]:
    """`epsilon` as a float32 number and at most two more, which add up to it unless one of them
    is subnormal (float64 has 53 bits, three floats hold 72)."""
    value = checked_epsilon(epsilon, function)
    with np.errstate(over="ignore"):  # Beyond float32 it is an infinity, as in an attr float.
        parts = [float(np.float32(value))]
        for _ in range(2):
            rest = value - sum(parts)
            if rest != 0 and np.isfinite(rest):
                parts.append(float(np.float32(rest)))
    return parts[0], parts[1:]


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
    """`value` as a float, or a TypeError; eager tensors are refused as graph tensors are."""
    is_number = isinstance(value, (numbers.Real, np.generic, np.ndarray))
    try:
        if is_number:
            return float(value)
    except OverflowError as error:
        raise ValueError(f"{argument} is beyond float64, which has no such number") from error
    except (TypeError, ValueError):
        pass
    raise _no_number(value, argument, function)


def checked_alpha(value: Any, activation: str | None, function: str) -> float:
    """`value` as the slope of "leaky_relu", or a TypeError; a ValueError where that is the
    activation and float32 has no such number."""
    alpha = checked_number(value, "leakyrelu_alpha", function)
    spec.activation_of(spec.ACTIVATION_MODES[activation], alpha)
    return alpha


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


def checked_int(value: Any, name: str) -> Any:
    """`value`, or a ValueError beyond int64, over which TensorFlow's eager calls may abort."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{name} must be an integer of 64 bits")
    return value


def checked_length(num_side_inputs: Any) -> Any:
    """`num_side_inputs`, or a ValueError for more than one, which TensorFlow has no kernel for."""
    if isinstance(checked_int(num_side_inputs, "num_side_inputs"), int) and num_side_inputs > 1:
        raise ValueError(f"num_side_inputs must be 0 or 1, not {num_side_inputs}")
    return num_side_inputs


def at_most_one(tensors: Any, name: str) -> Any:
    """A list argument, or a ValueError."""
    if isinstance(tensors, (list, tuple)) and len(tensors) > 1:
        raise ValueError(f"{name} is a list of at most one tensor, not of {len(tensors)}")
    return [*tensors] if isinstance(tensors, tuple) else tensors


# ---- An epsilon that is a tensor -----------------------------------------------------------------


def with_epsilon_tensor(wrapper: str, inputs: list[Any], epsilon: Any, name: str | None) -> Any:
    """Calls an op whose epsilon is a tensor of type float64, which a `float` attr would round."""
    import tensorflow as tf

    epsilon = checked_epsilon(epsilon, wrapper)
    if not tf.executing_eagerly():
        return _node(wrapper, inputs, epsilon, name)
    first = tf.convert_to_tensor(inputs[0])
    rest = [tf.convert_to_tensor(tensor, first.dtype) for tensor in inputs[1:]]
    return _one_node_function(wrapper, len(inputs), epsilon, first.dtype)(first, *rest)


def _node(wrapper: str, inputs: Any, epsilon: float, name: str | None) -> Any:
    """Adds the op to the current graph."""
    import tensorflow as tf

    tensor = tf.make_tensor_proto(epsilon, dtype=tf.float64, shape=[])
    return getattr(_loader.load(), f"tf_bn_ops_{wrapper}")(*inputs, tensor, name)


@functools.lru_cache(maxsize=64)
def _one_node_function(wrapper: str, inputs: int, epsilon: float, dtype: Any) -> Any:
    """The op as a function: eager execution knows no tensor attrs."""
    import tensorflow as tf

    def call(*tensors: Any) -> Any:
        return _node(wrapper, tensors, epsilon, None)

    call.__name__ = wrapper
    signature = [tf.TensorSpec(None, dtype)] * inputs
    # Its graph, so that it stays one under tf.config.run_functions_eagerly(True).
    return tf.function(call, signature, autograph=False).get_concrete_function()
