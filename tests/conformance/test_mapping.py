"""Candidates from other libraries: mappings, signatures, a library built from its own C++ file.

Promised: differences of OpDefs, shape functions and defaults are named; tolerances widen the bound
of their outputs alone, with a reason; a mistake in a mapping file is one sentence.
"""

import dataclasses
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys

import command
import msgspec
import numpy as np
import numpy_kernels
import pytest
from build_helpers import tool
from numpy_kernels import fill

from tf_bn_ops import library_path, load
from tf_bn_ops._command import UsageError
from tf_bn_ops.conformance.cases import generate, mapping
from tf_bn_ops.conformance.execution import devices, signatures, static_shapes, workers
from tf_bn_ops.conformance.execution.answer import Answer
from tf_bn_ops.conformance.execution.implementations import (
    BUILTIN_OPS,
    of_library,
    own,
    references,
)
from tf_bn_ops.conformance.models import bounds
from tf_bn_ops.conformance.models.batch_norm_grad import OUTPUTS as ROLES
from tf_bn_ops.conformance.verdict import divergences, judge
from tf_bn_ops.conformance.verdict.settings import Settings
from tf_bn_ops.spec import OPS

VENDOR = pathlib.Path(__file__).resolve().parent / "vendor.toml"
KINDS = "random,contract"


def _run(*flags):
    return command.run(f"--kinds={KINDS}", *flags)


@pytest.mark.long
def test_third_party_op_is_judged_by_mapping_file_alone(library, tmp_path):
    """Promise: One command judges an op of anyone's."""
    flags = (f"--mapping={VENDOR}", "--cases=24", f"--json={tmp_path / 'run.json'}")
    result = _run(f"--library={library}", *flags)
    assert result.returncode == 0, result.stdout + result.stderr
    (mapped,) = json.loads((tmp_path / "run.json").read_text())["candidate"]["mapped"]
    assert (mapped["device"], mapped["reference_device"]) == ("CPU:0", "CPU:0")
    assert mapped["tolerances"] == [
        {
            "outputs": ["x_backprop"],
            "dtypes": [],
            "times_bound": 2,
            "reason": "the rows of a channel are summed in one chain, in their order",
        }
    ]
    for said in (
        "inputs are in another order: activations, grad, gamma, mu, var",
        "outputs are in another order: dgamma, dbeta, dx",
        "attr eps has the default 0.001, epsilon of FusedBatchNormGradV2 has 0.0001",
        "bounds float32",
    ):
        assert said in result.stdout
    assert re.search(r"FusedBatchNormGradV2 +float32 +NHWC +training +26 ", result.stdout)


def _drop_type(op):
    (attr,) = (a for a in op.attr if a.name == "T")
    attr.allowed_values.list.type.remove(19)  # DT_HALF


def _attr(name, change):
    return lambda op: [change(a) for a in op.attr if a.name == name]


def _swap(arguments):
    first, second = (type(a).FromString(a.SerializeToString()) for a in arguments[:2])
    arguments[0].CopyFrom(second)
    arguments[1].CopyFrom(first)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda op: None, None, ""),
        (_attr("epsilon", lambda a: setattr(a.default_value, "f", 1e-5)), "defaults",
         "attr epsilon has the default 1e-05, epsilon of FusedBatchNormGradV2 has 0.0001"),
        (_attr("is_training", lambda a: a.ClearField("default_value")), "defaults",
         "attr is_training has the default none, is_training of FusedBatchNormGradV2 has True"),
        (_attr("data_format", lambda a: setattr(a.default_value, "s", b"NCHW")), "defaults",
         "attr data_format has the default 'NCHW', data_format of FusedBatchNormGradV2 has 'NHWC'"),
        (_attr("data_format", lambda a: a.allowed_values.list.s.remove(b"NCHW")), "values", "NCHW"),
        (_drop_type, "types", "not of type half"),
        (lambda op: _swap(op.input_arg), "order", "inputs are in another order"),
        (lambda op: _swap(op.output_arg), "order", "outputs are in another order"),
        (lambda op: op.output_arg.pop(), "outputs", "has no output reserve_space_4"),
        (lambda op: op.input_arg.pop(), "fatal", "has no input reserve_space_2"),
        (lambda op: setattr(op, "is_stateful", True), "flags", "is_stateful of Theirs is True"),
        (lambda op: setattr(op, "is_aggregate", True), "flags", "is_aggregate of Theirs is True"),
        (lambda op: setattr(op.deprecation, "version", 3), "flags", "is deprecated"),
        (lambda op: setattr(op.output_arg[1], "type_attr", "T"), "types",
         "output scale_backprop is not of"),
        (lambda op: setattr(op.input_arg[3], "is_ref", True), "types", "list or a reference"),
        (lambda op: setattr(op.output_arg[0], "number_attr", "n"), "types", "list or a reference"),
        (_attr("epsilon", lambda a: setattr(a, "has_minimum", True)), "values", "a minimum"),
        (_attr("data_format", lambda a: a.ClearField("allowed_values")), "values", "_format: any"),
        (_attr("data_format", lambda a: a.allowed_values.list.s.append(b"NC")), "values", ": NC"),
        (lambda op: _swap([a for a in op.attr if a.name in ("epsilon", "is_training")]), "order",
         "attrs are in another order"),
        (lambda op: op.attr.add(name="more", type="int").default_value.SetInParent(), "attrs",
         "further attr more"),
        (lambda op: op.attr.add(name="more", type="int"), "fatal", "further attr more"),
    ],
)  # fmt: skip
def test_a_difference_of_the_opdefs_is_named(change, kind, said):
    """Where nothing is renamed; what is not claimed may be missing."""
    registry = pytest.importorskip("tensorflow.python.framework.op_def_registry")
    ours = registry.get("FusedBatchNormGradV2")
    theirs = type(ours).FromString(ours.SerializeToString())
    change(theirs)
    entry = mapping.OpMapping("Theirs", "FusedBatchNormGradV2")
    found = signatures.differences(entry, theirs, ours)
    assert {k for k, _ in found} == ({kind} if kind else set()), found
    assert all(said in text for _, text in found)
    narrow = msgspec.structs.replace(entry, dtypes=("float32",), layouts=("NHWC",))
    less = signatures.differences(narrow, theirs, ours)
    not_claimed = said in ("NCHW", "not of type half", "output scale_backprop is not of")
    assert less == ([] if not_claimed else found)


@functools.cache
def _builtin_shapes(name):
    """What TensorFlow infers, asked once: a question takes milliseconds."""
    tf = pytest.importorskip("tensorflow")
    mapped = mapping.OpMapping(name, name)
    builtin = getattr(tf.raw_ops, name)
    ask = signatures.Op(tf, builtin, mapped, False, lambda names, outputs: [*outputs]).shapes
    known = {}

    def shapes(question, attrs):
        key = repr((question, attrs))
        if key not in known:
            known[key] = ask(question, attrs)
        return known[key]

    return shapes


def _changed(op, layout, mode, change):
    """(theirs, ours) for static_shapes.difference; theirs differs in one layout and one mode."""
    ours = _builtin_shapes(op.name)

    def theirs(question, attrs):
        shapes = ours(question, attrs)
        its = attrs["data_format"] == layout and attrs["is_training"] == (mode == "training")
        return change(question, shapes) if its else shapes

    return theirs, ours


# A shape function with one thing wrong, in frozen NCDHW alone.
SHAPE_FAULTS = {
    "nothing inferred": lambda question, shapes: shapes and [None] * len(shapes),
    "channels from x alone": lambda question, shapes: (
        shapes and [s if s is None or len(s) > 1 else (None,) for s in shapes]
        if question["x"] is None else shapes
    ),
    "a rank that does not fit is taken": lambda question, shapes: (
        [None] * 5 if shapes is None and len(question["x"] or ()) == 4 else shapes
    ),
    "a contradiction is not seen": lambda question, shapes: shapes or [None] * 5,
    "placeholders are scalars": lambda question, shapes: shapes and [*shapes[:3], (), ()],
}  # fmt: skip


@pytest.mark.parametrize("fault", [None, *SHAPE_FAULTS])
def test_a_shape_function_that_is_wrong_in_one_layout_and_mode_is_named(fault):
    op, change = OPS["FusedBatchNormGradV3"], SHAPE_FAULTS.get(fault, lambda question, s: s)
    asked = _changed(op, "NCDHW", "frozen", change)
    said = static_shapes.difference(op, op.layouts, op.modes, *asked)
    assert bool(said) == bool(fault), said
    assert not fault or "first in NCDHW, frozen" in said
    # What is not claimed may be wrong.
    assert not static_shapes.difference(op, ("NHWC", "NCHW"), op.modes, *asked)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda given: given, None, ""),
        (lambda given: {"epsilon": 1e-3, **given}, "defaults",
         "without attr epsilon computes something else than one with epsilon=0.0001"),
        (lambda given: {"is_training": False, **given}, "defaults",
         "without attr is_training computes something else than one with is_training=True"),
        (lambda given: given if "epsilon" in given else {}, "defaults",
         "without attr epsilon fails, unlike one with epsilon=0.0001, which is the"),
    ],
)  # fmt: skip
def test_a_call_without_the_optional_attrs_is_compared(change, kind, said):
    """Where OpDefs are equal: what Python, or a kernel, makes of an attr that is not given."""
    tf = pytest.importorskip("tensorflow")
    mapped = mapping.OpMapping("FusedBatchNormGradV3", "FusedBatchNormGradV3")
    of_builtin = tf.raw_ops.FusedBatchNormGradV3
    theirs, ours = (
        signatures.Op(tf, function, mapped, True, lambda names, outputs: list(outputs))
        for function in (lambda **given: of_builtin(**change(given)), of_builtin)
    )
    found = signatures.judge(mapped, theirs, ours)
    assert [k for k, _ in found] == ([kind] if kind else []), found
    assert all(said in text for _, text in found)


@pytest.mark.long
def test_wrong_third_party_op_fails_and_replays(library, tmp_path):
    """Also where its signature is another one, and the mapping does not say so.

    Promise: A wrong op fails, and a command repeats the failing case.
    """
    file, page = tmp_path / "wrong.toml", tmp_path / "run.html"
    text = VENDOR.read_text(encoding="utf-8")
    text = text.replace('differs = ["order", "defaults", "shapes", "values"]', "")
    file.write_text(text.replace("Vendor>BnGrad", "VendorBnGradWrongSign"), encoding="utf-8")
    flags = (f"--mapping={file}", f"--html={page}", "--cases=8")
    result = _run(f"--library={library}", *flags)
    assert result.returncode == 1, result.stdout + result.stderr
    # By the library's names, of outputs as well.
    assert "values of dx: " in result.stdout and "x_backprop" not in result.stdout
    said = "contract of VendorBnGradWrongSign: attr eps has the default 0.001, epsilon of "
    said += "FusedBatchNormGradV2 has 0.0001"
    assert f"FAIL ({said})" in result.stdout and said in page.read_text()
    assert re.search(r"[1-9] of \d+ cases failed, 6 differences of contracts", result.stdout)
    replay = re.search(r"replay: python -m tf_bn_ops conformance (.*)", result.stdout)
    again = _run(*shlex.split(replay.group(1)))
    assert again.returncode == 1, again.stdout + again.stderr
    assert "candidate dx: " in again.stdout
    # What --repro prints last is a program that shows the fault with the library alone.
    program = again.stdout[again.stdout.index('"""VendorBn') :]
    program = program[: program.index("sys.exit(1 if failed else 0)") + 29]
    for name, status in (("VendorBnGradWrongSign", 1), ("Vendor_BnGrad", 0)):
        file = tmp_path / f"{name}.py"
        file.write_text(program.replace("ops.VendorBnGradWrongSign", f"ops.{name}"))
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status, done.stdout + done.stderr
        assert ("dx[" in done.stdout) == bool(status)


@pytest.mark.long
def test_the_readme_shows_a_run_that_finds_a_wrong_op(library, tmp_path, monkeypatch):
    """Its picture, and docs/own_kernel.md, but for numbers: what is not written may be anything.

    Promise: The judge finds the wrong op of the README, as the README shows it.
    """
    root = pathlib.Path(__file__).resolve().parents[2]
    page = root.joinpath("docs", "own_kernel.md").read_text("utf-8")
    picture = root.joinpath("docs", "conformance.svg").read_text("utf-8")
    flags = "--library=libvendor.so --map=UnwrittenTailBnGrad=FusedBatchNormGradV2 "
    flags += "--dtypes=float32 --kinds=random --execution-modes=none --cases=150"
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("libvendor.so").symlink_to(library)
    result = command.run(*flags.split(), "--shrink=0")
    assert result.returncode == 1, result.stderr
    report_picture = tool("report_picture")
    called = f"python -m tf_bn_ops conformance {flags}"
    drawn = report_picture.draw(report_picture.excerpt(result.stdout, called))
    tmp_path.joinpath("conformance.svg").write_text(drawn, encoding="utf-8")  # What it should be.
    shown = re.search(r"```text\n(conformance FAILED.*?)```", page, re.S)[1]
    ours = [without_numbers(line) for line in result.stdout.splitlines()]
    assert all(without_numbers(line) in ours for line in shown.splitlines()), result.stdout
    texts = [re.findall(r"<text[^>]*>(.*)</text>", svg) for svg in (picture, drawn)]
    there, here = ([without_numbers(line) for line in text] for text in texts)
    assert there == here


def without_numbers(line: str) -> str:
    text = re.sub(r"</?tspan[^>]*>|\u00a0|, allowed .*", "", line)
    return re.sub(r"-?\b(\d[\d.]*(e[+-]?\d+)?|inf|nan)\b", "N", text).replace(" ", "")


@pytest.mark.long
@pytest.mark.parametrize(("op", "status"), [("PlainBn", 0), ("SumsByArrivalBn", 1)])
def test_an_order_of_sums_by_arrival_shows_in_a_large_call(library, op, status):
    flags = (f"--map={op}=FusedBatchNormV2", "--dtypes=float32", "--modes=training", "--shrink=0")
    result = command.run(f"--library={library}", *flags, "--kinds=random", "--cases=70")
    assert result.returncode == status, result.stdout + result.stderr
    assert ("and threads1: y in " in result.stdout) == bool(status)


@pytest.mark.long
def test_an_op_that_changes_its_input_is_told_so_and_nothing_else(library, tmp_path):
    """Of which every other execution mode is only a consequence."""
    flags = ("--map=CentersItsInputBnGrad=FusedBatchNormGradV2", "--dtypes=float32", "--cases=12")
    result = _run(f"--library={library}", *flags, f"--json={tmp_path / 'run.json'}")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "changed-input: has changed its input x" in result.stdout
    assert "bits differ" not in result.stdout
    cases = json.loads((tmp_path / "run.json").read_text())["cases"]
    assert {case["verdict"] for case in cases} == {"passed", "changed-input"}
    ((case, program),) = ((c["case"], c["script"]) for c in cases if c["script"])
    assert program.count("base64") == 0, case  # It is reduced.
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "the input x has been changed\nwrong\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("Vendor>BnGrad", "Vendor>BnGrad has no input y_backprop; it has activations"),
        ("NoSuchOp", "the library registers no op NoSuchOp"),
    ],
)
def test_op_that_cannot_be_called_is_one_sentence(library, op, message):
    result = _run(f"--library={library}", f"--map={op}=FusedBatchNormGradV2", "--cases=1")
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_devices_of_a_file_are_asked_for_and_must_be_there(tmp_path):
    """TensorFlow itself would run the op on the CPU and say nothing."""
    file = tmp_path / "ops.toml"
    file.write_text(ENTRY + 'device = "gpu:7"\nreference_device = "CPU"\n', encoding="utf-8")
    by_op = mapping.by_op(mapping.load(file))
    candidate = of_library("libvendor.so", by_op, {})
    assert candidate.devices == {"FusedBatchNormGradV2": "GPU:7"}
    assert [r.devices for r in references([OPS["FusedBatchNormGradV2"]], by_op)] == [
        {"FusedBatchNormGradV2": "CPU:0"}
    ] * 2
    # Any ops will do to ask for the device.
    there = dataclasses.replace(candidate, ops=BUILTIN_OPS, mapped=None)
    worker = workers.Worker(there)
    try:
        with pytest.raises(UsageError, match="no device GPU:7; TensorFlow has CPU:0"):
            worker.wait_until_ready()
    finally:
        worker.close()


def test_references_are_asked_where_that_is_cheap():
    """They find no fault of the candidate, and most of the time went to large cases."""
    asked = references([OPS["FusedBatchNormGradV2"]])
    cases = [generate.parse(CASE.format("normal").replace("3x2x2x4", s)) for s in SHAPES]
    assert [[r.supports(case) for case in cases] for r in asked] == [[True, False]] * 2
    assert all(own().supports(case) for case in cases)


SHAPES = ("3x2x2x4", "64x64x64x4")
CASE = "FusedBatchNormGradV2,float32,NHWC,3x2x2x4,training,{},batch,eps=0.25,eager,seed=1"


@pytest.mark.parametrize("kind", ["normal", "exact"])
def test_tolerance_widens_the_bound_of_its_outputs_alone(kind):
    """By its factor; what may be off need not be exact. The error is measured as ever."""
    case = generate.parse(CASE.format(kind))
    filled = fill(case)
    textbook = bounds.PROFILES["textbook"]
    right = list(numpy_kernels.answer(numpy_kernels.Kernel, case, filled.values).outputs)

    def judged(output, times):
        """With an error of three bounds in an output; exact fills are judged by their bound."""
        loose = dataclasses.replace(filled, exact=frozenset())
        answer = list(right)
        for _ in range(60):
            answer[output] = np.nextafter(answer[output], np.float32(np.inf))
            result = judge.judge(case, loose, {"candidate": Answer(answer)}, textbook)
            if result.paths["candidate"].errors[ROLES[output]].bound > 1.5:
                break
        answers = {"candidate": Answer(answer)}
        return judge.judge(case, filled, answers, textbook, times=times)

    for output, role in enumerate(ROLES):
        assert judged(output, {}).failures
        assert not judged(output, {role: 4.0}).failures
        assert judged(output, {role: 1.1}).failures
        assert judged(output, {ROLES[output - 1]: 4.0}).failures
        assert judged(output, {role: 4.0}).paths["candidate"].errors[role].bound > 1


def test_tolerances_of_a_file_apply_by_output_and_type(tmp_path):
    file = tmp_path / "ops.toml"
    file.write_text(
        ENTRY
        + '[[op.tolerance]]\ntimes_bound = 3\nreason = "r"\noutputs = ["x_backprop"]\n'
        + '[[op.tolerance]]\ntimes_bound = 2\nreason = "r"\ndtypes = ["half"]\n',
        encoding="utf-8",
    )
    (entry,) = mapping.load(file)
    assert entry.times_bound("float32") == {"x_backprop": 3}
    # The first that applies counts.
    assert {role: entry.times_bound("half")[role] for role in ROLES} == {
        "x_backprop": 3, "scale_backprop": 2, "offset_backprop": 2,
    }  # fmt: skip
    by_op = mapping.by_op([entry])
    settings = Settings(
        bounds.PROFILES["textbook"], divergences.Register([]), of_library("", by_op, {})
    )
    assert settings.times(generate.parse(CASE.format("normal"))) == {"x_backprop": 3}
    other = CASE.format("normal").replace("V2", "V3")
    assert settings.times(generate.parse(other)) == {}


ENTRY = '[[op]]\nname = "A"\nlike = "FusedBatchNormGradV2"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing required field `op`"),
        ("[[op", "cannot read"),
        ("a = " + "[" * 100_000, "cannot read|recursion|Too many"),
        ("a = " + "1" * 5000, "cannot read"),
        ('[[op]]\nname = "A"\n', "missing required field `like`"),
        ('[[op]]\nname = "A"\nlike = "B"\n', "'B' is not one of"),
        (
            ENTRY + "colour = 1\n",
            "unknown field `colour` - at `\\$.op\\[0\\]`; .* name, like, dtypes",
        ),
        (ENTRY + 'dtypes = ["int8"]\n', "dtypes of A has 'int8'"),
        (ENTRY + 'layouts = ["NDHWC"]\n', "layouts of A has 'NDHWC'"),
        (ENTRY + "modes = []\n", "length >= 1 - at `\\$.op\\[0\\].modes`"),
        (ENTRY + 'inputs = { z = "y" }\n', "inputs of A has 'z'; known: y_backprop, x"),
        (ENTRY + 'attrs = { z = "y" }\n', "attrs of A has 'z'"),
        (ENTRY + 'device = "?"\n', "names no device"),
        (ENTRY + 'differs = ["colour"]\n', "differs of A has 'colour'; known: outputs, order"),
        (ENTRY + "[[op.tolerance]]\ntimes_bound = 2\n", "missing required field `reason`"),
        (ENTRY + '[[op.tolerance]]\nreason = " "\ntimes_bound = 2\n', "needs a reason"),
        *(
            (ENTRY + f'[[op.tolerance]]\nreason = "r"\n{times}\n', "needs a positive, finite times")
            for times in ("times_bound = 0", "times_bound = nan", "times_bound = inf")
        ),
        (ENTRY + '[[op.tolerance]]\nreason = "r"\nulp = 2\n', "unknown field `ulp`"),
        (
            ENTRY + '[[op.tolerance]]\nreason = "r"\ntimes_bound = 2\noutputs = ["dx"]\n',
            "a tolerance is for 'dx'; known: ",
        ),
    ],
)
def test_mistakes_in_a_mapping_file_are_said(tmp_path, text, message):
    file = tmp_path / "ops.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        mapping.load(file)


# What may stand in the place of a value by mistake; of each field the last is right.
OTHERS = ("3", "true", "nan", '"text"', "[3]", "[[]]", "{ x = 3 }", '[{ x = "y" }]', "2026-01-01")
FIELDS = {
    "name": '"A"', "like": '"fusedbatchnormgradv2"', "dtypes": '["half"]', "layouts": '["NHWC"]',
    "modes": '["frozen"]', "inputs": '{ x = "a" }', "attrs": '{ epsilon = "e" }',
    "outputs": '{ x_backprop = "dx" }', "device": '"cpu"', "reference_device": '"CPU:0"',
    "tolerance": '[{ reason = "r", times_bound = 2 }]', "differs": '["order"]',
    "tolerance.reason": '"r"', "tolerance.times_bound": "2.5",
    "tolerance.outputs": '["x_backprop"]', "tolerance.dtypes": '["half"]',
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_another_type_is_one_sentence_that_names_the_field(field, tmp_path):
    """Also of another form: `[op]` in the place of `[[op]]`, text in the place of a list."""
    file = tmp_path / "ops.toml"
    of_tolerance = field.startswith("tolerance.")
    refused = 0
    for value in (*OTHERS, FIELDS[field]):
        entry = {"name": '"A"', "like": '"FusedBatchNormGradV2"'}
        if of_tolerance:
            tolerance = {"reason": '"r"', "times_bound": "2", field.partition(".")[2]: value}
            inside = ", ".join(f"{key} = {text}" for key, text in tolerance.items())
            entry["tolerance"] = f"[{{ {inside} }}]"
        else:
            entry[field] = value
        file.write_text("[[op]]\n" + "\n".join(f"{key} = {text}" for key, text in entry.items()))
        try:
            mapping.load(file)
        except UsageError as error:
            assert value != FIELDS[field], error
            # Of a text that is none of those that are known the value is named.
            assert field.split(".")[-1] in str(error) or "'text'" in str(error), error
            assert "\n" not in str(error)
            refused += 1
    assert refused >= len(OTHERS) - 1
    for whole in ("[op]\n", 'op = ["A"]\n', "op = 3\n", "[[ops]]\n", "[op.a]\n"):
        file.write_text(whole + 'name = "A"\nlike = "FusedBatchNormGradV2"\n')
        with pytest.raises(UsageError, match=r"`op`|`ops`|\$.op"):
            mapping.load(file)


@pytest.mark.long
def test_an_op_that_cannot_be_called_fails_and_the_others_are_judged(library, tmp_path):
    (tmp_path / "ops.toml").write_text(
        '[[op]]\nname = "Vendor>BnGrad"\nlike = "FusedBatchNormGradV3"\n'
        '[[op]]\nname = "StatelessBnGrad"\nlike = "FusedBatchNormGradV2"\n'
    )
    files = (f"--library={library}", f"--mapping={tmp_path / 'ops.toml'}")
    flags = ("--dtypes=float32", "--layouts=NHWC", f"--json={tmp_path / 'run.json'}", "--cases=4")
    result = command.run(*files, *flags, "--kinds=random")
    assert result.returncode == 1, result.stderr
    said = "Vendor>BnGrad cannot be called as it is mapped: Vendor>BnGrad has no input y_backprop"
    assert f"FAILED, and not judged: {said}" in result.stdout
    assert re.search(r"conformance FAILED: 0 of 4 cases failed, \d+ differences", result.stdout)
    read = json.loads((tmp_path / "run.json").read_text())
    assert {case["op"] for case in read["cases"]} == {"FusedBatchNormGradV2"}
    of_op = {op["name"]: op["departures"] for op in read["candidate"]["mapped"]}
    assert of_op["Vendor>BnGrad"] and not of_op["StatelessBnGrad"]
    case = "FusedBatchNormGradV3,float32,NHWC,1x1x1x1,training,normal,batch,eps=0.1,eager,seed=1"
    again = command.run(*files, f"--repro={case}")
    assert again.returncode == 2 and said in again.stderr and "\n" not in again.stderr.strip()


def test_devices_have_one_spelling_and_must_be_there():
    for text in ("/GPU:0", "gpu:0", "GPU", "/device:GPU:0"):
        assert mapping.parse_device(text) == "GPU:0"
    with pytest.raises(UsageError, match="names no device"):
        mapping.parse_device("the left one")
    devices.check(None, {})
    devices.check("CPU:0", {"devices": ["CPU:0"]})
    with pytest.raises(UsageError, match="no device GPU:0; TensorFlow has CPU:0"):
        devices.check("GPU:0", {"devices": ["CPU:0"]})


def test_two_ops_for_one_are_refused():
    entries = [mapping.parse(f"{name}=FusedBatchNormGradV3") for name in "AB"]
    with pytest.raises(UsageError, match="A and B are both mapped"):
        mapping.by_op(entries)


@pytest.mark.long
def test_op_without_a_builtin_twin_is_a_target_too(tmp_path):
    """The oracle judges it: this library's own, as one of somebody else. In one of the cases rstd
    has no bound where what it is multiplied with is zero."""
    (tmp_path / "ops.toml").write_text(
        '[[op]]\nname = "TfBnOps>FusedBatchNormGradGrad"\nlike = "FusedBatchNormGradGrad"\n'
        'dtypes = ["float32"]\ndiffers = ["attrs"]\n'
    )
    files = (f"--library={library_path()}", f"--mapping={tmp_path / 'ops.toml'}")
    result = _run(*files, "--dtypes=float32", "--cases=20")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "contract of TfBnOps>FusedBatchNormGradGrad passed" in result.stdout
    assert "conformance passed: 0 of 22 cases failed" in result.stdout


def test_an_epsilon_of_less_precision_is_a_note():
    load()
    registry = pytest.importorskip("tensorflow.python.framework.op_def_registry")
    entry = mapping.OpMapping("Theirs", "BatchNormTrainingBackprop")
    ours = registry.get(entry.spec.registered_name)
    theirs = type(ours).FromString(ours.SerializeToString())
    _attr("epsilon", lambda a: setattr(a, "type", "float"))(theirs)
    ((kind, text),) = signatures.differences(entry, theirs, ours)
    assert kind == signatures.NOTE and "has double precision" in text
