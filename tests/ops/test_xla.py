"""The ops under jit_compile=True, beyond what test_every_op.py has: how programs are compiled, that
they train and differentiate, and loading."""

from __future__ import annotations

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
from tf_bn_ops.spec import OPS

pytestmark = pytest.mark.skipif(
    not (_loader.installation().folder / _loader.XLA_LIBRARY).is_file(), reason="built without XLA"
)

COMPILE = "TF_BN_OPS_XLA"
FORWARD = [
    op.name for f in (spec.ops.BATCH_NORM, spec.ops.BATCH_NORM_ADD) for op in spec.of_formula(f)
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPILE, raising=False)


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


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function` as one XLA program."""
    return tf.function(function, jit_compile=True, autograph=False)(*arguments)


def hlo(function: Callable[..., Any], *arguments: Any) -> str:
    program = tf.function(function, jit_compile=True, autograph=False)
    return program.experimental_get_compiler_ir(*arguments)(stage="hlo")


# ---- Values --------------------------------------------------------------------------------------


VIEW, VECTOR, NONE = (2, 3, 4, 5), (5,), (0,)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes"),
    [
        ("FusedBatchNormEx", {"activation_mode": "Relu"}, (VIEW, VECTOR, VECTOR, NONE, NONE)),
        ("FusedBatchNormEx", {"activation_mode": "Relu"}, (VIEW, VECTOR, VECTOR, NONE, NONE, VIEW)),
        ("FusedBatchNormGrad", {}, (VIEW, VIEW, VECTOR, VECTOR, VECTOR)),
    ],
    ids=["forward", "side input", "gradient"],
)
def test_an_op_is_one_custom_call_unless_the_variable_says_hlo(op, attrs, shapes, monkeypatch):
    call, inputs = call_of(op, attrs), [tf.ones(shape) for shape in shapes]
    program = hlo(call, *inputs)
    assert re.findall('custom_call_target="([^"]*)"', program) == ["tf_bn_ops.call"]
    assert "reduce" not in program
    monkeypatch.setenv(COMPILE, "hlo")
    program = hlo(call, *inputs)
    assert "custom-call" not in program
    # In float64: the mean, and the variance around it, or the two sums of the gradient.
    assert program.count("f64[5]{0} reduce(") == 2
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
    lines = run_jit(TF_BN_OPS_CPU_ISA="baseline")
    assert lines == ["[]", "4.0", "4.0"]
    program = JIT.replace("print(float(op(data, data, one, one, one).offset_backprop[0]))", "")
    result = forked.run(
        program,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_BN_OPS_CPU_ISA": "mmx"},
    )
    assert result.returncode == 0, result.stderr
    assert 'there is no CPU implementation "mmx"' in result.stdout
