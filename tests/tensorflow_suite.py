"""Runs a test file of TensorFlow on this library: its function, or its kernels.

usage: python tests/tensorflow_suite.py function|override FILE [TEST ...]

function: `nn_impl.fused_batch_norm` is this library's. override: it is TensorFlow's, on this
library's kernels.

docs/evidence.md says where the files are: TensorFlow's wheel does not ship them.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys

from tensorflow.python.framework import config
from tensorflow.python.ops import nn_impl
from tensorflow.python.platform import test

import tf_bn_ops


def main(way: str, file: str) -> None:
    """Loads the file as the main module of the tests, and runs them; exits with their status."""
    if way == "function":
        nn_impl.fused_batch_norm = tf_bn_ops.fused_batch_norm
    else:
        tf_bn_ops.enable(keras=False, fuse=False)
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    assert spec is not None and spec.loader is not None, f"{file} is no Python file"
    module = importlib.util.module_from_spec(spec)
    # unittest looks for the tests in the main module.
    sys.modules["__main__"] = sys.modules[spec.name] = module
    if "d9m" in spec.name:  # What that file does where it is the program itself.
        config.enable_op_determinism()
    spec.loader.exec_module(module)
    test.main(argv=[file, *sys.argv[3:]])


if __name__ == "__main__":
    main(*sys.argv[1:3])
