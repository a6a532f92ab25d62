"""Times Keras' BatchNormalization and this library's: the layer alone, and a ResNet-50 step.

    python examples/keras_speed.py

Both run alternately in one process; prints the median of each, and their ratio.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from timing import compare

import tf_bn_ops.keras

LAYER_SHAPE = (32, 56, 56, 64)
LAYER_ROUNDS = 15
IMAGES = (8, 112, 112, 3)
RESNET_ROUNDS = 5


def layer_step(layer: Any) -> Callable[[], Any]:
    """Forward and backward of the layer in training."""
    x = tf.random.normal(LAYER_SHAPE)
    y_backprop = tf.random.normal(LAYER_SHAPE)
    layer.build(x.shape)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        weights = [weight.value for weight in layer.trainable_weights]
        return tape.gradient(y, [x, *weights], y_backprop)

    return lambda: step()[0].numpy()


def model_step(model: Any) -> Callable[[], Any]:
    """One step of training."""
    images = tf.random.normal(IMAGES)
    labels = tf.random.uniform([IMAGES[0]], 0, 1000, tf.int32)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return lambda: model.train_on_batch(images, labels)


def main() -> None:
    compare(
        f"BatchNormalization, forward and backward, {list(LAYER_SHAPE)}",
        "Keras",
        layer_step(keras.layers.BatchNormalization()),
        layer_step(tf_bn_ops.keras.BatchNormalization()),
        LAYER_ROUNDS,
    )
    model = keras.applications.ResNet50(weights=None, input_shape=IMAGES[1:])
    replaced = tf_bn_ops.keras.replace_batch_norm(model)
    compare(
        f"ResNet-50, a step of training, {list(IMAGES)}",
        "Keras",
        model_step(model),
        model_step(replaced),
        RESNET_ROUNDS,
    )


if __name__ == "__main__":
    main()
