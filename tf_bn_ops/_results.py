"""What the functions return: named tuples, typed so that an editor knows the fields.

The fields are the outputs of the ops, by their names in `tf_bn_ops.spec` (a test compares them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensorflow import Tensor


class BatchNorm(NamedTuple):
    """Results of `fused_batch_norm`."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor


class FusedBatchNorm(NamedTuple):
    """Results of `raw_ops.FusedBatchNorm`; reserve spaces are what its gradient takes."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor
    reserve_space_1: Tensor
    reserve_space_2: Tensor


class FusedBatchNormV2(NamedTuple):
    """Results of `raw_ops.FusedBatchNormV2`; reserve spaces are what its gradient takes."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor
    reserve_space_1: Tensor
    reserve_space_2: Tensor


class FusedBatchNormV3(NamedTuple):
    """Results of `raw_ops.FusedBatchNormV3`; reserve spaces are what its gradient takes."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor
    reserve_space_1: Tensor
    reserve_space_2: Tensor
    reserve_space_3: Tensor


class FusedBatchNormEx(NamedTuple):
    """Results of `raw_ops.FusedBatchNormEx`; reserve spaces are what its gradient takes."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor
    reserve_space_1: Tensor
    reserve_space_2: Tensor
    reserve_space_3: Tensor


class FusedBatchNormGrad(NamedTuple):
    """Results of `fused_batch_norm_grad`; reserve spaces are placeholders of shape [0]."""

    x_backprop: Tensor
    scale_backprop: Tensor
    offset_backprop: Tensor
    reserve_space_3: Tensor
    reserve_space_4: Tensor


class FusedBatchNormGradV2(NamedTuple):
    """Results of `fused_batch_norm_grad_v2`; reserve spaces are placeholders of shape [0]."""

    x_backprop: Tensor
    scale_backprop: Tensor
    offset_backprop: Tensor
    reserve_space_3: Tensor
    reserve_space_4: Tensor


class FusedBatchNormGradV3(NamedTuple):
    """Results of `fused_batch_norm_grad_v3`; reserve spaces are placeholders of shape [0]."""

    x_backprop: Tensor
    scale_backprop: Tensor
    offset_backprop: Tensor
    reserve_space_4: Tensor
    reserve_space_5: Tensor


class FusedBatchNormGradEx(NamedTuple):
    """Results of `raw_ops.FusedBatchNormGradEx`; reserve spaces are placeholders of shape [0]."""

    x_backprop: Tensor
    scale_backprop: Tensor
    offset_backprop: Tensor
    reserve_space_4: Tensor
    reserve_space_5: Tensor
    side_input_backprop: list[Tensor]


class FusedBatchNormGradGrad(NamedTuple):
    """Results of `fused_batch_norm_grad_grad`."""

    y_backprop_grad: Tensor
    x_grad: Tensor
    scale_grad: Tensor


class BatchNormTrainingBackprop(NamedTuple):
    """Results of `batch_norm_training_backprop`."""

    input_delta: Tensor
    gamma_delta: Tensor
    beta_delta: Tensor


class BatchNormStats(NamedTuple):
    """Results of `raw_ops.BatchNormStats`, of float64."""

    count: Tensor
    mean: Tensor
    m2: Tensor


class BatchNormGatherStats(NamedTuple):
    """Results of `raw_ops.BatchNormGatherStats`, of float64."""

    count: Tensor
    mean: Tensor
    m2: Tensor


class BatchNormBackwardReduce(NamedTuple):
    """Results of `raw_ops.BatchNormBackwardReduce`."""

    sum_dy: Tensor
    sum_dy_xmu: Tensor
    scale_backprop: Tensor
    offset_backprop: Tensor


class BatchNormBackwardElemt(NamedTuple):
    """Results of `raw_ops.BatchNormBackwardElemt`."""

    x_backprop: Tensor
    side_input_backprop: list[Tensor]
