"""Which TensorFlow is installed, told without importing it."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
import sys

_METADATA = re.compile(r"(?:tensorflow|tf)[^-]*-([^-]+)\.dist-info", re.IGNORECASE)


def tensorflow_version() -> str | None:
    """The version of TensorFlow here; None where there is none, or nothing tells it."""
    loaded = getattr(sys.modules.get("tensorflow"), "__version__", None)
    return str(loaded) if loaded else _of_metadata() or _of_import()


@functools.cache
def _of_metadata() -> str | None:
    """By the distribution that owns the package: tensorflow, tensorflow-cpu, or one of a vendor."""
    try:
        spec = importlib.util.find_spec("tensorflow")
    except ValueError:  # A stand-in without a spec.
        return None
    if spec is None or not spec.origin:
        return None
    for folder in sorted(pathlib.Path(spec.origin).parent.parent.glob("*.dist-info")):
        found = _METADATA.fullmatch(folder.name)
        try:
            if found and "tensorflow/__init__.py," in (folder / "RECORD").read_text("utf-8"):
                return found[1]
        except OSError:
            continue
    return None


def _of_import() -> str | None:
    """For a TensorFlow that no installer has put there."""
    try:
        import tensorflow as tf
    except ImportError:
        return None
    return str(getattr(tf, "__version__", "")) or None
