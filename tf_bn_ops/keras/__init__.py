"""Keras' BatchNormalization on fused ops: this library's in training, TensorFlow's in inference.

One layer for new code, `replace_batch_norm` for a model, `tf_bn_ops.enable` for a program that
cannot be edited. Where the fused ops do not give the layer's result, the layer computes as Keras
does.

Import this module before loading a saved model that holds `tf_bn_ops.keras.BatchNormalization`.
"""

# First: at the end of this import TF_BN_OPS imports modules of this package, and another thread may
# be there now; neither is to find one that waits for Keras.
import keras

from tf_bn_ops import _loader

_loader.check_keras(keras)

from tf_bn_ops.keras._fold import fold_batch_norm, fold_report
from tf_bn_ops.keras._layer import BatchNormalization
from tf_bn_ops.keras._replace import batch_norm_report, replace_batch_norm, restore_batch_norm
from tf_bn_ops.keras._switch import disable
from tf_bn_ops.keras._update import UpdateBatchNorm, update_batch_norm

__all__ = [
    "BatchNormalization",
    "UpdateBatchNorm",
    "batch_norm_report",
    "disable",
    "fold_batch_norm",
    "fold_report",
    "replace_batch_norm",
    "restore_batch_norm",
    "update_batch_norm",
]


def __dir__() -> list[str]:
    return sorted(__all__)
