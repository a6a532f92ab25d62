"""Trains a small detector of digits on two workers with two images each, synchronised and not.

    python examples/sync_detector.py [--steps=400] [--seeds=3] [--plot=curves.png]

An image of 48 x 48 has three digits, drawn as glyphs of 10 x 14 in random places, of a brightness
and contrast of its own. The model says for each cell of 8 x 8 pixels whether the middle of a digit
is in it, and which. With two images per worker the statistics of a batch are those of two images;
with synchronisation those of four. Prints the loss in training and, in inference on images that
were held back, the loss and the share of cells with digits that are told right.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import loopback_workers
import numpy as np
from absl import app, flags

_STEPS = flags.DEFINE_integer("steps", 400, "Steps of training.", lower_bound=1)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Trainings of each kind.", lower_bound=1)
_PLOT = flags.DEFINE_string("plot", None, "Writes the loss curves into this file.")

_WORKERS, _BATCH, _HELD_BACK = 2, 2, 64
_SIZE, _CELL, _DIGITS_PER_IMAGE = 48, 8, 3
_GLYPHS = """
.###. ..#.. .###. ####. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# ....# ..##. #.... #.... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ..##. .###. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. .#... ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. #.... ....# ...#. #...# #...# .#... #...# ....#
.###. .###. ##### ####. ...#. .###. .###. .#... .###. .###.
"""


def glyphs() -> np.ndarray:
    """[10, 7, 5], 1 where there is ink."""
    rows = [[list(word) for word in line.split()] for line in _GLYPHS.split("\n") if line]
    return (np.array(rows) == "#").transpose(1, 0, 2).astype(np.float32)


def make_image(rng: np.random.Generator, ink: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[size, size, 1] and the classes of the cells: 0 for none, else digit + 1."""
    cells = _SIZE // _CELL
    image = np.zeros((_SIZE, _SIZE), np.float32)
    classes = np.zeros((cells, cells), np.int64)
    for _ in range(_DIGITS_PER_IMAGE):
        digit = rng.integers(10)
        glyph = np.kron(ink[digit], np.ones((2, 2), np.float32))
        top, left = (int(rng.integers(0, _SIZE - n)) for n in glyph.shape)
        image[top : top + len(glyph), left : left + glyph.shape[1]] = glyph
        middle = (top + len(glyph) // 2) // _CELL, (left + glyph.shape[1] // 2) // _CELL
        classes[middle] = digit + 1
    image += rng.normal(0, 0.1, image.shape)
    image = image * np.exp(rng.normal(0, 0.7)) + rng.normal(0, 2)
    return image[..., np.newaxis].astype(np.float32), classes


def make_batch(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    ink = glyphs()
    images, classes = zip(*(make_image(rng, ink) for _ in range(count)), strict=True)
    return np.stack(images), np.stack(classes)


def make_model(synchronized: bool) -> Any:
    import keras

    from tf_bn_ops.keras import BatchNormalization

    model = keras.Sequential([keras.Input((_SIZE, _SIZE, 1))])
    for filters, strides in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 2), (64, 1)):
        model.add(keras.layers.Conv2D(filters, 3, strides, padding="same", use_bias=False))
        normalization = BatchNormalization(
            momentum=0.9, activation="relu", synchronized=synchronized
        )
        model.add(normalization)
    model.add(keras.layers.Conv2D(11, 1))
    return model


def loss_of(logits: Any, classes: Any) -> Any:
    """The mean over cells; those with digits are few, and count ten times."""
    import tensorflow as tf

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
    return tf.reduce_mean(losses * tf.where(classes > 0, 10.0, 1.0))


def make_step(strategy: Any, model: Any) -> Any:
    """A step of stochastic gradient descent with momentum, in a loop of its own: `fit` of Keras 3
    does not run under this strategy."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        weights = model.trainable_variables
        velocities = [keras.Variable(tf.zeros(w.shape), trainable=False) for w in weights]

    def replica_step(images: Any, classes: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model(images, training=True), classes)
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        context = tf.distribute.get_replica_context()
        *gradients, loss = context.all_reduce("mean", [*gradients, loss])
        for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
            velocity.assign(0.9 * velocity - 0.03 * gradient)
            weight.assign(weight + velocity)
        return loss

    run = lambda *args: strategy.run(replica_step, args=args)  # noqa: E731
    return tf.function(run, autograph=False)


def train(strategy: Any, synchronized: bool, seed: int, steps: int) -> dict[str, Any]:
    """The losses, and in inference the loss and the share of digits that are told right."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = make_model(synchronized)
    step = make_step(strategy, model)
    rank = strategy.cluster_resolver.task_id
    rng = np.random.default_rng([seed, rank])
    batches = (make_batch(rng, _BATCH) for _ in range(steps))
    losses = [float(step(*map(tf.constant, batch))) for batch in batches]
    images, classes = make_batch(np.random.default_rng(10_000), _HELD_BACK)
    logits = model(images, training=False)
    told = np.argmax(logits, -1)[classes > 0] == classes[classes > 0]
    return {
        "losses": losses,
        "held back": float(loss_of(logits, tf.constant(classes))),
        "told right": float(np.mean(told)),
    }


def work(seeds: int, steps: int) -> None:
    """One worker."""
    strategy = loopback_workers.strategy(threads=1)
    results: dict[str, list[Any]] = {}
    for kind in ("not synchronised", "synchronised"):
        results[kind] = [
            train(strategy, kind == "synchronised", seed, steps) for seed in range(seeds)
        ]
    print(json.dumps(results))
    loopback_workers.leave(strategy)


def plot(results: dict[str, list[Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    for kind, trainings in results.items():
        curve = np.mean([training["losses"] for training in trainings], axis=0)
        width = max(len(curve) // 20, 1)
        pyplot.plot(np.convolve(curve, np.ones(width) / width, "valid"), label=kind)
    pyplot.xlabel("step")
    pyplot.ylabel("loss in training, mean of the seeds")
    pyplot.legend()
    pyplot.savefig(path)
    print(f"curves: {path}")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]!r} is not a flag; --help lists them")
    if loopback_workers.is_worker():
        work(_SEEDS.value, _STEPS.value)
        return
    if _PLOT.value and importlib.util.find_spec("matplotlib") is None:
        sys.exit("error: --plot needs matplotlib: pip install matplotlib")
    arguments = f"--seeds={_SEEDS.value}", f"--steps={_STEPS.value}"
    results = json.loads(loopback_workers.start(_WORKERS, *arguments).splitlines()[-1])
    print("kind               seed   loss, last tenth   loss, held back   digits told right")
    for kind, trainings in results.items():
        for seed, training in enumerate(trainings):
            last = np.mean(training["losses"][-max(_STEPS.value // 10, 1) :])
            held_back, told = training["held back"], training["told right"]
            print(f"{kind:17}  {seed:4}   {last:16.3f}   {held_back:15.3f}   {told:17.3f}")
    if _PLOT.value:
        plot(results, _PLOT.value)


if __name__ == "__main__":
    app.run(main)
