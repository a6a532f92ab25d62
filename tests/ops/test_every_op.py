"""What the library promises of every op, held for each op of the table (tf_bn_ops/spec/ops.py).

An op that is added there is tested by that; tests/op_calls.py makes the calls. What is special to
one op is in test_single_ops.py, and in the files of whole programs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from op_calls import (
    Here,
    assert_all_pass,
    bits,
    call_of,
    combinations,
    drawn,
    in_all_layouts_and_modes,
    own,
    small,
)
from tensorflow.python.framework import kernels, op_def_registry

import tf_bn_ops
from tf_bn_ops import _loader, spec
from tf_bn_ops.conformance.cases import contract, generate, mapping
from tf_bn_ops.conformance.cases.case import Case
from tf_bn_ops.conformance.execution import implementations, signatures, static_shapes, worker
from tf_bn_ops.conformance.models import bounds, inputs
from tf_bn_ops.conformance.models.formula_models import model_of
from tf_bn_ops.conformance.verdict import judge
from tf_bn_ops.generated import bindings
from tf_bn_ops.harness.problems import Inputs
from tf_bn_ops.spec import OPS

WITH_XLA = (_loader.installation().folder / _loader.XLA_LIBRARY).is_file()
needs_xla = pytest.mark.skipif(not WITH_XLA, reason="built without XLA")
FORWARD = (spec.ops.BATCH_NORM, spec.ops.BATCH_NORM_ADD)
of_every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
of_every_twin = pytest.mark.parametrize(
    "op", [op for op in OPS.values() if op.builtin], ids=lambda op: op.name
)
_AVERAGES = ("mean", "variance")  # Of any size where they are not read.
# As few as are quick, and more in the long tier; what `make conformance` asks it asks more often.
times = pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.long)])


# ---- What an op is -------------------------------------------------------------------------------


@of_every_op
def test_the_op_def_is_that_of_the_table(op):
    tf_bn_ops.load()
    op_def = op_def_registry.get(op.registered_name)
    assert [a.name for a in op.inputs] == [a.name for a in op_def.input_arg]
    assert [a.name for a in op.outputs] == [a.name for a in op_def.output_arg]
    attrs = {a.name: a for a in op_def.attr}
    # The length of a list of inputs is no argument, the length of a list of outputs is.
    derived = {"T", "U", "epsilon_rest"} | (spec.LIST_LENGTHS - {*op.attrs})
    assert {*attrs} - derived == {*op.attrs}
    allowed = attrs["T"].allowed_values.list.type
    assert {tf.as_dtype(t).name for t in allowed} == {tf.as_dtype(d).name for d in op.dtypes}
    if "data_format" in attrs:
        formats = [f.decode() for f in attrs["data_format"].allowed_values.list.s]
        assert formats == list(op.layouts)
        assert attrs["epsilon"].default_value.f == np.float32(op.attrs["epsilon"])


@of_every_twin
def test_the_op_def_of_a_twin_is_the_builtins_but_for_name_and_docs(op):
    tf_bn_ops.load()

    def stripped(registered_name: str) -> Any:
        op_def = type(op_def_registry.get(registered_name))()
        op_def.CopyFrom(op_def_registry.get(registered_name))
        op_def.name = op_def.summary = op_def.description = ""
        for part in (*op_def.input_arg, *op_def.output_arg, *op_def.attr):
            part.description = ""
        return op_def

    assert stripped(op.registered_name) == stripped(op.builtin)


@of_every_op
def test_raw_ops_take_the_arguments_of_the_function_by_keyword_only(op):
    raw_op = getattr(tf_bn_ops.raw_ops, op.name)
    function = getattr(bindings, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op.name).lower())
    names = [*(arg.name for arg in op.inputs), *op.attrs, "name"]
    assert list(inspect.signature(function).parameters) == names
    assert list(inspect.signature(raw_op).parameters) == names
    assert function.__doc__
    sentence = f"takes keyword arguments only: {', '.join(names)}$"
    with pytest.raises(TypeError, match=sentence):
        raw_op(1, 2, 3, 4, 5)


@of_every_op
def test_every_device_that_has_kernels_has_those_of_all_types(op):
    tf_bn_ops.load()
    found = kernels.get_registered_kernels_for_op(op.registered_name).kernel
    devices = [kernel.device_type for kernel in found]
    types = {
        tf.as_dtype(value).name
        for kernel in found
        for constraint in kernel.constraint
        if kernel.device_type == "CPU" and constraint.name == "T"
        for value in constraint.allowed_values.list.type
    }
    assert types == {tf.as_dtype(dtype).name for dtype in op.dtypes}
    for device in ("XLA_CPU_JIT", "XLA_GPU_JIT") if WITH_XLA else ():
        assert devices.count(device) == devices.count("CPU"), device


@of_every_op
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_an_epsilon_that_is_no_number_is_refused(op, in_graph):
    """It is an attribute of the op; a number of NumPy is a number."""
    if "epsilon" not in op.attrs:
        pytest.skip("has no epsilon")
    call, tensors, _ = call_of(small(op))

    def with_epsilon(value: Any) -> Any:
        function = lambda: call(tensors, epsilon=value)  # noqa: E731
        return (tf.function(function, autograph=False) if in_graph else function)()

    for value in (tf.constant(1e-3), tf.Variable(1e-3), "small"):
        sentence = "epsilon must be a number, not |Expected float for argument 'epsilon' not"
        with pytest.raises(TypeError, match=sentence):
            with_epsilon(value)
    with_epsilon(np.float32(1e-3))


# ---- Values, in every execution mode -------------------------------------------------------------


@of_every_op
def test_values_are_right_and_bitwise_identical_in_every_execution_mode(op):
    """In all types, layouts and modes: in graphs, in place, on constants, on one tensor as two
    inputs, on parts of arrays, from several threads at once.

    Promise: Every op gives the same bits eagerly, in functions, sessions and loops.
    """
    assert_all_pass(drawn(op, len(combinations(op)), 11, "eager"))
    assert_all_pass(drawn(op, 6, 12, "eager+graph+temporary+alias+slice+unaligned"))
    assert_all_pass([small(op, execution="eager+constant+concurrent")])


@of_every_op
def test_every_kind_of_inputs_and_an_earlier_call_of_the_same_size(op):
    """NaN and infinity stay in their channel, a large mean costs no digits, and so on; memory that
    held something else is written, and no call sees what an earlier one left."""

    def cases() -> Iterator[Case]:
        for number, (name, kind) in enumerate(model_of(op).kinds.items()):
            layouts_and_modes = list(in_all_layouts_and_modes(op))
            layout, mode = layouts_and_modes[number % len(layouts_and_modes)]
            dtype = "float32" if "float32" in op.dtypes else op.dtypes[0]
            yield small(
                op, layout, mode, kind=name, dtype=dtype, seed=number,
                epsilon=inputs.epsilons(kind, op)[0], execution="eager+poison+history",
            )  # fmt: skip

    assert_all_pass(cases())


@of_every_op
def test_empty_tensors_and_single_elements(op):
    def cases() -> Iterator[Case]:
        for layout, mode in in_all_layouts_and_modes(op):
            case = small(op, layout, mode, execution="eager+graph")
            axis = spec.channel_axis(layout) % len(case.shape)
            others = [a for a in range(len(case.shape)) if a != axis]
            without = [[0], [others[-1]], others, *([[axis]] if not op.min_channels else [])]
            for axes, size in [*((axes, 0) for axes in without), (others, 1), ([axis], 1)]:
                shape = [size if a in axes else n for a, n in enumerate(case.shape)]
                yield dataclasses.replace(case, shape=tuple(shape))

    assert_all_pass(cases())


@of_every_op
def test_buffers_are_reused_only_where_nothing_reads_them_later(op):
    for layout, mode in in_all_layouts_and_modes(op):
        call, tensors, _ = call_of(small(op, layout, mode))
        want, given = call(tensors), bits(tensors)

        @tf.function
        def step(tensors: Any) -> Any:
            temporary = {name: tensor * 2 / 2 for name, tensor in tensors.items()}
            kept = {name: tensor * 4 / 4 for name, tensor in tensors.items()}
            return call(temporary), call(kept), kept  # noqa: B023

        forwarded, read, kept = step(tensors)
        assert bits(kept) == bits(tensors) == given
        assert bits(forwarded) == bits(read) == bits(want)


@of_every_op
def test_session_import_and_name(op):
    """The op is in a graph what it is eagerly; after the graph was written and read as well."""
    call, tensors, _ = call_of(small(op))
    want = call(tensors)
    if isinstance(want, tuple):
        assert want._fields == tuple(arg.name for arg in op.outputs)
    with tf.Graph().as_default() as graph:
        fed = {n: tf.compat.v1.placeholder(t.dtype, name=f"in_{n}") for n, t in tensors.items()}
        outputs = tf.nest.flatten(call(fed, name="mine"))
        assert {output.op.name for output in outputs} == {"mine"}
        names = [output.name for output in outputs]
    graph_def = graph.as_graph_def().SerializeToString()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(graph_def), name="")
        got = session.run(names, {f"in_{n}:0": tensor.numpy() for n, tensor in tensors.items()})
    assert bits(got) == bits(want)


def digests(threads: int) -> list[str]:
    """Of the results of large calls of every op, some of each schedule."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    found = []
    for op in OPS.values():
        count = max(12, len(combinations(op)))  # Few of them are large.
        for case in generate.generate(count, 7, combinations(op)):
            if 20_000 < np.prod(case.shape, dtype=np.int64) < 1_000_000:
                call, tensors, _ = call_of(case)
                digest = hashlib.sha256(b"".join(bits(call(tensors))))
                found.append(f"{case} {digest.hexdigest()}")
    return found


@pytest.mark.long
def test_results_are_bitwise_identical_for_any_number_of_intra_op_threads():
    alone, *others = (forked.call(digests, threads) for threads in (1, 2, 7))
    assert others == [alone, alone]
    assert {text.partition(",")[0] for text in alone} == {*OPS}


# ---- Malformed calls, and static shapes ----------------------------------------------------------


@of_every_op
def test_errors_are_the_builtins_or_refusals(op):
    """The built-in is the Eigen path (conftest.py): twins raise its errors, word for word."""
    eigen = Here(implementations.builtin("eigen", "eigen"))
    assert_all_pass(contract.generate(2 * len(contract.kinds(op)), 5, combinations(op)), eigen)


def _shapes_of(op: spec.OpSpec, ops: Any) -> Any:
    """The op as static_shapes asks it."""

    def in_order(names: Any, outputs: Any) -> Any:
        return own()._executor._in_order({"outputs": names}, outputs)

    mapped = mapping.OpMapping(op.name, op.name)
    return signatures.Op(tf, getattr(ops, op.name), mapped, False, in_order).shapes


@of_every_op
@times
def test_static_shapes_are_the_builtins_or_those_of_the_outputs(op, times):
    """Of inputs of which one is partly unknown, all that is known of the others; a contradiction is
    refused as the graph is built."""
    ask, layouts = _shapes_of(op, tf_bn_ops.raw_ops), op.layouts[-1:] if times == 1 else op.layouts
    if op.builtin:
        theirs = _shapes_of(op, tf.raw_ops)
        assert not static_shapes.difference(op, layouts, op.modes, ask, theirs)
        return
    kind_of = {arg.name: arg.kind for arg in op.inputs}
    views = [name for name, kind in kind_of.items() if kind in (spec.VIEW, spec.VIEW_LIST)]
    unread = {name for name, kind in kind_of.items() if kind == spec.OPAQUE}
    for layout, mode in itertools.product(layouts, op.modes):
        attrs = {"data_format": layout, "is_training": mode == "training"}
        attrs |= {"axis": spec.channel_axis(layout), "activation_mode": "Relu"}
        attrs = {name: attrs.get(name, default) for name, default in op.attrs.items()}
        known, *questions = static_shapes.questions(op, layout)
        channels = known[views[0]][spec.channel_axis(layout)]
        shapes = {
            **dict.fromkeys((spec.VIEW, spec.VIEW_LIST), known[views[0]]),
            **dict.fromkeys((spec.CHANNEL, spec.WIDE), (channels,)),
            **{spec.COUNT: (), spec.PLACEHOLDER: (0,)},
            spec.OPAQUE: None,
        }
        whole = [shapes[arg.kind] for arg in op.outputs_with(attrs)]
        assert ask(known, attrs) == whole
        averages = () if contract.reads_averages(small(op, layout, mode), attrs) else _AVERAGES
        for question in questions:
            told = {name: shape for name, shape in question.items() if shape is not None}
            other = {name for name in {*told} - unread if len(told[name]) != len(known[name])}
            other |= {
                name
                for name in {*told} - unread - other - {*averages}
                if any(n not in (None, m) for n, m in zip(told[name], known[name], strict=True))
            }
            found = ask(question, attrs)
            if len(other) == 1:
                # Of an op of one tensor any rank is right.
                assert found is None or len(op.inputs) == 1, (question, found)
            elif not other:
                assert len(found) == len(whole), question
                for has, shape in zip(found, whole, strict=True):
                    assert tf.TensorShape(has).is_compatible_with(shape), question
                if len(told) == len(known) - 1 and len(views) > 1:
                    assert found == whole, question


@of_every_op
def test_a_malformed_call_is_one_sentence_that_xla_says_too(op):
    """Of an op without a twin it says which argument must be what, and what it is.

    Promise: A malformed call of an op is one sentence, below XLA too.
    """
    found = 0
    for case in contract.generate(len(contract.kinds(op)) * 6, 9, combinations(op)):
        if case.kind not in ("error/rank", "error/size"):
            continue
        call, tensors, _ = call_of(case)
        with pytest.raises(tf.errors.InvalidArgumentError) as eager:
            call(tensors)
        text = eager.value.message.removeprefix("Graph execution error:\n\n").split("}} ", 1)[-1]
        text = re.split(r" \[Op:|\n\t \[\[", text)[0]  # Where it was.
        assert "\n" not in text
        if op.builtin is None and op.formula not in FORWARD:
            assert " must " in text
        if WITH_XLA and found < 2:
            signature = [{n: tf.TensorSpec(None, t.dtype) for n, t in tensors.items()}]
            compiled = tf.function(call, input_signature=signature, jit_compile=True)
            with pytest.raises(tf.errors.InvalidArgumentError) as error:
                compiled(tensors)
            assert text in error.value.message
        found += 1
    assert found or len(op.inputs) == 1


REFUSALS = (
    tf.errors.InvalidArgumentError,
    tf.errors.UnimplementedError,  # TensorFlow's own casts.
    tf.errors.NotFoundError,  # No kernel for the types.
    tf.errors.ResourceExhaustedError,
    *(TypeError, ValueError, OverflowError),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, "text", "\0", "NHWC" * 500, b"\xff\xfe", [], {}, [[1.0], [2.0, 3.0]], object(), 1j),
    *(-1, 1 << 40, 1e300, np.nan),
)
ODD_TYPES = ("int32", "string", "complex64", "bool", "float64", "half", "bfloat16", "float32")


def spoiled(tensor: tf.Tensor, rng: np.random.Generator) -> Any:
    """An input of another shape or type, or what is no tensor. Of huge sizes behind a zero
    TensorFlow takes no product."""
    shape, dtype = tensor.shape.as_list(), tensor.dtype
    at = int(rng.integers(max(1, len(shape))))
    before, after = shape[:at], shape[at + 1 :]
    shapes = [[*before, *after], [*before, 2, *shape[at:]], [*before, 0, *after], [1] * 7, []]
    shapes += [[*before, 9, *after], [0, *rng.choice([1 << 31, 1 << 40, 1 << 62], len(shape))]]
    kind = rng.random()
    if kind < 0.1:
        return ODD_VALUES[rng.integers(len(ODD_VALUES))]
    if kind < 0.3:
        dtype = tf.as_dtype(ODD_TYPES[rng.integers(len(ODD_TYPES))])
    else:
        shape = shapes[rng.integers(len(shapes))]
    return tf.fill(shape, "text") if dtype == tf.string else tf.cast(tf.fill(shape, 1.0), dtype)


@of_every_op
@times
def test_several_mistakes_at_once_are_refused_and_change_nothing(op, times):
    """By kernels and by shape functions of partly known shapes; some mistakes cancel each other."""
    call, tensors, attrs = call_of(small(op))
    want, rng, accepted = bits(call(tensors)), np.random.default_rng(13), 0

    def placeholder(given: Any) -> Any:
        if not isinstance(given, tf.Tensor):
            return given
        shape = [None if rng.random() < 0.3 else size for size in given.shape]
        return tf.compat.v1.placeholder(given.dtype, None if rng.random() < 0.2 else shape)

    for number in range(50 * times):
        given, odd = dict(tensors), {}
        for _ in range(rng.integers(1, 4)):
            if attrs and rng.random() < 0.25:
                odd[[*attrs][rng.integers(len(attrs))]] = ODD_VALUES[rng.integers(len(ODD_VALUES))]
            else:
                name = [*tensors][rng.integers(len(tensors))]
                given[name] = spoiled(tensors[name], rng)
        try:
            if number % 2:
                call(given, **odd)
            else:
                with tf.Graph().as_default():
                    call({name: placeholder(value) for name, value in given.items()}, **odd)
            accepted += 1
        except REFUSALS as error:
            assert str(error).strip(), repr(error)
    assert accepted < 35 * times
    assert bits(call(tensors)) == want


_HUGE = {"y_backprop": -3.5e35, "x_backprop_grad": -3.5e35}
_VECTORS = ("scale", "offset", "mean", "variance")
# Malformed calls that advisories, reports and fuzzers have published: layout and shape of x, then
# shapes of vectors, and what else is unusual.
PUBLISHED: dict[str, tuple[str, list[int], dict[str, list[int]], dict[str, Any]]] = {
    "CVE-2021-41223": (
        *("NCHW", [1, 1, 1, 2], {"scale": [1, 1], "mean": [1, 1], "variance": [1, 1, 1]}),
        {"gradient": [1, 1, 3, 3], "epsilon": 1.0},
    ),
    "CVE-2021-29583, one for six": ("NHWC", [2, 2, 2, 6], {key: [1] for key in _VECTORS}, {}),
    "CVE-2021-29583, empty": ("NHWC", [2, 2, 2, 1], {key: [0] for key in _VECTORS}, {}),
    "tensorflow 58999": ("NHWC", [3, 2, 4, 2], {"scale": []}, {}),
    "tensorflow 59001": ("NHWC", [3, 2, 4, 2], {"scale": []}, {"dtype": "half"}),
    "tensorflow 59014": ("NCDHW", [1, 2, 6, 1, 3], {"scale": []}, {"dtype": "half"}),
    "tensorflow 59188": ("NHWC", [3, 2, 4, 2], {}, {"types": {"scale": "uint32"}}),
    "tensorflow 59399": ("NHWC", [3, 2, 4, 2], {}, {"values": {"variance": 0.5}, "epsilon": -1.0}),
    "tensorflow 59399, below": ("NHWC", [3, 2, 4, 2], {}, {"epsilon": -1e30}),
    "fuzzer, one pixel": ("NHWC", [1, 1, 6, 2], {"scale": []}, {}),
    "fuzzer, channels first": ("NCHW", [1, 6, 4, 1], {"scale": []}, {"values": _HUGE}),
    "fuzzer, channels last": ("NHWC", [3, 2, 4, 2], {"scale": []}, {"values": _HUGE}),
    "fuzzer, inference": (
        *("NHWC", [3, 2, 4, 2], {"mean": [], "variance": [1, 1]}, {"mode": "frozen"}),
    ),
    "pytorch 85217": ("NCHW", [2, 3, 4, 4], {"scale": [0] * 10, "mean": [0], "variance": [0]}, {}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_malformed_call_is_refused(name):
    """Or computed, where nothing but epsilon and a variance is unusual.

    Promise: Published malformed calls of batch norm, by name, crash no op.
    """
    layout, shape, vectors, more = PUBLISHED[name]
    asked = 0
    for op in OPS.values():
        alike = [known for known in op.layouts if spec.LAYOUTS[known] == spec.LAYOUTS[layout]]
        mode, dtype = more.get("mode", op.modes[0]), more.get("dtype", op.dtypes[0])
        if not alike or mode not in op.modes or dtype not in op.dtypes:
            continue
        case = small(op, alike[0], mode, shape=tuple(shape), dtype=dtype)
        call, tensors, _ = call_of(dataclasses.replace(case, epsilon=more.get("epsilon", 1e-3)))
        sound, right, _ = call_of(case)
        want = bits(sound(right))
        odd = {arg.name: tensors[arg.name] for arg in op.inputs if arg.name in tensors}
        for arg in op.inputs:
            if arg.name in odd:
                is_gradient = arg.role in ("y_backprop", "x_backprop_grad") and "gradient" in more
                new = (
                    more["gradient"] if is_gradient else vectors.get(arg.role, odd[arg.name].shape)
                )
                value = more.get("values", {}).get(arg.role, 1.0)
                numbers = np.full(new, value).astype(tensors[arg.name].dtype.as_numpy_dtype)
                odd[arg.name] = tf.cast(numbers, more.get("types", {}).get(arg.role, numbers.dtype))
        try:
            call(odd)
            refused = False
        except REFUSALS as error:
            refused = bool(str(error).strip())
        is_told = {arg.role for arg in op.inputs} & {*vectors, *more.get("types", ())}
        assert refused == bool(is_told), (op.name, refused)
        assert bits(sound(right)) == want
        asked += 1
    assert asked


# ---- Compiled by XLA -----------------------------------------------------------------------------


@needs_xla
@of_every_op
@pytest.mark.parametrize("how", ["", "hlo"], ids=["kernels", "hlo"])
@times
def test_compiled(op, how, times, monkeypatch):
    """On a CPU results are bitwise identical to the uncompiled op's, where XLA
    calls its kernel; in operations of XLA they keep the bounds of the kernels."""
    monkeypatch.setenv("TF_BN_OPS_XLA", how)
    count = 2 if times == 1 else len(combinations(op))
    cases = drawn(op, count, 12, "xla" if how else "eager+xla")
    # y in float64 may be an ulp off the y of the kernels, which decides at an activation's bound.
    is_left_out = lambda c: how and c.kind == "odd_statistics" and c.dtype == "float64"  # noqa: E731
    assert_all_pass(case for case in cases if not is_left_out(case))


# ---- tf.vectorized_map ---------------------------------------------------------------------------


@of_every_op
def test_vectorized_map_is_one_call_for_all_iterations(op):
    """With all inputs of each iteration, or with one alone; sums of 16-bit elements in another
    order may differ by some units in the last place.

    Promise: `tf.vectorized_map` calls each op once for all iterations.
    """
    for number, (layout, mode) in enumerate(in_all_layouts_and_modes(op)):
        call, tensors, _ = call_of(
            small(op, layout, mode, dtype=op.dtypes[number % len(op.dtypes)])
        )
        stacked = {n: tf.stack([t, t / 2, t * 2]) for n, t in tensors.items()}
        one_alone = [[*tensors][number % len(tensors)]]
        names = one_alone if (number + number // 2) % 2 else [*tensors]
        each = {name: stacked[name] for name in names}

        def one(values: Any) -> Any:
            return tuple(tf.nest.flatten(call({**tensors, **values})))  # noqa: B023

        got = tf.vectorized_map(one, each, fallback_to_while_loop=False)
        want = [one({n: t[i] for n, t in each.items()}) for i in range(3)]
        for output, *loop in zip(got, *want, strict=True):
            assert output.dtype == loop[0].dtype
            unit = 2.0 ** {"bfloat16": -6, "float16": -9}.get(output.dtype.name, -19)
            a, b = (np.asarray(v).astype(np.float64) for v in (output, np.stack(loop)))
            np.testing.assert_allclose(a, b, rtol=unit, atol=unit * np.abs(b).max(initial=1))


# ---- Gradients -----------------------------------------------------------------------------------

# Statistics are functions of x in training, and constants for TensorFlow's gradients if frozen, of
# the first two orders.
CONSTANTS = {"mean", "variance"}
# What an activation's mask is computed from, and nothing else.
MASKS = {"y", "forward_coefficients"}
# Not differentiated: TensorFlow's gradient of the forward op is of y alone.
OF_Y_ALONE = {"batch_mean", "batch_variance", "saved_mean", "saved_variance", "local_count"}


class Formula:
    """A weighted sum of the outputs of a case by its formula model, in float64."""

    def __init__(self, case: Case, tensors: Mapping[str, Any], attrs: Mapping[str, Any]):
        self.case, op = case, case.spec
        self._axis = spec.channel_axis(case.layout) % len(case.shape)
        self.names = {arg.role: arg.name for arg in op.inputs if arg.name in tensors}
        self.values = {
            role: np.asarray(tensors[name]).astype(np.float64)
            for role, name in self.names.items()
            if role != "forward_coefficients"
        }
        self._attrs = attrs
        rng = np.random.default_rng(1)
        self.weights = {
            arg.name: rng.normal(size=self._outputs(self.values)[arg.role].shape)
            for arg in op.outputs_with(attrs)
            if arg.role in model_of(op).outputs and arg.role not in OF_Y_ALONE
        }

    def _outputs(self, values: Mapping[str, Any]) -> Any:
        values, case = dict(values), self.case
        if self.statistics_follow:
            axes = tuple(a for a in range(len(case.shape)) if a != self._axis)
            values |= {"mean": values["x"].mean(axes), "variance": values["x"].var(axes)}
        expected = judge.expect(case, Inputs(values, attrs=self._attrs), bounds.PROFILES["strict"])
        found = expected.arrays(case.layout)
        return {role: arrays["value"] for role, arrays in found.items()}

    @property
    def statistics_follow(self) -> bool:
        apart = (*FORWARD, *spec.ops.PARTS)
        return self.case.is_training and self.case.spec.formula not in apart

    def loss(self, values: Mapping[str, Any]) -> float:
        outputs = self._outputs(values)
        roles = {arg.name: arg.role for arg in self.case.spec.outputs}
        return float(sum((w * outputs[roles[name]]).sum() for name, w in self.weights.items()))

    def derivative(self, role: str, direction: np.ndarray, step: float = 2.0**-17) -> float:
        """So small a step crosses no bound of an activation."""
        up, down = (
            self.loss({**self.values, role: self.values[role] + by * direction})
            for by in (step, -step)
        )
        return (up - down) / (2 * step)


def weighted(outputs: Any, weights: Mapping[str, np.ndarray]) -> Any:
    named = outputs._asdict() if hasattr(outputs, "_asdict") else {"y": outputs}
    total = tf.zeros([], tf.float64)
    for name, weight in weights.items():
        for output in tf.nest.flatten(named[name]):
            total += tf.reduce_sum(tf.cast(output, tf.float64) * weight)
    return total


@of_every_op
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_gradients_are_the_derivatives_of_the_formula(op, in_graph):
    """By every input, backward and forward, against differences of the formula in float64.

    Promise: Gradients of every op are the derivatives of the formula.
    """
    for layout, mode in [*in_all_layouts_and_modes(op)][: 2 if in_graph else None]:
        case = small(op, layout, mode, dtype="float64" if "float64" in op.dtypes else "float32")
        call, tensors, attrs = call_of(case)
        if "y" not in tensors:  # No y is at a bound of the activation, where rounding decides.
            tensors = {n: t + 0.003 if n == "offset" else t for n, t in tensors.items()}
        formula = Formula(case, tensors, attrs)

        def loss(values: Any) -> Any:
            return weighted(call(values), formula.weights)  # noqa: B023

        def backward(values: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(values)
                total = loss(values)
            return tape.gradient(total, values)

        got = (tf.function(backward) if in_graph else backward)(tensors)
        rng = np.random.default_rng(2)
        for role, name in formula.names.items():
            second_order = op.formula == spec.ops.BATCH_NORM_GRAD_GRAD and not case.is_training
            are_inputs = op.formula in spec.ops.PARTS or second_order
            if role in MASKS or (role in CONSTANTS and not are_inputs):
                assert got[name] is None
                continue
            direction = rng.normal(size=formula.values[role].shape)
            want = formula.derivative(role, direction)
            if got[name] is None:
                assert abs(want) < 1e-7, role
                continue
            assert got[name].dtype == tensors[name].dtype
            terms = got[name].numpy() * direction
            tolerance = (1e-6 if case.dtype == "float64" else 1e-5) * np.abs(terms).sum() + 1e-7
            assert abs(terms.sum() - want) <= tolerance, (role, terms.sum(), want)
            if spec.REQUIRED in op.attrs.values():
                continue  # Its epsilon makes it a function eagerly, which has no forward mode.
            with tf.autodiff.ForwardAccumulator(
                tensors[name], tf.constant(direction, tensors[name].dtype)
            ) as accumulator:
                total = loss(tensors)
            assert abs(float(accumulator.jvp(total)) - want) <= 4 * tolerance, role


@of_every_op
def test_gradients_have_the_type_of_their_inputs(op):
    for dtype in op.dtypes:
        call, tensors, attrs = call_of(small(op, dtype=dtype))
        weights = Formula(small(op, dtype=dtype), tensors, attrs).weights
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = weighted(call(tensors), weights)
        for name, gradient in tape.gradient(total, tensors).items():
            if gradient is not None:
                assert (gradient.dtype, gradient.shape) == (
                    tensors[name].dtype,
                    tensors[name].shape,
                )
                assert np.isfinite(np.asarray(gradient).astype(np.float64)).all()


def test_the_harness_notices_a_wrong_op(monkeypatch):
    """So that no mistake in this file lets everything pass."""
    right = worker.Executor._eager

    def wrong(self: Any, asked: Any) -> Any:
        try:
            return [np.asarray(a + 1, a.dtype) for a in right(self, asked)]
        except Exception:
            return []

    monkeypatch.setattr(worker.Executor, "_eager", wrong)
    for op in OPS.values():
        for kind, sentence in (("normal", "times the bound"), ("error/dtype", "accepted")):
            with pytest.raises(AssertionError, match=sentence):
                assert_all_pass([small(op, kind=kind)])
