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
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import tool_flags  # noqa: E402

from bench import against, libraries, networks, report, results, rounds, rows, sweep  # noqa: E402
from bench.bench_worker import Worker, WorkerError  # noqa: E402
from bench.libraries import CANDIDATE, ENTRIES, MEMORY_BANDWIDTH  # noqa: E402
from bench.rows import UsageError  # noqa: E402
from tf_bn_ops import _command, _loader, spec  # noqa: E402
from tf_bn_ops.harness import builtin, machine  # noqa: E402

OUT = ROOT / "bench-results" / "results.json"
SWEPT = OUT.with_name("sweep.json")
# What flags choose from, and take all of unless they are given, but for the sweep.
_CHOICES = {
    "sections": (*rows.CALLS, "network", rows.LATENCY, sweep.SECTION),
    "dtypes": rows.DTYPES,
    "layouts": rows.LAYOUTS,
    "modes": spec.MODES,
    "peers": libraries.PEERS,
    "networks": tuple(networks.NETWORKS),
}
# What is measured with --quick instead.
_QUICK = {
    "sections": (rows.GRADIENT, rows.FORWARD, "layer", rows.LATENCY),
    "dtypes": ("float32", "half"),
}


def _flags(argv: Sequence[str]) -> argparse.Namespace:
    parser = tool_flags.Parser(__doc__)
    parser.add_argument("--shapes", help="channels last, as 32x56x56x64,8x20x20x32")
    for name, known in _CHOICES.items():
        parser.add_argument(f"--{name}", help=f"some of {', '.join(known)}")
    threads = machine.cores()
    parser.add_argument("--threads", type=int, default=threads, help="default: all CPUs")
    parser.add_argument("--seconds", type=float, help="measuring time per row and implementation")
    within = "of the sweep: measure random cases for so many seconds, default 300"
    parser.add_argument("--within", type=float, default=300.0, help=within)
    parser.add_argument("--seed", type=int, default=0, help="of the sweep: which cases come first")
    quick = "a few shapes in a minute: a smoke test, not a measurement"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--load", help="report this results.json instead of measuring")
    record = "keep the run in docs/benchmarks, and write the tables of README.md and docs"
    parser.add_argument("--record", action="store_true", help=record)
    parser.add_argument("--against", help="libtf_bn_ops_core.so of another build to compare with")
    found = parser.parse_args(argv)
    chosen: dict[str, tuple[str, ...]] = {**_CHOICES, **(_QUICK if found.quick else {})}
    if found.against:
        chosen["dtypes"] = tuple(spec.DTYPES)
    if found.shapes:
        chosen["sections"] = tuple(rows.CALLS)
    for name, values in chosen.items():
        known = values if found.against else _CHOICES[name]
        if given := getattr(found, name):
            values = tuple(given.split(","))
        elif name == "sections":
            values = tuple(value for value in values if value != sweep.SECTION)
        for value in values:
            if value not in known:
                raise UsageError(f"--{name}={value} is unknown; known are {', '.join(known)}")
        setattr(found, name, [value for value in known if value in values])
    if sweep.SECTION in found.sections and len(found.sections) > 1:
        raise UsageError("--sections=sweep is a run of its own")
    if not 1 <= found.threads <= threads:
        raise UsageError(f"--threads is from 1 to {threads}, the number of CPUs")
    return found


def _measure_rows(run: results.Run, chosen: Sequence[rows.Row], peers: Sequence[str]) -> None:
    """Measures rows of all implementations; a peer that cannot start is left out, and named."""
    libraries.bandwidth_library()  # Compiled once.
    with contextlib.ExitStack() as stack:
        workers = []
        for name in (CANDIDATE, *peers, MEMORY_BANDWIDTH):
            workers.append(Worker(name, run.settings["threads"], ENTRIES[name].environment))
            stack.callback(workers[-1].process.close)
        for worker in list(workers):
            try:
                worker.process.wait_until_ready()
                run.versions[worker.name] = worker.process.facts
            except WorkerError as e:
                if worker.name == CANDIDATE:
                    raise
                run.missing[worker.name] = str(e).removeprefix(f"{worker.name}: ")
                workers.remove(worker)
        for row in chosen:
            needed = 2 * row.bytes * len(workers)
            if needed > machine.available_memory():
                size = f"{needed / 2**30:.1f} GiB of memory, more than is free"
                raise UsageError(f"{row} needs about {size}: leave its shape out by --shapes")
        budget = run.settings["seconds"], run.settings["rounds"]
        for i, row in enumerate(chosen):
            print(f"{i + 1}/{len(chosen)} {row.section} {row}", file=sys.stderr, flush=True)
            run.rows.append(rounds.measure(row, workers, *budget))


def _run(flags: argparse.Namespace, command: str) -> results.Run:
    begin = time.monotonic()
    seconds, turns = (0.03, 3) if flags.quick else (0.1, 8)
    sizes: Sequence[tuple[int, int, int]] = networks.QUICK_SIZES if flags.quick else networks.SIZES
    shapes: Sequence[tuple[int, ...]] = rows.QUICK if flags.quick else rows.DEFAULT
    if flags.shapes:
        shapes = rows.shapes_of(flags.shapes)
    settings = {"threads": flags.threads, "seconds": flags.seconds or seconds, "rounds": turns}
    run = results.Run(command, 0, machine.describe(), settings)
    sections = [section for section in flags.sections if section != "network"]
    chosen = []
    for section in sections:
        call, of_each = rows.call_of(section), (shapes, flags.dtypes, flags.layouts)
        both = section == rows.GRADIENT or call.function
        modes = [mode for mode in flags.modes if both or mode == "training"]
        if section == rows.LATENCY or call.function:
            of_each = rows.SMALL, ("float32", "half"), rows.LAYOUTS
        chosen += rows.rows_of(section, *of_each, modes, flags.threads)
    if chosen:
        _measure_rows(run, chosen, flags.peers)
    elif sections:
        raise UsageError("no row has this combination of --shapes, --layouts and the rest")
    if "network" in flags.sections:
        run.networks += networks.measure(flags.networks, flags.threads, sizes)
    run.seconds = time.monotonic() - begin
    return run


def main(argv: Sequence[str]) -> int:
    """Runs the command with these flags; returns the exit status."""
    errors = (UsageError, WorkerError, ImportError, _command.UsageError)
    return _command.guarded("bench", lambda: _measured(argv), errors)


def _as_typed(argv: Sequence[str]) -> str:
    words = [shlex.quote(word) for word in argv if word != "--record"]
    return f'make bench ARGS="{" ".join(words)}"'


def _swept(flags: argparse.Namespace, command: str) -> int:
    _loader.library_path()  # Fails early where it is not built.
    found = sweep.run(command, flags.within, flags.seed, flags.threads)
    sweep.save(found, SWEPT)
    print(sweep.text(found))
    if flags.record:
        print("recorded:", *(path.relative_to(ROOT) for path in sweep.record(found)))
    return 1 if found.failed else 0


def _measured(argv: Sequence[str]) -> int:
    flags = _flags(argv)
    if flags.against:
        of_each = flags.dtypes, flags.layouts, flags.modes, flags.threads
        return against.compare(flags.against, of_each, flags.seconds or 0.5)
    if flags.sections == [sweep.SECTION]:
        return _swept(flags, _as_typed(argv))
    if flags.load:
        run = results.load(pathlib.Path(flags.load))
    else:
        _loader.library_path()  # Fails early where it is not built.
        if note := builtin.switch_note():
            print(note, file=sys.stderr)
        run = _run(flags, _as_typed(argv))
        results.save(run, OUT)
    print(report.text(run))
    if not flags.load:
        print(f"{OUT} has all rows; {run.seconds:.0f} s")
    if flags.record:
        print("recorded:", *(path.relative_to(ROOT) for path in report.record(run)))
    return 1 if report.wrong(run) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
