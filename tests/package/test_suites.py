"""Others' tests on the switch, of tools/suites.py: a tenth of Keras' own each day in turn; and on
this library's layer."""

from __future__ import annotations

import datetime
import importlib.util
import os
import re
import sys

import pytest
from build_helpers import run, tool

suites = tool("suites")
# A plugin of pytest, imported before the tests.
ON_THE_LAYER = """
from keras.src import layers
import tf_bn_ops.keras
layers.BatchNormalization = tf_bn_ops.keras.BatchNormalization
"""


@pytest.mark.long
def test_keras_tests_of_the_layer(tmp_path):
    """Promise: Keras' own tests of the layer pass on this library's."""
    spec = importlib.util.find_spec("keras.src.layers.normalization.batch_normalization_test")
    if spec is None or spec.origin is None:
        pytest.skip("this Keras ships no tests")
    (tmp_path / "on_the_layer.py").write_text(ON_THE_LAYER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "on_the_layer", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, f"--rootdir={tmp_path}", spec.origin]
    told = run(command, tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{suites.ROOT}")
    assert told.returncode == 0, told.stdout[-5000:] + told.stderr[-5000:]
    assert int(re.findall(r"(\d+) passed", told.stdout)[0]) > 10


@pytest.mark.long
def test_a_tenth_of_keras_tests():
    """Promise: Keras' own tests that pass without the switch pass with it."""
    files = suites.tenth(datetime.date.today().toordinal())
    row = suites.compared(files, limit=900)
    assert row["passed"] > 10 and not suites.faults(row), row


@pytest.mark.long
def test_a_test_that_passes_without_the_switch_alone_is_a_fault(tmp_path):
    (tmp_path / "some_test.py").write_text(
        "import keras, pytest\n"
        "CALL = keras.layers.BatchNormalization.call\n"
        "def test_always(): pass\n"
        "def test_never(): assert 0\n"
        "def test_skipped(): pytest.skip('reason')\n"
        "def test_without(): assert not hasattr(CALL, 'tf_bn_ops_replaces')\n"
    )
    (tmp_path / "more_test.py").write_text("import no_such_package\n")
    row = suites.compared([tmp_path / "some_test.py", tmp_path / "more_test.py"], limit=600)
    assert [name.partition("::")[2] for name in suites.faults(row)] == ["test_without"]
    assert (row["passed"], row["failed"], row["skipped"], row["uncollected"]) == (2, 1, 1, 1)
    assert row["passed with"] == 1
