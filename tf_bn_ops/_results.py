"""What fused_batch_norm() returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensorflow import Tensor


class BatchNorm(NamedTuple):
    """Results of `fused_batch_norm`."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor
