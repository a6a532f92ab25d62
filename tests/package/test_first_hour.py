"""The first hour of somebody who has README.md alone and an environment with the wheel: every path
of the page is typed as it stands there.

The wheel holds the libraries that are built. TensorFlow is the one of this environment, seen by a
.pth file; "elsewhere" is that environment without the wheel.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from build_helpers import bare_venv, copy_tree, environment, installed, run, site_packages

import tf_bn_ops

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not (ROOT / "README.md").is_file():
    pytest.skip("needs the source tree", allow_module_level=True)
README = (ROOT / "README.md").read_text("utf-8")


def block(section: str, language: str, page: str = README) -> str:
    """The first block of a section, "" for what stands above all sections."""
    text = (page.split(f"\n## {section}\n")[1] if section else page).split("\n## ")[0]
    found = re.search(rf"^```{re.escape(language)}\n(.*?)^```$", text, re.M | re.S)
    assert found, f"README.md has no {language} below {section!r}"
    return found[1]


class User:
    """Somebody with a folder and an environment."""

    def __init__(self, python: pathlib.Path, folder: pathlib.Path):
        self.python, self.folder = python, folder

    def types(self, command: str) -> str:
        """A line of shell, in which python is the environment's."""
        path = f"{self.python.parent}:{os.environ['PATH']}"
        settings = environment(PATH=path, TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="1")
        result = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.folder, env=settings, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def runs(self, code: str) -> str:
        (self.folder / "program.py").write_text(code, "utf-8")
        return self.types("python program.py")


@pytest.fixture(scope="module")
def user(tmp_path_factory) -> User:
    """With the wheel of a release, whose libraries are those of this build."""
    folder = tmp_path_factory.mktemp("first_hour")
    tree = copy_tree(ROOT, folder / "tree", objects=False)
    stage = folder / "stage"
    shutil.copytree(tf_bn_ops.get_lib(), stage / "lib", ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(tf_bn_ops.get_include(), stage / "include")
    code = "import sys; sys.path.insert(0, 'tools'); import backend; backend.build_wheel('dist')"
    built = run([sys.executable, "-c", code], tree, TF_BN_OPS_PREBUILT=str(stage))
    assert built.returncode == 0, built.stderr
    (wheel,) = (tree / "dist").glob("*.whl")
    (folder / "here").mkdir()
    return User(installed(wheel, folder), folder / "here")


@pytest.fixture(scope="module")
def elsewhere(user) -> User:
    """The same environment and folder without the wheel."""
    python = bare_venv(user.folder.parent / "elsewhere")
    shutil.copy(site_packages(user.python) / "outer.pth", site_packages(python))
    return User(python, user.folder)


# Errors of y at a mean of 1e5, of TensorFlow's op and of Keras' layer; their own are above 0.1.
TRAIN = """
import keras
import numpy as np
import tensorflow as tf

x = (np.random.default_rng(0).standard_normal((32, 56, 56, 8)) + 1e5).astype("f")
right = (x - x.mean((0, 1, 2), "d")) / np.sqrt(x.var((0, 1, 2), "d") + 1e-3)
ones, zeros = tf.ones(8), tf.zeros(8)
builtin, _, _ = tf.compat.v1.nn.fused_batch_norm(x, ones, zeros, epsilon=1e-3)
layer = keras.layers.BatchNormalization(epsilon=1e-3)(x, training=True)
print(np.abs(builtin - right).max(), np.abs(layer - right).max())
"""


def errors(printed: str) -> list[float]:
    return [float(word) for word in printed.split()[-2:]]


def test_the_first_screen_replaces_both(user, elsewhere):
    (user.folder / "train.py").write_text(TRAIN)
    assert min(errors(elsewhere.types("python train.py"))) > 0.1
    assert max(errors(user.types(block("", "sh")))) < 1e-4
    assert max(errors(user.runs(block("", "python") + TRAIN))) < 1e-4


def test_a_graph_is_saved_and_loads_without_the_library(user, elsewhere):
    user.runs(
        block("TensorFlow", "python") + "class Model(tf.Module):\n"
        "    @tf.function(input_signature=[tf.TensorSpec(x.shape)])\n"
        "    def infer(self, x):\n"
        "        return tf_bn_ops.fused_batch_norm(\n"
        "            x, tf.ones(64), tf.zeros(64), mean, variance, is_training=False).y\n"
        "    @tf.function(input_signature=[tf.TensorSpec(x.shape)])\n"
        "    def train(self, x):\n"
        "        return tf.compat.v1.nn.fused_batch_norm(x, tf.ones(64), tf.zeros(64))[0]\n"
        "model = Model()\n"
        "both = {'infer': model.infer, 'train': model.train}\n"
        "tf.saved_model.save(model, 'IN', signatures=both)\n"
        "tf.io.write_file('x', tf.io.serialize_tensor(x))\n"
        "tf.io.write_file('y', tf.io.serialize_tensor(model.infer(x)))\n"
    )
    load = (
        "import sys, tensorflow as tf\n"
        "x, y = (tf.io.parse_tensor(tf.io.read_file(name), tf.float32) for name in 'xy')\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "infer, train = model.signatures['infer'], model.signatures['train']\n"
        "tf.debugging.assert_near(*infer(x).values(), y, atol=1e-5)\n"
        "tf.debugging.assert_near(tf.math.reduce_std(*train(x).values()), 1.0, atol=1e-2)\n"
        "assert 'tf_bn_ops' not in sys.modules\n"
    )
    (user.folder / "load.py").write_text(load)
    elsewhere.types("python load.py IN")
    # The command of the page, and its way back.
    (command,) = re.findall(r"`(python -m tf_bn_ops rewrite [^`]*)`", README)
    user.types(command)
    with pytest.raises(AssertionError, match="Op type not registered"):
        elsewhere.types("python load.py OUT")
    user.types("python -m tf_bn_ops rewrite OUT BACK --to builtin")
    elsewhere.types("python load.py BACK")


@pytest.fixture(scope="module")
def exported(user) -> str:
    """Trains the page's model and saves it in every way; returns code that loads x and y."""
    user.runs(
        block("Keras", "python") + "import numpy as np\n"
        "model.compile('sgd', 'mse')\n"
        "x = np.random.default_rng(0).normal(3, 2, (16, *model.input_shape[1:])).astype('f')\n"
        "model.fit(x, x, epochs=2, verbose=0)\n"
        "np.save('x', x); np.save('y', model.predict(x, verbose=0))\n"
        "model.export('served', verbose=False)\n"
        "tf_bn_ops.keras.restore_batch_norm(model).save('model.keras')\n"
    )
    return "import numpy as np, sys\nx, y = np.load('x.npy'), np.load('y.npy')\n"


def test_keras_files_load_without_the_library_and_become_tflite(elsewhere, exported):
    elsewhere.runs(
        exported + "import keras, tensorflow as tf\n"
        "served = tf.saved_model.load('served')\n"
        "np.testing.assert_allclose(served.serve(x), y, rtol=1e-4, atol=1e-5)\n"
        "loaded = keras.models.load_model('model.keras').predict(x, verbose=0)\n"
        "np.testing.assert_allclose(loaded, y, rtol=1e-4, atol=1e-5)\n"
        "content = tf.lite.TFLiteConverter.from_saved_model('served').convert()\n"
        "lite = tf.lite.Interpreter(model_content=content)\n"
        "(given,), (result,) = lite.get_input_details(), lite.get_output_details()\n"
        "lite.resize_tensor_input(given['index'], x.shape)\n"
        "lite.allocate_tensors()\n"
        "lite.set_tensor(given['index'], x)\n"
        "lite.invoke()\n"
        "np.testing.assert_allclose(lite.get_tensor(result['index']), y, rtol=1e-4, atol=1e-5)\n"
        "assert 'tf_bn_ops' not in sys.modules\n"
    )


def test_an_exported_model_becomes_onnx(elsewhere, exported):
    for name in ("tf2onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name} (requirements/dev.txt)")
    elsewhere.types("python -m tf2onnx.convert --saved-model served --output model.onnx")
    elsewhere.runs(
        exported + "import onnxruntime\n"
        "session = onnxruntime.InferenceSession('model.onnx', providers=['CPUExecutionProvider'])\n"
        "(answer,) = session.run(None, {session.get_inputs()[0].name: x})\n"
        "np.testing.assert_allclose(answer, y, rtol=1e-4, atol=1e-5)\n"
    )


def test_a_kernel_is_judged_by_the_command_of_the_page(user):
    (command,) = re.findall(r"`(python -m tf_bn_ops conformance [^`]*)`", README)
    printed = user.runs("import tf_bn_ops; print(tf_bn_ops.library_path())")
    command = command.replace("yours.so", printed.split()[-1])
    command = command.replace("YourOp", "TfBnOps>FusedBatchNormGradV3")
    command = re.sub(r"--map=(\S+)", r"'--map=\1'", command)
    assert "conformance passed" in user.types(f"{command} --cases=40")
