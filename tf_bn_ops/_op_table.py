"""The ops of the library and their element types, in one table each.

Bindings, tests, the conformance harness and the benchmark read op names, inputs, outputs, data
formats and dtypes from here. Nothing in this file imports TensorFlow.

An input or output has a *role*, what it means in batch normalization, next to the name that its
op gives to it: `reserve_space_1` of FusedBatchNormGradV3 has the role "mean". Code that works for
every op of the family speaks in roles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
      name: the name in TensorFlow's attr values ("half", not "float16").
      unit_roundoff: u, half the distance from 1 to the next number.
      smallest_normal: below it numbers are subnormal.
      smallest_subnormal: the distance between subnormal numbers.
      largest: the largest finite number.
      accumulator: the narrowest type that sums of this type may be kept in.
    """

    name: str
    unit_roundoff: float
    smallest_normal: float
    smallest_subnormal: float
    largest: float
    accumulator: str

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type; bfloat16 comes from ml_dtypes, a dependency of TensorFlow."""
        if self.name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype({"half": "float16"}.get(self.name, self.name))


def _binary(name: str, precision: int, max_exponent: int, accumulator: str) -> DType:
    """A binary type of `precision` significant bits whose largest numbers are below 2^(e+1)."""
    min_exponent = 1 - max_exponent
    return DType(
        name=name,
        unit_roundoff=2.0**-precision,
        smallest_normal=2.0**min_exponent,
        smallest_subnormal=2.0 ** (min_exponent - precision + 1),
        largest=(2.0 - 2.0 ** (1 - precision)) * 2.0**max_exponent,
        accumulator=accumulator,
    )


DTYPES: Mapping[str, DType] = {
    d.name: d
    for d in (
        _binary("half", 11, 15, "float32"),
        _binary("bfloat16", 8, 127, "float32"),
        _binary("float32", 24, 127, "float32"),
        _binary("float64", 53, 1023, "float64"),
    )
}


def dtype_of(array: np.ndarray) -> DType:
    """The table's entry for the element type of a NumPy array.

    Raises:
      KeyError: the table has no such type.
    """
    name = array.dtype.name
    return DTYPES[{"float16": "half"}.get(name, name)]


# How an op is called: with the statistics of the batch, or with statistics that are constants.
MODES = ("training", "frozen")

# Values of TensorFlow's attr data_format -> (rank, channels last).
DATA_FORMATS: Mapping[str, tuple[int, bool]] = {
    "NHWC": (4, True),
    "NCHW": (4, False),
    "NDHWC": (5, True),
    "NCDHW": (5, False),
}

# The same with the other layouts that ops of the family take. Ranks that no data format names get a
# name here, so that cases and tables can speak of them: T is one more dimension.
LAYOUTS: Mapping[str, tuple[int, bool]] = {
    **DATA_FORMATS,
    "NC": (2, False),
    "NCW": (3, False),
    "NCTDHW": (6, False),
}


@dataclasses.dataclass(frozen=True)
class Arg:
    """An input or output: its name in the op, and its role in the family."""

    name: str
    role: str


# Stands for the default of an attr that has none.
REQUIRED = object()


@dataclasses.dataclass(frozen=True)
class Op:
    """One op of the family.

    Attributes:
      name: the Python name; `tf_bn_ops.raw_ops` and `tf.raw_ops` have it.
      registered_name: the name in TensorFlow's op registry.
      builtin: the op of TensorFlow that it equals, or None.
      counterpart: an op of this table whose results are the same where it takes the same layout and
        element type; the op itself if it equals a built-in.
      inputs, outputs: in the order of the OpDef.
      attrs: attr name -> default, without types; REQUIRED where there is none.
      epsilon_dtype: the type that epsilon has in the kernel.
      dtypes: allowed values of the element type T.
      statistics_dtypes: allowed types of scale, mean, variance and their gradients; None: T.
      data_formats: layouts that it takes; values of the attr data_format where it has one.
      ranks: the ranks of these layouts; an op may take more.
      least_channels: number of channels below which it raises an error.
    """

    name: str
    registered_name: str
    builtin: str | None
    counterpart: str
    inputs: tuple[Arg, ...]
    outputs: tuple[Arg, ...]
    attrs: Mapping[str, Any]
    epsilon_dtype: str
    dtypes: tuple[str, ...]
    statistics_dtypes: tuple[str, ...] | None
    data_formats: tuple[str, ...]
    least_channels: int = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({LAYOUTS[layout][0] for layout in self.data_formats}))

    @property
    def modes(self) -> tuple[str, ...]:
        """Those of MODES that it has; without a choice it is always training."""
        return MODES if "is_training" in self.attrs else MODES[:1]

    def statistics_dtype(self, dtype: str) -> str:
        """The (first) statistics type that goes with the element type `dtype`."""
        return dtype if self.statistics_dtypes is None else self.statistics_dtypes[0]


def _fused_batch_norm_grad(
    version: str, data_formats: tuple[str, ...], dtypes: tuple[str, ...], reserve_spaces: int
) -> Op:
    name = "FusedBatchNormGrad" + version
    reserved = ("mean", "variance", "reserve")
    return Op(
        name=name,
        registered_name="TfBnOps>" + name,
        builtin=name,
        counterpart=name,
        inputs=(
            Arg("y_backprop", "y_backprop"),
            Arg("x", "x"),
            Arg("scale", "scale"),
            *(Arg(f"reserve_space_{i + 1}", reserved[i]) for i in range(reserve_spaces)),
        ),
        outputs=(
            Arg("x_backprop", "x_backprop"),
            Arg("scale_backprop", "scale_backprop"),
            Arg("offset_backprop", "offset_backprop"),
            Arg(f"reserve_space_{reserve_spaces + 1}", "placeholder"),
            Arg(f"reserve_space_{reserve_spaces + 2}", "placeholder"),
        ),
        attrs={"epsilon": 1e-4, "data_format": "NHWC", "is_training": True},
        epsilon_dtype="float32",
        dtypes=dtypes,
        statistics_dtypes=("float32",) if version else None,
        data_formats=data_formats,
    )


_BATCH_NORM_TRAINING_BACKPROP = Op(
    name="BatchNormTrainingBackprop",
    registered_name="TfBnOps>BatchNormTrainingBackprop",
    builtin=None,
    counterpart="FusedBatchNormGradV3",
    inputs=(
        Arg("input", "x"),
        Arg("gamma", "scale"),
        Arg("beta", "offset"),
        Arg("mean", "mean"),
        Arg("variance", "variance"),
        Arg("normalized_delta", "y_backprop"),
    ),
    outputs=(
        Arg("input_delta", "x_backprop"),
        Arg("gamma_delta", "scale_backprop"),
        Arg("beta_delta", "offset_backprop"),
    ),
    attrs={"epsilon": REQUIRED},
    epsilon_dtype="float64",
    dtypes=("float64", "float32", "half", "bfloat16"),
    statistics_dtypes=None,
    # Any rank from 2 on; these are tested.
    data_formats=("NC", "NCW", "NCHW", "NCDHW", "NCTDHW"),
    least_channels=1,
)


_RANK_4 = ("NHWC", "NCHW")

OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        _fused_batch_norm_grad("", _RANK_4, ("float32",), 2),
        _fused_batch_norm_grad("V2", _RANK_4, ("half", "bfloat16", "float32"), 2),
        _fused_batch_norm_grad("V3", tuple(DATA_FORMATS), ("half", "bfloat16", "float32"), 3),
        _BATCH_NORM_TRAINING_BACKPROP,
    )
}

# The gradient of all of them. It is not in OPS: code that speaks in the roles of a first-order
# gradient can do nothing with it.
SECOND_ORDER = Op(
    name="FusedBatchNormGradGrad",
    registered_name="TfBnOps>FusedBatchNormGradGrad",
    builtin=None,
    counterpart="FusedBatchNormGradGrad",
    inputs=(
        Arg("x_backprop_grad", "x_backprop_grad"),
        Arg("scale_backprop_grad", "scale_backprop_grad"),
        Arg("offset_backprop_grad", "offset_backprop_grad"),
        Arg("y_backprop", "y_backprop"),
        Arg("x", "x"),
        Arg("scale", "scale"),
        Arg("reserve_space_1", "mean"),
        Arg("reserve_space_2", "variance"),
    ),
    outputs=(
        Arg("y_backprop_grad", "y_backprop_grad"),
        Arg("x_grad", "x_grad"),
        Arg("scale_grad", "scale_grad"),
    ),
    attrs={"epsilon": 1e-4, "data_format": "NHWC", "is_training": True},
    epsilon_dtype="float64",
    dtypes=("float64", "float32", "half", "bfloat16"),
    # float32, or T.
    statistics_dtypes=None,
    # The attr's values; any rank from 2 on.
    data_formats=tuple(DATA_FORMATS),
)

ALL_OPS: Mapping[str, Op] = {**OPS, SECOND_ORDER.name: SECOND_ORDER}
