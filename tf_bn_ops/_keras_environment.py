"""TF_BN_OPS_KERAS=1: the switch for Keras programs that do not import this package.

Apart from tf_bn_ops.keras, because that imports Keras and TensorFlow.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys

from tf_bn_ops._after_import import call_after_import, requested
from tf_bn_ops._override import OVERRIDE_VARIABLE

KERAS_VARIABLE = "TF_BN_OPS_KERAS"

# Whose import has ended. TensorFlow and Keras import each other: the outer import has to end too,
# and TensorFlow ignores an ImportError of Keras.
_imported: set[str] = set()


def follow_environment() -> None:
    """Calls tf_bn_ops.keras.enable() as soon as Keras is imported, if TF_BN_OPS_KERAS says so."""
    if requested(KERAS_VARIABLE):
        for package in ("tensorflow", "keras"):
            call_after_import(package, functools.partial(_after, package))
        if not requested(OVERRIDE_VARIABLE):
            call_after_import("tf_keras", _warn_of_tf_keras)


def _after(package: str) -> None:
    _imported.add(package)
    if "keras" not in _imported or ("tensorflow" in sys.modules and "tensorflow" not in _imported):
        return
    import keras

    # Processes inherit the variable, so it may meet a program that has no use for it.
    if keras.backend.backend() != "tensorflow":
        logging.getLogger("tf_bn_ops").warning(
            "%s does nothing here: Keras runs on the backend %s",
            KERAS_VARIABLE,
            keras.backend.backend(),
        )
        return
    importlib.import_module("tf_bn_ops.keras")  # whose last line enables


def _warn_of_tf_keras() -> None:
    logging.getLogger("tf_bn_ops").warning(
        "%s does nothing for tf_keras: its layers call TensorFlow's fused ops, which %s=1 puts on "
        "this library's kernels",
        KERAS_VARIABLE,
        OVERRIDE_VARIABLE,
    )
