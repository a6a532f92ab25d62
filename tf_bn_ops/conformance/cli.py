"""Judges the ops of this library against TensorFlow's and a float64 oracle.

usage: python -m tf_bn_ops conformance [flags]
       python -m tf_bn_ops conformance merge FILE.json ... [--json --junit --html]

Exit status: 0 all cases passed, 1 a case failed, 2 wrong usage or a part that is missing.
docs/conformance.md explains the report.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import pathlib
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.progress
from absl import flags

from tf_bn_ops import _loader, spec
from tf_bn_ops.conformance import (
    calls,
    cases,
    contract,
    devices,
    divergences,
    fills,
    general,
    general_run,
    mapping,
    real_input,
    runner,
    script,
    shrink,
    workers,
)
from tf_bn_ops.conformance import speed as speed_lib
from tf_bn_ops.conformance.case import Case, CaseError
from tf_bn_ops.conformance.reports import (
    environment,
    merge,
    shards,
    terminal,
)
from tf_bn_ops.conformance.reports import record as record_lib
from tf_bn_ops.harness import bounds, command
from tf_bn_ops.harness.command import UsageError

# A number of cases that ends within three minutes on two cores, and has every combination of op,
# dtype, layout and mode with most kinds of values.
DEFAULT_CASES = 1600
DEFAULT_SEED = 1
# Besides, one case in this many asks for an error or for static shapes.
_CONTRACT_SHARE = 10

# Flags whose values the record keeps as they are.
_SETTINGS = (
    "seed", "cases", "real", "repro", "timeout", "shrink", "contract", "modes", "may_differ",
    "largest",
)  # fmt: skip
# What the record calls the oracle of batch-norm gradients.
_BUILT_IN_ORACLE = "float64, built in"
_COMMAND = "python -m tf_bn_ops conformance"

# --candidate -> the path of the built-in that it names.
_BUILTIN = {
    workers.BUILTIN_OPS: workers.default_path(),
    **{path: path for path in workers.PATHS},
}

# What the kernels of others are asked for only where --modes says so: TensorFlow's usual way to an
# input, Tensor::flat, aborts on a tensor that TensorFlow has not allocated itself.
_CANNOT = {"unaligned": "asked for with --modes only"}

_FLAGS = flags.FlagValues()
flags.DEFINE_integer(
    "cases", DEFAULT_CASES, "Number of random cases.", lower_bound=0, flag_values=_FLAGS
)
flags.DEFINE_integer(
    "seed",
    DEFAULT_SEED,
    "Random cases are made from this number.",
    lower_bound=0,
    flag_values=_FLAGS,
)
flags.DEFINE_list("op", [], "Ops to run, for instance V3,V2; all without.", flag_values=_FLAGS)
flags.DEFINE_list("dtype", [], "Element types to run; all without.", flag_values=_FLAGS)
flags.DEFINE_list("layout", [], "Layouts to run; all without.", flag_values=_FLAGS)
flags.DEFINE_string(
    "repro", None, "Runs this one case, as a report has printed it, and says all about it.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_boolean(
    "real", True, "Also runs input captured from a network in training.", flag_values=_FLAGS
)
flags.DEFINE_string(
    "candidate", workers.OWN_OPS,
    "Where the ops to judge are, as module:attribute; tensorflow:raw_ops judges the built-in, "
    "onednn or eigen one of its paths.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_string(
    "library", None, "An op library of others, whose ops --map or --mapping name.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_multi_string(
    "map", [], "TheirOp=FusedBatchNormGradV3: what an op of --library claims to equal; repeatable.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_string(
    "mapping", None, "TOML file that maps the ops of --library: renamed inputs, dtypes, ...",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_enum(
    "bounds", "strict", list(bounds.PROFILES),
    "What the candidate is held to: this library's promise, or what any float32 sum meets "
    "(textbook; so are the built-in and the ops of --library unless this flag is given).",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_integer(
    "timeout", 120, "Seconds after which a case counts as hanging.", lower_bound=1,
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_float(
    "memory", None, "GiB that the process of each implementation may have; a case that needs more "
    "has run out of memory; 0: no limit; without: half of the machine's.",
    lower_bound=0, flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_string(
    "shard", None, "i/n: runs the i-th of n parts of the cases; merge puts their --json together.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_integer(
    "contract", None, "Number of cases that ask for errors and static shapes; without, a tenth of "
    "--cases.", lower_bound=0, flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_string(
    "modes", "default",
    f"Further ways to call the op in each case, whose bits are compared: {', '.join(calls.CALLS)}; "
    "all; none; default: now one, now another.", flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_string(
    "may_differ", ",".join(sorted(workers.OTHER_KERNELS)),
    "Ways to call in which the candidate's bits may differ, as long as they are within the bounds.",
    flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_integer(
    "largest", None, "Leaves out random cases whose tensors have more elements.",
    lower_bound=0, flag_values=_FLAGS,
)  # fmt: skip
merge.define_outputs(_FLAGS)
flags.DEFINE_integer(
    "shrink", 3, "Reduces this many failing cases, and prints each as a program of its own.",
    lower_bound=0, flag_values=_FLAGS,
)  # fmt: skip
flags.DEFINE_integer(
    "shrink_seconds", 20, "Seconds to reduce a failing case in.", lower_bound=1, flag_values=_FLAGS
)


def _chosen(what: str, given: Sequence[str], known: Sequence[str], short: str = "") -> list[str]:
    """The known names that were given; `short` is a prefix that may be left out."""
    by_name = {name.lower(): name for name in known}
    by_name |= {name.lower().removeprefix(short.lower()): name for name in known}
    result = []
    for name in given:
        if name.lower() not in by_name or not name:
            raise UsageError(f"{name!r} is not a known {what}; known: {', '.join(known)}")
        result.append(by_name[name.lower()])
    return result


def _combinations() -> list[tuple[str, str, str, str]]:
    combos = cases.combinations(
        _chosen("op", _FLAGS.op, tuple(spec.OPS), "FusedBatchNormGrad"),
        _chosen("dtype", _FLAGS.dtype, tuple(spec.DTYPES)),
        _chosen("layout", _FLAGS.layout, tuple(spec.LAYOUTS)),
    )
    if not combos:
        raise UsageError("no op has this combination of --op, --dtype and --layout")
    return combos


def _those_that_it_has(
    combos: list[tuple[str, str, str, str]], has: Sequence[str]
) -> list[tuple[str, str, str, str]]:
    """The combinations whose op the candidate has: without --op, it need not have all."""
    missing = sorted({op for op, *_ in combos} - set(has))
    left = [combo for combo in combos if combo[0] in has]
    if missing and (_FLAGS.op or not left):
        raise UsageError(f"{_FLAGS.candidate} has no {' and no '.join(missing)}")
    return left


def _entries() -> tuple[list[mapping.Mapped], list[general.Described]]:
    """What --map and --mapping say: of batch-norm gradients, of other ops."""
    mapped = [mapping.parse(text) for text in _FLAGS["map"].value]
    described = []
    for entry in mapping.load(pathlib.Path(_FLAGS.mapping)) if _FLAGS.mapping is not None else ():
        if isinstance(entry, general.Described):
            described.append(entry)
        else:
            mapped.append(entry)
    if mapped and described:
        raise UsageError(
            f"{mapped[0].name} is a batch-norm gradient, {described[0].name} is not: map them in "
            "files of their own, and run one after the other"
        )
    return mapped, described


def _candidate() -> workers.Implementation:
    """What is judged: --candidate, or the mapped ops of --library."""
    mapped, _ = _entries()
    if _FLAGS.library is None:
        if mapped:
            raise UsageError("--map and --mapping say what is in a --library; give one")
        _check_library(_FLAGS.candidate)
        if _FLAGS.candidate == workers.OWN_OPS:
            return workers.own()
        if _FLAGS.candidate in _BUILTIN:
            return workers.builtin(runner.CANDIDATE, _BUILTIN[_FLAGS.candidate])
        return workers.Implementation(runner.CANDIDATE, _FLAGS.candidate, cannot=_cannot())
    if _FLAGS["candidate"].present:
        raise UsageError("give either --candidate or --library, not both")
    if not mapped:
        raise UsageError(
            "say what the ops of --library claim to equal: --map 'TheirOp=FusedBatchNormGradV3', "
            "or a file with --mapping"
        )
    if not pathlib.Path(_FLAGS.library).is_file():
        raise UsageError(f"there is no library {_FLAGS.library}")
    found = workers.of_library(runner.CANDIDATE, _FLAGS.library, mapping.by_op(mapped))
    return dataclasses.replace(found, cannot=_cannot())


def _print_signatures(
    console: rich.console.Console, signatures: Mapping[str, tuple[list[str], list[str]]]
) -> None:
    """Says how the signatures of another library's ops differ, before any case runs.

    Raises:
      UsageError: an op cannot be called as it is mapped.
    """
    for name, (fatal, other) in signatures.items():
        if fatal:
            raise UsageError(
                f"{name} cannot be called as it is mapped: {'; '.join(fatal)} (a mapping file "
                "can rename inputs and attrs)"
            )
        for difference in other:
            console.print(f"signature of {name}: {difference}", markup=False, soft_wrap=True)
        if not other:
            console.print(f"signature of {name}: as mapped, no difference", markup=False)


def _named_calls(text: str) -> list[str]:
    names = list(calls.CALLS)
    return names if text == "all" else _chosen("mode", [n for n in text.split(",") if n], names)


def _modes() -> list[str] | None:
    """The further calls that every case gets; None: those of the default run."""
    if _FLAGS.modes == "default":
        return None
    return _named_calls("" if _FLAGS.modes == "none" else _FLAGS.modes)


def _cannot() -> dict[str, str]:
    """Further calls that the kernels of others are not asked for."""
    return {} if _modes() else _CANNOT


def _random_cases(combos: list[tuple[str, str, str, str]]) -> list[Case]:
    """The cases that are made from the seed."""
    values = [
        case
        for case in cases.generate(_FLAGS.cases, _FLAGS.seed, combos)
        if _FLAGS.largest is None or math.prod(case.shape) <= _FLAGS.largest
    ]
    count = _FLAGS.cases // _CONTRACT_SHARE if _FLAGS.contract is None else _FLAGS.contract
    contracts = contract.generate(count, _FLAGS.seed, combos)
    return [*calls.attach(values, _FLAGS.seed, _modes()), *contracts]


def _settings(candidate: workers.Implementation, known: divergences.Register) -> runner.Settings:
    may_differ = candidate.may_differ
    if candidate.drop_in and not _FLAGS["may_differ"].present:
        may_differ = frozenset()  # XLA calls the same kernels.
    elif candidate.path == runner.CANDIDATE:
        may_differ = frozenset(_named_calls(_FLAGS.may_differ))
    return runner.Settings(
        _profile(), known, candidate.path, may_differ, candidate.drop_in, candidate.mapped
    )


def _memory() -> int:
    """Bytes that each worker may have; 0: no limit."""
    if _FLAGS.memory is not None:
        return int(_FLAGS.memory * 2**30)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _profile() -> bounds.Profile:
    name = _FLAGS.bounds
    others = _FLAGS.library is not None or _FLAGS.candidate in _BUILTIN
    if others and not _FLAGS["bounds"].present:
        name = "textbook"
    return bounds.PROFILES[name]


def _check_library(candidate: str) -> None:
    """Says early that the own library is not built: a worker would say it seconds later."""
    if candidate == workers.OWN_OPS:
        _loader.library_path()


def _replay_command() -> str:
    flags_given = [
        f"--{name}={value}"
        for name in ("candidate", "library", "map", "mapping", "bounds", "may_differ")
        if _FLAGS[name].value != _FLAGS[name].default
        for value in (_FLAGS.map if name == "map" else [_FLAGS[name].value])
    ]
    quoted = [shlex.quote(flag) for flag in flags_given]
    return " ".join([_COMMAND, *quoted, "--repro"])


class _Input:
    """Where the numbers of a case come from."""

    def __init__(self, needs_real: bool):
        self._capture = real_input.Capture() if needs_real else None
        self._real: real_input.RealInput | None = None

    def real(self) -> real_input.RealInput:
        if self._real is None:
            assert self._capture is not None
            self._real = self._capture.result()
        return self._real

    def fill(self, case: Case) -> fills.Filled:
        if not case.asks_for_values:
            return contract.fill(case)
        return self.real().fill(case) if case.is_real else fills.fill(case)

    def close(self) -> None:
        if self._capture is not None:
            self._capture.close()


def _progress(console: rich.console.Console) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _circumstances(
    argv: Sequence[str],
    candidate: Mapping[str, Any],
    facts: Mapping[str, Any],
    bounds_name: str,
) -> dict[str, Any]:
    """The fields of the record that say what is run, how and where, but for the shard."""
    return {
        "schema": record_lib.VERSION,
        "command": " ".join([_COMMAND, *map(shlex.quote, argv)]),
        "replay": _replay_command(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "settings": {
            **{name: _FLAGS[name].value for name in _SETTINGS},
            "selection": {name: list(_FLAGS[name].value) for name in ("op", "dtype", "layout")},
            "bounds": bounds_name,
        },
        "versions": environment.versions(facts),
        "machines": [environment.describe(facts)],
        "candidate": candidate,
    }


def _judged(candidate: workers.Implementation, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The field "candidate" of the record."""
    library = _FLAGS.library
    if candidate.ops == workers.OWN_OPS:
        library = _loader.library_path()
    mapped = []
    for entry in (candidate.mapped or {}).values():
        fatal, other = facts.get("signatures", {}).get(entry.name, ([], []))
        mapped.append(general_run.mapped_record(entry, _BUILT_IN_ORACLE, [*fatal, *other]))
    return {
        "ops": candidate.ops,
        "digest": environment.digest(pathlib.Path(library)) if library else None,
        "mapped": mapped,
    }


def _add_programs(
    found: Sequence[dict[str, Any]],
    candidate: workers.Implementation,
    runner_of_candidate: workers.Runner,
    given: _Input,
    settings: runner.Settings,
) -> None:
    """Reduces the first failures of each kind, and adds them to their entries as programs."""
    if not shrink.is_possible() and not _FLAGS["shrink"].present:
        return
    # A bad call is small as it is.
    numbers = [e for e in found if not e["kind"].startswith(contract.PREFIXES)]
    for entry in record_lib.first_of_their_kind(numbers, _FLAGS.shrink):
        case = cases.parse(entry["case"])
        filled = given.fill(case)
        case = dataclasses.replace(case, call=case.calls[0])  # The one that the numbers are of.
        problem = shrink.shrink(
            shrink.Problem(case, filled),
            record_lib.wrong(entry),
            runner_of_candidate,
            settings,
            _FLAGS.shrink_seconds,
        )
        entry["script"] = script.program(problem, entry["case"], candidate, settings)


def _run_general(
    console: rich.console.Console, argv: Sequence[str], entries: list[general.Described]
) -> int:
    """Runs ops that are not batch norm."""
    for name in ("op", "dtype", "layout", "candidate", "bounds"):
        if _FLAGS[name].present:
            raise UsageError(f"--{name} is for batch-norm gradients; the mapping file says it here")
    if _FLAGS.library is None or not pathlib.Path(_FLAGS.library).is_file():
        raise UsageError(f"there is no library {_FLAGS.library}")
    shard = shards.Shard.parse(_FLAGS.shard) if _FLAGS.shard is not None else None
    merge.check_outputs(_FLAGS)
    started = time.monotonic()
    library, file = pathlib.Path(_FLAGS.library), pathlib.Path(_FLAGS.mapping)
    run = general_run.Runner(entries, library, file.parent, _FLAGS.timeout, _memory())
    try:
        run.wait_until_ready()
        signatures = run.facts["signatures"]
        _print_signatures(console, signatures)
        run.describe()
        for entry in entries:
            if entry.oracle is None:
                console.print(
                    f"{entry.name}: no oracle is given, so this is a plain two-way diff with "
                    f"TensorFlow's {entry.like}: where both are wrong alike, it passes",
                    markup=False, soft_wrap=True,
                )  # fmt: skip
        whole = [run.parse(_FLAGS.repro)] if _FLAGS.repro else run.cases(_FLAGS.cases, _FLAGS.seed)
        chosen = (shard or shards.Shard(1, 1)).of(whole, _FLAGS.seed)
        found = []
        with _progress(console) as progress:
            task = progress.add_task("conformance", total=len(chosen))
            for entry_of_case in run.run(chosen):
                found.append(entry_of_case)
                progress.update(task, advance=1)
        candidate = {
            "ops": f"library:{library.resolve()}",
            "digest": environment.digest(library),
            "mapped": [
                general_run.mapped_record(e, e.oracle, signatures[e.name][1]) for e in entries
            ],
        }
        record = {
            **_circumstances(argv, candidate, run.facts, "those of the mapping file"),
            "seconds": round(time.monotonic() - started, 3),
            "shard": dataclasses.asdict(shard) if shard else None,
            "total": len(whole),
            "implementations": run.names,
            "divergences": [],
            "cases": found,
        }
        return merge.report(console, record, _FLAGS)
    finally:
        run.close()


def _run(console: rich.console.Console, argv: Sequence[str]) -> int:
    if described := _entries()[1]:
        return _run_general(console, argv, described)
    shard = shards.Shard.parse(_FLAGS.shard) if _FLAGS.shard is not None else None
    repro = cases.parse(_FLAGS.repro) if _FLAGS.repro is not None else None
    combos = _combinations()
    known = divergences.Register.load()
    candidate = _candidate()
    if candidate.mapped is not None:
        entries = candidate.mapped
        combos = [c for c in combos if c[0] in entries and entries[c[0]].claims(*c[1:])]
        if not combos or (repro and candidate.answers_with(repro) is None):
            raise UsageError("no mapped op claims what --op, --dtype, --layout or --repro ask for")
    merge.check_outputs(_FLAGS)
    if _FLAGS["shrink"].present and _FLAGS.shrink:
        shrink.check_possible()
    started = time.monotonic()
    given = _Input(repro.is_real if repro else _FLAGS.real)
    implementations = [candidate, *workers.references(candidate.mapped or {})]
    ops = {repro.op} if repro else {op for op, *_ in combos}
    if any(spec.OPS[op].builtin is None for op in ops):
        implementations.append(workers.AUTODIFF)
    # By default the built-in's calls are compared only where that needs no further process.
    running = [
        workers.Worker(i, _FLAGS.timeout, _memory(), i is candidate or _modes() is not None)
        for i in implementations
    ]
    try:
        for worker in running:
            worker.wait_until_ready()
        _print_signatures(console, running[0].facts.get("signatures", {}))
        if not repro:
            combos = _those_that_it_has(combos, running[0].facts["ops"])
        settings = _settings(candidate, known)
        if repro:
            whole = [repro]
        else:
            # The capture has been running while TensorFlow started: the wait is short.
            real = given.real().make_cases(combos) if _FLAGS.real else ()
            whole = [*_random_cases(combos), *calls.attach(real, _FLAGS.seed, _modes())]
        chosen = (shard or shards.Shard(1, 1)).of(whole, _FLAGS.seed)
        for worker in running:
            worker.expect({call for _, case in chosen for call in case.calls})
        speed = speed_lib.Speed(lambda: [pid for worker in running for pid in worker.pids])
        found = []
        with _progress(console) as progress:
            task = progress.add_task("conformance", total=len(chosen))
            results = runner.run((case for _, case in chosen), given.fill, running, settings)
            for (index, _), result in zip(chosen, results, strict=True):
                found.append(record_lib.of_result(index, result))
                progress.update(task, advance=1)
                if repro:
                    terminal.print_details(console, result)
        _add_programs(found, candidate, running[0], given, settings)
        record = {
            **_circumstances(
                argv, _judged(candidate, running[0].facts), running[0].facts, _profile().name
            ),
            "seconds": round(time.monotonic() - started, 3),
            "shard": dataclasses.asdict(shard) if shard else None,
            "total": len(whole),
            "implementations": [i.name for i in implementations],
            "divergences": record_lib.of_divergences(known),
            "cases": found,
        }
        said = speed.describe(len(chosen))  # Before reports are written.
        status = merge.report(console, record, _FLAGS)
        console.print(said)
        return status
    finally:
        for worker in running:
            worker.close()
        given.close()


def main(argv: Sequence[str]) -> int:
    """Runs the command; argv is its name, then flags; returns the exit status."""
    if argv[1:2] == ["merge"]:
        return merge.main([f"{argv[0]} merge", *argv[2:]])
    errors = (
        CaseError,
        devices.DeviceError,
        divergences.DivergenceError,
        general.GeneralError,
        mapping.MappingError,
        real_input.RealInputError,
        record_lib.RecordError,
        shards.ShardError,
        shrink.ShrinkError,
        workers.WorkerError,
    )
    return command.run(argv, __doc__, _FLAGS, lambda: _run(merge.console(), list(argv)[1:]), errors)
