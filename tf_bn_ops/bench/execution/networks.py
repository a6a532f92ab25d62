"""Step times of whole networks: `python -m tf_bn_ops.bench.execution.networks FD NAME THREADS`.

A process trains five copies of one network of Keras' applications: with Keras' batch norm, with
this library's, with this library's fused with the activations behind it, and two with an identity,
in place of batch norm and in place of batch norm and of these activations. A turn is one training
step of each, adjacent in time and in random order, so that drift of the machine cancels in their
ratios.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tf_bn_ops.bench import implementations
from tf_bn_ops.bench.execution.timing_workers import CallError, Worker
from tf_bn_ops.bench.results import (
    FUSED,
    IDENTITY,
    KERAS,
    OURS,
    VARIANTS,
    WITHOUT_BOTH,
    NetworkMeasurement,
)
from tf_bn_ops.harness import processes

# Name -> class of keras.applications.
NETWORKS = {"resnet50": "ResNet50", "mobilenetv2": "MobileNetV2", "densenet121": "DenseNet121"}


@dataclasses.dataclass(frozen=True)
class Size:
    """How many images of side x side a step trains on, and how many turns are measured."""

    batch: int
    side: int
    turns: int


# The networks' published resolution, at which a step takes 0.3 to 3 s on two cores, and one at
# which calls are small: 0.1 to 0.5 s.
SIZES = (Size(16, 224, 11), Size(8, 112, 31))
QUICK_SIZES = (Size(8, 112, 3),)
_WARM_UP_STEPS = 3
_SEED = 1

ENTRY = dataclasses.replace(
    implementations.ENTRIES[implementations.CANDIDATE], name="networks", label="networks"
)


def _build(name: str, side: int) -> Any:
    """The network with its initial weights."""
    import keras

    keras.utils.set_random_seed(_SEED)
    return getattr(keras.applications, NETWORKS[name])(weights=None, input_shape=(side, side, 3))


def without_batch_norm(model: Any, and_layers: Collection[str] = ()) -> Any:
    """A copy of a model with an identity in place of every batch norm, and of layers by name."""
    import keras

    class Nothing(keras.layers.Layer):
        """keras.layers.Identity with the arguments of a batch norm's call."""

        def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
            del training, mask
            return x

    def clone(layer: Any) -> Any:
        if isinstance(layer, keras.layers.BatchNormalization) or layer.name in and_layers:
            return Nothing(name=layer.name)
        return layer.__class__.from_config(layer.get_config())

    return keras.models.clone_model(model, clone_function=clone)


def variants_of(build: Callable[[], Any]) -> dict[str, Any]:
    """The network of `build` by variant.

    Raises:
      ValueError: a batch norm cannot be replaced by this library's, or none can be fused.
    """
    from tf_bn_ops.keras import batch_norm_report, replace_batch_norm

    replaced = replace_batch_norm(build(), inplace=True)
    fused = replace_batch_norm(build(), inplace=True, fuse=True)
    report = batch_norm_report(fused)
    if report.unfused or not report.activations:
        raise ValueError(f"not all batch norms are this library's, or none is fused: {report}")
    return {
        KERAS: build(),
        OURS: replaced,
        IDENTITY: without_batch_norm(build()),
        FUSED: fused,
        WITHOUT_BOTH: without_batch_norm(build(), fused_activations(fused)),
    }


def fused_activations(model: Any) -> frozenset[str]:
    """The names of the activations that a model's batch norms have computed, additions included."""
    from tf_bn_ops.keras._fusion import FusedActivation, FusedReLU

    kinds = (FusedActivation, FusedReLU)
    return frozenset(layer.name for layer in model._flatten_layers() if isinstance(layer, kinds))


def training_step(model: Any, images: np.ndarray, labels: np.ndarray) -> Callable[[], Any]:
    """One step of gradient descent as a call, complete when it returns. The learning rate is 0:
    without batch norm a network would diverge, and slow down or not for numbers like NaN."""
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(0.0)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    x, y = tf.constant(images), tf.constant(labels)

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return lambda: step(x, y).numpy()


class Server:
    """The requests of `measure`; each public method is one."""

    def __init__(self) -> None:
        self._steps: dict[str, Callable[[], Any]] = {}

    def prepare(self, name: str, batch: int, side: int) -> None:
        """Builds the copies of a network and warms their steps up."""
        rng = np.random.default_rng(_SEED)
        images = rng.standard_normal((batch, side, side, 3), np.float32)
        labels = rng.integers(1000, size=batch)
        models = variants_of(lambda: _build(name, side))
        self._steps = {v: training_step(model, images, labels) for v, model in models.items()}
        for step in self._steps.values():
            for _ in range(_WARM_UP_STEPS):
                step()

    def turn(self) -> dict[str, float]:
        """Seconds of one step of each variant, in random order."""
        seconds = {}
        for variant in random.sample(VARIANTS, len(VARIANTS)):
            begin = time.perf_counter()
            self._steps[variant]()
            seconds[variant] = time.perf_counter() - begin
        return seconds


def measure(
    names: Sequence[str], threads: int, sizes: Sequence[Size]
) -> Iterator[NetworkMeasurement]:
    """Measures networks at each size, each in a process of its own."""
    for size, name in itertools.product(sizes, names):
        measured = NetworkMeasurement(name, size.batch, size.side, threads)
        worker = Worker(ENTRY, threads, module="tf_bn_ops.bench.execution.networks")
        try:
            worker.ask("prepare", name, size.batch, size.side)
            for _ in range(size.turns):
                seconds = worker.ask("turn")
                measured.turns.append(tuple(seconds[variant] * 1e3 for variant in VARIANTS))
        except CallError as e:
            measured = dataclasses.replace(measured, turns=[], skipped=str(e))
        finally:
            worker.close()
        yield measured


def _make(name: str, threads: str) -> tuple[dict[str, str], Callable[[Any], Any]]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    server = Server()
    return {}, lambda request: getattr(server, request[0])(*request[1:])


if __name__ == "__main__":
    processes.serve(sys.argv, _make)
