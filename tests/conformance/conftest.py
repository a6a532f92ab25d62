"""What tests below this folder share; pytest makes the helpers here importable for them."""

from __future__ import annotations

import pathlib

import pytest
from build_helpers import build_op_library

from tf_bn_ops.conformance.reports import terminal


@pytest.fixture(scope="session")
def library() -> pathlib.Path:
    """Ops and a device of another library."""
    return build_op_library(pathlib.Path(__file__).resolve().parent / "third_party" / "vendor.cc")


@pytest.fixture(autouse=True)
def _silent(monkeypatch):
    """Runs here say nothing on stderr of how far they are, however slow the machine is."""
    monkeypatch.setattr(terminal, "HEARTBEAT", 3600.0)
