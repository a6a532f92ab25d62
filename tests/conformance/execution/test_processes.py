"""tf_bn_ops/harness/processes.py: answers, errors, and how a dead process is reported."""

import os
import pathlib

import pytest

from tf_bn_ops.harness import processes

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture
def child(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    made = []

    def make(*arguments, memory=0):
        made.append(processes.Process("odd", "odd_child", arguments, memory=memory))
        return made[-1]

    yield make
    for process in made:
        process.close()


def _ask(process, request, timeout=60):
    process.wait_until_ready()
    process.send(request)
    return process.receive(timeout)


def test_answers_and_errors(child):
    process = child("a", "b")
    assert _ask(process, 7) == ("done", 7)
    assert process.facts == ("a", "b")
    assert _ask(process, "raise") == ("error", "ValueError: no such thing")
    assert _ask(process, 8) == ("done", 8)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("abort", "killed by SIGABRT: about to abort"),
        ("exit", "ended with status 3"),
        ("hang", "no answer in 1 s: about to hang"),
        ("allocate", "out of memory (limit 1 GiB), killed by SIGABRT: terminate called after"),
    ],
)
def test_death_is_said_with_the_last_output_and_a_new_process_starts(child, request_, words):
    process = child(memory=1 << 30)
    assert _ask(process, 7) == ("done", 7)
    with pytest.raises(processes.Died) as died:
        _ask(process, request_, timeout=1 if request_ == "hang" else 60)
    assert str(died.value).startswith(words)
    process.start()
    assert _ask(process, 7) == ("done", 7)
    # What was put out for an earlier request is not repeated.
    with pytest.raises(processes.Died) as died:
        _ask(process, "exit")
    assert str(died.value) == "ended with status 3"


def test_process_that_cannot_start_is_said(child):
    with pytest.raises(processes.WorkerError, match="a part is missing"):
        child("missing").wait_until_ready()


def test_other_systems_lack_calls_of_linux(child, monkeypatch, tmp_path):
    """macOS has no resource.prlimit: limits work without it."""
    (tmp_path / "sitecustomize.py").write_text("import resource\ndel resource.prlimit\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{HERE}")
    process = child(memory=1 << 30)
    with pytest.raises(processes.Died, match="out of memory"):
        _ask(process, "allocate")
