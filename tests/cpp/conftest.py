"""Compiles a C++ program as a user of the installed package does: by its public functions alone."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from build_helpers import built
from op_calls import call_of, in_all_layouts_and_modes, small

import tf_bn_ops
from tf_bn_ops.spec import OPS, REQUIRED, VIEW_LIST
from tf_bn_ops.spec.ops import BATCH_NORM_GATHER_STATS

HERE = pathlib.Path(__file__).resolve().parent


@functools.cache
def calls_of_every_class() -> list[tuple[Any, Any, dict[str, Any], dict[str, Any]]]:
    """(op, call, tensors, attrs) of every op of the table in every layout and mode, its types in
    turn; and of BatchNormGatherStats."""
    calls: list[Any] = [
        (op, *call_of(small(op, layout, mode, dtype=op.dtypes[number % len(op.dtypes)])))
        for op in OPS.values()
        for number, (layout, mode) in enumerate(in_all_layouts_and_modes(op))
    ]
    parts = dict.fromkeys(("counts", "means", "m2s"), tf.zeros([1, 1], tf.float64))
    gather = lambda values: tf_bn_ops.raw_ops.BatchNormGatherStats(**values)  # noqa: E731
    return [*calls, (BATCH_NORM_GATHER_STATS, gather, parts, {})]


def literal(value: Any) -> str:
    """In C++."""
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)


def source_of_every_class() -> str:
    """A function with these calls; the nth op is nodeN, its inputs nodeN_NAME."""
    text = ""
    for n, (op, _, tensors, given) in enumerate(calls_of_every_class()):
        arguments = []
        for arg in op.inputs:
            values = ""
            if arg.name in tensors:
                dtype = tensors[arg.name].dtype.as_datatype_enum
                values = f'Given(scope, "node{n}_{arg.name}", tf::DataType({dtype}))'
            arguments.append(f"Outputs{{{values}}}" if arg.kind == VIEW_LIST else values)
        attrs = {attr: literal(given.get(attr, default)) for attr, default in op.attrs.items()}
        name = f"tf_bn_ops::ops::{op.name}"
        if REQUIRED in op.attrs.values():
            arguments += attrs.values()
        elif attrs:
            setters = (f".{k.title().replace('_', '')}({value})" for k, value in attrs.items())
            arguments.append(f"{name}::Attrs(){''.join(setters)}")
        outputs = (
            f"    EXPECT(op.{arg.name} == op.operation.output({i}));\n"
            for i, arg in enumerate(op.outputs)
            if arg.kind != VIEW_LIST
        )
        text += f"""  {{
    const {name} op(scope.WithOpName("node{n}"), {", ".join(arguments)});
    Check(scope.status());
{"".join(outputs)}  }}
"""
    return f"void EveryClass(const Scope& scope) {{\n{text}}}\n"


@pytest.fixture
def every_class() -> list[Any]:
    return calls_of_every_class()


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The test program, of installed headers and libraries as docs/cpp.md says."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "every_class.h").write_text(source_of_every_class())
    lib, tensorflow_lib = tf_bn_ops.get_lib(), tf.sysconfig.get_lib()
    return built(
        HERE / "client.cc", f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltf_bn_ops_client",
        f"-Wl,-rpath,{tensorflow_lib}", "-l:libtensorflow_cc.so.2",
        includes=[folder, HERE, tf_bn_ops.get_include()],
        libraries=[pathlib.Path(lib, "libtf_bn_ops_client.so")],
    )  # fmt: skip


@pytest.fixture(scope="session")
def run_client(client: pathlib.Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_client(arguments..., cwd=folder, VARIABLE=value...): runs it to its end."""

    def run(
        *arguments: object, cwd: pathlib.Path = HERE, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(client), *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that compile the program belong to the long tier."""
    for item in items:
        if "client" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)
