"""The block: its class, its results and its error messages, through the test program client.cc."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from op_calls import call_of, small
from tensorflow.core.framework import tensor_pb2

import tf_bn_ops
from tf_bn_ops.spec import ACTIVATIONS, OPS
from tf_bn_ops.spec.ops import BATCH_NORM

EX = "TfBnOps>FusedBatchNormEx"
V2 = "TfBnOps>FusedBatchNormGradV2"


def test_the_class(run_client):
    result = run_client("block")
    assert result.returncode == 0, result.stderr


@pytest.fixture
def run_block(run_client, tmp_path):
    """run_block(op, attributes, pins): the test program on arrays by name."""

    def run(op: str, attributes: str, pins: dict[str, np.ndarray]) -> subprocess.CompletedProcess:
        for name, array in pins.items():
            proto = tf.make_tensor_proto(array).SerializeToString()
            (tmp_path / f"{name}.pb").write_bytes(proto)
        words = (tmp_path, op, attributes, *pins)
        result = run_client("run_block", *words, TF_CPP_MIN_LOG_LEVEL="2")
        # Some versions of TensorFlow log there whatever the log level is.
        noise = r"^(WARNING: All log messages before absl|[IW]\d{4} ).*\n"
        result.stderr = re.sub(noise, "", result.stderr, flags=re.M)
        return result

    return run


def written(folder: pathlib.Path, name: str) -> np.ndarray:
    content = (folder / "out" / f"{name}.pb").read_bytes()
    return tf.make_ndarray(tensor_pb2.TensorProto.FromString(content))


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr of a run that failed."""
    assert result.returncode == 1, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    found = re.fullmatch(r"error: (.*[^.])\.", line)
    assert found, line
    return found.group(1)


@pytest.fixture
def pins() -> dict[str, np.ndarray]:
    """Good pins of V1 and V2, NCHW."""
    vectors = dict.fromkeys(("scale", "reserve_space_1", "reserve_space_2"), np.ones(3, np.float32))
    return dict.fromkeys(("y_backprop", "x"), np.ones((2, 3, 4, 3), np.float32)) | vectors


# Those whose attributes are numbers, booleans and text; by their names in the block, and where
# Python has them.
FIT = [
    op
    for op in OPS.values()
    if not {"axis", "num_side_inputs", "epsilon_rest"} & {*op.attrs, *op.derived_attrs}
]
BLOCKS = [
    *((op.registered_name, op, tf_bn_ops.raw_ops) for op in FIT),
    *((op.name, op, tf.raw_ops) for op in FIT if op.builtin),
]


@pytest.mark.parametrize("mode", ["training", "frozen"])
@pytest.mark.parametrize(("name", "op", "module"), BLOCKS, ids=[name for name, *_ in BLOCKS])
def test_results_are_those_of_python(run_block, tmp_path, name, op, module, mode):
    """The pins and results of enuSpace's block; in training mean and variance may be empty there,
    and a side input is a pin that may stay unset."""
    if mode not in op.modes:
        pytest.skip("has no mode")
    for number, dtype in enumerate(op.dtypes):
        call, tensors, attrs = call_of(small(op, op.layouts[0], mode, dtype=dtype, seed=number))
        if op.formula == BATCH_NORM and mode == "training":
            attrs["exponential_avg_factor"] = 1.0
            tensors |= dict.fromkeys(("mean", "variance"), tf.zeros([0]))
        words = {k: str(v).lower() if isinstance(v, bool) else v for k, v in attrs.items()}
        attributes = ";".join(f"{attr}_={word}" for attr, word in words.items())
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        result = run_block(name, attributes, {n: t.numpy() for n, t in tensors.items()})
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        python = tf.function(lambda t, c=call, a=attrs: c(t, module, **a))(tensors)._asdict()
        assert {path.stem for path in (tmp_path / "out").iterdir()} == {*python}
        for output, tensor in python.items():
            found = written(tmp_path, output)
            assert (found.dtype, found.shape) == (tensor.numpy().dtype, tensor.shape)
            # Frozen, TensorFlow may leave the reserve spaces unwritten.
            if module is tf_bn_ops.raw_ops or mode == "training" or "reserve" not in output:
                assert found.tobytes() == tensor.numpy().tobytes(), output


@pytest.mark.parametrize(
    "attributes",
    ["", "epsilon=1e-4", " epsilon_ = 1e-4 ; data_format_=NHWC ; is_training_=true ; "],
)
def test_spellings_of_attributes(run_block, pins, attributes):
    result = run_block("TfBnOps>FusedBatchNormGrad", attributes, pins)
    assert result.returncode == 0, result.stderr


# ---- What is wrong, in one sentence --------------------------------------------------------------

NUMBER = "a number that a float can hold"
V2_HAS = "it has data_format_, epsilon_, is_training_"


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        (V2, "eps=0.1", f'{V2} has no attribute "eps_": {V2_HAS}'),
        (V2, "T=float", f'{V2} has no attribute "T_": {V2_HAS}'),
        (V2, "epsilon_=1;=1", f'{V2} has no attribute "_": {V2_HAS}'),
        (
            EX,
            "num_side_inputs_=1",
            f'{EX} has no attribute "num_side_inputs_": it has activation_mode_, bessel_correction_'
            ", data_format_, epsilon_, exponential_avg_factor_, is_training_",
        ),
        (
            EX,
            "activation_mode_=Elu",
            f'the attribute activation_mode_ must be one of {", ".join(ACTIVATIONS)}, but is "Elu"',
        ),
        *(
            (V2, f"epsilon={value}", f'the attribute epsilon_ must be {NUMBER}, but is "{value}"')
            for value in ("0.1x", "", "small", "1e", "nan", "inf", "1,5", "1e999", "1e300")
        ),
        (
            V2,
            "data_format_=NDHWC",
            'the attribute data_format_ must be one of NHWC, NCHW, but is "NDHWC"',
        ),
        (V2, "is_training_=1", 'the attribute is_training_ must be true or false, but is "1"'),
        (V2, "epsilon_=1;epsilon=2", "the attribute epsilon_ is given twice"),
    ],
)
def test_wrong_attributes(run_block, tmp_path, pins, op, attributes, expected):
    assert sentence(run_block(op, attributes, pins)) == expected
    assert not (tmp_path / "out").exists()


def test_what_tensorflow_says(run_block, pins):
    """No such op; an attribute without a default that is missing."""
    for op, word in (("FusedBatchNormGradV9",) * 2, ("TfBnOps>BatchNormTrainingBackprop", "eps")):
        given = pins if op == word else dict.fromkeys(
            [arg.name for arg in OPS["BatchNormTrainingBackprop"].inputs], pins["scale"]
        )  # fmt: skip
        result = run_block(op, "", given)
        assert result.returncode == 1 and word in result.stderr, result.stderr


def test_missing_and_unknown_pins(run_block, pins):
    result = run_block(V2, "", {**pins, "offset": pins["scale"]})
    assert sentence(result) == (
        f'{V2} has no input "offset": it has y_backprop, x, scale, reserve_space_1, reserve_space_2'
    )
    del pins["scale"]
    assert sentence(run_block(V2, "", pins)) == f"the input scale of {V2} is not set"
