"""Formula models: who knows the right answer of an op, its error bound and its inputs.

An OpSpec names its model; a new formula is a module with a model and a line of MODELS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tf_bn_ops import spec
from tf_bn_ops.harness.batch_norm_grad import BatchNormGrad
from tf_bn_ops.harness.batch_norm_grad_grad import BatchNormGradGrad
from tf_bn_ops.harness.bounds import Profile
from tf_bn_ops.harness.generic_model import GenericOpSpec
from tf_bn_ops.harness.inputs import Kind
from tf_bn_ops.harness.measure import Expected
from tf_bn_ops.harness.problems import Call, Inputs, Problem
from tf_bn_ops.spec import OpSpec


class FormulaModel(Protocol):
    """What is known of a formula.

    Attributes:
      kinds: kinds of values that inputs are drawn of.
      outputs: the roles whose values are judged.
      formula: the outputs in a few lines of NumPy, for programs that show a failure.
    """

    @property
    def kinds(self) -> Mapping[str, Kind]: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def formula(self) -> Callable[..., Any]: ...

    def fill(self, call: Call) -> Inputs:
        """The inputs of a call, the same for the same call."""

    def expected(self, problem: Problem, profile: Profile) -> Iterator[Expected]:
        """The right answer to a problem with its bound, part by part."""


MODELS: Mapping[str, FormulaModel] = {
    spec.BATCH_NORM_GRAD: BatchNormGrad(),
    spec.BATCH_NORM_GRAD_GRAD: BatchNormGradGrad(),
}


def model_of(op: OpSpec) -> FormulaModel:
    """The model that judges an op."""
    return MODELS[op.formula]


def kinds_of(op: OpSpec) -> Mapping[str, Kind]:
    """The kinds of inputs of an op, one of a mapping file included."""
    return op.model.kinds if isinstance(op, GenericOpSpec) else model_of(op).kinds
