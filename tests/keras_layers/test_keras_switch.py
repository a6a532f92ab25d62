"""enable(keras=True) and TF_BN_OPS=keras: Keras' own layer on the fused ops, and back.

What has to reach a whole process runs in a process of its own.
"""

from __future__ import annotations

import functools
import inspect
import pathlib
import shutil

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from test_keras import is_fused

import tf_bn_ops
from tf_bn_ops import _loader
from tf_bn_ops.keras import batch_norm_report, disable

KERAS_LAYER = keras.layers.BatchNormalization
KERAS_CALL = KERAS_LAYER.call
enable = functools.partial(tf_bn_ops.enable, kernels=False, fuse=False)
# An argument that Keras 3.12, the last for Python 3.10, does not have.
HAS_RENORM = "renorm" in inspect.signature(KERAS_LAYER.__init__).parameters


@pytest.fixture
def enabled():
    enable()
    yield
    disable()
    assert KERAS_LAYER.call is KERAS_CALL


def data(shape=(6, 4, 5, 3), dtype="float32"):
    return tf.cast(np.random.default_rng(0).normal(1, 2, shape), dtype)


def test_on_and_off():
    before, x = KERAS_LAYER(), data()
    assert not is_fused(before, x, training=True)
    assert enable() == enable() == tf_bn_ops.Enabled(keras=True)
    try:
        after = KERAS_LAYER()
        for layer in (before, after, tf.keras.layers.BatchNormalization()):
            assert is_fused(layer, x, training=True)
            assert layer.supports_jit is False
    finally:
        disable()
    disable()
    for layer in (before, after):
        assert not is_fused(layer, x, training=True)
        assert layer.supports_jit is True


class OwnMoments(KERAS_LAYER):
    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        return mean + 1, variance


class OwnCall(KERAS_LAYER):
    def call(self, inputs, training=None, mask=None):
        return super().call(2 * inputs, training=training, mask=mask)


class OwnShape(KERAS_LAYER):
    """Weights of another shape than the op takes."""

    def build(self, shape):
        super().build(shape)
        self.gamma = self.add_weight(shape=(1, 1, 1, shape[-1]), name="wide", initializer="ones")


@pytest.mark.usefixtures("enabled")
def test_elsewhere_keras_path_is_taken():
    x = data()
    assert is_fused(OwnCall(), x, training=True)
    mask = tf.ones([6, 4, 5], tf.bool)
    for layer, inputs, kwargs in (
        (OwnMoments(), x, {}),
        (OwnShape(), x, {}),
        *([(KERAS_LAYER(renorm=True), x, {})] if HAS_RENORM else []),
        (KERAS_LAYER(), x, {"mask": mask}),
    ):
        assert not is_fused(layer, inputs, training=True, **kwargs)
        state = layer.get_weights()
        want = KERAS_CALL(layer, inputs, training=True, **kwargs)
        layer.set_weights(state)
        np.testing.assert_array_equal(layer(inputs, training=True, **kwargs), want)
    report = batch_norm_report(OwnMoments(name="own"))
    assert report.unfused == {"own": "computes moments in a method of its own"}


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("has_kernels", [True, False])
def test_below_xla(has_kernels, monkeypatch):
    """Training is on our op, or on Keras' path without its kernels; inference on Keras' path.

    XLA's variance of TensorFlow's op is E[x^2] - E[x]^2: at mean 1000 it is all rounding.
    """
    tf_bn_ops.load()
    if not has_kernels:
        monkeypatch.setattr(_loader, "has_xla_kernels", lambda: False)
    elif not _loader.has_xla_kernels():
        pytest.skip("built without kernels for XLA")
    layer = KERAS_LAYER()
    x = data((32, 8, 8, 3)) + 1000
    compiled = tf.function(lambda x, t: layer(x, training=t), jit_compile=True)
    try:
        y = compiled(x, True)
    except tf.errors.InvalidArgumentError:
        pytest.skip("TensorFlow without XLA")
    np.testing.assert_allclose(np.std(y, (0, 1, 2)), np.ones(3), rtol=1e-2)
    of = lambda training: {  # noqa: E731
        op.type for op in compiled.get_concrete_function(x, training).graph.get_operations()
    }
    ops = of(True)
    assert ("TfBnOps>FusedBatchNormEx" in ops) == has_kernels
    ops |= of(False)
    assert "FusedBatchNormV3" not in ops


@pytest.mark.usefixtures("enabled")
def test_the_report_counts_keras_layers_as_fused():
    model = keras.Sequential([keras.Input((4, 5)), KERAS_LAYER(name="a"), OwnCall(name="b")])
    assert batch_norm_report(model).fused == ("a", "b")


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    (sentence,) = enable().refusals
    assert "because it runs on the backend jax" in sentence
    assert KERAS_LAYER.call is KERAS_CALL


# ---- Programs that cannot be edited --------------------------------------------------------------

# Trains, and saves in every format.
TRAINS = """
import sys
import keras, numpy as np
keras.utils.set_random_seed(0)
model = keras.Sequential([
    keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(),
    keras.layers.TimeDistributed(keras.layers.BatchNormalization()),
    keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
x = np.random.default_rng(0).normal(size=(16, 6, 6, 3)).astype("float32")
model.fit(x, x.mean((1, 2, 3)), epochs=2, verbose=0)
model.evaluate(x, x.mean((1, 2, 3)), verbose=0)
model.save(sys.argv[1] + "/model.keras")
model.save(sys.argv[1] + "/model.h5")
model.save_weights(sys.argv[1] + "/model.weights.h5")
model.export(sys.argv[1] + "/exported", verbose=False)
np.savez(sys.argv[1] + "/data.npz", x=x, y=model.predict(x, verbose=0),
         fused="tf_bn_ops.keras" in sys.modules)
"""

LOADS = """
import sys
import keras, numpy as np, tensorflow as tf
folder = sys.argv[1]
data = np.load(folder + "/data.npz")
assert bool(data["fused"])
for name in ("model.keras", "model.h5"):
    model = keras.saving.load_model(folder + "/" + name, compile=False)
    assert type(model.layers[1]) is keras.layers.BatchNormalization
    np.testing.assert_allclose(model(data["x"]), data["y"], rtol=1e-3, atol=1e-4)
for weight in model.weights:
    weight.assign(tf.zeros_like(weight.value))
model.load_weights(folder + "/model.weights.h5")
np.testing.assert_allclose(model(data["x"]), data["y"], rtol=1e-3, atol=1e-4)
exported = tf.saved_model.load(folder + "/exported")
np.testing.assert_allclose(exported.serve(data["x"]), data["y"], rtol=1e-3, atol=1e-4)
assert "tf_bn_ops" not in sys.modules
"""


@pytest.mark.long
def test_what_such_a_program_writes_loads_without_this_library(tmp_path):
    program = "import tf_bn_ops\n" + TRAINS
    forked.output(program, tmp_path, TF_BN_OPS="keras")
    forked.output(LOADS, tmp_path)


# What pip installs into site-packages; Python runs its line at every start.
STARTUP = """
import os, site, sys
site.addsitedir(sys.argv[1])
wanted = os.environ.get("TF_BN_OPS", "0") != "0"
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
assert ("tf_bn_ops" in sys.modules) == wanted
{imports}
import keras
layer = keras.layers.BatchNormalization()
x = tf.ones([2, 3, 4, 5])
graph = tf.function(lambda x: layer(x, training=True)).get_concrete_function(x).graph
ops = [op.type for op in graph.get_operations()]
assert ("TfBnOps>FusedBatchNormEx" in ops) == wanted
assert type(layer).call.__name__ == "call" and type(layer).__module__.startswith("keras.")
"""
IMPORTS = {
    "TensorFlow first": "import tensorflow as tf",
    "Keras first": "import keras; import tensorflow as tf",
    "a part of Keras": "from keras.layers import Dense; import tensorflow as tf",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("value", "imports"),
    [("0", "TensorFlow first"), *((v, order) for v in ("keras", "1") for order in IMPORTS)],
)
def test_startup_file_reaches_programs_that_do_not_import_us(repo_root, tmp_path, value, imports):
    source = repo_root / "tools" / "tf_bn_ops.pth"
    if not source.exists():
        pytest.skip("needs the source tree")
    shutil.copy(source, tmp_path)
    program = STARTUP.format(imports=IMPORTS[imports])
    forked.output(program, tmp_path, TF_BN_OPS=value)


def test_importing_us_imports_neither_keras_nor_tensorflow():
    program = "import sys, tf_bn_ops; assert not {'keras', 'tensorflow'} & set(sys.modules)"
    forked.output(program, TF_BN_OPS="keras")


@pytest.mark.parametrize("first", ["tensorflow", "keras"])
@pytest.mark.parametrize("value", ["keras", "1"])
def test_a_missing_library_stops_every_import(tmp_path, first, value):
    program = """
import sys
import tf_bn_ops
lines = ["import keras", "import tensorflow", "from keras.layers import Dense"]
for line in ["import " + sys.argv[1], *lines, *lines]:
    try:
        exec(line)
        print("imported:", line)
    except ImportError as error:
        print(type(error).__name__, "does not exist" in str(error))
"""
    shutil.copy(pathlib.Path(tf_bn_ops.library_path()).parent / "build_info.json", tmp_path)
    output = forked.output(program, first, TF_BN_OPS=value, TF_BN_OPS_LIBRARY=str(tmp_path))
    assert output.splitlines() == ["LibraryError True"] * 7


@pytest.mark.large
def test_keras_own_tests_pass_on_the_fused_ops(tmp_path):
    """The file that the keras wheel ships, in a process with TF_BN_OPS=keras."""
    tests = pathlib.Path(keras.__file__).parent / "src/layers/normalization"
    file = tests / "batch_normalization_test.py"
    if not file.exists():
        pytest.skip("this keras is installed without its tests")
    pytest.importorskip("absl.testing.parameterized")
    program = f"""
import sys
import tf_bn_ops, pytest
import tf_bn_ops.keras._fused_call as fused_call
calls, fused = [], fused_call._normalize
fused_call._normalize = lambda *a, **k: calls.append(1) or fused(*a, **k)
options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", sys.argv[1]]
status = pytest.main([*options, {str(file)!r}])
print("fused calls:", len(calls))
sys.exit(status)
"""
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\nmarkers = requires_trainable_backend\n")
    output = forked.output(program, settings, TF_BN_OPS="keras")
    assert int(output.split("fused calls:")[1]) > 20
