"""The formula model of any other op of TensorFlow: what a mapping file and its OpDef say of it.

The right answer comes from a function that the mapping file names, or without one from TensorFlow's
own op; the bound from its tolerances, one unit in the last place without any.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.harness.bounds import flushed_below
from tf_bn_ops.harness.inputs import Kind
from tf_bn_ops.harness.measure import Expected
from tf_bn_ops.harness.models.tolerances import Tolerance
from tf_bn_ops.harness.problems import Call, Inputs
from tf_bn_ops.spec import DTYPES, DType, OpSpec

# The formula of OpSpecs that have a model of their own.
GENERIC = "generic"
# The tolerance where a mapping file names none: a result that is rounded once, from wider
# arithmetic, is off by half of it.
DEFAULT_ULP = 1.0


class GenericError(ValueError):
    """A description, case or oracle that is invalid; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class ValueRange:
    """What an input is filled with: numbers in a range, perhaps NaN and infinity among them."""

    shape: tuple[str | int, ...]
    range: tuple[float, float]
    nonfinite: bool = False


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

    def dtype_of(self, name: str, dtype: str) -> str:
        """The type of an input in a case with element type `dtype`."""
        attr, fixed = self.inputs[name]
        if not attr:
            return fixed
        # Further type attrs get the first type that both allow.
        return dtype if attr == next(iter(self.types)) else self.types[attr][0]


class Oracle:
    """The function that knows the right answer: `function(inputs, attrs)`.

    `inputs` has the very numbers that the ops get, by TensorFlow's names, floating-point ones
    widened to float64 (float64 to long double); `attrs` the attrs that the mapping file gives
    values. It returns a list of arrays in the order of the op's outputs. In place of an array may
    stand a pair (array, magnitudes): then a unit in the last place is that of the magnitude where
    that is larger, as for sums, whose errors depend on the sum of the terms' magnitudes.
    """

    def __init__(self, name: str, folder: str):
        """Imports `module:function`; `folder`, where the mapping file is, is searched first.

        Raises:
          GenericError: it is missing.
        """
        module, _, attribute = name.partition(":")
        sys.path.insert(0, folder)
        try:
            self._function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as e:
            raise GenericError(f"there is no oracle {name}: {e}") from e
        finally:
            sys.path.remove(folder)
        self.name = name

    def __call__(
        self, inputs: Mapping[str, np.ndarray], attrs: Mapping[str, Any]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(right answer, magnitudes) of every output."""
        wide = {name: widened(array) for name, array in inputs.items()}
        try:
            with np.errstate(all="ignore"):
                found = self._function(wide, dict(attrs))
                pairs = [v if isinstance(v, tuple) else (v, np.zeros(())) for v in found]
                return [(np.asarray(value), np.asarray(size)) for value, size in pairs]
        except Exception as e:  # Code of the mapping file's author.
            raise GenericError(f"the oracle {self.name} failed: {type(e).__name__}: {e}") from e


def floating_dtype(dtype: np.dtype[Any]) -> DType | None:
    """The entry of spec.DTYPES for a NumPy type; None for integers and booleans."""
    name = {"float16": "half"}.get(dtype.name, dtype.name)
    return DTYPES.get(name)


def widened(array: np.ndarray) -> np.ndarray:
    """Floating-point numbers in a wider type; others as they are."""
    dtype = floating_dtype(array.dtype)
    if dtype is None:
        return array
    return dtype.widen(array, np.longdouble if dtype.name == "float64" else np.float64)


class GenericModel:
    """See formula_models.FormulaModel; what is expected also depends on the answer of TensorFlow's
    op."""

    def __init__(
        self,
        name: str,
        values: Mapping[str, ValueRange],
        sizes: Mapping[str, tuple[int, int]],
        attr_values: Mapping[str, tuple[Any, ...]],
        dtypes: tuple[str, ...] = (),
        tolerances: tuple[Tolerance, ...] = (),
        oracle: Oracle | None = None,
    ):
        """What the mapping file says; `signature` has to be set before inputs are drawn.

        Args:
          name: of the op.
          values: input -> its values.
          sizes: name of a dimension -> least and most.
          attr_values: attr -> values to draw it from.
          dtypes: element types of the cases; empty: all that both ops take.
          tolerances: the first that applies counts.
          oracle: knows the right answer; None: TensorFlow's op stands in for it.
        """
        self.name = name
        self.values, self.sizes, self.attr_values = values, sizes, attr_values
        self.oracle = oracle
        self.signature: Signature | None = None
        self._claimed_dtypes = dtypes
        self._tolerances = tolerances
        names = ["uniform", "integers", "edges"]
        if any(value.nonfinite for value in values.values()):
            names.append("nonfinite")
        self.kinds = {name: Kind(None) for name in names}

    @property
    def known(self) -> Signature:
        assert self.signature is not None, "the OpDef has not been read"
        return self.signature

    @property
    def outputs(self) -> Sequence[str]:
        return self.known.outputs

    @property
    def dtypes(self) -> list[str]:
        """The element types of its cases: those of the op's first type attr."""
        known = self.known
        if not known.types:
            return [next((t for _, t in known.inputs.values()), "float32")]
        allowed = next(iter(known.types.values()))
        return [t for t in allowed if not self._claimed_dtypes or t in self._claimed_dtypes]

    def check(self) -> None:
        """Raises GenericError where the mapping file does not fit the OpDef."""
        known = self.known
        for what, given, there in (
            ("input", self.values, known.inputs),
            ("attr", self.attr_values, known.attrs),
        ):
            for name in given:
                if name not in there:
                    raise GenericError(f"{self.name} has no {what} {name!r}; it has {[*there]}")
        for name in known.inputs:
            if name not in self.values:
                raise GenericError(f"{self.name}: say what input {name} holds: [op.values.{name}]")
        for name, has_default in known.attrs.items():
            if not has_default and name not in self.attr_values:
                raise GenericError(
                    f"{self.name}: attr {name} has no default: give it in attr_values"
                )
        if not self.dtypes:
            allowed = next(iter(known.types.values()), [])
            raise GenericError(
                f"{self.name}: no type of {list(self._claimed_dtypes)}; both ops take {allowed}"
            )

    def fill(self, call: Call) -> Inputs:
        """The inputs of a call by TensorFlow's names, with the attrs that were drawn."""
        rng = np.random.default_rng([call.seed])
        chosen = dict(call.choices)
        values = {}
        for name in self.known.inputs:
            value_range = self.values[name]
            shape = tuple(n if isinstance(n, int) else int(chosen[n]) for n in value_range.shape)
            type_name = self.known.dtype_of(name, call.dtype)
            dtype = DTYPES[type_name].numpy if type_name in DTYPES else np.dtype(type_name)
            values[name] = _draw(rng, call.kind, value_range, shape, dtype)
        return Inputs(values, attrs=self._attrs(call))

    def _attrs(self, call: Call) -> dict[str, Any]:
        chosen = dict(call.choices)
        by_text = {n: {str(v): v for v in values} for n, values in self.attr_values.items()}
        try:
            return {name: values[chosen[name]] for name, values in by_text.items()}
        except KeyError as e:
            raise GenericError(
                f"case {call} has an attr value that the mapping file lacks: {e}"
            ) from e

    def right_answers(
        self, inputs: Inputs, reference: Sequence[np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(right answer, magnitudes) of every output; `reference` are those of TensorFlow's op.

        Raises:
          GenericError: the oracle fails, or contradicts TensorFlow in number or shape of outputs.
        """
        if self.oracle is None:
            return [(widened(output), np.zeros(())) for output in reference]
        right = self.oracle(inputs.values, inputs.attrs)
        if len(right) != len(self.outputs):
            raise GenericError(
                f"the oracle {self.oracle.name} gives {len(right)} outputs, not {len(self.outputs)}"
            )
        for name, (value, _), output in zip(self.outputs, right, reference, strict=True):
            if value.shape != output.shape:
                raise GenericError(
                    f"the oracle {self.oracle.name} contradicts TensorFlow's {self.name}: {name} "
                    f"has shape {list(output.shape)}, not {list(value.shape)}"
                )
        return right

    def expected(
        self, call: Call, inputs: Inputs, reference: Sequence[np.ndarray]
    ) -> Iterator[Expected]:
        """The right answer with its bound, an output at a time."""
        right = self.right_answers(inputs, reference)
        for role, (value, size), output in zip(self.outputs, right, reference, strict=True):
            at = tuple(slice(0, None) for _ in value.shape)
            dtype = floating_dtype(output.dtype)
            bound = np.zeros(value.shape)
            if dtype is None:
                value = value.astype(np.longdouble)
            else:
                bound = self._bound(role, call.dtype, value, size, dtype)
                with np.errstate(all="ignore"):
                    size = np.where(np.abs(value) < flushed_below(dtype), np.inf, size)
            same_shape = {
                f"input {name}": functools.partial(widened, array)
                for name, array in inputs.values.items()
                if array.shape == value.shape and "b" not in (array.dtype.kind, output.dtype.kind)
            }
            size = np.broadcast_to(size, value.shape)
            yield Expected(role, at, value, bound, size, same_shape, nonfinite_exact=True)

    def _bound(
        self, output: str, element: str, value: np.ndarray, size: np.ndarray, dtype: DType
    ) -> np.ndarray:
        """What an element may be off; flushing of subnormal numbers included."""
        allowed = next(
            (t for t in self._tolerances if t.applies(output, element)),
            Tolerance(ulp=DEFAULT_ULP, reason="none is given: one unit in the last place"),
        )
        with np.errstate(all="ignore"):
            magnitude = np.fmax(np.fmax(np.abs(value), size), dtype.smallest_normal)
            magnitude = np.where(np.isfinite(magnitude), magnitude, 1).astype(np.float64)
            ulp = np.ldexp(2 * dtype.unit_roundoff, np.frexp(magnitude)[1] - 1)
            bound = allowed.ulp * ulp + allowed.relative * np.abs(value) + allowed.absolute
        return np.broadcast_to(bound + flushed_below(dtype), value.shape)


def _draw(
    rng: np.random.Generator,
    kind: str,
    values: ValueRange,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> np.ndarray:
    least, most = values.range
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu" or kind == "integers":
        array = rng.integers(math.ceil(least), math.floor(most) + 1, shape).astype(np.float64)
    elif kind == "edges":
        small = np.array([least, most, 0.0, least / 2, most / 2, 1e-3, -1e-3, 1e-30])
        array = rng.choice(small[(small >= least) & (small <= most)], shape)
    else:
        array = rng.uniform(least, most, shape)
    if kind == "nonfinite" and values.nonfinite:
        special = rng.choice([np.nan, np.inf, -np.inf], shape)
        array = np.where(rng.random(shape) < 0.2, special, array)
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class GenericOpSpec(OpSpec):
    """The OpSpec of such an op: arguments are of kind OPAQUE, and their role is their name."""

    model: GenericModel = None  # type: ignore[assignment]


def generic_spec(name: str, model: GenericModel) -> GenericOpSpec:
    """The spec of TensorFlow's op `name`; without arguments before the model's OpDef is known."""
    known = model.signature
    opaque = spec.OPAQUE
    return GenericOpSpec(
        name=name,
        registered_name=name,
        builtin=name,
        counterpart=name,
        formula=GENERIC,
        inputs=tuple(spec.Arg(n, n, opaque) for n in (known.inputs if known else ())),
        outputs=tuple(spec.Arg(n, n, opaque) for n in (known.outputs if known else ())),
        attrs=dict.fromkeys(model.attr_values),
        epsilon_dtype="float32",
        dtypes=tuple(model.dtypes) if known else (),
        statistics_dtypes=(),
        layouts=(),
        model=model,
    )
