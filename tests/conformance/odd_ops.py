"""Candidates for tests of the command line: TensorFlow's ops with something wrong."""

import os
import sys
import time
import types

import numpy as np
import tensorflow as tf


def _ops(change):
    """TensorFlow's FusedBatchNormGradV2 after `change(outputs, inputs)`."""
    builtin = tf.raw_ops.FusedBatchNormGradV2
    return types.SimpleNamespace(
        FusedBatchNormGradV2=lambda **inputs: change([*builtin(**inputs)], inputs)
    )


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _flip(outputs, inputs):
    return [outputs[0], -outputs[1], *outputs[2:]]


def _fragile(outputs, inputs):
    """By the number of channels: 3 aborts, 4 allocates without end."""
    channels = inputs["x"].shape[-1]
    if channels == 3:
        _say("about to abort")
        os.abort()
    kept = []
    while channels == 4:
        kept.append(np.empty(1 << 24))  # Never touched: this takes no time.
    return outputs


def _hang_on_three_channels(outputs, inputs):
    if inputs["x"].shape[-1] == 3:
        _say("about to hang")
        time.sleep(1000)
    return outputs


def _environment(**inputs):
    """The number of threads that its environment sets; aborts in graphs."""
    if not tf.executing_eagerly():
        _say("in a graph")
        os.abort()
    return [tf.constant(float(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")))]


flipped, fragile, hanging = map(_ops, (_flip, _fragile, _hang_on_three_channels))
environment = types.SimpleNamespace(FusedBatchNormGradV2=_environment)
