"""Compiles C++ programs as a user of the installed package does: by its public functions alone."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import shlex
import shutil
import subprocess
from collections.abc import Callable

import pytest
import tensorflow as tf

import tf_bn_ops

HERE = pathlib.Path(__file__).resolve().parent
CXX = shlex.split(os.environ.get("CXX", "g++"))  # Perhaps two words: ccache g++.


def compile_program(
    source: pathlib.Path, program: pathlib.Path, *flags: str, client: bool = True
) -> pathlib.Path:
    """Compiles and links `source` in a folder outside the repository, as docs/cpp.md says; without
    the client library, TensorFlow's alone are linked."""
    if not shutil.which(CXX[0]):
        pytest.skip(f"needs {CXX[0]}")
    lib, tensorflow_lib = tf_bn_ops.get_lib(), tf.sysconfig.get_lib()
    command = [
        *CXX,
        *tf.sysconfig.get_compile_flags(),
        f"-I{tf_bn_ops.get_include()}",
        f"-I{HERE}",  # support.h
        *flags,
        str(source),
        *("-o", str(program)),
        *([f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltf_bn_ops_client"] if client else []),
        *(*tf.sysconfig.get_link_flags(), f"-Wl,-rpath,{tensorflow_lib}"),
        "-l:libtensorflow_cc.so.2",
    ]
    result = subprocess.run(
        command, cwd=program.parent, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-5000:]
    return program


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Name -> program; compiled once for all tests, two at a time."""
    folder = tmp_path_factory.mktemp("programs")
    text = (HERE / "same_source.cc").read_text()
    jobs = {name: HERE / f"{name}.cc" for name in ("client", "split_client", "block")}
    for name, namespace in (("builtin", "tensorflow"), ("ours", "tf_bn_ops")):
        jobs[name] = folder / f"{name}.cc"
        jobs[name].write_text(text.replace("NAMESPACE::", f"{namespace}::"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda job: compile_program(job[1], folder / job[0]), jobs.items())
        return dict(zip(jobs, built, strict=True))


@pytest.fixture(scope="session")
def run_program(
    programs: dict[str, pathlib.Path],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_program(name, arguments..., VARIABLE=value...): runs a test program to its end."""

    def run(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(programs[name]), *map(str, arguments)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A program that knows TensorFlow's C API and nothing of this library."""
    program = tmp_path_factory.mktemp("server") / "server"
    return compile_program(HERE / "saved_model.cc", program, client=False)


@pytest.fixture(scope="session")
def c_gradients(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A program that differentiates graphs by TensorFlow's C API."""
    program = tmp_path_factory.mktemp("c_gradients") / "c_gradients"
    return compile_program(HERE / "c_gradients.cc", program, client=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that compile programs of their own belong to the long tier."""
    for item in items:
        if {"programs", "server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)
