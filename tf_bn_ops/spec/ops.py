"""The table of ops: what an op is stands here, once; tools/generate_ops writes what follows.

From an entry follow the OpDef, the registration of kernels, the Python function with its named
tuple and documentation, the C++ class, what the harness draws and judges. CONTRIBUTING.md has the
recipe for a new op.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_bn_ops.spec.dtypes import DTYPES
from tf_bn_ops.spec.layouts import DATA_FORMATS
from tf_bn_ops.spec.op_spec import (
    ACTIVATIONS,
    CHANNEL,
    COUNT,
    ELEMENT,
    OPAQUE,
    PLACEHOLDER,
    REQUIRED,
    ROW,
    ROWS,
    SMOOTH_ACTIVATIONS,
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
# Of these, those that compute elements from given statistics and sums.
ELEMENTS_ALONE = (BATCH_NORM_ELEMT, BATCH_NORM_BACKWARD_ELEMT)
# Formula model -> the formula of the core.
FORMULAS = {
    **dict.fromkeys((BATCH_NORM, BATCH_NORM_ADD, BATCH_NORM_STATS, BATCH_NORM_ELEMT), "kForward"),
    **dict.fromkeys((BATCH_NORM_GRAD, BATCH_NORM_GRAD_EX), "kGradient"),
    **dict.fromkeys((BATCH_NORM_BACKWARD_REDUCE, BATCH_NORM_BACKWARD_ELEMT), "kGradient"),
    BATCH_NORM_GRAD_GRAD: "kSecondOrder",
}

# The rows of reserve_space_3, see cc/core/formulas/forward.h: of the mean and of
# sqrt(variance + epsilon) two each, what float32 holds and the rest.
FORWARD_COEFFICIENTS = ("mean", "mean_rest", "scale_rstd", "deviation", "deviation_rest")
NUM_FORWARD_COEFFICIENTS = len(FORWARD_COEFFICIENTS)

# Cases are drawn attr by attr: the order of attrs is part of what a seed means.
_FORMAT_AND_MODE = {"data_format": "NHWC", "is_training": True}
_ATTRS = {"epsilon": 1e-4, **_FORMAT_AND_MODE}
_ACTIVATION = {"activation_mode": "Identity"}
# A smooth activation is in one op, in neither of those that replicas exchange sums between.
_CLAMPS = tuple(name for name in ACTIVATIONS if name not in SMOOTH_ACTIVATIONS)
_RANK_4 = ("NHWC", "NCHW")
_ALL_FORMATS = tuple(DATA_FORMATS)
_V2_DTYPES = ("half", "bfloat16", "float32")
_ALL_DTYPES = ("float64", "float32", "half", "bfloat16")
_TENSORFLOW_SHAPES = "tensorflow::shape_inference::FusedBatchNorm"

# ---- Arguments that several ops have -------------------------------------------------------------

_X = Arg("x", "x", VIEW, "What is normalized.")
_SCALE = Arg("scale", "scale", CHANNEL, "The scale factors (gamma).")
_OFFSET = Arg("offset", "offset", CHANNEL, "The offsets (beta).")
_SIDE_INPUT = Arg(
    "side_input",
    "side_input",
    VIEW_LIST,
    "At most one tensor of the shape of x, which is added before the activation.",
)
_Y_BACKPROP = Arg(
    "y_backprop", "y_backprop", VIEW, "Gradient with respect to y, of the shape of x."
)
_X_BACKPROP = Arg("x_backprop", "x_backprop", VIEW, "Gradient with respect to x.")
_SCALE_BACKPROP = Arg(
    "scale_backprop", "scale_backprop", CHANNEL, "Gradient with respect to scale."
)
_OFFSET_BACKPROP = Arg(
    "offset_backprop", "offset_backprop", CHANNEL, "Gradient with respect to the offset."
)
_SIDE_INPUT_BACKPROP = Arg(
    "side_input_backprop",
    "side_input_backprop",
    VIEW_LIST,
    "Gradient with respect to the side input.",
)


def _placeholder(number: int) -> Arg:
    doc = "A placeholder of the built-in op."
    return Arg(f"reserve_space_{number}", "placeholder", PLACEHOLDER, doc)


def _float(arg: Arg) -> Arg:
    """With the type float in the OpDef, for which TensorFlow's gradients have no attr."""
    return dataclasses.replace(arg, op_def_type="float")


def _op(name: str, **fields: object) -> OpSpec:
    """An op without a twin in TensorFlow, unless `fields` say so."""
    fields = {"builtin": None, "counterpart": None, "epsilon_dtype": "float32", **fields}
    return OpSpec(name=name, registered_name="TfBnOps>" + name, **fields)  # type: ignore[arg-type]


# What an older version says.
_OLDER = "{} has the formulas; this version takes fewer types and ranks.\n"

_FORWARD_COEFFICIENTS = Arg(
    "reserve_space_3",
    "forward_coefficients",
    OPAQUE,
    "For the gradient, in training: [5, C], what the other reserve spaces lose of mean and variance"
    " by rounding, and the coefficients that y was computed with. Frozen, a placeholder.",
)

# ---- Forward -------------------------------------------------------------------------------------

_FORWARD_DESCRIPTION = """\
With M the number of elements of a channel, sums over all dimensions but the channel's, and in
training mean = sum(x)/M, variance = sum((x - mean)^2)/M:

    y = scale * (x - mean) / sqrt(variance + epsilon) + offset

With f = exponential_avg_factor, in training

    batch_mean = (1 - f) * (mean given) + f * mean
    batch_variance = (1 - f) * (variance given) + f * variance * M/max(M - 1, 1)

Frozen, mean and variance are those given, and so are batch_mean and batch_variance. All outputs are
written in either mode; y is accurate at any mean of x.
"""


def _fused_batch_norm(
    version: str, layouts: tuple[str, ...], dtypes: tuple[str, ...], reserve_spaces: int
) -> OpSpec:
    name = "FusedBatchNorm" + version
    return _op(
        name,
        builtin=name,
        counterpart=name,
        formula=BATCH_NORM,
        summary=f"Batch normalization, the twin of TensorFlow's {name}.",
        description=_FORWARD_DESCRIPTION if version == "V3" else _OLDER.format("FusedBatchNormV3"),
        inputs=(
            dataclasses.replace(
                _X,
                doc="What is normalized, of the rank of data_format (eagerly 4-D or 5-D).",
            ),
            _SCALE,
            _OFFSET,
            Arg(
                "mean",
                "mean",
                CHANNEL,
                "Frozen the mean of the population, in training the running mean; in training"
                " with a factor of 1 it is not read, and may have any size.",
            ),
            Arg("variance", "variance", CHANNEL, "The same for the variance."),
        ),
        outputs=(
            Arg("y", "y", VIEW, "The normalized tensor."),
            Arg("batch_mean", "batch_mean", CHANNEL, "The new running mean; NaN where x is empty."),
            Arg("batch_variance", "batch_variance", CHANNEL, "The new running variance; the same."),
            Arg(
                "reserve_space_1",
                "saved_mean",
                CHANNEL,
                "The mean that x was normalized with, for the gradient; 0 where x is empty.",
            ),
            Arg(
                "reserve_space_2",
                "saved_variance",
                CHANNEL,
                "The biased variance that x was normalized with, for the gradient; on a GPU in"
                " training 1/sqrt(variance + epsilon), as cuDNN has it.",
            ),
            *(_FORWARD_COEFFICIENTS,) * (reserve_spaces - 2),
        ),
        attrs={"epsilon": 1e-4, "exponential_avg_factor": 1.0, **_FORMAT_AND_MODE},
        dtypes=dtypes,
        statistics_dtypes=("float32",),
        extra_statistics_dtypes=("bfloat16",) if version == "V3" else (),
        layouts=layouts,
        rank_of_format=True,
        shape_function=f"{_TENSORFLOW_SHAPES}{version.removesuffix('V2')}Shape",
    )


_FUSED_BATCH_NORM_V3 = _fused_batch_norm("V3", _ALL_FORMATS, _V2_DTYPES, 3)

# What TensorFlow's _FusedBatchNormEx takes, and more; that one has no Python name.
_FUSED_BATCH_NORM_EX = dataclasses.replace(
    _FUSED_BATCH_NORM_V3,
    name="FusedBatchNormEx",
    registered_name="TfBnOps>FusedBatchNormEx",
    builtin=None,
    counterpart=None,
    formula=BATCH_NORM_ADD,
    summary="Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.",
    description=_FORWARD_DESCRIPTION.replace(
        "    y = scale * (x - mean) / sqrt(variance + epsilon) + offset",
        "    y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)",
    ),
    inputs=(*_FUSED_BATCH_NORM_V3.inputs, _SIDE_INPUT),
    outputs=(
        *_FUSED_BATCH_NORM_V3.outputs[:-1],
        dataclasses.replace(
            _FORWARD_COEFFICIENTS,
            doc=_FORWARD_COEFFICIENTS.doc.replace(", in training: ", ": ").replace(
                "Frozen, a placeholder.", "Frozen, without an activation, a placeholder."
            ),
        ),
    ),
    attrs={
        "epsilon": 1e-4,
        "exponential_avg_factor": 1.0,
        **_ACTIVATION,
        **_FORMAT_AND_MODE,
        "bessel_correction": True,
    },
    extra_statistics_dtypes=(),
    shape_function="InferExShapes",
)

# ---- First-order gradients -----------------------------------------------------------------------

_GRADIENT_DESCRIPTION = """\
With M the number of elements of a channel, rstd = 1/sqrt(variance + epsilon), mean and variance in
reserve_space_1 and 2, and sums over all dimensions but the channel's:

    offset_backprop = sum(y_backprop)
    scale_backprop = rstd * sum(y_backprop * (x - mean))
    training: x_backprop = scale * rstd * (y_backprop - offset_backprop/M
                           - (x - mean) * rstd * scale_backprop/M)
    frozen:   x_backprop = scale * rstd * y_backprop

Sums are accumulated in float64; x_backprop is computed in float32 and rounded to its type once.
"""


def _fused_batch_norm_grad(
    version: str, layouts: tuple[str, ...], dtypes: tuple[str, ...], reserve_spaces: int
) -> OpSpec:
    name = "FusedBatchNormGrad" + version
    reserved = (
        Arg(
            "reserve_space_1",
            "mean",
            CHANNEL,
            "The mean: of the batch in training, of the population if frozen.",
        ),
        Arg(
            "reserve_space_2",
            "variance",
            CHANNEL,
            "The biased variance: of the batch in training (on a GPU 1/sqrt(variance + epsilon),"
            " as the forward op returns it there), of the population if frozen.",
        ),
        Arg(
            "reserve_space_3",
            "forward_coefficients",
            OPAQUE,
            "As the forward op of this library returns it with reserve_space_1: then mean and"
            " variance are right beyond what float32 holds. Of another op, in any shape, it is not"
            " read.",
        ),
    )
    return _op(
        name,
        builtin=name,
        counterpart=name,
        formula=BATCH_NORM_GRAD,
        summary=f"Gradient of batch normalization, the twin of TensorFlow's {name}.",
        description=_GRADIENT_DESCRIPTION
        if version == "V3"
        else _OLDER.format("FusedBatchNormGradV3"),
        inputs=(
            _Y_BACKPROP,
            dataclasses.replace(_X, doc="What was normalized, of the rank of data_format."),
            _float(_SCALE) if version else _SCALE,
            *reserved[:reserve_spaces],
        ),
        outputs=(
            _X_BACKPROP,
            _SCALE_BACKPROP,
            _OFFSET_BACKPROP,
            *(_placeholder(reserve_spaces + i) for i in (1, 2)),
        ),
        attrs=_ATTRS,
        dtypes=dtypes,
        statistics_dtypes=("float32",),
        layouts=layouts,
        shape_function=_TENSORFLOW_SHAPES + "GradShape",
    )


_FUSED_BATCH_NORM_GRAD_V3 = _fused_batch_norm_grad("V3", _ALL_FORMATS, _V2_DTYPES, 3)

# What TensorFlow's _FusedBatchNormGradEx takes, and more; that one has no Python name.
_FUSED_BATCH_NORM_GRAD_EX = dataclasses.replace(
    _FUSED_BATCH_NORM_GRAD_V3,
    name="FusedBatchNormGradEx",
    registered_name="TfBnOps>FusedBatchNormGradEx",
    builtin=None,
    counterpart=None,
    formula=BATCH_NORM_GRAD_EX,
    summary="Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.",
    description="""\
FusedBatchNormGradV3 of y_backprop where the activation passes it, y > 0 (Relu) or 0 < y < 6
(Relu6), and of 0 elsewhere; of y_backprop times the derivative of Silu or HardSilu. What that is of
is side_input_backprop, too.
""",
    inputs=(
        *_FUSED_BATCH_NORM_GRAD_V3.inputs[:3],
        *(
            dataclasses.replace(arg, doc="As FusedBatchNormEx returns it.")
            for arg in _FUSED_BATCH_NORM_GRAD_V3.inputs[3:5]
        ),
        Arg(
            "reserve_space_3",
            "forward_coefficients",
            OPAQUE,
            "As FusedBatchNormEx returns it. Where it holds the coefficients that y was computed"
            " with, and offset is given, the mask is computed from x, and y is not read on CPUs.",
        ),
        _float(
            dataclasses.replace(
                _OFFSET,
                doc="The offsets; read with an activation. An empty vector or reserve_space_3 in"
                " their place: the mask is computed from y, and Silu and HardSilu are refused.",
            )
        ),
        Arg(
            "y",
            "y",
            VIEW,
            "The output y of FusedBatchNormEx; read with an activation. With Silu and HardSilu its"
            " side input, or, without one, any tensor of the shape of x, which is not read.",
        ),
    ),
    outputs=(*_FUSED_BATCH_NORM_GRAD_V3.outputs, _SIDE_INPUT_BACKPROP),
    attrs={"epsilon": 1e-4, "num_side_inputs": 0, **_ACTIVATION, **_FORMAT_AND_MODE},
    rank_of_format=True,
    shape_function="InferGradExShapes",
)

_BATCH_NORM_TRAINING_BACKPROP = _op(
    "BatchNormTrainingBackprop",
    counterpart="FusedBatchNormGradV3",
    formula=BATCH_NORM_GRAD,
    summary="Gradient of batch normalization in training, nGraph's op of this name.",
    description="""\
The tensors are (N, C, ...) of any rank from 2 on. With M the number of elements of a channel,
rstd = 1/sqrt(variance + epsilon), and sums over all dimensions but C:

    beta_delta = sum(normalized_delta)
    gamma_delta = rstd * sum(normalized_delta * (input - mean))
    input_delta = gamma * rstd * (normalized_delta - beta_delta/M
                                  - (input - mean) * rstd * gamma_delta/M)

Mean and variance are taken as given, and differentiated as functions of the input.
""",
    inputs=(
        Arg("input", "x", VIEW, "What was normalized, (N, C, ...)."),
        Arg("gamma", "scale", CHANNEL, "The scale factors."),
        Arg("beta", "offset", CHANNEL, "The offsets. No result depends on them."),
        Arg("mean", "mean", CHANNEL, "The mean of each channel of input."),
        Arg("variance", "variance", CHANNEL, "The biased variance of each channel of input."),
        Arg(
            "normalized_delta",
            "y_backprop",
            VIEW,
            "Gradient with respect to the normalized output, of the shape of input.",
        ),
    ),
    outputs=(
        Arg("input_delta", "x_backprop", VIEW, "Gradient with respect to input."),
        Arg("gamma_delta", "scale_backprop", CHANNEL, "Gradient with respect to gamma."),
        Arg("beta_delta", "offset_backprop", CHANNEL, "Gradient with respect to beta."),
    ),
    attrs={"epsilon": REQUIRED},
    epsilon_dtype="float64",
    dtypes=_ALL_DTYPES,
    statistics_dtypes=(ELEMENT,),
    # Any rank from 2 on; these are tested.
    layouts=("NC", "NCW", "NCHW", "NCDHW", "NCTDHW"),
    min_channels=1,
)

# ---- Second order --------------------------------------------------------------------------------

# The gradient of all first-order ops.
_FUSED_BATCH_NORM_GRAD_GRAD = _op(
    "FusedBatchNormGradGrad",
    formula=BATCH_NORM_GRAD_GRAD,
    summary="Gradient of the gradient of batch normalization, as TensorFlow registers it.",
    description="""\
With M the number of elements of a channel, mean and sum over all dimensions but the channel's, a
prime for "less its mean", and in training

    rstd = 1/sqrt(mean(x'^2) + epsilon), xhat = x' * rstd, f = scale * rstd,
    a = mean(x_backprop_grad * xhat), s = mean(y_backprop * xhat),
    b = mean(x_backprop_grad' * y_backprop'), p = scale_backprop_grad - f * a:

    y_backprop_grad = f * x_backprop_grad' + p * xhat + offset_backprop_grad
    x_grad = rstd * (p * y_backprop' - f * s * x_backprop_grad'
                     - (scale_backprop_grad * s + f * (b - 3 * a * s)) * xhat)
    scale_grad = rstd * M * (b - a * s)

Frozen, with mean and variance given:

    y_backprop_grad = f * x_backprop_grad + scale_backprop_grad * xhat + offset_backprop_grad
    x_grad = scale_backprop_grad * rstd * y_backprop
    scale_grad = rstd * sum(x_backprop_grad * y_backprop)

Tensors of the shape of x have any rank from 2 on; U is float32, or T. The reserve spaces get no
gradient.
""",
    inputs=(
        Arg("x_backprop_grad", "x_backprop_grad", VIEW, "Gradient with respect to x_backprop."),
        Arg(
            "scale_backprop_grad",
            "scale_backprop_grad",
            CHANNEL,
            "Gradient with respect to scale_backprop.",
        ),
        Arg(
            "offset_backprop_grad",
            "offset_backprop_grad",
            CHANNEL,
            "Gradient with respect to offset_backprop.",
        ),
        Arg("y_backprop", "y_backprop", VIEW, "As given to the first-order op."),
        Arg("x", "x", VIEW, "As given to the first-order op."),
        Arg("scale", "scale", CHANNEL, "As given to the first-order op."),
        Arg("reserve_space_1", "mean", CHANNEL, "The mean; read if frozen."),
        Arg("reserve_space_2", "variance", CHANNEL, "The variance; read if frozen."),
    ),
    outputs=(
        Arg("y_backprop_grad", "y_backprop_grad", VIEW, "Gradient with respect to y_backprop."),
        Arg("x_grad", "x_grad", VIEW, "Gradient with respect to x."),
        Arg("scale_grad", "scale_grad", CHANNEL, "Gradient with respect to scale."),
    ),
    attrs=_ATTRS,
    derived_attrs=("epsilon_rest",),
    epsilon_dtype="float64",
    dtypes=_ALL_DTYPES,
    statistics_dtypes=("float32", ELEMENT),
    # The attr's values; any rank from 2 on.
    layouts=_ALL_FORMATS,
    xla_calls_kernel=False,
)

# ---- The parts of synchronised batch normalization, each a pass over one batch -------------------

# They mean what PyTorch's batch_norm_stats, batch_norm_gather_stats_with_counts, batch_norm_elemt,
# batch_norm_backward_reduce and batch_norm_backward_elemt mean, with the sum of squares m2 in the
# place of rstd, which no later op could combine exactly. They take any rank and axis
# (tests/ops/test_split_ops.py); these two layouts are those of cases.
_SPLIT = {"dtypes": _ALL_DTYPES, "layouts": ("NWC", "NCHW")}
_SPLIT_DTYPES = ("float32", "float64")
_SPLIT_X = dataclasses.replace(_X, doc="A tensor of rank 1 or more.")
_COUNT = Arg("count", "local_count", COUNT, "The number of elements of a channel.")

_BATCH_NORM_STATS = _op(
    "BatchNormStats",
    formula=BATCH_NORM_STATS,
    summary="Statistics of one batch, from which those of several batches are combined.",
    description="""\
One pass over x, with sums in float64 around an element of each channel: a mean of 1e5 beside a
deviation of 1 costs no digits. Without elements all results are 0.
""",
    inputs=(_SPLIT_X,),
    outputs=(
        _COUNT,
        Arg("mean", "local_mean", WIDE, "The mean of each channel."),
        Arg("m2", "local_m2", WIDE, "The sum of (x - mean)^2 of each channel."),
    ),
    attrs={"axis": -1},
    statistics_dtypes=("float64",),
    **_SPLIT,
)

# It takes no tensor of view shape, and is therefore not in OPS.
BATCH_NORM_GATHER_STATS = _op(
    "BatchNormGatherStats",
    formula="",
    summary="Statistics of a batch from those of its parts, by the formula of Chan et al.",
    description="""\
Row by row in their order, so that results are bitwise identical on all replicas:

    delta = means[w] - mean
    mean += delta * (counts[w] / (count + counts[w]))
    m2   += m2s[w] + delta^2 * (count * counts[w] / (count + counts[w]))
    count += counts[w]

Rows with a count of 0 are ignored, whatever else they hold. Without any other row all results are
0. A count that is negative, infinite or NaN is an error.
""",
    inputs=(
        Arg("counts", "counts", ROW, "Elements of a channel in each part."),
        Arg("means", "means", ROWS, "Their means."),
        Arg("m2s", "m2s", ROWS, "Their sums of (x - mean)^2."),
    ),
    outputs=(
        Arg("count", "count", COUNT, "Elements of a channel in all parts."),
        Arg("mean", "mean", WIDE, "Their mean."),
        Arg("m2", "m2", WIDE, "Their sum of (x - mean)^2."),
    ),
    attrs={},
    dtypes=(),
    statistics_dtypes=(),
    layouts=(),
    shape_function="InferGatherStatsShapes",
)

_SCALE_TO_VARIANCE = (
    _SCALE,
    _OFFSET,
    Arg("mean", "mean", WIDE, "The mean of each channel."),
    Arg("variance", "variance", WIDE, "The biased variance of each channel."),
)
_BATCH_NORM_ELEMT = _op(
    "BatchNormElemt",
    formula=BATCH_NORM_ELEMT,
    summary="Batch normalization with given statistics, addition and activation.",
    description="""\
    y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)
""",
    inputs=(_SPLIT_X, *_SCALE_TO_VARIANCE, _SIDE_INPUT),
    outputs=(Arg("y", "y", VIEW, "The normalized tensor."),),
    attrs={"epsilon": 1e-4, **_ACTIVATION, "axis": -1},
    activations=_CLAMPS,
    statistics_dtypes=_SPLIT_DTYPES,
    **_SPLIT,
)

_AS_IN_ELEMT = tuple(
    dataclasses.replace(arg, doc="As given to BatchNormElemt.")
    for arg in (_SPLIT_X, *_SCALE_TO_VARIANCE)
)
_BATCH_NORM_BACKWARD_REDUCE = _op(
    "BatchNormBackwardReduce",
    formula=BATCH_NORM_BACKWARD_REDUCE,
    summary="The sums of the gradient of batch normalization over one batch.",
    description="""\
With y_backprop where the activation passes it, and 0 elsewhere:

    sum_dy = sum(y_backprop)
    sum_dy_xmu = sum(y_backprop * (x - mean))
    scale_backprop = sum_dy_xmu / sqrt(variance + epsilon)
    offset_backprop = sum_dy
""",
    inputs=(
        _Y_BACKPROP,
        *_AS_IN_ELEMT,
        Arg(
            "y",
            "y",
            VIEW_LIST,
            "At most one tensor, the output of BatchNormElemt: needed with an activation behind a"
            " side input. Without it the mask of the activation is computed from x.",
        ),
    ),
    outputs=(
        Arg("sum_dy", "local_sum_dy", WIDE, "To be added up over all batches."),
        Arg("sum_dy_xmu", "local_sum_dy_xmu", WIDE, "To be added up over all batches."),
        dataclasses.replace(_SCALE_BACKPROP, doc="Gradient of this batch with respect to scale."),
        dataclasses.replace(_OFFSET_BACKPROP, doc="Gradient of this batch with respect to offset."),
    ),
    attrs={"epsilon": 1e-4, **_ACTIVATION, "axis": -1},
    activations=_CLAMPS,
    statistics_dtypes=_SPLIT_DTYPES,
    **_SPLIT,
)
_BATCH_NORM_BACKWARD_ELEMT = _op(
    "BatchNormBackwardElemt",
    formula=BATCH_NORM_BACKWARD_ELEMT,
    summary="The gradient of batch normalization with respect to x, from sums over all batches.",
    description="""\
With rstd = 1/sqrt(variance + epsilon), and y_backprop where the activation passes it, 0 elsewhere:

    x_backprop = scale * rstd * (y_backprop - sum_dy/count
                                 - (x - mean) * rstd^2 * sum_dy_xmu/count)
    side_input_backprop = y_backprop
""",
    inputs=(
        _Y_BACKPROP,
        *_AS_IN_ELEMT,
        Arg(
            "sum_dy",
            "sum_dy",
            WIDE,
            "The sum over all batches of BatchNormBackwardReduce's output.",
        ),
        Arg("sum_dy_xmu", "sum_dy_xmu", WIDE, "The same."),
        Arg("count", "count", COUNT, "The number of elements of a channel in all batches."),
        Arg("y", "y", VIEW_LIST, "At most one tensor, as given to BatchNormBackwardReduce."),
    ),
    outputs=(_X_BACKPROP, _SIDE_INPUT_BACKPROP),
    attrs={"epsilon": 1e-4, "num_side_inputs": 0, **_ACTIVATION, "axis": -1},
    activations=_CLAMPS,
    shape_function="InferBackwardElemtShapes",
    statistics_dtypes=_SPLIT_DTYPES,
    **_SPLIT,
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
