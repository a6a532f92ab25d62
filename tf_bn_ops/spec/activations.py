"""The activations that may stand behind a normalization: a class each, all that Python knows of it.

Its name is the value of the attr activation_mode, in lower case (`hard_silu`) the argument of
`fused_batch_norm`; its place in ACTIVATIONS is its number in C and C++, which tools/generate_ops
writes. A formula is a function of `f`, NumPy or TensorFlow, so that the oracle and what is composed
of TensorFlow's ops have one text. The kernels, which are judged, have their own,
cc/core/formulas/smooth_activation.h (docs/adr/0047).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Any

# The default of the attr leakyrelu_alpha, as of TensorFlow's op.
LEAKYRELU_ALPHA = 0.2
_LARGEST_FLOAT = (2 - 2.0**-23) * 2.0**127


class Identity:
    """A clamp to [lower, upper]. Its derivative, 1 or 0, follows from its value y. TensorFlow's op
    has the same name, and its gradient is the op `<name>Grad`."""

    is_smooth = False
    parameters: tuple[float, ...] = ()
    lower, upper = -inf, inf

    @classmethod
    def value(cls, f: Any, v: Any) -> Any:
        return f.clip(v, cls.lower, cls.upper)

    @classmethod
    def passes(cls, f: Any, y: Any) -> Any:
        """Where the derivative is 1: an infinite y passes what has no upper bound."""
        above = (y > cls.lower) & ((y < cls.upper) | (cls.upper == inf))
        return above | (cls.lower == -inf)


class Relu(Identity):
    lower = 0


class Relu6(Relu):
    upper = 6


class Smooth:
    """An activation whose derivative takes other values than 0 and 1, and follows from v. One has

    value: a function of f and v.
    slope_terms: the same of the derivative, as the terms whose magnitudes its error is relative to.
    steepest, bend: bounds of the magnitudes of derivative and second derivative.
    jumps: v where the derivative jumps -> by how much.
    flat_below: v below which the value is 0.
    parameters: what TensorFlow's own function of that name takes behind v.
    """

    is_smooth = True
    jumps: Mapping[float, float] = {}
    flat_below = -inf
    parameters: tuple[float, ...] = ()

    def slope_terms(self, f: Any, v: Any) -> Any:
        raise NotImplementedError

    def slope(self, f: Any, v: Any) -> Any:
        first, *others = self.slope_terms(f, v)
        return sum(others, first)

    def gradient(self, f: Any, dy: Any, v: Any) -> Any:
        """The gradient by v, in TensorFlow's ops."""
        return dy * self.slope(f, v)


def sigmoid(f: Any, v: Any) -> Any:
    return f.nn.sigmoid(v) if hasattr(f, "nn") else 1 / (1 + f.exp(-v))


def relu6(f: Any, v: Any) -> Any:
    return f.nn.relu6(v) if hasattr(f, "nn") else f.clip(v, 0, 6)


class Silu(Smooth):
    """v * sigmoid(v)."""

    steepest, bend = 1.1, 0.5

    @staticmethod
    def value(f: Any, v: Any) -> Any:
        return v * sigmoid(f, v)

    def slope_terms(self, f: Any, v: Any) -> Any:
        s = sigmoid(f, v)
        return s, v * s * sigmoid(f, -v)  # Where 1 - s would cancel.


class HardSilu(Smooth):
    """v * relu6(v + 3) / 6."""

    steepest, bend = 1.5, 1 / 3
    jumps: Mapping[float, float] = {-3.0: 0.5, 3.0: 0.5}
    flat_below = -3

    @staticmethod
    def value(f: Any, v: Any) -> Any:
        return v * (relu6(f, v + 3) / 6)  # In half v * 6 may overflow.

    def slope_terms(self, f: Any, v: Any) -> Any:
        return relu6(f, v + 3) / 6, f.where(f.abs(v) < 3, v / 6, 0.0)


class LeakyRelu(Smooth):
    """v where it is above 0, elsewhere v * alpha; as TensorFlow's op, at 0 with the derivative
    alpha."""

    bend = 0.0

    def __init__(self, alpha: float = LEAKYRELU_ALPHA) -> None:
        if not abs(alpha) <= _LARGEST_FLOAT:  # NaN, too.
            raise ValueError(f"leakyrelu_alpha is {alpha}, it must be a finite number of float32")
        self.alpha, self.parameters = alpha, (alpha,)
        self.steepest, self.jumps = max(1.0, abs(alpha)), {0.0: abs(1 - alpha)}

    def value(self, f: Any, v: Any) -> Any:
        if hasattr(f, "nn"):
            return f.nn.leaky_relu(v, self.alpha)
        return f.where(v > 0, v, self.alpha * v)

    def slope_terms(self, f: Any, v: Any) -> Any:
        return (f.where(v > 0, f.ones_like(v), self.alpha),)

    def gradient(self, f: Any, dy: Any, v: Any) -> Any:
        return f.raw_ops.LeakyReluGrad(gradients=dy, features=v, alpha=self.alpha)


def snake(name: str) -> str:
    """HardSilu -> hard_silu."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


_CLAMPS: tuple[type, ...] = (Identity, Relu, Relu6)
_SMOOTH: tuple[type, ...] = tuple(Smooth.__subclasses__())
# Value of activation_mode -> the activation; smooth ones last.
ACTIVATIONS: Mapping[str, Any] = {c.__name__: c() for c in (*_CLAMPS, *_SMOOTH)}
CLAMPS = tuple(c.__name__ for c in _CLAMPS)
SMOOTH_ACTIVATIONS = tuple(c.__name__ for c in _SMOOTH)
# The argument `activation` of fused_batch_norm -> value of activation_mode.
ACTIVATION_MODES: Mapping[str | None, Any] = {
    None if name == "Identity" else snake(name): name for name in ACTIVATIONS
}


def activation_of(activation_mode: str, leakyrelu_alpha: float) -> Any:
    """The activation that the two attrs name."""
    is_leaky = activation_mode == LeakyRelu.__name__
    return LeakyRelu(leakyrelu_alpha) if is_leaky else ACTIVATIONS[activation_mode]
