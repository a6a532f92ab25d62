"""Runs the programs beside this file: workers of tf.distribute over loopback, or one process."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess

import forked

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
file = sys.argv[1] + "/" + sys.argv[2]
del sys.argv[:2]
runpy.run_path(file, run_name="__main__")
"""


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for each in sockets:
        each.close()
    return addresses


def processes(
    program: str, *arguments: str, workers: int = 0, timeout: float = 280
) -> list[subprocess.CompletedProcess[str]]:
    """What became of every process of a program: one of no cluster if `workers` is 0."""
    cluster = {"worker": free_addresses(workers)}
    tasks = [{"type": "worker", "index": index} for index in range(workers)]
    configs = [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]

    def one(config: dict[str, str]) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **config}
        return forked.run(PROGRAM, HERE, program, *arguments, env=env, timeout=timeout)

    with concurrent.futures.ThreadPoolExecutor(max(workers, 1)) as pool:
        return [*pool.map(one, configs or [{}])]


def run(program: str, *arguments: str, workers: int = 0, timeout: float = 280) -> list[str]:
    """The last line of output of every process; each has to succeed."""
    ended = processes(program, *arguments, workers=workers, timeout=timeout)
    for process in ended:
        assert process.returncode == 0, process.stderr[-3000:]
    return [process.stdout.splitlines()[-1] for process in ended]
