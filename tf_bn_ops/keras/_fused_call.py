"""`BatchNormalization.call` on the fused ops, and the conditions under which they give its result.

The layer of this package and the switch for Keras' own layer both call `fused_call`.
"""

from __future__ import annotations

import functools
import numbers
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

# Not keras.layers, which another thread may be importing while `import keras` ends: the switch
# imports this module there.
from keras.src import layers
from keras.src.backend.common.stateless_scope import in_stateless_scope
from tensorflow.python.eager import record

from tf_bn_ops import _loader, _replicas, _report, _sync
from tf_bn_ops._fused import activated, added, constant, fused_batch_norm
from tf_bn_ops._recording import callers, in_xla
from tf_bn_ops.generated import bindings
from tf_bn_ops.generated.bindings import Activation
from tf_bn_ops.spec import ACTIVATION_MODES, LEAKYRELU_ALPHA, SMOOTH_ACTIVATIONS, DataFormat


class _Layout(NamedTuple):
    """How the op takes an input: axes of size 1 to insert in training, and its data format then."""

    inserted: tuple[int, ...]
    data_format: DataFormat


# (rank, channels last) -> layout.
_LAYOUTS = {
    (2, True): _Layout((1, 2), "NHWC"),
    (3, True): _Layout((2,), "NHWC"),
    (3, False): _Layout((3,), "NCHW"),
    (4, True): _Layout((), "NHWC"),
    (4, False): _Layout((), "NCHW"),
    (5, True): _Layout((), "NDHWC"),
    (5, False): _Layout((), "NCDHW"),
}

_DTYPES = ("float32", "float16", "bfloat16")

_PARENT_MOMENTS = layers.BatchNormalization._moments


def _supports_jit(layer: Any) -> bool:
    """What the layer stored, but no where Keras decides what jit_compile="auto" means."""
    if "supports_jit" not in vars(layer):  # Keras does not store what is there.
        raise AttributeError("supports_jit")
    is_auto = any(name.endswith("._resolve_auto_jit_compile") for name in callers())
    return not is_auto and bool(vars(layer)["supports_jit"])


# `supports_jit` of a class, because Layer.__init__ stores True in the instance: a program that does
# not ask for XLA stays in graphs, where additions and activations are fused into the op.
not_by_auto = property(
    _supports_jit, lambda layer, value: vars(layer).__setitem__("supports_jit", value)
)


class Behind(NamedTuple):
    """What follows the normalization in the same call: an addition, then an activation."""

    activation: Activation | None = None
    side_input: Any = None
    leakyrelu_alpha: float = LEAKYRELU_ALPHA

    def check(self, inputs: Any) -> None:
        """Raises a ValueError if the side input is known to have another shape than `inputs`, a
        TypeError if it is no tensor."""
        if self.side_input is None:
            return
        if not hasattr(self.side_input, "shape"):
            raise TypeError(
                f"side_input is a {type(self.side_input).__name__}, it must be one tensor"
            )
        if tf.TensorShape(self.side_input.shape).is_compatible_with(inputs.shape):
            return
        raise ValueError(
            f"side_input has shape {self.side_input.shape}, it must have the shape "
            f"{inputs.shape} of the input"
        )

    def of(self, y: Any) -> Any:
        """Computes addition and activation by Keras' ops from the result of the normalization."""
        if self.side_input is not None:
            y = added(y, keras.ops.cast(self.side_input, y.dtype))
        return activated(keras.ops, self.activation, y, self.leakyrelu_alpha)


def fused_call(
    layer: Any,
    parent_call: Callable[..., Any],
    inputs: Any,
    training: bool | None,
    mask: Any,
    behind: Behind = Behind(),  # noqa: B008, which is immutable
) -> Any:
    """What `call` of the layer returns: on the fused ops, or by `parent_call` where they differ."""
    batch_statistics = bool(training and layer.trainable)
    behind.check(inputs)
    is_smooth = ACTIVATION_MODES[behind.activation] in SMOOTH_ACTIVATIONS
    if is_smooth and getattr(layer, "synchronized", False):
        y = fused_call(layer, parent_call, inputs, training, mask, behind._replace(activation=None))
        return behind._replace(side_input=None).of(y)
    layout = _layout_or_reason(layer, inputs)
    reason: str | None
    if isinstance(layout, str):
        reason = layout
    elif batch_statistics and _is_exported(layer):
        reason = "normalises by the batch in a function that is exported, to load anywhere"
    elif (
        batch_statistics
        and (mask is None or _is_of_samples(mask, layer, inputs))
        and _exchanges(layer, mask)
    ):
        _refuse_export(layer)
        with _report.at_layer(layer):
            return _synchronized(layer, inputs, mask, behind)
    else:
        reason = _why_slower(layer, layout, batch_statistics, mask)
    if reason is not None or isinstance(layout, str):
        _report.stay_in_keras(layer, str(reason))
        return behind.of(_by_parent(layer, parent_call, inputs, training, mask))
    if batch_statistics:
        _refuse_export(layer)
    with _report.at_layer(layer):
        return _normalize(layer, layout, inputs, batch_statistics, behind)


def _by_parent(
    layer: Any, parent_call: Callable[..., Any], inputs: Any, training: bool | None, mask: Any
) -> Any:
    """Keras' formula, whose new moving statistics are assigned as the fused ops' are."""
    if not (training and layer.trainable) or in_stateless_scope():
        return parent_call(inputs, training=training, mask=mask)
    with keras.StatelessScope() as scope:
        y = parent_call(inputs, training=training, mask=mask)
    size = _size(inputs)
    if mask is None and _exchanges(layer, mask):
        size = _replicas.current().all_sum(tf.cast([size], tf.float64))[0]
    values = ((v, scope.get_current_value(v)) for v in layer.non_trainable_variables)
    _assign(size, [(v, value) for v, value in values if value is not None])
    return y


def _size(inputs: Any) -> Any:
    """The number of elements, a tensor where it is not known."""
    size = tf.TensorShape(inputs.shape).num_elements()
    return tf.size(inputs) if size is None else size


def _assign(size: Any, values: Sequence[tuple[Any, Any]]) -> None:
    """Gives variables the new moving statistics, unless the call is repeated for a gradient, or the
    batch that they are of has the size 0, whose statistics Keras has as NaN: the last batch of a
    data set may leave a replica without a sample, and synchronised ones share a batch."""
    is_known = isinstance(size, int)
    if (is_known and size == 0) or _is_recomputed():
        return
    for variable, value in values:
        value = tf.cast(value, variable.dtype)
        variable.assign(value if is_known else tf.where(size > 0, value, variable))


def _is_recomputed() -> bool:
    """Whether `tf.recompute_grad`, or keras.RematScope by it, repeats a forward pass for the
    gradient. Only the name of the function that calls says so."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "inner_recompute_grad":
        frame = frame.f_back
    return frame is not None


def _why_slower(layer: Any, layout: _Layout, batch_statistics: bool, mask: Any) -> str | None:
    """Why a call on an input that the op takes is left to Keras' formula, as `why_unfused`."""
    if mask is not None:
        return "was called with a mask"
    if batch_statistics:
        if in_xla() and not _has_xla_kernels():
            return "is compiled by XLA without this library's kernels: python -m tf_bn_ops doctor"
        return None
    if in_xla():
        return "infers in a program of XLA, which computes Keras' formula as fast"
    # In float32 Keras' formula is as fast as the op, and in ranks 2 and 3 converters fold it into
    # the layer before, but no reshaped op (docs/adr/0037).
    if layout.inserted:
        return f"infers in rank {4 - len(layout.inserted)}, where converters fold Keras' formula"
    if layer.compute_dtype == "float32":
        return "infers in float32, where Keras' formula is as fast as the op"
    return None


# Modules that trace functions to write them.
_EXPORTERS = ("keras.src.export.", "tensorflow.python.saved_model.", "tensorflow.lite.", "tf2onnx.")


def _is_exported(layer: Any) -> bool:
    """Whether a function is being traced for a file, which is to load anywhere, also where the
    model normalises by the batch in inference. With a tape it trains, and a layer of this package
    may hold this library's ops; one of Keras', on the switch, is in a program that may have the
    file converted."""
    from tf_bn_ops.keras._layer import BatchNormalization

    if tf.executing_eagerly():
        return False
    if isinstance(layer, BatchNormalization) and record.could_possibly_record():
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(_EXPORTERS):
        frame = frame.f_back
    return frame is not None


def _refuse_export(layer: Any) -> None:
    """Has TensorFlow refuse to save the function that is being traced, if it is for inference: it
    holds this library's ops, since it is not traced to be saved."""
    if tf.executing_eagerly() or record.could_possibly_record():
        return
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "mark_as_unsaveable"):
        graph.mark_as_unsaveable(
            f"layer {layer.name!r} normalises by the batch, and was traced on ops that load where "
            "tf_bn_ops is alone: export a function that has not been called before, or call "
            "tf_bn_ops.keras.restore_batch_norm(model), or disable() if the switch is on, and have "
            "the function traced again"
        )
        graph = graph.outer_graph


def why_unfused(layer: Any) -> str | None:
    """Why no call of the layer can be fused, as the end of a sentence about it; else None."""
    if keras.backend.backend() != "tensorflow":
        return f"runs on the backend {keras.backend.backend()}"
    if getattr(layer, "renorm", False):
        return "has renorm"
    if getattr(getattr(layer, "_moments", None), "__func__", None) is not _PARENT_MOMENTS:
        return "computes moments in a method of its own"
    if layer.compute_dtype not in _DTYPES:
        return f"computes in {layer.compute_dtype}"
    if not all(isinstance(n, numbers.Real) for n in (layer.momentum, layer.epsilon)):
        return "has a tensor as momentum or epsilon"  # they are attributes of the ops
    rank = getattr(layer.input_spec, "ndim", None)  # known once the layer is built
    if rank is not None and _layout(rank, layer.axis) is None:
        return f"has axis {layer.axis} in an input of rank {rank}"
    return None


def _layout(rank: int, axis: int) -> _Layout | None:
    channel = axis % rank
    if channel not in (1, rank - 1):
        return None
    return _LAYOUTS.get((rank, channel == rank - 1))


def _layout_or_reason(layer: Any, inputs: Any) -> _Layout | str:
    """The layout of an input that the fused op takes; else why it does not, as `why_unfused`."""
    if reason := why_unfused(layer):
        return reason
    if not isinstance(inputs, tf.Tensor):
        return f"was called with a {type(inputs).__name__}"
    if inputs.dtype.name not in _DTYPES:
        return f"was called with an input of {inputs.dtype.name}"
    if inputs.shape.rank is None:
        return "was called with an input of unknown rank"
    layout = _layout(inputs.shape.rank, layer.axis)
    if layout is None:
        return f"has axis {layer.axis} in an input of rank {inputs.shape.rank}"
    channels = inputs.shape[layer.axis]
    # Those that the layer has; in a derived class they may be anything.
    weights = (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
    # 0 channels: TensorFlow's op divides by their number.
    if not channels or any(w is not None and w.shape != (channels,) for w in weights):
        return f"was called with an input of {channels or 'no or unknown'} channels"
    return layout


def _has_xla_kernels() -> bool:
    """Without them training below XLA is left to Keras' formula: XLA computes the variance of
    TensorFlow's op as E[x^2] - E[x]^2, and at mean 100 and deviation 1 its y is off by 0.19."""
    _loader.load()
    return _loader.has_xla_kernels()


def _normalize(
    layer: Any, layout: _Layout, inputs: Any, batch_statistics: bool, behind: Behind
) -> Any:
    """The call on the fused ops, moving statistics included."""
    x = inputs
    if layer.compute_dtype == "float32":
        x = _cast(x, "float32")  # where autocast is off it may be narrower
    if not batch_statistics:
        # TensorFlow's op, so that what is saved or exported loads without this library.
        call = functools.partial(fused_batch_norm, epsilon=layer.epsilon, is_training=False)
        y = call(x, *_vectors(layer), data_format=layout.data_format).y
        return behind.of(_cast(y, layer.compute_dtype))
    side_inputs = [] if behind.side_input is None else [_cast(behind.side_input, x.dtype.name)]
    # Keras' moving averages are two outputs of the op, without Bessel's correction.
    y, mean, variance, *_ = bindings.fused_batch_norm_ex(
        _expanded(x, layout),
        *_vectors(layer),
        side_input=[_expanded(side_input, layout) for side_input in side_inputs],
        epsilon=layer.epsilon,
        exponential_avg_factor=1.0 - layer.momentum,
        activation_mode=ACTIVATION_MODES[behind.activation],
        leakyrelu_alpha=behind.leakyrelu_alpha,
        data_format=layout.data_format,
        is_training=True,
        bessel_correction=False,
    )
    _report.tag(layer, y)
    _assign(_size(inputs), [(layer.moving_mean, mean), (layer.moving_variance, variance)])
    if layout.inserted:
        y = tf.squeeze(y, layout.inserted)
    return _cast(y, layer.compute_dtype)


def _exchanges(layer: Any, mask: Any) -> bool:
    """Whether the layer has other replicas to be synchronised with; or might have, with a mask,
    whose formula is then the same for any number of replicas."""
    is_alone = _replicas.current().size == 1 and (mask is None or in_xla())
    return getattr(layer, "synchronized", False) and not is_alone


def _is_of_samples(mask: Any, layer: Any, inputs: Any) -> bool:
    """Whether a mask is of all dimensions but the channels'; others are for Keras' call."""
    rank = inputs.shape.rank
    return layer.axis % rank == rank - 1 and len(mask.shape) == rank - 1


def _synchronized(layer: Any, inputs: Any, mask: Any, behind: Behind) -> Any:
    """Training on the statistics of all replicas; with a mask, of the samples in it alone."""
    x = inputs
    if layer.compute_dtype == "float32":
        x = _cast(x, "float32")
    side_inputs = [] if behind.side_input is None else [_cast(behind.side_input, x.dtype.name)]
    call = _sync.Call(layer.epsilon, ACTIVATION_MODES[behind.activation], layer.axis)
    scale, offset, *moving = _vectors(layer)
    if mask is None:
        statistics = _sync.global_statistics(x, layer.axis)
        y = _sync.normalize(call, x, scale, offset, statistics, side_inputs)
    else:
        statistics = _sync.global_statistics(x, -1, weights_of(mask))
        # Statistics and y are of different samples, so they are differentiated apart.
        y = bindings.batch_norm_elemt(
            x,
            scale,
            offset,
            statistics.mean,
            statistics.variance,
            side_input=side_inputs,
            **vars(call),
        )
    averages = statistics.averages(
        moving,
        1.0 - layer.momentum,
        bessel_correction=False,
        # As in Keras, whose mask may leave out all samples.
        of_nothing=float("nan") if mask is None else 0.0,
    )
    moving_variables = (layer.moving_mean, layer.moving_variance)
    size = statistics.count
    if mask is not None:  # Which counts nothing where it leaves out all samples, too.
        size = _size(inputs) if statistics.replicas.size == 1 else 1
    _assign(size, [*zip(moving_variables, averages, strict=True)])
    return _cast(y, layer.compute_dtype)


def weights_of(mask: Any) -> Any:
    """How much each sample counts by a mask, as in Keras; None if there is no mask."""
    return mask if mask is None or _keras_weighs() else tf.cast(mask, tf.bool)


@functools.cache
def _keras_weighs() -> bool:
    """Whether this Keras weighs samples by the numbers of a mask; 3.15 takes all but 0 for true."""
    with tf.init_scope():
        layer = layers.BatchNormalization(name="probe")
        layer._reduction_axes = [0]
        mean, _ = layer._moments(tf.constant([[0.0], [3.0]]), tf.constant([0.5, 1.0]))
        return bool(mean > 1.75)


def _expanded(tensor: Any, layout: _Layout) -> Any:
    for axis in layout.inserted:
        tensor = tf.expand_dims(tensor, axis)
    return tensor


def _cast(value: Any, dtype: str) -> Any:
    """A tensor, or a variable that is read, in that type. `keras.ops.cast` takes 11 us where there
    is nothing to cast, five times in an eager call of 630 us."""
    tensor = tf.convert_to_tensor(value)
    return tensor if tensor.dtype.name == dtype else tf.cast(tensor, dtype)


def _vectors(layer: Any) -> tuple[Any, Any, Any, Any]:
    """gamma, beta and the moving statistics in float32, the type that the op takes."""
    channels = layer.moving_mean.shape[0]
    return (
        constant(1.0, channels) if layer.gamma is None else _cast(layer.gamma, "float32"),
        constant(0.0, channels) if layer.beta is None else _cast(layer.beta, "float32"),
        _cast(layer.moving_mean, "float32"),
        _cast(layer.moving_variance, "float32"),
    )
