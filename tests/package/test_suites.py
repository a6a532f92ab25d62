"""Others' tests on the switch, of tools/suites.py: a tenth of Keras' own each day in turn."""

from __future__ import annotations

import datetime

import pytest
from build_helpers import tool

suites = tool("suites")


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
