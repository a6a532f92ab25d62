"""TF_BN_OPS_KERAS=1: the switch for Keras programs that do not import this package.

Apart from tf_bn_ops.keras, because that imports Keras and TensorFlow.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

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
        _logger().warning(
            "%s does nothing here: Keras runs on the backend %s",
            KERAS_VARIABLE,
            keras.backend.backend(),
        )
        return
    try:
        importlib.import_module("tf_bn_ops.keras")  # whose last line enables
    except BaseException:
        # Python takes back the package whose import ends here. The other one would stay, and the
        # modules of Keras' API, which `from keras.layers import ...` finds without it.
        for name in list(sys.modules):
            if name == "tensorflow" or (
                name.split(".")[0] == "keras" and name.split(".")[1:2] != ["src"]
            ):
                del sys.modules[name]
        raise


def _logger() -> Any:
    import logging  # Not above: the start-up hook imports this module in every Python process.

    return logging.getLogger("tf_bn_ops")


def _warn_of_tf_keras() -> None:
    _logger().warning(
        "%s does nothing for tf_keras: its layers call TensorFlow's fused ops, which %s=1 puts on "
        "this library's kernels",
        KERAS_VARIABLE,
        OVERRIDE_VARIABLE,
    )
