"""Candidates for tests of the command line: TensorFlow's ops with something wrong."""

import os
import sys
import time

import tensorflow as tf


class _Ops:
    """TensorFlow's FusedBatchNormGradV2 after `change(outputs, inputs)`."""

    def __init__(self, change):
        self._change = change

    def FusedBatchNormGradV2(self, **inputs):
        return self._change(list(tf.raw_ops.FusedBatchNormGradV2(**inputs)), inputs)


def _flip(outputs, inputs):
    return [outputs[0], -outputs[1], *outputs[2:]]


def _abort_on_three_channels_and_hang_on_two(outputs, inputs):
    channels = inputs["x"].shape[-1]
    if channels == 3:
        sys.stderr.write("about to abort\n")
        sys.stderr.flush()
        os.abort()
    if channels == 2:
        time.sleep(1000)
    return outputs


flipped = _Ops(_flip)
fragile = _Ops(_abort_on_three_channels_and_hang_on_two)
