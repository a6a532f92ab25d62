"""Cases without values to compare: errors on invalid calls, and static shapes.

Their kinds are "error/WHAT" and "static/WHAT". What is invalid, or unknown, is drawn from the
case's seed.

**Errors.** The input or attr that the kind names is invalid. What has to happen is what
TensorFlow's Eigen path does, the documented one: an error of the same code. An op without a
built-in twin has to refuse with one of REFUSALS. To accept, to abort, or to fail with another code
is wrong. The text is compared as well, names of ops taken out: a candidate that is a drop-in, as
the ops of this library are, must give the same; of others a difference is reported.

**Static shapes.** The op is put into a tf.Graph with placeholders whose dimensions or ranks are
partly unknown ("static/partial"), or contradict each other as well ("static/conflict"); the shapes
of its outputs, or the code of the error, must be those of the built-in, or where there is none,
those of `expected_static_shapes`. A drop-in must know as much; of others it is
reported where they know less.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases.case import ERROR_PREFIX, STATIC_PREFIX, Case
from tf_bn_ops.conformance.cases.execution_modes import DRAWN
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.harness.problems import IDENTITY, VIEW_ROLES, Inputs

PREFIXES = (ERROR_PREFIX, STATIC_PREFIX)
# Errors by which an op without a twin may refuse a call.
REFUSALS = ("InvalidArgumentError", "ValueError", "TypeError")

# A shape that is partly unknown: None is an unknown dimension; None for all of it an unknown rank.
PartialShape = tuple[int | None, ...] | None


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
        """Those with a contract on their size; what is not read may have any."""
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
STATICS = ("partial", "conflict")
KINDS = (*(ERROR_PREFIX + k for k in ERRORS), *(STATIC_PREFIX + k for k in STATICS))


def kinds(op: spec.OpSpec) -> tuple[str, ...]:
    """The kinds that an op has."""
    known = KINDS if "data_format" in op.attrs else [k for k in KINDS if not k.endswith("_format")]
    # One tensor of any size is right.
    return tuple(k for k in known if len(op.inputs) > 1 or k != ERROR_PREFIX + "size")


def _partial(rng: np.random.Generator, shape: Sequence[int]) -> PartialShape:
    """The shape with some of it unknown."""
    if rng.random() < 0.25:
        return None
    share = rng.choice([0.0, 0.3, 0.7, 1.0])
    return tuple(None if rng.random() < share else n for n in shape)


def _static_inputs(d: _Draw, conflict: bool) -> dict[str, tuple[str, PartialShape]]:
    shapes: dict[str, PartialShape] = {}
    for arg in d.case.spec.inputs:
        if arg.role in d.values:
            shapes[arg.role] = _partial(d.rng, d.values[arg.role].shape)
    if conflict:
        (_rank if d.rng.random() < 0.4 else _size)(d)
        for role in shapes:  # What is invalid must be known.
            shapes[role] = d.values[role].shape if d.rng.random() < 0.8 else shapes[role]
    case = d.case
    return {
        arg.role: (case.spec.type_of(arg, case.dtype, case.statistics_dtype), shapes[arg.role])
        for arg in case.spec.inputs
        if arg.role in shapes
    }


def fill(case: Case) -> Inputs:
    """The inputs and attrs of a case of KINDS."""
    drawn = model_of(case.spec).fill(dataclasses.replace(case, kind="normal"))
    draw = _Draw(np.random.default_rng([case.seed, 3]), case, dict(drawn.values), dict(drawn.attrs))
    prefix, _, what = case.kind.partition("/")
    if prefix + "/" == ERROR_PREFIX:
        ERRORS[what](draw)
        return Inputs(draw.values, attrs=draw.attrs)
    static = _static_inputs(draw, what == "conflict")
    return Inputs({}, attrs=draw.attrs, static=static)


def without_names(text: str, names: Sequence[str]) -> str:
    """An error's text without the names that an op goes by, and without those of nodes."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "OP")
    text = re.sub(r"\{\{[^}]*\}\}\s*", "", text)  # {{node OP}}, {{function_node ...}}
    text = re.sub(r"\s*\[Op:\w*\](\s*name:\s*\w*)?|\s*\[\[.*\]\]", "", text, flags=re.S)
    return text.strip()


# The error that `expected_static_shapes` stands for.
CONFLICT = "Conflict: the shapes contradict each other"


class Conflict(ValueError):
    """Static shapes that contradict each other."""


def _merge(a: PartialShape, b: PartialShape) -> PartialShape:
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        raise Conflict
    for n, m in zip(a, b, strict=True):
        if None not in (n, m) and n != m:
            raise Conflict
    return tuple(m if n is None else n for n, m in zip(a, b, strict=True))


def _reads_y(case: Case, attrs: Mapping[str, Any]) -> bool:
    """Whether an op that is behind an activation reads what that was computed from."""
    return case.spec.formula != spec.ops.BATCH_NORM_GRAD_EX or attrs["activation_mode"] != IDENTITY


def reads_averages(case: Case, attrs: Mapping[str, Any]) -> bool:
    """Whether an op with moving averages reads mean and variance; what it does not may have any
    size."""
    has_averages = case.is_training and "exponential_avg_factor" in case.spec.attrs
    return not has_averages or attrs.get("exponential_avg_factor") != 1


def expected_static_shapes(
    case: Case, inputs: Mapping[str, PartialShape], attrs: Mapping[str, Any]
) -> list[PartialShape]:
    """The static shapes of the outputs of an op that has no built-in twin.

    Outputs of view shape have all that is known of the inputs of view shape, and the channels of
    any per-channel input that is read; the other outputs have the channels. Some ops take only
    the rank that the data format has.

    Raises:
      Conflict: no shapes fit.
    """
    rank = spec.LAYOUTS[case.layout][0]
    view: PartialShape = (None,) * rank if case.spec.rank_of_format else None
    channels: PartialShape = (None,)
    unread = {a.role for a in case.spec.inputs if a.kind == spec.OPAQUE}
    unread |= set() if _reads_y(case, attrs) else {"offset", "y"}
    scalars = {a.role for a in case.spec.inputs if a.kind == spec.COUNT}
    for role, shape in inputs.items():
        if role in unread:
            continue
        if role in VIEW_ROLES:
            view = _merge(view, shape)
        elif role in scalars:
            _merge((), shape)
        elif shape is not None and len(shape) != 1:
            raise Conflict
        elif role not in ("mean", "variance") or reads_averages(case, attrs):
            channels = _merge(channels, shape)
    if view is not None:
        axis = len(view) - 1 if spec.LAYOUTS[case.layout][1] else 1
        least = 1 if case.spec.formula in spec.ops.PARTS else 2
        if not axis < len(view) >= least:
            raise Conflict
        channels = _merge(channels, (view[axis],))
        assert channels is not None
        view = (*view[:axis], channels[0], *view[axis + 1 :])
    assert channels is not None
    if channels[0] is not None and channels[0] < case.spec.min_channels:
        raise Conflict
    known = {
        **dict.fromkeys((spec.VIEW, spec.VIEW_LIST), view),
        **dict.fromkeys((spec.CHANNEL, spec.WIDE), channels),
        spec.COUNT: (),
        spec.PLACEHOLDER: (0,),
        spec.OPAQUE: None,
    }
    if case.is_training or attrs.get("activation_mode", IDENTITY) != IDENTITY:
        known[spec.OPAQUE] = (spec.ops.NUM_FORWARD_COEFFICIENTS, channels[0])
    return [known[arg.kind] for arg in case.spec.outputs_with(attrs)]


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
