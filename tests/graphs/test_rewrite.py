"""tf_bn_ops.rewrite: graphs, functions and SavedModels with ops renamed, and back.

Promised: a rewritten graph, function or file runs; `...Ex` becomes TensorFlow's ops, in loops and
branches too; what has no such form is refused by name.
"""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from random_graphs import control_flow_v1

import tf_bn_ops
from tf_bn_ops import __main__ as commands
from tf_bn_ops import _enable, rewrite
from tf_bn_ops.rewrite import _expand
from tf_bn_ops.spec import OPS
from tf_bn_ops.spec.ops import BATCH_NORM_GATHER_STATS

SHAPE = (4, 6, 5, 3)
BUILTIN_GRADIENTS = {f"FusedBatchNormGrad{version}" for version in ("", "V2", "V3")}
BUILTIN_OPS = BUILTIN_GRADIENTS | {f"FusedBatchNorm{version}" for version in ("", "V2", "V3")}
SHIM_OPS = {f"TfBnOps>{name}" for name in BUILTIN_OPS}


def op_names(graph_def) -> list[str]:
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return [node.op for node in nodes if "FusedBatchNorm" in node.op]


def add_forward_ops(x, vector):
    for name, dtype in (("", tf.float32), ("V2", tf.half), ("V3", tf.bfloat16)):
        getattr(tf.raw_ops, f"FusedBatchNorm{name}")(
            x=tf.cast(x, dtype), scale=vector, offset=vector, mean=vector, variance=vector,
            is_training=name == "", exponential_avg_factor=0.5, name=f"forward{name}",
        )  # fmt: skip


def make_graph_def():
    """All six ops, one in a function, with names, devices, control edges and other attrs."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, SHAPE, "x")
        vector = tf.ones([3])
        add_forward_ops(x, vector)
        with tf.device("/job:worker/task:1/CPU:0"):
            first = tf.raw_ops.FusedBatchNormGrad(
                y_backprop=x, x=x, scale=vector, reserve_space_1=vector,
                reserve_space_2=vector, epsilon=0.5, name="layer/first",
            )  # fmt: skip
        half = tf.cast(x, tf.half)

        @tf.function
        def inner(half):
            return tf.raw_ops.FusedBatchNormGradV2(
                y_backprop=half, x=half, scale=vector, reserve_space_1=vector,
                reserve_space_2=vector, is_training=False, name="second",
            )  # fmt: skip

        with tf.control_dependencies([first.x_backprop]):
            inner(half)
            third = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=x, x=x, scale=vector, reserve_space_1=vector, reserve_space_2=vector,
                reserve_space_3=vector, name="third",
            )  # fmt: skip
        third.x_backprop.op._set_attr("_mine", tf.compat.v1.AttrValue(s=b"kept"))
    return graph.as_graph_def()


def batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


# ---- GraphDefs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients_only", [False, True])
def test_only_ops_change_and_the_way_back_is_the_identity(gradients_only):
    """With gradients only, for graphs whose forward ops are to go on loading without this
    library.

    Promise: Rewriting there and back is the identity.
    """
    graph_def = make_graph_def()
    original = graph_def.SerializeToString(deterministic=True)
    renamed = rewrite.to_shim(graph_def, gradients_only=gradients_only)
    forward = BUILTIN_OPS - BUILTIN_GRADIENTS if gradients_only else set()
    assert set(op_names(graph_def)) == BUILTIN_OPS
    assert set(op_names(renamed)) == forward | {f"TfBnOps>{op}" for op in BUILTIN_OPS - forward}
    assert graph_def.SerializeToString(deterministic=True) == original, "the argument was changed"
    assert rewrite.to_builtin(renamed) == graph_def
    assert text_format.MessageToString(renamed).replace("TfBnOps>", "") == (
        text_format.MessageToString(graph_def)
    )


def test_graphs_without_the_ops_stay_as_they_are():
    with tf.Graph().as_default() as graph:
        tf.constant(1, name="FusedBatchNormGrad")
    graph_def = graph.as_graph_def()
    assert rewrite.to_shim(graph_def) == graph_def
    assert rewrite.to_builtin(graph_def) == graph_def


def test_a_rewritten_graph_runs():
    tf_bn_ops.load()
    graph_def = make_graph_def()
    results = []
    for each in (graph_def, rewrite.to_shim(graph_def)):
        for node in each.node:
            node.device = ""
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fetches = tf.import_graph_def(
                each, return_elements=["layer/first:0", "third:1", "forward:0"], name=""
            )
            results.append(session.run(fetches, {"x:0": batch()}))
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
def test_graph_def_files(tmp_path, name):
    graph_def = make_graph_def()
    tf.io.write_graph(graph_def, str(tmp_path), name, as_text=name.endswith(".pbtxt"))
    assert rewrite.to_shim(tmp_path / name, tmp_path / f"new_{name}") == 6
    data, written = (tmp_path / f"new_{name}").read_bytes(), tf.compat.v1.GraphDef()
    if name.endswith(".pbtxt"):
        text_format.Parse(data, written)
    else:
        written.ParseFromString(data)
    assert written == rewrite.to_shim(graph_def)


@pytest.mark.parametrize("as_text", [False, True])
def test_meta_files_of_checkpoints(tmp_path, as_text):
    """The graph of a tf.compat.v1.train.Saver; variables and collections stay."""
    tf_bn_ops.load()
    x = batch()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scale = tf.compat.v1.get_variable("scale", initializer=tf.constant([0.5, 1.0, 2.0]))
        y = tf.compat.v1.nn.fused_batch_norm(tf.constant(x), scale, tf.zeros([3]))[0]
        tf.compat.v1.add_to_collection("gradient", tf.gradients(tf.sin(y), scale)[0])
        session.run(tf.compat.v1.global_variables_initializer())
        checkpoint = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model"))
        if as_text:  # export_meta_graph of TensorFlow 2.20 cannot with the newest protobuf.
            text = text_format.MessageToString(tf.compat.v1.train.export_meta_graph())
            pathlib.Path(f"{checkpoint}.meta.pbtxt").write_text(text, encoding="utf-8")
    end = ".meta.pbtxt" if as_text else ".meta"
    assert rewrite.to_shim(checkpoint + end, f"{tmp_path / 'new'}{end}") == 2
    results = []
    for path in (checkpoint + end, f"{tmp_path / 'new'}{end}"):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            tf.compat.v1.train.import_meta_graph(path).restore(session, checkpoint)
            (gradient,) = graph.get_collection("gradient")
            results.append((gradient.op.type, session.run(gradient)))
    assert [op for op, _ in results] == ["FusedBatchNormGradV3", "TfBnOps>FusedBatchNormGradV3"]
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-4, atol=1e-5)


# ---- Concrete functions --------------------------------------------------------------------------


def test_concrete_function_keeps_signature_variables_and_gradient():
    scale = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def inner(x):
        mean = tf.zeros([3])
        return tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=tf.sin(x), x=x, scale=scale, reserve_space_1=mean,
            reserve_space_2=mean + 1, reserve_space_3=mean,
        ).x_backprop  # fmt: skip

    @tf.function
    def outer(x, *, factor=2.0, nested):
        return {"result": inner(x) * factor * nested["a"]}

    x, nested = tf.constant(batch()), {"a": tf.constant(3.0)}
    concrete = outer.get_concrete_function(x, nested=nested)
    shim = rewrite.to_shim(concrete)
    back = rewrite.to_builtin(shim)
    assert set(op_names(shim.graph.as_graph_def())) == {"TfBnOps>FusedBatchNormGradV3"}
    assert set(op_names(back.graph.as_graph_def())) == {"FusedBatchNormGradV3"}
    assert set(op_names(concrete.graph.as_graph_def())) == {"FusedBatchNormGradV3"}
    for function in (shim, back):
        assert [v is scale for v in function.variables] == [True]
        assert function.structured_input_signature == concrete.structured_input_signature
        assert function.function_type.output == concrete.function_type.output

    def run(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, factor=2.0, nested=nested)["result"]
        # Weights: the plain sum of x_backprop is zero, and so is its gradient.
        return y, *tape.gradient(y, [x, scale], tf.cos(3 * x))

    for got, same, want in zip(run(shim), run(back), run(concrete), strict=True):
        # TensorFlow composes the gradient of ops in float32, whose terms are about 10 here.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(same, want)
    scale.assign(2 * scale)
    np.testing.assert_allclose(run(shim)[0], run(concrete)[0], rtol=1e-4, atol=1e-5)


# ---- Frozen ops ----------------------------------------------------------------------------------


def frozen_step(x, mean, variance, version, data_format):
    """y, what the second of two frozen layers saves, which the first has saved, and gradients."""
    attrs = {"data_format": data_format, "is_training": False, "epsilon": 0.01}
    op = getattr(tf_bn_ops.raw_ops, f"FusedBatchNorm{version}")
    scale, saved, y = tf.constant([1.0, 2.0, 3.0]), [mean, variance], x
    for i in range(2):
        y, _, _, *saved = op(
            x=tf.sin(y), scale=scale, offset=scale, mean=saved[0], variance=saved[1],
            name=f"norm{i}", **attrs,
        )  # fmt: skip
    gradients = tf.gradients(y, [x], tf.cos(3 * y))
    return [tf.identity(each, f"result{i}") for i, each in enumerate([y, *saved[:2], *gradients])]


VIEWS = [("", "NHWC"), ("V2", "NCHW"), ("V3", "NHWC"), ("V3", "NDHWC"), ("V3", "NCDHW")]


@pytest.mark.parametrize("kind", ["graph", "function", "inner", "split"])
@pytest.mark.parametrize(("version", "data_format"), VIEWS)
def test_the_gradient_of_a_frozen_op_reads_the_statistics_themselves(version, data_format, kind):
    """TensorFlow's op leaves those that it saves unwritten, which no test of numbers finds surely:
    nothing may read them."""
    if data_format in ("NCHW", "NCDHW") and kind != "graph":
        pytest.skip("TensorFlow has no kernel for it")
    shape = [2, *[3] * (len(data_format) - 1)]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    mean, variance = np.float32([0.1, 0.2, 0.3]), np.float32([1, 2, 3])
    call = tf.function(lambda *inputs: frozen_step(*inputs, version, data_format))
    outer = {
        "function": call.python_function,
        "inner": call,
        "split": lambda *inputs: tf.function(lambda *all: all[1:])(*call(*inputs)),
    }
    if kind == "graph":
        with tf.Graph().as_default() as graph:
            inputs = [
                tf.compat.v1.placeholder(tf.float32, each.shape, name)
                for name, each in (("x", x), ("mean", mean), ("variance", variance))
            ]
            frozen_step(*inputs, version, data_format)
        graph_def = rewrite.to_builtin(graph.as_graph_def())
    else:
        concrete = tf.function(outer[kind]).get_concrete_function(x, mean, variance)
        rewritten = rewrite.to_builtin(concrete)
        graph_def = rewritten.graph.as_graph_def()
        for got, want in zip(
            rewritten(x, mean, variance), concrete(x, mean, variance), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert len(op_names(graph_def)) >= 4 and set(op_names(graph_def)) <= BUILTIN_OPS
    functions = graph_def.library.function
    read = [name for node in graph_def.node for name in node.input]
    read += [name for f in functions for node in f.node_def for name in node.input]
    read += [name for f in functions for name in f.ret.values()]
    unwritten = {f"norm{i}{end}" for i in range(2) for end in (":3", ":4")}
    unwritten |= {f"norm{i}:reserve_space_{j}:0" for i in range(2) for j in (1, 2)}
    assert not unwritten & set(read)


# ---- FusedBatchNormEx ----------------------------------------------------------------------------


def make_ex(x, vectors, **attrs):
    """The op and readers of all its outputs but the placeholder."""
    outputs = tf_bn_ops.raw_ops.FusedBatchNormEx(
        x=x, **dict(zip(("scale", "offset", "mean", "variance"), vectors, strict=True)), **attrs,
        name="ex",
    )  # fmt: skip
    return [tf.identity(output) for output in outputs[:5]]


EX_ATTRS = [
    {},
    {"bessel_correction": False},
    {"bessel_correction": False, "exponential_avg_factor": 0.25},
    {"bessel_correction": False, "is_training": False},
    {"exponential_avg_factor": 0.25, "activation_mode": "Relu"},
    {"bessel_correction": False, "exponential_avg_factor": 0.5, "activation_mode": "Relu6"},
    {"is_training": False, "activation_mode": "Relu"},
]


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("attrs", EX_ATTRS, ids=str)
def test_ex_becomes_ops_of_tensorflow(attrs, adds, in_function):
    x, rng = tf.constant(batch()), np.random.default_rng(1)
    vectors = [rng.uniform(1, 2, 3).astype(np.float32) for _ in range(4)]
    added = [rng.normal(size=SHAPE).astype(np.float32)] if adds else []

    def call(x):
        return make_ex(x, vectors, side_input=added, **attrs)

    if in_function:
        concrete = tf.function(call).get_concrete_function(x)
        shim, graph_def = concrete(x), rewrite.to_builtin(concrete.graph.as_graph_def())
        got = rewrite.to_builtin(concrete)(x)
    else:
        shim = call(x)
        with tf.Graph().as_default() as graph:
            fed = tf.compat.v1.placeholder(tf.float32, SHAPE, "fed")
            fetches = [output.name for output in call(fed)]
        graph_def = rewrite.to_builtin(graph.as_graph_def())
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.import_graph_def(graph_def, name="")
            assert session.run("ex:0", {"fed:0": x.numpy()}).shape == SHAPE
            got = session.run(fetches, {"fed:0": x.numpy()})
    assert not [op for op in op_names(graph_def) if op.startswith("TfBnOps")]
    assert len({node.name for node in graph_def.node}) == len(graph_def.node)
    written = 5 if attrs.get("is_training", True) else 3  # frozen TensorFlow leaves memory as it is
    for a, b in zip(got[:written], shim[:written], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_ex_in_a_while_loop_of_a_session():
    """Constants that the expansion adds are in the frame of the loop."""
    with tf.Graph().as_default() as graph, control_flow_v1():
        x, vectors = tf.constant(batch()), [tf.ones([3])] * 3
        attrs = {"bessel_correction": False, "exponential_avg_factor": 0.25}
        _, y, variance = tf.while_loop(
            lambda i, *_: i < 3,
            lambda i, x, v: (i + 1, *make_ex(x, [*vectors, v], **attrs)[::2][:2]),
            (0, x, tf.ones([3])),
        )
        fetches = [y.name, variance.name]
    results = []
    for each in (graph.as_graph_def(), rewrite.to_builtin(graph.as_graph_def())):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.import_graph_def(each, name="")
            results.append(session.run(fetches))
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["fuse", "unfuse", "to_builtin", "optimizer"])
@pytest.mark.parametrize("activation", ["Identity", "Relu6"])
@pytest.mark.parametrize("is_training", [False, True])
def test_the_gradient_of_a_loop_keeps_any_reserve_space_3(is_training, activation, way):
    """The loop's lists have its static shape, whichever op is put in place of the one they had."""
    vectors = [tf.constant([0.5, 1, 1.5])] * 4

    def layer(x):
        side = tf.cos(x)
        is_fused = activation != "Identity"
        y = tf_bn_ops.raw_ops.FusedBatchNormEx(
            x=x, **dict(zip(("scale", "offset", "mean", "variance"), vectors, strict=True)),
            side_input=[side] * is_fused, activation_mode=activation, is_training=is_training,
        ).y  # fmt: skip
        return tf.sin(y if is_fused else tf.nn.relu6(y + side))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, layer(x)), (0, x))[1]
        return y, tape.gradient(y, x, tf.cos(y))

    x = tf.constant(batch())
    plain = tf.function(step).get_concrete_function(x)
    want = plain(x)
    if way == "optimizer":
        _enable.set_fusion(True)
        try:
            got = tf.function(step)(x)
        finally:
            _enable.set_fusion(False)
    else:
        got = getattr(rewrite, way)(plain)(x)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_signatures_and_collections_follow_the_outputs_of_ex():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, SHAPE, "x")
        make_ex(x, [tf.ones([3])] * 4, bessel_correction=False, activation_mode="Relu")
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph.as_graph_def())
    outputs = meta_graph.signature_def["serve"].outputs
    outputs["y"].name, outputs["variance"].name = "ex:0", "ex:2"
    meta_graph.collection_def["statistics"].node_list.value[:] = ["ex:1", "ex:2", "x:0"]
    meta_graph.collection_def["numbers"].int64_list.value[:] = [7]
    result = rewrite.to_builtin(meta_graph)
    outputs = result.signature_def["serve"].outputs
    names = [outputs["y"].name, outputs["variance"].name]
    names += result.collection_def["statistics"].node_list.value
    assert result.collection_def["numbers"] == meta_graph.collection_def["numbers"]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(result.graph_def, name="")
        y, variance, mean, same, _ = (graph.get_tensor_by_name(name).op for name in names)
    assert (y.type, variance.type, mean.type) == ("Relu", "Sub", "FusedBatchNormV3")
    assert same is variance


def test_two_ex_that_read_each_other_and_names_that_are_taken():
    x, vectors = tf.constant(batch()), [tf.ones([3])] * 4

    def call(x):
        tf.identity(x, name="ex/FusedBatchNormV3")
        attrs = {"bessel_correction": False, "activation_mode": "Relu"}
        y, mean, variance, *_ = make_ex(x, vectors, **attrs)
        return make_ex(y, [mean, variance, mean, variance], **attrs)[:3]

    concrete = tf.function(call).get_concrete_function(x)
    for got, want in zip(rewrite.to_builtin(concrete)(x), concrete(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# ---- What TensorFlow has no op for ---------------------------------------------------------------

WITHOUT_BUILTIN = sorted(
    {op.registered_name for op in [*OPS.values(), BATCH_NORM_GATHER_STATS] if op.builtin is None}
    - _expand.EXPANDED_OPS
)


@pytest.mark.parametrize("place", ["graph", "function", "meta graph"])
@pytest.mark.parametrize("op", WITHOUT_BUILTIN)
def test_what_has_no_builtin_is_refused_by_name(op, place):
    """In place of a graph that loads where this library is alone."""
    message = tf.compat.v1.MetaGraphDef()
    nodes = message.graph_def.node
    if place == "function":
        nodes = message.graph_def.library.function.add().node_def
    nodes.add(op="TfBnOps>FusedBatchNormGrad", name="renamed")
    nodes.add(op=op, name="mine")
    with pytest.raises(ValueError, match=rf"no op for 1 node of the graph \({op}; .*is mine\), so"):
        rewrite.to_builtin(message if place == "meta graph" else message.graph_def)


def test_the_command_writes_no_second_derivatives_for_tensorflow(tmp_path, capsys):
    @tf.function(input_signature=[tf.TensorSpec(SHAPE)])
    def penalty(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf_bn_ops.fused_batch_norm(x, tf.ones([3]), tf.ones([3])).y
            squares = tf.square(tape.gradient(y, x, tf.sin(y)))
        return outer.gradient(squares, x)

    model, target = str(tmp_path / "model"), tmp_path / "target"
    tf.saved_model.save(tf.Module(), model, signatures=penalty)
    assert commands.main(["tf_bn_ops", "rewrite", model, str(target), "--to=builtin"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "TfBnOps>FusedBatchNormGradGrad" in line and not target.exists()


# ---- Wrong use -----------------------------------------------------------------------------------


def test_wrong_arguments_are_one_sentence(tmp_path):
    with pytest.raises(TypeError, match=r"get_concrete_function\(\.\.\.\)"):
        rewrite.to_shim(tf.function(lambda x: x))
    with pytest.raises(TypeError, match="cannot rewrite a list"):
        rewrite.to_builtin([])
    with pytest.raises(TypeError, match="second argument"):
        rewrite.to_shim(tmp_path)
    with pytest.raises(TypeError, match="the result is returned"):
        rewrite.to_shim(make_graph_def(), tmp_path / "new")
