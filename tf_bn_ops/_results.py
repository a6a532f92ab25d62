"""What the functions return: named tuples, typed so that an editor knows the fields.

The fields are the outputs of the ops, by their names in `tf_bn_ops.spec` (a test compares them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensorflow import Tensor


class FusedBatchNorm(NamedTuple):
    """Results of `fused_batch_norm`."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor


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
