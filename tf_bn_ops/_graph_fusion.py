"""The graph optimizer that fuses batch normalization with what follows it, in this process.

Loading libtf_bn_ops_optimizer.so registers the optimizer under the name TfBnOpsFusion and changes
nothing; `fuse_graphs` has TensorFlow run it.
"""

from __future__ import annotations

import ctypes
import functools

from tf_bn_ops import _loader, _ops


def fuse_graphs(enabled: bool = True) -> None:
    """Fuses batch normalization with the addition and the activation behind it in every graph.

    From then on, in this process, whenever TensorFlow optimizes a graph: a `tf.function` before its
    first call, a `tf.compat.v1.Session`, below Keras and tapes. What `rewrite.fuse` says about
    patterns and refusals holds, with these differences: the optimizer sees the graph after
    TensorFlow's own optimizers, with functions inlined and branches and loops lowered; and shapes
    are those of the optimized graph, so that more of them are known.

    Graphs that have run stay as they are: call it before the first training step. Programs that XLA
    compiles (`jit_compile=True`) and eager calls are not optimized.
    With `tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": False})` TensorFlow
    skips it. TF_CPP_VMODULE=graph_optimizer=1 logs what is fused and refused.

    Args:
      enabled: False to stop it, for graphs that have not run yet.

    Raises:
      LibraryError: (an ImportError) a library is missing, or does not fit this TensorFlow.
      RuntimeError: another plug-in has the one place that TensorFlow has for an optimizer on CPUs.
    """
    status = library().tfbn_enable_graph_fusion(int(enabled))
    if status > 1:
        raise MemoryError("no memory is left to register a graph optimizer")
    if status == 1:
        raise RuntimeError(
            "another plug-in has registered a graph optimizer for CPUs, and TensorFlow takes one: "
            "rewrite graphs with tf_bn_ops.rewrite.fuse instead"
        )


@functools.cache
def library() -> ctypes.CDLL:
    """The C ABI of the library, cc/optimizer/optimizer_c.h, loaded after the ops.

    Raises:
      LibraryError: (an ImportError) it, or the op library, is missing or does not fit.
    """
    _ops.load()
    path = _loader.optimizer_library_path()
    _loader.load_kernels(path)
    result = ctypes.CDLL(path)
    result.tfbn_fuse_graph.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p,
    ]  # fmt: skip
    result.tfbn_free.argtypes = [ctypes.c_void_p]
    result.tfbn_free.restype = None
    result.tfbn_enable_graph_fusion.argtypes = [ctypes.c_int]
    result.tfbn_graph_fusions.restype = ctypes.c_int64
    return result


def fused_so_far() -> int:
    """How many places the graph optimizer has fused in this process."""
    return int(library().tfbn_graph_fusions())
