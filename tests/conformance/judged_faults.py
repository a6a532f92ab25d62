"""What the judge promises of any formula, asked with a right kernel and wrong ones: right answers
pass, a fault fails in some case, and a case that counts as evidence fails wrong-on-purpose answers.

FORMULAS has the first-order gradient by the kernels of numpy_kernels.py; the forward ops, the
gradient behind an activation and the second order by their models, each with a table of faults.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy_kernels

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.models import (
    batch_norm,
    batch_norm_grad,
    batch_norm_grad_grad,
    bounds,
)
from tf_bn_ops.conformance.models.formula_models import MODELS, fill
from tf_bn_ops.conformance.models.measure import assembled
from tf_bn_ops.conformance.verdict.judge import judge
from tf_bn_ops.conformance.verdict.result import CaseResult
from tf_bn_ops.harness import c_abi, problems
from tf_bn_ops.harness.problems import IDENTITY, Inputs, Problem

STRICT = bounds.PROFILES["strict"]
Outputs = dict[str, np.ndarray]
Kernel = Callable[..., Outputs]


class Filled(NamedTuple):
    case: Case
    inputs: Inputs
    problem: Problem

    @classmethod
    def of(cls, case: Case, draw: Callable[[Case], Inputs] = fill) -> Filled:
        inputs = draw(case)
        return cls(case, inputs, problems.of_call(case, inputs))


def answer(outputs: Outputs, one: Filled) -> Answer:
    """Outputs in the shapes and the order of the case's op."""
    nothing = np.zeros(0, np.float32)
    arrays = [
        outputs.get(arg.role, nothing) for arg in one.case.spec.outputs_with(one.inputs.attrs)
    ]
    return Answer([a.reshape(one.case.shape) if a.ndim == 3 else a for a in arrays])


def right(case: Case, problem: Problem, is_training: bool | None = None) -> Outputs:
    """The right answer of the formula model, rounded once; without `is_training` in its mode."""
    model, channels = MODELS[problem.formula], problem.view[1]
    values = {r: a if a.size else np.zeros(channels, a.dtype) for r, a in problem.values.items()}
    values |= {role: problem[role] for role in {"x", "forward_coefficients"} & set(values)}
    training = case.is_training if is_training is None else is_training
    problem = dataclasses.replace(problem, values=values, is_training=training)
    parts = list(model.expected(problem, STRICT))
    found = {r: assembled(parts, r, "value", c_abi.shape_of(problem, r)) for r in model.outputs}
    with np.errstate(all="ignore"):
        return {role: problem.type_of(role).store(array) for role, array in found.items()}


@dataclasses.dataclass(frozen=True)
class Judged:
    """A formula and its cases.

    Attributes:
      ops: whose formula it is.
      faults: kernels with one thing wrong.
      count: cases that are drawn.
      evidence: wrong-on-purpose answer -> the outputs that cases are evidence for against it.
      share: of the cases that are evidence.
      sizes: cases with other numbers of elements are left out.
      draw: the inputs of a case.
      right: a right kernel.
      profiles: those that it passes; faults are judged by the first.
    """

    ops: Sequence[str]
    faults: Mapping[str, Kernel]
    count: int
    evidence: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    share: float = 1 / 2
    sizes: range = range(1, 5_000)
    draw: Callable[[Case], Inputs] = fill
    right: Kernel = right
    profiles: Sequence[bounds.Profile] = (STRICT,)

    @functools.cached_property
    def filled(self) -> list[Filled]:
        cases = generate.generate(self.count, 1, generate.combinations(self.ops))
        return [Filled.of(c, self.draw) for c in cases if math.prod(c.shape) in self.sizes]

    def judge(
        self, kernel: Kernel, one: Filled, profile: bounds.Profile | None = None
    ) -> CaseResult:
        answers = {"candidate": answer(kernel(one.case, one.problem), one)}
        return judge(one.case, one.inputs, answers, profile or self.profiles[0])

    @functools.cached_property
    def _evidence(self) -> list[Mapping[str, bool]]:
        return [self.judge(self.right, one).evidence for one in self.filled]

    def evidence_against(self, wrong: str) -> dict[str, int]:
        """Cases that count as evidence, by role; each of them fails the wrong answer."""
        counted = dict.fromkeys(self.evidence[wrong], 0)
        for one, evidence in zip(self.filled, self._evidence, strict=True):
            # Frozen, the saved variance is what was given.
            if "unbiased" in wrong and not one.case.is_training:
                continue
            result = self.judge(self.faults[wrong], one)
            failed = {failure.split()[0] for failure in result.failures}
            for role in counted:
                counted[role] += evidence[role]
                name = result.name_of(role)
                assert name in failed or not evidence[role], (str(one.case), role)
        return counted


# ---- Faults of any formula -----------------------------------------------------------------------


def _changed(role: str, change: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    """A fault that changes an input, where there is one."""

    def fault(case: Case, problem: Problem) -> Outputs:
        changed = problem.copy()
        if role in problem.values:
            with np.errstate(all="ignore"):
                changed[role] = change(problem[role]).astype(problem[role].dtype)
        return right(case, changed)

    return fault


def _with(**fields: Any) -> Kernel:
    """A fault that takes an attr for another; of a function, for what it makes of the problem."""

    def fault(case: Case, problem: Problem) -> Outputs:
        new = {name: f(problem) if callable(f) else f for name, f in fields.items()}
        return right(case, dataclasses.replace(problem.copy(), **new))

    return fault


def _output(role: str, change: Callable[[Outputs, Problem], Any]) -> Kernel:
    """A fault that changes an output."""

    def fault(case: Case, problem: Problem) -> Outputs:
        outputs = right(case, problem)
        with np.errstate(all="ignore"):
            outputs[role] = np.asarray(change(outputs, problem)).astype(outputs[role].dtype)
        return outputs

    return fault


_OF_ALL: dict[str, Kernel] = {
    "other mode": lambda case, problem: right(case, problem, not case.is_training),
    "epsilon doubled": _with(epsilon=lambda problem: 2 * problem.epsilon),
    "scale ignored": _changed("scale", np.ones_like),
    "zeros": lambda case, problem: {
        role: np.zeros_like(array) for role, array in right(case, problem).items()
    },
}

# ---- The first-order gradient --------------------------------------------------------------------


def first_order(kernel: type[numpy_kernels.Kernel]) -> Kernel:
    return lambda case, problem: numpy_kernels.outputs(kernel, case, problem.values)


# ---- The forward ops -----------------------------------------------------------------------------


def _count(problem: Problem) -> int:
    return problem["x"].size // max(problem.view[1], 1)


def _unbiased(outputs: Outputs, problem: Problem) -> Any:
    factor = _count(problem) / max(_count(problem) - 1, 1) if problem.is_training else 1
    return outputs["saved_variance"] * np.float64(factor)


def _of_one_element(outputs: Outputs, problem: Problem) -> Any:
    """0/0, as M/(M - 1) times a variance of 0 is."""
    is_one = problem.is_training and _count(problem) == 1
    return outputs["batch_variance"] * (np.nan if is_one else 1)


def _with_unread(outputs: Outputs, problem: Problem) -> Any:
    """(1 - 1) times what need not be a number."""
    unread = problem.is_training and problem.exponential_avg_factor == 1 and problem["mean"].size
    return outputs["batch_mean"] + (0 * problem["mean"] if unread else 0)


def _not_averaged(outputs: Outputs, problem: Problem) -> Any:
    averages = problem.is_training and problem.exponential_avg_factor != 1
    return _unbiased(outputs, problem) if averages else outputs["batch_variance"]


_FORWARD = {
    **_OF_ALL,
    "offset of the neighbor": _changed("offset", lambda a: np.roll(a, 1)),
    "side input ignored": _changed("side_input", np.zeros_like),
    "activation ignored": _with(activation=IDENTITY),
    "clamped at 6 without being asked": _with(activation="Relu6"),
    "Bessel's correction ignored": _with(bessel_correction=False),
    "factor ignored": _with(exponential_avg_factor=1.0),
    "factor 0 as none": _with(exponential_avg_factor=lambda p: p.exponential_avg_factor or 1.0),
    "factor swapped": _with(exponential_avg_factor=lambda p: 1 - p.exponential_avg_factor or 1.0),
    "saved variance unbiased": _output("saved_variance", _unbiased),
    "saved mean a few ulp off": _output("saved_mean", lambda o, p: o["saved_mean"] * (1 + 2**-20)),
    "the variance of one element is NaN": _output("batch_variance", _of_one_element),
    "unread averages are read": _output("batch_mean", _with_unread),
    "factor ignored for the variance alone": _output("batch_variance", _not_averaged),
    "means swapped": _output("saved_mean", lambda o, p: o["batch_mean"]),
    "identity as y": _output("y", lambda o, p: p["x"]),
}

# ---- The gradient behind an activation -----------------------------------------------------------


def _y(change: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    return _changed("y", change)


def _y_from(role: str) -> Kernel:
    def fault(case: Case, problem: Problem) -> Outputs:
        changed = problem.copy()
        changed["y"] = problem[role]
        return right(case, changed)

    return fault


_BEHIND_ACTIVATION = {
    **_OF_ALL,
    "unmasked": _with(activation=IDENTITY),
    "mask from x": _y_from("x"),
    "mask from the gradient": _y_from("y_backprop"),
    ">= for >": _y(lambda y: np.where(y == 0, np.ones_like(y), y)),
    "ReLU6 as ReLU": _y(lambda y: np.where(y >= 6, np.ones_like(y), y)),
    "NaN passes": _y(lambda y: np.where(np.isnan(y), np.ones_like(y), y)),
    "side gradient unmasked": _output("side_input_backprop", lambda o, p: p["y_backprop"]),
}

# ---- The second order ----------------------------------------------------------------------------


def _without_last(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[-1:, :, -1:] = 0
    return array


_SECOND_ORDER = {
    **_OF_ALL,
    "scale of the neighbor": _changed("scale", lambda a: np.roll(a, 1)),
    "scale_backprop_grad ignored": _changed("scale_backprop_grad", np.zeros_like),
    "offset_backprop_grad ignored": _changed("offset_backprop_grad", np.zeros_like),
    "x_backprop_grad negated": _changed("x_backprop_grad", np.negative),
    "last x_backprop_grad missed": _changed("x_backprop_grad", _without_last),
    "last y_backprop missed": _changed("y_backprop", _without_last),
    "y_backprop_grad negated": _output("y_backprop_grad", lambda o, p: -o["y_backprop_grad"]),
    "x_grad negated": _output("x_grad", lambda o, p: -o["x_grad"]),
    "identity as x_grad": _output("x_grad", lambda o, p: p["y_backprop"]),
    "identity as y_backprop_grad": _output("y_backprop_grad", lambda o, p: p["x_backprop_grad"]),
    "scale_grad a few ulp off": _output(
        "scale_grad", lambda o, p: o["scale_grad"] * np.float64(1 + 2**-6)
    ),
}

FORMULAS = {
    "first_order": Judged(
        [op.name for op in spec.of_formula(spec.ops.BATCH_NORM_GRAD)],
        {kernel.__name__: first_order(kernel) for kernel in numpy_kernels.FAULTS}, 400,
        {
            "AllZeros": batch_norm_grad.OUTPUTS, "Identity": ("x_backprop",),
            "ModesSwapped": ("x_backprop",),
        },
        sizes=range(20_000), draw=numpy_kernels.fill, right=first_order(numpy_kernels.Kernel),
        profiles=(STRICT, bounds.PROFILES["textbook"]),
    ),
    "forward": Judged(
        ("FusedBatchNormV3", "FusedBatchNormEx"), _FORWARD, 600,
        {
            "zeros": batch_norm.OUTPUTS, "identity as y": ("y",),
            "saved variance unbiased": ("saved_variance",),
        },
        1 / 6,
    ),
    "behind_activation": Judged(
        ("FusedBatchNormGradEx",), _BEHIND_ACTIVATION, 320,
        {"zeros": ("x_backprop", "scale_backprop", "offset_backprop")},
    ),
    "second_order": Judged(
        ("FusedBatchNormGradGrad",), _SECOND_ORDER, 400,
        {
            "zeros": batch_norm_grad_grad.OUTPUTS, "identity as x_grad": ("x_grad",),
            "identity as y_backprop_grad": ("y_backprop_grad",),
        },
    ),
}  # fmt: skip
