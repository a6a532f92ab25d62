"""tf_bn_ops/harness: how processes answer, fail and die; references run TensorFlow's kernels.

Promised: an abort or the death of a process is the verdict of one case, with its last output;
references prove that their kernels are TensorFlow's.
"""

import os
import pathlib
import re
import shutil
import sys

import pytest

from tf_bn_ops import _loader
from tf_bn_ops.conformance.execution import workers
from tf_bn_ops.conformance.execution.implementations import builtin, on_device
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.builtin import switch_note

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


# A site that switches this library on, as TF_BN_OPS does, but without it.
SWITCHED_SITE = """
import tf_bn_ops
from tf_bn_ops import _loader, _startup
_startup.call_after_imports({{"tensorflow": lambda: {}}})
"""
EIGEN, ON_DEVICE = builtin("eigen", "eigen"), on_device("CPU:0", None)


@pytest.mark.parametrize(
    ("reference", "site", "why"),
    [
        (EIGEN, "", ""),
        (EIGEN, "tf_bn_ops.enable(kernels=False, keras=False)", "_optimizer.so is loaded"),
        (ON_DEVICE, "tf_bn_ops.enable(fuse=False, keras=False)", "_override.so is loaded"),
        (EIGEN, "tf_bn_ops.load() and _loader.load_kernels({!r})", "has a kernel of priority 1"),
    ],
)
def test_a_reference_proves_that_its_kernels_are_tensorflows(
    reference, site, why, monkeypatch, tmp_path
):
    """With TF_BN_OPS exported, which is taken away; what else switches it on is refused."""
    monkeypatch.setenv("TF_BN_OPS", "1")
    assert switch_note().startswith("TF_BN_OPS=1 is set: ")
    if site:
        copy = shutil.copy(_loader.installation().path(_loader.OVERRIDE_LIBRARY), tmp_path / "a.so")
        text = SWITCHED_SITE.format(site.format(str(copy)))
        (tmp_path / "sitecustomize.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    worker = workers.Worker(reference)
    try:
        if site:
            refusal = rf"does not run TensorFlow's kernels \(.*{re.escape(why)}\)"
            with pytest.raises(processes.WorkerError, match=refusal):
                worker.wait_until_ready()
        else:
            worker.wait_until_ready()
    finally:
        worker.close()
