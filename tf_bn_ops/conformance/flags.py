"""The flags of `python -m tf_bn_ops conformance`, and what they say as values."""

from __future__ import annotations

import argparse
import pathlib
import shlex
from collections.abc import Sequence

from tf_bn_ops import _command, _loader, spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases import generate, mapping
from tf_bn_ops.conformance.cases.case import FOREIGN_SHAPES, KINDS
from tf_bn_ops.conformance.cases.execution_modes import EXECUTION_MODES
from tf_bn_ops.conformance.cases.generate import Combination
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution import implementations
from tf_bn_ops.conformance.execution.implementations import Implementation
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.reports import report_command
from tf_bn_ops.harness import machine

# Of an op of another library: they have every pair of properties (cases/coverage.py).
CASES_PER_MAPPED_OP = 500
DEFAULT_SEED = 1
COMMAND = "python -m tf_bn_ops conformance"

# Flags whose values the record keeps as they are.
SETTINGS = ("seed", "timeout", "shrink", "x")
# Filters of the combinations; the record has them under the same names.
SELECTION = ("ops", "dtypes", "layouts", "modes")

# --candidate -> the path of the built-in that it names.
BUILTIN = {
    implementations.BUILTIN_OPS: implementations.default_path(),
    **{path: path for path in implementations.PATHS},
}

# Execution modes that a third party's kernels are run in only where --execution-modes says so:
# TensorFlow's usual access to an input, Tensor::flat, aborts on a tensor that it has not allocated.
_CANNOT = {"unaligned": "only with --execution-modes"}

# Runs of fewer cases are samples.
LEAST_WHOLE = 1000

_COUNT = _command.number(0, 10**6)


def _execution_modes(text: str) -> list[str] | None:
    chosen = {"default": None, "none": [], "all": list(EXECUTION_MODES)}
    read = _command.names("execution mode", tuple(EXECUTION_MODES))
    return chosen[text] if text in chosen else read(text)


def add_selection(parser: argparse.ArgumentParser, cases: str) -> None:
    """Adds the flags that say which cases there are, `cases` how many, and what is right."""
    add = parser.add_argument
    add("--cases", type=_COUNT, metavar="N", help=f"number of random cases; default: {cases}")
    add("--seed", type=_command.number(0, 2**63 - 1), default=DEFAULT_SEED, metavar="N",
        help=f"random cases are drawn from it; default: {DEFAULT_SEED}")  # fmt: skip
    for name, known, short in (
        ("ops", spec.OPS, "FusedBatchNormGrad"), ("dtypes", spec.DTYPES, ""),
        ("layouts", spec.LAYOUTS, ""), ("modes", spec.MODES, ""),
    ):  # fmt: skip
        example = "V3,V2" if name == "ops" else ",".join(list(known)[:2])
        add(f"--{name}", type=_command.names(name.removesuffix("s"), tuple(known), short),
            default=[], metavar="NAMES", help=f"only these {name}, such as {example}")  # fmt: skip
    add("--bounds", choices=list(bounds.PROFILES),
        help="what is right: this library's promise (its default), what a careful float32 kernel "
        "reaches (of others' ops), what any float32 sum meets (of the built-in)")  # fmt: skip


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a run."""
    of_own = "each kind of inputs in each combination, and all pairs"
    add_selection(parser, f"{of_own}; of a mapped op {CASES_PER_MAPPED_OP}")
    add = parser.add_argument
    kinds = "; ".join(f"{name}: {what}" for name, what in KINDS.items())
    add("--kinds", type=_command.names("kind of cases", tuple(KINDS)), default=[], metavar="NAMES",
        help=f"{kinds}; default: all, below {LEAST_WHOLE} --cases without the last")  # fmt: skip
    add("--execution-modes", type=_execution_modes, metavar="NAMES",
        help=f"run each case also in these, whose results are bitwise identical: "
        f"{', '.join(EXECUTION_MODES)}; all; none; default: a random subset")  # fmt: skip
    add("--repro", type=generate.parse, metavar="CASE",
        help="run this case alone, as a report has printed it, and print its details")  # fmt: skip
    add("--candidate", metavar="OPS",
        help="the ops to judge, as module:attribute, instead of this library's; tensorflow:raw_ops "
        "judges the built-in, onednn or eigen one of its paths")  # fmt: skip
    add(
        "--library", metavar="FILE", help="judge ops of this library, which --map or --mapping name"
    )
    add("--map", type=mapping.parse, action="append", default=[], metavar="THEIRS=OURS",
        help="what an op of --library claims to equal; repeatable")  # fmt: skip
    add("--mapping", metavar="FILE", help="the same as TOML: renamed inputs, dtypes, tolerances")
    add("--device", type=mapping.parse_device, metavar="NAME",
        help="judge TensorFlow's ops on this device; --library: its plugin")  # fmt: skip
    add("--timeout", type=_command.number(1, 10**6), default=120, metavar="S",
        help="seconds after which a case counts as hanging; default: 120")  # fmt: skip
    add("--memory", type=_command.number(0, 2**20, float), metavar="GIB",
        help="what the process of an implementation may have; 0: no limit; default: half of what "
        "the machine or container has")  # fmt: skip
    add("--shrink", type=_COUNT, default=3, metavar="N",
        help="reduce this many failing cases to programs; default: 3")  # fmt: skip
    add("-x", action="store_true", help="end with the first case that fails")
    report_command.add_outputs(parser)


def combinations(given: argparse.Namespace) -> list[Combination]:
    """The combinations that --ops, --dtypes, --layouts and --modes let through."""
    combos = generate.combinations(given.ops, given.dtypes, given.layouts, given.modes)
    if not combos:
        raise UsageError("no op has this combination of --ops, --dtypes, --layouts and --modes")
    return combos


def available(
    given: argparse.Namespace, combos: list[Combination], has: Sequence[str]
) -> list[Combination]:
    """The combinations whose op the candidate has: without --ops, it need not have all."""
    missing = sorted({op for op, *_ in combos} - set(has))
    left = [combo for combo in combos if combo[0] in has]
    if missing and (given.ops or not left):
        who = given.candidate or implementations.OWN_OPS
        raise UsageError(f"{who} has no {' and no '.join(missing)}")
    return left


def mapped_ops(given: argparse.Namespace) -> dict[str, OpMapping]:
    """What --map and --mapping say, by the op that each claims to equal."""
    entries = [*given.map, *(mapping.load(pathlib.Path(given.mapping)) if given.mapping else ())]
    if entries and given.library is None:
        raise UsageError("--map and --mapping say what is in a --library; give one")
    return mapping.by_op(entries)


def candidate(given: argparse.Namespace, entries: dict[str, OpMapping]) -> Implementation:
    """What is judged: --candidate, the mapped ops of --library, or TensorFlow's on --device."""
    cannot = {} if given.execution_modes else _CANNOT
    if given.library is not None and not pathlib.Path(given.library).is_file():
        raise UsageError(f"there is no library {given.library}")
    if given.device is not None:
        if entries or given.candidate:
            raise UsageError(
                "--device judges TensorFlow's own ops: leave out --candidate and --map"
            )
        return implementations.on_device(given.device, given.library)
    if given.library is None:
        if given.candidate in (None, implementations.OWN_OPS):
            _loader.library_path()  # Raises early where it is not built.
            return implementations.own()
        if given.candidate in BUILTIN:
            return implementations.builtin(implementations.CANDIDATE, BUILTIN[given.candidate])
        return Implementation(implementations.CANDIDATE, given.candidate, cannot=cannot)
    if given.candidate:
        raise UsageError("give either --candidate or --library, not both")
    if not entries:
        raise UsageError(
            "say what the ops of --library claim to equal: --map 'TheirOp=FusedBatchNormGradV3', "
            "or a file with --mapping"
        )
    return implementations.of_library(given.library, entries, cannot)


def memory(given: argparse.Namespace) -> int:
    """Bytes that each worker may have; 0: no limit."""
    return machine.memory() // 2 if given.memory is None else int(given.memory * 2**30)


def cases(given: argparse.Namespace, entries: dict[str, OpMapping]) -> int | None:
    """The number of random cases of a run, of these mapped ops if there are any; None: as many as
    have each kind of inputs in each combination, and all pairs."""
    return given.cases if given.cases is not None else CASES_PER_MAPPED_OP * len(entries) or None


def kinds(given: argparse.Namespace, count: int | None) -> frozenset[str]:
    """The kinds of cases of a run of so many random ones."""
    is_sample = count is not None and count < LEAST_WHOLE
    return frozenset(given.kinds or set(KINDS) - ({FOREIGN_SHAPES} if is_sample else set()))


def profile(given: argparse.Namespace) -> bounds.Profile:
    """The bounds that the candidate is held to."""
    name = given.bounds
    if name is None and given.candidate in BUILTIN and given.library is given.device is None:
        name = "textbook"
    is_own = given.candidate in (None, implementations.OWN_OPS)
    is_own &= given.library is given.device is None
    return bounds.PROFILES[name or ("strict" if is_own else "float32")]


def replay_command(given: argparse.Namespace) -> str:
    """The command that runs a case again when its string is appended."""
    values = [
        *((name, getattr(given, name)) for name in ("candidate", "device", "library")),
        *(("map", f"{entry.name}={entry.like}") for entry in given.map),
        *((name, getattr(given, name)) for name in ("mapping", "bounds")),
    ]
    words = [f"--{name}={value}" for name, value in values if value is not None]
    return " ".join([COMMAND, *map(shlex.quote, words), "--repro"])
