"""Random Keras models: Keras alone and this library, each against float64 (tests/distances.py).

    python tests/graphs/random_models.py --models=2000 --seed=1     any number, from any seed
    python tests/graphs/random_models.py --seed=1 --only=37         one model

A model is drawn from (seed, index): ranks 2 to 5, mixed precision, residual, shared, frozen, nested
and subclassed, with masks, sample weights, several outputs, activations of all kinds; it is trained
by `fit`, `train_on_batch` or a gradient tape, and saved, cloned or exported. Keras computes it in
float64 and as it is, and after `replace_batch_norm`; a child process does under TF_BN_OPS=1. A
model that fails, with three sets of data, is reduced: what was drawn for it is left out as long as
it fails.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures.process
import contextlib
import gc
import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile
import unittest.mock
import warnings
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, os.path.dirname(sys.path[0]))

import distances
import keras
import numpy as np
import tensorflow as tf
from random_graphs import Draw

import tf_bn_ops

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, BATCH, RATE = 3, 6, 0.05
SIZES = {2: (), 3: (7,), 4: (6, 5), 5: (4, 3, 3)}
CONVOLUTIONS = {3: keras.layers.Conv1D, 4: keras.layers.Conv2D, 5: keras.layers.Conv3D}
POOLS = {
    3: keras.layers.GlobalAveragePooling1D,
    4: keras.layers.GlobalAveragePooling2D,
    5: keras.layers.GlobalAveragePooling3D,
}
UNITS = {"float32": 2.0**-24, "mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}
ACTIVATIONS = (
    *("relu", "relu", "relu", "relu6", "silu", "hard_silu", "tanh", "gelu", "leaky", "none"),
    *("lambda", "custom", "prelu"),
)
# Models of a child, whose memory graphs fill.
CHILD_MODELS = 100
SIDES = ("float64", "keras", "replaced", "switch")


@keras.saving.register_keras_serializable("random_models")
class Doubled(keras.layers.BatchNormalization):
    """A class of the user's, on the call of its parent."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return super().call(2 * inputs, training=training, mask=mask)


@keras.saving.register_keras_serializable("random_models")
def softsign_of_square(x: Any) -> Any:
    return keras.ops.softsign(x * x)


class Subclassed(keras.Model):
    """A model whose graph no one but its `call` knows."""

    def __init__(self, inner: Any, width: int) -> None:
        super().__init__()
        self.inner = inner
        self.dense = keras.layers.Dense(width)
        self.norm = keras.layers.BatchNormalization(momentum=0.9)

    def call(self, inputs: Any, training: Any = None) -> Any:
        y = self.dense(self.inner(inputs, training=training))
        return tf.nn.relu(self.norm(y, training=training)) + 0.5 * y


@keras.saving.register_keras_serializable("random_models")
def _float32_l2(weight: Any) -> Any:
    """L2 in float32, the type of the loss that Keras adds it to in float64 models, too."""
    return tf.cast(0.01 * tf.reduce_sum(tf.square(weight)), "float32")


class Model:
    """A model of a draw, on one side."""

    def __init__(self, draw: Draw, side: str) -> None:
        self.draw, self.side = draw, side
        self.policy = draw.choice(["float32"] * 4 + ["mixed_float16", "mixed_bfloat16"])
        self.unit = UNITS[self.policy]
        keras.config.set_dtype_policy("float64" if side == "float64" else self.policy)
        self.rank = draw.choice([2, 3, 4, 4, 4, 5])
        self.sizes = SIZES[self.rank]
        self.channels = draw.choice([3, 5, 8, 16])
        self.unknown = self.rank > 2 and draw.has("unknown sizes", 0.2)
        self.savable = True
        given = keras.Input((*((None for _ in self.sizes) if self.unknown else self.sizes), 4))
        y: Any = given
        if self.rank == 3 and draw.has("masking", 0.25):
            y = keras.layers.Masking()(y)
        for _ in range(draw.choice([1, 1, 2, 2, 3])):
            y = self._nested(y) if draw.has("nested", 0.15) else self._block(y)
        if self.rank > 2:
            y = POOLS[self.rank]()(y)
        outputs = {"a": keras.layers.Dense(3, name="a", dtype=self._dtype("float32"))(y)}
        if draw.has("two outputs", 0.2):
            z = keras.layers.BatchNormalization()(keras.layers.Dense(4)(y))
            outputs["b"] = keras.layers.Dense(2, name="b", dtype=self._dtype("float32"))(z)
        self.is_subclassed = len(outputs) == 1 and draw.has("subclassed", 0.2)
        self.keys = list(outputs)
        model = keras.Model(given, outputs["a"] if len(outputs) == 1 else outputs)
        self.model = Subclassed(model, 4) if self.is_subclassed else model
        self.has_weights = draw.has("sample weights", 0.25)
        self.way = draw.choice(["fit", "fit", "train_on_batch", "tape"])
        self.end = draw.choice(["predict", "predict", "call", "saved", "cloned", "exported"])
        self.in_function = draw.has("gradients in a function", 0.5)
        settings: dict[str, Any] = {"jit_compile": False}
        if draw.has("jit_compile", 0.04):
            settings["jit_compile"] = True
        elif draw.has("run_eagerly", 0.1):
            settings["run_eagerly"] = True
        elif draw.has("steps_per_execution", 0.1):
            settings["steps_per_execution"] = STEPS
        self.mean = draw.choice([0.0, 0.0, 0.0, 5.0, 100.0])
        self.model(tf.zeros((2, *self.sizes, 4), self.model.compute_dtype))
        self.replaced = 0
        if side == "replaced":
            tf_bn_ops.keras.replace_batch_norm(self.model)
            self.replaced = len(tf_bn_ops.keras.batch_norm_report(self.model).fused)
        self.model.compile(keras.optimizers.SGD(RATE), "mse", auto_scale_loss=False, **settings)

    def _dtype(self, dtype: str) -> str:
        return "float64" if self.side == "float64" else dtype

    # ---- Layers ----------------------------------------------------------------------------------

    def _nested(self, x: Any) -> Any:
        inside = keras.Input(x.shape[1:])
        inner = keras.Model(inside, self._block(inside))
        y = inner(x)
        if y.shape == x.shape and self.draw.has("nested twice", 0.3):
            y = inner(y)
        return y

    def _block(self, x: Any) -> Any:
        draw, shortcut = self.draw, x
        kind = draw.choice(["conv", "conv", "conv", "dense", "none"])
        if kind != "none" and x.shape[-1] is not None:
            bias = draw.has("bias", 0.5)
            if kind == "dense" or self.rank == 2:
                x = keras.layers.Dense(self.channels, use_bias=bias)(x)
            else:
                layer = CONVOLUTIONS[self.rank]
                x = layer(self.channels, 3, padding="same", use_bias=bias)(x)
        y = self._norm(x)
        if draw.has("residual", 0.45):
            if shortcut.shape[-1] != y.shape[-1]:
                shortcut = keras.layers.Dense(y.shape[-1])(shortcut)
            if draw.has("norm of the shortcut", 0.3):
                shortcut = self._norm(shortcut)
            operands = [y, shortcut] if draw.has("shortcut second", 0.7) else [shortcut, y]
            y = keras.layers.Add()(operands) if draw.has("Add", 0.7) else operands[0] + operands[1]
        y = self._activation(y)
        if draw.has("concatenate", 0.08):
            y = keras.layers.Concatenate()([y, x])
        return y

    def _norm(self, x: Any) -> Any:
        draw = self.draw
        arguments: dict[str, Any] = {
            "momentum": draw.choice([0.99, 0.9, 0.5]),
            "epsilon": draw.choice([1e-3, 1e-3, 1e-5, 0.1]),
            "center": not draw.has("no center", 0.1),
            "scale": not draw.has("no scale", 0.1),
        }
        if self.rank > 2 and not self.unknown and draw.has("channels first", 0.15):
            arguments["axis"] = 1
        elif self.rank > 3 and not self.unknown and draw.has("odd axis", 0.05):
            arguments["axis"] = 2
        if draw.has("frozen", 0.1):
            arguments["trainable"] = False
        if draw.has("synchronized", 0.08):
            arguments["synchronized"] = True
        elif draw.has("renorm", 0.03):
            arguments["renorm"] = True
        if draw.has("regularized", 0.05):
            arguments["gamma_regularizer"] = _float32_l2
        if self.policy != "float32" and draw.has("norm in float32", 0.15):
            arguments["dtype"] = self._dtype("float32")
        elif draw.has("norm in float64", 0.03):
            arguments["dtype"] = "float64"
        given = {}
        if draw.has("training=True", 0.06):
            given["training"] = True
        elif draw.has("training=False", 0.04):
            given["training"] = False
        kind = Doubled if draw.has("derived class", 0.05) else keras.layers.BatchNormalization
        spreads = self.rank > 2 and not self.unknown and "axis" not in arguments
        if spreads and draw.has("TimeDistributed", 0.08):
            return keras.layers.TimeDistributed(kind(**arguments))(x)
        layer = kind(**arguments)
        y = layer(x, **given)
        if draw.has("shared", 0.12):
            y = layer(self._activation(y), **given)
        return y

    def _activation(self, y: Any) -> Any:
        name = self.draw.choice(ACTIVATIONS)
        if name == "none" or not self.draw.has(name, 1):
            return y
        if name == "relu" and self.draw.has("ReLU layer", 0.5):
            return keras.layers.ReLU()(y)
        if name == "relu6":
            return keras.layers.ReLU(6.0)(y)
        if name == "leaky":
            return keras.layers.LeakyReLU()(y)
        if name == "prelu":
            if self.unknown:
                return y
            return keras.layers.PReLU(shared_axes=[*range(1, self.rank - 1)] or None)(y)
        if name == "lambda":
            self.savable = False
            return keras.layers.Lambda(lambda t: t * tf.sigmoid(1.5 * t))(y)
        function = softsign_of_square if name == "custom" else name
        return keras.layers.Activation(function)(y)

    # ---- Training --------------------------------------------------------------------------------

    def data(self, number: int) -> tuple[np.ndarray, Any, Any]:
        rng = np.random.default_rng([self.draw.seed, self.draw.index, number])
        x = rng.normal(self.mean, 1, (STEPS * BATCH, *self.sizes, 4)).astype("float32")
        if "masking" in self.draw.drawn:
            x[:, 5:] = 0
            x[::2, 3:] = 0
        y = {k: rng.normal(size=(len(x), 3 if k == "a" else 2)).astype("float32") for k in "ab"}
        if self.is_subclassed:
            y["a"] = np.tile(y["a"], 2)[:, :4]
        weights = rng.uniform(0, 2, len(x)).astype("float32") if self.has_weights else None
        if len(self.keys) == 1:
            return x, y["a"], weights
        return x, y, None if weights is None else {"a": weights, "b": weights}

    def run(self, x: np.ndarray, y: Any, weights: Any, folder: str) -> distances.Values:
        model = self.model
        distances.set_weights(model, self.draw.index)
        first = lambda t: tf.nest.map_structure(lambda a: tf.constant(a[:BATCH]), t)  # noqa: E731
        gradients = self._gradients(first(x), first(y), apply=False)[1]
        losses: list[Any] = []
        if self.way == "fit":
            losses += model.fit(
                x, y, BATCH, 1, sample_weight=weights, shuffle=False, verbose=0
            ).history["loss"]
        for i in range(0, len(x), BATCH) if self.way != "fit" else ():
            part = lambda t, i=i: tf.nest.map_structure(lambda a: a[i : i + BATCH], t)  # noqa: E731
            if self.way == "train_on_batch":
                given = None if weights is None else part(weights)
                losses.append(
                    model.train_on_batch(part(x), part(y), given, return_dict=True)["loss"]
                )
            else:
                losses.append(self._gradients(tf.constant(part(x)), part(y), True)[0])
        losses.append(model.evaluate(x, y, BATCH, verbose=0, return_dict=True)["loss"])
        values, statistics = distances.split_weights(model)
        predictions = tf.nest.flatten(self._predicted(x, folder))
        kinds = (losses, gradients, values, statistics, predictions)
        of = lambda tensors: [distances.as_float64(t) for t in tensors]  # noqa: E731
        return dict(zip(distances.KINDS, map(of, kinds), strict=True))

    def _gradients(self, x: Any, y: Any, apply: bool) -> tuple[Any, Any]:
        if not hasattr(self, "_step"):

            def step(x: Any, y: Any, apply: bool) -> Any:
                model = self.model
                with tf.GradientTape() as tape:
                    outputs = model(x, training=True)
                    pairs = zip(tf.nest.flatten(outputs), tf.nest.flatten(y), strict=True)
                    wide = "float64" if self.side == "float64" else "float32"
                    errors = [tf.cast(a, wide) - tf.cast(b, wide) for a, b in pairs]
                    extra = [tf.cast(e, wide) for e in model.losses]
                    loss = tf.add_n([tf.reduce_mean(e * e) for e in errors] + extra)
                gradients = tape.gradient(loss, model.trainable_variables)
                if apply:
                    model.optimizer.apply(gradients, model.trainable_variables)
                return loss, [g for g in gradients if g is not None]

            self._step = tf.function(step, autograph=False) if self.in_function else step
        return self._step(x, y, apply)

    def _predicted(self, x: np.ndarray, folder: str) -> Any:
        model, end = self.model, self.end
        whole = self.savable and not self.is_subclassed
        if end == "call":
            return model(x, training=False)
        # Keras exports a float64 model with float32 inputs; what it would compute is asked here.
        if end == "exported" and not self.unknown and self.side != "float64":
            path = os.path.join(folder, "exported")
            model.export(path, verbose=False)
            loaded = tf.saved_model.load(path)
            return loaded.serve(tf.constant(x, "float32"))
        if end == "saved" and whole:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            model = keras.saving.load_model(path)
        elif end == "cloned" and whole:
            model = keras.models.clone_model(model)
            model.set_weights(self.model.get_weights())
        return model.predict(x, BATCH, verbose=0)


# ---- Comparisons ---------------------------------------------------------------------------------


def computed(draw: Draw, side: str, data: int) -> dict[str, Any]:
    """What a side computes of a model: Keras itself several times."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = Model(draw, side)
            x, y, weights = model.data(data)
            number = 1 + distances.NUDGES if side == "keras" else 1
            runs = distances.runs(lambda x: model.run(x, y, weights, folder), x, number, model.unit)
            return {"runs": runs, "unit": model.unit, "replaced": model.replaced, "error": ""}
    except Exception as error:  # Of any kind: it is what is looked for.
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    finally:
        keras.config.set_dtype_policy("float32")
        gc.collect()


def _quiet() -> None:
    """No word of masks that layers drop, functions that are traced often, and layers that stay."""
    warnings.simplefilter("ignore")
    tf.get_logger().setLevel("ERROR")
    logging.getLogger("tf_bn_ops").setLevel(logging.ERROR)


def _served() -> collections.Counter[str]:
    """What this library has done in this process: places fused in graphs, and calls."""
    report = tf_bn_ops.report()
    fused, calls = (place.graphs for place in report.fused), (call.calls for call in report.calls)
    return collections.Counter(fused=sum(fused), calls=sum(calls))


def under_the_switch(draw: Draw, data: int) -> dict[str, Any]:
    before = _served()
    return {**computed(draw, "switch", data), "served": _served() - before}


class Child:
    """The process under TF_BN_OPS=1; a new one after some models."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._asked = 0
        self.counts: collections.Counter[str] = collections.Counter()

    def ask(self, draw: Draw, data: int) -> None:
        if self._pool is None or self._asked == CHILD_MODELS:
            self.close()
            by = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(1, by, initializer=_quiet)
            self._asked = 0
        self._asked += 1
        path = os.pathsep.join([str(ROOT / "tf_bn_ops" / "_children"), str(ROOT)])
        changes = {"TF_BN_OPS": "1", "PYTHONPATH": path}
        with unittest.mock.patch.dict(os.environ, changes):
            self._answer = self._pool.submit(under_the_switch, draw, data)

    def answer(self) -> dict[str, Any]:
        try:
            found = self._answer.result()
        except concurrent.futures.process.BrokenProcessPool:
            self.close()
            return {"error": "the process under TF_BN_OPS=1 has died"}
        self.counts += found["served"]
        return found

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None


class Comparison:
    """Compares models one by one; counts what they had."""

    def __init__(self) -> None:
        self.child = Child()
        self.drawn: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self.replaced = 0
        self.weak = 0

    def failure(self, draw: Draw, data: int) -> str:
        """Why a model fails; "" if it does not."""
        self.child.ask(draw, data)
        found = {side: computed(draw.again(), side, data) for side in SIDES[:2]}
        again = draw.again()
        found["replaced"] = computed(again, "replaced", data)
        found["switch"] = self.child.answer()
        self.replaced += found["replaced"].get("replaced", 0)
        self.drawn.update(again.drawn)
        if found["keras"]["error"] or found["float64"]["error"]:
            self.refused[found["keras"]["error"] or found["float64"]["error"]] += 1
            return ""
        (want,) = found["float64"]["runs"]
        own = [distances.distances(run, want) for run in found["keras"]["runs"]]
        self.weak += max(own[0].values()) > 0.5
        wrong = []
        for side in SIDES[2:]:
            if found[side]["error"]:
                wrong.append(f"{side}: {found[side]['error']}")
                continue
            ours = distances.distances(found[side]["runs"][0], want)
            ratios = distances.ratios(ours, own, found["keras"]["unit"])
            wrong += [
                f"{side}: {kind} {ratio:.3g} times as far as Keras' {own[0][kind]:.2g}"
                for kind, ratio in ratios.items()
                if not ratio <= distances.LARGEST
            ]
        return "; ".join(wrong)

    def fails(self, draw: Draw) -> str:
        """As `failure`, for each of three sets of data: an activation may flip at its bound."""
        for data in range(3):
            if not (why := self.failure(draw.again(), data)):
                return ""
        return why

    def reduced(self, draw: Draw) -> Draw:
        """The same model without what does not matter for its failure."""
        again = draw.again()
        with contextlib.suppress(Exception):
            Model(again, "keras")
        for feature in sorted(again.drawn):
            less = Draw(draw.seed, draw.index, draw.left_out | {feature})
            if self.fails(less):
                draw = less
        return draw


def run(number: int, seed: int, first: int = 0) -> tuple[Comparison, Iterator[str]]:
    """Compares models; the iterator has a text for each that fails."""
    comparison = Comparison()

    def texts() -> Iterator[str]:
        for index in range(first, first + number):
            if why := comparison.fails(Draw(seed, index)):
                less = comparison.reduced(Draw(seed, index))
                kept = less.again()
                with contextlib.suppress(Exception):
                    Model(kept, "keras")
                yield (
                    f"--seed={seed} --only={index}: {why}\n  has: {', '.join(sorted(kept.drawn))}"
                )
        comparison.child.close()

    return comparison, texts()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="index of the only model")
    arguments = parser.parse_args()
    _quiet()
    first, number = (0, arguments.models) if arguments.only is None else (arguments.only, 1)
    comparison, texts = run(number, arguments.seed, first)
    failed = 0
    for text in texts:
        print(text, flush=True)
        failed += 1
    for feature, count in comparison.drawn.most_common():
        print(f"{count:6} {feature}")
    for why, count in comparison.refused.most_common():
        print(f"Keras refuses {count}: {why}")
    print(f"layers replaced {comparison.replaced}, {dict(comparison.child.counts)}")
    print(f"Keras' own distance is beyond 0.5 in {comparison.weak}")
    print(f"{number} models, seed {arguments.seed}: {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
