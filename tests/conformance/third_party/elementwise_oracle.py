"""The right answers for elementwise.toml: a function gets inputs in float64, and attrs."""

import numpy as np


def softplus(inputs, attrs):
    """log(1 + exp(x)) without overflow."""
    x = inputs["features"]
    return [np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))]
