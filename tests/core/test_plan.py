"""The plan of a CPU call, as data: what is decided, why, and that it is what runs.

Promised: a plan is a function of the request (view, dtype, formula, mode, in place, threads
offered, cache sizes) and of nothing else; each decision names its reason; the partition, which
fixes the order of summation, depends on the view alone; TF_BN_OPS_VERBOSE=1 prints the plan of
every call in one line of fixed fields; a malformed request is one sentence.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tf_bn_ops import explain as explain_command
from tf_bn_ops.harness import c_abi

FIRST, SECOND = "batch_norm_grad", "batch_norm_grad_grad"
WITH_SIDE_INPUT = "batch_norm_grad_ex_add"
L2, LLC = 1 << 20, 32 << 20


def plan(view: tuple[int, int, int], formula: str = FIRST, **request) -> c_abi.Plan:
    return c_abi.explain(
        formula, view, **{"threads": 4, "l2_bytes": L2, "llc_bytes": LLC, **request}
    )


# ---- Threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [(511, 64, 1), (2, 32, 511)])
def test_below_the_serial_threshold_one_thread_runs_the_call(view):
    found = plan(view)
    assert (found["threads"], found.reason("threads")) == ("1", "below_serial_threshold")
    assert (found["tasks"], found.reason("tasks")) == ("1", "one_thread")
    above = plan((view[0] * 2, *view[1:]))
    assert above.reason("threads") != "below_serial_threshold"


def test_one_block_that_one_tile_covers_is_one_task():
    """Three threads, 48000 elements, and one of them works: short rows are folded."""
    found = plan((6000, 8, 1), threads=3)
    assert (found["blocks"], found["tiles"], found["tasks"]) == ("1", "1", "1")
    assert (found["threads"], found.reason("threads")) == ("1", "one_block")


def test_one_offered_thread_needs_no_other_reason():
    assert plan((100000, 64, 1), threads=1).reason("threads") == "one_offered"


def test_large_calls_use_all_threads():
    found = plan((100000, 64, 1), threads=4)
    assert (found["threads"], found.reason("threads")) == ("4", "all_offered")


def test_tasks_bound_the_threads():
    found = plan((1, 4, 8192), threads=64)
    assert found.reason("threads") == "few_tasks"
    assert int(found["threads"]) == int(found["tiles"]) == 4


# ---- Partition and tiles -------------------------------------------------------------------------

PARTITION = ("partition", "fold", "blocks")


@pytest.mark.parametrize("view", [(100352, 64, 1), (9000, 3, 1), (8, 300, 49), (3, 7, 9000)])
def test_partition_depends_on_the_view_alone(view):
    requests = [
        {"threads": threads, "dtype": dtype, "formula": formula, "is_training": training}
        for threads in (1, 2, 7, 64)
        for dtype in c_abi.DTYPE_CODES
        for formula in (FIRST, SECOND)
        for training in (True, False)
    ]
    partitions = {tuple(plan(view, **request)[name] for name in PARTITION) for request in requests}
    assert len(partitions) == 1
    known = c_abi.partition(*view)
    assert partitions.pop()[2] == str(known.blocks)


def test_partition_reasons():
    assert plan((9000, 3, 1)).reason("partition") == "folded_rows"
    assert plan((9000, 64, 1)).reason("partition") == "full_rows"
    assert plan((32, 64, 3136)).reason("partition") == "long_inner"
    assert plan((2, 64, 100)).reason("partition") == "few_outer"


def test_tiles_cover_each_block():
    for view in [(1000, 5000, 1), (32, 256, 196), (4, 33, 2000)]:
        found = plan(view)
        width = int(found["tile_channels"])
        assert int(found["tiles"]) == int(found["blocks"]) * -(-view[1] // width)


@pytest.mark.parametrize(
    ("formula", "is_training", "columns"),
    [(FIRST, True, 1024), (FIRST, False, 1024), (SECOND, True, 384), (SECOND, False, 1024)],
)
def test_columns_whose_sums_fit_l1_bound_the_tile(formula, is_training, columns):
    """Three arrays in the first order; eight in the second one, two of them frozen."""
    found = plan((5000, 1000, 4), formula=formula, is_training=is_training)
    assert int(found["tile_channels"]) == columns // 4
    assert found.reason("tile_channels") == "sums_fit_l1"


def test_tiles_are_not_cut_to_rows_with_partial_vectors():
    found = plan((5000, 1000, 49), formula=SECOND)
    assert (found["tile_channels"], found.reason("tile_channels")) == ("16", "full_vectors")


@pytest.mark.parametrize(
    ("dtype", "inner", "channels"),
    [
        ("float32", 196, 4),  # Rows of 49 cache lines; 5 channels would fit.
        ("float64", 196, 4),
        ("half", 196, 4),  # Full vectors: 8 channels, of full lines, do not fit.
        ("bfloat16", 64, 16),
        ("float32", 49, 16),
        ("float32", 17, 48),
        ("float32", 289, 3),  # Neither.
    ],
)
def test_rows_of_tiles_begin_at_cache_lines(dtype, inner, channels):
    found = plan((500, 1000, inner), dtype=dtype)
    assert int(found["tile_channels"]) == channels


def test_channels_last_tiles_are_as_wide_as_rows_may_be():
    for formula, reason in ((FIRST, "sums_fit_l1"), (SECOND, "streamed_rows")):
        found = plan((50000, 5000, 1), formula=formula)
        assert (found["tile_channels"], found.reason("tile_channels")) == ("1024", reason)


# ---- Schedule ------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [(100352, 64, 1), (32, 64, 196)])
@pytest.mark.parametrize("formula", [FIRST, SECOND])
def test_frozen_is_one_pass(view, formula):
    found = plan(view, formula, is_training=False)
    assert (found["schedule"], found.reason("schedule")) == ("frozen_one_pass", "frozen")
    assert found.reason("second_prefetch") == "not_applicable"


def test_group_that_fits_the_cache_is_read_once():
    found = plan((32, 256, 196))
    assert (found["schedule"], found.reason("schedule")) == ("channel_groups", "group_fits_cache")
    assert found["second_prefetch"] == "none"
    assert found.reason("second_prefetch") == "l2_resident"


def test_smaller_caches_end_channel_groups():
    found = plan((32, 256, 3136), l2_bytes=1 << 18, llc_bytes=1 << 18)
    assert found["schedule"] == "two_passes"
    assert found.reason("schedule") == "channel_exceeds_cache"


@pytest.mark.parametrize(
    ("view", "threads", "reason"),
    [
        ((100352, 64, 1), 4, "channels_last"),
        ((32, 64, 196), 64, "too_few_channels"),
        ((10000, 4, 9), 2, "folded_rows"),
    ],
)
def test_two_passes_say_why(view, threads, reason):
    found = plan(view, threads=threads)
    assert (found["schedule"], found.reason("schedule")) == ("two_passes", reason)


def test_every_channel_is_in_one_group():
    found = plan((32, 250, 196))
    groups, width = int(found["groups"]), int(found["group_channels"])
    assert (groups - 1) * width < 250 <= groups * width


# ---- Pipeline ------------------------------------------------------------------------------------


def test_a_group_that_fits_l2_is_packed():
    """Two inputs of 32 * 3136 floats: 803 kB of 1.4 MiB that a scratch may take."""
    found = plan((32, 256, 3136), l2_bytes=2 << 20)
    assert (found["pipeline"], found.reason("pipeline")) == ("packed", "packed_group")
    assert 2 * 4 * 32 * 3136 < int(found["scratch_bytes"]) < int(0.7 * (2 << 20))
    assert (found["tasks"], found.reason("tasks")) == ("4", "one_task_each")
    assert (found["first_prefetch"], found.reason("first_prefetch")) == (
        "fixed_distance",
        "pipelined",
    )


def test_groups_are_as_wide_as_the_scratch():
    """Three channels of 2 * 2 * 2 * 8000 bytes where a tile would have two more."""
    found = plan((2, 400, 3000), dtype="half", l2_bytes=1 << 17)
    width = int(0.7 * (1 << 17)) // (2 * 2 * 2 * 3000)
    assert (found["group_channels"], found.reason("group_channels")) == (
        str(width),
        "scratch_budget",
    )
    assert found["pipeline"] == "packed"


def test_a_group_that_exceeds_l2_is_not_copied():
    found = plan((32, 256, 3136), l2_bytes=1 << 20)
    assert (found["pipeline"], found.reason("pipeline")) == ("direct", "group_exceeds_l2")
    assert found["scratch_bytes"] == "0"
    assert found["second_prefetch"] == "fixed_distance"


@pytest.mark.parametrize(
    ("channels", "pipeline", "reason"),
    [(64, "none", "large_channel_in_llc"), (96, "packed", "packed_group")],
)
def test_a_channel_of_over_half_of_l2_is_pipelined_beyond_the_llc(channels, pipeline, reason):
    """Three inputs of 32 * 3136 floats are 0.57 of 2 MiB; 64 channels of a tensor fit 32 MiB."""
    found = plan((32, channels, 3136), SECOND, l2_bytes=2 << 20, llc_bytes=32 << 20)
    assert (found["pipeline"], found.reason("pipeline")) == (pipeline, reason)


@pytest.mark.parametrize(
    ("view", "request_", "reason"),
    [
        ((32, 256, 196), {}, "sums_exceed_registers"),
        ((3, 16, 2000), {}, "fits_l2s"),
        ((2, 1, 80000), {"threads": 1, "l2_bytes": 1 << 18}, "one_group"),
        ((100352, 64, 1), {}, "not_applicable"),
        ((32, 256, 3136), {"is_training": False}, "not_applicable"),
    ],
)
def test_other_calls_are_not_pipelined(view, request_, reason):
    found = plan(view, **request_)
    assert (found["pipeline"], found.reason("pipeline")) == ("none", reason)


# ---- Stores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("l2_of_tensors", "level"), [(0.25, "l2s"), (1, "llc")])
def test_stores_are_non_temporal_beyond_the_caches(l2_of_tensors, level):
    """Of four threads: their L2s together, or the LLC where it is smaller than these."""
    tensors = 3 * 4 * 32 * 64 * 3136
    l2 = int(l2_of_tensors * tensors)
    llc = 2 * tensors if level == "l2s" else tensors
    small = plan((32, 64, 3136), l2_bytes=l2, llc_bytes=llc)
    assert (small["store"], small.reason("store")) == ("temporal", f"fits_{level}")
    large = plan((32, 65, 3136), l2_bytes=l2, llc_bytes=llc)
    assert (large["store"], large.reason("store")) == ("non_temporal", f"exceeds_{level}")


@pytest.mark.parametrize("formula", [FIRST, SECOND])
@pytest.mark.parametrize("is_training", [True, False])
def test_stores_in_place_are_never_non_temporal(formula, is_training):
    found = plan((320, 64, 3136), formula, in_place=True, is_training=is_training)
    assert (found["store"], found.reason("store")) == ("temporal", "in_place")


# ---- Early output --------------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("view", "schedule"),
    [((100352, 64, 1), "two_passes"), ((64, 8, 1), "two_passes"), ((5, 16, 4), "channel_groups")],
)
def test_the_first_pass_stores_the_gradient_of_a_side_input(view, schedule, in_place):
    found = plan(view, WITH_SIDE_INPUT, in_place=in_place)
    assert found["schedule"] == schedule
    assert (found["early_output"], found.reason("early_output")) == ("yes", "second_pass_reads_it")


@pytest.mark.parametrize(("in_place", "early"), [(True, "yes"), (False, "no")])
def test_a_group_in_cache_is_not_fetched_from_memory_again(in_place, early):
    """Results go past the caches; in place they do not."""
    found = plan((32, 256, 196), WITH_SIDE_INPUT, in_place=in_place)
    assert (found["schedule"], found["pipeline"]) == ("channel_groups", "none")
    assert found["store"] == ("temporal" if in_place else "non_temporal")
    reason = "second_pass_reads_it" if in_place else "group_in_cache"
    assert (found["early_output"], found.reason("early_output")) == (early, reason)


def test_a_pipeline_stores_all_outputs_at_a_time():
    found = plan((32, 256, 3136), WITH_SIDE_INPUT, l2_bytes=2 << 20)
    assert found["pipeline"] == "packed"
    assert (found["early_output"], found.reason("early_output")) == ("no", "pipelined_outputs")


@pytest.mark.parametrize(
    ("formula", "is_training"), [(FIRST, True), (SECOND, True), (WITH_SIDE_INPUT, False)]
)
def test_other_calls_have_no_early_output(formula, is_training):
    found = plan((100352, 64, 1), formula, is_training=is_training)
    assert (found["early_output"], found.reason("early_output")) == ("no", "not_applicable")


# ---- Prefetch ------------------------------------------------------------------------------------


def test_small_groups_prefetch_the_next_one():
    small = plan((32, 256, 49), l2_bytes=2 << 20)
    assert (small["first_prefetch"], small.reason("first_prefetch")) == ("next_tile", "small_tile")
    large = plan((128, 256, 256), l2_bytes=2 << 20)
    assert large["first_prefetch"] == "fixed_distance"
    assert large.reason("first_prefetch") == "large_tile"


def test_whole_rows_are_prefetched_in_the_order_of_addresses():
    found = plan((100352, 64, 1))
    assert found["first_prefetch"] == found["second_prefetch"] == "fixed_distance"
    assert found.reason("first_prefetch") == "whole_rows"


# ---- No tiles ------------------------------------------------------------------------------------


def test_without_elements_only_small_outputs_are_written():
    found = plan((0, 8, 4))
    assert (found["schedule"], found.reason("schedule")) == ("small_outputs", "no_elements")
    assert found["tasks"] == "0"


def test_the_reference_has_no_tiles():
    found = plan((32, 64, 196), implementation="reference")
    assert (found["schedule"], found["threads"], found["tiles"]) == ("reference", "1", "0")


# ---- The request ---------------------------------------------------------------------------------


def test_equal_requests_have_equal_plans():
    assert plan((32, 64, 196)) == plan((32, 64, 196))


def test_cache_sizes_of_zero_are_those_of_this_machine():
    found = c_abi.explain(FIRST, (32, 64, 196))
    assert int(found.call["llc_bytes"]) == c_abi.last_level_cache()
    assert found.call["l2_bytes"] == found.machine["l2_bytes"]


def test_every_reason_has_a_sentence_without_open_slots():
    for view in [(6000, 8, 1), (32, 64, 3136), (100352, 64, 1), (0, 1, 1)]:
        for field in plan(view).fields:
            assert (field.reason is None) == (field.why is None)
            assert field.why is None or (len(field.why) > 10 and "{" not in field.why)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"formula": "layer_norm"}, 'there is no formula "layer_norm"'),
        ({"threads": 0}, "threads must be at least 1"),
        ({"l2_bytes": -1}, f"l2_bytes and llc_bytes must be at least 0 and at most {2**40}"),
        ({"llc_bytes": 1 << 62}, f"l2_bytes and llc_bytes must be at least 0 and at most {2**40}"),
        ({"view": (-1, 1, 1)}, "outer, channels and inner must not be negative"),
        ({"implementation": "mmx"}, 'there is no CPU implementation "mmx"'),
    ],
)
def test_malformed_requests_are_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        c_abi.explain(**{"formula": FIRST, "view": (4, 4, 4), **changes})


def test_a_short_buffer_is_refused_and_not_overrun():
    lib = c_abi.library()
    args = c_abi.ExplainArgs(4, 4, 4, 0, 1, 0, 1, 0, 0)
    text = c_abi.ctypes.create_string_buffer(b"x" * 64)
    error = c_abi.ctypes.create_string_buffer(128)
    assert lib.tfbn_explain(FIRST.encode(), args, None, text, 32, error, len(error)) == 1
    assert error.value.startswith(b"json_size must be at least ")
    assert text.value == b"x" * 64


# ---- TF_BN_OPS_VERBOSE ---------------------------------------------------------------------------

# Views below and above the serial threshold, of all schedules; argv: views, each of them called in
# all modes, dtypes, numbers of threads and in place, by two threads at once.
CALLS = """
import sys, threading
import numpy as np
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem
views = [tuple(map(int, v.split("x"))) for v in sys.argv[1:]]
def call(view, threads, training, in_place):
    dy, x = np.ones((2, *view), np.float32)
    one = np.ones(view[1], np.float32)
    inputs = {"y_backprop": dy, "x": x, "scale": one, "mean": one, "variance": one}
    outputs = {"x_backprop": dy} if in_place else {}
    c_abi.run(Problem(inputs, is_training=training), threads=threads, outputs=outputs)
def all_calls():
    for view in views:
        for threads in (1, 3):
            for training in (False, True):
                for in_place in (False, True):
                    call(view, threads, training, in_place)
workers = [threading.Thread(target=all_calls) for _ in range(2)]
for w in workers: w.start()
for w in workers: w.join()
"""


# A call whose bits are printed.
BITS = """
import sys
import numpy as np
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem
dy, x = np.random.default_rng(1).standard_normal((2, 100, 40, 30)).astype(np.float32)
one = np.ones(40, np.float32)
inputs = {"y_backprop": dy, "x": x, "scale": one, "mean": one, "variance": one}
print("bits", hash(c_abi.bits(c_abi.run(Problem(inputs), threads=3))), file=sys.stderr)
"""


def run_verbose(code: str, *arguments: str, verbose: str | None = "1") -> list[str]:
    """The lines that a process with this code prints on stderr."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_BN_OPS_VERBOSE"}
    if verbose is not None:
        environment["TF_BN_OPS_VERBOSE"] = verbose
    package = os.path.dirname(os.path.dirname(os.path.abspath(explain_command.__file__)))
    environment["PYTHONPATH"] = package
    environment["PYTHONHASHSEED"] = "0"
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines()


def parse(line: str) -> tuple[str, dict[str, str]]:
    """The event ("info", "exec") and the fields of a verbose line."""
    prefix, version, event, *fields = line.split(",")
    assert (prefix, version) == ("tf_bn_ops_verbose", "v1")
    pairs = [tuple(field.split(":")) for field in fields]
    assert all(len(pair) == 2 for pair in pairs)
    return event, dict(pairs)


def test_every_call_prints_the_plan_that_it_executes():
    views = ["100x3x1", "6000x8x1", "32x16x784", "30000x40x1", "0x4x1"]
    events = [parse(line) for line in run_verbose(CALLS, *views)]
    assert [event for event, _ in events].count("info") == 1
    calls = [fields for event, fields in events if event == "exec"]
    assert len(calls) == 2 * len(views) * 8
    names = {tuple(fields) for fields in calls}
    assert len(names) == 1, "the fields and their order are fixed"
    for fields in calls:
        expected = c_abi.explain(
            fields["formula"],
            tuple(map(int, fields["view"].split("x"))),
            dtype=fields["dtype"],
            is_training=fields["mode"] == "training",
            in_place=fields["in_place"] == "yes",
            threads=int(fields["threads_offered"]),
        )
        assert {k: fields[k] for k in expected.call} == expected.call
        aliased = fields.get("store_reason") == "page_offset_alias"  # As malloc placed them.
        assert not aliased or expected["store"] == "non_temporal"
        for field in expected.fields:
            if aliased and field.name == "store":
                continue
            assert fields[field.name] == field.value
            assert fields.get(f"{field.name}_reason") == field.reason
        assert float(fields["time_ms"]) >= 0


# A call with x_backprop so many bytes behind y_backprop and x, modulo 4 KiB.
PLACED = """
import sys
import numpy as np
from tf_bn_ops.harness.c_abi import placed, run
from tf_bn_ops.harness.problems import Problem
zeros = np.zeros(tuple(map(int, sys.argv[1].split("x"))), sys.argv[2])
at, behind = map(int, sys.argv[3:])
inputs = {role: placed(zeros, at) for role in ("y_backprop", "x")}
inputs |= dict.fromkeys(("scale", "mean", "variance"), np.ones(zeros.shape[1], np.float32))
run(Problem(inputs), outputs={"x_backprop": placed(zeros, at + behind)})
"""


@pytest.mark.parametrize(
    ("view", "dtype", "behind", "reason"),
    [
        ("2000x1024x1", "float32", 0, "exceeds_l2s"),
        ("2000x1024x1", "float32", 64, "page_offset_alias"),
        ("2000x1024x1", "float32", 128, "page_offset_alias"),
        ("2000x1024x1", "float32", 192, "exceeds_l2s"),
        ("2000x1024x1", "float32", 4096 - 64, "exceeds_l2s"),
        ("20x600x196", "float32", 64, "page_offset_alias"),
        # Loads and stores alternate less closely.
        ("32000x64x1", "float32", 64, "exceeds_l2s"),
        ("20x60x1960", "float32", 64, "exceeds_l2s"),
        ("4000x1024x1", "float16", 64, "exceeds_l2s"),
    ],
)
def test_stores_that_loads_would_wait_for_are_temporal(view, dtype, behind, reason):
    """Buffers that malloc places one behind the other are one cache line apart, modulo 4 KiB."""
    for anywhere in (0, 64, 2048, 4032):
        lines = run_verbose(PLACED, view, dtype, str(anywhere), str(behind))
        fields = parse(lines[-1])[1]
        assert fields["store_reason"] == reason
        aliased = reason == "page_offset_alias"
        assert fields["store"] == ("temporal" if aliased else "non_temporal")


def test_the_first_line_is_about_the_machine():
    event, fields = parse(run_verbose(CALLS, "4x4x4")[0])
    assert event == "info"
    assert fields == c_abi.explain(FIRST, (1, 1, 1)).machine
    assert fields["isa"] == c_abi.fastest()
    assert fields["isa_reason"] == "first_supported"


def test_the_machine_line_says_why_implementations_were_skipped(monkeypatch):
    monkeypatch.setenv(c_abi.ISA_VARIABLE, "reference")
    lines = run_verbose(CALLS, "4x4x4")
    _, fields = parse(lines[0])
    assert (fields["isa"], fields["isa_reason"]) == ("reference", c_abi.ISA_VARIABLE)
    skipped = dict(entry.split("=") for entry in fields["skipped"].split(";"))
    assert skipped == {
        one.name: "not_named" if one.supported else "unsupported"
        for one in c_abi.implementations()
        if one.name != "reference"
    }
    assert parse(lines[1])[1]["schedule"] == "reference"


@pytest.mark.parametrize("verbose", [None, "", "0", "false", "False"])
def test_nothing_is_printed_unless_it_is_on(verbose):
    assert run_verbose(CALLS, "4x4x4", verbose=verbose) == []


def test_results_do_not_depend_on_it():
    off, on = run_verbose(BITS, verbose=None), run_verbose(BITS)
    assert off[-1] == on[-1]
    assert len(on) == len(off) + 2


# ---- doctor --explain ----------------------------------------------------------------------------


def test_explained_shapes_become_views():
    found = explain_command.explain("32x56x56x64,NHWC,half")
    assert (found.call["view"], found.call["dtype"]) == ("100352x64x1", "half")
    found = explain_command.explain("8x256x14x14,NCHW,float32,frozen,threads=4,in_place")
    assert found.call["view"] == "8x256x196"
    assert (found.call["mode"], found.call["in_place"]) == ("frozen", "yes")
    assert found.call["threads_offered"] == "4"


def test_leading_zeros_do_not_count():
    assert explain_command.explain("0" * 5000 + "4x4,NC,half").call["view"] == "4x4x1"


@pytest.mark.parametrize("op", ["FusedBatchNormGradGrad", SECOND])
def test_an_op_or_its_formula_can_be_named(op):
    assert explain_command.explain(f"4x4x4x4,NHWC,half,{op}").call["formula"] == SECOND


@pytest.mark.parametrize(
    ("op", "formula"),
    [
        ("FusedBatchNormEx", "batch_norm"),
        ("FusedBatchNormEx,side_input", "batch_norm_add"),
        ("FusedBatchNormGradEx", "batch_norm_grad_ex"),
        ("FusedBatchNormGradEx,side_input", WITH_SIDE_INPUT),
        (WITH_SIDE_INPUT, WITH_SIDE_INPUT),
    ],
)
def test_a_side_input_chooses_the_formula(op, formula):
    assert explain_command.explain(f"4x4x4x4,NHWC,half,{op}").call["formula"] == formula


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not of the form SHAPE,LAYOUT,DTYPE"),
        ("32x56x56x64", "is not of the form SHAPE,LAYOUT,DTYPE"),
        ("32x56,NHWC,half", "the shape 32x56 has 2 dimensions, but NHWC has 4"),
        ("axb,NC,half", "the shape 'axb' is not a list of sizes"),
        ("4x-4,NC,half", "the shape '4x-4' is not a list of sizes"),
        (f"{2**64}x4,NC,half", "is larger than any memory"),
        ("9" * 5000 + "x4,NC,half", "is larger than any memory"),
        ("4x4,HWC,half", "there is no layout 'HWC'"),
        ("4x4,NC,float16", "there is no element type 'float16'"),
        ("4x4,NC,half,fast", "there is no option 'fast'"),
        ("4x4,NC,half,threads=0", "threads=0 is not a number of threads"),
        ("4x4,NC,half,threads=x", "threads=x is not a number of threads"),
        ("4x4,NC,half,threads=" + "9" * 5000, "is not a number of threads"),
        ("4x4,NC,half,threads=" + "0" * 5000 + "1", "is not a number of threads"),
        ("4x4,NC,half,training,frozen", "mode is given twice"),
        ("4x4,NC,half,FusedBatchNormV3,batch_norm", "op is given twice"),
        ("4x4,NC,half,in_place,in_place", "in_place is given twice"),
        ("4x4,NC,half,threads=1,threads=2", "threads is given twice"),
        ("4x4,NC,half,BatchNormStats", "there is no option 'BatchNormStats'"),
        ("4x4,NC,half,FusedBatchNormGradV3", "FusedBatchNormGradV3 has no layout 'NC'"),
        ("4x4x4x4,NHWC,half,FusedBatchNormGrad", "has no element type 'half': it has float32"),
        ("4x4,NC,half,BatchNormTrainingBackprop,frozen", "has no mode 'frozen': it has training"),
        ("4x4,NC,half,side_input", "an op that may have one: FusedBatchNormEx or FusedBatchNormG"),
        ("4x4,NC,half,batch_norm,side_input", "side_input goes with an op"),
        ("4x4x4x4,NHWC,half,FusedBatchNormV3,side_input", "FusedBatchNormV3 has no side input"),
    ],
)
def test_malformed_descriptions_are_one_sentence(text, sentence):
    with pytest.raises(explain_command.UsageError) as refused:
        explain_command.explain(text)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_lines_show_each_decision_that_applies_with_its_reason():
    lines = explain_command.lines(explain_command.explain("6000x8,NC,float32,threads=3"))
    (threads,) = (line for line in lines if line.startswith("threads "))
    assert threads.split(maxsplit=2)[1] == "1"
    assert "one block of 48000 elements" in threads
    assert not any(line.startswith("group_channels") for line in lines)
