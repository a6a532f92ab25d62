"""Test suites of others on this library's code: Keras' of the layer, TensorFlow's of the op.

docs/evidence.md lists the results.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import build_helpers
import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
# Names the folder of TensorFlow's tests, which its wheel does not ship.
TENSORFLOW_TESTS = "TF_BN_OPS_TENSORFLOW_TESTS"

# Plugins of pytest, imported before the tests.
PLUGINS = {
    "layer": """
from keras.src import layers
import tf_bn_ops.keras
layers.BatchNormalization = tf_bn_ops.keras.BatchNormalization
""",
    "switch": """
import tf_bn_ops
assert tf_bn_ops.enable(kernels=False, fuse=False).keras
""",
}


def run(*arguments: object, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    paths = [str(folder), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, *map(str, arguments)]
    return build_helpers.run(command, folder, PYTHONPATH=os.pathsep.join(filter(None, paths)))


@pytest.mark.long
@pytest.mark.parametrize("plugin", PLUGINS)
def test_keras_tests_of_batch_normalization(tmp_path, plugin):
    """Promise: Keras' own tests of the layer pass on this library's."""
    spec = importlib.util.find_spec("keras.src.layers.normalization.batch_normalization_test")
    if spec is None or spec.origin is None:
        pytest.skip("this Keras ships no tests")
    (tmp_path / "serves_keras.py").write_text(PLUGINS[plugin])
    options = ["-q", "-p", "serves_keras", "-p", "no:cacheprovider", "-c", os.devnull]
    result = run("-m", "pytest", *options, f"--rootdir={tmp_path}", spec.origin, folder=tmp_path)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    (passed,) = re.findall(r"(\d+) passed", result.stdout)
    assert int(passed) > 10


@pytest.mark.long
@pytest.mark.parametrize("way", ["function", "override"])
@pytest.mark.parametrize("name", ["nn_fused_batchnorm_test", "nn_fused_batchnorm_d9m_test"])
def test_tensorflow_tests_of_fused_batch_norm(name, way, tmp_path):
    source = pathlib.Path(os.environ.get(TENSORFLOW_TESTS, "nowhere")) / f"{name}.py"
    if not source.is_file():
        pytest.skip(f"needs {TENSORFLOW_TESTS}, see docs/evidence.md")
    result = run(TESTS / "tensorflow_suite.py", way, source.resolve(), folder=tmp_path)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    assert re.search(r"Ran \d+ tests", result.stderr)
