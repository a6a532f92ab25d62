"""Times Keras' BatchNormalization and this library's: layers alone, and a step of ResNet-50.

    python examples/keras_speed.py

All run alternately in one process. Prints a table: the median of each in
milliseconds, and Keras' over it; the last column has the ReLU in the layer (`activation="relu"`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from timing import flags, medians, print_header, print_row

import tf_bn_ops.keras

NAMES = ("Keras", "tf_bn_ops", "with `activation`")
LAYER_SHAPE = (32, 56, 56, 64)
LAYER_ROUNDS = 15
IMAGES = (8, 112, 112, 3)
RESNET_ROUNDS = 5


def layer_step(layer: Any, relu: bool = False) -> Callable[[], Any]:
    """Forward and backward of the layer in training, and of a ReLU behind it."""
    x = tf.random.normal(LAYER_SHAPE)
    y_backprop = tf.random.normal(LAYER_SHAPE)
    layer.build(x.shape)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            if relu:
                y = tf.nn.relu(y)
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
    quick = flags(__doc__).parse_args().quick
    print_header("training", NAMES)
    theirs, ours = keras.layers.BatchNormalization, tf_bn_ops.keras.BatchNormalization
    steps = {"Keras": layer_step(theirs()), "tf_bn_ops": layer_step(ours())}
    layer_rounds = 1 if quick else LAYER_ROUNDS
    row = f"the layer, forward and backward, {list(LAYER_SHAPE)}"
    print_row(row, [*medians(steps, layer_rounds).values(), None])

    alone = {"Keras": theirs(), "tf_bn_ops": ours()}
    steps = {name: layer_step(layer, relu=True) for name, layer in alone.items()}
    steps["fused"] = layer_step(ours(activation="relu"))
    row = f"the layer and ReLU, forward and backward, {list(LAYER_SHAPE)}"
    print_row(row, medians(steps, layer_rounds).values())

    models = [keras.applications.ResNet50(weights=None, input_shape=IMAGES[1:]) for _ in range(2)]
    tf_bn_ops.keras.replace_batch_norm(models[1])
    steps = dict(zip(NAMES, map(model_step, models), strict=False))
    row = f"a step of ResNet-50, images {list(IMAGES)}"
    print_row(row, [*medians(steps, 1 if quick else RESNET_ROUNDS).values(), None])


if __name__ == "__main__":
    main()
