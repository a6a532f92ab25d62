"""The graph optimizer that fuses batch normalization with what follows it, in this process.

Loading libtf_bn_ops_optimizer.so registers the optimizer under the name TfBnOpsFusion and changes
nothing; `enable(fuse=True)` has TensorFlow run it.
"""

from __future__ import annotations

import ctypes
import functools

from tf_bn_ops import _calls, _loader, _report


def set_enabled(enabled: bool) -> bool:
    """Has TensorFlow run it, or no more, on graphs that have not run yet; False where another
    plug-in has the one place that TensorFlow has for an optimizer on CPUs.

    It sees a graph after TensorFlow's own optimizers, with functions inlined, branches and loops
    lowered, and shapes of the optimized graph, so that more of them are known.
    """
    status = library().tfbn_enable_graph_fusion(int(enabled))
    if status > 1:
        raise MemoryError("no memory is left to register a graph optimizer")
    return bool(status == 0)


@functools.cache
def library() -> ctypes.CDLL:
    """The C ABI of the library, cc/optimizer/optimizer_c.h, loaded after the ops.

    Raises:
      LibraryError: (an ImportError) it, or the op library, is missing or does not fit.
    """
    _calls.load()
    path = _loader.installation().path(_loader.OPTIMIZER_LIBRARY)
    _loader.load_kernels(path)
    result = ctypes.CDLL(path)
    result.tfbn_fuse_graph.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p,
    ]  # fmt: skip
    result.tfbn_free.argtypes = [ctypes.c_void_p]
    result.tfbn_free.restype = None
    result.tfbn_enable_graph_fusion.argtypes = [ctypes.c_int]
    return result


def fused_so_far() -> int:
    """How many places the graph optimizer has fused in this process."""
    return sum(
        int(number) for *_, refusal, _, number, _, _ in _report.records("fusion") if not refusal
    )
