"""The registry of ops: one entry each. CONTRIBUTING.md has the recipe for a new one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_bn_ops.spec.dtypes import DTYPES
from tf_bn_ops.spec.layouts import DATA_FORMATS
from tf_bn_ops.spec.op_spec import (
    CHANNEL,
    COUNT,
    ELEMENT,
    OPAQUE,
    PLACEHOLDER,
    REQUIRED,
    VIEW,
    VIEW_LIST,
    WIDE,
    Arg,
    OpSpec,
)

# Formula models.
BATCH_NORM_GRAD = "batch_norm_grad"
BATCH_NORM_GRAD_EX = "batch_norm_grad_ex"
BATCH_NORM_GRAD_EX_ADD = "batch_norm_grad_ex_add"  # The core's name where there is a side input.
BATCH_NORM_GRAD_GRAD = "batch_norm_grad_grad"
BATCH_NORM = "batch_norm"
BATCH_NORM_ADD = "batch_norm_add"  # With a side input, which BATCH_NORM lacks.
BATCH_NORM_STATS = "batch_norm_stats"
BATCH_NORM_ELEMT = "batch_norm_elemt"
BATCH_NORM_BACKWARD_REDUCE = "batch_norm_backward_reduce"
BATCH_NORM_BACKWARD_ELEMT = "batch_norm_backward_elemt"
# Those of parts of synchronised batch normalization.
PARTS = (
    BATCH_NORM_STATS,
    BATCH_NORM_ELEMT,
    BATCH_NORM_BACKWARD_REDUCE,
    BATCH_NORM_BACKWARD_ELEMT,
)

# The rows of FusedBatchNormEx's reserve_space_3, see cc/core/formulas/batch_norm.h.
NUM_FORWARD_COEFFICIENTS = 3

# Cases are drawn attr by attr: the order of attrs is part of what a seed means.
_FORMAT_AND_MODE = {"data_format": "NHWC", "is_training": True}
_ATTRS = {"epsilon": 1e-4, **_FORMAT_AND_MODE}
_RANK_4 = ("NHWC", "NCHW")
_V2_DTYPES = ("half", "bfloat16", "float32")
_ALL_DTYPES = ("float64", "float32", "half", "bfloat16")


def _fused_batch_norm_grad(
    version: str, layouts: tuple[str, ...], dtypes: tuple[str, ...], reserve_spaces: int
) -> OpSpec:
    name = "FusedBatchNormGrad" + version
    reserved = (("mean", CHANNEL), ("variance", CHANNEL), ("reserve", OPAQUE))[:reserve_spaces]
    return OpSpec(
        name=name,
        registered_name="TfBnOps>" + name,
        builtin=name,
        counterpart=name,
        formula=BATCH_NORM_GRAD,
        inputs=(
            Arg("y_backprop", "y_backprop", VIEW),
            Arg("x", "x", VIEW),
            Arg("scale", "scale", CHANNEL),
            *(Arg(f"reserve_space_{i}", *what) for i, what in enumerate(reserved, start=1)),
        ),
        outputs=(
            Arg("x_backprop", "x_backprop", VIEW),
            Arg("scale_backprop", "scale_backprop", CHANNEL),
            Arg("offset_backprop", "offset_backprop", CHANNEL),
            *(
                Arg(f"reserve_space_{reserve_spaces + i}", "placeholder", PLACEHOLDER)
                for i in (1, 2)
            ),
        ),
        attrs=_ATTRS,
        epsilon_dtype="float32",
        dtypes=dtypes,
        statistics_dtypes=("float32",),
        layouts=layouts,
    )


_BATCH_NORM_TRAINING_BACKPROP = OpSpec(
    name="BatchNormTrainingBackprop",
    registered_name="TfBnOps>BatchNormTrainingBackprop",
    builtin=None,
    counterpart="FusedBatchNormGradV3",
    formula=BATCH_NORM_GRAD,
    inputs=(
        Arg("input", "x", VIEW),
        Arg("gamma", "scale", CHANNEL),
        Arg("beta", "offset", CHANNEL),
        Arg("mean", "mean", CHANNEL),
        Arg("variance", "variance", CHANNEL),
        Arg("normalized_delta", "y_backprop", VIEW),
    ),
    outputs=(
        Arg("input_delta", "x_backprop", VIEW),
        Arg("gamma_delta", "scale_backprop", CHANNEL),
        Arg("beta_delta", "offset_backprop", CHANNEL),
    ),
    attrs={"epsilon": REQUIRED},
    epsilon_dtype="float64",
    dtypes=_ALL_DTYPES,
    statistics_dtypes=(ELEMENT,),
    # Any rank from 2 on; these are tested.
    layouts=("NC", "NCW", "NCHW", "NCDHW", "NCTDHW"),
    min_channels=1,
)

# The gradient of all of them.
_FUSED_BATCH_NORM_GRAD_GRAD = OpSpec(
    name="FusedBatchNormGradGrad",
    registered_name="TfBnOps>FusedBatchNormGradGrad",
    builtin=None,
    counterpart=None,
    formula=BATCH_NORM_GRAD_GRAD,
    inputs=(
        Arg("x_backprop_grad", "x_backprop_grad", VIEW),
        Arg("scale_backprop_grad", "scale_backprop_grad", CHANNEL),
        Arg("offset_backprop_grad", "offset_backprop_grad", CHANNEL),
        Arg("y_backprop", "y_backprop", VIEW),
        Arg("x", "x", VIEW),
        Arg("scale", "scale", CHANNEL),
        Arg("reserve_space_1", "mean", CHANNEL),
        Arg("reserve_space_2", "variance", CHANNEL),
    ),
    outputs=(
        Arg("y_backprop_grad", "y_backprop_grad", VIEW),
        Arg("x_grad", "x_grad", VIEW),
        Arg("scale_grad", "scale_grad", CHANNEL),
    ),
    attrs=_ATTRS,
    epsilon_dtype="float64",
    dtypes=_ALL_DTYPES,
    statistics_dtypes=("float32", ELEMENT),
    # The attr's values; any rank from 2 on.
    layouts=tuple(DATA_FORMATS),
    xla_calls_kernel=False,
)

_EPSILON_AND_FACTOR = {"epsilon": 1e-4, "exponential_avg_factor": 1.0}


def _fused_batch_norm(
    version: str, layouts: tuple[str, ...], dtypes: tuple[str, ...], reserve_spaces: int
) -> OpSpec:
    name = "FusedBatchNorm" + version
    reserved = (("saved_mean", CHANNEL), ("saved_variance", CHANNEL), ("placeholder", PLACEHOLDER))
    return OpSpec(
        name=name,
        registered_name="TfBnOps>" + name,
        builtin=name,
        counterpart=name,
        formula=BATCH_NORM,
        inputs=(
            Arg("x", "x", VIEW),
            *(Arg(role, role, CHANNEL) for role in ("scale", "offset", "mean", "variance")),
        ),
        outputs=(
            Arg("y", "y", VIEW),
            Arg("batch_mean", "batch_mean", CHANNEL),
            Arg("batch_variance", "batch_variance", CHANNEL),
            *(
                Arg(f"reserve_space_{i}", *what)
                for i, what in enumerate(reserved[:reserve_spaces], start=1)
            ),
        ),
        attrs={**_EPSILON_AND_FACTOR, **_FORMAT_AND_MODE},
        epsilon_dtype="float32",
        dtypes=dtypes,
        statistics_dtypes=("float32",),
        layouts=layouts,
        rank_of_format=True,
    )


_FUSED_BATCH_NORM_V3 = _fused_batch_norm("V3", tuple(DATA_FORMATS), _V2_DTYPES, 3)
_FUSED_BATCH_NORM_GRAD_V3 = _fused_batch_norm_grad("V3", tuple(DATA_FORMATS), _V2_DTYPES, 3)
_FORWARD_COEFFICIENTS = Arg("reserve_space_3", "forward_coefficients", OPAQUE)

# What TensorFlow's _FusedBatchNormEx takes, and more; that one has no Python name.
_FUSED_BATCH_NORM_EX = dataclasses.replace(
    _FUSED_BATCH_NORM_V3,
    name="FusedBatchNormEx",
    registered_name="TfBnOps>FusedBatchNormEx",
    builtin=None,
    counterpart=None,
    formula=BATCH_NORM_ADD,
    inputs=(*_FUSED_BATCH_NORM_V3.inputs, Arg("side_input", "side_input", VIEW_LIST)),
    outputs=(*_FUSED_BATCH_NORM_V3.outputs[:-1], _FORWARD_COEFFICIENTS),
    attrs={
        **_EPSILON_AND_FACTOR,
        "activation_mode": "Identity",
        **_FORMAT_AND_MODE,
        "bessel_correction": True,
    },
)

# What TensorFlow's _FusedBatchNormGradEx takes, and more; that one has no Python name.
_FUSED_BATCH_NORM_GRAD_EX = dataclasses.replace(
    _FUSED_BATCH_NORM_GRAD_V3,
    name="FusedBatchNormGradEx",
    registered_name="TfBnOps>FusedBatchNormGradEx",
    builtin=None,
    counterpart=None,
    formula=BATCH_NORM_GRAD_EX,
    inputs=(
        *_FUSED_BATCH_NORM_GRAD_V3.inputs[:-1],
        _FORWARD_COEFFICIENTS,
        Arg("offset", "offset", CHANNEL),
        Arg("y", "y", VIEW),
    ),
    outputs=(
        *_FUSED_BATCH_NORM_GRAD_V3.outputs,
        Arg("side_input_backprop", "side_input_backprop", VIEW_LIST),
    ),
    attrs={
        "epsilon": 1e-4,
        "num_side_inputs": 0,
        "activation_mode": "Identity",
        **_FORMAT_AND_MODE,
    },
    rank_of_format=True,
)

# The parts of synchronised batch normalization, each a pass over one batch. BatchNormGatherStats,
# which combines the statistics of several, takes no tensor of view shape and is no op of this kind.
# They take any rank and axis (tests/ops/test_split_ops.py); these two layouts are those of cases.
_SPLIT_LAYOUTS = ("NWC", "NCHW")


def _split(
    name: str,
    formula: str,
    inputs: tuple[Arg, ...],
    outputs: tuple[Arg, ...],
    attrs: Mapping[str, object],
    statistics_dtypes: tuple[str, ...] = ("float32", "float64"),
) -> OpSpec:
    return OpSpec(
        name=name,
        registered_name="TfBnOps>" + name,
        builtin=None,
        counterpart=None,
        formula=formula,
        inputs=inputs,
        outputs=outputs,
        attrs={**attrs, "axis": -1},
        epsilon_dtype="float32",
        dtypes=_ALL_DTYPES,
        statistics_dtypes=statistics_dtypes,
        layouts=_SPLIT_LAYOUTS,
    )


_SCALE_TO_VARIANCE = (
    Arg("scale", "scale", CHANNEL),
    Arg("offset", "offset", CHANNEL),
    Arg("mean", "mean", WIDE),
    Arg("variance", "variance", WIDE),
)
_ACTIVATION = {"activation_mode": "Identity"}

_BATCH_NORM_STATS = _split(
    "BatchNormStats",
    BATCH_NORM_STATS,
    (Arg("x", "x", VIEW),),
    (Arg("count", "local_count", COUNT), *(Arg(n, "local_" + n, WIDE) for n in ("mean", "m2"))),
    {},
    ("float64",),
)
_BATCH_NORM_ELEMT = _split(
    "BatchNormElemt",
    BATCH_NORM_ELEMT,
    (Arg("x", "x", VIEW), *_SCALE_TO_VARIANCE, Arg("side_input", "side_input", VIEW_LIST)),
    (Arg("y", "y", VIEW),),
    {"epsilon": 1e-4, **_ACTIVATION},
)
_BATCH_NORM_BACKWARD_REDUCE = _split(
    "BatchNormBackwardReduce",
    BATCH_NORM_BACKWARD_REDUCE,
    (
        Arg("y_backprop", "y_backprop", VIEW),
        Arg("x", "x", VIEW),
        *_SCALE_TO_VARIANCE,
        Arg("y", "y", VIEW_LIST),
    ),
    (
        Arg("sum_dy", "local_sum_dy", WIDE),
        Arg("sum_dy_xmu", "local_sum_dy_xmu", WIDE),
        Arg("scale_backprop", "scale_backprop", CHANNEL),
        Arg("offset_backprop", "offset_backprop", CHANNEL),
    ),
    {"epsilon": 1e-4, **_ACTIVATION},
)
_BATCH_NORM_BACKWARD_ELEMT = _split(
    "BatchNormBackwardElemt",
    BATCH_NORM_BACKWARD_ELEMT,
    (
        *_BATCH_NORM_BACKWARD_REDUCE.inputs[:-1],
        Arg("sum_dy", "sum_dy", WIDE),
        Arg("sum_dy_xmu", "sum_dy_xmu", WIDE),
        Arg("count", "count", COUNT),
        Arg("y", "y", VIEW_LIST),
    ),
    (
        Arg("x_backprop", "x_backprop", VIEW),
        Arg("side_input_backprop", "side_input_backprop", VIEW_LIST),
    ),
    {"epsilon": 1e-4, "num_side_inputs": 0, **_ACTIVATION},
)

OPS: Mapping[str, OpSpec] = {
    op.name: op
    for op in (
        _fused_batch_norm_grad("", _RANK_4, ("float32",), 2),
        _fused_batch_norm_grad("V2", _RANK_4, _V2_DTYPES, 2),
        _FUSED_BATCH_NORM_GRAD_V3,
        _BATCH_NORM_TRAINING_BACKPROP,
        _FUSED_BATCH_NORM_GRAD_GRAD,
        _fused_batch_norm("", _RANK_4, ("float32",), 2),
        _fused_batch_norm("V2", _RANK_4, _V2_DTYPES, 2),
        _FUSED_BATCH_NORM_V3,
        _FUSED_BATCH_NORM_EX,
        _FUSED_BATCH_NORM_GRAD_EX,
        _BATCH_NORM_STATS,
        _BATCH_NORM_ELEMT,
        _BATCH_NORM_BACKWARD_REDUCE,
        _BATCH_NORM_BACKWARD_ELEMT,
    )
}
assert all(set(op.dtypes) <= set(DTYPES) for op in OPS.values())


def of_formula(formula: str) -> tuple[OpSpec, ...]:
    """The ops that a formula model judges."""
    return tuple(op for op in OPS.values() if op.formula == formula)
