"""Trains a small ResNet on scikit-learn's digits with Keras' normalization and with ours.

    python examples/digits_resnet.py [--epochs=5]

Both start from the same weights and see the same batches; prints both losses.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits

import tf_bn_ops.keras

_EPOCHS = flags.DEFINE_integer("epochs", 5, "Epochs of training.", lower_bound=1)

_BATCH = 64


def make_model() -> keras.Model:
    """Three residual blocks on images of 8 x 8."""
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(32, 3, padding="same", use_bias=False)(inputs)
    for _ in range(3):
        block = keras.layers.BatchNormalization(momentum=0.9)(x)
        block = keras.layers.ReLU()(block)
        block = keras.layers.Conv2D(32, 3, padding="same", use_bias=False)(block)
        x = keras.layers.Add()([x, block])
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def train(model: keras.Model, epochs: int) -> tuple[list[float], float]:
    """The loss of every step, and the accuracy at the end on images that were held back."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
    held_back = 297
    order = np.random.default_rng(0)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    losses = []
    for _ in range(epochs):
        chosen = order.permutation(len(images) - held_back) + held_back
        for start in range(0, len(chosen), _BATCH):
            batch = chosen[start : start + _BATCH]
            model.reset_metrics()
            losses.append(float(model.train_on_batch(images[batch], digits.target[batch])))
    logits = model.predict(images[:held_back], verbose=0)
    return losses, float(np.mean(np.argmax(logits, 1) == digits.target[:held_back]))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]!r} is not a flag; --help lists them")
    keras.utils.set_random_seed(1)
    builtin = make_model()
    shim = keras.models.clone_model(builtin)
    shim.set_weights(builtin.get_weights())
    tf_bn_ops.keras.replace_batch_norm(shim)
    curves = {"Keras": train(builtin, _EPOCHS.value), "tf_bn_ops": train(shim, _EPOCHS.value)}
    (builtin_losses, builtin_accuracy), (shim_losses, shim_accuracy) = curves.values()
    print("step   Keras      tf_bn_ops")
    for step in np.unique(np.linspace(0, len(shim_losses) - 1, 10).astype(int)):
        print(f"{step:4}   {builtin_losses[step]:.6f}   {shim_losses[step]:.6f}")
    print(f"accuracy on held back images: {builtin_accuracy:.3f} and {shim_accuracy:.3f}")


if __name__ == "__main__":
    app.run(main)
