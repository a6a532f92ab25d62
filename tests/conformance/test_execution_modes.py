"""Execution modes: how each runs the op, and that results which differ bitwise are noticed.

Promised: a kernel whose bits depend on how it is called fails, and one that writes to an input is
named; each mode runs the op as its name says.
"""

import ctypes
import dataclasses
import pathlib
import types

import numpy as np
import numpy_kernels
import pytest
import rich.console
import tensorflow as tf
from numpy_kernels import fill
from tensorflow.python.eager import context

from tf_bn_ops.conformance.cases import execution_modes, generate
from tf_bn_ops.conformance.execution import worker, workers
from tf_bn_ops.conformance.execution.answer import Answer, identical
from tf_bn_ops.conformance.execution.implementations import Implementation, builtin, own, request
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.reports import record, terminal
from tf_bn_ops.conformance.verdict import judge

TESTS = pathlib.Path(__file__).resolve().parent
BUILTIN = tf.raw_ops.FusedBatchNormGradV2
TEXTBOOK = bounds.PROFILES["textbook"]
TEXT = "FusedBatchNormGradV2,{},NHWC,3x4x5x7,training,normal,given,eps=0.1,{},seed=1"


# ---- Which cases get them ------------------------------------------------------------------------


def test_all_asks_every_case_for_every_call_that_fits():
    small, large = (generate.parse(TEXT.format("half", "graph")) for _ in range(2))
    large = dataclasses.replace(large, shape=(30, 40, 50, 70))
    only_small = {n for n, mode in execution_modes.EXECUTION_MODES.items() if mode.small}
    for case, left_out in ((small, set()), (large, only_small)):
        (asked,) = generate.attach([case], 1, list(execution_modes.EXECUTION_MODES))
        assert asked.execution_modes[0] == "graph"
        assert set(asked.execution_modes) == set(execution_modes.EXECUTION_MODES) - left_out


def test_aliased_case_has_the_same_numbers_twice_and_nothing_exact():
    case = generate.parse(TEXT.format("float32", "eager+alias").replace("normal", "exact"))
    filled = fill(case)
    np.testing.assert_array_equal(filled.values["x"], filled.values["y_backprop"])
    assert not filled.exact


# ---- How they are made ---------------------------------------------------------------------------


def _answer(op, call, dtype="float32"):
    """The answer of a process of an op in these modes, and the inputs."""
    case = generate.parse(TEXT.format(dtype, call))
    asked = request(case, fill(case), None, case.execution_modes)
    ops = types.SimpleNamespace(FusedBatchNormGradV2=op)
    return worker.Executor(ops)(asked), asked["inputs"]


def _make(call, dtype="float32"):
    """What TensorFlow's op was called with, its answer, eagerly and then so, and the inputs."""
    given = {}

    def spy(**arguments):
        given.update(arguments)
        return BUILTIN(**arguments)

    answer, inputs = _answer(spy, f"eager+{call}", dtype)
    assert answer.outputs is not None, answer
    return given, answer, inputs


def _address(tensor):
    memory = np.asarray(memoryview(tensor)) if tensor.dtype != tf.bfloat16 else None
    if memory is None:  # NumPy takes no buffer of this type.
        memory = np.asarray(memoryview(tf.bitcast(tensor, tf.int16)))
    return memory.ctypes.data


@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
def test_slice_shares_the_memory_of_a_tensor_with_nan_around_it(dtype):
    given, answer, inputs = _make("slice", dtype)
    assert answer.same == ("slice",)
    for name, value in inputs.items():
        np.testing.assert_array_equal(given[name].numpy(), value)
        size = value.itemsize
        begin = _address(given[name])
        assert begin % 64 == 0
        for outside in (begin - size, begin + value.nbytes):
            bits = ctypes.string_at(outside, size)
            assert np.isnan(np.frombuffer(bits, value.dtype)[0]), name


@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
def test_unaligned_begins_between_two_vectors(dtype):
    """The built-in aborts on such a tensor, so the op here only copies it."""
    addresses = []

    def copies(**arguments):
        addresses[:] = [_address(arguments[name]) for name in ("x", "scale")]
        return [tf.zeros(1)]

    answer, _ = _answer(copies, "unaligned", dtype)
    assert answer.outputs is not None
    assert [address % 64 for address in addresses] == [{"float32": 4}.get(dtype, 2), 4]


@pytest.mark.parametrize("mode", ["eager", "slice", "alias"])
def test_an_input_that_the_op_has_written_to_is_named(mode):
    """Whatever it returns; of other modes, whose inputs are other ones then, nothing is said."""

    def writes(**arguments):
        outputs = BUILTIN(**arguments)
        ctypes.memset(_address(arguments["reserve_space_1"]), 1, 4)
        return outputs

    case = generate.parse(TEXT.format("float32", f"{mode}+graph"))
    given = fill(case)
    asked = request(case, given, None, [mode])
    answer = worker.Executor(types.SimpleNamespace(FusedBatchNormGradV2=writes))(asked)
    assert answer.changed == ("reserve_space_1",)
    other = Answer([np.zeros(1, np.float32)])
    answer = dataclasses.replace(answer, others={"graph": other})
    result = judge.judge(case, given, {"candidate": answer}, TEXTBOOK)
    assert result.failures == []  # The runner adds what departs from the contract.
    (found,) = result.paths["candidate"].disagreements
    assert str(found).startswith("changed-input: has changed its input reserve_space_1")


def test_alias_is_one_tensor():
    given, answer, _ = _make("alias")
    assert answer.same == ("alias",)
    assert given["x"] is given["y_backprop"]
    assert given["x"] is not given["scale"]


def test_temporary_is_a_copy_inside_the_graph():
    given, answer, _ = _make("temporary")
    assert answer.same == ("temporary",)
    assert {tensor.op.type for tensor in (given["x"], given["y_backprop"])} == {"DeepCopy"}


def test_constants_are_folded_by_tensorflow():
    """After TensorFlow's optimizations the op is not in the graph any more."""
    context.context().enable_graph_collection()
    try:
        _, answer, _ = _make("constant")
        graphs = context.context().export_run_metadata().function_graphs
    finally:
        context.context().disable_graph_collection()
    assert answer.same == ("constant",)

    def ops(graph):
        return {node.op for node in graph.node}

    def is_folded(before, after):
        left = [op for op in after if "FusedBatchNormGrad" in op]
        return "FusedBatchNormGradV2" in before and not left

    # Graphs of functions that ran before stand beside it; they have arguments.
    found = [(ops(g.pre_optimization_graph), ops(g.post_optimization_graph)) for g in graphs]
    assert any(is_folded(before, after) for before, after in found if "_Arg" not in before)


def test_xla_compiles_the_builtin_and_says_where_there_is_no_kernel():
    _, answer, _ = _make("xla")
    outputs = answer.others["xla"].outputs if answer.others else answer.outputs
    assert [o.shape for o in outputs[:3]] == [(3, 4, 5, 7), (7,), (7,)]

    answer, _ = _answer(lambda **inputs: [tf.raw_ops.DeepCopy(x=inputs["x"])], "eager+xla")
    assert answer.unsupported == {"xla": "no kernel that XLA compiles"}


def test_other_bits_of_one_call_are_told_from_the_same():
    def moody(**arguments):
        outputs = BUILTIN(**arguments)
        factor = 1 if tf.executing_eagerly() else -1
        return [outputs[0], factor * outputs[1], *outputs[2:]]

    answer, _ = _answer(moody, "eager+graph+slice")
    assert answer.same == ("slice",)
    np.testing.assert_array_equal(answer.others["graph"].outputs[1], -answer.outputs[1])


def test_bits_are_compared_and_not_numbers():
    zero, nan = np.zeros(2, np.float32), np.array([np.nan, 1], np.float32)
    other_nan = nan.copy()
    other_nan.view(np.uint32)[0] |= 1  # The payload of NaN is exempt.
    assert identical([zero, nan], [zero.copy(), other_nan])
    assert not identical([zero], [-zero])
    assert not identical([nan], [nan + np.float32([0, 1])])
    assert not identical([zero], [zero.astype(np.float64)])
    assert not identical([zero], [zero[:1]])
    assert not identical([zero], [])


# ---- Processes -----------------------------------------------------------------------------------


@pytest.mark.long
def test_calls_with_another_environment_and_calls_that_crash(monkeypatch):
    """Threads have a process of their own; an abort in one call leaves the others their answers."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    running = workers.Worker(Implementation("candidate", "odd_ops:environment"))
    running.expect(["threads1", "eager"])
    try:
        case = generate.parse(TEXT.format("float32", "eager+graph+slice+threads1"))
        running.submit(case, fill(case))
        answer = running.collect()
    finally:
        running.close()
    # It answers with the variable's value, 0 where there is none, and aborts in graphs.
    assert answer.outputs[0] == 0
    assert answer.others["threads1"].outputs[0] == 1
    assert "killed by SIGABRT: in a graph" in answer.others["graph"].crash
    assert answer.same == ("slice",)


@pytest.mark.parametrize(
    ("implementation", "mode", "is_refused"),
    [
        # What a path is made by is no further mode.
        (builtin("eigen", "eigen"), "onednn0", True),
        (builtin("eigen", "eigen"), "unaligned", True),
        (builtin("eigen", "eigen"), "threads1", False),
        (own(), "onednn0", False),
        # Poison is for candidates, of which a built-in keeps the environment that makes it.
        *((builtin("candidate", path), "poison", False) for path in ("onednn", "eigen")),
        *((builtin(path, path), "poison", True) for path in ("onednn", "eigen")),
    ],
)
def test_some_modes_are_not_for_all(implementation, mode, is_refused):
    made = object.__new__(workers.Worker)
    made._implementation = implementation
    assert bool(workers.Worker.refusal(made, mode)) == is_refused


# ---- Verdicts on them ----------------------------------------------------------------------------


def _judge(name, call, change, may_differ=()):
    case = generate.parse(TEXT.format("float32", f"eager+{call}"))
    filled = fill(case)
    right = numpy_kernels.answer(numpy_kernels.Kernel, case, filled.values)
    outputs = [o.copy() for o in right.outputs]
    change(outputs)
    other = Answer(outputs)
    answers = {
        "candidate": right,
        name: dataclasses.replace(right, others={call: other}, same=("slice",)),
    }
    return judge.judge(case, filled, answers, TEXTBOOK, may_differ)


def _one_ulp(outputs):
    outputs[1][3] = np.nextafter(outputs[1][3], np.float32(np.inf))


def _wrong(outputs):
    outputs[1][3] *= 2


def test_candidate_fails_where_one_bit_differs_between_calls():
    result = _judge("candidate", "threads1", _one_ulp)
    assert result.modes == {("candidate", "threads1"): "differs", ("candidate", "slice"): "same"}
    (failure,) = result.failures
    assert failure.startswith("bits differ between eager and threads1: scale_backprop in 1 element")
    assert "first at [3]" in failure


def test_calls_that_may_differ_are_held_to_the_bounds():
    assert not _judge("candidate", "xla", _one_ulp, {"xla"}).failures
    (failure,) = _judge("candidate", "xla", _wrong, {"xla"}).failures
    assert failure.startswith("xla: scale_backprop")


def test_other_bits_of_the_builtin_are_a_note():
    result = _judge("eigen", "threads1", _wrong)
    assert not result.failures
    assert any("eigen: bits differ between eager and threads1" in note for note in result.notes)
    assert result.modes["eigen", "threads1"] == "differs"


def test_calls_are_counted(capsys):
    results = [_judge("eigen", "threads1", _one_ulp) for _ in range(3)]
    entries = [record.of_result(i, result) for i, result in enumerate(results)]
    console = rich.console.Console(width=150)
    terminal._print_modes(console, {"cases": entries, "implementations": ["candidate", "eigen"]})
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("threads1"))
    assert line.split()[-2:] == ["0", "3"]


def test_verdict_of_different_bits():
    assert record.of_result(0, _judge("candidate", "threads1", _one_ulp))["verdict"] == "bits"
    wrong = _judge("candidate", "xla", _wrong, {"xla"})
    assert record.of_result(0, wrong)["verdict"] == "values"
