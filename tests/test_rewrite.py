"""tf_bn_ops.rewrite: graphs, functions and SavedModels with ops renamed, and back."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

import tf_bn_ops
from tf_bn_ops import __main__ as command
from tf_bn_ops import rewrite

SHAPE = (4, 6, 5, 3)
SHIM_OPS = {f"TfBnOps>FusedBatchNormGrad{version}" for version in ("", "V2", "V3")}
BUILTIN_OPS = {name.removeprefix("TfBnOps>") for name in SHIM_OPS}


def op_names(graph_def) -> list[str]:
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return [node.op for node in nodes if "FusedBatchNormGrad" in node.op]


def make_graph_def():
    """All three ops, one in a function, with names, devices, control edges and other attrs."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, SHAPE, "x")
        vector = tf.ones([3])
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


class Model(tf.Module):
    """One step of training on batch normalization, as a signature."""

    def __init__(self):
        self.scale = tf.Variable([1.0, 2.0, 3.0])
        self.offset = tf.Variable([0.0, 0.5, 1.0])

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPE[1:]))])
    def train(self, x):
        with tf.GradientTape() as tape:
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(x, self.scale, self.offset)
            loss = tf.reduce_sum(tf.sin(y))
        gradients = tape.gradient(loss, [self.scale, self.offset])
        for variable, gradient in zip([self.scale, self.offset], gradients, strict=True):
            variable.assign_sub(0.01 * gradient)
        return {"loss": loss}


def batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A SavedModel with a signature that trains, on TensorFlow's own ops."""
    path = tmp_path_factory.mktemp("rewrite") / "builtin"
    model = Model()
    tf.saved_model.save(model, path, signatures={"train": model.train})
    (path / "assets").mkdir(exist_ok=True)
    (path / "assets" / "words.txt").write_text("kept")
    return path


@pytest.fixture(scope="module")
def shim(saved: pathlib.Path) -> pathlib.Path:
    """The same on the ops of this library."""
    path = saved.parent / "shim"
    assert rewrite.to_shim(saved, path) == 1
    return path


def read(folder: pathlib.Path):
    return saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())


def losses(model) -> list[float]:
    step = model.signatures["train"]
    return [float(step(x=tf.constant(batch()))["loss"]) for _ in range(3)]


# ---- GraphDefs -----------------------------------------------------------------------------------


def test_only_ops_change_and_the_way_back_is_the_identity():
    graph_def = make_graph_def()
    original = graph_def.SerializeToString(deterministic=True)
    renamed = rewrite.to_shim(graph_def)
    assert set(op_names(graph_def)) == BUILTIN_OPS
    assert set(op_names(renamed)) == SHIM_OPS
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
                each, return_elements=["layer/first:0", "third:1"], name=""
            )
            results.append(session.run(fetches, {"x:0": batch()}))
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
def test_graph_def_files(tmp_path, name):
    graph_def = make_graph_def()
    text = name.endswith(".pbtxt")
    data = (
        text_format.MessageToString(graph_def).encode() if text else graph_def.SerializeToString()
    )
    (tmp_path / name).write_bytes(data)
    assert rewrite.to_shim(tmp_path / name, tmp_path / f"new_{name}") == 3
    data = (tmp_path / f"new_{name}").read_bytes()
    parse = (lambda d: text_format.Parse(d, tf.compat.v1.GraphDef())) if text else None
    written = parse(data) if parse else tf.compat.v1.GraphDef.FromString(data)
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
        if as_text:
            tf.compat.v1.train.export_meta_graph(f"{checkpoint}.meta.pbtxt", as_text=True)
    end = ".meta.pbtxt" if as_text else ".meta"
    assert rewrite.to_shim(checkpoint + end, f"{tmp_path / 'new'}{end}") == 1
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


# ---- SavedModels ---------------------------------------------------------------------------------


def test_saved_model_keeps_all_but_the_ops(saved, shim, tmp_path):
    back = tmp_path / "back"
    assert rewrite.to_builtin(shim, back) == 1
    assert read(back) == read(saved)
    assert read(shim) != read(saved)
    used = {op.name for op in read(shim).meta_graphs[0].meta_info_def.stripped_op_list.op}
    assert used & (SHIM_OPS | BUILTIN_OPS) == {"TfBnOps>FusedBatchNormGradV3"}
    for folder in (shim, back):
        files = {p.relative_to(folder) for p in folder.rglob("*")}
        assert files == {p.relative_to(saved) for p in saved.rglob("*")}
        for path in saved.glob("[va]*/*"):
            assert (folder / path.relative_to(saved)).read_bytes() == path.read_bytes()


def test_saved_models_train_alike_and_share_checkpoints(saved, shim):
    tf_bn_ops.load()
    want = losses(tf.saved_model.load(saved))
    model = tf.saved_model.load(shim)
    np.testing.assert_allclose(losses(model), want, rtol=1e-5)
    assert len(set(want)) == len(want), "nothing was trained"
    trained = model.scale.numpy()
    checkpoint = tf.train.Checkpoint(scale=model.scale)
    checkpoint.read(str(saved / "variables" / "variables")).assert_existing_objects_matched()
    np.testing.assert_array_equal(model.scale, [1, 2, 3])
    assert not np.array_equal(trained, model.scale)


PROGRAM = """
import json, sys
import numpy as np, tensorflow as tf
step = tf.saved_model.load(sys.argv[1]).signatures["train"]
x = tf.constant(np.random.default_rng(0).normal(size=(4, 6, 5, 3)).astype(np.float32))
losses = [float(step(x=x)["loss"]) for _ in range(3)]
assert not [name for name in sys.modules if name.startswith("tf_bn_ops")]
print(json.dumps(losses))
"""


def run_without_the_library(path: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        cwd=path.parent,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        check=False,
    )


class ShimModel(Model):
    """Written with the op of this library."""

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPE[1:]))])
    def train(self, x):
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, self.scale, self.offset)
        count = tf.cast(tf.size(x) / 3, tf.float32)
        gradients = tf_bn_ops.fused_batch_norm_grad_v3(
            tf.cos(y), x, self.scale, mean, variance * (count - 1) / count, mean, epsilon=1e-3
        )
        self.scale.assign_sub(0.01 * gradients.scale_backprop)
        self.offset.assign_sub(0.01 * gradients.offset_backprop)
        return {"loss": tf.reduce_sum(tf.sin(y))}


def test_saved_model_made_with_the_shim_and_rewritten_needs_no_library(tmp_path):
    model = ShimModel()
    tf.saved_model.save(
        model,
        tmp_path / "shim",
        signatures={"train": model.train},
        options=tf.saved_model.SaveOptions(namespace_whitelist=["TfBnOps"]),
    )
    refused = run_without_the_library(tmp_path / "shim")
    assert refused.returncode != 0
    assert "TfBnOps>FusedBatchNormGradV3" in refused.stderr
    arguments = [str(tmp_path / "shim"), str(tmp_path / "builtin"), "--to", "builtin"]
    assert command.main(["", "rewrite", *arguments]) == 0
    run = run_without_the_library(tmp_path / "builtin")
    assert run.returncode == 0, run.stderr
    np.testing.assert_allclose(json.loads(run.stdout), losses(model_signatures(model)), rtol=1e-5)


def model_signatures(model):
    """The model itself, called like a loaded one."""
    model.signatures = {"train": model.train}
    return model


# ---- Wrong use -----------------------------------------------------------------------------------


def test_wrong_arguments_are_one_sentence(saved, tmp_path):
    with pytest.raises(TypeError, match=r"get_concrete_function\(\.\.\.\)"):
        rewrite.to_shim(Model().train)
    with pytest.raises(TypeError, match="cannot rewrite a list"):
        rewrite.to_builtin([])
    with pytest.raises(TypeError, match="second argument"):
        rewrite.to_shim(saved)
    with pytest.raises(TypeError, match="the result is returned"):
        rewrite.to_shim(make_graph_def(), tmp_path / "new")


def test_command(saved, tmp_path, capsys):
    def run(*arguments: str) -> tuple[int, str]:
        status = command.main(["", "rewrite", *map(str, arguments)])
        output = capsys.readouterr()
        return status, output.out + output.err

    new = tmp_path / "new"
    assert run(saved, new, "--to=shim") == (0, f"{new}: 1 node renamed\n")
    assert run(saved, new, "--to=shim") == (
        1,
        f"error: {new} exists: name a new place, nothing is overwritten\n",
    )
    assert run(tmp_path / "none", new, "--to", "shim") == (
        1,
        f"error: {tmp_path / 'none'} does not exist\n",
    )
    (tmp_path / "empty").mkdir()
    status, message = run(tmp_path / "empty", tmp_path / "b", "--to", "shim")
    assert status == 1 and "is no SavedModel" in message
    status, message = run(saved, saved / "inside", "--to", "shim")
    assert status == 1 and "name a place outside of it" in message
    (tmp_path / "noise.pb").write_bytes(b"\xff\xff noise")
    status, message = run(tmp_path / "noise.pb", tmp_path / "c", "--to", "builtin")
    assert (status, message) == (1, f"error: {tmp_path / 'noise.pb'} does not hold a GraphDef\n")
    assert run(saved, new)[0] == 2
    assert run(saved, "--to=shim")[0] == 2
    assert run(saved, new, "--to=other")[0] == 2
    status, message = run("--help")
    assert status == 0 and "--to" in message
    assert not (tmp_path / "b").exists() and not (tmp_path / "c").exists()
