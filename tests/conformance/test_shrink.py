"""Failing cases are reduced to small ones, and to programs that show the fault without the harness.

Promised: failing cases are reduced to small ones, and to programs that tell right from wrong
without the harness.

The faults: numpy_kernels.py's, and an op of a library built from C++ (test_mapping.py).
"""

import contextlib
import dataclasses
import io
import math
import re

import numpy as np
import numpy_kernels
import pytest
from numpy_kernels import fill, first_order_cases

from tf_bn_ops import spec
from tf_bn_ops.conformance import program, shrink
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.cases.case import Problem
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import OWN_OPS, Implementation
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.models.measure import OutputError
from tf_bn_ops.conformance.reports import record
from tf_bn_ops.conformance.verdict import divergences, judge
from tf_bn_ops.conformance.verdict.result import CaseResult, PathResult
from tf_bn_ops.conformance.verdict.settings import Settings

STRICT = bounds.PROFILES["strict"]
SETTINGS = Settings(STRICT, divergences.Register([]))


def _settings(candidate):
    return dataclasses.replace(SETTINGS, candidate=candidate)


def _first_failure(kernel, most=30_000):
    """The first case of the default run that the fault fails in; not the largest, to save time."""
    for case in first_order_cases(400, 1):
        if math.prod(case.shape) <= most:
            filled = fill(case)
            answer = numpy_kernels.answer(kernel, case, filled.values)
            result = judge.judge(case, filled, {"candidate": answer}, STRICT)
            if result.failures:
                return Problem(case, filled), result
    raise AssertionError(f"{kernel.__name__} fails in no case")


def _wrong(result):
    return record.wrong(record.of_result(0, result))


def _shrunk(kernel):
    start, result = _first_failure(kernel)
    wrong = _wrong(result)
    candidate = numpy_kernels.KernelRunner(kernel)
    return start, shrink.shrink(start, wrong, candidate, SETTINGS), wrong


# Fault -> most elements, most numbers that are neither 0 nor 1: what the fault needs to show.
SMALLEST = {
    numpy_kernels.ScaleSignFlip: (1, 0),
    numpy_kernels.EpsilonDoubled: (1, 0),
    numpy_kernels.OneRowTooFew: (2, 0),
    numpy_kernels.NeighboursScale: (2, 0),
    numpy_kernels.MissedVectorTail: (9, 0),  # It shows from 9 channels on alone.
    numpy_kernels.TruncatedInsteadOfRounded: (2, 1),  # In one type alone.
    numpy_kernels.NanSwallowed: (1, 1),  # An infinity makes one.
}


@pytest.mark.parametrize("kernel", SMALLEST, ids=lambda kernel: kernel.__name__)
def test_fault_is_reduced_to_what_it_needs(kernel, monkeypatch):
    monkeypatch.setattr(shrink, "SECONDS", 600)
    start, small, wrong = _shrunk(kernel)
    elements, other_numbers = SMALLEST[kernel]
    assert math.prod(small.case.shape) <= elements
    numbers = np.concatenate([small.inputs.values[r].astype(float).ravel() for r in ("x", "scale")])
    assert np.count_nonzero((numbers != 0) & (numbers != 1)) <= other_numbers
    # It still fails, in a way that the original did; and a right kernel passes it.
    for which, fails in ((kernel, True), (numpy_kernels.Kernel, False)):
        answer = numpy_kernels.answer(which, small.case, small.inputs.values)
        result = judge.judge(small.case, small.inputs, {"candidate": answer}, STRICT)
        assert bool(_wrong(result) & wrong) == fails
    assert small.case.op == start.case.op and small.case.mode == start.case.mode
    simplest = "float32" if kernel is not numpy_kernels.TruncatedInsteadOfRounded else "bfloat16"
    assert small.case.dtype == simplest


def test_search_ends_in_time_with_what_it_has(monkeypatch):
    """A candidate that is slow; no time at all leaves the case as it was."""
    monkeypatch.setattr(shrink, "SECONDS", 0)
    start, result = _first_failure(numpy_kernels.SignFlip)
    candidate = numpy_kernels.KernelRunner(numpy_kernels.SignFlip)
    same = shrink.shrink(start, _wrong(result), candidate, SETTINGS)
    assert same is start


class _ZerosOfSeveralChannels(numpy_kernels.KernelRunner):
    """Zeros; where a case has one channel, nothing is said."""

    def supports(self, case):
        return case.shape[-1] > 1

    def submit(self, case, filled):
        outputs = judge.expect(case, filled, STRICT).outputs
        self._answer = Answer([np.zeros(output.shape, output.dtype) for output in outputs])


def test_a_scalar_stays_one():
    """The number of elements of the whole batch, in small cases and in those that are cut."""
    case = generate.parse(
        "BatchNormBackwardElemt,float32,NWC,4x3x5,training,normal,batch,eps=0.1,eager,seed=1"
    )
    candidate = _ZerosOfSeveralChannels()
    start = Problem(case, model_of(case.spec).fill(case))
    candidate.submit(case, start.inputs)
    result = judge.judge(case, start.inputs, {"candidate": candidate.collect()}, STRICT)
    small = shrink.shrink(start, _wrong(result), candidate, SETTINGS)
    assert small.case.shape == (1, 1, 2)
    for problem in (small, shrink._cut(start, 2, 1, 3)):
        assert problem.inputs.values["count"].shape == ()


def test_one_case_of_each_way_to_fail_is_reduced():
    def failed(index, *roles, op="FusedBatchNormGradV2"):
        text = f"{op},float32,NHWC,1x1x1x1,training,normal,batch,eps=0.1,eager,seed=1"
        errors = {role: OutputError(bound=2.0) for role in roles}
        path = PathResult(errors=errors)
        result = CaseResult(generate.parse(text), {"candidate": path}, {}, ["wrong"])
        return record.of_result(index, result)

    x, scale = "x_backprop", "scale_backprop"
    entries = [
        # A built-in's unlisted divergence is not the candidate's fault.
        failed(0), failed(1, x, scale), failed(2, x), failed(3, x, scale), failed(4, x),
        failed(5, scale), failed(6, x, scale, op="FusedBatchNormGradV3"),
    ]  # fmt: skip
    for count, indices in ((9, [1, 2, 5, 6]), (2, [1, 2]), (0, [])):
        found = record.first_of_their_kind(entries, count)
        assert [case["index"] for case in found] == indices


def _execute(text):
    """(exit status or message, what was printed) of a program, in this process."""
    pytest.importorskip("tensorflow")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as exit_of_it:
        exec(compile(text, "program", "exec"), {"__name__": "__main__"})
    return exit_of_it.value.code, printed.getvalue()


def _program(case):
    """Of the library's own op, which is right."""
    settings = _settings(Implementation("candidate", OWN_OPS))
    return program.program(Problem(case, fill(case)), str(case), settings)


@pytest.mark.parametrize("name", spec.OPS)
def test_program_tells_right_from_wrong(name):
    """Of small cases of the default run: of many types, layouts and kinds, some of them empty."""
    drawn = generate.generate(200, 1, generate.combinations([name]))
    cases = [case for case in drawn if math.prod(case.shape) < 100]
    *others, empty = sorted(cases, key=lambda case: case.is_empty)
    assert empty.is_empty
    for case in (*others[:8], empty):
        text = _program(case)
        imported = set(re.findall(r"^import ([\w.]+)", text, re.M))
        assert imported <= {"sys", "numpy", "tensorflow", "importlib", "base64", "io"}
        assert str(case) in text
        assert _execute(text) == (0, "right\n"), str(case)
        for wrong in ("[o[None] for o in outputs]", "[outputs[0] * 1.5 + 1, *outputs[1:]]"):
            if "+" not in wrong or (case.kind == "normal" and not case.is_empty):
                changed = text.replace("\ncheck(0,", f"\noutputs = {wrong}\ncheck(0,", 1)
                status, printed = _execute(changed)
                assert status == 1 and printed.endswith("wrong\n"), str(case)
                assert case.spec.outputs[0].name in printed
    for call in ("call(", "tf.function(call)("):
        text = text.replace(f"outputs = {call}", "outputs = nonsense(")
    status, _ = _execute(text)
    assert "failed: NameError" in status


def test_there_is_no_program_where_it_could_not_show_the_fault():
    name = "FusedBatchNormGrad,float32,NCHW,100x3x20x20,frozen,normal,given,eps=0.001,eager,seed=1"
    assert _program(generate.parse(name)) is None
