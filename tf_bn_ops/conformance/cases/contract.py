"""Malformed calls: cases without values to compare. What is invalid is drawn from the case's seed.

Their kinds are "error/WHAT": the input or attr that WHAT names is invalid. What has to happen is
what TensorFlow's Eigen path does, the documented one: an error of the same code. An op without a
built-in twin has to refuse with one of REFUSALS. To accept, to abort, or to fail with another code
is wrong. The text is compared as well, names of ops taken out: a candidate that is a drop-in, as
the ops of this library are, must give the same; of others a difference is reported.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import ERROR_PREFIX, Case
from tf_bn_ops.conformance.cases.execution_modes import DRAWN
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.harness.problems import IDENTITY, VIEW_ROLES, Inputs

# Errors by which an op without a twin may refuse a call.
REFUSALS = ("InvalidArgumentError", "ValueError", "TypeError")


@dataclasses.dataclass
class _Draw:
    """A call that becomes invalid: a generator, the case, its inputs by role, its attrs."""

    rng: np.random.Generator
    case: Case
    values: dict[str, np.ndarray]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    @property
    def typed(self) -> list[str]:
        """The inputs with a contract on their type."""
        inputs = self.case.spec.inputs
        return [a.role for a in inputs if a.kind != spec.OPAQUE and a.role in self.values]

    @property
    def roles(self) -> list[str]:
        """The inputs with a contract on their rank: without an activation, its gradient reads
        neither offset nor y."""
        unread = () if _reads_y(self.case, self.attrs) else ("offset", "y")
        return [role for role in self.typed if role not in unread]

    @property
    def sized(self) -> list[str]:
        """The inputs with a contract on their size; what is not read may have any."""
        unread = () if reads_averages(self.case, self.attrs) else ("mean", "variance")
        return [role for role in self.roles if role not in unread and self.values[role].ndim]

    @property
    def views(self) -> list[str]:
        """The inputs of the shape of x."""
        return [role for role in self.roles if role in VIEW_ROLES]

    def reshape(self, role: str, shape: Sequence[int]) -> None:
        self.values[role] = np.ones(tuple(shape), self.values[role].dtype)


def _rank(d: _Draw) -> None:
    """One input, or all of view shape, have another rank."""
    role = d.one_of([*d.roles, "all"])
    shape = list(d.case.shape)
    if d.case.spec.formula in spec.ops.PARTS and (role == "all" or d.views == [role]):
        for r in d.views:  # Any rank from 1 on is right where all have it.
            d.reshape(r, [])
    elif role != "all" and not d.values[role].ndim:
        d.reshape(role, d.one_of([[1], [1, 1]]))
    elif role == "all" or role in VIEW_ROLES:
        # Not more than TensorFlow's data formats have: the next rank belongs to another format.
        new = d.one_of([[], shape[-1:], shape[2:], [1, 1, *shape[:-1], 2, 2]])
        if len(new) >= 2 and d.case.spec.builtin is None and role == "all":
            new = []  # Any rank from 2 on is right where all have it.
        for r in d.views if role == "all" else (role,):
            d.reshape(r, new)
    else:
        channels = d.values[role].shape[0]
        shapes = [(), (channels, 1), (1, channels)]
        if role == "offset" and "forward_coefficients" in d.values:
            # In its place, they say that the mask of an activation is computed from y.
            shapes = [s for s in shapes if s != d.values["forward_coefficients"].shape]
        d.reshape(role, d.one_of(shapes))


def _size(d: _Draw) -> None:
    """One input has another size."""
    role = d.one_of(d.sized)
    shape = list(d.values[role].shape)
    axis = int(d.rng.integers(len(shape)))
    if d.views == [role]:  # Nothing but the number of channels has to fit.
        axis = spec.channel_axis(d.case.layout)
    if role in VIEW_ROLES:
        shape[axis] += 1
    else:
        # Without offsets the mask of an activation is computed from y.
        is_optional = role == "offset" and d.case.spec.formula == spec.ops.BATCH_NORM_GRAD_EX
        allowed = (shape[0], 0) if is_optional else shape
        sizes = (0, 1, shape[0] - 1, shape[0] + 1)
        shape[axis] = d.one_of([n for n in sizes if n not in allowed])
    d.reshape(role, shape)


def _dtype(d: _Draw) -> None:
    """The tensors have a type that no kernel has, or one input differs from what belongs to it."""
    role = d.one_of(["all", *d.typed])
    if role == "all" or d.views == [role]:
        for r in d.views:
            d.values[r] = np.ones(d.values[r].shape, np.int32)
        return
    wrong = np.float16 if d.values[role].dtype != np.float16 else np.float32
    d.values[role] = np.ones(d.values[role].shape, wrong)


def _data_format(d: _Draw) -> None:
    """A data format that does not exist."""
    d.attrs["data_format"] = d.one_of(["NWHC", "", "nhwc", "NHWC "])


def _foreign_format(d: _Draw) -> None:
    """A data format of other ops."""
    d.attrs["data_format"] = "NCHW_VECT_C"


def _attr_type(d: _Draw) -> None:
    """An attr has a value of another type."""
    name = d.one_of([n for n in d.case.spec.attrs if n != "data_format"])
    d.attrs[name] = 5 if name == "activation_mode" else "perhaps"


ERRORS: Mapping[str, Callable[[_Draw], None]] = {
    "rank": _rank,
    "size": _size,
    "dtype": _dtype,
    "data_format": _data_format,
    "foreign_format": _foreign_format,
    "attr_type": _attr_type,
}


def kinds(op: spec.OpSpec) -> tuple[str, ...]:
    """The kinds that an op has."""
    formats = "data_format" in op.attrs
    # One tensor of any size is right.
    without = () if len(op.inputs) > 1 else ("size",)
    return tuple(
        ERROR_PREFIX + what
        for what in ERRORS
        if what not in without and (formats or not what.endswith("_format"))
    )


def fill(case: Case) -> Inputs:
    """The inputs and attrs of a case."""
    drawn = model_of(case.spec).fill(dataclasses.replace(case, kind="normal"))
    draw = _Draw(np.random.default_rng([case.seed, 3]), case, dict(drawn.values), dict(drawn.attrs))
    ERRORS[case.kind.removeprefix(ERROR_PREFIX)](draw)
    return Inputs(draw.values, attrs=draw.attrs)


def without_names(text: str, names: Sequence[str]) -> str:
    """An error's text without the names that an op and its nodes go by."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "OP")
    text = re.sub(r"\{\{[^}]*\}\}\s*", "", text)  # {{node OP}}, {{function_node ...}}
    text = re.sub(r"\s*\[Op:\w*\](\s*name:\s*\w*)?|\s*\[\[.*\]\]", "", text, flags=re.S)
    return text.strip()


def _reads_y(case: Case, attrs: Mapping[str, Any]) -> bool:
    """Whether an op that is behind an activation reads what that was computed from."""
    return case.spec.formula != spec.ops.BATCH_NORM_GRAD_EX or attrs["activation_mode"] != IDENTITY


def reads_averages(case: Case, attrs: Mapping[str, Any]) -> bool:
    """Whether an op with moving averages reads mean and variance; unread ones may have any size."""
    has_averages = case.is_training and "exponential_avg_factor" in case.spec.attrs
    return not has_averages or attrs.get("exponential_avg_factor") != 1


def generate(count: int, seed: int, combos: Sequence[tuple[str, str, str, str]]) -> Iterator[Case]:
    """`count` cases, the same for the same arguments on every machine; they go round over ops and,
    for each, over kinds, so that every kind of every op comes up soon."""
    rng = np.random.default_rng([seed, 4])
    ops = list(dict.fromkeys(combo[0] for combo in combos))
    for i in range(count if ops else 0):
        op = spec.OPS[ops[i % len(ops)]]
        of_op = [combo for combo in combos if combo[0] == op.name]
        _, dtype, layout, mode = of_op[int(rng.integers(len(of_op)))]
        known = kinds(op)
        # No size comes up twice: a kernel that takes one dimension for another shows.
        shape = tuple(int(n) for n in 2 + rng.permutation(spec.LAYOUTS[layout][0]))
        kind = known[(i // len(ops)) % len(known)]
        execution = DRAWN[int(rng.integers(len(DRAWN)))]
        seed_of_case = int(rng.integers(1 << 31))
        yield Case(
            op, dtype, kind, seed_of_case, layout, shape, mode, "given", 1e-3, execution=execution
        )
