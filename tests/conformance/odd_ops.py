"""Candidates for tests of the command line: TensorFlow's ops with something wrong."""

import os
import sys
import time

import numpy as np
import tensorflow as tf


class _Ops:
    """TensorFlow's FusedBatchNormGradV2 after `change(outputs, inputs)`."""

    def __init__(self, change):
        self._change = change

    def FusedBatchNormGradV2(self, **inputs):
        return self._change(list(tf.raw_ops.FusedBatchNormGradV2(**inputs)), inputs)


def _flip(outputs, inputs):
    return [outputs[0], -outputs[1], *outputs[2:]]


def _fragile(outputs, inputs):
    """By the number of channels: 3 aborts, 4 allocates without end."""
    channels = inputs["x"].shape[-1]
    if channels == 3:
        sys.stderr.write("about to abort\n")
        sys.stderr.flush()
        os.abort()
    if channels == 4:
        kept = []
        while True:
            kept.append(np.empty(1 << 24))  # Never touched: this takes no time.
    return outputs


def _hang_on_three_channels(outputs, inputs):
    if inputs["x"].shape[-1] == 3:
        sys.stderr.write("about to hang\n")
        sys.stderr.flush()
        time.sleep(1000)
    return outputs


flipped = _Ops(_flip)
fragile = _Ops(_fragile)
hanging = _Ops(_hang_on_three_channels)


class _Environment:
    """Returns the number of threads that its environment sets; aborts in graphs."""

    def FusedBatchNormGradV2(self, **inputs):
        if not tf.executing_eagerly():
            sys.stderr.write("in a graph\n")
            sys.stderr.flush()
            os.abort()
        return [tf.constant(float(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")))]


environment = _Environment()
