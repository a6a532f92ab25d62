"""Step times of whole networks, in a process that trains five copies of one network.

The copies have Keras' batch norm, this library's, this library's fused with the activations behind
it, and two an identity, in place of batch norm and in place of batch norm and these activations. A
turn is one training step of each, adjacent in time and in random order, so that drift of the
machine cancels in their ratios.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.bench_worker import CallError, Worker, serve
from bench.results import (
    FUSED,
    IDENTITY,
    KERAS,
    OURS,
    RECOMPUTED,
    VARIANTS,
    WITHOUT_BOTH,
    NetworkMeasurement,
)
from tf_bn_ops.harness import builtin
from tf_bn_ops.spec.ops import NUM_FORWARD_COEFFICIENTS

# Name -> class of keras.applications.
NETWORKS = {
    "resnet50": "ResNet50",
    "mobilenetv2": "MobileNetV2",
    "densenet121": "DenseNet121",
    "efficientnetb0": "EfficientNetB0",
    "efficientnetv2b0": "EfficientNetV2B0",
    "mobilenetv3small": "MobileNetV3Small",
    "mobilenetv3large": "MobileNetV3Large",
}
# Images, their height and width, and turns: the networks' published resolution, at which a step
# takes 0.3 to 3 s on two cores, and one at which calls are small: 0.1 to 0.5 s.
SIZES = ((16, 224, 11), (8, 112, 31))
QUICK_SIZES = ((8, 112, 3),)
_WARM_UP_STEPS = 3
_SEED = 1


def build(name: str, side: int) -> Any:
    """The network with its initial weights."""
    import keras

    keras.utils.set_random_seed(_SEED)
    return getattr(keras.applications, NETWORKS[name])(weights=None, input_shape=(side, side, 3))


def without_batch_norm(model: Any, and_layers: Collection[str] = ()) -> Any:
    """A copy of a model with an identity in place of every batch norm, and of layers by name."""
    import keras

    def clone(layer: Any) -> Any:
        if isinstance(layer, keras.layers.BatchNormalization) or layer.name in and_layers:
            # Not keras.layers.Identity, which lacks the arguments of a batch norm's call.
            return keras.layers.Lambda(lambda x: x, name=layer.name)
        return layer.__class__.from_config(layer.get_config())

    return keras.models.clone_model(model, clone_function=clone)


def activations_behind(model: Any) -> frozenset[str]:
    """The names of the activations that the graph optimizer fuses: ReLU, ReLU6, SiLU or hard-SiLU
    behind a batch norm, or the first two behind an addition to one."""
    import keras

    def sources(layer: Any) -> list[Any]:
        return [tensor._keras_history.operation for tensor in keras.tree.flatten(layer.input)]

    def is_behind(layer: Any) -> bool:
        first = sources(layer)
        if isinstance(first[0], keras.layers.Add):
            first = sources(first[0])
        return any(isinstance(source, keras.layers.BatchNormalization) for source in first)

    kinds = (keras.layers.ReLU, keras.layers.Activation)
    return frozenset(m.name for m in model.layers if isinstance(m, kinds) and is_behind(m))


class Recomputed:
    """A functional model whose forward pass is repeated for the gradient, segment by segment: some
    √n of n layers, cut where all goes through one tensor (Chen et al., "Training deep nets with
    sublinear memory cost", 2016)."""

    def __init__(self, model: Any):
        import keras

        self.trainable_variables = model.trainable_variables
        first, *between, last = _bottlenecks(model)
        step = -(-len(between) // round(len(model.layers) ** 0.5))
        groups = (between[i : i + step] for i in range(0, len(between), step))
        # Of neighbours the smallest, since it is what is kept.
        cuts = (min(group, key=lambda t: math.prod(t.shape[1:])) for group in groups)
        ends = [first, *cuts, last]
        self.segments = [keras.Model(*pair) for pair in itertools.pairwise(ends)]

    def __call__(self, x: Any, training: bool) -> Any:
        import tensorflow as tf

        for segment in self.segments:
            x = tf.recompute_grad(functools.partial(segment, training=training))(x)
        return x


def _bottlenecks(model: Any) -> list[Any]:
    """The tensors through which all goes from the input to the result, these included. Each
    operation, a layer or arithmetic between layers, is called once and stands behind those that it
    reads in `model.operations`."""
    import keras

    last = {id(t): i for i, m in enumerate(model.operations) for t in keras.tree.flatten(m.input)}
    found, waiting = [], set[int]()
    for i, layer in enumerate(model.operations):
        waiting = {tensor for tensor in waiting if last[tensor] > i}
        if not waiting:
            found.append(layer.output)
        waiting.add(id(layer.output))
    return found


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


def kept_bytes(step: Callable[[], Any], batch: int, side: int) -> int:
    """The bytes that a step, which has not run yet, keeps for its gradient: tensors that the loss
    depends on and that nodes behind it read, but for weights and images, in the graph as
    TensorFlow's optimizers leave it."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    context.context().enable_run_metadata()
    step()
    functions = context.context().export_run_metadata().function_graphs
    context.context().disable_run_metadata()
    # The last graph is this step's: graphs of steps that ran before stand in front of it.
    (definition,) = functions[-1].partition_graphs
    updates = {n.name for n in definition.node if n.op.startswith("Assign") and "Variable" in n.op}
    left = tf.compat.v1.GraphDef(versions=definition.versions)
    for node in definition.node:
        if node.name in updates:
            continue
        new = left.node.add()
        new.CopyFrom(node)
        new.device = ""
        new.input[:] = [name for name in node.input if name.lstrip("^") not in updates]
        new.attr.pop("_class", None)
        if node.op == "_Arg" and "_handle_shapes" not in node.attr:
            is_label = tf.as_dtype(node.attr["T"].type).is_integer
            shape = (batch,) if is_label else (batch, side, side, 3)
            new.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(shape).as_proto())
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(left, name="")
    operations = graph.get_operations()
    before, waiting = set(), [op for op in operations if op.type == "_Retval"]
    while waiting:
        op = waiting.pop()
        if op not in before:
            before.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    kept = {}
    for tensor in (tensor for op in operations if op not in before for tensor in op.inputs):
        while tensor.op.type in ("Identity", "Reshape", "Squeeze"):  # The same buffer.
            tensor = tensor.op.inputs[0]
        if tensor.op not in before or tensor.op.type in ("_Arg", "Const", "ReadVariableOp"):
            continue
        if tensor.op.type.startswith("_Mkl") and tensor.value_index > 0:
            continue  # A workspace, such as MaxPool's, which has no shape.
        elements = tensor.shape.num_elements()
        if elements is None:  # reserve_space_3, which kernels give different shapes: [8, C] here.
            elements = NUM_FORWARD_COEFFICIENTS * tensor.op.inputs[1].shape[0]
        kept[tensor.name] = elements * tensor.dtype.size
    return sum(kept.values())


class Server:
    """The requests of `measure`."""

    facts: Mapping[str, str] = {}

    def __init__(self, name: str, threads: int):
        import tensorflow as tf

        del name
        builtin.check_kernels()  # Keras' batch norm is one of the copies.
        tf.config.threading.set_intra_op_parallelism_threads(threads)

    def prepare(self, name: str, batch: int, side: int) -> dict[str, int]:
        """Builds the copies of a network and warms their steps up; what some of them keep.

        Raises:
          ValueError: a batch norm cannot be replaced by this library's, or none is fused.
        """
        from tf_bn_ops import _enable
        from tf_bn_ops.keras import batch_norm_report, replace_batch_norm

        rng = np.random.default_rng(_SEED)
        images = rng.standard_normal((batch, side, side, 3), np.float32)
        labels = rng.integers(1000, size=batch)
        keras_model = build(name, side)
        models = {
            KERAS: keras_model,
            OURS: replace_batch_norm(build(name, side)),
            IDENTITY: without_batch_norm(keras_model),
            FUSED: replace_batch_norm(build(name, side)),
            WITHOUT_BOTH: without_batch_norm(keras_model, activations_behind(keras_model)),
        }
        if unfused := batch_norm_report(models[OURS]).unfused:
            raise ValueError(f"not all batch norms are this library's: {unfused}")
        before = _enable.fused_so_far()
        kept: dict[str, int] = {}
        self.steps = {}
        for variant, model in models.items():
            _enable.set_fusion(variant == FUSED)  # Graphs that have run stay as they are.
            self.steps[variant] = training_step(model, images, labels)
            if variant in (KERAS, FUSED):
                kept[variant] = kept_bytes(self.steps[variant], batch, side)
            for _ in range(_WARM_UP_STEPS):
                self.steps[variant]()
        _enable.set_fusion(True)
        recomputed = training_step(Recomputed(models[FUSED]), images, labels)
        with contextlib.suppress(ValueError):
            # With oneDNN not of EfficientNets, whose optimized graph loses a padding's shape.
            kept[RECOMPUTED] = kept_bytes(recomputed, batch, side)
        if _enable.fused_so_far() == before:
            raise ValueError("no batch norm is fused with the activation behind it")
        return kept

    def turn(self) -> list[float]:
        """Milliseconds of one step of each of VARIANTS, in random order."""
        milliseconds = {}
        for variant in random.sample(VARIANTS, len(VARIANTS)):
            begin = time.perf_counter()
            self.steps[variant]()
            milliseconds[variant] = 1e3 * (time.perf_counter() - begin)
        return [milliseconds[variant] for variant in VARIANTS]


def measure(
    names: Sequence[str], threads: int, sizes: Sequence[tuple[int, int, int]]
) -> Iterator[NetworkMeasurement]:
    """Measures networks at each size, each in a process of its own."""
    for (batch, side, turns), name in itertools.product(sizes, names):
        measured = NetworkMeasurement(name, batch, side, threads)
        worker = Worker("networks", threads, module="bench.networks")
        try:
            measured.kept = worker.ask("prepare", name, batch, side)
            measured.turns += (worker.ask("turn") for _ in range(turns))
        except CallError as e:
            measured.turns, measured.skipped = [], str(e)
        finally:
            worker.process.close()
        yield measured


if __name__ == "__main__":
    serve(Server)
