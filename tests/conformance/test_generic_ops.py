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

from tf_bn_ops.conformance import runner
from tf_bn_ops.conformance.cases import generate, mapping
from tf_bn_ops.conformance.cases.case import Case, CaseError
from tf_bn_ops.conformance.execution import devices
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.verdict import divergences
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.harness import bounds
from tf_bn_ops.harness.models import generic_model, tolerances
from tf_bn_ops.harness.models.generic_model import (
    GenericError,
    GenericModel,
    Signature,
    ValueRange,
    generic_spec,
)

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


@pytest.mark.long
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


@pytest.mark.long
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
    assert re.search(r"activations inf times the bound .*: inf instead of", result.stdout)
    replay = re.search(r"replay: python -m tf_bn_ops conformance (.*)", result.stdout)
    again = _run(*shlex.split(replay.group(1)))
    assert again.returncode == 1, again.stdout + again.stderr
    assert "conformance FAILED: 1 of 1 cases failed" in again.stdout


# ---- The parts, without TensorFlow ---------------------------------------------------------------

SIGNATURE = Signature(
    inputs={"x": ("T", ""), "by": ("T", "")}, outputs=["y"],
    types={"T": ["float32", "half", "int32"]}, attrs={"format": False, "name": True},
)  # fmt: skip
RANGES = {"x": ValueRange(("n", 2), (-4.0, 9.0)), "by": ValueRange((), (2.0, 3.0))}


def _model(**changes):
    """The model of an op "Scale", x * by."""
    fields = {"values": RANGES, "sizes": {"n": (0, 50)}, "attr_values": {"format": ("A", "B")}}
    model = GenericModel("Scale", **{**fields, **changes})
    model.signature = SIGNATURE
    return model


class _Oracle(generic_model.Oracle):
    def __init__(self, function):
        self._function, self.name = function, "test:function"


RIGHT = _Oracle(lambda inputs, attrs: [inputs["x"] * inputs["by"]])


def _judged(case, candidate, reference=None, oracle=RIGHT, **changes):
    """`candidate` and `reference` take the inputs and return an Answer or outputs."""
    op = generic_spec("Scale", _model(oracle=oracle, **changes))
    case = dataclasses.replace(case, spec=op)
    inputs = op.model.fill(case)

    def answer(function):
        found = function(inputs.values)
        return found if isinstance(found, Answer) else Answer(found)

    runners = [_Runner("candidate", answer(candidate))]
    runners.append(_Runner("tensorflow", answer(reference or _good)))
    settings = Settings(bounds.PROFILES["textbook"], divergences.Register([]))
    (result,) = runner.run([case], op.model.fill, runners, settings)
    return result


class _Runner:
    """Gives one answer (workers.Runner)."""

    def __init__(self, name, answer):
        self.name, self._answer = name, answer

    def supports(self, case):
        return True

    def submit(self, case, inputs):
        pass

    def collect(self):
        return self._answer


def _good(inputs):
    return [inputs["x"] * inputs["by"]]


SCALE = generic_spec("Scale", _model())


def _case(dtype="float32", kind="uniform", n=20):
    return Case(SCALE, dtype, kind, 5, choices=(("n", str(n)), ("format", "A")))


def test_cases_are_the_same_each_time_and_are_parsed_back():
    found = list(generate.generate_generic(300, 1, [SCALE]))
    assert found == list(generate.generate_generic(300, 1, [SCALE]))
    assert found[:10] != list(generate.generate_generic(10, 2, [SCALE]))
    for case in found:
        assert generate.parse(str(case), {"Scale": SCALE}) == case
    assert {case.dtype for case in found} == {"float32", "half", "int32"}
    assert {case.kind for case in found} == {"uniform", "integers", "edges"}  # No nonfinite here.
    assert {dict(case.choices)["format"] for case in found} == {"A", "B"}
    sizes = {int(dict(case.choices)["n"]) for case in found}
    assert 0 in sizes and max(sizes) > 40
    # Further execution modes are added on request.
    assert list(generate.attach(found, 1, None)) == found
    assert all("slice" in case.execution_modes for case in generate.attach(found, 1, ["slice"]))


@pytest.mark.parametrize("text", ["", "Other,dtype=half", "Scale,dtype=half,kind=uniform", "Scale,"
    "dtype=half,kind=uniform,call=eager,seed=x,n=1,format=A"])  # fmt: skip
def test_what_is_no_case_is_said(text):
    with pytest.raises(CaseError, match=r"has 10 fields|does not fit"):
        generate.parse(text, {"Scale": SCALE})


def test_inputs_are_what_the_file_says():
    for dtype in ("float32", "half", "int32"):
        inputs = SCALE.model.fill(_case(dtype, "edges")).values
        assert inputs["x"].shape == (20, 2) and inputs["by"].shape == ()
        assert inputs["x"].dtype.name == {"half": "float16"}.get(dtype, dtype)
        assert inputs["x"].min() >= -4 and inputs["x"].max() <= 9
    spiked = _model(values={**RANGES, "x": ValueRange(("n", 2), (-1, 1), nonfinite=True)})
    x = spiked.fill(_case(kind="nonfinite")).values["x"]
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
        (lambda i: [i["x"] * i["by"] * np.float32(1 + 2**-22)], "y .* times the bound"),
        (lambda i: [np.where(i["x"] == i["x"].max(), np.nan, _good(i)[0])], "y inf times"),
        (lambda i: [_good(i)[0][1:]], r"shape:y: y has shape \[19, 2\], not \[20, 2\]"),
        (lambda i: [_good(i)[0].astype(np.float64)], "dtype:y: y has dtype float64, not float32"),
        (lambda i: [*_good(i), i["x"]], "count: 2 outputs, not 1"),
        (lambda i: Answer(error="InternalError: no"), "error: InternalError: no"),
        (lambda i: Answer(crash="killed by SIGABRT"), "crash: killed by SIGABRT"),
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
        result = _judged(_case(), off, tolerances=(tolerance,))
        assert bool(result.failures) != passes, tolerance


def test_units_are_those_of_the_magnitudes_that_an_oracle_gives():
    """As for sums that cancel."""

    def off(inputs):
        return [(_good(inputs)[0] + np.float32(2e-5)).astype(np.float32)]

    oracle = _Oracle(lambda i, a: [(i["x"] * i["by"], np.full(i["x"].shape, 1000.0))])
    assert _judged(_case(), off).failures
    assert not _judged(_case(), off, oracle=oracle).failures


@pytest.mark.parametrize(
    ("right", "holds"), [(lambda x: x * 2, True), (lambda x: x * 0, False), (lambda x: x, False)]
)
def test_answers_that_zeros_or_an_input_would_pass_are_no_evidence(right, holds):
    oracle = _Oracle(lambda inputs, attrs: [right(inputs["x"])])
    result = _judged(_case(), lambda i: [right(i["x"])], lambda i: [right(i["x"])], oracle)
    assert result.evidence == {"y": holds}


def test_what_tensorflow_refuses_is_to_be_refused_with_the_same_code():
    def refuse(code):
        return lambda inputs: Answer(error=f"{code}: other words")

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
        with pytest.raises(GenericError, match=message):
            _judged(_case(), _good, oracle=_Oracle(oracle))
    with pytest.raises(GenericError, match="there is no oracle nowhere:f"):
        generic_model.Oracle("nowhere:f", "/")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {**RANGES, "z": ValueRange((), (0, 1))}}, "no input 'z'"),
        ({"values": {"x": RANGES["x"]}}, r"say what input by holds: \[op.values.by\]"),
        ({"attr_values": {}}, "attr format has no default"),
        ({"attr_values": {"format": ("A",), "z": (1,)}}, "no attr 'z'"),
        ({"dtypes": ("float64",)}, r"no type of \['float64'\]; both ops take"),
    ],
)
def test_file_that_does_not_fit_the_op_is_said(change, message):
    _model().check()
    with pytest.raises(GenericError, match=message):
        _model(**change).check()


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
        (HEAD + VALUES + "[[op.tolerance]]\nulp = 3\n", "needs a 'reason': add it"),
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
        assert mapping.parse_device(text) == "GPU:0"
    with pytest.raises(mapping.MappingError, match="names no device"):
        mapping.parse_device("the left one")
    devices.check(None, {})
    devices.check("CPU:0", {"devices": ["CPU:0"]})
    with pytest.raises(devices.DeviceError, match="no device GPU:0; TensorFlow has CPU:0"):
        devices.check("GPU:0", {"devices": ["CPU:0"]})
