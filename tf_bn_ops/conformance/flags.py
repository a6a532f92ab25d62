"""The flags of `python -m tf_bn_ops conformance`, and what they say as values."""

from __future__ import annotations

import math
import pathlib
import shlex
from collections.abc import Sequence

from absl import flags

from tf_bn_ops import _loader, spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases import generate, mapping
from tf_bn_ops.conformance.cases.case import FOREIGN_SHAPES, KINDS
from tf_bn_ops.conformance.cases.execution_modes import EXECUTION_MODES
from tf_bn_ops.conformance.cases.generate import Combination
from tf_bn_ops.conformance.cases.mapping import OpMapping
from tf_bn_ops.conformance.execution import implementations
from tf_bn_ops.conformance.execution.implementations import Implementation
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.reports import merge
from tf_bn_ops.harness import machine

# Of an op of another library: they have every pair of properties (cases/coverage.py).
CASES_PER_MAPPED_OP = 500
DEFAULT_SEED = 1
COMMAND = "python -m tf_bn_ops conformance"

# Flags whose values the record keeps as they are.
SETTINGS = ("seed", "cases", "repro", "timeout", "shrink", "x", "execution_modes")
# Filters of the combinations; the record has them under the same names.
SELECTION = ("ops", "dtypes", "layouts", "modes")

# --candidate -> the path of the built-in that it names.
BUILTIN = {
    implementations.BUILTIN_OPS: implementations.default_path(),
    **{path: path for path in implementations.PATHS},
}

# Execution modes that a third party's kernels are run in only where --execution_modes says so:
# TensorFlow's usual access to an input, Tensor::flat, aborts on a tensor that it has not allocated.
_CANNOT = {"unaligned": "only with --execution_modes"}

# Runs of fewer cases are samples.
LEAST_WHOLE = 1000

VALUES = flags.FlagValues()


def _integer(name: str, default: int | None, text: str, least: int = 0, most: int = 10**6) -> None:
    flags.DEFINE_integer(name, default, text, least, most, flag_values=VALUES)


def _string(name: str, default: str | None, text: str) -> None:
    flags.DEFINE_string(name, default, text, flag_values=VALUES)


_integer(
    "cases", None,
    "Number of random cases; default: as many as have each kind of inputs in each combination and "
    f"all pairs; {CASES_PER_MAPPED_OP} for each mapped op.",
)  # fmt: skip
_integer("seed", DEFAULT_SEED, "Random cases are drawn from this number.", most=2**63 - 1)
for _name, _text in (
    ("ops", "Ops to run, for instance V3,V2; default: all."),
    ("dtypes", "Element types to run; default: all."),
    ("layouts", "Layouts to run; default: all."),
    ("modes", f"Modes to run, of {', '.join(spec.MODES)}; default: all."),
):
    flags.DEFINE_list(_name, [], _text, flag_values=VALUES)
_string("repro", None, "Runs this one case, as a report has printed it, and prints its details.")
flags.DEFINE_list(
    "kinds", [],
    f"Kinds of cases to run: {'; '.join(f'{name}: {what}' for name, what in KINDS.items())}; "
    f"default: all, but in runs of less than {LEAST_WHOLE} random cases without the last.",
    flag_values=VALUES,
)  # fmt: skip
_string(
    "candidate",
    implementations.OWN_OPS,
    "The ops to judge, as module:attribute; tensorflow:raw_ops judges the built-in, onednn or "
    "eigen one of its paths.",
)
_string("library", None, "An op library of a third party, whose ops --map or --mapping name.")
_string(
    "device",
    None,
    "Judges TensorFlow's own ops as placed on this device; --library: the plugin that it is of.",
)
flags.DEFINE_multi_string(
    "map", [], "TheirOp=FusedBatchNormGradV3: what an op of --library claims to equal; repeatable.",
    flag_values=VALUES,
)  # fmt: skip
_string("mapping", None, "TOML file that maps the ops of --library: renamed inputs, dtypes, ...")
flags.DEFINE_enum(
    "bounds", "strict", list(bounds.PROFILES),
    "What the candidate is held to: this library's promise, what a careful float32 kernel reaches "
    "(the default for ops of others), what any float32 sum meets (for the built-in).",
    flag_values=VALUES,
)  # fmt: skip
_integer("timeout", 120, "Seconds after which a case counts as hanging.", least=1)
flags.DEFINE_float(
    "memory", None, "GiB that the process of each implementation may have; a case that needs more "
    "has run out of memory; 0: no limit; default: half of what the machine or container has.",
    lower_bound=0, upper_bound=2**20, flag_values=VALUES,
)  # fmt: skip
flags.DEFINE_boolean("x", False, "Ends with the first case that fails.", flag_values=VALUES)
_string(
    "execution_modes",
    "default",
    "Further execution modes of each case, whose results have to be bitwise identical: "
    f"{', '.join(EXECUTION_MODES)}; all; none; default: a random subset.",
)
merge.define_outputs(VALUES)
_integer("shrink", 3, "Reduces this many failing cases, and prints each as a program of its own.")


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


def combinations() -> list[Combination]:
    """The combinations that --ops, --dtypes, --layouts and --modes let through."""
    combos = generate.combinations(
        _chosen("op", VALUES.ops, tuple(spec.OPS), "FusedBatchNormGrad"),
        _chosen("dtype", VALUES.dtypes, tuple(spec.DTYPES)),
        _chosen("layout", VALUES.layouts, tuple(spec.LAYOUTS)),
        _chosen("mode", VALUES.modes, spec.MODES),
    )
    if not combos:
        raise UsageError("no op has this combination of --ops, --dtypes, --layouts and --modes")
    return combos


def available(combos: list[Combination], has: Sequence[str]) -> list[Combination]:
    """The combinations whose op the candidate has: without --ops, it need not have all."""
    missing = sorted({op for op, *_ in combos} - set(has))
    left = [combo for combo in combos if combo[0] in has]
    if missing and (VALUES.ops or not left):
        raise UsageError(f"{VALUES.candidate} has no {' and no '.join(missing)}")
    return left


def mapped_ops() -> dict[str, OpMapping]:
    """What --map and --mapping say, by the op that each claims to equal."""
    entries = [mapping.parse(text) for text in VALUES["map"].value]
    if VALUES.mapping is not None:
        entries += mapping.load(pathlib.Path(VALUES.mapping))
    if entries and VALUES.library is None:
        raise UsageError("--map and --mapping say what is in a --library; give one")
    return mapping.by_op(entries)


def candidate(entries: dict[str, OpMapping]) -> Implementation:
    """What is judged: --candidate, the mapped ops of --library, or TensorFlow's on --device."""
    cannot = {} if execution_modes() else _CANNOT
    if VALUES.library is not None and not pathlib.Path(VALUES.library).is_file():
        raise UsageError(f"there is no library {VALUES.library}")
    if VALUES.device is not None:
        if entries or VALUES["candidate"].present:
            raise UsageError(
                "--device judges TensorFlow's own ops: leave out --candidate and --map"
            )
        return implementations.on_device(mapping.parse_device(VALUES.device), VALUES.library)
    if VALUES.library is None:
        if VALUES.candidate == implementations.OWN_OPS:
            _loader.library_path()  # Raises early where it is not built.
            return implementations.own()
        if VALUES.candidate in BUILTIN:
            return implementations.builtin(implementations.CANDIDATE, BUILTIN[VALUES.candidate])
        return Implementation(implementations.CANDIDATE, VALUES.candidate, cannot=cannot)
    if VALUES["candidate"].present:
        raise UsageError("give either --candidate or --library, not both")
    if not entries:
        raise UsageError(
            "say what the ops of --library claim to equal: --map 'TheirOp=FusedBatchNormGradV3', "
            "or a file with --mapping"
        )
    return implementations.of_library(VALUES.library, entries, cannot)


def execution_modes() -> list[str] | None:
    """The further execution modes that every case gets; None: those of the default run."""
    names, text = list(EXECUTION_MODES), VALUES.execution_modes
    if text in ("default", "none", "all"):
        return {"default": None, "none": [], "all": names}[text]
    return _chosen("execution mode", [name for name in text.split(",") if name], names)


def memory() -> int:
    """Bytes that each worker may have; 0: no limit."""
    if VALUES.memory is None:
        return machine.memory() // 2
    if math.isnan(VALUES.memory):  # No bound of the flag refuses it.
        raise UsageError("--memory takes a number of GiB; nan is none")
    return int(VALUES.memory * 2**30)


def cases(entries: dict[str, OpMapping]) -> int | None:
    """The number of random cases of a run, of these mapped ops if there are any; None: as many as
    have each kind of inputs in each combination, and all pairs."""
    if VALUES.cases is not None:
        return int(VALUES.cases)
    return CASES_PER_MAPPED_OP * len(entries) or None


def kinds(count: int | None) -> frozenset[str]:
    """The kinds of cases of a run of so many random ones."""
    if VALUES.kinds:
        return frozenset(_chosen("kind of cases", VALUES.kinds, tuple(KINDS)))
    is_sample = count is not None and count < LEAST_WHOLE
    return frozenset(set(KINDS) - ({FOREIGN_SHAPES} if is_sample else set()))


def profile() -> bounds.Profile:
    """The bounds that the candidate is held to."""
    name = VALUES.bounds
    if not VALUES["bounds"].present:
        if VALUES.device is not None:
            name = "float32"
        elif VALUES.library is None and VALUES.candidate in BUILTIN:
            name = "textbook"
        elif VALUES.library is not None or VALUES.candidate != implementations.OWN_OPS:
            name = "float32"
    return bounds.PROFILES[name]


def replay_command() -> str:
    """The command that runs a case again when its string is appended."""
    names = ("candidate", "device", "library", "map", "mapping", "bounds")
    given = [
        f"--{name}={value}"
        for name in names
        if VALUES[name].value != VALUES[name].default
        for value in (VALUES.map if name == "map" else [VALUES[name].value])
    ]
    return " ".join([COMMAND, *map(shlex.quote, given), "--repro"])
