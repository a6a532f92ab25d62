"""Ops that are not batch norm: any op of TensorFlow, and a candidate that claims to equal it.

Nothing is known about such an op but its OpDef, so the mapping file says what to call it with:

    [[op]]
    name = "Vendor>Softplus"
    like = "Softplus"                    # an op of tf.raw_ops
    dtypes = ["float32", "half"]         # of its first type attr; all that both ops allow without
    oracle = "vendor_oracle:softplus"    # optional: a function, see `Oracle`
    [op.sizes]
    n = [0, 300]                         # a name for dimensions, and between what it is drawn
    [op.values.features]                 # of every input, by TensorFlow's name
    shape = ["n", 3]                     # such names, or numbers
    range = [-120.0, 120.0]
    nonfinite = true                     # optional: NaN and infinity may come
    [op.attr_values]
    data_format = ["NHWC", "NCHW"]       # values to draw an attr from; others keep their default

Renamed inputs, attrs and outputs, devices and tolerances are as in mapping.py. Types of inputs and
the attrs there are come from TensorFlow's OpDef.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.judge import (
    Answer,
    CaseResult,
    Disagreement,
    OutputError,
    PathResult,
)
from tf_bn_ops.conformance.reports.record import CANDIDATE
from tf_bn_ops.conformance.tolerances import Tolerance
from tf_bn_ops.harness import bounds

REFERENCE = "tensorflow"
CALLS = ("eager", "graph")
# Least share of an output's elements that must be told from zero to be evidence, as in judge.py.
_EVIDENCE_SHARE = 0.5
# Where a mapping file names no tolerance: a result that is rounded once, from wider arithmetic,
# is off by half of it.
DEFAULT_ULP = 1.0


class GeneralError(ValueError):
    """A description, case or oracle that does not work; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Values:
    """What an input is filled with; see the module's text."""

    shape: tuple[str | int, ...]
    range: tuple[float, float]
    nonfinite: bool = False


@dataclasses.dataclass(frozen=True)
class Described:
    """An op of a mapping file that is not batch norm; see the module's text."""

    name: str
    like: str
    values: Mapping[str, Values]
    dtypes: tuple[str, ...] = ()
    oracle: str | None = None
    sizes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    attr_values: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    attrs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device: str | None = None
    reference_device: str | None = None
    tolerances: tuple[Tolerance, ...] = ()


def _pair(where: str, value: Any, kind: type) -> tuple[Any, Any]:
    numbers = isinstance(value, list) and len(value) == 2
    if not numbers or not all(isinstance(v, (int, kind)) for v in value) or value[0] > value[1]:
        raise GeneralError(f"{where}: takes [least, most], not {value!r}")
    return kind(value[0]), kind(value[1])


def described(content: Mapping[str, Any], where: str, common: Mapping[str, Any]) -> Described:
    """The entry of a mapping file.

    Args:
      content: of the file; keys that `common` has were read by mapping.py.
      where: for messages.
      common: fields of Described that all entries have.

    Raises:
      GeneralError: it has a mistake.
    """
    sizes = {n: _pair(f"{where}: size {n}", v, int) for n, v in content.get("sizes", {}).items()}
    values = {}
    for name, given in content.get("values", {}).items():
        at = f"{where}: values of {name}"
        for key in given:
            if key not in ("shape", "range", "nonfinite"):
                raise GeneralError(f"{at}: there is no key {key!r}; known: shape, range, nonfinite")
        shape = given.get("shape")
        if not isinstance(shape, list) or not all(n in sizes or isinstance(n, int) for n in shape):
            raise GeneralError(f"{at}: shape is a list of numbers and names in 'sizes'")
        span = _pair(f"{at}: range", given.get("range"), float)
        values[name] = Values(tuple(shape), span, bool(given.get("nonfinite", False)))
    attr_values = {}
    for name, choices in content.get("attr_values", {}).items():
        if not isinstance(choices, list) or not choices:
            raise GeneralError(f"{where}: attr_values of {name} is a list of values")
        attr_values[name] = tuple(choices)
    return Described(
        values=values,
        sizes=sizes,
        attr_values=attr_values,
        dtypes=tuple(content.get("dtypes", ())),
        oracle=content.get("oracle"),
        **common,
    )


# ---- What is known of an op: facts of the worker (general_worker.py) -----------------------------


@dataclasses.dataclass(frozen=True)
class Signature:
    """What TensorFlow's OpDef says, in the words of JSON.

    Attributes:
      inputs: name -> (name of its type attr, or "", and its type where that is fixed).
      outputs: names.
      types: type attr -> types that both ops allow.
      attrs: other attr -> whether it has a default.
    """

    inputs: Mapping[str, tuple[str, str]]
    outputs: Sequence[str]
    types: Mapping[str, Sequence[str]]
    attrs: Mapping[str, bool]

    def check(self, op: Described) -> None:
        """Raises GeneralError where the file says too little, or speaks of what is not there."""
        where = f"{op.name}, like {op.like}"
        for what, given, there in (
            ("input", op.values, self.inputs),
            ("attr", op.attr_values, self.attrs),
        ):
            for name in given:
                if name not in there:
                    raise GeneralError(f"{where}: there is no {what} {name!r}; it has {[*there]}")
        for name in self.inputs:
            if name not in op.values:
                raise GeneralError(f"{where}: say what input {name} holds: [op.values.{name}]")
        for name, has_default in self.attrs.items():
            if not has_default and name not in op.attr_values:
                raise GeneralError(f"{where}: attr {name} has no default: give it in attr_values")
        if not self.dtypes(op):
            allowed = next(iter(self.types.values()), [])
            raise GeneralError(f"{where}: no type of {list(op.dtypes)}; both ops take {allowed}")

    def dtypes(self, op: Described) -> list[str]:
        """The element types of its cases: those of its first type attr."""
        if not self.types:
            return [next((t for _, t in self.inputs.values()), "float32")]
        allowed = next(iter(self.types.values()))
        return [t for t in allowed if not op.dtypes or t in op.dtypes]

    def dtype_of(self, name: str, dtype: str) -> str:
        """The type of an input in a case with element type `dtype`."""
        attr, fixed = self.inputs[name]
        if not attr:
            return fixed
        # Further type attrs get the first type that both allow.
        return dtype if attr == next(iter(self.types)) else self.types[attr][0]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a type of TensorFlow."""
    return spec.DTYPES[name].numpy if name in spec.DTYPES else np.dtype(name)


# ---- Cases ---------------------------------------------------------------------------------------

KINDS = ("uniform", "integers", "edges", "nonfinite")


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of one op: `str(case)` is its name, `parse` the way back.

        Softplus,dtype=float32,kind=uniform,call=eager,seed=17,n=3

    Sizes and attrs come last. It has the fields that reports sort cases by.
    """

    op: str
    dtype: str
    kind: str
    call: str
    seed: int
    choices: tuple[tuple[str, str], ...]
    layout: str = ""
    mode: str = ""

    def __str__(self) -> str:
        pairs = [("dtype", self.dtype), ("kind", self.kind), ("call", self.call)]
        pairs += [("seed", str(self.seed)), *self.choices]
        return ",".join([self.op, *(f"{name}={value}" for name, value in pairs)])


def parse(text: str, ops: Mapping[str, Described]) -> Case:
    """The case that `text` names.

    Raises:
      GeneralError: it has another form, or no op of the mapping file is meant.
    """
    op, *pairs = (part.strip() for part in text.split(","))
    fields = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    known = ("dtype", "kind", "call", "seed")
    if op not in ops or not all(name in fields for name in known):
        raise GeneralError(
            f"{text!r} is no case of {', '.join(ops)}; copy it as a report prints it"
        )
    rest = [(n, v) for n, v in fields.items() if n not in known]
    wanted = [*ops[op].sizes, *ops[op].attr_values]
    if (
        [n for n, _ in rest] != wanted
        or not fields["seed"].isdigit()
        or (fields["kind"] not in KINDS or fields["call"] not in CALLS)
    ):
        raise GeneralError(
            f"case {text!r} does not fit the mapping file: it has {', '.join(wanted)}"
        )
    return Case(
        op, fields["dtype"], fields["kind"], fields["call"], int(fields["seed"]), tuple(rest)
    )


def generate(
    count: int, seed: int, ops: Mapping[str, tuple[Described, Signature]]
) -> Iterator[Case]:
    """`count` cases, in turn of every op and element type."""
    combos = [(op, s, dtype) for op, s in ops.values() for dtype in s.dtypes(op)]
    for i in range(count):
        op, _, dtype = combos[i % len(combos)]
        rng = np.random.default_rng([seed, 3, i])
        kinds = [
            k for k in KINDS if k != "nonfinite" or any(v.nonfinite for v in op.values.values())
        ]
        choices: list[tuple[str, str]] = []
        for name, (least, most) in op.sizes.items():
            # Small ones more often: faults are in tails more than in volume.
            size = least + int((most - least + 1) * rng.random() ** 3)
            choices.append((name, str(min(size, most))))
        for name, values in op.attr_values.items():
            choices.append((name, str(values[int(rng.integers(len(values)))])))
        yield Case(
            op.like, dtype, kinds[int(rng.integers(len(kinds)))],
            CALLS[int(rng.integers(5) == 0)], int(rng.integers(1 << 31)), tuple(choices),
        )  # fmt: skip


def attrs_of(case: Case, op: Described) -> dict[str, Any]:
    """The attrs of a case with their values, as the mapping file writes them."""
    chosen = dict(case.choices)
    by_text = {n: {str(v): v for v in values} for n, values in op.attr_values.items()}
    try:
        return {name: values[chosen[name]] for name, values in by_text.items()}
    except KeyError as e:
        raise GeneralError(f"case {case} has an attr value that the mapping file lacks: {e}") from e


def fill(case: Case, op: Described, signature: Signature) -> dict[str, np.ndarray]:
    """The inputs of a case, by TensorFlow's names."""
    rng = np.random.default_rng([case.seed])
    sizes = {name: int(value) for name, value in case.choices if name in op.sizes}
    inputs = {}
    for name in signature.inputs:
        values = op.values[name]
        shape = tuple(n if isinstance(n, int) else sizes[n] for n in values.shape)
        dtype = numpy_dtype(signature.dtype_of(name, case.dtype))
        least, most = values.range
        if dtype.kind == "b":
            inputs[name] = rng.random(shape) < 0.5
            continue
        if dtype.kind in "iu" or case.kind == "integers":
            array = rng.integers(math.ceil(least), math.floor(most) + 1, shape).astype(np.float64)
        elif case.kind == "edges":
            small = np.array([least, most, 0.0, least / 2, most / 2, 1e-3, -1e-3, 1e-30])
            array = rng.choice(small[(small >= least) & (small <= most)], shape)
        else:
            array = rng.uniform(least, most, shape)
        if case.kind == "nonfinite" and values.nonfinite:
            special = rng.choice([np.nan, np.inf, -np.inf], shape)
            array = np.where(rng.random(shape) < 0.2, special, array)
        with np.errstate(all="ignore"):
            inputs[name] = array.astype(dtype)
    return inputs


# ---- The right answer and the verdict ------------------------------------------------------------


class Oracle:
    """The function that knows the right answer: `function(inputs, attrs)`.

    `inputs` has the very numbers that the ops get, by TensorFlow's names, floating-point ones
    widened to float64 (float64 to long double); `attrs` the attrs that the mapping file gives
    values. It returns a list of arrays in the order of the op's outputs. In place of an array may
    stand a pair (array, magnitudes): then a unit in the last place is that of the magnitude where
    that is larger, as for sums, whose errors hang on the sum of the terms' magnitudes.
    """

    def __init__(self, name: str, folder: str):
        """Imports `module:function`; `folder`, where the mapping file is, is searched first.

        Raises:
          GeneralError: it is not there.
        """
        module, _, attribute = name.partition(":")
        sys.path.insert(0, folder)
        try:
            self._function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as e:
            raise GeneralError(f"there is no oracle {name}: {e}") from e
        finally:
            sys.path.remove(folder)
        self._name = name

    def __call__(
        self, inputs: Mapping[str, np.ndarray], attrs: Mapping[str, Any]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(right answer, magnitudes) of every output."""
        wide = {name: _widened(array) for name, array in inputs.items()}
        try:
            with np.errstate(all="ignore"):
                found = self._function(wide, dict(attrs))
                pairs = [v if isinstance(v, tuple) else (v, np.zeros(())) for v in found]
                return [(np.asarray(value), np.asarray(size)) for value, size in pairs]
        except Exception as e:  # Somebody else's code.
            raise GeneralError(f"the oracle {self._name} failed: {type(e).__name__}: {e}") from e


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _widened(array: np.ndarray) -> np.ndarray:
    if not _is_floating(array.dtype):
        return array
    return array.astype(np.longdouble if array.dtype == np.float64 else np.float64)


def _structure(
    answer: Answer, names: Sequence[str], shapes: Any, dtypes: Any
) -> list[Disagreement]:
    """How outputs differ from what they should be in number, shape and type."""
    if answer.crash:
        return [Disagreement("crash", answer.crash)]
    if answer.outputs is None:
        return [Disagreement("error", answer.error)]
    if len(answer.outputs) != len(names):
        return [Disagreement("count", f"{len(answer.outputs)} outputs, not {len(names)}")]
    found = []
    for name, output, shape, dtype in zip(names, answer.outputs, shapes, dtypes, strict=True):
        for what, has, should in (
            ("shape", str(list(output.shape)), str(list(shape))),
            ("dtype", str(output.dtype), str(dtype)),
        ):
            if has != should:
                text = f"{name} has {what} {has}, not {should}"
                found.append(Disagreement(f"{what}:{name}", text))
    return found


def _bound(
    right: np.ndarray, size: np.ndarray, dtype: np.dtype[Any], allowed: Tolerance
) -> tuple[np.ndarray, np.ndarray]:
    """(error bound, unit in the last place) of every element."""
    if not _is_floating(dtype):
        return np.zeros(right.shape), np.ones(right.shape)
    table = spec.dtype_of(np.empty(0, dtype))
    with np.errstate(all="ignore"):
        magnitude = np.fmax(np.fmax(np.abs(right), size), table.smallest_normal)
        _, exponent = np.frexp(np.where(np.isfinite(magnitude), magnitude, 1).astype(np.float64))
        ulp = np.ldexp(2 * table.unit_roundoff, exponent - 1)
        bound = allowed.ulp * ulp + allowed.relative * np.abs(right) + allowed.absolute
        # TensorFlow's threads flush subnormal numbers, whose errors in ulp then mean nothing.
        bound = bound + bounds.flushed_below(table)
        ulp = np.where(np.abs(right) < bounds.flushed_below(table), np.inf, ulp)
    return np.broadcast_to(bound, right.shape), np.broadcast_to(ulp, right.shape)


def _measure(
    given: np.ndarray, right: np.ndarray, bound: np.ndarray, ulp: np.ndarray, largest: float
) -> OutputError:
    """The error of an output; `largest` is the largest number of its type."""
    if not given.size:
        return OutputError()
    c = _widened(given)
    with np.errstate(all="ignore"):
        error = np.abs(c.astype(right.dtype) - right) if c.dtype.kind != "b" else (c != right) * 1.0
        same = (c == right) | np.isnan(c) & np.isnan(right)
        # Beyond the largest number infinity is right.
        same |= np.isinf(c) & (np.sign(c) == np.sign(right)) & (np.abs(right) + bound > largest)
        in_bounds = np.where(same, 0, error / np.maximum(bound, np.finfo(np.float64).tiny))
        in_ulp = np.where(same, 0, error / ulp)
    in_bounds, in_ulp = (np.where(np.isnan(a), np.inf, a) for a in (in_bounds, in_ulp))
    at = np.unravel_index(int(np.argmax(in_bounds)), given.shape)
    return OutputError(
        float(in_ulp.max()), float(in_bounds.max()),
        f"at {list(map(int, at))}: {c[at]!s} instead of {right[at]!s}, allowed {bound[at]:.2g}",
    )  # fmt: skip


def _tolerance(op: Described, output: str, dtype: str) -> Tolerance:
    for tolerance in op.tolerances:
        if tolerance.applies(output, dtype):
            return tolerance
    return Tolerance(ulp=DEFAULT_ULP, reason="none is given: one unit in the last place")


def judge(
    case: Case,
    op: Described,
    signature: Signature,
    inputs: Mapping[str, np.ndarray],
    answers: Mapping[str, Answer],
    oracle: Oracle | None,
) -> CaseResult:
    """Judges the candidate against the oracle, or without one against TensorFlow's op."""
    reference = answers[REFERENCE]
    paths = {name: PathResult() for name in answers}
    result = CaseResult(case, paths, dict.fromkeys(signature.outputs, False))  # type: ignore[arg-type]
    candidate = answers[CANDIDATE]
    if reference.outputs is None:
        paths[REFERENCE].disagreements = _structure(reference, signature.outputs, (), ())
        # What TensorFlow refuses has to be refused, with the same code.
        code, said = (a.error.partition(":")[0] for a in (reference, candidate))
        if reference.crash or (code and code == said):
            return result
        what = "crash" if candidate.crash else "accepted" if not said else "code"
        detail = candidate.crash or f"{said or 'no error'} instead of {code}"
        paths[CANDIDATE].disagreements = [Disagreement(what, detail)]
        result.failures.append(f"{what}: {detail}")
        return result
    if oracle is not None:
        right = oracle(inputs, attrs_of(case, op))
        if len(right) != len(signature.outputs):
            raise GeneralError(
                f"the oracle {op.oracle} gives {len(right)} outputs, not {len(signature.outputs)}"
            )
    else:
        right = [(_widened(output), np.zeros(())) for output in reference.outputs]
    shapes = [np.shape(value) for value, _ in right]
    dtypes = [output.dtype for output in reference.outputs]
    for name, answer in answers.items():
        paths[name].disagreements = _structure(answer, signature.outputs, shapes, dtypes)
        if answer.outputs is None or (oracle is None and name == REFERENCE):
            continue
        for i, output in enumerate(signature.outputs):
            given = answer.outputs[i]
            if given.shape != shapes[i] or given.dtype != dtypes[i]:
                continue
            value, size = right[i]
            bound, ulp = _bound(value, size, given.dtype, _tolerance(op, output, case.dtype))
            is_table = _is_floating(given.dtype)
            largest = spec.dtype_of(given).largest if is_table else math.inf
            paths[name].errors[output] = _measure(given, value, bound, ulp, largest)
            if name == CANDIDATE:
                result.evidence[output] = _is_evidence(value, bound, inputs)
    for d in paths[CANDIDATE].disagreements:
        result.failures.append(f"{d.what}: {d.detail}")
    for d in paths[REFERENCE].disagreements if oracle is not None else ():
        raise GeneralError(f"the oracle {op.oracle} contradicts TensorFlow's {op.like}: {d.detail}")
    for output, error in paths[CANDIDATE].errors.items():
        if not error.bound <= 1:
            how = f"{error.bound:.3g} times what is allowed"
            result.failures.append(f"{output} {how} {error.worst}")
    return result


def _is_evidence(right: np.ndarray, bound: np.ndarray, inputs: Mapping[str, np.ndarray]) -> bool:
    """Whether zeros would fail, in most elements, and so would every input of the same shape."""
    if not right.size:
        return False
    with np.errstate(all="ignore"):
        told = float(np.mean(~(np.abs(right) <= bound)))
        same = [
            bool(np.all(np.abs(_widened(array) - right) <= bound))
            for array in inputs.values()
            if array.shape == right.shape and array.dtype.kind != "b" and right.dtype.kind != "b"
        ]
    return told >= _EVIDENCE_SHARE and not any(same)
