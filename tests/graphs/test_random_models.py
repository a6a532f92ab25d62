"""Random Keras models: what they compute is as near to float64 as in Keras alone."""

from __future__ import annotations

import pytest
import random_models

from tf_bn_ops.keras import _fused_call


@pytest.mark.long
def test_random_models():
    """Promise: models of any shape train at most four times as far from float64 as in Keras alone,
    on the switch and with replaced layers."""
    comparison, texts = random_models.run(40, seed=0)
    failures = list(texts)
    assert not failures, "\n".join(failures)
    assert not comparison.refused
    # Nothing is shown by models that stay as they are, or that no float32 could compute.
    assert comparison.replaced > 40
    assert comparison.child.counts["fused"] > 20 and comparison.child.counts["calls"] > 400
    assert comparison.weak <= 6


@pytest.mark.long
def test_a_fault_is_found_and_reduced(monkeypatch):
    """Moving statistics of replaced layers that take each other's place."""
    whole = _fused_call.bindings.fused_batch_norm_ex

    def faulty(*args, **kwargs):
        y, mean, variance, *rest = whole(*args, **kwargs)
        return y, variance, mean, *rest

    monkeypatch.setattr(_fused_call.bindings, "fused_batch_norm_ex", faulty)
    comparison, texts = random_models.run(1, seed=0)
    assert "replaced: statistics" in next(texts)
    comparison.child.close()
