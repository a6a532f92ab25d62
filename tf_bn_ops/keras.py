"""Keras' BatchNormalization on TensorFlow's fused forward pass and this library's gradient.

Import this module before loading a saved model that holds the layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bn_ops._fused import fused_batch_norm
from tf_bn_ops.spec import DataFormat

__all__ = ["BatchNormalization", "replace_batch_norm"]


class _Layout(NamedTuple):
    """How the op takes an input: axes of size 1 to insert, and its data format then."""

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


@keras.saving.register_keras_serializable(package="tf_bn_ops")
class BatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` on the fused ops.

    Arguments, weights, config and results (within rounding) are the parent's, so weights and
    checkpoints of one load into the other. The fused path takes inputs of half, bfloat16 or
    float32, rank 2 to 5, with the channel axis first (after the batch) or last. The parent
    class computes everything else: a mask, `synchronized`, `renorm`, float64, other axes, and
    backends other than TensorFlow.

    A model that holds the layer is not compiled by XLA, which makes training slower on a CPU. To
    have it compiled, set `supports_jit = True` on the layers before
    `model.compile(jit_compile=True)`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = False

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        layout = self._layout(inputs) if mask is None else None
        if layout is None:
            return super().call(inputs, training=training, mask=mask)
        channels = inputs.shape[self.axis]
        gamma = keras.ops.cast(self.gamma, "float32") if self.scale else tf.ones([channels])
        beta = keras.ops.cast(self.beta, "float32") if self.center else tf.zeros([channels])
        moving_mean = keras.ops.cast(self.moving_mean, "float32")
        moving_variance = keras.ops.cast(self.moving_variance, "float32")
        batch_statistics = bool(training and self.trainable)
        x = inputs
        for axis in layout.inserted:
            x = tf.expand_dims(x, axis)
        y, mean, variance = fused_batch_norm(
            x,
            gamma,
            beta,
            mean=None if batch_statistics else moving_mean,
            variance=None if batch_statistics else moving_variance,
            epsilon=self.epsilon,
            data_format=layout.data_format,
            is_training=batch_statistics,
        )
        if batch_statistics:
            # The op has Bessel's correction, Keras has not.
            count = tf.cast(tf.size(x) // channels, tf.float32)
            variance = variance * ((count - 1) / count)
            kept = self.momentum
            self.moving_mean.assign(moving_mean * kept + mean * (1.0 - kept))
            self.moving_variance.assign(moving_variance * kept + variance * (1.0 - kept))
        if layout.inserted:
            y = tf.squeeze(y, layout.inserted)
        return keras.ops.cast(y, self.compute_dtype)

    def _layout(self, inputs: Any) -> _Layout | None:
        """How the fused op takes the input; None where the parent class has to compute it."""
        if self.synchronized or getattr(self, "renorm", False):
            return None
        if keras.backend.backend() != "tensorflow" or not isinstance(inputs, tf.Tensor):
            return None
        if inputs.dtype not in (tf.float32, tf.half, tf.bfloat16):
            return None
        rank = inputs.shape.rank
        if rank is None or inputs.shape[self.axis] is None:
            return None
        axis = self.axis % rank
        if axis not in (1, rank - 1):
            return None
        return _LAYOUTS.get((rank, axis == rank - 1))


def replace_batch_norm(model: Any) -> Any:
    """A copy of a model with this module's BatchNormalization in the place of Keras'.

    Weights are copied, names and `trainable` are kept, nested models are gone through. Layers of
    classes derived from keras.layers.BatchNormalization stay as they are, and so do layers inside
    wrappers such as TimeDistributed.

    Args:
      model: a Functional or Sequential model.

    Returns:
      The new model; if `model` was compiled, compiled in the same way, with the optimizer reset.
      `model` is left as it is.

    Raises:
      TypeError: `model` is of another kind; use the layer in its code instead.
    """
    is_sequential = isinstance(model, keras.Sequential)
    if not is_sequential and "Functional" not in [kind.__name__ for kind in type(model).__mro__]:
        raise TypeError(
            f"replace_batch_norm takes a Functional or Sequential model, not a "
            f"{type(model).__name__}: use tf_bn_ops.keras.BatchNormalization in its code instead"
        )

    def clone(layer: Any) -> Any:
        kind = BatchNormalization if type(layer) is keras.layers.BatchNormalization else type(layer)
        return kind.from_config(layer.get_config())

    inputs = None
    if not is_sequential:
        # Cloning would rename the inputs, and callers feed data by name.
        inputs = keras.tree.map_structure(
            lambda tensor: keras.Input(
                batch_shape=tensor.shape,
                dtype=tensor.dtype,
                sparse=tensor.sparse,
                name=tensor._keras_history.operation.name,
            ),
            model.input,
        )
    result = keras.models.clone_model(model, inputs, clone_function=clone, recursive=True)
    if model.built:
        result.set_weights(model.get_weights())
    return result
