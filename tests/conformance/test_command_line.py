"""`python -m tf_bn_ops conformance` as a user meets it, with candidates that need no build.

Promised: wrong usage and a missing library are one sentence and status 2; a hang, a crash and lack
of memory fail one case each; a failing case is reduced to a program; a report that cannot be
written is no failed case; TensorFlow's own ops pass as a candidate.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import command
import pytest
from build_helpers import environment, run
from numpy_kernels import fill

from tf_bn_ops import _command
from tf_bn_ops.conformance import flags, runner
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.execution import workers
from tf_bn_ops.conformance.execution.implementations import Implementation
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.reports import record
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness import machine
from tf_bn_ops.harness.processes import in_threads

HERE = pathlib.Path(__file__).resolve().parent


PATHS = os.pathsep.join([str(HERE), str(HERE.parents[1])])
LIBRARY = f"--library={__file__}"  # Any file.
SMALL = "FusedBatchNormV3,float32,NHWC,{},training,normal,batch,eps={},eager,seed=1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ops=V9"], "'V9' is not a known op"),
        (["--ops="], "'' is not a known op"),
        (["--dtypes=int8"], "'int8' is not a known dtype"),
        (["--ops=FusedBatchNormGrad", "--dtypes=half"], "no op has this combination"),
        (["--kinds=values"], "'values' is not a known kind of cases"),
        (["--nonsense"], "nonsense"),
        (["stray"], "unrecognized arguments: stray"),
        (["--repro=a,b"], "10 fields"),
        *(
            ([f"--{flag}={value}"], f"--{flag}")
            for flag in ("cases", "seed", "timeout", "memory", "shrink")
            for value in ("nan", "inf", "-1", "1" + 30 * "0")
        ),
        ([f"--repro={SMALL.format('100000x100000x1000x3', '0.1')}"], "beyond what can be computed"),
        ([f"--repro={SMALL.format('1x1x1x1', 'nan')}"], "beyond what can be computed"),
        # Libraries and devices.
        (["--library=/nowhere.so", "--map=A=FusedBatchNormGrad"], "no library /nowhere.so"),
        ([LIBRARY], "say what the ops of --library claim"),
        # The candidate's process finds it; the references' start too.
        *(
            pytest.param([*flags, "--cases=1", "--kinds=random"], message, marks=pytest.mark.long)
            for flags, message in (
                ([LIBRARY, "--map=A=FusedBatchNormGrad"], "cannot be used"),
                (["--candidate=no_such_module:ops"], "no_such_module"),
                (
                    ["--candidate=tensorflow:raw_ops", "--ops=BatchNormTrainingBackprop"],
                    "tensorflow:raw_ops has no BatchNormTrainingBackprop",
                ),
            )
        ),
        (["--map=A=FusedBatchNormGrad"], "give one"),
        ([LIBRARY, "--map=A"], "it is TheirOp="),
        ([LIBRARY, "--map=A=B"], "'B' is not one of"),
        ([LIBRARY, "--map=A=FusedBatchNormGrad", "--candidate=os"], "either --candidate or --lib"),
        ([LIBRARY, "--mapping=/nowhere.toml"], "cannot read the mapping file"),
        *(
            ([*words, f"--{kind}=/proc/none/run"], "cannot write /proc/none/run")
            for words in ([], ["report", "run.json"])
            for kind in ("json", "junit", "html")
        ),
        (["--device=TOY", "--candidate=onednn"], "--device judges TensorFlow's own ops"),
        (["--device=TOY", "--library=/nowhere.so"], "no library /nowhere.so"),
        (["--device=the left one"], "names no device"),
    ],
)
def test_wrong_usage_is_one_sentence(flags, message, request, monkeypatch):
    """Before a process is started, where that can be known."""
    if request.node.get_closest_marker("long") is None:
        monkeypatch.setattr(workers, "Worker", None)
    result = command.run(*flags)
    assert result.returncode == 2 and message in result.stderr, result
    assert len(result.stderr.strip().splitlines()) == 1


def test_missing_library_is_said():
    program = [sys.executable, "-m", "tf_bn_ops", "conformance", "--cases=1", "--kinds=random"]
    result = run(program, HERE, PYTHONPATH=PATHS, TF_BN_OPS_LIBRARY="/nowhere/lib.so")
    assert result.returncode == 2
    assert "/nowhere/lib.so" in result.stderr and "Traceback" not in result.stderr


@pytest.fixture
def report(tmp_path):
    """Runs `report` of a record without cases in a folder of its own, with an output that is given;
    its exit status and what it says on stderr."""
    (tmp_path / "run.json").write_text(record.dumps(command.record_of()))

    def go(*flags, stdout=subprocess.DEVNULL):
        program = [sys.executable, "-m", "tf_bn_ops", "conformance", "report", "run.json", *flags]
        done = subprocess.run(
            program, cwd=tmp_path, env=environment(PYTHONPATH=PATHS), stdout=stdout,
            stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stderr

    return go


def test_reports_go_into_what_is_there(report, tmp_path):
    """A link is followed, a pipe and a device stay what they are, a file keeps its mode."""
    real = tmp_path / "real"
    real.write_text("old")
    real.chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "new_link").symlink_to("new")
    os.mkfifo(tmp_path / "pipe")
    read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link", "new_link", "pipe", "/dev/null"):
        assert report(f"--json={name}") == (0, ""), name
    whole = (tmp_path / "run.json").read_text()
    assert real.read_text() == (tmp_path / "new").read_text() == whole
    assert real.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link").is_symlink() and (tmp_path / "new_link").is_symlink()
    assert os.read(read, 1 << 16).decode() == whole and (tmp_path / "pipe").is_fifo()
    os.close(read)
    # What was printed before stays before it, in a file, too.
    for name in ("/dev/stdout", "printed"):
        with open(tmp_path / "printed", "w") as printed:
            assert report(f"--json={name}", stdout=printed) == (0, "")
        said = (tmp_path / "printed").read_text()
        assert said.endswith(whole) and "conformance passed" in said
    if os.path.isdir("/dev/shm"):  # A folder of files, and no device.
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            for _ in range(2):
                assert report(f"--json={folder}/run.json") == (0, "")
                assert pathlib.Path(folder, "run.json").read_text() == whole
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/dev/full", "No space left on device"),
        ("unread", "nothing reads from it"),
        ("circle", "cannot write circle"),
        (".", "it is a folder"),
        ("run.json/below", "cannot write"),
    ],
)
def test_a_report_that_cannot_be_written_is_no_failed_case(report, tmp_path, name, why):
    os.mkfifo(tmp_path / "unread")
    (tmp_path / "circle").symlink_to("circle")
    status, said = report(f"--json={name}", "--html=page.html")
    assert status == 2 and why in said and len(said.splitlines()) == 1, said
    # The other report is written where that is known at the end only.
    assert (tmp_path / "page.html").exists() == (name in ("/dev/full", "unread"))


def test_reports_of_one_folder_do_not_disturb_each_other(tmp_path):
    """Of writers with the same process number, as two containers have; a reader sees one whole."""
    failed = []

    def write(i):
        path, text = tmp_path / f"{i % 2}", f"{i % 2}" * 100_000
        for _ in range(150):
            try:
                _command.write_whole(text, path)
                failed.extend([path] * (path.read_text() != text))
            except _command.UsageError as error:
                failed.append(error)

    in_threads(write, 4)
    assert not failed and sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, None),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup//memory.max": "max"}, None),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup//memory.max": "3221225472"}, 3),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/memory.max": "2147483648"}, 2),
        ({"/proc/self/cgroup": "9:cpu,memory:/x\n2:cpuset:/y\n0::/",
          "/sys/fs/cgroup/memory//memory.limit_in_bytes": "1073741824"}, 1),
        ({"/proc/self/cgroup": "4:memory:/",
          "/sys/fs/cgroup/memory//memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)  # fmt: skip
def test_a_process_may_have_half_of_the_containers_memory(files, gib, monkeypatch):
    """By cgroups of either version, those above it included; without any, of the machine's."""
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path, ""))
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (
        flags.memory(argparse.Namespace(memory=None))
        == (min(whole, gib << 30) if gib else whole) // 2
    )


def test_an_output_that_cannot_be_written_is_no_failed_case(report):
    with open("/dev/full", "w") as full:
        status, said = report(stdout=full)
    assert status == 2 and "No space left" in said and len(said.splitlines()) == 1
    read, write = os.pipe()
    os.close(read)
    assert report(stdout=write) == (141, "")
    os.close(write)


@pytest.mark.long
def test_failing_case_is_reduced_to_a_program(tmp_path, monkeypatch):
    """Replays of failing cases are in test_mapping.py."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    flags = ["--candidate=odd_ops:flipped", "--ops=V2", "--layouts=NHWC", "--kinds=random"]
    file = tmp_path / "run.json"
    result = command.run(*flags, "--cases=12", "--bounds=textbook", f"--json={file}")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "scale_backprop" in result.stdout
    (program,) = {case["script"] for case in json.loads(file.read_text())["cases"]} - {None}
    assert program in result.stdout
    assert "shape 1x1x1x1" in program
    (tmp_path / "wrong.py").write_text(program)
    # The same program with the op that it should be.
    right = program.replace('importlib.import_module("odd_ops").flipped', "tf.raw_ops")
    (tmp_path / "right.py").write_text(right)
    for name, status in (("wrong", 1), ("right", 0)):
        done = run([sys.executable, tmp_path / f"{name}.py"], tmp_path, PYTHONPATH=PATHS)
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stdout.endswith(f"{name}\n")
        assert ("scale_backprop[0]: " in done.stdout) == bool(status)


@pytest.mark.long
def test_builtin_passes_as_candidate():
    """Against itself: held to what any float32 kernel meets, and to the known divergences."""
    result = command.run(
        "--candidate=tensorflow:raw_ops", "--ops=V2", "--layouts=NCHW", "--cases=40"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "bounds textbook" in result.stdout
    assert re.search(r"divergence onednn-placeholder-is-scalar: seen in [1-9]", result.stdout)


FRAGILE = "FusedBatchNormGradV2,float32,NHWC,1x2x2x{},training,normal,batch,eps=0.1,eager,seed=1"


@pytest.mark.long
def test_a_hang_a_crash_and_lack_of_memory_fail_one_case_each(monkeypatch):
    """With the signal and the last output; a reference that dies is a divergence, listed or not; a
    new process answers the next case. Other ways to die are in test_processes.py."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    running = [
        workers.Worker(Implementation("candidate", "odd_ops:hanging"), timeout=5),
        workers.Worker(Implementation("eigen", "odd_ops:fragile"), timeout=60, memory=4 << 30),
    ]
    try:
        for worker in running:
            worker.wait_until_ready()
        chosen = [generate.parse(FRAGILE.format(channels)) for channels in (3, 4, 1)]
        settings = Settings(bounds.PROFILES["textbook"], divergences.Register([]))
        first, second, third = runner.run(chosen, fill, running, settings)
    finally:
        for worker in running:
            worker.close()
    assert any(f.startswith("crash: no answer in 5 s: about to hang") for f in first.failures)
    crash = "built-in (eigen): crash: killed by SIGABRT: about to abort"
    assert any(crash in f for f in first.failures)
    (lack,) = second.failures
    assert "built-in (eigen): crash: out of memory (limit 4 GiB)" in lack and "MemoryError" in lack
    assert "about to abort" not in lack
    assert {"candidate", "eigen"} == set(third.paths)
    assert not any(path.disagreements for path in third.paths.values())
