"""Where a run took place: the software and the machine, for its record."""

from __future__ import annotations

import hashlib
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_bn_ops import _version
from tf_bn_ops.harness import machine


def versions(facts: Mapping[str, Any]) -> dict[str, str]:
    """The field "versions"; `facts` are those of a worker."""
    return {
        "tf_bn_ops": _version.__version__,
        "tensorflow": facts["tensorflow"],
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _isa() -> str | None:
    try:
        return machine.isa()
    except (ImportError, OSError):  # Not built: a candidate from elsewhere does not need it.
        return None


def describe(facts: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the field "machines"; `facts` are those of a worker."""
    return {
        "cpu": machine.cpu_model(),
        "architecture": platform.machine(),
        "cores": machine.cores(),
        "isa": _isa(),
        "gpus": list(facts.get("gpus", ())),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def digest(library: pathlib.Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(library.read_bytes()).hexdigest()
