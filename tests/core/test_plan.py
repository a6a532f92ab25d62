"""The plan of a CPU call, as data: what is decided, why, and that it is what runs.

Promised: a plan is a function of the request (view, dtype, formula, mode, in place, threads
offered, cache sizes) and of nothing else; each decision names its reason; the partition, which
fixes the order of summation, depends on the view alone and has enough blocks for threads, a bounded
workspace and rows of full vectors; TF_BN_OPS_VERBOSE=1 prints the plan of every call in one line of
fixed fields; a malformed request is one sentence.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from build_helpers import run

from tf_bn_ops import __main__ as commands
from tf_bn_ops import explain as explain_command
from tf_bn_ops.harness import c_abi

FIRST, SECOND = "batch_norm_grad", "batch_norm_grad_grad"
WITH_SIDE_INPUT = "batch_norm_grad_ex_add"
L2, LLC = 1 << 20, 32 << 20


def plan(view: tuple[int, int, int], formula: str = FIRST, **request) -> c_abi.Plan:
    return c_abi.explain(
        formula, view, **{"threads": 4, "l2_bytes": L2, "llc_bytes": LLC, **request}
    )


# ---- Decisions -----------------------------------------------------------------------------------

MIB = 1 << 20
T = 3 * 4 * 32 * 64 * 3136  # Bytes of the three tensors of a float32 gradient on (32, 64, 3136).
ADDED = {"formula": WITH_SIDE_INPUT}
ORDER_2 = {"formula": SECOND}
SMOOTH = {"formula": "batch_norm_grad_smooth"}
FROZEN = {"is_training": False}

# (view, request, what the plan says: FIELD=VALUE REASON, ...; either may be left out)
# fmt: off
DECISIONS: list[tuple[tuple[int, int, int], dict[str, Any], str]] = [
    # Threads. Below the serial threshold one thread runs the call.
    ((511, 64, 1), {}, "threads=1 below_serial_threshold, tasks=1 one_thread"),
    ((2, 32, 511), {}, "threads=1 below_serial_threshold, tasks=1 one_thread"),
    ((1022, 64, 1), {}, "threads=1 one_block"),
    ((4, 32, 511), {}, "threads=4 all_offered"),
    # Three threads, 48000 elements, and one of them works: short rows are folded.
    ((6000, 8, 1), {"threads": 3}, "blocks=1, tiles=1, tasks=1, threads=1 one_block"),
    ((100000, 64, 1), {"threads": 1}, "threads= one_offered"),
    ((100000, 64, 1), {"threads": 4}, "threads=4 all_offered"),
    ((1, 4, 8192), {"threads": 64}, "threads=4 few_tasks, tiles=4"),
    # The partition.
    ((9000, 3, 1), {}, "partition= folded_rows"),
    ((9000, 64, 1), {}, "partition= full_rows"),
    ((32, 64, 3136), {}, "partition= long_inner"),
    ((2, 64, 100), {}, "partition= few_outer"),
    # Short rows are folded to whole vectors.
    *(((1000, channels, inner), {}, f"partition=rows, fold={fold}")
      for channels, inner, fold in ((64, 1, 1), (1, 1, 64), (3, 1, 32), (4, 1, 16), (100, 1, 4),
                                    (1000, 1, 1), (3, 7, 16))),
    # Columns whose sums fit L1 bound the tile: three arrays in the first order; eight in the second
    # one, two of them frozen. Tiles are not cut to rows with partial vectors.
    ((5000, 1000, 4), {}, "tile_channels=256 sums_fit_l1"),
    ((5000, 1000, 4), FROZEN, "tile_channels=256 sums_fit_l1"),
    ((5000, 1000, 4), ORDER_2, "tile_channels=96 sums_fit_l1"),
    ((5000, 1000, 4), {**ORDER_2, **FROZEN}, "tile_channels=256 sums_fit_l1"),
    ((5000, 1000, 49), ORDER_2, "tile_channels=16 full_vectors"),
    # Rows of tiles begin at cache lines: of 49 lines, where 5 channels would fit; full vectors,
    # where 8 channels of full lines do not fit; neither of the two.
    ((500, 1000, 196), {}, "tile_channels=4"),
    ((500, 1000, 196), {"dtype": "float64"}, "tile_channels=4"),
    ((500, 1000, 196), {"dtype": "half"}, "tile_channels=4"),
    ((500, 1000, 64), {"dtype": "bfloat16"}, "tile_channels=16"),
    ((500, 1000, 49), {}, "tile_channels=16"),
    ((500, 1000, 17), {}, "tile_channels=48"),
    ((500, 1000, 289), {}, "tile_channels=3"),
    # Channels-last tiles are as wide as rows may be.
    ((50000, 5000, 1), {}, "tile_channels=1024 sums_fit_l1"),
    ((50000, 5000, 1), ORDER_2, "tile_channels=1024 streamed_rows"),
    # The schedule. Frozen is one pass; a group that fits the cache is read once.
    *((view, {**formula, **FROZEN},
       "schedule=frozen_one_pass frozen, second_prefetch= not_applicable")
      for view in ((100352, 64, 1), (32, 64, 196)) for formula in ({}, ORDER_2)),
    ((32, 256, 196), {},
     "schedule=channel_groups group_fits_cache, second_prefetch=none l2_resident"),
    ((32, 256, 196), {"formula": "batch_norm_add"},
     "schedule=channel_groups group_fits_cache, second_prefetch=none prefetched_by_first"),
    ((32, 256, 3136), {"l2_bytes": MIB // 4, "llc_bytes": MIB // 4},
     "schedule=two_passes channel_exceeds_cache"),
    ((100352, 64, 1), {}, "schedule=two_passes channels_last"),
    # Channels last, a group is a part of each of few rows.
    *(((rows, 100000, 1), {**formula, "threads": threads},
       "schedule=channel_groups group_fits_cache, group_channels=1024, second_prefetch=none")
      for rows in (1, 4, 32) for formula in ({}, ORDER_2, {"formula": "batch_norm_add"})
      for threads in (1, 4)),
    ((33, 100000, 1), {}, "schedule=two_passes channels_last"),
    ((32, 64, 196), {"threads": 64}, "schedule=two_passes too_few_channels"),
    ((10000, 4, 9), {"threads": 2}, "schedule=two_passes folded_rows"),
    # The pipeline. A group that fits L2 is packed; one that exceeds it is not copied; groups are as
    # wide as the scratch: three channels of 2 * 2 * 2 * 3000 bytes where a tile would have more.
    ((32, 256, 3136), {"l2_bytes": 2 * MIB},
     "pipeline=packed packed_group, tasks=4 one_task_each, "
     "first_prefetch=fixed_distance pipelined"),
    ((32, 256, 3136), {"l2_bytes": MIB},
     "pipeline=direct group_exceeds_l2, scratch_bytes=0, second_prefetch=fixed_distance"),
    ((2, 400, 3000), {"dtype": "half", "l2_bytes": MIB // 8},
     "group_channels=3 scratch_budget, pipeline=packed"),
    # A channel of over half of L2 is pipelined beyond the LLC: two inputs of 32 * 3136 floats are
    # 0.51 of 1.5 MiB; 64 channels of a tensor fit 32 MiB.
    ((32, 64, 3136), {"l2_bytes": 3 * MIB // 2}, "pipeline=none large_channel_in_llc"),
    ((32, 96, 3136), {"l2_bytes": 3 * MIB // 2}, "pipeline=packed packed_group"),
    # Others are not pipelined: the second order, smooth activations, side inputs, float64, and what
    # the build for old processors runs.
    *(((32, 256, 3136), {"l2_bytes": 2 * MIB, **request}, f"pipeline={said}")
      for said, requests in (
          ("packed", ({"formula": "batch_norm"}, {"formula": "batch_norm_grad_ex"},
                      {"dtype": "half"}, {"dtype": "bfloat16"})),
          ("none no_pipeline_kernel", (ORDER_2, ADDED, {"formula": "batch_norm_smooth"},
                                       {"formula": "batch_norm_grad_ex_from_y"},
                                       {"dtype": "float64"}, {"implementation": "baseline"})),
      ) for request in requests),
    ((32, 256, 196), {}, "pipeline=none sums_exceed_registers"),
    ((3, 16, 2000), {}, "pipeline=none fits_l2s"),
    ((2, 1, 80000), {"threads": 1, "l2_bytes": MIB // 4}, "pipeline=none one_group"),
    ((100352, 64, 1), {}, "pipeline=none not_applicable"),
    ((32, 256, 3136), FROZEN, "pipeline=none not_applicable"),
    # Stores are non-temporal beyond the L2s of four threads together, or the LLC where it is
    # smaller than these; in place never.
    ((32, 64, 3136), {"l2_bytes": T // 4, "llc_bytes": 2 * T}, "store=temporal fits_l2s"),
    ((32, 65, 3136), {"l2_bytes": T // 4, "llc_bytes": 2 * T}, "store=non_temporal exceeds_l2s"),
    ((32, 64, 3136), {"l2_bytes": T, "llc_bytes": T}, "store=temporal fits_llc"),
    ((32, 65, 3136), {"l2_bytes": T, "llc_bytes": T}, "store=non_temporal exceeds_llc"),
    *(((320, 64, 3136), {**mode, **formula, "in_place": True}, "store=temporal in_place")
      for mode in ({}, FROZEN) for formula in ({}, ORDER_2)),
    # The early output: the first pass stores the gradient of a side input, but for a group in cache
    # whose results go past the caches, and a pipeline, which stores all outputs at a time.
    *((view, {**ADDED, "in_place": in_place},
       f"schedule={schedule}, early_output=yes second_pass_reads_it")
      for in_place in (True, False)
      for view, schedule in (((100352, 64, 1), "two_passes"), ((64, 8, 1), "two_passes"),
                             ((5, 16, 4), "channel_groups"))),
    ((32, 256, 196), {**ADDED, "in_place": True},
     "schedule=channel_groups, pipeline=none, store=temporal, "
     "early_output=yes second_pass_reads_it"),
    ((32, 256, 196), ADDED,
     "schedule=channel_groups, pipeline=none, store=non_temporal, early_output=no group_in_cache"),
    ((32, 256, 3136), {**ADDED, "l2_bytes": 2 * MIB},
     "schedule=channel_groups, early_output=no group_in_cache"),
    # A product in the buffer of x_backprop, while the three tensors fit the LLC; of 16-bit types it
    # would be rounded.
    *((view, {**SMOOTH, "in_place": in_place, "llc_bytes": LLC + more},
       f"schedule={schedule}, early_output={said}")
      for in_place in (True, False)
      for view, schedule in (((LLC // (3 * 4 * 64), 64, 1), "two_passes"),
                             ((LLC // (3 * 4 * 64 * 256), 64, 256), "channel_groups"))
      for more, said in ((0, "yes second_pass_reads_it"), (-MIB, "no product_exceeds_llc"))),
    ((1000, 64, 1), {**SMOOTH, "dtype": "half"}, "early_output=no rounded_output"),
    ((1000, 64, 1), {**SMOOTH, **FROZEN}, "early_output=no not_applicable"),
    ((100352, 64, 1), {}, "early_output=no not_applicable"),
    ((100352, 64, 1), ORDER_2, "early_output=no not_applicable"),
    ((100352, 64, 1), {**ADDED, **FROZEN}, "early_output=no not_applicable"),
    # Prefetch: small groups prefetch the next one, whole rows in the order of addresses.
    ((32, 256, 49), {"l2_bytes": 2 * MIB}, "first_prefetch=next_tile small_tile"),
    ((128, 256, 256), {"l2_bytes": 2 * MIB}, "first_prefetch=fixed_distance large_tile"),
    ((100352, 64, 1), {},
     "first_prefetch=fixed_distance whole_rows, second_prefetch=fixed_distance"),
    # Behind an activation there are the passes of the plain gradient: a mask needs no further pass.
    *((view, {"formula": f"batch_norm_grad_ex{suffix}", "threads": 2, **mode},
       f"schedule={'frozen_one_pass' if mode else schedule}")
      for mode in ({}, FROZEN) for suffix in ("", "_from_y", "_add")
      for view, schedule in (((64, 32, 3136), "channel_groups"), ((64, 8, 1), "two_passes"))),
    # No tiles.
    ((0, 8, 4), {}, "schedule=small_outputs no_elements, tasks=0"),
]
# fmt: on


@pytest.mark.parametrize(("view", "request_", "said"), DECISIONS)
def test_each_decision_and_its_reason(view, request_, said):
    found = plan(view, **request_)
    for name, rest in (decision.split("=") for decision in said.split(", ")):
        value, _, reason = rest.partition(" ")
        assert found[name] == value or not value, name
        assert found.reason(name) == reason or not reason, name


# What depends on the vectors of a build: (builds; view, request, what the plan says).
WIDE = ("avx512bf16", "avx512")  # Vectors of a cache line.
BF16 = {"dtype": "bfloat16", "formula": "batch_norm"}
HALF = {"dtype": "half"}
# fmt: off
LOOPS: list[tuple[tuple[str, ...], tuple[int, int, int], dict[str, Any], str]] = [
    # Rows of a strip: what lies in 8 KiB, whole chains of two-level sums, four of those that are
    # stored past the caches.
    (("avx2", *WIDE), (100352, 64, 1), {}, "sum_rows=8 rows_in_strip, store_rows=4 rows_in_strip"),
    (("avx2", *WIDE), (100352, 64, 1), HALF,
     "sum_rows=8 whole_chains, store_rows=8 rows_in_strip"),
    (("avx2", *WIDE), (50, 64, 1), {}, "store=temporal fits_l2s, store_rows=8 rows_in_strip"),
    (("avx2", *WIDE), (100352, 64, 1), FROZEN,
     "sum_rows=8 rows_in_strip, store_rows=0 not_applicable, loops=one rows_read_once"),
    # Rows that alias are stored one by one, but with vectors of a cache line; so they are summed in
    # a loop of their own, unless there is a mask.
    (("avx2",), (6272, 1024, 1), {}, "sum_rows=2 rows_in_strip, store_rows=1 aliased_rows"),
    (WIDE, (6272, 1024, 1), {}, "sum_rows=2 rows_in_strip, store_rows=2 rows_in_strip"),
    (("avx2",), (6272, 1024, 1), FROZEN, "loops=two aliased_rows, store_rows=1 aliased_rows"),
    (("avx2",), (6272, 1024, 1), {**FROZEN, "formula": "batch_norm_grad_ex"},
     "loops=one rows_read_once"),
    (WIDE, (6272, 1024, 1), FROZEN, "loops=one rows_read_once"),
    # Rows of 16-bit types that lie a page apart.
    (("avx2",), (6272, 2080, 1), {**FROZEN, **HALF}, "loops=two far_rows"),
    (("avx2",), (6272, 1984, 1), {**FROZEN, **HALF}, "loops=one rows_read_once"),
    (WIDE, (6272, 2080, 1), {**FROZEN, **HALF}, "loops=one rows_read_once"),
    # Packs, where a strip has four rows or more.
    (("avx2",), (100352, 64, 1), BF16, "packs=yes packed_rows"),
    (("avx2",), (128, 1024, 16), BF16, "packs=no few_rows"),
    (("avx2",), (3, 1024, 1), BF16, "packs=no few_rows"),
    (("avx2", *WIDE), (100352, 64, 1), {}, "packs=no not_applicable"),
    # Full cache lines, which begin at the same column of all rows.
    (("avx2", *WIDE), (140000, 65, 1), {}, "store=temporal rows_apart"),
    (("avx2", *WIDE), (140000, 64, 1), {}, "store=non_temporal exceeds_l2s"),
    (("baseline",), (140000, 64, 1), {}, "store=temporal no_non_temporal_stores"),
    # The early output is stored as the other one is, but in place.
    (("avx2", *WIDE), (100352, 64, 1), ADDED, "early_store=non_temporal exceeds_l2s"),
    (("avx2", *WIDE), (50, 64, 1), ADDED, "early_store=temporal fits_l2s"),
    (("avx2", *WIDE), (100352, 64, 1), {**ADDED, "in_place": True},
     "early_store=temporal in_place"),
    (("avx2", *WIDE), (100352, 64, 1), {}, "early_store=none not_applicable"),
]
# fmt: on


@pytest.mark.parametrize(
    ("build", "view", "request_", "said"),
    [(build, *rest) for builds, *rest in LOOPS for build in builds],
)
def test_how_the_loops_of_a_build_go(build, view, request_, said):
    if build not in c_abi.supported_implementations():
        pytest.skip(f"no {build} here")
    test_each_decision_and_its_reason(view, {**request_, "implementation": build}, said)


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


def test_tiles_cover_each_block_and_groups_all_channels():
    for view in [(1000, 5000, 1), (32, 256, 196), (4, 33, 2000)]:
        found = plan(view)
        width = int(found["tile_channels"])
        assert int(found["tiles"]) == int(found["blocks"]) * -(-view[1] // width)
    found = plan((32, 250, 196))
    groups, width = int(found["groups"]), int(found["group_channels"])
    assert (groups - 1) * width < 250 <= groups * width


def test_the_scratch_holds_two_inputs_of_a_channel_in_l2():
    scratch = int(plan((32, 256, 3136), l2_bytes=2 * MIB)["scratch_bytes"])
    assert 2 * 4 * 32 * 3136 < scratch < int(0.7 * 2 * MIB)


# ---- The partition ------------------------------------------------------------------------------


OUTER = (0, 1, 2, 7, 8, 100, 10**4, 10**7, 1 << 40)
CHANNELS = (0, 1, 3, 64, 1000, 2048, 70000)
INNER = (0, 1, 2, 49, 64, 1024, 1025, 50176)


def test_workspace_is_bounded():
    for outer, channels, inner in itertools.product(OUTER, CHANNELS, INNER):
        if outer * channels * inner > 1 << 47:
            continue  # Larger than any memory.
        plan = c_abi.explain("batch_norm_grad", (outer, channels, inner), dtype="float64")
        blocks, workspace_bytes = int(plan["blocks"]), int(plan["workspace_bytes"])
        # 16 bytes for each partial sum, 8 for the center, 96 for coefficients of float64, padding
        # between those.
        assert workspace_bytes == (16 * blocks + 104) * channels + 12 * 48 * 8
        assert workspace_bytes <= MIB + 512 + 120 * channels  # driver.h
        assert blocks >= 1


def test_the_workspace_of_common_layers_is_on_the_stack(repo_root):
    """Of 256 channels of the first order in one block, 128 of the second."""
    text = (repo_root / "cc" / "tf" / "kernels" / "cpu_launch.cc").read_text()
    (bytes_on_stack,) = map(int, re.findall(r"kStackWorkspaceBytes = (\d+);", text))
    for formula, channels in ((FIRST, 256), ("batch_norm", 256), (SECOND, 128)):
        found = plan((64, channels, 1), formula)
        assert found["blocks"] == "1"
        assert int(found["workspace_bytes"]) <= bytes_on_stack


@pytest.mark.parametrize(
    "view",
    [
        *((32 * 112 * 112, 64, 1), (32, 64, 112 * 112), (1, 1, 10**7), (10**7, 1, 1)),
        (32, 3, 224 * 224),
    ],
)
def test_large_views_have_work_for_many_threads(view):
    blocks = int(c_abi.explain("batch_norm_grad", view)["blocks"])
    assert blocks * (view[1] if view[2] > 1 else 1) >= 64


# ---- The request ---------------------------------------------------------------------------------


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


def run_verbose(code: str, *arguments: str, verbose: str | None = "1", **more: str) -> list[str]:
    """The lines that a process with this code prints on stderr."""
    root = str(pathlib.Path(explain_command.__file__).parents[1])
    changed = {**os.environ, "TF_BN_OPS_VERBOSE": verbose, "PYTHONPATH": root, **more}
    environment = {name: value for name, value in changed.items() if value is not None}
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines()


def parse(line: str) -> tuple[str, dict[str, str]]:
    """The event ("info", "exec") and the fields of a verbose line."""
    prefix, version, event, *fields = line.split(",")
    assert (prefix, version) == ("tf_bn_ops_verbose", "v1")
    assert all(field.count(":") == 1 for field in fields)
    return event, dict(field.split(":", 1) for field in fields)


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


# (view, dtype, bytes that x_backprop begins behind y_backprop and x, modulo 4 KiB; reason)
PLACED = [
    ((2000, 1024, 1), "float32", 0, "exceeds_l2s"),
    ((2000, 1024, 1), "float32", 64, "page_offset_alias"),
    ((2000, 1024, 1), "float32", 128, "page_offset_alias"),
    ((2000, 1024, 1), "float32", 192, "exceeds_l2s"),
    ((2000, 1024, 1), "float32", 4096 - 64, "exceeds_l2s"),
    ((20, 600, 196), "float32", 64, "page_offset_alias"),
    # Loads and stores alternate less closely.
    ((32000, 64, 1), "float32", 64, "exceeds_l2s"),
    ((20, 60, 1960), "float32", 64, "exceeds_l2s"),
    ((4000, 1024, 1), "float16", 64, "exceeds_l2s"),
]
# Calls of each, the inputs anywhere in a page.
RUN_PLACED = f"""
import numpy as np
from tf_bn_ops.harness.c_abi import placed, run
from tf_bn_ops.harness.problems import Problem
for view, dtype, behind, _ in {PLACED}:
    zeros = np.zeros(view, dtype)
    for at in (0, 64, 2048, 4032):
        inputs = {{role: placed(zeros, at) for role in ("y_backprop", "x")}}
        inputs |= dict.fromkeys(("scale", "mean", "variance"), np.ones(view[1], np.float32))
        run(Problem(inputs), outputs={{"x_backprop": placed(zeros, at + behind)}})
"""


def test_stores_that_loads_would_wait_for_are_temporal():
    """Buffers that malloc places one behind the other are one cache line apart, modulo 4 KiB."""
    calls = [fields for event, fields in map(parse, run_verbose(RUN_PLACED)) if event == "exec"]
    found = [(fields["store_reason"], fields["store"]) for fields in calls]
    kinds = {"exceeds_l2s": "non_temporal", "page_offset_alias": "temporal"}
    assert found == [(reason, kinds[reason]) for *_, reason in PLACED for _ in range(4)]


# The second order has two outputs of view shape; argv: bytes that the second one begins behind the
# first one, modulo 4 KiB.
RUN_APART = """
import sys
import numpy as np
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import random_problem
problem = random_problem((20000, 64, 1), "float32", formula="batch_norm_grad_grad")
roles = [role for role, array in c_abi.new_outputs(problem).items() if array.ndim == 3]
zeros = np.zeros((20000, 64, 1), np.float32)
places = dict(zip(roles, (2048, 2048 + int(sys.argv[1])), strict=True))
c_abi.run(problem, outputs={role: c_abi.placed(zeros, at) for role, at in places.items()})
"""


@pytest.mark.parametrize(
    ("behind", "said"), [(64, ("non_temporal", "exceeds_l2s")), (4, ("temporal", "outputs_apart"))]
)
def test_outputs_that_share_no_cache_lines_are_stored_temporally(behind, said):
    _, line = run_verbose(RUN_APART, str(behind))
    fields = parse(line)[1]
    assert (fields["store"], fields["store_reason"]) == said


def test_the_first_line_is_about_the_machine():
    event, fields = parse(run_verbose(CALLS, "4x4x4")[0])
    assert event == "info"
    assert fields == c_abi.explain(FIRST, (1, 1, 1)).machine
    assert fields["isa"] == c_abi.fastest()
    assert fields["isa_reason"] == "first_supported"


def test_the_machine_line_says_why_implementations_were_skipped():
    lines = run_verbose(CALLS, "4x4x4", **{c_abi.ISA_VARIABLE: "baseline"})
    _, fields = parse(lines[0])
    assert (fields["isa"], fields["isa_reason"]) == ("baseline", c_abi.ISA_VARIABLE)
    skipped = dict(entry.split("=") for entry in fields["skipped"].split(";"))
    assert skipped == {
        name: "not_named" if is_supported else "unsupported"
        for name, is_supported in c_abi.implementations().items()
        if name != "baseline"
    }
    assert parse(lines[1])[1]["isa"] == "baseline"


@pytest.mark.parametrize("verbose", [None, "", "0", "False"])
def test_nothing_is_printed_unless_it_is_on(verbose):
    assert run_verbose(CALLS, "4x4x4", verbose=verbose) == []


# ---- explain -------------------------------------------------------------------------------------


def explained(text: str) -> c_abi.Plan:
    words = ["explain", *text.split()]
    return explain_command.plan(commands.parser("explain").parse_args(words))


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("32x56x56x64 NHWC half", {"view": "100352x64x1", "dtype": "half"}),
        (
            "8x256x14x14 NCHW float32 --frozen --threads=4 --in-place",
            {"view": "8x256x196", "mode": "frozen", "in_place": "yes", "threads_offered": "4"},
        ),
        # Leading zeros do not count.
        ("0" * 5000 + "4x4 NC half", {"view": "4x4x1"}),
        # An op or its formula can be named; side input and activation choose an op's formula.
        *(
            (f"4x4x4x4 NHWC half --formula={op}", {"formula": formula})
            for op, formula in (
                ("FusedBatchNormGradGrad", SECOND),
                (SECOND, SECOND),
                ("FusedBatchNormEx", "batch_norm"),
                ("FusedBatchNormEx --side-input", "batch_norm_add"),
                ("FusedBatchNormEx --activation=Silu --side-input", "batch_norm_smooth_add"),
                ("FusedBatchNormGradEx --side-input", "batch_norm_grad"),
                ("FusedBatchNormGradEx --activation=Relu", "batch_norm_grad_ex"),
                ("FusedBatchNormGradEx --activation=Relu6 --side-input", WITH_SIDE_INPUT),
                ("FusedBatchNormGradEx --activation=LeakyRelu", "batch_norm_grad_smooth"),
                (WITH_SIDE_INPUT, WITH_SIDE_INPUT),
            )
        ),
    ],
)
def test_a_description_becomes_a_call(text, call):
    found = explained(text).call
    assert {name: found[name] for name in call} == call


@pytest.mark.parametrize(
    ("activation", "early"), [("Silu", "yes"), ("HardSilu", "no"), ("LeakyRelu", "no")]
)
def test_the_plan_is_of_the_activation(activation, early):
    """A derivative that is cheap is evaluated twice."""
    flags = f"--formula=FusedBatchNormGradEx --activation={activation}"
    plan = explained(f"32x8x8x64 NHWC float32 {flags}")
    assert {field.name: field.value for field in plan.fields}["early_output"] == early


def test_a_formula_of_smooth_activations_is_explained_of_one():
    with pytest.raises(ValueError, match="activation must be that of a formula of smooth ones"):
        c_abi.explain("batch_norm_smooth", (8, 8, 1), activation="Relu")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "required: SHAPE, LAYOUT, DTYPE"),
        ("32x56 NHWC half", "the shape 32x56 has 2 dimensions, but NHWC has 4"),
        ("axb NC half", "the shape 'axb' is not a list of sizes"),
        ("4x-4 NC half", "the shape '4x-4' is not a list of sizes"),
        (f"{2**64}x4 NC half", "is larger than any memory"),
        ("9" * 5000 + "x4 NC half", "is larger than any memory"),
        ("4x4 HWC half", "invalid choice: 'HWC'"),
        ("4x4 NC float16", "invalid choice: 'float16'"),
        ("4x4 NC half fast", "unrecognized arguments: fast"),
        ("4x4 NC half --threads=0", "--threads: '0' is no number from 1 to 65536"),
        ("4x4 NC half --threads=" + "9" * 5000, "is no number from 1 to 65536"),
        ("4x4 NC half --formula=BatchNormStats", "--formula: invalid choice: 'BatchNormStats'"),
        ("4x4 NC half --formula=FusedBatchNormGradV3", "FusedBatchNormGradV3 has no layout 'NC'"),
        (
            "4x4x4x4 NHWC half --formula=FusedBatchNormGrad",
            "has no element type 'half': it has float",
        ),
        ("4x4 NC half --formula=BatchNormTrainingBackprop --frozen", "has no mode 'frozen'"),
        ("4x4 NC half --side-input", "goes with --formula=FusedBatchNormEx or FusedBatch"),
        (
            "4x4x4x4 NHWC half --activation=Relu --formula=FusedBatchNormV3",
            "--activation goes with --formula=FusedBatchNormEx or",
        ),
    ],
)
def test_malformed_descriptions_are_one_sentence(text, sentence, capsys):
    assert commands.main(["tf_bn_ops", "explain", *text.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_a_plan_is_explained_without_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('imported')")
    root = pathlib.Path(explain_command.__file__).parents[1]
    program = [sys.executable, "-m", "tf_bn_ops", "explain", "32x56x56x64", "NHWC", "half"]
    result = run(program, tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{root}")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("batch_norm_grad, training, half: view [outer=100352, ")
    assert "\nschedule " in result.stdout


def test_a_plan_as_json(capsys):
    words = "explain 4x4 NC half --threads=3 --format=json"
    assert commands.main(["tf_bn_ops", *words.split()]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["call"]["threads_offered"] == "3"
    (threads,) = (field for field in report["fields"] if field["name"] == "threads")
    assert (threads["value"], threads["reason"]) == ("1", "below_serial_threshold")


def test_lines_show_each_decision_that_applies_with_its_reason():
    lines = explain_command.lines(explained("6000x8 NC float32 --threads=3"))
    (threads,) = (line for line in lines if line.startswith("threads "))
    assert threads.split(maxsplit=2)[1] == "1"
    assert "one block of 48000 elements" in threads
    assert not any(line.startswith("group_channels") for line in lines)
