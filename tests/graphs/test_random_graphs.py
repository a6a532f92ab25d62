"""Random graphs: what they compute does not depend on being fused; of random_graphs.py."""

from __future__ import annotations

import pytest
import random_graphs


@pytest.mark.long
def test_random_graphs():
    """Promise: What a graph computes does not depend on being fused."""
    result, failures = random_graphs.run(120, seed=0)
    assert not failures, "\n".join(failures)
    # A share of them is fused, in each way: nothing is shown by graphs that stay as they are.
    assert set(result.fused) == {
        "functions",
        "rewritten functions, backward",
        "rewritten functions, forward",
        "rewritten graphs, backward",
        "rewritten graphs, forward",
        "sessions",
    }
    assert min(result.fused.values()) >= 24, result.fused
    assert sum(result.fused.values()) >= sum(result.refused.values())


def test_a_fault_is_found_and_reduced(monkeypatch):
    """A rewriting that exchanges scale and offset."""
    whole = random_graphs.rewrite._fused

    def faulty(graph, output, keep):
        fused, report = whole(graph, output, keep)
        for node in getattr(fused, "node", []):
            if node.op == "TfBnOps>FusedBatchNormEx":
                node.input[1], node.input[2] = node.input[2], node.input[1]
        return fused, report

    monkeypatch.setattr(random_graphs.rewrite, "_fused", faulty)
    _, failures = random_graphs.run(6, seed=0)
    assert failures and "rewrite.fuse, session: output" in failures[0], failures
