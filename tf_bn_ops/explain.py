"""`doctor --explain`: what a call on the CPU would do, and why, without running it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tf_bn_ops import spec
from tf_bn_ops._command import UsageError
from tf_bn_ops.harness import c_abi, machine

USAGE = "SHAPE,LAYOUT,DTYPE[,MODE][,OP][,side_input][,in_place][,threads=N]"
EXAMPLE = "32x56x56x64,NHWC,half"

# Limits of tfbn_explain.
_MAX_THREADS = 1 << 16
_MAX_ELEMENTS = 1 << 47


# What computes an op, by whether there is a side input. The other ops are parts of batch
# normalization, whose passes have no plan of their own.
_OPS = {
    op.name: {False: op.formula} for op in spec.OPS.values() if op.formula not in spec.ops.PARTS
} | {
    "FusedBatchNormEx": {False: spec.ops.BATCH_NORM, True: spec.ops.BATCH_NORM_ADD},
    "FusedBatchNormGradEx": {
        False: spec.ops.BATCH_NORM_GRAD_EX,
        True: spec.ops.BATCH_NORM_GRAD_EX_ADD,
    },
}
_FORMULAS = sorted({formula for of_op in _OPS.values() for formula in of_op.values()})


def explain(text: str) -> c_abi.Plan:
    """The plan of the call that `text` describes in the form of USAGE.

    MODE is training (the default) or frozen. OP is an op or a formula; the default is the
    first-order gradient. Without threads=N there are as many as this process has processors.

    Raises:
      UsageError: `text` is malformed, or there is no such call.
      LibraryError, OSError: the core library is missing or damaged.
    """
    parts = text.split(",")
    if len(parts) < 3:
        raise UsageError(f"{text!r} is not of the form {USAGE}, such as {EXAMPLE}")
    shape_text, layout, dtype, *rest = parts
    shape = _shape(shape_text, layout)
    if dtype not in spec.DTYPES:
        raise UsageError(_unknown("element type", dtype, spec.DTYPES))
    options = _options(rest)
    mode = options.get("mode", "training")
    formula = _formula(options, layout, dtype, mode)
    try:
        return c_abi.explain(
            formula,
            spec.view_shape(shape, layout),
            dtype=dtype,
            is_training=mode == "training",
            in_place="in_place" in options,
            threads=int(options.get("threads") or machine.cores()),
        )
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be explained: {error}") from error


def _options(texts: Iterable[str]) -> dict[str, str]:
    """What is given of mode, op (or a formula), side_input, in_place, threads."""
    options: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if text in spec.MODES:
            name, value = "mode", text
        elif text in _OPS or text in _FORMULAS:
            name, value = "op", text
        elif text not in ("side_input", "in_place") and not text.startswith("threads="):
            known = [*spec.MODES, "side_input", "in_place", "threads=N", *_OPS, *_FORMULAS]
            raise UsageError(_unknown("option", text, known))
        if name in options:
            raise UsageError(f"{name} is given twice: leave one of them out")
        options[name] = _threads(value) if name == "threads" else value
    return options


def _formula(options: dict[str, str], layout: str, dtype: str, mode: str) -> str:
    """The formula that computes the call."""
    side_input, name = "side_input" in options, options.get("op")
    if name in _FORMULAS or name is None:
        if side_input:
            with_one = " or ".join(name for name, of_op in _OPS.items() if True in of_op)
            raise UsageError(f"side_input goes with an op that may have one: {with_one}")
        return name or spec.ops.BATCH_NORM_GRAD
    op = spec.OPS[name]
    for what, given, known in (
        ("element type", dtype, op.dtypes),
        ("layout", layout, op.layouts),
        ("mode", mode, op.modes),
    ):
        if given not in known:
            raise UsageError(f"{op.name} has no {what} {given!r}: it has {', '.join(known)}")
    if side_input not in _OPS[op.name]:
        raise UsageError(f"{op.name} has no side input: leave side_input out")
    return _OPS[op.name][side_input]


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
    if layout not in spec.LAYOUTS:
        raise UsageError(_unknown("layout", layout, spec.LAYOUTS))
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


def _threads(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= _MAX_THREADS:
        raise UsageError(f"threads={text} is not a number of threads from 1 to {_MAX_THREADS}")
    return text


def _unknown(what: str, text: str, known: Iterable[str]) -> str:
    return f"there is no {what} {text!r}: it is one of {', '.join(known)}"
