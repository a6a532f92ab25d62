"""Measures the ops of this library against TensorFlow's, PyTorch's and memory bandwidth.

usage: make bench ARGS="[flags]", make bench-against LIB=FILE ARGS="[flags]"

Every implementation runs in a process of its own, one at a time and in turns; every result is
checked. Exit status: 0 done, 1 a result of this library was wrong or (--against) slower, 2 wrong
usage or a missing part. docs/benchmarks.md explains the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from bench import against, libraries, networks, report, results, rounds, rows  # noqa: E402
from bench.bench_worker import Worker, WorkerError, is_installed  # noqa: E402
from bench.libraries import CANDIDATE, ENTRIES, MEMORY_BANDWIDTH  # noqa: E402
from bench.rows import UsageError  # noqa: E402
from tf_bn_ops import _command, _loader, spec  # noqa: E402
from tf_bn_ops.harness import c_abi, machine  # noqa: E402

OUT = ROOT / "bench-results" / "results.json"
_CHOICES = {
    "sections": (*rows.CALLS, "network", "latency"),
    "dtypes": rows.DTYPES,
    "layouts": tuple(spec.DATA_FORMATS),
    "modes": spec.MODES,
    "peers": libraries.PEERS,
    "networks": tuple(networks.NETWORKS),
}
_QUICK = {
    "sections": (rows.GRADIENT, rows.FORWARD, rows.LAYER, "latency"),
    "dtypes": ("float32", "half"),
}


def _flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags; those that name nothing are all that there is, or with --quick some of it."""
    parser = argparse.ArgumentParser("bench", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = ", ".join(rows.NETWORKS)
    parser.add_argument("--shapes", help=f"{names}, or shapes, channels last, as 32x56x56x64")
    for name, known in _CHOICES.items():
        parser.add_argument(f"--{name}", help=f"some of {', '.join(known)}")
    threads = machine.cores()
    parser.add_argument("--threads", type=int, default=threads, help="default: all CPUs")
    parser.add_argument("--seconds", type=float, help="measuring time per row and implementation")
    quick = "a few shapes in a minute: a smoke test, not a measurement"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--load", help="report this results.json instead of measuring")
    record = "keep the run in docs/benchmarks, and write the tables of README.md and docs"
    parser.add_argument("--record", action="store_true", help=record)
    parser.add_argument("--against", help="libtf_bn_ops_core.so of another build to compare with")
    found = parser.parse_args(argv)
    found.all_sections = found.sections is None
    for name, known in _CHOICES.items():
        if name == "dtypes" and found.against:
            known = tuple(spec.DTYPES)
        given = getattr(found, name)
        chosen = given.split(",") if given else (_QUICK if found.quick else {}).get(name, known)
        for value in chosen:
            if value not in known:
                raise UsageError(f"--{name}={value} is unknown; known are {', '.join(known)}")
        setattr(found, name, [value for value in known if value in chosen])
    if not 1 <= found.threads <= threads:
        raise UsageError(f"--threads is from 1 to {threads}, the number of CPUs")
    if found.shapes and found.all_sections:
        found.sections = list(rows.CALLS)
    return found


class _Run:
    """One run, from its flags to its results."""

    def __init__(self, flags: argparse.Namespace):
        self._flags = flags
        self._budget = rounds.QUICK if flags.quick else rounds.FULL
        if flags.seconds:
            self._budget = self._budget._replace(seconds=flags.seconds)
        self._missing: dict[str, str] = {}
        self._versions: dict[str, dict[str, str]] = {}

    @contextlib.contextmanager
    def _workers(self, threads: int) -> Iterator[list[Worker]]:
        """Workers of the candidate, the peers and memory bandwidth, closed at the end."""
        started, ready = [], []
        for name in (CANDIDATE, *self._flags.peers, MEMORY_BANDWIDTH):
            if is_installed(ENTRIES[name]):
                started.append(Worker(ENTRIES[name], threads))
            else:
                self._missing[name] = f"{ENTRIES[name].module} is not installed"
        try:
            for worker in started:
                try:
                    worker.process.wait_until_ready()
                    self._versions[worker.name] = worker.process.facts
                    ready.append(worker)
                except WorkerError as e:
                    if worker.name == CANDIDATE:
                        raise
                    self._missing[worker.name] = str(e).removeprefix(f"{worker.name}: ")
            yield ready
        finally:
            for worker in started:
                worker.process.close()

    def _rows(self) -> list[rows.Row]:
        flags, chosen = self._flags, []
        shapes = rows.QUICK if flags.quick else rows.DEFAULT
        if flags.shapes:
            shapes = rows.choose(flags.shapes.split(","))
        for call in set(rows.CALLS) & set(flags.sections):
            chosen += rows.rows_of_call(
                call, shapes, flags.dtypes, flags.layouts, flags.modes, flags.threads
            )
        chosen.sort(key=lambda row: rows.CALLS.index(row.section))
        if not chosen and set(rows.CALLS) & set(flags.sections):
            raise UsageError("no row has this combination of --shapes, --layouts and the rest")
        if "latency" in flags.sections:
            chosen += rows.latency_rows(flags.threads)
        return chosen

    def _measure(
        self, workers: Sequence[Worker], chosen: Sequence[rows.Row]
    ) -> list[results.Measurement]:
        meter = rounds.Meter(workers, self._budget, c_abi.last_level_cache())
        measured = []
        for i, row in enumerate(chosen):
            print(f"{i + 1}/{len(chosen)} {row.section} {row}", file=sys.stderr, flush=True)
            measured.append(meter.measure(row))
        return measured

    def run(self, command: str) -> results.Run:
        flags, begin, described = self._flags, time.monotonic(), machine.describe()
        measured: list[results.Measurement] = []
        if chosen := self._rows():
            libraries.bandwidth_library()  # Compiled once.
            with self._workers(flags.threads) as workers:
                measured += self._measure(workers, chosen)
        sizes = networks.QUICK_SIZES if flags.quick else networks.SIZES
        steps = []
        if "network" in flags.sections:
            steps = list(networks.measure(flags.networks, flags.threads, sizes))
        run = results.Run(
            command=command,
            seconds=0,
            machine=described,
            settings={"threads": flags.threads, **self._budget._asdict()},
            versions=self._versions,
            missing=self._missing,
            rows=measured,
            networks=steps,
        )
        run.seconds = time.monotonic() - begin
        return run


def _compare(flags: argparse.Namespace) -> int:
    """--against; the exit status."""
    chosen = against.rows(flags.dtypes, flags.layouts, flags.modes)
    seconds = flags.seconds or 0.5
    found = list(against.run(flags.against, chosen, flags.threads, seconds))
    slower = sum(c.verdict == "slower than noise" for c in found)
    missing = {row.formula for row in chosen} - {c.row.formula for c in found}
    mean = results.geometric_mean(c.median for c in found)
    print(against.table(found))
    print(
        f"{len(found)} rows, {flags.threads} threads: {slower} slower than noise; geometric mean "
        f"{mean:.3f}"
        + (f"; {flags.against} has no {', '.join(sorted(missing))}" if missing else "")
    )
    return 1 if slower else 0


def main(argv: Sequence[str]) -> int:
    """Runs the command with these flags; returns the exit status."""
    errors = (UsageError, WorkerError, ImportError, _command.UsageError)
    return _command.guarded("bench", lambda: _measured(argv), errors)


def _measured(argv: Sequence[str]) -> int:
    flags = _flags(argv)
    if flags.against:
        return _compare(flags)
    if flags.load:
        run = results.load(pathlib.Path(flags.load))
    else:
        _loader.library_path()  # Fails early where it is not built.
        words = [shlex.quote(word) for word in argv if word != "--record"]
        run = _Run(flags).run(f'make bench ARGS="{" ".join(words)}"')
        results.save(run, OUT)
    print(report.text(run))
    if not flags.load:
        print(f"{OUT} has all rows; {run.seconds:.0f} s")
    if flags.record:
        print("recorded:", *(path.relative_to(ROOT) for path in report.record(run)))
    return 1 if report.wrong(run) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
