"""What this library did in this process, and what stayed with TensorFlow or Keras, and why.

Kernels and the graph optimizer count in cc/core/records.h, Python in `_stayed` and `_fused`. Every
reason that the package gives for leaving a place as it is becomes a `Stayed`, which has the words.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import dataclasses
import functools
import html
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tf_bn_ops import _startup
from tf_bn_ops._version import __version__

# The process whose report has the name that was asked for; those that it starts inherit it.
_FIRST_PROCESS = "TF_BN_OPS_REPORT_PID"
# As in cc/core/records.h: no more places than that, whatever a program does.
_MOST = 4096
_OTHERS = "(others)"
_TAG = "_tf_bn_ops_place"  # Of a tensor: the layer that computed it.


class Call(NamedTuple):
    """Calls of one op at one place, with x of one shape and type.

    Attributes:
      place: the path of the Keras layer, else the name of the graph's node; of an eager call
        outside of layers the name of the op.
      direction: "forward", "backward" or "second order".
      op, shape, dtype, device: "TfBnOps>FusedBatchNormEx", "8x112x112x32", "float32", "CPU", say.
      calls: how many.
      seconds: in this library's kernels, all together; 0 on GPUs, where nobody waits for them.
      bytes: of all arrays that they read or wrote, each counted once a call.
    """

    place: str
    direction: str
    op: str
    shape: str
    dtype: str
    device: str
    calls: int
    seconds: float
    bytes: int

    @property
    def bytes_per_second(self) -> float | None:
        return self.bytes / self.seconds if self.seconds else None


class Fused(NamedTuple):
    """A place, as of calls, that became one op with the nodes `partners`, in so many graphs."""

    place: str
    direction: str
    partners: str
    graphs: int = 0


class Stayed(NamedTuple):
    """A place that TensorFlow or Keras computes.

    Attributes:
      place: the path of a layer, the name of a node; "" where the reason is a whole sentence.
      direction: "forward" or "backward" of a node, else "".
      reason: behind a layer the end of a sentence about it.
      times: how often that was found.
      counted: what `times` counts: "calls"; "traces" of a function, which has run any number of
        times since; "graphs" that were optimized; or "requests" to replace it.
    """

    place: str
    direction: str
    reason: str
    times: int = 0
    counted: str = ""

    def __str__(self) -> str:
        colon = f", {self.direction}:" if self.direction else ""
        return f"{self.place}{colon} {self.reason}".lstrip()


def summary(done: str, total: int, stayed: Sequence[Stayed]) -> str:
    """ "replaced 2 of 3", and a line for each place that stayed."""
    return "\n  ".join([f"{done} {total - len(stayed)} of {total}", *map(str, stayed)])


@dataclasses.dataclass(frozen=True)
class Report:
    """What `tf_bn_ops.report()` returns; print it, or take its parts.

    Attributes:
      pid: the process.
      since, seconds: when recording began, by `time.time()`, and for how long it has gone on.
      calls: calls of this library's kernels, the longest first.
      fused: places that the graph optimizer or `rewrite.fuse` has fused.
      stayed: what stayed with TensorFlow or Keras, and why.
      notes: what the numbers leave out, in sentences.
    """

    pid: int
    since: float
    seconds: float
    calls: tuple[Call, ...]
    fused: tuple[Fused, ...]
    stayed: tuple[Stayed, ...]
    notes: tuple[str, ...]

    def _tables(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        """Titles, and rows below the names of columns."""
        number, seconds = sum(c.calls for c in self.calls), sum(c.seconds for c in self.calls)
        names = ("layer or node", *Call._fields[1:6], "calls", "ms", "GB/s")
        rows: list[tuple[str, ...]] = [(*c[:6], str(c.calls), *_times(c)) for c in self.calls]
        yield f"{number} calls of this library's kernels, {seconds * 1e3:.1f} ms", [names, *rows]
        rows = [tuple(map(str, place)) for place in self.fused]
        yield f"fused: {len(rows)}", [("layer or node", "direction", "with", "graphs"), *rows]
        rows = [(str(s.times), s.counted, str(s)) for s in self.stayed]
        yield f"stayed with TensorFlow or Keras: {len(rows)}", [("times", "", "why"), *rows]

    def _title(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"tf_bn_ops {__version__}, process {self.pid}, {self.seconds:.1f} s since {since}"

    def __str__(self) -> str:
        text = [self._title()]
        for title, rows in self._tables():
            text += ["", title]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows if len(rows) > 1 else []:
                cells = (
                    cell.rjust(width) if rows[1][i][:1].isdigit() else cell.ljust(width)
                    for i, (cell, width) in enumerate(zip(row, widths, strict=True))
                )
                text.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join([*text, "", *self.notes])

    def _repr_html_(self) -> str:
        text = f"<p>{html.escape(self._title())}</p>"
        for title, rows in self._tables():
            text += f"<p>{html.escape(title)}</p><table>"
            for row in rows if len(rows) > 1 else []:
                text += f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            text += "</table>"
        return text + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)

    def to_json(self) -> str:
        """The report as JSON: an object with the attributes' names, lists of objects in it."""
        calls = [{**c._asdict(), "bytes_per_second": c.bytes_per_second} for c in self.calls]
        fused, stayed = ([each._asdict() for each in of] for of in (self.fused, self.stayed))
        lists = {"calls": calls, "fused": fused, "stayed": stayed}
        return json.dumps({"version": __version__, **vars(self), **lists}, indent=1)


def _times(call: Call) -> tuple[str, str]:
    rate = call.bytes_per_second
    return ("-", "-") if rate is None else (f"{call.seconds * 1e3:.2f}", f"{rate / 1e9:.1f}")


# ---- Recording -----------------------------------------------------------------------------------

# Whether calls are recorded. Others read it before they take trouble for a report.
is_recording = False
_since = time.time()
_failure = ""  # Why calls of kernels are not recorded.
_lock = threading.Lock()
_stayed: collections.Counter[Stayed] = collections.Counter()
_fused: collections.Counter[Fused] = collections.Counter()
_scopes: dict[str, str] = {}  # Name scope of a graph -> the layer that was traced in it.


def record() -> None:
    """Has calls recorded from now on."""
    global is_recording, _since, _failure
    if is_recording:
        return
    is_recording, _since = True, time.time()
    try:
        _core().tfbn_record_calls(1)
    except (ImportError, OSError, AttributeError) as error:
        _failure = f"Calls of kernels are not recorded: {error}"


@functools.cache
def _core() -> ctypes.CDLL:
    """cc/core/records.h in the core library, which the libraries for TensorFlow share."""
    from tf_bn_ops import _loader

    path = _loader.core_library_path()
    _loader.check_whole(path)
    core = ctypes.CDLL(path)
    core.tfbn_records.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    core.tfbn_records.restype = ctypes.c_size_t
    core.tfbn_label_calls.argtypes = [ctypes.c_char_p]
    return core


def records(kind: str) -> Iterator[list[str]]:
    """The fields of the records of a kind, "call" or "fusion"."""
    text = ctypes.create_string_buffer(4096)
    while (size := 0 if _failure else _core().tfbn_records(text, len(text))) > len(text):
        text = ctypes.create_string_buffer(size + 4096)  # Others may add some in between.
    for line in text.raw[:size].decode("utf-8", "replace").splitlines():
        found, *fields = line.split("\t")
        if found == kind:
            yield fields


def _count(counter: collections.Counter[Any], key: Any, others: Any) -> None:
    with _lock:
        counter[key if key in counter or len(counter) < _MOST else others] += 1


def stay(place: str, reason: str, counted: str, direction: str = "") -> None:
    """Counts a place that stays with TensorFlow or Keras."""
    key = Stayed(place, direction, reason, counted=counted)
    _count(_stayed, key, key._replace(place=_OTHERS, reason="stayed for various reasons"))


def fuse(place: str, direction: str, partners: str) -> None:
    """Counts a node that `rewrite.fuse` has fused."""
    _count(_fused, Fused(place, direction, partners), Fused(_OTHERS, direction, ""))


# ---- Layers --------------------------------------------------------------------------------------


def _path(layer: Any) -> str:
    return " ".join(str(getattr(layer, "path", None) or layer.name).split())


def stay_in_keras(layer: Any, reason: str) -> None:
    """Counts a call of a layer, or the trace of one, that takes Keras' path."""
    import tensorflow as tf

    if is_recording and tf.executing_eagerly():
        stay(_path(layer), reason, "calls")
    elif is_recording:
        # Keras traces a layer in a scratch graph to know the shape of its result.
        name = str(getattr(tf.compat.v1.get_default_graph(), "name", ""))
        if not name.startswith("scratch_graph"):
            stay(_path(layer), reason, "traces")


def at_layer(layer: Any) -> contextlib.AbstractContextManager[None]:
    """Has what is called in it recorded for a layer: nodes of a graph by its name scope; eager
    calls, whose kernels have no name but the op's, by a label of the thread."""
    import tensorflow as tf

    if is_recording and tf.executing_eagerly():
        return _label(_path(layer))
    if is_recording:
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        if scope and len(_scopes) < _MOST:
            _scopes[scope] = _path(layer)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _label(place: str) -> Iterator[None]:
    if not place or _failure:
        yield
        return
    _core().tfbn_label_calls(place.encode("utf-8", "replace"))
    try:
        yield
    finally:
        _core().tfbn_label_calls(b"")


def tag(layer: Any, y: Any) -> None:
    """Has the gradient of the op that computed `y` eagerly recorded for the layer."""
    if is_recording and hasattr(y, "numpy"):
        setattr(y, _TAG, _path(layer))


def as_tagged(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient function whose calls are recorded for the layer of the forward call."""

    @functools.wraps(gradient)
    def labelled(op: Any, *grad: Any) -> Any:
        with _label(getattr(op.outputs[0], _TAG, "") if is_recording else ""):
            return gradient(op, *grad)

    return labelled


def _place_of(node: str) -> str:
    """The layer in whose scope, or in whose gradient's, a node is; else the node."""
    scopes = node.split("/")[:-1]
    for length in range(len(scopes), 0, -1):
        for first in range(len(scopes) - length + 1):
            if layer := _scopes.get("/".join(scopes[first : first + length])):
                return layer
    return node


# ---- The report ----------------------------------------------------------------------------------


def report() -> Report:
    """What this library did in this process, and what stayed with TensorFlow or Keras, and why.

    Calls are recorded from `enable()` on, or from the start with the variable TF_BN_OPS_REPORT;
    else from the first call of this function on, which finds none then. `Report.since` says when
    that was.

    Returns:
      A value with a table as text (`print`), for notebooks, and as JSON (`to_json()`).
    """
    record()
    with _lock:
        fused, stayed = _fused.copy(), _stayed.copy()
    norms = {}  # A fused forward op has the name of the last of its partners.
    for node, direction, reason, partners, number, *_ in records("fusion"):
        if reason:
            stayed[Stayed(_place_of(node), direction, reason, counted="graphs")] += int(number)
        else:
            fused[Fused(_place_of(node), direction, partners)] += int(number)
            norms[partners.split(", ")[-1] if direction == "forward" else node] = node
    totals: dict[tuple[str, str, str, str, str, str], list[int]] = {}
    for node, direction, op, dtype, device, shape, *numbers in records("call"):
        key = (_place_of(norms.get(node, node)), direction, op, shape, dtype, device)
        total = totals.setdefault(key, [0, 0, 0])
        total[:] = map(int.__add__, total, map(int, numbers))
    calls = [
        Call(*key, number, 0.0 if key[-1] == "GPU" else nanoseconds / 1e9, size)
        for key, (number, nanoseconds, size) in totals.items()
    ]
    return Report(
        os.getpid(),
        _since,
        time.time() - _since,
        tuple(sorted(calls, key=lambda call: (-call.seconds, call))),
        tuple(sorted(place._replace(graphs=number) for place, number in fused.items())),
        tuple(sorted(place._replace(times=number) for place, number in stayed.items())),
        tuple(_notes(calls)),
    )


def _notes(calls: Sequence[Call]) -> Iterator[str]:
    if _failure:
        yield _failure
    if "tensorflow" not in sys.modules:
        yield "TensorFlow was not imported in this process."
    if any(call.device == "GPU" for call in calls):
        yield "The time on a GPU is not known: its kernels run after the call."
    if any(call.place == _OTHERS for call in calls):
        yield f"Beyond {_MOST} places, shapes and types, calls are summed as {_OTHERS}."
    yield (
        "Not known: what ran on TensorFlow's own kernels; which layer or node called in a program "
        "of XLA (jit_compile), and what such a program computes without this library; what other "
        "processes did, which have their own reports."
    )


# ---- The end of the process ----------------------------------------------------------------------

_target = ""
_started = 0.0
_is_child = False
_ended = 0  # The process that has written its report.


def is_started() -> bool:
    """Whether this process prints or writes a report when it ends."""
    return bool(_target)


def start(target: str) -> None:
    """Has this process print its report to stderr when it ends (`target` is "1"), or write it as
    JSON to a file, see docs/dropin.md; recording begins when TensorFlow has been imported. A later
    call, of a command line, has another target."""
    global _target, _started, _is_child
    target = _startup.report_target(target)
    if not target:
        return
    is_first = not _target
    _target = os.environ[_startup.REPORT_VARIABLE] = target
    if not is_first:
        return
    _started = time.time()
    _is_child = os.environ.setdefault(_FIRST_PROCESS, str(os.getpid())) != str(os.getpid())
    _startup.call_after_imports({"tensorflow": record})
    atexit.register(_end)
    _end_with_multiprocessing()


def _end_with_multiprocessing() -> None:
    """Has its children, which end without what atexit has, write their report."""
    util: Any = sys.modules.get("multiprocessing.util")
    if _target and util is not None:
        util.register_after_fork(_end, lambda end: util.Finalize(None, end, exitpriority=0))


def _forget() -> None:
    """Starts anew in a fork, which counts what it does itself."""
    global _lock, _since, _is_child
    _lock = threading.Lock()  # Another thread of the parent may have held it.
    _since, _is_child = time.time(), True
    _stayed.clear()
    _fused.clear()
    if is_recording and not _failure:
        _core().tfbn_forget_records()
    _end_with_multiprocessing()


os.register_at_fork(after_in_child=_forget)


def _end() -> None:
    """Prints or writes the report of this process, once; a failure is a sentence."""
    global _ended
    if _ended == os.getpid():
        return
    _ended = os.getpid()
    try:
        if "tensorflow" in sys.modules:
            found = report()
        else:
            found = Report(_ended, _since, time.time() - _since, (), (), (), tuple(_notes([])))
        if _is_child and not (found.calls or found.fused or found.stayed):
            return
        if _target == "1":
            _say(str(found))
        else:
            _write(found)
    except Exception as error:  # The program's own end is as it was.
        _say(
            f"tf_bn_ops: there is no report: {' '.join(str(error).split())}: set "
            f"{_startup.REPORT_VARIABLE} to a file in a folder that can be written, or to 1"
        )


def _say(text: str) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # It is closed.
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _write(found: Report) -> None:
    """Writes to the file; or, where another process has it, to one with this process' number."""
    from tf_bn_ops import _command

    path = pathlib.Path(_target)
    with _locked(path.parent):
        if not _command.is_in_place(path):
            if path.exists() and "tensorflow" not in sys.modules:
                return  # It says more.
            if _is_child or (path.exists() and path.stat().st_mtime >= _started):
                path = path.with_name(f"{path.stem}.{_ended}{path.suffix}")
        _command.write_whole(found.to_json() + "\n", path)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps others' reports out of a folder meanwhile. A process that waits at its end for its
    children, which write theirs, must not keep it; after five seconds somebody else does, `flock`
    around the program for instance, and nothing is waited for."""
    import fcntl

    descriptor = -1
    with contextlib.suppress(OSError):  # Not all folders have locks.
        descriptor = os.open(folder, os.O_RDONLY)
        for _ in range(50):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.1)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
