"""Renames TensorFlow's batch-norm ops, forward and gradient, to this library's, and back.

    shim = tf_bn_ops.rewrite.to_shim(graph_def)
    builtin = tf_bn_ops.rewrite.to_builtin(shim)     # equals graph_def

The OpDefs are equal, so a node changes its op and nothing else: names, inputs, attrs, control
edges, devices, and with them checkpoints and signatures stay as they were.

FusedBatchNormEx, on which the Keras layer trains, becomes several nodes on the way to TensorFlow's
ops. BatchNormTrainingBackprop and FusedBatchNormGradGrad have no counterpart in TensorFlow and are
left alone: a graph that was made by differentiating this library's ops keeps needing the library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tf_bn_ops.rewrite import _expand, _graph
from tf_bn_ops.spec import BATCH_NORM_GRAD, OPS, of_formula

__all__ = ["to_builtin", "to_shim"]


def __dir__() -> list[str]:
    return sorted(__all__)


_TO_SHIM = {op.builtin: op.registered_name for op in OPS.values() if op.builtin is not None}
_GRADIENTS = {op.builtin for op in of_formula(BATCH_NORM_GRAD)}
_GRADIENTS_TO_SHIM = {name: shim for name, shim in _TO_SHIM.items() if name in _GRADIENTS}
_TO_BUILTIN = {shim: builtin for builtin, shim in _TO_SHIM.items()} | {_expand.OP: _graph.EXPANDED}


def to_shim(
    graph: Any, output: str | os.PathLike[str] | None = None, *, gradients_only: bool = False
) -> Any:
    """Renames TensorFlow's FusedBatchNorm and FusedBatchNormGrad, V1 to V3, to this library's ops.

    Args:
      graph: one of
        - a GraphDef, MetaGraphDef, SavedModel, FunctionDefLibrary or FunctionDef message; functions
          in the library are renamed in as well;
        - a concrete function of `tf.function`: it keeps its signature, variables and captures;
        - the path of a SavedModel folder, of a file that holds a GraphDef (binary, or text if it
          ends in .pbtxt), or of the .meta file of a checkpoint, which holds a MetaGraphDef.
      output: with a path, where to write the result: a folder or file that does not exist yet.
      gradients_only: True to leave the forward ops as they are, so that a graph that only infers
        goes on needing nothing of this library.

    Returns:
      A new message or concrete function; `graph` is left as it is. With a path: how many nodes were
      renamed. A SavedModel with the renamed ops loads where `tf_bn_ops.load()` was called before.

    Raises:
      TypeError: `graph` is none of these, or `output` does not go with it.
      OSError, ValueError: a path that does not exist, holds no graph, or would be overwritten.
      LibraryError: (an ImportError) a concrete function needs the op library, and it is missing.
    """
    return _rewrite(graph, output, _GRADIENTS_TO_SHIM if gradients_only else _TO_SHIM)


def to_builtin(graph: Any, output: str | os.PathLike[str] | None = None) -> Any:
    """Renames this library's twins of TensorFlow's ops to TensorFlow's: the inverse of `to_shim`.

    FusedBatchNormEx has no twin that runs on a CPU. It becomes FusedBatchNormV3, AddV2 and Relu or
    Relu6, as far as it has a side input and an activation; where the running variance is the biased
    one, as Keras', arithmetic takes Bessel's correction out of that of FusedBatchNormV3.

    The result needs no tf_bn_ops to load, unless it holds ops that TensorFlow lacks (gradients of
    gradients, or BatchNormTrainingBackprop). Arguments, result and errors are those of `to_shim`.
    """
    return _rewrite(graph, output, _TO_BUILTIN)


def _rewrite(graph: Any, output: Any, names: Mapping[str, str]) -> Any:
    if isinstance(graph, (str, os.PathLike)):
        if output is None:
            raise TypeError("give the path to write to as the second argument")
        from tf_bn_ops.rewrite import _files

        return _files.rewrite(os.fspath(graph), os.fspath(output), names)
    if output is not None:
        raise TypeError(
            f"a second argument goes with a path only, not with a {type(graph).__name__}: the "
            "result is returned"
        )
    if _graph.is_message(graph):
        return _graph.renamed(graph, names)[0]
    from tf_bn_ops.rewrite import _functions

    return _functions.rewrite(graph, names)
