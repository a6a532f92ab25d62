"""The block: its class, and the command bn_grad_block with its .npy files and error messages."""

from __future__ import annotations

import io
import os
import pathlib
import re
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tf_bn_ops

VECTORS = ("scale", "reserve_space_1", "reserve_space_2")
EX = "TfBnOps>FusedBatchNormEx"


def long(*values) -> object:
    """A parameter of the long tier: further ways to the same sentence. Each run links TensorFlow's
    C++ library, which takes a third of a second."""
    return pytest.param(*values, marks=pytest.mark.long)


def test_the_class(run_program):
    result = run_program("client", "block")
    assert result.returncode == 0, result.stderr


def bn_grad_block(
    folder: pathlib.Path, op: str, attributes: str = "", *arguments: str, **pins: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command in `folder`, as the console script of the package does."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "tf_bn_ops._bn_grad_block"),
            *(f"--op={op}", f"--attributes={attributes}", "--output_dir=out"),
            *arguments,
            *(f"{name}={file}" for name, file in pins.items()),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # Some versions of TensorFlow log there whatever the log level is.
    result.stderr = re.sub(
        r"^(WARNING: All log messages before absl|[IW]\d{4} ).*\n", "", result.stderr, flags=re.M
    )
    return result


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr of a run that failed."""
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    found = re.fullmatch(r"error: (.*[^.])\.", line)
    assert found, line
    return found.group(1)


def make_pins(
    folder: pathlib.Path, dtype: type | np.dtype = np.float32, shape: tuple[int, ...] = (2, 3, 4, 5)
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    pins = {name: rng.normal(size=shape).astype(dtype) for name in ("y_backprop", "x")}
    pins |= {name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in VECTORS}
    for name, array in pins.items():
        np.save(folder / f"{name}.npy", array)
    return pins


def forward_pins(folder: pathlib.Path, is_training: bool) -> dict[str, np.ndarray]:
    """Those of the forward ops, NHWC, and their files."""
    rng = np.random.default_rng(5)
    pins = {"x": rng.normal(2, 1, (2, 3, 4, 5)).astype(np.float32)}
    pins |= {n: rng.uniform(0.5, 2, 5).astype(np.float32) for n in ("scale", "offset")}
    size = 0 if is_training else 5
    pins |= {n: rng.uniform(0.5, 2, size).astype(np.float32) for n in ("mean", "variance")}
    for name, array in pins.items():
        np.save(folder / f"{name}.npy", array)
    return pins


@pytest.fixture
def pins(tmp_path: pathlib.Path) -> dict[str, str]:
    """Good pins of V1 and V2, NCHW, in files."""
    return {name: f"{name}.npy" for name in make_pins(tmp_path)}


NCHW = "epsilon_=0.001;data_format_=NCHW;is_training_=true"


@pytest.mark.parametrize(
    ("prefix", "version"),
    [*(("TfBnOps>", v) for v in ("", "V2", "V3")), ("", "V3"), long("", ""), long("", "V2")],
)
def test_results_are_those_of_python(tmp_path, prefix, version):
    dtype = np.float32 if version != "V2" else np.float16
    arrays = make_pins(tmp_path, dtype)
    if version == "V3":
        arrays["reserve_space_3"] = np.zeros(0, np.float32)
        np.save(tmp_path / "reserve_space_3.npy", arrays["reserve_space_3"])
    op = f"FusedBatchNormGrad{version}"
    result = bn_grad_block(tmp_path, prefix + op, NCHW, **{n: f"{n}.npy" for n in arrays})
    assert result.returncode == 0, result.stderr
    assert (result.stdout, result.stderr) == ("", "")
    module = tf_bn_ops.raw_ops if prefix else tf.raw_ops
    python = getattr(module, op)(**arrays, epsilon=0.001, data_format="NCHW", is_training=True)
    for name, tensor in python._asdict().items():
        written = np.load(tmp_path / "out" / f"{name}.npy")
        assert written.dtype == tensor.numpy().dtype
        assert written.shape == tensor.shape
        assert written.tobytes() == tensor.numpy().tobytes()
    assert len(list((tmp_path / "out").iterdir())) == 5


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("prefix", "version"),
    [
        *(("TfBnOps>", "V3"), ("", "")),
        *(long("TfBnOps>", ""), long("TfBnOps>", "V2"), long("", "V2"), long("", "V3")),
    ],
)
def test_forward_results_are_those_of_python(tmp_path, prefix, version, is_training):
    """The pins and results of enuSpace's block; in training mean and variance are empty there."""
    arrays = forward_pins(tmp_path, is_training)
    op = f"FusedBatchNorm{version}"
    result = bn_grad_block(
        tmp_path,
        prefix + op,
        f"epsilon_=0.001;is_training_={str(is_training).lower()};",
        **{n: f"{n}.npy" for n in arrays},
    )
    assert result.returncode == 0, result.stderr
    module = tf_bn_ops.raw_ops if prefix else tf.raw_ops
    python = getattr(module, op)(**arrays, epsilon=0.001, is_training=is_training)
    for name, tensor in python._asdict().items():
        written = np.load(tmp_path / "out" / f"{name}.npy")
        assert written.shape == tensor.shape
        # Frozen, TensorFlow may leave the reserve spaces unwritten.
        if prefix or is_training or not name.startswith("reserve"):
            assert written.tobytes() == tensor.numpy().tobytes()
    assert len(list((tmp_path / "out").iterdir())) == (6 if version == "V3" else 5)


@pytest.mark.parametrize("side_input", [False, True])
def test_forward_with_activation_and_side_input(tmp_path, side_input):
    """The side input is a pin that may stay unset."""
    arrays = forward_pins(tmp_path, is_training=False)
    pins = {name: f"{name}.npy" for name in arrays}
    side = np.full((2, 3, 4, 5), 2, np.float32)
    np.save(tmp_path / "side.npy", side)
    if side_input:
        pins["side_input"] = "side.npy"
    attributes = "is_training_=false;activation_mode_=Relu6;bessel_correction_=false"
    result = bn_grad_block(tmp_path, EX, attributes, **pins)
    assert result.returncode == 0, result.stderr
    python = tf_bn_ops.raw_ops.FusedBatchNormEx(
        **arrays,
        side_input=[side] if side_input else [],
        is_training=False,
        activation_mode="Relu6",
        bessel_correction=False,
    )
    assert np.load(tmp_path / "out" / "y.npy").tobytes() == python.y.numpy().tobytes()


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_training_backprop_in_every_type_of_a_file(tmp_path, dtype):
    rng = np.random.default_rng(4)
    names = ["input", "gamma", "beta", "mean", "variance", "normalized_delta"]
    arrays = {
        name: rng.uniform(0.5, 2, (4, 3) if name in (names[0], names[5]) else 3).astype(dtype)
        for name in names
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    result = bn_grad_block(
        tmp_path,
        "TfBnOps>BatchNormTrainingBackprop",
        "epsilon_=0.3",
        **{name: f"{name}.npy" for name in names},
    )
    assert result.returncode == 0, result.stderr
    python = tf.function(
        lambda: tf_bn_ops.raw_ops.BatchNormTrainingBackprop(**arrays, epsilon=0.3)
    )()
    for name, tensor in python._asdict().items():
        written = np.load(tmp_path / "out" / f"{name}.npy")
        assert written.dtype.itemsize == np.dtype(dtype).itemsize
        # NumPy stores bfloat16 as two opaque bytes.
        assert written.view(dtype).shape == tensor.shape
        assert written.tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize(
    "attributes",
    [
        long(""),
        long("epsilon=1e-4"),
        " epsilon_ = 1e-4 ; data_format_=NHWC ; is_training_=true ; ",
        "is_training=true;",
    ],
)
def test_spellings_of_attributes(tmp_path, pins, attributes):
    for name in ("y_backprop", "x"):
        np.save(tmp_path / f"{name}.npy", np.ones((2, 2, 2, 3), np.float32))
    result = bn_grad_block(tmp_path, "TfBnOps>FusedBatchNormGrad", attributes, **pins)
    assert result.returncode == 0, result.stderr


# ---- What is wrong, in one sentence --------------------------------------------------------------

V2 = "TfBnOps>FusedBatchNormGradV2"


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("", "", "no op is given: name one as in --op='TfBnOps>FusedBatchNormGrad'"),
        (
            "FusedBatchNormGradV9",
            "",
            'there is no block for the op "FusedBatchNormGradV9": there is one for '
            "TfBnOps>FusedBatchNorm, TfBnOps>FusedBatchNormV2, TfBnOps>FusedBatchNormV3, "
            "TfBnOps>FusedBatchNormEx, "
            "TfBnOps>FusedBatchNormGrad, TfBnOps>FusedBatchNormGradV2, "
            "TfBnOps>FusedBatchNormGradV3, TfBnOps>BatchNormTrainingBackprop, FusedBatchNorm, "
            "FusedBatchNormV2, FusedBatchNormV3, FusedBatchNormGrad, "
            "FusedBatchNormGradV2 and FusedBatchNormGradV3",
        ),
        (
            V2,
            "eps_=0.1",
            f'{V2} has no attribute "eps_": it has epsilon_, data_format_ and is_training_',
        ),
        long(
            V2,
            "T=float",
            f'{V2} has no attribute "T": it has epsilon_, data_format_ and is_training_',
        ),
        (
            "TfBnOps>BatchNormTrainingBackprop",
            "epsilon_=1;is_training_=true",
            'TfBnOps>BatchNormTrainingBackprop has no attribute "is_training_": it has epsilon_',
        ),
        (
            "TfBnOps>BatchNormTrainingBackprop",
            "",
            "the attribute epsilon_ of TfBnOps>BatchNormTrainingBackprop is missing: it has no "
            "default",
        ),
        (
            EX,
            "num_side_inputs_=1",
            f'{EX} has no attribute "num_side_inputs_": it has epsilon_, exponential_avg_factor_, '
            "activation_mode_, data_format_, is_training_ and bessel_correction_",
        ),
        (
            EX,
            "activation_mode_=Elu",
            'the attribute activation_mode_ must be Identity, Relu or Relu6, but is "Elu"',
        ),
        *(
            parameter(
                V2,
                f"is_training_=true;{piece};epsilon_=1",
                "attributes must be name=value, separated by semicolons, as in "
                "epsilon_=0.001;data_format_=NCHW;is_training_=true, but one is "
                f'"{piece}"',
            )
            for parameter, piece in zip(
                (pytest.param, long, long, long), ("epsilon_", "=1", "", "epsilon_:1"), strict=True
            )
        ),
        *(
            (pytest.param if value == "0.1x" else long)(
                V2,
                f"epsilon_={value}",
                f'the attribute epsilon_ must be a number, but is "{value}"',
            )
            for value in ("0.1x", "", "small", "1e", "nan", "inf", "1,5", "1e999")
        ),
        (
            V2,
            "epsilon_=1e300",
            'the attribute epsilon_ must be a number that a float can hold, but is "1e300"',
        ),
        (
            V2,
            "data_format_=NDHWC",
            'the attribute data_format_ must be NHWC or NCHW, but is "NDHWC"',
        ),
        (
            "TfBnOps>FusedBatchNormGradV3",
            "data_format_=nchw",
            'the attribute data_format_ must be NHWC, NCHW, NDHWC or NCDHW, but is "nchw"',
        ),
        (V2, "is_training_=1", 'the attribute is_training_ must be true or false, but is "1"'),
        (V2, "epsilon_=1;epsilon=2", "the attribute epsilon is given twice"),
    ],
)
def test_wrong_ops_and_attributes(tmp_path, pins, op, attributes, expected):
    assert sentence(bn_grad_block(tmp_path, op, attributes, **pins)) == expected
    assert not (tmp_path / "out").exists()


def test_missing_pins(tmp_path, pins):
    del pins["scale"]
    assert sentence(bn_grad_block(tmp_path, V2, NCHW, **pins)) == (
        f"the input scale of {V2} is not set"
    )
    del pins["y_backprop"]
    assert sentence(bn_grad_block(tmp_path, "FusedBatchNormGrad", NCHW, **pins)) == (
        "the inputs y_backprop and scale of FusedBatchNormGrad are not set"
    )


def test_wrong_arguments(tmp_path, pins):
    assert sentence(bn_grad_block(tmp_path, V2, "", "scale.npy", **pins)) == (
        'inputs are given as name=file.npy, but one is "scale.npy"'
    )
    assert sentence(bn_grad_block(tmp_path, V2, "", "x=x.npy", **pins)) == (
        "the input x is given twice"
    )
    assert sentence(bn_grad_block(tmp_path, V2, "", **pins, offset="x.npy")) == (
        f'{V2} has no input "offset": it has y_backprop, x, scale, reserve_space_1 and '
        "reserve_space_2"
    )
    assert sentence(bn_grad_block(tmp_path, V2, "", "--no_such_flag=1", **pins)) == (
        "there is no flag --no_such_flag=1: see bn_grad_block --help"
    )


def test_help(tmp_path):
    result = bn_grad_block(tmp_path, "", "", "--help")
    assert result.returncode == 0, result.stderr
    for flag in ("--op", "--attributes", "--output_dir", "--library"):
        assert flag in result.stdout


def test_wrong_types(tmp_path, pins):
    np.save(tmp_path / "x.npy", np.ones((2, 3, 4, 5)))
    assert sentence(bn_grad_block(tmp_path, V2, NCHW, **pins)) == (
        f"the input x of {V2} must be half, bfloat16 or float, but is double"
    )
    np.save(tmp_path / "x.npy", np.ones((2, 3, 4, 5), np.float16))
    assert sentence(bn_grad_block(tmp_path, V2, NCHW, **pins)) == (
        f"the inputs y_backprop and x of {V2} must have one type, but are float and half"
    )
    assert sentence(bn_grad_block(tmp_path, "FusedBatchNormGrad", NCHW, **pins)) == (
        "the input x of FusedBatchNormGrad must be float, but is half"
    )


def test_wrong_shapes(tmp_path, pins):
    """The kernel's own messages."""
    np.save(tmp_path / "scale.npy", np.ones(4, np.float32))
    result = bn_grad_block(tmp_path, V2, NCHW, **pins)
    assert result.returncode == 1
    assert "scale must have the same number of elements as the channels of x" in result.stderr


def test_no_op_library(tmp_path, pins):
    result = bn_grad_block(tmp_path, V2, NCHW, "--library=missing.so", **pins)
    assert sentence(result).startswith("missing.so does not exist: ")


def test_output_folder_that_cannot_be_created(tmp_path, pins):
    (tmp_path / "out").write_text("a file")
    found = sentence(bn_grad_block(tmp_path, V2, NCHW, **pins))
    assert found.startswith(("out/x_backprop.npy cannot be written: ", "the folder out cannot "))


# ---- .npy files ----------------------------------------------------------------------------------


def npy(
    header: str | None = None,
    version: tuple[int, int] = (1, 0),
    data: bytes = b"\0" * 12,
    magic: bytes = b"\x93NUMPY",
) -> bytes:
    """A file; by default a good one, of three zeros."""
    if header is None:
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
    text = header.encode("utf-8") + b"\n"
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return magic + bytes(version) + length + text + data


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BAD_HEADER = (
    "has a header that describes no plain array: write it with numpy.save() from an array of "
    "float16, float32 or float64"
)
TRUNCATED = "is truncated: copy or write it again"
FORTRAN = "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 3), }"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (npy(magic=b"\x93NUMPX"), "is no .npy file: write it with numpy.save()"),
        long(b"", "is no .npy file: write it with numpy.save()"),
        long(b"PK\3\4 an .npz file", "is no .npy file: write it with numpy.save()"),
        long(npy()[:6], TRUNCATED),
        long(npy()[:9], TRUNCATED),
        long(npy()[:40], TRUNCATED),
        (npy()[:-1], TRUNCATED),
        long(npy(version=(2, 0))[:10], TRUNCATED),
        (npy(data=b"\0" * 13), "is longer than its header says: copy or write it again"),
        (
            npy(version=(4, 0)),
            "has version 4 of the .npy format, of which versions 1 to 3 are known",
        ),
        (npy(FORTRAN), "is in Fortran order: convert it with numpy.ascontiguousarray()"),
        (
            saved(np.ones(3, ">f4")),
            "is big-endian (>f4): convert it with array.astype(array.dtype.newbyteorder('<'))",
        ),
        (
            saved(np.ones(3, np.int32)),
            "holds elements of type <i4: convert it to float16, float32 or float64 (or bfloat16)",
        ),
        long(saved(np.array(["text"])), "holds elements of type <U4: convert it to float16, "
         "float32 or float64 (or bfloat16)"),
        long(saved(np.zeros(3, [("a", "<f4")])), BAD_HEADER),
        (npy("nothing"), BAD_HEADER),
        long(npy("{'descr': '<f4', 'fortran_order': False, }"), BAD_HEADER),
        long(npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (3,), }"), BAD_HEADER),
        long(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }"), BAD_HEADER),
        long(npy("{'descr': '<f4', 'fortran_order': False, 'shape': 3, }"), BAD_HEADER),
        long(npy("{'descr': '<f4, 'fortran_order': False, 'shape': (3,), }"), BAD_HEADER),
        long(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': 1}"), BAD_HEADER),
        long(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } x"), BAD_HEADER),
        long(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 30 + ",), }"),
         BAD_HEADER),
        (
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
            "has a shape that is too large for a tensor",
        ),
        long(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }"),
         TRUNCATED),
        long(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 300 + "), }"),
         "has a shape that is too large for a tensor"),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path, pins, content, expected):
    (tmp_path / "scale.npy").write_bytes(content)
    assert sentence(bn_grad_block(tmp_path, V2, NCHW, **pins)) == f"scale.npy {expected}"


def test_missing_file(tmp_path, pins):
    pins["x"] = "missing.npy"
    assert sentence(bn_grad_block(tmp_path, V2, NCHW, **pins)).startswith(
        "missing.npy cannot be read: "
    )


def test_pickles_are_not_opened(tmp_path, pins):
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    assert "holds elements of type |O" in sentence(bn_grad_block(tmp_path, V2, NCHW, **pins))


@pytest.mark.parametrize(
    "content",
    [
        long(npy(version=(1, 0))),
        long(npy(version=(2, 0))),
        npy(version=(3, 0)),
        # One dimension is the same in both orders.
        npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }"),
        npy('{"shape":(3,),"descr":"<f4","fortran_order":False}'),
    ],
)
def test_unusual_files_that_are_right(tmp_path, pins, content):
    (tmp_path / "scale.npy").write_bytes(content)
    assert np.load(io.BytesIO(content)).tolist() == [0, 0, 0]
    result = bn_grad_block(tmp_path, V2, NCHW, **pins)
    assert result.returncode == 0, result.stderr
    # With a scale of zeros.
    assert not np.load(tmp_path / "out" / "x_backprop.npy").any()
