"""`python -m tf_bn_ops conformance` as a user meets it, with candidates that need no build."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tf_bn_ops import __main__ as commands
from tf_bn_ops.conformance import cases, cli, fills, real_input, workers

HERE = pathlib.Path(__file__).resolve().parent


def _run(*flags, **environment):
    paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "tf_bn_ops", "conformance", *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--op=V9"], "'V9' is not a known op"),
        (["--dtype=int8"], "'int8' is not a known dtype"),
        (["--op=FusedBatchNormGrad", "--dtype=half"], "no op has this combination"),
        (["--cases=-1"], "cases"),
        (["--nonsense"], "nonsense"),
        (["stray"], "'stray' is not a flag"),
        (["--repro=a,b"], "10 fields"),
    ],
)
def test_wrong_usage_is_one_sentence(flags, message, capsys):
    assert cli.main(["tf_bn_ops conformance", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    cli._FLAGS.unparse_flags()


def test_missing_scikit_learn_is_said(monkeypatch):
    monkeypatch.setattr(real_input.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(real_input.RealInputError, match=r"pip install scikit-learn.*--noreal"):
        real_input.check_available()


def test_missing_library_is_said():
    result = _run("--cases=1", "--noreal", TF_BN_OPS_LIBRARY="/nowhere/lib.so")
    assert result.returncode == 2
    assert "/nowhere/lib.so" in result.stderr
    assert "Traceback" not in result.stderr


def test_candidate_that_is_not_there_is_said():
    result = _run("--cases=1", "--noreal", "--candidate=no_such_module:ops")
    assert result.returncode == 2
    assert "no_such_module" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_lists_flags_and_commands(capsys):
    assert cli.main(["tf_bn_ops conformance", "--help"]) == 0
    assert "--repro" in capsys.readouterr().out
    assert commands.main(["tf_bn_ops", "--help"]) == 0
    assert "conformance" in capsys.readouterr().out
    assert commands.main(["tf_bn_ops", "nonsense"]) == 2
    assert commands.main(["tf_bn_ops"]) == 2


def test_op_that_the_candidate_lacks_is_said():
    flags = ["--cases=1", "--noreal", "--candidate=tensorflow:raw_ops"]
    result = _run(*flags, "--op=BatchNormTrainingBackprop")
    assert result.returncode == 2
    assert "tensorflow:raw_ops has no BatchNormTrainingBackprop" in result.stderr
    assert "Traceback" not in result.stderr


def test_training_backprop_has_autodiff_beside_its_counterpart():
    result = _run("--op=BatchNormTrainingBackprop", "--cases=60", "--noreal")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"autodiff: outside .* of 60 cases", result.stdout)
    answered = re.search(r"eigen: outside .* of (\d+) cases", result.stdout)
    assert 0 < int(answered.group(1)) < 30


def test_failing_case_replays():
    flags = ["--candidate=odd_ops:flipped", "--op=V2", "--layout=NHWC", "--noreal"]
    result = _run(*flags, "--cases=12", "--bounds=textbook")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "scale_backprop" in result.stdout
    replay = re.search(r"replay: python -m tf_bn_ops conformance (.*)", result.stdout)
    again = _run(*replay.group(1).split())
    assert again.returncode == 1, again.stdout + again.stderr
    assert "scale_backprop" in again.stdout


def test_builtin_passes_as_candidate_and_real_input_runs():
    flags = ["--candidate=tensorflow:raw_ops", "--bounds=textbook", "--op=V2"]
    result = _run(*flags, "--layout=NHWC", "--dtype=half", "--cases=30")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "digits" in result.stdout


def test_crash_and_hang_are_the_cases_verdict(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    text = "FusedBatchNormGradV2,float32,NHWC,1x2x2x{},training,normal,batch,eps=0.1,eager,seed=1"
    aborts, hangs, works = (cases.parse(text.format(channels)) for channels in (3, 2, 1))
    worker = workers.Worker(workers.Implementation("candidate", "odd_ops:fragile"), timeout=1)
    try:
        for case, crash in (
            (aborts, "killed by SIGABRT"),
            (hangs, "no answer in 1 s"),
            (works, ""),
        ):
            worker.submit(case, fills.fill(case))
            answer = worker.collect()
            assert crash in answer.crash
            assert bool(crash) == bool(answer.crash)
            assert bool(answer.outputs) == (case is works), answer
    finally:
        worker.close()
