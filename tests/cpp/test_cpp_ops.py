"""The C++ classes: source-compatible with TensorFlow's, nodes as in Python; loading.

Promised: loading is explicit, may be repeated, and takes a path; README's program compiles by
README's command and prints what README shows.

Gradients, which are registered for C++ and the C API alike, are in test_c_api.py.
"""

from __future__ import annotations

import os
import re
import shutil
import sys

import pytest
import tensorflow as tf
from build_helpers import run

import tf_bn_ops
from tf_bn_ops.spec import OPS


def test_every_class_makes_the_node_that_python_makes(run_client, every_class, tmp_path):
    result = run_client("every_class", tmp_path / "graph.pb")
    assert result.returncode == 0, result.stderr
    written = tf.compat.v1.GraphDef.FromString((tmp_path / "graph.pb").read_bytes())
    nodes = {node.name: node for node in written.node}
    for n, (op, call, tensors, _) in enumerate(every_class):
        with tf.Graph().as_default() as graph:
            call({
                name: tf.compat.v1.placeholder(tensor.dtype, name=f"node{n}_{name}")
                for name, tensor in tensors.items()
            })  # fmt: skip
        (python,) = (node for node in graph.as_graph_def().node if node.op.startswith("TfBnOps>"))
        node = nodes[f"node{n}"]
        assert (node.op, node.input) == (python.op, python.input)
        assert dict(node.attr) == dict(python.attr), op.name


def test_same_source_means_the_same(run_client):
    """tests/cpp/same_source.h: nodes with and without attributes, and the status of the scope where
    something is wrong, with a node where TensorFlow's own class has one.

    Promise: C++ classes are spelled as TensorFlow's.
    """
    results = [run_client(which) for which in ("builtin", "ours")]
    for result in results:
        assert result.returncode == 0, result.stderr
    theirs, ours = (result.stdout for result in results)
    assert ours.replace("TfBnOps>", "") == theirs
    lines = theirs.splitlines()
    code = int(tf.errors.INVALID_ARGUMENT)
    # Types and formats are found before there is a node, shapes after; each once for a gradient and
    # once for a forward op.
    assert lines[:10] == [f"{code} {no_node}" for no_node in (1, 0, 1, 1, 0) for _ in range(2)]
    assert len(lines) == 10 + 2 * len([op for op in OPS.values() if op.builtin])
    assert ours.count(" = TfBnOps>FusedBatchNorm") == len(lines) - 10


# ---- Loading -------------------------------------------------------------------------------------


def test_loading_is_explicit_and_idempotent(run_client):
    result = run_client("load")
    assert result.returncode == 0, result.stderr
    before, after = result.stdout.splitlines()
    assert before == (
        "the op TfBnOps>FusedBatchNormGrad is not registered: call tf_bn_ops::LoadOpLibrary() "
        "before building a graph that holds it"
    )
    assert after == "0 "
    # As a server may have it.
    preloaded = run_client("load", LD_PRELOAD=tf_bn_ops.library_path())
    assert preloaded.stdout.splitlines() == ["", "0 "]


def test_loading_by_path(run_client, tmp_path):
    def told(*path, **how):
        return run_client("load", *path, **how).stdout.splitlines()[1]

    lib, name = tf_bn_ops.get_lib(), "libtf_bn_ops.so"
    for path in (lib, tf_bn_ops.library_path()):
        assert told(TF_BN_OPS_LIBRARY=path) == "0 "
        assert told(path, TF_BN_OPS_LIBRARY="/nonexistent") == "0 "
    not_found = f"{int(tf.errors.NOT_FOUND)} {tmp_path}"
    assert told(tmp_path / "missing.so") == (
        f"{not_found}/missing.so does not exist: pass the path of one to tf_bn_ops::LoadOpLibrary()"
    )
    assert told(tmp_path).startswith(f"{not_found}/{name} does not exist")
    assert "TF_BN_OPS_LIBRARY" in told(TF_BN_OPS_LIBRARY="/nonexistent")
    assert "holds no ops of tf_bn_ops" in told(f"{lib}/libtf_bn_ops_core.so")
    # A bare name is a file of this folder, and none that the dynamic loader finds elsewhere.
    assert told(name, cwd=lib, LD_LIBRARY_PATH=lib) == "0 "
    assert f"{name} does not exist" in told(name, cwd=tmp_path, LD_LIBRARY_PATH=lib)
    (tmp_path / name).write_text("no library")
    assert f"./{name} cannot be loaded" in told(name, cwd=tmp_path, LD_LIBRARY_PATH=lib)
    text = told(tmp_path / name)
    assert text.startswith(f"{int(tf.errors.FAILED_PRECONDITION)} {tmp_path}/{name} cannot be ")
    assert f"TensorFlow {tf.__version__}" in text
    shutil.copy(f"{lib}/{name}", tmp_path)
    text = told(tmp_path / name)  # Without the core library.
    assert "copy that file beside it" in text and "make" not in text


@pytest.mark.long
def test_the_program_of_the_readme_compiles_and_prints_what_it_shows(repo_root, tmp_path):
    """Its shell code, unchanged but for the optimization, which is most of the time."""
    section = (repo_root / "README.md").read_text().split("\n## C++\n")[1].split("\n## ")[0]
    blocks = dict(re.findall(r"^```(\S+)\n(.*?)^```", section, re.S | re.M))
    program = (repo_root / "examples" / "graph_construction.cc").read_text()
    assert program.split("\n\n", 1)[1] == blocks["c++"]
    (tmp_path / "bin").mkdir()
    paths = os.environ["PATH"]
    for name, words in (("python", ""), ("g++", " -O0")):
        link = tmp_path / "bin" / name
        found = sys.executable if name == "python" else shutil.which(name)
        # A g++ that is ccache looks for the next one, and would find this one.
        link.write_text(f'#!/bin/sh\nPATH="{paths}" exec "{found}" "$@"{words}\n')
        link.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{paths}"
    how = {"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code, shown = blocks["text"].removeprefix("$ ").split("\n", 1)
    code = code.replace("examples/", f"{repo_root}/examples/")
    result = run(["bash", "-e", "-c", code], tmp_path, **how)
    assert result.returncode == 0, result.stderr
    assert "warning:" not in result.stderr, result.stderr[:1000]  # about TensorFlow's headers
    assert result.stdout == shown
