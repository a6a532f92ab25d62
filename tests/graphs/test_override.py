"""enable(kernels=True): what it replaces, in which execution modes.

Promised: placeholder outputs have shape [0]; functions that have run take the kernels at their next
call; `enable` says what it replaced, and what is not possible in a sentence, and does the rest.

Every case runs in a process of its own: it cannot be undone.
"""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from op_calls import bits, call_of, small
from tensorflow.python.eager import context, execute

import tf_bn_ops
from tf_bn_ops import _enable
from tf_bn_ops.spec import OPS


def with_relu(inputs: Any, attrs: Any) -> list[Any]:
    """Grappler makes one op of the two where oneDNN is on."""
    y, *statistics = tf.raw_ops.FusedBatchNormV3(**inputs, **attrs)
    return [tf.nn.relu(y), *map(tf.identity, statistics)]


def run_in_session(builtin: Any, inputs: Any, ops_that_ran: set[str]) -> Any:
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = {n: tf.compat.v1.placeholder(t.dtype, t.shape) for n, t in inputs.items()}
        values = {fed[n]: t.numpy() for n, t in inputs.items()}
        got = session.run(builtin(fed), values, options, metadata)
    ops_that_ran |= {n.op for g in metadata.partition_graphs for n in g.node}
    return got


def compared(
    op: Any, relu: bool, dtype: str, layout: str, mode: str, ops_that_ran: set[str]
) -> Any:
    """By how an op is run: whether TensorFlow's results are bitwise identical to this library's,
    and the shapes of its placeholders. With large means the built-in's never are: its sums are
    off."""
    shape = (4, 9, 10, 16) if layout == "NHWC" else (4, 16, 9, 10)
    case = small(op, layout, mode, dtype=dtype, kind="large_offset", shape=shape)
    call, inputs, attrs = call_of(case)
    ours = call(inputs)
    builtin = lambda given: list(call(given, tf.raw_ops))  # noqa: E731
    if relu:
        ours = tf_bn_ops.raw_ops.FusedBatchNormEx(**inputs, **attrs, activation_mode="Relu")
        builtin = lambda given: with_relu(given, attrs)  # noqa: E731
    count = 3 if "Grad" in op.name else 5
    for how, got in (
        ("eager", builtin(inputs)),
        ("function", tf.function(builtin)(inputs)),
        ("session", run_in_session(builtin, inputs, ops_that_ran)),
    ):
        is_ours = bits(ours[:count]) == bits(got[:count])
        yield how, (is_ours, [list(np.shape(each)) for each in got[count:]])


def run_all(*names: str) -> tuple[dict[str, Any], list[str]]:
    """All ops, or some, in all execution modes; and the ops that ran in a session."""
    ops = [OPS[name] for name in names] or [op for op in OPS.values() if op.builtin]
    twins = [*((op, False) for op in ops), (OPS["FusedBatchNormV3"], True)]
    modes = (("NHWC", "training"), ("NHWC", "frozen"), ("NCHW", "training"))
    ran: set[str] = set()
    return {
        f"{how} {'Relu' if relu else op.name} {dtype} {layout} {mode}": found
        for op, relu in twins
        for dtype in op.dtypes
        for layout, mode in modes
        for how, found in compared(op, relu, dtype, layout, mode, ran)
    }, sorted(ran)


@tf.function
def step(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.compat.v1.nn.fused_batch_norm(x, tf.ones([16]), tf.zeros([16]))[0]
        y = y * tf.sin(x)
    return tape.gradient(y, x)


def has_loaded() -> bool:
    return "libtf_bn_ops_override" in pathlib.Path("/proc/self/maps").read_text()


def before_and_after() -> dict[str, Any]:
    x = tf.random.stateless_normal([4, 9, 10, 16], seed=[1, 2], mean=30.0)
    (before, _), gradient, had_loaded = run_all(), step(x), has_loaded()
    enabled = tf_bn_ops.enable(keras=False, fuse=False)
    assert tf_bn_ops.enable(keras=False, fuse=False) == enabled
    assert (enabled.keras, enabled.fuse, enabled.refusals) == (False, False, ())
    after, ops = run_all()
    difference = float(tf.reduce_max(tf.abs(step(x) - gradient)))
    loaded = [had_loaded, has_loaded()]
    return {
        **{"before": before, "after": after, "ops": ops, "replaced": enabled.kernels},
        **{"difference": difference, "loaded": loaded},
    }


def is_training_in_float32(case: str) -> bool:
    # Rounded to half, sums may be equal by chance.
    return "float32" in case and "training" in case


def not_ours(cases: dict) -> list[str]:
    return [case for case, (is_ours, _) in cases.items() if not is_ours]


def not_tensorflows(cases: dict) -> list[str]:
    """Those in training and float32 that are bitwise identical to ours; there are such cases."""
    training = [case for case in cases if is_training_in_float32(case)]
    assert training
    return [case for case in training if cases[case][0]]


# oneDNN is TensorFlow's default, and has kernels of its own for more of the ops.
@pytest.fixture(
    scope="module", params=[pytest.param("0", marks=pytest.mark.long), "1"], ids=["eigen", "onednn"]
)
def called(request) -> dict:
    return forked.call(before_and_after, TF_ENABLE_ONEDNN_OPTS=request.param)


def test_all_execution_modes_run_on_our_kernels(called):
    """Promise: With kernels=True TensorFlow's ops run on this library in every mode of
    execution."""
    assert not_ours(called["after"]) == []
    assert called["loaded"] == [False, True]


def test_placeholders_have_the_documented_shape(called, request):
    """[0], also where oneDNN has a scalar. Of V3 in training [8, C], for its gradient; where
    TensorFlow makes one op of a frozen V3 and Relu, it is that op's, which is the same. In 16-bit
    types TensorFlow does so on processors with AVX-512 alone."""
    wrong = {}
    for case, (_, shapes) in called["after"].items():
        is_fused = "onednn" in request.node.callspec.id and "Relu" in case and "eager" not in case
        kept = [8, 16]
        allowed = [[0]]
        if " FusedBatchNormV3 " in case or "Relu" in case:
            allowed = [kept] if "training" in case else [[0], kept] if is_fused else [[0]]
        if is_fused and "float32" in case:
            allowed = [kept]
        if any(shape not in allowed for shape in shapes):
            wrong[case] = shapes
    assert wrong == {}


def test_a_forward_op_that_is_fused_with_its_relu_is_ours(called, request):
    """The results are compared above; here, that TensorFlow has fused them."""
    fused = "_MklNativeFusedBatchNormEx" in called["ops"]
    assert fused == ("onednn" in request.node.callspec.id)


def test_before_the_call_tensorflow_computes(called):
    assert not_tensorflows(called["before"]) == []


def test_functions_that_have_run_already_change_too(called):
    assert 0 < called["difference"] < 1e-2


def test_it_says_what_it_replaced(called):
    replaced = [_enable.Kernel(*kernel) for kernel in called["replaced"]]
    names = {"float32": "float32", "bfloat16": "bfloat16", "float16": "half"}
    plain = {(k.op, names[k.dtype]) for k in replaced if not k.op.startswith("_")}
    assert plain == {
        (op.builtin, dtype) for op in OPS.values() if op.builtin for dtype in op.dtypes
    }
    inner = {k.op for k in replaced} - {op for op, _ in plain}
    ex = {"_FusedBatchNormEx", "_FusedBatchNormGradEx"}
    assert ex <= inner <= ex | {*_enable._ONEDNN_OPS}
    assert {k.device for k in replaced} == {"CPU"}


def inner_op(name: str, outputs: int, inputs: Any, **attrs: Any) -> Any:
    """TensorFlow's op without a name in Python."""
    pairs = tuple(each for attr in attrs.items() for each in attr)
    return execute.execute(name, outputs, inputs, pairs, context.context())


def behind_an_activation(
    dtype: str, mode: str, side_inputs: int, layout: str, is_training: bool
) -> bool:
    """Whether results of the inner ops are bitwise identical to this library's."""
    rng = np.random.default_rng(0)
    shape = (4, 9, 10, 16) if layout == "NHWC" else (4, 16, 9, 10)
    # Few values, so that y is often exactly 0 or 6.
    x, dy, side = (tf.constant(rng.integers(-4, 5, shape), dtype) for _ in range(3))
    scale, variance = (tf.constant(rng.uniform(1, 4, 16), tf.float32) for _ in range(2))
    offset, mean = (tf.constant(rng.normal(size=16), tf.float32) for _ in range(2))
    attrs: dict[str, Any] = {"epsilon": 0.01, "data_format": layout, "is_training": is_training}
    attrs["activation_mode"] = mode
    vectors = {"scale": scale, "offset": offset, "mean": mean, "variance": variance}
    ex = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, **vectors, side_input=[side] * side_inputs, **attrs
    )
    inputs = {"y_backprop": dy, "x": x, "scale": scale, "offset": offset, "y": ex.y}
    inputs |= {name: getattr(ex, name) for name in ex._fields[3:6]}
    attrs["num_side_inputs"] = side_inputs
    want = tf_bn_ops.raw_ops.FusedBatchNormGradEx(**inputs, **attrs)
    types = {"T": tf.as_dtype(dtype).as_datatype_enum, "U": tf.float32.as_datatype_enum}
    ordered = [inputs[arg.name] for arg in OPS["FusedBatchNormGradEx"].inputs]
    got = inner_op("_FusedBatchNormGradEx", 5 + side_inputs, ordered, **types, **attrs)
    pairs = [*zip([*want[:5], *want.side_input_backprop], got, strict=True)]
    if not side_inputs and mode != "Relu6" and dtype == "float32":
        forward = inner_op("_FusedBatchNormEx", 6, [x, *vectors.values()], **types, **attrs)
        pairs += [(ex.y, forward[0]), *zip(ex[3:6], forward[3:], strict=True)]
    return all(bits(a) == bits(b) for a, b in pairs)


def all_behind_an_activation() -> list[str]:
    tf_bn_ops.enable(keras=False, fuse=False)
    modes, layouts = ("Identity", "Relu", "Relu6"), ("NHWC", "NCHW")
    cases = itertools.product(("float16", "float32"), modes, (0, 1), layouts, (True, False))
    return [str(case) for case in cases if not behind_an_activation(*case)]


def test_the_gradient_behind_an_activation_has_kernels_for_cpus():
    assert forked.call(all_behind_an_activation) == []


def test_the_variable_does_the_same():
    """The program only imports tf_bn_ops, after TensorFlow."""
    after, _ = forked.call(run_all, "FusedBatchNormGradV3", TF_BN_OPS="kernels")
    assert not_ours(after) == []


def test_what_is_not_possible_is_a_sentence_and_the_rest_is_done(monkeypatch, caplog):
    monkeypatch.setattr(_enable, "_replaced_kernels", _enable._replaced_kernels.__wrapped__)
    monkeypatch.setattr(_enable, "_KNOWN_TENSORFLOW", ("2.1",))
    monkeypatch.setattr(_enable, "_enable_keras", lambda: None)
    enabled = _enable.enable(fuse=False)
    (sentence,) = enabled.refusals
    assert f"the kernels of TensorFlow {tf.__version__} cannot be replaced" in sentence
    assert (enabled.kernels, enabled.keras, enabled.fuse) == ((), True, False)
    assert str(enabled) == f"Keras layers\n{sentence}"
    assert sentence in caplog.text
