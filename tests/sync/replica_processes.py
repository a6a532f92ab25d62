"""Starts the programs beside this file: workers of tf.distribute over loopback, or one process."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from build_helpers import environment

from tf_bn_ops import _loader

HERE = pathlib.Path(__file__).resolve().parent
ROOT = pathlib.Path(_loader.__file__).resolve().parent.parent


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for each in sockets:
        each.close()
    return addresses


@contextlib.contextmanager
def started(program: str, *arguments: str, workers: int = 0) -> Iterator[list[subprocess.Popen]]:
    """Processes of a program: one of no cluster if `workers` is 0; killed in the end, since one
    that waits for a peer that died may wait for long."""
    configs = [{}] if not workers else _cluster(workers)
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / program), *arguments],
            env=environment(PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3", **config),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for config in configs
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _cluster(workers: int) -> list[dict[str, str]]:
    cluster = {"worker": free_addresses(workers)}
    tasks = [{"type": "worker", "index": index} for index in range(workers)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def run(program: str, *arguments: str, workers: int = 0, timeout: float = 280) -> list[str]:
    """The last line of output of every process; each has to succeed."""
    deadline = time.monotonic() + timeout
    with started(program, *arguments, workers=workers) as processes:
        outputs = [p.communicate(timeout=deadline - time.monotonic()) for p in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [output.splitlines()[-1] for output, _ in outputs]
