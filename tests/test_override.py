"""override_builtin_kernels(): what it replaces, in which execution modes; and nothing else does.

Every case runs in a process of its own: an override cannot be undone.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from build_helpers import environment

from tf_bn_ops import _loader, _override

ROOT = pathlib.Path(_loader.__file__).resolve().parent.parent

# Runs all ops eagerly, in a function, in a session and below a tape; says whether results are
# bitwise identical to those of this library's ops. With large means the built-in's never are: its
# sums are off.
PROGRAM = """
import json, sys
import numpy as np, tensorflow as tf
import tf_bn_ops

mode = sys.argv[1]

def run(kind, name, dtype, data_format, is_training):
    rng = np.random.default_rng(0)
    shape = (4, 9, 10, 16) if data_format == "NHWC" else (4, 16, 9, 10)
    dy, x = (tf.cast(rng.normal(30, 1, shape), dtype) for _ in range(2))
    vectors = [tf.constant(rng.uniform(1, 2, 16), tf.float32) for _ in range(3)]
    if name.endswith("V3"):
        vectors.append(vectors[0])
    names = ["y_backprop", "x", "scale", "reserve_space_1", "reserve_space_2", "reserve_space_3"]
    inputs = dict(zip(names, [dy, x, *vectors]))
    attrs = dict(epsilon=0.01, data_format=data_format, is_training=is_training)
    builtin = getattr(tf.raw_ops, name)
    ours = getattr(tf_bn_ops.raw_ops, name)(**inputs, **attrs)
    if kind == "eager":
        got = builtin(**inputs, **attrs)
    elif kind == "function":
        got = tf.function(lambda **i: list(builtin(**i, **attrs)))(**inputs)
    elif kind == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = {n: tf.compat.v1.placeholder(t.dtype, t.shape) for n, t in inputs.items()}
            node = builtin(**fed, **attrs)
            got = session.run(list(node), {fed[n]: t.numpy() for n, t in inputs.items()})
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(ours[:3], got))

def run_all():
    cases = [("FusedBatchNormGrad", tf.float32), ("FusedBatchNormGradV2", tf.half),
             ("FusedBatchNormGradV2", tf.bfloat16), ("FusedBatchNormGradV2", tf.float32),
             ("FusedBatchNormGradV3", tf.half), ("FusedBatchNormGradV3", tf.bfloat16),
             ("FusedBatchNormGradV3", tf.float32)]
    return {f"{kind} {name} {dtype.name} {data_format} {is_training}":
                run(kind, name, dtype, data_format, is_training)
            for kind in ("eager", "function", "session") for name, dtype in cases
            for data_format, is_training in (("NHWC", True), ("NHWC", False), ("NCHW", True))}

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.compat.v1.nn.fused_batch_norm(x, tf.ones([16]), tf.zeros([16]))[0]
        y = y * tf.sin(x)
    return tape.gradient(y, x)

x = tf.random.stateless_normal([4, 9, 10, 16], seed=[1, 2], mean=30.0)
result = {}
if mode == "call":
    result["before"] = run_all()
    gradient = step(x)
    result["replaced"] = tf_bn_ops.override_builtin_kernels()
    assert tf_bn_ops.override_builtin_kernels() == result["replaced"]
    result["tape changed"] = bool(tf.reduce_any(step(x) != gradient))
    result["tape close"] = bool(tf.reduce_all(tf.abs(step(x) - gradient) < 1e-2))
result["after"] = run_all()
result["maps"] = "libtf_bn_ops_override" in open("/proc/self/maps").read()
print(json.dumps(result))
"""


def start(program: str, *arguments: str, **changes: str | None) -> subprocess.Popen[str]:
    changes.setdefault("PYTHONPATH", str(ROOT))
    changes.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module", params=["0", "1"], ids=["eigen", "onednn"])
def called(request) -> dict:
    return finish(start(PROGRAM, "call", TF_ENABLE_ONEDNN_OPTS=request.param))


def test_all_execution_modes_run_on_our_kernels(called):
    assert [case for case, is_ours in called["after"].items() if not is_ours] == []
    assert called["maps"]


def test_before_the_call_tensorflow_computes(called):
    # Rounded to half, sums may be equal by chance.
    training = [case for case in called["before"] if "float32" in case and "True" in case]
    assert training
    assert [case for case in training if called["before"][case]] == []


def test_functions_that_have_run_already_change_too(called):
    assert called["tape changed"]
    assert called["tape close"]


def test_it_says_what_it_replaced(called):
    replaced = [_override.OverriddenKernel(*kernel) for kernel in called["replaced"]]
    names = {"float32": "float32", "bfloat16": "bfloat16", "float16": "half"}
    plain = {(k.op, names[k.dtype]) for k in replaced if not k.op.startswith("_")}
    from tf_bn_ops.spec import OPS

    assert plain == {
        (op.builtin, dtype) for op in OPS.values() if op.builtin for dtype in op.dtypes
    }
    assert {k.op for k in replaced} - {k[0] for k in plain} <= set(_override._ONEDNN_OPS)
    assert {k.device for k in replaced} == {"CPU"}


@pytest.fixture(scope="module")
def by_variable() -> Iterator[dict]:
    # The program only imports tf_bn_ops, after TensorFlow.
    yield finish(start(PROGRAM, "no call", TF_BN_OPS_OVERRIDE="1"))


def test_the_variable_does_the_same(by_variable):
    assert [case for case, is_ours in by_variable["after"].items() if not is_ours] == []


def test_without_call_or_variable_nothing_changes():
    result = finish(start(PROGRAM, "no call", TF_BN_OPS_OVERRIDE="0"))
    assert not result["maps"]
    training = [case for case in result["after"] if "float32" in case and "True" in case]
    assert [case for case in training if result["after"][case]] == []


# What pip installs into site-packages; Python runs its line at every start.
STARTUP = """
import os, site, sys, pathlib
site.addsitedir(sys.argv[1])
assert "tensorflow" not in sys.modules
assert ("tf_bn_ops" in sys.modules) == (os.environ.get("TF_BN_OPS_OVERRIDE", "0") != "0")
import tensorflow as tf
from tensorflow.python.framework import kernels
found = kernels.get_registered_kernels_for_op("FusedBatchNormGradV3").kernel
print(max(kernel.priority for kernel in found))
"""


@pytest.mark.long
@pytest.mark.parametrize("value", ["0", "1"])
def test_startup_file_reaches_programs_that_do_not_import_us(repo_root, tmp_path, value):
    source = repo_root / "tools" / "tf_bn_ops_override.pth"
    if not source.exists():
        pytest.skip("needs the source tree")
    shutil.copy(source, tmp_path)
    assert finish(start(STARTUP, str(tmp_path), TF_BN_OPS_OVERRIDE=value)) == int(value)


@pytest.mark.parametrize("minor", range(16, 22))
def test_every_supported_tensorflow_is_known(minor):
    _override.check_known(f"2.{minor}.1")


def test_refusals_are_one_sentence(tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf, "__version__", "2.99.0")
    with pytest.raises(_loader.LibraryError, match=r"TensorFlow 2\.99\.0 cannot be overridden"):
        _override.override_builtin_kernels()
    shutil.copy(os.path.join(os.path.dirname(_loader.library_path()), _loader.BUILD_INFO), tmp_path)
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(tmp_path))
    with pytest.raises(_loader.LibraryError, match="does not exist"):
        _override.override_builtin_kernels()
    assert _override._overridden is None
