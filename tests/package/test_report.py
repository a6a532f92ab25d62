"""`tf_bn_ops.report()` and TF_BN_OPS_REPORT: everything that ran is counted once, at its place.

Promised: calls are counted at the path of their layer in every thread, at their node in sessions
and SavedModels, over replicas and in programs of XLA; what stayed has its reason; every process has
a file of its own, whole or not there.
"""

import collections
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import build_helpers
import forked
import keras
import pytest
import tensorflow as tf

import tf_bn_ops
from tf_bn_ops import _report


def norm(x: Any) -> Any:
    return tf.compat.v1.nn.fused_batch_norm(x, tf.ones([3]), tf.zeros([3]))[0]


def calls() -> dict[str, int]:
    """ "place direction shape" -> calls."""
    counts: collections.Counter[str] = collections.Counter()
    for call in tf_bn_ops.report().calls:
        counts[f"{call.place} {call.direction} {call.shape}"] += call.calls
        assert call.seconds > 0 and call.bytes > 0 and call.dtype == "float32"
    return dict(counts)


# ---- Places --------------------------------------------------------------------------------------


def eager_layers_in_threads() -> dict[str, int]:
    tf_bn_ops.enable()

    def use(name: str) -> None:
        layer = keras.layers.BatchNormalization(name=name)
        for _ in range(20):
            x = tf.ones([2, 4, 4, 3])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
            tape.gradient(y, x)

    threads = [threading.Thread(target=use, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return calls()


def test_eager_calls_of_layers_have_the_layers_path_in_every_thread():
    counts = forked.call(eager_layers_in_threads)
    places = [f"{n} {way} 2x4x4x3" for n in ("one", "two") for way in ("backward", "forward")]
    assert counts == dict.fromkeys(places, 20)


def sessions() -> list[dict[str, int]]:
    tf_bn_ops.enable(keras=False, fuse=False)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2, 2, 3])
        with tf.name_scope("block"):
            y = norm(x)
        dx = tf.gradients(y, x)
    for batch in (2, 5):
        with tf.compat.v1.Session(graph=graph) as session:
            for _ in range(3):
                session.run(dx, {x: [[[[0.0] * 3] * 2] * 2] * batch})
    path = "saved"
    module = tf.Module()
    module.f = tf.function(norm, input_signature=[tf.TensorSpec([2, 2, 2, 3])])
    tf.saved_model.save(module, path)
    before = calls()
    tf.saved_model.load(path).f(tf.ones([2, 2, 2, 3]))
    return [before, {k: n for k, n in calls().items() if before.get(k) != n}]


def test_nodes_of_sessions_and_saved_models_have_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_sessions, saved = forked.call(sessions)
    assert sorted(in_sessions.values()) == [3] * 4
    assert {key.split()[2] for key in in_sessions} == {"2x2x2x3", "5x2x2x3"}
    assert all("block/FusedBatchNormV3" in key for key in in_sessions)
    ((key, count),) = saved.items()
    assert "FusedBatchNormV3 forward" in key and count == 1


def replicas() -> dict[str, int]:
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    tf_bn_ops.enable()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4, 4, 3)), keras.layers.BatchNormalization(name="bn")], name="net"
        )
        model.compile("sgd", "mse", jit_compile=False)
    model.fit(tf.ones([8, 4, 4, 3]), tf.ones([8, 4, 4, 3]), batch_size=4, verbose=0)
    return calls()


def test_replicas_add_to_one_layer():
    assert forked.call(replicas) == {f"net/bn {way} 2x4x4x3": 4 for way in ("forward", "backward")}


def xla() -> dict[str, int]:
    tf_bn_ops.report()
    function = tf.function(tf_bn_ops.fused_batch_norm, jit_compile=True)
    function(tf.ones([2, 2, 2, 3]), tf.ones([3]), tf.zeros([3]))
    return calls()


def test_programs_of_xla_are_one_place():
    assert forked.call(xla) == {"(programs of XLA) forward 8x3x1": 1}


def fused_and_refused() -> list[Any]:
    tf_bn_ops.enable()

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tf.name_scope("a"):
                y = tf.nn.relu(norm(x) + x)
            with tf.name_scope("b"):
                z = norm(y)
                y = tf.sin(tf.nn.relu(z)) * z
        return tape.gradient(y, x)

    step(tf.ones([2, 4, 4, 3]))
    layer = keras.layers.BatchNormalization(name="double", dtype="float64")
    other = keras.layers.BatchNormalization(name="single")
    for _ in range(3):
        layer(tf.ones([2, 4, 4, 3]), training=True)
        other(tf.ones([2, 4, 4, 3]), training=False)
    tf.function(layer)(tf.ones([2, 4, 4, 3]))
    keras.Sequential([keras.Input((4, 4, 3)), layer])
    found = tf_bn_ops.report()
    return [found.calls, found.fused, found.stayed, str(found), found._repr_html_()]


def test_what_was_fused_and_what_stayed_and_why():
    called, fused, stayed, text, page = forked.call(fused_and_refused)
    assert ["a/FusedBatchNormV3", "forward", "a/add, a/Relu", 1] in [
        [node.removeprefix("StatefulPartitionedCall/"), *rest] for node, *rest in fused
    ]
    reasons = {(place, why): (times, counted) for place, _, why, times, counted in stayed}
    assert reasons["double", "computes in float64"] in [(3, "calls"), (1, "traces")]
    assert ["double", "", "computes in float64", 1, "traces"] in stayed
    # The fused node is called by the name of its norm, and not of the activation.
    assert [c[2] for c in called if c[:2] == ["a/FusedBatchNormV3", "forward"]] == [
        "TfBnOps>FusedBatchNormEx"
    ]
    why = "infers in float32, where Keras' formula is as fast as the op"
    assert reasons["single", why] == (3, "calls")
    assert [place for place, way, *_ in stayed if way == "forward"] == ["b/FusedBatchNormV3"]
    for place in ("double computes in float64", "b/FusedBatchNormV3, forward: "):
        assert place in text and place in page
    assert "<table><tr><td>layer or node</td>" in page


# ---- Bounds --------------------------------------------------------------------------------------


def many() -> list[Any]:
    tf_bn_ops.enable(keras=False, fuse=False)

    @tf.function
    def loop(x: Any) -> Any:
        for _ in tf.range(100_000):
            x = norm(x)
        return x

    loop(tf.ones([1, 1, 1, 3]))
    after_calls = [call.calls for call in tf_bn_ops.report().calls]
    for height in range(1, _report._MOST + 100):
        norm(tf.ones([1, height, 1, 3]))
        _report.stay(f"place {height}", "stays", "calls")
    found = tf_bn_ops.report()
    total = sum(call.calls for call in found.calls)
    others = [call.calls for call in found.calls if call.place == "(others)"]
    return [after_calls, total, others, len(found.calls), len(found.stayed), list(found.notes)]


def test_there_are_no_more_records_than_places_and_nothing_is_lost():
    after_calls, total, others, rows, stayed, notes = forked.call(many)
    assert after_calls == [100_000]
    assert total == 100_000 + _report._MOST + 99
    assert others == [100] and rows == stayed == _report._MOST + 1
    assert any("summed as (others)" in note for note in notes)


# ---- The end of a process ------------------------------------------------------------------------

# What a process needs that has something to report, without a second of TensorFlow.
STAY = "import tensorflow; from tf_bn_ops import _report; _report.stay('', 'it did', 'calls');"


@pytest.fixture
def ended(tmp_path: pathlib.Path, repo_root: pathlib.Path):
    """Runs a program in a folder with a stand-in for TensorFlow."""
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.21.0'")

    def run(
        program: str, target: str = "out/report.json", before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "main.py").write_text(f"{before}\nimport tf_bn_ops\n{program}")
        environment = build_helpers.environment(PYTHONPATH=str(repo_root), TF_BN_OPS_REPORT=target)
        return subprocess.run(
            [sys.executable, "main.py"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100,
        )  # fmt: skip

    (tmp_path / "out").mkdir()
    return run


def written(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_process_has_a_file_of_its_own(ended, tmp_path):
    """The first one of the name that was asked for; only children that have something to say."""
    run = f"""
import subprocess, sys, os, multiprocessing as m
def child(): {STAY.replace("import tensorflow; ", "")}
if __name__ == "__main__":
    {STAY}
    subprocess.run([sys.executable, "-c", "pass"])
    os.chdir("/")
    one = subprocess.Popen([sys.executable, "-c", {f"import tf_bn_ops; {STAY}"!r}])
    one.wait()
    print(one.pid)
    for way in ("fork", "spawn", "forkserver"):
        one = m.get_context(way).Process(target=child)
        one.start()
        one.join()
        print(one.pid)
    if (pid := os.fork()) == 0:
        child()
        sys.exit()
    os.waitpid(pid, 0)
    print(pid)
"""
    result = ended("import tensorflow\n" + run)
    assert result.returncode == 0, result.stderr
    pids = result.stdout.split()
    names = ["report.json", *(f"report.{pid}.json" for pid in pids)]
    assert written(tmp_path / "out") == sorted(names), result.stderr
    reports = [json.loads((tmp_path / "out" / name).read_text()) for name in names]
    assert [str(report["pid"]) for report in reports][1:] == pids
    # A fork does not count what its parent did.
    assert [[s["times"] for s in report["stayed"]] for report in reports] == [[1]] * 6


def test_a_later_run_replaces_the_file_and_one_at_the_same_time_does_not(ended, tmp_path):
    both = (
        "import subprocess, sys, os\n"
        "environment = {k: v for k, v in os.environ.items() if k != 'TF_BN_OPS_REPORT_PID'}\n"
        f"one = [sys.executable, '-c', {f'import tf_bn_ops; {STAY}'!r}]\n"
        "subprocess.run(one, env=environment)\n"
    )
    for _ in range(2):
        assert ended(STAY).returncode == 0
    assert written(tmp_path / "out") == ["report.json"]
    assert ended(both + STAY).returncode == 0
    assert len(written(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("end", "status"),
    [("os._exit(5)", 5), ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
     ("os.kill(os.getpid(), 15)", -signal.SIGTERM)],
)  # fmt: skip
def test_a_process_that_ends_at_once_leaves_no_file(ended, tmp_path, end, status):
    assert ended(f"import os\n{STAY}\n{end}").returncode == status
    assert written(tmp_path / "out") == []


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_a_process_that_waits_for_children_at_its_end_lets_them_write(ended, tmp_path, way):
    """multiprocessing waits for them in what runs behind this library's end, if it was imported
    first."""
    program = f"""
def child(): time.sleep(0.5); {STAY}
if __name__ == "__main__":
    {STAY}
    multiprocessing.get_context({way!r}).Process(target=child).start()
"""
    assert ended(program, before="import multiprocessing.util, time").returncode == 0
    assert len(written(tmp_path / "out")) == 2


def test_a_folder_that_somebody_has_locked_is_written_to_nevertheless(ended, tmp_path):
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert ended(STAY).returncode == 0
    os.close(descriptor)
    assert written(tmp_path / "out") == ["report.json"]


def test_a_command_line_has_its_way_and_words_their_blanks(ended, tmp_path):
    run = "from tf_bn_ops import _startup\n_startup.follow_command('keras', 'out/mine.json')\n"
    assert ended(run + STAY, "out/report.json").returncode == 0
    assert written(tmp_path / "out") == ["mine.json"]
    assert "1  calls  it did" in ended(STAY, " True ").stderr
    assert not ended(STAY, " 0 ").stderr and written(tmp_path / "out") == ["mine.json"]


@pytest.mark.parametrize("target", ["missing/folder/report.json", "out"])
def test_a_file_that_cannot_be_written_is_a_sentence(ended, tmp_path, target):
    result = ended(f"{STAY}\nraise SystemExit(3)", target)
    assert result.returncode == 3
    (line,) = result.stderr.splitlines()
    assert line.startswith("tf_bn_ops: there is no report: cannot write") and target in line
    assert written(tmp_path / "out") == []


def test_it_is_printed_to_stderr(ended):
    result = ended(f"{STAY}\nraise ValueError('theirs')", "1")
    assert result.returncode == 1 and result.stdout == ""
    assert "theirs" in result.stderr and "1  calls  it did" in result.stderr
    assert "TensorFlow was not imported" in ended("pass", "TRUE").stderr
    assert ended(STAY, "0").stderr == ""


@pytest.mark.parametrize(("target", "recorded"), [("", False), ("1", True)])
def test_a_switch_that_is_off_records_nothing_by_itself(repo_root, target, recorded):
    program = (
        "import tf_bn_ops, tensorflow, sys; from tf_bn_ops import _report\n"
        "sys.exit(_report.is_recording)"
    )
    environment = build_helpers.environment(
        PYTHONPATH=str(repo_root), TF_BN_OPS="0", TF_BN_OPS_REPORT=target
    )
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert ended.returncode == int(recorded), ended.stderr


def test_a_program_that_fits_and_evaluates(tmp_path, repo_root):
    """Promise: The report counts every call of a kernel once, at its layer."""
    (tmp_path / "train.py").write_text(
        """import tensorflow as tf, keras
from keras import layers
norm = layers.BatchNormalization(name="bn")
model = keras.Sequential(
    [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), norm, layers.ReLU()], name="net"
)
model.compile("sgd", "mse", jit_compile=False)
x, y = tf.ones([8, 8, 8, 3]), tf.ones([8, 6, 6, 4])
model.fit(x, y, batch_size=4, epochs=2, verbose=0)
model.evaluate(x, y, verbose=0)
"""
    )
    environment = build_helpers.environment(
        PYTHONPATH=str(repo_root), TF_BN_OPS="1", TF_BN_OPS_REPORT="report.json"
    )
    program = "import tf_bn_ops; exec(open('train.py').read())"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    report = json.loads((tmp_path / "report.json").read_text())
    for direction in ("forward", "backward"):
        (call,) = (c for c in report["calls"] if c["direction"] == direction)
        assert (call["place"], call["shape"], call["calls"]) == ("net/bn", "4x6x6x4", 4)
        assert call["bytes_per_second"] == pytest.approx(call["bytes"] / call["seconds"])
    backward, forward = report["fused"]
    assert forward["partners"].endswith("Relu") and backward["partners"].endswith("ReluGrad")
    assert [(s["place"], s["counted"]) for s in report["stayed"]] == [("net/bn", "traces")]
