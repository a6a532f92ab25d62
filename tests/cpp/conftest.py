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
from tf_bn_ops.spec import OPS, REQUIRED, VIEW_LIST
from tf_bn_ops.spec.ops import BATCH_NORM_GATHER_STATS

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


# The members of support.h's Case, by attr.
VALUES = {
    "is_training": "c.is_training != 0",
    "bessel_correction": "c.bessel_correction != 0",
}


def source_of_every_class() -> str:
    """A program that builds the class of a case, of any op of the table, on constants."""
    text = """
#include "support.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tf_bn_ops/ops.h"

using Outputs = std::vector<tensorflow::Output>;

Outputs Build(const tensorflow::Scope& scope, const Case& c, const Outputs& in) {
"""
    for op in (*OPS.values(), BATCH_NORM_GATHER_STATS):
        camel = lambda name: name.title().replace("_", "")  # noqa: E731
        name = f"tf_bn_ops::ops::{op.name}"
        arguments = [
            f"Outputs(in.begin() + {i}, in.end())" if arg.kind == VIEW_LIST else f"in[{i}]"
            for i, arg in enumerate(op.inputs)
        ]
        attrs = {attr: VALUES.get(attr, f"c.{attr}") for attr in op.attrs}
        if REQUIRED in op.attrs.values():
            arguments += attrs.values()
        elif attrs:
            setters = "".join(f".{camel(attr)}({value})" for attr, value in attrs.items())
            arguments.append(f"{name}::Attrs(){setters}")
        outputs = [f"op.{arg.name}" for arg in op.outputs if arg.kind != VIEW_LIST]
        text += f"""
  if (c.op == "{op.name}") {{
    const {name} op(scope, {", ".join(arguments)});
    Outputs found = {{{", ".join(outputs)}}};
"""
        for arg in op.outputs:
            if arg.kind == VIEW_LIST:
                text += f"    for (auto each : op.{arg.name}) found.push_back(each);\n"
        text += "    return found;\n  }\n"
    return (
        text
        + """
  exit(2);
}

int main(int argc, char** argv) {
  Check(tf_bn_ops::LoadOpLibrary());
  for (int i = 1; i < argc; ++i) {
    const Case c(argv[i]);
    const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
    Outputs in;
    for (const auto& tensor : c.tensors) in.push_back(tensorflow::ops::Const(scope, tensor));
    const Outputs outputs = Build(scope, c, in);
    Check(scope.status());
    const auto results = RunGraph(scope, outputs);
    for (size_t k = 0; k < results.size(); ++k) {
      WriteTensor(File(c.folder, "output", k), results[k]);
    }
  }
}
"""
    )


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Name -> program; compiled once for all tests, two at a time."""
    folder = tmp_path_factory.mktemp("programs")
    text = (HERE / "same_source.cc").read_text()
    jobs = {name: HERE / f"{name}.cc" for name in ("client", "block")}
    for name, namespace in (("builtin", "tensorflow"), ("ours", "tf_bn_ops")):
        jobs[name] = folder / f"{name}.cc"
        jobs[name].write_text(text.replace("NAMESPACE::", f"{namespace}::"))
    jobs["every_class"] = folder / "every_class.cc"
    jobs["every_class"].write_text(source_of_every_class())
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
