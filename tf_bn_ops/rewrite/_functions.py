"""Rewriting concrete functions, by the way that TensorFlow takes to load them from a SavedModel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_bn_ops import _ops
from tf_bn_ops.rewrite import _graph


def rewrite(function: Any, names: Mapping[str, str]) -> Any:
    """A concrete function with ops renamed; signature, captures and variables are those of
    `function`.

    Raises:
      TypeError: `function` is no concrete function.
    """
    from tensorflow.core.framework import function_pb2
    from tensorflow.core.function.capture import restore_captures
    from tensorflow.core.function.polymorphism import function_type as function_types
    from tensorflow.core.protobuf import saved_object_graph_pb2
    from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
    from tensorflow.python.saved_model import function_deserialization, function_serialization

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
    _ops.load()

    library = function_pb2.FunctionDefLibrary()
    library.CopyFrom(function.graph.as_graph_def().library)
    top = library.function.add()
    top.CopyFrom(function.function_def)
    library, _ = _graph.renamed(library, names)

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


class _Anything(dict):
    """Node ids of captures: any will do, the captures are restored from the objects themselves."""

    def __missing__(self, key: Any) -> int:
        return 0

    def __getitem__(self, key: Any) -> int:
        return 0
