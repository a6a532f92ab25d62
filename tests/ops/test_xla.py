"""The ops under jit_compile=True, beyond what test_every_op.py has: how programs are compiled, that
they train and differentiate, and loading.

Promised: an op compiled by XLA on the CPU is one call of its kernel, and its gradient too; with
TF_BN_OPS_XLA=hlo, as for GPUs, the program consists of XLA's operations, within the bounds of the
kernels; a library for XLA that is missing or broken disables `jit_compile=True` alone.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from build_helpers import run
from op_calls import call_of, small

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


def compiled(function: Callable[..., Any]) -> Any:
    return tf.function(function, jit_compile=True, autograph=False)


def hlo(function: Callable[..., Any], *arguments: Any) -> str:
    return compiled(function).experimental_get_compiler_ir(*arguments)(stage="hlo")


def targets(program: str) -> list[str]:
    return re.findall('custom_call_target="([^"]*)"', program)


def target_of_this_build() -> str:
    """With the version and the layout of a call, which the functions of the core are named by, too:
    a program that another build has compiled, and stored, finds no handler."""
    core = pathlib.Path(_loader.core_library_path()).read_bytes()
    (build,) = {*re.findall(rb"\0tfbn_run_(\w+_[0-9a-f]{12})\0", core)}
    assert tf_bn_ops.__version__.replace(".", "_") in build.decode()
    return f"tf_bn_ops.call_{build.decode()}"


# ---- In programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["FusedBatchNormEx", "FusedBatchNormGrad"])
def test_an_op_is_one_custom_call_unless_the_variable_says_hlo(op, monkeypatch):
    of_case, tensors, _ = call_of(small(OPS[op], "NHWC", dtype="float32", shape=(2, 3, 4, 5)))
    call = lambda tensors: of_case(tensors)  # noqa: E731
    program = hlo(call, tensors)
    assert targets(program) == [target_of_this_build()]
    assert "reduce" not in program
    monkeypatch.setenv(COMPILE, "hlo")
    program = hlo(call, tensors)
    assert "custom-call" not in program
    # In float64: the mean, and the variance around it, or the two sums of the gradient.
    assert program.count("f64[5]{0} reduce(") == 2
    monkeypatch.setenv(COMPILE, "HLO")
    with pytest.raises(ValueError, match="TF_BN_OPS_XLA is 'HLO': set it to"):
        hlo(call, tensors)


@pytest.mark.long
def test_programs_for_a_gpu_keep_the_bounds_of_the_kernels(repo_root):
    """With rstd in reserve_space_2 in training, as TensorFlow's forward op returns it on a GPU;
    nGraph's op takes the variance there too."""
    script = [sys.executable, "tools/gpu/tensorflow_test.py", "--emulated", "--cases=45"]
    result = run(script, repo_root, TF_CPP_MIN_LOG_LEVEL="3")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search("45 cases: 0 failed; the worst error is 0", result.stdout)


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("mode", ["training", "frozen"])
def test_gradients_of_the_forward_ops_are_bitwise_identical_to_those_of_the_op(op, mode):
    """Forward and backward pass in one program, through the activation and by the side input."""
    call, tensors, _ = call_of(small(OPS[op], "NHWC", mode, dtype="float32"))
    attrs = {}
    if op == "FusedBatchNormEx":
        tensors["side_input"], attrs = tf.sin(tensors["x"]), {"activation_mode": "Relu6"}

    weights = tf.cos(3 * tensors["x"])

    def first_order(tensors: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = call(tensors, **attrs).y
        found = tape.gradient(y, tensors, weights)
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    assert {*targets(hlo(first_order, tensors))} == {target_of_this_build()}
    got, want = compiled(first_order)(tensors), first_order(tensors)
    assert got.keys() == want.keys() == {"x", "scale", "offset", *tensors} - {"mean", "variance"}
    for name in want:
        assert np.any(want[name])
        np.testing.assert_array_equal(got[name], want[name])


# ---- Loading -------------------------------------------------------------------------------------


def loaded(xla_is_first: bool = False, eagerly: bool = True) -> list[Any]:
    """The warnings as the library is loaded, and results of the op, the last of them compiled; or
    the error's type and text."""
    if xla_is_first:
        compiled(lambda x: x + 1)(1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tf_bn_ops.load()
    results: list[Any] = [[text for w in caught if "jit_compile" in (text := str(w.message))]]
    one, data = tf.ones([1]), tf.ones([1, 2, 2, 1])
    call = lambda: tf_bn_ops.fused_batch_norm_grad(data, data, one, one, one)[2][0]  # noqa: E731
    try:
        for each in [call] * eagerly + [compiled(call)]:
            results.append(float(each()))
    except tf.errors.OpError as error:
        results.append(f"{type(error).__name__}: {error.message}")
    return results


def test_loading_after_the_first_use_of_xla():
    assert forked.call(loaded, True) == [[], 4.0, 4.0]


@pytest.mark.long
def test_a_missing_or_truncated_library_disables_jit_compile_alone(tmp_path):
    folder = str(tmp_path / "lib")
    shutil.copytree(_loader.installation().folder, folder)
    library = tmp_path / "lib" / _loader.XLA_LIBRARY
    library.write_bytes(library.read_bytes()[:1000])
    (warning,), *results = forked.call(loaded, TF_BN_OPS_LIBRARY=folder)
    assert warning.startswith("jit_compile=True will not find the ops: ") and results[0] == 4.0
    library.unlink()
    warned, eager, compiled_text = forked.call(loaded, TF_BN_OPS_LIBRARY=folder)
    assert (warned, eager) == ([], 4.0)
    assert re.match("InvalidArgumentError: .*(tf_bn_ops|TfBnOps)", compiled_text, re.DOTALL)


@pytest.mark.long
def test_an_unknown_forced_implementation_is_one_sentence():
    assert forked.call(loaded, TF_BN_OPS_CPU_ISA="baseline") == [[], 4.0, 4.0]
    _, text = forked.call(loaded, False, False, TF_BN_OPS_CPU_ISA="mmx")
    assert (
        "The environment variable TF_BN_OPS_CPU_ISA is invalid: there is no CPU implementation "
        '"mmx"; this build has '
    ) in text
