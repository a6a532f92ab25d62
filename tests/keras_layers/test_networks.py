"""Whole networks of keras.applications, of tools/train_networks.py: one a day in turn."""

from __future__ import annotations

import datetime

import distances
import numpy as np
import pytest
from build_helpers import tool

networks = tool("train_networks")


@pytest.mark.long
def test_a_network_trains_as_near_to_float64_as_keras():
    """Promise: networks of keras.applications train at most four times as far from float64 as in
    Keras alone, on the switch and with replaced layers."""
    known = networks.names()
    name = known[datetime.date.today().toordinal() % len(known)]
    assert networks.faults(networks.compared(name)) == [], name


def test_a_network_without_batch_norm_is_not_trained(monkeypatch):
    monkeypatch.setattr(networks, "child", lambda *_, **__: {"size": 64, "norms": 0})
    row = networks.compared("VGG16")
    assert networks.faults(row) == []
    table = networks.table({"VGG16": {**row, "wrong": []}})
    assert table.endswith("| VGG16 | 64 | 0 | - | - | - | it has none to train |")


def test_what_is_further_from_float64_is_a_fault():
    rng = np.random.default_rng(0)
    want = {kind: [rng.normal(size=100)] for kind in distances.KINDS}

    def off(scale, **changes):
        got = {kind: [a * (1 + scale * rng.normal(size=100))] for kind, (a,) in want.items()}
        return distances.distances({**got, **changes}, want)

    keras = [off(1e-5), off(1e-5)]
    row = {"norms": 1, "kernels": 1, "keras": keras}
    row["switch"] = distances.ratios(off(2e-5), keras, 2.0**-24)
    spoiled = want["statistics"][0].copy()
    spoiled[3] = np.nan
    row["replaced"] = distances.ratios(off(2e-5, statistics=[spoiled]), keras, 2.0**-24)
    assert networks.faults(row) == ["replaced: statistics inf times as far from float64 as Keras'"]
    row["replaced"] = distances.ratios(off(1e-4), keras, 2.0**-24)
    assert len(networks.faults(row)) == len(distances.KINDS)
    assert "no kernel" in networks.faults({**row, "kernels": 0})[-1]
    diverged = dict.fromkeys(distances.KINDS, np.inf)
    assert not any(distances.ratios(diverged, [diverged, keras[0]], 2.0**-24).values())
