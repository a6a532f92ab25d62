"""The C++ classes: source-compatible with TensorFlow's, results as in Python, C++ gradients."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

import tf_bn_ops
from tf_bn_ops.spec import DATA_FORMATS, DTYPES, OPS, VIEW_LIST, of_formula
from tf_bn_ops.spec.ops import BATCH_NORM

NGRAPH = "BatchNormTrainingBackprop"
EX = "FusedBatchNormEx"


@dataclasses.dataclass
class Case:
    """One call: op, types, layout, attrs (epsilon None: all by default)."""

    op: str
    dtype: str = "float32"
    data_format: str = "NHWC"
    is_training: bool = True
    epsilon: float | None = 1e-3
    shape: tuple[int, ...] = (3, 5, 4, 6)  # of the channels-last layout, but for nGraph's
    outputs: tuple[int, ...] = (0, 1, 2)  # which get a gradient
    # Of forward ops.
    exponential_avg_factor: float = 1.0
    activation_mode: str = "Identity"
    bessel_correction: bool = True
    side_input: bool = False

    @property
    def channels_last(self) -> bool:
        return self.op != NGRAPH and DATA_FORMATS[self.data_format][1]

    @property
    def inputs(self) -> list[np.ndarray]:
        """In the order of the op; the statistics are about those of x."""
        shape = list(self.shape)
        if self.op == NGRAPH:
            channels = shape[1]
        else:
            if len(self.data_format) == 5:
                shape.insert(1, 2)
            channels = shape[-1]
            if not self.channels_last:
                shape.insert(1, shape.pop())
        rng = np.random.default_rng(len(self.op) + shape[-1])
        numpy = DTYPES[self.dtype].numpy
        vectors = np.dtype(DTYPES[OPS[self.op].statistics_dtype(self.dtype)].numpy)
        roles: dict[str, np.ndarray] = {
            "y_backprop": rng.normal(0.5, 1, shape).astype(numpy),
            "x": rng.normal(1, 2, shape).astype(numpy),
            "scale": rng.normal(1, 0.5, channels).astype(vectors),
            "offset": rng.normal(0, 1, channels).astype(vectors),
            "mean": rng.normal(1, 0.1, channels).astype(vectors),
            "variance": rng.uniform(3, 5, channels).astype(vectors),
            "forward_coefficients": np.zeros(0, vectors),
            "side_input": rng.normal(0, 1, shape).astype(numpy),
        }
        return [
            roles[arg.role]
            for arg in OPS[self.op].inputs
            if arg.kind != VIEW_LIST or self.side_input
        ]

    @property
    def attrs(self) -> dict[str, Any]:
        if self.epsilon is None:
            return {}
        if self.op == NGRAPH:
            return {"epsilon": self.epsilon}
        values = {
            "epsilon": self.epsilon,
            "data_format": self.data_format,
            "is_training": self.is_training,
            "exponential_avg_factor": self.exponential_avg_factor,
            "activation_mode": self.activation_mode,
            "bessel_correction": self.bessel_correction,
        }
        return {name: values[name] for name in OPS[self.op].attrs}

    def grads(self) -> list[np.ndarray]:
        """Gradients with respect to the first three outputs."""
        roles = [arg.role for arg in OPS[self.op].inputs]
        by_role = dict(zip(roles, self.inputs, strict=False))
        rng = np.random.default_rng(7)
        like = [by_role["x"], by_role["scale"], by_role["scale"]]
        return [rng.normal(0, 1, a.shape).astype(a.dtype) for a in like]

    def call(self, module: Any, inputs: list[Any]) -> list[Any]:
        def call(*values: Any) -> Any:
            rest = list(values)
            named = {
                arg.name: rest[:] if arg.kind == VIEW_LIST else rest.pop(0)
                for arg in OPS[self.op].inputs
            }
            return getattr(module, self.op)(**named, **self.attrs)

        # In a graph, as in C++.
        return list(tf.function(call)(*map(tf.constant, inputs)))

    def write(self, folder: pathlib.Path, with_gradients: bool = False) -> pathlib.Path:
        """The case as the test programs read it."""
        folder.mkdir()
        data_format = "-" if self.epsilon is None else self.data_format
        (folder / "case").write_text(
            f"{self.op} {self.epsilon or 0!r} {data_format} {self.is_training:d} "
            f"{self.exponential_avg_factor!r} {self.activation_mode} {self.bessel_correction:d}"
        )
        for i, array in enumerate(self.inputs):
            write_tensor(folder / f"input{i}.pb", array)
        if with_gradients:
            for i, array in enumerate(self.grads()):
                if i in self.outputs:
                    write_tensor(folder / f"grad{i}.pb", array)
        return folder

    def __str__(self) -> str:
        mode = "training" if self.is_training else "frozen"
        attrs = f"{self.data_format}-{mode}" if self.epsilon is not None else "defaults"
        if self.op in FORWARD:
            attrs += f"-{self.exponential_avg_factor}-{self.activation_mode}"
            attrs += "-side_input" * self.side_input + "-biased" * (not self.bessel_correction)
        return f"{self.op}-{self.dtype}-{attrs}-{len(self.shape)}d-{self.outputs}"


def write_tensor(path: pathlib.Path, array: np.ndarray) -> None:
    path.write_bytes(tf.make_tensor_proto(array).SerializeToString())


def read_tensor(path: pathlib.Path) -> np.ndarray:
    return tf.make_ndarray(tensor_pb2.TensorProto.FromString(path.read_bytes()))


def write_all(cases: list[Case], folder: pathlib.Path, **options: Any) -> list[pathlib.Path]:
    return [case.write(folder / str(i), **options) for i, case in enumerate(cases)]


FUSED = [name for name, op in OPS.items() if op.builtin]
FORWARD = [*(op.name for op in of_formula(BATCH_NORM)), EX]

SAME_SOURCE = [
    *(Case(op, epsilon=None) for op in FUSED),
    *(
        Case(op, dtype, data_format, is_training, exponential_avg_factor=factor)
        for op in FUSED
        for dtype in OPS[op].dtypes
        for data_format in OPS[op].layouts
        for is_training in (True, False)
        for factor in ((1.0, 0.25) if op in FORWARD else (1.0,))
    ),
]


@pytest.fixture(scope="module", params=["builtin", "ours"])
def same_source_results(request, run_program, tmp_path_factory):
    """(namespace, output, results per case) of tests/cpp/same_source.cc."""
    # The built-in on the CPU refuses channels-first frozen.
    cases = [
        case
        for case in SAME_SOURCE
        if request.param == "ours" or case.channels_last or case.is_training
    ]
    folders = write_all(cases, tmp_path_factory.mktemp(request.param))
    result = run_program(request.param, *folders)
    assert result.returncode == 0, result.stderr
    results = [
        [read_tensor(folder / f"output{i}.pb") for i in range(len(OPS[case.op].outputs))]
        for case, folder in zip(cases, folders, strict=True)
    ]
    return request.param, result.stdout, list(zip(cases, results, strict=True))


def test_same_source_is_bitwise_identical_to_python(same_source_results):
    which, _, results = same_source_results
    module = tf_bn_ops.raw_ops if which == "ours" else tf.raw_ops
    for case, outputs in results:
        python_outputs = case.call(module, case.inputs)
        assert len(outputs) == len(python_outputs)
        if which == "builtin" and case.op in FORWARD and not case.is_training:
            # Frozen, TensorFlow may leave the reserve spaces unwritten.
            outputs, python_outputs = outputs[:3], python_outputs[:3]
        for ours, python in zip(outputs, python_outputs, strict=True):
            assert ours.dtype == python.numpy().dtype, str(case)
            assert ours.shape == python.shape, str(case)
            assert ours.tobytes() == python.numpy().tobytes(), str(case)


def test_same_source_has_the_same_errors(same_source_results):
    """In the status of the scope, and a node where TensorFlow's own class has one."""
    _, printed, _ = same_source_results
    code = int(tf.errors.INVALID_ARGUMENT)
    # Types and formats are found before there is a node, shapes after.
    # Each once for a gradient and once for a forward op.
    assert printed.splitlines() == [
        f"{code} {no_node}" for no_node in (1, 0, 1, 1, 0) for _ in range(2)
    ]


def test_training_backprop_is_bitwise_identical_to_python(run_program, tmp_path):
    cases = [
        Case(NGRAPH, dtype, shape=shape, epsilon=epsilon)
        for dtype in OPS[NGRAPH].dtypes
        for shape, epsilon in (((5, 3), 1e-3), ((2, 3, 4), 1 / 3), ((2, 3, 2, 3, 2), 0.0))
    ]
    folders = write_all(cases, tmp_path)
    result = run_program("client", "ops", *folders)
    assert result.returncode == 0, result.stderr
    for case, folder in zip(cases, folders, strict=True):
        for i, python in enumerate(case.call(tf_bn_ops.raw_ops, case.inputs)):
            assert read_tensor(folder / f"output{i}.pb").tobytes() == python.numpy().tobytes()


EX_CASES = [
    Case(EX, dtype, data_format, is_training, exponential_avg_factor=factor,
         activation_mode=activation, bessel_correction=factor == 1, side_input=side_input)
    for dtype, data_format, factor in (
        ("float32", "NHWC", 1.0), ("half", "NCDHW", 0.25), ("bfloat16", "NCHW", 1.0)
    )
    for is_training in (True, False)
    for activation in ("Identity", "Relu", "Relu6")
    for side_input in (False, True)
]  # fmt: skip


def test_ex_is_bitwise_identical_to_python(run_program, tmp_path):
    folders = write_all(EX_CASES, tmp_path)
    result = run_program("client", "ops", *folders)
    assert result.returncode == 0, result.stderr
    for case, folder in zip(EX_CASES, folders, strict=True):
        for i, python in enumerate(case.call(tf_bn_ops.raw_ops, case.inputs)[:5]):
            output = read_tensor(folder / f"output{i}.pb")
            assert output.tobytes() == python.numpy().tobytes(), str(case)


# ---- Gradients of the forward ops ----------------------------------------------------------------

FORWARD_GRADIENTS = [
    *(
        Case(op, dtype, data_format, is_training, outputs=(0,))
        for op in FORWARD
        if op != EX
        for dtype in OPS[op].dtypes
        for data_format in OPS[op].layouts
        for is_training in (True, False)
    ),
    *(dataclasses.replace(case, outputs=(0,)) for case in EX_CASES),
]


def first_order(case: Case, inputs: list[Any]) -> list[Any]:
    """Python's gradients of y by x, scale, offset and the side input."""
    wanted = [*inputs[:3], *inputs[5:]]
    with tf.GradientTape() as tape:
        tape.watch(wanted)
        y = case.call(tf_bn_ops.raw_ops, inputs)[0]
    return tape.gradient(y, wanted, tf.constant(case.grads()[0]))


def test_gradients_of_the_forward_ops_are_bitwise_identical_to_python(run_program, tmp_path):
    """One FusedBatchNormGrad, V2 or V3 in both."""
    folders = write_all(FORWARD_GRADIENTS, tmp_path, with_gradients=True)
    result = run_program("client", "gradients", *folders)
    assert result.returncode == 0, result.stderr
    for case, folder in zip(FORWARD_GRADIENTS, folders, strict=True):
        inputs = [tf.constant(value) for value in case.inputs]
        indices = (0, 1, 2, 5)
        for i, python in zip(indices, first_order(case, inputs), strict=False):
            output = read_tensor(folder / f"output{i}.pb")
            assert output.any(), str(case)
            np.testing.assert_array_equal(output, python, str(case))


@pytest.mark.parametrize(
    "case",
    [
        *(Case(op, outputs=(0,)) for op in FORWARD if op != EX),
        Case("FusedBatchNormV3", data_format="NCDHW", is_training=False, outputs=(0,)),
        Case(EX, activation_mode="Relu6", side_input=True, outputs=(0,)),
        Case(EX, data_format="NCHW", activation_mode="Relu", is_training=False, outputs=(0,)),
    ],
    ids=str,
)
def test_second_derivatives_of_the_forward_ops_are_those_of_python(case, run_program, tmp_path):
    """Of the sum of all gradients; both by FusedBatchNormGradGrad, sums in another order."""
    folder = case.write(tmp_path / "case", with_gradients=True)
    result = run_program("client", "gradients_of_sum", folder)
    assert result.returncode == 0, result.stderr
    inputs = [tf.constant(value) for value in case.inputs]
    indices = [0, 1, 2, 5][: 4 if case.side_input else 3]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        first = first_order(case, inputs)
    second = tape.gradient(
        first, [inputs[i] for i in indices], unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    assert np.any(second[0])
    largest = max(np.abs(want).max() for want in second)
    for i, want in zip(indices, second, strict=True):
        path = folder / f"output{i}.pb"
        # The gradients depend on x and scale alone.
        got = read_tensor(path) if i < 2 or path.exists() else np.zeros(want.shape, np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * largest)


# ---- Second-order gradients ----------------------------------------------------------------------

GRADIENTS = [
    Case("FusedBatchNormGrad", is_training=True),
    Case("FusedBatchNormGrad", data_format="NCHW", is_training=False),
    *(
        Case("FusedBatchNormGradV3", data_format=data_format, is_training=is_training)
        for data_format in DATA_FORMATS
        for is_training in (True, False)
    ),
    *(
        Case(op, dtype, data_format, is_training)
        for op in ("FusedBatchNormGradV2", "FusedBatchNormGradV3")
        for dtype in ("half", "bfloat16")
        for data_format in ("NHWC", "NCHW")
        for is_training in (True, False)
    ),
    *(
        Case(NGRAPH, dtype, shape=shape)
        for dtype in OPS[NGRAPH].dtypes
        for shape in ((9, 3), (2, 3, 4), (2, 3, 2, 3, 2))
    ),
    # One output alone gets a gradient.
    *(
        Case("FusedBatchNormGradV3", data_format="NCHW", is_training=is_training, outputs=(i,))
        for is_training in (True, False)
        for i in range(3)
    ),
]


def second_order(case: Case, inputs: list[Any], grads: list[Any]) -> list[np.ndarray]:
    """Python's gradients of the three outputs with respect to dy, x and scale."""
    with tf.GradientTape() as tape:
        inputs = [tf.constant(value) for value in inputs]
        tape.watch(inputs)
        outputs = case.call(tf_bn_ops.raw_ops, inputs)[:3]
        outputs = [outputs[i] for i in case.outputs]
    roles = [arg.role for arg in OPS[case.op].inputs]
    wanted = [inputs[i] for i, role in enumerate(roles) if role in ("y_backprop", "x", "scale")]
    gradients = tape.gradient(
        outputs, wanted, [grads[i] for i in case.outputs], tf.UnconnectedGradients.ZERO
    )
    return [np.asarray(gradient) for gradient in gradients]


def oracle(case: Case) -> list[np.ndarray]:
    """The same in float64: in training Python's gradient of our op of that type, transposed to the
    layout of nGraph; frozen by the formula. In the order and layout of `second_order`."""
    roles = [arg.role for arg in OPS[case.op].inputs]
    value = {r: a.astype(np.float64) for r, a in zip(roles, case.inputs, strict=True)}
    first = lambda a: np.moveaxis(a, -1, 1) if case.channels_last and a.ndim > 1 else a  # noqa: E731
    last = lambda a: np.moveaxis(a, 1, -1) if case.channels_last and a.ndim > 1 else a  # noqa: E731
    grads = [first(g.astype(np.float64)) * (i in case.outputs) for i, g in enumerate(case.grads())]
    # The epsilon that the op has: a float, but in nGraph's op.
    ngraph = case.op == NGRAPH
    epsilon = case.epsilon if ngraph else float(np.float32(case.epsilon))
    value = {role: first(array) for role, array in value.items()}
    if case.is_training:
        twin = Case(NGRAPH, "float64", epsilon=epsilon)
        zeros = np.zeros_like(value["scale"])
        inputs = [value["x"], value["scale"], zeros, zeros, zeros + 1, value["y_backprop"]]
        result = dict(
            zip(("x", "scale", "y_backprop"), second_order(twin, inputs, grads), strict=True)
        )
    else:
        shape = (-1,) + (1,) * (value["x"].ndim - 2)
        rstd = 1 / np.sqrt(value["variance"] + epsilon)
        others = tuple(i for i in range(value["x"].ndim) if i != 1)
        rows = {name: a.reshape(shape) for name, a in value.items() if a.size and a.ndim == 1}
        r, gs, go = (a.reshape(shape) for a in (rstd, grads[1], grads[2]))
        result = {
            "y_backprop": grads[0] * rows["scale"] * r + gs * (value["x"] - rows["mean"]) * r + go,
            "x": gs * value["y_backprop"] * r,
            "scale": rstd * (grads[0] * value["y_backprop"]).sum(others),
        }
    return [last(result[role]) for role in roles if role in result]


@pytest.fixture(scope="module")
def gradient_results(run_program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    folders = write_all(GRADIENTS, folder, with_gradients=True)
    result = run_program("client", "gradients", *folders)
    assert result.returncode == 0, result.stderr
    return {str(case): folder for case, folder in zip(GRADIENTS, folders, strict=True)}


@pytest.mark.parametrize("case", GRADIENTS, ids=str)
def test_symbolic_gradients_are_those_of_python(case, gradient_results):
    """Both have an error against float64; ours may be a few times Python's, which comes from sums
    in another order, and a few roundings of the result's type."""
    python = second_order(case, case.inputs, case.grads())
    exact = oracle(case)
    roles = [arg.role for arg in OPS[case.op].inputs]
    indices = [i for i, role in enumerate(roles) if role in ("y_backprop", "x", "scale")]
    for i, p, r in zip(indices, python, exact, strict=True):
        c = read_tensor(gradient_results[str(case)] / f"output{i}.pb")
        assert c.dtype == p.dtype
        assert c.shape == p.shape == r.shape
        finfo = ml_dtypes.finfo(c.dtype)
        largest = np.max(np.abs(r))
        error = np.max(np.abs(c.astype(np.float64) - r))
        python_error = np.max(np.abs(p.astype(np.float64) - r))
        # Python's result is right, so that its error is a measure.
        assert python_error <= 32 * float(finfo.eps) * max(largest, 1)
        assert error <= 4 * python_error + 8 * float(finfo.eps) * largest
        # Zeros would not pass where the gradient is not zero.
        assert largest > 0 or not np.any(c)


@pytest.mark.parametrize(
    "case",
    [
        Case("FusedBatchNormGradV3", data_format="NHWC"),
        Case("FusedBatchNormGradV3", data_format="NCHW", is_training=False),
        Case(NGRAPH, "float64"),
    ],
    ids=str,
)
def test_third_order_symbolic_gradients_are_those_of_python(case, run_program, tmp_path):
    """Both compose TensorFlow ops of the same formulas: they differ by roundings, and where terms
    cancel (with respect to scale), by roundings of the terms."""
    folder = case.write(tmp_path / "case", with_gradients=True)
    result = run_program("client", "gradients_of_sum", folder)
    assert result.returncode == 0, result.stderr
    inputs = [tf.constant(value) for value in case.inputs]
    roles = [arg.role for arg in OPS[case.op].inputs]
    wanted = [i for i, role in enumerate(roles) if role in ("y_backprop", "x", "scale")]
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            outputs = case.call(tf_bn_ops.raw_ops, inputs)[:3]
        second = inner.gradient(outputs, [inputs[i] for i in wanted], output_gradients=case.grads())
    third = outer.gradient(second, [inputs[i] for i in wanted])
    largest = max(np.abs(want).max() for want in third)
    assert largest > 0
    for i, want in zip(wanted, third, strict=True):
        got = read_tensor(folder / f"output{i}.pb")
        tolerance = 64 * np.finfo(got.dtype).eps * largest
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


# ---- Loading -------------------------------------------------------------------------------------


def test_loading_is_explicit_and_idempotent(run_program):
    result = run_program("client", "load")
    assert result.returncode == 0, result.stderr
    before, after = result.stdout.splitlines()
    assert before == (
        "the op TfBnOps>FusedBatchNormGrad is not registered: call tf_bn_ops::LoadOpLibrary() "
        "before building a graph that holds it"
    )
    assert after == "0 "


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_loading_by_path(run_program, folder, by_variable):
    path = tf_bn_ops.get_lib() if folder else tf_bn_ops.library_path()
    if by_variable:
        result = run_program("client", "load", TF_BN_OPS_LIBRARY=path)
    else:
        result = run_program("client", "load", path, TF_BN_OPS_LIBRARY="/nonexistent")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1] == "0 "


def test_loading_what_is_missing_or_no_op_library(run_program, tmp_path):
    missing = run_program("client", "load", tmp_path / "missing.so").stdout.splitlines()[1]
    assert missing == (
        f"{int(tf.errors.NOT_FOUND)} {tmp_path}/missing.so does not exist: pass the path of one "
        "to tf_bn_ops::LoadOpLibrary()"
    )
    variable = run_program("client", "load", TF_BN_OPS_LIBRARY="/nonexistent").stdout
    assert "TF_BN_OPS_LIBRARY" in variable.splitlines()[1]
    (tmp_path / "text.so").write_text("no library")
    text = run_program("client", "load", tmp_path / "text.so").stdout.splitlines()[1]
    assert text.startswith(f"{int(tf.errors.FAILED_PRECONDITION)} {tmp_path}/text.so cannot be ")
    assert f"TensorFlow {tf.__version__}" in text
    empty = run_program("client", "load", tmp_path).stdout.splitlines()[1]
    assert f"{tmp_path}/libtf_bn_ops.so does not exist" in empty
    core = run_program("client", "load", f"{tf_bn_ops.get_lib()}/libtf_bn_ops_core.so").stdout
    assert "holds no ops of tf_bn_ops" in core.splitlines()[1]


def test_a_bare_name_is_a_file_of_this_folder(programs, tmp_path):
    """And none that the dynamic loader finds elsewhere."""
    command = [programs["client"], "load", "libtf_bn_ops.so"]
    environment = {**os.environ, "LD_LIBRARY_PATH": tf_bn_ops.get_lib()}
    for folder, code in ((tf_bn_ops.get_lib(), 0), (tmp_path, int(tf.errors.NOT_FOUND))):
        told = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert told.stdout.splitlines()[1].startswith(f"{code} "), told.stdout
        # A file that is none: what is tested and what is loaded is one.
    (tmp_path / "libtf_bn_ops.so").write_text("no library")
    told = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "./libtf_bn_ops.so cannot be loaded" in told.stdout.splitlines()[1]


def test_the_folders_are_there():
    assert (pathlib.Path(tf_bn_ops.get_include()) / "tf_bn_ops" / "ops.h").is_file()
    assert (pathlib.Path(tf_bn_ops.get_lib()) / "libtf_bn_ops_client.so").is_file()


@pytest.mark.long
def test_the_documented_commands_compile_the_example(repo_root, tmp_path):
    """The shell code of docs/cpp.md, unchanged."""
    code = re.search(r"^```sh\n(.*?)^```", (repo_root / "docs/cpp.md").read_text(), re.S | re.M)[1]
    shutil.copy(repo_root / "examples" / "graph_construction.cc", tmp_path)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    result = subprocess.run(
        ["bash", "-e", "-c", code + "./graph_construction"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "warning:" not in result.stderr, result.stderr[:1000]  # about TensorFlow's headers
    # Sums of 2048 products near 1, in float32; a wrong formula is off by far more.
    differences = re.findall(r"largest difference: (\S+)", result.stdout)
    assert len(differences) == 3
    assert all(float(difference) < 1e-2 for difference in differences)
