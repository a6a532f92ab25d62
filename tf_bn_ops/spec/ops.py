"""The table of ops: what an op is stands here, once; tools/generate_ops writes what follows.

From an entry follow the OpDef, the registration of kernels, the Python function with its named
tuple and documentation, the C++ class, what the harness draws and judges. CONTRIBUTING.md has the
recipe for a new op.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_bn_ops.spec.activations import CLAMPS, LEAKYRELU_ALPHA
from tf_bn_ops.spec.dtypes import DTYPES
from tf_bn_ops.spec.layouts import DATA_FORMATS
from tf_bn_ops.spec.op_spec import ELEMENT, REQUIRED, OpSpec, args

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
# The formula models of the parts of synchronised batch normalization.
PARTS = (BATCH_NORM_STATS, BATCH_NORM_ELEMT, BATCH_NORM_BACKWARD_REDUCE, BATCH_NORM_BACKWARD_ELEMT)
# Of these, the models that compute elements from given statistics and sums.
ELEMENTS_ALONE = (BATCH_NORM_ELEMT, BATCH_NORM_BACKWARD_ELEMT)
# Formula model -> the formula of the core.
FORMULAS = {
    **dict.fromkeys((BATCH_NORM, BATCH_NORM_ADD, BATCH_NORM_STATS, BATCH_NORM_ELEMT), "kForward"),
    **dict.fromkeys((BATCH_NORM_GRAD, BATCH_NORM_GRAD_EX), "kGradient"),
    **dict.fromkeys((BATCH_NORM_BACKWARD_REDUCE, BATCH_NORM_BACKWARD_ELEMT), "kGradient"),
    BATCH_NORM_GRAD_GRAD: "kSecondOrder",
}

# The rows of reserve_space_3, see ForwardCoefficientRow: two each of the mean, of sqrt(variance +
# epsilon) and of epsilon, what float32 holds and the rest.
FORWARD_COEFFICIENTS = (
    *("mean", "mean_rest", "scale_rstd", "deviation", "deviation_rest"),
    *("saved_variance", "epsilon", "epsilon_rest"),
)
NUM_FORWARD_COEFFICIENTS = len(FORWARD_COEFFICIENTS)

# Cases are drawn attr by attr: the order of attrs is part of what a seed means.
_FORMAT_AND_MODE = {"data_format": "NHWC", "is_training": True}
_ATTRS = {"epsilon": 1e-4, **_FORMAT_AND_MODE}
# Of ops without a twin in TensorFlow: their epsilon is not rounded to float.
_DOUBLE_EPSILON: dict[str, Any] = {"derived_attrs": ("epsilon_rest",), "epsilon_dtype": "float64"}
_CLAMP = {"activation_mode": "Identity"}
_ACTIVATION = {**_CLAMP, "leakyrelu_alpha": LEAKYRELU_ALPHA}
_RANK_4 = ("NHWC", "NCHW")
_ALL_FORMATS = tuple(DATA_FORMATS)
_V2_DTYPES = ("half", "bfloat16", "float32")
_ALL_DTYPES = ("float64", "float32", "half", "bfloat16")
_TENSORFLOW_SHAPES = "tensorflow::shape_inference::FusedBatchNorm"


def _op(name: str, **fields: object) -> OpSpec:
    """An op without a twin in TensorFlow, unless `fields` say so; its arguments may be text."""
    fields = {"builtin": None, "epsilon_dtype": "float32", **fields}
    for what in ("inputs", "outputs"):
        if isinstance(text := fields[what], str):
            fields[what] = args(text)
    return OpSpec(name=name, registered_name="TfBnOps>" + name, **fields)  # type: ignore[arg-type]


# What an older version says.
_OLDER = "{} has the formulas; this version takes fewer types and ranks.\n"

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
        formula=BATCH_NORM,
        summary=f"Batch normalization, the twin of TensorFlow's {name}.",
        description=_FORWARD_DESCRIPTION if version == "V3" else _OLDER.format("FusedBatchNormV3"),
        inputs=args(
            """
            x view: What is normalized, of the rank of data_format (eagerly 4-D or 5-D).
            scale channel: The scale factors (gamma).
            offset channel: The offsets (beta).
            mean channel: Frozen the mean of the population, in training the running mean; in
              training with a factor of 1 it is not read, and may have any size.
            variance channel: The same for the variance.
            """
        ),
        outputs=args(
            """
            y view: The normalized tensor.
            batch_mean channel: The new running mean; NaN where x is empty.
            batch_variance channel: The new running variance; the same.
            reserve_space_1=saved_mean channel: The mean that x was normalized with, for the
              gradient; 0 where x is empty.
            reserve_space_2=saved_variance channel: The biased variance that x was normalized with,
              for the gradient; on a GPU in training 1/sqrt(variance + epsilon), as cuDNN has it.
            reserve_space_3=forward_coefficients opaque: For the gradient, in training: [8, C], what
              the other reserve spaces lose of mean and variance by rounding, what says that it is
              theirs, and the coefficients that y was computed with. Frozen, a placeholder.
            """
        )[: 3 + reserve_spaces],
        attrs={"epsilon": 1e-4, "exponential_avg_factor": 1.0, **_FORMAT_AND_MODE},
        dtypes=dtypes,
        statistics_dtypes=("float32",),
        extra_statistics_dtypes=("bfloat16",) if version == "V3" else (),
        layouts=layouts,
        shape_function=f"{_TENSORFLOW_SHAPES}{version.removesuffix('V2')}Shape",
    )


_FUSED_BATCH_NORM_V3 = _fused_batch_norm("V3", _ALL_FORMATS, _V2_DTYPES, 3)

# What TensorFlow's _FusedBatchNormEx takes, and more; that one has no Python name.
_FUSED_BATCH_NORM_EX = dataclasses.replace(
    _FUSED_BATCH_NORM_V3,
    name="FusedBatchNormEx",
    registered_name="TfBnOps>FusedBatchNormEx",
    builtin=None,
    formula=BATCH_NORM_ADD,
    summary="Batch normalization, addition and activation, TensorFlow's _FusedBatchNormEx.",
    description=_FORWARD_DESCRIPTION.replace(
        "    y = scale * (x - mean) / sqrt(variance + epsilon) + offset",
        "    y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)",
    ),
    inputs=(
        *_FUSED_BATCH_NORM_V3.inputs,
        *args(
            """
            side_input view_list: At most one tensor of the shape of x, which is added before the
              activation.
            """
        ),
    ),
    outputs=(
        *_FUSED_BATCH_NORM_V3.outputs[:-1],
        *args(
            """
            reserve_space_3=forward_coefficients opaque: For the gradient: [8, C], what the other
              reserve spaces lose of mean and variance by rounding, what says that it is theirs, and
              the coefficients that y was computed with. Frozen, without an activation, a
              placeholder.
            """
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
    shape_function="",
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
    placeholder = "placeholder placeholder: A placeholder of the built-in op."
    return _op(
        name,
        builtin=name,
        formula=BATCH_NORM_GRAD,
        summary=f"Gradient of batch normalization, the twin of TensorFlow's {name}.",
        description=_GRADIENT_DESCRIPTION
        if version == "V3"
        else _OLDER.format("FusedBatchNormGradV3"),
        inputs=args(
            f"""
            y_backprop view: Gradient with respect to y, of the shape of x.
            x view: What was normalized, of the rank of data_format.
            scale channel{" float" * bool(version)}: The scale factors (gamma).
            reserve_space_1=mean channel: The mean: of the batch in training, of the population if
              frozen.
            reserve_space_2=variance channel: The biased variance: of the batch in training (on a
              GPU 1/sqrt(variance + epsilon), as the forward op returns it there), of the population
              if frozen.
            reserve_space_3=forward_coefficients opaque: As the forward op of this library returns
              it with reserve_space_1 and 2, for the same epsilon: then mean and variance are right
              beyond what float32 holds. Channels of which another mean, variance or epsilon is
              given take what is given. Of another op, in any shape, it is not read.
            """
        )[: 3 + reserve_spaces],
        outputs=args(
            f"""
            x_backprop view: Gradient with respect to x.
            scale_backprop channel: Gradient with respect to scale.
            offset_backprop channel: Gradient with respect to the offset.
            reserve_space_{reserve_spaces + 1}={placeholder}
            reserve_space_{reserve_spaces + 2}={placeholder}
            """
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
    formula=BATCH_NORM_GRAD_EX,
    summary="Gradient of FusedBatchNormEx in one op, TensorFlow's _FusedBatchNormGradEx.",
    description="""\
FusedBatchNormGradV3 of y_backprop where the activation passes it, y > 0 (Relu) or 0 < y < 6
(Relu6), and of 0 elsewhere; of y_backprop times the derivative of a smooth activation, any other.
What that is of is side_input_backprop, too.
""",
    inputs=(
        *_FUSED_BATCH_NORM_GRAD_V3.inputs[:3],
        *args(
            """
            reserve_space_1=mean channel: As FusedBatchNormEx returns it.
            reserve_space_2=variance channel: As FusedBatchNormEx returns it.
            reserve_space_3=forward_coefficients opaque: As FusedBatchNormEx returns it. Where it
              holds the coefficients that y was computed with, and offset is given, the mask is
              computed from x, and y is not read on CPUs.
            offset channel float: The offsets; read with an activation. An empty vector or
              reserve_space_3 in their place: the mask is computed from y, and smooth activations
              are refused.
            y view: The output y of FusedBatchNormEx; read with an activation. With a smooth one its
              side input, or, without one, any tensor of the shape of x, which is not read.
            """
        ),
    ),
    outputs=(
        *_FUSED_BATCH_NORM_GRAD_V3.outputs,
        *args("side_input_backprop view_list: Gradient with respect to the side input."),
    ),
    attrs={"epsilon": 1e-4, "num_side_inputs": 0, **_ACTIVATION, **_FORMAT_AND_MODE},
    shape_function="",
)

_BATCH_NORM_TRAINING_BACKPROP = _op(
    "BatchNormTrainingBackprop",
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
    inputs="""
    input=x view: What was normalized, (N, C, ...).
    gamma=scale channel: The scale factors.
    beta=offset channel: The offsets. No result depends on them.
    mean channel: The mean of each channel of input.
    variance channel: The biased variance of each channel of input.
    normalized_delta=y_backprop view: Gradient with respect to the normalized output, of the
      shape of input.
    """,
    outputs="""
    input_delta=x_backprop view: Gradient with respect to input.
    gamma_delta=scale_backprop channel: Gradient with respect to gamma.
    beta_delta=offset_backprop channel: Gradient with respect to beta.
    """,
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

Tensors of the shape of x have any rank from 2 on; U is float32, or T. The reserve spaces get a
gradient frozen.
""",
    inputs="""
    x_backprop_grad view: Gradient with respect to x_backprop.
    scale_backprop_grad channel: Gradient with respect to scale_backprop.
    offset_backprop_grad channel: Gradient with respect to offset_backprop.
    y_backprop view: As given to the first-order op.
    x view: As given to the first-order op.
    scale channel: As given to the first-order op.
    reserve_space_1=mean channel: The mean; read if frozen.
    reserve_space_2=variance channel: The variance; read if frozen.
    """,
    outputs="""
    y_backprop_grad view: Gradient with respect to y_backprop.
    x_grad view: Gradient with respect to x.
    scale_grad channel: Gradient with respect to scale.
    """,
    attrs=_ATTRS,
    **_DOUBLE_EPSILON,
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
# (tests/ops/test_single_ops.py); conformance cases have these two layouts.
# A smooth activation is in one op, in neither of those that replicas exchange sums between.
_SPLIT = {"dtypes": _ALL_DTYPES, "layouts": ("NWC", "NCHW"), "activations": CLAMPS}
_SPLIT_DTYPES = ("float32", "float64")
_SPLIT_X = "x view: A tensor of rank 1 or more."

_BATCH_NORM_STATS = _op(
    "BatchNormStats",
    formula=BATCH_NORM_STATS,
    summary="Statistics of one batch, from which those of several batches are combined.",
    description="""\
One pass over x, with sums in float64 around an element of each channel: a mean of 1e5 beside a
deviation of 1 costs no digits. Without elements all results are 0.
""",
    inputs=_SPLIT_X,
    outputs="""
    count=local_count count: The number of elements of a channel.
    mean=local_mean wide: The mean of each channel.
    m2=local_m2 wide: The sum of (x - mean)^2 of each channel.
    """,
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
    inputs="""
    counts row: Elements of a channel in each part.
    means rows: Their means.
    m2s rows: Their sums of (x - mean)^2.
    """,
    outputs="""
    count count: Elements of a channel in all parts.
    mean wide: Their mean.
    m2 wide: Their sum of (x - mean)^2.
    """,
    attrs={},
    dtypes=(),
    statistics_dtypes=(),
    layouts=(),
    shape_function="InferGatherStatsShapes",
)

_BATCH_NORM_ELEMT = _op(
    "BatchNormElemt",
    formula=BATCH_NORM_ELEMT,
    summary="Batch normalization with given statistics, addition and activation.",
    description="""\
    y = activation(scale * (x - mean) / sqrt(variance + epsilon) + offset + side_input)
""",
    inputs=f"""
    {_SPLIT_X}
    scale channel: The scale factors (gamma).
    offset channel: The offsets (beta).
    mean wide: The mean of each channel.
    variance wide: The biased variance of each channel.
    side_input view_list: At most one tensor of the shape of x, which is added before the
      activation.
    """,
    outputs="y view: The normalized tensor.",
    attrs={"epsilon": 1e-4, **_CLAMP, "axis": -1},
    statistics_dtypes=_SPLIT_DTYPES,
    **_DOUBLE_EPSILON,
    **_SPLIT,
)

_Y_BACKPROP_TO_VARIANCE = """
    y_backprop view: Gradient with respect to y, of the shape of x.
    x view: As given to BatchNormElemt.
    scale channel: As given to BatchNormElemt.
    offset channel: As given to BatchNormElemt.
    mean wide: As given to BatchNormElemt.
    variance wide: As given to BatchNormElemt.
    """
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
    inputs=_Y_BACKPROP_TO_VARIANCE
    + """
    y view_list: At most one tensor, the output of BatchNormElemt: needed with an activation
      behind a side input. Without it the mask of the activation is computed from x.
    """,
    outputs="""
    sum_dy=local_sum_dy wide: To be added up over all batches.
    sum_dy_xmu=local_sum_dy_xmu wide: To be added up over all batches.
    scale_backprop channel: Gradient of this batch with respect to scale.
    offset_backprop channel: Gradient of this batch with respect to offset.
    """,
    attrs={"epsilon": 1e-4, **_CLAMP, "axis": -1},
    statistics_dtypes=_SPLIT_DTYPES,
    **_DOUBLE_EPSILON,
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
    inputs=_Y_BACKPROP_TO_VARIANCE
    + """
    sum_dy wide: The sum over all batches of BatchNormBackwardReduce's output.
    sum_dy_xmu wide: The same.
    count count: The number of elements of a channel in all batches.
    y view_list: At most one tensor, as given to BatchNormBackwardReduce.
    """,
    outputs="""
    x_backprop view: Gradient with respect to x.
    side_input_backprop view_list: Gradient with respect to the side input.
    """,
    attrs={"epsilon": 1e-4, "num_side_inputs": 0, **_CLAMP, "axis": -1},
    statistics_dtypes=_SPLIT_DTYPES,
    **_DOUBLE_EPSILON,
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


def named(name: str) -> OpSpec:
    """An entry of OPS."""
    return OPS[name]


def of_formula(formula: str) -> tuple[OpSpec, ...]:
    """The ops that a formula model judges."""
    return tuple(op for op in OPS.values() if op.formula == formula)
