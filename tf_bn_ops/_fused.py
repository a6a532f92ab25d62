"""Batch normalization: this library's ops, but for TensorFlow's forward op if frozen.

So a graph for inference holds TensorFlow's FusedBatchNormV3 alone, and loads anywhere. The gradient
is a Python function, which tapes and `tf.gradients` find beside the operation (`attach`).
tf.custom_gradient would add an IdentityN, whose saved gradient would need this library wherever the
SavedModel is loaded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from tf_bn_ops import _ops
from tf_bn_ops._arguments import checked_epsilon, checked_number
from tf_bn_ops._results import BatchNorm
from tf_bn_ops.spec import DATA_FORMATS, DataFormat

Activation = Literal["relu", "relu6"]
# Name here -> the attr activation_mode of FusedBatchNormEx.
ACTIVATION_MODES: dict[str | None, _ops.Activation] = {
    None: "Identity",
    "relu": "Relu",
    "relu6": "Relu6",
}


def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-3,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
    *,
    activation: Activation | None = None,
    side_input: Any = None,
) -> BatchNorm:
    """Batch normalization; `tf.compat.v1.nn.fused_batch_norm` with this library's ops.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset, with the mean and biased variance of
    each channel of `x` in training, with those given if frozen. In training, the forward op is this
    library's `raw_ops.FusedBatchNormV3`, whose results are right at any mean of `x`.

    `side_input` is added to that, and `activation` applied to the sum: in training in the same op,
    `raw_ops.FusedBatchNormEx`, and its gradient in one op too, `raw_ops.FusedBatchNormGradEx`.

    If frozen, all of them are TensorFlow's, and the graph holds nothing of this library: such a
    function can be saved, and loaded anywhere; what was loaded has TensorFlow's gradients. A
    function that trains, or takes the gradient, holds this library's ops.

    The gradients take in what TensorFlow's leave out: in training `batch_mean` and
    `batch_variance` are differentiated with respect to `x`, `mean` and `variance`; if frozen, y is
    differentiated with respect to `mean` and `variance`. They can be differentiated again, except,
    if frozen, with respect to `mean` and `variance`.

    Args:
      x: half, bfloat16 or float32, of the rank of `data_format`.
      scale: float32 [C]; a variable that is read as half or bfloat16 (autocast) is cast back.
      offset: the same.
      mean: float32 [C], the mean if frozen; in training the running mean, needed if
        `exponential_avg_factor` is not 1.
      variance: float32 [C], the same for the variance.
      epsilon: added to the variance; a number, not a tensor.
      data_format: "NHWC", "NCHW", "NDHWC" or "NCDHW", as text or bytes.
      is_training: True for the statistics of `x`, False for those given.
      name: name of the forward operation.
      exponential_avg_factor: in training, the weight f of this batch in the running statistics.
      activation: None, "relu" (max(y, 0)) or "relu6" (min(max(y, 0), 6)).
      side_input: what is added before the activation, of the shape and type of `x`; such as the
        other branch of a residual block.

    Returns:
      Named tuple (y, batch_mean, batch_variance): y of shape and type of `x`; float32 [C] running
      statistics: in training (1 - f) * mean + f * (mean of x), and for the variance the same with
      the unbiased variance of x (Bessel's correction, as in TensorFlow); `mean` and `variance`
      themselves if frozen.

    Raises:
      ValueError: unknown `data_format` or `activation`, `x` of another rank, `mean` and `variance`
        are missing, or `side_input` has another shape than `x`.
      TypeError: `epsilon` or `exponential_avg_factor` is no number, or `side_input` has another
        type than `x`.
      tf.errors.InvalidArgumentError: shapes that do not fit together.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    import tensorflow as tf

    attrs = Attrs(
        checked_epsilon(epsilon, "fused_batch_norm"),
        data_format.decode() if isinstance(data_format, bytes) else data_format,
        bool(is_training),
        checked_number(exponential_avg_factor, "exponential_avg_factor", "fused_batch_norm"),
        activation,
    )
    attrs.check(mean, variance)
    # Variables are read here, so that their gradients are TensorFlow's concern.
    x = _of_rank(tf.convert_to_tensor(x), attrs.data_format)
    side_inputs = [] if side_input is None else [checked_side_input(x, side_input)]
    scale, offset = float32(scale), float32(offset)
    if attrs.reads_statistics:
        mean, variance = float32(mean), float32(variance)
    else:
        mean = variance = tf.zeros([0])
    if not attrs.is_training and not tf.executing_eagerly():
        # A barrier for TensorFlow's remapper, without a copy. It would fuse the op into a Conv2D
        # before it: with tanh and mish behind it into an op without a kernel, and with channels
        # elsewhere into wrong numbers, since it compares no data formats (docs/adr/0037).
        x, mean = tf.raw_ops.IdentityN(input=[x, mean])
    inputs = captured(x, scale, offset, mean, variance, *side_inputs)
    if attrs.is_training:
        y, *statistics = normalize(attrs, name, inputs)
    else:
        y, *statistics = normalize(attrs, name, inputs[:_SIDE_INPUT])
        y = activated(attrs.activation, y, *inputs[_SIDE_INPUT:])
    return BatchNorm(y, *_statistics(attrs, inputs[:_SIDE_INPUT], statistics))


def _of_rank(x: Any, data_format: str) -> Any:
    """`x`, of the rank that the data format has. The kernels would take the channel's place from
    its letters and the rank from x, graphs that are optimized both from the data format."""
    import tensorflow as tf

    rank, _ = DATA_FORMATS[data_format]
    if x.shape.rank is None:
        return tf.ensure_shape(x, [None] * rank)
    if x.shape.rank != rank:
        raise ValueError(
            f"x has rank {x.shape.rank}, with data_format {data_format!r} it must have rank {rank}"
        )
    return x


# Its position among the inputs of the forward op, if there is one.
_SIDE_INPUT = 5


@dataclasses.dataclass(frozen=True)
class Attrs:
    epsilon: float
    data_format: str
    is_training: bool
    exponential_avg_factor: float
    activation: str | None = None

    @property
    def averages(self) -> bool:
        """Whether the running statistics are averages of those given and those of x."""
        return self.is_training and self.exponential_avg_factor != 1.0

    @property
    def reads_statistics(self) -> bool:
        return self.averages or not self.is_training

    @property
    def of_gradient(self) -> dict[str, Any]:
        """The attributes that the forward and the gradient op share."""
        return {
            "epsilon": self.epsilon,
            "data_format": self.data_format,
            "is_training": self.is_training,
        }

    def check(self, mean: Any, variance: Any) -> None:
        if self.data_format not in [*DATA_FORMATS]:  # A list, which takes any type.
            raise ValueError(
                f"data_format is {self.data_format!r}, it must be one of {[*DATA_FORMATS]}"
            )
        if self.activation not in [*ACTIVATION_MODES]:
            raise ValueError(
                f"activation is {self.activation!r}, it must be one of {[*ACTIVATION_MODES]}"
            )
        if self.reads_statistics and (mean is None or variance is None):
            when = (
                "with an exponential_avg_factor that is not 1"
                if self.averages
                else "if not is_training"
            )
            raise ValueError(f"mean and variance are needed {when}")


def float32(value: Any) -> Any:
    """`value` as a tensor. One that is no float32 is left to the op to refuse, but for variables
    that mixed precision reads in half or bfloat16."""
    import tensorflow as tf

    tensor = tf.convert_to_tensor(value, dtype_hint=tf.float32)
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.half, tf.bfloat16) else tensor


def checked_side_input(x: Any, side_input: Any) -> Any:
    """`side_input` as a tensor, unless it is known to be of another shape or type than `x`."""
    import tensorflow as tf

    side_input = tf.convert_to_tensor(side_input, dtype_hint=x.dtype)
    if side_input.dtype != x.dtype:
        raise TypeError(f"side_input is {side_input.dtype.name}, it must be {x.dtype.name} like x")
    if not side_input.shape.is_compatible_with(x.shape):
        raise ValueError(
            f"side_input has shape {side_input.shape}, it must have the shape {x.shape} of x"
        )
    return side_input


# ---- Values --------------------------------------------------------------------------------------


def normalize(attrs: Attrs, name: str | None, inputs: Sequence[Any]) -> Sequence[Any]:
    """The forward op: y with its gradient, batch_mean and batch_variance without.

    Of six inputs the last is the side input, for training alone.
    """
    from tensorflow.python.eager import record

    x, scale, offset, mean, variance, *side_inputs = inputs
    arguments = {
        "x": x,
        "scale": scale,
        "offset": offset,
        "mean": mean,
        "variance": variance,
        "exponential_avg_factor": attrs.exponential_avg_factor,
        "name": name,
        **attrs.of_gradient,
    }
    is_ex = attrs.is_training and (attrs.activation is not None or bool(side_inputs))
    with record.stop_recording():
        outputs = _forward_op(attrs, arguments, side_inputs if is_ex else None)
    gradient = _gradient_of_ex if is_ex else _gradient_of_y
    # The gradient of the activation may read y.
    saved = {0: outputs[0]} if is_ex else {}
    saved.update(enumerate(outputs[3:], start=3))
    attach(functools.partial(gradient, attrs), inputs, outputs[:1], saved)
    return outputs[:3]


def _forward_op(
    attrs: Attrs, arguments: dict[str, Any], side_inputs: Sequence[Any] | None
) -> Sequence[Any]:
    """All outputs of the op that computes this; `side_inputs` are None but for FusedBatchNormEx.

    A function of its own for AutoGraph, which cannot convert an annotated variable in a branch.
    """
    import tensorflow as tf

    if side_inputs is not None:
        mode = ACTIVATION_MODES[attrs.activation]
        return _ops.fused_batch_norm_ex(side_input=side_inputs, activation_mode=mode, **arguments)
    if attrs.is_training:
        return _ops.fused_batch_norm_v3(**arguments)
    return tf.raw_ops.FusedBatchNormV3(**arguments)


def activated(activation: str | None, y: Any, side_input: Any = None) -> Any:
    """What is behind a frozen normalization, of TensorFlow's ops with their own gradients."""
    import tensorflow as tf

    if side_input is not None:
        shapes = (y.shape, side_input.shape)
        # AddN does not broadcast, so that it refuses shapes that differ only when it runs. Where
        # none do, it is AddV2, which TensorFlow's graph optimizers and converters know better.
        are_known = all(shape.is_fully_defined() for shape in shapes)
        y = tf.raw_ops.AddV2(x=y, y=side_input) if are_known else tf.add_n([y, side_input])
    if activation is None:
        return y
    return {"relu": tf.nn.relu, "relu6": tf.nn.relu6}[activation](y)


def _statistics(attrs: Attrs, inputs: Sequence[Any], batch: Sequence[Any]) -> Sequence[Any]:
    """The returned statistics with their gradient; `batch` are those of the forward op.

    An operation beside the forward op, so that a backward pass of y alone computes nothing of it.
    """
    import tensorflow as tf
    from tensorflow.python.eager import record

    values = batch if attrs.is_training else inputs[3:]
    with record.stop_recording():
        if tf.executing_eagerly():
            outputs = [tf.identity(value) for value in values]
        else:
            outputs = tf.identity_n([*values, *inputs])[:2]
    inputs = [*values, *inputs]
    attach(functools.partial(_gradient_of_statistics, attrs), inputs, outputs)
    return outputs


# ---- Gradients -----------------------------------------------------------------------------------


class _EagerOperation(NamedTuple):
    """What the gradients read of a tf.Operation, which an eager call has not."""

    inputs: Sequence[Any]
    # Those that are kept.
    outputs: Mapping[int, Any]


def captured(*tensors: Any) -> Sequence[Any]:
    """`tensors` as inputs of the current graph: what a tape sees of a captured tensor is recorded
    here, and not where recording is stopped."""
    import tensorflow as tf

    capture = getattr(tf.compat.v1.get_default_graph(), "capture", None)
    return tensors if tf.executing_eagerly() or capture is None else [*map(capture, tensors)]


def attach(
    gradient: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    saved: Mapping[int, Any] | None = None,
) -> None:
    """Makes `gradient` the derivative of `outputs` by `inputs`, for tapes and for tf.gradients.

    Args:
      gradient: function of an operation and the gradients of its outputs, which returns those of
        its inputs.
      inputs: of the operation.
      outputs: the first outputs of the operation; the others have no gradient.
      saved: the outputs of the operation that an eager call keeps for the gradient, by index.
    """
    import tensorflow as tf
    from tensorflow.python.eager import record

    if tf.executing_eagerly():
        operation = cast(Any, _EagerOperation(inputs, saved or {}))
    else:
        operation = outputs[0].op
        # An attribute in Python and none of the node, which saving would have to follow.
        operation._gradient_function = gradient
    backward = functools.partial(gradient, operation)
    record.record_operation("TfBnOps", list(outputs), list(inputs), backward)


def _gradient_of_y(attrs: Attrs, operation: Any, y_backprop: Any, *_: Any) -> tuple[Any, ...]:
    """By the inputs of the forward op."""
    import tensorflow as tf

    x, scale, _, mean, variance = operation.inputs
    reserve_space_1, reserve_space_2, reserve_space_3 = (operation.outputs[i] for i in (3, 4, 5))
    if not attrs.is_training:
        reserve_space_1, reserve_space_2 = mean, variance
    backward = _ops.fused_batch_norm_grad_v3(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        reserve_space_3,
        **attrs.of_gradient,
    )
    of_mean = of_variance = None
    if not attrs.is_training:
        rstd = tf.math.rsqrt(variance + attrs.epsilon)
        of_mean = -scale * rstd * backward.offset_backprop
        of_variance = -0.5 * scale * tf.square(rstd) * backward.scale_backprop
    return *backward[:3], of_mean, of_variance


def _gradient_of_ex(attrs: Attrs, operation: Any, y_backprop: Any, *_: Any) -> Sequence[Any]:
    """By the inputs of the forward op with an activation or a side input, in training."""
    from tf_bn_ops import _gradients

    return _gradients.gradient_of_ex(
        _ops,
        operation,
        y_backprop,
        activation_mode=ACTIVATION_MODES[attrs.activation],
        **attrs.of_gradient,
    )


def _gradient_of_statistics(
    attrs: Attrs, operation: Any, of_mean: Any, of_variance: Any, *_: Any
) -> tuple[Any, ...]:
    """By what `_statistics` returns of, and the inputs of the forward op."""
    import tensorflow as tf

    from tf_bn_ops import _gradients

    _, _, x, scale, offset, _, _ = operation.inputs
    # Zeros and not None, as TensorFlow's.
    zeros = tf.zeros_like(scale), tf.zeros_like(offset)
    if not attrs.is_training:
        return None, None, tf.zeros_like(x), *zeros, of_mean, of_variance
    channels_last = DATA_FORMATS[attrs.data_format][1]
    channels = _gradients.Channels(x, channels_last)
    # Recomputed, so that it is a function of x in the next derivative.
    x_centered = channels.centered(tf.cast(x, tf.float32))
    m = tf.cast(tf.size(x) / tf.size(scale), tf.float32)
    of_x = attrs.exponential_avg_factor * (
        channels.vector(of_mean / m)
        + channels.vector(2 * of_variance / tf.maximum(m - 1, 1)) * x_centered
    )
    kept = 1 - attrs.exponential_avg_factor
    of_given = (kept * of_mean, kept * of_variance) if attrs.averages else (None, None)
    return None, None, tf.cast(of_x, x.dtype), *zeros, *of_given
