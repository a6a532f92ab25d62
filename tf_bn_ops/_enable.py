"""The switch: programs as they are, on this library's kernels, layers and fusion.

Of the kernels that are registered for an op, the one of the highest priority runs; loading
libtf_bn_ops_override.so registers ours with a higher one. Nothing else loads that library.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

from tf_bn_ops import _loader, _report, _version

# Minor versions whose op names, kernel labels and priorities were verified.
_KNOWN_TENSORFLOW = tuple(_version.TENSORFLOWS)

_OPS = (
    *(f"FusedBatchNorm{gradient}{v}" for gradient in ("", "Grad") for v in ("", "V2", "V3")),
    # What TensorFlow's graph optimizer makes of a forward op and the Relu behind it, with oneDNN.
    "_FusedBatchNormEx",
)
# Its gradient, which TensorFlow has no kernel for on a CPU.
_ADDED_OPS = ("_FusedBatchNormGradEx",)
# TensorFlow renames the ops to these where oneDNN is on.
_ONEDNN_OPS = tuple("_MklNative" + op.removeprefix("_") for op in _OPS)

# The last line that said what is on.
_said = ""


def log_refusal(sentence: str) -> None:
    _logger().warning("%s", sentence)
    _report.stay("", sentence, "requests")


def _logger() -> logging.Logger:
    """Not before it is used: logging.config disables loggers that it finds."""
    return logging.getLogger("tf_bn_ops")


class Kernel(NamedTuple):
    """A kernel of TensorFlow that is replaced in this process, or added for an op without one.

    Attributes:
      op: the name of the op; "_MklNative..." is what TensorFlow renames it to where oneDNN is on.
      device: "CPU".
      dtype: element type of x, by its name in TensorFlow.
    """

    op: str
    device: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class Enabled:
    """What is on of all that a call of `enable` asked for, by this call or an earlier one.

    Attributes:
      kernels: TensorFlow's kernels that this library's run in the place of, by op and type.
      keras: whether keras.layers.BatchNormalization computes on the fused ops.
      fuse: whether the graphs that TensorFlow optimizes are fused.
      refusals: a sentence for each thing that was asked for and is not possible here.
    """

    kernels: tuple[Kernel, ...] = ()
    keras: bool = False
    fuse: bool = False
    refusals: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A line of what is on, and one for each refusal."""
        return "\n".join([", ".join(self._parts()) or "nothing is replaced", *self.refusals])

    def _parts(self) -> list[str]:
        return [
            *([f"{len(self.kernels)} kernels"] if self.kernels else []),
            *(["Keras layers"] if self.keras else []),
            *(["fusion"] if self.fuse else []),
        ]


class Refusal(Exception):
    """What cannot be replaced here, and what to do, in one sentence."""


def enable(*, kernels: bool = True, keras: bool = True, fuse: bool = True) -> Enabled:
    """Puts the batch normalization of a program as it is on this library, in this process.

    It may be called at any time, and again. False leaves a thing as it is:

    - `kernels`: TensorFlow's FusedBatchNorm and FusedBatchNormGrad, V1 to V3, run on this library's
      CPU kernels, and so do _FusedBatchNormEx and its gradient, to which TensorFlow's graph
      optimizer fuses them with a Relu. Eager calls and functions that have run take them at their
      next call, a `tf.compat.v1.Session` that has run the ops keeps its own, and so do programs of
      XLA (`jit_compile=True`). It cannot be undone.
    - `keras`: every `keras.layers.BatchNormalization`, made before or after, computes as
      `tf_bn_ops.keras.BatchNormalization` does; classes, names, configs and weights stay Keras', so
      that what the program saves loads without this library. Functions that TensorFlow has traced
      stay until `model.compile` is called again. `tf_bn_ops.keras.disable()` undoes it.
    - `fuse`: every graph that TensorFlow optimizes from now on has batch normalization fused with
      the addition and the activation behind it, as `rewrite.fuse` does. Graphs that have run stay;
      programs of XLA and eager calls are not optimized. It stays on; a session whose config has
      use_plugin_optimizers off, or `tf.config.optimizer.set_experimental_options(
      {"use_plugin_optimizers": False})`, skips it.

    From then on calls are recorded: `report()` says what ran, what was fused and what was not.

    The environment variable TF_BN_OPS=1, or a list such as TF_BN_OPS=kernels,keras, does the same
    for programs that cannot be edited, see docs/dropin.md.

    A line of the logger "tf_bn_ops" at INFO says what is on.

    Returns:
      What of it is in place. What is not possible here, on a TensorFlow on which replacing its
      kernels has not been verified, with another backend of Keras, beside another plug-in that
      optimizes graphs, is a sentence in `refusals` and a warning of the logger "tf_bn_ops".

    Raises:
      LibraryError: (an ImportError) a library is missing, does not fit this TensorFlow, or has not
        the instruction set that TF_BN_OPS_CPU_ISA names.
    """
    enabled = put_in_place(kernels, keras, fuse)
    say(enabled)
    return enabled


def put_in_place(kernels: bool, keras: bool, fuse: bool) -> Enabled:
    """Does what `enable` does, but logs nothing. Threads may call it, and imports that another call
    of it has begun: each step may be done twice."""
    refusals = []

    def tried(is_wanted: bool, replace: Callable[[], object]) -> bool:
        try:
            if is_wanted:
                replace()
            return is_wanted
        except Refusal as refusal:
            refusals.append(str(refusal))
            return False

    replaced = tried(kernels, _replaced_kernels)
    enabled = Enabled(
        kernels=_replaced_kernels() if replaced else (),
        keras=tried(keras, _enable_keras),
        fuse=tried(fuse, _enable_fusion),
        refusals=tuple(refusals),
    )
    if enabled.kernels or enabled.keras or enabled.fuse:
        _selected()  # Refused here, and not by the first training step.
    _report.record()
    return enabled


def _selected() -> str | None:
    """The instruction set that ops run on."""
    from tf_bn_ops.harness import c_abi

    return c_abi.selected()


def say(enabled: Enabled, is_last: bool = True) -> str:
    """Logs refusals, and the line that says what is on; returns it if it is the last one of several
    calls, something is on, and it was not said before."""
    global _said
    for refusal in enabled.refusals:
        log_refusal(refusal)
    parts = enabled._parts()
    if not parts or not is_last:
        return ""
    import tensorflow as tf

    version, on = _loader.installation().version, f"TensorFlow {tf.__version__}"
    line = f"tf_bn_ops {version} on {on} ({_selected()}): {', '.join(parts)}"
    if line == _said:
        return ""
    _said = line
    _logger().info("%s", line)
    return line


_WITHOUT_KERAS = "or leave its layers out: tf_bn_ops.enable(keras=False), or TF_BN_OPS=kernels,fuse"


def _enable_keras() -> None:
    # Before any module of tf_bn_ops.keras: where another thread is at the end of this import, it
    # waits for nothing that this one has begun.
    try:
        import keras
    except _loader.LibraryError:  # Of what TF_BN_OPS asks for at the end of this import.
        raise
    except Exception as error:  # Also of its backend, which may be missing or unknown.
        raise Refusal(
            f"Keras 3 cannot be imported ({_loader.one_line(error)}): install it with 'pip install "
            f"keras', {_WITHOUT_KERAS}"
        ) from error
    try:
        _loader.check_keras(keras)
    except _loader.LibraryError as error:
        raise Refusal(f"{error}, {_WITHOUT_KERAS}") from None
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise Refusal(
            f"the layers of Keras stay as they are, because it runs on the backend {backend}: set "
            f"KERAS_BACKEND=tensorflow, {_WITHOUT_KERAS}"
        )
    _loader.load()  # What is missing is reported here, and not by the first training step.
    from tf_bn_ops.keras import _switch

    _switch.enable()


def _enable_fusion() -> None:
    if not set_fusion(True):
        raise Refusal(
            "graphs are not fused, because another plug-in has registered a graph optimizer for "
            "CPUs, and TensorFlow takes one: rewrite graphs with tf_bn_ops.rewrite.fuse instead"
        )


def set_fusion(enabled: bool) -> bool:
    """Has TensorFlow run the graph optimizer, or no more, on graphs that have not run yet; False
    where another plug-in has the one place that TensorFlow has for an optimizer on CPUs.

    It sees a graph after TensorFlow's own optimizers, with functions inlined, branches and loops
    lowered, and shapes of the optimized graph, so that more of them are known.
    """
    status = _loader.optimizer().tfbn_enable_graph_fusion(int(enabled))
    if status > 1:
        raise MemoryError("no memory is left to register a graph optimizer")
    return bool(status == 0)


def fused_so_far() -> int:
    """How many places the graph optimizer has fused in this process."""
    return sum(
        int(number) for *_, refusal, _, number, _, _ in _report.records("fusion") if not refusal
    )


# ---- TensorFlow's kernels ------------------------------------------------------------------------


def check_known(version: str) -> None:
    """Refuses a TensorFlow on which replacing its kernels has not been verified."""
    if _loader.minor(version) not in _KNOWN_TENSORFLOW:
        raise Refusal(
            f"the kernels of TensorFlow {version} cannot be replaced: known are those of "
            f"TensorFlow {', '.join(_KNOWN_TENSORFLOW)}; call the ops of tf_bn_ops by their names "
            "instead, or rewrite graphs with tf_bn_ops.rewrite"
        )


@functools.cache
def _replaced_kernels() -> tuple[Kernel, ...]:
    """Replaces them; those that were replaced or added, in the order of ops and types."""
    path = _loader.installation().path(_loader.OVERRIDE_LIBRARY)
    import tensorflow as tf
    from tensorflow.python.eager import context

    check_known(tf.__version__)
    _loader.load_kernels(path)
    # It caches the kernels of eager calls and functions that have run.
    context.context().clear_kernel_cache()
    theirs = _registered(priority=0)
    replaced = tuple(
        kernel
        for kernel in sorted(_registered(priority=1), key=lambda k: (k.op.startswith("_"), k))
        if kernel in theirs or kernel.op in _ADDED_OPS
    )
    if not {kernel.op for kernel in replaced} >= {*_OPS, *_ADDED_OPS}:
        raise _loader.LibraryError(
            f"{path} was loaded, but TensorFlow {tf.__version__} does not list its kernels: "
            "rebuild it with 'make'"
        )
    return replaced


def has_kernels() -> bool:
    """Whether TensorFlow's batch norm ops run on this library's kernels."""
    return bool(_replaced_kernels.cache_info().currsize)


def _registered(priority: int) -> set[Kernel]:
    """The kernels of this priority that TensorFlow has on a CPU."""
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    return {
        Kernel(op, "CPU", tf.dtypes.as_dtype(dtype).name)
        for op in _OPS + _ADDED_OPS + _ONEDNN_OPS
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.priority == priority and kernel.device_type == "CPU"
        for constraint in kernel.constraint
        if constraint.name == "T"
        for dtype in constraint.allowed_values.list.type
    }
