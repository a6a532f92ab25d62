"""The ops under jit_compile=True. Promised: on a CPU, results are bitwise identical to those of the
ops that are not compiled; in XLA's own operations, as other devices compile the ops, they keep the
error bounds of the kernels."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from build_helpers import run

import tf_bn_ops
from tf_bn_ops import _loader, spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import request
from tf_bn_ops.conformance.models import bounds, formula_models
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.verdict.judge import judge, outputs_of, structure
from tf_bn_ops.harness.problems import Problem
from tf_bn_ops.spec import OPAQUE, OPS

pytestmark = pytest.mark.skipif(
    not (_loader.installation().folder / _loader.XLA_LIBRARY).is_file(), reason="built without XLA"
)

COMPILE = "TF_BN_OPS_XLA"
FIRST_ORDER = [op.name for op in spec.of_formula(spec.ops.BATCH_NORM_GRAD)]
FORWARD = [
    op.name for f in (spec.ops.BATCH_NORM, spec.ops.BATCH_NORM_ADD) for op in spec.of_formula(f)
]  # fmt: skip
# Larger cases take seconds each; `make conformance` runs them on the same kernels.
MOST_ELEMENTS = 40_000


@pytest.fixture(autouse=True)
def as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPILE, raising=False)


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function` as one XLA program."""
    return tf.function(function, jit_compile=True, autograph=False)(*arguments)


def call_of(op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
    """The op as a function of its inputs; the last, if it is a list, may be missing."""

    def call(*tensors: Any) -> Any:
        rest = list(tensors)
        named = {
            arg.name: rest[:] if arg.kind == spec.VIEW_LIST else rest.pop(0)
            for arg in OPS[op].inputs
        }
        return getattr(tf_bn_ops.raw_ops, op)(**named, **attrs)

    return call


def small_cases(seed: int) -> list[Any]:
    """A random case of every combination of op, dtype, layout and mode; of the ops that call the
    CPU backend. All but one of each op and mode are long: XLA compiles each."""
    combos = generate.combinations(FIRST_ORDER + FORWARD)
    seen = set()
    cases = []
    for case in generate.generate(len(combos), seed, combos):
        if np.prod(case.shape, dtype=np.int64) > MOST_ELEMENTS:
            continue
        kind = (case.op, case.is_training)
        cases.append(pytest.param(case, marks=[pytest.mark.long] if kind in seen else []))
        seen.add(kind)
    return cases


def inputs_and_call(case: Case) -> tuple[list[Any], Callable[..., Any]]:
    asked = request(case, model_of(case.spec).fill(case), case.spec)
    return list(asked["inputs"].values()), call_of(case.op, asked["attrs"])


def bits(tensor: Any) -> np.ndarray:
    return np.frombuffer(tensor.numpy().tobytes(), np.uint8)


def hlo(function: Callable[..., Any], *arguments: Any) -> str:
    program = tf.function(function, jit_compile=True, autograph=False)
    return program.experimental_get_compiler_ir(*arguments)(stage="hlo")


# ---- Values --------------------------------------------------------------------------------------


# One case of every combination of op, dtype, layout and mode.
@pytest.mark.parametrize("case", small_cases(seed=11), ids=str)
def test_on_a_cpu_results_are_bitwise_identical_to_those_of_the_op(case):
    inputs, call = inputs_and_call(case)
    want = call(*inputs)
    got = compiled(call, *inputs)
    assert type(got) is type(want)
    assert structure(outputs_of(case), Answer([output.numpy() for output in got])) == []
    for output, a, b in zip(case.spec.outputs, want, got, strict=True):
        # Under XLA the forward op leaves no coefficients for the mask of its gradient.
        if output.kind != OPAQUE:
            np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("case", small_cases(seed=12), ids=str)
def test_hlo_keeps_the_bounds_of_the_kernels(case, monkeypatch):
    monkeypatch.setenv(COMPILE, "hlo")
    given = model_of(case.spec).fill(case)
    inputs, call = inputs_and_call(case)
    answer = Answer([output.numpy() for output in compiled(call, *inputs)])
    assert structure(outputs_of(case), answer) == []
    result = judge(case, given, {"candidate": answer}, bounds.PROFILES["strict"])
    assert result.failures == []


@pytest.mark.parametrize("side_inputs", [0, 1])
def test_a_forward_op_is_one_custom_call(side_inputs, monkeypatch):
    x, vector = tf.ones([2, 3, 4, 5]), tf.ones([5])
    inputs = [x, vector, vector, tf.ones([0]), tf.ones([0]), *[x] * side_inputs]
    call = call_of("FusedBatchNormEx", {"activation_mode": "Relu"})
    program = hlo(call, *inputs)
    assert re.findall('custom_call_target="([^"]*)"', program) == ["tf_bn_ops.call"]
    assert "reduce" not in program
    monkeypatch.setenv(COMPILE, "hlo")
    program = hlo(call, *inputs)
    assert "custom-call" not in program
    # The mean, and the variance around it: sums in float64.
    assert program.count("f64[5]{0} reduce(") == 2


FAR = 1e5


@pytest.mark.parametrize("compile_to", ["", "hlo"])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_large_mean_costs_no_digits(compile_to, is_training, monkeypatch):
    """The accuracy that the CPU kernels promise; XLA's own batch normalization gives NaN here."""
    monkeypatch.setenv(COMPILE, compile_to)
    rng = np.random.default_rng(6)
    x = (FAR + rng.normal(size=(8, 14, 14, 5))).astype(np.float32)
    scale, offset = rng.uniform(0.5, 2, (2, 5)).astype(np.float32)
    mean = np.full(5, FAR, np.float32) if is_training else x.mean((0, 1, 2), np.float32)
    variance = np.ones(5, np.float32)
    attrs = {"is_training": is_training, "epsilon": 1e-3, "exponential_avg_factor": 0.25}
    got = compiled(call_of("FusedBatchNormV3", attrs), x, scale, offset, mean, variance)

    wide = x.astype(np.float64)
    count = wide.size / 5
    want_mean, want_variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
    if is_training:
        batch_mean = 0.75 * mean + 0.25 * want_mean
        batch_variance = 0.75 * variance + 0.25 * want_variance * count / (count - 1)
    else:
        want_mean, want_variance = mean.astype(np.float64), variance.astype(np.float64)
        batch_mean, batch_variance = want_mean, want_variance
    normalized = (wide - want_mean) / np.sqrt(want_variance + np.float64(np.float32(1e-3))) * scale
    u = 2.0**-24
    bound = 9 * u * (np.abs(normalized) + np.abs(offset))  # 8 u, and the rounding of y.
    assert np.all(np.abs(got.y - (normalized + offset)) <= bound)
    rounded = {"rtol": 4 * u, "atol": 2.0**-48 * FAR**2}
    np.testing.assert_allclose(got.reserve_space_2, want_variance, **rounded)
    np.testing.assert_allclose(got.batch_variance, batch_variance, **rounded)
    np.testing.assert_allclose(got.reserve_space_1, want_mean, rtol=2 * u, atol=0)
    np.testing.assert_allclose(got.batch_mean, batch_mean, rtol=2 * u, atol=0)


@pytest.mark.parametrize("compile_to", ["", "hlo"])
@pytest.mark.parametrize("shape", [(0, 2, 2, 5), (1, 1, 1, 5)])
@pytest.mark.parametrize("is_training", [True, False])
def test_forward_without_elements_and_with_one(compile_to, shape, is_training, monkeypatch):
    monkeypatch.setenv(COMPILE, compile_to)
    x, vector = tf.fill(shape, 3.0), tf.range(1.0, 6)
    got = compiled(
        call_of("FusedBatchNormV3", {"is_training": is_training}), x, *[vector] * 4
    )  # fmt: skip
    y, batch_mean, batch_variance, saved_mean, saved_variance = [v.numpy() for v in got[:5]]
    if not is_training:
        for statistic in (batch_mean, batch_variance, saved_mean, saved_variance):
            np.testing.assert_array_equal(statistic, vector)
    elif x.shape[0]:
        np.testing.assert_array_equal(y[0, 0, 0], vector)  # The offset.
        np.testing.assert_array_equal([*batch_mean, *saved_mean], 3)
        np.testing.assert_array_equal([*batch_variance, *saved_variance], 0)
    else:
        assert y.shape == shape
        np.testing.assert_array_equal([*batch_mean, *batch_variance], np.nan)
        np.testing.assert_array_equal([*saved_mean, *saved_variance], 0)


def test_the_variable_replaces_the_custom_call_by_hlo(monkeypatch):
    case = generate.parse("FusedBatchNormGrad,float32,NHWC,2x3x4x5,training,normal,batch,eps=0.25,"
                       "eager,seed=1")  # fmt: skip
    inputs, call = inputs_and_call(case)
    program = hlo(call, *inputs)
    assert 'custom_call_target="tf_bn_ops.call"' in program
    assert "reduce" not in program
    monkeypatch.setenv(COMPILE, "hlo")
    program = hlo(call, *inputs)
    assert "custom-call" not in program
    # Sums in float64.
    assert "f64[5]{0} reduce(" in program
    monkeypatch.setenv(COMPILE, "HLO")
    with pytest.raises(ValueError, match="TF_BN_OPS_XLA is 'HLO': set it to"):
        hlo(call, *inputs)


@pytest.mark.long
def test_programs_for_a_gpu_keep_the_bounds_of_the_kernels(repo_root):
    """With rstd in reserve_space_2 in training, as TensorFlow's forward op returns it on a GPU;
    nGraph's op takes the variance there too."""
    script = [sys.executable, "tools/gpu/tensorflow_test.py", "--emulated", "--cases=90"]
    result = run(script, repo_root, TF_CPP_MIN_LOG_LEVEL="3")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search("90 cases: 0 failed; the worst error is 0", result.stdout)


# ---- In programs ---------------------------------------------------------------------------------


def step(x: Any, scale: Any, direction: Any) -> Any:
    """A loss, its gradients by this library's ops, and a second derivative."""
    with tf.GradientTape() as outer:
        outer.watch([x, scale])
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            y, mean, _ = tf_bn_ops.fused_batch_norm(x, scale, tf.zeros([5]))
            loss = tf.reduce_sum(y * direction) + tf.reduce_sum(mean**2)
        first = tape.gradient(loss, [x, scale])
        penalty = tf.reduce_sum(first[0] ** 2)
    return [loss, *first, *outer.gradient(penalty, [x, scale])]


def test_forward_backward_and_second_derivative_in_one_program():
    rng = np.random.default_rng(1)
    x, direction = tf.constant(rng.normal(size=(2, 4, 4, 4, 5)).astype(np.float32))
    scale = tf.constant(rng.uniform(0.5, 2, 5).astype(np.float32))
    targets = re.findall('custom_call_target="([^"]*)"', hlo(step, x, scale, direction))
    assert targets.count("tf_bn_ops.call") >= 2
    # The second derivative is in XLA's operations, and so is that of the mean.
    for want, got in zip(step(x, scale, direction), compiled(step, x, scale, direction),
                         strict=True):  # fmt: skip
        np.testing.assert_allclose(want, got, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", FIRST_ORDER)
@pytest.mark.parametrize("compile_to", ["", "hlo"])
def test_gradients_of_the_ops(op, compile_to, monkeypatch):
    """Second order, with respect to everything that has a gradient."""
    monkeypatch.setenv(COMPILE, compile_to)
    rng = np.random.default_rng(2)
    size = {"x": (2, 5, 3, 4), "y_backprop": (2, 5, 3, 4), "forward_coefficients": (1,)}
    inputs = [
        tf.constant(rng.uniform(0.5, 2, size.get(arg.role, (5,))).astype(np.float32))
        for arg in OPS[op].inputs
    ]
    attrs = {"epsilon": 0.25}
    if "data_format" in OPS[op].attrs:
        attrs["data_format"] = "NCHW"
    call = call_of(op, attrs)

    def second(*inputs: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            x_backprop, scale_backprop, offset_backprop, *_ = call(*inputs)
            total = (
                tf.reduce_sum(tf.sin(x_backprop))
                + tf.reduce_sum(scale_backprop**2)
                + tf.reduce_sum(offset_backprop**2)
            )
        return [g for g in tape.gradient(total, inputs) if g is not None]

    wanted = second(*inputs)
    assert len(wanted) >= 3
    for want, got in zip(wanted, compiled(second, *inputs), strict=True):
        np.testing.assert_allclose(want, got, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("is_training", [True, False])
def test_gradients_of_the_forward_ops_are_bitwise_identical_to_those_of_the_op(op, is_training):
    """Forward and backward pass in one program, through the activation and by the side input."""
    rng = np.random.default_rng(4)
    views = [tf.constant(rng.normal(2, 1, (2, 3, 4, 5)).astype(np.float32)) for _ in range(3)]
    vectors = [tf.constant(rng.uniform(0.5, 2, 5).astype(np.float32)) for _ in range(4)]
    attrs: dict[str, Any] = {"is_training": is_training}
    inputs = [views[0], *vectors]
    if op == "FusedBatchNormEx":
        attrs["activation_mode"] = "Relu6"
        inputs.append(views[1])

    def first_order(*inputs: Any) -> list[Any]:
        wanted = [*inputs[:3], *inputs[5:]]
        with tf.GradientTape() as tape:
            tape.watch(wanted)
            y = call_of(op, attrs)(*inputs).y
        return tape.gradient(y, wanted, views[2])

    program = hlo(first_order, *inputs)
    targets = set(re.findall('custom_call_target="([^"]*)"', program))
    assert targets == {"tf_bn_ops.call"}
    for want, got in zip(first_order(*inputs), compiled(first_order, *inputs), strict=True):
        assert np.any(want)
        np.testing.assert_array_equal(want, got)


@pytest.mark.parametrize(("data_format", "shape"), [("NHWC", (3, 4, 5)), ("NCHW", (2, 5, 3, 2))])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_second_order_keeps_the_bounds_of_the_kernels(dtype, is_training, data_format, shape):
    """Compiled to HLO on every device; sums in float64 as well."""
    rng = np.random.default_rng(5)
    element = spec.DTYPES[dtype].numpy
    vector = np.float64 if dtype == "float64" else np.float32
    values = {
        arg.role: rng.normal(1, 1, shape).astype(element)
        if arg.role in ("x", "y_backprop", "x_backprop_grad")
        else rng.uniform(0.5, 2, 5).astype(vector)
        for arg in OPS["FusedBatchNormGradGrad"].inputs
    }

    def call(*inputs: Any) -> Any:
        named = dict(
            zip((arg.name for arg in OPS["FusedBatchNormGradGrad"].inputs), inputs, strict=True)
        )
        return tf_bn_ops.raw_ops.FusedBatchNormGradGrad(
            **named, epsilon=1e-3, data_format=data_format, is_training=is_training
        )

    got = compiled(call, *values.values())
    inner = 1 if data_format == "NHWC" else shape[2] * shape[3]
    view = lambda a: a.reshape(-1, 5, inner) if a.ndim > 1 else a  # noqa: E731
    arrays = {role: view(array) for role, array in values.items()}
    results = {
        arg.role: view(getattr(got, arg.name).numpy())
        for arg in OPS["FusedBatchNormGradGrad"].outputs
    }
    assert not formula_models.check(Problem(arrays, 1e-3, is_training), results)


def test_a_keras_model_compiled_by_xla_trains_as_one_that_is_not():
    import keras

    rng = np.random.default_rng(3)
    images = rng.normal(size=(16, 6, 6, 3)).astype(np.float32)
    labels = images.mean((1, 2, 3))
    losses = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((6, 6, 3)),
                keras.layers.Conv2D(4, 3),
                tf_bn_ops.keras.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        for layer in model.layers:
            layer.supports_jit = True  # Else Keras does not compile a model that has the layer.
        model.compile("sgd", "mse", jit_compile=jit_compile)
        losses.append(
            model.fit(images, labels, epochs=3, batch_size=8, shuffle=False, verbose=0).history
        )
    np.testing.assert_allclose(losses[0]["loss"], losses[1]["loss"], rtol=1e-4)


# ---- Errors --------------------------------------------------------------------------------------

BAD_SHAPES: dict[str, dict[int, tuple[int, ...]]] = {
    "rank": {0: (3, 4, 5), 1: (3, 4, 5)},
    "shapes of x and y_backprop": {0: (2, 3, 5, 5)},
    "scale of rank 2": {2: (5, 1)},
    "mean of rank 2": {3: (1, 5)},
    "variance of rank 0": {4: ()},
    "too few scales": {2: (4,)},
    "too many means": {3: (6,)},
    "no variances": {4: (0,)},
}


def refusal(function: Callable[..., Any], *inputs: Any) -> str:
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(*inputs)
    return str(caught.value.message)


@pytest.mark.parametrize("what", BAD_SHAPES)
def test_bad_shapes_get_the_message_of_the_kernels(what):
    """Shapes are known when the program is compiled, at its first run."""
    shapes = {0: (2, 3, 4, 5), 1: (2, 3, 4, 5), **BAD_SHAPES[what]}
    inputs = [tf.ones(shapes.get(i, (5,))) for i in range(5)]
    call = call_of("FusedBatchNormGrad", {})
    unknown = [tf.TensorSpec(None, tf.float32)] * 5
    program = tf.function(call, input_signature=unknown, jit_compile=True)
    sentence = refusal(call, *inputs).split("}} ")[-1].split(" [Op:")[0]
    assert sentence in refusal(program, *inputs)


@pytest.mark.parametrize(
    ("attrs", "bad"),
    [
        ({}, {0: (3, 4, 5)}),
        ({}, {1: (5, 1)}),
        ({}, {2: (4,)}),
        ({"is_training": False}, {3: (0,)}),
        ({"exponential_avg_factor": 0.5}, {4: (6,)}),
        ({}, {5: (2, 3, 4, 1)}),
    ],
    ids=str,
)
def test_bad_shapes_of_the_forward_ops_get_the_message_of_the_kernels(attrs, bad):
    shapes = {0: (2, 3, 4, 5), 5: (2, 3, 4, 5), **bad}
    inputs = [tf.ones(shapes.get(i, (5,))) for i in range(6)]
    call = call_of("FusedBatchNormEx", attrs)
    unknown = [tf.TensorSpec(None, tf.float32)] * 6
    program = tf.function(call, input_signature=unknown, jit_compile=True)
    sentence = refusal(call, *inputs).split("}} ")[-1].split(" [Op:")[0]
    assert sentence in refusal(program, *inputs)


def test_bad_shapes_of_training_backprop():
    inputs = [tf.ones((2, 5, 3)), *[tf.ones((5,))] * 4, tf.ones((2, 5, 4))]
    unknown = [tf.TensorSpec(None, tf.float32)] * 6
    program = tf.function(
        call_of("BatchNormTrainingBackprop", {"epsilon": 1e-3}),
        input_signature=unknown,
        jit_compile=True,
    )
    assert "normalized_delta must have the shape of input" in refusal(program, *inputs)


# ---- Loading -------------------------------------------------------------------------------------

JIT = """
import sys, warnings
import numpy as np, tensorflow as tf
if "xla first" in sys.argv:
    tf.function(lambda x: x + 1, jit_compile=True)(1.0)
import tf_bn_ops
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    tf_bn_ops.load()
print([str(w.message)[:43] for w in caught if "jit_compile" in str(w.message)])
one = tf.ones([1])
data = tf.ones([1, 2, 2, 1])
op = tf_bn_ops.fused_batch_norm_grad
print(float(op(data, data, one, one, one).offset_backprop[0]))
try:
    compiled = tf.function(lambda: op(data, data, one, one, one), jit_compile=True)()
    print(float(compiled.offset_backprop[0]))
except tf.errors.OpError as error:
    print(type(error).__name__, "tf_bn_ops" in str(error) or "TfBnOps" in str(error), error.message)
"""


def run_jit(*arguments: str, **changes: str) -> list[str]:
    result = forked.run(
        JIT,
        *arguments,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **changes},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_loading_after_the_first_use_of_xla():
    assert run_jit("xla first") == ["[]", "4.0", "4.0"]


@pytest.mark.long
def test_a_missing_or_truncated_library_disables_jit_compile_alone(tmp_path: pathlib.Path):
    lib = tmp_path / "lib"
    shutil.copytree(_loader.installation().folder, lib)
    library = lib / _loader.XLA_LIBRARY
    library.write_bytes(library.read_bytes()[:1000])
    lines = run_jit(TF_BN_OPS_LIBRARY=str(lib))
    assert lines[:2] == ["['jit_compile=True will not find the ops: " + str(lib)[:3] + "']", "4.0"]
    library.unlink()
    lines = run_jit(TF_BN_OPS_LIBRARY=str(lib))
    assert lines[:2] == ["[]", "4.0"]
    assert lines[2].startswith("InvalidArgumentError True")


@pytest.mark.long
def test_an_unknown_forced_implementation_is_one_sentence():
    lines = run_jit(TF_BN_OPS_CPU_ISA="reference")
    assert lines == ["[]", "4.0", "4.0"]
    program = JIT.replace("print(float(op(data, data, one, one, one).offset_backprop[0]))", "")
    result = forked.run(
        program,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_BN_OPS_CPU_ISA": "mmx"},
    )
    assert result.returncode == 0, result.stderr
    assert 'there is no CPU implementation "mmx"' in result.stdout


def test_every_op_has_an_xla_kernel_for_cpu_and_gpu():
    from tensorflow.python.framework import kernels

    tf_bn_ops.load()
    for op, device in itertools.product(OPS.values(), ("XLA_CPU_JIT", "XLA_GPU_JIT")):
        found = kernels.get_registered_kernels_for_op(op.registered_name).kernel
        devices = [kernel.device_type for kernel in found]
        assert devices.count(device) == devices.count("CPU") > 0, (op.name, device)
