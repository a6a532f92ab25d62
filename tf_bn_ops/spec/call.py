"""What a call of the core is: struct tfbn_call, field by field.

tools/generate_ops writes cc/core/generated/roles.h from it, tf_bn_ops/harness/c_abi.py declares the
same struct with ctypes. Arrays have the names of the roles of the table of ops.
"""

from __future__ import annotations

from typing import NamedTuple

from tf_bn_ops.spec.op_spec import CHANNEL, COUNT, VIEW, WIDE

# Kinds of arrays that no argument of an op has by itself.
STATISTICS = "statistics"  # [channels] of stat_dtype, or of float64 with float64_statistics.
COEFFICIENTS = "coefficients"  # [rows, channels] of the type that elements are computed in.


class Attr(NamedTuple):
    """A number: its type in C, and in C++ where that is an enumeration."""

    name: str
    c_type: str
    doc: str
    enum: str = ""


class Array(NamedTuple):
    """An array, by the role of its tensor."""

    role: str
    kind: str
    doc: str = ""


# The kinds of formulas of the core (spec.ops.FORMULAS), by their values in C, and the direction
# that tf_bn_ops.report() shows.
FORMULA_KINDS = {"kForward": "forward", "kGradient": "backward", "kSecondOrder": "second order"}
FORMULA_CODES = {kind: code for code, kind in enumerate(FORMULA_KINDS)}

# 32 bits each, an even number of them, so that the doubles behind them are aligned.
ATTRS = (
    Attr("formula", "int32_t", "TFBN_FORWARD, ...", "FormulaKind"),
    Attr("dtype", "int32_t", "TFBN_FLOAT32, ...: of arrays of the shape of x.", "DType"),
    Attr("stat_dtype", "int32_t", "Of arrays of shape [channels].", "DType"),
    Attr("activation", "int32_t", "TFBN_IDENTITY, ...", "Activation"),
    Attr("is_training", "int32_t", "0: mean and variance are constants (frozen)."),
    Attr("float64_statistics", "int32_t", "mean and variance are float64, whatever stat_dtype is."),
    Attr("saves_rstd", "int32_t", "saved_variance holds rstd in training, as cuDNN has it."),
    Attr("variance_is_rstd", "int32_t", "variance holds rstd."),
    Attr("bessel_correction", "int32_t", "Of batch_variance in training."),
    Attr("leakyrelu_alpha", "float", "With TFBN_LEAKY_RELU the slope below 0; else not read."),
    Attr("epsilon", "double", "Added to the variance."),
    Attr("exponential_avg_factor", "double", "Weight of this batch in batch_mean, ..."),
)

INPUTS = (
    Array("x", VIEW),
    Array("side_input", VIEW, "Added before the activation."),
    Array("y_backprop", VIEW),
    Array("x_backprop_grad", VIEW),
    Array("scale", CHANNEL),
    Array("offset", CHANNEL),
    Array("mean", STATISTICS, "Not read in training with an exponential_avg_factor of 1."),
    Array("variance", STATISTICS, "The same."),
    Array("scale_backprop_grad", CHANNEL),
    Array("offset_backprop_grad", CHANNEL),
    Array("sum_dy", WIDE, "Over the batches of all replicas."),
    Array("sum_dy_xmu", WIDE, "The same."),
    Array("count", COUNT, "The same: elements of a channel."),
)

OUTPUTS = (
    Array(
        "y",
        VIEW,
        "Of the forward formula; an input of its gradient. Behind a smooth activation the gradient "
        "takes side_input in its place, where side_input_backprop is given.",
    ),
    Array(
        "forward_coefficients",
        COEFFICIENTS,
        "The same: what y was computed with, and what saved_mean and saved_variance lose; in "
        "training it is read where it is of the mean, variance and epsilon that are given. Where "
        "it is given with offset, and side_input_backprop is not, the mask of an activation is "
        "computed from x, and y is not read.",
    ),
    Array("x_backprop", VIEW),
    Array("side_input_backprop", VIEW),
    Array("y_backprop_grad", VIEW),
    Array("x_grad", VIEW),
    Array("batch_mean", CHANNEL),
    Array("batch_variance", CHANNEL),
    Array("saved_mean", CHANNEL),
    Array("saved_variance", CHANNEL),
    Array("scale_backprop", CHANNEL),
    Array("offset_backprop", CHANNEL),
    Array("scale_grad", CHANNEL),
    Array("local_mean", WIDE, "Of this batch."),
    Array("local_m2", WIDE, "The same: sum((x - mean)^2)."),
    Array("local_count", COUNT, "The same: elements of a channel; in host memory on every device."),
    Array("local_sum_dy", WIDE, "Over this batch."),
    Array("local_sum_dy_xmu", WIDE, "The same."),
)

ARRAYS = (*INPUTS, *OUTPUTS)
ROLES = frozenset(array.role for array in ARRAYS)
