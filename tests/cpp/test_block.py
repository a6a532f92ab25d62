"""The block: its class, its results and its error messages, through the test program client.cc.

Promised: the block has enuSpace's class, and Python's results, and says in one sentence what is
wrong.
"""

from __future__ import annotations

import pathlib

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
def run_blocks(run_client, tmp_path):
    """run_blocks((op, attributes, pins), ...): what the test program says of each, on arrays by
    name; results of the nth are in tmp_path/n/out."""

    def run(*blocks: tuple[str, str, dict[str, np.ndarray]]) -> list[str]:
        words: list[object] = []
        for number, (op, attributes, pins) in enumerate(blocks):
            folder = tmp_path / str(number)
            folder.mkdir()
            for name, array in pins.items():
                proto = tf.make_tensor_proto(array).SerializeToString()
                (folder / f"{name}.pb").write_bytes(proto)
            words += [folder, op, attributes, *pins, "--"]
        result = run_client("run_blocks", *words)
        assert result.returncode == 0, result.stderr
        said = result.stdout.splitlines()
        assert len(said) == len(blocks)
        return said

    return run


def written(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return {
        path.stem: tf.make_ndarray(tensor_pb2.TensorProto.FromString(path.read_bytes()))
        for path in (folder / "out").iterdir()
    }


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


def test_results_are_those_of_python(run_blocks, tmp_path):
    """The pins and results of enuSpace's block; in training mean and variance may be empty there,
    and a side input is a pin that may stay unset."""
    blocks, calls = [], []
    for name, op, module in BLOCKS:
        for mode in op.modes:
            for number, dtype in enumerate(op.dtypes):
                case = small(op, op.layouts[0], mode, dtype=dtype, seed=number)
                call, tensors, attrs = call_of(case)
                if op.formula == BATCH_NORM and mode == "training":
                    attrs["exponential_avg_factor"] = 1.0
                    tensors |= dict.fromkeys(("mean", "variance"), tf.zeros([0]))
                words = {k: str(v).lower() if isinstance(v, bool) else v for k, v in attrs.items()}
                attributes = ";".join(f"{attr}_={word}" for attr, word in words.items())
                blocks.append((name, attributes, {n: t.numpy() for n, t in tensors.items()}))
                python = tf.function(lambda t, c=call, a=attrs, m=module: c(t, m, **a))
                # Frozen, TensorFlow may leave the reserve spaces unwritten.
                is_whole = module is tf_bn_ops.raw_ops or mode == "training"
                calls.append((f"{name} {mode} {dtype}", python(tensors)._asdict(), is_whole))
    assert {*run_blocks(*blocks)} == {"ok"}
    for number, (what, python, is_whole) in enumerate(calls):
        found = written(tmp_path / str(number))
        assert found.keys() == python.keys(), what
        for output, tensor in python.items():
            got = found[output]
            assert (got.dtype, got.shape) == (tensor.numpy().dtype, tensor.shape), (what, output)
            if is_whole or "reserve" not in output:
                assert got.tobytes() == tensor.numpy().tobytes(), (what, output)


# ---- Attributes and pins, and what is wrong, in one sentence -------------------------------------

NUMBER = "a number that a float can hold"
V2_HAS = "it has data_format_, epsilon_, is_training_"
ATTRIBUTES = [
    *(
        ("TfBnOps>FusedBatchNormGrad", spelled, "ok")
        for spelled in ("", "epsilon=1e-4", " epsilon_ = 1e-4 ; data_format_=NHWC ; ")
    ),
    (V2, "eps=0.1", f'{V2} has no attribute "eps_": {V2_HAS}'),
    (V2, "T=float", f'{V2} has no attribute "T_": {V2_HAS}'),
    (V2, "epsilon_=1;=1", f'{V2} has no attribute "_": {V2_HAS}'),
    (
        EX,
        "num_side_inputs_=1",
        f'{EX} has no attribute "num_side_inputs_": it has activation_mode_, bessel_correction_'
        ", data_format_, epsilon_, exponential_avg_factor_, is_training_, leakyrelu_alpha_",
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
    *(
        (op, f"epsilon_={value}", f'the attribute epsilon_ must be 0 or more, but is "{value}"')
        for op in (V2, EX, "TfBnOps>BatchNormTrainingBackprop")
        for value in ("-1", "-1e-30")
    ),
    (
        V2,
        "data_format_=NDHWC",
        'the attribute data_format_ must be one of NHWC, NCHW, but is "NDHWC"',
    ),
    (V2, "is_training_=1", 'the attribute is_training_ must be true or false, but is "1"'),
    (V2, "epsilon_=1;epsilon=2", "the attribute epsilon_ is given twice"),
]


def test_what_is_wrong_is_one_sentence(run_blocks, tmp_path):
    vectors = dict.fromkeys(("scale", "reserve_space_1", "reserve_space_2"), np.ones(3, np.float32))
    pins = dict.fromkeys(("y_backprop", "x"), np.ones((2, 3, 4, 3), np.float32)) | vectors
    unset = {name: pin for name, pin in pins.items() if name != "scale"}
    backprop = [arg.name for arg in OPS["BatchNormTrainingBackprop"].inputs]
    said = run_blocks(
        *((op, attributes, pins) for op, attributes, _ in ATTRIBUTES),
        (V2, "", {**pins, "offset": pins["scale"]}),
        (V2, "", unset),
        # What TensorFlow says: no such op; an attribute without a default that is missing.
        ("FusedBatchNormGradV9", "", pins),
        ("TfBnOps>BatchNormTrainingBackprop", "", dict.fromkeys(backprop, pins["scale"])),
    )
    assert said[:-2] == [
        *(expected for *_, expected in ATTRIBUTES),
        f'{V2} has no input "offset": it has y_backprop, x, scale, reserve_space_1, '
        "reserve_space_2",
        f"the input scale of {V2} is not set",
    ]
    assert "FusedBatchNormGradV9" in said[-2] and "eps" in said[-1]
    assert {path.parent.name for path in tmp_path.glob("*/out")} == {"0", "1", "2"}
