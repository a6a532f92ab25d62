"""Inference: right in optimized graphs, foldable by converters, and exported without this library.

Promised: exports become TFLite and ONNX with the same results; frozen norms behind every
convolution and before every activation are right in optimized graphs; a signature that was traced
in training is refused by the layer's name.

The reference is Keras' model of the same weights.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from typing import Any

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tf_bn_ops
from tf_bn_ops.keras import (
    BatchNormalization,
    disable,
    replace_batch_norm,
    restore_batch_norm,
)

KERAS_LAYER = keras.layers.BatchNormalization
layers = keras.layers


def random(*shape) -> np.ndarray:
    return np.random.default_rng(0).normal(1, 2, shape).astype("float32")


def randomize(model) -> None:
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(rng.uniform(0.5, 1.5, weight.shape))


# ---- In graphs that TensorFlow optimizes ---------------------------------------------------------


def has_channels_first(dtype: str) -> bool:
    """Whether TensorFlow has the convolution on this CPU: oneDNN does, in half with AVX512-FP16."""
    try:
        tf.nn.conv2d(tf.ones([1, 1, 2, 2], dtype), tf.ones([1, 1, 1, 1], dtype), 1, "SAME", "NCHW")
    except tf.errors.UnimplementedError:
        return False
    return True


# Every convolution, and activations behind batch norm over either axis: TensorFlow's remapper fuses
# some of them into ops that have no kernel, or compute something else.
def optimized(dtype: str, activations: list[str]) -> None:
    keras.config.set_dtype_policy(dtype)
    inputs = keras.Input((4, 4, 4))
    same: dict[str, Any] = {"padding": "same", "use_bias": False}
    convolutions = {
        "Conv2D": lambda: layers.Conv2D(4, 3, **same),
        "with bias": lambda: layers.Conv2D(4, 3, padding="same"),
        "DepthwiseConv2D": lambda: layers.DepthwiseConv2D(3, **same),
        "transposed": lambda: layers.Conv2DTranspose(4, 3, **same),
        "Dense": lambda: layers.Dense(4, use_bias=False),
        "none": lambda: layers.Identity(),
    }
    if has_channels_first(keras.config.dtype_policy().compute_dtype):
        convolutions["channels first"] = lambda: layers.Conv2D(
            4, 3, **same, data_format="channels_first"
        )
    outputs = {}
    for name, make in convolutions.items():
        for axis in (-1, 1):
            few = ["tanh", "mish"]
            for activation in activations if name in ("Conv2D", "channels first") else few:
                x = layers.BatchNormalization(axis=axis)(make()(inputs))
                outputs[f"{name}, axis {axis}, {activation}"] = layers.Activation(activation)(x)
    x = layers.Reshape((4, 4, 2, 2))(inputs)
    x = layers.BatchNormalization()(layers.Conv3D(4, 2, **same)(x))
    outputs["Conv3D"] = layers.Activation("tanh")(x)
    model = keras.Model(inputs, outputs)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        # Sums of some 36 products, of size 1.
        size = 36 if weight.name == "kernel" else 1
        weight.assign(rng.uniform(0.5, 1.5, weight.shape) / size)
    x = rng.normal(size=(2, 4, 4, 4)).astype("float32")
    want = model(x)
    got = replace_batch_norm(model).predict(x, verbose=0)
    tolerance = {"float32": 1e-4, "mixed_float16": 1e-2, "mixed_bfloat16": 8e-2}[dtype]
    for name in outputs:
        pair = np.float64(got[name]), np.float64(want[name])
        np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance, err_msg=name)


ACTIVATIONS = [
    name
    for name, function in vars(keras.activations).items()
    if callable(function)
    and name.islower()
    and name not in ("deserialize", "get", "serialize", "threshold")
]
# Without the one that Keras' own predict() refuses in half, of which TensorFlow has no Range.
OF_HALF = [name for name in ACTIVATIONS if name != "sparsemax"]


@pytest.mark.parametrize(
    ("dtype", "onednn", "activations"),
    [
        pytest.param("float32", True, ["relu", "tanh", "mish"], id="some"),
        *(
            pytest.param(dtype, onednn, names, marks=pytest.mark.long, id=f"{dtype}, {onednn}")
            for dtype, onednn, names in (
                ("float32", False, ACTIVATIONS),
                ("float32", True, ACTIVATIONS),
                ("mixed_float16", True, OF_HALF),
                ("mixed_bfloat16", True, ACTIVATIONS),
            )
        ),
    ],
)
def test_behind_every_convolution_and_before_every_activation(dtype, onednn, activations):
    assert len(ACTIVATIONS) > 25
    variables = {"TF_ENABLE_ONEDNN_OPTS": str(int(onednn))}
    forked.call(optimized, dtype, activations, **variables)


def conv(x, seed, size=3, depth=4, strides=1, padding: Any = "SAME", **options):
    """A convolution with a kernel of its own: TensorFlow makes one of two that are the same."""
    kernel = np.random.default_rng(seed).normal(0, 0.3, [size, size, depth, 4])
    return tf.nn.conv2d(x, tf.cast(kernel, x.dtype), strides, padding, **options)


CONVOLUTIONS: dict[str, Any] = {
    "1x1": functools.partial(conv, size=1),
    "3x3": conv,
    "strides": functools.partial(conv, strides=2, padding="VALID"),
    "dilations": functools.partial(conv, dilations=2),
    "explicit": functools.partial(conv, padding=[[0, 0], [1, 2], [2, 1], [0, 0]]),
    # Not let in: TensorFlow has no kernel, or fuses what it should not.
    "grouped": functools.partial(conv, depth=2),
    "of an inner function": lambda x, seed: tf.function(conv)(x, seed),
    "channels first": functools.partial(conv, data_format="NCHW"),
    "transposed": lambda x, seed: tf.nn.conv2d_transpose(
        x, tf.fill([3, 3, 4, 4], tf.cast(seed / 99, x.dtype)), tf.shape(x), 1
    ),
}
LET_IN = [*CONVOLUTIONS][:5]
BEHIND: dict[str, Any] = {
    "nothing": tf.identity,
    **{name: getattr(tf.nn, name) for name in ("relu", "relu6", "elu", "leaky_relu", "silu")},
    "tanh": tf.tanh,
    "mish": lambda y: y * tf.tanh(tf.nn.softplus(y)),
    "residual": lambda y: tf.nn.relu(y + tf.reverse(y, [1])),
}


def function_behind_convolutions(dtype: str) -> None:
    tolerance = {"float32": 2e-5, "half": 2e-2, "bfloat16": 2e-1}[dtype]
    vectors = [np.arange(1, 5, dtype="float32") / 3 + i / 2 for i in range(4)]
    kinds = [*CONVOLUTIONS]
    if not has_channels_first(dtype):
        kinds.remove("channels first")
    cases = [*itertools.product(kinds, ["NHWC"], BEHIND)]
    # All axes have four elements: each can be the channels.
    cases += itertools.product({"3x3", "channels first"} & {*kinds}, ["NCHW"], BEHIND)

    def infer(x, norm):
        results = []
        for seed, (kind, data_format, behind) in enumerate(cases):
            results.append(BEHIND[behind](norm(CONVOLUTIONS[kind](x, seed), data_format)))
        return results

    def fused(y, data_format):
        return tf_bn_ops.fused_batch_norm(y, *vectors, data_format=data_format, is_training=False).y

    def formula(y, data_format):
        shape = [4] if data_format == "NHWC" else [4, 1, 1]
        scale, offset, mean, variance = (tf.cast(tf.reshape(v, shape), tf.float64) for v in vectors)
        y = tf.cast(y, tf.float64)
        return tf.nn.batch_normalization(y, mean, variance, offset, scale, 1e-3)

    x = tf.cast(random(2, 4, 4, 4), dtype)
    context.context().enable_graph_collection()
    fused_results = tf.function(infer, autograph=False)(x, fused)
    graphs = context.context().export_run_metadata().partition_graphs
    ops = {node.name: node.op for graph in graphs for node in graph.node}
    behind = [
        ops[node.input[0]] for graph in graphs for node in graph.node if node.op == "EnsureShape"
    ]
    let_in = len(LET_IN) * len(BEHIND) if dtype == "float32" else 0
    assert len(behind) == let_in and all("FusedConv2D" in op for op in behind), behind
    for case, got, want in zip(cases, fused_results, infer(x, formula), strict=True):
        np.testing.assert_allclose(
            tf.cast(got, tf.float64), want, rtol=tolerance, atol=tolerance, err_msg=str(case)
        )


@pytest.mark.parametrize(
    ("dtype", "onednn"),
    [
        ("float32", True),
        *(
            pytest.param(dtype, onednn, marks=pytest.mark.long)
            for dtype, onednn in (("float32", False), ("half", True), ("bfloat16", True))
        ),
    ],
)
def test_the_function_behind_convolutions(dtype, onednn):
    """TensorFlow fuses it into convolutions that have kernels, activations never: of any data
    format, whatever the norm's is."""
    variables = {"TF_ENABLE_ONEDNN_OPTS": str(int(onednn))}
    forked.call(function_behind_convolutions, dtype, **variables)


@pytest.mark.parametrize("channels", [4, None])
@pytest.mark.parametrize("short", range(4))
def test_vectors_shorter_than_the_channels_are_refused_behind_a_convolution(short, channels):
    """Where no shape says so before the call; TensorFlow's fused convolution reads beyond them."""
    specs = [tf.TensorSpec([None, None, None, 4]), tf.TensorSpec([3, 3, 4, channels])]

    @functools.partial(tf.function, input_signature=[*specs, *[tf.TensorSpec([None])] * 4])
    def infer(x, kernel, *vectors):
        y = tf.nn.conv2d(x, kernel, 1, "SAME")
        return tf_bn_ops.fused_batch_norm(y, *vectors, is_training=False).y

    vectors = [tf.ones(2 if i == short else 4) for i in range(4)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="as the channels of x"):
        infer(random(2, 4, 4, 4), random(3, 3, 4, 4), *vectors)


# ---- Converted for devices -----------------------------------------------------------------------

BEFORE = {
    "Dense of rank 3": ((5, 6), lambda: layers.Dense(4)),
    "Conv1D": ((16, 3), lambda: layers.Conv1D(4, 3, use_bias=False)),
    "DepthwiseConv2D": ((8, 8, 3), lambda: layers.DepthwiseConv2D(3)),
}


def lite(model, folder, x) -> tuple[list[str], np.ndarray]:
    """The ops of a model, converted, and what they compute of x."""
    model.export(str(folder), verbose=False)
    content = tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    ops = [details["op_name"] for details in interpreter._get_ops_details()]
    return [op for op in ops if op != "DELEGATE"], interpreter.get_tensor(result["index"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BEFORE)
def test_converters_fold_it_into_the_layer_before(tmp_path, name):
    """Promise: Converters fold the layer into the one before, as Keras'."""
    shape, make = BEFORE[name]
    model = keras.Sequential([keras.Input(shape), make(), KERAS_LAYER(), layers.ReLU()])
    randomize(model)
    x = random(2, *shape)
    theirs, _ = lite(model, tmp_path / "theirs", x)
    ours, y = lite(replace_batch_norm(model), tmp_path / "ours", x)
    assert ours == theirs
    np.testing.assert_allclose(y, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_signature_that_trains_is_converted_on_the_switch(tmp_path):
    """Traced for the file, it holds TensorFlow's ops: a converter knows no others."""
    module = tf.Module()
    module.model = keras.Sequential([keras.Input([5]), layers.Dense(4), KERAS_LAYER()])

    @tf.function(input_signature=[tf.TensorSpec([8, 5]), tf.TensorSpec([8, 4])])
    def train(x, y):
        variables = module.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(module.model(x, training=True) - y))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss}

    module.train, folder = train, str(tmp_path / "model")
    tf_bn_ops.enable(kernels=False, fuse=False)
    try:
        tf.saved_model.save(module, folder, signatures={"train": train})
    finally:
        disable()
    assert b"TfBnOps" not in (tmp_path / "model" / "saved_model.pb").read_bytes()
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["train"])
    converter.experimental_enable_resource_variables = True
    ops = (tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS)
    converter.target_spec.supported_ops = [*ops]
    assert converter.convert()


TO_ONNX = """
import runpy, sys, numpy as np, onnxruntime
folder = sys.argv[1]
sys.argv[1:] = ["--saved-model", f"{folder}/exported", "--output", f"{folder}/model.onnx"]
runpy.run_module("tf2onnx.convert", run_name="__main__")
data = np.load(f"{folder}/data.npz")
session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
(y,) = session.run(None, {session.get_inputs()[0].name: data["x"]})
np.testing.assert_allclose(y, data["y"], rtol=1e-4, atol=1e-5)
"""


@pytest.mark.long
def test_an_exported_model_becomes_onnx(tmp_path):
    for name in ("tf2onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name} (requirements/dev.txt)")
    model, x = infers(KERAS_LAYER()), random(4, 6, 6, 3)
    randomize(model)
    replace_batch_norm(model)
    np.savez(tmp_path / "data.npz", x=x, y=model(x))
    by_model(model, str(tmp_path / "exported"))
    forked.output(TO_ONNX, tmp_path)


# ---- Exported ------------------------------------------------------------------------------------


class OwnStatistics(keras.Model):
    """Normalises by the batch in inference too, as test-time adaptation does."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.others = norm, [KERAS_LAYER(), KERAS_LAYER()]

    def call(self, x):
        x = self.norm(x, training=True)
        for other in self.others:
            x = other(x, training=True)
        return x


def infers(norm):
    return keras.Sequential([keras.Input((6, 6, 3)), norm])


def with_batch_statistics(norm):
    inputs = keras.Input((6, 6, 3))
    return keras.Model(inputs, layers.Conv2D(2, 3)(norm(inputs, training=True)))


def with_side_input(_):
    inputs, norm = keras.Input((6, 6, 3)), BatchNormalization(activation="relu")
    return keras.Model(inputs, norm(inputs, side_input=inputs, training=True))


def subclassed(norm):
    model = OwnStatistics(norm)
    model(random(2, 6, 6, 3))
    return model


def by_model(model, folder) -> None:
    model.export(folder, verbose=False)


def by_archive(model, folder) -> None:
    """As whoever calls a generator with training=True does."""
    archive = keras.export.ExportArchive()
    archive.track(model)
    call = lambda x: model(x, training=True)  # noqa: E731
    archive.add_endpoint("serve", call, [tf.TensorSpec((None, 6, 6, 3))])
    archive.write_out(folder, verbose=False)


def by_tensorflow(model, folder) -> None:
    module = tf.Module()
    module.model = model
    signature = [tf.TensorSpec((None, 6, 6, 3))]
    module.serve = tf.function(lambda x: model(x), input_signature=signature)
    tf.saved_model.save(module, folder)


LOADS = """
import pathlib, sys, numpy as np, tensorflow as tf
for folder in pathlib.Path(sys.argv[1]).iterdir():
    model = tf.saved_model.load(folder / "exported")
    data = np.load(folder / "data.npz")
    np.testing.assert_allclose(model.serve(data["x"]), data["y"], rtol=1e-4, atol=1e-5)
assert "tf_bn_ops" not in sys.modules
"""


@pytest.mark.parametrize(
    "kinds",
    [
        [
            ("layer", with_batch_statistics, by_model),
            ("layer", with_side_input, by_model),
            ("synchronized", infers, by_model),
        ],
        pytest.param(
            [
                ("layer", with_batch_statistics, by_archive),
                ("layer", subclassed, by_model),
                ("replaced", infers, by_model),
                ("replaced", with_batch_statistics, by_tensorflow),
                ("replaced", subclassed, by_archive),
                ("switched", with_batch_statistics, by_model),
                ("switched", subclassed, by_tensorflow),
            ],
            marks=pytest.mark.long,
        ),
    ],
)
def test_exported_models_load_without_this_library(tmp_path, kinds):
    """Promise: Exported models load without this library."""
    x = random(4, 6, 6, 3)
    for way, make, export in kinds:
        synchronized = BatchNormalization(synchronized=True, activation="relu")
        norms = {"layer": BatchNormalization(), "synchronized": synchronized}
        model = make(norms.get(way, KERAS_LAYER()))
        randomize(model)
        folder = tmp_path / f"{way} {make.__name__} {export.__name__}"
        folder.mkdir()
        if way == "replaced":
            replace_batch_norm(model)
        if way == "switched":
            tf_bn_ops.enable(kernels=False, fuse=False)
        else:
            disable()
        try:
            np.savez(folder / "data.npz", x=x, y=model(x))
            export(model, str(folder / "exported"))
        finally:
            disable()
    forked.output(LOADS, tmp_path)


def by_function(model):
    return tf.function(lambda x: model(x, training=True))


def within_cond(model):
    return tf.function(
        lambda x: tf.cond(tf.size(x) > 0, lambda: model(x), lambda: x[:, 1:-1, 1:-1, :2])
    )


def within_another(model):
    inner = tf.function(lambda x: model(x, training=True))
    return tf.function(lambda x: inner(2 * x))


@pytest.mark.parametrize("make", [by_function, within_cond, within_another])
def test_what_was_traced_before_the_export_is_refused_by_the_name_of_the_layer(tmp_path, make):
    module = tf.Module()
    module.model = with_batch_statistics(BatchNormalization(name="the_norm"))
    module.serve = make(module.model)
    concrete = module.serve.get_concrete_function(tf.TensorSpec((None, 6, 6, 3)))
    with pytest.raises(ValueError, match="layer 'the_norm' normalises by the batch"):
        tf.saved_model.save(module, str(tmp_path / "a"), signatures=concrete)
    # As the sentence says. TensorFlow traces a function anew that is no signature.
    module.serve = make(module.model)
    tf.saved_model.save(module, str(tmp_path / "b"))
    module.serve = make(restore_batch_norm(module.model))
    concrete = module.serve.get_concrete_function(tf.TensorSpec((None, 6, 6, 3)))
    tf.saved_model.save(module, str(tmp_path / "c"), signatures=concrete)
    for name in ("b", "c"):
        assert b"TfBnOps" not in (tmp_path / name / "saved_model.pb").read_bytes()
