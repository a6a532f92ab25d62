"""Prints what a call on the CPU would do, and why, without running it; it needs no TensorFlow.

For example `explain 32x56x56x64 NHWC half --threads=4`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re

from tf_bn_ops import _command, spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.harness import c_abi, machine

# Limits of tfbn_explain.
_MAX_THREADS = 1 << 16
_MAX_ELEMENTS = 1 << 47


# Ops, but for the parts of batch normalization, whose passes have no plan of their own.
_OPS = {op.name: op for op in spec.OPS.values() if op.formula not in spec.ops.PARTS}
_WITH_ACTIVATION = [name for name, op in _OPS.items() if "activation_mode" in op.attrs]
_FORMULAS = sorted({op.formula for op in _OPS.values()} | {spec.ops.BATCH_NORM_GRAD_EX_ADD})


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("shape", metavar="SHAPE", help="of x, such as 32x56x56x64")
    add("layout", metavar="LAYOUT", choices=[*spec.LAYOUTS], help=", ".join(spec.LAYOUTS))
    add("dtype", metavar="DTYPE", choices=[*spec.DTYPES], help=", ".join(spec.DTYPES))
    add(
        "--formula", metavar="NAME", choices=[*_OPS, *_FORMULAS], default=spec.ops.BATCH_NORM_GRAD,
        help="or an op that computes it; default: the first-order gradient, of "
        f"{', '.join([*_OPS, *_FORMULAS])}",
    )  # fmt: skip
    add("--activation", choices=[*spec.ACTIVATIONS], metavar="NAME", default="Identity",
        help=f"of {' and '.join(_WITH_ACTIVATION)}: {', '.join(spec.ACTIVATIONS)}")  # fmt: skip
    add("--frozen", action="store_true", help="the mode; default: training")
    add("--side-input", action="store_true", help="of an op that may have one")
    add("--in-place", action="store_true", help="into the memory of an input")
    add("--threads", type=_command.number(1, _MAX_THREADS), default=machine.cores(), metavar="N",
        help="default: the processors of this process")  # fmt: skip
    add("--format", choices=["text", "json"], default="text",
        help="json: print one JSON object instead of lines")  # fmt: skip


def execute(flags: argparse.Namespace) -> int:
    found = plan(flags)
    if flags.format == "json":
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        print("\n".join(lines(found)))
    return 0


def plan(flags: argparse.Namespace) -> c_abi.Plan:
    """The plan of the call that the flags describe.

    Raises:
      UsageError: there is no such call.
      LibraryError, OSError: the core library is missing or damaged.
    """
    view = spec.view_shape(_shape(flags.shape, flags.layout), flags.layout)
    formula = _formula(flags)
    try:
        return c_abi.explain(
            formula,
            view,
            dtype=flags.dtype,
            is_training=not flags.frozen,
            in_place=flags.in_place,
            threads=flags.threads,
            activation=flags.activation,
        )
    except ValueError as error:
        raise UsageError(f"{flags.shape} cannot be explained: {error}") from error


def _formula(flags: argparse.Namespace) -> str:
    """The formula of the core that computes the call."""
    op = _OPS.get(flags.formula)
    if op is None or op.name not in _WITH_ACTIVATION:
        for flag, given in (
            ("--side-input", flags.side_input),
            ("--activation", flags.activation != "Identity"),
        ):
            if given:
                raise UsageError(f"{flag} goes with --formula={' or '.join(_WITH_ACTIVATION)}")
    if op is None:
        return str(flags.formula)
    for what, given, known in (
        ("element type", flags.dtype, op.dtypes),
        ("layout", flags.layout, op.layouts),
        ("mode", spec.MODES[flags.frozen], op.modes),
    ):
        if given not in known:
            raise UsageError(f"{op.name} has no {what} {given!r}: it has {', '.join(known)}")
    if op.name not in _WITH_ACTIVATION:
        return op.formula
    is_forward = op.formula == spec.ops.BATCH_NORM_ADD
    base = spec.ops.BATCH_NORM if is_forward else spec.ops.BATCH_NORM_GRAD
    if flags.activation in spec.SMOOTH_ACTIVATIONS:
        base += "_smooth"
    elif not is_forward and flags.activation != "Identity":
        base = spec.ops.BATCH_NORM_GRAD_EX
    elif not is_forward:
        return base  # The gradient of the side input is y_backprop.
    return base + "_add" * flags.side_input


def lines(plan: c_abi.Plan) -> list[str]:
    """The plan for people: the call, then a line for each decision with its reason."""
    call = plan.call
    outer, channels, inner = call["view"].split("x")
    rows, in_place = _rows(plan), ", in place" * (call["in_place"] == "yes")
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [
        f"{call['formula']}, {call['mode']}, {call['dtype']}{in_place}: "
        f"view [outer={outer}, channels={channels}, inner={inner}], "
        f"threads offered: {call['threads_offered']}",
        f"ISA {call['isa']}, L2 {_size(int(call['l2_bytes']))}, "
        f"LLC {_size(int(call['llc_bytes']))} (tf_bn_ops {plan.machine['version']})",
        "",
        *(f"{name:{widths[0]}}  {value:{widths[1]}}  {why}" for name, value, why in rows),
    ]


def _rows(plan: c_abi.Plan) -> list[tuple[str, str, str]]:
    """(name, value, why) of the decisions; fields that follow from one stand beside its value."""
    rows: list[tuple[str, str, str]] = []
    applies = False
    for field in plan.fields:
        if field.why is not None:
            applies = field.reason != "not_applicable"
            if applies:
                why = re.sub(r"(\d+) bytes", lambda m: _size(int(m[1])), field.why)
                rows.append((field.name, field.value, why))
        elif applies:
            name, value, why = rows[-1]
            rows[-1] = (name, f"{value}, {field.name} {field.value}", why)
    return rows


def _size(count: int) -> str:
    """Bytes with the unit in which they are short."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} bytes"


def _shape(text: str, layout: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise UsageError(f"the shape {text!r} is not a list of sizes such as 32x56x56x64")
    # Python refuses to read numbers of thousands of digits, leading zeros included.
    sizes = [size.lstrip("0") or "0" for size in text.split("x")]
    is_long = any(len(size) > len(str(_MAX_ELEMENTS)) for size in sizes)
    if is_long or math.prod(shape := tuple(map(int, sizes))) > _MAX_ELEMENTS:
        raise UsageError(f"a tensor of the shape {text} is larger than any memory")
    rank, _ = spec.LAYOUTS[layout]
    if len(shape) != rank:
        raise UsageError(f"the shape {text} has {len(shape)} dimensions, but {layout} has {rank}")
    return shape
