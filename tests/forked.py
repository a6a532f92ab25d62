"""Fresh processes for tests, forked from servers that have imported TensorFlow and Keras.

That import takes some three seconds of a processor; a fork takes milliseconds. The servers are
multiprocessing's, started on first use, one for each set of variables that TensorFlow or Keras read
then; nothing has used TensorFlow in one. Where TF_BN_OPS is set, what it does before and during
that import is what is tested: that is a Python of its own.
"""

from __future__ import annotations

import collections
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest.mock
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from typing import Any

# Prefixes of variables that Python, TensorFlow or the package read before the program's first line;
# except _LATE, which the package reads when its libraries are loaded, and what a cluster is.
_EARLY = ("TF_", "KERAS_", "XLA_", "CUDA_", "LD_", "MALLOC_", "GLIBC_", "OMP_")
_LATE = (
    *("TF_BN_OPS_LIBRARY", "TF_BN_OPS_CPU_ISA", "TF_BN_OPS_VERBOSE"),
    *("TF_BN_OPS_XLA", "TF_CONFIG"),
)
# Servers that are kept; each has some 300 MB.
_MOST = 2

_servers: collections.OrderedDict[str, Any] = collections.OrderedDict()
_lock = threading.Lock()


def run(
    program: str,
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ".",
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, "-c", program, *arguments])` does. Threads may call it.

    Raises:
      subprocess.TimeoutExpired: it has not ended, and was killed.
    """
    words = ["-c", *map(str, arguments)]
    environment = dict(os.environ if env is None else env)
    if "TF_BN_OPS" in environment:
        command = [sys.executable, "-c", program, *words[1:]]
        return subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout
        )
    path = [path or os.getcwd() for path in sys.path]
    with tempfile.TemporaryDirectory() as folder:
        asked = (folder, program, words, os.path.abspath(cwd), environment, path)
        process = multiprocessing.get_context("forkserver").Process(target=_run, args=asked)
        _start(process, environment)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        texts = (pathlib.Path(folder, name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, process.exitcode, *texts)


def output(program: str, *arguments: Any, **changes: str | None) -> str:
    """What a program prints that has this package on its path, run in the root folder; it has to
    succeed. `changes` change the environment (build_helpers.py)."""
    import build_helpers

    from tf_bn_ops import _loader

    root = str(pathlib.Path(_loader.__file__).resolve().parent.parent)
    changes = {"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3", **changes}
    ended = run(program, *arguments, env=build_helpers.environment(**changes), cwd=os.sep)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def call(function: Callable[..., Any], *arguments: Any, **changes: str | None) -> Any:
    """What a function of a test's file returns in a fresh process, as JSON has it."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    changes = {"PYTHONPATH": path, **changes}
    program, given = program_of(function, arguments)
    said = output(program, given, **changes)
    return json.loads(said.splitlines()[-1])


def program_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, str]:
    """One that prints what `function` returns, and its argument."""
    name = f"{function.__module__}.{function.__name__}"
    program = f"import json, sys, {function.__module__}\nvalues = json.loads(sys.argv[1])\n"
    return program + f"print(json.dumps({name}(*values)))", json.dumps(arguments)


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for each in sockets:
        each.close()
    return addresses


def cluster(
    function: Callable[..., Any], *arguments: Any, workers: int, timeout: float = 280
) -> list[subprocess.CompletedProcess[str]]:
    """What became of every worker of a cluster that prints what a function of a test's file
    returns, as JSON; of a single process without a cluster if there are no workers."""
    addresses = free_addresses(workers)
    tasks = [{"type": "worker", "index": index} for index in range(workers)]
    described = [{"cluster": {"worker": addresses}, "task": task} for task in tasks]
    configs = [{"TF_CONFIG": json.dumps(each)} for each in described] or [{}]

    def one(config: dict[str, str]) -> subprocess.CompletedProcess[str]:
        program = program_of(function, arguments)
        return run(*program, env={**os.environ, **config}, timeout=timeout)

    with concurrent.futures.ThreadPoolExecutor(len(configs)) as pool:
        return [*pool.map(one, configs)]


def _start(process: Any, environment: Mapping[str, str]) -> None:
    """Starts a process by the server for an environment, which is started if there is none."""
    early = {n: v for n, v in environment.items() if n.startswith(_EARLY) and n not in _LATE}
    others = {name: value for name, value in os.environ.items() if not name.startswith(_EARLY)}
    key = json.dumps(early, sort_keys=True)
    with _lock, unittest.mock.patch.dict(os.environ, {**others, **early}, clear=True):
        server = _servers.pop(key, None) or forkserver.ForkServer()
        server.set_forkserver_preload(["tensorflow", "keras"])
        _servers[key] = server
        while len(_servers) > _MOST:
            _servers.popitem(last=False)[1]._stop()
        by = server.connect_to_new_process
        with unittest.mock.patch.object(forkserver, "connect_to_new_process", by):
            process.start()


def _run(
    folder: str,
    program: str,
    arguments: list[str],
    cwd: str,
    environment: dict[str, str],
    path: list[str],
) -> None:
    """Runs the program as `python -c` does."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, closefd=False))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = arguments
    # PYTHONPATH as Python puts it: behind the script's folder.
    sys.path[:] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    status = 0
    main = sys.modules["__main__"] = type(sys)("__main__")
    try:
        exec(compile(program, "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
