"""The layer that is derived from Keras'."""

from __future__ import annotations

from typing import Any

import keras

from tf_bn_ops.keras._fused_call import fused_call

__all__ = ["BatchNormalization"]


@keras.saving.register_keras_serializable(package="tf_bn_ops")
class BatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` on the fused ops.

    Arguments, weights, config and results (within rounding) are the parent's, so weights and
    checkpoints of one load into the other. In training a call is one op of this library, whose
    outputs are the new moving statistics too; in inference it is TensorFlow's op, so that what is
    exported loads anywhere. The fused path takes inputs of half, bfloat16 or float32, rank 2 to 5,
    with the channel axis first (after the batch) or last. The parent class computes everything
    else: a mask, `synchronized`, `renorm`, float64, other axes, inference that XLA compiles, and
    backends other than TensorFlow.

    Results in training are right at any mean of the input, and second derivatives are those of the
    formula; Keras' are not (docs/dropin.md).

    A model that holds the layer is not compiled by XLA with Keras' jit_compile="auto". To have it
    compiled, set `supports_jit = True` on the layers before `model.compile(jit_compile=True)`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = False

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return fused_call(self, super().call, inputs, training, mask)
