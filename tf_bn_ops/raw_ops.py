"""The ops with keyword arguments only, as `tf.raw_ops` has them; their types are in raw_ops.pyi."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tf_bn_ops import _ops

__all__ = [
    "BatchNormBackwardElemt",
    "BatchNormBackwardReduce",
    "BatchNormElemt",
    "BatchNormGatherStats",
    "BatchNormStats",
    "BatchNormTrainingBackprop",
    "FusedBatchNorm",
    "FusedBatchNormEx",
    "FusedBatchNormGrad",
    "FusedBatchNormGradEx",
    "FusedBatchNormGradGrad",
    "FusedBatchNormGradV2",
    "FusedBatchNormGradV3",
    "FusedBatchNormV2",
    "FusedBatchNormV3",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def _keyword_only(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def raw_op(*args: Any, **kwargs: Any) -> Any:
        if args:
            names = ", ".join(signature.parameters)
            raise TypeError(f"{function.__name__} takes keyword arguments only: {names}")
        return function(**kwargs)

    raw_op.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
        ]
    )
    return raw_op


FusedBatchNorm = _keyword_only(_ops.fused_batch_norm)
FusedBatchNormV2 = _keyword_only(_ops.fused_batch_norm_v2)
FusedBatchNormV3 = _keyword_only(_ops.fused_batch_norm_v3)
FusedBatchNormEx = _keyword_only(_ops.fused_batch_norm_ex)
FusedBatchNormGrad = _keyword_only(_ops.fused_batch_norm_grad)
FusedBatchNormGradV2 = _keyword_only(_ops.fused_batch_norm_grad_v2)
FusedBatchNormGradEx = _keyword_only(_ops.fused_batch_norm_grad_ex)
FusedBatchNormGradV3 = _keyword_only(_ops.fused_batch_norm_grad_v3)
FusedBatchNormGradGrad = _keyword_only(_ops.fused_batch_norm_grad_grad)
BatchNormTrainingBackprop = _keyword_only(_ops.batch_norm_training_backprop)
BatchNormStats = _keyword_only(_ops.batch_norm_stats)
BatchNormGatherStats = _keyword_only(_ops.batch_norm_gather_stats)
BatchNormElemt = _keyword_only(_ops.batch_norm_elemt)
BatchNormBackwardReduce = _keyword_only(_ops.batch_norm_backward_reduce)
BatchNormBackwardElemt = _keyword_only(_ops.batch_norm_backward_elemt)
