"""Calls of the wrappers that TensorFlow generates, for the bindings."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from tf_bn_ops import _loader
from tf_bn_ops._arguments import checked_epsilon


@functools.cache
def load() -> ModuleType:
    """Loads the op library and registers the gradients of its ops, once per process.

    The functions of this package do it on their first call. Call it yourself before importing a
    graph or SavedModel that holds the ops.

    Returns:
      The module of generated wrappers, as `tf.load_op_library` returns it.

    Raises:
      LibraryError: (an ImportError) if the library is missing or was built for another TensorFlow.
    """
    module = _loader.load()
    from tf_bn_ops import _gradients  # It imports TensorFlow.

    _gradients.register()
    return module


def library_path() -> str:
    """Path of the op library, for a bare `tf.load_op_library`; `load` does more, see there.

    Where TensorFlow has been imported, the gradients of the ops, which are Python functions, are
    registered, as `load` does.

    Returns:
      The absolute path of libtf_bn_ops.so: the package's own, or the one that the environment
      variable TF_BN_OPS_LIBRARY names (a file, or a folder that holds it).

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    path = _loader.library_path()
    if hasattr(sys.modules.get("tensorflow"), "RegisterGradient"):
        from tf_bn_ops import _gradients

        _gradients.register()
    return path


def with_epsilon_tensor(wrapper: str, inputs: list[Any], epsilon: Any, name: str | None) -> Any:
    """Calls an op whose epsilon is a tensor of type float64, which a `float` attr would round."""
    import tensorflow as tf

    epsilon = checked_epsilon(epsilon, wrapper)
    if not tf.executing_eagerly():
        return _node(wrapper, inputs, epsilon, name)
    first = tf.convert_to_tensor(inputs[0])
    rest = [tf.convert_to_tensor(tensor, first.dtype) for tensor in inputs[1:]]
    return _one_node_function(wrapper, len(inputs), epsilon, first.dtype)(first, *rest)


def _node(wrapper: str, inputs: Any, epsilon: float, name: str | None) -> Any:
    """Adds the op to the current graph."""
    import tensorflow as tf

    tensor = tf.make_tensor_proto(epsilon, dtype=tf.float64, shape=[])
    return getattr(load(), f"tf_bn_ops_{wrapper}")(*inputs, tensor, name)


@functools.lru_cache(maxsize=64)
def _one_node_function(wrapper: str, inputs: int, epsilon: float, dtype: Any) -> Any:
    """The op as a function: eager execution knows no tensor attrs."""
    import tensorflow as tf

    def call(*tensors: Any) -> Any:
        return _node(wrapper, tensors, epsilon, None)

    call.__name__ = wrapper
    signature = [tf.TensorSpec(None, dtype)] * inputs
    # Its graph, so that it stays one under tf.config.run_functions_eagerly(True).
    return tf.function(call, signature, autograph=False).get_concrete_function()
