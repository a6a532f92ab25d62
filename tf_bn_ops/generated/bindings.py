"""The ops as Python functions: calls of the wrappers that TensorFlow generates on loading.

All of them raise

  tf.errors.InvalidArgumentError: Shapes that do not fit together, or an unknown value of an attr.
    (ValueError when it is known while a graph is built.)
  TypeError: Types that do not go together, or a tensor where a number belongs.
  ValueError: More than one side input, or an integer beyond int64.
  LibraryError: (an ImportError) The op library is missing or of another TensorFlow.

Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.
"""
# fmt: off
# ruff: noqa: UP014

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tf_bn_ops import _arguments
from tf_bn_ops._arguments import with_epsilon_tensor
from tf_bn_ops._loader import load
from tf_bn_ops.spec import DataFormat

if TYPE_CHECKING:
    from tensorflow import Tensor

# What fused_batch_norm calls the activations, and the ops.
Activation = Literal["relu", "relu6", "silu", "hard_silu", "leaky_relu"]
ActivationMode = Literal["Identity", "Relu", "Relu6", "Silu", "HardSilu", "LeakyRelu"]

# Results of raw_ops, by its names.
BatchNormBackwardElemt = NamedTuple("BatchNormBackwardElemt", [("x_backprop", "Tensor"),
    ("side_input_backprop", "list[Tensor]")])
BatchNormBackwardReduce = NamedTuple("BatchNormBackwardReduce", [("sum_dy", "Tensor"),
    ("sum_dy_xmu", "Tensor"), ("scale_backprop", "Tensor"), ("offset_backprop", "Tensor")])
BatchNormGatherStats = NamedTuple("BatchNormGatherStats", [("count", "Tensor"), ("mean", "Tensor"),
    ("m2", "Tensor")])
BatchNormStats = NamedTuple("BatchNormStats", [("count", "Tensor"), ("mean", "Tensor"), ("m2",
    "Tensor")])
BatchNormTrainingBackprop = NamedTuple("BatchNormTrainingBackprop", [("input_delta", "Tensor"),
    ("gamma_delta", "Tensor"), ("beta_delta", "Tensor")])
FusedBatchNorm = NamedTuple("FusedBatchNorm", [("y", "Tensor"), ("batch_mean", "Tensor"),
    ("batch_variance", "Tensor"), ("reserve_space_1", "Tensor"), ("reserve_space_2", "Tensor")])
FusedBatchNormEx = NamedTuple("FusedBatchNormEx", [("y", "Tensor"), ("batch_mean", "Tensor"),
    ("batch_variance", "Tensor"), ("reserve_space_1", "Tensor"), ("reserve_space_2", "Tensor"),
    ("reserve_space_3", "Tensor")])
FusedBatchNormGrad = NamedTuple("FusedBatchNormGrad", [("x_backprop", "Tensor"), ("scale_backprop",
    "Tensor"), ("offset_backprop", "Tensor"), ("reserve_space_3", "Tensor"), ("reserve_space_4",
    "Tensor")])
FusedBatchNormGradEx = NamedTuple("FusedBatchNormGradEx", [("x_backprop", "Tensor"),
    ("scale_backprop", "Tensor"), ("offset_backprop", "Tensor"), ("reserve_space_4", "Tensor"),
    ("reserve_space_5", "Tensor"), ("side_input_backprop", "list[Tensor]")])
FusedBatchNormGradGrad = NamedTuple("FusedBatchNormGradGrad", [("y_backprop_grad", "Tensor"),
    ("x_grad", "Tensor"), ("scale_grad", "Tensor")])
FusedBatchNormGradV2 = NamedTuple("FusedBatchNormGradV2", [("x_backprop", "Tensor"),
    ("scale_backprop", "Tensor"), ("offset_backprop", "Tensor"), ("reserve_space_3", "Tensor"),
    ("reserve_space_4", "Tensor")])
FusedBatchNormGradV3 = NamedTuple("FusedBatchNormGradV3", [("x_backprop", "Tensor"),
    ("scale_backprop", "Tensor"), ("offset_backprop", "Tensor"), ("reserve_space_4", "Tensor"),
    ("reserve_space_5", "Tensor")])
FusedBatchNormV2 = NamedTuple("FusedBatchNormV2", [("y", "Tensor"), ("batch_mean", "Tensor"),
    ("batch_variance", "Tensor"), ("reserve_space_1", "Tensor"), ("reserve_space_2", "Tensor")])
FusedBatchNormV3 = NamedTuple("FusedBatchNormV3", [("y", "Tensor"), ("batch_mean", "Tensor"),
    ("batch_variance", "Tensor"), ("reserve_space_1", "Tensor"), ("reserve_space_2", "Tensor"),
    ("reserve_space_3", "Tensor")])

def batch_norm_backward_elemt(y_backprop: Any, x: Any, scale: Any, offset: Any, mean: Any,
    variance: Any, sum_dy: Any, sum_dy_xmu: Any, count: Any, y: Sequence[Any] = (),
    epsilon: float = 0.0001, num_side_inputs: int = 0, activation_mode: ActivationMode = "Identity",
    axis: int = -1, name: str | None = None) -> BatchNormBackwardElemt:
    """The gradient of batch normalization with respect to x, from sums over all batches.

    With rstd = 1/sqrt(variance + epsilon), and y_backprop where the activation passes it, 0
    elsewhere:

        x_backprop = scale * rstd * (y_backprop - sum_dy/count
                                     - (x - mean) * rstd^2 * sum_dy_xmu/count)
        side_input_backprop = y_backprop

    T: half, bfloat16, float32, float64.
    U: float32, float64.

    Args:
      y_backprop (T): Gradient with respect to y, of the shape of x.
      x (T): As given to BatchNormElemt.
      scale (U [C]): As given to BatchNormElemt.
      offset (U [C]): As given to BatchNormElemt.
      mean (float64 [C]): As given to BatchNormElemt.
      variance (float64 [C]): As given to BatchNormElemt.
      sum_dy (float64 [C]): The sum over all batches of BatchNormBackwardReduce's output.
      sum_dy_xmu (float64 [C]): The same.
      count (float64 []): The number of elements of a channel in all batches.
      y (list of T): At most one tensor, as given to BatchNormBackwardReduce.
      epsilon: Added to the variance; a number, not a tensor.
      num_side_inputs: How many side inputs the forward op has, 0 or 1.
      activation_mode: The activation.
      axis: The dimension of the channels of x; from the end if negative.
      name: Name of the operation.

    Returns:
      Named tuple:
        x_backprop (T): Gradient with respect to x.
        side_input_backprop (list of T): Gradient with respect to the side input.
    """
    _arguments.check_statistics_dtype("BatchNormBackwardElemt", y_backprop, scale)
    return BatchNormBackwardElemt._make(load().tf_bn_ops_batch_norm_backward_elemt(y_backprop, x,
        scale, offset, mean, variance, sum_dy, sum_dy_xmu, count, _arguments.at_most_one(y, "y"),
        *_arguments.split_epsilon(epsilon, "batch_norm_backward_elemt"),
        _arguments.checked_length(num_side_inputs), activation_mode, _arguments.checked_int(axis,
        "axis"), name))

def batch_norm_backward_reduce(y_backprop: Any, x: Any, scale: Any, offset: Any, mean: Any,
    variance: Any, y: Sequence[Any] = (), epsilon: float = 0.0001,
    activation_mode: ActivationMode = "Identity", axis: int = -1, name: str |
    None = None) -> BatchNormBackwardReduce:
    """The sums of the gradient of batch normalization over one batch.

    With y_backprop where the activation passes it, and 0 elsewhere:

        sum_dy = sum(y_backprop)
        sum_dy_xmu = sum(y_backprop * (x - mean))
        scale_backprop = sum_dy_xmu / sqrt(variance + epsilon)
        offset_backprop = sum_dy

    T: half, bfloat16, float32, float64.
    U: float32, float64.

    Args:
      y_backprop (T): Gradient with respect to y, of the shape of x.
      x (T): As given to BatchNormElemt.
      scale (U [C]): As given to BatchNormElemt.
      offset (U [C]): As given to BatchNormElemt.
      mean (float64 [C]): As given to BatchNormElemt.
      variance (float64 [C]): As given to BatchNormElemt.
      y (list of T): At most one tensor, the output of BatchNormElemt: needed with an activation
          behind a side input. Without it the mask of the activation is computed from x.
      epsilon: Added to the variance; a number, not a tensor.
      activation_mode: The activation.
      axis: The dimension of the channels of x; from the end if negative.
      name: Name of the operation.

    Returns:
      Named tuple:
        sum_dy (float64 [C]): To be added up over all batches.
        sum_dy_xmu (float64 [C]): To be added up over all batches.
        scale_backprop (U [C]): Gradient of this batch with respect to scale.
        offset_backprop (U [C]): Gradient of this batch with respect to offset.
    """
    _arguments.check_statistics_dtype("BatchNormBackwardReduce", y_backprop, scale)
    return BatchNormBackwardReduce._make(load().tf_bn_ops_batch_norm_backward_reduce(y_backprop, x,
        scale, offset, mean, variance, _arguments.at_most_one(y, "y"),
        *_arguments.split_epsilon(epsilon, "batch_norm_backward_reduce"), activation_mode,
        _arguments.checked_int(axis, "axis"), name))

def batch_norm_elemt(x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    side_input: Sequence[Any] = (), epsilon: float = 0.0001,
    activation_mode: ActivationMode = "Identity", axis: int = -1, name: str | None = None) -> Any:
    """Batch normalization with given statistics, addition and activation.

        y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)

    T: half, bfloat16, float32, float64.
    U: float32, float64.

    Args:
      x (T): A tensor of rank 1 or more.
      scale (U [C]): The scale factors (gamma).
      offset (U [C]): The offsets (beta).
      mean (float64 [C]): The mean of each channel.
      variance (float64 [C]): The biased variance of each channel.
      side_input (list of T): At most one tensor of the shape of x, which is added before the
          activation.
      epsilon: Added to the variance; a number, not a tensor.
      activation_mode: The activation.
      axis: The dimension of the channels of x; from the end if negative.
      name: Name of the operation.

    Returns:
      y (T): The normalized tensor.
    """
    _arguments.check_statistics_dtype("BatchNormElemt", x, scale)
    return load().tf_bn_ops_batch_norm_elemt(x, scale, offset, mean, variance,
        _arguments.at_most_one(side_input, "side_input"), *_arguments.split_epsilon(epsilon,
        "batch_norm_elemt"), activation_mode, _arguments.checked_int(axis, "axis"), name)

def batch_norm_gather_stats(counts: Any, means: Any, m2s: Any, name: str |
    None = None) -> BatchNormGatherStats:
    """Statistics of a batch from those of its parts, by the formula of Chan et al.

    Row by row in their order, so that results are bitwise identical on all replicas:

        delta = means[w] - mean
        mean += delta * (counts[w] / (count + counts[w]))
        m2   += m2s[w] + delta^2 * (count * counts[w] / (count + counts[w]))
        count += counts[w]

    Rows with a count of 0 are ignored, whatever else they hold. Without any other row all results
    are 0. A count that is negative, infinite or NaN is an error.


    Args:
      counts (float64 [W]): Elements of a channel in each part.
      means (float64 [W, C]): Their means.
      m2s (float64 [W, C]): Their sums of (x - mean)^2.
      name: Name of the operation.

    Returns:
      Named tuple:
        count (float64 []): Elements of a channel in all parts.
        mean (float64 [C]): Their mean.
        m2 (float64 [C]): Their sum of (x - mean)^2.
    """
    return BatchNormGatherStats._make(load().tf_bn_ops_batch_norm_gather_stats(counts, means, m2s,
        name))

def batch_norm_stats(x: Any, axis: int = -1, name: str | None = None) -> BatchNormStats:
    """Statistics of one batch, from which those of several batches are combined.

    One pass over x, with sums in float64 around an element of each channel: a mean of 1e5 beside a
    deviation of 1 costs no digits. Without elements all results are 0.

    T: half, bfloat16, float32, float64.

    Args:
      x (T): A tensor of rank 1 or more.
      axis: The dimension of the channels of x; from the end if negative.
      name: Name of the operation.

    Returns:
      Named tuple:
        count (float64 []): The number of elements of a channel.
        mean (float64 [C]): The mean of each channel.
        m2 (float64 [C]): The sum of (x - mean)^2 of each channel.
    """
    return BatchNormStats._make(load().tf_bn_ops_batch_norm_stats(x, _arguments.checked_int(axis,
        "axis"), name))

def batch_norm_training_backprop(input: Any, gamma: Any, beta: Any, mean: Any, variance: Any,
    normalized_delta: Any, epsilon: float, name: str | None = None) -> BatchNormTrainingBackprop:
    """Gradient of batch normalization in training, nGraph's op of this name.

    The tensors are (N, C, ...) of any rank from 2 on. With M the number of elements of a channel,
    rstd = 1/sqrt(variance + epsilon), and sums over all dimensions but C:

        beta_delta = sum(normalized_delta)
        gamma_delta = rstd * sum(normalized_delta * (input - mean))
        input_delta = gamma * rstd * (normalized_delta - beta_delta/M
                                      - (input - mean) * rstd * gamma_delta/M)

    Mean and variance are taken as given, and differentiated as functions of the input.

    T: half, bfloat16, float32, float64.

    Args:
      input (T): What was normalized, (N, C, ...).
      gamma (T [C]): The scale factors.
      beta (T [C]): The offsets. No result depends on them.
      mean (T [C]): The mean of each channel of input.
      variance (T [C]): The biased variance of each channel of input.
      normalized_delta (T): Gradient with respect to the normalized output, of the shape of input.
      epsilon: Added to the variance; a number, not a tensor.
      name: Name of the operation.

    Returns:
      Named tuple:
        input_delta (T): Gradient with respect to input.
        gamma_delta (T [C]): Gradient with respect to gamma.
        beta_delta (T [C]): Gradient with respect to beta.
    """
    return BatchNormTrainingBackprop._make(with_epsilon_tensor("batch_norm_training_backprop",
        [input, gamma, beta, mean, variance, normalized_delta], epsilon, name))

def fused_batch_norm(x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> FusedBatchNorm:
    """Batch normalization, the twin of TensorFlow's FusedBatchNorm.

    FusedBatchNormV3 has the formulas; this version takes fewer types and ranks.

    T: float32.

    Arguments and results are as of fused_batch_norm_v3.
    """
    return FusedBatchNorm._make(load().tf_bn_ops_fused_batch_norm(x, scale, offset, mean, variance,
        _arguments.not_a_tensor(epsilon, "fused_batch_norm"), exponential_avg_factor, data_format,
        is_training, name))

def fused_batch_norm_ex(x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    side_input: Sequence[Any] = (), epsilon: float = 0.0001, exponential_avg_factor: float = 1.0,
    activation_mode: ActivationMode = "Identity", leakyrelu_alpha: float = 0.2,
    data_format: DataFormat = "NHWC", is_training: bool = True, bessel_correction: bool = True,
    name: str | None = None) -> FusedBatchNormEx:
    """Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.

    With M the number of elements of a channel, sums over all dimensions but the channel's, and in
    training mean = sum(x)/M, variance = sum((x - mean)^2)/M:

        y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)

    With f = exponential_avg_factor, in training

        batch_mean = (1 - f) * (mean given) + f * mean
        batch_variance = (1 - f) * (variance given) + f * variance * M/max(M - 1, 1)

    Frozen, mean and variance are those given, and so are batch_mean and batch_variance. All outputs
    are written in either mode; y is accurate at any mean of x.

    T: half, bfloat16, float32.
    U: float32.

    Args:
      x (T): What is normalized, of the rank of data_format (eagerly 4-D or 5-D).
      scale (U [C]): The scale factors (gamma).
      offset (U [C]): The offsets (beta).
      mean (U [C]): Frozen the mean of the population, in training the running mean; in training
          with a factor of 1 it is not read, and may have any size.
      variance (U [C]): The same for the variance.
      side_input (list of T): At most one tensor of the shape of x, which is added before the
          activation.
      epsilon: Added to the variance; a number, not a tensor.
      exponential_avg_factor: In training, the weight f of this batch in the running statistics.
      activation_mode: The activation.
      leakyrelu_alpha: Of LeakyRelu, the slope below 0.
      data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW,
          NCDHW).
      is_training: Whether mean and variance are functions of x (training) or constants (frozen).
      bessel_correction: Whether batch_variance in training has the factor M/max(M - 1, 1), as in
          TensorFlow's ops, or not, as in Keras.
      name: Name of the operation.

    Returns:
      Named tuple:
        y (T): The normalized tensor.
        batch_mean (U [C]): The new running mean; NaN where x is empty.
        batch_variance (U [C]): The new running variance; the same.
        reserve_space_1 (U [C]): The mean that x was normalized with, for the gradient; 0 where x is
            empty.
        reserve_space_2 (U [C]): The biased variance that x was normalized with, for the gradient;
            on a GPU in training 1/sqrt(variance + epsilon), as cuDNN has it.
        reserve_space_3 (U): For the gradient: [8, C], what the other reserve spaces lose of mean
            and variance by rounding, what says that it is theirs, and the coefficients that y was
            computed with. Frozen, without an activation, a placeholder.
    """
    return FusedBatchNormEx._make(load().tf_bn_ops_fused_batch_norm_ex(x, scale, offset, mean,
        variance, _arguments.at_most_one(side_input, "side_input"), _arguments.not_a_tensor(epsilon,
        "fused_batch_norm_ex"), exponential_avg_factor, activation_mode, leakyrelu_alpha,
        data_format, is_training, bessel_correction, name))

def fused_batch_norm_grad(y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, epsilon: float = 0.0001, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> FusedBatchNormGrad:
    """Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGrad.

    FusedBatchNormGradV3 has the formulas; this version takes fewer types and ranks.

    T: float32.

    Arguments and results are as of fused_batch_norm_grad_v3.
    """
    return FusedBatchNormGrad._make(load().tf_bn_ops_fused_batch_norm_grad(y_backprop, x, scale,
        reserve_space_1, reserve_space_2, _arguments.not_a_tensor(epsilon, "fused_batch_norm_grad"),
        data_format, is_training, name))

def fused_batch_norm_grad_ex(y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, reserve_space_3: Any, offset: Any, y: Any, epsilon: float = 0.0001,
    num_side_inputs: int = 0, activation_mode: ActivationMode = "Identity",
    leakyrelu_alpha: float = 0.2, data_format: DataFormat = "NHWC", is_training: bool = True,
    name: str | None = None) -> FusedBatchNormGradEx:
    """Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.

    FusedBatchNormGradV3 of y_backprop where the activation passes it, y > 0 (Relu) or 0 < y < 6
    (Relu6), and of 0 elsewhere; of y_backprop times the derivative of a smooth activation, any
    other. What that is of is side_input_backprop, too.

    T: half, bfloat16, float32.
    U: float32.

    Args:
      y_backprop (T): Gradient with respect to y, of the shape of x.
      x (T): What was normalized, of the rank of data_format.
      scale (float32 [C]): The scale factors (gamma).
      reserve_space_1 (U [C]): As FusedBatchNormEx returns it.
      reserve_space_2 (U [C]): As FusedBatchNormEx returns it.
      reserve_space_3 (U): As FusedBatchNormEx returns it. Where it holds the coefficients that y
          was computed with, and offset is given, the mask is computed from x, and y is not read on
          CPUs.
      offset (float32 [C]): The offsets; read with an activation. An empty vector or reserve_space_3
          in their place: the mask is computed from y, and smooth activations are refused.
      y (T): The output y of FusedBatchNormEx; read with an activation. With a smooth one its
          side input, or, without one, any tensor of the shape of x, which is not read.
      epsilon: Added to the variance; a number, not a tensor.
      num_side_inputs: How many side inputs the forward op has, 0 or 1.
      activation_mode: The activation.
      leakyrelu_alpha: Of LeakyRelu, the slope below 0.
      data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW,
          NCDHW).
      is_training: Whether mean and variance are functions of x (training) or constants (frozen).
      name: Name of the operation.

    Returns:
      Named tuple:
        x_backprop (T): Gradient with respect to x.
        scale_backprop (U [C]): Gradient with respect to scale.
        offset_backprop (U [C]): Gradient with respect to the offset.
        reserve_space_4 (U [0]): A placeholder of the built-in op.
        reserve_space_5 (U [0]): A placeholder of the built-in op.
        side_input_backprop (list of T): Gradient with respect to the side input.
    """
    return FusedBatchNormGradEx._make(load().tf_bn_ops_fused_batch_norm_grad_ex(y_backprop, x,
        scale, reserve_space_1, reserve_space_2, reserve_space_3, offset, y,
        _arguments.not_a_tensor(epsilon, "fused_batch_norm_grad_ex"),
        _arguments.checked_length(num_side_inputs), activation_mode, leakyrelu_alpha, data_format,
        is_training, name))

def fused_batch_norm_grad_grad(x_backprop_grad: Any, scale_backprop_grad: Any,
    offset_backprop_grad: Any, y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, epsilon: float = 0.0001, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> FusedBatchNormGradGrad:
    """Gradient of the gradient of batch normalization, as TensorFlow registers it.

    With M the number of elements of a channel, mean and sum over all dimensions but the channel's,
    a prime for "less its mean", and in training

        rstd = 1/sqrt(mean(x'^2) + epsilon), xhat = x' * rstd, f = scale * rstd,
        a = mean(x_backprop_grad * xhat), s = mean(y_backprop * xhat),
        b = mean(x_backprop_grad' * y_backprop'), p = scale_backprop_grad - f * a:

        y_backprop_grad = f * x_backprop_grad' + p * xhat + offset_backprop_grad
        x_grad = rstd * (p * y_backprop' - f * s * x_backprop_grad'
                         - (scale_backprop_grad * s + f * (b - 3 * a * s)) * xhat)
        scale_grad = rstd * M * (b - a * s)

    Frozen, with mean and variance given:

        y_backprop_grad = f * x_backprop_grad + scale_backprop_grad * xhat + offset_backprop_grad
        x_grad = scale_backprop_grad * rstd * y_backprop
        scale_grad = rstd * sum(x_backprop_grad * y_backprop)

    Tensors of the shape of x have any rank from 2 on; U is float32, or T. The reserve spaces get a
    gradient frozen.

    T: half, bfloat16, float32, float64.
    U: half, bfloat16, float32, float64.

    Args:
      x_backprop_grad (T): Gradient with respect to x_backprop.
      scale_backprop_grad (U [C]): Gradient with respect to scale_backprop.
      offset_backprop_grad (U [C]): Gradient with respect to offset_backprop.
      y_backprop (T): As given to the first-order op.
      x (T): As given to the first-order op.
      scale (U [C]): As given to the first-order op.
      reserve_space_1 (U [C]): The mean; read if frozen.
      reserve_space_2 (U [C]): The variance; read if frozen.
      epsilon: Added to the variance; a number, not a tensor.
      data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW,
          NCDHW).
      is_training: Whether mean and variance are functions of x (training) or constants (frozen).
      name: Name of the operation.

    Returns:
      Named tuple:
        y_backprop_grad (T): Gradient with respect to y_backprop.
        x_grad (T): Gradient with respect to x.
        scale_grad (U [C]): Gradient with respect to scale.
    """
    _arguments.check_statistics_dtype("FusedBatchNormGradGrad", x_backprop_grad,
        scale_backprop_grad)
    return FusedBatchNormGradGrad._make(load().tf_bn_ops_fused_batch_norm_grad_grad(x_backprop_grad,
        scale_backprop_grad, offset_backprop_grad, y_backprop, x, scale, reserve_space_1,
        reserve_space_2, *_arguments.split_epsilon(epsilon, "fused_batch_norm_grad_grad"),
        data_format, is_training, name))

def fused_batch_norm_grad_v2(y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, epsilon: float = 0.0001, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> FusedBatchNormGradV2:
    """Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV2.

    FusedBatchNormGradV3 has the formulas; this version takes fewer types and ranks.

    T: half, bfloat16, float32.
    U: float32.

    Arguments and results are as of fused_batch_norm_grad_v3.
    """
    return FusedBatchNormGradV2._make(load().tf_bn_ops_fused_batch_norm_grad_v2(y_backprop, x,
        scale, reserve_space_1, reserve_space_2, _arguments.not_a_tensor(epsilon,
        "fused_batch_norm_grad_v2"), data_format, is_training, name))

def fused_batch_norm_grad_v3(y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, reserve_space_3: Any, epsilon: float = 0.0001,
    data_format: DataFormat = "NHWC", is_training: bool = True, name: str |
    None = None) -> FusedBatchNormGradV3:
    """Gradient of batch normalization, the twin of TensorFlow's FusedBatchNormGradV3.

    With M the number of elements of a channel, rstd = 1/sqrt(variance + epsilon), mean and variance
    in reserve_space_1 and 2, and sums over all dimensions but the channel's:

        offset_backprop = sum(y_backprop)
        scale_backprop = rstd * sum(y_backprop * (x - mean))
        training: x_backprop = scale * rstd * (y_backprop - offset_backprop/M
                               - (x - mean) * rstd * scale_backprop/M)
        frozen:   x_backprop = scale * rstd * y_backprop

    Sums are accumulated in float64; x_backprop is computed in float32 and rounded to its type once.

    T: half, bfloat16, float32.
    U: float32.

    Args:
      y_backprop (T): Gradient with respect to y, of the shape of x.
      x (T): What was normalized, of the rank of data_format.
      scale (float32 [C]): The scale factors (gamma).
      reserve_space_1 (U [C]): The mean: of the batch in training, of the population if frozen.
      reserve_space_2 (U [C]): The biased variance: of the batch in training (on a GPU
          1/sqrt(variance + epsilon), as the forward op returns it there), of the population if
          frozen.
      reserve_space_3 (U): As the forward op of this library returns it with reserve_space_1 and 2,
          for the same epsilon: then mean and variance are right beyond what float32 holds. Channels
          of which another mean, variance or epsilon is given take what is given. Of another op, in
          any shape, it is not read.
      epsilon: Added to the variance; a number, not a tensor.
      data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW,
          NCDHW).
      is_training: Whether mean and variance are functions of x (training) or constants (frozen).
      name: Name of the operation.

    Returns:
      Named tuple:
        x_backprop (T): Gradient with respect to x.
        scale_backprop (U [C]): Gradient with respect to scale.
        offset_backprop (U [C]): Gradient with respect to the offset.
        reserve_space_4 (U [0]): A placeholder of the built-in op.
        reserve_space_5 (U [0]): A placeholder of the built-in op.
    """
    return FusedBatchNormGradV3._make(load().tf_bn_ops_fused_batch_norm_grad_v3(y_backprop, x,
        scale, reserve_space_1, reserve_space_2, reserve_space_3, _arguments.not_a_tensor(epsilon,
        "fused_batch_norm_grad_v3"), data_format, is_training, name))

def fused_batch_norm_v2(x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> FusedBatchNormV2:
    """Batch normalization, the twin of TensorFlow's FusedBatchNormV2.

    FusedBatchNormV3 has the formulas; this version takes fewer types and ranks.

    T: half, bfloat16, float32.
    U: float32.

    Arguments and results are as of fused_batch_norm_v3.
    """
    return FusedBatchNormV2._make(load().tf_bn_ops_fused_batch_norm_v2(x, scale, offset, mean,
        variance, _arguments.not_a_tensor(epsilon, "fused_batch_norm_v2"), exponential_avg_factor,
        data_format, is_training, name))

def fused_batch_norm_v3(x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> FusedBatchNormV3:
    """Batch normalization, the twin of TensorFlow's FusedBatchNormV3.

    With M the number of elements of a channel, sums over all dimensions but the channel's, and in
    training mean = sum(x)/M, variance = sum((x - mean)^2)/M:

        y = scale * (x - mean) / sqrt(variance + epsilon) + offset

    With f = exponential_avg_factor, in training

        batch_mean = (1 - f) * (mean given) + f * mean
        batch_variance = (1 - f) * (variance given) + f * variance * M/max(M - 1, 1)

    Frozen, mean and variance are those given, and so are batch_mean and batch_variance. All outputs
    are written in either mode; y is accurate at any mean of x.

    T: half, bfloat16, float32.
    U: float32.

    Args:
      x (T): What is normalized, of the rank of data_format (eagerly 4-D or 5-D).
      scale (U [C]): The scale factors (gamma).
      offset (U [C]): The offsets (beta).
      mean (U [C]): Frozen the mean of the population, in training the running mean; in training
          with a factor of 1 it is not read, and may have any size.
      variance (U [C]): The same for the variance.
      epsilon: Added to the variance; a number, not a tensor.
      exponential_avg_factor: In training, the weight f of this batch in the running statistics.
      data_format: Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW,
          NCDHW).
      is_training: Whether mean and variance are functions of x (training) or constants (frozen).
      name: Name of the operation.

    Returns:
      Named tuple:
        y (T): The normalized tensor.
        batch_mean (U [C]): The new running mean; NaN where x is empty.
        batch_variance (U [C]): The new running variance; the same.
        reserve_space_1 (U [C]): The mean that x was normalized with, for the gradient; 0 where x is
            empty.
        reserve_space_2 (U [C]): The biased variance that x was normalized with, for the gradient;
            on a GPU in training 1/sqrt(variance + epsilon), as cuDNN has it.
        reserve_space_3 (U): For the gradient, in training: [8, C], what the other reserve spaces
            lose of mean and variance by rounding, what says that it is theirs, and the coefficients
            that y was computed with. Frozen, a placeholder.
    """
    return FusedBatchNormV3._make(load().tf_bn_ops_fused_batch_norm_v3(x, scale, offset, mean,
        variance, _arguments.not_a_tensor(epsilon, "fused_batch_norm_v3"), exponential_avg_factor,
        data_format, is_training, name))

OPS: dict[str, Callable[..., Any]] = {
    "BatchNormBackwardElemt": batch_norm_backward_elemt,
    "BatchNormBackwardReduce": batch_norm_backward_reduce,
    "BatchNormElemt": batch_norm_elemt,
    "BatchNormGatherStats": batch_norm_gather_stats,
    "BatchNormStats": batch_norm_stats,
    "BatchNormTrainingBackprop": batch_norm_training_backprop,
    "FusedBatchNorm": fused_batch_norm,
    "FusedBatchNormEx": fused_batch_norm_ex,
    "FusedBatchNormGrad": fused_batch_norm_grad,
    "FusedBatchNormGradEx": fused_batch_norm_grad_ex,
    "FusedBatchNormGradGrad": fused_batch_norm_grad_grad,
    "FusedBatchNormGradV2": fused_batch_norm_grad_v2,
    "FusedBatchNormGradV3": fused_batch_norm_grad_v3,
    "FusedBatchNormV2": fused_batch_norm_v2,
    "FusedBatchNormV3": fused_batch_norm_v3,
}
