"""Rules of tf.vectorized_map, and so of jacobians: each op is one call for all iterations."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from tf_bn_ops.spec import OPS, VIEW, VIEW_LIST, Arg, OpSpec
from tf_bn_ops.spec.op_spec import COUNT
from tf_bn_ops.spec.ops import BATCH_NORM, BATCH_NORM_ADD

# Role of what holds rows of [C] in one vector.
_COEFFICIENTS = "forward_coefficients"
# Keys of collectives count up from 100; keys of merged iterations are far from them.
_KEY_OFFSET = 1 << 28


def register() -> None:
    rules = pfor._pfor_converter_registry  # RegisterPFor refuses what is registered again.
    for spec in OPS.values():
        rule = _forward if spec.formula in (BATCH_NORM, BATCH_NORM_ADD) else _by_channels
        rules[spec.registered_name] = functools.partial(rule, spec)
    rules["TfBnOps>BatchNormGatherStats"] = _gather_stats
    # Of TensorFlow; without a rule it would be called in a loop.
    rules.setdefault("CollectiveGatherV2", _gather)


def _forward(spec: OpSpec, pfor_input: Any) -> list[Any]:
    """Merges the loop's dimension into the batch, without a transposition, where it may be: frozen,
    with the same statistics, scale and offset in every iteration."""
    merges_batch = not pfor_input.get_attr("is_training") and not any(
        pfor_input.input(i).is_stacked for i in range(1, 5)
    )
    if not merges_batch:
        return _by_channels(spec, pfor_input)
    views = [0, *range(5, pfor_input.num_inputs)]
    pfor_input.stack_inputs(views)
    shape = tf.shape(pfor_input.stacked_input(0))
    merged = tf.concat([shape[:1] * shape[1:2], shape[2:]], axis=0)
    inputs = [tensor for tensor, *_ in pfor_input.inputs]
    for i in views:
        inputs[i] = tf.reshape(inputs[i], merged)
    y, *others = _with_inputs(pfor_input, inputs)
    return [pfor.wrap(tf.reshape(y, shape), True), *[pfor.wrap(o, False) for o in others]]


def _with_inputs(pfor_input: Any, inputs: list[Any]) -> Any:
    """The outputs of a new op like `pfor_input.op`, on `inputs`."""
    dtypes = [output.dtype for output in pfor_input.outputs]
    attrs = pfor_input.op.node_def.attr
    return pfor._create_op(pfor_input.op_type, inputs, dtypes, attrs=attrs).outputs


def _by_channels(spec: OpSpec, pfor_input: Any) -> list[Any]:
    """Merges the loop's dimension into the channels."""
    pfor_input.stack_inputs()

    def folded(tensor: Any) -> tuple[Any, Any, Any]:
        """[n, ...] with n merged into the channels; the shape before merging, and the order."""
        rank = tf.rank(tensor)
        at = _channel_axis(spec, pfor_input, rank - 1)
        order = tf.concat([tf.range(1, at + 1), [0], tf.range(at + 1, rank)], axis=0)
        moved = tf.transpose(tensor, order)
        shape = tf.shape(moved)
        merged = tf.concat([shape[:at], [shape[at] * shape[at + 1]], shape[at + 2 :]], axis=0)
        return tf.reshape(moved, merged), shape, order

    inputs = [pfor_input.stacked_input(i) for i in range(pfor_input.num_inputs)]
    # A list of no tensor is no input.
    by_role = {arg.role: tensor for arg, tensor in zip(spec.inputs, inputs, strict=False)}
    flat = []
    for tensor, argument in zip(inputs, spec.inputs, strict=False):
        if argument.kind in (VIEW, VIEW_LIST):
            tensor, shape, order = folded(tensor)
        elif argument.role == _COEFFICIENTS:
            tensor = _coefficients_in_rows(tensor, of=by_role["scale"])
        elif argument.kind == COUNT:  # The op takes one for all channels: the sums are divided.
            tensor = tf.ones([], tensor.dtype)
        else:
            if argument.role in ("sum_dy", "sum_dy_xmu"):
                tensor = tf.math.divide_no_nan(tensor, by_role["count"][:, tf.newaxis])
            tensor = tf.reshape(tensor, [-1])
        flat.append(tensor)
    outputs = _with_inputs(pfor_input, flat)
    loops, back = tf.shape(inputs[0])[0], tf.math.invert_permutation(order)

    def unfolded(output: Any, argument: Arg) -> Any:
        if argument.kind == COUNT:
            return pfor.wrap(output, False)
        if argument.kind in (VIEW, VIEW_LIST):
            output = tf.transpose(tf.reshape(output, shape), back)
        elif argument.role == _COEFFICIENTS:
            output = _coefficients_by_iteration(output, of=by_role["scale"])
        else:
            output = tf.reshape(output, [loops, tf.size(output) // tf.maximum(loops, 1)])
        return pfor.wrap(output, True)

    return [unfolded(*pair) for pair in zip(outputs, spec.outputs, strict=False)]


def _channel_axis(spec: OpSpec, pfor_input: Any, rank: Any) -> Any:
    if "axis" in spec.attrs:
        axis = pfor_input.get_attr("axis")
        return axis if axis >= 0 else rank + axis
    # Without the attr channels are dimension 1.
    channels_last = "data_format" in spec.attrs and pfor_input.get_attr("data_format")[-1:] == b"C"
    return rank - 1 if channels_last else 1


def _coefficients_in_rows(tensor: Any, of: Any) -> Any:
    """Forward coefficients of each iteration, [n, rows, C], with n merged into the channels of
    each row; `of` is a stacked vector, [n, C]. A placeholder, of any size, becomes an empty one."""
    n, channels = tf.unstack(tf.shape(of))
    rows = tf.where(tf.rank(tensor) == 3, _rows(tensor, of), 0)
    kept = tf.reshape(tensor, [-1])[: n * rows * channels]
    by_row = tf.transpose(tf.reshape(kept, [n, rows, channels]), [1, 0, 2])
    return tf.reshape(by_row, [rows, n * channels])


def _coefficients_by_iteration(tensor: Any, of: Any) -> Any:
    """The way back; of a placeholder there are no rows, and no dimension for them."""
    n, channels = tf.unstack(tf.shape(of))
    rows = _rows(tensor, of)
    by_iteration = tf.transpose(tf.reshape(tensor, [rows, n, channels]), [1, 0, 2])
    shape = tf.concat(
        [
            [n],
            tf.stack([rows])[: tf.rank(tensor) - 1],
            [tf.size(tensor) // tf.maximum(n * rows, 1)],
        ],
        0,
    )
    return tf.reshape(by_iteration, shape)


def _rows(tensor: Any, of: Any) -> Any:
    return tf.size(tensor) // tf.maximum(tf.size(of), 1)


def _gather_stats(pfor_input: Any) -> list[Any]:
    """Composed of TensorFlow's ops: the op takes one count of a part for all channels."""
    pfor_input.stack_inputs()
    counts, means, m2s = (pfor_input.stacked_input(i) for i in range(3))
    n = counts[..., tf.newaxis]
    # Parts without elements may hold anything.
    means, m2s = (tf.where(n > 0, value, tf.zeros_like(value)) for value in (means, m2s))
    count = tf.reduce_sum(counts, axis=1)
    mean = tf.math.divide_no_nan(tf.reduce_sum(n * means, axis=1), count[:, tf.newaxis])
    m2 = tf.reduce_sum(m2s + n * tf.square(means - mean[:, tf.newaxis]), axis=1)
    return [pfor.wrap(value, True) for value in (count, mean, m2)]


def _gather(pfor_input: Any) -> list[Any]:
    """CollectiveGatherV2, which gathers along the first dimension: one for all iterations."""
    value, group_size, group_key, key, *tokens = (tensor for tensor, *_ in pfor_input.inputs)
    is_stacked = pfor_input.input(0).is_stacked
    rank = tf.rank(value)
    swapped = tf.concat([[1, 0], tf.range(2, rank)], axis=0) if is_stacked else tf.range(rank)
    # The op of the loop's body, which is still called, has the same key.
    inputs = [tf.transpose(value, swapped), group_size, group_key, key + _KEY_OFFSET, *tokens]
    (gathered,) = _with_inputs(pfor_input, inputs)
    return [pfor.wrap(tf.transpose(gathered, swapped), is_stacked)]
