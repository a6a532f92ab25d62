"""Says what is installed, whether it fits together, and what to do where it does not.

One line for each check: ok, warning (it works, but not as well as it could) or problem.
Exit status: 0 no problem, 1 a problem, 2 wrong usage.

What is looked at is the loader's own value for this installation, with its checks; as JSON it is
printed whole. TensorFlow is imported and the ops are loaded and called in a child process: whatever
kills it is reported here.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tf_bn_ops import _enable, _loader, _startup
from tf_bn_ops.harness import c_abi

OK, WARNING, PROBLEM = "ok", "warning", "problem"

# A first import of TensorFlow from a cold disk can take a minute.
_PROBE_SECONDS = 300


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=["text", "json"], default="text",
                        help="json: print one JSON object instead of lines")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
      name: what was looked at, in a word or two.
      state: "ok", "warning" or "problem".
      text: what was found; for a warning or problem, also what to do.
    """

    name: str
    state: str
    text: str


@dataclasses.dataclass(frozen=True)
class Probe:
    """What a child process found out about TensorFlow and the ops.

    Attributes:
      tensorflow: version, folder, cxx11_abi, gpus (names); None if TensorFlow cannot be imported.
      import_error: why not, in one line.
      load_error: why the ops cannot be used and what to do, in one sentence; None if they work.
    """

    tensorflow: dict[str, Any] | None = None
    import_error: str | None = None
    load_error: str | None = None


# Each step prints a line as soon as it is known, so that a death tells how far it came.
_PROBE = """
import json, os, re, sys
sys.path[:] = json.loads(sys.argv[1])
def say(**what): print("doctor:" + json.dumps(what), flush=True)
def one_line(error): return f"{type(error).__name__}: {' '.join(str(error).split())}"
try:
    import tensorflow as tf
    facts = dict(
        version=tf.__version__, folder=os.path.dirname(tf.__file__),
        cxx11_abi=int(tf.sysconfig.CXX11_ABI_FLAG),
        gpus=[gpu.name for gpu in tf.config.list_physical_devices("GPU")])
except BaseException as error:
    say(import_error=one_line(error)); sys.exit()
say(tensorflow=facts)
try:
    import numpy as np, tf_bn_ops
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2, 1)
    one = np.ones(1, np.float32)
    with tf.device("CPU"):
        out = tf_bn_ops.fused_batch_norm_grad(x, x, one, one, one, is_training=False, epsilon=0.0)
    # dy = x = 0 ... 7, mean = variance = scale = 1: the frozen formula by hand.
    expected = (x, np.float32([112]), np.float32([28]))
    found = (out.x_backprop, out.scale_backprop, out.offset_backprop)
    wrong = not all(np.array_equal(f, e) for f, e in zip(found, expected))
    say(load_error="the op computes wrong values" if wrong else None)
except BaseException as error:
    kind = type(error).__name__
    if kind in ("LibraryError", "FailedPreconditionError"):  # Say themselves what to do.
        say(refusal=re.sub(r"{{[^}]*}} |\\.? \\[Op:.*", "", str(error)))
    else:
        say(load_error=one_line(error))
"""


def probe() -> Probe:
    """Imports TensorFlow and calls an op, in a child process."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        _startup.VARIABLE: "",  # Would load the libraries during the import, and fail there.
    }
    folder = str(pathlib.Path(__file__).resolve().parent.parent)
    path = sys.path if folder in sys.path else [*sys.path, folder]
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROBE, json.dumps(path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Probe(import_error=f"it has not come to an end in {_PROBE_SECONDS} s")
    said: dict[str, Any] = {}
    for line in child.stdout.splitlines():
        if line.startswith("doctor:"):
            said.update(json.loads(line.removeprefix("doctor:")))
    death = f"the process ended with {_status(child.returncode)}"
    if "tensorflow" not in said:
        return Probe(import_error=said.get("import_error", death))
    wrong = said.get("load_error", death)
    refusal = said.get("refusal") or (f"{wrong}: {_loader.REBUILD}" if wrong else None)
    return Probe(tensorflow=said["tensorflow"], load_error=refusal)


def _status(returncode: int) -> str:
    return signal.Signals(-returncode).name if returncode < 0 else f"status {returncode}"


def _refusal(check: Callable[[], object]) -> str | None:
    """The sentence with which a check of the loader refuses, if it does."""
    try:
        check()
    except _loader.LibraryError as error:
        return str(error)
    return None


# ---- The lines, in the order in which they are shown ---------------------------------------------


def _package(here: _loader.Installation) -> Iterator[Finding]:
    yield Finding("tf_bn_ops", OK, f"{here.version} in {here.package}")
    yield Finding("Python", OK, f"{platform.python_version()} ({sys.executable})")


def _tensorflow(here: _loader.Installation, found: Probe) -> Finding:
    if found.tensorflow is None:
        text = f"cannot be imported ({found.import_error}): {here.install_tensorflow()}"
        return Finding("TensorFlow", PROBLEM, text)
    facts = found.tensorflow
    folder = pathlib.Path(facts["folder"])
    owner = "not installed by pip"
    # The child's path is this process's: an owner of another copy would own none.
    if here.tensorflow and here.tensorflow.folder.resolve() == folder.resolve():
        owner = here.tensorflow.owner or owner
    return Finding("TensorFlow", OK, f"{facts['version']} ({owner}) in {folder}")


def _build(here: _loader.Installation) -> Finding:
    """Whether the libraries are this machine's and of the Python files' version."""
    info = here.build
    about = (
        f"version {info.get('version')} for TensorFlow {info['tensorflow_version']}, "
        f"{info.get('machine')}, by {info.get('compiler')}"
    )
    state, but = OK, ""
    if info.get("machine") not in (None, platform.machine()):
        state, but = PROBLEM, f", but this machine is {platform.machine()}"
    elif info.get("version") != here.version:
        state, but = WARNING, f", but the Python files are version {here.version}"
    return Finding("build", state, f"{about}{but and f'{but}: {_loader.REBUILD}'}")


def _checked(name: str, check: Callable[[], object], fits: str) -> Finding:
    """What a check of the loader says; `fits` where it refuses nothing."""
    refused = _refusal(check)
    return Finding(name, PROBLEM if refused else OK, refused or fits)


def _abi(here: _loader.Installation, tensorflow: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the library fits the TensorFlow that was found."""
    version, flag = tensorflow["version"], tensorflow["cxx11_abi"]
    built_for = _loader.minor(str(here.build["tensorflow_version"]))
    fits = f"TensorFlow {version} is a {built_for}, as at build time"
    yield _checked("ABI: version", lambda: here.check_version(version), fits)
    fits = f"_GLIBCXX_USE_CXX11_ABI={flag} on both sides"
    yield _checked("ABI: C++ strings", lambda: here.check_cxx11_abi(version, flag), fits)


def _check(here: _loader.Installation, name: str) -> None:
    _loader.check_whole(here.path(name))


def _libraries(here: _loader.Installation, found: Probe) -> Iterator[Finding]:
    names = (_loader.OP_LIBRARY, *_loader.COMPANIONS)
    refusals = [_refusal(functools.partial(_check, here, name)) for name in names]
    if any(refusals):
        # Where there is none at all, the first says it.
        damage = refusals[:1] if not here.op_library.is_file() else [r for r in refusals if r]
        yield from (Finding("library", PROBLEM, text or "") for text in damage)
        return
    by = f" (chosen by {_loader.LIBRARY_VARIABLE})" if here.chosen else ""
    yield Finding("library", OK, f"{here.op_library}{by}")
    if not here.build:
        yield Finding("build", PROBLEM, here.build_error)
        return
    yield _build(here)
    if found.tensorflow is not None:
        yield from _abi(here, found.tensorflow)


def _ops(found: Probe) -> Finding:
    if found.tensorflow is None:
        return Finding("ops", PROBLEM, "not tried without TensorFlow: repair what is said above")
    if found.load_error is None:
        return Finding("ops", OK, "loaded, called and right on a small tensor")
    return Finding("ops", PROBLEM, f"cannot be used: {found.load_error}")


def _processor() -> Finding:
    try:
        built = c_abi.implementations()
    except _loader.LibraryError as error:
        return Finding("CPU", PROBLEM, str(error))
    except (OSError, AttributeError) as error:
        path = _loader.core_library_path()
        return Finding("CPU", PROBLEM, f"{path} cannot be loaded ({error}): {_loader.REBUILD}")
    usable = [name for name, is_supported in built.items() if is_supported]
    about = f"built: {', '.join(built)}; of these this processor runs: {', '.join(usable)}"
    forced, variable = os.environ.get(c_abi.ISA_VARIABLE), c_abi.ISA_VARIABLE
    if not forced:
        return Finding("CPU", OK, f"{usable[0]} is in use ({about})")
    if forced not in usable:
        text = f"{variable}={forced} names none that can run ({about}): unset it, or name one of"
        return Finding("CPU", PROBLEM, f"{text} those")
    text = f"{forced} is in use because {variable} says so ({about})"
    if forced != usable[0]:
        return Finding("CPU", WARNING, f"{text}: unset it to get {usable[0]}")
    return Finding("CPU", OK, text)


def _gpu(here: _loader.Installation, found: Probe) -> Iterator[Finding]:
    if not here.build:
        return  # Said already.
    cuda, gpus = here.build.get("cuda"), found.tensorflow["gpus"] if found.tensorflow else []
    state, text = OK, "not built ('make gpu' in the source tree builds it)"
    if cuda:
        archs = ", ".join(f"sm_{arch}" for arch in cuda["archs"])
        text = f"built with CUDA {cuda['version']} for {archs} and PTX of compute_{cuda['ptx']}; "
        text += f"TensorFlow sees {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    elif gpus:
        state, text = WARNING, f"not built, but TensorFlow sees {len(gpus)}: build in the source"
        text += " tree with 'make gpu' to use them (docs/gpu.md)"
    yield Finding("GPU", state, text)


def _xla(here: _loader.Installation) -> Finding:
    path = here.folder / _loader.XLA_LIBRARY
    if not path.is_file():
        return Finding("XLA", OK, "not built: the ops do not run below jit_compile=True")
    return _checked("XLA", lambda: _loader.check_whole(str(path)), str(path))


def _switch(found: Probe) -> Finding:
    """What TF_BN_OPS turns on."""
    try:
        wanted = _startup.requested()
        if not wanted:
            text = f"off (python -m tf_bn_ops run, or {_startup.VARIABLE}=1, turns it on)"
            return Finding("switch", OK, text)
        words = ", ".join(word for word, is_wanted in wanted.items() if is_wanted)
        if wanted["kernels"] and found.tensorflow is not None:
            _enable.check_known(found.tensorflow["version"])
        text = f"{_startup.VARIABLE} turns on {words}"
        if _startup.has_hook():
            return Finding("switch", OK, text)
        return Finding(
            "switch", WARNING,
            f"{text} in programs that import tf_bn_ops alone, because this Python has no "
            f"{_startup.HOOK}: install the package with pip, or start programs with "
            "'python -m tf_bn_ops run PROGRAM'",
        )  # fmt: skip
    except (ValueError, _enable.Refusal) as error:
        return Finding("switch", PROBLEM, str(error))


def diagnose(found: Probe) -> list[Finding]:
    """All findings, in the order in which they are shown; `found` is what `probe()` gave."""
    here = _loader.installation()
    return [
        *_package(here),
        _tensorflow(here, found),
        *_libraries(here, found),
        _ops(found),
        _processor(),
        *_gpu(here, found),
        _xla(here),
        _switch(found),
    ]


def execute(flags: argparse.Namespace) -> int:
    """Prints the findings; returns the exit status."""
    findings = diagnose(probe())
    counts = {state: sum(f.state == state for f in findings) for state in (WARNING, PROBLEM)}
    if flags.format == "json":
        report = {
            "problems": counts[PROBLEM],
            "warnings": counts[WARNING],
            "findings": [dataclasses.asdict(f) for f in findings],
            "installation": dataclasses.asdict(_loader.installation()),
        }
        print(json.dumps(report, indent=2, default=str))  # Paths as text.
    else:
        width = max(len(f.name) for f in findings)
        for f in findings:
            print(f"{f.state:8} {f.name:{width}}  {f.text}")
        words = [
            f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items() if count
        ]
        print(f"\n{' and '.join(words) if words else 'everything fits'}")
    return 1 if counts[PROBLEM] else 0
