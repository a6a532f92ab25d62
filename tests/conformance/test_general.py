"""Ops that are not batch norm: described by a mapping file, judged with an oracle or without.

The library is built from third_party/elementwise_ops.cc; everything that is known of its ops is in
elementwise.toml beside it.
"""

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from build_helpers import build_op_library

from tf_bn_ops.conformance import devices, general, judge, mapping, tolerances

HERE = pathlib.Path(__file__).resolve().parent
VENDOR = HERE / "third_party"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    target = tmp_path_factory.mktemp("library") / "libelementwise.so"
    return build_op_library(VENDOR / "elementwise_ops.cc", target)


def _run(*flags):
    paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "tf_bn_ops", "conformance", *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_right_op_passes_by_its_mapping_file_alone(library, tmp_path):
    page = tmp_path / "run.html"
    flags = (f"--mapping={VENDOR / 'elementwise.toml'}", "--cases=120", f"--html={page}")
    result = _run(f"--library={library}", *flags)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "input x allows other types than features" in result.stdout
    assert re.search(r"^Softplus +float32 +60 ", result.stdout, re.M)
    assert re.search(r"^Softplus +half +60 ", result.stdout, re.M)
    evidence = re.search(r"with evidence: activations (\d+)", result.stdout)
    assert int(evidence.group(1)) > 60
    # What it was allowed, and why, is in the report.
    text = page.read_text()
    assert "0.51 ulp because computed in double and rounded once" in text
    assert "elementwise_oracle:softplus" in text
    assert "CPU:0" in text


def test_wrong_op_fails_a_two_way_diff_that_says_what_it_is(library, tmp_path):
    text = (VENDOR / "elementwise.toml").read_text(encoding="utf-8")
    text = text.replace("Vendor>Softplus", "VendorSoftplusOverflows")
    # TensorFlow is off by some units itself, and there is no oracle to know that.
    text = text.replace("ulp = 0.51", "ulp = 16")
    text = re.sub(r"oracle = .*\n", "", text)
    file = tmp_path / "wrong.toml"
    file.write_text(text, encoding="utf-8")
    result = _run(f"--library={library}", f"--mapping={file}", "--cases=20")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "no oracle is given, so this is a plain two-way diff" in result.stdout
    assert re.search(r"activations inf times what is allowed .*: inf instead of", result.stdout)
    replay = re.search(r"replay: python -m tf_bn_ops conformance (.*)", result.stdout)
    again = _run(*shlex.split(replay.group(1)))
    assert again.returncode == 1, again.stdout + again.stderr
    assert "conformance FAILED: 1 of 1 cases failed" in again.stdout


# ---- The parts, without TensorFlow ---------------------------------------------------------------

ENTRY = general.Described(
    name="V>Scale",
    like="Scale",
    values={"x": general.Values(("n", 2), (-4.0, 9.0)), "by": general.Values((), (2.0, 3.0))},
    sizes={"n": (0, 50)},
    attr_values={"format": ("A", "B")},
)
SIGNATURE = general.Signature(
    inputs={"x": ("T", ""), "by": ("T", "")}, outputs=["y"],
    types={"T": ["float32", "half", "int32"]}, attrs={"format": False, "name": True},
)  # fmt: skip
OPS = {"Scale": (ENTRY, SIGNATURE)}


class _Oracle(general.Oracle):
    def __init__(self, function):
        self._function, self._name = function, "test:function"


RIGHT = _Oracle(lambda inputs, attrs: [inputs["x"] * inputs["by"]])


def _judged(case, candidate, reference=None, oracle=RIGHT, entry=ENTRY):
    """`candidate` and `reference` take the inputs and return an Answer or outputs."""
    inputs = general.fill(case, entry, SIGNATURE)

    def answer(function):
        found = function(inputs)
        return found if isinstance(found, judge.Answer) else judge.Answer(found)

    answers = {"candidate": answer(candidate), "tensorflow": answer(reference or _good)}
    return general.judge(case, entry, SIGNATURE, inputs, answers, oracle)


def _good(inputs):
    return [inputs["x"] * inputs["by"]]


def _case(dtype="float32", kind="uniform", n=20):
    return general.Case("Scale", dtype, kind, "eager", 5, (("n", str(n)), ("format", "A")))


def test_cases_are_the_same_each_time_and_are_parsed_back():
    found = list(general.generate(300, 1, OPS))
    assert found == list(general.generate(300, 1, OPS))
    assert found[:10] != list(general.generate(10, 2, OPS))
    for case in found:
        assert general.parse(str(case), {"Scale": ENTRY}) == case
    assert {case.dtype for case in found} == {"float32", "half", "int32"}
    assert {case.kind for case in found} == {"uniform", "integers", "edges"}  # No nonfinite here.
    assert {dict(case.choices)["format"] for case in found} == {"A", "B"}
    sizes = {int(dict(case.choices)["n"]) for case in found}
    assert 0 in sizes and max(sizes) > 40


@pytest.mark.parametrize("text", ["", "Other,dtype=half", "Scale,dtype=half,kind=uniform", "Scale,"
    "dtype=half,kind=uniform,call=eager,seed=x,n=1,format=A"])  # fmt: skip
def test_what_is_no_case_is_said(text):
    with pytest.raises(general.GeneralError, match=r"is no case of Scale|does not fit"):
        general.parse(text, {"Scale": ENTRY})


def test_inputs_are_what_the_file_says():
    for dtype in ("float32", "half", "int32"):
        inputs = general.fill(_case(dtype, "edges"), ENTRY, SIGNATURE)
        assert inputs["x"].shape == (20, 2) and inputs["by"].shape == ()
        assert inputs["x"].dtype == general.numpy_dtype(dtype) == inputs["by"].dtype
        assert inputs["x"].min() >= -4 and inputs["x"].max() <= 9
    spiked = dataclasses.replace(
        ENTRY, values={**ENTRY.values, "x": general.Values(("n", 2), (-1, 1), nonfinite=True)}
    )
    x = general.fill(_case(kind="nonfinite"), spiked, SIGNATURE)["x"]
    assert not np.isfinite(x).all() and np.isfinite(x).any()


def test_right_answers_pass_with_and_without_an_oracle():
    for dtype in ("float32", "half", "int32"):
        for oracle in (RIGHT, None):
            result = _judged(_case(dtype), _good, oracle=oracle)
            assert not result.failures
            assert result.evidence == {"y": True}
            assert ("y" in result.paths["tensorflow"].errors) == (oracle is not None)
    assert not _judged(_case(n=0), _good).failures
    assert not _judged(_case(n=0), _good).evidence["y"]


@pytest.mark.parametrize(
    ("candidate", "what"),
    [
        (lambda i: [i["x"] * i["by"] * np.float32(1 + 2**-22)], "y .* times what is allowed"),
        (lambda i: [np.where(i["x"] == i["x"].max(), np.nan, _good(i)[0])], "y inf times"),
        (lambda i: [_good(i)[0][1:]], r"shape:y: y has shape \[19, 2\], not \[20, 2\]"),
        (lambda i: [_good(i)[0].astype(np.float64)], "dtype:y: y has dtype float64, not float32"),
        (lambda i: [*_good(i), i["x"]], "count: 2 outputs, not 1"),
        (lambda i: judge.Answer(error="InternalError: no"), "error: InternalError: no"),
        (lambda i: judge.Answer(crash="killed by SIGABRT"), "crash: killed by SIGABRT"),
    ],
)
def test_wrong_answers_fail(candidate, what):
    (failure,) = _judged(_case(), candidate).failures
    assert re.match(what, failure), failure


def test_tolerance_applies_where_it_is_for():
    def off(inputs):
        return [np.nextafter(np.nextafter(_good(inputs)[0], np.float32(99)), np.float32(99))]

    assert _judged(_case(), off).failures  # One unit in the last place is what all may be off.
    three = tolerances.Tolerance("a reason", ulp=3.0)
    for tolerance, passes in (
        (three, True),
        (dataclasses.replace(three, dtypes=("half",)), False),
        (dataclasses.replace(three, outputs=("z",)), False),
        (tolerances.Tolerance("a reason", relative=1e-6), True),
        (tolerances.Tolerance("a reason", absolute=1e-4), True),
    ):
        entry = dataclasses.replace(ENTRY, tolerances=(tolerance,))
        assert bool(_judged(_case(), off, entry=entry).failures) != passes, tolerance


def test_units_are_those_of_the_magnitudes_that_an_oracle_gives():
    """As for sums that cancel."""

    def off(inputs):
        return [(_good(inputs)[0] + np.float32(2e-5)).astype(np.float32)]

    oracle = _Oracle(lambda i, a: [(i["x"] * i["by"], np.full(i["x"].shape, 1000.0))])
    assert _judged(_case(), off).failures
    assert not _judged(_case(), off, oracle=oracle).failures


def test_answers_that_zeros_or_an_input_would_pass_are_no_evidence():
    inputs = general.fill(_case(), ENTRY, SIGNATURE)
    bound = np.full((20, 2), 1e-6)
    assert general._is_evidence(inputs["x"] * 2.0, bound, inputs)
    assert not general._is_evidence(np.zeros((20, 2)), bound, inputs)
    assert not general._is_evidence(inputs["x"].astype(float), bound, inputs)


def test_what_tensorflow_refuses_is_to_be_refused_with_the_same_code():
    def refuse(code):
        return lambda inputs: judge.Answer(error=f"{code}: other words")

    refused = refuse("InvalidArgumentError")
    assert not _judged(_case(), refuse("InvalidArgumentError"), refused).failures
    for candidate, said in ((_good, "accepted: no error"), (refuse("KeyError"), "code: KeyError")):
        (failure,) = _judged(_case(), candidate, refused).failures
        assert failure.startswith(said)


def test_oracle_that_fails_or_contradicts_the_op_is_said():
    for oracle, message in (
        (lambda i, a: [i["nothing"]], "oracle test:function failed: KeyError"),
        (lambda i, a: [], "gives 0 outputs, not 1"),
        (lambda i, a: [i["x"][1:]], "contradicts TensorFlow's Scale"),
    ):
        with pytest.raises(general.GeneralError, match=message):
            _judged(_case(), _good, oracle=_Oracle(oracle))
    with pytest.raises(general.GeneralError, match="there is no oracle nowhere:f"):
        general.Oracle("nowhere:f", "/")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {**ENTRY.values, "z": general.Values((), (0, 1))}}, "no input 'z'"),
        ({"values": {"x": ENTRY.values["x"]}}, r"say what input by holds: \[op.values.by\]"),
        ({"attr_values": {}}, "attr format has no default"),
        ({"attr_values": {**ENTRY.attr_values, "z": (1,)}}, "no attr 'z'"),
        ({"dtypes": ("float64",)}, r"no type of \['float64'\]; both ops take"),
    ],
)
def test_file_that_does_not_fit_the_op_is_said(change, message):
    SIGNATURE.check(ENTRY)
    with pytest.raises(general.GeneralError, match=message):
        SIGNATURE.check(dataclasses.replace(ENTRY, **change))


HEAD = '[[op]]\nname = "A"\nlike = "Softplus"\n'
VALUES = "[op.values.x]\nshape = [1]\nrange = [0, 1]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "'Softplus' is not one of .* another op of TensorFlow is described"),
        (HEAD + 'layouts = ["NHWC"]\n' + VALUES, "no key 'layouts'"),
        (HEAD + 'device = "?"\n' + VALUES, "'\\?' names no device"),
        (HEAD + "[op.sizes]\nn = 3\n" + VALUES, "size n: takes"),
        (HEAD + "[op.sizes]\nn = [3, 2]\n" + VALUES, "size n: takes"),
        (HEAD + VALUES.replace("[1]", '["m"]'), "shape is a list of numbers and names"),
        (HEAD + VALUES.replace("range", "span"), "no key 'span'"),
        (HEAD + VALUES + "[op.attr_values]\nf = 3\n", "attr_values of f is a list"),
        (HEAD + VALUES + "[[op.tolerance]]\nulp = 3\n", "needs a 'reason': who should believe it"),
        (HEAD + VALUES + '[[op.tolerance]]\nreason = "r"\n', "needs a positive ulp or relative"),
        (HEAD + VALUES + '[[op.tolerance]]\nulp = -1\nreason = "r"\n', "needs a positive"),
        (
            HEAD + VALUES + '[[op.tolerance]]\ntimes_bound = 2\nreason = "r"\n',
            "a tolerance has no key 'times_bound'",
        ),
    ],
)
def test_mistakes_in_a_description_are_said(tmp_path, text, message):
    file = tmp_path / "ops.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(mapping.MappingError, match=message):
        mapping.load(file)


def test_devices_have_one_spelling_and_must_be_there():
    for text in ("/GPU:0", "gpu:0", "GPU", "/device:GPU:0"):
        assert devices.parse(text) == "GPU:0"
    with pytest.raises(devices.DeviceError, match="names no device"):
        devices.parse("the left one")
    devices.check(None, {})
    devices.check("CPU:0", {"devices": ["CPU:0"]})
    with pytest.raises(devices.DeviceError, match="no device GPU:0; TensorFlow has CPU:0"):
        devices.check("GPU:0", {"devices": ["CPU:0"]})
