# Types of raw_ops: the bindings' signatures, by keyword only.
# Written by tools/generate_ops from tf_bn_ops/spec/ops.py: edit that, then make format.
# fmt: off

from collections.abc import Sequence
from typing import Any

from tf_bn_ops.generated import bindings
from tf_bn_ops.generated.bindings import ActivationMode
from tf_bn_ops.spec import DataFormat

def BatchNormBackwardElemt(*, y_backprop: Any, x: Any, scale: Any, offset: Any, mean: Any,
    variance: Any, sum_dy: Any, sum_dy_xmu: Any, count: Any, y: Sequence[Any] = (),
    epsilon: float = 0.0001, num_side_inputs: int = 0, activation_mode: ActivationMode = "Identity",
    axis: int = -1, name: str | None = None) -> bindings.BatchNormBackwardElemt: ...
def BatchNormBackwardReduce(*, y_backprop: Any, x: Any, scale: Any, offset: Any, mean: Any,
    variance: Any, y: Sequence[Any] = (), epsilon: float = 0.0001,
    activation_mode: ActivationMode = "Identity", axis: int = -1, name: str |
    None = None) -> bindings.BatchNormBackwardReduce: ...
def BatchNormElemt(*, x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    side_input: Sequence[Any] = (), epsilon: float = 0.0001,
    activation_mode: ActivationMode = "Identity", axis: int = -1, name: str |
    None = None) -> Any: ...
def BatchNormGatherStats(*, counts: Any, means: Any, m2s: Any, name: str |
    None = None) -> bindings.BatchNormGatherStats: ...
def BatchNormStats(*, x: Any, axis: int = -1, name: str |
    None = None) -> bindings.BatchNormStats: ...
def BatchNormTrainingBackprop(*, input: Any, gamma: Any, beta: Any, mean: Any, variance: Any,
    normalized_delta: Any, epsilon: float, name: str |
    None = None) -> bindings.BatchNormTrainingBackprop: ...
def FusedBatchNorm(*, x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> bindings.FusedBatchNorm: ...
def FusedBatchNormEx(*, x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    side_input: Sequence[Any] = (), epsilon: float = 0.0001, exponential_avg_factor: float = 1.0,
    activation_mode: ActivationMode = "Identity", leakyrelu_alpha: float = 0.2,
    data_format: DataFormat = "NHWC", is_training: bool = True, bessel_correction: bool = True,
    name: str | None = None) -> bindings.FusedBatchNormEx: ...
def FusedBatchNormGrad(*, y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, epsilon: float = 0.0001, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> bindings.FusedBatchNormGrad: ...
def FusedBatchNormGradEx(*, y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, reserve_space_3: Any, offset: Any, y: Any, epsilon: float = 0.0001,
    num_side_inputs: int = 0, activation_mode: ActivationMode = "Identity",
    leakyrelu_alpha: float = 0.2, data_format: DataFormat = "NHWC", is_training: bool = True,
    name: str | None = None) -> bindings.FusedBatchNormGradEx: ...
def FusedBatchNormGradGrad(*, x_backprop_grad: Any, scale_backprop_grad: Any,
    offset_backprop_grad: Any, y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, epsilon: float = 0.0001, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> bindings.FusedBatchNormGradGrad: ...
def FusedBatchNormGradV2(*, y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, epsilon: float = 0.0001, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> bindings.FusedBatchNormGradV2: ...
def FusedBatchNormGradV3(*, y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any,
    reserve_space_2: Any, reserve_space_3: Any, epsilon: float = 0.0001,
    data_format: DataFormat = "NHWC", is_training: bool = True, name: str |
    None = None) -> bindings.FusedBatchNormGradV3: ...
def FusedBatchNormV2(*, x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> bindings.FusedBatchNormV2: ...
def FusedBatchNormV3(*, x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
    epsilon: float = 0.0001, exponential_avg_factor: float = 1.0, data_format: DataFormat = "NHWC",
    is_training: bool = True, name: str | None = None) -> bindings.FusedBatchNormV3: ...
