"""Fixtures shared by all tests; kept small, anything larger belongs to the test that needs it."""

import os
import pathlib

import pytest

# Before any test module imports TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The built-in that tests compare with is the documented one, not oneDNN's variant of it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


@pytest.fixture(scope="session")
def repo_root() -> pathlib.Path:
    """The folder of the checkout that these tests belong to."""
    return pathlib.Path(__file__).resolve().parent.parent
