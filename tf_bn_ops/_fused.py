"""Batch normalization: this library's ops, but for TensorFlow's in graphs if frozen.

So a graph for inference holds TensorFlow's FusedBatchNormV3, or the formula, and loads anywhere;
its gradient is a Python function (_recording.py). The ops of training have registered gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_bn_ops import _enable, _recording, _replicas
from tf_bn_ops._arguments import checked_alpha, checked_epsilon, checked_number
from tf_bn_ops.generated import bindings
from tf_bn_ops.generated.bindings import Activation
from tf_bn_ops.spec import (
    ACTIVATION_MODES,
    DATA_FORMATS,
    LEAKYRELU_ALPHA,
    SMOOTH_ACTIVATIONS,
    DataFormat,
    activation_of,
)

if TYPE_CHECKING:
    from tensorflow import Tensor

# Untyped: to mypy a starred argument may be any of those that follow.
ops: Any = bindings


class BatchNorm(NamedTuple):
    """Results of `fused_batch_norm`."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor


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
    leakyrelu_alpha: float = LEAKYRELU_ALPHA,
    side_input: Any = None,
    synchronized: bool = False,
) -> BatchNorm:
    """Batch normalization; `tf.compat.v1.nn.fused_batch_norm` with this library's ops.

    y = (x - mean) / sqrt(variance + epsilon) * scale + offset, with the mean and biased variance of
    each channel of `x` in training, with those given if frozen. In training, the forward op is this
    library's `raw_ops.FusedBatchNormV3`, whose results are right at any mean of `x`.

    `side_input` is added to that, and `activation` applied to the sum: in training in the same op,
    `raw_ops.FusedBatchNormEx`, and its gradient in one op too, `raw_ops.FusedBatchNormGradEx`.

    If frozen, all of them are TensorFlow's, and the graph holds nothing of this library: such a
    function can be saved, and loaded anywhere; what was loaded has TensorFlow's gradients. A
    function that trains, or takes the gradient, holds this library's ops. Channels first, where
    TensorFlow's CPU kernel transposes x and y, a function holds the formula's ops instead of it,
    unless there is a GPU or `enable` has put this library's kernels in its place.

    `synchronized` takes the statistics in training from the batch that all replicas of a step of
    `tf.distribute` hold together, whatever each of them holds, no samples included. Call it on
    every replica, in the function that `strategy.run` is given; without a strategy there is one
    replica. Replicas exchange 2 * C + 1 float64 numbers forward and 2 * C backward, each in one
    collective of the strategy. Results are bitwise identical on every run, the running statistics
    on every replica. The gradients by `scale` and `offset` are of the replica's own samples,
    as for all other variables: the strategy sums or averages them.

    The gradients take in what TensorFlow's leave out: in training `batch_mean` and
    `batch_variance` are differentiated with respect to `x`, `mean` and `variance`; if frozen, y is
    differentiated with respect to `mean` and `variance`. They can be differentiated again.

    Args:
      x: half, bfloat16, float32 or float64, of the rank of `data_format`.
      scale: [C]: float64 if `x` is, else float32 (a variable that is read as half or bfloat16, by
        autocast, is cast back).
      offset: the same.
      mean: the same: the mean if frozen; in training the running mean, needed if
        `exponential_avg_factor` is not 1.
      variance: the same for the variance.
      epsilon: added to the variance; a number, not a tensor.
      data_format: "NHWC", "NCHW", "NDHWC" or "NCDHW", as text or bytes.
      is_training: True for the statistics of `x`, False for those given.
      name: name of the forward operation.
      exponential_avg_factor: in training, the weight f of this batch in the running statistics.
      activation: None, "relu" (max(y, 0)), "relu6" (min(max(y, 0), 6)), "silu" (y * sigmoid(y)),
        "hard_silu" (y * relu6(y + 3) / 6) or "leaky_relu" (y where y > 0, else
        leakyrelu_alpha * y). But for the first two they are ops of their own in float64 and with
        `synchronized`.
      leakyrelu_alpha: the slope of "leaky_relu" below 0; a finite number, not a tensor, which is
        rounded to float32, as by tf.nn.leaky_relu. Another activation does not read it.
      side_input: what is added before the activation, of the shape and type of `x`; such as the
        other branch of a residual block.
      synchronized: whether the statistics in training are computed over all replicas.

    Returns:
      Named tuple (y, batch_mean, batch_variance): y of shape and type of `x`; [C] the running
      statistics: in training (1 - f) * mean + f * (mean of x), and for the variance the same with
      the unbiased variance of x (Bessel's correction, as in TensorFlow); `mean` and `variance`
      themselves if frozen.

    Raises:
      RuntimeError: synchronized, and called outside of the replicas of a strategy that has several,
        or where they would wait for each other forever: in a loop of a graph, or in a function that
        they call eagerly, if they share a process.
      ValueError: unknown `data_format` or `activation`, an infinite `leakyrelu_alpha`, `x` of
        another rank, `mean` and `variance` are missing, or `side_input` has another shape than `x`.
      TypeError: `epsilon`, `exponential_avg_factor` or `leakyrelu_alpha` is no number, or
        `side_input` has another type than `x`.
      tf.errors.InvalidArgumentError: shapes that do not fit together.
      tf.errors.OpError: a replica died or did not come in the time that the strategy's
        `CommunicationOptions(timeout_seconds=...)` gives.
      LibraryError: (an ImportError) the op library is missing or built for another TensorFlow.
    """
    import tensorflow as tf
    from tensorflow.python.eager import record

    factor, alpha = exponential_avg_factor, leakyrelu_alpha
    given = (epsilon, data_format, is_training, factor, activation, alpha)
    try:
        attrs = _checked(*given)
    except TypeError:  # Something that has no hash, or is wrong.
        attrs = _checked.__wrapped__(*given)
    if attrs.reads_statistics and (mean is None or variance is None):
        when = "with an exponential_avg_factor that is not 1"
        raise ValueError(
            f"mean and variance are needed {when if attrs.is_training else 'if not is_training'}"
        )
    if synchronized and attrs.is_training:
        _replicas.check_context("fused_batch_norm(synchronized=True)")
    # Variables are read here, so that their gradients are TensorFlow's concern.
    x = _of_rank(_tensor(x), attrs.data_format)
    side_inputs = [] if side_input is None else [_like(x, side_input)]
    is_wide = x.dtype is tf.float64
    dtype = tf.float64 if is_wide else tf.float32
    scale, offset = _vector(scale, dtype), _vector(offset, dtype)
    behind = None
    if ACTIVATION_MODES[attrs.activation] in SMOOTH_ACTIVATIONS and (is_wide or synchronized):
        behind, attrs = attrs, attrs._replace(activation=None)
    if attrs.reads_statistics:
        mean, variance = _vector(mean, dtype), _vector(variance, dtype)
    else:
        mean = variance = constant(0.0, 0)  # Not read.
    if attrs.is_training and (synchronized or is_wide):
        replicas = _replicas.current() if synchronized else _replicas.ALONE
        parts = (x, scale, offset), (mean, variance), side_inputs
        result = _by_parts(attrs, name, replicas, *parts)
        return result._replace(y=_activated(behind, result.y))
    # A barrier for TensorFlow's remapper, without a copy: behind y where x is of a convolution that
    # it may fuse the op into, else before it (docs/adr/0037). Below a tape it fuses nothing, and y
    # stays next to what is behind, for this library's optimizer.
    in_convolution = False
    vectors = (scale, offset, mean, variance)
    avoids_op = _avoids_op(attrs, x, vectors)
    if not (attrs.is_training or is_wide or avoids_op or tf.executing_eagerly()):
        is_recorded = record.could_possibly_record()
        in_convolution = not is_recorded and _is_of_convolution(x, attrs, vectors)
        if not in_convolution:
            x, mean = tf.raw_ops.IdentityN(input=[x, mean])
    inputs = _recording.captured(x, scale, offset, mean, variance)
    # tf_keras' symbolic tensors make a layer of each public function that is called.
    is_symbolic = not all(isinstance(tensor, tf.Tensor) for tensor in inputs)
    if attrs.is_training:
        y, *statistics = _training_op(attrs, name, inputs, side_inputs)[:3]
    else:
        if is_wide or is_symbolic:
            y = _frozen_formula(attrs, name, *inputs)
        else:
            y = _frozen(attrs, name, avoids_op, *inputs)
        if in_convolution:
            y = tf.ensure_shape(y, [None] * y.shape.rank)
        y = _activated(attrs, y, *side_inputs)
        statistics = [*inputs[3:]]
    if not is_symbolic and (not tf.executing_eagerly() or record.could_possibly_record()):
        statistics = [*_differentiable(attrs, statistics, inputs)]
    return BatchNorm(_activated(behind, y), *statistics)


# ---- Arguments -----------------------------------------------------------------------------------


class _Attrs(NamedTuple):
    epsilon: float
    data_format: str
    is_training: bool
    exponential_avg_factor: float
    activation: str | None
    leakyrelu_alpha: float
    # Whether the running statistics are averages of the given ones and x's own.
    averages: bool
    reads_statistics: bool
    # The attributes that the forward and the gradient op share.
    of_gradient: dict[str, Any]


@functools.lru_cache(maxsize=256)
def _checked(
    epsilon: Any, data_format: Any, is_training: Any, factor: Any, activation: Any, alpha: Any
) -> _Attrs:
    epsilon = checked_epsilon(epsilon, "fused_batch_norm")
    factor = checked_number(factor, "exponential_avg_factor", "fused_batch_norm")
    data_format = data_format.decode() if isinstance(data_format, bytes) else data_format
    for argument, value, allowed in (
        ("data_format", data_format, [*DATA_FORMATS]),  # A list, which takes any type.
        ("activation", activation, [*ACTIVATION_MODES]),
    ):
        if value not in allowed:
            raise ValueError(f"{argument} is {value!r}, it must be one of {allowed}")
    # 0 for -0: the two are equal, so that either may be in the cache.
    alpha = checked_alpha(alpha, activation, "fused_batch_norm") + 0.0
    is_training = bool(is_training)
    averages = is_training and factor != 1.0
    shared = {"epsilon": epsilon, "data_format": data_format, "is_training": is_training}
    reads = averages or not is_training
    behind = (activation, alpha)
    return _Attrs(epsilon, data_format, is_training, factor, *behind, averages, reads, shared)


def _tensor(value: Any, dtype: Any = None) -> Any:
    import tensorflow as tf

    return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value, dtype_hint=dtype)


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


def _is_of_convolution(x: Any, attrs: _Attrs, vectors: Sequence[Any]) -> bool:
    """Whether `x` is the result of a convolution that TensorFlow has a kernel for together with a
    norm, but for some activations behind it. Its remapper fuses others: in other data formats, of
    groups and of 16 bits. The kernel reads beyond vectors that are shorter than the channels."""
    import tensorflow as tf

    op = getattr(x, "op", None)
    if op is None or op.type != "Conv2D" or op.graph is not tf.compat.v1.get_default_graph():
        return False
    images, kernel = op.inputs
    return (
        x.dtype is tf.float32
        and attrs.data_format == op.get_attr("data_format").decode() == "NHWC"
        and kernel.shape[2] is not None
        and images.shape[3] == kernel.shape[2]
        and kernel.shape[3] is not None
        and all(vector.shape == [kernel.shape[3]] for vector in vectors)
    )


def _vector(value: Any, dtype: Any) -> Any:
    """`value`, [C], as a tensor. One of another type than `dtype` is left to the op to refuse, but
    for variables that mixed precision reads in half or bfloat16."""
    import tensorflow as tf

    tensor = _tensor(value, dtype)
    if tensor.dtype is dtype or tensor.dtype not in (tf.half, tf.bfloat16):
        return tensor
    return tf.cast(tensor, dtype)


def constant(value: float, length: int) -> Any:
    """A float32 vector in the place of one that is not given: a constant of the graph, eagerly one
    for all calls on a device."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    if tf.executing_eagerly():
        return _eager_constant(value, length, context.context().device_name)
    return tf.constant(value, tf.float32, [length])


@functools.lru_cache(maxsize=256)
def _eager_constant(value: float, length: int, _device: str) -> Any:
    """Made on the current device, whose name `_device` is."""
    import tensorflow as tf

    return tf.constant(value, tf.float32, [length])


def _like(x: Any, side_input: Any) -> Any:
    """`side_input` as a tensor, unless it is known to be of another shape or type than `x`."""
    side_input = _tensor(side_input, x.dtype)
    if side_input.dtype != x.dtype:
        raise TypeError(f"side_input is {side_input.dtype.name}, it must be {x.dtype.name} like x")
    if not side_input.shape.is_compatible_with(x.shape):
        raise ValueError(
            f"side_input has shape {side_input.shape}, it must have the shape {x.shape} of x"
        )
    return side_input


# ---- Values --------------------------------------------------------------------------------------


def _training_op(
    attrs: _Attrs, name: str | None, inputs: Any, side_inputs: Sequence[Any]
) -> Sequence[Any]:
    factor = attrs.exponential_avg_factor
    if attrs.activation is None and not side_inputs:
        return ops.fused_batch_norm_v3(
            *inputs, exponential_avg_factor=factor, name=name, **attrs.of_gradient
        )
    return ops.fused_batch_norm_ex(
        *inputs,
        side_input=side_inputs,
        exponential_avg_factor=factor,
        activation_mode=ACTIVATION_MODES[attrs.activation],
        leakyrelu_alpha=attrs.leakyrelu_alpha,
        name=name,
        **attrs.of_gradient,
    )


def _by_parts(
    attrs: _Attrs,
    name: str | None,
    replicas: _replicas.Replicas,
    inputs: Any,
    given: Sequence[Any],
    side_inputs: Sequence[Any],
) -> BatchNorm:
    """Training on the split ops, which take float64, too."""
    import tensorflow as tf

    from tf_bn_ops import _sync

    rank, channels_last = DATA_FORMATS[attrs.data_format]
    axis = rank - 1 if channels_last else 1
    call = _sync.Call(attrs.epsilon, ACTIVATION_MODES[attrs.activation], axis)
    x, scale, offset = inputs
    statistics = _sync.global_statistics(x, axis, replicas=replicas)
    y = _sync.normalize(call, x, scale, offset, statistics, side_inputs, name)
    averages = statistics.averages(given, attrs.exponential_avg_factor, bessel_correction=True)
    return BatchNorm(y, *(tf.cast(value, scale.dtype) for value in averages))


def _avoids_op(attrs: _Attrs, x: Any, vectors: Sequence[Any]) -> bool:
    """Whether the formula takes the place of the frozen op in a function, because TensorFlow's
    kernel transposes x and y, which takes 1.4 to 11 times the formula's time: channels first on a
    CPU, unless the op runs on this library. The op stays where it would refuse its inputs, in
    graphs that are no function, whose authors look for it, where its gradient is another, and
    eagerly, where the formula's many calls take longer below a million elements."""
    import tensorflow as tf

    _, channels_last = DATA_FORMATS[attrs.data_format]
    if attrs.is_training or channels_last or tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return (
        graph.building_function
        and x.dtype in (tf.half, tf.bfloat16, tf.float32)
        and all(vector.dtype == tf.float32 for vector in vectors)
        and "FusedBatchNormV3" not in graph._gradient_override_map
        and not _enable.has_kernels()
        and not tf.config.list_physical_devices("GPU")
    )


def _frozen(
    attrs: _Attrs,
    name: str | None,
    avoids_op: bool,
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    variance: Any,
) -> Any:
    """y of TensorFlow's op, or of the formula in its place, with a gradient of its own, by mean and
    variance too."""
    import tensorflow as tf
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import record
    from tensorflow.python.ops import gen_nn_ops

    inputs = x, scale, offset, mean, variance

    def forward() -> Any:
        factor = 1.0  # The op's default is an int, whose conversion takes 50 us.
        epsilon, data_format, is_training = attrs[:3]
        return gen_nn_ops.fused_batch_norm_v3(
            *inputs, epsilon, factor, data_format, is_training, name
        ).y

    if tf.executing_eagerly() and not record.could_possibly_record():
        return forward()
    # Eagerly there are six more ops to be saved.
    reads_statistics = not tf.executing_eagerly() or bool(
        pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes([mean, variance])
    )

    def formula(*inputs: Any) -> Any:
        return [_frozen_formula(attrs, None, *inputs)]

    def gradient(y_backprop: Any) -> Sequence[Any]:
        from tf_bn_ops import _gradients

        if not reads_statistics:
            backward = ops.fused_batch_norm_grad_v3(
                y_backprop, x, scale, mean, variance, constant(0.0, 0), **attrs.of_gradient
            )
            return *backward[:3], None, None

        def by_formula(y_backprop: Any, x: Any, scale: Any, *statistics: Any) -> Any:
            sources = x, scale, tf.zeros_like(scale)
            return tf.gradients(formula(*sources, *statistics[:2]), sources, y_backprop)

        given = _recording.captured(y_backprop, x, scale, mean, variance)
        unread = constant(0.0, 0)
        with record.stop_recording():
            results = ops.fused_batch_norm_grad_v3(*given, unread, **attrs.of_gradient)[:3]

        def by_given(*grad: Any) -> Sequence[Any]:
            return [*_gradients.of_frozen(given, results, attrs.of_gradient, *grad), None]

        _recording.attach(by_given, [*given, unread], results, by_formula)
        _, scale_backprop, offset_backprop = results
        rstd = tf.math.rsqrt(variance + attrs.epsilon)
        of_mean = -scale * rstd * offset_backprop
        of_variance = -0.5 * scale * tf.square(rstd) * scale_backprop
        return *results, of_mean, of_variance

    if avoids_op:  # The formula is several operations.
        return _recording.recorded(formula, gradient, *inputs, name=name)[0]
    with record.stop_recording():
        y = forward()
    _recording.attach(gradient, inputs, [y], formula)
    return y


def _frozen_formula(
    attrs: _Attrs, name: str | None, x: Any, scale: Any, offset: Any, mean: Any, variance: Any
) -> Any:
    """The formula in TensorFlow's public functions: for float64 and symbolic tensors, which
    FusedBatchNormV3 does not take, and where its kernel transposes. The mean is subtracted first,
    as the op does: x * a + b, which takes up to a third less, loses digits at a large mean."""
    import tensorflow as tf

    rank, channels_last = DATA_FORMATS[attrs.data_format]
    shape = [1] * rank
    # Not -1: a vector of another length than the channels is refused.
    channel = -1 if channels_last else 1
    shape[channel] = x.shape[channel] or tf.shape(x, out_type=tf.int64)[channel]

    def along_channels(vector: Any) -> Any:
        vector.shape.assert_has_rank(1)
        if vector.shape.rank is None:
            vector = tf.ensure_shape(vector, [None])
        return tf.reshape(vector, shape)

    with tf.name_scope(name or "fused_batch_norm"):
        center, shift, factor, spread = map(along_channels, (mean, offset, scale, variance))
        factor = factor * tf.math.rsqrt(spread + attrs.epsilon)
        y = (tf.cast(x, scale.dtype) - center) * factor + shift
        return tf.cast(y, x.dtype)


def added(y: Any, side_input: Any) -> Any:
    """The sum of tensors of the same shape. AddN does not broadcast, so that it refuses shapes that
    differ only when it runs. Where none do, it is AddV2, which TensorFlow's graph optimizers and
    converters know better."""
    import tensorflow as tf

    are_known = y.shape.is_fully_defined() and side_input.shape.is_fully_defined()
    return tf.raw_ops.AddV2(x=y, y=side_input) if are_known else tf.add_n([y, side_input])


def _activated(attrs: _Attrs | None, y: Any, side_input: Any = None) -> Any:
    """What is behind a normalization, if anything, of TensorFlow's ops with their own gradients."""
    import tensorflow as tf

    if attrs is None:
        return y
    if side_input is not None:
        y = added(y, side_input)
    return activated(tf, attrs.activation, y, attrs.leakyrelu_alpha)


def activated(
    f: Any, activation: str | None, y: Any, leakyrelu_alpha: float = LEAKYRELU_ALPHA
) -> Any:
    """An activation in the ops of `f`, TensorFlow or keras.ops: by their own function, such as
    tf.nn.silu, which keeps less for its gradient, where they have one."""
    if activation is None:
        return y
    kind = activation_of(ACTIVATION_MODES[activation], leakyrelu_alpha)
    if function := getattr(f.nn, activation, None):
        return function(y, *kind.parameters)
    return kind.value(f, y)


def _differentiable(
    attrs: _Attrs, statistics: Sequence[Any], inputs: Sequence[Any]
) -> Sequence[Any]:
    """The returned statistics as functions of the inputs of the forward op."""
    import tensorflow as tf

    x, scale, offset, *_ = inputs

    def gradient(of_mean: Any, of_variance: Any) -> Sequence[Any]:
        from tf_bn_ops import _gradients

        # Zeros and not None, as TensorFlow's.
        zeros = tf.zeros_like(scale), tf.zeros_like(offset)
        if not attrs.is_training:
            return tf.zeros_like(x), *zeros, of_mean, of_variance
        channels = _gradients.Channels(x, DATA_FORMATS[attrs.data_format][1])
        # Recomputed, so that it is a function of x in the next derivative; twice, since the first
        # mean is rounded.
        x_centered = channels.centered(channels.centered(tf.cast(x, tf.float32)))
        m = tf.cast(channels.count, tf.float32)
        of_x = attrs.exponential_avg_factor * (
            channels.vector(of_mean / m)
            + channels.vector(2 * of_variance / tf.maximum(m - 1, 1)) * x_centered
        )
        kept = 1 - attrs.exponential_avg_factor
        of_given = (kept * of_mean, kept * of_variance) if attrs.averages else (None, None)
        return tf.cast(of_x, x.dtype), *zeros, *of_given

    def formula(x: Any, scale: Any, offset: Any, *given: Any) -> Sequence[Any]:
        from tf_bn_ops import _gradients

        channels = _gradients.Channels(x, DATA_FORMATS[attrs.data_format][1])
        x = tf.cast(x, tf.float32)
        squares = channels.sum(tf.square(channels.centered(channels.centered(x))))
        m = tf.cast(channels.count, tf.float32)
        batch = tf.reshape(channels.mean(x), [-1]), tf.reshape(squares, [-1]) / tf.maximum(m - 1, 1)
        if not attrs.averages:
            return batch
        f = attrs.exponential_avg_factor
        return [f * new + (1 - f) * old for new, old in zip(batch, given, strict=True)]

    return _recording.recorded(
        lambda *_: statistics, gradient, *inputs, formula=formula if attrs.is_training else None
    )
