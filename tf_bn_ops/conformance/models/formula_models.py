"""Formula models: the right answer of an op, its error bound, its inputs.

An OpSpec names its model, which stands in MODELS of one of the modules beside this one.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np

from tf_bn_ops.conformance.models import batch_norm, inputs
from tf_bn_ops.conformance.models.bounds import PROFILES
from tf_bn_ops.conformance.models.measure import FormulaModel, OutputError, errors_of
from tf_bn_ops.conformance.models.oracle import working_type
from tf_bn_ops.harness.problems import Call, Inputs, Problem
from tf_bn_ops.spec import OpSpec


def _models() -> Iterator[tuple[str, FormulaModel]]:
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", pathlib.Path(__file__).stem):
            module = importlib.import_module(f"{__package__}.{path.stem}")
            yield from getattr(module, "MODELS", {}).items()


MODELS: Mapping[str, FormulaModel] = dict(_models())


def model_of(op: OpSpec) -> FormulaModel:
    """The model that judges an op."""
    return MODELS[op.formula]


def fill(call: Call) -> Inputs:
    """The inputs of a call of any op."""
    return model_of(call.spec).fill(call)


def errors(
    problem: Problem, outputs: Mapping[str, np.ndarray], profile: str = "strict"
) -> dict[str, OutputError]:
    """The errors of the outputs of a problem, by role, against its formula model."""
    expected = MODELS[problem.formula].expected(problem, PROFILES[profile])
    return errors_of(outputs, expected, {role: problem.type_of(role) for role in outputs})


def check(problem: Problem, outputs: Mapping[str, np.ndarray], profile: str = "strict") -> str:
    """The worst output beyond its error bound in one sentence, or nothing."""
    return _worst(errors(problem, outputs, profile))


def check_coefficients(problem: Problem, given: np.ndarray, profile: str = "strict") -> str:
    """`check` for the opaque forward_coefficients of a forward op, [rows, channels]."""
    rows = inputs.rows_of(given, working_type(problem))
    with np.errstate(all="ignore"):
        outputs = {
            "mean": rows["mean"] + rows["mean_rest"],
            "scale_rstd": rows["scale_rstd"],
            "deviation": rows["deviation"] + rows["deviation_rest"],
            "saved_variance": rows["saved_variance"],
            "epsilon": rows["epsilon"] + rows["epsilon_rest"],
        }
    expected = batch_norm.expected_coefficients(problem, PROFILES[profile])
    worst = _worst(errors_of(outputs, expected, dict.fromkeys(outputs)))
    return worst and f"forward_coefficients {worst}"  # The role first, as in check.


def _worst(found: Mapping[str, OutputError]) -> str:
    role, error = max(found.items(), key=lambda item: item[1].bound)
    how = f"{role} {error.bound:.3g} times the bound {error.worst}"
    return "" if error.bound <= 1 else how
