"""The layer that is derived from Keras'."""

from __future__ import annotations

from typing import Any

import keras
from keras.src import layers  # See _fused_call.py.

from tf_bn_ops._arguments import checked_alpha
from tf_bn_ops.generated.bindings import Activation
from tf_bn_ops.keras._fused_call import Behind, fused_call, not_by_auto
from tf_bn_ops.spec import ACTIVATION_MODES, LEAKYRELU_ALPHA

__all__ = ["BatchNormalization"]


@keras.saving.register_keras_serializable(package="tf_bn_ops")
class BatchNormalization(layers.BatchNormalization):
    """`keras.layers.BatchNormalization` on the fused ops.

    Arguments, weights, config and results (within rounding) are the parent's, so weights and
    checkpoints of one load into the other. In training a call is one op of this library, whose
    outputs are the new moving statistics too; in inference it is Keras' formula, or in half and
    bfloat16 TensorFlow's op, so that what is exported loads anywhere. The fused path takes inputs
    of half, bfloat16 or float32, rank 2 to 5, with the channel axis first (after the batch) or
    last. The parent class computes everything else: a mask, `renorm`, float64, other axes, batch
    statistics in a function that is exported for inference, and backends other than TensorFlow.

    With `synchronized=True` training takes the statistics over all replicas of the strategy,
    as `tf_bn_ops.fused_batch_norm(..., synchronized=True)` has them: one collective in each
    direction, and right where the parent's formula loses the variance. A mask is synchronised too,
    which it is not in the parent.

    Results in training are right at any mean of the input, and second derivatives are the
    formula's; Keras' are not (docs/dropin.md).

    A model that holds the layer is compiled by XLA with `model.compile(jit_compile=True)`, not with
    Keras' jit_compile="auto".

    What follows the normalization in a residual network can be part of the layer, in training one
    op in each direction: `layer(x, side_input=shortcut)` is activation(normalized x + shortcut).

    Args:
      *args: as Keras' layer takes them.
      activation: None, or one that `tf_bn_ops.fused_batch_norm` takes.
      leakyrelu_alpha: the slope of "leaky_relu" below 0, which others do not read.
      **kwargs: as Keras' layer takes them.
    """

    # Class attributes, because a replaced layer has not been through __init__.
    _activation: Activation | None = None
    _leakyrelu_alpha = LEAKYRELU_ALPHA
    # In a call so far; the calls of a functional model are in its nodes.
    _has_side_input = False
    supports_jit = not_by_auto

    def __init__(
        self,
        *args: Any,
        activation: Activation | None = None,
        leakyrelu_alpha: float = LEAKYRELU_ALPHA,
        **kwargs: Any,
    ) -> None:
        if activation not in ACTIVATION_MODES:
            raise ValueError(
                f"activation is {activation!r}, it must be one of {[*ACTIVATION_MODES]}"
            )
        super().__init__(*args, **kwargs)
        self._activation = activation
        self._leakyrelu_alpha = checked_alpha(leakyrelu_alpha, activation, "BatchNormalization")

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, side_input: Any = None
    ) -> Any:
        if side_input is not None:
            self._has_side_input = True
            if mask is None:
                # Keras looks for the mask of a layer's only tensor.
                mask = getattr(inputs, "_keras_mask", None)
        behind = Behind(self._activation, side_input, self._leakyrelu_alpha)
        return fused_call(self, super().call, inputs, training, mask, behind)

    def get_config(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if self._activation is not None:
            own["activation"] = self._activation
        if self._activation == "leaky_relu":
            own["leakyrelu_alpha"] = self._leakyrelu_alpha
        return {**super().get_config(), **own}
