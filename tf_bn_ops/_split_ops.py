"""The ops that synchronised batch normalization consists of, as Python functions.

Each is one pass over the batch of one replica; statistics and sums travel between replicas in
float64. With the counts, means and sums of squares of all replicas stacked by rank:

    count, mean, m2 = batch_norm_stats(x)                          # On each replica, then gather.
    count, mean, m2 = batch_norm_gather_stats(counts, means, m2s)  # Bitwise identical everywhere.
    y = batch_norm_elemt(x, scale, offset, mean, m2 / count)

    sums = batch_norm_backward_reduce(y_backprop, x, scale, offset, mean, m2 / count)
    x_backprop = batch_norm_backward_elemt(
        y_backprop, x, scale, offset, mean, m2 / count,
        sums.sum_dy, sums.sum_dy_xmu, count)  # Both sums added up over replicas.

They mean what PyTorch's functions of these names mean. On GPUs they have kernels in builds for GPUs
(`make gpu`); in others TensorFlow's soft placement runs them on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

from tf_bn_ops._arguments import check_num_side_inputs, check_statistics_dtype, not_a_tensor
from tf_bn_ops._results import (
    BatchNormBackwardElemt,
    BatchNormBackwardReduce,
    BatchNormGatherStats,
    BatchNormStats,
)

Activation = Literal["Identity", "Relu", "Relu6"]


def _load() -> ModuleType:
    from tf_bn_ops import _ops  # It has these functions too.

    return _ops.load()


def batch_norm_stats(x: Any, axis: int = -1, name: str | None = None) -> BatchNormStats:
    """Statistics of one batch, from which those of several are combined.

    One pass over `x`, with sums in float64 around an element of each channel: a mean of 1e5 beside
    a deviation of 1 costs no digits.

    Args:
      x: of rank 1 or more; float64, float32, half or bfloat16.
      axis: the dimension of the channels; from the end if negative.
      name: name of the operation.

    Returns:
      Named tuple (count, mean, m2) of float64: the elements of a channel (a scalar), their mean and
      the sum of their (x - mean)^2, [C]. All of them are 0 where `x` has no elements.

    Raises:
      tf.errors.InvalidArgumentError: `x` is a scalar or lacks the dimension. (ValueError when its
        shape is known while a graph is built.)
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    return BatchNormStats._make(_load().tf_bn_ops_batch_norm_stats(x, axis, name))


def batch_norm_gather_stats(
    counts: Any, means: Any, m2s: Any, name: str | None = None
) -> BatchNormGatherStats:
    """Statistics of a batch from those of its parts, by Chan's formula in the order of the rows.

    Bitwise identical on every replica that is given the same rows. Nothing cancels where a mean is
    large, and parts of different sizes count by their sizes.

    Args:
      counts: float64 [W], elements of a channel in each part. A part of 0 is ignored, whatever its
        mean and m2 hold.
      means: float64 [W, C].
      m2s: float64 [W, C], sums of (x - mean)^2.
      name: name of the operation.

    Returns:
      Named tuple (count, mean, m2) of float64, those of the whole; 0 where no part has elements.

    Raises:
      tf.errors.InvalidArgumentError: shapes that do not fit together, or a count that is negative,
        infinite or NaN. (ValueError for shapes that are known while a graph is built.)
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    return BatchNormGatherStats._make(
        _load().tf_bn_ops_batch_norm_gather_stats(counts, means, m2s, name)
    )


def batch_norm_elemt(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    side_input: Sequence[Any] = (),
    epsilon: float = 1e-4,
    activation_mode: Activation = "Identity",
    axis: int = -1,
    name: str | None = None,
) -> Any:
    """Batch normalization with given statistics, addition and activation.

        y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)

    Args:
      x: of rank 1 or more; float64, float32, half or bfloat16.
      scale: [C], float32 (or float64, which float64 `x` needs): scale factors.
      offset: the same: what is added.
      mean: float64 [C].
      variance: float64 [C], biased.
      side_input: a list of at most one tensor, of the type and shape of `x`: what is added before
        the activation.
      epsilon: added to the variance; a number.
      activation_mode: "Identity", "Relu" or "Relu6".
      axis: the dimension of the channels; from the end if negative.
      name: name of the operation.

    Returns:
      y, of the type and shape of `x`.

    Raises:
      ValueError: more than one side input.
      TypeError: scale has none of its types, or epsilon is a tensor.
      tf.errors.InvalidArgumentError: shapes that do not fit together, or an unknown activation.
        (ValueError when they are known while a graph is built.)
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    check_statistics_dtype("BatchNormElemt", x, scale)
    return _load().tf_bn_ops_batch_norm_elemt(
        x,
        scale,
        offset,
        mean,
        variance,
        _at_most_one(side_input, "side_input"),
        not_a_tensor(epsilon, "batch_norm_elemt"),
        activation_mode,
        axis,
        name,
    )


def batch_norm_backward_reduce(
    y_backprop: Any,
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    y: Sequence[Any] = (),
    epsilon: float = 1e-4,
    activation_mode: Activation = "Identity",
    axis: int = -1,
    name: str | None = None,
) -> BatchNormBackwardReduce:
    """The sums of the gradient of `batch_norm_elemt` over one batch.

    With `y_backprop` where the activation passes it, and 0 elsewhere:

        sum_dy = sum(y_backprop)
        sum_dy_xmu = sum(y_backprop * (x - mean))
        scale_backprop = sum_dy_xmu / sqrt(variance + epsilon)
        offset_backprop = sum_dy

    Args:
      y_backprop: gradient of y, of the type and shape of `x`.
      x: as given to `batch_norm_elemt`, like scale, offset, mean, variance, epsilon,
        activation_mode and axis.
      scale: the same.
      offset: the same.
      mean: the same.
      variance: the same.
      y: a list of at most one tensor, what `batch_norm_elemt` returned. It is needed where an
        activation follows a side input; without it the mask of the activation is computed from `x`.
      epsilon: the same.
      activation_mode: the same.
      axis: the same.
      name: name of the operation.

    Returns:
      Named tuple (sum_dy, sum_dy_xmu, scale_backprop, offset_backprop), all [C]: the sums in
      float64, to be added up over replicas, and the gradients of this batch in the type of `scale`.

    Raises:
      ValueError: more than one y.
      TypeError: scale has none of its types, or epsilon is a tensor.
      tf.errors.InvalidArgumentError: shapes that do not fit together, or an unknown activation.
        (ValueError when they are known while a graph is built.)
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    check_statistics_dtype("BatchNormBackwardReduce", x, scale)
    outputs = _load().tf_bn_ops_batch_norm_backward_reduce(
        y_backprop,
        x,
        scale,
        offset,
        mean,
        variance,
        _at_most_one(y, "y"),
        not_a_tensor(epsilon, "batch_norm_backward_reduce"),
        activation_mode,
        axis,
        name,
    )
    return BatchNormBackwardReduce._make(outputs)


def batch_norm_backward_elemt(
    y_backprop: Any,
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    sum_dy: Any,
    sum_dy_xmu: Any,
    count: Any,
    y: Sequence[Any] = (),
    epsilon: float = 1e-4,
    num_side_inputs: int = 0,
    activation_mode: Activation = "Identity",
    axis: int = -1,
    name: str | None = None,
) -> BatchNormBackwardElemt:
    """The gradient of batch normalization by x, from sums over all batches.

    With rstd = 1/sqrt(variance + epsilon), and `y_backprop` where the activation passes it:

        x_backprop = scale * rstd * (y_backprop - sum_dy / count
                                     - (x - mean) * rstd^2 * sum_dy_xmu / count)
        side_input_backprop = y_backprop

    Args:
      y_backprop: as given to `batch_norm_backward_reduce`, like x, scale, offset, mean, variance,
        y, epsilon, activation_mode and axis.
      x: the same.
      scale: the same.
      offset: the same.
      mean: the same.
      variance: the same.
      sum_dy: float64 [C], that of `batch_norm_backward_reduce`, added up over all batches.
      sum_dy_xmu: the same.
      count: float64 scalar, the elements of a channel in all batches.
      y: the same.
      epsilon: the same.
      num_side_inputs: how many side inputs `batch_norm_elemt` had, 0 or 1.
      activation_mode: the same.
      axis: the same.
      name: name of the operation.

    Returns:
      Named tuple (x_backprop, side_input_backprop): of the type and shape of `x`, and a list of as
      many such tensors as there were side inputs.

    Raises:
      ValueError: more than one y, or num_side_inputs above 1.
      TypeError: scale has none of its types, or epsilon is a tensor.
      tf.errors.InvalidArgumentError: shapes that do not fit together, an unknown activation, or one
        behind a side input without y. (ValueError when they are known while a graph is built.)
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    check_num_side_inputs(num_side_inputs)
    check_statistics_dtype("BatchNormBackwardElemt", x, scale)
    outputs = _load().tf_bn_ops_batch_norm_backward_elemt(
        y_backprop,
        x,
        scale,
        offset,
        mean,
        variance,
        sum_dy,
        sum_dy_xmu,
        count,
        _at_most_one(y, "y"),
        not_a_tensor(epsilon, "batch_norm_backward_elemt"),
        num_side_inputs,
        activation_mode,
        axis,
        name,
    )
    return BatchNormBackwardElemt._make(outputs)


def _at_most_one(tensors: Any, name: str) -> Any:
    """A list argument, or a ValueError."""
    if isinstance(tensors, (list, tuple)) and len(tensors) > 1:
        raise ValueError(f"{name} is a list of at most one tensor, not of {len(tensors)}")
    return [*tensors] if isinstance(tensors, tuple) else tensors
