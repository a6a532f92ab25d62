"""Rewriting concrete functions, by the way that TensorFlow takes to load them from a SavedModel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_bn_ops import _loader

_SHAPES = "_output_shapes"


def rewrite(function: Any, transform: Callable[[Any], tuple[Any, int]]) -> Any:
    """A concrete function with the signature, captures and variables of `function`, whose
    FunctionDefLibrary is rewritten by `transform`.

    Args:
      transform: message -> a new one, and how many nodes were rewritten.

    Raises:
      TypeError: `function` is no concrete function.
    """
    from tensorflow.core.function.capture import restore_captures
    from tensorflow.core.function.polymorphism import function_type as function_types
    from tensorflow.core.protobuf import saved_object_graph_pb2
    from tensorflow.python.saved_model import function_deserialization, function_serialization

    original = library_of(function)
    top = original.function[-1]
    _loader.load()
    library, _ = transform(original)
    for changed in library.function:
        for attrs in (*changed.arg_attr.values(), *changed.node_def):
            attrs.attr.pop(_SHAPES, None)

    # Structure of arguments and results, which a FunctionDef does not hold.
    variables = {id(variable.handle): variable for variable in function.graph.variables}
    captures = [variables.get(id(tensor), tensor) for tensor in function.captured_inputs]
    described = saved_object_graph_pb2.SavedObjectGraph()
    described.concrete_functions[top.signature.name].CopyFrom(
        function_serialization.serialize_concrete_function(function, _Anything())
    )
    loaded = function_deserialization.load_function_def_library(library, described)
    result = loaded[top.signature.name]
    if function.function_type is not None:
        # Names, kinds and defaults of the parameters.
        result._function_type = function_types.FunctionType(
            function.function_type.parameters.values(),
            return_annotation=function.function_type.output,
        )
    # The signature of calls with names of tensors.
    result._arg_keywords = function._arg_keywords
    result._num_positional_args = function._num_positional_args
    restore_captures.restore_captures(result, captures)
    result.add_to_graph()
    return result


def library_of(function: Any) -> Any:
    """The FunctionDefLibrary of a concrete function; its own FunctionDef is the last.

    As in a SavedModel, static shapes are in attrs that begin with an underscore.

    Raises:
      TypeError: `function` is no concrete function.
    """
    from tensorflow.core.framework import function_pb2
    from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function

    if isinstance(function, polymorphic_function.Function):
        raise TypeError(
            "a tf.function has one graph per signature: call its get_concrete_function(...) and "
            "rewrite what it returns"
        )
    if not isinstance(function, concrete_function.ConcreteFunction):
        raise TypeError(
            f"cannot rewrite a {type(function).__name__}: give a GraphDef or another graph "
            "message, a concrete function, or the path of a SavedModel"
        )
    library = function_pb2.FunctionDefLibrary()
    library.CopyFrom(function.graph.as_graph_def(add_shapes=True).library)
    top = library.function.add()
    top.CopyFrom(function.function_def)
    for i, tensor in enumerate(function.graph.inputs):
        shapes = top.arg_attr[i].attr[_SHAPES].list
        del shapes.shape[:]
        shapes.shape.add().CopyFrom(tensor.shape.as_proto())
    return library


class _Anything(dict):
    """Node ids of captures: any will do, the captures are restored from the objects themselves."""

    def __getitem__(self, key: Any) -> int:
        return 0
