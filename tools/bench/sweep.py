"""The sweep: any view of up to 2^24 elements, against the faster of TensorFlow's op and Keras'.

Rows, channels and inner elements are from 1 to 10^6, in steps of half a decade. All combinations
would take days: a run takes them in a random order, for the seconds that it has. What seems slower
is measured again, longer.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench import report
from bench.bench_worker import CallError, Worker, serve
from bench.libraries import Timer
from bench.rows import DTYPES, EPSILON
from tf_bn_ops import _command, spec
from tf_bn_ops.harness import builtin, machine

SECTION = "sweep"
SIZES = sorted({*(10**i for i in range(7)), *(3 * 10**i for i in range(6))})
MOST_ELEMENTS = 1 << 24
DIRECTIONS = ("forward", "gradient")
# What is called: fused_batch_norm, Keras' layer, and activations behind the op.
CALLS = ("op", "layer", "add + relu", *filter(None, spec.ACTIVATION_MODES))
LIMIT = 1.1  # How many times the peer's time a call may take.
OURS, TENSORFLOW, KERAS = "tf_bn_ops", "TensorFlow", "Keras"
_TURNS, _MORE_TURNS = 3, 15
_WORST = 10
RECORDED = report.ROOT / "docs" / "benchmarks" / "sweep.json"
BEGIN = '<!-- written by make bench ARGS="--sections=sweep --record" -->'


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison; of a gradient it is forward and gradient."""

    call: str
    direction: str
    shape: tuple[int, ...]
    layout: str
    dtype: str
    mode: str
    threads: int

    def __str__(self) -> str:
        words = ("x".join(map(str, self.shape)), self.layout, self.dtype, self.mode)
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return ", ".join((f"{self.call} {self.direction}", " ".join(words), threads))


def _shape(view: tuple[int, int, int], layout: str) -> tuple[int, ...]:
    """A shape of the layout with these rows, channels and inner elements."""
    rank, channels_last = spec.DATA_FORMATS[layout]
    rows, channels, inner = view
    ones = [1] * (rank - 3)
    return (rows, *ones, inner, channels) if channels_last else (rows, channels, *ones, inner)


def cases(seed: int, threads: int) -> Iterator[Case]:
    """All of them, in a random order: with one thread, and with as many as are given."""
    views = [
        (view, layout)
        for view in itertools.product(SIZES, repeat=3)
        for layout, (_, channels_last) in spec.DATA_FORMATS.items()
        # Channels last, inner elements are rows.
        if math.prod(view) <= MOST_ELEMENTS and (view[2] == 1 or not channels_last)
    ]
    how = [*itertools.product(CALLS, DIRECTIONS, DTYPES, spec.MODES, sorted({1, threads}))]
    rng = random.Random(seed)
    for at in rng.sample(range(len(views) * len(how)), len(views) * len(how)):
        view, layout = views[at % len(views)]
        call, direction, dtype, mode, number = how[at // len(views)]
        yield Case(call, direction, _shape(view, layout), layout, dtype, mode, number)


# ---- In a process --------------------------------------------------------------------------------


@functools.cache
def _pool() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(1 << 20, np.float32)


class Server:
    """The requests of `measure`."""

    def __init__(self, name: str, threads: int):
        import keras
        import tensorflow as tf

        del name
        builtin.check_kernels()  # What is compared with is TensorFlow's.
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        self.facts = {"tensorflow": tf.__version__, "keras": keras.__version__}

    def measure(self, case: Case, turns: int) -> dict[str, list[float]]:
        """Seconds per call of each that does not refuse, in turns."""
        timers = {}
        for name, call in _calls(case).items():
            try:
                call()
            except Exception:  # TensorFlow has no kernel.
                if name == OURS:
                    raise
                continue
            timers[name] = Timer(call)
        first = {name: timer.sample() for name, timer in timers.items()}
        fast = sorted(first, key=first.__getitem__)
        peer = next(name for name in fast if name != OURS)
        # What is far slower than the faster peer is not measured again.
        names = [name for name in fast if name == OURS or first[name] < 2 * first[peer]]
        found: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(turns):
            for name in random.sample(names, len(names)):
                found[name].append(timers[name].sample())
        return found


def _calls(case: Case) -> dict[str, Callable[[], Any]]:
    """The case of this library, of TensorFlow's op, and of Keras."""
    import keras
    import tensorflow as tf

    import tf_bn_ops
    import tf_bn_ops.keras
    from tf_bn_ops import _fused

    rank, channels_last = spec.DATA_FORMATS[case.layout]
    axis = rank - 1 if channels_last else 1
    is_training, channels = case.mode == "training", case.shape[axis]
    named: Any = case.call.removeprefix("add + ")
    activation = named if named in spec.ACTIVATION_MODES else None
    adds = case.call.startswith("add")
    x, y_backprop, side = (
        tf.cast(np.resize(_pool()[i:], case.shape), case.dtype) for i in range(3)
    )
    scale, offset, mean, variance = (tf.ones(channels) * value for value in (1, 0, 0.1, 2))
    given: dict[str, Any] = {} if is_training else {"mean": mean, "variance": variance}
    attrs: dict[str, Any] = {
        "epsilon": EPSILON,
        "data_format": case.layout,
        "is_training": is_training,
    }
    vectors = [scale, offset]
    layers: dict[str, Any] = {}
    if case.call == "layer":
        for name, owner in ((OURS, tf_bn_ops.keras), (KERAS, keras.layers)):
            policy = {"half": "float16"}.get(case.dtype, case.dtype)
            mixed = policy if policy == "float32" else f"mixed_{policy}"
            layers[name] = owner.BatchNormalization(axis=axis, epsilon=EPSILON, dtype=mixed)
            layers[name].build(case.shape)

    def behind(y: Any, side: Any) -> Any:
        return _fused.activated(tf, activation, y + side if adds else y)

    def ours(x: Any, side: Any) -> Any:
        more = {"side_input": side} if adds else {}
        return tf_bn_ops.fused_batch_norm(
            x, scale, offset, **given, **attrs, activation=activation, **more
        )[0]

    def tensorflow(x: Any, side: Any) -> Any:
        return behind(tf.compat.v1.nn.fused_batch_norm(x, scale, offset, **given, **attrs)[0], side)

    def formula(x: Any, side: Any) -> Any:
        wide, of = keras.ops.cast(x, "float32"), (mean, variance)
        if is_training:
            of = keras.ops.moments(wide, [i for i in range(rank) if i != axis])
        y = keras.ops.batch_normalization(wide, *of, axis, offset, scale, EPSILON)
        return behind(keras.ops.cast(y, x.dtype), side)

    def compiled(name: str, forward: Callable[..., Any]) -> Callable[[], Any]:
        layer = layers.get(name)
        if layer is not None:

            def forward(x: Any, _: Any) -> Any:
                return layer(x, training=is_training)

        @tf.function(autograph=False)
        def step(x: Any, side: Any, y_backprop: Any) -> Any:
            if case.direction == "forward":
                return forward(x, side)
            weights = layer.trainable_variables if layer is not None else []
            of = [x, *[side] * adds, *([weight.value for weight in weights] or vectors)]
            with tf.GradientTape() as tape:
                tape.watch(of)
                y = forward(x, side)
            return tape.gradient(y, of, y_backprop)

        return lambda: step(x, side, y_backprop)

    forwards = {OURS: ours, TENSORFLOW: tensorflow, KERAS: formula}
    return {name: compiled(name, forward) for name, forward in forwards.items()}


# ---- A run ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    """A case: the median microseconds of each, the faster peer, and our time over its time, the
    median of turns."""

    case: Case
    us: Mapping[str, float]
    peer: str
    ratio: float


def row_of(case: Case, found: Mapping[str, Sequence[float]]) -> Row:
    """What one measurement of a case says."""
    us = {name: 1e6 * statistics.median(seconds) for name, seconds in found.items()}
    peer = min((name for name in us if name != OURS), key=us.__getitem__)
    ratio = statistics.median(a / b for a, b in zip(found[OURS], found[peer], strict=True))
    return Row(case, us, peer, ratio)


@dataclasses.dataclass
class Sweep:
    """A run: how many cases it measured, how many of them are slower than LIMIT, and the worst."""

    command: str
    seconds: float
    seed: int
    machine: dict[str, Any]
    measured: int = 0
    slower: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    worst: list[Row] = dataclasses.field(default_factory=list)


def run(command: str, seconds: float, seed: int, threads: int) -> Sweep:
    """Measures cases until the seconds have passed."""
    sweep = Sweep(command, seconds, seed, machine.describe())
    workers = {
        number: Worker(SECTION, number, module="bench.sweep") for number in sorted({1, threads})
    }
    try:
        for worker in workers.values():
            worker.process.wait_until_ready()
        begin, said = time.monotonic(), 0.0
        for case in cases(seed, threads):
            passed = time.monotonic() - begin
            if passed > seconds:
                break
            if passed > said + 10:
                said = passed
                words = f"{passed:.0f} of {seconds:.0f} s: {sweep.measured} cases"
                print(f"{words}, {sweep.slower} slower", file=sys.stderr, flush=True)
            ask = functools.partial(workers[case.threads].ask, "measure", case)
            try:
                row = row_of(case, ask(_TURNS))
                if row.ratio > LIMIT:
                    row = row_of(case, ask(_MORE_TURNS))
            except CallError as e:
                sweep.failed.append(f"{case}: {e}")
                continue
            sweep.measured += 1
            sweep.slower += row.ratio > LIMIT
            sweep.worst = sorted([*sweep.worst, row], key=lambda row: -row.ratio)[:_WORST]
    finally:
        for worker in workers.values():
            worker.process.close()
    return sweep


def text(sweep: Sweep) -> str:
    """For the terminal and the page of the benchmarks."""
    headings = ["call", "shape", "layout", "dtype", "mode", "threads", OURS, "faster peer", "ratio"]
    table = report.Table("The sweep", headings, 5)
    for row in sweep.worst:
        case = row.case
        table.rows.append(
            [
                *(f"{case.call}, {case.direction}", "x".join(map(str, case.shape))),
                *(case.layout, case.dtype, case.mode, str(case.threads)),
                report.time_text(row.us[OURS]),
                f"{row.peer} {report.time_text(row.us[row.peer])}",
                f"{row.ratio:.2f}",
            ]
        )
    caption = (
        f"{sweep.slower} of {sweep.measured} random cases took more than {LIMIT} times as long as "
        f"the faster of TensorFlow's op and Keras' formula; the worst ones. "
        f"{report.processor(sweep.machine)}, {sweep.seconds:.0f} seconds, seed {sweep.seed}, "
        f"{sweep.machine['date']}."
    )
    return "\n\n".join([table.markdown(), report.wrapped(caption), *sweep.failed])


def save(sweep: Sweep, path: pathlib.Path) -> None:
    """Writes the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _command.write_whole(json.dumps(dataclasses.asdict(sweep), indent=1) + "\n", path)


def load(path: pathlib.Path) -> Sweep:
    """What `save` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for row in content["worst"]:
        row["case"] = Case(**{**row["case"], "shape": tuple(row["case"]["shape"])})
    return Sweep(**{**content, "worst": [Row(**row) for row in content["worst"]]})


def record(sweep: Sweep) -> list[pathlib.Path]:
    """Writes the file and the page; returns both."""
    save(sweep, RECORDED)
    page = report.with_overview(report.PAGE.read_text("utf-8"), text(load(RECORDED)), BEGIN)
    report.PAGE.write_text(page, "utf-8")
    return [RECORDED, report.PAGE]


if __name__ == "__main__":
    serve(Server)
