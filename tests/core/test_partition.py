"""The fixed partition: enough blocks for threads, a bounded workspace, rows of full vectors."""

from __future__ import annotations

import pytest

from tf_bn_ops.harness import c_abi

MIB = 1 << 20


@pytest.mark.parametrize("outer", [0, 1, 2, 7, 8, 100, 10**4, 10**7, 1 << 40])
@pytest.mark.parametrize("channels", [0, 1, 3, 64, 1000, 2048, 70000])
@pytest.mark.parametrize("inner", [0, 1, 2, 49, 64, 1024, 1025, 50176])
def test_workspace_is_bounded(outer, channels, inner):
    if outer * channels * inner > 1 << 47:
        pytest.skip("larger than any memory")
    plan = c_abi.explain("batch_norm_grad", (outer, channels, inner), dtype="float64")
    blocks, workspace_bytes = int(plan["blocks"]), int(plan["workspace_bytes"])
    # 16 bytes for each partial sum, 88 for coefficients of float64, padding between those.
    assert workspace_bytes == (16 * blocks + 88) * channels + 11 * 48 * 8
    assert workspace_bytes <= MIB + 128 + 104 * channels  # driver.h
    assert blocks >= 1


@pytest.mark.parametrize(
    "view",
    [
        (32 * 112 * 112, 64, 1),
        (32, 64, 112 * 112),
        (1, 1, 10**7),
        (10**7, 1, 1),
        (32, 3, 224 * 224),
    ],
)
def test_large_views_have_work_for_many_threads(view):
    blocks = int(c_abi.explain("batch_norm_grad", view)["blocks"])
    assert blocks * (view[1] if view[2] > 1 else 1) >= 64


@pytest.mark.parametrize(
    ("view", "fold"),
    [
        ((1000, 64, 1), 1),
        ((1000, 1, 1), 64),
        ((1000, 3, 1), 32),
        ((1000, 4, 1), 16),
        ((1000, 100, 1), 4),
        ((1000, 1000, 1), 1),
        ((1000, 3, 7), 16),
    ],
)
def test_short_rows_are_folded_to_whole_vectors(view, fold):
    plan = c_abi.explain("batch_norm_grad", view)
    assert (plan["partition"], plan["fold"]) == ("rows", str(fold))
