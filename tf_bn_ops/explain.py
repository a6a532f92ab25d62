"""`doctor --explain`: what a call on the CPU would do, and why, without running it."""

from __future__ import annotations

import re

from tf_bn_ops import spec
from tf_bn_ops.harness import c_abi, machine
from tf_bn_ops.harness.command import UsageError

USAGE = "SHAPE,LAYOUT,DTYPE[,MODE][,OP][,in_place][,threads=N]"
EXAMPLE = "32x56x56x64,NHWC,half"

_MAX_THREADS = 1 << 16


def explain(text: str) -> c_abi.Plan:
    """The plan of the call that `text` describes in the form of USAGE.

    MODE is training (the default) or frozen. OP is an op or a formula; the default is the
    first-order gradient. Without threads=N there are as many as this process has processors.

    Raises:
      UsageError: `text` is malformed, or there is no such call.
      LibraryError, OSError: the core library is missing or damaged.
    """
    shape_text, layout, dtype, *options = _split(text)
    shape = _shape(shape_text, layout)
    if dtype not in spec.DTYPES:
        raise UsageError(_unknown("element type", dtype, spec.DTYPES))
    formulas = {op.name: op.formula for op in spec.OPS.values()}
    formulas.update({formula: formula for formula in formulas.values()})
    mode, formula, in_place, threads = "training", spec.BATCH_NORM_GRAD, False, machine.cores()
    for option in options:
        if option in spec.MODES:
            mode = option
        elif option in formulas:
            formula = formulas[option]
        elif option == "in_place":
            in_place = True
        elif option.startswith("threads="):
            threads = _threads(option.removeprefix("threads="))
        else:
            known = [*spec.MODES, "in_place", "threads=N", *formulas]
            raise UsageError(_unknown("option", option, known))
    try:
        return c_abi.explain(
            formula,
            spec.view_shape(shape, layout),
            dtype=dtype,
            is_training=mode == "training",
            in_place=in_place,
            threads=threads,
        )
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be explained: {error}") from error


def lines(plan: c_abi.Plan) -> list[str]:
    """The plan for people: the call, then a line for each decision with its reason."""
    call, width = plan.call, max(len(field.name) for field in plan.fields)
    value_width = max(len(field.value) for field in plan.fields)
    return [
        f"{call['formula']}, {call['mode']}, {call['dtype']}, view [outer, channels, inner] = "
        f"[{call['view'].replace('x', ', ')}], {call['threads_offered']} threads offered",
        f"{call['backend']}: {call['isa']} of version {plan.machine['version']}; "
        f"L2 {int(call['l2_bytes']) / 2**20:g} MiB, LLC {int(call['llc_bytes']) / 2**20:g} MiB "
        "counted on",
        "",
        *(
            f"{field.name:{width}}  {field.value:{value_width}}  {field.why or ''}".rstrip()
            for field in plan.fields
        ),
    ]


def _split(text: str) -> list[str]:
    parts = text.split(",")
    if len(parts) < 3:
        raise UsageError(f"{text!r} is not of the form {USAGE}, such as {EXAMPLE}")
    return parts


def _shape(text: str, layout: str) -> tuple[int, ...]:
    if layout not in spec.LAYOUTS:
        raise UsageError(_unknown("layout", layout, spec.LAYOUTS))
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise UsageError(f"the shape {text!r} is not a list of sizes such as 32x56x56x64")
    shape = tuple(map(int, text.split("x")))
    rank, _ = spec.LAYOUTS[layout]
    if len(shape) != rank:
        raise UsageError(f"the shape {text} has {len(shape)} dimensions, but {layout} has {rank}")
    return shape


def _threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_THREADS:
        raise UsageError(f"threads={text} is not a number of threads from 1 to {_MAX_THREADS}")
    return int(text)


def _unknown(what: str, text: str, known: object) -> str:
    names = ", ".join(map(str, known))  # type: ignore[call-overload]
    return f"there is no {what} {text!r}: it is one of {names}"
