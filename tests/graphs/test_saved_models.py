"""SavedModels: where they load, and what they compute, as they were saved and once rewritten; and
`python -m tf_bn_ops rewrite`.

Promised: `rewrite` keeps variables, signatures and checkpoints, leaves nothing behind where it
fails, and says in one sentence what it cannot do.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from call_places import gradient
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.lib.io import file_io
from test_fuse import EX, GRAD_EX, graph_def_of, norm, ops_of
from test_rewrite import SHIM_OPS, make_graph_def

import tf_bn_ops
from tf_bn_ops import __main__ as command
from tf_bn_ops import rewrite

SHAPE = (4, 6, 5, 3)
X = np.random.default_rng(0).normal(1, 2, SHAPE).astype(np.float32)
ROWS = [tf.TensorSpec((None, *SHAPE[1:]))]

# Calls the signature three times, and differentiates the function, where this package is not; an
# op library of its arguments is loaded first.
ANYWHERE = """
import json, sys
import numpy as np, tensorflow as tf

sys.modules["tf_bn_ops"] = None
for library in sys.argv[2:]:
    if library.endswith(".so"):
        tf.load_library(library)
x = tf.constant(np.load(sys.argv[1] + "/x.npy"))
model = tf.saved_model.load(sys.argv[1])
results = [[*model.signatures["serve"](x=x).values()][0].numpy().tolist() for _ in range(3)]
with tf.GradientTape() as tape:
    tape.watch(x)
    loss = tf.reduce_sum(tf.sin(model.serve(x))) if "differentiated" in sys.argv else x
print(json.dumps([results, tape.gradient(loss, x).numpy().tolist()]))
"""


def anywhere(path: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    np.save(path / "x.npy", X)
    environment = {**os.environ, "PYTHONPATH": ""}
    return forked.run(ANYWHERE, path, *words, env=environment, cwd=path)


def found_anywhere(path: pathlib.Path, *words: str) -> list[Any]:
    """Results, and the gradient if it is asked for."""
    run = anywhere(path, *words)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def results(function: Any) -> list[np.ndarray]:
    """Of three calls, of which each may be a step of training."""
    return [tf.nest.flatten(function(x=tf.constant(X)))[0].numpy() for _ in range(3)]


def save(model: Any, path: pathlib.Path) -> None:
    options = tf.saved_model.SaveOptions(namespace_whitelist=["TfBnOps"])
    tf.saved_model.save(model, str(path), signatures={"serve": model.serve}, options=options)


def read(folder: pathlib.Path) -> Any:
    return saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())


def listed_ops(folder: pathlib.Path) -> set[str]:
    """Those that a SavedModel says it has."""
    (meta_graph,) = read(folder).meta_graphs
    return {op.name for op in meta_graph.meta_info_def.stripped_op_list.op}


# ---- Models --------------------------------------------------------------------------------------


class Layer(tf.Module):
    def __init__(self) -> None:
        self.scale = tf.Variable([0.5, 1.0, 2.0])
        self.offset = tf.Variable([0.0, 1.0, -1.0])
        self.mean = tf.Variable([1.0, 0.5, 0.0], trainable=False)
        self.variance = tf.Variable([4.0, 3.0, 2.0], trainable=False)


class Inference(Layer):
    @tf.function(input_signature=ROWS)
    def serve(self, x: Any) -> Any:
        return tf_bn_ops.fused_batch_norm(
            x, self.scale, self.offset, self.mean, self.variance, is_training=False
        ).y


class Training(Layer):
    @tf.function(input_signature=ROWS)
    def serve(self, x: Any) -> Any:
        y, mean, variance = tf_bn_ops.fused_batch_norm(x, self.scale, self.offset)
        return y + tf.stop_gradient(mean + variance)


class Instance(Layer):
    @tf.function(input_signature=ROWS)
    def serve(self, x: Any) -> Any:
        return tf_bn_ops.instance_norm(x, self.scale, self.offset)


class Derivative(Layer):
    @tf.function(input_signature=ROWS)
    def serve(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf_bn_ops.fused_batch_norm(x, self.scale, self.offset).y))
        return tape.gradient(loss, self.scale)


class StepOfKeras(tf.Module):
    def __init__(self) -> None:
        layer = tf_bn_ops.keras.BatchNormalization(momentum=0.75)
        self.model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
        self.weights = [weight.value for weight in self.model.weights]

    @tf.function(input_signature=ROWS)
    def serve(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(self.model(x, training=True)))
        gradients = tape.gradient(loss, self.weights[:2])
        for variable, of_variable in zip(self.weights[:2], gradients, strict=True):
            variable.assign_sub(0.01 * of_variable)
        # With the moving statistics after the step.
        return loss + tf.reduce_sum(self.weights[2]) + tf.reduce_sum(self.weights[3])


class SmallResNet(tf.Module):
    """Two residual blocks of TensorFlow's ops, with a step of training as a signature."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.kernels = [
            tf.Variable(rng.normal(size=(3, 3, 3, 3)).astype(np.float32) / 4) for _ in range(4)
        ]
        self.scales = [tf.Variable(tf.ones([3])) for _ in range(4)]
        self.moving = [tf.Variable(tf.zeros([3])) for _ in range(4)]

    def layer(self, i: int, x: Any, shortcut: Any = None) -> Any:
        x = tf.nn.conv2d(x, self.kernels[i], 1, "SAME")
        y, mean, _ = tf.compat.v1.nn.fused_batch_norm(x, self.scales[i], tf.zeros([3]))
        self.moving[i].assign(0.9 * self.moving[i] + 0.1 * mean)
        return tf.nn.relu(y if shortcut is None else y + shortcut)

    @tf.function(input_signature=ROWS)
    def serve(self, x: Any) -> Any:
        variables = [*self.kernels, *self.scales]
        with tf.GradientTape() as tape:
            y = self.layer(1, self.layer(0, x), x)
            y = self.layer(3, self.layer(2, y), y)
            loss = tf.reduce_mean(tf.square(y - tf.sin(x)))
        for variable, of_variable in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * of_variable)
        return {"loss": loss}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A SavedModel with a signature that trains, on TensorFlow's own ops."""
    path = tmp_path_factory.mktemp("saved") / "builtin"
    save(SmallResNet(), path)
    (path / "assets").mkdir(exist_ok=True)
    (path / "assets" / "words.txt").write_text("kept")
    return path


@pytest.fixture(scope="module")
def shim(saved: pathlib.Path) -> pathlib.Path:
    """The same on the ops of this library."""
    path = saved.parent / "shim"
    assert rewrite.to_shim(saved, path) == 8  # Four layers, forward and gradient.
    return path


def losses(path: pathlib.Path) -> list[np.ndarray]:
    tf_bn_ops.load()
    return results(tf.saved_model.load(path).signatures["serve"])


# ---- What loads anywhere -------------------------------------------------------------------------


@pytest.mark.parametrize("used_before", [False, True], ids=["fresh", "differentiated"])
def test_inference_loads_anywhere(tmp_path, used_before):
    """Traced while it is saved, or earlier; what is loaded has TensorFlow's gradient.

    Promise: A SavedModel for inference loads without this library.
    """
    model = Inference()
    if used_before:
        gradient(model.serve, tf.constant(X))
    tf.saved_model.save(model, str(tmp_path), signatures={"serve": model.serve})
    assert b"TfBnOps" not in (tmp_path / "saved_model.pb").read_bytes()
    got, derivative = found_anywhere(tmp_path, "differentiated")
    np.testing.assert_allclose(got, results(model.serve), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        derivative, gradient(model.serve, tf.constant(X)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "op"),
    [
        (Training, "FusedBatchNormV3"),
        (Derivative, "FusedBatchNormGradV3"),
        (StepOfKeras, "FusedBatchNormEx"),
        (Instance, "FusedBatchNormV3"),
    ],
)
def test_what_trains_loads_anywhere_once_it_is_rewritten(tmp_path, kind, op):
    """Promise: A SavedModel that trains loads without this library once it is rewritten."""
    model, ours, builtin = kind(), tmp_path / "ours", tmp_path / "builtin"
    save(model, ours)
    want = results(model.serve)
    assert f"TfBnOps>{op}" in listed_ops(ours)
    refused = anywhere(ours)
    assert refused.returncode != 0
    sentence = "Op type not registered 'TfBnOps>FusedBatchNorm"
    assert sentence in refused.stderr or kind is StepOfKeras
    # A server loads the library; preloaded: tests/cpp/test_cpp_ops.py.
    got, _ = found_anywhere(ours, tf_bn_ops.library_path())
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    loaded = tf.saved_model.load(str(ours))
    np.testing.assert_array_equal(results(loaded.signatures["serve"]), want)
    if kind in (Training, Instance):
        np.testing.assert_array_equal(
            gradient(loaded.serve, tf.constant(X)), gradient(model.serve, tf.constant(X))
        )
    rewrite.to_builtin(ours, builtin)
    listed = listed_ops(builtin)
    assert not {EX, GRAD_EX, *SHIM_OPS} & listed
    assert kind is not StepOfKeras or {"FusedBatchNormV3", "RealDiv", "Size"} <= listed
    np.testing.assert_allclose(found_anywhere(builtin)[0], want, rtol=1e-4, atol=1e-4)


# ---- Rewritten -----------------------------------------------------------------------------------


def test_all_but_the_ops_is_kept(saved, shim, tmp_path):
    back = tmp_path / "back"
    assert rewrite.to_builtin(shim, back) == 8
    assert read(back) == read(saved) != read(shim)
    norms = {op for op in listed_ops(shim) if "BatchNorm" in op}
    assert norms == {"TfBnOps>FusedBatchNormV3", "TfBnOps>FusedBatchNormGradV3"}
    for folder in (shim, back):
        files = {p.relative_to(folder) for p in folder.rglob("*")}
        assert files == {p.relative_to(saved) for p in saved.rglob("*")}
        for path in saved.glob("[va]*/*"):
            assert (folder / path.relative_to(saved)).read_bytes() == path.read_bytes()


def test_saved_models_train_alike_and_share_checkpoints(saved, shim):
    want = losses(saved)
    model = tf.saved_model.load(shim)
    initial = model.scales[0].numpy()
    np.testing.assert_allclose(results(model.signatures["serve"]), want, rtol=1e-5)
    assert len({*map(float, want)}) == len(want), "nothing was trained"
    trained = model.scales[0].numpy()
    checkpoint = tf.train.Checkpoint(scales=model.scales)
    checkpoint.read(str(saved / "variables" / "variables")).assert_existing_objects_matched()
    np.testing.assert_array_equal(model.scales[0], initial)
    assert not np.array_equal(trained, initial)


@pytest.mark.long
def test_a_saved_model_trains_alike_fused_and_back(saved, tmp_path):
    want = losses(saved)
    fused, back, builtin = (tmp_path / name for name in ("fused", "back", "builtin"))
    assert rewrite.fuse(saved, fused) == 8
    np.testing.assert_allclose(losses(fused), want, rtol=1e-5)
    model = read(fused).meta_graphs[0]
    assert [op for op in ops_of(model.graph_def) if "BatchNorm" in op] == 4 * [EX] + 4 * [GRAD_EX]
    parts = {"FusedBatchNormV3", "Relu", "ReluGrad"}
    assert {EX, GRAD_EX} <= listed_ops(fused) and not parts & listed_ops(fused)

    assert rewrite.unfuse(fused, back) == 8
    np.testing.assert_allclose(losses(back), want, rtol=1e-5)
    listed = listed_ops(back)
    assert {"TfBnOps>FusedBatchNormV3", "Relu", "ReluGrad"} <= listed and not {EX, GRAD_EX} & listed

    assert rewrite.to_builtin(fused, builtin) == 8
    np.testing.assert_allclose(found_anywhere(builtin)[0], want, rtol=1e-6)


def test_what_fails_half_way_leaves_nothing_behind(saved, tmp_path, monkeypatch):
    """Else it would stand in the way of the next try."""
    broken, graph, places = tmp_path / "broken", tmp_path / "graph.pb", tmp_path / "places"
    shutil.copytree(saved, broken)
    (broken / "variables" / "gone").symlink_to(tmp_path / "nowhere")
    graph.write_bytes(make_graph_def().SerializeToString())
    places.mkdir()
    ram = "ram://graphs/model"
    for target in (places / "new", ram):
        with pytest.raises(tf.errors.NotFoundError, match="gone"):
            rewrite.to_shim(broken, target)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(file_io, "write_string_to_file", interrupted)
        for source in (saved, graph):
            with pytest.raises(KeyboardInterrupt):
                rewrite.to_shim(source, places / "new")
    assert list(places.iterdir()) == []
    for target in (places / "new", ram):
        assert rewrite.to_shim(saved, target) == 8
    assert [path.name for path in places.iterdir()] == ["new"]


# ---- python -m tf_bn_ops rewrite -----------------------------------------------------------------


def run(capsys: Any, *arguments: object) -> tuple[int, str]:
    status = command.main(["", "rewrite", *map(str, arguments)])
    output = capsys.readouterr()
    return status, output.out + output.err


def test_the_command(saved, tmp_path, capsys):
    graph_def = graph_def_of(lambda x: tf.nn.relu(norm(x) + x))
    (tmp_path / "graph.pbtxt").write_text(text_format.MessageToString(graph_def))
    (tmp_path / "saved").symlink_to(saved)
    for source, new, flags, message in (
        ("saved", "shim", "--to=shim", "8 nodes renamed"),
        ("saved", "gradients", "--to=shim --gradients-only", "4 nodes renamed"),
        ("saved", "fused", "--fuse", "fused 8 of 8"),
        ("fused", "back", "--unfuse", "8 nodes unfused"),
        (
            *("graph.pbtxt", "new.pbtxt", "--fuse --keep=^add:0"),
            "fused 0 of 1\n  FusedBatchNormV3, forward: add is kept by name",
        ),
    ):
        output = tmp_path / new
        said = run(capsys, tmp_path / source, output, *flags.split())
        assert said == (0, f"{output}: {message}\n")
    status, message = run(capsys, "--help")
    assert status == 0 and "--to" in message


def test_what_the_command_cannot_do_is_one_sentence(saved, tmp_path, capsys, monkeypatch):
    """With status 2; nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").symlink_to(saved)
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.pb").write_bytes(b"\xff\xff noise")
    (tmp_path / "nothing.pb").touch()
    (tmp_path / "graph.pb").write_bytes(make_graph_def().SerializeToString())
    before = {*tmp_path.rglob("*")}
    for arguments, sentence in (
        ("saved empty --to=shim", "empty exists: name a new place, nothing is overwritten\n"),
        ("saved link --to=shim", "nothing is overwritten\n"),
        ("none new --to=shim", "none does not exist\n"),
        ("empty new --to=shim", "is no SavedModel"),
        ("saved saved/inside --to=shim", "name a place outside of it"),
        ("noise.pb new --to=builtin", "noise.pb does not hold a GraphDef\n"),
        ("nothing.pb new --to=builtin", "nothing.pb is empty\n"),
        ("graph.pb new/ --to=builtin", "'new/' names no file"),
        ("graph.pb new.meta --to=builtin", "do not end OUT in .meta\n"),
        ("graph.pb new.pb --fuse --keep=third,typo", "no node has the name typo"),
        ("saved new", ""),
        ("saved --to=shim", ""),
        ("saved new --to=other", ""),
        (
            "saved new --to=builtin --gradients-only",
            "--gradients-only goes with --to shim: to builtin all ops are renamed\n",
        ),
        ("saved new --fuse --unfuse", ""),
        ("saved new --fuse --to=shim", ""),
        ("saved new --to=shim --keep=add", ""),
    ):
        got, message = run(capsys, *arguments.split())
        assert got == 2 and sentence in message and message.count("\n") == 1, (arguments, message)
    assert {*tmp_path.rglob("*")} == before
