"""Measures the ops of this library against TensorFlow's, PyTorch's, JAX's and memory bandwidth.

usage: python -m tf_bn_ops bench [flags]

Every implementation runs in a process of its own, one at a time and in turns; every result is
verified. Exit status: 0 done, 1 a result of this library was wrong or (--against) slower, 2 wrong
usage or a missing part. docs/benchmarks.md explains the tables and the JSON file.
"""

from __future__ import annotations

import contextlib
import pathlib
import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any

import rich.console
import rich.progress
from absl import flags

from tf_bn_ops import _command, _loader, spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.bench import against, bench_rows, implementations, results, stats
from tf_bn_ops.bench.execution import kernel_time, memory, networks, timing_rounds
from tf_bn_ops.bench.execution.timing_workers import Worker, WorkerError, is_installed
from tf_bn_ops.bench.reports import plots, recorded_run, report
from tf_bn_ops.harness import c_abi, machine

NETWORK = "network"
SECTIONS = (*bench_rows.CALLS, NETWORK, "latency", "scaling", "memory")
# What is behind a layer is left out: there is no time for it.
_QUICK_SECTIONS = (bench_rows.GRADIENT, bench_rows.FORWARD, bench_rows.LAYER, "latency", "memory")
_QUICK_DTYPES = ("float32", "half")
# --quick skips rows that have not begun by then; the report takes the rest of a minute.
_QUICK_SECONDS = 45.0
_LATE = "time budget exceeded (--quick)"

_FLAGS = flags.FlagValues()


def _list(name: str, what: str) -> None:
    flags.DEFINE_list(name, [], what, flag_values=_FLAGS)


_list(
    "shapes", f"Networks ({', '.join(bench_rows.NETWORKS)}) or shapes, channels last: 32x56x56x64."
)
_list("dtypes", f"Element types: {', '.join(bench_rows.DTYPES)}; default: all.")
_list("layouts", f"Data formats: {', '.join(spec.DATA_FORMATS)}; default: all.")
_list("modes", f"{', '.join(spec.MODES)}; default: both.")
_list("peers", f"Peers to compare with: {', '.join(implementations.PEERS)}; default: all.")
_list("sections", f"What to measure: {', '.join(SECTIONS)}; default: all.")
_list("networks", f"Of section network: {', '.join(networks.NETWORKS)}; default: all.")
flags.DEFINE_boolean(
    "quick", False, "A few shapes, one minute: a smoke test, not a measurement.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_integer(
    "threads", None, "Threads of every implementation; default: all CPUs.", lower_bound=1,
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_float(
    "seconds", None, "Measuring time per row and implementation.", lower_bound=1e-4,
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_string(
    "out", "bench-results", "Folder for results.json and the plots.", flag_values=_FLAGS
)
flags.DEFINE_string(
    "load", None, "Reports this results.json of an earlier run instead of measuring.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_string(
    "against", None, "libtf_bn_ops_core.so of another build: measures it and this tree's in "
    "adjacent pairs instead; exit status 1 if a row is slower than noise.", flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_boolean(
    "record", False, "Keeps the run as docs/benchmarks/results.json of the source tree, and writes "
    "the overview tables of README.md and docs/benchmarks.md.", flag_values=_FLAGS,
)  # fmt: skip


def _chosen(what: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """The known names that were given, in their order; all if none was."""
    lower = [name.lower() for name in given]
    for name in given:
        if name.lower() not in [k.lower() for k in known]:
            raise UsageError(f"{name!r} is not a known {what}; known: {', '.join(known)}")
    return [name for name in known if not given or name.lower() in lower]


class _Run:
    """One run, from its flags to its results."""

    def __init__(self, argv: Sequence[str], console: rich.console.Console):
        self._console = console
        quick = _FLAGS.quick
        self.sections = _chosen("section", _FLAGS.sections, SECTIONS)
        if not _FLAGS.sections:
            if quick:
                self.sections = list(_QUICK_SECTIONS)
            if _FLAGS.shapes:
                self.sections = list(bench_rows.CALLS)
        self.peers = _chosen("peer", _FLAGS.peers, implementations.PEERS)
        self.dtypes = _chosen("dtype", _FLAGS.dtypes, bench_rows.DTYPES)
        if quick and not _FLAGS.dtypes:
            self.dtypes = list(_QUICK_DTYPES)
        self.layouts = _chosen("layout", _FLAGS.layouts, tuple(spec.DATA_FORMATS))
        self.modes = _chosen("mode", _FLAGS.modes, spec.MODES)
        self.networks = _chosen("network", _FLAGS.networks, tuple(networks.NETWORKS))
        self.shapes = bench_rows.choose(_FLAGS.shapes, quick)
        self.threads = _FLAGS.threads or machine.cores()
        if self.threads > machine.cores():
            raise UsageError(f"--threads is at most {machine.cores()}, the number of CPUs")
        self.budget = timing_rounds.QUICK if quick else timing_rounds.FULL
        if _FLAGS.seconds:
            self.budget = timing_rounds.Budget(_FLAGS.seconds, self.budget.rounds)
        self._deadline = float("inf")
        self.missing: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        command = ["python -m tf_bn_ops bench", *map(shlex.quote, argv[1:])]
        where = ("--record", "--out")  # They do not change what is measured.
        self.command = " ".join(word for word in command if not word.startswith(where))

    def _start(self, names: Sequence[str], threads: int) -> list[Worker]:
        """Workers that are ready; for the others, `missing` gets the reason."""
        started = []
        for name in names:
            entry = implementations.ENTRIES[name]
            if is_installed(entry):
                started.append(Worker(entry, threads))
            else:
                self.missing[name] = f"{entry.module} is not installed"
        ready = []
        for worker in started:
            try:
                worker.wait_until_ready()
                self.versions[worker.name] = worker.facts
                ready.append(worker)
            except WorkerError as e:
                worker.close()
                if worker.name == implementations.CANDIDATE:
                    for other in started:
                        other.close()
                    raise
                self.missing[worker.name] = str(e).removeprefix(f"{worker.name}: ")
        return ready

    def _rows(self) -> list[bench_rows.Row]:
        rows = []
        calls = [call for call in bench_rows.CALLS if call in self.sections]
        for call in calls:
            rows += bench_rows.rows_of_call(
                call, self.shapes, self.dtypes, self.layouts, self.modes, self.threads
            )
        if calls and not rows:
            raise UsageError("no row has this combination of --shapes, --layouts and the rest")
        if "latency" in self.sections:
            rows += bench_rows.latency_rows(self.threads, _FLAGS.quick)
        if "scaling" in self.sections:
            rows += bench_rows.scaling_rows(self.layouts, self.threads, _FLAGS.quick)
            rows += bench_rows.thread_rows(self.threads)
        return rows

    def _measure(
        self, workers: Sequence[Worker], rows: Sequence[bench_rows.Row], what: str
    ) -> list[results.Measurement]:
        meter = timing_rounds.Meter(workers, self.budget, c_abi.last_level_cache())
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
        )
        measured = []
        # Drawn between rows only: a refresh thread would disturb the measurement.
        with rich.progress.Progress(
            *columns,
            console=self._console,
            transient=True,
            auto_refresh=False,
            disable=not self._console.is_terminal,
        ) as progress:
            task = progress.add_task(what, total=len(rows))
            for row in rows:
                progress.update(task, description=f"{what} {row}")
                progress.refresh()
                late = time.monotonic() > self._deadline
                measured.append(
                    results.Measurement(row, skipped=_LATE) if late else meter.measure(row)
                )
                progress.advance(task)
        return measured

    def _measure_networks(self) -> list[results.NetworkMeasurement]:
        if NETWORK not in self.sections:
            return []
        sizes = networks.QUICK_SIZES if _FLAGS.quick else networks.SIZES
        measured = []
        for m in networks.measure(self.networks, self.threads, sizes):
            what = f"{m.network} on {m.batch} images of {m.side}x{m.side}, {len(m.turns)} turns"
            self._console.print(f"measured {what}", soft_wrap=True)
            measured.append(m)
        return measured

    def run(self) -> results.Run:
        begin = time.monotonic()
        if _FLAGS.quick and not _FLAGS.shapes:
            self._deadline = begin + _QUICK_SECONDS
        described = machine.describe()
        eager_us = None
        measured: list[results.Measurement] = []
        if rows := self._rows():
            with self._workers(self.threads) as workers:
                measured += self._measure(workers, rows, "measuring")
                eager_us = workers[0].ask("eager_us")
            kernel_time.measure(measured, self.threads)
        if "scaling" in self.sections:
            for threads in bench_rows.thread_counts(self.threads):
                if threads != self.threads:
                    with self._workers(threads) as workers:
                        rows = bench_rows.thread_rows(threads)
                        measured += self._measure(workers, rows, f"{threads} threads:")
        extra: list[dict[str, Any]] = []
        if "memory" in self.sections and memory.is_possible():
            whose = [implementations.CANDIDATE, *([] if _FLAGS.quick else self.peers)]
            whose = [n for n in whose if is_installed(implementations.ENTRIES[n])]
            extra, _ = memory.measure(whose, self.threads, _FLAGS.quick)
        run = results.Run(
            command=self.command,
            seconds=0,
            machine=described,
            settings={
                "threads": self.threads,
                "seconds": self.budget.seconds,
                "rounds": self.budget.rounds,
            },
            versions=self.versions,
            missing=self.missing,
            rows=measured,
            networks=self._measure_networks(),
            memory=extra,
            eager_us=eager_us,
        )
        run.seconds = time.monotonic() - begin
        return run

    @contextlib.contextmanager
    def _workers(self, threads: int) -> Iterator[list[Worker]]:
        """Workers of the candidate, the peers and memory bandwidth, closed at the end."""
        names = [implementations.CANDIDATE, *self.peers, implementations.MEMORY_BANDWIDTH]
        workers = self._start(names, threads)
        try:
            yield workers
        finally:
            for worker in workers:
                worker.close()


def _compare_with(path: str, console: rich.console.Console) -> int:
    """--against; the exit status."""
    rows = against.rows(
        _chosen("dtype", _FLAGS.dtypes, tuple(spec.DTYPES)),
        _chosen("layout", _FLAGS.layouts, ("NHWC", "NCHW")),
        _chosen("mode", _FLAGS.modes, spec.MODES),
    )
    threads, seconds = _FLAGS.threads or machine.cores(), _FLAGS.seconds or against.SECONDS
    comparisons = list(against.run(path, rows, threads, seconds))
    against.table(comparisons).print(console)
    slower = sum(c.verdict == "slower than noise" for c in comparisons)
    mean = stats.geometric_mean(c.median for c in comparisons)
    missing = {row.formula for row in rows} - {c.row.formula for c in comparisons}
    left_out = f"; {path} has no {', '.join(sorted(missing))}" if missing else ""
    console.print(
        f"{len(comparisons)} rows, {threads} threads: {slower} slower than noise; geometric mean "
        f"{mean:.3f}{left_out}",
        soft_wrap=True,
    )
    return 1 if slower else 0


def _main(argv: Sequence[str], console: rich.console.Console) -> int:
    if _FLAGS.against:
        return _compare_with(_FLAGS.against, console)
    if _FLAGS.record:
        recorded_run.check()
    out = pathlib.Path(_FLAGS.out)
    if _FLAGS.load:
        run = results.load(pathlib.Path(_FLAGS.load))
    else:
        _loader.library_path()  # Fails early where it is not built.
        run = _Run(argv, console).run()
        results.save(run, out / "results.json")
    report.print_report(run, console)
    if not _FLAGS.load:
        console.print(f"{out / 'results.json'} has all rows; {run.seconds:.0f} s")
    pictures = plots.write(run, out)
    if pictures:
        console.print(f"plots: {', '.join(str(path) for path in pictures)}", soft_wrap=True)
    elif not plots.is_possible():
        console.print("no plots: matplotlib is not installed (requirements/bench.txt)")
    if _FLAGS.record:
        written = ", ".join(
            str(path.relative_to(recorded_run.ROOT)) for path in recorded_run.record(run)
        )
        console.print(f"recorded: {written}", soft_wrap=True)
    return 1 if report.wrong(run)[0] else 0


def main(argv: Sequence[str]) -> int:
    """Runs the command; argv is its name, then flags; returns the exit status."""

    def body() -> int:
        # Tables are wider than the 80 columns that a pipe or log file is taken to have.
        console = rich.console.Console(highlight=False)
        if not console.is_terminal:
            console = rich.console.Console(highlight=False, width=200)
        return _main(argv, console)

    errors = (recorded_run.DocsError, results.ResultsError, bench_rows.ShapeError, WorkerError)
    return _command.run(argv, __doc__, _FLAGS, body, errors)
