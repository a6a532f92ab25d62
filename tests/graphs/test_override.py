"""enable(kernels=True): what it replaces, in which execution modes; and TF_BN_OPS.

Every case runs in a process of its own: it cannot be undone.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import Any

import forked
import pytest

from tf_bn_ops import _enable, _loader, _startup

TESTS = pathlib.Path(__file__).resolve().parent.parent

# Runs all ops eagerly, in a function, in a session and below a tape; says whether results are
# bitwise identical to those of this library's ops. With large means the built-in's never are: its
# sums are off.
PROGRAM = """
import json, sys
import numpy as np, tensorflow as tf
import tf_bn_ops
sys.path.append(sys.argv[2])
from op_calls import call_of, small
from tf_bn_ops.spec import OPS

mode = sys.argv[1]
ops_that_ran = set()

def with_relu(inputs, attrs):
    # Grappler makes one op of the two where oneDNN is on.
    y, *statistics = tf.raw_ops.FusedBatchNormV3(**inputs, **attrs)
    return [tf.nn.relu(y), *map(tf.identity, statistics)]

def run_in_session(builtin, inputs):
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = {n: tf.compat.v1.placeholder(t.dtype, t.shape) for n, t in inputs.items()}
        outputs = list(builtin(fed))
        values = {fed[n]: t.numpy() for n, t in inputs.items()}
        got = session.run(outputs, values, options, metadata)
    ops_that_ran.update(n.op for g in metadata.partition_graphs for n in g.node)
    return got

def run(kind, op, relu, dtype, data_format, mode):
    shape = (4, 9, 10, 16) if data_format == "NHWC" else (4, 16, 9, 10)
    call, inputs, attrs = call_of(
        small(op, data_format, mode, dtype=dtype, kind="large_offset", shape=shape))
    ours = call(inputs)
    builtin = lambda i: list(call(i, tf.raw_ops))
    if relu:
        ours = tf_bn_ops.raw_ops.FusedBatchNormEx(**inputs, **attrs, activation_mode="Relu")
        builtin = lambda i: with_relu(i, attrs)
    kinds = {"eager": lambda i: builtin(i), "function": tf.function(builtin),
             "session": lambda i: run_in_session(builtin, i)}
    got = kinds[kind](inputs)
    compared = 3 if "Grad" in op.name else 5
    pairs = list(zip(ours, got, strict=True))
    return (all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs[:compared]),
            [list(np.shape(b)) for _, b in pairs[compared:]])

def run_all():
    twins = [(op, False) for op in OPS.values() if op.builtin] + [(OPS["FusedBatchNormV3"], True)]
    return {f"{kind} {'Relu' if relu else op.name} {dtype} {data_format} {mode}":
                run(kind, op, relu, dtype, data_format, mode)
            for kind in ("eager", "function", "session") for op, relu in twins
            for dtype in op.dtypes
            for data_format, mode in (
                ("NHWC", "training"), ("NHWC", "frozen"), ("NCHW", "training"))}

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
    result["maps before"] = "libtf_bn_ops_override" in open("/proc/self/maps").read()
    gradient = step(x)
    enabled = tf_bn_ops.enable(keras=False, fuse=False)
    assert tf_bn_ops.enable(keras=False, fuse=False) == enabled
    assert (enabled.keras, enabled.fuse, enabled.refusals) == (False, False, ())
    result["replaced"] = enabled.kernels
    result["tape changed"] = bool(tf.reduce_any(step(x) != gradient))
    result["tape close"] = bool(tf.reduce_all(tf.abs(step(x) - gradient) < 1e-2))
result["after"] = run_all()
result["ops"] = sorted(ops_that_ran)
result["maps"] = "libtf_bn_ops_override" in open("/proc/self/maps").read()
print(json.dumps(result))
"""


def run(program: str, *arguments: str, **changes: str) -> Any:
    """What a program prints, from JSON."""
    return json.loads(forked.output(program, *arguments, **changes).splitlines()[-1])


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
    return run(PROGRAM, "call", str(TESTS), TF_ENABLE_ONEDNN_OPTS=request.param)


def test_all_execution_modes_run_on_our_kernels(called):
    assert not_ours(called["after"]) == []
    assert called["maps"]


def test_placeholders_have_the_documented_shape(called, request):
    """[0], also where oneDNN has a scalar. Of V3 in training [5, C], for its gradient; where
    TensorFlow makes one op of a frozen V3 and Relu, it is that op's, which is the same. In 16-bit
    types TensorFlow does so on processors with AVX-512 alone."""
    wrong = {}
    for case, (_, shapes) in called["after"].items():
        is_fused = "onednn" in request.node.callspec.id and "Relu" in case and "eager" not in case
        kept = [5, 16]
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
    assert not called["maps before"]


def test_functions_that_have_run_already_change_too(called):
    assert called["tape changed"]
    assert called["tape close"]


def test_it_says_what_it_replaced(called):
    replaced = [_enable.Kernel(*kernel) for kernel in called["replaced"]]
    names = {"float32": "float32", "bfloat16": "bfloat16", "float16": "half"}
    plain = {(k.op, names[k.dtype]) for k in replaced if not k.op.startswith("_")}
    from tf_bn_ops.spec import OPS

    assert plain == {
        (op.builtin, dtype) for op in OPS.values() if op.builtin for dtype in op.dtypes
    }
    inner = {k.op for k in replaced} - {op for op, _ in plain}
    ex = {"_FusedBatchNormEx", "_FusedBatchNormGradEx"}
    assert ex <= inner <= ex | {*_enable._ONEDNN_OPS}
    assert {k.device for k in replaced} == {"CPU"}


# TensorFlow's op without a name in Python, built as nodes: are its results ours, bit by bit?
GRADIENT_EX = """
import json, itertools
import numpy as np, tensorflow as tf
import tf_bn_ops

tf_bn_ops.enable(keras=False, fuse=False)

def node(op, inputs, dtypes, **attrs):
    attr = lambda value: (tf.compat.v1.AttrValue(type=value.as_datatype_enum)
                          if isinstance(value, tf.DType) else
                          tf.compat.v1.AttrValue(b=value) if isinstance(value, bool) else
                          tf.compat.v1.AttrValue(i=value) if isinstance(value, int) else
                          tf.compat.v1.AttrValue(f=value) if isinstance(value, float) else
                          tf.compat.v1.AttrValue(s=value.encode()))
    attrs = {name: attr(value) for name, value in attrs.items()}
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(op, inputs, dtypes, attrs=attrs, name=op[1:]).outputs

def run(dtype, mode, side_inputs, data_format, is_training):
    rng = np.random.default_rng(0)
    shape = (4, 9, 10, 16) if data_format == "NHWC" else (4, 16, 9, 10)
    # Few values, so that y is often exactly 0 or 6.
    x, dy, side = (tf.constant(rng.integers(-4, 5, shape), dtype) for _ in range(3))
    scale, variance = (tf.constant(rng.uniform(1, 4, 16), tf.float32) for _ in range(2))
    offset, mean = (tf.constant(rng.normal(size=16), tf.float32) for _ in range(2))
    attrs = dict(epsilon=0.01, data_format=data_format, is_training=is_training)
    ex = dict(activation_mode=mode, num_side_inputs=side_inputs)
    y, _, _, *reserved = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, scale=scale, offset=offset, mean=mean, variance=variance,
        side_input=[side] * side_inputs, activation_mode=mode, **attrs)
    tensors = [dy, x, scale, *reserved, offset, y]
    names = ["y_backprop", "x", "scale", "reserve_space_1", "reserve_space_2", "reserve_space_3",
             "offset", "y"]
    want = tf_bn_ops.raw_ops.FusedBatchNormGradEx(**dict(zip(names, tensors)), **ex, **attrs)
    want = [*want[:5], *want.side_input_backprop]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        T = tf.as_dtype(dtype)
        dtypes = [T, *[tf.float32] * 4, *[T] * side_inputs]
        got = session.run(node("_FusedBatchNormGradEx", [tf.constant(t.numpy()) for t in tensors],
                               dtypes, T=T, U=tf.float32, **ex, **attrs))
        forward = []
        if not side_inputs and mode != "Relu6" and dtype == "float32":
            inputs = [tf.constant(t.numpy()) for t in (x, scale, offset, mean, variance)]
            forward = session.run(node("_FusedBatchNormEx", inputs, [T, *[tf.float32] * 5],
                                       T=T, U=tf.float32, **ex, **attrs))
    pairs = [*zip(want, got, strict=True), *zip([y, *reserved], forward[:1] + forward[3:])]
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)

cases = itertools.product(("float16", "float32"), ("Identity", "Relu", "Relu6"), (0, 1),
                          ("NHWC", "NCHW"), (True, False))
result = {str(case): run(*case) for case in cases}
print(json.dumps(result))
"""


def test_the_gradient_behind_an_activation_has_kernels_for_cpus():
    result = run(GRADIENT_EX)
    assert len(result) == 48
    assert [case for case, is_ours in result.items() if not is_ours] == []


# Below a tape, by TensorFlow's registered gradient.
WHOLE_LAYER = """
import json, sys
import tensorflow as tf
import tf_bn_ops
sys.path.insert(0, sys.argv[1])
import test_large_mean as layers

tf_bn_ops.enable(keras=False, fuse=False)
for case in ("large mean", "both"):
    layer = layers.v3(layers.CASES[case][2], tf.raw_ops)
    layers.assert_right(case, layers.gradients(layer, *layers.constants(case)))
print(json.dumps("right"))
"""


def test_gradients_are_right_at_any_mean():
    assert run(WHOLE_LAYER, str(TESTS / "ops")) == "right"


def test_the_variable_does_the_same():
    """The program only imports tf_bn_ops, after TensorFlow."""
    assert not_ours(run(PROGRAM, "no call", str(TESTS), TF_BN_OPS="kernels")["after"]) == []


HOOK = """
import site, sys
site.addsitedir(sys.argv[1])
import json
assert "tf_bn_ops" in sys.modules
print(json.dumps([name for name in ("numpy", "tf_bn_ops._loader") if name in sys.modules]))
"""


@pytest.mark.parametrize("value", ["1", "keras", "a wrong word"])
def test_the_startup_file_imports_no_numpy(repo_root, tmp_path, value):
    """Variables such as OPENBLAS_NUM_THREADS count until NumPy is imported: the program sets them;
    and NumPy's folder may be on the path by a file that Python reads later."""
    source = repo_root / "tools" / "tf_bn_ops.pth"
    if not source.exists():
        pytest.skip("needs the source tree")
    shutil.copy(source, tmp_path)
    assert run(HOOK, str(tmp_path), TF_BN_OPS=value) == []


REFUSED = """
import json, os
import tf_bn_ops
reasons = []
first = ["import keras"] if "kernels" not in os.environ["TF_BN_OPS"] else []
for line in [*first, "import tensorflow", "import tensorflow.keras", "import tensorflow"]:
    try:
        exec(line)
    except ImportError as error:
        reasons.append(str(error))
print(json.dumps(reasons))
"""


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        *((value, "does not exist") for value in ("kernels", "keras", "1")),
        ("kernals, keras", "TF_BN_OPS=kernals, keras has the word 'kernals': set it to 1 for "
         "everything, to 0 for nothing, or to a list of kernels, keras and fuse, separated by "
         "commas"),
    ],
)  # fmt: skip
def test_every_import_fails_where_the_first_one_does(tmp_path, value, sentence):
    shutil.copy(pathlib.Path(_loader.library_path()).parent / _loader.BUILD_INFO, tmp_path)
    reasons = run(REFUSED, TF_BN_OPS=value, TF_BN_OPS_LIBRARY=str(tmp_path))
    assert len(reasons) == 3 + ("kernels" not in value)
    assert len(set(reasons)) == 1
    assert sentence in reasons[0] and "\n" not in reasons[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", []),
        ("0", []),
        ("False", []),
        ("1", ["kernels", "keras", "fuse"]),
        ("TRUE", ["kernels", "keras", "fuse"]),
        ("keras", ["keras"]),
        ("Fuse,kernels", ["kernels", "fuse"]),
        (" kernels , keras ", ["kernels", "keras"]),
    ],
)
def test_the_variable_lists_arguments(monkeypatch, value, words):
    monkeypatch.setenv(_startup.VARIABLE, value)
    assert [word for word, is_wanted in _startup.requested().items() if is_wanted] == words


@pytest.mark.parametrize("minor", range(16, 22))
def test_every_supported_tensorflow_is_known(minor):
    _enable.check_known(f"2.{minor}.1")


def test_what_is_not_possible_is_a_sentence_and_the_rest_is_done(monkeypatch, caplog):
    import tensorflow as tf

    monkeypatch.setattr(_enable, "_replaced_kernels", _enable._replaced_kernels.__wrapped__)
    monkeypatch.setattr(_enable, "_KNOWN_TENSORFLOW", ("2.1",))
    monkeypatch.setattr(_enable, "_enable_keras", lambda: None)
    enabled = _enable.enable(fuse=False)
    (sentence,) = enabled.refusals
    assert f"the kernels of TensorFlow {tf.__version__} cannot be replaced" in sentence
    assert (enabled.kernels, enabled.keras, enabled.fuse) == ((), True, False)
    assert sentence in caplog.text


def test_a_missing_library_is_an_error(tmp_path, monkeypatch):
    shutil.copy(os.path.join(os.path.dirname(_loader.library_path()), _loader.BUILD_INFO), tmp_path)
    monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(_enable, "_replaced_kernels", _enable._replaced_kernels.__wrapped__)
    with pytest.raises(_loader.LibraryError, match="does not exist"):
        _enable.enable(keras=False, fuse=False)
