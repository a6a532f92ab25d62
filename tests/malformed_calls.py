"""Makes thousands of malformed calls of the ops in one process and counts their outcomes.

usage: python tests/malformed_calls.py COUNT SEED

Each call starts as a valid one of a random op, dtype and layout and gets one to three mistakes: in
shapes, types, attributes or arguments; half of the calls go to the kernels (eager), half to the
shape functions (graphs, with partly known shapes). Prints a JSON object: calls by outcome
("accepted" or the exception's class), and the refusals that no user could use. The same seed gives
the same calls.
"""

from __future__ import annotations

import collections
import json
import random
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops.spec import (
    COUNT,
    DATA_FORMATS,
    DTYPES,
    LAYOUTS,
    OPS,
    REQUIRED,
    VIEW,
    VIEW_LIST,
    Arg,
    OpSpec,
    channel_axis,
)

DATA_KINDS = (VIEW, VIEW_LIST)
WRONG_DTYPES = ("int32", "string", "complex64", "bool", "float64", "half", "bfloat16", "float32")
WRONG_ATTRS: dict[str, list[Any]] = {
    "data_format": ["", "NHWC ", "nhwc", "NCWH", "HWNC", "NCHW_VECT_C", "NDHWC", "NCDHW", "\0",
                    "NHWC" * 500, 3, None, [], b"\xff\xfe"],
    "epsilon": ["small", None, float("nan"), float("inf"), -1.0, 1e300, [1.0, 2.0], 10**400, True],
    "exponential_avg_factor": ["half", None, float("nan"), float("inf"), -1.0, 1e300, [0.5]],
    "activation_mode": ["", "Elu", "relu", "Relu\0", "Relu" * 500, 3, None, [], b"\xff\xfe"],
    "is_training": ["yes", 2, None, [], -1.5],
    "bessel_correction": ["yes", 2, None, [], -1.5],
    "axis": ["last", None, 9, -9, 1 << 40, [], 1.5],
}  # fmt: skip
OTHER_ATTRS: list[Any] = ["", None, -1, float("nan"), [], {}]
# Each of them allowed by TensorFlow: the product of such sizes is taken after a zero.
HUGE = (1 << 31, 1 << 40, 1 << 62)
EXPECTED = (
    tf.errors.InvalidArgumentError,
    tf.errors.UnimplementedError,  # TensorFlow's own casts
    tf.errors.NotFoundError,  # No kernel for the types.
    tf.errors.ResourceExhaustedError,
    TypeError,
    ValueError,
    OverflowError,  # A Python number that TensorFlow cannot convert.
)


def shape_of(arg: Arg, shape: list[int], channels: int) -> list[int]:
    """The shape of an input beside an x of some shape."""
    if arg.kind == COUNT:
        return []
    return list(shape) if arg.kind in DATA_KINDS else [channels]


def right_call(rng: random.Random) -> tuple[OpSpec, dict[str, list[int]], dict[str, str], dict]:
    """An op, the shape and type of each input, and the attributes."""
    op = OPS[rng.choice(sorted(OPS))]
    layout = rng.choice(op.layouts)
    rank, channels_last = LAYOUTS[layout]
    shape = [rng.randint(1, 4) for _ in range(rank)]
    channels = shape[-1 if channels_last else 1]
    dtype = rng.choice(op.dtypes)
    statistics = op.statistics_dtype(dtype)
    shapes, dtypes = {}, {}
    for arg in op.inputs:
        shapes[arg.name] = shape_of(arg, shape, channels)
        dtypes[arg.name] = op.type_of(arg, dtype, statistics)
    attrs = {name: 1e-3 if value is REQUIRED else value for name, value in op.attrs.items()}
    if "data_format" in attrs and layout in DATA_FORMATS:
        attrs["data_format"] = layout
    if "axis" in attrs:
        attrs["axis"] = channel_axis(layout)
    return op, shapes, dtypes, attrs


def spoil_shape(shape: list[int], rng: random.Random) -> None:
    kind = rng.randrange(7)
    at = rng.randrange(len(shape)) if shape else 0
    if kind == 0 and shape:
        del shape[at]
    elif kind == 1:
        shape.insert(at, rng.randint(0, 3))
    elif kind == 2 and shape:
        shape[at] += rng.choice((-1, 1))
    elif kind == 3 and shape:
        shape[at] = 0
    elif kind == 4:
        shape.clear()
    elif kind == 5:
        shape[:] = [1] * rng.randint(6, 9)
    elif shape:
        shape[:] = [0, *(rng.choice(HUGE) for _ in shape[1:])]


def value_of(shape: list[int], dtype: str) -> tf.Tensor:
    if dtype == "string":
        return tf.fill(shape, "text")
    return tf.cast(tf.fill(shape, 1.0), dtype)


def with_lists(op: OpSpec, tensors: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The inputs, those that are lists of at most one tensor with none, one or too many."""
    lists = {arg.name for arg in op.inputs if arg.kind == VIEW_LIST}
    return {
        name: [tensor] * rng.choice((0, 1, 1, 1, 2)) if name in lists else tensor
        for name, tensor in tensors.items()
    }


def eager_call(op: OpSpec, shapes: dict, dtypes: dict, attrs: dict, rng: random.Random) -> None:
    arguments = with_lists(op, {n: value_of(shapes[n], dtypes[n]) for n in shapes}, rng)
    if rng.random() < 0.1:  # Arguments that are no tensors, too few, too many.
        name = rng.choice(sorted(arguments))
        kind = rng.randrange(4)
        if kind == 0:
            del arguments[name]
        elif kind == 1:
            arguments["no_such_input"] = 1
        else:
            arguments[name] = rng.choice(
                [None, "text", [[1.0], [2.0, 3.0]], {}, object(), np.array([None]), 1j]
            )
    getattr(tf_bn_ops.raw_ops, op.name)(**arguments, **attrs)


def graph_call(op: OpSpec, shapes: dict, dtypes: dict, attrs: dict, rng: random.Random) -> None:
    def partly_known(shape: list[int]) -> tf.TensorShape:
        if rng.random() < 0.2:
            return tf.TensorShape(None)
        return tf.TensorShape([None if rng.random() < 0.3 else size for size in shape])

    with tf.Graph().as_default():
        inputs = {
            name: tf.compat.v1.placeholder(dtypes[name], partly_known(shape))
            for name, shape in shapes.items()
        }
        getattr(tf_bn_ops.raw_ops, op.name)(**with_lists(op, inputs, rng), **attrs)


def one_call(rng: random.Random) -> str | None:
    """Makes a wrong call; returns what is wrong with how it was refused, or None."""
    op, shapes, dtypes, attrs = right_call(rng)
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        name = rng.choice(sorted(shapes))
        if kind < 0.55:
            spoil_shape(shapes[name], rng)
        elif kind < 0.75:
            dtypes[name] = rng.choice(WRONG_DTYPES)
        else:
            name = rng.choice(sorted(attrs))
            attrs[name] = rng.choice(WRONG_ATTRS.get(name, OTHER_ATTRS))
    call = eager_call if rng.random() < 0.5 else graph_call
    try:
        call(op, shapes, dtypes, attrs, rng)
    except EXPECTED as error:
        outcomes[type(error).__name__] += 1
        return None if str(error).strip() else f"{op.name}: no message in {error!r}"
    except Exception as error:
        outcomes[type(error).__name__] += 1
        return f"{op.name} {shapes} {dtypes} {attrs}: {type(error).__name__}: {error}"
    outcomes["accepted"] += 1
    return None


def digest() -> list[bytes]:
    """A digest of the results of valid calls, which no earlier call may change."""
    result = []
    for op in OPS.values():
        rank, _ = LAYOUTS[op.layouts[-1]]
        shape = [3, 2, 4, 5, 2, 3][:rank]
        rng = np.random.default_rng(0)
        arguments = {}
        for arg in op.inputs:
            size = shape_of(arg, shape, shape[channel_axis(op.layouts[-1])])
            name = op.type_of(arg, op.dtypes[0], op.statistics_dtype(op.dtypes[0]))
            value = rng.uniform(0.5, 2, size).astype(DTYPES[name].numpy)
            arguments[arg.name] = [value] if arg.kind == VIEW_LIST else value
        attrs = {name: 1e-3 if value is REQUIRED else value for name, value in op.attrs.items()}
        if "data_format" in attrs:
            attrs["data_format"] = op.layouts[-1]
        if "axis" in attrs:
            attrs["axis"] = channel_axis(op.layouts[-1])
        for output in getattr(tf_bn_ops.raw_ops, op.name)(**arguments, **attrs):
            result.append(np.asarray(output).tobytes())
    return result


outcomes: collections.Counter[str] = collections.Counter()

if __name__ == "__main__":
    count, seed = map(int, sys.argv[1:])
    random_numbers = random.Random(seed)
    before = digest()
    useless = [problem for _ in range(count) if (problem := one_call(random_numbers))]
    report = {"outcomes": outcomes, "useless": useless[:20], "unchanged": digest() == before}
    print(json.dumps(report))
