"""Renames TensorFlow's batch-norm ops, forward and gradient, to this library's, and back; fuses
them with what is around them.

    shim = tf_bn_ops.rewrite.to_shim(graph_def)
    builtin = tf_bn_ops.rewrite.to_builtin(shim)     # equals graph_def
    fused = tf_bn_ops.rewrite.fuse(graph_def)        # back by unfuse, or to_builtin

The OpDefs are equal, so a node changes its op and nothing else: names, inputs, attrs, control
edges, devices, and with them checkpoints and signatures stay as they were. (Only who reads what
a frozen op of TensorFlow does not write reads something else, see `to_builtin`.)

FusedBatchNormEx, on which the Keras layer trains, becomes several nodes on the way to TensorFlow's
ops. BatchNormTrainingBackprop, FusedBatchNormGradGrad and the parts of synchronised batch
normalization have no counterpart in TensorFlow: a graph that holds one is refused.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tf_bn_ops.rewrite import _expand, _fuse, _graph
from tf_bn_ops.rewrite._fuse import Fusion
from tf_bn_ops.spec import OPS, of_formula
from tf_bn_ops.spec.ops import BATCH_NORM_GRAD

if TYPE_CHECKING:
    from tf_bn_ops.rewrite._files import Transform

__all__ = ["fuse", "fusion_report", "to_builtin", "to_shim", "unfuse"]


def __dir__() -> list[str]:
    return sorted(__all__)


_TO_SHIM = {op.builtin: op.registered_name for op in OPS.values() if op.builtin is not None}
_GRADIENTS = {op.builtin for op in of_formula(BATCH_NORM_GRAD)}
_GRADIENTS_TO_SHIM = {name: shim for name, shim in _TO_SHIM.items() if name in _GRADIENTS}
_UNFUSED = dict.fromkeys(_expand.EXPANDED_OPS, _graph.EXPANDED_TO_OWN)
_TO_BUILTIN = {shim: builtin for builtin, shim in _TO_SHIM.items()} | dict.fromkeys(
    _expand.EXPANDED_OPS, _graph.EXPANDED
)


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
    names = _GRADIENTS_TO_SHIM if gradients_only else _TO_SHIM
    return _rewrite(graph, output, functools.partial(_graph.renamed, names=names))


def to_builtin(graph: Any, output: str | os.PathLike[str] | None = None) -> Any:
    """Renames this library's twins of TensorFlow's ops to TensorFlow's: the inverse of `to_shim`.

    FusedBatchNormEx and FusedBatchNormGradEx have no twins that run on a CPU. They become
    FusedBatchNormV3, AddV2 and Relu or Relu6, ReluGrad or Relu6Grad and FusedBatchNormGradV3, as
    far as they have a side input and an activation; where the running variance is the biased one,
    as Keras', arithmetic takes Bessel's correction out of FusedBatchNormV3's.

    A frozen op of TensorFlow leaves the statistics that it saves for the gradient unwritten, where
    this library's saves the given ones: what reads them, such as the gradient, is given these.

    The result needs no tf_bn_ops to load; for gradients with fixed statistics, channels first,
    TensorFlow has kernels on GPUs alone. Same arguments, result and errors as `to_shim`.

    Raises:
      ValueError: also where a node has no counterpart in TensorFlow: of gradients of gradients,
        BatchNormTrainingBackprop, or synchronised batch normalization.
    """
    return _rewrite(graph, output, functools.partial(_graph.to_builtin, names=_TO_BUILTIN))


def fuse(
    graph: Any, output: str | os.PathLike[str] | None = None, *, keep: Iterable[str] = ()
) -> Any:
    """Fuses batch normalization with the addition and the activation behind it, both ways.

    FusedBatchNorm (V1 to V3, TensorFlow's or this library's), Add or AddV2, and Relu or Relu6
    become FusedBatchNormEx, with the name of the activation; ReluGrad or Relu6Grad and
    FusedBatchNormGrad become FusedBatchNormGradEx, with the name of the latter. Both are for CPUs.

    A place stays as it is where an intermediate is read by others, fetched or kept, where a control
    edge would be lost, on other devices, of types that the ops lack, and where the two inputs of an
    addition are not known to have the same shape. `fusion_report` has the reasons; they are also
    logged, to the logger "tf_bn_ops". Functions that XLA compiles are left alone.

    Args:
      graph: as in `to_shim`.
      output: as in `to_shim`.
      keep: names of nodes that must stay, in addition to those that the message says are fetched: a
        MetaGraphDef has signatures and collections, a GraphDef says nothing.

    Returns:
      As `to_shim`; with a path, how many places were fused.

    Raises:
      As `to_shim`; the op library is needed for any graph. ValueError: TensorFlow does not know an
        op of a function that holds batch normalization, or no node has a name in `keep`.
    """
    result, fusions = _fused(graph, output, keep)
    _fuse.log(fusions)
    return result


def _fused(graph: Any, output: Any, keep: Iterable[str]) -> tuple[Any, list[Fusion]]:
    fusions: list[Fusion] = []
    transform = functools.partial(_fuse.fused, keep=keep, report=fusions)
    return _rewrite(graph, output, transform), fusions


def fusion_report(graph: Any, *, keep: Iterable[str] = ()) -> list[Fusion]:
    """What `fuse` does with each place where it finds its pattern, and why it leaves one.

    Args:
      graph: a message or a concrete function as in `to_shim`, or the path of one.
      keep: as in `fuse`.

    Raises:
      As `fuse`.
    """
    from tf_bn_ops.rewrite import _files, _functions

    if isinstance(graph, (str, os.PathLike)):
        graph = _files.read(os.fspath(graph))
    elif not _graph.is_message(graph):
        graph = _functions.library_of(graph)
    fusions: list[Fusion] = []
    _fuse.fused(graph, keep=keep, report=fusions)
    return fusions


def unfuse(graph: Any, output: str | os.PathLike[str] | None = None) -> Any:
    """The way back from `fuse`: addition, activation and their gradients are nodes again.

    Batch normalization becomes this library's FusedBatchNormV3 and FusedBatchNormGradV3, with
    the same results as the fused ops, also where `fuse` found TensorFlow's; FusedBatchNormEx
    without activation where its running variance is the biased one. `to_builtin` goes on to
    TensorFlow's ops. A node that `fuse` removed gets a new name.

    Same arguments, result and errors as `to_shim`; no other node is touched.
    """
    from tf_bn_ops import _loader

    _loader.load()  # A SavedModel lists the OpDefs that it uses.
    return _rewrite(graph, output, functools.partial(_graph.renamed, names=_UNFUSED))


def _rewrite(graph: Any, output: Any, transform: Transform) -> Any:
    if isinstance(graph, (str, os.PathLike)):
        if output is None:
            raise TypeError("give the path to write to as the second argument")
        from tf_bn_ops.rewrite import _files

        return _files.rewrite(os.fspath(graph), os.fspath(output), transform)
    if output is not None:
        raise TypeError(
            f"a second argument goes with a path only, not with a {type(graph).__name__}: the "
            "result is returned"
        )
    if _graph.is_message(graph):
        return transform(graph)[0]
    from tf_bn_ops.rewrite import _functions

    return _functions.rewrite(graph, transform)
