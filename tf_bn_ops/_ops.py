"""The ops as Python functions: thin calls of the wrappers that TensorFlow generates on loading.

Formulas (Ioffe and Szegedy, "Batch Normalization", 2015, section 3), with M the elements of a
channel, rstd = 1/sqrt(variance + epsilon), and sums over all dimensions but the channel's:

    y = scale * (x - mean) * rstd + offset

    offset_backprop = sum(y_backprop)
    scale_backprop  = rstd * sum(y_backprop * (x - mean))
    training:  x_backprop = scale * rstd * (y_backprop - offset_backprop / M
                            - (x - mean) * rstd * scale_backprop / M)
    frozen:    x_backprop = scale * rstd * y_backprop
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tf_bn_ops import _loader
from tf_bn_ops._arguments import (
    check_num_side_inputs,
    check_statistics_dtype,
    checked_epsilon,
    not_a_tensor,
)
from tf_bn_ops._results import (
    BatchNormTrainingBackprop,
    FusedBatchNorm,
    FusedBatchNormEx,
    FusedBatchNormGrad,
    FusedBatchNormGradEx,
    FusedBatchNormGradGrad,
    FusedBatchNormGradV2,
    FusedBatchNormGradV3,
    FusedBatchNormV2,
    FusedBatchNormV3,
)
from tf_bn_ops._split_ops import (
    Activation,
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
    batch_norm_elemt,
    batch_norm_gather_stats,
    batch_norm_stats,
)
from tf_bn_ops.spec import DataFormat

__all__ = [
    "batch_norm_backward_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_elemt",
    "batch_norm_gather_stats",
    "batch_norm_stats",
    "batch_norm_training_backprop",
    "fused_batch_norm",
    "fused_batch_norm_ex",
    "fused_batch_norm_grad",
    "fused_batch_norm_grad_ex",
    "fused_batch_norm_grad_grad",
    "fused_batch_norm_grad_v2",
    "fused_batch_norm_grad_v3",
    "fused_batch_norm_v2",
    "fused_batch_norm_v3",
    "load",
]


@functools.cache
def load() -> ModuleType:
    """Loads the op library and registers the gradients of its ops, once per process.

    The functions of this package do it on their first call. Call it yourself before importing a
    graph or SavedModel that holds the ops.

    Returns:
      The module of generated wrappers, as `tf.load_op_library` returns it.

    Raises:
      LibraryError: (an ImportError) if the library is missing or was built for another TensorFlow.
    """
    module = _loader.load()
    from tf_bn_ops import _gradients  # It imports TensorFlow.

    _gradients.register(sys.modules[__name__])
    return module


def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    epsilon: float = 1e-4,
    exponential_avg_factor: float = 1.0,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNorm:
    """Batch normalization, the twin of `tf.raw_ops.FusedBatchNorm`.

    `fused_batch_norm_v3` for float32 and rank 4 alone, without reserve_space_3. Inputs, attributes,
    outputs and errors have the same names and meaning.
    """
    outputs = load().tf_bn_ops_fused_batch_norm(
        x,
        scale,
        offset,
        mean,
        variance,
        not_a_tensor(epsilon, "fused_batch_norm"),
        exponential_avg_factor,
        data_format,
        is_training,
        name,
    )
    return FusedBatchNorm._make(outputs)


def fused_batch_norm_v2(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    epsilon: float = 1e-4,
    exponential_avg_factor: float = 1.0,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNormV2:
    """Batch normalization, the twin of `tf.raw_ops.FusedBatchNormV2`.

    `fused_batch_norm_v3` for rank 4 alone, without reserve_space_3. Inputs, attributes, outputs and
    errors have the same names and meaning.
    """
    outputs = load().tf_bn_ops_fused_batch_norm_v2(
        x,
        scale,
        offset,
        mean,
        variance,
        not_a_tensor(epsilon, "fused_batch_norm_v2"),
        exponential_avg_factor,
        data_format,
        is_training,
        name,
    )
    return FusedBatchNormV2._make(outputs)


def fused_batch_norm_v3(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    epsilon: float = 1e-4,
    exponential_avg_factor: float = 1.0,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNormV3:
    """Batch normalization, the twin of `tf.raw_ops.FusedBatchNormV3`.

    With mean and variance those of each channel of `x` in training, those given if frozen:

        y = scale * (x - mean) / sqrt(variance + epsilon) + offset

    All outputs are written in either mode. y is accurate at any mean of `x` (docs/math.md).

    Args:
      x: half, bfloat16 or float32, of the rank of `data_format`.
      scale: float32 [C], the scale factors (gamma).
      offset: float32 [C], the offsets (beta).
      mean: float32 [C], frozen the mean of the population, in training the running mean. In
        training with a factor of 1 it is not read, and may have any size.
      variance: the same for the variance.
      epsilon: added to the variance before the square root; a number, not a tensor.
      exponential_avg_factor: in training, the weight f of this batch in the running statistics.
      data_format: "NHWC" or "NDHWC" (channels-last), "NCHW" or "NCDHW" (channels-first), where the
        number of letters is the rank of `x`. (Called eagerly the op accepts the other of the two
        ranks, too, as TensorFlow's does without oneDNN.)
      is_training: True for the statistics of `x`, False (frozen) for those given.
      name: name of the operation.

    Returns:
      Named tuple:
        y: the normalized tensor; type and shape of `x`.
        batch_mean: float32 [C], the new running mean: in training (1 - f) * mean + f * (mean of x);
          frozen the mean given. NaN where `x` has no elements.
        batch_variance: the same for the variance, with the unbiased variance of `x` (Bessel's
          correction: M/max(M - 1, 1) times the biased one, for M elements of a channel).
        reserve_space_1: float32 [C], the mean that `x` was normalized with; 0 where `x` has no
          elements.
        reserve_space_2: the same, the biased variance. On a GPU, in training:
          1/sqrt(variance + epsilon), as cuDNN has it.
        reserve_space_3: a placeholder of the built-in op; float32 [0].

    Raises:
      tf.errors.InvalidArgumentError: `x` has not rank 4 or 5, or a tensor of shape [C] another
        number of elements. (ValueError when the shapes are known while a graph is built.)
      tf.errors.ResourceExhaustedError: no memory for the outputs or the workspace.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    outputs = load().tf_bn_ops_fused_batch_norm_v3(
        x,
        scale,
        offset,
        mean,
        variance,
        not_a_tensor(epsilon, "fused_batch_norm_v3"),
        exponential_avg_factor,
        data_format,
        is_training,
        name,
    )
    return FusedBatchNormV3._make(outputs)


def fused_batch_norm_ex(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
    side_input: Sequence[Any] = (),
    epsilon: float = 1e-4,
    exponential_avg_factor: float = 1.0,
    activation_mode: Activation = "Identity",
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    bessel_correction: bool = True,
    name: str | None = None,
) -> FusedBatchNormEx:
    """Batch normalization, addition and activation in one op, TensorFlow's `_FusedBatchNormEx`.

        y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)

    TensorFlow's op, which has no Python function, takes a side input and an activation on GPUs
    alone. This one takes every combination of type, layout, mode, side input and activation.

    Args:
      x: as `fused_batch_norm_v3` takes it, like scale, offset, mean, variance, epsilon,
        exponential_avg_factor, data_format and is_training.
      scale: float32 [C].
      offset: float32 [C].
      mean: float32 [C].
      variance: float32 [C].
      side_input: a list of at most one tensor, of the type and shape of `x`: what is added before
        the activation.
      epsilon: a number.
      exponential_avg_factor: a number.
      activation_mode: "Identity", "Relu" or "Relu6".
      data_format: "NHWC", "NDHWC", "NCHW" or "NCDHW".
      is_training: True for the statistics of `x`, False for those given.
      bessel_correction: whether batch_variance is averaged from the unbiased variance of `x` (as
        TensorFlow's ops do) or from the biased one (as Keras does).
      name: name of the operation.

    Returns:
      Named tuple with the fields of `fused_batch_norm_v3`. The statistics are those of `x` alone.
      With an activation and without a side input, reserve_space_3 holds on CPUs and GPUs the 3 * C
      coefficients that y was computed with, for the gradient (under XLA it is a placeholder).

    Raises:
      ValueError: more than one side input.
      tf.errors.InvalidArgumentError: shapes that do not fit together, or an unknown activation.
        (ValueError when they are known while a graph is built.)
      tf.errors.ResourceExhaustedError: no memory for the outputs or the workspace.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    if isinstance(side_input, (list, tuple)) and len(side_input) > 1:
        raise ValueError(f"side_input is a list of at most one tensor, not of {len(side_input)}")
    outputs = load().tf_bn_ops_fused_batch_norm_ex(
        x,
        scale,
        offset,
        mean,
        variance,
        [*side_input] if isinstance(side_input, tuple) else side_input,
        not_a_tensor(epsilon, "fused_batch_norm_ex"),
        exponential_avg_factor,
        activation_mode,
        data_format,
        is_training,
        bessel_correction,
        name,
    )
    return FusedBatchNormEx._make(outputs)


def fused_batch_norm_grad(
    y_backprop: Any,
    x: Any,
    scale: Any,
    reserve_space_1: Any,
    reserve_space_2: Any,
    epsilon: float = 1e-4,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNormGrad:
    """Gradient of batch normalization, the twin of `tf.raw_ops.FusedBatchNormGrad`.

    Args:
      y_backprop: float32 [N, H, W, C] or [N, C, H, W], gradient with respect to the output.
      x: input of the batch normalization, type and shape of `y_backprop`.
      scale: float32 [C], the scale factors (gamma).
      reserve_space_1: float32 [C], mean: of the batch in training, of the population if frozen.
      reserve_space_2: float32 [C], biased variance: of the batch in training, of the population if
        frozen. (On a GPU, in training: 1/sqrt(variance + epsilon), as cuDNN has it.)
      epsilon: added to the variance; a number, not a tensor.
      data_format: "NHWC" or "NCHW".
      is_training: True if mean and variance are functions of x, False if they are constants.
      name: name of the operation.

    Returns:
      Named tuple (x_backprop, scale_backprop, offset_backprop, reserve_space_3, reserve_space_4):
      gradients with respect to x (shape and type of x), scale and offset (float32 [C]), and two
      placeholders of shape [0].

    Raises:
      tf.errors.InvalidArgumentError: shapes that do not fit together.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    outputs = load().tf_bn_ops_fused_batch_norm_grad(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        not_a_tensor(epsilon, "fused_batch_norm_grad"),
        data_format,
        is_training,
        name,
    )
    return FusedBatchNormGrad._make(outputs)


def fused_batch_norm_grad_v2(
    y_backprop: Any,
    x: Any,
    scale: Any,
    reserve_space_1: Any,
    reserve_space_2: Any,
    epsilon: float = 1e-4,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNormGradV2:
    """Gradient of batch normalization, the twin of `tf.raw_ops.FusedBatchNormGradV2`.

    `fused_batch_norm_grad` with three element types: `y_backprop`, `x` and `x_backprop` are half,
    bfloat16 or float32; tensors of shape [C] are float32. Inputs, attributes, outputs and errors
    have the same names and meaning.
    """
    outputs = load().tf_bn_ops_fused_batch_norm_grad_v2(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        not_a_tensor(epsilon, "fused_batch_norm_grad_v2"),
        data_format,
        is_training,
        name,
    )
    return FusedBatchNormGradV2._make(outputs)


def fused_batch_norm_grad_v3(
    y_backprop: Any,
    x: Any,
    scale: Any,
    reserve_space_1: Any,
    reserve_space_2: Any,
    reserve_space_3: Any,
    epsilon: float = 1e-4,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNormGradV3:
    """Gradient of batch normalization, the twin of `tf.raw_ops.FusedBatchNormGradV3`.

    The op that TensorFlow's own gradients use. Sums are accumulated in float64; x_backprop is
    computed in float32 and rounded to its type once. Results are bitwise identical for any number
    of threads and any CPU instruction set. With M the number of elements of a channel,
    rstd = 1/sqrt(reserve_space_2 + epsilon), and sums over all dimensions but C:

        offset_backprop = sum(y_backprop)
        scale_backprop  = rstd * sum(y_backprop * (x - reserve_space_1))
        training: x_backprop = scale * rstd * (y_backprop - offset_backprop / M
                               - (x - reserve_space_1) * rstd * scale_backprop / M)
        frozen:   x_backprop = scale * rstd * y_backprop

    Args:
      y_backprop: gradient with respect to the output of the batch normalization; float32, half or
        bfloat16, of a shape that `data_format` describes: 4-D [N, H, W, C] or [N, C, H, W], or 5-D
        [N, D, H, W, C] or [N, C, D, H, W]. Any dimension may be 0.
      x: input of the batch normalization; type and shape of `y_backprop`.
      scale: the scale factors (gamma); float32 [C].
      reserve_space_1: mean; float32 [C]. In training the mean of the batch, which the forward op
        returned in its output of this name; frozen the mean of the population.
      reserve_space_2: biased variance; float32 [C]. In training that of the batch, frozen that of
        the population. On a GPU in training it is 1/sqrt(variance + epsilon) instead, as cuDNN
        returns it from the forward op.
      reserve_space_3: float32 of any shape, the output of this name of the forward op. Not read:
        only cuDNN uses it.
      epsilon: added to the variance before the square root; a number, not a tensor.
      data_format: "NHWC" or "NDHWC" (channels-last), "NCHW" or "NCDHW" (channels-first), where the
        number of letters is the rank of `x`.
      is_training: True if mean and variance are functions of `x`, whose derivatives x_backprop then
        includes; False (frozen) if they are constants.
      name: name of the operation.

    Returns:
      Named tuple:
        x_backprop: gradient with respect to `x`; its type and shape.
        scale_backprop: gradient with respect to `scale`; float32 [C].
        offset_backprop: gradient with respect to the offset (beta); float32 [C].
        reserve_space_4, reserve_space_5: placeholders of the built-in op; float32 [0].

    Raises:
      tf.errors.InvalidArgumentError: `x` has not the rank of `data_format`, `y_backprop` another
        shape than `x`, or a tensor of shape [C] another number of elements. (ValueError when the
        shapes are known while a graph is built.)
      tf.errors.ResourceExhaustedError: no memory for the outputs or the workspace.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    outputs = load().tf_bn_ops_fused_batch_norm_grad_v3(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        reserve_space_3,
        not_a_tensor(epsilon, "fused_batch_norm_grad_v3"),
        data_format,
        is_training,
        name,
    )
    return FusedBatchNormGradV3._make(outputs)


def fused_batch_norm_grad_ex(
    y_backprop: Any,
    x: Any,
    scale: Any,
    reserve_space_1: Any,
    reserve_space_2: Any,
    reserve_space_3: Any,
    offset: Any,
    y: Any,
    epsilon: float = 1e-4,
    num_side_inputs: int = 0,
    activation_mode: Activation = "Identity",
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNormGradEx:
    """Gradient of `fused_batch_norm_ex` in one op, TensorFlow's `_FusedBatchNormGradEx`.

    `fused_batch_norm_grad_v3` of y_backprop masked by the derivative of the activation: 1 where
    y > 0 ("Relu") or 0 < y < 6 ("Relu6"), else 0. TensorFlow's op has no kernel for CPUs and no
    Python function.

    Args:
      y_backprop: as `fused_batch_norm_grad_v3` takes it, like x, scale, epsilon, data_format and
        is_training.
      x: half, bfloat16 or float32.
      scale: float32 [C].
      reserve_space_1: float32 [C], as `fused_batch_norm_ex` returned it.
      reserve_space_2: the same.
      reserve_space_3: the same. If it holds the 3 * C coefficients of the forward op, the mask is
        computed from `x`, bitwise the forward's decision, and `y` is not read on CPUs.
      offset: float32 [C], the offsets; read with an activation alone.
      y: the result of `fused_batch_norm_ex`; read with an activation alone.
      epsilon: a number.
      num_side_inputs: how many side inputs the forward op had: 0 or 1.
      activation_mode: "Identity", "Relu" or "Relu6".
      data_format: "NHWC", "NDHWC", "NCHW" or "NCDHW".
      is_training: as in the forward op.
      name: name of the operation.

    Returns:
      Named tuple with the fields of `fused_batch_norm_grad_v3`, and side_input_backprop: a list of
      `num_side_inputs` tensors, the masked y_backprop.

    Raises:
      tf.errors.InvalidArgumentError: shapes that do not fit together, or an unknown activation.
        (ValueError when they are known while a graph is built.)
      tf.errors.ResourceExhaustedError: no memory for the outputs or the workspace.
      ValueError: num_side_inputs above 1.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    check_num_side_inputs(num_side_inputs)
    outputs = load().tf_bn_ops_fused_batch_norm_grad_ex(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        reserve_space_3,
        offset,
        y,
        not_a_tensor(epsilon, "fused_batch_norm_grad_ex"),
        num_side_inputs,
        activation_mode,
        data_format,
        is_training,
        name,
    )
    return FusedBatchNormGradEx._make(outputs)


def fused_batch_norm_grad_grad(
    x_backprop_grad: Any,
    scale_backprop_grad: Any,
    offset_backprop_grad: Any,
    y_backprop: Any,
    x: Any,
    scale: Any,
    reserve_space_1: Any,
    reserve_space_2: Any,
    epsilon: float = 1e-4,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> FusedBatchNormGradGrad:
    """Second-order gradient: what TensorFlow registers for `FusedBatchNormGrad`, in one kernel.

    The gradient of the other ops of the package. docs/math.md derives its formulas. In training,
    mean and variance are functions of `x` and are computed from it; the reserve spaces are read if
    frozen alone, and get no gradient.

    Args:
      x_backprop_grad: gradient with respect to the output `x_backprop` of the first-order op; of
        rank 2 or more; float64, float32, half or bfloat16.
      scale_backprop_grad: gradient with respect to `scale_backprop`; [C], float32 or the type of
        `x_backprop_grad` (float64: that type), as all tensors of this shape.
      offset_backprop_grad: gradient with respect to `offset_backprop`, [C].
      y_backprop: as given to the first-order op, type and shape of `x_backprop_grad`.
      x: the same.
      scale: the same, [C].
      reserve_space_1: mean, [C].
      reserve_space_2: variance, [C].
      epsilon: added to the variance; a number, used as float64.
      data_format: "NHWC" or "NDHWC": channels are the last dimension, of any rank; "NCHW" or
        "NCDHW": they are dimension 1.
      is_training: True if mean and variance are functions of x, False if they are constants.
      name: name of the operation.

    Returns:
      Named tuple (y_backprop_grad, x_grad, scale_grad): gradients with respect to y_backprop and x
      (type and shape of x) and scale (type and shape of scale).

    Raises:
      tf.errors.InvalidArgumentError: shapes that do not fit together. (ValueError when they are
        known while a graph is built.)
      TypeError: scale_backprop_grad has neither of its types.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    first, *rest = _as_floats(checked_epsilon(epsilon, "fused_batch_norm_grad_grad"))
    check_statistics_dtype("FusedBatchNormGradGrad", x_backprop_grad, scale_backprop_grad)
    outputs = load().tf_bn_ops_fused_batch_norm_grad_grad(
        x_backprop_grad,
        scale_backprop_grad,
        offset_backprop_grad,
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        first,
        rest,
        data_format,
        is_training,
        name,
    )
    return FusedBatchNormGradGrad._make(outputs)


def _as_floats(value: float) -> list[float]:
    """At least one, at most three float32 numbers whose sum is `value` (float64 has 53 bits, three
    floats hold 72), as long as none of them is subnormal."""
    with np.errstate(over="ignore"):  # Beyond float32 it is an infinity, as that of an attr float.
        parts = [float(np.float32(value))]
        for _ in range(2):
            rest = value - sum(parts)
            if rest != 0 and np.isfinite(rest):
                parts.append(float(np.float32(rest)))
    return parts


def batch_norm_training_backprop(
    input: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    variance: Any,
    normalized_delta: Any,
    epsilon: float,
    name: str | None = None,
) -> BatchNormTrainingBackprop:
    """Gradient of batch normalization in training, nGraph's `BatchNormTrainingBackprop`.

    The semantics are those of nGraph's reference kernel: the channel is dimension 1, mean and
    biased variance are taken as given and differentiated as functions of the input. That is
    `fused_batch_norm_grad_v3` in training with data_format "NCHW" (or "NCDHW"), for any rank from 2
    on, in four element types, and with an epsilon that keeps its double precision:

        beta_delta  = sum(normalized_delta)
        gamma_delta = rstd * sum(normalized_delta * (input - mean))
        input_delta = gamma * rstd * (normalized_delta - beta_delta / M
                                      - (input - mean) * rstd * gamma_delta / M)

    Args:
      input: [N, C, ...] of float64, float32, half or bfloat16, what was normalized.
      gamma: [C] of the type of `input`, as all tensors here: scale factors.
      beta: [C], offsets. No result depends on them.
      mean: [C], mean of each channel of `input`.
      variance: [C], biased variance of each channel of `input`.
      normalized_delta: gradient with respect to the normalized output, of the shape of `input`.
      epsilon: added to the variance; a Python or NumPy number, used as float64.
      name: name of the operation.

    Returns:
      Named tuple (input_delta, gamma_delta, beta_delta): of the shape of `input`, [C] and [C].

    Raises:
      tf.errors.InvalidArgumentError: rank below 2, no channels, or shapes that do not fit together.
        (ValueError when the shapes are known while a graph is built.)
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    import tensorflow as tf

    epsilon = checked_epsilon(epsilon, "batch_norm_training_backprop")
    tensors = [input, gamma, beta, mean, variance, normalized_delta]
    if tf.executing_eagerly():
        tensors[0] = tf.convert_to_tensor(input, name="input")
        dtype = tensors[0].dtype
        tensors[1:] = [tf.convert_to_tensor(tensor, dtype) for tensor in tensors[1:]]
        outputs = _training_backprop_function(epsilon, dtype)(*tensors)
    else:
        outputs = _training_backprop_node(*tensors, epsilon, name)
    return BatchNormTrainingBackprop._make(outputs)


def _training_backprop_node(*arguments: Any) -> Any:
    """Adds the op to the current graph; the arguments are the tensors, epsilon, and a name."""
    import tensorflow as tf

    *tensors, epsilon, name = arguments
    # A `float` attr would round epsilon: it travels as a scalar double in a tensor attr.
    epsilon_tensor = tf.make_tensor_proto(epsilon, dtype=tf.float64, shape=[])
    return load().tf_bn_ops_batch_norm_training_backprop(*tensors, epsilon_tensor, name)


@functools.lru_cache(maxsize=64)
def _training_backprop_function(epsilon: float, dtype: Any) -> Any:
    """The op as a one-node function: eager execution knows no tensor attrs."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec(None, dtype)] * 6, autograph=False)
    def batch_norm_training_backprop(*tensors: Any) -> Any:
        return _training_backprop_node(*tensors, epsilon, None)

    # Its graph, so that it stays one under tf.config.run_functions_eagerly(True).
    return batch_norm_training_backprop.get_concrete_function()
